"""The panels of a rare task that is withheld and returned (arXiv 2605.29548, Figs. 4, 16 and 20)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from ..rare_tasks import GAP, HORIZONS, WIDTH, Setting, horizons
from .style import Look, Panel, log_x, marker

SHOWN = 2  # ways of training, side by side
KINDS = ("tasks_retention", "tasks_course", "tasks_cycles")
NAMES = tuple(f"{kind}{i}" for kind in KINDS for i in ("", *range(2, SHOWN + 1)))
EARLY, LATE = (0, (4, 2)), "-"


def panels(found: Sequence[Setting], histories: Mapping[str, pl.DataFrame]) -> list[Panel]:
    """Those of the settings in which a task was withheld; none where it was in none."""
    withheld = [setting for setting in found if setting.runs.filter(pl.col(GAP) > 0).height][:SHOWN]
    made: list[Panel] = []
    for i, setting in enumerate(withheld):
        table = horizons(setting, histories)
        if table.is_empty():
            continue
        number, told = i + 1 if i else "", f", {setting.label}" if len(found) > 1 else ""
        gaps = table["gap"].unique().sort().to_list()
        entries = [(j, f"gap {gap}" if gap else "mixture") for j, gap in enumerate(gaps)]
        steps = " and ".join(
            f"{step:,.0f}" for step in table.group_by("share").agg(pl.col("step").mean()).sort("share")["step"]
        )
        said = (
            f"Captured share of the withheld task beyond chance, after {steps} steps (broken and whole lines), right "
            f"before a return. Grey: the best encoder's, upright where ties leave it open. The critical width is "
            f"{setting.critical}."
        )
        draw = partial(_retained, table=table)
        made.append(Panel(f"tasks_retention{number}", f"What is retained{told}", said, draw, entries))
        longest = max(gaps)
        widths = table.filter(pl.col("gap") == longest)["width"].unique().sort().to_list()
        said = (
            f"The withheld task's corrected signal at gap {longest}, means over replicates. Dashed: the best encoders'."
        )
        draw = partial(_course, setting=setting, gap=longest, widths=widths, histories=histories, table=table)
        names = [(j, f"width {width}") for j, width in enumerate(widths)]
        made.append(Panel(f"tasks_course{number}", f"Learning over gaps{told}", said, draw, names))
        turns = table.filter(pl.col("gain").is_not_null())
        if turns.height:
            said = (
                "What a return of the withheld task adds to its signal (filled), and what the gap takes away (open); "
                f"means over the second half of the first {HORIZONS[0]:.0%} of the steps."
            )
            draw = partial(_cycles, table=turns.filter(pl.col("share") == HORIZONS[0]), gaps=gaps)
            made.append(Panel(f"tasks_cycles{number}", f"Gain and decay of a cycle{told}", said, draw, entries))
    return made


def _retained(ax: Axes, look: Look, table: pl.DataFrame) -> None:
    gaps, widths = table["gap"].unique().sort().to_list(), table["width"].unique().sort().to_list()
    static = table.group_by("width").agg(pl.col("static", "static_high").first()).sort("width")
    grey = {"color": look.mix(look.grey, 0.35), "zorder": 1}
    ax.plot(static["width"], static["static"], linewidth=5, **grey)
    ax.vlines(static["width"], static["static"], static["static_high"], linewidth=5, **grey)
    for j, gap in enumerate(gaps):
        for share, dashes in zip(HORIZONS, (EARLY, LATE), strict=True):
            here = table.filter((pl.col("gap") == gap) & (pl.col("share") == share))
            mean = here.group_by("width").agg(pl.col("corrected").mean()).sort("width")
            ax.plot(mean["width"], mean["corrected"], linestyle=dashes, color=look.colour(j), linewidth=1.3)
            face = look.colour(j) if share == HORIZONS[-1] else look.page
            style = {"color": look.colour(j), "markersize": 4.5, "markerfacecolor": face}
            ax.plot(here["width"], here["corrected"], marker(j), linestyle="none", **style)
    ax.axhline(0, color=look.grey, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
    log_x(ax, widths)
    ax.set(xlabel="width", ylabel="corrected signal")
    lines = [Line2D([], [], color=look.grey, linestyle=d) for d in (EARLY, LATE)]
    ax.legend(lines, [f"{share:.0%} of the steps" for share in HORIZONS], loc="best")


def _course(
    ax: Axes,
    look: Look,
    setting: Setting,
    gap: int,
    widths: Sequence[int],
    histories: Mapping[str, pl.DataFrame],
    table: pl.DataFrame,
) -> None:
    for j, width in enumerate(widths):
        ids = setting.runs.filter((pl.col(WIDTH) == width) & (pl.col(GAP) == gap))["id"]
        rows = [histories[run].select("step", "rare_corrected") for run in ids if run in histories]
        mean = pl.concat(rows).drop_nulls().group_by("step").agg(pl.col("rare_corrected").mean()).sort("step")
        ax.plot(mean["step"], mean["rare_corrected"], color=look.colour(j), linewidth=1.1)
        level = float(table.filter(pl.col("width") == width)["static"][0])
        ax.axhline(level, color=look.colour(j), linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    ax.set(xlabel="step", ylabel="corrected signal")


def _cycles(ax: Axes, look: Look, table: pl.DataFrame, gaps: Sequence[int]) -> None:
    for j, gap in enumerate(gaps):
        mean = table.filter(pl.col("gap") == gap).group_by("width").agg(pl.col("gain", "decay").mean()).sort("width")
        style = {"color": look.colour(j), "markersize": 4.5, "linewidth": 1.1}
        for values, dashes, face in ((mean["gain"], "-", look.colour(j)), (-mean["decay"], (0, (4, 2)), look.page)):
            x, y = mean["width"].to_numpy(), values.to_numpy()
            ax.plot(x[y > 0], y[y > 0], marker(j), linestyle=dashes, markerfacecolor=face, **style)
    log_x(ax, table["width"].unique().sort().to_list())
    values = np.abs(np.concatenate([table["gain"].to_numpy(), table["decay"].to_numpy()]))
    if (values > 0).any():
        ax.set_yscale("log")
    ax.set(xlabel="width", ylabel="change of the signal in a cycle")
