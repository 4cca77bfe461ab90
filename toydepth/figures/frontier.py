"""Pictures of what follows from a law: what a shape costs, the compute frontier, and what data can do for a size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from math import ceil, floor, log10

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap

from ..laws import capacity
from ..laws.consequences import (
    ShapeLaw,
    SizeLaw,
    best_shape,
    frontier,
    frontier_at,
    isoflop,
    model_share,
    ratios_within,
    shape_penalty,
)
from .axes import MOST_VECTORS, dots, log_axis, power_of_ten, short
from .style import Look, Panel

Rows = Float[np.ndarray, " rows"]
Draws = Mapping[str, Float[np.ndarray, " draws"]]
MOST_CURVES = 7
POINTS = 200  # of a curve
TOLERABLE = 0.05


@dataclass(frozen=True)
class Models:
    """The table's models: parameters in the convention of the law, tokens (or tau), loss, and shapes where known."""

    parameters: Rows
    tokens: Rows
    loss: Rows
    width: Rows | None = None
    depth: Rows | None = None

    @property
    def compute(self) -> Rows:
        """6 N D."""
        return 6 * self.parameters * self.tokens


# --- shape --------------------------------------------------------------------------------------------------


def shape_panels(
    law: ShapeLaw, models: Models, parameters: float, convention: str, drawn: ShapeLaw | None = None
) -> list[Panel]:
    """What it costs to be wider or deeper than is best; and the table's shapes about the best ones.

    Args:
        law: of plain numbers.
        models: with widths and depths.
        parameters: the size that costs are shown for.
        convention: how parameters are counted.
        drawn: the law of bootstrap draws, for the band.
    """
    penalty = (
        f"How much more reducible loss a model of {short(parameters)} parameters has on the compute frontier, for its "
        "width over depth. Points: the table's shapes, each at its own size."
    ) + (" Band: 95 % of bootstrap draws." if drawn is not None else "")
    shapes = (
        "Shapes of the table's models, and the best ones (line, over the table's sizes). Dashed: equal numbers of "
        f"parameters, {convention}."
    )
    cost = partial(_penalty, law=law, drawn=drawn, models=models, parameters=parameters)
    return [
        Panel("law_shape_penalty", "What a shape costs", penalty, cost),
        Panel("law_shapes", "Best and actual shapes", shapes, partial(_shapes, law=law, models=models)),
    ]


def _shape_of(models: Models) -> tuple[Rows, Rows]:
    if models.width is None or models.depth is None:
        raise ValueError("pictures of shapes need widths and depths")
    shapes = np.unique(np.stack([models.width, models.depth], axis=1), axis=0)
    return shapes[:, 0], shapes[:, 1]


