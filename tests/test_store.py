"""Run folders: whole files, history that is cut, sweeps that refuse changed fields, checkpoints that are checked."""

import json

import jax
import numpy as np
import pytest

from toydepth import checkpoint, files, store
from toydepth.config import ConfigError, parse, resolve, run_id


def config(**tree):
    return resolve(parse({"sweep": {"name": "s"}} | tree))


def test_a_run_id_depends_on_what_matters_and_on_nothing_else():
    base = run_id(config())
    assert run_id(config(train={"eval_every": 7, "checkpoint_every": 9})) == base
    assert run_id(config(sweep={"name": "other"})) == base
    assert run_id(config(runtime={"devices": 1, "memory_gb": 3})) == base
    assert run_id(config(teacher={"rho": 0.1})) == base  # an independent teacher has no rho
    assert run_id(config(target={"temperature": 0.1})) == base  # nor has MSE a temperature
    assert run_id(config(runtime={"batching": "vmap"})) != base
    assert run_id(config(train={"eval_batches": 11})) != base
    assert run_id(config(teacher={"kind": "mixed", "rho": 0.1})) != run_id(config(teacher={"kind": "mixed"}))
    assert run_id(config(teacher={"seed": 5})) != base
    assert run_id(config(teacher={"seed": 0})) == base  # the default is the run's own seed


def test_a_sweep_grows_but_refuses_a_changed_field(tmp_path):
    folder = tmp_path / "s"
    first = [config(seed=seed) for seed in (0, 1)]
    store.open_sweep(folder, first, "first")
    store.open_sweep(folder, [config(seed=2)], "more of a swept field")
    store.open_sweep(folder, [config(seed=2, student={"depth": d}) for d in (8, 4)], "a field becomes swept")
    store.open_sweep(folder, [config(seed=0, student={"depth": 16})], "more of it")
    record = files.read_json(folder / "sweep.json")
    assert record["swept"]["seed"] == [0, 1, 2]
    assert record["swept"]["student.depth"] == [8, 4, 16]
    assert "seed" not in record["fixed"]
    before = (folder / "sweep.json").read_text()
    with pytest.raises(ConfigError, match=r"train.steps=20.*train.steps=8000.*sweep.name=") as refused:
        store.open_sweep(folder, [config(train={"steps": 20})], "changed")
    assert "\n" not in str(refused.value)
    assert (folder / "sweep.json").read_text() == before


def test_a_lost_record_is_read_from_the_runs(tmp_path):
    folder = tmp_path / "s"
    store.open_sweep(folder, [config()], "first")
    store.write_config(store.run_folder(folder, "a"), config())
    for broken in ("{", '{"fixed": []}'):
        (folder / "sweep.json").write_text(broken)
        with pytest.raises(ConfigError, match=r"train.steps=20"):
            store.open_sweep(folder, [config(train={"steps": 20})], "changed")


def test_a_kind_that_uses_one_more_field_may_join(tmp_path):
    folder = tmp_path / "s"
    store.open_sweep(folder, [config(teacher={"kind": kind}) for kind in ("tied", "independent")], "first")
    store.open_sweep(folder, [config(teacher={"kind": "mixed", "rho": 0.3})], "mixed has a rho")
    with pytest.raises(ConfigError, match=r"teacher.rho=0.5"):
        store.open_sweep(folder, [config(teacher={"kind": "mixed", "rho": 0.5})], "another rho")


def test_adhoc_may_mix(tmp_path):
    store.open_sweep(tmp_path / "adhoc", [config(sweep={})], "a")
    store.open_sweep(tmp_path / "adhoc", [config(sweep={}, train={"steps": 20})], "b")
    assert files.read_json(tmp_path / "adhoc" / "sweep.json")["command"] == "b"


@pytest.mark.parametrize("where", ["s", "."])
def test_a_file_in_the_way_is_one_line(tmp_path, where):
    root = tmp_path / "outputs"
    (root if where == "." else tmp_path).joinpath("").mkdir(exist_ok=True)
    blocked = tmp_path / "outputs" if where == "s" else root / "s"
    blocked.parent.mkdir(exist_ok=True)
    if blocked.is_dir():
        blocked.rmdir()
    blocked.write_text("not a folder")
    with pytest.raises(ConfigError, match=r"is a file") as refused:
        store.open_sweep(root / "s", [config()], "command")
    assert "\n" not in str(refused.value)
    assert blocked.read_text() == "not a folder"


def test_history_is_cut_at_a_step_and_loses_a_torn_line(tmp_path):
    row = dict.fromkeys(store.HISTORY, 1.0)
    for step in (0, 10, 20, 30):
        store.append_history(tmp_path, row | {"step": step})
    with (tmp_path / "history.jsonl").open("a") as file:
        file.write('null\n{"step": "x"}\n{"step": 40, "lo')
    assert store.history(tmp_path)["step"].to_list() == [0, 10, 20, 30]
    store.cut_history(tmp_path, 20)
    assert store.history(tmp_path)["step"].to_list() == [0, 10, 20]
    store.append_history(tmp_path, row | {"step": 30})
    assert store.history(tmp_path)["step"].to_list() == [0, 10, 20, 30]


