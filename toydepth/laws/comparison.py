"""Which law to believe: errors on rows that a fit has not seen, information criteria, the scan of what is dropped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

from .fitting import Fit, fit
from .law import LAWS, Law
from .tables import MOST_ROWS, Table

FOLDS = 10
CHEAPEST = (0.5, 0.65, 0.8)  # shares of rows by compute to learn from; the rest is extrapolated to
DROPS = (0, 5, 10, 20, 30, 40, 50, 60, 80, 100)
MOST_MODELS = 60  # left out one by one

Masks = Sequence[Bool[np.ndarray, " rows"]]  # rows that are held out, once for each split


@dataclass(frozen=True)
class HeldOut:
    """Mean relative error of predicted loss on rows that were not fitted, a fraction; None where it cannot be had."""

    random: float | None
    by_compute: float | None
    by_model: float | None
    worst_model: float | None  # the greatest mean error of a model left out


@dataclass(frozen=True)
class Compared:
    """A law on a table's rows, and how it does on others."""

    fit: Fit
    held_out: HeldOut

    @property
    def name(self) -> str:
        fixed = ", ".join(f"{name}={value:.3g}" for name, value in self.fit.law.fixed.items())
        return f"{self.fit.law.name}" + (f" ({fixed})" if fixed else "")


def random_folds(table: Table, seed: int, folds: int = FOLDS) -> Masks:
    """Every row is held out once."""
    order = np.random.default_rng(seed).permutation(len(table))
    return [np.isin(np.arange(len(table)), part) for part in np.array_split(order, min(folds, len(table)))]


def by_compute(table: Table, shares: Iterable[float] = CHEAPEST) -> Masks:
    """The most expensive rows are held out; empty where the table does not tell what rows cost."""
    compute = table.compute()
    if compute is None:
        return []
    cuts = [np.quantile(compute, share) for share in shares]
    return [mask for cut in cuts if (mask := compute > cut).any() and not mask.all()]


def by_model(table: Table) -> Masks:
    """One model after the other is held out, all its rows; of very many models some."""
    models = table.models()
    distinct = np.unique(models)
    if len(distinct) < 3 or len(distinct) == len(table):
        return []
    chosen = distinct[np.unique(np.linspace(0, len(distinct) - 1, MOST_MODELS).round().astype(int))]
    return [models == which for which in chosen]


def held_out_errors(table: Table, best: Fit, masks: Masks) -> list[float]:
    """Mean relative error on what each mask holds out, of the law fitted to the rest; splits with too few rows are left
    out."""
    errors = []
    for mask in masks:
        if (again := refit(table, best, ~mask)) is not None:
            predicted = again.predict(table.rows(mask).sizes(best.law))
            errors.append(float(np.mean(np.abs(predicted / table.loss[mask] - 1))))
    return errors


def refit(table: Table, best: Fit, keep: Bool[np.ndarray, " rows"]) -> Fit | None:
    """The law of a fit, fitted to some of its rows, from its values; None where they are too few."""
    kept = table.rows(keep)
    if len(kept) <= best.k:
        return None
    return fit(kept.sizes(best.law), kept.loss, best.law, huber=best.huber, near=best.values)


def held_out(table: Table, best: Fit, seed: int = 0) -> HeldOut:
    """Errors on held-out rows: at random, by compute, and one model left out after the other."""
    models = held_out_errors(table, best, by_model(table))
    return HeldOut(
        _mean(held_out_errors(table, best, random_folds(table, seed))),
        _mean(held_out_errors(table, best, by_compute(table))),
        _mean(models),
        max(models, default=None),
    )


def compare(table: Table, laws: Sequence[Law], seed: int = 0, huber: float | None = None) -> list[Compared]:
    """Laws on the same rows, the one with the lowest BIC first."""
    fits = [fit(table.sizes(law), table.loss, law, huber=huber, seed=seed) for law in laws]
    return sorted((Compared(f, held_out(table, f, seed)) for f in fits), key=lambda compared: compared.fit.bic)


def applicable(table: Table) -> list[Law]:
    """Every law that the table has columns and distinct sizes for, with exponents free and as expected."""
    laws = []
    for law in LAWS.values():
        if table.has(law) and len(table) > len(law.parameters):
            least = min(table.frame[variable].n_unique() for variable in law.variables)
            laws += [law] if least >= 3 else []
            laws += [law.expected()] if least >= 2 else []
    return laws


def exclusion_scan(
    table: Table, law: Law, counts: Sequence[int] = DROPS, huber: float | None = None, seed: int = 0
) -> dict[int, Fit]:
    """{how many of the highest losses are dropped: the fit to the rest}, as long as enough rows are left."""
    scan: dict[int, Fit] = {}
    for count in counts:
        if count >= len(table) or np.sum(table.loss < np.sort(table.loss)[-max(count, 1)]) <= 2 * len(law.parameters):
            break
        kept = table.drop_highest(count).sample(MOST_ROWS, seed)
        scan[count] = fit(kept.sizes(law), kept.loss, law, huber=huber, starts=2)
    return scan


def _mean(errors: Float[np.ndarray, " splits"] | list[float]) -> float | None:
    return float(np.mean(errors)) if len(errors) else None
