"""Power-law exponents of loss against a swept size, with intervals and a word on convergence.

Works on the table of runs alone (one row per run, as in `runs.parquet`) and imports no JAX.

How the error bar is made: a replicate (an independent teacher) gives one alpha; a regime's alpha is their mean
and its 95 % interval is Student's t over them. A replicate's free floor may come out negative here. Held at
zero, estimates that belong below it pile up there and pull alpha up: at a = 1 by 0.03 with a true floor of a
fifth of the deepest loss, by 0.05 without one (10 replicates then cover the truth in only 63 % of draws).

Share of 4,000 draws whose interval covers the planted a (depths 2 3 4 6 8 12, 5 % noise per run; the floor is a
fifth of the deepest loss, fitted with floor="free"); `tests/test_exponents.py` repeats it with 400:

    replicates         2      3      5     10
    a = 1, no floor  0.952  0.947  0.948  0.947
    a = 1, floor     0.948  0.951  0.957  0.949
    a = 3, no floor  0.951  0.955  0.950  0.955
    a = 3, floor     0.950  0.952  0.951  0.952
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from math import ceil
from typing import Any

import numpy as np
import polars as pl
from jaxtyping import Float

from .powerlaw import FORMS, Floor, PowerLaw, local_slopes, power_laws, student_interval
from .regimes import DEPTH, SEEDS, Roles, change, roles, with_size

CONVERGED_ABOVE = -0.1
CLIMBING_ABOVE = 0.05  # what alpha must gain from the second half of the budget to be called climbing


@dataclass(frozen=True)
class LocalSlope:
    """-d log loss / d log x between two neighbouring x: mean and standard deviation over replicates."""

    x: float
    mean: float
    spread: float | None


@dataclass(frozen=True)
class Exponent:
    """What is known of one regime's exponent; the fields up to `quantity` are the columns of exponents.csv.

    None stands for what cannot be known: an interval from one replicate, convergence without half-budget
    twins, a floor in a form that has none. `alpha`, `floor` (signed) and `c` (geometric) are means over
    replicates; `alpha_slope` = alpha(N) - alpha(N/2), over the runs that have a twin; `converged` is a share of runs.
    `along` names the fields that change with the variable, `pooled` those that vary within the regime besides;
    `best` holds the choices of `toydepth.best`; `ids`, where a regime's fields alone do not tell them, its runs.
    """

    regime: dict[str, Any]
    variable: str
    alpha: float | None
    ci_low: float | None
    ci_high: float | None
    floor: float | None
    n_runs: int
    n_replicates: int
    x_min: float | None
    x_max: float | None
    r2: float | None
    converged: float | None
    alpha_slope: float | None
    verdict: str
    quantity: str = "loss"
    c: float | None = None
    alphas: tuple[float, ...] = ()
    floors: tuple[float, ...] = ()
    seeds: tuple[tuple[int, ...], ...] = ()
    alpha_half: float | None = None
    alpha_slope_ci: tuple[float | None, float | None] = (None, None)
    local_slopes: tuple[LocalSlope, ...] = ()
    left_out: dict[str, int] = field(default_factory=dict)
    along: tuple[str, ...] = ()
    pooled: tuple[str, ...] = ()
    best: tuple[dict[str, Any], ...] = ()
    ids: tuple[str, ...] = ()

    @property
    def law(self) -> PowerLaw | None:
        """The regime's fitted line, None where there is no exponent."""
        if self.alpha is None or self.c is None:
            return None
        return PowerLaw(self.alpha, self.c, self.floor or 0.0, self.r2 or 0.0)


_names = [f.name for f in fields(Exponent)]
COLUMNS = tuple(_names[1 : _names.index("quantity") + 1])


def budget_slope(loss: float, half_loss: float) -> float:
    """log2(loss(N) / loss(N/2)), each with its own complete decay; a run has converged above CONVERGED_ABOVE."""
    return float(np.log2(loss / half_loss))


