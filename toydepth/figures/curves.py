"""The panels of sweeps whose exponents are those of curves: loss, local slopes and what else was recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatterSciNotation, LogLocator

from .. import theory
from ..curves import points
from ..exponents import Exponent, members, usable
from ..regimes import CURVES
from .style import Look, Panel, draw_levels, limit_to, log_x, marker, say_if_empty, words
from .theory import course_panel, softmax_panels

Curve = tuple[np.ndarray, np.ndarray]

PER_DECADE = 4  # local slopes
HEAD = ("target.loss", "target.vocab", "teacher.width", "teacher.spectrum")  # what the theory of a head is for
LABELLED = 6  # exponents written beside their lines
TELLING = {"weight_norm": "Weight norm", "logit_std": "Spread of the logits", "gradient_norm": "Gradient norm"}
TELLING |= {"update_radial": "Radial part of the update", "update_tangential": "Tangential part of the update"}
TELLING |= {"hessian_1": "Largest Hessian eigenvalue", "hessian_trace": "Trace of the Hessian"}


def panels(exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> list[Panel]:
    """The first figure's panels: for each variable among the exponents the curves, and the first one's local slopes."""
    found, names = [], dict.fromkeys(e.variable for e in exponents)
    for name in names:
        shown = [(i, e, curve(e, runs, histories)) for i, e in enumerate(exponents) if e.variable == name]
        found.append(
            Panel(
                f"curves_{name}",
                f"{_title(exponents)} against {name}",
                f"Evaluation {_quantity(exponents)} against {name}, geometric means over replicates. Thick: the window "
                "that is fitted, with its power law dashed. Shaded: from the lowest to the highest replicate.",
                partial(_curves, shown=shown, name=name, quantity=_quantity(exponents)),
            )
        )
        slopes = f"slopes_{name}", f"Local slopes along {name}"
        expected = 1 / 3 if _quantity(exponents) == "loss" and _of_heads(histories) else None  # arXiv 2602.03685
        caption = f"The exponent between {PER_DECADE} points per decade of {name}: level where one power law holds."
        found.append(
            Panel(
                *slopes,
                caption,
                partial(_slopes, shown=shown, name=name, quantity=_quantity(exponents), expected=expected),
            )
        )
    return found


def quantity_panels(
    exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]
) -> list[Panel]:
    """A panel for each other quantity that the histories hold, against the first variable."""
    if not exponents or exponents[0].variable not in CURVES:
        return []
    name, recorded = exponents[0].variable, {column for history in histories.values() for column in history.columns}
    found = []
    for quantity, title in TELLING.items():
        if quantity in recorded:
            shown = [
                (i, e, curve(e, runs, histories, quantity))
                for i, e in enumerate(exponents)
                if e.variable == name and not e.best
            ]
            caption = f"{title} against {name}, geometric means over replicates, with the slope over the fitted window."
            draw = partial(_quantity_curves, shown=shown, name=name, quantity=title.lower())
            found.append(Panel(f"{quantity}_vs_{name}", f"{title} against {name}", caption, draw))
    return found


def theory_panels(
    exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]
) -> list[Panel]:
    """The theory of an aligned softmax head, and its course beside what was measured at the lowest temperature."""
    given = {name: runs[name].unique().to_list() for name in HEAD if name in runs.columns}
    if (
        not _of_heads(histories)
        or any(len(given.get(name, [])) != 1 for name in HEAD)
        or given["target.loss"] != ["kl"]
    ):
        return []
    measured: dict[float, dict[str, Curve]] = {}
    for e in exponents:
        temperatures = members(runs, e)["target.temperature"].unique().to_list()
        if e.variable == "tau" and e.law is not None and len(temperatures) == 1 and not e.pooled:
            line = curve(e, runs, histories)
            label = words(e.regime, [other.regime for other in exponents])
            measured.setdefault(temperatures[0], {})[label] = (line["x"].to_numpy(), line["mean"].to_numpy())
    if not measured:
        return []
    coldest, sizes = min(measured), {"outputs": given["target.vocab"][0], "width": given["teacher.width"][0]}
    stars = sorted({theory.star(temperature) for temperature in measured} | {inf})
    shown = dict(list(measured[coldest].items())[:LABELLED])
    found = {c.beta_star: c for c in theory.curves(stars, **sizes)}
    return [*softmax_panels(list(found.values())), course_panel(found[theory.star(coldest)], shown)]


def curve(
    e: Exponent, runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame], quantity: str | None = None
) -> pl.DataFrame:
    """A regime's curve: x, and as mean, low and high the geometric mean and the ends over replicates.

    Where values were chosen at each x, those of the chosen runs alone.
    """
    rows = usable(members(runs, e))
    mine = {run: histories[run] for run in rows["id"] if run in histories}
    table = points(rows, mine, e.variable, quantity or e.quantity).filter(pl.col("loss") > 0)
    if e.best and not table.is_empty():
        fields = [name for name in e.best[0] if name not in ("tried", "unfit", "at_edge")]
        chosen = pl.DataFrame([{name: choice[name] for name in fields} for choice in e.best], infer_schema_length=None)
        table = table.join(chosen, on=fields, how="semi", nulls_equal=True)
    log = pl.col("loss").log()
    mean = table.group_by(pl.col(e.variable).alias("x")).agg(
        log.mean().exp().alias("mean"), pl.col("loss").min().alias("low"), pl.col("loss").max().alias("high")
    )
    return mean.sort("x")


def _curves(
    ax: Axes, look: Look, shown: Sequence[tuple[int, Exponent, pl.DataFrame]], name: str, quantity: str
) -> None:
    few = len(shown) <= LABELLED
    for i, e, line in shown:
        x, mean, colour = _drawn(ax, look, i, line)
        if few:
            ax.fill_between(x, line["low"], line["high"], color=colour, alpha=0.15, linewidth=0)
        if e.law is None or e.x_min is None or e.x_max is None:
            continue
        inside = (x >= e.x_min * (1 - 1e-9)) & (x <= e.x_max * (1 + 1e-9))
        ax.plot(x[inside], mean[inside], color=colour, linewidth=2.2)
        at = np.geomspace(e.x_min, e.x_max, 60)
        ax.plot(at, e.law(at), color=look.ink, linewidth=0.8, linestyle=(0, (4, 3)))
        ax.plot(at[[0, -1]], e.law(at[[0, -1]]), marker(i), color=colour, markersize=4)
        if few:
            end = (e.x_max, float(e.law(at)[-1])), (7, 0), "data", "offset points"
            ax.annotate(f"{e.alpha:.2f}", *end, va="center", color=colour)
    _fit_axes(ax, shown)
    ax.set(xlabel=name, ylabel=f"evaluation {quantity}", yscale="log")
    _limit_y(ax, shown)
    say_if_empty(ax, look, "no evaluations")


def _drawn(ax: Axes, look: Look, i: int, line: pl.DataFrame) -> tuple[np.ndarray, np.ndarray, str]:
    """Draws a whole curve, faintly; returns its x and mean, and its regime's colour."""
    x, mean, colour = line["x"].to_numpy(), line["mean"].to_numpy(), look.colour(i)
    ax.plot(x, mean, color=look.mix(colour, 0.55), linewidth=1)
    return x, mean, colour


