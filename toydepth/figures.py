"""Every plot. Reads tables, exponents and histories that it is given; draws with Agg and imports no JAX."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, NullLocator, ScalarFormatter

from toydepth.exponents import Exponent, members, usable

# Okabe and Ito's colour-blind-safe palette; its yellow, too faint on white, is replaced by a dark wine red.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#882255")
MARKERS = "osD^vPX*"
GREY = "#6B6B6B"
STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 10.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.solid_capstyle": "round",
}
# Loss ~ depth^-1 for a rough teacher, depth^-3 for a smooth one (Liu et al. 2026, arXiv 2602.05970, Eqs. 10-12).
LEVELS = {1.0: "rough", 3.0: "smooth"}


def alpha_figure(
    exponents: Sequence[Exponent],
    runs: pl.DataFrame,
    histories: Mapping[str, pl.DataFrame],
    path: str | Path,
    caption: str = "",
) -> None:
    """Write the figure of a sweep: loss against the variable with its fits, local slopes, loss curves.

    `runs` is the table that the exponents were fitted to, `histories` maps run ids to their histories (any may be
    missing). Colour and marker tell regimes apart; their verdicts stand below the panels. `caption` (the command, the
    commit) goes into the last line, after the number of runs left out.
    """
    lines = [wrap(f"{_label(e, exponents)}  -  {_headline(e)}", 150) for e in exponents]
    footer = wrap("   ".join(part for part in (_left_out(exponents), caption) if part), 190)
    # Heights in inches, so that the panels keep theirs however many regimes there are.
    text_height = 0.2 * (sum(map(len, lines)) + len(footer)) + 0.25
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(14, 4.6 + text_height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
        grid = figure.add_gridspec(2, 3, height_ratios=[4.6, text_height])
        left, middle, right = (figure.add_subplot(grid[0, i]) for i in range(3))
        _losses(left, exponents, runs)
        _local_slopes(middle, exponents)
        _curves(right, exponents, runs, histories)
        below = figure.add_subplot(grid[1, :])
        below.axis("off")
        handles = [_handle(i, e) for i, e in enumerate(exponents)]
        if handles:
            below.legend(handles, ["\n".join(text) for text in lines], loc="upper left", borderaxespad=0)
        below.text(0, 0, "\n".join(footer), fontsize=8, color=GREY, va="bottom", transform=below.transAxes)
        figure.savefig(path, dpi=160, facecolor="white")


def _losses(ax: Axes, exponents: Sequence[Exponent], runs: pl.DataFrame) -> None:
    ends = []
    for i, e in enumerate(exponents):
        colour, marker = _colour(i), _marker(i)
        rows = usable(members(runs, e)).with_columns(pl.col(e.variable).cast(pl.Float64))
        ax.plot(rows[e.variable], rows["loss"], marker, color=colour, markersize=3, alpha=0.3, markeredgewidth=0)
        x, mean, factor = _by_x(rows, e.variable, "loss")
        twin_x, twin, _ = _by_x(rows, e.variable, "half_loss")
        ax.plot(twin_x, twin, marker, color=colour, markersize=5.5, alpha=0.45, markerfacecolor="none")
        ax.errorbar(x, mean, [mean - mean / factor, mean * factor - mean], fmt=marker, color=colour, markersize=5)
        if e.law is not None and e.x_min is not None and e.x_max is not None:
            line = np.geomspace(e.x_min, e.x_max, 100)
            ax.plot(line, e.law(line), color=_colour(i), linewidth=1.6, alpha=0.85)
            ends.append((e.law(line)[-1], e, i))
    for y, e, i in ends if len(ends) <= 4 else []:
        at = (e.x_max, y), (7, 0), "data", "offset points"
        ax.annotate(f"{e.alpha:.2f}", *at, va="center", color=_colour(i))
    name = _name(exponents)
    _log_axes(ax, f"student {name}" if name == "depth" else name, _all_x(exponents, runs))
    ax.set(title=f"Loss against {name}", ylabel="evaluation loss")
    ax.set_yscale("log")
    note = "bars: spread over replicates\nsmall: single runs\nhollow: half the budget"
    ax.text(0.02, 0.02, note, transform=ax.transAxes, fontsize=8, color=GREY, va="bottom", visible=bool(ax.lines))
    _say_if_empty(ax, "no run is done")


def _local_slopes(ax: Axes, exponents: Sequence[Exponent]) -> None:
    name, means = _name(exponents), [s.mean for e in exponents for s in e.local_slopes]
    for i, e in enumerate(exponents):
        # Side by side, or the bars of regimes that share their depths would hide one another.
        shift = np.exp(0.012 * (i - (len(exponents) - 1) / 2))
        ax.errorbar(
            [s.x * shift for s in e.local_slopes],
            [s.mean for s in e.local_slopes],
            yerr=[s.spread or 0.0 for s in e.local_slopes],
            color=_colour(i),
            marker=_marker(i),
            markersize=5,
            linewidth=1.2,
            elinewidth=0.9,
        )
    middles = sorted({round(s.x, 1) for e in exponents for s in e.local_slopes})
    _log_axes(ax, f"{name} (geometric midpoints)", middles)
    ax.set(title="Local slopes", ylabel=f"$-$ d log loss / d log {name}")
    if means and name == "depth":
        for level, text in LEVELS.items():
            ax.axhline(level, color=GREY, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
            ax.annotate(text, (1, level), (3, 0), ("axes fraction", "data"), "offset points", va="center", color=GREY)
        ax.set_ylim(min(0, min(means) - 0.3), max(3.5, max(means) + 0.5))
    _say_if_empty(ax, "fewer than two values to compare")


def _curves(ax: Axes, exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> None:
    name, shades = _name(exponents), {}
    for i, e in enumerate(exponents):
        rows = usable(members(runs, e))
        xs = rows[e.variable].unique().sort().to_list()
        # All depths of many regimes would be a thicket: then the ends of the range stand for it.
        for x in xs if len(exponents) <= 3 else sorted({xs[0], xs[-1]} if xs else []):
            ids = rows.filter(pl.col(e.variable) == x)["id"]
            steps, loss = _mean_history([histories[run] for run in ids if run in histories])
            shade = 0.3 + 0.7 * (xs.index(x) / (len(xs) - 1) if len(xs) > 1 else 1)
            if len(steps):
                shades[x] = shade
                ax.plot(steps, loss, color=_mix(_colour(i), shade), linewidth=1.3)
    _log_axes(ax, "step", [])
    ax.set(title="Loss curves (means over replicates)", ylabel="evaluation loss")
    ax.set_yscale("log")
    chosen = sorted(shades) if len(shades) <= 6 else [min(shades), max(shades)]
    handles = [Line2D([], [], color=_mix("#333333", shades[x]), label=f"{name} {x:g}") for x in chosen]
    if handles:
        ax.legend(handles=handles, loc="lower left", ncols=2, frameon=True, edgecolor="none", framealpha=0.8)
    _say_if_empty(ax, "no histories")


def _by_x(rows: pl.DataFrame, variable: str, loss: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x, the geometric mean over replicates, and the factor of one standard deviation (1 for one run)."""
    value = pl.col(loss).cast(pl.Float64)
    log = rows.filter(value > 0).select(variable, value.log().alias("log")).group_by(variable)
    log = log.agg(pl.col("log").mean().alias("mean"), pl.col("log").std().alias("std")).sort(variable)
    return log[variable].to_numpy(), np.exp(log["mean"].to_numpy()), np.exp(log["std"].fill_null(0.0).to_numpy())


