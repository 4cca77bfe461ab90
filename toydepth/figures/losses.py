"""The panels of alpha.png: loss against the swept size with its fits, local slopes, and loss curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..exponents import Exponent, members, usable
from .style import Look, Panel, draw_levels, few, levels_of, limit_to, log_x, marker, say_if_empty, size_name, text


def panels(exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> list[Panel]:
    """The three panels of a sweep's first figure."""
    name, shown = size_name(exponents), few(exponents)
    return [
        Panel(
            "loss",
            f"Loss against {name}",
            f"Evaluation loss after training against {name}, with the fitted power laws. Filled: means over "
            "replicates, with bars of one standard deviation; small: single runs; hollow: twins at half the budget.",
            partial(_losses, exponents=exponents, runs=runs),
        ),
        Panel(
            "slopes",
            "Local slopes",
            f"The exponent between neighbouring values of {name}, at their geometric midpoints: level where one power "
            "law holds. Means over replicates, with bars of one standard deviation.",
            partial(_local_slopes, exponents=exponents, levels=levels_of(exponents, runs)),
        ),
        Panel(
            "curves",
            "Loss curves",
            "Evaluation loss during training, means over replicates"
            + ("." if len(exponents) <= MANY else f"; the least and the greatest {name} of each regime.")
            + (f" {len(shown)} of {len(exponents)} regimes." if len(shown) < len(exponents) else ""),
            partial(_curves, exponents=exponents, runs=runs, histories=histories),
        ),
    ]


MANY = 3  # regimes; with more, all their curves would be a thicket
BUDGETS = ("flops", "train.steps")  # of which a twin has half as many


def _losses(ax: Axes, look: Look, exponents: Sequence[Exponent], runs: pl.DataFrame) -> None:
    ends, all_x = [], set()
    for i, e in enumerate(exponents):
        colour, mark = look.colour(i), marker(i)
        rows = usable(members(runs, e)).with_columns(pl.col(e.variable).cast(pl.Float64))
        all_x |= set(rows[e.variable])
        ax.plot(rows[e.variable], rows["loss"], mark, color=colour, markersize=3, alpha=0.3, markeredgewidth=0)
        x, mean, factor = _by_x(rows, e.variable, "loss")
        twin_x, twin, _ = _by_x(rows, e.variable, "half_loss")
        twin_x = twin_x / 2 if e.variable in BUDGETS else twin_x
        ax.plot(twin_x, twin, mark, color=colour, markersize=5.5, alpha=0.45, markerfacecolor="none")
        ax.errorbar(x, mean, [mean - mean / factor, mean * factor - mean], fmt=mark, color=colour, markersize=5)
        if e.law is not None and e.x_min is not None and e.x_max is not None:
            line = np.geomspace(e.x_min, e.x_max, 100)
            ax.plot(line, e.law(line), color=colour, linewidth=1.6, alpha=0.85)
            ends.append((e.law(line)[-1], e, i))
    for y, e, i in ends if len(ends) <= 4 else []:
        at = (e.x_max, y), (7, 0), "data", "offset points"
        ax.annotate(f"{e.alpha:.2f}", *at, va="center", color=look.colour(i))
    name = size_name(exponents)
    log_x(ax, sorted(all_x))
    ax.set(xlabel=f"student {name}" if name == "depth" else name, ylabel="evaluation loss", yscale="log")
    note = "bars: spread over replicates\nsmall: single runs\nhollow: half the budget"
    ax.text(0.02, 0.02, note, transform=ax.transAxes, fontsize=8, color=look.grey, va="bottom", visible=bool(ax.lines))
    say_if_empty(ax, look, "no run is done")


def _local_slopes(ax: Axes, look: Look, exponents: Sequence[Exponent], levels: Mapping[float, str]) -> None:
    name, means = size_name(exponents), [s.mean for e in exponents for s in e.local_slopes]
    for i, e in enumerate(exponents):
        # Side by side, or the bars of regimes that share their depths would hide one another.
        shift = np.exp(min(0.012, 0.1 / len(exponents)) * (i - (len(exponents) - 1) / 2))
        ax.errorbar(
            [s.x * shift for s in e.local_slopes],
            [s.mean for s in e.local_slopes],
            yerr=[s.spread or 0.0 for s in e.local_slopes],
            color=look.colour(i),
            marker=marker(i),
            markersize=5,
            linewidth=1.2,
            elinewidth=0.9,
        )
    log_x(ax, sorted({round(s.x, 1) for e in exponents for s in e.local_slopes}))
    ax.set(xlabel=f"{name} (geometric midpoints)", ylabel=f"$-$ d log loss / d log {name}")
    if means and levels:
        draw_levels(ax, look, levels)
        limit_to(ax, means, list(levels))
    say_if_empty(ax, look, "fewer than two values to compare")


def _curves(
    ax: Axes, look: Look, exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]
) -> None:
    name, shades = size_name(exponents), {}
    for i, e in few(list(enumerate(exponents))):
        rows = usable(members(runs, e))
        xs = rows[e.variable].unique().sort().to_list()
        for x in xs if len(exponents) <= MANY else sorted({xs[0], xs[-1]} if xs else []):
            ids = rows.filter(pl.col(e.variable) == x)["id"]
            steps, loss = _mean_history([histories[run] for run in ids if run in histories])
            shade = 0.3 + 0.7 * (xs.index(x) / (len(xs) - 1) if len(xs) > 1 else 1)
            if len(steps):
                shades[x] = shade
                ax.plot(steps, loss, color=look.mix(look.colour(i), shade), linewidth=1.3)
    log_x(ax, [])
    ax.set(xlabel="step", ylabel="evaluation loss", yscale="log")
    chosen = sorted(shades) if len(shades) <= 6 else [min(shades), max(shades)]
    handles = [Line2D([], [], color=look.mix(look.ink, shades[x]), label=f"{name} {text(x)}") for x in chosen]
    if handles:
        low, high = ax.get_ylim()
        ax.set_ylim(low * (low / high) ** (0.09 * -(-len(handles) // 2)), high)  # room for the legend
        ax.legend(handles=handles, loc="lower left", ncols=2)
    say_if_empty(ax, look, "no histories")


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
