"""Pictures of a fitted law: its parts against the table, what it misses, and how far its exponents are known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator
from scipy.special import ndtri

from ..laws.consequences import ShapeLaw, best_shape
from ..laws.fitting import Fit
from ..laws.law import EXPECTED, LETTERS, Sizes, Term, Variable
from ..laws.outcome import in_numbers
from .axes import dots, log_axis, power_of_ten, short
from .style import Look, Panel, draw_levels

WORDS: dict[Variable, str] = {
    "width": "width m",
    "depth": "depth l (layers)",
    "tokens": "tokens D",
    "parameters": "parameters N",
    "tau": "tau, learning rate summed over steps",
}
SYMBOLS: dict[Variable, str] = {**LETTERS, "tau": r"\tau"}
COLOURS: dict[Variable, int] = {"width": 0, "depth": 1, "tokens": 2, "tau": 2, "parameters": 3}
LEVELS = {1.0: "68 %", 3.841: "95 %"}  # quantiles of chi-square with one degree of freedom
BINS = 8

Profile = tuple[Float[np.ndarray, " values"], Float[np.ndarray, " values"]]  # values, delta chi-square
Published = tuple[str, float, float]  # whose, value, delta chi-square


# --- parts and residuals ------------------------------------------------------------------------------------


def part_panels(fit: Fit, sizes: Sizes, loss: Float[np.ndarray, " rows"]) -> list[Panel]:
    """For each term of a law, the measured loss less all that the other terms explain, against the term's size."""
    parts = fit.law.parts(sizes, fit.values)
    rest = loss - fit.predict(sizes)
    return [
        Panel(
            f"law_part_{term.variable}",
            f"The part of {term.variable}",
            "Points: measured loss less what the other terms explain. Lines: the fitted terms.",
            partial(
                _part,
                term=term,
                formula=_formula(fit, term),
                x=np.asarray(sizes[term.variable], float),
                part=parts[term.variable],
                rest=rest,
            ),
        )
        for term in fit.law.terms
    ]


def _formula(fit: Fit, term: Term) -> str:
    c, a = fit.values[term.coefficient], f"{fit.values[term.exponent]:.3g}"
    return rf"${power_of_ten(c, 3)}\,/\,{SYMBOLS[term.variable]}" + ("$" if a == "1" else f"^{{{a}}}$")


def _part(ax: Axes, look: Look, term: Term, formula: str, x: np.ndarray, part: np.ndarray, rest: np.ndarray) -> None:
    colour, measured = look.colour(COLOURS[term.variable]), part + rest
    order = np.argsort(x)
    dots(ax, x, measured, colour)
    ax.plot(x[order], part[order], color=look.ink, linewidth=1.5)
    low = max(part.min() / 4, min(measured[measured > 0], default=part.min()) / 1.2)
    ax.set_ylim(low, max(measured.max(), part.max()) * 1.25)
    log_axis(ax, "x", x.min(), x.max())
    log_axis(ax, "y", *ax.get_ylim())
    hidden = int((measured < low).sum())
    if hidden:
        ax.text(0.02, 0.02, f"{hidden} of {len(x)} below", transform=ax.transAxes, fontsize=8, color=look.grey)
    ax.text(0.97, 0.96, formula, transform=ax.transAxes, ha="right", va="top", fontsize=11)
    ax.set(xlabel=WORDS[term.variable], ylabel="loss less the other terms")


def residual_panels(fit: Fit, sizes: Sizes) -> list[Panel]:
    """What the law misses: against the fitted loss and against each size, and whether it is normally distributed."""
    against = {"loss": ("fitted loss", fit.predict(sizes), 6)}
    against |= {v: (WORDS[v], np.asarray(sizes[v], float), COLOURS[v]) for v in fit.law.variables}
    caption = (
        "Residuals of log loss in per cent, measured less fitted. Line and bars: means of neighbouring rows, about an "
        "eighth of them each, with two standard errors; away from zero they tell of a trend that the law misses."
    )
    panels = [
        Panel(
            f"law_residuals_{name}",
            f"Residuals against {name}",
            caption,
            partial(_residuals, residuals=100 * fit.residuals, x=x, label=label, colour=colour),
        )
        for name, (label, x, colour) in against.items()
    ]
    quantiles = "Residuals in order against those of a normal distribution with their spread (line)."
    return [
        *panels,
        Panel("law_quantiles", "Residuals and a normal distribution", quantiles, partial(_quantiles, fit=fit)),
    ]


