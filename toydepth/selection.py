"""What of a sweep is fitted, and how: the options of `toydepth fit`, and the runs that they select. No JAX."""

import difflib
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isfinite, nan

import polars as pl

from .config import ConfigError
from .powerlaw import Floor
from .regimes import COUNTS, DEPTH, SEEDS, with_size

Range = tuple[float | None, float | None]

GIVEN = (
    "teacher.",
    "target.",
    "data.",
    "problem",
    "seed",
)  # what a student is to learn; losses of others do not compare

# Quoted text, words with dots in them, numbers: what a condition is made of, besides signs.
_TOKEN = re.compile(r"""'[^']*'|"[^"]*"|(?P<word>[A-Za-z_]\w*(?:\.\w+)*)(?P<call>\s*\()?|\d[\w.]*""")


@dataclass(frozen=True)
class FitOptions:
    """The choices of a fit.

    A field may go by the last part of its name, where no other field has that; of several, the student's is meant.
    """

    x: str | None = None  # a numeric field, parameters or flops; None: the sweep's own size
    range: Range = (None, None)  # of x, both ends included
    floor: Floor = "none"
    by: tuple[str, ...] | None = None  # the fields that tell regimes apart; None: all that vary
    where: str | None = None  # a condition on the columns of the table of runs, in SQL
    best_over: tuple[str, ...] = ()  # the fields whose best values are chosen at each x

    def words(self, size: str | None = None) -> str:
        """The options as they are typed, `size` being the sweep's own; empty for the defaults."""
        values = {
            "--x": self.x if self.x != size else None,
            "--range": None if self.range == (None, None) else _range_text(self.range),
            "--floor": self.floor if self.floor != "none" else None,
            "--by": None if self.by is None else ",".join(self.by),
            "--where": self.where,
            "--best-over": ",".join(self.best_over) or None,
        }
        return " ".join(f"{option} {_quoted(value)}" for option, value in values.items() if value is not None)


def parse_range(text: str) -> Range:
    """(low, high) from LOW:HIGH; None for an end that is left out."""
    low, colon, high = (part.strip() for part in text.partition(":"))
    try:
        ends = float(low or "-inf"), float(high or "inf")
    except ValueError:
        ends = nan, nan
    if not (colon and low + high and ends[0] <= ends[1]):
        raise ConfigError(f"--range {text}: allowed is LOW:HIGH, LOW at most HIGH; one of them may be left out")
    return ends[0] if isfinite(ends[0]) else None, ends[1] if isfinite(ends[1]) else None


def parse_names(text: str, option: str) -> tuple[str, ...]:
    """The names in a comma list, each once."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"{option} {text}: allowed is a list FIELD,FIELD,...")
    return tuple(dict.fromkeys(names))


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
    x = column(named, sizes, "--x")
    by = None if options.by is None else tuple(column(name, fields, "--by") for name in options.by)
    over = tuple(column(name, fields, "--best-over") for name in options.best_over)
    if not runs[x].dtype.is_numeric():
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
        raise ConfigError(f"--range {_range_text(limits)}: no run has {x} within it; they have {span}")
    return selected


def _quoted(word: str) -> str:
    """A word as a shell takes it; conditions, with their single quotes, in double ones."""
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)


def _range_text(limits: Range) -> str:
    return ":".join("" if end is None else f"{end:.12g}" for end in limits)
