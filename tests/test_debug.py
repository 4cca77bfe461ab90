"""Debug presets: what is planted is found, at its layer and step; training step by step is the engine's."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toydepth import debug, files, store
from toydepth.cli import main
from toydepth.config import parse
from toydepth.ensemble import Member
from toydepth.problems import source_of
from toydepth.programs import fresh_state
from toydepth.sweep import train

SMALL = ["teacher.depth=6", "teacher.width=4", "train.batch=16", "train.eval_batches=2", "optimizer=adam"]
# Each layer's c shrinks by weight decay alone, from its own start; the first one to fall below 0.3 overflows.
PLANTED = """
import jax, jax.numpy as jnp
from toydepth.network import rms_norm

def init(key, width, hidden):
    return {"W": jnp.zeros((width, width)), "c": 0.35 + jax.random.uniform(key)}

def apply(params, h):
    return h + params["W"] @ rms_norm(h) + jnp.where(params["c"] < 0.3, jnp.inf, 0.0)

block = (init, apply)
"""


def setting(tiny, **fields):
    """A member with its fresh state and first batch: the arguments of `first_not_finite`."""
    member = Member("run", tiny(**fields))
    stream = member.shape.problem.stream
    fixed = stream.init(source_of(member.config))
    state = fresh_state(member.shape, jax.random.key(0), member.hyper)
    state["params"] = jax.tree.map(lambda a: a + 0.01, state["params"])
    return member.shape, state, member.hyper, stream.draw(fixed, jax.random.key(1)), stream.context(fixed), 7


def planted(state, name, layer, value):
    """The state with a value put into one layer's parameter."""
    layers = state["params"]["layers"]
    changed = layers | {name: layers[name].at[layer].set(value)}
    return state | {"params": state["params"] | {"layers": changed}}


def test_nothing_is_found_where_all_is_finite(tiny):
    assert debug.first_not_finite(*setting(tiny, student__depth=4)) == ""


@pytest.mark.parametrize("layer", [0, 2, 3])
def test_an_overflow_is_found_in_its_layer(tiny, layer):
    shape, state, *rest = setting(tiny, student__depth=4)
    found = debug.first_not_finite(shape, planted(state, "W2", layer, 3e38), *rest)
    assert found == f"layer {layer + 1} of 4: state is inf"
    found = debug.first_not_finite(shape, planted(state, "W2", layer, 1e25), *rest)
    assert found == f"layer {layer + 1} of 4: state's mean square is inf"
    found = debug.first_not_finite(shape, planted(state, "b1", layer, np.nan), *rest)
    assert found == f"layer {layer + 1} of 4: parameter layers.b1 is nan"


def test_a_gradient_is_found_in_the_layer_that_is_reached_first_on_the_way_back(tiny):
    shape, state, hyper, *rest = setting(tiny, student__depth=4)
    problem = shape.problem

    @jax.custom_vjp
    def wall(h):
        return h

    wall.defvjp(lambda h: (h, None), lambda _, g: (g * jnp.nan,))

    @dataclasses.dataclass(frozen=True)
    class Walled:
        """The problem with a gradient of nan behind its layers."""

        def __getattr__(self, name):
            return getattr(problem, name)

        def predict(self, params, batch, context, hyper):
            return wall(problem.predict(params, batch, context, hyper))

    found = debug.first_not_finite(dataclasses.replace(shape, problem=Walled()), state, hyper, *rest)
    assert found == "layer 4 of 4: gradient of layers.W1 is nan"


def test_an_update_that_overflows_is_told_from_a_gradient(tiny):
    shape, state, hyper, *rest = setting(tiny, student__depth=2)
    found = debug.first_not_finite(shape, state, hyper | {"lr": np.float32(np.inf)}, *rest)
    assert found.startswith("layer 1 of 2: update of layers.") and "inf" in found


def test_the_planted_layer_and_step_are_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "planted.py").write_text(PLANTED)
    rate, depth = 0.02, 5
    words = [*SMALL, "student.block=planted.py:block", f"student.depth={depth}", "optimizer=adamw", "schedule=constant"]
    words += ["optimizer.weight_decay=1", f"optimizer.lr={rate}", "optimizer.depth_power=0", "train.steps=60"]
    key = jax.random.fold_in(jax.random.key(0), 1)  # the role `student`
    start = 0.35 + np.array([jax.random.uniform(jax.random.fold_in(key, layer)) for layer in range(depth)])
    # A run stops at the step whose loss is not finite, that is once c has been decayed `steps` times
    steps = np.ceil(np.log(0.3 / start) / np.log(1 - rate)).astype(int)
    assert main(["run", "debug=nan", *words]) == 1
    message = f"diverged at step {steps.min()}: layer {steps.argmin() + 1} of {depth}: state is inf"
    assert message in capsys.readouterr().err
    (run,) = (tmp_path / "outputs" / "debug_nan" / "runs").iterdir()
    assert files.read_json(run / "status.json") == {"status": "diverged", "message": message, "step": steps.min()}