def _residuals(ax: Axes, look: Look, residuals: np.ndarray, x: np.ndarray, label: str, colour: int) -> None:
    ax.axhline(0, color=look.grey, linewidth=1)
    dots(ax, x, residuals, look.colour(colour))
    which = np.searchsorted(
        np.unique(np.quantile(x, np.linspace(0, 1, BINS + 1)[1:-1])), x
    )  # equal sizes stay together
    bins = [rows for i in range(BINS) if len(rows := np.flatnonzero(which == i)) > 2]
    middle = [np.exp(np.log(x[rows]).mean()) for rows in bins]
    mean = [residuals[rows].mean() for rows in bins]
    error = [2 * residuals[rows].std(ddof=1) / np.sqrt(len(rows)) for rows in bins]
    ax.errorbar(middle, mean, error, color=look.ink, linewidth=1.3, elinewidth=1, marker="o", markersize=3.5)
    log_axis(ax, "x", x.min(), x.max())
    ax.set(xlabel=label, ylabel="residual of log loss (%)")


def _quantiles(ax: Axes, look: Look, fit: Fit) -> None:
    ordered = 100 * np.sort(fit.residuals)
    normal = ndtri((np.arange(fit.n) + 0.5) / fit.n)
    dots(ax, normal, ordered, look.colour(6))
    ax.plot(normal, ordered.mean() + ordered.std() * normal, color=look.ink, linewidth=1.2)
    ax.set(xlabel="standard normal quantile", ylabel="residual of log loss (%)")


# --- profiles and the exclusion scan ------------------------------------------------------------------------


def profile_panels(
    fit: Fit, profiles: Mapping[str, Profile], published: Mapping[str, Sequence[Published]] | None = None
) -> list[Panel]:
    """For each profiled exponent, how much worse the best fit gets when it is held at other values.

    Args:
        fit: the free fit.
        profiles: {exponent: (values, delta chi-square)}.
        published: {exponent: values of other people's fits, and how much worse all of their numbers fit this table}.
    """
    caption = (
        "Delta chi-square with one exponent held at a value and all else fitted anew (its axis is a square root: a "
        "parabola is a wedge). Dashed: the value of theory."
    ) + (" Open: published fits, with all their numbers." if any((published or {}).values()) else "")
    terms = {term.exponent: term for term in fit.law.terms}
    return [
        Panel(
            f"law_profile_{terms[name].variable}",
            f"Exponent of {terms[name].variable}",
            caption,
            partial(_profile, fit=fit, term=terms[name], profile=profile, others=(published or {}).get(name, ())),
        )
        for name, profile in profiles.items()
    ]


def _symbol(term: Term) -> str:
    return f"a_{{{SYMBOLS[term.variable]}}}"


