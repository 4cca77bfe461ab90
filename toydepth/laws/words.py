"""A study in words: tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table as Grid

from ..terminal import console, grid
from .comparison import Compared
from .fitting import Fit
from .intervals import Interval, percentiles
from .outcome import Known
from .published import Published
from .studies import Study
from .tau import ConstantRate, EqualTau


def print_study(found: Study, published: Sequence[Published]) -> None:
    """Prints a fit, how far it is known, what follows and what to beware of."""
    best, out = found.fit, console()
    out.print(f"{best.law.words()}   {best.n} rows of {found.table.name}" + _dropped(found), markup=False)
    kind = "bootstrap over models" if found.table.clusters() is not None else "bootstrap over rows"
    rows = [_parameter(found, name) for name in best.law.names]
    out.print(grid(["", "value", "s.e.", "profile 95 %", f"{kind} 95 %"], rows))
    out.print(_quality(best) + f"; {best.starts_agreeing} of {best.starts} starts agree")
    for fit in published:
        values = ", ".join(f"{name}={value:.4g}" for name, value in fit.values.items())
        worse = f"{100 * fit.mse_log:.6f} here, {fit.mse_log / best.mse_log - 1:+.2%}"
        out.print(f"{fit.source}: {values}: 100 x mean squared log residual {worse}", markup=False)
    _print_consequences(found, out)
    for note in found.cautions:
        out.print(f"! {note.text} [{note.code}]", markup=False)


def _parameter(found: Study, name: str) -> list[str]:
    best = found.fit
    if name in best.law.fixed:
        return [name, number(best.values[name]), "fixed", "", ""]
    drawn = percentiles(found.draws[name])
    error = best.standard_errors[name]
    return [name, number(best.values[name]), number(error), ends(found.intervals[name]), ends(drawn)]


def _dropped(found: Study) -> str:
    gone = len(found.whole) - len(found.table)
    return f" ({gone} with the highest losses dropped)" if found.dropped else ""


def _quality(best: Fit) -> str:
    return (
        f"100 x mean squared log residual {100 * best.mse_log:.6f}, mean relative error {best.relative_error:.2%}, "
        f"AIC {best.aic:.1f}, BIC {best.bic:.1f}"
    )


def _print_consequences(found: Study, out: Console) -> None:
    follows = found.consequences
    if follows is None:
        return
    if follows.m_over_l is not None and follows.width_depth_time is not None:
        parts = " : ".join(f"{part:.3g}" for part in follows.width_depth_time)
        at = "" if _constant_ratio(found) else f" at {follows.parameters:.2g} parameters"
        out.print(f"best m/l {known(follows.m_over_l)}{at}; parts of the loss width : depth : time = {parts}")
    if follows.d_over_n is not None:
        at = f"at C = {follows.compute:.2g}"
        out.print(f"best D/N {known(follows.d_over_n)} {at} ({follows.convention.words})")


def _constant_ratio(found: Study) -> bool:
    values = found.fit.values
    return values["a_m"] == values["a_l"]


def print_compared(compared: Sequence[Compared]) -> None:
    """Prints laws on the same rows, the lowest BIC first."""
    least = min(other.fit.bic for other in compared)
    rows = [
        [
            other.name,
            str(other.fit.k),
            f"{other.fit.relative_error:.2%}",
            f"{other.fit.aic:.1f}",
            f"{other.fit.bic - least:+.1f}",
            *(percent(error) for error in (other.held_out.random, other.held_out.by_compute, other.held_out.by_model)),
            percent(other.held_out.worst_model),
        ]
        for other in compared
    ]
    names = ["law", "k", "error", "AIC", "dBIC", "random", "compute", "model", "worst"]
    out = console()
    out.print(grid(names, rows))
    out.print(
        "error: mean |dL|/L of the fitted rows, then of rows held out: at random, the most expensive ones, one model at"
        "a time and the worst; dBIC: over the least"
    )


def print_schedules(ends_: Sequence[EqualTau], rates: Sequence[ConstantRate]) -> None:
    """Prints how far loss is from a function of tau alone."""
    out = console()
    rows = [
        [e.model, e.schedule, f"{e.tau:.4g}", f"{e.loss:.4f}", f"{e.constant_loss:.4f}", f"{e.difference:+.4f}"]
        for e in ends_
    ]
    out.print("The end of each run beside the constant-rate run of the same model at the same tau:")
    out.print(grid(["model", "schedule", "tau", "loss", "at constant rate", "difference"], rows))
    for rate in rates:
        a, error = rate.free.values["a_tau"], rate.free.standard_errors["a_tau"]
        out.print(
            f"{rate.model} at a constant rate: loss falls as tau^-{a:.3f} (s.e. {number(error)}; smoothed curves), "
            f"rms log residual {rate.free.mse_log**0.5:.5f}; with exponent 1/3 {rate.third.mse_log**0.5:.5f}"
        )


def print_shape(told: Mapping[str, Any]) -> None:
    """Prints what `advice.shape` tells."""
    out, ratio, tolerable = console(), told["m_over_l"], told["tolerable"]
    out.print(f"best m/l {ratio['value']:.4g} [{ends(Interval(ratio['low'], ratio['high']))}] ({told['n_convention']})")
    out.print(_rows(told["shapes"]))
    costs = ", ".join(f"{cost['over_best']:g} times {cost['of_model_loss']:+.1%}" for cost in told["penalty"])
    out.print(f"another m/l costs of the model's part of the loss: {costs}")
    out.print(
        f"within {tolerable['excess']:.0%} of the reducible loss on the frontier: m/l from {tolerable['low']:.3g} to "
        f"{tolerable['high']:.3g}"
    )
    _print_warnings(told, out)


def print_frontier(told: Mapping[str, Any]) -> None:
    """Prints what `advice.compute_frontier` tells."""
    out = console()
    at = f"at C = {told['at_compute']:.2g}"
    out.print(
        f"best D/N {told['d_over_n']:.4g} [{ends(Interval(told['low'], told['high']))}] {at} ({told['n_convention']})"
    )
    out.print(f"reducible loss falls as C^-{told['compute_exponent']:.3f}")
    out.print(_rows(told["points"]))
    _print_warnings(told, out)


def _rows(rows: Sequence[Mapping[str, float]]) -> Grid:
    return grid(list(rows[0]), [[f"{value:.4g}" for value in row.values()] for row in rows])


def _print_warnings(told: Mapping[str, Any], out: Console) -> None:
    for warning in told["warnings"]:
        out.print(f"! {warning['text']} [{warning['code']}]", markup=False)


def known(value: Known) -> str:
    """A number and its interval."""
    return number(value.value) + ("" if value.interval is None else f" [{ends(value.interval)}]")


def ends(interval: Interval) -> str:
    """An interval; an open end is left out."""
    low, high = ("" if end is None else number(end) for end in (interval.low, interval.high))
    return f"{low} to {high}".strip() if low or high else "open"


def number(value: float) -> str:
    """Four digits; nothing for nan."""
    return "" if value != value else f"{value:.4g}"


def percent(error: float | None) -> str:
    return "" if error is None else f"{error:.2%}"
