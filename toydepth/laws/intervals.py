"""How far a fit is known: profile likelihood, and bootstraps over rows and over whole models."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import root_scalar
from scipy.special import stdtrit

from .fitting import ROUNDING, Fit, fit
from .law import Sizes
from .search import EXPONENTS

LEVEL = 0.95
FARTHEST = 60  # doublings of a step before an end counts as open


@dataclass(frozen=True)
class Interval:
    """From low to high; an end is None where the table leaves it open."""

    low: float | None
    high: float | None

    @property
    def open(self) -> bool:
        return self.low is None or self.high is None


def excess(sizes: Sizes, loss: Float[np.ndarray, " rows"], best: Fit, name: str, value: float, near: Fit) -> Fit:
    """The best fit with one parameter held at a value, the search starting from a fit nearby."""
    return fit(sizes, loss, best.law.fix({name: value}), huber=best.huber, near=near.values)


def delta_chi2(best: Fit, other: Fit) -> float:
    """n (S / S_best - 1), S the sum of squared log residuals: how much less likely, in units of chi-square."""
    return (other.cost - best.cost) / (best.cost / best.n + ROUNDING)


def profile(
    sizes: Sizes, loss: Float[np.ndarray, " rows"], best: Fit, name: str, values: Float[np.ndarray, " values"]
) -> Float[np.ndarray, " values"]:
    """Delta chi-square[values] of a parameter held at each value, everything else free to follow."""
    start = int(np.argmin(np.abs(values - best.values[name])))
    found = np.zeros(len(values))
    for indices in (range(start, len(values)), range(start - 1, -1, -1)):
        near = best
        for i in indices:
            near = excess(sizes, loss, best, name, float(values[i]), near)
            found[i] = delta_chi2(best, near)
    return found


def profile_interval(
    sizes: Sizes, loss: Float[np.ndarray, " rows"], best: Fit, name: str, level: float = LEVEL
) -> Interval:
    """Where delta chi-square stays below its quantile; an end at the edge of what is allowed is open.

    The quantile is that of Student's t squared with n - k degrees of freedom, the residuals' variance being estimated;
    for many rows that of chi-square, 3.84.
    """
    degrees = max(best.n - best.k, 1)
    limit = float(stdtrit(degrees, (1 + level) / 2)) ** 2 * best.n / degrees
    edges = EXPONENTS if name in best.law.exponents else (0.0, inf)
    error = best.standard_errors[name]
    step = error if isfinite(error) and error > 0 else 0.1 * max(abs(best.values[name]), 1e-3)
    return Interval(
        *(_end(sizes, loss, best, name, limit, sign * step, edge) for sign, edge in zip((-1, 1), edges, strict=True))
    )


def _end(
    sizes: Sizes, loss: Float[np.ndarray, " rows"], best: Fit, name: str, limit: float, step: float, edge: float
) -> float | None:
    near, inside = best, best.values[name]
    known = {inside: -limit}

    def above(value: float) -> float:
        nonlocal near
        if value not in known:
            near = excess(sizes, loss, best, name, value, near)
            known[value] = delta_chi2(best, near) - limit
        return known[value]

    for _ in range(FARTHEST):
        outside = inside + step
        beyond = outside <= edge if step < 0 else outside >= edge
        if beyond:
            outside = edge
        if not isfinite(outside) or inside == outside:
            return None
        if above(outside) > 0:
            width = abs(outside - inside)
            return float(root_scalar(above, bracket=(inside, outside), xtol=1e-4 * width, rtol=1e-4).root)
        if beyond:
            return None
        inside, step = outside, 2 * step
    return None


def bootstrap(
    sizes: Sizes,
    loss: Float[np.ndarray, " rows"],
    best: Fit,
    draws: int,
    seed: int = 0,
    clusters: Int[np.ndarray, " rows"] | None = None,
) -> dict[str, Float[np.ndarray, " draws"]]:
    """Fits to tables drawn anew from a table's rows, {name in the law: value[draws]}.

    Args:
        sizes, loss: the table that `best` was fitted to.
        draws: how many tables are drawn.
        seed: of the draws.
        clusters: numbers[rows] that tell models apart; whole models are then drawn, since rows of one share its luck.
    """
    rng = np.random.default_rng(seed)
    groups = None if clusters is None else [np.flatnonzero(clusters == which) for which in np.unique(clusters)]
    found: dict[str, list[float]] = {name: [] for name in best.law.names}
    for _ in range(draws):
        if groups is None:
            rows = rng.integers(best.n, size=best.n)
        else:
            rows = np.concatenate([groups[i] for i in rng.integers(len(groups), size=len(groups))])
        drawn = {name: np.asarray(values)[rows] for name, values in sizes.items()}
        again = fit(drawn, loss[rows], best.law, huber=best.huber, near=best.values)
        for name, value in again.values.items():
            found[name].append(value)
    return {name: np.array(values) for name, values in found.items()}


def percentiles(draws: Float[np.ndarray, " draws"], level: float = LEVEL) -> Interval:
    """The middle part of draws; an end is open where too many of them are infinite."""
    if not len(draws):
        return Interval(None, None)
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], method="closest_observation")
    return Interval(*(float(end) if isfinite(end) else None for end in (low, high)))
