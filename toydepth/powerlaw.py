"""Power laws: fits of loss = c * x^-alpha (+ floor), local slopes, and the interval of a mean. Imports no JAX."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

import numpy as np
from jaxtyping import Float
from scipy.special import stdtrit

Floor = Literal["none", "free"]
Curve = tuple[Float[np.ndarray, " points"], Float[np.ndarray, " points"]]

FORMS: dict[Floor, int] = {"none": 2, "free": 3}  # and how many parameters each has
# Where the best law with a floor is searched; the floor, in units of the deepest power-law part, must stay above -1. A
# law at an end of this, or with a floor below `TOLD`, is not identified.
ALPHAS, FLOORS, TOLD = (0.01, 20.0), (-0.999, 100.0), -0.9


@dataclass(frozen=True)
class PowerLaw:
    """loss = c * x^-alpha + floor, and r2, the share of the variance of log loss that it explains.

    `identified` is false where the losses leave open how alpha and a floor share them: losses that do not bend as a
    power law with a floor does, or not enough.
    """

    alpha: float
    c: float
    floor: float
    r2: float
    identified: bool = True

    def __call__(self, x: Float[np.ndarray, " points"]) -> Float[np.ndarray, " points"]:
        return self.c * np.asarray(x, float) ** -self.alpha + self.floor


def alpha(x: Float[np.ndarray, " points"], loss: Float[np.ndarray, " points"]) -> float:
    """Least-squares slope of log loss against log x, with its sign turned."""
    return power_law(x, loss).alpha


def power_law(x: Float[np.ndarray, " points"], loss: Float[np.ndarray, " points"], floor: Floor = "none") -> PowerLaw:
    """Fit loss = c * x^-alpha (+ floor, floor >= 0) by least squares on log loss.

    c is projected out; with a floor, (alpha, floor) start from the best point of a grid, so the result does
    not hang on a lucky start. Raises ValueError for fewer distinct x than parameters, or values that are not positive.
    """
    x, loss = np.asarray(x, float), np.asarray(loss, float)
    if len(np.unique(x)) < FORMS[floor]:
        raise ValueError(f"a power law with floor={floor} needs {FORMS[floor]} distinct x, got {len(np.unique(x))}")
    if not (np.all(x > 0) and np.all(loss > 0) and np.all(np.isfinite(loss))):
        raise ValueError("a power law needs positive, finite x and loss")
    return power_laws([(x, loss)], floor, lowest=0.0)[0]


def local_slopes(
    x: Float[np.ndarray, " points"], loss: Float[np.ndarray, "*curves points"]
) -> tuple[Float[np.ndarray, "points-1"], Float[np.ndarray, "*curves points-1"]]:
    """Geometric midpoints of neighbouring (ascending) x, and -d log loss / d log x between them."""
    log_x = np.log(np.asarray(x, float))
    return np.exp((log_x[1:] + log_x[:-1]) / 2), -np.diff(np.log(loss), axis=-1) / np.diff(log_x)


def power_laws(curves: Sequence[Curve], floor: Floor, lowest: float) -> list[PowerLaw]:
    """Fit many curves, each where its loss is not nan; those over the same x are solved together."""
    laws: dict[int, PowerLaw] = {}
    groups: dict[bytes, list[int]] = {}
    for i, (x, loss) in enumerate(curves):
        groups.setdefault(x[np.isfinite(loss)].tobytes(), []).append(i)
    for indices in groups.values():
        x, loss = curves[indices[0]]
        log_x = np.log(x[np.isfinite(loss)])
        # Sizes relative to the deepest: then c and the floor are near one another, whatever the unit of x.
        log_z = log_x - log_x.max()
        y = np.log([curves[i][1][np.isfinite(curves[i][1])] for i in indices])
        a, b = _slope(log_z, y) if floor == "none" else _slope_and_floor(log_z, y, lowest)
        shape = np.log(np.exp(-a[:, None] * log_z) + b[:, None])
        level = (y - shape).mean(1)
        r2 = 1 - (_centred(y - shape) ** 2).sum(1) / np.maximum((_centred(y) ** 2).sum(1), 1e-300)
        c = np.exp(np.minimum(level + a * log_x.max(), 700))  # x may be counted in 1e15
        fits = np.stack([a, c, b * np.exp(level), r2], axis=1)
        inside = (ALPHAS[0] < a) & (a < ALPHAS[1]) & (b > TOLD) & (b < FLOORS[1])
        known = inside.tolist() if floor == "free" else [True] * len(a)
        laws |= {
            i: PowerLaw(*values, identified=told) for i, values, told in zip(indices, fits.tolist(), known, strict=True)
        }
    return [laws[i] for i in range(len(curves))]


def student_interval(values: Sequence[float], level: float = 0.95) -> tuple[float | None, float | None]:
    """Student's t interval for the mean of independent values; (None, None) for fewer than two."""
    if len(values) < 2:
        return None, None
    width = stdtrit(len(values) - 1, (1 + level) / 2) * np.std(values, ddof=1) / sqrt(len(values))
    return float(np.mean(values) - width), float(np.mean(values) + width)


