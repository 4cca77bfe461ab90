"""probe.html and its pictures: what was seen, which signs it shows, and how far that can be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from .. import pages
from ..derive import writable
from ..figures.geometry import across_panels, subject_panels, traced_panels
from ..figures.sheet import sheet
from ..figures.style import Panel, words
from ..files import read_json, write_json, write_text
from .across import BETWEEN, COMMON, QUANTITIES, SPLIT_PAIR, STEP, UPDATE, Across
from .nulls import Null
from .probe import BEHIND, Probed
from .results import Results, slugs
from .verdict import Sign, Verdict

PAGE = "probe.html"
SHOWN = 6  # subjects with pictures of their own
HEADS = {
    STEP: "step (rad)",
    UPDATE: "neighbouring updates (rad)",
    SPLIT_PAIR: "within split pairs",
    BETWEEN: "between them",
    COMMON: "C / (A / l)",
}


def write(results: Results, out: Path, name: str, command: str = "", seed: int = 0) -> list[Path]:
    """Writes probe.html and the PNG files of its pictures, each whole or not at all, and returns their paths.

    The page is one file that needs no other, no network and no script. Pictures that an earlier call left and that no
    longer apply are removed.

    Args:
        results: what came out; its arrays, table and probe.json lie there already (`results.write`).
        out: the folder to write to.
        name: the page's heading.
        command: the one that made it.
        seed: of nulls, samples and random orders.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    groups = panels(results)
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        page = pages.render("probe.html.j2", **_values(results, groups, name, command, seed))
        drawn = [sheet(group, out / f"{stem}.png", command) for stem, (_, group) in groups.items()]
        write_text(out / PAGE, page)
        _note(out, drawn)
    return [out / PAGE, *drawn]


def panels(results: Results) -> dict[str, tuple[str, list[Panel]]]:
    """{stem of a file: (title, its panels)}: across the sweep, then of the subjects that are shown, then traced."""
    made: dict[str, tuple[str, list[Panel]]] = {}
    if results.across is not None and (group := across_panels(results.across, results.subjects)):
        made["across"] = "Across depths", group
    named = dict(zip(slugs(results.subjects), results.subjects, strict=True))
    for slug in _shown(results):
        made[f"subject_{slug}"] = named[slug].name, subject_panels(named[slug])
    if results.traced is not None:
        made["traced"] = "Causal tracing", traced_panels(results.traced)
    return made


def _shown(results: Results) -> list[str]:
    """Of which subjects there are pictures: of a sweep a teacher of each kind and each regime's deepest student."""
    named = dict(zip(slugs(results.subjects), results.subjects, strict=True))
    if len(named) <= 2 or results.across is None:
        return list(named)[:SHOWN]
    chosen: dict[Any, str] = {}
    regimes = results.across.regimes()
    fields = list(dict.fromkeys(name for regime in regimes for name in regime))
    for slug, found in named.items():
        told = tuple(found.fields.get(name) for name in (fields if found.kind == "student" else ("teacher.kind",)))
        key = (found.kind, *told)
        if key not in chosen or found.depth > named[chosen[key]].depth:
            chosen[key] = slug
    return list(chosen.values())[:SHOWN]


def _note(out: Path, drawn: Sequence[Path]) -> None:
    """Notes which pictures there are, and removes those of an earlier call."""
    record, now = read_json(out / "probe.json"), [path.name for path in drawn]
    earlier = read_json(out / "pictures.json").get("pictures", [])
    for stale in {str(name) for name in earlier if isinstance(name, str)} - set(now):
        if Path(stale).name == stale and stale.endswith(".png"):
            (out / stale).unlink(missing_ok=True)
    write_json(out / "pictures.json", {"pictures": now, "command": record.get("command", "")})


