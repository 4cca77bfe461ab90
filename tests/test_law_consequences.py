"""What follows from a law: every closed form against a numerical minimiser that knows nothing of it."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize, minimize_scalar

from toydepth.laws import named
from toydepth.laws.consequences import (
    ShapeLaw,
    SizeLaw,
    best_shape,
    frontier,
    frontier_at,
    isoflop,
    limited,
    model_share,
    ratios_within,
    shape_penalty,
    split,
)
from toydepth.laws.outcome import Convention, consequences, in_numbers, table_convention

CLOSE = 1e-4
CHINCHILLA = ShapeLaw(388.0, 3.25, 1064.0, floor=1.778)  # 203 rows, exponents 1, 1, 1/3


def between(low, high):
    """A number whose logarithm is drawn evenly."""
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


laws = st.builds(
    ShapeLaw,
    c_m=between(1, 1e3),
    c_l=between(0.1, 50),
    c_D=between(10, 1e4),
    a_m=between(0.2, 2),
    a_l=between(0.2, 2),
    a_D=between(0.1, 0.8),
    floor=st.floats(0, 2),
    per_block=st.floats(6, 20),
)
sizes, budgets = between(1e6, 1e12), between(1e17, 1e25)


def least_model_loss(law, parameters):
    """Width and depth of least c_m m^-a_m + c_l l^-a_l at a number of parameters, by golden sections over log m."""

    def loss(log_m):
        depth = parameters / (law.per_block * np.exp(2 * log_m))
        return law.c_m * np.exp(-law.a_m * log_m) + law.c_l * depth**-law.a_l

    found = minimize_scalar(loss, bounds=(-30, 40), method="bounded", options={"xatol": 1e-10, "maxiter": 2000})
    width = np.exp(found.x)
    return width, parameters / (law.per_block * width**2), found.fun


def least_loss(coefficients, slopes):
    """The point x of least sum of c_i exp(slopes_i . x), and the parts there: a convex problem in log sizes."""
    logs, slopes = np.log(coefficients), np.array(slopes)

    def objective(x):
        parts = np.exp(logs + slopes @ x - (peak := (logs + slopes @ x).max()))
        return peak + np.log(parts.sum()), parts @ slopes / parts.sum()

    x = minimize(objective, np.zeros(slopes.shape[1]), jac=True, method="BFGS", options={"gtol": 1e-10}).x
    return x, np.exp(logs + slopes @ x)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(law=laws, parameters=sizes)
def test_the_best_shape_is_the_minimisers(law, parameters):
    width, depth, loss = least_model_loss(law, parameters)
    best = best_shape(law, parameters)
    assert (best.width, best.depth) == pytest.approx((width, depth), rel=CLOSE)
    assert best.ratio == pytest.approx(width / depth, rel=2 * CLOSE)
    assert best.model_loss == pytest.approx(loss, rel=CLOSE)
    assert law.of_size().limit(parameters) - law.floor == pytest.approx(loss, rel=CLOSE)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(law=laws, compute=budgets)
def test_the_frontier_and_its_split_are_the_minimisers(law, compute):
    pairs = compute / (6 * law.per_block)  # D = pairs / (m^2 l)
    coefficients = [law.c_m, law.c_l, law.c_D * pairs**-law.a_D]
    (log_m, log_l), parts = least_loss(coefficients, [[-law.a_m, 0], [0, -law.a_l], [2 * law.a_D, law.a_D]])
    parameters = law.per_block * np.exp(2 * log_m + log_l)
    best = frontier(law.of_size(), compute)
    assert best.parameters == pytest.approx(parameters, rel=CLOSE)
    assert best.tokens == pytest.approx(compute / 6 / parameters, rel=CLOSE)
    assert best.tokens_per_parameter == pytest.approx(compute / 6 / parameters**2, rel=2 * CLOSE)
    assert best.loss - law.floor == pytest.approx(parts.sum(), rel=CLOSE)
    shape = best_shape(law, best.parameters)
    assert (shape.width, shape.depth) == pytest.approx((np.exp(log_m), np.exp(log_l)), rel=CLOSE)
    assert np.array(split(law)) == pytest.approx(parts / parts[1], rel=CLOSE)
    assert model_share(law) == pytest.approx(parts[:2].sum() / parts.sum(), rel=CLOSE)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(law=laws, compute=budgets)
def test_loss_falls_along_the_frontier_with_the_exponent_of_compute(law, compute):
    size = law.of_size()
    near, far = (frontier(size, c).loss - law.floor for c in (compute, 100 * compute))
    assert np.log(near / far) / np.log(100) == pytest.approx(size.compute_exponent, rel=CLOSE)
    again = frontier_at(size, frontier(size, compute).parameters)
    assert (again.compute, again.loss) == pytest.approx((compute, near + law.floor), rel=CLOSE)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(law=laws, parameters=sizes, x=between(0.05, 20), tolerance=st.floats(0.001, 0.5))
def test_another_shape_costs_what_the_law_says(law, parameters, x, tolerance):
    best = best_shape(law, parameters)
    width, depth = best.width * x ** (1 / 3), best.depth * x ** (-2 / 3)  # as many parameters
    loss = law.c_m * width**-law.a_m + law.c_l * depth**-law.a_l
    assert shape_penalty(law, x) == pytest.approx(loss / best.model_loss, rel=CLOSE)
    low, high = ratios_within(law, tolerance)
    assert low < 1 < high
    excess = [model_share(law) * (shape_penalty(law, end) - 1) for end in (low, high)]
    assert excess == pytest.approx([tolerance] * 2, rel=CLOSE)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(law=laws, compute=budgets, batch=between(1e5, 1e7), rate=between(1e-5, 1e-2), more=between(1.5, 100))
def test_the_best_tokens_per_parameter_follow_batch_over_rate(law, compute, batch, rate, more):
    def best_steps(batch, rate):  # c_tau / (rate S)^a_D, 6 N batch S = compute
        size = law.of_size()
        slopes = [[size.a_N], [-size.a_D]]
        coefficients = [size.c_N * (compute / (6 * batch)) ** -size.a_N, size.c_D * rate**-size.a_D]
        return np.exp(least_loss(coefficients, slopes)[0][0])

    steps = best_steps(batch, rate)
    found = frontier(law.in_tokens(batch, rate).of_size(), compute)
    assert found.tokens == pytest.approx(batch * steps, rel=CLOSE)
    higher = frontier(law.of_size().in_tokens(more * batch, rate), compute)
    grown = np.log(higher.tokens_per_parameter / found.tokens_per_parameter) / np.log(more)
    assert grown == pytest.approx(law.of_size().batch_exponent, rel=CLOSE)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(law=laws, compute=budgets, short=between(0.01, 10), batch=between(1e5, 1e7))
def test_what_is_short_of_tokens_or_steps_puts_its_compute_into_size(law, compute, short, batch):
    size = law.of_size()
    best = frontier(size, compute)
    tokens = short * best.tokens
    found = minimize_scalar(
        lambda log_d: size.loss(compute / 6 / np.exp(log_d), np.exp(log_d)),
        bounds=(np.log(tokens) - 30, np.log(tokens)),
        method="bounded",
        options={"xatol": 1e-9},
    )
    by_data, by_steps = limited(size, compute, batch, tokens), limited(size, compute, batch, steps=tokens / batch)
    assert by_data.point.loss == pytest.approx(found.fun, rel=CLOSE)
    assert by_data.excess == pytest.approx(by_data.point.loss - best.loss, abs=1e-12)
    assert (by_data.by, by_steps.by) == (("data", "steps") if short < 1 else ("compute", "compute"))
    assert by_steps.point.loss == pytest.approx(by_data.point.loss, rel=1e-9)


def test_isoflop_curves_are_lowest_on_the_frontier():
    size = CHINCHILLA.of_size()
    best = frontier(size, 1e21)
    losses = isoflop(size, 1e21, best.parameters * np.array([0.9, 1.0, 1.1])).loss
    assert losses[1] == pytest.approx(best.loss, rel=1e-12) and losses[1] < min(losses[0], losses[2])


def test_chinchillas_numbers():
    size = CHINCHILLA.of_size()
    assert [best_shape(CHINCHILLA, n).ratio for n in (1e8, 1e11)] == pytest.approx([59.7, 59.7], abs=0.1)
    assert size.c_N == pytest.approx(341, abs=0.5) and size.compute_exponent == pytest.approx(1 / 6)
    assert frontier(size, 1e21).tokens_per_parameter == pytest.approx(30.4, abs=0.1)
    assert split(CHINCHILLA) == pytest.approx((2, 1, 3))
    assert [shape_penalty(CHINCHILLA, x) for x in (0.5, 2, 3, 4)] == pytest.approx(
        [1.050, 1.058, 1.156, 1.260], abs=5e-4
    )
    low, high = (59.7 * end for end in ratios_within(CHINCHILLA, 0.05))
    assert (low, high) == pytest.approx((22, 146), abs=1)
    reducible = 2 * 486 ** (1 / 6) * 388 ** (1 / 3) * 3.25 ** (1 / 6) * 1064**0.5 * 1e21 ** (-1 / 6)
    assert frontier(size, 1e21).loss - 1.778 == pytest.approx(reducible, rel=1e-3)


# --- of a fit -----------------------------------------------------------------------------------------------

LAW = named("width-depth-tokens")
VALUES = {"c_m": 388.0, "c_l": 3.25, "c_D": 1064.0, "a_m": 1.0, "a_l": 1.0, "a_D": 1 / 3, "L0": 1.778}


def test_draws_give_what_each_of_them_gives_alone():
    draws = {"c_m": np.array([350.0, 388.0, 420.0]), "c_l": np.array([3.0, 3.25, 3.6])}
    together = in_numbers(LAW, {**VALUES, **draws})
    apart = [in_numbers(LAW, {**VALUES, **{name: float(v[i]) for name, v in draws.items()}}) for i in range(3)]
    assert best_shape(together, 1e9).ratio == pytest.approx([best_shape(law, 1e9).ratio for law in apart])
    assert frontier(together.of_size(), 1e21).tokens == pytest.approx(
        [frontier(a.of_size(), 1e21).tokens for a in apart]
    )


def test_intervals_are_those_of_the_draws_and_open_where_a_part_vanishes():
    c_l = np.linspace(2.0, 5.0, 1001)
    found = consequences(LAW, VALUES, 1e9, 1e21, draws={"c_l": c_l})
    ratio = found.m_over_l
    assert (ratio.value, ratio.interval.low, ratio.interval.high) == pytest.approx(
        (59.7, 388 / (2 * 4.925), 388 / (2 * 2.075)), rel=1e-3
    )
    assert found.c_N.interval.low < found.c_N.value < found.c_N.interval.high
    c_l[:100] = 0  # a tenth of the draws have no depth part
    assert consequences(LAW, VALUES, 1e9, 1e21, draws={"c_l": c_l}).m_over_l.interval.high is None


def test_tokens_per_parameter_depend_on_how_parameters_are_counted():
    width, depth = np.array([512.0, 1024.0, 2048.0]), np.array([8.0, 16.0, 24.0])
    convention = table_convention(np.array([13, 15, 20]) * width**2 * depth, width, depth, "with embeddings")
    assert convention.per_block == pytest.approx(15) and "with embeddings" in convention.words
    assert "13 to 20" in convention.words
    plain = consequences(LAW, VALUES, 1e9, 1e21)
    counted = consequences(LAW, VALUES, 1e9, 1e21, convention)
    assert counted.d_over_n.value == pytest.approx(plain.d_over_n.value * 12 / 15, rel=1e-6)
    assert counted.m_over_l.value == pytest.approx(plain.m_over_l.value)


def test_what_a_law_does_not_have_does_not_follow():
    size = consequences(
        named("parameters-tokens"), {"c_N": 400, "c_D": 1e3, "a_N": 0.3, "a_D": 0.3, "L0": 1.7}, 1e9, 1e21
    )
    assert size.shape is size.m_over_l is size.width_depth_time is None and size.d_over_n.value > 0
    assert size.size == SizeLaw(400, 1e3, 0.3, 0.3, 1.7)
    tau = consequences(named("parameters-tau"), {"c_N": 400, "c_tau": 1, "a_N": 0.3, "a_tau": 0.3, "L0": 2}, 1e9, 1e21)
    assert tau.d_over_n is None and tau.size.c_D == 1
    assert consequences(named("width-tokens"), {**VALUES}, 1e9, 1e21) is None
    assert consequences(LAW, {**VALUES, "c_l": 0.0}, 1e9, 1e21, Convention(12, "")) is None
