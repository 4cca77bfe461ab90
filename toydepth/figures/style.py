"""How pictures look: two looks, for light and for dark pages, and what all panels share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import Any, TypeVar

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatterSciNotation, LogLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from ..exponents import Exponent, fitted
from ..regimes import ALWAYS_SHOWN, DEPTH

T = TypeVar("T")
MARKERS = "osD^vPX*"
# Loss ~ depth^-1 for a rough teacher, depth^-3 for a smooth one (Liu et al. 2026, arXiv 2602.05970, Eqs. 10-12).
LEVELS = {1.0: "rough", 3.0: "smooth"}
SCHEME = "student.scheme"
LEGEND_LETTERS = 64  # in a line of a legend
MOST_COURSES = 8  # regimes whose losses or exponents are shown against the step
MANY = 1000.0  # the ratio of the ends from which a log axis without given ticks has one for each decade


@dataclass(frozen=True)
class Look:
    """The colours of a page: of its text, of lesser text and axes, of the grid, of itself, and of the regimes."""

    ink: str
    grey: str
    grid: str
    page: str
    colours: tuple[str, ...]

    def colour(self, i: int) -> str:
        """The colour of regime i."""
        return self.colours[i % len(self.colours)]

    def mix(self, colour: str, strength: float) -> tuple[float, float, float]:
        """The colour mixed with the page's; solid, so that overlapping curves do not darken one another."""
        red, green, blue = (
            strength * a + (1 - strength) * b for a, b in zip(to_rgb(colour), to_rgb(self.page), strict=True)
        )
        return red, green, blue

    def style(self) -> dict[Any, Any]:
        """Matplotlib's settings for this look."""
        ink = ("text.color", "axes.labelcolor", "axes.titlecolor", "xtick.labelcolor", "ytick.labelcolor")
        return dict.fromkeys(ink, self.ink) | {
            "font.size": 9.5,
            "axes.titlesize": 10.5,
            "axes.titlelocation": "left",
            "axes.titleweight": "bold",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": self.grey,
            "axes.facecolor": "none",
            "axes.axisbelow": True,
            "axes.grid": True,
            "xtick.color": self.grey,
            "ytick.color": self.grey,
            "grid.color": self.grid,
            "grid.linewidth": 0.7,
            "legend.frameon": False,
            "legend.fontsize": 8.5,
            "lines.solid_capstyle": "round",
        }


# Okabe and Ito's colour-blind-safe palette; its yellow, too faint on white, is replaced by a dark wine red. On a
# dark page the same hues, lighter.
LIGHT = Look(
    ink="#1A1A1A",
    grey="#6B6B6B",
    grid="#E6E6E6",
    page="#FFFFFF",
    colours=("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4D4D4D", "#882255"),
)
DARK = Look(
    ink="#E8E8E8",
    grey="#A3A3A3",
    grid="#333A42",
    page="#171B20",
    colours=("#4DA8E0", "#FF8B45", "#2CC295", "#E3A0C8", "#F2BC3D", "#9AD7FA", "#C4C4C4", "#DB6FA4"),
)


@dataclass(frozen=True)
class Panel:
    """One pair of axes: its file's stem, its title, what it shows in words, and how it is drawn.

    `entries` are the numbers of colours and markers, and what they stand for, where these are the panel's own.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[Axes, Look], None]
    entries: Sequence[tuple[int, str]] = ()

    @property
    def columns(self) -> int:
        """Of the legend that names the entries."""
        return max(1, min(4, 52 // max((len(name) + 6 for _, name in self.entries), default=52)))

    @property
    def legend_inches(self) -> float:
        """How high that legend is."""
        lines = [len(wrap(name, LEGEND_LETTERS)) for _, name in self.entries]
        return 0.17 * sum(max(lines[i : i + self.columns]) for i in range(0, len(lines), self.columns))


def marker(i: int) -> str:
    """The marker of regime i; 64 regimes differ in colour or marker."""
    return MARKERS[(i + i // 8) % len(MARKERS)]


def outline(i: int) -> list[tuple[float, float]]:
    """The corners of regime i's marker in a square from -1 to 1, y downwards, for keys beside text."""
    style = MarkerStyle(marker(i))
    path = style.get_path().transformed(style.get_transform())
    corners = np.concatenate(path.to_polygons())
    return [(x, -y) for x, y in (corners / np.abs(corners).max()).tolist()]


def differing(regimes: Sequence[Mapping[str, Any]]) -> list[str]:
    """The fields by which regimes differ, after the teacher's kind."""
    names = dict.fromkeys(name for regime in regimes for name in regime)
    return [n for n in names if n == "teacher.kind" or any(r.get(n) != regimes[0].get(n) for r in regimes)]


def words(regime: Mapping[str, Any], regimes: Sequence[Mapping[str, Any]]) -> str:
    """A regime in words: the teacher's kind, and what differs between the regimes shown."""
    values = {name: regime[name] for name in differing(regimes) if regime.get(name) is not None}
    found = [text(v) if n in ALWAYS_SHOWN else f"{last(n)} {text(v)}" for n, v in values.items()]
    return ", ".join(found) or "all runs"


