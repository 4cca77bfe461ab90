"""The width experiment: its inputs, its mathematics, what it measures, and its two regimes at a small size."""

import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

from toydepth import cli, programs, store
from toydepth.config import ConfigError, parse, resolve, run_id
from toydepth.ensemble import Member
from toydepth.exponents import fit
from toydepth.figures import width as figures
from toydepth.figures.maps import map_panels
from toydepth.optimizer import hyper_of as optimizer_hyper
from toydepth.problems import Seen, hyper_of, losses, problem_of, role_key, source_of
from toydepth.problems.width import mean_squared_overlap
from toydepth.theory.superposition import weak_loss


def made(**fields):
    """A resolved config of the width experiment, small unless said otherwise."""
    tree = {
        "problem": "width",
        "features": {"count": 40},
        "student": {"width": 6},
        "train": {"steps": 40, "batch": 64, "eval_batches": 2},
    }
    for name, value in fields.items():
        section, _, field = name.partition("__")
        tree[section] = tree.get(section, {}) | {field: value} if field else value
    return resolve(parse(tree))


def drawn(config, batches=1):
    """Inputs x[batches * batch, count], as the target gives them."""
    problem = problem_of(config)
    fixed = problem.stream.init(source_of(config))
    keys = jax.random.split(jax.random.key(3), batches)
    return np.asarray(
        jnp.concatenate([problem.target(problem.stream.draw(fixed, key), {}, {}) for key in keys]), np.float64
    )


# --- inputs -------------------------------------------------------------------------------------------------

FREQUENCIES = {
    "power": {"features__exponent": 1.5},
    "exponential": {"features__frequency": "exponential", "features__length": 8.0},
    "linear": {"features__frequency": "linear", "features__density": 3.0},
    "always": {"features__exponent": 1.0, "features__density": float(sum(1 / i for i in range(1, 41)))},
}


@pytest.mark.parametrize("name", FREQUENCIES)
def test_features_are_active_at_their_frequencies_independently_of_one_another(name):
    config = made(train__batch=4096, **FREQUENCIES[name])
    p, x = config.features.frequencies(), drawn(config, batches=5)
    active, n = x > 0, len(x)
    assert np.abs(active.mean(0) - p).max() < 4.5 * np.sqrt(p * (1 - p) / n + 1e-12).max()
    assert (np.abs(active.mean(0) - p) < 5 * np.sqrt(p * (1 - p) / n) + 1e-4).all()
    both, expected = (active.T.astype(float) @ active) / n, np.outer(p, p)
    np.fill_diagonal(both, 0), np.fill_diagonal(expected, 0)
    assert (np.abs(both - expected) < 6 * np.sqrt(expected / n) + 3 / n).all()
    values = x[active]
    assert 0 < values.min() < 0.01 and 1.99 < values.max() <= 2
    assert values.mean() == pytest.approx(1, abs=0.02) and values.var() == pytest.approx(1 / 3, abs=0.01)


def test_frequencies_are_of_their_kind_and_add_up_to_the_density():
    power = made(features__exponent=2.0, features__density=1.3).features.frequencies()
    assert power[0] / power[9] == pytest.approx(100)
    exponential = made(features__frequency="exponential", features__length=5.0).features.frequencies()
    assert exponential[3] / exponential[8] == pytest.approx(np.e)
    linear = made(features__frequency="linear").features.frequencies()
    np.testing.assert_allclose(np.diff(linear), -linear[-1])
    assert (power.sum(), exponential.sum(), linear.sum()) == pytest.approx((1.3, 1, 1))


def test_widths_and_decays_share_their_inputs_and_frequencies_their_programs():
    a, b = made(), made(student__width=12, student__decay=0.5, student__bias=0.0)
    assert problem_of(a).stream == problem_of(b).stream
    assert problem_of(a) == problem_of(made(student__decay=0.5, features__exponent=2.0, features__density=1.1))
    np.testing.assert_array_equal(source_of(a)["frequencies"], source_of(b)["frequencies"])


# --- loss, decay, measures ----------------------------------------------------------------------------------


def test_the_loss_is_the_sum_over_features_of_the_squared_errors():
    config = made(features__density=3.0)
    problem = problem_of(config)
    batch = problem.stream.draw(problem.stream.init(source_of(config)), jax.random.key(1))
    params = problem.init(jax.random.key(2))
    x, W, b = np.zeros((64, 40)), np.asarray(params["W"], np.float64), np.asarray(params["b"], np.float64)
    for sample, feature, value in zip(*(np.asarray(batch[n]) for n in ("sample", "feature", "value")), strict=True):
        x[sample, feature] += value
    expected = np.sum((np.maximum(x @ W @ W.T + b, 0) - x) ** 2, axis=1)
    np.testing.assert_allclose(losses(problem, params, batch, {}, {}), expected, rtol=1e-4)
    assert W.std() * 6**0.5 == pytest.approx(1, rel=0.15) and b.std() == pytest.approx(1, rel=0.3)