def _slopes(
    ax: Axes,
    look: Look,
    shown: Sequence[tuple[int, Exponent, pl.DataFrame]],
    name: str,
    quantity: str,
    expected: float | None,
) -> None:
    values = []
    for i, e, line in shown:
        x, slope = local_slopes(line["x"].to_numpy(), line["mean"].to_numpy())
        if e.law is None or e.x_min is None or e.x_max is None:
            ax.plot(x, slope, color=look.mix(look.colour(i), 0.55), linewidth=1)
            continue
        inside = (x >= e.x_min) & (x <= e.x_max)
        ax.plot(x, slope, color=look.mix(look.colour(i), 0.55), linewidth=1)
        ax.plot(x[inside], slope[inside], color=look.colour(i), marker=marker(i), markersize=4, linewidth=1.8)
        values += [*slope[inside], e.alpha or 0.0]
    _fit_axes(ax, shown)
    ax.set(xlabel=name, ylabel=f"$-$ d log {quantity} / d log {name}")
    if values:
        draw_levels(ax, look, {} if expected is None else {expected: "1/3"})
        limit_to(ax, [*values, expected or 0.0, 0.0], [])
    say_if_empty(ax, look, "too few evaluations")


def _quantity_curves(
    ax: Axes, look: Look, shown: Sequence[tuple[int, Exponent, pl.DataFrame]], name: str, quantity: str
) -> None:
    few = len(shown) <= LABELLED
    for i, e, line in shown:
        x, mean, colour = _drawn(ax, look, i, line)
        inside = (x >= (e.x_min or np.inf) * (1 - 1e-9)) & (x <= (e.x_max or 0.0) * (1 + 1e-9))
        if inside.sum() > 1:
            ax.plot(x[inside], mean[inside], color=colour, linewidth=2.2)
            slope = np.polyfit(np.log(x[inside]), np.log(mean[inside]), 1)[0]
            if few:
                at = (x[inside][-1], mean[inside][-1]), (7, 0), "data", "offset points"
                ax.annotate(f"{slope:+.2f}", *at, va="center", color=colour)
    _fit_axes(ax, shown)
    ax.set(xlabel=name, ylabel=quantity, yscale="log")
    say_if_empty(ax, look, "not recorded")


def local_slopes(x: np.ndarray, y: np.ndarray) -> Curve:
    """-d log y / d log x between points that are a `PER_DECADE`-th of a decade apart, at their geometric midpoints."""
    if len(x) < 2:
        return np.zeros(0), np.zeros(0)
    at = np.arange(np.log10(x[0]), np.log10(x[-1]) + 1e-9, 1 / PER_DECADE)
    v = np.interp(at, np.log10(x), np.log10(y))
    return 10 ** ((at[1:] + at[:-1]) / 2), -np.diff(v) * PER_DECADE


def _fit_axes(ax: Axes, shown: Sequence[tuple[int, Exponent, pl.DataFrame]]) -> None:
    """A log axis with plain numbers, or with powers of ten where it spans many."""
    log_x(ax, [])
    ends = [line["x"].to_numpy()[[0, -1]] for _, _, line in shown if len(line)]
    if ends and max(e[1] for e in ends) / min(e[0] for e in ends) > 1e3:
        ax.xaxis.set_major_locator(LogLocator(numticks=8))
        ax.xaxis.set_major_formatter(LogFormatterSciNotation())


def _limit_y(ax: Axes, shown: Sequence[tuple[int, Exponent, pl.DataFrame]]) -> None:
    """Leaves out how far curves fall that are no power law, where others are one."""
    lowest = [line["mean"].to_numpy().min() for _, e, line in shown if e.law is not None and len(line)]
    low = ax.get_ylim()[0]
    if lowest and low < min(lowest) / 3:
        ax.set_ylim(bottom=min(lowest) / 3)


def _of_heads(histories: Mapping[str, pl.DataFrame]) -> bool:
    """Whether these are histories of softmax heads, which alone have logits to record."""
    return any("logit_std" in history.columns for history in histories.values())


def _quantity(exponents: Sequence[Exponent]) -> str:
    return exponents[0].quantity if exponents else "loss"


def _title(exponents: Sequence[Exponent]) -> str:
    return _quantity(exponents).replace("_", " ").capitalize()