ROW = dict.fromkeys(store.HISTORY, 1.0) | {"step": 20}
RESULT = {"status": "done", "loss": 0.5, "steps": 10}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *[
            ("history.jsonl", json.dumps(ROW | {name: value}))
            for name in ("loss", "step")
            for value in ("1", True, [1], 2**64)
        ],
        *[
            ("history.jsonl", line)
            for line in ('{"step": 20, "lo', "null", "[" * 10_000, json.dumps(ROW | {"step": 10}))
        ],
        *[("result.json", json.dumps(RESULT | {name: "1"})) for name in ("loss", "steps", "status", "converged")],
        *[("result.json", text) for text in ('{"status": "done", "lo', "[]", '{"status": "done"}')],
        *[
            ("status.json", text)
            for text in ("", '{"status": "do', '{"status": 5}', '{"status": "done", "message": 5}')
        ],
        *[("config.json", text) for text in ('{"seed": 0', '{"problem": []}', '{"teacher": 5}')],
    ],
)
def test_what_is_damaged_is_passed_over_with_one_line_that_names_it(tmp_path, caplog, name, text):
    run = store.run_folder(tmp_path, "a")
    store.write_config(run, config())
    for step in (0, 10):
        store.append_history(run, ROW | {"step": step})
    files.write_json(run / "result.json", RESULT)
    store.write_status(run, "done", 10)
    whole = store.collect(tmp_path)
    with (run / name).open("a" if name == "history.jsonl" else "w") as file:
        file.write(text)
    runs = store.collect(tmp_path)
    assert store.history(run)["step"].to_list() == [0, 10]
    assert [record.getMessage().count(str(run / name)) for record in caplog.records] == [1]
    if name == "result.json":
        assert runs.select("status", "loss").rows() == [("running", None)]
    elif name == "config.json":
        assert runs.is_empty()
    else:
        assert runs.equals(whole)


def test_collect_reads_folders_alone_and_unused_fields_are_null(tmp_path):
    folder = tmp_path / "s"
    configs = [config(seed=seed, target={"loss": loss}) for seed in (0, 1) for loss in ("mse", "kl")]
    store.open_sweep(folder, configs, "command")
    for i, one in enumerate(configs):
        run = store.run_folder(folder, run_id(one))
        store.write_config(run, one)
        if i < 3:
            made = {"commit": "abc1234"} if i < 2 else {}
            files.write_json(run / "result.json", RESULT | {"converged": None} | made)
            store.write_status(run, "done", 10)
    (folder / "runs" / "stray").mkdir()
    runs = store.collect(folder)
    assert sorted(runs["status"].to_list()) == ["done", "done", "done", "running"]
    by_loss = dict(runs.select("target.loss", "target.temperature").unique().iter_rows())
    assert by_loss == {"mse": None, "kl": 1.0}
    assert runs["loss"].null_count() == 1
    assert runs["commit"].to_list().count("abc1234") == 2
    assert store.provenance(folder, runs) == "command   (commit abc1234)"
    assert store.provenance(folder, runs.clear()) == "command"


def test_histories_are_read_when_they_are_asked_for(tmp_path, monkeypatch):
    read = []
    monkeypatch.setattr(store, "history", lambda run: read.append(run.name) or run.name)
    for name in "cab":
        store.run_folder(tmp_path, name).mkdir(parents=True)
    (tmp_path / "runs" / "file").touch()
    histories = store.histories(tmp_path)
    assert list(histories) == ["a", "b", "c"] and "b" in histories and "file" not in histories and not read
    assert histories["b"] == histories["b"] == "b" and histories.get("d") is None
    assert read == ["b"]
    assert len(store.histories(tmp_path / "none")) == len(store.histories(tmp_path / "runs" / "file")) == 0


def test_json_is_written_whole_or_not_at_all(tmp_path):
    path = tmp_path / "result.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["result.json"]


TREE = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": {"count": np.int32(3)}}


def test_a_checkpoint_reads_back_and_the_latest_readable_one_counts(tmp_path):
    checkpoint.save_step(tmp_path, 10, TREE)
    found = checkpoint.restore_latest(tmp_path, TREE)
    assert found is not None
    step, tree = found
    assert step == 10
    assert jax.tree.all(jax.tree.map(np.array_equal, tree, TREE))
    assert tree["w"].dtype == np.float32
    checkpoint.save(tmp_path / "20", TREE)
    for file in (tmp_path / "20").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    found = checkpoint.restore_latest(tmp_path, TREE)
    assert found is not None
    assert found[0] == 10
    checkpoint.forget_after(tmp_path, 10)
    for step in (20, 30):
        checkpoint.save_step(tmp_path, step, TREE)
    assert checkpoint.steps(tmp_path) == [20, 30]  # one in reserve


@pytest.mark.parametrize(
    "other",
    [
        {"w": np.zeros((2, 4), np.float32), "n": {"count": np.int32(0)}},
        {"w": np.zeros((2, 3), np.float16), "n": {"count": np.int32(0)}},
        {"w": np.zeros((2, 3), np.float32), "n": {"other": np.int32(0)}},
    ],
    ids=["shape", "dtype", "name"],
)
def test_a_checkpoint_of_another_kind_is_refused_in_one_line(tmp_path, other):
    checkpoint.save(tmp_path / "1", TREE)
    with pytest.raises(checkpoint.CheckpointError) as refused:
        checkpoint.restore(tmp_path / "1", other)
    assert len(str(refused.value).splitlines()) == 1
    assert checkpoint.restore_latest(tmp_path, other) is None
