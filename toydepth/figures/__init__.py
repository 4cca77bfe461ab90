"""Every plot. Reads tables, exponents and histories that it is given; draws with Agg or SVG and imports no JAX."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import wrap

import matplotlib
import polars as pl
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from ..exponents import Exponent
from ..regimes import CURVES
from . import curves, losses, maps, tasks, trends, width
from .style import DARK, LIGHT, Look, Panel, few, last, legend_below, marker, outline, words

__all__ = ["DARK", "LIGHT", "Look", "Panel", "alpha_figure", "draw", "outline", "panels", "svg", "words"]

FIRST = "alpha.png"
PANEL_INCHES = (4.2, 3.3)
MOST_NAMED = 24  # regimes whose verdicts stand in the first picture


def draw(
    exponents: Sequence[Exponent],
    runs: pl.DataFrame,
    histories: Mapping[str, pl.DataFrame],
    out: str | Path,
    caption: str = "",
    arrays: width.Arrays = lambda run: {},
) -> list[Path]:
    """Writes every picture that the table has something for, each whole or not at all, and returns their paths.

    alpha.png comes first; then alpha_vs_<field>.png for each field with three values or more among the regimes, and
    alpha_vs_step.png where there are histories, a map where two fields vary, and what was recorded besides. One that an
    earlier call drew and that no longer applies is removed.

    Args:
        exponents: one per regime.
        runs: the table that they were fitted to.
        histories: run ids and their histories; any may be missing.
        out: the folder to write to.
        caption: the last line of each picture (the command, the commit).
        arrays: what each finished run, named by its id, keeps for figures.
    """
    out = Path(out)
    written = [out / FIRST]
    alpha_figure(exponents, runs, histories, written[0], caption)
    for panel in _trends(exponents, runs, histories, arrays):
        written.append(out / f"{panel.name}.png")
        _panel_figure(panel, written[-1], caption)
    fields = [name for name in runs.columns if "." in name]
    stems = {"step", *map(last, fields), *(name.replace(".", "_") for name in fields)}
    names = {maps.NAME, *width.NAMES, *tasks.NAMES, *(f"alpha_vs_{stem}" for stem in stems)}
    for path in {out / f"{name}.png" for name in names} - set(written):
        path.unlink(missing_ok=True)
    return written


def panels(
    exponents: Sequence[Exponent],
    runs: pl.DataFrame,
    histories: Mapping[str, pl.DataFrame],
    arrays: width.Arrays = lambda run: {},
) -> list[Panel]:
    """The panels of all pictures that the table has something for; arguments as in `draw`."""
    return _first(exponents, runs, histories) + _trends(exponents, runs, histories, arrays)


def svg(panel: Panel, look: Look) -> bytes:
    """A panel alone, without its title, as an SVG image on a transparent ground."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(look.style()), matplotlib.rc_context({"svg.hashsalt": panel.name}):
        size = PANEL_INCHES[0], PANEL_INCHES[1] + panel.legend_inches
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.03, h_pad=0.03))
        ax = figure.add_subplot()
        panel.draw(ax, look)
        legend_below(ax, look, panel)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return buffer.getvalue()


