"""A run opened from its folder gives back what it recorded, to the last bit."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import toydepth
from toydepth.config import parse
from toydepth.network import norm_rows

KINDS = {
    "mse": {"target": {"loss": "mse"}},
    "learned head": {"target": {"loss": "kl", "temperature": 0.3, "vocab": 9}},
    "given head": {"target": {"loss": "kl", "temperature": 0.3, "vocab": 9, "head": "teacher"}},
    "rk4": {"student": {"depth": 2, "scheme": "rk4"}},
    "odd sizes": {"train": {"steps": 20, "batch": 13, "eval_batches": 3}},
    "one batch": {"train": {"steps": 20, "batch": 16, "eval_batches": 1}},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A finished run of every kind: {kind: folder}."""
    root = str(tmp_path_factory.mktemp("outputs"))
    folders = {}
    for kind, fields in KINDS.items():
        tree = {
            "teacher": {"depth": 6, "width": 4, "kind": "tied", "scale": 3},
            "student": {"depth": 3},
            "train": {"steps": 20, "batch": 16},
            "sweep": {"root": root},
        }
        for section, values in fields.items():
            tree[section] = tree.get(section, {}) | values
        tree["train"] |= {"twin": False}
        before = set(Path(root).glob("adhoc/runs/*"))
        toydepth.train([parse(tree)])
        (folders[kind],) = set(Path(root).glob("adhoc/runs/*")) - before
    return folders


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_student_and_inputs_give_the_recorded_loss(runs, kind):
    run = toydepth.open(runs[kind])
    said, wanted = run.student(run.inputs), run.teacher(run.inputs)
    recorded = json.loads((runs[kind] / "result.json").read_text())["loss"]
    assert run.loss(said, wanted) == run.loss() == recorded == run.history["loss"][-1]
    assert run.loss(said * 1.001, wanted) != recorded


def test_the_loss_is_that_of_its_definition(runs):
    run = toydepth.open(runs["mse"])
    said, wanted = (np.asarray(f(run.inputs), np.float64) for f in (run.student, run.teacher))
    assert np.mean((said - wanted) ** 2) == pytest.approx(run.loss(), rel=1e-5)
    run = toydepth.open(runs["given head"])
    said, wanted = (np.asarray(f(run.inputs), np.float64) for f in (run.student, run.teacher))
    np.testing.assert_allclose(np.exp(said).sum(-1), 1, rtol=1e-5)
    assert np.mean(np.sum(np.exp(wanted) * (wanted - said), axis=-1)) == pytest.approx(run.loss(), rel=1e-4)


def test_states_lead_from_the_normalised_input_to_the_output(runs):
    run = toydepth.open(runs["mse"])
    x = jax.random.normal(jax.random.key(5), (7, 4)) * 3
    teacher, student = run.states(x)
    assert teacher.shape == (7, 7, 4) and student.shape == (4, 7, 4)
    for states, function in ((teacher, run.teacher), (student, run.student)):
        np.testing.assert_allclose(states[0], norm_rows(x), rtol=1e-6)
        np.testing.assert_allclose(norm_rows(states[-1]), function(x), rtol=1e-5)
    assert not np.allclose(student[-1], student[0], atol=1e-3)


def test_functions_take_any_leading_axes_and_normalise(runs):
    run = toydepth.open(runs["mse"])
    x = jax.random.normal(jax.random.key(6), (2, 3, 5, 4))
    np.testing.assert_allclose(run.student(x)[1, 2], run.student(x[1, 2]), rtol=1e-6)
    np.testing.assert_allclose(run.teacher(x), run.teacher(x * 9), atol=1e-4)
    assert run.student.params["layers"]["W1"].shape == (3, 16, 4)
    assert not np.allclose(run.student(x), run.teacher(x), atol=1e-3)


def test_what_a_folder_holds_is_at_hand(runs):
    run = toydepth.open(str(runs["mse"]))
    assert run.status == "done" and run.config.student.depth == 3 and run.result["steps"] == 20
    assert run.history["step"].to_list() == list(range(21))
    assert run.inputs.shape == (10, 16, 4)
    assert jnp.std(run.inputs) == pytest.approx(1, abs=0.1)
    assert "done" in repr(run)


def test_what_is_no_run_is_refused_in_a_line(tmp_path, runs):
    with pytest.raises(toydepth.ConfigError, match="no run's folder"):
        toydepth.open(tmp_path)
    unfinished = tmp_path / "run"
    unfinished.mkdir()
    (unfinished / "config.json").write_bytes((runs["mse"] / "config.json").read_bytes())
    with pytest.raises(toydepth.ConfigError, match="no parameters to read; the run is not started"):
        _ = toydepth.open(unfinished).student
    (unfinished / "config.json").write_text('{"problem": "depth", "unheard": 1}')
    with pytest.raises(toydepth.ConfigError, match="another version"):
        toydepth.open(unfinished)


OWN = """import jax
import jax.numpy as jnp

def init(key, width, hidden, depth=0):
    return {"W": jax.random.normal(key, (width, width))}

NAME = (init, lambda params, h: h + 0.1 * jnp.FUNCTION(params["W"] @ h))
"""


@pytest.fixture
def own_run(tmp_path, monkeypatch):
    """A finished run of an own block and an own teacher, in files of the same name."""
    monkeypatch.chdir(tmp_path)
    for folder, name, function in (("a", "block", "tanh"), ("b", "teacher", "sin")):
        (tmp_path / folder).mkdir()
        text = OWN.replace("NAME", name).replace("FUNCTION", function).replace("\n", "\r\n")
        (tmp_path / folder / "own.py").write_bytes(text.encode())  # a copy must keep every byte
    tree = {
        "teacher": {"kind": "b/own.py:teacher", "depth": 3, "width": 4},
        "student": {"depth": 2, "block": "a/own.py:block"},
        "train": {"steps": 5, "batch": 8, "twin": False},
    }
    toydepth.train([parse(tree)])
    (run,) = (tmp_path / "outputs" / "adhoc" / "runs").iterdir()
    return run


def test_a_run_is_opened_with_the_code_that_it_was_made_with(own_run, tmp_path, monkeypatch):
    recorded = json.loads((own_run / "result.json").read_text())["loss"]
    file = tmp_path / "a" / "own.py"
    file.write_text(file.read_text().replace("0.1", "0.2"))
    monkeypatch.chdir("/")
    assert toydepth.open(own_run).loss() == recorded
    with pytest.raises(TypeError, match="its layers are not known"):
        toydepth.open(own_run).teacher.states(jnp.ones((2, 4)))
    (own_run / "source" / "student.block.py").unlink()
    with pytest.raises(toydepth.ConfigError, match="there is no file"):
        toydepth.open(own_run)
    monkeypatch.chdir(tmp_path)  # where the file lies, edited
    with pytest.raises(toydepth.ConfigError, match=r"a/own\.py:block.* is not what the run was made with"):
        toydepth.open(own_run)
