"""report.html: one page that says what a sweep found, what it could not show, and what it rests on. Imports no JAX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from . import figures, files, pages, store
from .config import ConfigError
from .derive import Derived, derive
from .exponents import CONVERGED_ABOVE, Exponent, fitted, usable
from .figures.style import last, of_published_teachers, schemes, size_name, words
from .fit_options import FitOptions
from .powerlaw import welch_interval
from .regimes import CURVES, DEPTH, SEEDS, varying
from .remarks import remarks
from .schemes import ORDERS

PAGE = "report.html"
RATE = "optimizer.lr"
MOST_FINDINGS = 8  # regimes that get a sentence each; more are summed up
NARROW, UNEVEN, POOR = 3.0, 0.5, 0.9  # range of x, spread of local slopes, R2: beyond these, a word of caution


def make(folder: Path, options: FitOptions | None = None, out: Path | None = None) -> Path:
    """Fits a sweep's folder, as `derive` does, and writes its page; without exponents where no run has finished.

    Raises:
        ConfigError: there is no such folder, it has no runs, or the options do not go with them.
    """
    runs = store.collect(folder)
    if runs.is_empty() or usable(runs).height:
        return write(derive(folder, options, out))
    return write(Derived(folder, out or folder, options or FitOptions(), runs, [], store.provenance(folder, runs)))


def write(derived: Derived) -> Path:
    """Writes report.html, whole or not at all: one file that needs no other, no network and no script.

    Args:
        derived: what a sweep's folder came to; the page lists all runs of that folder, fitted or not.

    Returns:
        The page's path, in `derived.out`.
    """
    every, histories = store.collect(derived.folder), store.histories(derived.folder)
    page = pages.render(
        "report.html.j2",
        name=derived.folder.resolve().name,
        options=derived.asked,
        fitted=derived.runs.height,
        **_found(derived, every),
        remarks=remarks(derived.runs, histories),
        pictures=_pictures(derived, histories),
        **_settings(derived.folder, every),
        **_runs(every),
        made=_made(derived.folder, every),
    )
    path = derived.out / PAGE
    try:
        derived.out.mkdir(parents=True, exist_ok=True)
        files.write_text(path, page)
    except OSError as error:
        raise ConfigError(f"--out {derived.out}: cannot be written to: {error.strerror}") from error
    return path


# --- what was found -----------------------------------------------------------------------------------------


def _found(derived: Derived, every: pl.DataFrame) -> dict[str, Any]:
    fits = derived.fits
    known = [e for e in fits if e.alpha is not None]
    limits = _limits(derived, every)
    return {
        "size": size_name(fits),
        "is_depth": not fits or fits[0].variable == DEPTH,
        "counts": dict(Counter(every["status"]).most_common()),
        "regimes": [
            {
                "fit": e,
                "label": _label(e, fits),
                "state": e.verdict.partition(": ")[0] if e.alpha is not None else e.verdict,
                "notes": e.verdict.partition("; ")[2] if e.alpha is not None else "",
                "key": " ".join(f"{x:.2f},{y:.2f}" for x, y in figures.outline(i)),
                "colour": i % len(figures.LIGHT.colours),
            }
            for i, e in enumerate(fits)
        ],
        "extremes": [
            {"fit": e, "label": _label(e, fits)}
            for e in (sorted(known, key=lambda e: e.alpha or 0.0)[:: max(1, len(known) - 1)] if known else [])
        ],
        "most_findings": MOST_FINDINGS,
        "difference": _difference(known),
        "expected": _expected(known, derived.runs),
        "limits": limits,
        "sound": "" if limits else _sound(derived, every),
    }


def _difference(known: Sequence[Exponent]) -> tuple[float, float, float] | None:
    """By how much the exponents of two regimes differ, and its interval; None for other numbers of regimes."""
    if len(known) != 2 or any(len(e.alphas) < 2 for e in known):
        return None
    low, high = sorted(known, key=lambda e: e.alpha or 0.0)
    return ((high.alpha or 0.0) - (low.alpha or 0.0), *welch_interval(low.alphas, high.alphas))


def _expected(known: Sequence[Exponent], runs: pl.DataFrame) -> dict[str, int] | None:
    """The schemes of the students and their orders, where anything is known of what to expect: else None."""
    if not known or not of_published_teachers(known, runs):
        return None
    found = schemes(known, runs) or {"euler"}
    return {scheme: order for scheme, order in ORDERS.items() if scheme in found}


def _sound(derived: Derived, every: pl.DataFrame) -> str:
    """What holds where there are no limits to tell of: all fitted runs had converged, all runs are done."""
    if (every["converged"].eq_missing(True)).all():
        return "All runs are done and had converged, and every regime has an interval."
    known = pl.concat([fitted(derived.runs, e) for e in derived.fits])
    rest = Counter(every.join(known, on="id", how="anti")["converged"])
    ends = {True: "had converged", False: "had not converged", None: "not known (no twin's result)"}
    counts = ", ".join(f"{rest[end]} {said}" for end, said in ends.items() if rest[end])
    return (
        f"All {known.height} fitted runs had converged, and every regime has an interval. "
        f"Of the other runs in this folder {counts}."
    )


def _limits(derived: Derived, every: pl.DataFrame) -> list[str]:
    """What the numbers cannot carry, in sentences."""
    fits = derived.fits
    known = [e for e in fits if e.alpha is not None]
    size = size_name(fits)

    def of(*which: Exponent) -> str:
        if len(which) == len(fits):
            return "all regimes" if len(fits) > 1 else "the exponent"
        return "; ".join(_label(e, fits) for e in which[:4]) + (f" and {len(which) - 4} more" if len(which) > 4 else "")

    moving = [e for e in known if e.verdict.startswith("still")]
    loose = [e for e in known if e.converged is not None and e.converged < 1 and e not in moving]
    blind = [e for e in known if e.converged is None and e.variable not in CURVES]
    told = [fitted(derived.runs, e) for e in known if e.converged is not None]
    unknown = [run for rows in told for run in rows.filter(pl.col("converged").is_null())["id"]]
    few = ", ".join(unknown[:4]) + (f" and {len(unknown) - 4} more" if len(unknown) > 4 else "")
    single = [e for e in known if e.ci_low is None]
    narrow = [e for e in known if (e.x_max or 0.0) < NARROW * (e.x_min or 1.0)]
    bent = [e for e in known if max(m := [s.mean for s in e.local_slopes], default=0) - min(m, default=0) > UNEVEN]
    poor = [e for e in known if e.r2 is not None and e.r2 < POOR]
    without = [e for e in fits if e.alpha is None]
    counts = {status: n for status, n in Counter(every["status"]).most_common() if status != "done"}
    copies = [e for e in known if e.variable == DEPTH and _copy(fitted(derived.runs, e))]
    said = {
        "No run has finished yet." if not fits else "There is no exponent to report.": not known,
        f"Where the exponents end: they still move with the budget ({of(*moving)}), so they are bounds.": moving,
        f"Convergence of every run: some were still improving with the budget ({of(*loose)}).": loose,
        f"Whether training had converged: there are no twins at half the budget to tell ({of(*blind)}).": blind,
        f"Whether all fitted runs had converged: of {len(unknown)} it is not known, "
        f"without a twin's result ({few}).": unknown,
        f"How far chance reaches: one replicate gives no interval ({of(*single)}).": single,
        f"A wide range: {size} spans less than a factor of {NARROW:g} ({of(*narrow)}).": narrow,
        f"One power law over the whole range: local slopes differ by more than {UNEVEN} ({of(*bent)}).": bent,
        f"A good fit: R² is below {POOR} ({of(*poor)}).": poor,
        f"An exponent at all for {of(*without)}: {_why_none(without)}.": without and known,
        f"One law for all learning rates: {_rates(known)}.": _rates(known),
        f"Students shallower than their teacher alone: some are as deep and could copy it "
        f"layer by layer ({of(*copies)}).": copies,
        "The runs that are not done: " + ", ".join(f"{n} {status}" for status, n in counts.items()) + ".": counts,
    }
    return [sentence for sentence, holds in said.items() if holds]


def _why_none(without: Sequence[Exponent]) -> str:
    """Why there is no exponent, for regimes that have none."""
    if all(e.variable in CURVES for e in without):
        return "no part of these curves is a power law"
    return f"too few values of {size_name(without)} are done, or the floor is lost"


def _rates(known: Sequence[Exponent]) -> str:
    """How the exponents of curves depend on the learning rate, in words; empty if they do not."""
    rates: dict[str, list[tuple[float, Exponent]]] = {}
    for e in known:
        if e.variable in CURVES and e.regime.get(RATE) is not None:
            others = str({name: value for name, value in e.regime.items() if name != RATE})
            rates.setdefault(others, []).append((e.regime[RATE], e))
    for found in rates.values():
        alphas = [e.alpha or 0.0 for _, e in found]
        if max(alphas) - min(alphas) > UNEVEN / 5:
            (low, first), (high, final) = min(found, key=lambda f: f[0]), max(found, key=lambda f: f[0])
            return (
                f"the exponent goes from {first.alpha:.2f} at {RATE} {low:g} to {final.alpha:.2f} at {high:g}, "
                "so that of one well-placed rate is not the law's"
            )
    return ""


def _copy(runs: pl.DataFrame) -> bool:
    """Whether a run's student is as deep as its published teacher."""
    if not {"teacher.depth", "teacher.kind"} <= set(runs.columns):
        return False
    published = ~pl.col("teacher.kind").str.contains(":", literal=True)
    return runs.filter(published & (pl.col(DEPTH) >= pl.col("teacher.depth"))).height > 0