def _values(
    results: Results, groups: Mapping[str, tuple[str, list[Panel]]], name: str, command: str, seed: int
) -> dict[str, Any]:
    first = results.subjects[0] if results.subjects else None
    named = dict(zip(slugs(results.subjects), zip(results.subjects, results.verdicts, strict=True), strict=True))
    return {
        "name": name,
        "command": command,
        "what": "" if first is None else "tokens" if first.kind == "model" else "inputs",
        "count": 0 if first is None else first.tokens,
        "models": any(one.kind == "model" for one in results.subjects),
        "subjects": [_row(found, verdict) for found, verdict in named.values()],
        "shown": [
            {
                "name": found.name,
                "verdict": verdict.words,
                "refused": verdict.assembly is None,
                "signs": [_sign(sign) for sign in verdict.signs],
                "errors": _errors(found),
                "clusters": found.clusters,
                "zigzag": found.zigzag,
                "first": found.profile("step", group="first") is not None,
                "pictures": pages.pictures(groups[f"subject_{slug}"][1], found.name),
            }
            for slug, (found, verdict) in named.items()
            if f"subject_{slug}" in groups
        ],
        "across": None if results.across is None else _across(results.across),
        "across_pictures": pages.pictures(groups["across"][1]) if "across" in groups else [],
        "traced": results.traced,
        "traced_pictures": pages.pictures(groups["traced"][1]) if "traced" in groups else [],
        "skipped": results.skipped,
        "made": {"Seed": seed, "Subjects": len(results.subjects)},
    }


def _row(found: Probed, verdict: Verdict) -> dict[str, Any]:
    """A subject's row in the table of all."""
    split, made = found.errors.get(BEHIND), found.interventions
    return {
        "name": found.name,
        "depth": found.depth,
        "converged": found.converged,
        "step": found.number("step_middle"),
        "updates": found.number("update_middle"),
        "shuffled": interval(found.shuffled),
        "lost": None if made is None else made.share("shuffle"),
        "parallel": None if made is None else made.share("parallel"),
        "early": None if found.clusters is None else found.clusters.share,
        "common": None if split is None else split.common,
        "verdict": verdict.assembly,  # its words stand where the subject is shown
    }


def _sign(sign: Sign) -> dict[str, Any]:
    ends = None if sign.interval is None else f"{pages.digits(sign.interval[0])} to {pages.digits(sign.interval[1])}"
    return {
        "assembly": sign.assembly,
        "words": sign.words,
        "value": pages.digits(sign.value),
        "interval": ends or "",
        "null": "" if sign.null is None else interval(sign.null),
        "present": {True: "yes", False: "no", None: "not known"}[sign.present],
    }


def _errors(found: Probed) -> list[dict[str, Any]]:
    where = {"before": "before the final norm", "behind": "behind it"}
    return [
        {
            "convention": where[convention],
            "R": split.R,
            "A": split.A,
            "C": split.C,
            "interval": f"{pages.digits(split.low)} to {pages.digits(split.high)}",
            "common": split.common,
        }
        for convention, split in found.errors.items()
    ]


def _across(made: Across) -> dict[str, Any]:
    regimes = made.regimes()
    there = [quantity for quantity in QUANTITIES if any(one.quantity == quantity for one in made.at_depths)]
    rows = []
    for regime in regimes:
        lines = {quantity: {one.depth: one for one in made.line(regime, quantity)} for quantity in there}
        for depth in sorted({depth for line in lines.values() for depth in line}):
            cells = [lines[quantity].get(depth) for quantity in there]
            rows.append({"regime": words(regime, regimes), "depth": depth, "cells": [_cell(one) for one in cells]})
    return {
        "heads": [HEADS[quantity] for quantity in there],
        "rows": rows,
        "steps": [{"regime": words(one.regime, regimes), "verdict": _law(one)} for one in made.steps],
        "grown": SPLIT_PAIR in there,
        "differences": [
            {
                "larger": words(one.larger, regimes),
                "smaller": words(one.smaller, regimes),
                "depth": one.depth,
                "mean": one.mean,
                "ends": f"{pages.digits(one.low)} to {pages.digits(one.high)}",
            }
            for one in made.differences
        ],
    }


def _law(one: Any) -> dict[str, Any]:
    ends = None if one.ci_low is None else f"{pages.hundredths(one.ci_low)} to {pages.hundredths(one.ci_high)}"
    return {"p": one.alpha, "interval": ends, "x_min": one.x_min, "x_max": one.x_max, "n": one.n_replicates}


def _cell(one: Any) -> dict[str, str]:
    if one is None:
        return {"mean": "", "interval": ""}
    ends = "" if one.low is None else f"{pages.digits(one.low)} to {pages.digits(one.high)}"
    return {"mean": pages.digits(one.mean), "interval": ends}


def interval(null: Null) -> str:
    """A null in words: where 95 % of its draws lie."""
    return f"{pages.digits(null.low)} to {pages.digits(null.high)}" if isfinite(null.low) else pages.DASH
