"""The rare-task experiment: its theory against brute force, its batches, its mathematics, and what it learns."""

import itertools
import json
import math
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
import pytest

import toydepth
from toydepth import cli, store
from toydepth.config import ConfigError, parse, resolve
from toydepth.figures import tasks as figures
from toydepth.optimizer import factor
from toydepth.optimizer import hyper_of as optimizer_hyper
from toydepth.problems import Seen, losses, problem_of, role_key, source_of
from toydepth.problems.tasks import orthonormal
from toydepth.rare_tasks import captured, cycles, horizons, learnt, settings, tasks_of
from toydepth.remarks import remarks
from toydepth.tasks_config import Tasks
from toydepth.theory.tasks import (
    Mixture,
    common_tasks,
    corrected,
    effective_rank,
    forgetting_rate,
    local_slopes,
    optimal_exponent,
    residual_slope,
    turned,
)


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


def mixture(**fields):
    tasks = Tasks(**fields)
    return Mixture(tasks.frequencies(), tasks.amplitudes())


# --- theory -------------------------------------------------------------------------------------------------


def test_the_best_encoder_is_that_of_the_largest_eigenvalues():
    """Theorem 3, against eigenvectors of M in a rotated basis, and against encoders near the best one."""
    found, rng = mixture(count=4, features=3, beta=1.3, alpha=0.7), np.random.default_rng(0)
    directions = np.linalg.qr(rng.standard_normal((20, 20)))[0][:, :12]
    C = [
        directions[:, 3 * k : 3 * k + 3] @ np.diag(found.spectrum[k]) @ directions[:, 3 * k : 3 * k + 3].T
        for k in range(4)
    ]
    M = sum(pi * c for pi, c in zip(found.frequencies, C, strict=True))
    values, vectors = np.linalg.eigh(M)
    for width in (1, 2, 5, 8, 11):
        U = vectors[:, ::-1][:, :width]
        left = [np.trace((np.eye(20) - U @ U.T) @ c) for c in C]
        low, high = found.losses(width)
        assert low == pytest.approx(high)
        assert low == pytest.approx(left, abs=1e-12)
        assert found.mixture_loss([width])[0] == pytest.approx(values[: 20 - width].sum())
        assert found.signals(width)[0] == pytest.approx(1 - np.array(left) / found.totals)
        other = np.linalg.qr(U + 0.1 * rng.standard_normal(U.shape))[0]
        assert np.trace((np.eye(20) - other @ other.T) @ M) > found.mixture_loss([width])[0] + 1e-6


def test_ties_are_told_and_bounded():
    """At beta = 2 and alpha = 1 utilities are (k j)^-2; the bounds are those over all choices among the tied."""
    found = mixture(count=6, features=6, inputs=36, beta=2.0)
    u = np.round(found.utilities / found.utilities.max(), 12)
    order = np.sort(u, axis=None)[::-1]
    tied = 0
    for width in range(1, 36):
        edge, inside = order[width - 1], order[width] == order[width - 1]
        assert found.is_tied(width) == inside
        tied += inside
        choice = [tuple(place) for place in np.argwhere(u == edge)]
        room, every = width - int((u > edge).sum()), []
        for some in itertools.combinations(choice, room):
            held = (u > edge) | np.isin(np.arange(36).reshape(6, 6), [6 * k + j for k, j in some])
            every.append(np.where(held, 0, found.spectrum).sum(1))
        low, high = found.losses(width)
        assert low == pytest.approx(np.min(every, axis=0))
        assert high == pytest.approx(np.max(every, axis=0))
    assert tied > 5
    assert not any(mixture(count=6, features=6, inputs=36, beta=1.9).is_tied(width) for width in range(1, 36))


def test_staircases_are_those_of_the_reference_and_of_brute_force():
    sizes = {"count": 32, "features": 32, "inputs": 1024}
    assert [mixture(beta=1.0, **sizes).staircase(31, m) for m in (1, 2, 3)] == [(44, 46), (99, 101), (152, 155)]
    assert [mixture(beta=2.0, **sizes).staircase(31, m)[0] for m in (1, 2, 3)] == [114, 212, 292]
    assert [mixture(beta=b).staircase(15) for b in (1.0, 2.0)] == [(20, 22), (39, 42)]
    found = mixture(count=5, features=4, beta=0.8, ramp=0.6)
    for task, m in itertools.product(range(5), (1, 2, 3)):
        held = [int(found.held(width)[0][task].sum()) for width in range(21)]
        assert found.staircase(task, m) == (next(n for n, h in enumerate(held) if n and h >= m),) * 2
    rank_one = mixture(count=8, features=1, inputs=8, beta=1.5)
    assert [rank_one.staircase(k)[0] for k in range(8)] == list(range(1, 9))
    ramp = mixture(beta=1.4, ramp=0.8)
    steps = [ramp.staircase(k, 2)[0] for k in range(16)]
    assert np.argmax(steps) not in (0, 15)  # what is more complex is worth more in its second feature


