"""Measures against naive loops and planted angles, their nulls, and summaries that stream."""

import tracemalloc
from math import acos, pi, sqrt

import numpy as np
import pytest
from planted import Planted, rotation, walk

from toydepth.geometry.clusters import Clustering
from toydepth.geometry.measures import angle, measure, middle, middle_pairs
from toydepth.geometry.nulls import Pairs, random_updates, shuffled_layers, shuffled_mean, shuffled_tokens
from toydepth.geometry.probe import look
from toydepth.geometry.summary import LEVELS, Spread, Summary

RNG = np.random.default_rng(5)


def states(depth=5, tokens=7, width=6):
    return RNG.standard_normal((depth + 1, tokens, width)).astype(np.float32)


def naive(h):
    """The measures of one token, from their definitions, in plain Python."""

    def dot(a, b):
        return sum(float(x) * float(y) for x, y in zip(a, b, strict=True))

    def between(a, b):
        return acos(max(-1.0, min(1.0, dot(a, b) / sqrt(dot(a, a) * dot(b, b)))))

    layers = len(h) - 1
    moves = [[float(y) - float(x) for x, y in zip(h[i], h[i + 1], strict=True)] for i in range(layers)]
    whole = [float(y) - float(x) for x, y in zip(h[0], h[-1], strict=True)]
    gone = [[float(y) - float(x) for x, y in zip(h[0], state, strict=True)] for state in h]
    return {
        "step": [between(h[i], h[i + 1]) for i in range(layers)],
        "update": [between(moves[i], moves[i + 1]) for i in range(layers - 1)],
        "norm": [sqrt(dot(state, state)) for state in h],
        "end": [between(state, h[-1]) for state in h[:-1]],
        "progress": [dot(one, whole) / dot(whole, whole) for one in gone],
    }


@pytest.mark.parametrize("name", ["step", "update", "norm", "end", "progress"])
def test_each_measure_is_that_of_a_naive_loop(name):
    h = states()
    expected = np.array([naive(h[:, t])[name] for t in range(h.shape[1])]).T
    np.testing.assert_allclose(measure(h)[name], expected, rtol=1e-7, atol=1e-9)
    assert not np.allclose(measure(h[::-1])[name], expected, rtol=1e-3)


def test_middle_layers_leave_out_the_ends():
    found = measure(states(depth=6))
    np.testing.assert_allclose(found["step_middle"][0], found["step"][1:5].mean(0))
    np.testing.assert_allclose(found["update_middle"][0], found["update"][1:4].mean(0))
    assert (middle(3), middle_pairs(3)) == (slice(0, 3), slice(0, 2))


@pytest.mark.parametrize("planted", [1e-6, 0.012, 1.0, pi / 2, pi - 1e-4, pi])
def test_small_and_large_angles_keep_their_digits(planted):
    a = np.array([[3.0, 0.0]])
    b = 0.1 * np.array([[np.cos(planted), np.sin(planted)]])
    assert angle(a, b)[0] == pytest.approx(planted, rel=1e-9)
    if planted == 1e-6:  # what single precision and an arccos make of it
        assert np.arccos(np.float32(np.sum(a * b) / 0.3)) == 0


def test_a_state_that_does_not_move_has_no_angle():
    h = np.repeat(states(depth=1, tokens=2)[:1], 3, axis=0)
    found = measure(h)
    assert np.isnan(found["update"]).all() and np.isnan(found["progress"]).all()
    assert found["step"].max() == 0


# --- planted networks ---------------------------------------------------------------------------------------


def test_a_smooth_network_and_a_random_walk_are_told_apart():
    smooth, rough = look(Planted(rotation(20))), look(Planted(walk(20)))
    assert smooth.number("update_middle") == pytest.approx(0.05, abs=1e-3)
    assert smooth.number("step_middle") == pytest.approx(0.05, abs=1e-3)
    assert rough.number("update_middle") == pytest.approx(pi / 2, abs=0.01)
    assert smooth.shuffled.low > 0.15  # in another order even these are not parallel
    assert rough.shuffled.low < rough.number("update_middle") < rough.shuffled.high
    random = smooth.nulls["random", "update_middle"][0]
    assert random.low < pi / 2 < random.high and random.low > 1.5