def moved(config, norms, share=1.0):
    """(W, b) before and after one update with no gradient for W and a gradient of 1 for b, rows having these norms."""
    member = Member("run", config)
    params = member.shape.problem.init(jax.random.key(0))
    rows = params["W"][: len(norms)]
    W = jnp.array(norms)[:, None] * rows / jnp.linalg.norm(rows, axis=1, keepdims=True)
    params = {"W": W, "b": jnp.ones(len(norms))}
    optimizer = member.shape.transformation(member.hyper, share)
    updates, _ = optimizer.update({"W": jnp.zeros_like(W), "b": jnp.ones(len(norms))}, optimizer.init(params), params)
    return params, jax.tree.map(jnp.add, params, updates)


def test_positive_decay_pulls_rows_to_zero():
    before, after = moved(made(student__decay=0.5, optimizer__lr=0.1), [0.0, 0.3, 1.0, 3.0], share=0.6)
    np.testing.assert_allclose(after["W"], (1 - 0.6 * 0.1 * 0.5) * before["W"], rtol=1e-6)


def test_negative_decay_pulls_rows_to_norm_one_from_both_sides():
    before, after = moved(made(student__decay=-0.5, optimizer__lr=0.1), [0.0, 0.3, 1.0, 3.0], share=0.6)
    norms = np.linalg.norm(after["W"], axis=1)
    step = 0.6 * 0.1 * 0.5
    np.testing.assert_allclose(norms, [0.0, 0.3 + step * 0.7, 1.0, 3.0 - step * 2.0], rtol=1e-5)
    np.testing.assert_allclose(after["W"][1] / norms[1], before["W"][1] / 0.3, rtol=1e-5)  # their directions stay


@pytest.mark.parametrize("decay", [-1.0, 0.0, 1.0])
def test_biases_have_no_decay_and_a_rate_of_their_own(decay):
    own = {"optimizer__bias_lr": 2.0, "optimizer__bias_power": 1.0, "optimizer__width_power": 0.25}
    before, after = moved(made(student__decay=decay, student__width=16, optimizer__lr=0.02, **own), [1.0, 2.0])
    np.testing.assert_allclose(before["b"] - after["b"], 2.0 / 16, rtol=1e-5)  # Adam's first step is the rate
    assert made(optimizer__lr=0.02, optimizer__width_power=0.25).rate_scale() == pytest.approx(6**-0.25)
    before, after = moved(made(student__decay=decay), [1.0, 2.0])
    np.testing.assert_allclose(before["b"] - after["b"], 0.01, rtol=1e-5)


def test_no_number_of_the_problem_is_hidden_by_one_of_the_optimizer():
    assert not hyper_of(made()).keys() & optimizer_hyper(made()).keys()


def test_measures_are_those_of_brute_force():
    config = made(student__width=3)
    problem = problem_of(config)
    params, context = problem.init(role_key(0, "student")), problem.stream.context(source_of(config))
    found = problem.measures(Seen(params, None, None, lambda params: 0.0, None, context, {}))
    W = np.asarray(params["W"], np.float64)
    norms = np.linalg.norm(W, axis=1)
    assert 2 < (norms > 0.5).sum() < 40
    kept = [row / norm for row, norm in zip(W, norms, strict=True) if norm > 0.5]
    assert found["overlap"] == pytest.approx(
        np.mean([(a @ b) ** 2 for a, b in itertools.combinations(kept, 2)]), rel=1e-4
    )
    assert found["represented"] == pytest.approx((norms > 0.5).mean())
    assert found["strong"] == pytest.approx((norms > 1).mean())
    assert found["missing"] == pytest.approx(4 / 3 * config.features.frequencies()[norms <= 0.5].sum(), rel=1e-5)
    assert [found["norm_05"], found["norm_50"]] == pytest.approx(np.percentile(norms, [5, 50]), rel=1e-4)
    assert np.isnan(mean_squared_overlap(jnp.eye(3), jnp.array([True, False, False])))
    pictured = problem.pictured(params)
    np.testing.assert_allclose(pictured["overlaps"], W @ W.T, atol=1e-5)
    np.testing.assert_allclose(pictured["row_norms"], norms, rtol=1e-5)


def test_the_loss_of_the_most_frequent_features_alone_is_that_of_theory():
    config = made(train__batch=20_000, student__width=8, features__exponent=1.5)
    problem = problem_of(config)
    params = {"W": jnp.eye(40, 8), "b": jnp.zeros(40)}
    batch = problem.stream.draw(problem.stream.init(source_of(config)), jax.random.key(4))
    found = np.asarray(losses(problem, params, batch, {}, {}))
    (expected,) = weak_loss(config.features.frequencies(), [8])
    assert abs(found.mean() - expected) < 4 * found.std() / np.sqrt(found.size)
    assert found.mean() == pytest.approx(expected, rel=0.1)


