"""From run folders to the table of runs, the exponents and the figures. Works on files alone; imports no JAX."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import polars as pl
from rich.table import Table

from . import best, curves, exponents, files, store
from .config import ConfigError
from .exponents import Exponent
from .fit_options import FitOptions, declared
from .regimes import CURVES, DEPTH
from .selection import select
from .terminal import console


@dataclass(frozen=True)
class Derived:
    """What a fit came to, and what it rests on."""

    folder: Path  # the sweep's
    out: Path  # where the files were written
    options: FitOptions  # of the first fit, with all names in full
    runs: pl.DataFrame  # the fitted ones; with `best_over` the chosen ones, their loss that on the second half
    fits: list[Exponent]  # one per regime; `verdict` says what is wrong where `alpha` is None
    caption: str  # the sweep's command and commits, and the fit's options
    size: str | None = DEPTH  # the sweep's own, which needs no --x
    asked: str = ""  # the options of all fits, as they are typed
    redrawn: bool = True  # whether the figures were drawn, as a page that shows them then must be


def derive(folder: Path, options: FitOptions | None = None, out: Path | None = None, figure: bool = True) -> Derived:
    """Fits a sweep's folder and writes runs.parquet (all runs), exponents.csv, exponents.json and the figures.

    Unless options are given, those that the sweep declares hold (`sweep.fit`); of several, each adds its regimes.

    Args:
        folder: a sweep's folder, `outputs/<sweep.name>`.
        options: which of its runs are fitted and how; the defaults unless given.
        out: where to write; the sweep's folder unless given.
        figure: draw the figures even if there are some, of the same options.

    Raises:
        ConfigError: there is no such folder, it has no finished run, or the options do not go with its runs.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    table = store.collect(folder)
    if table.is_empty():
        raise ConfigError(f"{folder}: no runs in it (a sweep's folder has them in runs/)")
    size = files.read_json(folder / "sweep.json").get("size", DEPTH)  # which older folders do not have
    size = size if isinstance(size, str | None) else DEPTH
    asked = [options] if options not in (None, FitOptions()) else _declared(folder)
    histories = store.histories(folder)
    found = [_fitted(folder, table, one, size, histories) for one in asked]
    runs, options = found[0].runs, found[0].options
    if len(found) > 1:  # of several, all that any of them rests on
        runs = table.filter(pl.col("id").is_in(pl.concat([one.runs["id"] for one in found]).implode()))
    fits = [e for one in found for e in one.fits]
    out = out or folder
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        with _whole(out / "runs.parquet") as path:
            table.write_parquet(path)
        with _whole(out / "exponents.csv") as path:
            exponents.to_frame(fits).write_csv(path)
    words = "; ".join(words for one in found if (words := one.options.words(size)))
    caption = store.provenance(folder, table) + (f"   (fit {words})" if words else "")
    fit = [asdict(one.options) for one in found]
    record = json.loads(json.dumps({"fit": fit if len(fit) > 1 else fit[0], "exponents": exponents.to_dicts(fits)}))
    redrawn = figure or not (out / "alpha.png").exists()
    redrawn = redrawn or files.read_json(out / "exponents.json").get("fit") != record["fit"]
    if redrawn:
        from . import figures  # only here, since matplotlib takes its time

        with writable(out):
            figures.draw(fits, runs, histories, out, caption, store.pictured(folder))
    with writable(out):  # last, since it says which options the figures are of
        files.write_json(out / "exponents.json", record)
    return Derived(folder, out, options, runs, fits, caption, size, words, redrawn)


@dataclass(frozen=True)
class _Fitted:
    """One fit: the runs that it rests on (with `best_over` the chosen ones), its options, its exponents."""

    runs: pl.DataFrame
    options: FitOptions
    fits: list[Exponent]


def _declared(folder: Path) -> list[FitOptions]:
    """The fits that a sweep declares; one with the default options if it does not."""
    text = files.read_json(folder / "sweep.json").get("fit")
    return (declared(text) if isinstance(text, str) else []) or [FitOptions()]


