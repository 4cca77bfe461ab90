"""The options of every command that fits: as they are typed, declared by a sweep, and used. Imports nothing heavy."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from .fields import ConfigError

if TYPE_CHECKING:
    from .powerlaw import Floor

Range = tuple[float | None, float | None]


@dataclass(frozen=True)
class FitOptions:
    """The choices of a fit.

    A field may go by the last part of its name, where no other field has that; of several, the student's is meant.
    """

    x: str | None = None  # a numeric field, parameters, flops, step or tau; None: the sweep's own size
    range: Range = (None, None)  # of x, both ends included
    floor: Floor = "none"
    by: tuple[str, ...] | None = None  # the fields that tell regimes apart; None: all that vary
    where: str | None = None  # a condition on the columns of the table of runs, in SQL
    best_over: tuple[str, ...] = ()  # the fields whose best values are chosen at each x
    y: str = "loss"  # or what else was recorded

    def words(self, size: str | None = None) -> str:
        """The options as they are typed, `size` being the sweep's own; empty for the defaults."""
        values = {
            "--x": self.x if self.x != size else None,
            "--y": self.y if self.y != "loss" else None,
            "--range": None if self.range == (None, None) else range_text(self.range),
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


class Parser(argparse.ArgumentParser):
    """A parser that raises what is wrong with a request."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what every command that fits takes: a sweep's folder, the options of the fit, where to write."""
    parser.add_argument("folder", type=Path, metavar="DIR", help="a sweep's folder: outputs/<sweep.name>")
    _add_options(parser)
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write; default: the sweep's folder")


def _add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--x",
        metavar="FIELD",
        help="the size: a number of the config, parameters, flops, step or tau; default: the sweep's",
    )
    add(
        "--y", metavar="NAME", default="loss", help="what is a power of it: loss, or another quantity that was recorded"
    )
    add("--range", metavar="LOW:HIGH", help="fit only x in it, both ends included; one may be left out")
    add("--floor", choices=("none", "free"), default="none", help="fit c x^-alpha, or with a + floor")
    add("--by", metavar="FIELDS", help="a comma list of what tells regimes apart (default: every field that varies)")
    add("--where", metavar="EXPR", help="""fit only these runs: "kind = 'tied' and target.temperature < 0.1" """)
    add("--best-over", metavar="FIELDS", help="fit, at each x, the runs with the best values of these fields")


def read(given: argparse.Namespace) -> FitOptions:
    """The options among parsed arguments."""
    return FitOptions(
        x=given.x,
        y=given.y,
        range=(None, None) if given.range is None else parse_range(given.range),
        floor=given.floor,
        by=None if given.by is None else parse_names(given.by, "--by"),
        where=given.where,
        best_over=() if given.best_over is None else parse_names(given.best_over, "--best-over"),
    )


def declared(text: str) -> list[FitOptions]:
    """The fits that a sweep declares (`sweep.fit`): the options of each as they are typed, between semicolons.

    Raises:
        ConfigError: there are other options, or a value is wrong.
    """
    parser = Parser("sweep.fit", add_help=False)
    _add_options(parser)
    try:
        return [read(parser.parse_args(shlex.split(words))) for words in text.split(";") if words.strip()]
    except (ConfigError, ValueError) as error:
        raise ConfigError(f"sweep.fit: {error}") from error


def _quoted(word: str) -> str:
    """A word as a shell takes it; conditions, with their single quotes, in double ones."""
    return f'"{word}"' if "'" in word and not set('"$`\\!') & set(word) else shlex.quote(word)


def range_text(limits: Range) -> str:
    return ":".join("" if end is None else f"{end:.12g}" for end in limits)