def test_step_by_step_is_the_engines_training(tmp_path):
    """The same batches and updates: equal up to rounding, while another seed's loss is another."""

    def loss(mode, seed=0):
        tree = {
            "seed": seed,
            "teacher": {"depth": 6, "width": 4, "scale": 3},
            "student": {"depth": 2},
            "train": {"steps": 6, "batch": 16, "eval_every": 3, "eval_batches": 2, "twin": False},
            "data": {"unique": 32},
            "runtime": {"debug": mode},
            "sweep": {"root": str(tmp_path / f"{mode}{seed}")},
        }
        summary = train([parse(tree)])
        (run,) = (summary.folder / "runs").iterdir()
        return store.history(run)["loss"].to_numpy()

    engine = loss(None)
    np.testing.assert_allclose(loss("nan"), engine, rtol=1e-4)
    np.testing.assert_allclose(loss("eager"), engine, rtol=1e-4)
    assert not np.allclose(loss("nan", seed=1), engine, rtol=1e-2)


@pytest.mark.parametrize("preset", ["nan", "eager", "overfit", "profile"])
@pytest.mark.usefixtures("without_pictures")
def test_each_preset_works_alone_and_in_a_multirun(preset, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    few = ["train.steps=2"] if preset == "eager" else ["train.steps=10"]
    assert main(["run", f"debug={preset}", "student.depth=1", *SMALL, *few]) == 0
    assert main(["run", "-m", f"debug={preset}", "student.depth=1", "seed=0,1", *SMALL, *few]) == 0
    folder = tmp_path / "outputs" / f"debug_{preset}"
    assert len(list((folder / "runs").iterdir())) == 2
    assert not (tmp_path / "outputs" / "adhoc").exists()
    out = capsys.readouterr().out
    assert ("train loss" in out) == (preset == "overfit")
    assert bool(list(folder.rglob("*.xplane.pb"))) == (preset == "profile")


def test_a_preset_wins_over_a_named_sweep(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "debug=eager", "+sweeps=alpha_quick", "--cfg", "job"]) == 0
    shown = capsys.readouterr().out
    assert "steps: 5\n" in shown and "steps: 6000" not in shown
    assert main(["run", "debug=eager", "+sweeps=alpha_quick", "train.steps=7", "--cfg", "job"]) == 0
    assert "steps: 7\n" in capsys.readouterr().out


@pytest.mark.usefixtures("without_pictures")
def test_overfitting_reuses_one_batch(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["student.depth=4", "train.steps=400", "optimizer.lr=0.02", *SMALL]
    main(["run", "debug=overfit", *words])
    (run,) = (tmp_path / "outputs" / "debug_overfit" / "runs").iterdir()
    config = store.config(run)
    assert config is not None and config.data.unique == config.train.batch
    history = store.history(run)
    assert history["train_loss"][-1] < 0.02 * history["loss"][0]
    assert history["loss"][-1] > 5 * history["train_loss"][-1]  # fresh inputs do not profit


def test_overfitting_is_to_one_batch_only(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["run", "debug=overfit", "data.unique=32", *SMALL]) == 2
    assert "data.unique=32: allowed is train.batch=16" in capsys.readouterr().err


@pytest.mark.usefixtures("without_pictures")
def test_scalars_for_tensorboard(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [*SMALL, "student.depth=1", "train.steps=20", "train.eval_every=5", "train.twin=false"]
    assert main(["run", "runtime.tensorboard=true", *words]) == 0
    (run,) = (tmp_path / "outputs" / "adhoc" / "runs").iterdir()
    (events,) = (run / "tensorboard").iterdir()
    assert b"train_loss" in events.read_bytes()
    assert main(["run", *words, "seed=1"]) == 0
    assert len(list((tmp_path / "outputs" / "adhoc" / "runs").glob("*/tensorboard"))) == 1
