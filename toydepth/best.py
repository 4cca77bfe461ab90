"""Tuned fits: of the runs that differ only in some fields (learning rates, say), the best at each x. Imports no JAX.

One choice is made per regime and x, for all replicates together, by the geometric mean over replicates of the loss
on the first half of the evaluation set; the loss on its second half is what is then fitted.

* The halves: the lowest of several losses is low partly because its evaluation inputs were kind. The second half has
  other inputs, so that this luck stays behind.
* One choice for all replicates: the luck of a training (its initial weights, its batches) is in both halves. Chosen
  per replicate, the best of K equally good values with training noise s looks better by s times the mean of the
  largest of K normal draws (1.16 s for K = 5), and more replicates do not help: they make the interval narrow around
  a wrong value. Chosen for R replicates together it is a sqrt(R)-th of that, and with the same K and s at every x it
  changes c and not alpha. It is also how a rate is tuned in practice.
* Only values that the most replicates have are candidates: one that diverged in a replicate is not the best where
  another did not. They are compared over the replicates that all of them have, or a mean would compare teachers
  instead of values; each over its own only where they share none.

The half-budget comparison is between a chosen run and its own twin, which took no part in the choice (and whose loss
is over the whole evaluation set).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from .exponents import Exponent, of_regime, usable
from .regimes import SEEDS, roles, varying, with_size

FEW = 8  # sizes named one by one
HALVES = ("loss_first", "loss_second")


@dataclass(frozen=True)
class Best:
    """What was chosen: `runs`, the table with the chosen runs alone, their loss that on the second half.

    `choices` has a row per regime and x: those, the chosen values, `tried` (how many there were to choose from),
    `unfit` (how many more could not be chosen: not done, or in fewer replicates), and `at_edge`, the fields chosen at
    the end of their grid. `along` are fields that have the values of others by default (`optimizer.adam_lr` those of
    `optimizer.lr`) and so are chosen with them.
    """

    variable: str
    over: tuple[str, ...]
    along: tuple[str, ...]
    runs: pl.DataFrame
    choices: pl.DataFrame

    @property
    def fields(self) -> tuple[str, ...]:
        return self.over + self.along

    def describe(self, e: Exponent) -> Exponent:
        """The exponent with its regime's choices, and a word on them in its verdict."""
        told = [self.variable, *e.pooled, *self.over]
        choices = of_regime(self.choices, e).sort(told).select(*told, "tried", "unfit", "at_edge").to_dicts()
        with_it = f" (and with it {', '.join(self.along)})" if self.along else ""
        tried, unfit = (sum(choice[name] for choice in choices) for name in ("tried", "unfit"))
        left = f" ({unfit} of {tried + unfit} could not be chosen: not done in as many replicates)" if unfit else ""
        notes = [f"best found over {', '.join(self.over)}{with_it}{left}", *self._edges(choices)]
        return replace(e, best=tuple(choices), verdict="; ".join([e.verdict, *notes]))

    def _edges(self, choices: Sequence[dict[str, Any]]) -> list[str]:
        size = self.variable.rpartition(".")[2]
        notes = []
        for name in self.over:
            where: dict[float, list[float]] = {}
            for choice in choices:
                if name in choice["at_edge"] and choice[self.variable] not in where.setdefault(choice[name], []):
                    where[choice[name]].append(choice[self.variable])
            ends = [f"({value:g}) at {size} {_some(xs)}" for value, xs in sorted(where.items())]
            if ends:
                notes.append(f"best {name} at the edge of its grid {' and '.join(ends)}")
        return notes


def _some(xs: Sequence[float]) -> str:
    """A few sizes one by one, many by their ends."""
    if len(xs) > FEW:
        return f"{min(xs):g} to {max(xs):g} ({len(xs)} values)"
    return ", ".join(f"{x:g}" for x in xs)