def _profile(ax: Axes, look: Look, fit: Fit, term: Term, profile: Profile, others: Sequence[Published]) -> None:
    colour, expected = look.colour(COLOURS[term.variable]), EXPECTED[term.variable]
    values, delta = profile
    draw_levels(ax, look, LEVELS)
    ax.axvline(expected, color=look.grey, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    ax.plot(values, np.maximum(delta, 0), color=colour, linewidth=1.8)
    ax.plot(fit.values[term.exponent], 0, "o", color=colour, markersize=6, clip_on=False, zorder=4)
    for whose, value, worse in others:
        ax.plot(value, worse, "D", color=look.ink, markerfacecolor="none", markersize=5.5, zorder=4)
        box = {"facecolor": look.page, "edgecolor": "none", "pad": 1}
        at = (value, worse), (7, 6), "data", "offset points"
        ax.annotate(f"{whose} {value:.4g}", *at, fontsize=8.5, bbox=box, zorder=3)
    ax.set_yscale("function", functions=(lambda y: np.sqrt(np.maximum(y, 0)), np.square))
    ax.set_ylim(0, max(10.0, min(60.0, float(np.max(delta)))))
    ax.yaxis.set_major_locator(FixedLocator([tick for tick in (0, 1, 4, 10, 20, 30, 50) if tick <= ax.get_ylim()[1]]))
    ax.yaxis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_locator(MaxNLocator(6))
    ax.set(xlabel=f"exponent of {term.variable}, ${_symbol(term)}$", ylabel="delta chi-square")


def scan_panels(scan: Mapping[int, Fit], fixed: Mapping[int, Fit], chosen: int, parameters: float) -> list[Panel]:
    """What the fit would be, had other numbers of rows with the highest losses been dropped.

    Args:
        scan: {how many are dropped: the fit to the rest}.
        fixed: the same with the exponents of theory; shown where it is another law.
        chosen: how many the fit on this page drops.
        parameters: the size that the best shape is told for.
    """
    panels = []
    dropped = "how many rows with the highest losses are dropped"
    if scan and next(iter(scan.values())).law.free_exponents:
        caption = f"Fitted exponents against {dropped}, with one standard error. Dashed: theory."
        draw = partial(_exponents, scan=scan, chosen=chosen)
        panels.append(Panel("law_scan_exponents", "Exponents and what is dropped", caption, draw))
    shapes = {_held(some): _best_ratios(some, parameters) for some in (scan, fixed) if some}
    if any(shapes.values()):
        caption = f"The best m/l at {short(parameters)} parameters against {dropped}."
        draw = partial(_ratios, shapes=shapes, chosen=chosen)
        panels.append(Panel("law_scan_shape", "The best shape and what is dropped", caption, draw))
    return panels


def _held(scan: Mapping[int, Fit]) -> str:
    """What is held in a scan's law, in words."""
    law = next(iter(scan.values())).law
    held = [f"{law.fixed[name]:.3g}" if name in law.fixed else "free" for name in law.exponents]
    return "free exponents" if set(held) == {"free"} else "exponents " + ", ".join(held)


def _best_ratios(scan: Mapping[int, Fit], parameters: float) -> dict[int, float]:
    laws = {count: in_numbers(fit.law, fit.values) for count, fit in scan.items()}
    return {n: float(best_shape(law, parameters).ratio) for n, law in laws.items() if isinstance(law, ShapeLaw)}


def _exponents(ax: Axes, look: Look, scan: Mapping[int, Fit], chosen: int) -> None:
    law = next(iter(scan.values())).law
    counts, shown = np.array(list(scan)), []
    for term in law.terms:
        if term.exponent in law.fixed:
            continue
        colour = look.colour(COLOURS[term.variable])
        value = np.array([fit.values[term.exponent] for fit in scan.values()])
        error = np.array([fit.standard_errors[term.exponent] for fit in scan.values()])
        error = np.where(np.isfinite(error), error, np.nan)
        ax.axhline(EXPECTED[term.variable], color=colour, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
        ax.fill_between(counts, value - error, value + error, color=colour, alpha=0.15, linewidth=0)
        ax.plot(counts, value, color=colour, linewidth=1.6, marker="o", markersize=4)
        at = (counts[-1], value[-1]), (6, 0), "data", "offset points"
        ax.annotate(f"${_symbol(term)}$", *at, va="center", color=colour)
        shown += [*value, EXPECTED[term.variable]]
    ax.set(xlabel="rows dropped", ylabel="exponent", ylim=(0, 1.2 * max(shown)))
    _mark(ax, look, chosen)


def _ratios(ax: Axes, look: Look, shapes: Mapping[str, Mapping[int, float]], chosen: int) -> None:
    for (name, ratios), colour, mark in zip(shapes.items(), (3, 6), "os", strict=False):
        ax.plot(*zip(*ratios.items(), strict=True), f"-{mark}", color=look.colour(colour), markersize=4, label=name)
    middle = float(np.median([ratio for ratios in shapes.values() for ratio in ratios.values()]))
    ax.set(xlabel="rows dropped", ylabel="best width / depth", ylim=(0, 2 * middle))
    ax.legend(loc="lower left")
    _mark(ax, look, chosen)


def _mark(ax: Axes, look: Look, chosen: int) -> None:
    """Where the fit on the page stands."""
    ax.axvline(chosen, color=look.grey, linewidth=1, linestyle=(0, (1, 2)), zorder=1)
    ax.annotate("this fit", (chosen, 1), (4, -3), ("data", "axes fraction"), "offset points", va="top", color=look.grey)
