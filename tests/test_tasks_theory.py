"""Which tasks a narrow encoder learns: closed forms against brute force, ties, numbers that were printed otherwise."""

import itertools
import math

import numpy as np
import pytest

from toydepth.powerlaw import local_slopes
from toydepth.tasks_config import Tasks
from toydepth.theory.tasks import (
    Mixture,
    common_tasks,
    corrected,
    effective_rank,
    forgetting_rate,
    optimal_exponent,
    residual_slope,
    turned,
)


def mixture(**fields):
    tasks = Tasks(**fields)
    return Mixture(tasks.frequencies(), tasks.amplitudes())


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
    slopes = local_slopes(np.array([1.0, 2, 4]), found.mixture_loss([1, 2, 4]))[1]
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