def fit(
    runs: pl.DataFrame,
    variable: str = DEPTH,
    floor: Floor = "none",
    by: Sequence[str] | None = None,
    tuned: Sequence[str] = (),
) -> list[Exponent]:
    """One exponent per regime of a table of runs.

    A replicate is a distinct pair of seeds. It gives an alpha if it holds as many distinct x as the form has
    parameters, and at least half as many as the fullest: with fewer, a replicate of an unfinished sweep would stand
    for another range of x. Runs of a replicate that share their x count as one, with their geometric mean. Runs that
    are not done are left out and counted. The verdict speaks of convergence because an exponent alone does not tell
    teachers apart: a smooth one's also starts near 1 (Liu et al. 2026, arXiv 2602.05970, Fig. 4).

    With `variable="flops"` a twin's x is half its run's: that changes c and no exponent.

    Args:
        runs: one row per run, as in `runs.parquet`.
        variable: the column that loss is a power of.
        floor: "none", or "free" for loss = c * x^-alpha + floor.
        by: the fields that tell regimes apart; see `roles` for what does unless given.
        tuned: fields whose values were chosen for each x (see `toydepth.best`); they tell no regimes apart.

    Raises:
        ValueError: `variable` is not a numeric column of positive values, or there is no such floor.
    """
    if floor not in FORMS:
        raise ValueError(f"floor={floor}: allowed are {', '.join(FORMS)}")
    if runs.is_empty():
        return []
    if variable not in runs.columns or not runs[variable].dtype.is_numeric():
        raise ValueError(f"{variable}: not a numeric field of these runs")
    runs = with_size(runs, variable)
    if runs.filter(pl.col(variable) <= 0).height:
        raise ValueError(f"{variable}: a power law needs values above 0")
    part = roles(runs, variable, by, tuned)
    tables = [_Table.of(rows, part, variable, floor) for rows in partition(_with_usable(runs), part.regime)]
    # All replicates of all regimes are fitted in one batch: hundreds of regimes cost little more than one.
    lowest = -1.0 if floor == "free" else 0.0
    laws = iter(power_laws([(t.x, row) for t in tables for row in t.loss], floor, lowest))
    twins = iter(power_laws([(t.x, row) for t in tables for row in t.twins], floor, lowest))
    return [_exponent(t, [next(laws) for _ in t.loss], [next(twins) for _ in t.twins], floor) for t in tables]


def members(runs: pl.DataFrame, exponent: Exponent) -> pl.DataFrame:
    """The rows of the table that belong to an exponent's regime, whatever their status."""
    return runs.filter(pl.col("id").is_in(exponent.ids)) if exponent.ids else of_regime(runs, exponent)


def of_regime(table: pl.DataFrame, exponent: Exponent) -> pl.DataFrame:
    """The rows of any table with the fields of an exponent's regime that belong to it."""
    same = (pl.col(name).eq_missing(pl.lit(value)) for name, value in exponent.regime.items())
    return table.filter(pl.lit(True), *same)