def _label(e: Exponent, fits: Sequence[Exponent]) -> str:
    return words(e.regime, [other.regime for other in fits])


# --- pictures -----------------------------------------------------------------------------------------------


def _pictures(derived: Derived, histories: Mapping[str, pl.DataFrame]) -> list[dict[str, str]]:
    fits = derived.fits
    found = [f"{_label(e, fits)} {e.alpha:.2f}" for e in fits[:MOST_FINDINGS] if e.alpha is not None]
    told = f"exponents: {'; '.join(found)}{' ...' if len(fits) > MOST_FINDINGS else ''}" if found else ""
    return pages.pictures(figures.panels(fits, derived.runs, histories, store.pictured(derived.folder)), told)


# --- settings, runs, provenance -----------------------------------------------------------------------------


def _settings(folder: Path, runs: pl.DataFrame) -> dict[str, Any]:
    """The values of every field in use, by section; of the table where sweep.json is lost."""
    record = files.read_json(folder / "sweep.json")
    fixed, swept = record.get("fixed"), record.get("swept")
    if isinstance(fixed, dict) and isinstance(swept, dict):
        values = {name: [value] for name, value in fixed.items()} | swept
    else:
        names = [name for name in runs.columns if "." in name or name in ("problem", "seed")]
        values = {name: runs[name].unique(maintain_order=True).to_list() for name in names}
    sections: dict[str, dict[str, list[Any]]] = {}
    for name, found in values.items():
        used = [value for value in found if value is not None]
        if used:
            sections.setdefault(name.rpartition(".")[0] or "run", {})[last(name)] = sorted(used, key=_order)
    commands = record.get("commands") or [record["command"]] if "command" in record else []
    return {"sections": sections, "commands": list(dict.fromkeys(commands))}