def _penalty(ax: Axes, look: Look, law: ShapeLaw, drawn: ShapeLaw | None, models: Models, parameters: float) -> None:
    width, depth = _shape_of(models)
    own = width / depth
    best = float(best_shape(law, parameters).ratio)
    ratios = np.geomspace(min(own.min(), best / 5) / 1.2, max(own.max(), best * 5) * 1.2, POINTS)

    def cost(law: ShapeLaw, ratio: Rows, sizes: Rows | float) -> Rows:
        with np.errstate(all="ignore"):
            return np.asarray(100 * model_share(law) * (shape_penalty(law, ratio / best_shape(law, sizes).ratio) - 1))

    curve = cost(law, ratios, parameters)
    top = min(max(3 * 100 * TOLERABLE, curve.max() * 0.6), 40.0)
    if drawn is not None:
        many = np.sort([np.nan_to_num(cost(drawn, ratio, parameters), nan=np.inf) for ratio in ratios], axis=1)
        ends = (many[:, round(share * (many.shape[1] - 1))] for share in (0.025, 0.975))
        low, high = (np.minimum(end, 2 * top) for end in ends)
        ax.fill_between(ratios, low, high, color=look.colour(0), alpha=0.15, linewidth=0)
    ax.axhline(100 * TOLERABLE, color=look.grey, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    ax.plot(ratios, curve, color=look.colour(0), linewidth=1.8)
    ax.plot(own, cost(law, own, law.per_block * width**2 * depth), "o", color=look.colour(1), markersize=4, alpha=0.6)
    ax.axvline(best, color=look.ink, linewidth=1, zorder=1)
    ax.annotate(f"{best:.3g}", (best, 1), (4, -3), ("data", "axes fraction"), "offset points", va="top")
    for end in ratios_within(law, TOLERABLE):
        inwards, side = (6, "left") if end < 1 else (-6, "right")
        at = (best * end, 100 * TOLERABLE), (inwards, 2), "data", "offset points"
        ax.annotate(f"{best * end:.3g}", *at, ha=side, va="bottom", color=look.grey)
    log_axis(ax, "x", ratios[0], ratios[-1])
    ax.set(xlabel="width / depth", ylabel="extra reducible loss (%)", ylim=(0, top), xlim=(ratios[0], ratios[-1]))


def _shapes(ax: Axes, look: Look, law: ShapeLaw, models: Models) -> None:
    width, depth = _shape_of(models)
    sizes = law.per_block * width**2 * depth
    x, y = (np.array([values.min() / 1.3, values.max() * 1.3]) for values in (depth, width))
    for power in range(ceil(log10(sizes.min())), floor(log10(sizes.max())) + 1):
        ax.plot(x, np.sqrt(10.0**power / (law.per_block * x)), color=look.grey, linewidth=0.8, linestyle=(0, (4, 3)))
        left = max(x[0], 10.0**power / (law.per_block * (0.85 * y[1]) ** 2))  # where the line comes into sight
        at = (left, np.sqrt(10.0**power / (law.per_block * left))), (4, 2), "data", "offset points"
        ax.annotate(short(10.0**power), *at, color=look.grey, fontsize=8.5)
    best = best_shape(law, np.geomspace(sizes.min(), sizes.max(), POINTS))
    ax.plot(best.depth, best.width, color=look.ink, linewidth=1.8)
    ax.plot(depth, width, "o", color=look.colour(1), markersize=5, alpha=0.7, markeredgewidth=0)
    log_axis(ax, "x", *x)
    log_axis(ax, "y", *y)
    ax.set(xlabel="depth l (layers)", ylabel="width m", xlim=x, ylim=y)


# --- compute ------------------------------------------------------------------------------------------------


def frontier_panels(law: SizeLaw, models: Models, convention: str) -> list[Panel]:
    """The frontier among isoFLOP curves with the table's models on them, and reducible loss against compute."""
    curves = (
        "Curves: predicted loss at equal compute C = 6 N D. Thick: the frontier through their minima. Points: the "
        f"table's models, the stronger in colour the more compute. {convention}."
    )
    reducible = (
        f"Loss above the fitted floor of {float(law.floor):.3f} against compute: on the frontier (line) and of the "
        "table's models."
    )
    return [
        Panel("law_frontier", "Frontier and isoFLOP curves", curves, partial(_isoflops, law=law, models=models)),
        Panel("law_compute", "Reducible loss against compute", reducible, partial(_compute, law=law, models=models)),
    ]


def budgets(low: float, high: float) -> list[float]:
    """Round budgets within a range: powers of ten, and three times them if these are few."""
    every = [f * 10.0**p for p in range(floor(log10(low)), ceil(log10(high)) + 1) for f in (1, 3)]
    within = [c for c in every if low <= c <= high]
    chosen = within if len(within) <= MOST_CURVES else [c for c in within if log10(c) == round(log10(c))]
    return chosen[:: ceil(len(chosen) / MOST_CURVES)] if chosen else []


def _isoflops(ax: Axes, look: Look, law: SizeLaw, models: Models) -> None:
    compute = models.compute
    low, high = compute.min(), compute.max()
    shades = LinearSegmentedColormap.from_list(
        "compute", [look.mix(look.colour(0), 0.4), look.colour(0), look.mix(look.ink, 0.9)]
    )
    spread = log10(high / low) or 1.0
    sizes = np.geomspace(models.parameters.min() / 1.5, models.parameters.max() * 1.5, POINTS)
    bottom, top = _loss_limits(models.loss)
    for budget in budgets(low, high):
        shade = shades(log10(budget / low) / spread)
        loss = np.asarray(isoflop(law, budget, sizes).loss)
        ax.plot(sizes, loss, color=shade, linewidth=1.1, zorder=1.5)
        shown = np.flatnonzero((loss < top - 0.05 * (top - bottom)) & (loss > bottom))
        if len(shown):
            at = (sizes[shown[-1]], loss[shown[-1]]), (3, 0), "data", "offset points"
            box = {"facecolor": look.page, "edgecolor": "none", "pad": 0.5}
            ax.annotate(f"${power_of_ten(budget)}$", *at, fontsize=8.5, color=shade, va="center", bbox=box)
    ax.scatter(
        models.parameters,
        models.loss,
        s=15,
        c=np.log10(compute / low) / spread,
        cmap=shades,
        vmin=0,
        vmax=1,
        linewidths=0.4,
        edgecolors=look.page,
        zorder=2,
        rasterized=len(models.loss) > MOST_VECTORS,
    )
    best = frontier(law, np.geomspace(low, high, POINTS))
    ax.plot(best.parameters, best.loss, color=look.colour(1), linewidth=2.4, zorder=3)
    log_axis(ax, "x", sizes[0], sizes[-1])
    ax.set(xlabel="parameters N", ylabel="loss", xlim=(sizes[0], sizes[-1]), ylim=(bottom, top))


def _loss_limits(loss: Rows) -> tuple[float, float]:
    """Of an axis: all losses but the highest few, which would press the others together."""
    bottom, top = loss.min(), np.quantile(loss, 0.99)
    return float(bottom - 0.06 * (top - bottom)), float(top + 0.08 * (top - bottom))


def _compute(ax: Axes, look: Look, law: SizeLaw, models: Models) -> None:
    above = models.loss - float(law.floor)
    dots(ax, models.compute, above, look.colour(0))
    compute = np.geomspace(models.compute.min(), models.compute.max(), POINTS)
    best = np.asarray(frontier(law, compute).loss) - float(law.floor)
    ax.plot(compute, best, color=look.colour(1), linewidth=2.2)
    at = (compute[POINTS // 2], best[POINTS // 2]), (-8, -8), "data", "offset points"
    ax.annotate(f"$C^{{-{float(law.compute_exponent):.3f}}}$", *at, ha="right", va="top", color=look.colour(1))
    log_axis(ax, "x", compute[0], compute[-1])
    positive = above[above > 0]
    ends = min(best.min(), positive.min(initial=best.min())) / 1.15, max(best.max(), above.max()) * 1.15
    log_axis(ax, "y", *ends)
    ax.set(xlabel="compute C = 6 N D (operations)", ylabel="loss above the floor", ylim=ends)


# --- capacity -----------------------------------------------------------------------------------------------


def capacity_panels(law: SizeLaw, smallest: float, large: float, tolerance: float = 0.0) -> list[Panel]:
    """What data can do for smaller models, and what only size can; and what the data would cost.

    Args:
        law: of size and time.
        smallest: where the axis of sizes begins.
        large: the size of the model that they are compared with, which is compute-optimal.
        tolerance: how far above its loss is near enough, in nats.
    """
    critical = capacity.critical_size(law, large, tolerance)
    near = f" (within {tolerance:g} nats)" if tolerance else ""
    gap = (
        f"Loss of compute-optimal models, and after unlimited data. More data can close the blue part of the gap to "
        f"a model of {short(large)} parameters{near}; the red part, of models below {short(critical)}, only size can."
    )
    cost = (
        f"What it takes a smaller model to come to the loss of a compute-optimal one of {short(large)} parameters: "
        "tokens and compute, over those of the large model."
    )
    return [
        Panel(
            "law_capacity",
            "What data can close, and what only size can",
            gap,
            partial(_capacity, law=law, smallest=min(smallest, critical / 3), large=large, critical=critical),
        ),
        Panel("law_overtraining", "The price of being small", cost, partial(_price, law=law, large=large)),
    ]


def _capacity(ax: Axes, look: Look, law: SizeLaw, smallest: float, large: float, critical: float) -> None:
    sizes = np.geomspace(smallest, large, POINTS)
    optimal, limit = np.asarray(frontier_at(law, sizes).loss), np.asarray(law.limit(sizes))
    goal = float(frontier_at(law, large).loss)
    blue, red = look.colour(0), look.colour(1)
    ax.fill_between(sizes, np.maximum(limit, goal), optimal, color=blue, alpha=0.16, linewidth=0)
    ax.fill_between(sizes, goal, limit, where=limit > goal, color=red, alpha=0.2, linewidth=0, interpolate=True)
    beyond = np.geomspace(smallest, 2 * large, POINTS)
    ax.plot(beyond, frontier_at(law, beyond).loss, color=blue, linewidth=1.9)
    ax.plot(beyond, law.limit(beyond), color=red, linewidth=1.9)
    ax.axhline(goal, color=look.grey, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    ax.axvline(critical, color=look.grey, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.plot(large, goal, "o", color=look.ink, markersize=6, zorder=4)
    quarter, place = sizes[POINTS // 4], {"fontsize": 8.5, "ha": "center", "va": "center"}
    ax.annotate("compute-optimal", (quarter, optimal[POINTS // 4]), (6, 4), "data", "offset points", color=blue)
    at = (large, float(law.limit(large))), (0, -6), "data", "offset points"
    ax.annotate("unlimited data", *at, color=red, ha="right", va="top")
    middle = np.sqrt(smallest * critical)
    ax.text(middle, (float(frontier_at(law, middle).loss) + float(law.limit(middle))) / 2, "data", color=blue, **place)
    low = smallest**0.75 * critical**0.25
    ax.text(low, (goal + float(law.limit(low))) / 2, "size", color=red, **place)
    at = (critical, 1), (4, -3), ("data", "axes fraction"), "offset points"
    ax.annotate(f"$N_s^*$ = {short(critical)}", *at, va="top", color=look.grey)
    log_axis(ax, "x", smallest, 2 * large)
    bottom = float(law.limit(2 * large))
    height = float(optimal[0]) - bottom
    ends = bottom - 0.07 * height, bottom + 1.05 * height
    ax.set(xlabel="parameters N", ylabel="loss", xlim=(smallest, 2 * large), ylim=ends)


def _price(ax: Axes, look: Look, law: SizeLaw, large: float) -> None:
    critical = capacity.critical_size(law, large) / large
    optimum = frontier_at(law, large)
    share = critical + (1 - critical) * np.linspace(0, 1, POINTS + 1)[1:-1] ** 2
    tokens = np.array([capacity.gap(law, x * large, large).tokens for x in share]) / float(optimum.tokens)
    ax.plot(share, tokens, color=look.colour(2), linewidth=1.9)
    ax.plot(share, tokens * share, color=look.colour(0), linewidth=1.9)
    steep, flat = np.flatnonzero(tokens < 28)[0], np.flatnonzero(tokens * share < 1.6)[0]
    ax.annotate("tokens", (share[steep], 28), (5, 0), "data", "offset points", va="top", color=look.colour(2))
    at = (share[flat], 1.6), (-2, -2), "data", "offset points"
    ax.annotate("compute", *at, ha="right", va="top", color=look.colour(0))
    ax.axvline(critical, color=look.grey, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.axhline(1, color=look.grey, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    at = (critical, 0), (-4, 4), ("data", "axes fraction"), "offset points"
    ax.annotate(f"never below {critical:.3g}", *at, ha="right", rotation=90, va="bottom", color=look.grey)
    log_axis(ax, "x", critical / 1.3, 1)
    log_axis(ax, "y", 0.9, 30)
    ax.set(
        xlabel="size over the large model's", ylabel="over the large model's", xlim=(critical / 1.3, 1), ylim=(0.9, 30)
    )
