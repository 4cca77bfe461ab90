"""From run folders to the table of runs, the exponents and the figures. Works on files alone; imports no JAX."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl
from rich.console import Console
from rich.table import Table

from . import best, exponents, store
from .config import ConfigError
from .exponents import Exponent
from .regimes import DEPTH
from .selection import FitOptions, select


@dataclass(frozen=True)
class Derived:
    """What a fit came to, and what it rests on."""

    folder: Path  # the sweep's
    out: Path  # where the files were written
    options: FitOptions  # with all names in full
    runs: pl.DataFrame  # the fitted ones; with `best_over` the chosen ones, their loss that on the second half
    fits: list[Exponent]  # one per regime; `verdict` says what is wrong where `alpha` is None
    caption: str  # the sweep's command and commits, and the fit's options
    size: str | None = DEPTH  # the sweep's own, which needs no --x
    redrawn: bool = True  # whether the figures were drawn, as a page that shows them then must be


def derive(folder: Path, options: FitOptions | None = None, out: Path | None = None, figure: bool = True) -> Derived:
    """Fits a sweep's folder and writes runs.parquet (all runs), exponents.csv, exponents.json and the figures.

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
    size = store.read_json(folder / "sweep.json").get("size", DEPTH)  # which older folders do not have
    size = size if isinstance(size, str | None) else DEPTH
    runs, options = select(table, options or FitOptions(), size)
    if exponents.usable(runs).is_empty():
        counts = ", ".join(f"{n} {status}" for status, n in runs["status"].value_counts(sort=True).iter_rows())
        few = f"of the {runs.height} selected runs" if runs.height < table.height else "of its runs"
        raise ConfigError(f"{folder}: none {few} has finished ({counts})")
    runs, fits = _fit(runs, options)
    out = out or folder
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        with _whole(out / "runs.parquet") as path:
            table.write_parquet(path)
        with _whole(out / "exponents.csv") as path:
            exponents.to_frame(fits).write_csv(path)
    caption = store.provenance(folder) + (f"   (fit {words})" if (words := options.words(size)) else "")
    record = json.loads(json.dumps({"fit": asdict(options), "exponents": exponents.to_dicts(fits)}))
    redrawn = figure or not (out / "alpha.png").exists()
    redrawn = redrawn or store.read_json(out / "exponents.json").get("fit") != record["fit"]
    if redrawn:
        from . import figures  # only here, since matplotlib takes its time

        with writable(out):
            figures.draw(fits, runs, store.histories(folder), out, caption)
    with writable(out):  # last, since it says which options the figures are of
        store.write_json(out / "exponents.json", record)
    return Derived(folder, out, options, runs, fits, caption, size, redrawn)


def _fit(runs: pl.DataFrame, options: FitOptions) -> tuple[pl.DataFrame, list[Exponent]]:
    """The runs that were fitted (all of those given, but for `best_over`) and their exponents."""
    x, over, chosen = options.x, options.best_over, None
    assert x is not None  # all names are in full
    if over:
        try:
            chosen = best.choose(runs, x, over, options.by)
        except ValueError as error:
            raise ConfigError(f"--best-over {','.join(over)}: {error}") from error
        runs = chosen.runs
    try:
        fits = exponents.fit(runs, x, options.floor, options.by, chosen.fields if chosen else ())
    except ValueError as error:
        raise ConfigError(f"--x {error}") from error
    return runs, [chosen.describe(e) for e in fits] if chosen else fits


def print_table(derived: Derived) -> None:
    """Prints a row per regime: the fields that tell it apart, how much it rests on, and its exponent in words."""
    fits = derived.fits
    names = _telling(fits)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in [*names, "runs", "replicates"]:
        table.add_column(name, no_wrap=True)
    table.add_column(f"exponent of loss in {derived.options.x}", min_width=40)
    for fit in fits:
        regime = [_shown(fit.regime.get(name)) for name in names]
        table.add_row(*regime, str(fit.n_runs), str(fit.n_replicates), fit.verdict)
    console = Console()
    if not console.is_terminal:
        console = Console(width=120)
    console.print(table)


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
