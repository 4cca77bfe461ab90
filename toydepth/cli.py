"""The commands: have a request composed, have it done, and turn the outcome into an exit code and few words.

Nothing here imports JAX before a request is known to be sound.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from . import compose, fit_options
from .config import ConfigError, RunConfig

DONE, REFUSED = 0, 2  # 1 is a sweep's own: some of its runs failed or diverged
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM

USAGE = """\
usage: toydepth COMMAND ...

  toydepth run [GROUP=OPTION ...] [FIELD=VALUE ...]    train one run, or a sweep over all combinations of values
  toydepth plan ...                                    the same arguments: what would be trained, and what it costs
  toydepth fit DIR [--x FIELD] [--range LOW:HIGH] ...  exponents and figures from a sweep's folder
  toydepth report DIR ...                              the same arguments: the same, and report.html
  toydepth law fit|shape|frontier|compare|data ...     laws of loss from tables of trained models
  toydepth probe FOLDER | --model NAME --text FILE ... how states move from layer to layer, in toys and language models

toydepth COMMAND --help says more. Exit codes: 0 all done; 1 some runs failed or diverged; 2 wrong request, nothing
was run; 130 or 143 interrupted (the same command continues)."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: handled wherever Ctrl-C is, but with an exit code of its own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command line and returns its exit code; `arguments` is without the program's name."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        with _sigterm_as_interrupt():
            return _dispatch(words)
    except KeyboardInterrupt as error:
        print("interrupted; the same command continues where this one stopped", file=sys.stderr)
        return TERMINATED if isinstance(error, Terminated) else INTERRUPTED
    except ConfigError as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        print(f"toydepth: {error}", file=sys.stderr)
        return REFUSED


def _dispatch(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in COMMANDS:
        return COMMANDS[command](rest)
    if command in ("-sc", "--shell-completion"):
        return compose.complete(words, list(COMMANDS))
    if command in ("-h", "--help"):
        print(USAGE)
        return DONE
    if command == "--version":
        from importlib.metadata import version

        print(f"toydepth {version('toydepth')}")
        return DONE
    raise ConfigError(f"{command}: no such command; there are {', '.join(COMMANDS)}")


def _run(words: list[str]) -> int:
    def train(configs: list[RunConfig], on_folder: compose.OnFolder) -> int:
        from . import sweep

        return sweep.train(configs, shlex.join(["toydepth", "run", *words]), on_folder).exit_code

    return compose.compose_and_call(train, words)


def _plan(words: list[str]) -> int:
    def plan(configs: list[RunConfig], on_folder: compose.OnFolder) -> int:
        from . import sweep

        sweep.plan(configs)
        return DONE

    return compose.compose_and_call(plan, words)


def _fit(words: list[str]) -> int:
    given = _fit_arguments("fit", "Exponents and figures, from a sweep's folder alone.", words)
    if given is not None:
        from . import derive

        derive.print_table(derive.derive(given.folder, fit_options.read(given), given.out))
    return DONE


def _report(words: list[str]) -> int:
    given = _fit_arguments("report", "Exponents, figures and report.html, from a sweep's folder alone.", words)
    if given is not None:
        from . import report

        print(report.make(given.folder, fit_options.read(given), given.out))
    return DONE


def _fit_arguments(command: str, description: str, words: list[str]) -> argparse.Namespace | None:
    """What was asked of a command that fits; None if only its help."""
    parser = fit_options.Parser(f"toydepth {command}", description=description)
    fit_options.add_arguments(parser)
    try:
        return parser.parse_args(words)
    except SystemExit:  # only --help exits: errors are raised
        return None


def _law(words: list[str]) -> int:
    from .laws import command

    return command.main(words)


def _probe(words: list[str]) -> int:
    from .geometry import command

    return command.main(words)


COMMANDS = {"run": _run, "plan": _plan, "fit": _fit, "report": _report, "law": _law, "probe": _probe}


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    def interrupt(number: int, frame: Any) -> NoReturn:
        raise Terminated

    try:
        before = signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