def usable(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs that a fit can use: done, with a finite loss above 0."""
    return runs.filter(_with_usable(runs)["usable"])


def fitted(runs: pl.DataFrame, exponent: Exponent) -> pl.DataFrame:
    """The runs that an exponent rests on, those of its replicates; -1 stands for a seed that they do not have."""
    rows = usable(members(runs, exponent)).with_columns(_seeds(runs))
    seeds = pl.DataFrame(exponent.seeds, schema=dict.fromkeys(SEEDS, pl.Int64), orient="row")
    return rows.join(seeds, on=SEEDS, how="semi", maintain_order="left")


def points_needed(fullest: int, floor: Floor) -> int:
    """How many distinct x give a replicate an alpha, of its losses or of its twins', where the fullest has so many."""
    return max(FORMS[floor], ceil(fullest / 2))


def to_frame(exponents: Iterable[Exponent]) -> pl.DataFrame:
    """The table exponents.csv: the regime's fields under their dotted names, then `COLUMNS`."""
    rows = [{**e.regime, **{name: getattr(e, name) for name in COLUMNS}} for e in exponents]
    numbers: dict[str, Any] = {n: pl.Float64 for n in COLUMNS if n not in ("variable", "verdict", "quantity")}
    numbers |= {"n_runs": pl.Int64, "n_replicates": pl.Int64}
    if not rows:
        return pl.DataFrame(schema={n: numbers.get(n, pl.String) for n in COLUMNS})
    return pl.DataFrame(rows, schema_overrides=numbers, infer_schema_length=None)


def to_dicts(exponents: Iterable[Exponent]) -> list[dict[str, Any]]:
    """Everything known of each exponent as plain values, for exponents.json."""
    return [asdict(e) for e in exponents]


@dataclass(frozen=True)
class _Table:
    """One regime's runs as a table of replicates by x, nan where there is no run.

    `loss` has the replicates that can give an alpha. `twins` has two rows for each with enough twins: the loss
    of the runs that have one, then the loss of their twins.
    """

    regime: dict[str, Any]
    variable: str
    x: Float[np.ndarray, " points"]
    loss: Float[np.ndarray, "replicates points"]
    twins: Float[np.ndarray, "2*twinned points"]
    seeds: list[tuple[int, ...]]
    n_runs: int
    converged: list[float]
    left_out: dict[str, int]
    needed: int
    fullest: int
    along: tuple[str, ...]
    pooled: tuple[str, ...]

    @classmethod
    def of(cls, rows: pl.DataFrame, part: Roles, variable: str, floor: Floor) -> "_Table":
        ok, status = rows["usable"].to_numpy(), np.array(rows["status"].to_list())
        x, column = np.unique(rows[variable].to_numpy().astype(float)[ok], return_inverse=True)
        pairs = np.stack([rows[name].to_numpy() for name in SEEDS], axis=1)[ok]
        seeds, row = np.unique(pairs, axis=0, return_inverse=True)
        row, shape = row.ravel(), (len(seeds), len(x))
        count = np.zeros(shape)
        np.add.at(count, (row, column), 1)

        def table(name: str) -> Float[np.ndarray, "replicates points"]:
            value, total = rows[name].to_numpy()[ok], np.zeros(shape)
            np.add.at(total, (row, column), np.log(np.where(value > 0, value, np.nan)))
            # Runs that differ in nothing that matters share a cell: their geometric mean.
            return np.exp(np.where(count > 0, total, np.nan) / np.maximum(count, 1))

        loss, half = table("loss"), table("half_loss")
        fullest = int((count > 0).sum(1).max(initial=0))
        needed = points_needed(fullest, floor)
        kept = (count > 0).sum(1) >= needed
        twinned = kept & (np.isfinite(half).sum(1) >= needed)
        twins = np.stack([np.where(np.isfinite(half), loss, np.nan), half], axis=1)[twinned]
        filled = (count[kept] > 0).any(0)
        converged = rows["converged"].to_numpy()[ok][kept[row]]
        left_out = dict(Counter(status[status != "done"].tolist()).most_common())
        left_out["done without a usable loss"] = int((~ok & (status == "done")).sum())
        left_out["in replicates with too few points"] = int(count[~kept].sum())
        first = rows.row(0, named=True)
        return cls(
            regime={name: first[name] for name in part.regime},
            variable=variable,
            x=x[filled],
            loss=loss[kept][:, filled],
            twins=twins.reshape(2 * len(twins), len(x))[:, filled],
            seeds=[tuple(pair) for pair in seeds[kept].tolist()],
            n_runs=int(count[kept].sum()),
            converged=converged[np.isfinite(converged)].tolist(),
            left_out={reason: n for reason, n in left_out.items() if n},
            needed=needed,
            fullest=fullest,
            along=part.along,
            pooled=tuple(n for n in part.pooled if rows.filter("usable")[n].n_unique() > 1),
        )


def _exponent(t: _Table, laws: list[PowerLaw], twins: list[PowerLaw], floor: Floor) -> Exponent:
    """Put the fits of a regime's replicates together; `twins` holds those at N and at N/2 in turns.

    One replicate whose floor is not identified leaves its regime without an exponent: without it, the others' mean
    would be one of those that happened to bend.
    """
    vague = sum(not law.identified for law in laws)
    fits, twins = [] if vague else laws, twins if all(law.identified for law in twins) else []
    alphas, floors = [law.alpha for law in fits], [law.floor for law in fits]
    slopes = [full.alpha - half.alpha for full, half in zip(twins[::2], twins[1::2], strict=True)]
    ci_low, ci_high = student_interval(alphas)
    log_loss = np.log(t.loss)
    spread = np.nansum((log_loss - np.nanmean(log_loss, axis=1, keepdims=True)) ** 2, axis=1)
    residual = float(spread @ np.array([1 - law.r2 for law in laws]))
    middles, local = local_slopes(t.x, t.loss)
    measured = [(x, v[np.isfinite(v)]) for x, v in zip(middles, local.T, strict=True) if np.isfinite(v).any()]
    e = Exponent(
        regime=t.regime,
        variable=t.variable,
        alpha=_mean(alphas),
        ci_low=ci_low,
        ci_high=ci_high,
        floor=_mean(floors) if floor == "free" else None,
        n_runs=t.n_runs,
        n_replicates=len(laws),
        x_min=float(t.x[0]) if laws else None,
        x_max=float(t.x[-1]) if laws else None,
        r2=float(1 - residual / spread.sum()) if fits and spread.sum() else None,
        converged=_mean(t.converged),
        alpha_slope=_mean(slopes),
        verdict="",
        c=float(np.exp(np.mean([np.log(law.c) for law in fits]))) if fits else None,
        alphas=tuple(alphas),
        floors=tuple(floors) if floor == "free" else (),
        seeds=tuple(t.seeds),
        alpha_half=_mean([half.alpha for half in twins[1::2]]),
        alpha_slope_ci=student_interval(slopes),
        local_slopes=tuple(LocalSlope(float(x), float(np.mean(v)), _spread(v)) for x, v in measured),
        left_out=t.left_out,
        along=t.along,
        pooled=t.pooled,
    )
    return replace(e, verdict="; ".join([_verdict(e, t, vague), *_notes(e, t)]))


def _verdict(e: Exponent, t: _Table, vague: int) -> str:
    """The regime's exponent and its convergence in a sentence; in `vague` replicates the floor is not identified."""
    if vague:
        which = f"{vague} of {e.n_replicates} replicates: losses that do not level off, or too few of them"
        return f"no exponent: floor not identified ({which})"
    if e.alpha is None:
        needed = f"a replicate needs {t.needed} values of {t.variable}, the fullest has {t.fullest}"
        return f"no exponent: {needed if t.fullest else 'no run is done'}"
    interval = "(one replicate: no interval)" if e.ci_low is None else f"[{e.ci_low:.2f}, {e.ci_high:.2f}]"
    value, known = f"{e.alpha:.2f} {interval}", len(t.converged)
    if e.converged is None:
        return f"convergence unknown (no half-budget twins): {value}"
    if e.converged == 1:
        return f"converged: {value}" if known == e.n_runs else f"converged where known ({known} of {e.n_runs}): {value}"
    value += "" if e.alpha_half is None else f", {e.alpha_half:.2f} at half the budget"
    # A bound is claimed only where the replicates agree, beyond their scatter, on which way alpha moves.
    (low, high), slope = e.alpha_slope_ci, e.alpha_slope or 0.0
    if low is not None and e.ci_low is not None and low > 0 and slope > CLIMBING_ABOVE:
        return f"still climbing: {f'at least {e.ci_low:.2f}, now ' if e.ci_low > 0 else ''}{value}"
    if high is not None and high < 0 and slope < -CLIMBING_ABOVE:
        return f"still falling: at most {e.ci_high:.2f}, now {value}"
    word = "mostly" if e.converged > 0.5 else "not"
    return f"{word} converged ({round(e.converged * known)} of {known} runs): {value}"


def _notes(e: Exponent, t: _Table) -> list[str]:
    """What a reader of the verdict must know besides."""
    teachers = len({run if teacher < 0 else teacher for run, teacher in e.seeds})
    lowest = student_interval(e.floors)[0]
    uneven = len(e.seeds) > 1 and not np.isfinite(t.loss).all()
    notes = {
        f"a poor fit (R2 {e.r2 or 0:.2f})": e.r2 is not None and e.r2 < 0.9,
        "floor not told from 0": bool(e.floors) and (lowest or min(e.floors)) <= 0,
        f"not independent: {len(e.seeds)} replicates share {teachers} teacher seed(s)": teachers < len(e.seeds),
        f"{', '.join(e.along)} {change(e.along)} with {e.variable}": bool(e.along),
        f"pooled over {', '.join(e.pooled)}": bool(e.pooled),
        "left out: " + ", ".join(f"{n} {reason}" for reason, n in e.left_out.items()): bool(e.left_out),
        f"replicates differ in their values of {e.variable}": uneven,
    }
    return [note for note, holds in notes.items() if holds]


def _with_usable(runs: pl.DataFrame) -> pl.DataFrame:
    """The table with nan for missing numbers, -1 for a missing seed, and a column `usable`."""
    numbers = pl.col("loss", "half_loss", "converged").cast(pl.Float64).fill_null(float("nan"))
    ok = (pl.col("status") == "done") & pl.col("loss").is_finite() & (pl.col("loss") > 0)
    return runs.with_columns(*_seeds(runs), numbers).with_columns(ok.alias("usable"))


def _seeds(runs: pl.DataFrame) -> list[pl.Expr]:
    """The seeds, -1 where there is none."""
    found = [pl.col(name).fill_null(-1) if name in runs.columns else pl.lit(-1).alias(name) for name in SEEDS]
    return [seed.cast(pl.Int64) for seed in found]


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def _spread(values: Float[np.ndarray, " replicates"]) -> float | None:
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def partition(rows: pl.DataFrame, by: Sequence[str]) -> list[pl.DataFrame]:
    """The rows of each combination of the values of columns, in their order."""
    return (
        rows.sort(list(by), nulls_last=True, maintain_order=True).partition_by(list(by), maintain_order=True)
        if by
        else [rows]
    )
