"""Exponents of curves: loss as a power of a quantity that grows within a run, step or tau. Imports no JAX.

A curve is no power law from end to end: it starts, bends into its law, and ends in noise or saturation. So it is
fitted in a window only, one that is given or one that is found, and the window is told with the exponent. A window is
found as the longest one in which the slope of log loss is the same in each third; where there is none of a decade or
more, there is no power law and no exponent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
from jaxtyping import Float

from . import exponents
from .exponents import Exponent
from .fit_options import Range
from .regimes import SEEDS, roles

Window = tuple[float, float]

DECADES = 1.0  # the least that a window found must span
EVEN, STEEP = 0.1, 0.05  # how far a third's slope may be from the window's, as a share of it; the least slope
STRAIGHT = 0.9  # the least R2
POINTS = 8  # the least that a window must hold


def points(
    runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame], variable: str, quantity: str = "loss"
) -> pl.DataFrame:
    """A table of evaluations: the rows of runs, each once for every later line of its history.

    Args:
        runs: one row per run, as in `runs.parquet`.
        histories: run ids and their histories.
        variable: the column of a history that is x.
        quantity: the column of a history whose exponent is wanted; it becomes `loss`.
    """
    wanted = ["loss", "loss_sem", "loss_first", "loss_second"]
    found = []
    for run, history in histories.items():
        if quantity in history.columns and not history.is_empty():
            values = [pl.col(quantity).alias("loss"), pl.lit(0.0).alias("loss_sem")]
            halves = [pl.col(n if quantity == "loss" else quantity).alias(n) for n in wanted[2:]]
            x = pl.col(variable).cast(pl.Float64)
            found.append(history.filter(x > 0).select(pl.lit(run).alias("id"), x, *values, *halves))
    rows = runs.drop(variable, *wanted, strict=False).with_columns(half_loss=pl.lit(None, pl.Float64))
    rows = rows.with_columns(converged=pl.lit(None, pl.Boolean))
    if not found:
        nothing = dict.fromkeys((variable, *wanted), pl.Float64)
        return rows.clear().with_columns(pl.lit(None, kind).alias(name) for name, kind in nothing.items())
    return rows.join(pl.concat(found), on="id", how="inner", maintain_order="left")


def fit(
    table: pl.DataFrame,
    variable: str,
    window: Range = (None, None),
    by: Sequence[str] | None = None,
    tuned: Sequence[str] = (),
) -> list[Exponent]:
    """One exponent per regime of a table of evaluations (see `points`), as in `exponents.fit`, each in its window.

    Args:
        table: a row per evaluation.
        variable: what loss is a power of.
        window: its ends; both None: it is found, see `find_window`.
        by: the fields that tell regimes apart.
        tuned: fields whose values were chosen for each x.
    """
    if table.is_empty():
        return []
    regimes = list(roles(table, variable, by, tuned).regime)
    parts = exponents.partition(table, regimes)
    return [e for part in parts for e in _regime(part, variable, window, regimes, tuned)]


def _regime(
    rows: pl.DataFrame, variable: str, window: Range, by: Sequence[str], tuned: Sequence[str]
) -> list[Exponent]:
    """One regime's exponent, in a window of its own."""
    given = window != (None, None)
    ends = window if given else find_window(*_mean_curve(exponents.usable(rows), variable))
    if ends is None:
        return [_nothing(e, rows) for e in exponents.fit(rows, variable, by=by, tuned=tuned)]
    low, high = (-np.inf if ends[0] is None else ends[0]), (np.inf if ends[1] is None else ends[1])
    within = rows.filter(pl.col(variable).is_between(low * (1 - 1e-9), high * (1 + 1e-9)))
    fits = [replace(e, r2=_r2(within, variable)) for e in exponents.fit(within, variable, by=by, tuned=tuned)]
    straight = [given or e.r2 is None or e.r2 >= STRAIGHT for e in fits]
    return [
        _told(e, within, _verdict(e, given)) if so else _nothing(e, rows) for e, so in zip(fits, straight, strict=True)
    ]


def _told(e: Exponent, rows: pl.DataFrame, verdict: str) -> Exponent:
    """The exponent with its own verdict and notes, and runs counted instead of evaluations."""
    done = rows.filter(pl.col("status") == "done")
    left = rows.filter(pl.col("status") != "done").group_by("status").agg(pl.col("id").n_unique())
    left_out = dict(left.iter_rows())
    notes = [note for note in e.verdict.split("; ")[1:] if note.startswith(("not independent", "pooled over"))]
    notes += ["left out: " + ", ".join(f"{n} {status}" for status, n in left_out.items())] if left_out else []
    return replace(
        e,
        n_runs=done["id"].n_unique(),
        ids=tuple(rows["id"].unique(maintain_order=True)),
        left_out=left_out,
        local_slopes=(),
        verdict="; ".join([verdict, *notes]),
    )


