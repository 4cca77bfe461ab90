"""The Hydra application behind `toydepth run` and `toydepth plan`: from words to configs, or to one line of refusal.

Hydra finds its way through conf/ and sweeps/; the launcher and sweeper in `hydra_plugins.toydepth` turn all points of
a command into checked configs, and the task gets them together. Nothing here imports JAX.
"""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from . import resolvers
from .config import SCHEMAS, ConfigError, RunConfig, allowed, defaults, parse

OnFolder = Callable[[int, Path], None]
HELP = """\
toydepth run [GROUP=OPTION ...] [FIELD=VALUE ...]        train; `toydepth plan ...` first says what that would mean

  toydepth run teacher=tied student.depth=8              one run
  toydepth run student.depth=2,4,8 seed=0,1,2            a sweep: all combinations of the values
  toydepth run +sweeps=alpha_quick                       a named sweep, from ./sweeps or from the package
  toydepth run +sweeps=alpha_quick train.steps=200       what is said here wins over the sweep's file
  toydepth run --cfg job teacher=tied                    show the config; --info says where it comes from
  toydepth run --hydra-help                              Hydra's own flags and settings

Fields that are null are filled in from others. Runs go to outputs/<sweep.name>/runs/, without a name to
outputs/adhoc/runs/; a repeated command skips what is done and continues what is not.
"""

Task = Callable[[list[RunConfig], OnFolder], int]


def compose_and_call(task: Task, words: list[str]) -> int:
    """Composes the configs that `words` ask for and returns what `task(configs, on_folder)` returns.

    Words that only ask to see something (--help, --cfg, --info, tab completion) print it and return 0.
    `on_folder(i, folder)` writes `.hydra/` of configs[i] into a run's folder.

    Raises:
        ConfigError: the words are no sound request; the task has not been called.
    """
    import hydra
    from hydra._internal.utils import get_args_parser
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException
    from yaml import YAMLError

    register()
    words = _debug_last(words)
    parser = get_args_parser()
    parser.error = _refuse_arguments  # type: ignore[method-assign]
    flags = parser.parse_intermixed_args(words)  # flags may stand between overrides
    shows = flags.hydra_help or flags.cfg or flags.info or flags.shell_completion
    if not shows and not flags.run:  # unless told, Hydra loses the first error in deciding between its two modes
        words = ["--multirun", *[word for word in words if word not in ("-m", "--multirun")]]

    code: int | None = None

    def application(configs: Any, on_folder: Any = None) -> None:
        nonlocal code
        if not isinstance(configs, list):  # one job of another launcher
            raise ConfigError(ONLY_OURS)
        code = 1  # from here on an error is no longer the request's
        code = task(configs, on_folder)

    try:
        if flags.help:
            print(help_text(flags.overrides))
            return 0
        with _argv(words), _full_errors():
            hydra.main(version_base="1.3", config_path=str(data_folder("conf")), config_name="config")(application)()
    except SystemExit as stop:
        if code is not None:
            raise
        return 2 if stop.code else 0  # Hydra refuses some requests with 1
    except (HydraException, OmegaConfBaseException, YAMLError) as error:
        if code is not None:
            raise
        raise ConfigError(_refusal(error)) from error
    except (ValueError, TypeError, AttributeError) as error:
        if code is not None or isinstance(error, ConfigError) or not _raised_by_hydra(error):
            raise
        raise ConfigError(_refusal(error)) from error
    if code is None and not shows:
        raise ConfigError(ONLY_OURS)
    return code or 0


def _debug_last(words: list[str]) -> list[str]:
    """The words with `debug=...` appended to the defaults, behind a named sweep, so that its few steps win."""
    chosen = [word for word in words if re.match(r"\+?debug=", word)]
    others = [word for word in words if word not in chosen]
    end = 1 + max((i for i, word in enumerate(others) if "=" in word and word[0] != "-"), default=-1)
    # Quoted, since Hydra would read nan as a number
    return others[:end] + [f"+debug='{word.partition('=')[2]}'" for word in chosen] + others[end:]


ONLY_OURS = "hydra/launcher: allowed is only toydepth (runs are trained together)"


def complete(words: list[str], commands: list[str]) -> int:
    """Tab completion. Hydra reads the typed line from the environment and knows nothing of sub-commands."""
    line = os.environ.get("COMP_LINE", "")
    typed = line.split()
    if any(word.startswith("query") for word in words):
        if len(typed) < 2 or (len(typed) == 2 and not line.endswith(" ")):
            print(" ".join(name for name in commands if name.startswith("".join(typed[1:]))))
            return 0
        if typed[1] not in ("run", "plan"):
            return 0  # left to the shell, which completes file names
        os.environ["COMP_LINE"] = re.sub(r"^(\s*\S+)\s+\S+", r"\1", line)
    return compose_and_call(lambda configs, on_folder: 0, words)


# --- what conf/ refers to -----------------------------------------------------------------------------------


