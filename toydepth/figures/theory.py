"""The panels of theory: a softmax head that grows along its teacher, and what is expected beside measured points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import inf

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogFormatterSciNotation, LogLocator

from ..theory.softmax import Curves, Slope, course, crossover, exponents, rate
from ..theory.superposition import least_overlap, random_overlap
from .style import Look, Panel, log_x, marker, say_if_empty

Points = tuple[np.ndarray, np.ndarray]

LOSS, FORCE = 0, 1  # colours
LOWEST = 1e-3  # shown of L and -dL/dbeta
DASHED = (0, (4, 3))


# --- a softmax head along its teacher -----------------------------------------------------------------------


def softmax_panels(found: Sequence[Curves]) -> list[Panel]:
    """L and -dL/dbeta, and U, against beta (arXiv 2602.03685, Fig. 3); `found` is for teachers of any beta_star."""
    coldest = max(found, key=lambda curves: curves.beta_star)
    fits = exponents(coldest)
    window = _window(found, coldest, fits) if fits else "No teacher is cold enough for a power law."
    return [
        Panel(
            "theory_loss",
            "Loss of a student along its teacher",
            f"KL and its derivative for logits beta u and beta* u, means over {len(coldest.loss)} draws of W. {window}",
            partial(_loss_and_force, found=found, coldest=coldest, fits=fits),
        ),
        Panel(
            "theory_energy",
            "Mean energy",
            "The Boltzmann mean energy U(beta) of the outputs, mean over draws of W: -beta below the crossover "
            "c0 = sqrt(2 ln n), then the lowest of n energies.",
            partial(_energy, found=coldest),
        ),
    ]


def _loss_and_force(
    ax: Axes, look: Look, found: Sequence[Curves], coldest: Curves, fits: tuple[Slope, Slope] | None
) -> None:
    stars = sorted({curves.beta_star for curves in found})
    shades = dict(zip(stars, np.linspace(0.35, 1, len(stars)) if len(stars) > 1 else [1.0], strict=True))
    for curves in found:
        for values, i in ((curves.loss, LOSS), (curves.force, FORCE)):
            colour = look.mix(look.colour(i), shades[curves.beta_star])
            ax.plot(curves.beta, values.mean(0), color=colour, linewidth=1)
    for slope, values, i in zip(fits or (), (coldest.loss, coldest.force), (LOSS, FORCE), strict=False):
        ends = np.array([slope.low, slope.high])
        middle = np.exp(np.log(ends).mean())
        level = np.exp(np.interp(np.log(middle), np.log(coldest.beta), np.log(values.mean(0))))
        ax.plot(ends, level * (ends / middle) ** -slope.alpha, color=look.colour(i), linewidth=3, alpha=0.9)
        name = ("L", r"-dL/d\beta")[i]
        x, at, ha = ((middle, (8, 5), "left"), (slope.low, (-6, -6), "right"))[i]  # clear of curves and of c0
        label = rf"${name} \sim \beta^{{-{slope.alpha:.2f}}}$"
        ax.annotate(label, (x, level), at, textcoords="offset points", ha=ha, color=look.colour(i))
    log_x(ax, [])
    _mark_crossover(ax, look, coldest.outputs)
    ax.set(xlabel=r"$\beta$", ylabel=r"$L$ and $-dL/d\beta$", yscale="log")
    ax.set_ylim(bottom=LOWEST)
    shown = stars if len(stars) <= 4 else [stars[0], stars[-1]] if stars[-1] < inf else [stars[0], *stars[-2:]]
    ax.legend(
        handles=[Line2D([], [], color=look.mix(look.ink, shades[star]), label=_star(star)) for star in shown],
        loc="lower left",
    )


def _energy(ax: Axes, look: Look, found: Curves) -> None:
    ax.plot(found.beta, found.energy.mean(0), color=look.colour(LOSS), linewidth=2)
    lowest = float(found.energy.mean(0)[-1])
    line = np.geomspace(found.beta[0], -1.2 * lowest, 100)
    ax.plot(line, -line, color=look.grey, linewidth=1, linestyle=DASHED)
    ax.annotate(r"$-\beta$", (line[-1], -line[-1]), (5, 0), textcoords="offset points", color=look.grey, va="center")
    at = (found.beta[-1], lowest), (0, -6), "data", "offset points"
    ax.annotate(f"${lowest:.2f}$", *at, ha="right", va="top", color=look.colour(LOSS))
    log_x(ax, [])
    _mark_crossover(ax, look, found.outputs)
    ax.set(xlabel=r"$\beta$", ylabel=r"mean energy $U(\beta)$")


def _mark_crossover(ax: Axes, look: Look, outputs: int) -> None:
    c0 = crossover(outputs)
    ax.axvline(c0, color=look.grey, linewidth=1, linestyle=DASHED, zorder=1)
    label = rf"$c_0 = {c0:.2f}$"
    ax.annotate(label, (c0, 1), (4, -2), ("data", "axes fraction"), "offset points", va="top", color=look.grey)


def _star(beta_star: float) -> str:
    return r"$\beta^* = \infty$" if beta_star == inf else rf"$\beta^* = {beta_star:.3g}$"


def _window(found: Sequence[Curves], coldest: Curves, fits: tuple[Slope, Slope]) -> str:
    """The window and its exponents, also those of the coldest teacher that is not at zero temperature."""
    said = (
        f"Thick: the fitted window, {fits[0].low:.3g} to {fits[0].high:.3g}. At beta* = {coldest.beta_star:.3g}: "
        f"{_said('L', fits[0])}; {_said('-dL/dbeta', fits[1])}."
    )
    other = max((c for c in found if c.beta_star < inf), key=lambda curves: curves.beta_star, default=coldest)
    others = exponents(other) if other is not coldest else None
    if others is None:
        return said
    return f"{said} At beta* = {other.beta_star:.3g}: {others[0].alpha:.2f} and {others[1].alpha:.2f}."


def _said(name: str, slope: Slope) -> str:
    interval = "" if slope.ci_low is None or slope.ci_high is None else f" [{slope.ci_low:.2f}, {slope.ci_high:.2f}]"
    return f"{name} {slope.alpha:.2f}{interval}, R2 {slope.r2:.4f}"


# --- beside measured points ---------------------------------------------------------------------------------


def course_panel(found: Curves, measured: Mapping[str, Points]) -> Panel:
    """Measured losses against tau, each with the course of the theory at the c_eff that fits it best.

    Args:
        found: the theory at the beta_star of all that is measured.
        measured: labels, and tau and loss; what has no loss in the theory's range is drawn without a line.
    """
    rates = {label: _rate(found, *points) for label, points in measured.items()}
    draw = partial(_course, found=found, measured=list(measured.values()), rates=list(rates.values()))
    caption = "Points: measured. Lines: the theory of an aligned student, with one free constant each, c_eff."
    names = [label if c is None else f"{label}: c_eff {c:.2g}" for label, c in rates.items()]
    return Panel("theory_course", "Loss against tau beside theory", caption, draw, list(enumerate(names)))


def missing_panel(measured: Mapping[str, Points]) -> Panel:
    """Loss against <v^2> sum p_i over the unrepresented features, per label; weak superposition has them equal."""
    draw = partial(_missing, measured=list(measured.values()))
    caption = "Loss against the part of it that unrepresented features owe. Dashed: equal, as in weak superposition."
    return Panel("loss_vs_missing", "Loss against what is left out", caption, draw, list(enumerate(measured)))


def overlap_panel(measured: Mapping[str, Points], features: int) -> Panel:
    """Mean squared overlap of represented rows against the width, per label."""
    draw = partial(_overlap, measured=list(measured.values()), features=features)
    caption = (
        "Mean squared overlap of the represented rows of W. Dashed: 1 / width, directions without preference. "
        f"Dotted: the least that {features:,} directions can have (Welch)."
    )
    return Panel("overlap_vs_width", "Overlap against width", caption, draw, list(enumerate(measured)))


def _rate(found: Curves, tau: np.ndarray, loss: np.ndarray) -> float | None:
    try:
        return rate(found, tau, loss)
    except ValueError:
        return None


def _course(ax: Axes, look: Look, found: Curves, measured: Sequence[Points], rates: Sequence[float | None]) -> None:
    for i, ((tau, loss), c_eff) in enumerate(zip(measured, rates, strict=True)):
        _scatter(ax, look, i, (tau, loss))
        if c_eff is not None:
            times, _, known = course(found, c_eff)
            inside = (times >= np.min(tau[tau > 0]) / 2) & (times <= 2 * np.max(tau))
            ax.plot(times[inside], known[inside], color=look.colour(i), linewidth=1.3)
    _log_log(ax, "tau", "evaluation loss")
    say_if_empty(ax, look, "no evaluations")


def _missing(ax: Axes, look: Look, measured: Sequence[Points]) -> None:
    for i, points in enumerate(measured):
        _scatter(ax, look, i, points)
    values = [float(x) for points in measured for xs in points for x in xs if x > 0]
    if values:
        ends = [min(values) / 1.3, max(values) * 1.3]
        ax.plot(ends, ends, color=look.grey, linewidth=1, linestyle=DASHED, zorder=1)
    _log_log(ax, r"$\langle v^2 \rangle \sum\, p_i$ of unrepresented features", "evaluation loss")
    say_if_empty(ax, look, "no runs")


def _overlap(ax: Axes, look: Look, measured: Sequence[Points], features: int) -> None:
    for i, points in enumerate(measured):
        _scatter(ax, look, i, points)
    widths = sorted({float(width) for xs, _ in measured for width in xs})
    if widths:
        line = np.geomspace(widths[0] / 1.2, widths[-1] * 1.2, 100)
        ax.plot(line, random_overlap(line), color=look.grey, linewidth=1, linestyle=DASHED, zorder=1)
        least = [least_overlap(features, width) for width in line]
        ax.plot(line, least, color=look.grey, linewidth=1, linestyle=":", zorder=1)
    _log_log(ax, "width", "mean squared overlap")
    log_x(ax, widths)
    say_if_empty(ax, look, "no runs")


def _scatter(ax: Axes, look: Look, i: int, points: Points) -> None:
    ax.plot(*points, marker(i), color=look.colour(i), markersize=4.5, markeredgewidth=0, alpha=0.8)


def _log_log(ax: Axes, x: str, y: str) -> None:
    ax.set(xlabel=x, ylabel=y, xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator())
        axis.set_major_formatter(LogFormatterSciNotation())
