"""What small sweeps of rare tasks come to beside exact theory: the tables, the sentences of the page, the pictures."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import toydepth
from toydepth import cli, store
from toydepth.figures import tasks as figures
from toydepth.rare_tasks import captured, cycles, horizons, learnt, settings, tasks_of
from toydepth.remarks import remarks
from toydepth.tasks_config import Tasks
from toydepth.theory.tasks import Mixture

GRID = ["problem=tasks", "tasks.count=5", "tasks.features=3", "tasks.inputs=32", "tasks.beta=1.3"]
ADAM = ["optimizer=adam", "optimizer.lr=0.03", "schedule.decay_fraction=0.4", "train.twin=false"]


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A small phase grid, trained on exact expectations, and the same at three widths on samples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("tasks"))
        assert cli.main(["run", *GRID, *ADAM, "student.width=2,4,7,11", "train.steps=3000", "sweep.name=grid"]) == 0
        tasks = {"count": 5, "features": 3, "inputs": 32, "beta": 1.3}
        common = {
            "problem": "tasks",
            "tasks": tasks,
            "optimizer": {"name": "adam", "lr": 0.03},
            "schedule": {"decay_fraction": 0.4},
            "train": {"gradient": "sampled", "batch": 64, "steps": 6000, "twin": False},
            "sweep": {"name": "sampled"},
        }
        configs = [toydepth.parse(common | {"student": {"width": width}}) for width in (2, 4, 7)]
        assert toydepth.train(configs).exit_code == 0
        yield Path("outputs").resolve()


def table(folder):
    return store.collect(folder), store.histories(folder)


def test_every_task_is_learnt_where_theory_says(swept):
    runs, histories = table(swept / "grid")
    (setting,) = settings(runs)
    assert captured(setting)["share"].to_numpy().min() > 0.9999
    tasks = tasks_of(setting)
    assert tasks.height == 20
    assert tasks["off"].to_numpy().max() < 1e-3
    assert np.abs(tasks["signal"].to_numpy() - (1 - tasks["low"].to_numpy())).max() < 2e-3
    assert all(one.agrees for one in learnt(setting))
    assert len({one.seen for one in learnt(setting)}) > 2
    said = " ".join(remarks(runs, histories))
    for words in (
        "within 0.001",
        "5 of 5 tasks are first learnt",
        "held at all",
        "22, 14, 6, 3, where the paper prints",
    ):
        assert words in said
    page = (swept / "grid" / "report.html").read_text()
    assert "Beside exact theory" in page
    assert "Computed here, not copied" in page
    for name in ("tasks_map", "tasks_theory", "tasks_sum", "tasks_learnt", "tasks_residual", "tasks_cosine"):
        assert (swept / "grid" / f"{name}.png").stat().st_size > 10_000


def test_a_table_that_misses_theory_says_so(swept):
    """The negative control: the same runs, said to be of other tasks."""
    runs, _ = table(swept / "grid")
    (setting,) = settings(runs.with_columns(pl.lit(0.2).alias("tasks.beta")))
    assert tasks_of(setting)["off"].to_numpy().max() > 0.1
    assert not all(one.agrees for one in learnt(setting))


def test_the_bound_holds_at_every_evaluation(swept):
    for folder in ("grid", "sampled"):
        _, histories = table(swept / folder)
        for history in histories.values():
            gradient, bound = history["common_gradient"].to_numpy(), history["common_bound"].to_numpy()
            assert (gradient <= bound * (1 + 1e-3) + 1e-9).all()
            assert (gradient > 0.01 * bound).any()


def test_training_on_samples_comes_to_what_expectations_come_to(swept):
    """Within the standard error of its own evaluation, at three widths."""
    (exact, _), (sampled, _) = table(swept / "grid"), table(swept / "sampled")
    both = sampled.join(exact, on="student.width", suffix="_exact")
    assert both.height == 3
    for row in both.iter_rows(named=True):
        assert abs(row["loss"] - row["population_loss"]) < 3 * row["loss_sem"]
        assert abs(row["population_loss"] - row["population_loss_exact"]) < row["loss_sem"]
    assert both["loss_sem"].to_numpy().max() < 0.1 * both["loss"].to_numpy().max()


@pytest.fixture(scope="module")
def withheld(tmp_path_factory):
    """A rare task below and above its critical width, with and without a gap, by AdamW and by SGD."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("withheld"))
        patch.setattr("toydepth.report.write", lambda derived: derived.out / "report.html")  # pictures are enough
        words = [*GRID[:4], "tasks.beta=1.9", "student.width=2,9", "injection.gap=0,20", "train.gradient=sampled"]
        words += ["train.batch=64", "train.steps=2000", "train.twin=false", "sweep.name=held"]
        words += ["schedule=constant"]  # so that cycles do not change from one to the next
        assert cli.main(["run", *words, "optimizer.name=adamw,sgd"]) == 0
        yield Path("outputs/held").resolve()