def welch_interval(low: Sequence[float], high: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Welch's interval for the difference of the means of two samples, of two values or more each: high - low."""
    parts = [np.var(values, ddof=1) / len(values) for values in (low, high)]
    freedom = sum(parts) ** 2 / max(sum(p**2 / (len(v) - 1) for p, v in zip(parts, (low, high), strict=True)), 1e-300)
    width = stdtrit(max(freedom, 1.0), (1 + level) / 2) * sqrt(sum(parts))
    difference = np.mean(high) - np.mean(low)
    return float(difference - width), float(difference + width)


def _slope(
    log_z: Float[np.ndarray, " points"], y: Float[np.ndarray, "curves points"]
) -> tuple[Float[np.ndarray, " curves"], Float[np.ndarray, " curves"]]:
    d = log_z - log_z.mean()
    return -(y @ d) / (d @ d), np.zeros(len(y))


def _slope_and_floor(
    log_z: Float[np.ndarray, " points"], y: Float[np.ndarray, "curves points"], lowest: float
) -> tuple[Float[np.ndarray, " curves"], Float[np.ndarray, " curves"]]:
    """Minimise |y - u - log(z^-a + b)|^2 over a, b and the level u, for all curves at once.

    Centring projects u out. A grid gives the start, Levenberg-Marquardt steps in (a, b) the rest. b is the
    floor in units of the deepest power-law part.
    """
    lowest = max(lowest, FLOORS[0])
    y = _centred(y)
    negative = -np.geomspace(0.1, 0.9, 6) if lowest < 0 else []
    a, b = np.meshgrid(np.linspace(0.05, 10, 60), [*negative, 0, *np.geomspace(0.02, 20, 16)])
    a, b = a.ravel(), b.ravel()

    def shape(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        return _centred(np.log(np.exp(-a[:, None] * log_z) + b[:, None]))

    grid = shape(a, b)
    best = ((grid**2).sum(1) - 2 * y @ grid.T).argmin(1)
    a, b, damping = a[best], b[best], np.full(len(y), 1e-3)
    r = y - shape(a, b)
    for _ in range(40):
        power = np.exp(-a[:, None] * log_z)
        da, db = _centred(-log_z * power / (power + b[:, None])), _centred(1 / (power + b[:, None]))
        aa, bb, ab = (da**2).sum(1) * (1 + damping), (db**2).sum(1) * (1 + damping), (da * db).sum(1)
        ga, gb = (da * r).sum(1), (db * r).sum(1)
        held = (b <= lowest) & (gb < 0)
        determinant = np.maximum(aa * bb - ab**2, 1e-300)
        new_a = np.clip(a + np.where(held, ga / aa, (bb * ga - ab * gb) / determinant), *ALPHAS)
        new_b = np.clip(b + np.where(held, 0, (aa * gb - ab * ga) / determinant), lowest, FLOORS[1])
        new_r = y - shape(new_a, new_b)
        better = (new_r**2).sum(1) <= (r**2).sum(1)
        a, b, r = np.where(better, new_a, a), np.where(better, new_b, b), np.where(better[:, None], new_r, r)
        damping = np.clip(np.where(better, damping / 5, damping * 5), 1e-9, 1e9)
    return a, b


def _centred(y: Float[np.ndarray, "curves points"]) -> Float[np.ndarray, "curves points"]:
    return y - y.mean(-1, keepdims=True)
