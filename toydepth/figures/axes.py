"""Log axes that span anything from half a decade to twenty, points in any number, and numbers as people say them."""

from __future__ import annotations

from math import log10
from typing import Literal

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, NullLocator

MOST_VECTORS = 2000  # points that an SVG takes one by one


def log_axis(ax: Axes, which: Literal["x", "y"], low: float, high: float) -> None:
    """Makes one of the axes logarithmic, with ticks as dense as the span from low to high lets them be.

    Numbers are plain where they are short, else powers of ten.
    """
    ax.set(**{f"{which}scale": "log"})
    axis = ax.xaxis if which == "x" else ax.yaxis
    decades = log10(high / low)
    long = high >= 1e5 or low < 1e-3
    dense = (1, 2, 5) if long else (1, 1.5, 2, 3, 4, 6, 8) if decades < 0.6 else (1, 2, 3, 5, 7)
    subs = dense if decades < 1.1 else (1, 3) if long and decades < 3 else (1, 2, 5) if decades < 2.2 else (1,)
    axis.set_major_locator(LogLocator(subs=subs, numticks=12))
    plain = FuncFormatter(lambda value, _: f"{value:g}")
    axis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(99, 99)) if long else plain)
    axis.set_minor_locator(NullLocator())


def dots(ax: Axes, x: Float[np.ndarray, " rows"], y: Float[np.ndarray, " rows"], colour: str) -> None:
    """Small points, faint where they are alone; as an image within an SVG if there are very many."""
    style = {"markersize": 3.5, "alpha": 0.4, "markeredgewidth": 0, "rasterized": len(x) > MOST_VECTORS}
    ax.plot(x, y, "o", color=colour, **style)


def short(value: float) -> str:
    """A count with two digits, as in 930M and 1.5B."""
    rounded = float(f"{value:.2g}")
    for unit, name in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K")):
        if unit <= rounded < 1e3 * unit:
            return f"{rounded / unit:.3g}{name}"
    return f"{rounded:g}"


def power_of_ten(value: float, digits: int = 1) -> str:
    """A number as mathematics: plain from 0.001 to 100,000, else times a power of ten."""
    if 1e-3 <= value < 1e5:
        return f"{float(f'{value:.{digits}g}'):g}"
    factor, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"10^{{{int(power)}}}" if float(factor) == 1 else rf"{factor}\times 10^{{{int(power)}}}"
