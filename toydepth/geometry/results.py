"""What `toydepth probe` leaves in its folder: arrays, a tidy table, and one object that says it all. Imports no JAX."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..derive import writable
from ..exponents import to_dicts
from ..files import for_json, write_arrays, write_json
from .across import Across
from .interventions import Interventions
from .nulls import NULLS
from .probe import Probed
from .summary import LEVELS
from .verdict import Verdict, judge

QUANTILES = tuple(f"q{round(100 * level):02d}" for level in LEVELS)


@dataclass(frozen=True)
class Results:
    """All that a request came to: what was seen of each subject, its verdict, what depends on depth, what was traced.

    Attributes:
        subjects: what was seen, in order.
        verdicts: one for each.
        across: what depends on depth; None of anything but a sweep.
        traced: the probabilities of causal tracing (`tracing.Traced`); None if nothing was traced.
        skipped: what could not be looked at, and why.
    """

    subjects: Sequence[Probed]
    across: Across | None = None
    traced: Any = None
    skipped: Sequence[str] = ()
    verdicts: Sequence[Verdict] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "verdicts", [judge(found) for found in self.subjects])


def write(results: Results, out: Path, command: str = "", seed: int = 0) -> None:
    """Writes arrays.npz, table.parquet and probe.json into a folder, which is made if need be.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        write_arrays(out / "arrays.npz", arrays(results))
        table(results).write_parquet(out / "table.parquet")
        write_json(out / "probe.json", as_json(results) | {"command": command, "seed": seed})


def slugs(subjects: Sequence[Probed]) -> list[str]:
    """Names for files and arrays, each another one."""
    made: list[str] = []
    for found in subjects:
        slug = re.sub(r"[^A-Za-z0-9._-]+", "-", found.name).strip("-.") or "subject"
        made.append(slug if slug not in made else f"{slug}-{len(made)}")
    return made


def table(results: Results) -> pl.DataFrame:
    """One row per subject, measure, convention, group and layer.

    Columns: subject, kind, depth, layer (the position l; null for what has none), measure, convention (of the last
    state: before or behind the final norm), group (later: all tokens but first ones), mean, sd, q05 ... q95, n; and of
    each null, where it applies, null_<name>_mean, _low, _high.
    """
    rows = [row for found in results.subjects for row in _rows(found)]
    numbers = ("mean", "sd", *QUANTILES, *(f"null_{null}_{part}" for null in NULLS for part in ("mean", "low", "high")))
    words = ("subject", "kind", "measure", "convention", "group")
    schema = dict.fromkeys(words, pl.String) | {"depth": pl.Int64, "layer": pl.Int64, "n": pl.Int64}
    order = ("subject", "kind", "depth", "layer", "measure", "convention", "group", "n", *numbers)
    return pl.DataFrame(rows, schema=schema | dict.fromkeys(numbers, pl.Float64)).select(order)


def _rows(found: Probed) -> list[dict[str, Any]]:
    made = []
    for (measure, convention, group), profile in found.profiles.items():
        alone = len(profile.mean) == 1 and measure in ("loss", "step_middle", "update_middle")
        for l in range(len(profile.mean)):  # noqa: E741
            row: dict[str, Any] = {"subject": found.name, "kind": found.kind, "depth": found.depth}
            row |= {"measure": measure, "convention": convention, "group": group, "layer": None if alone else l}
            row |= {"mean": _number(profile.mean[l]), "sd": _number(profile.sd[l]), "n": int(profile.n[l])}
            row |= {name: _number(profile.quantiles[i, l]) for i, name in enumerate(QUANTILES)}
            if convention == "before" and group == "later":
                for null in NULLS:
                    at = found.nulls.get((null, measure))
                    if at:
                        row |= {f"null_{null}_{part}": _number(v) for part, v in asdict(at[l]).items()}
            made.append(row)
    return made


def arrays(results: Results) -> dict[str, np.ndarray]:
    """Arrays by name: `<subject>.<measure>.<convention>.<group>.mean`, `.sd`, `.quantiles`, `.n`, and so on."""
    made: dict[str, np.ndarray] = {}
    for slug, found in zip(slugs(results.subjects), results.subjects, strict=True):
        for key, profile in found.profiles.items():
            stem = ".".join((slug, *key))
            made |= {f"{stem}.{name}": getattr(profile, name) for name in ("mean", "sd", "quantiles", "n")}
        for (null, measure), at in found.nulls.items():
            made[f"{slug}.null.{null}.{measure}"] = np.array([(one.mean, one.low, one.high) for one in at])
        made[f"{slug}.pairs"] = found.pairs
        for convention, split in found.errors.items():
            made[f"{slug}.errors.{convention}.products"] = split.products
        if (clusters := found.clusters) is not None:
            names = ("explained", "axes", "scores", "late", "first", "even_steps", "early_steps")
            made |= {f"{slug}.clusters.{name}": getattr(clusters, name) for name in names}
    if results.traced is not None:
        made["traced.restored"] = np.asarray(results.traced.restored)
    return made


def as_json(results: Results) -> dict[str, Any]:
    """What is written to probe.json: numbers that are not known are null."""
    pairs = zip(results.subjects, results.verdicts, strict=True)
    record: dict[str, Any] = {"subjects": [_subject(found, verdict) for found, verdict in pairs]}
    record["skipped"] = list(results.skipped)
    if results.across is not None:
        record["across"] = {
            "steps": to_dicts(results.across.steps),
            "at_depths": [asdict(one) for one in results.across.at_depths],
            "differences": [asdict(one) for one in results.across.differences],
        }
    if results.traced is not None:
        record["traced"] = asdict(results.traced)
    return for_json(record)


def _subject(found: Probed, verdict: Verdict) -> dict[str, Any]:
    means = {
        f"{measure}.{convention}.{group}": profile.mean
        for (measure, convention, group), profile in found.profiles.items()
    }
    told: dict[str, Any] = {
        "name": found.name,
        "kind": found.kind,
        "depth": found.depth,
        "width": found.width,
        "converged": found.converged,
        "tokens": found.tokens,
        "means": means,
        "nulls": {f"{null}.{measure}": [asdict(one) for one in at] for (null, measure), at in found.nulls.items()},
        "shuffled_layers": asdict(found.shuffled),
        "zigzag": found.zigzag,
        "verdict": {
            "assembly": verdict.assembly,
            "words": verdict.words,
            "signs": [asdict(sign) for sign in verdict.signs],
        },
    }
    if (clusters := found.clusters) is not None:
        told["clusters"] = {
            "share_early": clusters.share,
            "share_early_of_first": clusters.share_first,
            "share_early_of_later": clusters.share_later,
            "explained": clusters.explained,
            "examples": clusters.examples,
        }
    if found.interventions is not None:
        told["interventions"] = _changes(found.interventions)
    told["errors"] = {
        convention: {name: getattr(split, name) for name in ("R", "A", "C", "low", "high", "common", "residual")}
        for convention, split in found.errors.items()
    }
    return told | {"id": found.id, "fields": dict(found.fields)} if found.id else told


def _changes(made: Interventions) -> dict[str, Any]:
    kinds = list(dict.fromkeys(change.kind for change in made.changes))
    return {
        "loss": made.loss,
        "means": {kind: made.mean(kind) for kind in kinds},
        "lost": {kind: made.share(kind) for kind in kinds},
        "changes": [asdict(change) for change in made.changes],
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
