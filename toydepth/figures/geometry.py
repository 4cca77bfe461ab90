"""Pictures of states on their way through layers: what one subject shows, and what depends on depth across a sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from ..geometry.across import BETWEEN, COMMON, SPLIT_PAIR, STEP, UPDATE, Across, AtDepth
from ..geometry.clusters import STOPPED, Clusters
from ..geometry.errors import ErrorSplit
from ..geometry.interventions import Interventions
from ..geometry.probe import BEHIND, Probed
from ..geometry.summary import Profile
from .axes import log_axis
from .style import Look, Panel, log_x, marker, words

NULL_WORDS = {"layers": "layers shuffled", "tokens": "tokens shuffled", "random": "random directions"}
DASHES = {"layers": (0, (5, 2)), "tokens": (0, (1, 1.5)), "random": (0, (6, 2, 1, 2))}
RIGHT = np.pi / 2
LOG_ABOVE = 12.0  # the ratio of the ends from which an axis of positive numbers is logarithmic
LEGEND_SHARE = 0.45  # of the lines' height, kept free above them for a legend that would lie on them


# --- one subject --------------------------------------------------------------------------------------------


def subject_panels(found: Probed) -> list[Panel]:
    """The panels of one subject, for all that was measured of it."""
    token = "inputs" if found.kind != "model" else "tokens"
    bands = f"Line: mean over {token}. Bands: half of them and 90 % of them."
    open_mark = "Open mark: the last state taken behind the final norm."
    step, norm = (f" {open_mark}" if _apart(found, name) else "" for name in ("step", "norm"))
    made = [
        Panel("step", "Step of each layer", f"The angle between h_l and h_l+1. {bands}{step}", _lines(found, "step")),
        Panel("update", "Neighbouring updates", _update_words(found), partial(_updates, found=found)),
        Panel("end", "Angle to the end", f"The angle to the last state. {bands}", _lines(found, "end")),
        Panel("progress", "Progress", f"Along the whole displacement, from 0 to 1. {bands}", _lines(found, "progress")),
        Panel("norm", "Norm", f"Of h_l, before the final norm. {bands}{norm}", _lines(found, "norm")),
    ]
    if found.profile("early") is not None:
        last = "the own loss at the right end" if found.kind != "model" else "the model's own at the last one"
        said = f"The loss when h_l is read out early; {last}. Line: mean. Bands: half and 90 %."
        made.append(Panel("early", "Read out early", said, partial(_early, found=found)))
    if found.depth > 1:
        said = "The mean angle between the updates of any two layers; groups of layers that move alike show as blocks."
        made.append(Panel("pairs", "Updates of any two layers", said, partial(_pairs, pairs=found.pairs)))
    if found.interventions is not None:
        said = (
            "The loss with one layer dropped, repeated, or exchanged with the next one; lines across: all layers "
            "shuffled, all of them at h_0, none at all. What loses nothing is below a logarithmic axis."
        )
        made.append(Panel("changes", "Layers changed", said, partial(_changes, made=found.interventions)))
    if found.clusters is not None and len(found.clusters.axes) > 1:
        share = f"{100 * found.clusters.share:.2g} % stop early"
        said = f"Step angles of sampled {token} along their first two principal axes; {share} (crosses)."
        made.append(Panel("clusters", f"How {token} differ", said, partial(_clusters, clusters=found.clusters)))
    split = found.errors.get(BEHIND)
    if split is not None and split.layers > 1:
        made.append(Panel("errors", "Errors in common", _error_words(split), partial(_errors, split=split)))
    return made


def _lines(found: Probed, measure: str) -> Any:
    return partial(_profile, found=found, measure=measure)


def _update_words(found: Probed) -> str:
    said = "The angle between dh_l and dh_l+1. Line: mean. Bands: half and 90 %. Broken lines: by chance."
    return f"{said} Filled: halves of one split layer; open: others." if found.zigzag else said


def _error_words(split: ErrorSplit) -> str:
    return (
        "The mean product of the errors of any two layers, over that of a layer with itself. "
        f"R = {split.R:.3g}, A = {split.A:.3g}, C = {split.C:.2g}; C over A / l is {split.common:.2g}."
    )


def _profile(ax: Axes, look: Look, found: Probed, measure: str) -> None:
    colour = look.colour(0)
    _band(ax, look, found, measure, colour)
    first = found.profile(measure, group="first")
    if first is not None:
        ax.plot(first.mean, color=look.colour(1), linewidth=1.2, label="first tokens")
    if measure in ("step", "end"):
        _null(ax, look, found, measure, "layers")
    if measure in ("step", "norm") and _apart(found, measure):
        behind = found.mean(measure, BEHIND)
        ax.plot(len(behind) - 1, behind[-1], "o", markerfacecolor=look.page, color=colour, markersize=5)
    if measure == "progress":
        ax.plot([0, found.depth], [0, 1], color=look.grey, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    names = {"step": "angle (rad)", "end": "angle (rad)", "norm": "norm", "progress": "progress"}
    _finish(ax, look, names[measure], log=measure in ("step", "norm"))


def _apart(found: Probed, measure: str) -> bool:
    """Whether the last place of a measure is another one behind the final norm."""
    behind, before = found.mean(measure, BEHIND), found.mean(measure)
    return bool(len(behind)) and not np.isclose(behind[-1], before[-1], rtol=1e-3)


def _band(ax: Axes, look: Look, found: Probed, measure: str, colour: str) -> None:
    profile = found.profile(measure)
    if profile is None or not len(profile.mean):
        return
    x = np.arange(len(profile.mean))
    _bands(ax, look, profile, colour)
    ax.plot(x, profile.mean, color=colour, linewidth=1.6, marker="o" if len(x) <= 32 else None, markersize=3)


def _bands(ax: Axes, look: Look, profile: Profile, colour: str) -> None:
    """Half of the tokens, and 90 % of them."""
    if len(profile.mean) > 1:
        for low, high, strength in ((0, 4, 0.15), (1, 3, 0.35)):
            low, high = profile.quantiles[low], profile.quantiles[high]
            ax.fill_between(np.arange(len(low)), low, high, color=look.mix(colour, strength), linewidth=0)


def _null(ax: Axes, look: Look, found: Probed, measure: str, null: str) -> None:
    at = found.nulls.get((null, measure))
    if at and len(at) > 1:
        style = {"color": look.ink, "linewidth": 1, "linestyle": DASHES[null]}
        ax.plot([one.mean for one in at], label=NULL_WORDS[null], **style)


def _updates(ax: Axes, look: Look, found: Probed) -> None:
    angles, colour = found.mean("update"), look.colour(0)
    if found.zigzag is None:
        _band(ax, look, found, "update", colour)
    else:
        x = np.arange(len(angles))
        ax.plot(x, angles, color=look.mix(colour, 0.5), linewidth=1.2)
        ax.plot(x[0::2], angles[0::2], "o", color=colour, markersize=5, label="split pair")
        ax.plot(x[1::2], angles[1::2], "o", color=colour, markerfacecolor=look.page, markersize=5, label="between")
    for null in NULL_WORDS:
        _null(ax, look, found, "update", null)
    ax.axhline(RIGHT, color=look.grey, linewidth=0.8)
    ax.annotate("π/2", (1, RIGHT), (3, 0), ("axes fraction", "data"), "offset points", va="center", color=look.grey)
    ax.set_ylim(0, max(2.0, 1.1 * float(np.nanmax(angles, initial=0.0))))
    _finish(ax, look, "angle (rad)")


def _early(ax: Axes, look: Look, found: Probed) -> None:
    profile = found.profile("early")
    assert profile is not None
    colour = look.colour(2)
    _bands(ax, look, profile, colour)
    mean = profile.mean if found.kind == "model" else np.append(profile.mean, found.number("loss"))
    ax.plot(np.where(mean > 0, mean, np.nan), color=colour, linewidth=1.6, marker="o", markersize=3)
    _finish(ax, look, "loss", log=True)


def _pairs(ax: Axes, look: Look, pairs: np.ndarray) -> None:
    shown = pairs.copy()
    shown[np.diag_indices_from(shown)] = np.nan
    _map(ax, shown, "angle (rad)", "viridis", None)


def _errors(ax: Axes, look: Look, split: ErrorSplit) -> None:
    shown = split.products / split.A if split.A else split.products
    _map(ax, shown, "product of errors / A", "RdBu_r", 1.0)


def _map(ax: Axes, values: np.ndarray, label: str, colours: str, limit: float | None) -> None:
    low = None if limit is None else -limit
    image = ax.imshow(values, origin="lower", cmap=colours, aspect="auto", vmin=low, vmax=limit)
    ax.grid(False)
    ax.set(xlabel="layer", ylabel="layer")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label=label)


def _changes(ax: Axes, look: Look, made: Interventions) -> None:
    shown: list[float] = []
    for i, (kind, name) in enumerate({"drop": "dropped", "swap": "swapped", "repeat": "repeated"}.items()):
        at = sorted((c.layer or 0, c.loss) for c in made.changes if c.kind == kind)
        if at:
            x, y = zip(*at, strict=True)
            ax.plot(x, y, color=look.colour(i), marker=marker(i), markersize=4, linewidth=1.2, label=name)
            shown += y
    for kind, name in {"shuffle": "shuffled", "parallel": "all at h_0", "none": "none"}.items():
        loss = made.mean(kind)
        if loss is not None:
            dashes = {"shuffle": (0, (5, 2)), "parallel": (0, (1, 1.5)), "none": (0, (6, 2, 1, 2))}[kind]
            ax.axhline(loss, color=look.ink, linewidth=1, linestyle=dashes, label=name)
            shown.append(loss)
    if made.loss > 0:
        ax.axhline(made.loss, color=look.grey, linewidth=1, label="as trained")
        shown.append(made.loss)
    positive = [value for value in shown if value > 0]
    if positive and max(positive) > LOG_ABOVE * min(positive):
        low, high = min(positive), max(positive)
        ax.set_ylim(low / 1.5, high * 1.5 * (high / low) ** LEGEND_SHARE)
        log_axis(ax, "y", low, high)
    else:
        low, high = ax.get_ylim()
        ax.set_ylim(low, high + LEGEND_SHARE * (high - low))
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.set(xlabel="layer", ylabel="loss")
    ax.legend(loc="upper center", ncols=2, fontsize=7.5)


def _clusters(ax: Axes, look: Look, clusters: Clusters) -> None:
    early = clusters.late < STOPPED
    for which, i, style in ((~early, 0, "o"), (early, 1, "x")):
        points = clusters.scores[which]
        style = {"marker": style, "color": look.colour(i), "alpha": 0.4 if i == 0 else 0.9, "linestyle": "none"}
        ax.plot(points[:, 0], points[:, 1], markersize=3, rasterized=True, markeredgewidth=0 if i == 0 else 1, **style)
    shares = [f"{100 * share:.0f} %" for share in clusters.explained[:2]]
    ax.set(xlabel=f"first axis ({shares[0]} of variance)", ylabel=f"second axis ({shares[1]})")


def _finish(ax: Axes, look: Look, label: str, log: bool = False) -> None:
    low, high = np.inf, 0.0
    for line in ax.lines:
        y = np.asarray(line.get_ydata(), float)
        y = y[np.isfinite(y) & (y > 0)]
        low, high = min(low, y.min(initial=np.inf)), max(high, y.max(initial=0.0))
    if log and 0 < low < np.inf and high > LOG_ABOVE * low:
        ax.set_ylim(low / 1.5, high * 1.5)
        log_axis(ax, "y", low / 1.5, high * 1.5)
    elif log:
        ax.set_ylim(bottom=0)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8))
    ax.set(xlabel="layer l", ylabel=label)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(loc="best", fontsize=7.5)


# --- across a sweep -----------------------------------------------------------------------------------------


def across_panels(made: Across, found: Sequence[Probed]) -> list[Panel]:
    """The panels of what depends on depth: steps, neighbouring updates, errors in common, the marks of growing."""
    regimes = made.regimes()
    if not regimes:
        return []
    entries = [(i, words(regime, regimes)) for i, regime in enumerate(regimes)]
    over = "95 % intervals over replicates."
    step = (
        f"The mean step angle of the middle layers against depth (all layers of students of fewer than 4), with {over} "
        "Lines: fits of depth^-p."
    )
    update = f"The mean angle between neighbouring updates of all layers, with {over} Line: π/2."
    panels = [
        Panel("across_step", "Step against depth", step, partial(_steps, made=made, regimes=regimes), entries),
        Panel(
            "across_update",
            "Neighbouring updates against depth",
            update,
            partial(_quantity, made=made, regimes=regimes, quantity=UPDATE, label="angle (rad)", level=RIGHT),
            entries,
        ),
    ]
    if any(one.quantity == SPLIT_PAIR for one in made.at_depths):
        said = (
            "Neighbouring updates of grown students: filled, of the halves of one split layer; open, of neighbours "
            f"that were not split from one. With {over} The gap is the mark of the start."
        )
        draw = partial(_zigzag, made=made, regimes=regimes)
        panels.append(Panel("across_zigzag", "The marks of growing", said, draw, entries))
    if any(one.quantity == COMMON for one in made.at_depths):
        said = (
            "C over A / l: 0 where layers err independently, l where they err alike, -l / (l - 1) where their errors "
            f"cancel, as in a student whose loss is far below A / l. With {over}"
        )
        draw = partial(_quantity, made=made, regimes=regimes, quantity=COMMON, label="C / (A / l)", level=0.0)
        panels.append(Panel("across_errors", "Errors in common", said, draw, entries))
    return panels


def _steps(ax: Axes, look: Look, made: Across, regimes: Sequence[Mapping[str, Any]]) -> None:
    _points(ax, look, made, regimes, STEP, joined=False)
    for one in made.steps:
        if one.law is not None and one.x_min and one.x_max and one.regime in regimes:
            x = np.geomspace(one.x_min, one.x_max, 20)
            ax.plot(x, one.law(x), color=look.colour(regimes.index(one.regime)), linewidth=1.2)
    values = [v for one in made.at_depths if one.quantity == STEP for v in one.values]
    _depth_axis(ax, made, "angle (rad)")
    ax.set_ylim(min(values) / 1.3, max(values) * 1.3)
    log_axis(ax, "y", *ax.get_ylim())


def _quantity(
    ax: Axes,
    look: Look,
    made: Across,
    regimes: Sequence[Mapping[str, Any]],
    quantity: str,
    label: str,
    level: float,
) -> None:
    ax.axhline(level, color=look.grey, linewidth=0.9)
    _points(ax, look, made, regimes, quantity, joined=True)
    if quantity == UPDATE:
        ax.set_ylim(0, 2.0)
    _depth_axis(ax, made, label)


def _zigzag(ax: Axes, look: Look, made: Across, regimes: Sequence[Mapping[str, Any]]) -> None:
    ax.axhline(RIGHT, color=look.grey, linewidth=0.9)
    _points(ax, look, made, regimes, SPLIT_PAIR, joined=True)
    _points(ax, look, made, regimes, BETWEEN, joined=True, filled=False)
    ax.set_ylim(0, 2.0)
    _depth_axis(ax, made, "angle (rad)")


def _points(
    ax: Axes,
    look: Look,
    made: Across,
    regimes: Sequence[Mapping[str, Any]],
    quantity: str,
    joined: bool,
    filled: bool = True,
) -> None:
    for i, regime in enumerate(regimes):
        line = made.line(regime, quantity)
        if not line:
            continue
        colour = look.colour(i)
        style = {"color": colour, "marker": marker(i), "markersize": 5, "linewidth": 1.2, "elinewidth": 1}
        style |= {"markerfacecolor": colour if filled else look.page, "linestyle": "-" if joined else "none"}
        ax.errorbar([one.depth for one in line], [one.mean for one in line], _errorbars(line), **style)


def _errorbars(line: Sequence[AtDepth]) -> np.ndarray:
    low = [one.mean - (one.mean if one.low is None else one.low) for one in line]
    high = [(one.mean if one.high is None else one.high) - one.mean for one in line]
    return np.array([low, high])


def _depth_axis(ax: Axes, made: Across, label: str) -> None:
    log_x(ax, sorted({one.depth for one in made.at_depths}))
    ax.set(xlabel="depth l (layers)", ylabel=label)


# --- causal tracing -----------------------------------------------------------------------------------------


def traced_panels(traced: Any) -> list[Panel]:
    """The map of causal tracing: the answer's probability where one block's output at one token is restored."""
    said = (
        f"The probability of {traced.answer.strip()!r} after the prompt with its subject corrupted "
        f"({traced.p_corrupt:.3g}; undisturbed {traced.p_clean:.3g}), where one layer's output at a token is restored."
    )
    return [Panel("traced", "Causal tracing", said, partial(_traced, traced=traced))]


def _traced(ax: Axes, look: Look, traced: Any) -> None:
    image = ax.imshow(np.asarray(traced.restored).T, aspect="auto", cmap="Greys", vmin=0)
    ax.grid(False)
    ax.set(xlabel="layer", yticks=range(len(traced.tokens)))
    starred = range(*traced.subject)
    ax.set_yticklabels([f"{word.strip()}{' *' if i in starred else ''}" for i, word in enumerate(traced.tokens)])
    assert ax.figure is not None
    ax.figure.colorbar(image, ax=ax, label="probability of the answer")