def data_folder(name: str) -> Path:
    """`conf` or `sweeps`: beside the package in a checkout, inside it when installed from a wheel."""
    package = Path(__file__).resolve().parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def searchpath() -> list[str]:
    """Where Hydra looks after the package's conf/: your own problems, ./conf, ./sweeps, the package's sweeps."""
    folders = [folder.resolve() for folder in (Path("sweeps"), data_folder("sweeps")) if folder.is_dir()]
    conf = Path("conf").resolve()
    own = [f"file://{conf}"] if conf.is_dir() and conf != data_folder("conf") else []
    return ["own://", *own, *(f"sweeps://{folder}" for folder in dict.fromkeys(folders))]


def help_text(overrides: list[str]) -> str:
    """What `toydepth run --help` prints: usage, groups, sweeps, and every field with its composed value."""
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf

    # Hydra's own help takes a second, most of it spent on copying its registry for every folder it looks into
    conf = data_folder("conf")
    with initialize_config_dir(str(conf), version_base="1.3"):
        config = compose("config", overrides)
    groups = {folder.name: _options(folder) for folder in sorted(conf.iterdir()) if folder.is_dir()}
    groups = {name: options for name, options in groups.items() if name != "hydra"}
    sweeps = [
        name
        for entry in searchpath()
        if entry.startswith("sweeps://")
        for name in _options(Path(entry.removeprefix("sweeps://")))
    ]
    lines = [HELP, "Groups", *(f"  {name}={' | '.join(options)}" for name, options in groups.items())]
    lines += [f"  +sweeps={' | '.join(sorted(set(sweeps)))}", "", "Fields, as composed, and what is allowed"]
    for name, rule in allowed(config.problem).items():
        value = OmegaConf.select(config, name)
        shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        lines.append(f"  {name + '=' + shown:<35} {rule}")
    return "\n".join(lines)


def _options(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.yaml"))


def register() -> None:
    """Tells Hydra what YAML files refer to: every field with its default, where sweeps are, and what is computed."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    for problem in SCHEMAS:
        ConfigStore.instance().store(group="schema", name=problem, node=defaults(problem), package="_global_")
    for resolver in (searchpath, resolvers.seed, resolvers.logspace):
        OmegaConf.register_new_resolver(f"toydepth.{resolver.__name__}", resolver, replace=True)


# --- Hydra's habits ------------------------------------------------------------------------------------------


@contextmanager
def _argv(words: list[str]) -> Iterator[None]:
    """Hydra reads the process's own arguments."""
    before = sys.argv
    sys.argv = [before[0], *words]
    try:
        yield
    finally:
        sys.argv = before


@contextmanager
def _full_errors() -> Iterator[None]:
    """Makes Hydra raise its errors instead of printing them and exiting with 1."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


# --- refusals -----------------------------------------------------------------------------------------------


def _refuse_arguments(message: str) -> NoReturn:
    raise ConfigError(message)


def _refusal(error: Exception) -> str:
    """One line for a request that Hydra could not compose."""
    from hydra.errors import MissingConfigException, OverrideParseException
    from omegaconf.errors import OmegaConfBaseException

    lines = _lines(error)
    if isinstance(error, MissingConfigException) and error.options is not None and error.missing_cfg_file:
        group, _, option = error.missing_cfg_file.rpartition("/")
        return f"{group}={option}: allowed is one of {', '.join(error.options)}"
    if isinstance(error, OverrideParseException):
        reason = next((line for line in lines if not line.startswith("Error parsing")), "")
        return f"{error.override}: not of the form field=value ({reason})"
    if isinstance(error, OmegaConfBaseException) and error.full_key:
        return f"{error.full_key}: {lines[0]}"
    if several := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.*?)'", lines[0]):
        return f"{several[1]}: only one value is allowed where a config is shown and nothing is run"
    if field := re.match(r"Could not override '([\w.]+)'\.$|Error merging override \+*([\w.]+)", lines[0]):
        return _unknown_field(field[1] or field[2], error.__cause__) or " ".join(lines[:4])
    return " ".join(lines[:4])


def _unknown_field(name: str, cause: Any) -> str | None:
    """Our own words for a field that Hydra could not set, unless it is one of Hydra's."""
    if name.startswith("hydra."):
        return None
    tree: Any = None
    for part in reversed(name.split(".")):
        tree = {part: tree}
    node = getattr(cause, "parent_node", None)  # a part of the config, which says whose problem's fields are meant
    problem = "depth" if node is None else node._get_root().get("problem", "depth")
    try:
        parse(tree | {"problem": problem})
    except ConfigError as error:
        return str(error)
    return None


def _lines(error: BaseException) -> list[str]:
    """The lines of the first message along the chain of causes that says anything."""
    cause: BaseException | None = error
    while cause is not None:
        lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
        if lines:
            return lines
        cause = cause.__cause__
    return [type(error).__name__]


def _raised_by_hydra(error: BaseException) -> bool:
    """Whether the error comes from Hydra's own code, and not from code that it calls."""
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    return last.f_globals.get("__name__", "").partition(".")[0] == "hydra"
