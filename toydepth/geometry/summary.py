"""Means, spreads and quantiles of numbers that stream by, in memory that does not grow with them. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import asinh, sinh

import numpy as np
from jaxtyping import Bool, Float

from .nulls import Null

# Bins are equally wide in asinh(x / UNIT): about 1 % of a number, and a hundredth of UNIT near zero, of either sign.
UNIT, LARGEST, BINS = 1e-3, 1e6, 4096
TOP = asinh(LARGEST / UNIT)
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
GROUPS = ("later", "first")  # the first tokens of documents apart; inputs of toys are all `later`
NORMAL = 1.959964  # standard errors to either side that hold 95 %

Values = Float[np.ndarray, "positions tokens"]


@dataclass(frozen=True)
class Profile:
    """What is known of a measure over tokens, for each position.

    `quantiles` are those at `LEVELS`, [5, positions], exact to 1 %; `n` counts the tokens whose number is finite.
    """

    mean: Float[np.ndarray, " positions"]
    sd: Float[np.ndarray, " positions"]
    quantiles: Float[np.ndarray, "levels positions"]
    n: Float[np.ndarray, " positions"]

    @property
    def sem(self) -> Float[np.ndarray, " positions"]:
        """The standard error of the mean, tokens counted as independent."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.sd / np.sqrt(self.n)


class Moments:
    """Counts, means and squared deviations, one for each position; merged as in Chan et al. 1979."""

    def __init__(self, positions: int):
        self.n, self.mean, self._m2 = np.zeros(positions), np.zeros(positions), np.zeros(positions)

    def add(self, values: Values) -> None:
        """Counts values; those that are not finite are passed over."""
        known = np.isfinite(values)
        n = known.sum(1)
        mean = np.where(known, values, 0.0).sum(1) / np.maximum(n, 1)
        self._join(n, mean, np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(1))

    def _join(self, n: np.ndarray, mean: np.ndarray, m2: np.ndarray) -> None:
        total = np.maximum(self.n + n, 1)
        apart = mean - self.mean
        self.mean = self.mean + apart * n / total
        self._m2 = self._m2 + m2 + apart**2 * self.n * n / total
        self.n = self.n + n

    @property
    def sd(self) -> Float[np.ndarray, " positions"]:
        """The standard deviation; nan for fewer than two values."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.sqrt(np.where(self.n > 1, self._m2 / (self.n - 1), np.nan))

    def null(self) -> list[Null]:
        """For each position, where the mean of as many draws lies: 95 %, draws counted as independent."""
        with np.errstate(invalid="ignore", divide="ignore"):
            half = NORMAL * self.sd / np.sqrt(self.n)
        mean = np.where(self.n > 0, self.mean, np.nan)
        return [Null(float(m), float(m - h), float(m + h)) for m, h in zip(mean, half, strict=True)]


class Spread(Moments):
    """Moments, and a histogram of fixed bins for quantiles."""

    def __init__(self, positions: int):
        super().__init__(positions)
        self._bins = np.zeros((positions, BINS), np.int64)
        self._low, self._high = np.full(positions, np.inf), np.full(positions, -np.inf)

    def add(self, values: Values) -> None:
        values = np.asarray(values, np.float64)
        super().add(values)
        known = np.isfinite(values)
        self._low = np.minimum(self._low, np.where(known, values, np.inf).min(1, initial=np.inf))
        self._high = np.maximum(self._high, np.where(known, values, -np.inf).max(1, initial=-np.inf))
        position, token = np.nonzero(known)
        which = position * BINS + _place(values[position, token]).astype(np.int64).clip(0, BINS - 1)
        self._bins += np.bincount(which, minlength=self._bins.size).reshape(self._bins.shape)

    def merge(self, other: Spread) -> None:
        """Counts what another one has counted."""
        self._join(other.n, other.mean, other._m2)
        self._bins += other._bins
        self._low, self._high = np.minimum(self._low, other._low), np.maximum(self._high, other._high)

    def quantile(self, level: float) -> Float[np.ndarray, " positions"]:
        """The value below which a share of the counted ones lies, exact to a bin; nan where there is none."""
        below = np.cumsum(self._bins, axis=1)
        found = np.full(len(below), np.nan)
        for position in np.flatnonzero(self.n):
            wanted = level * below[position, -1]
            at = int(np.searchsorted(below[position], wanted))
            before = below[position, at - 1] if at else 0
            share = (wanted - before) / max(1, below[position, at] - before)
            found[position] = UNIT * sinh((at + share) / BINS * 2 * TOP - TOP)
        return np.clip(found, self._low, self._high)

    def share_below(self, value: float) -> Float[np.ndarray, " positions"]:
        """The share of values below one, exact to a bin; nan where there is none."""
        place = float(np.clip(_place(np.array(value)), 0, BINS))
        whole = int(place)
        inside = self._bins[:, whole] * (place - whole) if whole < BINS else 0.0
        with np.errstate(invalid="ignore", divide="ignore"):
            return (self._bins[:, :whole].sum(1) + inside) / self.n

    def profile(self) -> Profile:
        """What is known of the values."""
        mean = np.where(self.n > 0, self.mean, np.nan)
        return Profile(mean, self.sd, np.stack([self.quantile(level) for level in LEVELS]), self.n.copy())


class Summary:
    """The spreads of measures over all tokens, first tokens of documents apart."""

    def __init__(self) -> None:
        self._spreads: dict[tuple[str, str, str], Spread] = {}

    def add(self, measures: Mapping[str, Values], first: Bool[np.ndarray, " tokens"], convention: str) -> None:
        """Counts the measures of a batch of tokens, in a convention for the last state."""
        for group, members in zip(GROUPS, (~first, first), strict=True):
            if not members.any():
                continue
            for name, values in measures.items():
                key = name, convention, group
                if key not in self._spreads:
                    self._spreads[key] = Spread(len(values))
                self._spreads[key].add(values[:, members])

    def profiles(self) -> dict[tuple[str, str, str], Profile]:
        """{(measure, convention, group): what is known of it}."""
        return {key: spread.profile() for key, spread in self._spreads.items()}


def _place(values: np.ndarray) -> np.ndarray:
    """Where values lie among the bins, as a fraction."""
    return (np.arcsinh(values / UNIT) + TOP) / (2 * TOP) * BINS