def test_below_the_critical_width_a_return_adds_what_the_gap_takes(withheld):
    runs, histories = table(withheld)
    for setting in settings(runs):
        assert 2 < setting.mixture.staircase(4)[0] <= 9
        found = horizons(setting, histories)
        assert found.height == 8
        below = found.filter((pl.col("width") == 2) & (pl.col("share") == 1.0))
        assert below["corrected"].to_numpy().max() < 0.2
        (turn,) = below.filter(pl.col("gap") == 20).iter_rows(named=True)
        assert abs(turn["gain"] + turn["decay"]) < 1e-4
        if setting.label == "sgd":  # AdamW's returns are as small as its noise here
            assert turn["gain"] > 10 * abs(turn["gain"] + turn["decay"])
        above = found.filter((pl.col("width") == 9) & (pl.col("share") == 1.0) & (pl.col("gap") == 0))
        assert above["corrected"].to_numpy().min() > 0.5 * above["static"].to_numpy().min()
    said = " ".join(remarks(runs, histories))
    for words in ("is not learnt at any gap", "Update and forget", "sgd against adamw", "above the critical width"):
        assert words in said
    for name in ("tasks_retention", "tasks_retention2", "tasks_course", "tasks_cycles"):
        assert (withheld / f"{name}.png").stat().st_size > 10_000


def test_gain_and_decay_of_a_planted_course():
    """A signal that rises by 0.3 at each return and loses 0.1 before the next one, plus one evaluated cycle in two."""
    steps, signal = [0], [0.0]
    for cycle in range(40):
        steps += [10 * cycle + 1, 10 * cycle + 10]
        signal += [signal[-1] + 0.3, signal[-1] + 0.2]
    history = pl.DataFrame({"step": steps, "rare_signal": signal})
    assert cycles(history, 10, 400) == pytest.approx((0.3, -0.1))
    sparse = history.filter((pl.col("step") // 10 % 2 == 0) & (pl.col("step") % 10 < 2))
    assert cycles(sparse, 10, 400) == pytest.approx((0.3, -0.1))
    assert cycles(history.filter(pl.col("step") < 5), 10, 400) is None


def test_other_problems_get_no_remarks_and_no_panels(swept):
    runs = pl.DataFrame({"id": ["a"], "status": ["done"], "loss": [1.0], "student.width": [3], "features.count": [9]})
    assert remarks(runs, {}) == []
    assert figures.panels(runs, {}) == []
    tasks, histories = table(swept / "grid")
    both = pl.concat([runs.cast({"student.width": tasks["student.width"].dtype}), tasks], how="diagonal")
    assert remarks(both, histories) == remarks(tasks, histories)


def test_a_boosted_task_is_learnt_on_the_far_side_of_the_exact_factor(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    usual = Tasks(count=5, features=3, inputs=32, beta=1.9)
    needed = Mixture(usual.frequencies(), usual.amplitudes()).boost_needed(4, 3)
    boosts = ",".join(f"{needed * x:.4g}" for x in (0.6, 1.5))
    words = [*GRID[:4], "tasks.beta=1.9", "student.width=3", f"tasks.frequency_boost={boosts}", "train.steps=3000"]
    assert cli.main(["run", *words, *ADAM, "sweep.name=boost"]) == 0
    runs, histories = table(Path("outputs/boost"))
    by_boost = {s.tasks.frequency_boost: s.learns(4, 3) for s in settings(runs)}
    assert list(by_boost.values()) == [False, True]
    assert f"exact: {needed:.3g}" in " ".join(remarks(runs, histories))
    assert Path("outputs/boost/tasks_boost.png").stat().st_size > 10_000


def test_eager_training_follows_the_schedule_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*GRID, "injection.gap=7", "train.gradient=sampled", "train.batch=16", "train.steps=16", "train.twin=false"]
    words += ["student.width=3", "train.eval_batches=2", "optimizer=sgd"]
    for name, more in (("whole", []), ("debug_eager", ["debug=eager"])):
        assert cli.main(["run", *words, *more, f"sweep.name={name}"]) == 0
    (one,), (other,) = ([*Path(root).glob("runs/*")] for root in ("outputs/whole", "outputs/debug_eager"))
    a, b = (json.loads((path / "result.json").read_text()) for path in (one, other))
    assert a["loss"] == pytest.approx(b["loss"], rel=1e-4)
    assert a["measures"] == pytest.approx(b["measures"], rel=1e-3, abs=1e-4)
    assert toydepth.open(one).loss() == a["loss"]
