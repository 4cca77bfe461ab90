"""The border: from a plain mapping to a checked config, and what a config is known by.

A config enters as a plain mapping (composed by Hydra or written in Python), becomes a frozen `RunConfig` through
`parse`, and is completed by `resolve`. Below that border nothing reads a dict or invents a default. Its fields and
their defaults stand in `run_config.py` (those of every run) and `depth_config.py`.
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

from . import extension
from .depth_config import DepthConfig
from .fields import ConfigError, refuse
from .run_config import RunConfig, fields_of, flat_tree, flatten, own_code
from .tasks_config import TasksConfig
from .time_config import TimeConfig
from .width_config import WidthConfig

__all__ = [
    "ConfigError",
    "DepthConfig",
    "RunConfig",
    "TasksConfig",
    "TimeConfig",
    "WidthConfig",
    "flatten",
    "own_code",
    "refuse",
]

SCHEMAS: dict[str, type[RunConfig]] = {
    "depth": DepthConfig,
    "time": TimeConfig,
    "width": WidthConfig,
    "tasks": TasksConfig,
}


def schema(problem: str) -> type[RunConfig]:
    """The config of a problem: a built-in one, or the `Config` of somebody's own `problem=file.py`.

    Raises:
        ConfigError: there is no such problem, or its file has no `Config` that extends `RunConfig`.
    """
    if problem in SCHEMAS:
        return SCHEMAS[problem]
    if not isinstance(problem, str) or not problem.endswith(".py"):
        refuse("problem", problem, f"{', '.join(SCHEMAS)}, or your own as file.py")
    found = extension.load("problem", f"{problem}:Config")
    if not (isinstance(found, type) and issubclass(found, RunConfig)):
        refuse("problem", problem, "a file whose Config is a dataclass that extends toydepth.RunConfig")
    return found


def parse(tree: Mapping[str, Any]) -> RunConfig:
    """A checked `RunConfig` from a nested mapping; raises `ConfigError` for an unknown key or a bad value."""
    kind = schema(tree.get("problem", "depth"))
    config = build(kind, tree, "", kind)
    config.check()
    return config


def resolve(config: RunConfig, platform: str = "cpu") -> RunConfig:
    """The config with every dependent default filled in. `platform` is JAX's name of the backend."""
    return config.complete(platform)


def replaced(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The config with other values of some fields, given as {dotted name: value}; nothing is checked."""
    for dotted, value in values.items():
        section, _, last = dotted.rpartition(".")
        changed = dataclasses.replace(getattr(config, section), **{last: value}) if section else value
        config = dataclasses.replace(config, **{section or last: changed})
    return config


def matters(config: RunConfig) -> dict[str, Any]:
    """{dotted name: value} of the fields that decide a resolved run's numbers; the ones it does not use are None."""
    unused = config.unused()
    names = [name for name, spec in fields_of(type(config), "") if spec.metadata["matters"]]
    flat = flatten(config)
    return {name: None if name in unused else flat[name] for name in names}


def recorded(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What `matters` gives, from a run's config.json alone: somebody's own problem is not loaded for it.

    Raises:
        ConfigError: the tree is another version's.
    """
    kind = SCHEMAS.get(tree.get("problem", "depth"), RunConfig)
    own = {} if kind in SCHEMAS.values() else {name: tree[name] for name in tree.keys() - kind.__dataclass_fields__}
    known = {name: value for name, value in tree.items() if name not in own}
    return matters(build(kind, known, "", kind)) | flat_tree(own, "")


def run_id(config: RunConfig) -> str:
    """A readable slug and a hash of the fields that matter to the numbers, of a resolved config."""
    used = {name: value for name, value in matters(config).items() if value is not None}
    text = json.dumps(used, sort_keys=True)
    return "-".join([*config.slug(), hashlib.sha256(text.encode()).hexdigest()[:8]])


def has_twin(config: RunConfig) -> bool:
    """Whether a run is compared with one at half its steps."""
    return config.train.twin and config.train.steps >= 2


def twin(config: RunConfig) -> RunConfig:
    """The resolved config's half-budget twin: half the steps, evaluated at as many points."""
    train = config.train
    half = dataclasses.replace(
        train, steps=max(1, train.steps // 2), eval_every=max(1, (train.eval_every or 1) // 2), twin=False
    )
    return dataclasses.replace(config, train=half)


def defaults(problem: str = "depth") -> dict[str, Any]:
    """The defaults of a problem as a nested dict: what Hydra composes upon."""
    return dataclasses.asdict(schema(problem)()) | {"problem": problem}


def allowed(problem: str = "depth") -> dict[str, str]:
    """{dotted name: what is allowed} for help texts and error messages."""
    return {name: spec.metadata["allowed"] for name, spec in fields_of(schema(problem), "")}


def build(kind: type, tree: Mapping[str, Any], prefix: str, root: type) -> Any:
    """A dataclass of fields from a nested mapping; `prefix` and `root` are where it stands, for messages."""
    specs = _specs(kind)
    for key in tree:
        if key not in specs:
            raise ConfigError(f"{prefix}{key}: no such field; {_hint(prefix + str(key), root, list(specs))}")
    values = {}
    for key, value in tree.items():
        spec = specs[key]
        if "check" not in spec.metadata:
            section: Any = spec.default_factory  # a section's factory is its class
            if not isinstance(value, Mapping):
                refuse(prefix + key, value, f"a section with {', '.join(s.name for s in dataclasses.fields(section))}")
            values[key] = build(section, value, f"{prefix}{key}.", root)
            continue
        try:
            values[key] = spec.metadata["check"](value)
        except (ValueError, TypeError):
            refuse(prefix + key, value, spec.metadata["allowed"])
    return kind(**values)


@functools.cache
def _specs(kind: type) -> dict[str, dataclasses.Field[Any]]:
    return {spec.name: spec for spec in dataclasses.fields(kind)}


def _hint(name: str, root: type, siblings: list[str]) -> str:
    """What an unknown field may have been meant to be: the same word in another section, or a similar one."""
    names = [known for known, _ in fields_of(root, "")]
    sections = sorted({known.partition(".")[0] for known in names})
    word = name.rpartition(".")[2]
    close = [known for known in names if known.rpartition(".")[2] == word]
    close = close or difflib.get_close_matches(name, names + sections, n=1)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(siblings)}"