def test_common_tasks_follow_their_definition_and_not_the_printed_numbers():
    found = [int(common_tasks(Tasks(count=32, beta=b).frequencies()).sum()) for b in (0.5, 1.0, 1.5, 2.0)]
    assert found == [22, 14, 6, 3]
    pi = np.array([0.1, 0.5, 0.4])
    assert common_tasks(pi).tolist() == [False, True, True]
    assert common_tasks(pi, mass=0.5).tolist() == [False, True, False]
    assert common_tasks(pi, mass=0.51).tolist() == [False, True, True]


def test_optimal_compute_gives_the_exponent_of_the_asymptote():
    """Against a search over the allocations of C = 6 N D."""
    alpha, beta = 0.46, 0.51
    N = np.geomspace(1e3, 1e13, 200_001)
    best = [N[np.argmin(N**-alpha + (C / (6 * N)) ** -beta)] for C in (1e18, 1e22)]
    loss = [np.min(N**-alpha + (C / (6 * N)) ** -beta) for C in (1e18, 1e22)]
    slope = -np.log(loss[1] / loss[0]) / np.log(best[1] / best[0])
    assert optimal_exponent(alpha, beta) == pytest.approx(slope, abs=1e-3)
    assert abs(optimal_exponent(alpha, beta) - 0.34) > 0.1


@pytest.mark.parametrize(("beta", "alpha"), [(1.5, 1.0), (3.0, 0.75)])
def test_residual_falls_as_the_smaller_decay_says(beta, alpha):
    found = mixture(count=256, features=1000, beta=beta, alpha=alpha)
    widths = np.unique(np.geomspace(30, 300, 20).astype(int))
    u = np.outer(np.arange(1, 3001) ** -beta, np.arange(1, 3001.0) ** -(2 * alpha))
    left = u.sum() - np.cumsum(np.sort(u, axis=None)[::-1])[widths - 1]
    endless = residual_slope(beta, 2 * alpha)
    assert -np.polyfit(np.log(widths), np.log(left), 1)[0] == pytest.approx(endless, abs=0.2)
    assert residual_slope(beta, 2 * alpha, endless_tasks=False) == pytest.approx(2 * alpha - 1)
    slopes = -local_slopes(np.array([1, 2, 4]), found.mixture_loss([1, 2, 4]))
    assert slopes == pytest.approx(
        [math.log2(found.mixture_loss([n])[0] / found.mixture_loss([2 * n])[0]) for n in (1, 2)]
    )


def test_a_boost_is_exact():
    usual = Tasks(beta=1.9)
    found = Mixture(usual.frequencies(), usual.amplitudes())
    for width in (16, 24, 32):
        needed = found.boost_needed(15, width)
        below, above = (mixture(beta=1.9, frequency_boost=needed * x) for x in (0.999, 1.001))
        assert [m.held(width)[0][15].any() for m in (below, above)] == [False, True]
        assert above.frequencies.sum() == pytest.approx(1)
    assert found.boost_needed(15, 40) < 1


def test_stability_residuals_ranks_and_corrections():
    found = mixture(count=32, features=32, inputs=1024, beta=2.0)
    common = common_tasks(found.frequencies)
    N = found.stable_until(common, 31)
    u = np.sort(found.utilities[common], axis=None)[::-1]
    assert u[N - 1] <= found.utilities[31].max() < u[N - 2]
    assert found.residual_common(common, 96) == pytest.approx(0.0)
    assert found.residual_common(common, 5) == pytest.approx(u[5:].sum())
    assert effective_rank(found.spectrum[0]) == 5
    assert effective_rank(np.ones(10)) == 9
    assert corrected(np.array([0.25, 1.0, 0.0]), 4, 16).tolist() == pytest.approx([0, 1, -1 / 3])


@pytest.mark.parametrize("rate", [0.002, 0.01, 0.018])
def test_one_neuron_forgets_at_twice_the_rate(rate):
    """Example 7; and with both tasks by chance the mean follows rate (q - p) sin(2 angle)."""
    assert forgetting_rate(rate, 200) == pytest.approx(-2 * rate, rel=0.02)
    assert forgetting_rate(rate, 200) != pytest.approx(-rate, rel=0.4)
    rng, q, start = np.random.default_rng(1), 0.1, 0.3
    steps = [turned(start, rate, [rare])[-1] - start for rare in rng.random(20_000) < q]
    expected = rate * (2 * q - 1) * math.sin(2 * start)
    assert np.mean(steps) == pytest.approx(expected, abs=4 * np.std(steps) / math.sqrt(20_000))


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
    from toydepth.ensemble import Member
    from toydepth.programs import fresh_state, update

    member = Member("one", resolve_steps(config))
    stream, fixed = stream_of(config)
    start = fresh_state(member.shape, role_key(0, "student"), member.hyper)
    batch, context = stream.draw(fixed, jax.random.key(0)), stream.context(fixed)
    return update(member.shape, start, member.hyper, batch, context, 0, -1), start["params"]


def resolve_steps(config):
    """The config at a constant rate."""
    import dataclasses

    return dataclasses.replace(config, schedule=dataclasses.replace(config.schedule, warmup=0.0, name="constant"))


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


# --- trained ------------------------------------------------------------------------------------------------

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
    assert captured(setting)["share"].to_numpy().min() < 1.2
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
    found = mixture(count=5, features=3, inputs=32, beta=1.9)
    needed = found.boost_needed(4, 3)
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