def choose(runs: pl.DataFrame, variable: str, over: Sequence[str], by: Sequence[str] | None = None) -> Best:
    """Chooses, at each x, the best values of the fields `over` among runs that differ in nothing else but seeds.

    Args:
        runs: one row per run, as in `runs.parquet`.
        variable: the column that loss is a power of.
        over: config fields.
        by: the fields that tell regimes apart, as in `exponents.fit`.

    Raises:
        ValueError: runs have no halves recorded, or no two runs of one x differ in these fields alone.
    """
    runs = with_size(runs, variable)
    done = usable(runs)
    _check_halves(done)
    along = [n for n in varying(runs) if n not in (*over, *(by or ()), variable) and _follows(runs, n, over)]
    fields = [*over, *along]
    part = roles(runs, variable, by, fields)
    alike = [n for n in dict.fromkeys([*part.regime, *varying(runs), variable]) if n not in fields]
    values = runs.group_by(alike).agg(pl.struct(over).n_unique().alias("values"))
    if values["values"].max() == 1:
        raise ValueError(f"nothing to choose: no two runs of one {variable} differ in that alone")
    order = _scores(done, over, alike).sort("mean", *over, nulls_last=True)
    choices = order.group_by(alike, maintain_order=True).first().join(values, on=alike, nulls_equal=True)
    choices = choices.with_columns(unfit=(pl.col("values") - pl.col("tried")).cast(pl.Int64)).drop("values")
    choices = _with_edges(choices, runs, over, alike)
    chosen = runs.join(choices, on=[*alike, *over], how="semi", nulls_equal=True, maintain_order="left")
    # Where nothing could be chosen, all runs stay, so that they are counted as left out.
    rest = runs.join(choices, on=alike, how="anti", nulls_equal=True, maintain_order="left")
    chosen = chosen.with_columns(loss="loss_second", loss_sem=pl.col("loss_sem") * 2**0.5)  # over half as many inputs
    return Best(variable, tuple(over), tuple(along), pl.concat([chosen, rest]), choices)


def _scores(done: pl.DataFrame, over: Sequence[str], alike: Sequence[str]) -> pl.DataFrame:
    """A row per candidate: the mean log of its first halves, over the replicates that all candidates have."""
    seeds = pl.struct(name for name in SEEDS if name in done.columns)
    runs = done.filter(pl.col("loss_first") > 0).with_columns(value=pl.struct(over), replicate=seeds)
    runs = runs.with_columns(replicates=pl.col("replicate").n_unique().over(*alike, "value"))
    runs = runs.filter(pl.col("replicates") == pl.col("replicates").max().over(alike))
    runs = runs.with_columns(tried=pl.col("value").n_unique().over(alike))
    runs = runs.with_columns(shared=pl.col("value").n_unique().over(*alike, "replicate") == pl.col("tried"))
    runs = runs.filter(pl.col("shared") | ~pl.col("shared").any().over(alike))
    return runs.group_by(*alike, *over, "tried").agg(pl.col("loss_first").log().mean().alias("mean"))


def _check_halves(done: pl.DataFrame) -> None:
    missing = done.height
    if set(HALVES) <= set(done.columns):
        missing = done.filter(pl.any_horizontal(pl.col(HALVES).is_null())).height
    if missing:
        halves = "their loss on each half of the evaluation set (loss_first, loss_second); train them again"
        raise ValueError(f"{missing} of {done.height} runs did not record {halves}")


def _with_edges(choices: pl.DataFrame, runs: pl.DataFrame, over: Sequence[str], alike: Sequence[str]) -> pl.DataFrame:
    """The choices with a column `at_edge`. What diverged was tried too: beside it, a value is not at the edge."""
    ended = runs.filter(pl.col("status").is_in(["done", "diverged"]))
    nothing = pl.lit([], pl.List(pl.String))
    choices = choices.with_columns(at_edge=nothing)
    for name in over:
        if runs[name].dtype.is_numeric():
            low, high = pl.col(name).min().alias("low"), pl.col(name).max().alias("high")
            choices = choices.join(ended.group_by(alike).agg(low, high), on=alike, nulls_equal=True)
            at_edge = (pl.col("low") < pl.col("high")) & pl.any_horizontal(pl.col(name) == pl.col("low", "high"))
            more = pl.concat_list("at_edge", pl.when(at_edge).then(pl.lit([name])).otherwise(nothing))
            choices = choices.with_columns(at_edge=more).drop("low", "high")
    return choices


def _follows(runs: pl.DataFrame, name: str, over: Sequence[str]) -> bool:
    """Whether a number of the same section has one value for each of the fields' (null: not used)."""
    same = name.rpartition(".")[0] in {other.rpartition(".")[0] for other in over}
    values = runs.filter(pl.col(name).is_not_null()).group_by(over).agg(pl.col(name).n_unique())
    return same and runs[name].dtype.is_numeric() and values[name].max() == 1
