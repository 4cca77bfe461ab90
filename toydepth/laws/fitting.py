"""Least squares on log loss: the best coefficients, exponents and floor of a law, with their standard errors.

For given exponents the best coefficients and floor, none of them negative, follow by themselves (variable projection),
so that the search is over the free exponents alone and needs no grid of starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import log

import numpy as np
from jaxtyping import Float

from ..fields import ConfigError
from .law import EXPECTED, FLOOR, LARGEST, SMALLEST, Law, Sizes
from .search import Problem, huber_residuals, same

STARTS = 8
ROUNDING = 1e-20  # a mean squared residual that is not told from 0


@dataclass(frozen=True)
class Fit:
    """A law and what a table made of it.

    Errors are Jacobian ones: s^2 (J'J)^-1 with J the derivative of the log residuals and s^2 their sum of squares over
    n - k. They are nan for what stands at its bound (a coefficient or floor at 0, and the exponent of such a term), and
    infinite for what the table leaves open.
    """

    law: Law
    n: int  # rows
    values: Mapping[str, float]  # all of `law.names`, fixed ones too
    residuals: Float[np.ndarray, " rows"]  # log loss, measured minus predicted
    covariance: Float[np.ndarray, "parameters parameters"]  # of `law.parameters`
    huber: float | None  # beyond it residuals count linearly
    starts: int
    starts_agreeing: int

    @property
    def coefficients(self) -> dict[str, float]:
        return {name: self.values[name] for name in self.law.coefficients}

    @property
    def exponents(self) -> dict[str, float]:
        return {name: self.values[name] for name in self.law.exponents}

    @property
    def L0(self) -> float:
        return self.values[FLOOR]

    @property
    def k(self) -> int:
        """How many parameters were estimated."""
        return len(self.law.parameters)

    @cached_property
    def standard_errors(self) -> dict[str, float]:
        """{free parameter: standard error}."""
        return dict(zip(self.law.parameters, np.sqrt(np.diag(self.covariance)).tolist(), strict=True))

    @cached_property
    def correlation(self) -> Float[np.ndarray, "parameters parameters"]:
        """Of the estimates of `law.parameters`."""
        errors = np.sqrt(np.diag(self.covariance))
        with np.errstate(invalid="ignore"):
            return self.covariance / np.outer(errors, errors)

    @property
    def mse_log(self) -> float:
        """Mean squared residual of log loss."""
        return float(np.mean(self.residuals**2))

    @property
    def relative_error(self) -> float:
        """Mean of |L - predicted| / L, a fraction."""
        return float(np.mean(np.abs(np.expm1(-self.residuals))))

    @property
    def aic(self) -> float:
        """n log(mean squared log residual) + 2 k; comparable between laws on the same rows."""
        return self.n * log(self.mse_log + ROUNDING) + 2 * self.k

    @property
    def bic(self) -> float:
        """n log(mean squared log residual) + k log n; comparable between laws on the same rows."""
        return self.n * log(self.mse_log + ROUNDING) + self.k * log(self.n)

    @property
    def cost(self) -> float:
        """What was minimised: the sum of squared log residuals, of large ones their Huber loss."""
        return float(np.sum(huber_residuals(self.residuals, self.huber)[0] ** 2))

    def predict(self, sizes: Sizes) -> Float[np.ndarray, " rows"]:
        """The loss[rows] of models of these sizes."""
        return self.law.loss(sizes, self.values)


def fit(
    sizes: Sizes,
    loss: Float[np.ndarray, " rows"],
    law: Law,
    *,
    huber: float | None = None,
    starts: int = STARTS,
    seed: int = 0,
    near: Mapping[str, float] | None = None,
) -> Fit:
    """The law that is nearest to a table in log loss.

    Args:
        sizes: {variable: x[rows]}, positive, for each variable of the law.
        loss: measured loss[rows], positive; nats per token, or whatever unit the coefficients shall have.
        law: which law, and what of it is fixed.
        huber: residuals of log loss beyond it count linearly (Chinchilla's authors took 1e-3); None: squares for all.
        starts: how many starts of the free exponents: the expected ones, and others at random between 0.1 and 2.
        seed: of the random starts.
        near: values of a like fit; the search then starts from there alone.

    Raises:
        ConfigError: a size or a loss is not a number above 0 (`SMALLEST` to `LARGEST`), or a size is missing.
    """
    for name, values in {**{v: sizes.get(v) for v in law.variables}, "loss": loss}.items():
        if values is None or not np.all((values >= SMALLEST) & (values <= LARGEST)):
            raise ConfigError(f"{name}: allowed are numbers above 0, {SMALLEST:g} to {LARGEST:g}")
    problem = Problem(sizes, np.asarray(loss, float), law, huber)
    candidates = [problem.search(start) for start in _starts(law, starts, seed, near)]
    best = min(candidates, key=lambda found: found.cost)
    agreeing = sum(same(found, best, len(problem.y)) for found in candidates)
    values = problem.values(best)
    return Fit(
        law=law,
        n=len(problem.y),
        values=values,
        residuals=problem.y - np.log(best.predicted),
        covariance=problem.covariance(best, values),
        huber=huber,
        starts=len(candidates),
        starts_agreeing=agreeing,
    )


def _starts(law: Law, count: int, seed: int, near: Mapping[str, float] | None) -> list[list[float]]:
    free = law.free_exponents
    if near is not None:
        return [[near[name] for name in free]]
    expected = [EXPECTED[term.variable] for term in law.terms if term.exponent in free]
    others = np.exp(np.random.default_rng(seed).uniform(log(0.1), log(2), (count - 1, len(free)))) if free else []
    return [expected, *(list(other) for other in others)]
