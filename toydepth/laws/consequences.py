"""What follows from a law of width, depth and time: the best shape, what another shape costs, the compute frontier.

Closed forms for L = c_m/m^a_m + c_l/l^a_l + c_D/D^a_D + floor, models of N = k m^2 l parameters, and C = 6 N D
floating-point operations, with any exponents; at 1, 1, 1/3 they are those of arXiv 2606.25008. Every number may be an
array of bootstrap draws: what follows is then an array of draws as well.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.optimize import root_scalar

Number = float | Float[np.ndarray, " draws"]

PER_BLOCK = 12.0  # parameters of a block over m^2, without embeddings: 4 of attention, 8 of an MLP of hidden size 4m


@dataclass(frozen=True)
class ShapeLaw:
    """L = c_m/m^a_m + c_l/l^a_l + c_D/D^a_D + floor, of models with per_block * m^2 * l parameters.

    m is the width, l the depth in layers, D counts tokens (or is tau, the sum of learning rates over steps, until
    `in_tokens` is told the batch and the rate).
    """

    c_m: Number
    c_l: Number
    c_D: Number
    a_m: Number = 1.0
    a_l: Number = 1.0
    a_D: Number = 1 / 3
    floor: Number = 0.0
    per_block: Number = PER_BLOCK

    def of_size(self) -> SizeLaw:
        """The law of size and time that is left when every model has its best shape."""
        lever = self.a_m * self.c_m / (2 * self.a_l * self.c_l)
        whole = self.a_m + 2 * self.a_l
        a_N = self.a_m * self.a_l / whole
        c_N = self.c_m * (1 + self.a_m / (2 * self.a_l)) * lever ** (-self.a_m / whole) * self.per_block**a_N
        return SizeLaw(c_N, self.c_D, a_N, self.a_D, self.floor)

    def in_tokens(self, batch: float, rate: float) -> ShapeLaw:
        """The law in tokens D of one that was fitted to tau, for this batch (tokens) and this mean learning rate.

        D = batch * steps and tau = rate * steps, so c_D = c_tau (batch / rate)^a_D: the best tokens per parameter are
        proportional to batch over rate.
        """
        return replace(self, c_D=self.c_D * (batch / rate) ** self.a_D)


@dataclass(frozen=True)
class SizeLaw:
    """L = c_N/N^a_N + c_D/D^a_D + floor, of models with N parameters trained on D tokens."""

    c_N: Number
    c_D: Number
    a_N: Number = 1 / 3
    a_D: Number = 1 / 3
    floor: Number = 0.0

    def loss(self, parameters: Number, tokens: Number) -> Number:
        """Loss in nats per token."""
        return self.limit(parameters) + self.c_D * tokens**-self.a_D

    def of_size(self) -> SizeLaw:
        """Itself: it knows of no shape."""
        return self

    def in_tokens(self, batch: float, rate: float) -> SizeLaw:
        """The law in tokens of one that was fitted to tau; see `ShapeLaw.in_tokens`."""
        return replace(self, c_D=self.c_D * (batch / rate) ** self.a_D)

    def limit(self, parameters: Number) -> Number:
        """Loss of a model of this size after unlimited data."""
        return self.c_N * parameters**-self.a_N + self.floor

    @property
    def compute_exponent(self) -> Number:
        """Of C in the reducible loss on the frontier; 1/6 where both exponents are 1/3."""
        return self.a_N * self.a_D / (self.a_N + self.a_D)

    @property
    def batch_exponent(self) -> Number:
        """Of batch over rate in the best D/N at given compute, for a law of tau; 1 for equal exponents."""
        return 2 * self.a_D / (self.a_N + self.a_D)


@dataclass(frozen=True)
class Shape:
    """The best shape of a model of so many parameters, and the part of its loss that is due to its size."""

    parameters: Number
    width: Number
    depth: Number
    model_loss: Number

    @property
    def ratio(self) -> Number:
        """m/l, width over depth."""
        return self.width / self.depth


@dataclass(frozen=True)
class Point:
    """A model of N parameters trained on D tokens for C = 6 N D operations, and its predicted loss."""

    compute: Number
    parameters: Number
    tokens: Number
    loss: Number

    @property
    def tokens_per_parameter(self) -> Number:
        """D/N, in the convention of N of the law that the point is of."""
        return self.tokens / self.parameters


@dataclass(frozen=True)
class Limited:
    """The best that compute can do with few tokens or steps: what limits, where, and the loss above the frontier."""

    by: Literal["compute", "data", "steps"]
    point: Point
    excess: float


# --- shape --------------------------------------------------------------------------------------------------


def best_shape(law: ShapeLaw, parameters: Number) -> Shape:
    """The width and depth of least loss at a given size, where a_m c_m m^-a_m = 2 a_l c_l l^-a_l.

    With equal exponents of 1 that is m/l = c_m/(2 c_l) at any size; with unequal ones the best ratio drifts as
    N^((a_l - a_m)/(a_m + 2 a_l)).
    """
    whole, blocks = law.a_m + 2 * law.a_l, parameters / law.per_block
    width = (law.a_m * law.c_m / (2 * law.a_l * law.c_l) * blocks**law.a_l) ** (1 / whole)
    depth = blocks / width**2
    return Shape(parameters, width, depth, law.c_m * width**-law.a_m + law.c_l * depth**-law.a_l)


def shape_penalty(law: ShapeLaw, x: Number) -> Number:
    """The model part of the loss over its least, at x times the best m/l and an unchanged number of parameters.

    (2 x^-1/3 + x^2/3) / 3 for exponents of 1: flat, 5 % more at half the best ratio and 6 % at twice. It does not
    depend on the size, the coefficients or the parameters per block.
    """
    whole = law.a_m + 2 * law.a_l
    return (2 * law.a_l * x ** (-law.a_m / 3) + law.a_m * x ** (2 * law.a_l / 3)) / whole


def model_share(law: ShapeLaw) -> Number:
    """The model part's share of the reducible loss on the compute frontier; 1/2 for exponents 1, 1, 1/3."""
    a_N = law.of_size().a_N
    return law.a_D / (law.a_D + a_N)


