"""The panels of rare tasks that share an encoder, each beside exact theory (arXiv 2605.29548, Figs. 2, 3, 12 to 18)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..rare_tasks import WIDTH, Setting, learnt, settings, tasks_of
from ..theory.tasks import Mixture
from . import retention
from .axes import log_axis
from .style import Look, Panel, log_x, marker

MAPS = 3  # settings of which the map is shown
LINES = 6  # settings in one panel
STAIRS = {1: "-", 2: (0, (4, 2)), 3: (0, (1, 1.5))}  # features, and how their staircase is drawn
NAMES = (
    *(f"tasks_map{i}" for i in ("", *range(2, MAPS + 1))),
    "tasks_theory",
    "tasks_sum",
    "tasks_learnt",
    "tasks_residual",
    "tasks_cosine",
    "tasks_boost",
    *retention.NAMES,
)


def panels(runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> list[Panel]:
    """Those of them that a table of runs has something for; none in tables of other problems.

    Args:
        runs: one row per run.
        histories: run ids and their histories.
    """
    found = settings(runs)
    mixed = [setting for setting in found if setting.without_gap().height][:LINES]
    several = [setting for setting in mixed if setting.without_gap()[WIDTH].n_unique() > 1]
    made = []
    for i, setting in enumerate(s for s in several[:MAPS] if s.tasks.count > 1):
        made.append(_map_panel(setting, f"tasks_map{i + 1 if i else ''}", len(found) > 1))
    if mixed and not _boosts(mixed):
        said = (
            "Losses of single tasks, as shares of their variance. Lines across: exact ties, which theory leaves open."
        )
        draw = partial(_against_theory, found=mixed)
        made.append(Panel("tasks_theory", "Losses of tasks beside theory", said, draw, _entries(mixed)))
    if several:
        said = "Loss of the mixture against width. Lines: the exact sum of the utilities that are left out."
        made.append(Panel("tasks_sum", "Loss against width", said, partial(_sum, found=several), _entries(several)))
        said = (
            "The least width of the grid at which half of a task's first feature is captured. Steps: the predicted "
            "width; bars: down to the grid's next width, where it is not."
        )
        made.append(
            Panel("tasks_learnt", "When tasks are learnt", said, partial(_stairs, found=several), _entries(several))
        )
        said = (
            "Captured share beyond chance (corrected signal) of the most frequent task, filled, and of the rare one, "
            "open, against what is left of the common tasks."
        )
        draw = partial(_residual, found=several)
        made.append(Panel("tasks_residual", "Rare tasks wait for common ones", said, draw, _entries(several)))
        said = "The cosine between the rare task's gradient and that of all others. Band: random directions, 95 %."
        made.append(Panel("tasks_cosine", "Gradients", said, partial(_cosines, found=several), _entries(several)))
    if groups := _boosts(mixed):
        said = "The rare task's loss, as a share of its variance, when it comes more often. Lines: exact theory."
        entries = [(i, f"width {width}") for i, width in enumerate(groups)]
        draw = partial(_boost, groups=groups, base=mixed[0])
        made.append(Panel("tasks_boost", "Frequency instead of width", said, draw, entries))
    return made + retention.panels(found, histories)


def _entries(found: Sequence[Setting]) -> list[tuple[int, str]]:
    return [(i, setting.label) for i, setting in enumerate(found)] if len(found) > 1 else []


# --- task by width ------------------------------------------------------------------------------------------


def _map_panel(setting: Setting, name: str, told: bool) -> Panel:
    said = (
        "Loss of each task at each width, as a share of its variance: dark is not learnt. Steps: the widths from "
        "which on theory has one (line), two (dashed) and three (dotted) of a task's features held."
    )
    title = f"Which tasks are learnt{f', {setting.label}' if told else ''}"
    return Panel(name, title, said, partial(_map, setting=setting))


def _map(ax: Axes, look: Look, setting: Setting) -> None:
    table, mixture, count = tasks_of(setting), setting.mixture, setting.tasks.count
    widths = table["width"].unique().sort().to_list()
    rows = table.group_by("width", "task").agg(pl.col("loss").mean()).iter_rows()
    mean = {(width, task): loss for width, task, loss in rows}
    image = np.array([[mean[width, task + 1] for task in range(count)] for width in widths])
    shown = ax.pcolormesh(
        np.arange(count + 1) + 0.5, np.arange(len(widths) + 1) - 0.5, image, cmap="cividis_r", vmin=0, vmax=1
    )
    bar = ax.figure.colorbar(shown, ax=ax, fraction=0.05, pad=0.02)
    bar.set_label("share of the variance")
    bar.outline.set_visible(False)  # type: ignore[operator]
    for features, dashes in STAIRS.items():
        if features <= setting.tasks.features:
            steps = [_place(mixture.staircase(k, features)[0], widths) for k in range(count)]
            ends = np.append(steps, steps[-1])
            ax.step(np.arange(count + 1) + 0.5, ends, where="post", color="#FFFFFF", linewidth=2.6, zorder=3)
            ax.step(
                np.arange(count + 1) + 0.5,
                ends,
                where="post",
                color="#C40000",
                linewidth=1.3,
                linestyle=dashes,
                zorder=4,
            )
    ax.set(xlabel="task, most frequent first", ylabel="width", ylim=(-0.5, len(widths) - 0.5))
    every = max(1, len(widths) // 12)
    ax.set_yticks(range(0, len(widths), every), [str(width) for width in widths[::every]])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    ax.grid(False)


def _place(width: float, widths: Sequence[int]) -> float:
    """Where a critical width lies among the rows of a map: on the lower edge of the first row that it reaches."""
    return float(np.searchsorted(widths, width)) - 0.5


def _stairs(ax: Axes, look: Look, found: Sequence[Setting]) -> None:
    for i, setting in enumerate(found):
        colour, tasks = look.colour(i), np.arange(1, setting.tasks.count + 1)
        expected = [setting.mixture.staircase(k)[0] for k in range(setting.tasks.count)]
        edges = np.append(tasks, tasks[-1] + 1) - 0.5
        ax.step(edges, np.append(expected, expected[-1]), where="post", color=colour, linewidth=1.2, alpha=0.8)
        seen = [one for one in learnt(setting) if one.seen is not None]
        x, y = np.array([one.task + 1 for one in seen]), np.array([one.seen for one in seen], float)
        below = y - np.maximum([one.before for one in seen], 0.7)
        ax.errorbar(x, y, yerr=[below, np.zeros_like(y)], fmt="none", ecolor=look.mix(colour, 0.45), elinewidth=1)
        ax.plot(x, y, marker(i), color=colour, markersize=4, markeredgewidth=0)
    ax.set(xlabel="task, most frequent first", ylabel="width from which on it is learnt")
    log_axis(ax, "y", 1.0, float(max(max(setting.widths) for setting in found)))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))


# --- losses -------------------------------------------------------------------------------------------------


def _against_theory(ax: Axes, look: Look, found: Sequence[Setting]) -> None:
    ax.plot([0, 1], [0, 1], color=look.grey, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    for i, setting in enumerate(found):
        table = tasks_of(setting)
        sharp, tied = table.filter(~pl.col("tied")), table.filter("tied")
        ax.hlines(tied["loss"], tied["low"], tied["high"], color=look.mix(look.colour(i), 0.5), linewidth=1)
        style = {"color": look.colour(i), "markersize": 4, "alpha": 0.6, "markeredgewidth": 0}
        ax.plot(sharp["low"], sharp["loss"], marker(i), **style)
    ax.set(xlabel="loss in theory", ylabel="loss, as a share of the variance")


def _sum(ax: Axes, look: Look, found: Sequence[Setting]) -> None:
    every = sorted({width for setting in found for width in setting.widths})
    for i, setting in enumerate(found):
        rows = setting.without_gap()
        ax.plot(
            rows[WIDTH], rows["population_loss"], marker(i), color=look.colour(i), markersize=4.5, markeredgewidth=0
        )
        widths = np.arange(every[0], every[-1] + 1)
        exact = setting.mixture.mixture_loss(widths.tolist())
        ax.plot(widths[exact > 0], exact[exact > 0], color=look.colour(i), linewidth=1.1, alpha=0.8)
    log_x(ax, every)
    ax.set(xlabel="width", ylabel="loss of the mixture", yscale="log")


def _residual(ax: Axes, look: Look, found: Sequence[Setting]) -> None:
    for i, setting in enumerate(found):
        frequent = int(np.argmax(setting.mixture.frequencies)) + 1
        rows = setting.without_gap().filter(pl.col("residual_common") > 1e-9).sort("residual_common")
        mean = rows.group_by(WIDTH).agg(
            pl.col("residual_common", f"task_corrected_{frequent:02}", "rare_corrected").mean()
        )
        mean = mean.sort("residual_common")
        x, style = mean["residual_common"], {"color": look.colour(i), "linewidth": 1, "markersize": 4.5}
        ax.plot(x, mean[f"task_corrected_{frequent:02}"], marker(i), linestyle="-", **style)
        ax.plot(x, mean["rare_corrected"], marker(i), linestyle="-", markerfacecolor=look.page, **style)
    ax.axhline(0, color=look.grey, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set(xlabel=r"residual common signal $\delta_F$", ylabel="corrected signal", xscale="log")


def _cosines(ax: Axes, look: Look, found: Sequence[Setting]) -> None:
    for i, setting in enumerate(found):
        mean = setting.without_gap().group_by(WIDTH).agg(pl.col("cosine_rare_others", "cosine_null").mean()).sort(WIDTH)
        null = 1.96 * mean["cosine_null"].to_numpy()
        if not i:
            ax.fill_between(mean[WIDTH], -null, null, color=look.mix(look.grey, 0.25), linewidth=0, zorder=1)
        ax.plot(mean[WIDTH], mean["cosine_rare_others"], marker(i), linestyle="-", color=look.colour(i), markersize=4.5)
    log_x(ax, sorted({width for setting in found for width in setting.widths}))
    ax.set(xlabel="width", ylabel="cosine")


# --- frequency in place of width ----------------------------------------------------------------------------


@dataclass(frozen=True)
class Boosted:
    """The rare task at one width: how often it came, times its usual frequency, and its loss; a point for each run."""

    boosts: list[float]
    losses: list[float]


def _boosts(found: Sequence[Setting]) -> dict[int, Boosted]:
    """{width: the rare task when it comes more often}; empty where frequencies were not changed."""
    if len({setting.tasks.frequency_boost for setting in found}) < 2:
        return {}
    groups: dict[int, Boosted] = {}
    for setting in found:
        column = f"task_normalised_{setting.rare + 1:02}"
        for width, loss in setting.without_gap().select(WIDTH, column).iter_rows():
            group = groups.setdefault(width, Boosted([], []))
            group.boosts.append(setting.tasks.frequency_boost)
            group.losses.append(loss)
    return dict(sorted(groups.items()))


def _boost(ax: Axes, look: Look, groups: Mapping[int, Boosted], base: Setting) -> None:
    ends = [boost for group in groups.values() for boost in group.boosts]
    line = np.geomspace(min(ends), max(ends), 400)
    for i, (width, group) in enumerate(groups.items()):
        expected = []
        for boost in line:
            tasks = replace(base.tasks, frequency_boost=float(boost))
            mixture = Mixture(tasks.frequencies(), tasks.amplitudes())
            expected.append(mixture.losses(width)[1][base.rare] / mixture.totals[base.rare])
        ax.plot(line, expected, color=look.colour(i), linewidth=1.1, alpha=0.8)
        ax.plot(group.boosts, group.losses, marker(i), color=look.colour(i), markersize=4.5, markeredgewidth=0)
    log_x(ax, sorted(set(ends)))
    ax.set(xlabel="times its usual frequency", ylabel="loss, as a share of the variance")
