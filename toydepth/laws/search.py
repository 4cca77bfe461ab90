"""The search for the best fit: exponents by damped Newton steps, coefficients and floor by variable projection.

Coefficients and floor enter the predicted loss linearly: for given exponents the best of them, none negative, follow
from a few steps of non-negative least squares on log loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.optimize import nnls

from .law import FLOOR, Law, Sizes

EXPONENTS = (0.01, 8.0)  # where the best exponents are searched: one at an end is not identified
AGREE = 1e-6  # starts agree where their costs differ by less than this share
STEPS, FAR = 100, 0.1  # most steps; how much rows beyond the Huber bound count in a step, over those within
SHORTER = (1.0, 0.5, 0.25, 0.1, 0.01)


@dataclass(frozen=True)
class Point:
    """Exponents of all terms, the best of what is linear for them, and what that leaves."""

    exponents: Float[np.ndarray, " terms"]
    linear: Float[np.ndarray, " linear"]  # free coefficients in units of the table's middle, then a free floor
    columns: Float[np.ndarray, "linear rows"]
    predicted: Float[np.ndarray, " rows"]
    residuals: Float[np.ndarray, " rows"]  # with large ones shortened, so that their squares sum up to the cost
    slope: Float[np.ndarray, " rows|1"]  # of those in the residuals of log loss
    cost: float


def same(a: Point, b: Point, n: int) -> bool:
    """Whether two searches over n rows have come to one place."""
    apart = np.max(np.abs(a.exponents - b.exponents) / np.maximum(1, b.exponents))
    return bool(a.cost <= b.cost * (1 + AGREE) + n * 1e-18 and apart < 0.01)


class Problem:
    """A table and a law, ready to be searched. Sizes are counted in their geometric mean."""

    def __init__(self, sizes: Sizes, loss: Float[np.ndarray, " rows"], law: Law, huber: float | None):
        self.law, self.huber, self.loss, self.y = law, huber, loss, np.log(loss)
        self.log_x = np.log(np.stack([np.asarray(sizes[variable], float) for variable in law.variables]))
        self.middle = self.log_x.mean(1)
        self.log_z = self.log_x - self.middle[:, None]
        self.free = np.array([name not in law.fixed for name in law.exponents])
        self.own = np.array([name not in law.fixed for name in law.coefficients])
        self.start = np.array([law.fixed.get(name, 0.0) for name in law.exponents])
        self.held = np.array([law.fixed.get(name, 0.0) for name in law.coefficients])
        self.last: Point | None = None

    def search(self, exponents: Sequence[float]) -> Point:
        """The best point that is found from these free exponents, by damped Newton steps within `EXPONENTS`."""
        self.last = None
        point, damping = self.at(np.clip(exponents, *EXPONENTS)), 1e-3
        for _ in range(STEPS if len(exponents) else 0):
            step, promised = self._step(point, damping)
            if promised <= 1e-12 * point.cost and damping <= 1:
                break
            tried = self.at(np.clip(point.exponents[self.free] + step, *EXPONENTS))
            better = tried.cost < point.cost
            point = tried if better else point
            damping = min(max(damping * (0.1 if better else 8), 1e-9), 1e9)
            if not better and damping == 1e9:
                break
        return point

    def at(self, free: Float[np.ndarray, " free"]) -> Point:
        """The best coefficients and floor, none negative, at given free exponents."""
        exponents = self.start.copy()
        exponents[self.free] = free
        powers = np.exp(-exponents[:, None] * self.log_z)
        held = self.held * np.exp(-exponents * self.middle)
        offset = held @ powers + self.law.fixed.get(FLOOR, 0.0)
        columns = powers[self.own]
        if FLOOR not in self.law.fixed:
            columns = np.vstack([columns, np.ones(len(self.y))])
        guess = None if self.last is None else self.last.linear
        self.last = self._project(exponents, columns, offset, guess)
        return self.last

    def _project(
        self, exponents: np.ndarray, columns: np.ndarray, offset: np.ndarray, guess: np.ndarray | None
    ) -> Point:
        """Gauss-Newton steps of non-negative least squares, from the best in relative loss."""
        if guess is None and len(columns):
            guess, _ = nnls((columns / self.loss).T, (self.loss - offset) / self.loss)
        point = self._point(exponents, columns, offset, np.zeros(0) if guess is None else guess)
        for _ in range(100 if len(columns) else 0):
            weight = np.where(point.slope == 1, 1.0, FAR * point.slope)  # far rows pull, and hardly bend the cost
            tilted = columns * (weight / point.predicted)
            goal, _ = nnls(tilted.T, point.slope * point.residuals / weight + point.linear @ tilted)
            step = goal - point.linear
            for shorter in SHORTER:
                tried = self._point(exponents, columns, offset, point.linear + shorter * step)
                if tried.cost <= point.cost:
                    break
            else:
                return point
            done = point.cost - tried.cost <= 1e-12 * point.cost
            point = tried
            if done:
                break
        return point

    def _point(self, exponents: np.ndarray, columns: np.ndarray, offset: np.ndarray, linear: np.ndarray) -> Point:
        predicted = np.maximum(linear @ columns + offset, 1e-300)
        residuals, slope = huber_residuals(self.y - np.log(predicted), self.huber)
        return Point(exponents, linear, columns, predicted, residuals, slope, float(residuals @ residuals))

    def _step(self, point: Point, damping: float) -> tuple[Float[np.ndarray, " free"], float]:
        """A step of the free exponents, and by how much it promises to lower the cost.

        By Newton, or where the curvature is not positive by Gauss and Newton. Exponents at an end of `EXPONENTS` stay
        there if they would leave it.
        """
        gradient, newton, gauss = self._derivatives(point)
        scale = np.sqrt(np.maximum(np.diag(gauss), 1e-300))
        curved = newton / np.outer(scale, scale)
        if np.linalg.eigvalsh(curved)[0] <= 1e-3:
            curved = gauss / np.outer(scale, scale)
        free, downhill = point.exponents[self.free], -gradient / scale
        stays = ((free <= EXPONENTS[0]) & (downhill < 0)) | ((free >= EXPONENTS[1]) & (downhill > 0))
        moves, step = ~stays, np.zeros(len(free))
        damped = curved[np.ix_(moves, moves)] + damping * np.eye(moves.sum())
        step[moves] = np.linalg.lstsq(damped, downhill[moves])[0]
        return step / scale, float(downhill @ step)

    def _derivatives(self, point: Point) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Of half the cost in the free exponents, what is linear following: gradient, Hessian, that of Gauss-Newton.

        The Hessians are Schur complements of those in exponents and in what is linear and not at 0.
        """
        pull, weight, count = point.slope * point.residuals, point.slope**2, int(self.own.sum())
        inside = 1.0 if self.huber is None else point.slope == 1
        bend = np.maximum(inside + pull, 1e-2)
        logs = np.where(self.own[:, None], self.log_z, self.log_x)  # a held coefficient is one of x, not of z
        parts = self._powers(point) / point.predicted
        slopes, follow = -(parts * logs)[self.free], point.linear > 0
        linear = (point.columns / point.predicted)[follow]
        mixed = np.zeros((len(self.free), len(point.linear)))  # of a coefficient and the exponent of its own term
        mixed[self.own, np.arange(count)] = -((parts * logs) @ pull)[self.own] / np.maximum(
            point.linear[:count], 1e-300
        )
        square = slopes * bend @ slopes.T - np.diag(((parts * logs**2) @ pull)[self.free])
        cross = slopes * bend @ linear.T - mixed[self.free][:, follow]
        newton = _eliminated(square, cross, linear * bend @ linear.T)
        gauss = _eliminated(slopes * weight @ slopes.T, slopes * weight @ linear.T, linear * weight @ linear.T)
        return -slopes @ pull, newton, gauss

    def _powers(self, point: Point) -> Float[np.ndarray, "terms rows"]:
        coefficients = self.held * np.exp(-point.exponents * self.middle)
        coefficients[self.own] = point.linear[: self.own.sum()]
        return coefficients[:, None] * np.exp(-point.exponents[:, None] * self.log_z)

    def values(self, point: Point) -> dict[str, float]:
        """All values of the law, in the units of the table."""
        coefficients = self.held.copy()
        scale = np.exp(np.minimum(point.exponents * self.middle, 700))
        coefficients[self.own] = point.linear[: self.own.sum()] * scale[self.own]
        floor = self.law.fixed.get(FLOOR, point.linear[-1] if len(point.linear) else 0.0)
        return dict(zip(self.law.names, map(float, (*coefficients, *point.exponents, floor)), strict=True))

    def covariance(self, point: Point, values: Mapping[str, float]) -> Float[np.ndarray, "parameters parameters"]:
        """s^2 (J'J)^-1 of the free parameters; see `Fit`."""
        parts = self._powers(point) / point.predicted
        slopes: dict[str, np.ndarray] = {FLOOR: 1 / point.predicted}
        for term, part, log_x in zip(self.law.terms, parts, self.log_x, strict=True):
            slopes[term.coefficient] = part / max(values[term.coefficient], 1e-300)
            slopes[term.exponent] = -part * log_x
        names = self.law.parameters
        inner = [i for i, name in enumerate(names) if self._inside(name, values)]
        covariance = np.full((len(names), len(names)), np.nan)
        degrees = len(self.y) - len(names)
        if inner and degrees > 0:
            jacobian = np.stack([slopes[names[i]] for i in inner], axis=1) * point.slope[:, None]
            covariance[np.ix_(inner, inner)] = point.cost / degrees * _inverse(jacobian)
        return covariance

    def _inside(self, name: str, values: Mapping[str, float]) -> bool:
        """Whether a parameter is away from its bounds, and its term is there."""
        for term in self.law.terms:
            if name == term.exponent:
                low, high = EXPONENTS
                return values[term.coefficient] > 0 and low * 1.001 < values[name] < high * 0.999
        return values[name] > 0


