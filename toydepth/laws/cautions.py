"""What a reader must know before believing a fit: each caution has a code, and a sentence with numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from .comparison import Compared, by_model, refit
from .consequences import ShapeLaw, best_shape
from .fitting import Fit
from .intervals import Interval, percentiles
from .law import EXPECTED, FLOOR
from .outcome import in_numbers
from .tables import Note, Table, log_correlation
from .tau import constant_rate, equal_tau

DECISIVE = 10.0  # difference in BIC
COLLINEAR, PROPORTIONAL = 0.9, 0.9999  # correlation of log width and log depth
WORSE = 1.1  # an extrapolation error over a simpler law's
FRAGILE = 1.5  # a factor that one model must not move a result by
DEPENDENT = 1.5  # width of the bootstrap over models, over that of the profile


def cautions(
    table: Table,
    whole: Table,
    best: Fit,
    others: Sequence[Compared],
    intervals: Mapping[str, Interval],
    draws: Mapping[str, Float[np.ndarray, " draws"]],
) -> list[Note]:
    """Everything to be said about a fit.

    Args:
        table: the rows that were fitted.
        whole: also those that were dropped: learning curves from end to end.
        best: the fit.
        others: the same law and others on the same rows; `best` among them.
        intervals: profile intervals of the free parameters.
        draws: of the bootstrap; over models where the table names them.
    """
    checks = (
        _starts(best),
        _form(best, others),
        _collinear(table, best, others),
        _floor(best, intervals, draws),
        _open(best, intervals),
        _extrapolation(best, others),
        _fragile(table, best),
        _dependent(table, intervals, draws),
        _schedules(whole, best),
    )
    return [*table.notes, *(note for check in checks for note in check)]


def _starts(best: Fit) -> Iterator[Note]:
    if best.starts_agreeing < best.starts:
        text = f"{best.starts_agreeing} of {best.starts} starts come to the same fit, the best one; others end above it"
        yield Note("starts_disagree", text)


def _form(best: Fit, others: Sequence[Compared]) -> Iterator[Note]:
    """Whether fixed exponents (the fit's own, or those of theory) are rejected by free ones."""
    free = _find(others, best, free=True)
    fixed = best if any(name in best.law.fixed for name in best.law.exponents) else _find(others, best, free=False)
    if free is None or fixed is None or fixed.bic - free.bic <= DECISIVE:
        return
    held = ", ".join(f"{name}={value:.3g}" for name, value in fixed.law.fixed.items())
    found = ", ".join(f"{name}={free.values[name]:.3g}" for name in free.law.free_exponents)
    yield Note(
        "form_rejected",
        f"the form with {held} is rejected on these rows: relative error {fixed.relative_error:.2%} against "
        f"{free.relative_error:.2%} with free exponents ({found}), BIC higher by {fixed.bic - free.bic:.0f}",
    )


def _find(others: Sequence[Compared], best: Fit, free: bool) -> Fit | None:
    wanted = best.law.freed() if free else best.law.expected()
    return next((other.fit for other in others if other.fit.law == wanted), None)


def _collinear(table: Table, best: Fit, others: Sequence[Compared]) -> Iterator[Note]:
    if not {"width", "depth"} <= set(best.law.variables):
        return
    correlation = log_correlation(table, "width", "depth")
    if not abs(correlation) > COLLINEAR:
        return
    told = "cannot" if abs(correlation) > PROPORTIONAL else "can hardly"
    text = (
        f"depth and width are nearly collinear: their logarithms correlate by {correlation:.3f} over "
        f"{len(np.unique(table.models()))} models, so their parts of the loss {told} be told apart"
    )
    size = min((o.fit for o in others if "parameters" in o.fit.law.variables), key=lambda fit: fit.bic, default=None)
    if size is not None and size.bic < best.bic:
        text += f"; a law of parameters alone has a BIC lower by {best.bic - size.bic:.0f}"
    yield Note("collinear", text)


def _floor(
    best: Fit, intervals: Mapping[str, Interval], draws: Mapping[str, Float[np.ndarray, " draws"]]
) -> Iterator[Note]:
    known = intervals.get(FLOOR)
    if known is None:
        return
    drawn = percentiles(draws[FLOOR]) if FLOOR in draws else known
    lows = [end for end in (known.low, drawn.low) if end is not None]
    low = 0.0 if known.low is None or not lows else min(lows)
    high = known.high
    if high is None or best.L0 <= 0 or low <= 0 or high - low > best.L0:
        upper = "upwards" if high is None else f"to {high:.3g}"
        text = (
            f"the floor is not identified: L0 = {best.L0:.3g}, but anything from {low:.3g} {upper} fits as well (95 %)"
        )
        yield Note("floor_unidentified", f"{text}; exponents move with it")


def _open(best: Fit, intervals: Mapping[str, Interval]) -> Iterator[Note]:
    for name in best.law.free_exponents:
        known = intervals[name]
        if known.low is None and known.high is None:
            yield Note("profile_open", f"{name} is not identified: every value of it fits as well (95 %)")
        elif known.high is None:
            yield Note(
                "profile_open", f"the profile of {name} is open: anything above {known.low:.3g} fits as well (95 %)"
            )
        elif known.low is None:
            yield Note(
                "profile_open", f"the profile of {name} is open: anything below {known.high:.3g} fits as well (95 %)"
            )


def _extrapolation(best: Fit, others: Sequence[Compared]) -> Iterator[Note]:
    """Whether a law with fewer parameters predicts the most expensive rows better from the cheaper ones."""
    own = next((other for other in others if other.fit.law == best.law), None)
    if own is None or own.held_out.by_compute is None:
        return
    simpler = [other for other in others if other.fit.k < best.k and other.held_out.by_compute is not None]
    better = min(simpler, key=lambda other: other.held_out.by_compute or 0.0, default=None)
    if better is None or better.held_out.by_compute is None:
        return
    if own.held_out.by_compute > WORSE * better.held_out.by_compute + 1e-6:
        yield Note(
            "extrapolates_worse",
            f"from cheaper to more expensive models this law errs by {own.held_out.by_compute:.2%}, the simpler law "
            f"{better.name} by {better.held_out.by_compute:.2%} ({better.fit.k} instead of {best.k} parameters)",
        )


def _fragile(table: Table, best: Fit) -> Iterator[Note]:
    """Whether one model, left out, moves the best shape (or an exponent, of a law without a shape) by a factor."""
    masks, names = by_model(table), table.model_names()
    size = _typical_size(table)
    moved: dict[str, list[tuple[float, str]]] = {}
    for mask in masks:
        again = refit(table, best, ~mask)
        for what, value in ({} if again is None else _results(again, size)).items():
            moved.setdefault(what, []).append((value, names[int(np.argmax(mask))]))
    for what, value in _results(best, size).items():
        if what not in moved:
            continue
        (low, without_low), (high, without_high) = min(moved[what]), max(moved[what])
        if high > FRAGILE * value or low < value / FRAGILE:
            yield Note(
                "fragile",
                f"{what} = {value:.3g} is fragile: {low:.3g} without {without_low}, {high:.3g} without {without_high}",
            )


def _results(fit: Fit, size: float) -> dict[str, float]:
    law = in_numbers(fit.law, fit.values)
    if isinstance(law, ShapeLaw):
        with np.errstate(all="ignore"):
            return {"m/l": float(best_shape(law, size).ratio)}
    if {"width", "depth"} <= set(fit.law.variables):
        return {"m/l": float("inf")}
    return {name: fit.values[name] for name in fit.law.free_exponents}


def _typical_size(table: Table) -> float:
    if not {"width", "depth"} <= set(table.frame.columns):
        return 1e9
    width, depth = (table.frame[name].to_numpy() for name in ("width", "depth"))
    return float(np.exp(np.mean(np.log(12 * width**2 * depth))))


def _dependent(
    table: Table, intervals: Mapping[str, Interval], draws: Mapping[str, Float[np.ndarray, " draws"]]
) -> Iterator[Note]:
    """Whether rows of one model vary together by so much that intervals which take them as independent mislead."""
    if table.clusters() is None:
        return
    ratios = {}
    for name, known in intervals.items():
        drawn = percentiles(draws[name]) if name in draws else known
        if known.low is not None and known.high is not None and drawn.low is not None and drawn.high is not None:
            ratios[name] = (drawn.high - drawn.low) / max(known.high - known.low, 1e-300)
    worst = max(ratios, key=lambda name: ratios[name], default=None)
    if worst is not None and ratios[worst] > DEPENDENT:
        times = f"{ratios[worst]:.1f}" if ratios[worst] < 100 else "more than 100"
        yield Note(
            "dependent_rows",
            f"rows of one model vary together: drawing whole models makes the interval of {worst} {times} times "
            "as wide as its profile, which like standard errors takes rows as independent",
        )


def _schedules(table: Table, best: Fit) -> Iterator[Note]:
    """That tau alone does not tell the loss, where the table has curves under several schedules."""
    ends = equal_tau(table) if "tau" in best.law.variables else []
    if not ends:
        return
    worst = max(ends, key=lambda end: abs(end.difference))
    low, high = min(e.difference for e in ends), max(e.difference for e in ends)
    text = (
        f"tau alone does not fix the loss: at equal tau {len(ends)} runs with other schedules end {low:+.3f} to "
        f"{high:+.3f} nats from the constant rate's ({worst.model} {worst.schedule}: {worst.loss:.3f} against "
        f"{worst.constant_loss:.3f} at tau {worst.tau:.3g})"
    )
    exponents = [rate.free.values["a_tau"] for rate in constant_rate(table)]
    if exponents:
        span = " to ".join(dict.fromkeys(f"{end:.2f}" for end in (min(exponents), max(exponents))))
        text += f"; at a constant rate its exponent is {span}, not {EXPECTED['tau']:.2f}"
    yield Note("schedule_matters", text)