def _nothing(e: Exponent, rows: pl.DataFrame) -> Exponent:
    """The regime without an exponent."""
    known = dict.fromkeys(("alpha", "ci_low", "ci_high", "x_min", "x_max", "r2", "c"))
    even = f"in no decade of {e.variable} is the slope even (within {EVEN:.0%}, R2 above {STRAIGHT:g})"
    return _told(replace(e, **known, alphas=()), rows, f"no power law: {even}")  # type: ignore[arg-type]


def _verdict(e: Exponent, given: bool) -> str:
    if e.alpha is None or e.x_min is None or e.x_max is None:
        return "no exponent: too few evaluations in the window"
    interval = "(one replicate: no interval)" if e.ci_low is None else f"[{e.ci_low:.3f}, {e.ci_high:.3f}]"
    window = f"{e.variable} {e.x_min:.3g} to {e.x_max:.3g} ({'asked for' if given else 'found'}"
    return f"a power law: {e.alpha:.3f} {interval} for {window}{'' if e.r2 is None else f', R2 {e.r2:.3f}'})"


def find_window(x: Float[np.ndarray, " points"], loss: Float[np.ndarray, " points"]) -> Window | None:
    """The longest window of a curve in which it is a power law; None if there is none of a decade.

    In each third of it (of log x) the slope of log loss is that of the whole within a share of `EVEN`, and the whole
    explains `STRAIGHT` of the variance of log loss or more. Of windows that are equally long to a tenth of a decade,
    the straightest is taken.

    Args:
        x: ascending, above 0.
        loss: above 0.
    """
    u, v = np.log10(x), np.log10(loss)
    found: list[tuple[float, float, Window]] = []
    for first in range(len(u)):
        for last in range(len(u) - 1, first + POINTS - 2, -1):
            if u[last] - u[first] < DECADES - 1e-9:
                break
            bend = _bend(u[first : last + 1], v[first : last + 1])
            if bend <= EVEN:
                found.append((-round(u[last] - u[first], 1), bend, (float(x[first]), float(x[last]))))
                break
    return min(found)[2] if found else None


def _bend(u: Float[np.ndarray, " points"], v: Float[np.ndarray, " points"]) -> float:
    """How far the slope in any third of a window is from its whole slope, as a share of that."""
    whole = _slope(u, v)
    if abs(whole) < STEEP:
        return np.inf
    third = np.minimum(((u - u[0]) / (u[-1] - u[0]) * 3).astype(int), 2)
    if min(np.bincount(third, minlength=3)) < 2:
        return np.inf
    if np.corrcoef(u, v)[0, 1] ** 2 < STRAIGHT:
        return np.inf
    return max(abs(_slope(u[third == i], v[third == i]) - whole) for i in range(3)) / abs(whole)


def _slope(u: Float[np.ndarray, " points"], v: Float[np.ndarray, " points"]) -> float:
    d = u - u.mean()
    return float(d @ v / (d @ d))


def _r2(rows: pl.DataFrame, variable: str) -> float | None:
    """The share of the variance of log loss that one line for each replicate explains, over all its runs."""
    left, spread = 0.0, 0.0
    for replicate in exponents.partition(exponents.usable(rows), [name for name in SEEDS if name in rows.columns]):
        u, v = (np.log(replicate[name].to_numpy()) for name in (variable, "loss"))
        if len(np.unique(u)) > 1:
            left += float(np.sum((v - v.mean() - _slope(u, v) * (u - u.mean())) ** 2))
            spread += float(np.sum((v - v.mean()) ** 2))
    return 1 - left / spread if spread else None


def _mean_curve(rows: pl.DataFrame, variable: str) -> tuple[np.ndarray, np.ndarray]:
    """x, and the geometric mean of the loss over the runs of a regime, at the x that the most of them have."""
    mean = rows.group_by(variable).agg(pl.col("loss").log().mean().exp(), pl.len()).sort(variable)
    mean = mean.filter(pl.col("len") == pl.col("len").max())
    return mean[variable].to_numpy(), mean["loss"].to_numpy()
