"""Whatever befalls a sweep, the repeated command ends as if nothing had, and trains nothing that was finished again.

Killed, interrupted, short of space, read-only, damaged, started twice, under a clock that jumps. In processes, as a
user types it: a sweep of two runs from zero and two grown ones, whose stages lie beside them. `make abuse` is the long
form, with 20 kills where there are 5 in `make test`.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import jax
import numpy as np
import pytest

from toydepth import checkpoint, store
from toydepth.ensemble import Member
from toydepth.recorder import template

pytestmark = [pytest.mark.abuse, pytest.mark.slow]

STEPS, LOOKS = 600, 12
WORDS = [
    "run", "-m", "teacher=tied", "teacher.depth=8", "teacher.width=4", "teacher.hidden=8", "train.batch=32",
    f"train.steps={STEPS}", f"train.eval_every={STEPS // LOOKS}", "train.eval_batches=2", "train.checkpoint_every=100",
    "optimizer=adam", "sweep.name=s", "sweep.report=false", "student.init=zero,grow", "student.depth=4", "seed=0,1",
]  # fmt: skip
LINES = 12 * (LOOKS + 1)  # of all histories: those of 4 runs, 2 stages, and their twins
WRITES = 398  # that such a sweep makes


def pytest_generate_tests(metafunc):
    """What befalls the sweep: all of it under `make abuse`, of each kind a few in `make test`."""
    full = metafunc.config.option.markexpr == "abuse"
    chance = random.Random(4)
    found = {
        "line": [chance.randrange(LINES) for _ in range(12 if full else 3)],
        "write": [chance.randrange(20, WRITES) for _ in range(8 if full else 2)],
        "number": [signal.SIGINT, signal.SIGTERM][: 2 if full else 1],
        "fault": ["full:60", "readonly:110", "full:200", "readonly:300"][: 4 if full else 1],
    }
    for name in found.keys() & set(metafunc.fixturenames):
        metafunc.parametrize(name, found[name], ids=str)


class Sweep:
    """A sweep's folder, and the command that makes it."""

    def __init__(self, home):
        self.home, self.folder = home, home / "outputs" / "s"
        self.processes = []

    def start(self, *faults):
        program = [str(Path(__file__).with_name("faulty.py")), *faults] if faults else ["-m", "toydepth"]
        pipe = subprocess.PIPE
        words = [sys.executable, *program, *WORDS]
        process = subprocess.Popen(words, cwd=self.home, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        self.processes.append(process)
        return process

    def end(self):
        """Kills what a failed test has left."""
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.communicate()

    def run(self, *faults):
        """The exit code, and what was said."""
        process = self.start(*faults)
        said, _ = process.communicate(timeout=600)
        assert "Traceback" not in said, said
        return process.returncode, said

    def folders(self):
        """{id: folder} of all runs, stages and twins."""
        runs = [*self.folder.glob("runs/*"), *self.folder.glob("stages/*")]
        return {path.name: path for path in runs} | {path.name + store.TWIN: path / "twin" for path in runs}

    def lines(self):
        histories = [path / "history.jsonl" for path in self.folders().values()]
        return sum(path.read_bytes().count(b"\n") for path in histories if path.exists())

    def stamps(self):
        """{id: when its result, its history, and its parameters were written} of what is finished."""
        finished = {name: path for name, path in self.folders().items() if store.result(path)}
        names = ("result.json", "history.jsonl", "params")
        return {
            run: [(path / n).stat().st_mtime_ns for n in names if (path / n).exists()] for run, path in finished.items()
        }

    def numbers(self):
        """{id: losses and parameters, all that does not depend on the machine's speed}."""
        return {name: numbers(path) for name, path in self.folders().items()}


def numbers(path):
    result, history = store.result(path), store.history(path).drop("seconds").rows()
    kept = {name: result[name] for name in (*(n for n in store.RESULT if n.startswith("loss")), "steps", "status")}
    params = {}
    if (path / "params").exists():
        config = store.config(path.parent if path.name == "twin" else path)
        assert config is not None
        member = Member(path.name, config)
        tree = checkpoint.restore(path / "params", template(member.shape)["state"]["params"])
        params = {jax.tree_util.keystr(at): leaf.tobytes() for at, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        assert params
    return kept, history, params


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    sweep = Sweep(tmp_path_factory.mktemp("undisturbed"))
    code, said = sweep.run()
    assert code == 0, said
    assert len(sweep.folders()) == 12 and sweep.lines() == LINES
    return sweep


@pytest.fixture
def sweep(tmp_path):
    sweep = Sweep(tmp_path)
    yield sweep
    sweep.end()


@pytest.fixture
def done(undisturbed, tmp_path):
    """A copy of the undisturbed sweep, to be damaged."""
    shutil.copytree(undisturbed.home, tmp_path, dirs_exist_ok=True)
    return Sweep(tmp_path)


def assert_repeats(sweep, undisturbed):
    """The same command ends as if nothing had happened, and leaves alone what is finished. Returns what it said."""
    before = sweep.stamps()
    code, said = sweep.run()
    assert code == 0, said
    assert {name: stamp for name, stamp in sweep.stamps().items() if name in before} == before
    assert sweep.numbers() == undisturbed.numbers()
    parts = [*sweep.folder.glob(".training*"), *sweep.folder.glob(".lock"), *sweep.folder.glob("*/**/.*")]
    assert [path for path in parts if path.name != ".hydra"] == []
    return said


def wait_until(process, reached, delay=0.0):
    """Waits until something is so, or the process has ended; then a little longer."""
    while process.poll() is None and not reached():
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    with suppress(subprocess.TimeoutExpired):
        process.wait(delay)


def test_a_kill_at_any_moment(sweep, undisturbed, line):
    process = sweep.start()
    wait_until(process, lambda: sweep.lines() > line, random.Random(line).uniform(0, 0.3))
    process.kill()
    process.communicate()
    assert_repeats(sweep, undisturbed)


def test_a_kill_within_a_write(sweep, undisturbed, write):
    code, said = sweep.run(f"kill:{write}")
    assert code == -signal.SIGKILL, said
    assert_repeats(sweep, undisturbed)


def test_a_signal_stops_it_in_order(sweep, undisturbed, number):
    process = sweep.start()
    wait_until(process, lambda: sweep.lines() > LINES // 3)
    process.send_signal(number)
    said, _ = process.communicate(timeout=600)
    assert process.returncode == 128 + number, said
    assert "Traceback" not in said
    unfinished = [path for path in sweep.folders().values() if path.exists() and not store.result(path)]
    assert unfinished and any(checkpoint.steps(path / "checkpoint") for path in unfinished)
    assert_repeats(sweep, undisturbed)


def test_what_can_no_longer_be_written_fails_in_a_line(sweep, undisturbed, fault):
    code, said = sweep.run(fault)
    assert code == 1, said
    lines = [line for line in said.replace("\r", "\n").splitlines() if "failed: " in line]
    names = [line.partition(" failed: ")[0].split()[-1] for line in lines]
    assert names and len(names) == len(set(names))
    assert "No space left" in lines[0] or "Read-only" in lines[0]
    assert_repeats(sweep, undisturbed)


def test_a_disk_that_is_full(sweep, undisturbed):
    disk = sweep.home / "outputs"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=700k", "none", disk]
    if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    try:
        code, said = sweep.run()
        assert code == 1, said
        assert "failed: " in said and "No space left" in said
        subprocess.run(["mount", "-o", "remount,size=64m", disk], check=True)
        assert_repeats(sweep, undisturbed)
    finally:
        subprocess.run(["umount", disk], check=True)


def test_damaged_files_are_named_and_made_good(done, undisturbed):
    """In a finished run the result, in others, made unfinished again, checkpoint, history and status."""
    paths = {name: path for name, path in done.folders().items() if path.parent.name == "runs"}
    assert len(paths) == 4
    result, torn, lost, starts = sorted(paths.values())
    truncate(result / "result.json")
    for path in (torn, lost, starts):
        (path / "result.json").unlink()
        (path / "status.json").write_text('{"status": 5}')
    truncate(largest(torn / "checkpoint" / str(STEPS)))
    (lost / "history.jsonl").write_bytes((lost / "history.jsonl").read_bytes()[:-300])
    for step in checkpoint.steps(starts / "checkpoint"):
        flip(largest(starts / "checkpoint" / str(step)))
    said = assert_repeats(done, undisturbed)
    broken = [torn / "checkpoint" / str(STEPS), *(starts / "checkpoint").glob("*00")]
    for path in (result / "result.json", lost / "history.jsonl", *broken):
        assert len([line for line in said.splitlines() if str(path.relative_to(done.home)) in line]) == 1, (path, said)


def truncate(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path):
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    path.write_bytes(damaged)


def largest(folder):
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def test_a_fit_passes_over_what_is_damaged(done):
    one, two, three, four = sorted((done.folder / "runs").iterdir())
    truncate(one / "result.json")
    truncate(two / "config.json")
    (three / "result.json").write_text('{"loss": "low", "steps": 600}')
    with (four / "history.jsonl").open("a") as file:
        file.write('{"step": 601, "loss": "low"}\n{"step": true}\n[[')
    words = [sys.executable, "-m", "toydepth", "fit", done.folder, "--by", "student.init"]
    fit = subprocess.run(words, cwd=done.home, capture_output=True, text=True, timeout=600)
    assert fit.returncode == 0 and "Traceback" not in fit.stderr, fit.stderr
    lines = fit.stderr.splitlines()
    for path in (one / "result.json", two / "config.json", three / "result.json", four / "history.jsonl"):
        assert len([line for line in lines if str(path) in line]) == 1, (path, lines)


def test_two_commands_on_one_folder_share_the_work(sweep, undisturbed):
    first = sweep.start()
    wait_until(first, sweep.folder.exists)
    second = sweep.start()
    said = [process.communicate(timeout=600)[0] for process in (second, first)]
    assert (first.returncode, second.returncode) == (0, 0), said
    left = re.findall(r"[1-4] runs? (?:is|are) being trained by process (\d+) on .*: left to it", "".join(said))
    assert left or "of them before" in said[0]  # a second one may be late
    assert set(map(int, left)) <= {first.pid, second.pid}
    for path in sweep.folders().values():
        steps = [json.loads(line)["step"] for line in (path / "history.jsonl").read_text().splitlines()]
        assert len(steps) == LOOKS + 1 and steps == sorted(steps)  # each line once, in order
    assert sweep.numbers() == undisturbed.numbers()
    assert_repeats(sweep, undisturbed)


def test_a_clock_that_jumps(sweep, undisturbed):
    code, said = sweep.run("clock")
    assert code == 0, said
    assert sweep.numbers() == undisturbed.numbers()
    for path in sweep.folders().values():
        seconds = store.history(path)["seconds"].to_numpy()
        assert np.all(np.diff(seconds) >= 0) and seconds[-1] < 1000
