"""Grown students: a split keeps the flow, each stage is trained once, and runs are the same however they came about."""

import shutil

import jax
import numpy as np
import pytest

from toydepth import batches, engine, files, store, training
from toydepth.config import ConfigError, parse, replaced, resolve, run_id
from toydepth.locks import Claim
from toydepth.problems import problem_of
from toydepth.sweep import plan, train

pytestmark = pytest.mark.usefixtures("without_pictures")


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


def made():
    """A function that says how many updates have been made since."""
    before = engine.updates.total()
    return lambda: engine.updates.total() - before


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
    before, trained = batches.passes["data"], made()
    train([config(8, tmp_path / "alone")])
    assert batches.passes["data"] - before == 30  # depths 2, 4 and 8 and their twins share them
    alone = trained()
    assert alone == 3 * (30 + 15)
    train([config(depth, tmp_path / "all") for depth in (2, 4, 8)])
    assert trained() == 2 * alone
    together = losses(tmp_path / "all")
    assert losses(tmp_path / "alone") == {8: together[8]}
    assert together[8] < together[4] < together[2]
    # A stage that is asked for later is there already, and a deeper run starts from what lies there
    train([config(depth, tmp_path / "alone") for depth in (2, 4)])
    assert trained() == 2 * alone
    assert losses(tmp_path / "alone") == together
    train([config(16, tmp_path / "alone")])
    assert trained() == 2 * alone + 45


def test_a_grown_run_starts_where_its_shallower_one_ended(tmp_path):
    train([config(depth, tmp_path) for depth in (2, 4)])
    rows = {run.name.split("-")[2]: store.history(run) for run in (tmp_path / "adhoc" / "runs").iterdir()}
    end, start, fresh = rows["d2"]["loss"][-1], rows["d4"]["loss"][0], rows["d2"]["loss"][0]
    assert abs(start - end) < 0.25 * (fresh - end)
    # a smaller rate, also divided by the root of the depth
    assert rows["d4"]["lr"][0] == pytest.approx(0.3 * rows["d2"]["lr"][0] / 2**0.5)
    result = files.read_json(next((tmp_path / "adhoc" / "runs").glob("*-d4-*")) / "result.json")
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
    trained = made()
    train([config(8, tmp_path / "cut")])
    assert trained() < 3 * 45
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
    message = files.read_json(run / "status.json")["message"]
    assert "it grows from stages/" in message and "diverged at step 0" in message


def test_a_start_needs_the_shallower_runs_parameters_and_nothing_else(tmp_path):
    train([config(depth, tmp_path / "whole") for depth in (2, 4, 8)])
    for name in ("cut", "bare"):
        train([config(depth, tmp_path / name) for depth in (2, 4)])
    for path in (tmp_path / "cut" / "adhoc" / "runs").glob("*-d4-*"):
        shutil.rmtree(path / "checkpoint")
        shutil.rmtree(path / "twin" / "checkpoint")
    for path in (tmp_path / "bare" / "adhoc" / "runs").glob("*-d2-*"):
        shutil.rmtree(path)
    trained = made()
    for name in ("cut", "bare"):
        train([config(8, tmp_path / name)])
        assert losses(tmp_path / name)[8] == losses(tmp_path / "whole")[8]
    for path in (tmp_path / "bare" / "adhoc" / "runs").iterdir():
        shutil.rmtree(path) if "-d4-" in path.name else (path / "result.json").unlink()
    train([config(8, tmp_path / "bare")])
    assert losses(tmp_path / "bare") == {8: losses(tmp_path / "whole")[8]}
    assert trained() == 2 * 45  # depth 2 is missed by nobody, nor is depth 4 once depth 8 has begun


def stage(depth, root):
    """The folder and the id of a run."""
    resolved = resolve(config(depth, root))
    return store.sweep_folder(resolved), run_id(resolved)


def test_what_another_process_trains_is_left_to_it_and_so_is_what_grows_from_it(tmp_path, capsys):
    folder, held = stage(4, tmp_path)
    folder.mkdir(parents=True)
    trained = made()
    with Claim(folder, {held: [held]}) as claim:
        summary = train([config(depth, tmp_path) for depth in (2, 4, 8)])
        assert summary.exit_code == 0 and summary.counts == {"done": 1, "running": 2}
        assert list(summary.left.values()) == [2]
        assert trained() == 45
        assert f"2 runs are being trained by {next(iter(summary.left))}, or grow from" in capsys.readouterr().out
        assert claim.runs == {held}
    assert train([config(depth, tmp_path) for depth in (2, 4, 8)]).exit_code == 0
    assert trained() == 3 * 45
    assert not list(folder.glob(".*"))


def test_a_run_that_another_process_finished_meanwhile_is_not_trained_again(tmp_path):
    train([config(2, tmp_path)])
    folder, name = stage(2, tmp_path)
    store.write_status(store.run_folder(folder, name), "running", 10)  # killed before it said so
    result = store.run_folder(folder, name) / "result.json"
    before, stamp = batches.passes["data"], result.stat().st_mtime_ns
    assert training.train({name: resolve(config(2, tmp_path))}, jax.devices(), folder) == 0
    assert batches.passes["data"] == before and result.stat().st_mtime_ns == stamp
    assert store.status(result.parent) == "done"


def test_a_stage_is_not_moved_while_somebody_trains_it(tmp_path):
    train([config(4, tmp_path)])
    folder, name = stage(2, tmp_path)
    before = batches.passes["data"]
    with Claim(folder, {name: [name]}):
        assert train([config(2, tmp_path)]).counts == {"running": 1}
    assert store.run_folder(folder, store.STAGES + name).exists()
    train([config(2, tmp_path)])
    assert not store.run_folder(folder, store.STAGES + name).exists()
    assert losses(tmp_path).keys() == {2, 4} and batches.passes["data"] == before


def test_a_start_that_is_missing_fails_its_own_run_alone(tmp_path, monkeypatch):
    """With several waves, whose programs the first one would have compiled."""
    real = training.grow

    def grow(folder, member):
        if member.config.seed == 0:
            raise OSError("lost")
        real(folder, member)

    monkeypatch.setattr(training, "grow", grow)
    configs = [replaced(config(4, tmp_path), {"seed": seed}) for seed in (0, 1, 2)]
    summary = train(configs)
    assert summary.counts == {"done": 2, "failed": 1}


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