def ratios_within(law: ShapeLaw, tolerance: float) -> tuple[float, float]:
    """The least and the greatest m/l, over the best, whose reducible loss on the frontier is at most so much higher.

    Args:
        law: of plain numbers, not draws.
        tolerance: a fraction above 0.
    """
    allowed, whole = float(1 + tolerance / model_share(law)), law.a_m + 2 * law.a_l

    def excess(x: float) -> float:
        return float(shape_penalty(law, x)) - allowed

    # Where one of the two terms alone is as large as is allowed.
    low = float((2 * law.a_l / (allowed * whole)) ** (3 / law.a_m))
    high = float((allowed * whole / law.a_m) ** (3 / (2 * law.a_l)))
    below, above = (root_scalar(excess, bracket=ends).root for ends in ((low, 1.0), (1.0, high)))
    return float(below), float(above)


def split(law: ShapeLaw) -> tuple[Number, Number, Number]:
    """The width, depth and time parts of the loss at the optimum, depth's taken as 1; 2 : 1 : 3 for 1, 1, 1/3."""
    return 2 * law.a_l / law.a_m, law.a_l / law.a_l, law.a_l / law.a_D


# --- compute ------------------------------------------------------------------------------------------------


def frontier(law: SizeLaw, compute: Number) -> Point:
    """The size and the tokens of least loss for C = 6 N D, where a_N c_N N^-a_N = a_D c_D D^-a_D.

    With equal exponents D/N = (c_D/c_N)^(1/a) at any compute.
    """
    pairs = compute / 6
    balance = law.a_N * law.c_N / (law.a_D * law.c_D)
    parameters = (balance * pairs**law.a_D) ** (1 / (law.a_N + law.a_D))
    tokens = pairs / parameters
    return Point(compute, parameters, tokens, law.loss(parameters, tokens))


def frontier_at(law: SizeLaw, parameters: Number) -> Point:
    """The point of the frontier whose model has so many parameters."""
    tokens = (law.a_D * law.c_D * parameters**law.a_N / (law.a_N * law.c_N)) ** (1 / law.a_D)
    return Point(6 * parameters * tokens, parameters, tokens, law.loss(parameters, tokens))


def isoflop(law: SizeLaw, compute: float, parameters: Number) -> Point:
    """Models of these sizes, each trained for as long as so much compute lasts."""
    tokens = compute / (6 * parameters)
    return Point(compute, parameters, tokens, law.loss(parameters, tokens))


def limited(law: SizeLaw, compute: float, batch: float, tokens: float = np.inf, steps: float = np.inf) -> Limited:
    """The best use of compute with at most so many tokens and so many steps of `batch` tokens.

    Where the loss is a function of tau, what counts is steps times rate: one that is short of steps gains nothing from
    a larger batch, and one that is short of tokens gains from a smaller one. What compute is left goes into size.
    """
    best = frontier(law, compute)
    reach = min(tokens, steps * batch)
    if best.tokens <= reach:
        return Limited("compute", best, 0.0)
    point = isoflop(law, compute, compute / (6 * reach))
    return Limited("data" if tokens <= steps * batch else "steps", point, float(point.loss - best.loss))
