"""What every problem owes to its users, by the same tests: company, resumption, refusals, fits, reports, opening."""

import json
import math
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import toydepth
from toydepth import cli, files, programs, store
from toydepth.config import SCHEMAS
from toydepth.recorder import FolderRecorder

# For each problem: what makes it small, a swept field that changes no shape, the size and three values of it, and words
# that must be refused with what must be said.
SMALL = {
    "depth": ["teacher.depth=4", "teacher.width=4", "teacher.hidden=8", "optimizer=adam", "train.twin=false"],
    "time": ["teacher.width=4", "target.vocab=8", "target.temperature=0.05"],
    "width": ["features.count=24"],
    "tasks": ["tasks.count=4", "tasks.features=2", "tasks.inputs=16", "student.width=3", "train.gradient=sampled"],
}
SWEPT = {
    "depth": "optimizer.lr=0.001,0.01",
    "time": "target.temperature=0.05,0.5",
    "width": "student.decay=-1,0.1",
    "tasks": "injection.gap=0,5",
}
SIZES = {
    "depth": "student.depth=1,2,4",
    "time": "optimizer.lr=0.02",
    "width": "student.width=2,4,8",
    "tasks": "student.width=2,4,8",
}
WRONG = {
    "depth": [("student.width=3", "student.width: no such field"), ("teacher.width=0", "allowed is a whole number")],
    "time": [
        ("student.depth=3", "student.depth: no such field"),
        ("target.loss=mae", "allowed is one of kl, mse"),
        ("optimizer=muon", "allowed is one of adam, adamw, sgd"),
        ("teacher.spectrum=-1", "allowed is a finite number at least 0"),
    ],
    "width": [
        ("student.depth=3", "student.depth: no such field"),
        ("student.width=0", "allowed is a whole number"),
        ("optimizer=muon", "optimizer.name=muon: allowed is"),
        ("features.frequency=zipf", "allowed is one of"),
    ],
    "tasks": [
        ("teacher.width=3", "teacher: no such field"),
        ("optimizer=muon", "allowed is one of adam, adamw, sgd"),
        ("tasks.count=9", "tasks.inputs=16: allowed is at least 18"),
        ("student.width=17", "allowed is at most 16, tasks.inputs"),
        ("tasks.rare=5", "allowed is at most 4, tasks.count"),
        ("injection.gap=9", "injection.gap=9: allowed is at most 8"),
        ("train.gradient=exact", "allowed is one of population, sampled"),
        ("tasks.beta=-1", "allowed is a finite number at least 0"),
    ],
}
SHORT = ["train.steps=30", "train.batch=16", "train.eval_batches=2", "train.checkpoint_every=8", "runtime.batching=map"]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to type in."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=SCHEMAS)
def problem(request):
    """The name of every problem."""
    return request.param


def typed(problem: str, *words: str, name: str = "all") -> int:
    return cli.main(["run", f"problem={problem}", *SMALL[problem], *SHORT, f"sweep.name={name}", *words])


def runs(name: str = "all") -> dict[str, Path]:
    return {path.name: path for path in sorted(Path("outputs", name, "runs").iterdir())}


def trained(path: Path):
    """What a run came to: its parameters and its history without the seconds."""
    history = store.history(path).drop("seconds")
    return {name: np.asarray(leaf).tobytes() for name, leaf in _leaves(toydepth.open(path).params)}, history


def _leaves(tree, prefix=""):
    for name, leaf in tree.items():
        yield from _leaves(leaf, f"{prefix}{name}.") if isinstance(leaf, dict) else [(prefix + name, leaf)]


def equal(path: Path, other: Path) -> bool:
    (params, history), (others, other_history) = trained(path), trained(other)
    return params == others and history.equals(other_history)


def test_every_problem_is_tested_here():
    assert set(SMALL) == set(SWEPT) == set(SIZES) == set(WRONG) == set(SCHEMAS)


@pytest.mark.usefixtures("without_pictures")
def test_a_run_alone_equals_the_run_in_company_and_shapes_compile_once(problem):
    before = programs.traces["student"]
    assert typed(problem, SWEPT[problem], "seed=0,1") == 0
    assert programs.traces["student"] - before == 1
    field, values = SWEPT[problem].split("=")
    assert typed(problem, f"{field}={values.split(',')[1]}", "seed=1", name="alone") == 0
    (alone,) = runs("alone").values()
    assert equal(alone, runs()[alone.name])
    others = [path for name, path in runs().items() if name != alone.name]
    assert len(others) == 3
    assert not any(equal(alone, other) for other in others)


@pytest.mark.usefixtures("without_pictures")
def test_an_interrupted_sweep_continues_bit_for_bit_and_a_finished_one_trains_nothing(problem, monkeypatch):
    assert typed(problem, SWEPT[problem], name="undisturbed") == 0
    asked = iter([False, False, False, True])
    with monkeypatch.context() as patch:
        patch.setattr(FolderRecorder, "interrupted", lambda self: next(asked, True))
        patch.setattr("toydepth.engine.SECONDS_BETWEEN_LOOKS", 1e-4)
        assert typed(problem, SWEPT[problem]) == 1
    begun = [files.read_json(path / "status.json") for path in runs().values()]
    assert any(0 < status["step"] < 30 for status in begun)
    assert typed(problem, SWEPT[problem]) == 0
    assert all(equal(path, runs("undisturbed")[name]) for name, path in runs().items())
    stamps = {path: path.stat().st_mtime_ns for path in Path("outputs/all/runs").rglob("result.json")}
    before = programs.traces["student"]
    assert typed(problem, SWEPT[problem]) == 0
    assert programs.traces["student"] == before
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())


@pytest.mark.parametrize(("problem", "word", "said"), [(p, *case) for p, cases in WRONG.items() for case in cases])
def test_what_is_wrong_is_refused_in_one_line_and_leaves_nothing(problem, word, said, capsys):
    assert typed(problem, word) == 2
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert said in err
    assert not Path("outputs").exists()


def test_a_sweep_is_fitted_and_reported_from_its_folder(problem, capsys):
    assert typed(problem, SIZES[problem], "seed=0,1", "train.steps=60") == 0
    rows = pl.read_csv("outputs/all/exponents.csv")
    assert rows["n_runs"].sum() == len(runs())
    assert rows["variable"].unique().to_list() == [SCHEMAS[problem].size]
    page = Path("outputs/all/report.html").read_text()
    assert str(SCHEMAS[problem].size).rpartition(".")[2] in page
    assert Path("outputs/all/alpha.png").stat().st_size > 10_000
    assert cli.main(["report", "outputs/all"]) == 0
    assert cli.main(["plan", f"problem={problem}", *SMALL[problem], *SHORT, SIZES[problem]]) == 0
    assert "memory" in capsys.readouterr().out.lower()


@pytest.mark.usefixtures("without_pictures")
def test_a_run_is_opened_and_repeats_its_loss(problem):
    assert typed(problem, "runtime.devices=1") == 0
    (path,) = runs().values()
    run = toydepth.open(path)
    assert run.loss() == run.result["loss"] == run.history["loss"][-1]
    measured = json.loads((path / "result.json").read_text())["measures"]
    assert all(run.history[name][-1] == value for name, value in measured.items())
    assert all(math.isfinite(value) for value in measured.values())
