"""Grown students: a split keeps the flow, each stage is trained once, and runs are the same however they came about."""

import jax
import numpy as np
import pytest

from toydepth import engine, store
from toydepth.config import ConfigError, parse, resolve
from toydepth.problems import problem_of
from toydepth.sweep import plan, train


def config(depth, root, steps=30, **student):
    return parse(
        {
            "teacher": {"kind": "tied", "depth": 8, "width": 4, "scale": 3},
            "student": {"depth": depth, "init": "grow"} | student,
            "optimizer": {"name": "adam", "lr": 0.01},
            "train": {"steps": steps, "batch": 16, "eval_every": 10, "checkpoint_every": 10},
            "sweep": {"root": str(root)},
        }
    )


def losses(root):
    """{depth: the last loss} of the finished runs."""
    table = store.collect(root / "adhoc")
    return dict(zip(table["student.depth"], table["loss"], strict=True))


@pytest.mark.parametrize("scheme", ["euler", "midpoint"])
def test_a_split_walks_the_same_way_in_half_steps(scheme):
    """Where layers are small steps, both networks end close together; without halving they do not."""
    shallow, deep = (problem_of(resolve(config(depth, "x", scheme=scheme))) for depth in (4, 8))
    params = {"layers": jax.tree.map(lambda a: 0.3 * a, shallow.network.init(jax.random.key(0)))}
    h = jax.random.normal(jax.random.key(1), (32, 4))
    start, grown = shallow.network(params["layers"], h), deep.grown(params)
    moved, apart = np.abs(start - h).mean(), np.abs(deep.network(grown["layers"], h) - start).mean()
    assert apart < 0.05 * moved
    whole = jax.tree.map(lambda a: np.repeat(a, 2, axis=0), params)
    assert np.abs(deep.network(whole["layers"], h) - start).mean() > 0.5 * moved


def test_each_stage_is_trained_once_and_is_the_run_of_its_depth(tmp_path):
    before = engine.passes["data"]
    train([config(8, tmp_path / "alone")])
    alone = engine.passes["data"] - before
    assert alone == 3 * 30  # depths 2, 4 and 8; the twins share their batches
    train([config(depth, tmp_path / "all") for depth in (2, 4, 8)])
    assert engine.passes["data"] - before == 2 * alone
    together = losses(tmp_path / "all")
    assert losses(tmp_path / "alone") == {8: together[8]}
    assert together[8] < together[4] < together[2]
    # A stage that is asked for later is there already, and a deeper run starts from what lies there
    train([config(depth, tmp_path / "alone") for depth in (2, 4)])
    assert engine.passes["data"] - before == 2 * alone
    assert losses(tmp_path / "alone") == together
    train([config(16, tmp_path / "alone")])
    assert engine.passes["data"] - before == 2 * alone + 30


def test_a_grown_run_starts_where_its_shallower_one_ended(tmp_path):
    train([config(depth, tmp_path) for depth in (2, 4)])
    rows = {run.name.split("-")[2]: store.history(run) for run in (tmp_path / "adhoc" / "runs").iterdir()}
    end, start, fresh = rows["d2"]["loss"][-1], rows["d4"]["loss"][0], rows["d2"]["loss"][0]
    assert abs(start - end) < 0.25 * (fresh - end)
    # a smaller rate, also divided by the root of the depth
    assert rows["d4"]["lr"][0] == pytest.approx(0.3 * rows["d2"]["lr"][0] / 2**0.5)
    result = store.read_json(next((tmp_path / "adhoc" / "runs").glob("*-d4-*")) / "result.json")
    shallow, deep = (problem_of(resolve(config(depth, tmp_path))).flops() for depth in (2, 4))
    assert result["flops"] == 30 * (shallow + deep)


def test_an_interruption_within_a_stage_changes_nothing(tmp_path, monkeypatch):
    train([config(8, tmp_path / "whole")])
    looks = iter([False] * 3 + [True])
    with monkeypatch.context() as patch:
        from toydepth.recorder import FolderRecorder

        patch.setattr(FolderRecorder, "interrupted", lambda self: next(looks, True))
        train([config(8, tmp_path / "cut")])
    assert losses(tmp_path / "cut") == {8: None}
    stage = next((tmp_path / "cut" / "adhoc" / "stages").glob("*-d2-*"))
    assert 0 < store.history(stage)["step"][-1] <= 30
    before = engine.passes["data"]
    train([config(8, tmp_path / "cut")])
    assert engine.passes["data"] - before < 3 * 30
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")


def test_a_run_does_not_grow_from_one_that_diverged(tmp_path, monkeypatch):
    from toydepth import ensemble

    grown = config(4, tmp_path)
    real = ensemble.Member.__post_init__

    def broken(member):
        real(member)
        if member.config.student.depth == 2:
            member.hyper["lr"] = np.float32(np.inf)

    monkeypatch.setattr(ensemble.Member, "__post_init__", broken)
    summary = train([grown])
    assert summary.exit_code == 1 and summary.counts["failed"] == 1
    (run,) = (summary.folder / "runs").iterdir()
    message = store.read_json(run / "status.json")["message"]
    assert "it grows from stages/" in message and "diverged at step 0" in message


def test_unreachable_depths_and_own_blocks_are_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"student.depth=10: allowed is 3, 6, 12, 24 with student.init=grow"):
        config(10, tmp_path, grow_from=3)
    assert config(12, tmp_path, grow_from=3).parent().student.depth == 6
    with pytest.raises(ConfigError, match=r"student.init=grow: allowed is zero"):
        config(4, tmp_path, block="my.py:Block")


def test_the_plan_counts_stages(tmp_path, capsys):
    plan([config(8, tmp_path)])
    shown = capsys.readouterr().out
    assert "depth 2" in shown and "depth 4" in shown and "1 runs" in shown
    assert not (tmp_path / "adhoc").exists()