def _inverse(jacobian: Float[np.ndarray, "rows k"]) -> Float[np.ndarray, "k k"]:
    """(J'J)^-1; infinite variances for what takes part in a direction that J does not see."""
    scale = np.linalg.norm(jacobian, axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    _, seen, directions = np.linalg.svd(jacobian / scale, full_matrices=False)
    blind = seen < 1e-9 * max(seen[0], 1e-300)
    inverse = (directions[~blind].T / seen[~blind] ** 2) @ directions[~blind]
    lost = (np.abs(directions[blind]) > 1e-6).any(0)
    inverse[lost, lost] = np.inf
    return inverse / np.outer(scale, scale)


def _eliminated(a: np.ndarray, ab: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The Schur complement a - ab b^-1 ab'."""
    return a - ab @ np.linalg.lstsq(b, ab.T)[0] if len(b) else a


def huber_residuals(
    residuals: Float[np.ndarray, " rows"], huber: float | None
) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows|1"]]:
    """Residuals with large ones shortened to the square root of their Huber loss, and their slope in the residuals."""
    if huber is None:
        return residuals, np.ones(1)
    size = np.abs(residuals)
    short = np.where(size <= huber, size, np.sqrt(np.maximum(2 * huber * size - huber**2, 0)))
    return np.sign(residuals) * short, np.where(size <= huber, 1.0, huber / np.maximum(short, 1e-300))