def _mean_history(histories: Sequence[pl.DataFrame]) -> tuple[np.ndarray, np.ndarray]:
    """Steps that all replicates have (above 0, for a log axis), and the geometric mean of their losses."""
    if not histories:
        return np.zeros(0), np.zeros(0)
    table = pl.concat([h.select(pl.col("step", "loss").cast(pl.Float64)) for h in histories])
    table = table.filter((pl.col("step") > 0) & (pl.col("loss") > 0) & pl.col("loss").is_finite())
    mean = table.group_by("step").agg(pl.col("loss").log().mean().exp(), pl.len()).sort("step")
    mean = mean.filter(pl.col("len") == pl.col("len").max())
    return mean["step"].to_numpy(), mean["loss"].to_numpy()


def _log_axes(ax: Axes, label: str, ticks: Sequence[float]) -> None:
    ax.set_xscale("log")
    ax.set_xlabel(label)
    ax.xaxis.set_major_locator(FixedLocator(ticks) if 0 < len(ticks) <= 9 else LogLocator(subs=(1, 2, 5)))
    ax.xaxis.set_major_formatter(ScalarFormatter())
    ax.xaxis.set_minor_locator(NullLocator())
    if len(ticks) == 1:
        ax.set_xlim(ticks[0] / 2, ticks[0] * 2)


def _say_if_empty(ax: Axes, message: str) -> None:
    if not any(len(np.atleast_1d(line.get_xdata())) for line in ax.lines):
        ax.text(0.5, 0.5, message, transform=ax.transAxes, ha="center", va="center", color=GREY)
        ax.grid(False)
        ax.set(xscale="linear", yscale="linear", xticks=[], yticks=[])


def _label(e: Exponent, exponents: Sequence[Exponent]) -> str:
    """The regime in words: the teacher's kind, and what differs between the regimes shown."""
    differs = [n for n in e.regime if n == "teacher.kind" or any(o.regime.get(n) != e.regime[n] for o in exponents)]
    values = {n: v for n, v in e.regime.items() if n in differs and v is not None}
    bare = ("teacher.kind", "target.loss")
    words = [_text(v) if n in bare else f"{n.split('.')[-1]} {_text(v)}" for n, v in values.items()]
    return ", ".join(words) or "all runs"


def _headline(e: Exponent) -> str:
    return e.verdict if e.floor is None else f"{e.verdict}; fitted floor {e.floor:.2g}"


def _left_out(exponents: Sequence[Exponent]) -> str:
    total = Counter()
    for e in exponents:
        total.update(e.left_out)
    return "Left out of the fits: " + ", ".join(f"{n} {why}" for why, n in total.items()) + "." if total else ""


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _name(exponents: Sequence[Exponent]) -> str:
    return exponents[0].variable.split(".")[-1] if exponents else "depth"


def _all_x(exponents: Sequence[Exponent], runs: pl.DataFrame) -> list[float]:
    return sorted({float(x) for e in exponents for x in usable(members(runs, e))[e.variable]})


def _handle(i: int, e: Exponent) -> Line2D:
    return Line2D([], [], color=_colour(i), marker=_marker(i), markersize=5, linestyle="-" if e.law else "none")


def _colour(i: int) -> str:
    return COLOURS[i % len(COLOURS)]


def _marker(i: int) -> str:
    return MARKERS[(i + i // len(COLOURS)) % len(MARKERS)]


def _mix(colour: str, strength: float) -> tuple[float, float, float]:
    """The colour mixed with white; solid, so that overlapping curves do not darken one another."""
    red, green, blue = (1 - strength * (1 - channel) for channel in to_rgb(colour))
    return red, green, blue
