"""The time experiment: its mathematics, what it measures, and its law at a small size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toydepth.config import ConfigError, parse, resolve, run_id
from toydepth.curvature import hessian_product, hutchinson_trace, top_eigenvalues
from toydepth.ensemble import Member
from toydepth.problems import hyper_of, problem_of, role_key, source_of
from toydepth.problems.time import kl, parts
from toydepth.programs import fresh_state, mean_loss, seen


def made(**fields):
    """A resolved config of the time experiment, small unless said otherwise."""
    tree = {
        "problem": "time",
        "teacher": {"width": 6},
        "target": {"vocab": 10, "temperature": 0.1},
        "train": {"steps": 40, "batch": 32, "eval_batches": 2},
    }
    for name, value in fields.items():
        section, _, field = name.partition("__")
        tree[section] = tree.get(section, {}) | {field: value} if field else value
    return resolve(parse(tree))


def at_start(config):
    """(problem, state, hyper, evaluation batches, context) of a run at step 0."""
    member = Member("run", config)
    problem = member.shape.problem
    fixed = problem.stream.init(source_of(config))
    key = role_key(config.seed, "eval")
    batches = [problem.stream.draw(fixed, jax.random.fold_in(key, i)) for i in range(config.train.eval_batches)]
    state = fresh_state(member.shape, role_key(config.seed, "student"), member.hyper)
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    return member, state, stacked, problem.stream.context(fixed)


def test_the_loss_and_its_gradient_are_those_of_kl_by_the_book():
    outputs, target = 3 * jax.random.normal(jax.random.key(0), (2, 16, 10))

    def book(outputs):
        log_p, log_q = jax.nn.log_softmax(target), jax.nn.log_softmax(outputs)
        return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=1)

    np.testing.assert_allclose(kl(outputs, target), book(outputs), rtol=2e-5, atol=1e-6)
    weights = jnp.arange(16.0)
    ours, theirs = (jax.grad(lambda o, f=f: f(o) @ weights)(outputs) for f in (lambda o: kl(o, target), book))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.isfinite(kl(outputs, 1e5 * target)).all()  # a temperature of 1e-5
    assert kl(target, target).max() < 1e-5


def test_inputs_have_the_spectrum_that_is_asked_for_and_norm_one():
    config = made(teacher__spectrum=2.0, train__batch=20_000)
    problem = problem_of(config)
    inputs = problem.stream.draw(problem.stream.init(source_of(config)), jax.random.key(0))["inputs"]
    np.testing.assert_allclose(np.mean(inputs**2, axis=1), 1.0, rtol=1e-3)
    ratios = np.mean(inputs**2, axis=0)
    assert (np.diff(ratios) < 0).all()
    white = problem_of(made(train__batch=20_000))
    flat = np.mean(white.stream.draw(white.stream.init(source_of(made())), jax.random.key(0))["inputs"] ** 2, axis=0)
    np.testing.assert_allclose(flat, 1.0, atol=0.05)


def test_the_start_is_its_own_draw_times_ratio_over_temperature():
    zero, scaled = made(), made(student__init=0.5)
    problem = problem_of(scaled)
    own = problem.init(role_key(0, "student"))
    started = problem.start(own, hyper_of(scaled))["W"]
    np.testing.assert_allclose(started, own["W"] * 0.5 / 0.1, rtol=1e-6)
    assert not problem.start(own, hyper_of(zero))["W"].any()
    assert problem == problem_of(zero)  # a start is no shape
    assert run_id(zero) != run_id(scaled)


def test_the_radial_and_tangential_parts_recompose_the_update():
    update, W = jax.random.normal(jax.random.key(1), (2, 6, 10))
    radial, tangential = parts(update, W)
    direction = W / jnp.linalg.norm(W)
    np.testing.assert_allclose(radial * direction + tangential, update, rtol=1e-5, atol=1e-6)
    assert abs(jnp.sum(tangential * W)) < 1e-4
    assert parts(0.1 * W, W)[0] == pytest.approx(0.1 * float(jnp.linalg.norm(W)), rel=1e-5)
    assert parts(update, 0 * W)[0] == 0.0


@pytest.mark.parametrize("loss", ["kl", "mse"])
def test_hessian_products_are_those_of_the_dense_hessian(loss):
    member, state, batches, context = at_start(made(target__loss=loss, student__init=1.0))
    look = seen(member.shape, state, member.hyper, batches, context, 0)
    dense = (
        jax.hessian(lambda w: look.objective({"W": w.reshape(6, 10)}))(look.params["W"].ravel())
        if loss == "mse"
        else _dense(look)
    )
    product, size = hessian_product(look.objective, look.params)
    ours = jax.vmap(product)(jnp.eye(size))
    scale = float(jnp.abs(dense).max())
    np.testing.assert_allclose(ours, dense, atol=1e-4 * scale)
    expected = np.linalg.eigvalsh(np.asarray(dense, np.float64))[::-1]
    found = top_eigenvalues(look.objective, look.params, 3, size)
    np.testing.assert_allclose(found, expected[:3], rtol=1e-3)
    few = top_eigenvalues(look.objective, look.params, 1, 20)
    assert few[0] == pytest.approx(expected[0], rel=1e-2)
    trace = hutchinson_trace(look.objective, look.params, 2000)
    assert trace == pytest.approx(expected.sum(), rel=0.05)


def _dense(look):
    """The Hessian of the softmax's loss in closed form: the mean of x x^T (diag q - q q^T)."""
    inputs = look.batches["inputs"].reshape(-1, 6)
    q = jax.nn.softmax(inputs @ look.params["W"], axis=1)
    inner = jax.vmap(jnp.diag)(q) - q[:, :, None] * q[:, None, :]
    blocks = jnp.einsum("ni,nj,nkl->ikjl", inputs, inputs, inner) / len(inputs)
    return blocks.reshape(60, 60)


def test_what_is_measured_is_what_a_step_does():
    member, state, batches, context = at_start(made(optimizer__name="sgd", optimizer__lr=0.5, student__init=1.0))
    problem = member.shape.problem
    look = seen(member.shape, state, member.hyper, batches, context, 0)
    found = problem.measures(look)
    gradient = jax.grad(
        lambda params: jnp.mean(
            jnp.stack(
                [
                    mean_loss(params, problem, jax.tree.map(lambda a, i=i: a[i], batches), context, member.hyper)
                    for i in (0, 1)
                ]
            )
        )
    )(state["params"])["W"]
    np.testing.assert_allclose(found["gradient_norm"], jnp.linalg.norm(gradient), rtol=1e-4)
    length = jnp.sqrt(found["update_radial"] ** 2 + found["update_tangential"] ** 2)
    np.testing.assert_allclose(length, 0.5 * jnp.linalg.norm(gradient), rtol=1e-4)
    np.testing.assert_allclose(found["weight_norm"], jnp.linalg.norm(state["params"]["W"]), rtol=1e-5)
    assert "hessian_1" not in found


def test_more_eigenvalues_than_there_are_are_refused():
    with pytest.raises(ConfigError, match=r"measure\.eigenvalues=4: allowed is at most 3"):
        made(measure__eigenvalues=4, measure__lanczos=3)


def test_evaluations_are_log_spaced_and_end_with_the_last_step():
    train = made(train__evals_per_decade=4, train__steps=150).train
    found = [step for step in range(151) if train.evaluates(step)]
    assert found == [0, 1, 2, 3, 6, 10, 18, 32, 56, 100, 150]
    even = made(train__evals_per_decade=0, train__eval_every=50, train__steps=120).train
    assert [step for step in range(121) if even.evaluates(step)] == [0, 50, 100, 120]
