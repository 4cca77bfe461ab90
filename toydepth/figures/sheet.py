"""Several panels side by side in one file, with what they show and the command that made them written below."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import matplotlib
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from . import plain, save
from .style import LIGHT, Panel, legend_below

PANEL_INCHES = (4.4, 3.7)
LINE_INCHES, LETTERS_PER_INCH = 0.15, 16  # of the text below


def sheet(panels: Sequence[Panel], path: Path, caption: str = "", columns: int = 3) -> Path:
    """Writes panels as one picture, whole or not at all.

    Args:
        panels: at least one, shown row by row.
        path: where to; a PNG.
        caption: the last lines (the command, the commit).
        columns: panels in a row, at most.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    width = max(columns * PANEL_INCHES[0], 6.4)
    captions = (*dict.fromkeys(panel.caption for panel in panels), plain(caption.strip()))
    lines = [line for text in captions for line in wrap(text, int(width * LETTERS_PER_INCH))]
    with matplotlib.rc_context(LIGHT.style()):
        legend = max(panel.legend_inches for panel in panels)
        size = width, rows * (PANEL_INCHES[1] + legend) + LINE_INCHES * len(lines) + 0.1
        figure = Figure(figsize=size, layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.08))
        for i, panel in enumerate(panels):
            ax = figure.add_subplot(rows, columns, i + 1)
            panel.draw(ax, LIGHT)
            legend_below(ax, LIGHT, panel)
            ax.set_title(panel.title)
        figure.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize=8, color=LIGHT.grey)
        save(figure, path)
    return path
