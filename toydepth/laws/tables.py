"""Tables of trained models: one row per model and budget, in columns of known names, and the filters of a fit.

A file keeps its own columns; those of the schema stand beside them under their own names, so that a condition may use
either. What cannot be a size or a loss is refused in one line; what is only missing is left out, and said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from ..fields import ConfigError
from ..fit_options import Range
from .law import LARGEST, LAWS, SMALLEST, Law, Sizes, Variable

SCHEMA: dict[str, str] = {
    "width": "of the residual stream",
    "depth": "in layers",
    "tokens": "trained on",
    "parameters": "of the model",
    "tau": "sum of learning rates over steps",
    "loss": "nats per token",
    "model": "what tells models apart; width and depth unless given",
    "step": "optimiser steps so far",
    "lr": "learning rate at that step, or the peak one with --schedule",
    "schedule": "what tells a model's learning-rate schedules apart",
}
LOSS, MODEL = "loss", "model"
FEWEST_RUNS = 5
MOST_ROWS = 8_000  # a law has seven parameters: more rows take time and tell nothing new
DEFAULTS = ("width-depth-tokens", "parameters-tokens", "width-depth-tau", "parameters-tau", "tau")
_MISSING = ["", "nan", "NaN", "NA", "N/A", "null", "None", "-"]


@dataclass(frozen=True)
class Note:
    """Something to be said about a table or a fit: a code for machines, a sentence for people."""

    code: str
    text: str


@dataclass(frozen=True)
class Table:
    """Rows of trained models.

    `frame` has the file's own columns and those of `SCHEMA` that are known; `counting` says what `parameters` counts.
    """

    frame: pl.DataFrame
    name: str
    counting: str = "as in the table"
    notes: tuple[Note, ...] = ()

    def __len__(self) -> int:
        return self.frame.height

    def has(self, law: Law) -> bool:
        """Whether all columns are there that a law needs."""
        return {*law.variables, LOSS} <= set(self.frame.columns)

    def sizes(self, law: Law) -> Sizes:
        """{variable: x[rows]} for a law."""
        return {variable: self.frame[variable].to_numpy() for variable in law.variables}

    @property
    def loss(self) -> np.ndarray:
        return self.frame[LOSS].to_numpy()

    def compute(self) -> np.ndarray | None:
        """What the rows cost[rows], up to a constant: parameters times tokens (or tau), as far as they are known."""
        columns, factors = set(self.frame.columns), []
        if {"width", "depth"} <= columns:
            factors.append(pl.col("width") ** 2 * pl.col("depth"))
        elif "parameters" in columns:
            factors.append(pl.col("parameters"))
        factors += [pl.col(name) for name in ("tokens", "tau") if name in columns][:1]
        if not factors:
            return None
        return self.frame.select(pl.reduce(lambda a, b: a * b, factors).cast(float)).to_series().to_numpy()

    def clusters(self) -> np.ndarray | None:
        """A number[rows] for each run of several rows. None: every row is a run, or runs are too few to draw from."""
        if MODEL not in self.frame.columns:
            return None
        names = [name for name in (MODEL, "schedule") if name in self.frame.columns]
        runs = self.frame.select(pl.struct(names).rank("dense")).to_series().to_numpy()
        return runs if len(np.unique(runs)) >= FEWEST_RUNS else None

    def models(self) -> np.ndarray:
        """A number[rows] for each model, by name or by shape."""
        columns = [MODEL] if MODEL in self.frame.columns else [n for n in ("width", "depth") if n in self.frame.columns]
        columns = columns or [name for name in ("parameters",) if name in self.frame.columns]
        if not columns:
            return np.arange(len(self))
        return self.frame.select(pl.struct(columns).rank("dense")).to_series().to_numpy()

    def model_names(self) -> list[str]:
        """What the rows' models are called[rows]: by name, or as m512 l8."""
        if MODEL in self.frame.columns:
            return self.frame[MODEL].cast(str).to_list()
        letters = [(n, letter) for n, letter in (("width", "m"), ("depth", "l")) if n in self.frame.columns]
        if not letters:
            return [f"{value:.3g}" for value in self.frame.get_column("parameters", default=self.frame[LOSS])]
        parts = [
            pl.concat_str(pl.lit(letter), pl.col(n).round(6).cast(pl.Int64, strict=False)) for n, letter in letters
        ]
        return self.frame.select(pl.concat_str(parts, separator=" ")).to_series().to_list()

    def rows(self, keep: np.ndarray) -> Table:
        """The rows of a mask or of a list of numbers, in its order."""
        return replace(self, frame=self.frame.filter(keep) if keep.dtype == bool else self.frame[keep])

    # --- filters ------------------------------------------------------------------------------------------------

    def where(self, condition: str) -> Table:
        """The rows that an SQL condition on the columns holds for, as in "width >= 512 and model <> 'small'"."""
        option = f"--where {condition}:"
        try:
            expression = pl.sql_expr(condition)
            for name in expression.meta.root_names():
                if name not in self.frame.columns:
                    there = ", ".join(self.frame.columns)
                    raise ConfigError(
                        f"{option} {name}: no such column; there are {there}; text stands in single quotes"
                    )
            kept = self.frame.filter(expression)
        except (pl.exceptions.PolarsError, TypeError, pl.exceptions.PolarsInefficientMapWarning) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise ConfigError(f"{option} {reason}; columns are {', '.join(self.frame.columns)}") from error
        if kept.is_empty():
            raise ConfigError(f"{option} none of the {len(self)} rows is so")
        return replace(self, frame=kept)

    def within(self, column: str, limits: Range) -> Table:
        """The rows whose value of a column lies between two limits, both included; None: no limit on that side."""
        if column not in self.frame.columns or not self.frame[column].dtype.is_numeric():
            numbers = [name for name in self.frame.columns if self.frame[name].dtype.is_numeric()]
            raise ConfigError(f"--range {column}: allowed is a column of numbers: {', '.join(numbers)}")
        low, high = (
            float(end) if end is not None else sign * np.inf for end, sign in zip(limits, (-1, 1), strict=True)
        )
        kept = self.frame.filter(pl.col(column).is_between(low, high))
        if kept.is_empty():
            span = f"{self.frame[column].min():g} to {self.frame[column].max():g}"
            raise ConfigError(f"--range {column}: no row lies within it; they have {span}")
        return replace(self, frame=kept)

    def only(self, column: str, values: Sequence[str]) -> Table:
        """The rows of some groups: those whose column has one of these values."""
        if column not in self.frame.columns:
            raise ConfigError(f"--only {column}: no such column; there are {', '.join(self.frame.columns)}")
        texts = self.frame[column].cast(str)
        if missing := [value for value in values if value not in texts.to_list()]:
            few = texts.unique(maintain_order=True).to_list()
            there = ", ".join(few[:8]) + (", ..." if len(few) > 8 else "")
            raise ConfigError(f"--only {column}={missing[0]}: no such value; there are {there}")
        return replace(self, frame=self.frame.filter(texts.is_in(list(values))))

    def drop_highest(self, count: int) -> Table:
        """The rows whose loss lies strictly below the count-th highest; ties with it go too."""
        if count <= 0:
            return self
        if count >= len(self):
            raise ConfigError(f"--drop {count}: allowed is a number below the {len(self)} rows")
        kept = self.rows(self.loss < np.sort(self.loss)[-count])
        if not len(kept):
            raise ConfigError(f"--drop {count}: no row's loss lies below the {count}th highest, {self.loss.min():g}")
        return kept

    def sample(self, most: int, seed: int) -> Table:
        """At most so many rows, at random, with a note if some were left out."""
        if len(self) <= most:
            return self
        chosen = np.sort(np.random.default_rng(seed).choice(len(self), most, replace=False))
        text = f"{len(self):,} rows: fitted on {most:,} of them, drawn at random (seed {seed})"
        return self.noted("sampled", text).rows(chosen)

    def noted(self, code: str, text: str) -> Table:
        return replace(self, notes=(*self.notes, Note(code, text)))


