"""Exponents as a map over the two fields that a sweep varies."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from matplotlib.axes import Axes

from ..exponents import Exponent
from .style import Look, Panel, last, size_name, text
from .trends import swept_fields

NAME = "alpha_map"
WRITTEN = 120  # cells, up to which the exponents are written into them


def map_panels(exponents: Sequence[Exponent]) -> list[Panel]:
    """The map of exponents of one quantity, where two numeric fields tell all of them apart; else none."""
    known = [e for e in exponents if e.alpha is not None]
    fields = [name for name in swept_fields(known) if all(isinstance(e.regime.get(name), int | float) for e in known)]
    if len(fields) != 2:
        return []
    x, y = fields
    cells = {(e.regime[x], e.regime[y]): e.alpha or 0.0 for e in known}
    if len(cells) < len(known):  # something else tells them apart too
        return []
    size = size_name(known)
    caption = f"The exponent of {known[0].quantity} in {size}, for each {last(x)} and {last(y)}; empty: none is known."
    draw = partial(_map, cells=cells, x=last(x), y=last(y), name=f"exponent of {known[0].quantity} in {size}")
    return [Panel(NAME, f"Exponent against {last(x)} and {last(y)}", caption, draw)]


def _map(ax: Axes, look: Look, cells: dict[tuple[float, float], float], x: str, y: str, name: str) -> None:
    xs, ys = (sorted({place[i] for place in cells}) for i in (0, 1))
    values = np.full((len(ys), len(xs)), np.nan)
    for (a, b), alpha in cells.items():
        values[ys.index(b), xs.index(a)] = alpha
    image = ax.imshow(values, origin="lower", aspect="auto", cmap="viridis")
    ax.grid(False)
    ax.set(xlabel=x, ylabel=y, xticks=range(len(xs)), yticks=range(len(ys)))
    ax.set_xticklabels([text(float(a)) for a in xs], rotation=45 if len(xs) > 6 else 0)
    ax.set_yticklabels([text(float(b)) for b in ys])
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label=name)
    brightness = np.asarray(image.cmap(image.norm(values)))[..., :3] @ (0.3, 0.6, 0.1)
    for (a, b), alpha in cells.items() if len(cells) <= WRITTEN else []:
        column, row = xs.index(a), ys.index(b)
        ink = "white" if brightness[row, column] < 0.5 else "black"
        ax.text(column, row, f"{alpha:.2f}", ha="center", va="center", fontsize=7, color=ink)
