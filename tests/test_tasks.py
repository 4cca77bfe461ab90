"""The rare-task experiment: its batches, its start, its mathematics, what it measures, and when it is evaluated."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toydepth.config import ConfigError, parse, resolve
from toydepth.ensemble import Member
from toydepth.optimizer import factor
from toydepth.optimizer import hyper_of as optimizer_hyper
from toydepth.problems import Seen, losses, problem_of, role_key, source_of
from toydepth.problems.tasks import orthonormal
from toydepth.programs import fresh_state, update
from toydepth.theory.tasks import common_tasks


def made(**fields):
    """A resolved config of the rare-task experiment, small unless said otherwise."""
    tree = {
        "problem": "tasks",
        "tasks": {"count": 4, "features": 3, "inputs": 24},
        "student": {"width": 5},
        "train": {"steps": 40, "batch": 64},
    }
    for name, value in fields.items():
        section, _, field = name.partition("__")
        tree[section] = tree.get(section, {}) | {field: value} if field else value
    return resolve(parse(tree))


# --- batches ------------------------------------------------------------------------------------------------


def stream_of(config):
    problem = problem_of(config)
    return problem.stream, problem.stream.init(source_of(config))


def test_tasks_come_at_their_frequencies():
    config = made(train__gradient="sampled", train__batch=20_000, tasks__beta=1.2, tasks__frequency_boost=2.0)
    stream, fixed = stream_of(config)
    batch = stream.draw(fixed, jax.random.key(0))
    shares, pi = np.bincount(batch["task"], minlength=4) / 20_000, config.tasks.frequencies()
    assert np.abs(shares - pi).max() < 4 * 0.5 / math.sqrt(20_000)
    assert pi[3] / pi[0] == pytest.approx(2 * 4**-1.2)
    x = np.asarray(batch["inputs"], np.float64)
    assert np.abs(x.T @ x / 20_000 - np.eye(24)).max() < 0.06
    same = stream.scheduled(fixed, jax.random.key(0), 7)
    assert all((same[name] == batch[name]).all() for name in batch)


@pytest.mark.parametrize("rare", [None, 2])
def test_a_withheld_task_comes_back_as_often_as_it_would_have(rare):
    config = made(train__gradient="sampled", train__batch=50, injection__gap=4, tasks__beta=1.5, tasks__rare=rare)
    stream, fixed = stream_of(config)
    index = (rare or 4) - 1
    draw = jax.jit(lambda key, step: stream.scheduled(fixed, key, step)["task"])
    found = np.array([draw(jax.random.fold_in(jax.random.key(1), step), step) for step in range(800)])
    seen = (found == index).sum(1)
    assert (seen[np.arange(800) % 4 != 0] == 0).all()
    assert (seen[::4] > 0).all()
    assert np.ptp(seen[::4]) <= 1  # rounded at random, so that they are right on average
    expected = 4 * 50 * config.tasks.frequencies()[index]
    assert seen[::4].mean() == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(200))
    others = np.delete(np.bincount(found.ravel(), minlength=4), index)
    pi = np.delete(config.tasks.frequencies(), index)
    assert others / others.sum() == pytest.approx(pi / pi.sum(), abs=0.02)
    mixed = np.array([stream.draw(fixed, jax.random.key(step))["task"] for step in range(40)])
    assert ((mixed == index).sum(1) > 0).mean() > 0.7  # evaluations do not follow the schedule


def test_expectations_follow_the_same_schedule():
    config = made(injection__gap=5)
    stream, fixed = stream_of(config)
    weights = np.array([stream.scheduled(fixed, jax.random.key(0), step)["weights"] for step in range(5)])
    pi = config.tasks.frequencies()
    assert weights.sum(1) == pytest.approx(np.ones(5))
    assert (weights[1:, 3] == 0).all()
    assert weights[0, 3] == pytest.approx(5 * pi[3])
    assert stream.draw(fixed, jax.random.key(0))["weights"] == pytest.approx(pi)


# --- the loss, the start and what is measured ---------------------------------------------------------------


def test_samples_agree_with_the_expectation_within_their_own_error():
    for width, seed in itertools.product((2, 5, 9), range(2)):
        exact, sampled = (
            made(train__gradient=g, train__batch=20_000, student__width=width) for g in ("population", "sampled")
        )
        problem, other = problem_of(exact), problem_of(sampled)
        params = problem.init(role_key(seed, "student"))
        stream, fixed = stream_of(sampled)
        context = stream.context(fixed)
        (expected,) = losses(problem, params, problem.stream.draw(fixed, jax.random.key(0)), context, {})
        found = np.asarray(losses(other, params, stream.draw(fixed, jax.random.key(seed)), context, {}))
        error = found.std() / math.sqrt(len(found))
        assert abs(found.mean() - expected) < 4 * error
        assert abs(found.mean() - 1.2 * expected) > 4 * error


def test_the_start_is_orthonormal_and_decoders_are_of_torchs_scale():
    config = made(tasks__count=16, tasks__features=8, tasks__inputs=128, student__width=12)
    params = problem_of(config).init(role_key(0, "student"))
    assert params["W"] @ params["W"].T == pytest.approx(np.eye(12), abs=1e-5)
    assert np.abs(params["D"]).max() == pytest.approx(math.sqrt(3 / 12), rel=0.01)
    assert np.square(params["D"]).mean() == pytest.approx(1 / 12, rel=0.05)


def test_what_is_measured_is_what_numpy_finds():
    config = made(tasks__rare=3, tasks__beta=1.1)
    problem = problem_of(config)
    fixed = problem.stream.init(source_of(config))
    params = problem.init(role_key(4, "student"))
    batch = jax.tree.map(lambda a: jnp.stack([a]), problem.stream.draw(fixed, jax.random.key(0)))
    measured = problem.measures(Seen(params, {}, {}, lambda p: 0.0, batch, problem.stream.context(fixed), {}))
    measured = {name: np.asarray(value, np.float64) for name, value in measured.items()}
    W, D = (np.asarray(params[name], np.float64) for name in "WD")
    pi, sigma = config.tasks.frequencies(), config.tasks.amplitudes()
    A = np.zeros((4, 3, 24))
    for k, j in itertools.product(range(4), range(3)):
        A[k, j, 3 * k + j] = sigma[k, j]
    P = np.linalg.pinv(W) @ W
    C = np.einsum("kfi,kfj->kij", A, A)
    signal = np.array([np.trace(P @ c) / np.trace(c) for c in C])
    errors = np.einsum("kfn,ni->kfi", D, W) - A
    assert measured["task_signal"] == pytest.approx(signal, abs=1e-6)
    assert measured["task_loss"] == pytest.approx((errors**2).sum((1, 2)), rel=1e-5)
    assert measured["rare_corrected"] == pytest.approx((signal[2] - 5 / 24) / (1 - 5 / 24), abs=1e-6)
    assert measured["population_loss"] == pytest.approx(pi @ (errors**2).sum((1, 2)), rel=1e-5)
    assert measured["captured"] == pytest.approx(sum(p * np.trace(P @ c) for p, c in zip(pi, C, strict=True)))
    F = common_tasks(pi)
    M = np.einsum("k,kij->ij", pi * F, C)
    U = np.linalg.svd(W, full_matrices=False)[2].T
    G = 2 * (np.eye(24) - P) @ M @ U
    residual = np.trace((np.eye(24) - P) @ M)
    assert measured["residual_common"] == pytest.approx(residual, rel=1e-5)
    assert measured["common_gradient"] == pytest.approx(np.linalg.norm(G), rel=1e-5)
    assert measured["common_bound"] == pytest.approx(2 * math.sqrt(np.linalg.eigvalsh(M)[-1] * residual), rel=1e-5)
    pulls = [2 * np.einsum("k,kfn,kfi->ni", pi * of, D, errors) for of in (np.arange(4) == 2, F, np.arange(4) != 2)]
    assert measured["gradient_rare"] == pytest.approx(np.linalg.norm(pulls[0]), rel=1e-5)
    for name, other in (("cosine_rare_common", pulls[1]), ("cosine_rare_others", pulls[2])):
        cosine = (pulls[0] * other).sum() / np.linalg.norm(pulls[0]) / np.linalg.norm(other)
        assert measured[name] == pytest.approx(cosine, abs=1e-6)
    draws = np.random.default_rng(0).standard_normal((2, 4000, 5 * 24))
    null = np.sum(draws[0] * draws[1], 1) / np.linalg.norm(draws, axis=2).prod(0)
    assert measured["cosine_null"] == pytest.approx(null.std(), rel=0.05)


# --- rates, clipping, evaluations ---------------------------------------------------------------------------


def test_the_rate_falls_as_the_root_of_the_step_and_clipping_bounds_the_gradient():
    config = made(train__steps=10_000, schedule={"warmup": 0.01})
    hyper, steps = optimizer_hyper(config), np.array([0.0, 49, 99, 399, 9999])
    assert factor(hyper, steps, np) == pytest.approx([0.01, 0.5, 1, 0.5, 0.1])
    cooled = optimizer_hyper(made(train__steps=10_000, schedule={"warmup": 0.01, "decay_fraction": 0.5}))
    assert factor(cooled, np.array([399.0, 7500, 10_000]), np) == pytest.approx([0.5, 0.5 * 0.1154, 0], abs=1e-3)
    assert config.optimizer.clip == 1.0
    assert made(optimizer={"name": "sgd"}).optimizer.clip is None
    sgd = {"name": "sgd", "lr": 1.0}
    moved = []
    for clip in (None, 0.25):
        state, member = one_update(made(optimizer=sgd | {"clip": clip}))
        change = jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), state["params"], member)
        moved.append(math.sqrt(sum((leaf**2).sum() for leaf in jax.tree.leaves(change))))
    assert moved[0] > 1
    assert moved[1] == pytest.approx(0.25, rel=1e-4)


def one_update(config):
    """A member's state after one update at its full rate, and the parameters that it started from."""
    constant = dataclasses.replace(config.schedule, warmup=0.0, name="constant")
    member = Member("one", dataclasses.replace(config, schedule=constant))
    stream, fixed = stream_of(config)
    start = fresh_state(member.shape, role_key(0, "student"), member.hyper)
    batch, context = stream.draw(fixed, jax.random.key(0)), stream.context(fixed)
    return update(member.shape, start, member.hyper, batch, context, 0, -1), start["params"]