def parse_columns(text: str) -> dict[str, str]:
    """{known name: column of the file} from width=d_model,depth=n_layers,..."""
    columns: dict[str, str] = {}
    for pair in text.split(","):
        name, equals, column = (part.strip() for part in pair.partition("="))
        if name not in SCHEMA or not equals or not column:
            raise ConfigError(f"--columns {pair.strip()}: allowed is NAME=COLUMN, NAME one of {', '.join(SCHEMA)}")
        columns[name] = column
    return columns


def read_file(path: Path) -> pl.DataFrame:
    """The columns of a CSV, JSONL or Parquet file as they are.

    Raises:
        ConfigError: no such file, another kind of file, or one that cannot be read.
    """
    kinds = {".csv": _read_csv, ".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".parquet": pl.read_parquet}
    if not path.is_file():
        raise ConfigError(f"{path}: no such file")
    if path.suffix.lower() not in kinds:
        raise ConfigError(f"{path}: allowed are {', '.join(kinds)}")
    try:
        frame = kinds[path.suffix.lower()](path)
    except (pl.exceptions.PolarsError, OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read: {(str(error).splitlines() or [''])[0]}") from error
    if frame.is_empty():
        raise ConfigError(f"{path}: no rows in it")
    return frame


def _read_csv(path: Path) -> pl.DataFrame:
    return pl.read_csv(path, infer_schema_length=None, null_values=_MISSING)


def _read_jsonl(path: Path) -> pl.DataFrame:
    return pl.read_ndjson(path, infer_schema_length=None)


def with_columns(frame: pl.DataFrame, columns: Mapping[str, str], where: str) -> pl.DataFrame:
    """The frame with the columns of the schema beside its own.

    Args:
        columns: {name in the schema: column of the frame}.
        where: the file, for messages.

    Raises:
        ConfigError: there is no such column.
    """
    for name, column in columns.items():
        if column not in frame.columns:
            raise ConfigError(f"{where}: no column {column} for {name}; there are {', '.join(frame.columns)}")
    taken = {name: column for name, column in columns.items() if name != column}
    return frame.with_columns([pl.col(column).alias(name) for name, column in taken.items()])


def choose_law(table: Table) -> Law:
    """The first of `DEFAULTS` whose columns are all there."""
    for name in DEFAULTS:
        if table.has(LAWS[name]):
            return LAWS[name]
    wanted = "loss with width, depth, tokens; or parameters, tokens; or width, depth, tau"
    raise ConfigError(
        f"{table.name}: no columns for a law ({wanted}); there are {', '.join(table.frame.columns)}; "
        "say which is which (--columns width=NAME,depth=NAME,tokens=NAME,loss=NAME) or what is wanted (--law)"
    )


def ready(table: Table, law: Law) -> Table:
    """The rows that a law can be fitted to, each once, as numbers.

    Raises:
        ConfigError: a column is missing or has text in it, a loss or size is not above 0, or too few rows or distinct
            sizes are left for the law's parameters.
    """
    needed = [*law.variables, LOSS]
    for name in needed:
        if name not in table.frame.columns:
            there = ", ".join(table.frame.columns)
            raise ConfigError(
                f"{table.name}: no column {name} ({SCHEMA[name]}), which the law {law.name} needs; there are {there}; "
                f"say which it is: --columns {name}=COLUMN"
            )
    frame = table.frame.with_columns([_numbers(table, name) for name in needed])
    for name in needed:
        _check_positive(frame, name, table.name)
    complete = frame.filter(pl.all_horizontal(pl.col(name).is_finite().fill_null(False) for name in needed))
    table = replace(table, frame=complete)
    if complete.height < frame.height:
        text = (
            f"{frame.height - complete.height} of {frame.height} rows have no number in {', '.join(needed)}: left out"
        )
        table = table.noted("incomplete_rows", text)
    once = complete.unique(maintain_order=True)
    if once.height < complete.height:
        text = f"{complete.height - once.height} of {complete.height} rows are copies of others: counted once"
        table = replace(table, frame=once).noted("duplicate_rows", text)
    return table


def check_enough(table: Table, law: Law) -> None:
    """Refuses a table that has too few rows, or too few distinct sizes, for a law's parameters."""
    if len(table) <= len(law.parameters):
        few = f"{len(table)} rows are too few for the {len(law.parameters)} parameters of {law.words()}"
        raise ConfigError(f"{table.name}: {few}; fix exponents (--fix) or keep more rows")
    if np.ptp(table.loss) == 0:
        same = f"loss is {table.loss[0]:g} in all {len(table)} rows"
        raise ConfigError(f"{table.name}: {same}; a law needs one that varies")
    for term in law.terms:
        if {term.coefficient, term.exponent} <= set(law.fixed):
            continue
        values = table.frame[term.variable].unique().sort()
        least = 3 if {term.coefficient, term.exponent}.isdisjoint(law.fixed) else 2
        if len(values) < least:
            some = " and ".join(f"{value:g}" for value in values)
            others = "-".join(variable for variable in law.variables if variable != term.variable)
            hint = f"--fix {term.exponent}=VALUE" if len(values) == 2 else f"--law {others or 'of another size'}"
            raise ConfigError(
                f"{table.name}: {term.variable} is only {some} in the {len(table)} rows; "
                f"{term.coefficient}/{term.exponent} needs {least} values of it; try {hint}"
            )


def _numbers(table: Table, name: str) -> pl.Series:
    column = table.frame[name]
    if column.dtype.is_numeric():
        return column.cast(pl.Float64)
    if column.dtype == pl.String:
        text = column.str.strip_chars()
        numbers = text.cast(pl.Float64, strict=False)
        bad = numbers.is_null() & text.is_not_null() & ~text.is_in(_MISSING)
        if not bad.any():
            return numbers
        row = int(bad.arg_max() or 0)
        raise ConfigError(f"{table.name}: {name}={text[row]!r} in row {row + 1}: allowed is a number")
    if column.dtype == pl.Null:
        return column.cast(pl.Float64)
    raise ConfigError(f"{table.name}: {name} holds {column.dtype}: allowed are numbers")


def _check_positive(frame: pl.DataFrame, name: str, where: str) -> None:
    size = frame[name].fill_nan(None)
    bad = ((size < SMALLEST) | (size.is_finite() & (size > LARGEST))).fill_null(False)
    if bad.any():
        row = int(bad.arg_max() or 0)
        if size[row] > 0:
            allowed = f"{SMALLEST:g} to {LARGEST:g}"
            raise ConfigError(f"{where}: {name}={size[row]:g} in row {row + 1}: allowed is a number from {allowed}")
        hint = f'leave such rows out with --where "{name} > 0"'
        raise ConfigError(f"{where}: {name}={size[row]:g} in row {row + 1}: allowed is a number above 0; {hint}")


def log_correlation(table: Table, first: Variable, second: Variable) -> float:
    """Correlation of the logarithms of two sizes over the rows; nan where one of them does not vary."""
    logs = [np.log(table.frame[name].to_numpy()) for name in (first, second)]
    if min(np.ptp(log) for log in logs) == 0:
        return float("nan")
    return float(np.corrcoef(logs[0], logs[1])[0, 1])
