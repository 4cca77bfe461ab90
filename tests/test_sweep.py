"""Whole commands, from words to folders: one compile per group, equality, divergence, failures, refusals, the wheel."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

import toydepth
from toydepth import batches, checkpoint, cli, programs, store

TINY = [
    "teacher.depth=6", "teacher.width=4", "teacher.hidden=8", "train.batch=16", "train.steps=40",
    "train.eval_batches=3", "optimizer=adam",
]  # fmt: skip


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words):
    return cli.main(["run", *TINY, *words])


def results(folder):
    """{run id: what its result says apart from the machine}"""
    runs = store.collect(Path(folder)).sort("id")
    kept = runs.select("id", "status", "loss", "loss_sem", "half_loss", "slope", "steps").rows()
    return {row[0]: row[1:] for row in kept}


@pytest.mark.usefixtures("without_pictures")
def test_a_multirun_compiles_once_per_group_and_equals_its_runs_alone(here):
    traces, passes = Counter(programs.traces), Counter(batches.passes)
    grid = ["-m", "teacher=tied,independent", "student.depth=2,4,8", "target=kl", "target.temperature=0.03,0.3"]
    assert run(*grid, "seed=0,1", "sweep.name=grid") == 0
    assert programs.traces - traces == {"student": 3, "evaluation": 3, "teacher": 1}
    assert batches.passes - passes == {"data": 4 * 40, "eval": 4 * 3}  # cohorts x steps, cohorts x evaluation batches
    together = results("outputs/grid")
    assert len(together) == 24
    one = ["teacher=tied", "student.depth=4", "target=kl", "target.temperature=0.03", "seed=1"]
    assert run(*one, "sweep.name=alone", "runtime.devices=1") == 0
    for name, numbers in results("outputs/alone").items():
        assert numbers == together[name]
    with_others = {path.name: store.history(path).drop("seconds") for path in Path("outputs/grid/runs").iterdir()}
    for path in Path("outputs/alone/runs").iterdir():
        assert store.history(path).drop("seconds").equals(with_others[path.name])


def test_a_sweeps_folder_is_complete(here):
    assert run("-m", "student.depth=1,2,4", "seed=0,1", "sweep.name=s") == 0
    folder = Path("outputs/s")
    assert {path.name for path in folder.iterdir()} == {
        "runs", "sweep.json", "runs.parquet", "exponents.csv", "exponents.json",
        "alpha.png", "alpha_vs_step.png", "report.html",
    }  # fmt: skip
    assert (folder / "alpha.png").read_bytes()[:4] == b"\x89PNG"
    exponents = pl.read_csv(folder / "exponents.csv")
    assert exponents["n_runs"].to_list() == [6]
    assert pl.read_parquet(folder / "runs.parquet").height == 6
    runs = list((folder / "runs").iterdir())
    assert len(runs) == 6
    for path in runs:
        assert {p.name for p in path.iterdir()} == {
            "config.json", "history.jsonl", "result.json", "status.json", "checkpoint", "params", "twin", ".hydra",
        }  # fmt: skip
        assert json.loads((path / "status.json").read_text()) == {"status": "done", "message": "", "step": 40}
        rows = store.history(path)
        assert rows["step"].to_list() == list(range(0, 41, 2))
        result = json.loads((path / "result.json").read_text())
        assert result["loss"] == rows["loss"][-1]
        assert result["half_loss"] == store.history(path / "twin")["loss"][-1]
        assert set(result) >= {"parameters", "flops", "compile_seconds", "seconds", "versions", "device", "batching"}


def test_a_sweep_may_end_without_its_report(here, capsys):
    words = ["-m", "student.depth=1,2", "seed=0,1", "sweep.name=s"]
    assert run(*words, "sweep.report=false") == 0
    assert {path.name for path in Path("outputs/s").iterdir()} == {"runs", "sweep.json"}
    out = capsys.readouterr().out
    assert "4 done: outputs/s" in out and "exponent" not in out
    assert run(*words) == 0  # the same runs, none of them trained again
    out = capsys.readouterr().out
    assert "4 done (4 of them before)" in out and "exponent" in out
    assert (Path("outputs/s") / "report.html").exists()


@pytest.mark.usefixtures("without_pictures")
def test_hopeless_rates_are_recorded_and_left_out(here, capsys):
    """With MSE; test_engine.py has both losses."""
    common = ["-m", "optimizer=sgd,adam", "student.depth=1,2", "seed=0"]
    assert run(*common, "optimizer.lr=0.01", "sweep.name=healthy") == 0
    assert run(*common, "optimizer.lr=0.01,1e6", "sweep.name=mixed") == 1
    healthy, mixed = results("outputs/healthy"), results("outputs/mixed")
    assert {name: mixed[name] for name in healthy} == healthy
    hopeless = {name: row for name, row in mixed.items() if name not in healthy}
    assert len(hopeless) == 4
    assert {row[0] for row in hopeless.values()} == {"diverged"}
    for name in hopeless:
        assert "step" in json.loads(Path(f"outputs/mixed/runs/{name}/status.json").read_text())["message"]
    rows = pl.read_csv("outputs/mixed/exponents.csv").select("optimizer.name", "optimizer.lr", "n_runs", "verdict")
    found = {(name, rate): (n, verdict) for name, rate, n, verdict in rows.rows()}
    for name in ("sgd", "adam"):
        assert found[name, 0.01][0] == 2
        assert found[name, 1e6][0] == 0
        assert "2 diverged" in found[name, 1e6][1]
    assert "4 diverged" in capsys.readouterr().out


@pytest.mark.usefixtures("without_pictures")
def test_a_run_killed_before_its_result_was_written_is_finished_from_its_checkpoint(here):
    words = ["-m", "student.depth=1,2", "sweep.name=s"]
    assert run(*words) == 0
    expected = results("outputs/s")
    histories = {path: path.read_text() for path in Path("outputs/s").rglob("history.jsonl")}
    for path in Path("outputs/s/runs").iterdir():
        (path / "result.json").unlink()
        store.write_status(path, "running", 40)
    assert run(*words) == 0
    assert results("outputs/s") == expected
    assert {path: path.read_text() for path in Path("outputs/s").rglob("history.jsonl")} == histories


@pytest.mark.usefixtures("without_pictures")
def test_what_cannot_be_written_fails_its_own_run_only(here, monkeypatch):
    save = checkpoint.save

    def full(path, tree):
        if "-d1-" in str(path) and path.name == "params":
            raise OSError(28, "No space left on device")
        save(path, tree)

    monkeypatch.setattr(checkpoint, "save", full)
    words = ["-m", "student.depth=1,2,4", "sweep.name=s"]
    assert run(*words) == 1
    found = store.collect(Path("outputs/s")).select("student.depth", "status", "message")
    assert {d: s for d, s, _ in found.iter_rows()} == {1: "failed", 2: "done", 4: "done"}
    assert "No space left" in found.filter(pl.col("status") == "failed")["message"][0]
    monkeypatch.setattr(checkpoint, "save", save)
    assert run(*words) == 0


def test_a_single_run_speaks_in_few_lines(here):
    words = [sys.executable, "-m", "toydepth", "run", "teacher=tied", "student.depth=2", *TINY]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    assert "left" in done.stderr  # the bar
    assert "loss" in done.stderr
    lines = [line for line in (done.stdout + done.stderr).replace("\r", "\n").splitlines() if line.strip()]
    assert len([line for line in lines if "|" not in line]) <= 2
    assert "absl" not in done.stdout + done.stderr
    last = done.stdout.strip().splitlines()[-1]
    assert last.startswith("loss ")
    assert Path(last.split(": ")[-1]).is_dir()


def test_what_fails_is_recorded_and_leaves_the_others_alone(here, monkeypatch, capsys):
    make = programs.Programs.__init__

    def broken(self, family, mesh):
        if family.mode.stream.batch == 8:
            raise RuntimeError("out of memory, as it were")
        make(self, family, mesh)

    monkeypatch.setattr(programs.Programs, "__init__", broken)
    words = ["run", *TINY, "-m", "train.batch=8,16", "sweep.name=s"]
    assert cli.main(words) == 1
    found = store.collect(Path("outputs/s"))
    assert dict(found.select("train.batch", "status").iter_rows()) == {8: "failed", 16: "done"}
    (failed,) = found.filter(pl.col("status") == "failed").iter_rows(named=True)
    assert "out of memory" in failed["message"]
    assert "RuntimeError" in Path("outputs/s/runs", failed["id"], "error.log").read_text()
    monkeypatch.setattr(programs.Programs, "__init__", make)
    assert cli.main(words) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep.name=s", "optimizer.lr=0.5"], ["optimizer.lr=0.5", "optimizer.lr=0.001", "sweep.name="]),
        (["sweep.name=blocked"], ["outputs/blocked is a file"]),
        (["-m", "sweep.name=a,b"], ["sweep.name"]),
    ],
)
def test_requests_that_folders_refuse(here, capsys, words, said):
    assert run("sweep.name=s") == 0
    Path("outputs/blocked").write_text("")
    before = sorted(here.rglob("*"))
    capsys.readouterr()
    assert run(*words) == 2
    printed = capsys.readouterr()
    text = (printed.out + printed.err).strip()
    assert len(text.splitlines()) == 1
    assert all(word in text for word in said)
    assert sorted(here.rglob("*")) == before


def test_plan_says_what_would_run_and_leaves_no_file(here, capsys, monkeypatch):
    monkeypatch.setattr("toydepth.forecast.CALIBRATION_SECONDS", 0.05)
    assert run("student.depth=2", "sweep.name=s") == 0
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    capsys.readouterr()
    assert cli.main(["plan", "-m", "student.depth=2,4,8", "seed=0,1", "sweep.name=s", *TINY]) == 0
    out = capsys.readouterr().out
    assert "6 runs, 1 of them done; 3 shape groups" in out
    assert "predicted time" in out
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before


def test_train_from_python_is_what_the_command_calls(here):
    tree = {"teacher": {"depth": 6, "width": 4}, "train": {"steps": 40, "batch": 16}, "sweep": {"name": "p"}}
    summary = toydepth.train([toydepth.parse(tree), toydepth.parse(tree)])  # equal configs are one run
    assert summary.exit_code == 0
    assert summary.counts == {"done": 1}
    assert len(list(Path("outputs/p/runs").iterdir())) == 1
