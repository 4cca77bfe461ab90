"""One table and one law, looked at from all sides: the fit, how far it is known, what follows, what to beware of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from ..files import for_json
from .cautions import cautions
from .comparison import Compared, compare, exclusion_scan
from .fitting import STARTS, Fit, fit
from .intervals import Interval, bootstrap, percentiles, profile, profile_interval
from .law import LAWS, Law
from .outcome import WITHOUT_EMBEDDINGS, Consequences, Convention, consequences
from .tables import MOST_ROWS, Note, Table, check_enough, ready

DRAWS = 300
PROFILED = 41  # values of an exponent


@dataclass(frozen=True)
class Study:
    """What came out.

    `table` has the rows that were fitted, `whole` also those that were dropped for their high loss. `draws` are of a
    bootstrap over models where the table names its models, over rows elsewhere.
    """

    table: Table
    whole: Table
    dropped: int
    seed: int
    fit: Fit
    intervals: Mapping[str, Interval]
    draws: Mapping[str, Float[np.ndarray, " draws"]]
    compared: list[Compared]
    consequences: Consequences | None
    cautions: list[Note]

    def profiles(self) -> dict[str, tuple[Float[np.ndarray, " values"], Float[np.ndarray, " values"]]]:
        """{free exponent: (values, delta chi-square)}, from well below the best to well above."""
        sizes, found = self.table.sizes(self.fit.law), {}
        for name in self.fit.law.free_exponents:
            best, known = self.fit.values[name], self.intervals[name]
            low = max(best - 2 * (best - (known.low or best / 4)), 0.05)
            high = best + 2 * ((known.high or 2 * best) - best)
            values = np.unique([*np.linspace(low, high, PROFILED), best])
            found[name] = values, profile(sizes, self.table.loss, self.fit, name, values)
        return found

    def scan(self) -> dict[int, Fit]:
        """{how many of the highest losses are dropped: the fit to the rest}."""
        return exclusion_scan(self.whole, self.fit.law, huber=self.fit.huber, seed=self.seed)


def study(
    table: Table,
    law: Law,
    *,
    drop: int = 0,
    huber: float | None = None,
    starts: int = STARTS,
    draws: int = DRAWS,
    seed: int = 0,
    convention: Convention = WITHOUT_EMBEDDINGS,
) -> Study:
    """Fits a law to a table and looks at it from all sides.

    Args:
        table: as it was read and filtered.
        law: which law, and what of it is fixed.
        drop: how many rows with the highest losses are left out.
        huber: see `fitting.fit`.
        starts: of the search.
        draws: of the bootstrap.
        seed: of starts, draws and folds.
        convention: how parameters are counted in what follows.

    Raises:
        ConfigError: the table does not have what the law needs.
    """
    whole = ready(table, law)
    rows = whole.drop_highest(drop).sample(MOST_ROWS, seed)
    check_enough(rows, law)
    sizes, loss = rows.sizes(law), rows.loss
    best = fit(sizes, loss, law, huber=huber, starts=starts, seed=seed)
    intervals = {name: profile_interval(sizes, loss, best, name) for name in law.parameters}
    drawn = bootstrap(sizes, loss, best, draws, seed, rows.clusters())
    compared = compare(rows, _beside(rows, law), seed, huber)
    return Study(
        table=rows,
        whole=whole,
        dropped=drop,
        seed=seed,
        fit=best,
        intervals=intervals,
        draws=drawn,
        compared=compared,
        consequences=_consequences(rows, best, drawn, convention),
        cautions=cautions(rows, whole, best, compared, intervals, drawn),
    )


def _beside(table: Table, law: Law) -> list[Law]:
    """A law, itself with free and with expected exponents, and the laws of parameters in place of width and depth."""
    laws = [law, law.freed(), law.expected()]
    time = [variable for variable in law.variables if variable in ("tokens", "tau")]
    sized = LAWS.get("-".join(["parameters", *time]))
    if sized is not None and table.has(sized) and table.frame["parameters"].n_unique() > 2:
        laws += [sized, sized.expected()]
    few = [other for other in laws if len(table) > len(other.parameters)]
    return [other for i, other in enumerate(few) if other not in few[:i]]


def _consequences(
    table: Table, best: Fit, draws: Mapping[str, Float[np.ndarray, " draws"]], convention: Convention
) -> Consequences | None:
    """What follows, at the geometric mean of the table's sizes and of its compute."""
    frame = table.frame
    if {"width", "depth"} <= set(best.law.variables):
        sizes = convention.per_block * frame["width"].to_numpy() ** 2 * frame["depth"].to_numpy()
    elif "parameters" in best.law.variables:
        sizes, convention = frame["parameters"].to_numpy(), Convention(convention.per_block, f"N {table.counting}")
    else:
        return None
    parameters = float(np.exp(np.mean(np.log(sizes))))
    tokens = frame["tokens"].to_numpy() if "tokens" in best.law.variables else np.ones(len(table))
    compute = 6 * float(np.exp(np.mean(np.log(sizes * tokens))))
    free = {name: draws[name] for name in best.law.parameters if name in draws} if draws else None
    return consequences(best.law, best.values, parameters, compute, convention, free or None)


def as_json(found: Study) -> dict[str, Any]:
    """The object that `toydepth law fit --json` prints; numbers that are not finite are null."""
    best = found.fit
    return for_json(
        {
            "law": best.law.name,
            "n": best.n,
            "coefficients": {**best.coefficients, "L0": best.L0},
            "exponents": best.exponents,
            "standard_errors": best.standard_errors,
            "intervals": {
                name: {"low": known.low, "high": known.high, "bootstrap": _ends(percentiles(found.draws[name]))}
                for name, known in found.intervals.items()
            },
            "mse_log": best.mse_log,
            "relative_error": best.relative_error,
            "aic": best.aic,
            "bic": best.bic,
            "starts": best.starts,
            "starts_agreeing": best.starts_agreeing,
            "shape": _shape(found.consequences),
            "frontier": _frontier(found.consequences),
            "warnings": [{"code": note.code, "text": note.text} for note in found.cautions],
        }
    )


def _shape(follows: Consequences | None) -> dict[str, Any] | None:
    if follows is None or follows.m_over_l is None:
        return None
    known = follows.m_over_l
    return {
        "m_over_l": {"value": known.value, **_ends(known.interval or Interval(None, None))},
        "width_depth_time": follows.width_depth_time,
        "at_parameters": follows.parameters,
    }


def _frontier(follows: Consequences | None) -> dict[str, Any] | None:
    if follows is None or follows.d_over_n is None:
        return None
    return {
        "d_over_n": follows.d_over_n.value,
        **_ends(follows.d_over_n.interval or Interval(None, None)),
        "n_convention": follows.convention.words,
        "at_compute": follows.compute,
    }


def _ends(known: Interval) -> dict[str, float | None]:
    return {"low": known.low, "high": known.high}