def test_evaluations_come_in_pairs_where_a_task_is_withheld():
    config = made(injection__gap=4, tasks__beta=1.0, train__steps=40, optimizer={"name": "sgd"})
    assert (config.train.eval_every, config.train.eval_after) == (4, 1)
    evaluated = [step for step in range(41) if config.train.evaluates(step)]
    assert evaluated == sorted([*range(0, 41, 4), *range(1, 40, 4)])
    averaged = made(injection__gap=8, tasks__beta=1.0, train__steps=4000)
    assert (averaged.train.eval_every, averaged.train.eval_after) == (80, 7)  # 1 / (1 - b1) = 10, within the gap
    assert made(train__steps=40).train.eval_after == 0
    assert [step for step in range(41) if made(train__steps=40).train.evaluates(step)] == list(range(0, 41, 2))
    with pytest.raises(ConfigError, match=r"data\.unique=64: allowed is 0 with injection\.gap"):
        made(injection__gap=4, train__gradient="sampled", data={"unique": 64})


def test_rows_become_orthonormal_and_span_what_they_spanned():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40, 100)) @ np.diag(np.geomspace(1e-3, 1, 100))
    rows[7] = rows[3] + 1e-3 * rows[7]  # nearly one direction
    found = np.asarray(orthonormal(jnp.float32(rows)), np.float64)
    assert np.abs(found @ found.T - np.eye(40)).max() < 1e-5
    exact = np.linalg.qr(np.float32(rows).T.astype(np.float64))[0]
    assert np.abs(found.T @ found - exact @ exact.T).max() < 1e-3
    dependent = np.asarray(orthonormal(jnp.float32(np.eye(3, 5)[[0, 1, 1]])))
    assert dependent == pytest.approx(np.eye(3, 5) * [[1], [1], [0]])