# --- what is asked for --------------------------------------------------------------------------------------


def test_what_cannot_be_is_refused_in_a_line():
    for fields, words in (
        ({"features__density": 5.0}, "features.density=5.0: allowed is at most 4.27854"),
        ({"optimizer__name": "adamw"}, "optimizer.name=adamw: allowed is one of adam, sgd"),
        ({"features__count": 10**6, "train__batch": 4096}, "train.batch=4096: allowed is below 2147"),
        ({"optimizer__depth_power": 0.5}, "optimizer.depth_power=0.5"),
    ):
        with pytest.raises(ConfigError, match=words.replace(".", r"\.")):
            made(**fields)


def test_fields_that_a_frequency_does_not_use_leave_a_run_what_it_is():
    linear = {"features__frequency": "linear"}
    assert run_id(made(**linear)) == run_id(made(**linear, features__exponent=2.0, features__length=9.0))
    assert run_id(made()) == run_id(made(features__length=9.0)) != run_id(made(features__exponent=2.0))
    assert len({run_id(made(student__decay=g, student__bias=b)) for g in (-1, 1) for b in (0, 1)}) == 4


# --- a sweep ------------------------------------------------------------------------------------------------

WORDS = ["problem=width", "features.count=40", "features.exponent=1.5", "student.width=3,6,12", "student.decay=-1,1"]
WORDS += ["student.bias=0", "seed=0,1", "train.steps=200", "train.batch=64", "train.eval_every=100", "train.twin=false"]
WORDS += ["sweep.name=w", "sweep.fit='--y loss; --y overlap --where \"decay < 0\"'"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep over widths in both regimes, and how often its programs were traced."""
    root = tmp_path_factory.mktemp("width")
    before = programs.traces.copy()
    assert cli.main(["run", *WORDS, f"sweep.root={root}"]) == 0
    return root / "w", programs.traces - before


def test_one_compile_for_each_width(folder):
    assert folder[1]["student"] == folder[1]["evaluation"] == 3


def test_negative_decay_represents_all_features_and_positive_decay_few(folder):
    runs = pl.read_parquet(folder[0] / "runs.parquet")
    strong, weak = (runs.filter(pl.col("student.decay") == decay) for decay in (-1, 1))
    assert strong["represented"].min() > 0.9 and strong["missing"].max() < 0.1
    assert weak["represented"].max() < 0.7 and weak["missing"].min() > 0
    assert np.corrcoef(np.log(weak["loss"]), np.log(weak["missing"]))[0, 1] > 0.8


def test_overlaps_fall_as_one_over_the_width_and_are_fitted(folder):
    found = json.loads((folder[0] / "exponents.json").read_text())["exponents"]
    (overlap,) = [e for e in found if e["quantity"] == "overlap"]
    assert overlap["alpha"] == pytest.approx(1, abs=0.3)
    assert {e["regime"]["student.decay"] for e in found if e["quantity"] == "loss"} == {-1, 1}
    assert all(e["alpha"] > 0 for e in found)


# --- pictures -----------------------------------------------------------------------------------------------


def test_pictures_are_of_what_was_recorded(folder):
    runs = pl.read_parquet(folder[0] / "runs.parquet")
    arrays = lambda run: store.arrays(folder[0] / "runs" / run)  # noqa: E731
    names = [panel.name for panel in figures.panels(fit(runs, "student.width"), runs, arrays)]
    assert names == ["loss_vs_missing", "overlap_vs_width", "row_norms", "overlaps"] == list(figures.NAMES)
    less = runs.drop("overlap").with_columns(missing=0.0)
    assert not figures.panels(fit(less, "student.width"), less, lambda run: {})


def test_a_map_is_drawn_of_two_fields_and_of_no_more():
    grid = itertools.product((0.5, 1.0, 1.5), (-1.0, 0.0, 1.0), (1, 2), (10, 20, 40))
    table = pl.DataFrame(
        [
            {"features.exponent": a, "student.decay": g, "data.unique": u, "student.width": m, "loss": m**-a, "seed": 0}
            for a, g, u, m in grid
        ]
    ).with_columns(status=pl.lit("done"), half_loss=None, converged=None)
    one = table.filter(pl.col("data.unique") == 1)
    assert [panel.name for panel in map_panels(fit(one, "student.width"))] == ["alpha_map"]
    assert map_panels(fit(table, "student.width")) == []
    assert map_panels(fit(one.filter(pl.col("student.decay") < 1), "student.width")) == []
