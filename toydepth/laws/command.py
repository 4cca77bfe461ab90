"""`toydepth law`: fits to tables of trained models, from files to words, numbers and pictures. Imports no JAX."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..fields import ConfigError
from ..fit_options import Parser

if TYPE_CHECKING:
    from .studies import Study

DONE = 0

USAGE = """\
usage: toydepth law COMMAND ...

  toydepth law fit TABLE [--drop N] [--fix a_m=1,...] ...    a law of loss from a table of trained models
  toydepth law shape TABLE [--parameters N,...] ...          the best width and depth, and what other shapes cost
  toydepth law frontier TABLE [--compute C,...] ...          the best size and tokens for given compute
  toydepth law compare TABLE [--laws NAME,...] ...           laws on the same rows: criteria and held-out errors
  toydepth law data [NAME]                                   where a public table lies, downloaded if need be

TABLE is a file, a folder of curves or the name of a public table. toydepth law COMMAND --help says more."""


def main(words: Sequence[str]) -> int:
    """Runs `toydepth law` with these words and returns its exit code.

    Raises:
        ConfigError: the request was wrong.
    """
    command, rest = (words[0], list(words[1:])) if words else ("--help", [])
    if command in ("-h", "--help"):
        print(USAGE)
        return DONE
    if command not in COMMANDS:
        raise ConfigError(f"law {command}: no such command; there are {', '.join(COMMANDS)}")
    about, add, act = COMMANDS[command]
    parser = Parser(f"toydepth law {command}", description=about)
    add(parser)
    try:
        given = parser.parse_args(rest)
    except SystemExit:  # only --help exits: errors are raised
        return DONE
    given.line = shlex.join(["toydepth", "law", *words])
    act(given)
    return DONE


def _fit_arguments(parser: argparse.ArgumentParser) -> None:
    _law_arguments(parser)
    parser.add_argument("--no-page", action="store_true", help="write numbers only, no pictures and no law.html")


def _law_arguments(parser: argparse.ArgumentParser) -> None:
    from . import request

    request.add_arguments(parser)
    request.add_law_arguments(parser)


def _shape_arguments(parser: argparse.ArgumentParser) -> None:
    _law_arguments(parser)
    parser.add_argument("--parameters", metavar="N,...", help="sizes to tell the best shape of (default: the table's)")


def _frontier_arguments(parser: argparse.ArgumentParser) -> None:
    _law_arguments(parser)
    parser.add_argument("--compute", metavar="C,...", help="operations, C = 6 N D (default: the table's range)")


def _compare_arguments(parser: argparse.ArgumentParser) -> None:
    from . import request

    request.add_arguments(parser)
    parser.add_argument("--laws", metavar="NAME,...", help="default: every law that the table has columns for")


def _data_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="default: list what there is")


def _study(given: argparse.Namespace) -> Study:
    from . import request
    from .outcome import WITHOUT_EMBEDDINGS, Convention
    from .studies import study

    request.check(given)
    table = request.read_table(given)
    law = request.read_law(given, table)
    k = given.per_block
    convention = WITHOUT_EMBEDDINGS if k == 12 else Convention(k, f"N = {k:g} m^2 l")
    return study(
        table,
        law,
        drop=given.drop,
        huber=given.huber,
        starts=given.starts,
        draws=given.draws,
        seed=given.seed,
        convention=convention,
    )


def _fit(given: argparse.Namespace) -> None:
    from ..terminal import console
    from . import page, request, words
    from .published import published
    from .results import write
    from .studies import as_json

    found = _study(given)
    out = request.folder(given, found.table)
    others = published(found.table, found.fit.law)
    write(found, out)
    if not given.no_page:
        page.write(found, out, given.line, others)
    if given.json:
        print(json.dumps(as_json(found), indent=2))
        return
    words.print_study(found, others)
    console().print(f"written to {out}", soft_wrap=True)


def _shape(given: argparse.Namespace) -> None:
    from . import advice, words

    sizes = _numbers(given.parameters, "--parameters") if given.parameters else None
    _tell("shape", given, lambda found: advice.shape(found, sizes), words.print_shape)


def _frontier(given: argparse.Namespace) -> None:
    from . import advice, words

    compute = _numbers(given.compute, "--compute") if given.compute else None
    _tell("frontier", given, lambda found: advice.compute_frontier(found, compute), words.print_frontier)


def _tell(
    what: str,
    given: argparse.Namespace,
    advise: Callable[[Study], dict[str, Any]],
    show: Callable[[Mapping[str, Any]], None],
) -> None:
    from . import request
    from .results import write_object

    found = _study(given)
    told = advise(found)
    write_object(told, request.folder(given, found.table), f"{what}.json")
    if given.json:
        print(json.dumps(told, indent=2))
    else:
        show(told)


def _compare(given: argparse.Namespace) -> None:
    from ..terminal import console
    from . import request, words
    from .comparison import applicable, compare
    from .law import named
    from .results import write_compared
    from .tables import MOST_ROWS, check_enough, choose_law, ready
    from .tau import constant_rate, equal_tau

    request.check(given)
    table = request.read_table(given)
    laws = [named(name.strip()) for name in given.laws.split(",")] if given.laws else [choose_law(table)]
    for law in laws:
        table = ready(table, law)
    rows = table.drop_highest(given.drop).sample(MOST_ROWS, given.seed)
    for law in laws:
        check_enough(rows, law)
    every = [form for law in laws for form in (law, law.expected())] if given.laws else applicable(rows)
    compared = compare(rows, every, given.seed, given.huber)
    words.print_compared(compared)
    if ends := equal_tau(table):
        words.print_schedules(ends, constant_rate(table))
    for note in rows.notes:
        console().print(f"! {note.text} [{note.code}]", markup=False)
    write_compared(compared, request.folder(given, rows))


def _data(given: argparse.Namespace) -> None:
    from . import datasets

    if given.name is None:
        for name, dataset in datasets.DATASETS.items():
            print(f"{name:18} {dataset.about}")
        return
    print(datasets.locate(given.name))


def _numbers(text: str, option: str) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if not values or not all(0 < value < float("inf") for value in values):
        raise ConfigError(f"{option} {text}: allowed is a list of numbers above 0")
    return values


Act = Callable[[argparse.Namespace], None]
COMMANDS: Mapping[str, tuple[str, Callable[[argparse.ArgumentParser], None], Act]] = {
    "fit": ("A law of loss from a table of trained models, with how far it is known.", _fit_arguments, _fit),
    "shape": ("The best width and depth, and what other shapes cost.", _shape_arguments, _shape),
    "frontier": ("The best size and tokens for given compute.", _frontier_arguments, _frontier),
    "compare": ("Laws on the same rows: criteria, and errors on rows held out.", _compare_arguments, _compare),
    "data": ("Public tables by name.", _data_arguments, _data),
}