def test_the_null_of_layers_keeps_the_ends_and_the_norms():
    h = states(depth=6)
    made = shuffled_layers(h, np.random.default_rng(0))
    np.testing.assert_allclose(made[-1], h[-1], rtol=1e-5, atol=1e-5)
    norms = [np.sort(np.linalg.norm(np.diff(x, axis=0), axis=-1), axis=0) for x in (made, h)]
    np.testing.assert_allclose(*norms, rtol=1e-5)
    assert not np.allclose(made[1:-1], h[1:-1])


def test_random_updates_keep_norms_in_order_and_stand_at_right_angles():
    h = rotation(12, tokens=400)
    made = random_updates(h, np.random.default_rng(0))
    norms = [np.linalg.norm(np.diff(x, axis=0), axis=-1) for x in (made, h)]
    np.testing.assert_allclose(*norms, rtol=1e-5)
    assert measure(made)["update"].mean() == pytest.approx(pi / 2, abs=0.01)


def test_shuffled_tokens_never_pair_a_token_with_itself():
    h = np.stack([np.zeros((5, 5)), np.eye(5), 2 * np.eye(5)])  # each token in a direction of its own
    assert measure(h)["update"].max() < 1e-9
    np.testing.assert_allclose(shuffled_tokens(h, np.random.default_rng(0)), pi / 2)
    assert np.isnan(shuffled_tokens(h[:, :1], np.random.default_rng(0))).all()


def test_pairs_are_the_mean_angles_of_all_updates_however_they_are_batched():
    h, pairs, whole = states(depth=4, tokens=9), Pairs(4), Pairs(4)
    whole.add(h)
    for part in (slice(0, 2), slice(2, 9)):
        pairs.add(h[:, part])
    moves = np.diff(h.astype(float), axis=0)
    expected = [[angle(a, b).mean() if i != j else 0.0 for j, b in enumerate(moves)] for i, a in enumerate(moves)]
    np.testing.assert_allclose(pairs.mean, expected, atol=1e-9)
    np.testing.assert_allclose(whole.mean, expected, atol=1e-9)


def test_the_interval_over_orders_is_that_of_permuted_neighbours():
    pairs = np.abs(np.subtract.outer(np.arange(8.0), np.arange(8.0)))  # angles that grow with distance
    null = shuffled_mean(pairs, np.random.default_rng(0))
    inner = pairs[1:7, 1:7]
    assert null.mean == pytest.approx(inner[~np.eye(6, dtype=bool)].mean(), rel=0.02)
    assert null.low > 1.0  # neighbours in order are 1 apart: below all but few orders
    assert null.low < null.mean < null.high


# --- summaries ----------------------------------------------------------------------------------------------


def test_a_streamed_summary_is_that_of_the_whole():
    values = RNG.lognormal(size=(3, 5000)) * np.array([[1e-3], [1.0], [-1.0]])
    values[0, ::7] = np.nan
    whole, parts = Spread(3), Spread(3)
    whole.add(values)
    for i in range(0, 5000, 333):
        parts.add(values[:, i : i + 333])
    for found in (whole, parts):
        np.testing.assert_allclose(found.mean, np.nanmean(values, 1), rtol=1e-10)
        np.testing.assert_allclose(found.sd, np.nanstd(values, 1, ddof=1), rtol=1e-10)
        assert found.n.tolist() == [4285, 5000, 5000]
        expected = np.nanquantile(values, LEVELS, axis=1)
        np.testing.assert_allclose(found.profile().quantiles, expected, rtol=0.02)
        np.testing.assert_allclose(found.share_below(0.5)[1], np.mean(values[1] < 0.5), atol=0.01)
    assert np.isnan(Spread(2).quantile(0.5)).all()


def test_quantiles_stay_within_what_was_seen():
    spread = Spread(1)
    spread.add(np.array([[0.2, 0.2, 0.2]]))
    assert spread.quantile(0.05) == spread.quantile(0.95) == 0.2