def _order(value: Any) -> tuple[bool, Any]:
    number = isinstance(value, int | float)
    return (not number, value if number else str(value))


def _runs(runs: pl.DataFrame) -> dict[str, Any]:
    """The table of runs, and what had not converged or went wrong."""
    seeds = [name for name in SEEDS if name in runs.columns and runs[name].n_unique() > 1]
    if len(seeds) == 2 and runs[seeds[0]].eq_missing(runs[seeds[1]]).all():
        seeds = seeds[:1]  # a teacher's seed is the run's unless it is given
    fields = varying(runs) + seeds
    slope = pl.col("slope").cast(pl.Float64)
    return {
        "fields": fields,
        "runs": runs.to_dicts(),
        "short": {name: last(name) if [last(n) for n in fields].count(last(name)) == 1 else name for name in fields},
        "unconverged": runs.filter((pl.col("status") == "done") & (slope <= CONVERGED_ABOVE)).sort("slope").to_dicts(),
        "twinless": runs.filter((pl.col("status") == "done") & slope.is_null()).height,
        "ended_badly": runs.filter(pl.col("status").is_in(["diverged", "failed"])).to_dicts(),
        "converged_above": CONVERGED_ABOVE,
    }


def _made(folder: Path, runs: pl.DataFrame) -> dict[str, str]:
    """Versions, devices, commits, time and FLOPs of the finished runs and their twins."""
    results = [files.read_json(store.run_folder(folder, run) / "result.json") for run in runs["id"]]
    twins = [files.read_json(store.run_folder(folder, run + store.TWIN) / "result.json") for run in runs["id"]]
    versions: dict[str, set[str]] = {}
    for result in results:
        for package, found in (result.get("versions") or {}).items():
            versions.setdefault(package, set()).add(str(found))
    said = {name: sorted({str(r[name]) for r in results if r.get(name)}) for name in ("device", "commit", "batching")}
    total = {name: sum(r.get(name) or 0.0 for r in results + twins) for name in ("seconds", "flops")}
    return {
        "Devices": ", ".join(said["device"]),
        "Commit": ", ".join(said["commit"]),
        "Batching": ", ".join(said["batching"]),
        "Training time": f"{_duration(total['seconds'])} (runs and twins, without compilation)"
        * bool(total["seconds"]),
        "Computation": f"{total['flops']:.3g} FLOPs (runs and twins)" * bool(total["flops"]),
        "Versions": ", ".join(f"{name} {' or '.join(sorted(found))}" for name, found in versions.items()),
    }


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [(hours, "h"), (minutes, "min"), (rest, "s")]
    return " ".join(f"{n} {unit}" for n, unit in parts if n) or "under a second"
