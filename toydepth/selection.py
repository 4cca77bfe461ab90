"""Which runs of a sweep are fitted: those that the options of `toydepth fit` select. Imports no JAX."""

import difflib
import re
from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from .config import ConfigError
from .fit_options import FitOptions, Range, range_text
from .regimes import COUNTS, CURVES, DEPTH, SEEDS, with_size

GIVEN = (
    "teacher.",
    "target.",
    "data.",
    "problem",
    "seed",
)  # what a student is to learn; losses of others do not compare

# Quoted text, words with dots in them, numbers: what a condition is made of, besides signs.
_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|(?P<word>[A-Za-z_]\w*(?:\.\w+)*)(?P<call>\s*\()?|\d[\w.]*""")


def select(runs: pl.DataFrame, options: FitOptions, size: str | None = DEPTH) -> tuple[pl.DataFrame, FitOptions]:
    """The runs to be fitted, and the options with all names in full.

    Args:
        runs: one row per run, as in `runs.parquet`.
        options: the choices of the fit.
        size: the sweep's own size, which is `x` unless that is given; None where it has none.

    Raises:
        ConfigError: a name, a condition or a combination of options is wrong, or no run is left.
    """
    fields = [name for name in runs.columns if "." in name or name in ("problem", "seed")]
    sizes = [*fields, *(name for name in COUNTS if name in runs.columns)]
    named = options.x or size
    if named is None:
        numbers = [n for n in sizes if n not in SEEDS and runs[n].dtype.is_numeric() and runs[n].n_unique() > 1]
        raise ConfigError(f"--x: say which field loss is a power of; there are {_some('', numbers)}")
    x = named if named in CURVES else column(named, sizes, "--x")
    by = None if options.by is None else tuple(column(name, fields, "--by") for name in options.by)
    over = tuple(column(name, fields, "--best-over") for name in options.best_over)
    if x not in CURVES and not runs[x].dtype.is_numeric():
        raise ConfigError(f"--x {x}: allowed is a field with numbers, {' or '.join(COUNTS)}")
    for option, names in (("--by", by or ()), ("--best-over", over)):
        if x in names:
            raise ConfigError(f"{option} {x}: that is what loss is a power of (--x)")
    for name in over:
        if name in (by or ()):
            raise ConfigError(f"--best-over {name}: it tells regimes (--by) apart, so there is no choice to make")
        if name.startswith(GIVEN):
            allowed = "a field of the student or of its training, not of what it is to learn"
            raise ConfigError(f"--best-over {name}: allowed is {allowed} ({', '.join(n.rstrip('.') for n in GIVEN)})")
    selected = runs if options.where is None else _where(runs, options.where)
    if x in CURVES:  # their ranges are windows of histories
        if options.floor != "none":
            raise ConfigError(f"--floor {options.floor}: allowed is only none with --x {x}, a curve fitted in a window")
        return selected, replace(options, x=x, by=by, best_over=over)
    selected = with_size(selected, x)
    if selected.is_empty():
        raise ConfigError(f"--x {x}: none of the runs has it")
    selected = _within(selected, x, options.range)
    return selected, replace(options, x=x, by=by, best_over=over)


def column(name: str, among: Sequence[str], option: str) -> str:
    """The column that a name or the last part of one means; `ConfigError` if there is none, or more than one."""
    if name in among:
        return name
    ends = [known for known in among if known.rpartition(".")[2] == name]
    if f"student.{name}" in ends:
        return f"student.{name}"
    if len(ends) > 1:
        raise ConfigError(f"{option} {name}: which of {', '.join(ends)}?")
    if not ends:
        raise ConfigError(f"{option} {name}: no such column; there are {_some(name, among)}")
    return ends[0]


def _some(name: str, among: Sequence[str]) -> str:
    """A few of the columns: similar ones first, then fields."""
    last = {known.rpartition(".")[2]: known for known in among}
    close = difflib.get_close_matches(name, among, 3) + [last[m] for m in difflib.get_close_matches(name, last, 3)]
    few = list(dict.fromkeys([*close, *sorted(among, key=lambda known: "." not in known)]))[:6]
    return f"{', '.join(few)}{', ...' if len(few) < len(among) else ''}"


def _where(runs: pl.DataFrame, condition: str) -> pl.DataFrame:
    """The runs that a condition holds for."""
    option = f"--where {condition}:"

    def quoted(match: re.Match[str]) -> str:
        word = match["word"]
        last = {name.rpartition(".")[2] for name in runs.columns}
        if word is None or match["call"] or not ("." in word or word in last):
            return match[0]
        return f'"{column(word, runs.columns, option)}"'

    try:
        expression = pl.sql_expr(_TOKEN.sub(quoted, condition))
        for name in expression.meta.root_names():
            if name not in runs.columns:
                some = _some(name, runs.columns)
                raise ConfigError(f"{option} {name}: no such column; there are {some}; text stands in single quotes")
        selected = runs.filter(expression)
    except pl.exceptions.PolarsError as error:
        reason = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"{option} {reason}; columns are {_some('', runs.columns)}") from error
    if selected.is_empty():
        raise ConfigError(f"{option} none of the {runs.height} runs is so")
    return selected


def _within(runs: pl.DataFrame, x: str, limits: Range) -> pl.DataFrame:
    """The runs whose x lies within the range; also those whose x is not known yet."""
    low, high = limits
    inside = pl.lit(True) if low is None else pl.col(x) >= low
    inside = inside if high is None else inside & (pl.col(x) <= high)
    selected = runs.filter(inside | pl.col(x).is_null())
    if selected[x].count() == 0 < runs[x].count():
        span = f"{runs[x].min():g} to {runs[x].max():g}"
        raise ConfigError(f"--range {range_text(limits)}: no run has {x} within it; they have {span}")
    return selected