def test_first_tokens_are_apart():
    summary, first = Summary(), np.array([True, False, False])
    summary.add({"step": np.array([[9.0, 1.0, 3.0]])}, first, "before")
    found = summary.profiles()
    assert found["step", "before", "first"].mean.tolist() == [9.0]
    assert found["step", "before", "later"].mean.tolist() == [2.0]


def test_what_is_kept_does_not_grow_with_the_text():
    def peak(tokens):
        h = walk(6, tokens=500, width=16)
        subject = Planted(h)
        subject.batches = lambda: (seen for _ in range(tokens // 500) for seen in Planted(h).batches())  # type: ignore
        tracemalloc.start()
        look(subject, changes=False)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(500)
    few, many = peak(6_000), peak(24_000)
    assert many < 1.1 * few
    assert few < 40e6


def test_batches_make_no_difference():
    h = walk(6, tokens=90, width=16)
    whole, parts = look(Planted(h), changes=False), look(Planted(h, batch=31), changes=False)
    for key, profile in whole.profiles.items():
        np.testing.assert_allclose(profile.mean, parts.profiles[key].mean, rtol=1e-9)
        np.testing.assert_allclose(profile.quantiles, parts.profiles[key].quantiles, rtol=1e-9)
    np.testing.assert_allclose(whole.pairs, parts.pairs, atol=1e-9)


def test_both_conventions_for_the_last_state():
    found = look(Planted(states()), changes=False)  # whose last state is doubled behind its norm
    before, behind = found.mean("norm"), found.mean("norm", "behind")
    np.testing.assert_allclose(behind[:-1], before[:-1])
    assert behind[-1] == pytest.approx(2 * before[-1])
    np.testing.assert_allclose(found.mean("step", "behind"), found.mean("step"))  # twice as long, the same way
    assert not np.allclose(found.mean("progress", "behind"), found.mean("progress"))


# --- clusters -----------------------------------------------------------------------------------------------


def steps_of(stopped, tokens=3000, layers=10, seed=0):
    """Step angles of tokens of which some stop after the fourth layer."""
    rng = np.random.default_rng(seed)
    steps = 0.3 * np.exp(0.1 * rng.standard_normal((layers, tokens)))
    steps[4:, stopped] *= 0.02
    return steps


def test_tokens_that_stop_early_are_counted_and_shown():
    stopped = np.arange(3000) % 100 == 0
    steps, words = steps_of(stopped), [f"w{i}" for i in range(3000)]
    made = Clustering(10, np.random.default_rng(0))
    for i in range(0, 3000, 500):
        part = slice(i, i + 500)
        made.add(steps[:, part], stopped[part], words[part])
    found = made.result()
    assert found is not None
    assert found.share == pytest.approx(0.01, abs=1e-4)
    assert (found.share_first, found.share_later) == (1.0, 0.0)
    assert {int(word[1:]) % 100 for word in found.examples["early"]} == {0}
    assert all(int(word[1:]) % 100 for word in found.examples["even"])
    assert found.early_steps[6] < 0.02 < found.even_steps[6]
    covariance = np.cov(steps)
    np.testing.assert_allclose(found.explained, np.linalg.eigvalsh(covariance)[::-1] / np.trace(covariance), rtol=1e-6)


def test_tokens_that_move_evenly_are_not_split():
    made = Clustering(10, np.random.default_rng(0))
    made.add(steps_of(np.zeros(3000, bool)), np.zeros(3000, bool))
    found = made.result()
    assert found is not None and found.share == 0 and np.isnan(found.share_first)


def test_the_sample_is_bounded_and_uniform():
    made = Clustering(3, np.random.default_rng(0), kept=200)
    for batch in range(50):
        steps = np.full((3, 100), float(batch))
        made.add(steps, np.zeros(100, bool))
    found = made.result()
    assert found is not None and len(found.late) == 200
    assert found.even_steps[0] == pytest.approx(24.5, abs=4.5)  # 4.4 standard errors
