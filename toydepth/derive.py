"""From run folders to the table of runs, the exponents and the figure. Works on files alone; imports no JAX."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from . import exponents, store
from .config import ConfigError
from .exponents import Exponent, Floor


def derive(
    folder: Path, variable: str = "student.depth", floor: Floor = "none", out: Path | None = None, figure: bool = True
) -> list[Exponent]:
    """Fits a sweep's folder and writes runs.parquet, exponents.csv, exponents.json and alpha.png.

    Args:
        folder: a sweep's folder, `outputs/<sweep.name>`.
        variable: the swept size that loss is a power of.
        floor: fit loss = c x^-alpha ("none"), or with a floor added ("free").
        out: where to write; the sweep's folder unless given.
        figure: draw alpha.png even if there is one.

    Returns:
        One exponent per regime; its `verdict` says what is wrong where `alpha` is None.

    Raises:
        ConfigError: there is no such folder, it has no finished run, or its runs have no such variable.
    """
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder")
    runs = store.collect(folder)
    if runs.is_empty():
        raise ConfigError(f"{folder}: no runs in it (a sweep's folder has them in runs/)")
    if exponents.usable(runs).is_empty():
        counts = ", ".join(f"{n} {status}" for status, n in runs["status"].value_counts(sort=True).iter_rows())
        raise ConfigError(f"{folder}: none of its runs has finished ({counts})")
    try:
        fits = exponents.fit(runs, variable=variable, floor=floor)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    out = out or folder
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written to: {error.strerror}") from error
    with _whole(out / "runs.parquet") as path:
        runs.write_parquet(path)
    with _whole(out / "exponents.csv") as path:
        exponents.to_frame(fits).write_csv(path)
    with _whole(out / "exponents.json") as path:
        path.write_text(json.dumps(exponents.to_dicts(fits), indent=1) + "\n")
    if not figure and (out / "alpha.png").exists():
        return fits
    from . import figures  # last, since matplotlib takes its time

    with _whole(out / "alpha.png") as path:
        figures.alpha_figure(fits, runs, store.histories(folder), path, store.provenance(folder))
    return fits


def print_table(fits: Sequence[Exponent]) -> None:
    """Prints a row per regime: the fields that tell it apart, how much it rests on, and its exponent in words."""
    names = _telling(fits)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in [*names, "runs", "replicates"]:
        table.add_column(name, no_wrap=True)
    table.add_column(f"exponent of loss in {fits[0].variable}" if fits else "exponent", min_width=40)
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
    for name in dict.fromkeys(name for fit in fits for name in fit.regime):
        apart = len({tuple(fit.regime.get(n) for n in (*names, name)) for fit in fits})
        if apart > told or not names:
            names, told = ([name] if told == 1 else [*names, name]), apart
    return names


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@contextmanager
def _whole(path: Path) -> Iterator[Path]:
    """A path beside `path` that takes its place when complete, so that no reader sees half a file."""
    part = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