def alpha_figure(
    exponents: Sequence[Exponent],
    runs: pl.DataFrame,
    histories: Mapping[str, pl.DataFrame],
    path: str | Path,
    caption: str = "",
) -> None:
    """Write the figure of a sweep: loss against the variable with its fits, local slopes, loss curves.

    `runs` is the table that the exponents were fitted to, `histories` maps run ids to their histories (any may be
    missing). Colour and marker tell regimes apart; their verdicts stand below the panels, of many only some.
    `caption` (the command, the commit) goes into the last line, after what is not named and what was left out.
    """
    regimes, named = [e.regime for e in exponents], few(list(enumerate(exponents)), MOST_NAMED)
    lines = [wrap(plain(f"{words(e.regime, regimes)}  -  {_headline(e, exponents)}"), 150) for _, e in named]
    unnamed = len(exponents) - len(named)
    told = [f"{unnamed} more regimes: exponents.csv"] if unnamed else []
    footer = wrap("   ".join([*told, *filter(None, (_left_out(exponents), plain(caption)))]), 190)
    # Heights in inches, so that the panels keep theirs however many regimes there are.
    text_height = 0.2 * (sum(map(len, lines)) + len(footer)) + 0.25
    with matplotlib.rc_context(LIGHT.style()):
        figure = Figure(figsize=(14, 4.6 + text_height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
        grid = figure.add_gridspec(2, 3, height_ratios=[4.6, text_height])
        for i, panel in enumerate(_first(exponents, runs, histories)[:3]):
            ax = figure.add_subplot(grid[0, i])
            panel.draw(ax, LIGHT)
            ax.set_title(panel.title)
        below = figure.add_subplot(grid[1, :])
        below.axis("off")
        handles = [_handle(i, e) for i, e in named]
        if handles:
            below.legend(handles, ["\n".join(text) for text in lines], loc="upper left", borderaxespad=0)
        below.text(0, 0, "\n".join(footer), fontsize=8, color=LIGHT.grey, va="bottom", transform=below.transAxes)
        save(figure, Path(path))


def plain(text: str) -> str:
    """Text whose dollar signs are dollar signs, and not mathematics."""
    return text.replace("$", r"\$")


def _first(exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> list[Panel]:
    """The panels of the first picture, and more of their kind."""
    if exponents and all(e.variable in CURVES for e in exponents):
        return curves.panels(exponents, runs, histories)
    return losses.panels(_of_one_quantity(exponents), runs, histories)


def _trends(
    exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame], arrays: width.Arrays
) -> list[Panel]:
    if exponents and all(e.variable in CURVES for e in exponents):
        found = trends.field_panels(exponents, runs) + curves.quantity_panels(exponents, runs, histories)
        return found + curves.theory_panels(exponents, runs, histories)
    shown = _of_one_quantity(exponents)
    found = [*trends.field_panels(shown, runs), *maps.map_panels(shown)]
    found += [*trends.step_panels(shown, runs, histories), *width.panels(shown, runs, arrays)]
    return found + tasks.panels(runs, histories)


def _of_one_quantity(exponents: Sequence[Exponent]) -> list[Exponent]:
    """Those of the first one's quantity."""
    return [e for e in exponents if e.quantity == exponents[0].quantity]


def _panel_figure(panel: Panel, path: Path, caption: str) -> None:
    footer = [*wrap(panel.caption, 112), *wrap(plain(caption.strip()), 112)]
    with matplotlib.rc_context(LIGHT.style()):
        height = 4.3 + panel.legend_inches + 0.16 * len(footer)
        figure = Figure(figsize=(7.2, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.1))
        ax = figure.add_subplot()
        panel.draw(ax, LIGHT)
        legend_below(ax, LIGHT, panel)
        ax.set_title(panel.title)
        figure.supxlabel("\n".join(footer), x=0.02, ha="left", fontsize=8, color=LIGHT.grey)
        save(figure, path)


def save(figure: Figure, path: Path) -> None:
    """Writes beside the place and moves there, so that no reader sees half a file."""
    part = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        figure.savefig(part, dpi=160, facecolor=LIGHT.page, format="png")
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _headline(e: Exponent, exponents: Sequence[Exponent]) -> str:
    several = len({other.quantity for other in exponents}) > 1
    said = f"{e.quantity}: {e.verdict}" if several else e.verdict
    return said if e.floor is None else f"{said}; fitted floor {e.floor:.2g}"


def _left_out(exponents: Sequence[Exponent]) -> str:
    total = Counter()
    for e in exponents:
        total.update(e.left_out)
    return "Left out of the fits: " + ", ".join(f"{n} {why}" for why, n in total.items()) + "." if total else ""


def _handle(i: int, e: Exponent) -> Line2D:
    return Line2D([], [], color=LIGHT.colour(i), marker=marker(i), markersize=5, linestyle="-" if e.law else "none")
