"""What depends on depth across a sweep: steps, neighbouring updates, errors, each over replicates. Imports no JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan
from typing import Any

import numpy as np
import polars as pl

from .. import exponents
from ..exponents import Exponent
from ..powerlaw import student_interval, welch_interval
from ..regimes import DEPTH, roles
from .probe import Probed

STEP, UPDATE, SPLIT_PAIR, BETWEEN, COMMON = "step", "update", "split pair", "between pairs", "common error"
QUANTITIES = (STEP, UPDATE, SPLIT_PAIR, BETWEEN, COMMON)


@dataclass(frozen=True)
class AtDepth:
    """A quantity of the students of a regime at one depth: its mean over replicates and Student's 95 % interval.

    Quantities are `step` (the mean step angle of the middle layers, rad), `update` (the mean angle between neighbouring
    updates, of all layers, since with few of them the middle ones have hardly a pair), for grown students that within
    `split pair` and `between pairs`, and `common error`, C over A / l. The interval's ends are None for one replicate.
    """

    regime: Mapping[str, Any]
    depth: int
    quantity: str
    mean: float
    low: float | None
    high: float | None
    values: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """How much larger a quantity is in one regime than in another at the same depth, with Welch's 95 % interval."""

    quantity: str
    depth: int
    larger: Mapping[str, Any]
    smaller: Mapping[str, Any]
    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Across:
    """What depends on depth in a sweep.

    Attributes:
        steps: for each regime the law step ~ depth^-p, one p per replicate; None where none is known.
        at_depths: the quantities at each depth of each regime.
        differences: of neighbouring updates between regimes, at depths with two replicates or more.
    """

    steps: list[Exponent]
    at_depths: list[AtDepth]
    differences: list[Difference]

    def regimes(self) -> list[dict[str, Any]]:
        """The regimes, in order."""
        found: list[dict[str, Any]] = []
        for one in self.at_depths:
            if one.regime not in found:
                found.append(dict(one.regime))
        return found

    def line(self, regime: Mapping[str, Any], quantity: str) -> list[AtDepth]:
        """A regime's values of a quantity, by depth."""
        return [one for one in self.at_depths if one.regime == regime and one.quantity == quantity]


def across_depths(found: Sequence[Probed], runs: pl.DataFrame) -> Across:
    """What depends on depth among the students of a sweep.

    Args:
        found: what was seen; only students count.
        runs: the sweep's table of runs (`store.collect`), which says by what fields regimes differ.
    """
    students = {one.id: one for one in found if one.kind == "student"}
    rows = runs.filter(pl.col("id").is_in(list(students)))
    if rows.is_empty():
        return Across([], [], [])
    names = list(roles(rows, DEPTH).regime)
    at_depths = [one for part in exponents.partition(rows, names) for one in _of_regime(part, names, students)]
    return Across(_steps(rows, students), at_depths, _differences(at_depths))


def _steps(rows: pl.DataFrame, students: Mapping[str, Probed]) -> list[Exponent]:
    """The exponents of the middle step angle, fitted as those of loss are."""
    steps = [students[name].number("step_middle") for name in rows["id"]]
    unknown = pl.lit(None, pl.Float64)
    table = rows.with_columns(loss=pl.Series(steps, dtype=pl.Float64), half_loss=unknown, loss_sem=unknown)
    fits = exponents.fit(table.with_columns(converged=pl.lit(None, pl.Boolean)), DEPTH)
    return [replace(one, quantity="step angle") for one in fits]


def _of_regime(part: pl.DataFrame, names: Sequence[str], students: Mapping[str, Probed]) -> list[AtDepth]:
    first = part.row(0, named=True)
    regime, made = {name: first[name] for name in names}, []
    for depth in sorted(part[DEPTH].unique().to_list()):
        members = [students[name] for name in part.filter(pl.col(DEPTH) == depth)["id"]]
        for quantity in QUANTITIES:
            values = tuple(value for one in members if isfinite(value := _value(one, quantity)))
            if values:
                low, high = student_interval(values)
                made.append(AtDepth(regime, int(depth), quantity, float(np.mean(values)), low, high, values))
    return made


def _value(one: Probed, quantity: str) -> float:
    if quantity == STEP:
        return one.number("step_middle")
    if quantity == UPDATE:
        angles = one.mean("update")
        return float(np.mean(angles)) if len(angles) else nan
    if quantity == COMMON:
        split = one.errors.get("behind")
        return nan if split is None else split.common
    return nan if one.zigzag is None else one.zigzag[quantity == BETWEEN]


def _differences(at_depths: Sequence[AtDepth]) -> list[Difference]:
    """Between neighbouring updates of each two regimes at equal depth."""
    made = []
    known = [one for one in at_depths if one.quantity == UPDATE and len(one.values) > 1]
    for i, a in enumerate(known):
        for b in known[i + 1 :]:
            if a.depth == b.depth and a.regime != b.regime:
                small, large = sorted((a, b), key=lambda one: one.mean)
                low, high = welch_interval(small.values, large.values)
                made.append(Difference(UPDATE, a.depth, large.regime, small.regime, large.mean - small.mean, low, high))
    return made
