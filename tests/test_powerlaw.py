"""Power laws: exact curves are recovered, whatever the unit of x, and what cannot be fitted is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_ind

from toydepth import powerlaw
from toydepth.powerlaw import local_slopes, power_law

DEPTHS = np.array([2, 3, 4, 6, 8, 12])


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.floats(0.3, 5), st.floats(1e-3, 1e3), st.floats(0, 3), st.floats(0.1, 10))
def test_power_law_recovers_exact_curves(a, c, ratio, unit):
    x = DEPTHS * unit
    law = power_law(x, c * x**-a)
    assert np.allclose([law.alpha, law.c, law.r2], [a, c, 1], rtol=1e-8)
    floor = ratio * c * x[-1] ** -a
    law = power_law(x, c * x**-a + floor, floor="free")
    assert np.allclose([law.alpha, law.c], [a, c], rtol=1e-3)
    assert np.isclose(law.floor, floor, rtol=1e-3, atol=1e-4 * c * x[-1] ** -a)


def test_power_law_floor_is_never_negative_and_alpha_is_the_plain_slope():
    x = DEPTHS.astype(float)
    concave = x**-1.0 - 0.3 / 12
    assert power_law(x, concave, floor="free").floor == 0
    assert powerlaw.alpha(x, concave) == pytest.approx(-np.polyfit(np.log(x), np.log(concave), 1)[0])


@pytest.mark.parametrize(
    ("x", "loss", "floor"),
    [([2, 2], [1, 1], "none"), ([2, 4], [1, 0.5], "free"), ([2, 4], [1, -1], "none"), ([2, 4], [1, np.nan], "none")],
)
def test_power_law_refuses_what_it_cannot_fit(x, loss, floor):
    with pytest.raises(ValueError, match="power law"):
        power_law(np.array(x), np.array(loss), floor=floor)


def test_local_slopes():
    x = DEPTHS.astype(float)
    middles, slopes = local_slopes(x, 7 * x**-2.5)
    assert np.allclose(slopes, 2.5)
    assert np.allclose(middles, np.sqrt(x[1:] * x[:-1]))
    assert local_slopes(x, x**-2.5 + 0.01)[1][-1] < 2


def test_the_interval_of_a_difference_is_welchs():
    low, high = [1.0, 1.01, 1.02], [1.3, 2.0, 1.1, 1.9]
    known = ttest_ind(high, low, equal_var=False).confidence_interval(0.95)
    assert powerlaw.welch_interval(low, high) == pytest.approx((known.low, known.high))
    pooled = ttest_ind(high, low, equal_var=True).confidence_interval(0.95)
    assert powerlaw.welch_interval(low, high) != pytest.approx((pooled.low, pooled.high), rel=0.02)
    assert powerlaw.welch_interval([1.0, 1.0], [3.0, 3.0]) == (2.0, 2.0)


def test_steep_laws_of_sizes_in_quadrillions_stay_finite():
    law = power_law(1e16 * DEPTHS, DEPTHS**-19.5)
    assert law.alpha == pytest.approx(19.5)
    assert np.isfinite(law.c)


@pytest.mark.parametrize(
    ("x", "loss", "identified"),
    [
        (DEPTHS, DEPTHS**-1.0 + 0.02, True),
        (DEPTHS, DEPTHS**-1.0 - 0.02, True),  # a replicate's floor may come out below zero
        ([2, 4, 8], [0.525, 0.275, 0.15], True),  # three points of a law are enough
        ([2, 4, 8], [1, 0.8, 0.3], False),  # concave
        (DEPTHS, 1 - 0.3 * np.log(DEPTHS), False),
        (DEPTHS, np.exp(-0.2 * DEPTHS), False),
        ([2, 4, 8], [1, 1.01, 0.99], False),  # flat
        ([2, 4, 8], [1, 0.3, 0.2999], False),  # one step, then flat
    ],
)
def test_a_floor_is_identified_where_losses_level_off_as_its_law_does(x, loss, identified):
    (law,) = powerlaw.power_laws([(np.array(x, float), np.array(loss, float))], "free", lowest=-1.0)
    assert law.identified == identified
    assert power_law(np.array(x), np.array(loss)).identified  # without a floor there is nothing to tell apart
