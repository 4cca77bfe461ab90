"""What was asked of a `law` command: its flags, and the table and the law that they name."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path

from ..fields import ConfigError
from ..fit_options import parse_range
from . import datasets, readers
from .fitting import STARTS
from .law import LAWS, Law, named
from .studies import DRAWS
from .tables import SCHEMA, Table, choose_law, parse_columns
from .tau import parse_schedule, with_tau

EXPECTED_WORD = "expected"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what every command on a table takes."""
    add = parser.add_argument
    add("table", metavar="TABLE", help=f"CSV, JSONL, Parquet or a folder of curves; or {', '.join(datasets.DATASETS)}")
    add("--columns", metavar="NAME=COLUMN,...", help=f"which column is which; names are {', '.join(SCHEMA)}")
    add("--schedule", metavar="NAME:total=N,...", help="tau from steps and peak rates: cosine:total=143000,warmup=0.01")
    add("--where", metavar="EXPR", help="""keep rows that this SQL condition holds for: "width >= 512" """)
    add("--range", metavar="COLUMN=LOW:HIGH", action="append", default=[], help="keep rows within, ends included")
    add("--only", metavar="COLUMN=A,B", action="append", default=[], help="keep rows of these groups")
    add("--drop", metavar="N", type=int, default=0, help="keep rows whose loss is below the N-th highest")
    add("--seed", type=int, default=0, help="of starts, bootstrap and folds (default 0)")
    add("--huber", metavar="DELTA", type=float, help="count log residuals beyond DELTA linearly; default: squares")
    add("--out", type=Path, metavar="DIR", help="where to write; default: outputs/law/NAME")


def add_law_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds what every command takes that fits one law."""
    add = parser.add_argument
    add("--law", metavar="NAME", help=f"one of {', '.join(LAWS)}; default: the first that the table has columns for")
    add(
        "--fix", metavar="NAME=VALUE,...", help="hold parameters: a_m=1,a_l=1,a_D=1/3, or expected (theory's exponents)"
    )
    add("--starts", type=int, default=STARTS, help=f"of the search (default {STARTS})")
    add("--draws", type=int, default=DRAWS, help=f"of the bootstrap (default {DRAWS})")
    add(
        "--per-block", type=float, default=12.0, metavar="K", help="parameters are K m^2 l in what follows (default 12)"
    )
    add("--json", action="store_true", help="print one object instead of words")


def check(given: argparse.Namespace) -> None:
    """Refuses numbers that make no sense."""
    least = {"drop": 0, "seed": 0, "starts": 1, "draws": 2}
    for name, low in least.items():
        value = getattr(given, name, low)
        if value < low:
            raise ConfigError(f"--{name} {value}: allowed is a number from {low} up")
    for name in ("huber", "per_block"):
        value = getattr(given, name, None)
        if value is not None and not 0 < value < float("inf"):
            raise ConfigError(f"--{name.replace('_', '-')} {value:g}: allowed is a number above 0")


def read_table(given: argparse.Namespace) -> Table:
    """The table of a request, with tau where it can be had, filtered but for `--drop`."""
    columns = parse_columns(given.columns) if given.columns else None
    table = readers.read(find(given.table), columns)
    table = with_tau(table, parse_schedule(given.schedule) if given.schedule else None)
    if given.where:
        table = table.where(given.where)
    for text in given.range:
        column, _, limits = text.partition("=")
        table = table.within(column.strip(), parse_range(limits))
    for text in given.only:
        column, _, values = text.partition("=")
        table = table.only(column.strip(), [value.strip() for value in values.split(",")])
    return table


def find(name: str) -> Path:
    """The file or folder of a table, by path or by name."""
    path = Path(name)
    if path.exists():
        return path
    if name in datasets.DATASETS:
        return datasets.locate(name)
    if path.suffix or len(path.parts) > 1:
        raise ConfigError(f"{name}: no such file")
    raise ConfigError(f"{name}: no such file, and no table of that name; there are {', '.join(datasets.DATASETS)}")


def read_law(given: argparse.Namespace, table: Table) -> Law:
    """The law of a request, with what is fixed."""
    law = named(given.law) if given.law else choose_law(table)
    if not given.fix:
        return law
    return law.expected() if given.fix == EXPECTED_WORD else law.fix(parse_fixed(given.fix))


def parse_fixed(text: str) -> Mapping[str, float]:
    """{name: value} from a_m=1,a_D=1/3,..."""
    values: dict[str, float] = {}
    for pair in text.split(","):
        name, _, value = (part.strip() for part in pair.partition("="))
        try:
            values[name] = float(Fraction(value))
        except (ValueError, ZeroDivisionError, OverflowError) as error:
            allowed = f"NAME=VALUE,... with numbers or fractions, or {EXPECTED_WORD}"
            raise ConfigError(f"--fix {pair.strip()}: allowed is {allowed}") from error
    return values


def folder(given: argparse.Namespace, table: Table) -> Path:
    """Where results are written."""
    name = given.table if given.table in datasets.DATASETS else Path(table.name).stem
    return given.out or Path("outputs") / "law" / name