def text(value: Any) -> str:
    """A field's value for people."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def last(name: str) -> str:
    """The last part of a dotted name."""
    return name.rpartition(".")[2]


def size_name(exponents: Sequence[Exponent]) -> str:
    """What loss is a power of, in a word."""
    return last(exponents[0].variable) if exponents else "depth"


def levels_of(exponents: Sequence[Exponent], runs: pl.DataFrame) -> dict[float, str]:
    """`LEVELS` where they are known to hold: Euler students of the published teachers, loss against depth."""
    return LEVELS if of_published_teachers(exponents, runs) and schemes(exponents, runs) <= {"euler"} else {}


def of_published_teachers(exponents: Sequence[Exponent], runs: pl.DataFrame) -> bool:
    """Whether the exponents are of loss in depth, and no fitted run has somebody's own teacher."""
    if any(e.variable != DEPTH for e in exponents):
        return False
    kinds = runs["teacher.kind"].unique().drop_nulls() if "teacher.kind" in runs.columns else []
    if any(":" in kind for kind in kinds):  # perhaps of runs that are not fitted
        kinds = _values("teacher.kind", exponents, runs)
    return not any(":" in kind for kind in kinds)


def schemes(exponents: Sequence[Exponent], runs: pl.DataFrame) -> set[str]:
    """The schemes of the fitted runs' students; none where the runs do not tell."""
    return _values(SCHEME, exponents, runs)


def _values(name: str, exponents: Sequence[Exponent], runs: pl.DataFrame) -> set[str]:
    """A field's values among the fitted runs."""
    if name not in runs.columns or not exponents:
        return set()
    if runs[name].n_unique() == 1:  # of thousands of runs it takes a while to say which are fitted
        return {str(value) for value in runs[name].unique().drop_nulls()}
    return {str(value) for e in exponents for value in fitted(runs, e)[name].unique().drop_nulls()}


def few(regimes: Sequence[T], most: int = MOST_COURSES) -> list[T]:
    """Those of many regimes that are shown: evenly over all, with both ends."""
    if len(regimes) <= most:
        return list(regimes)
    return [regimes[round(at)] for at in np.linspace(0, len(regimes) - 1, most)]


def draw_levels(ax: Axes, look: Look, levels: Mapping[float, str]) -> None:
    """Dashed lines across, named at their right ends."""
    for level, name in levels.items():
        ax.axhline(level, color=look.grey, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
        ax.annotate(name, (1, level), (3, 0), ("axes fraction", "data"), "offset points", va="center", color=look.grey)


def limit_to(ax: Axes, values: Sequence[float], levels: Sequence[float]) -> None:
    """Show all values and levels; bars may be cut, since an interval from two replicates can be 50 times its value."""
    low, high = min(values), max([*values, *levels])
    room = 0.5 if levels else 0.25 * (high - low) or 0.5
    ax.set_ylim(min(0, low - 0.3) if levels else low - room, high + room)


def log_x(ax: Axes, ticks: Sequence[float]) -> None:
    """A log axis with plain numbers, at the ticks if they are few; with powers of ten where numbers would be long."""
    ax.set_xscale("log")
    long = max(ticks, default=0.0) >= 1e4
    few = not ticks and ax.dataLim.x1 > MANY * ax.dataLim.minposx
    subs = (1,) if few else (1, 2, 5)
    ax.xaxis.set_major_locator(FixedLocator(ticks) if 0 < len(ticks) <= 9 and not long else LogLocator(subs=subs))
    ax.xaxis.set_major_formatter(
        LogFormatterSciNotation(minor_thresholds=(9, 9)) if long else FuncFormatter(lambda value, _: f"{value:g}")
    )
    ax.xaxis.set_minor_locator(NullLocator())
    if len(ticks) == 1:
        ax.set_xlim(ticks[0] / 2, ticks[0] * 2)


def legend_below(ax: Axes, look: Look, panel: Panel) -> None:
    """The panel's legend, under what stands at the axes."""
    handles = [
        Line2D(
            [], [], color=look.colour(i), marker=marker(i), markersize=5, label="\n".join(wrap(name, LEGEND_LETTERS))
        )
        for i, name in panel.entries
    ]
    lines = 1 + max((label.get_text().count("\n") for label in ax.get_xticklabels()), default=0)
    below = ax.transAxes + ScaledTranslation(0, -(20 + 12 * lines) / 72, ax.figure.dpi_scale_trans)
    if handles:
        ax.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, 0), bbox_transform=below, ncols=panel.columns)


def say_if_empty(ax: Axes, look: Look, message: str) -> None:
    """An empty panel says why it is empty."""
    if not any(len(np.atleast_1d(line.get_xdata())) for line in ax.lines):
        ax.text(0.5, 0.5, message, transform=ax.transAxes, ha="center", va="center", color=look.grey)
        ax.grid(False)
        ax.set(xscale="linear", yscale="linear", xticks=[], yticks=[])
