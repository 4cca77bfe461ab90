"""Regimes: which config fields tell apart what gets an exponent of its own. Imports no JAX."""

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

DEPTH = "student.depth"
COUNTS = ("parameters", "flops")  # sizes that follow from the config, besides those that stand in it
CURVES = ("tau", "step")  # what grows within a run: columns of histories
SEEDS = ("seed", "teacher.seed")
ALWAYS_SHOWN = ("teacher.kind", "target.loss")
# Fields that do not change a run's numbers, should a table hold them.
BOOKKEEPING = ("sweep.", "runtime.devices", "runtime.memory_gb", "runtime.compile_cache")
BOOKKEEPING += ("train.eval_every", "train.evals_per_decade", "train.checkpoint_every")


@dataclass(frozen=True)
class Roles:
    """The part that each varying config field plays in a fit: to tell regimes apart, to change along with the
    variable, or neither (then it is averaged over)."""

    regime: tuple[str, ...]
    along: tuple[str, ...]
    pooled: tuple[str, ...]


def roles(runs: pl.DataFrame, variable: str, by: Sequence[str] | None = None, tuned: Sequence[str] = ()) -> Roles:
    """The part that each config field plays: regimes are told apart by `by`, or else by all that neither is nor
    follows the variable, the seeds or what is tuned.

    A field changes along with a config field if, for given fields `by` (or a given teacher kind and loss), each x
    comes with one value of it but not all x with the same (steps chosen per depth, say). With parameters or FLOPs,
    the numbers of the student and of the budget that these depend on change along with them, and so do the fields
    that follow those; other teachers, targets and data remain regimes.
    """
    apart = [name for name in ALWAYS_SHOWN if name in runs.columns and name != variable] if by is None else list(by)
    free = [name for name in varying(runs) if name not in (*apart, *tuned, variable)]
    movers = _movers(runs, variable, apart, free) if variable in COUNTS else [variable]
    along = [n for n in free if n in movers or _most(runs, n, [*apart, *movers]) == 1 < _most(runs, n, apart)]
    along = [] if variable in CURVES else along  # no field changes within a run
    rest = [name for name in free if name not in along]
    regime, pooled = ([*apart, *rest], []) if by is None else (apart, rest)
    return Roles(tuple(regime), tuple(along), tuple(pooled))


def varying(runs: pl.DataFrame) -> list[str]:
    """The config fields, other than seeds, that have more than one value."""
    config = [n for n in runs.columns if ("." in n or n == "problem") and not n.startswith(BOOKKEEPING)]
    return [name for name in config if name not in SEEDS and runs[name].n_unique() > 1]


def with_size(runs: pl.DataFrame, variable: str) -> pl.DataFrame:
    """The runs that have an x; also those not done where x is known only afterwards, for they are counted."""
    known = pl.col(variable).is_not_null()
    return runs.filter(known | (pl.col("status") != "done") if variable in COUNTS else known)


def change(fields: Sequence[str]) -> str:
    """The verb for one field or for several."""
    return "changes" if len(fields) == 1 else "change"


def _movers(runs: pl.DataFrame, count: str, apart: list[str], free: list[str]) -> list[str]:
    """The numbers of the student and of the budget that a count depends on: it changes with them, other fields
    being equal, or they with it, each x having one value of them."""
    runs = runs.filter(pl.col(count).is_not_null())
    sizes = [n for n in free if n.startswith(("student.", "train.")) and runs[n].dtype.is_numeric()]
    others = [*apart, *(n for n in free if n not in sizes)]

    def moves(name: str) -> bool:
        alone = _most(runs, count, [*others, *(n for n in sizes if n != name)]) > 1
        return alone or _most(runs, name, [*others, count]) == 1 < _most(runs, name, others)

    return [name for name in sizes if moves(name)]


def _most(runs: pl.DataFrame, name: str, by: Sequence[str]) -> int:
    """The largest number of values that a column has among runs that share those of others."""
    counts = runs.group_by(pl.lit(0).alias(""), *by).agg(pl.col(name).n_unique())[name]
    return int(counts.to_numpy().max(initial=0))
