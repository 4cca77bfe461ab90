"""law.html: one page that says what was fitted, how far it is known, what follows, and what to beware of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import pages
from ..derive import writable
from ..files import write_text
from . import capacity, pictures
from .consequences import best_shape, frontier, ratios_within
from .intervals import Interval, percentiles
from .law import EXPECTED, LETTERS
from .outcome import Consequences, Known, consequences, table_convention
from .published import Published
from .studies import Study

PAGE = "law.html"
TOLERANCE = 0.05  # of the reducible loss: what another shape may cost
WORDS = {
    "width": "width",
    "depth": "layers",
    "tokens": "tokens",
    "parameters": "parameters",
    "tau": "learning rate summed over steps",
}
SYMBOLS = {**LETTERS, "tau": "\N{GREEK SMALL LETTER TAU}"}
BUDGETS = 6  # rows of the table of the frontier


def write(found: Study, out: Path, command: str = "", others: Sequence[Published] = ()) -> list[Path]:
    """Writes law.html and the PNG files of its pictures, each whole or not at all, and returns their paths.

    The page is one file that needs no other, no network and no script.

    Args:
        found: the study.
        out: the folder to write to; it is made if need be.
        command: the one that made it.
        others: published fits of the same table.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        made = pictures.panels(found, others)
        page = pages.render("law.html.j2", **_values(found, made, command, others))
        drawn = pictures.draw(made, out, command)
        write_text(out / PAGE, page)
    return [out / PAGE, *drawn]


def _values(found: Study, made: pictures.Panels, command: str, others: Sequence[Published]) -> dict[str, Any]:
    best, follows = found.fit, found.consequences
    told = "; ".join(f"{name} {value:.3g}" for name, value in best.values.items())
    return {
        "name": found.table.name,
        "command": command,
        "fit": best,
        "variables": _listed(best.law.variables),
        "letters": {WORDS[term.variable]: SYMBOLS[term.variable] for term in best.law.terms},
        "models": len(np.unique(found.table.models())),
        "whole": len(found.whole),
        "dropped": found.dropped,
        "terms": [
            {"letter": SYMBOLS[t.variable], "c": best.values[t.coefficient], "a": best.values[t.exponent]}
            for t in best.law.terms
        ],
        "parameters": _parameters(found),
        "over_models": found.table.clusters() is not None,
        "correlation": _correlation(found),
        "cautions": found.cautions,
        "follows": None if follows is None else _follows(found, follows),
        "compared": [_compared(other, found) for other in found.compared],
        "others": others,
        "pictures": [(pictures.TITLES[stem], pages.pictures(group, told)) for stem, group in made.items()],
        "made": {
            "Table": found.table.name,
            "Seed": found.seed,
            "Bootstrap": f"{len(next(iter(found.draws.values()), ()))} draws",
            "Loss function": "least squares on log loss" + (f", Huber beyond {best.huber:g}" if best.huber else ""),
        },
    }


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# --- the fit ------------------------------------------------------------------------------------------------


def _parameters(found: Study) -> list[dict[str, Any]]:
    """A row for each of the law's numbers: value, error, intervals, and what theory expects of an exponent."""
    best = found.fit
    expected = {term.exponent: EXPECTED[term.variable] for term in best.law.terms}
    return [
        {
            "name": name,
            "value": best.values[name],
            "fixed": name in best.law.fixed,
            "error": best.standard_errors.get(name),
            "profile": ends(found.intervals.get(name)),
            "bootstrap": ends(percentiles(found.draws[name])) if name in best.law.parameters else "",
            "expected": expected.get(name),
        }
        for name in best.law.names
    ]


def ends(interval: Interval | None) -> str:
    """An interval in words; an end that the table leaves open is said to be."""
    if interval is None:
        return ""
    low, high = ("open" if end is None else pages.digits(end) for end in (interval.low, interval.high))
    return "open" if low == high == "open" else f"{low} to {high}"


def _correlation(found: Study) -> dict[str, list[float]]:
    """The lower triangle of the correlations between estimates, a row for each but the first."""
    names = found.fit.law.parameters
    return {name: found.fit.correlation[i, :i].tolist() for i, name in enumerate(names)}


def _compared(other: Any, found: Study) -> dict[str, Any]:
    least = min(one.fit.bic for one in found.compared)
    return {
        "name": other.name,
        "own": other.fit.law == found.fit.law,
        "k": other.fit.k,
        "error": other.fit.relative_error,
        "more_bic": other.fit.bic - least,
        "held_out": other.held_out,
    }


# --- what follows -------------------------------------------------------------------------------------------


def _follows(found: Study, follows: Consequences) -> dict[str, Any]:
    shape = follows.shape
    return {
        "given": follows,
        "m_over_l": known(follows.m_over_l),
        "d_over_n": known(follows.d_over_n),
        "d_over_n_in_table": _in_table(found, follows),
        "exponent": known(follows.compute_exponent),
        "drifts": shape is not None and shape.a_m != shape.a_l,
        "unequal": follows.size.a_N != follows.size.a_D,
        "tolerance": TOLERANCE,
        "tolerable": None
        if shape is None or follows.m_over_l is None
        else [follows.m_over_l.value * end for end in ratios_within(shape, TOLERANCE)],
        "points": _points(found, follows),
        "capacity": _capacity(found, follows),
        "batch_exponent": follows.size.batch_exponent,
    }


def known(value: Known | None) -> dict[str, str] | None:
    """A number, and its interval where that says more than the number."""
    if value is None:
        return None
    interval = value.interval
    told = interval is not None and interval.low != interval.high
    return {"value": pages.digits(value.value), "interval": ends(interval) if told else ""}


def _in_table(found: Study, follows: Consequences) -> dict[str, Any] | None:
    """D/N once more, with parameters as the table counts them, where that is not how the fit counts them."""
    frame = found.table.frame
    if follows.shape is None or follows.d_over_n is None or "parameters" not in frame.columns:
        return None
    parameters, width, depth = (frame[name].to_numpy() for name in ("parameters", "width", "depth"))
    convention = table_convention(parameters, width, depth, found.table.counting)
    draws = {name: found.draws[name] for name in found.fit.law.parameters}
    again = consequences(found.fit.law, found.fit.values, follows.parameters, follows.compute, convention, draws)
    return None if again is None else {"value": known(again.d_over_n), "convention": convention.words}


def _points(found: Study, follows: Consequences) -> list[dict[str, float]]:
    """The frontier at round budgets, from the table's least compute to ten times its greatest."""
    if follows.d_over_n is None:
        return []
    compute = pictures.models_of(found, follows).compute
    powers = np.arange(np.ceil(np.log10(compute.min())), np.ceil(np.log10(compute.max())) + 1.5)
    points = []
    for budget in 10.0 ** powers[-BUDGETS:]:
        best = frontier(follows.size, float(budget))
        row = {"compute": best.compute, "parameters": best.parameters, "tokens": best.tokens, "loss": best.loss}
        if follows.shape is not None:
            model = best_shape(follows.shape, best.parameters)
            row |= {"width": model.width, "depth": model.depth}
        points.append({**row, "beyond": budget > compute.max(), "d_over_n": best.tokens_per_parameter})
    return points


def _capacity(found: Study, follows: Consequences) -> dict[str, Any] | None:
    """The gap between the table's middle and its largest size, and up to which size data alone cannot close it."""
    if follows.d_over_n is None:
        return None
    large = float(pictures.models_of(found, follows).parameters.max())
    if not follows.parameters < large:
        return None
    return {
        "gap": capacity.gap(follows.size, follows.parameters, large),
        "critical": capacity.critical_size(follows.size, large),
    }
