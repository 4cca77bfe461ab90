"""How far fits are known: profiles, bootstraps, and how often intervals hold what was planted."""

import numpy as np
import pytest
from law_tables import DATA, SHAPED, THEORY, grid, needs_data, planted, sizes_of
from scipy.special import stdtrit

from toydepth.laws import readers
from toydepth.laws.fitting import fit
from toydepth.laws.intervals import bootstrap, percentiles, profile, profile_interval
from toydepth.laws.tables import ready


def drawn(seed, law=SHAPED, noise=0.01):
    frame = planted(noise=noise, seed=seed)
    sizes, loss = sizes_of(frame), frame["loss"].to_numpy()
    return sizes, loss, fit(sizes, loss, law, starts=1)


@pytest.mark.parametrize("law", [SHAPED, SHAPED.expected()])
def test_profile_intervals_hold_the_planted_values_about_as_often_as_they_say(law):
    """25 draws, all parameters together."""
    held = []
    for seed in range(25):
        sizes, loss, best = drawn(seed, law)
        for name in law.parameters:
            known = profile_interval(sizes, loss, best, name)
            low, high = -np.inf if known.low is None else known.low, np.inf if known.high is None else known.high
            held.append(low <= THEORY[name] <= high)
    assert 0.90 <= np.mean(held) <= 0.99


def test_bootstrap_intervals_hold_the_planted_best_shape():
    law, held = SHAPED.expected(), []
    for seed in range(100):
        draws = bootstrap(*drawn(seed, law), draws=100, seed=seed)
        known = percentiles(draws["c_m"] / draws["c_l"])
        held.append(known.low <= THEORY["c_m"] / THEORY["c_l"] <= known.high)
    assert 0.88 <= np.mean(held) <= 0.99


def test_at_the_ends_of_an_interval_delta_chi_square_is_its_quantile():
    sizes, loss, best = drawn(0)
    quantile = stdtrit(93, 0.975) ** 2 * 100 / 93  # 100 rows, 7 parameters
    for name in ("c_m", "a_l", "L0"):
        known = profile_interval(sizes, loss, best, name)
        delta = profile(sizes, loss, best, name, np.array([known.low, best.values[name], known.high]))
        assert delta == pytest.approx([quantile, 0, quantile], abs=0.02)


def test_a_profile_is_open_where_the_table_tells_nothing():
    frame = planted(sizes=grid(ratio=64), noise=0.01)
    sizes, loss = sizes_of(frame), frame["loss"].to_numpy()
    best = fit(sizes, loss, SHAPED)
    assert profile_interval(sizes, loss, best, "a_l").open
    assert not profile_interval(sizes, loss, best, "a_D").open


def test_drawing_whole_models_shows_the_luck_that_their_rows_share():
    frame = planted(noise=0.001)
    models = np.arange(frame.height) // 4
    luck = 0.01 * np.random.default_rng(0).normal(size=models.max() + 1)
    sizes, loss = sizes_of(frame), frame["loss"].to_numpy() * np.exp(luck[models])
    best = fit(sizes, loss, SHAPED.expected())
    rows, clusters = (bootstrap(sizes, loss, best, 100, 0, which)["c_m"].std() for which in (None, models))
    assert clusters > 1.4 * rows


def test_the_same_seed_draws_the_same():
    sizes, loss, best = drawn(0)
    first, again, other = (bootstrap(sizes, loss, best, 3, seed)["a_m"] for seed in (1, 1, 2))
    assert np.array_equal(first, again) and not np.array_equal(first, other)


@needs_data
def test_chinchillas_profile_and_bootstrap_of_the_exponent_of_depth():
    table = ready(readers.read(DATA / "chinchilla" / "get_fitting_data_chinchilla.csv"), SHAPED).drop_highest(40)
    sizes, loss = table.sizes(SHAPED), table.loss
    best = fit(sizes, loss, SHAPED)
    delta = profile(sizes, loss, best, "a_l", np.array([0.5, 1.0, 1.2, 1.5, 2.0, 2.5, 3.0]))
    assert delta == pytest.approx([18.5, 2.8, 0.4, 0.8, 10.5, 29, 52.5], abs=0.25)
    known = percentiles(bootstrap(sizes, loss, best, 300)["a_l"])
    assert known.low == pytest.approx(0.95, abs=0.06) and known.high == pytest.approx(1.8, abs=0.08)
