"""A sweep that is killed, repeated and extended ends as if nothing had happened. As a user types it, in processes."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from toydepth import store

SIZE = [
    "teacher.depth=8", "teacher.width=4", "teacher.hidden=8", "train.batch=32", "train.steps=2000", "optimizer=adam",
    "train.eval_every=250", "train.eval_batches=2", "train.checkpoint_every=500", "sweep.name=s",
    "sweep.report=false",
]  # fmt: skip
STEPS = 2000
GRID = ["teacher=tied,independent", "student.depth=1", "seed=0,1"]
LARGER = ["teacher=tied,independent", "student.depth=1,2", "seed=0,1,2"]


def command(words):
    return [sys.executable, "-m", "toydepth", "run", "-m", *words]


def run(folder, words):
    folder.mkdir(exist_ok=True)
    return subprocess.run(command(words), cwd=folder, capture_output=True, text=True, timeout=600)


def runs(folder):
    return {path.name: path for path in (folder / "outputs" / "s" / "runs").glob("*")}


def numbers(run):
    """What a run's folder says that does not depend on the machine's speed."""
    result = json.loads((run / "result.json").read_text())
    history = store.history(run).drop("seconds").rows()
    return {name: result[name] for name in ("loss", "loss_sem", "half_loss", "slope", "steps", "status")}, history


def results(folder):
    return {name: numbers(path) for name, path in runs(folder).items()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    done = run(folder, [*LARGER, *SIZE])
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_kill_and_repeat_with_more(undisturbed, tmp_path):
    process = subprocess.Popen(
        command([*GRID, *SIZE]), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_until(process, lambda: all(middle(tmp_path)))
    finally:
        os.kill(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    finished, under_way = middle(tmp_path)  # what the kill left
    assert finished
    assert under_way
    stamps = {path: (path / "result.json").stat().st_mtime_ns for path in finished}
    begun = {path: lines_until(path, max(steps(path))) for path in under_way}

    done = run(tmp_path, [*LARGER, *SIZE])
    assert done.returncode == 0, done.stderr
    assert f"12 done ({len(finished)} of them before)" in done.stdout
    for path, stamp in stamps.items():
        assert (path / "result.json").stat().st_mtime_ns == stamp  # not trained again
    for path, lines in begun.items():
        assert lines
        assert (path / "history.jsonl").read_text().splitlines()[: len(lines)] == lines  # seconds included
    for path in runs(tmp_path).values():
        at = store.history(path)["step"].to_list()
        assert at == sorted(set(at))
    assert results(tmp_path) == results(undisturbed)


def wait_until(process, reached):
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, "the sweep ended before it could be killed"
        if reached():
            return
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
    raise AssertionError("never reached")


def middle(folder):
    """The runs that are done, and those that are not but have a checkpoint to continue from."""
    found = runs(folder).values()
    finished = [path for path in found if store.status(path) == "done"]
    return finished, [path for path in found if path not in finished and 0 < max(steps(path), default=0) < STEPS]


def steps(run):
    return [int(path.name) for path in (run / "checkpoint").glob("*") if path.name.isdigit()]


def lines_until(run, step):
    lines = (run / "history.jsonl").read_text().splitlines()
    return [line for line in lines if json.loads(line)["step"] <= step]


@pytest.mark.slow
def test_the_same_command_again_trains_nothing(undisturbed):
    before = {path: path.stat().st_mtime_ns for path in Path(undisturbed).rglob("result.json")}
    done = run(undisturbed, [*LARGER, *SIZE])
    assert done.returncode == 0
    assert "12 done (12 of them before)" in done.stdout
    assert "left" not in done.stderr  # no bar
    assert {path: path.stat().st_mtime_ns for path in Path(undisturbed).rglob("result.json")} == before


@pytest.mark.slow
def test_sigterm_checkpoints_and_the_same_command_continues(undisturbed, tmp_path):
    process = subprocess.Popen(
        command([*GRID, *SIZE]), cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    wait_until(process, lambda: any(steps(path) for path in runs(tmp_path).values()))
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert any(store.status(path) == "running" for path in runs(tmp_path).values())
    done = run(tmp_path, [*GRID, *SIZE])
    assert done.returncode == 0, done.stderr
    expected = results(undisturbed)
    assert all(numbers == expected[name] for name, numbers in results(tmp_path).items())
    assert len(results(tmp_path)) == 4
