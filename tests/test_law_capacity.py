"""The gap between a small and a large model: what data can close, what only size can, and where one begins."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import brentq

from toydepth.laws.capacity import critical_size, gap
from toydepth.laws.consequences import SizeLaw, frontier_at

LAW = SizeLaw(341.0, 1064.0, floor=1.778)
laws = st.builds(
    SizeLaw,
    c_N=st.floats(10, 1e3),
    c_D=st.floats(10, 1e4),
    a_N=st.floats(0.1, 0.7),
    a_D=st.floats(0.1, 0.7),
    floor=st.floats(0, 2),
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(law=laws, large=st.floats(7, 12).map(lambda x: 10**x), tolerance=st.floats(0, 0.3))
def test_below_the_critical_size_and_only_there_unlimited_data_leaves_a_gap(law, large, tolerance):
    goal = float(frontier_at(law, large).loss) + tolerance
    found = np.exp(brentq(lambda log_n: law.limit(np.exp(log_n)) - goal, -200, np.log(large)))
    assert critical_size(law, large, tolerance) == pytest.approx(found, rel=1e-6)
    critical = critical_size(law, large)
    assert gap(law, 0.99 * critical, large).by_size > 0
    assert gap(law, critical + 0.01 * (large - critical), large).by_size == 0


@settings(max_examples=50, deadline=None, derandomize=True)
@given(law=laws, large=st.floats(7, 12).map(lambda x: 10**x), share=st.floats(0.001, 0.99))
def test_the_parts_of_a_gap_make_it_up_and_its_tokens_close_it(law, large, share):
    found = gap(law, share * large, large)
    assert found.total > 0 and found.by_data > 0 and found.by_size >= 0
    assert found.by_data + found.by_size == pytest.approx(found.total)
    if found.by_size:
        assert found.tokens == np.inf
        assert law.limit(found.small) - found.loss_large == pytest.approx(found.by_size)
    elif found.tokens < 1e60:  # where the loss still feels them
        assert law.loss(found.small, found.tokens) == pytest.approx(found.loss_large, rel=1e-9)


def test_with_exponents_of_a_third_an_eighth_of_the_size_is_critical():
    assert critical_size(LAW, 1e10) == pytest.approx(1.25e9)
    assert critical_size(LAW, 1e10, tolerance=0.05) < 1.25e9


def test_a_gap_goes_from_small_to_large():
    with pytest.raises(ValueError, match="small < large"):
        gap(LAW, 1e10, 1e9)
