"""The panels of what a superposition autoencoder's rows of W do: their overlaps, their norms, what they leave out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import polars as pl
from jaxtyping import Float
from matplotlib.axes import Axes

from ..exponents import Exponent, members, usable
from .style import Look, Panel, text, words
from .theory import Points, missing_panel, overlap_panel

T = TypeVar("T")
Arrays = Callable[[str], Mapping[str, np.ndarray]]  # a run's id -> what its arrays.npz holds

WIDTH, FEATURES = "student.width", "features.count"
NAMES = ("loss_vs_missing", "overlap_vs_width", "row_norms", "overlaps")
PRODUCTS, HISTOGRAMS = 4, 6  # regimes of which these are shown
BINS = 60


def panels(exponents: Sequence[Exponent], runs: pl.DataFrame, arrays: Arrays) -> list[Panel]:
    """Those of them that something was recorded for.

    Args:
        exponents: one per regime, of one quantity.
        runs: the table that they were fitted to.
        arrays: what finished runs keep for figures.
    """
    found = []
    if missing := _measured(exponents, runs, "missing", "loss"):
        found.append(missing_panel(missing))
    wide = [e for e in exponents if e.variable == WIDTH]
    if FEATURES in runs.columns and (overlaps := _measured(wide, runs, WIDTH, "overlap")):
        found.append(overlap_panel(overlaps, int(runs[FEATURES].to_numpy().max())))
    return [*found, *_pictures(exponents, runs, arrays)]


def _measured(exponents: Sequence[Exponent], runs: pl.DataFrame, x: str, y: str) -> dict[str, Points]:
    """Two columns of each regime's runs, where both are above 0; empty where the table lacks one or there are none."""
    if not {x, y} <= set(runs.columns):
        return {}
    regimes, found = [e.regime for e in exponents], {}
    for e in exponents:
        both = usable(members(runs, e)).select(pl.col(x, y).cast(pl.Float64)).filter((pl.col(x) > 0) & (pl.col(y) > 0))
        found[words(e.regime, regimes)] = both[x].to_numpy(), both[y].to_numpy()
    return found if any(len(points[0]) for points in found.values()) else {}


def _pictures(exponents: Sequence[Exponent], runs: pl.DataFrame, arrays: Arrays) -> list[Panel]:
    """The panels of arrays, of the runs at each regime's middle size."""
    regimes, norms, products = [e.regime for e in exponents], {}, {}
    for e in _some(exponents, HISTOGRAMS):
        size, ids = _middle(e, runs)
        label, kept = f"{words(e.regime, regimes)}, {size}", [arrays(run) for run in ids]
        if rows := [one["row_norms"] for one in kept if "row_norms" in one]:
            norms[label] = np.stack(rows)
        if corner := [one["overlaps"] for one in kept if "overlaps" in one]:
            products[label] = corner[0]
    found = []
    if norms:
        caption = (
            "Norms of the rows of W at each regime's middle size, over all replicates. Dashed: 1/2, above which a "
            "feature counts as represented."
        )
        draw = partial(_norms, norms=list(norms.values()))
        found.append(Panel("row_norms", "Norms of the rows of W", caption, draw, list(enumerate(norms))))
    if products:
        most = max(map(len, products.values()))
        caption = f"W W^T of the {most} most frequent features, from -1 (blue) over 0 to 1 (red); first replicates."
        draw = partial(_products, images=_some(list(products.items()), PRODUCTS))
        found.append(Panel("overlaps", "W W^T", caption, draw))
    return found


def _middle(e: Exponent, runs: pl.DataFrame) -> tuple[str, list[str]]:
    """A regime's middle size in words, and the ids of its runs of that size."""
    rows = usable(members(runs, e))
    sizes = rows[e.variable].unique().sort().to_list() if e.variable in rows.columns else []
    if not sizes:
        return "", []
    size = sizes[len(sizes) // 2]
    return f"{e.variable.rpartition('.')[2]} {text(size)}", rows.filter(pl.col(e.variable) == size)["id"].to_list()


def _some(items: Sequence[T], most: int) -> list[T]:
    """All items, or as many as may be shown, evenly over all, with both ends."""
    if len(items) <= most:
        return list(items)
    return [items[round(at)] for at in np.linspace(0, len(items) - 1, most)]


def _norms(ax: Axes, look: Look, norms: Sequence[Float[np.ndarray, "replicates features"]]) -> None:
    edges = np.linspace(0, 1.02 * max(float(of_regime.max()) for of_regime in norms), BINS + 1)
    for i, of_regime in enumerate(norms):
        shares = np.histogram(of_regime, edges)[0] / of_regime.size
        ax.stairs(np.where(shares > 0, shares, np.nan), edges, color=look.colour(i), linewidth=1.4)
    ax.axvline(0.5, color=look.grey, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.set(xlabel="norm of a row of W", ylabel="share of the features", yscale="log")


def _products(ax: Axes, look: Look, images: Sequence[tuple[str, np.ndarray]]) -> None:
    ax.axis("off")
    columns = 1 if len(images) == 1 else 2
    rows = -(-len(images) // columns)
    for i, (label, image) in enumerate(images):
        row, column = divmod(i, columns)
        place = (column / columns, 1 - (row + 1) / rows, 0.96 / columns, 0.86 / rows)
        inset = ax.inset_axes(place)
        inset.imshow(image, vmin=-1, vmax=1, cmap="RdBu_r", interpolation="nearest")
        inset.set(xticks=[], yticks=[])
        inset.set_title(label, fontsize=7.5, fontweight="normal", color=look.ink)
        inset.grid(False)