def _fitted(
    folder: Path, table: pl.DataFrame, options: FitOptions, size: str | None, histories: Mapping[str, pl.DataFrame]
) -> _Fitted:
    """What one fit of a folder's table of runs comes to."""
    runs, options = select(table, options, size)
    if exponents.usable(runs).is_empty():
        counts = ", ".join(f"{n} {status}" for status, n in runs["status"].value_counts(sort=True).iter_rows())
        few = f"of the {runs.height} selected runs" if runs.height < table.height else "of its runs"
        raise ConfigError(f"{folder}: none {few} has finished ({counts})")
    rows, fits = _fit(runs, options, histories)
    return _Fitted(runs if options.x in CURVES else rows, options, fits)


def _fit(
    runs: pl.DataFrame, options: FitOptions, histories: Mapping[str, pl.DataFrame]
) -> tuple[pl.DataFrame, list[Exponent]]:
    """The rows that were fitted (all of those given, but for `best_over`; evaluations for curves), the exponents."""
    x, over, chosen = options.x, options.best_over, None
    assert x is not None  # all names are in full
    rows = curves.points(runs, histories, x, options.y) if x in CURVES else _of_quantity(runs, options.y)
    if rows.is_empty():
        names = sorted({name for history in histories.values() for name in history.columns})
        raise ConfigError(f"--y {options.y}: no history has it; there are {', '.join(names)}")
    if over:
        try:
            chosen = best.choose(rows, x, over, options.by)
        except ValueError as error:
            raise ConfigError(f"--best-over {','.join(over)}: {error}") from error
        rows = chosen.runs
    tuned = chosen.fields if chosen else ()
    try:
        if x in CURVES:
            fits = curves.fit(rows, x, options.range, options.by, tuned)
        else:
            fits = exponents.fit(rows, x, options.floor, options.by, tuned)
    except ValueError as error:
        raise ConfigError(f"--x {error}") from error
    fits = [chosen.describe(e) for e in fits] if chosen else fits
    return rows, [replace(e, quantity=options.y) for e in fits]


def _of_quantity(runs: pl.DataFrame, name: str) -> pl.DataFrame:
    """The runs with another recorded quantity in the place of their loss."""
    if name == "loss":
        return runs
    named = {n for n in runs.columns if "." not in n and runs[n].dtype == pl.Float64}
    if name not in named:
        raise ConfigError(f"--y {name}: no such quantity was recorded; there are {', '.join(sorted(named))}")
    unknown = pl.lit(None, pl.Float64)
    return runs.with_columns(loss=name, loss_first=name, loss_second=name, half_loss=unknown, loss_sem=unknown)


def print_table(derived: Derived) -> None:
    """Prints a row per regime: the fields that tell it apart, how much it rests on, and its exponent in words."""
    fits = derived.fits
    names = _telling(fits)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in [*names, "runs", "replicates"]:
        table.add_column(name, no_wrap=True)
    kinds = dict.fromkeys(f"{fit.quantity} in {fit.variable}" for fit in fits)
    table.add_column(f"exponent of {', '.join(kinds)}", min_width=40)
    for fit in fits:
        regime = [_shown(fit.regime.get(name)) for name in names]
        table.add_row(*regime, str(fit.n_runs), str(fit.n_replicates), fit.verdict)
    console().print(table)


def _telling(fits: Sequence[Exponent]) -> list[str]:
    """The fewest of the regimes' fields, in order, that tell them apart; the first one where there is one regime."""
    names: list[str] = []
    told = 1
    fields = dict.fromkeys(name for fit in fits for name in fit.regime)
    for name in sorted(fields, key="runtime.source".__eq__):  # last, since a hash says least
        apart = len({tuple(fit.regime.get(n) for n in (*names, name)) for fit in fits})
        if apart > told or not names:
            names, told = ([name] if told == 1 else [*names, name]), apart
    return names


def _shown(value: object) -> str:
    if value is None:
        return "all"
    return f"{value:g}" if isinstance(value, float) else str(value)


@contextmanager
def writable(out: Path) -> Iterator[None]:
    """Turns what the file system refuses into a line about `--out`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written to: {error.strerror}") from error


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A path beside `path` that takes its place when complete, so that no reader sees half a file."""
    part = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
