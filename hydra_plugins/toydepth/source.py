"""What Hydra's search path can name besides folders.

`sweeps://FOLDER`: the YAML files of a folder as the config group `sweeps`. `own://`: `problem=file.py`, somebody's own
problem, with the defaults of its `Config`.
"""

from __future__ import annotations

from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.object_type import ObjectType
from hydra.plugins.config_source import ConfigLoadError, ConfigResult, ConfigSource
from omegaconf import OmegaConf

from toydepth.config import defaults

GROUP = "sweeps"


class SweepSource(ConfigSource):
    """One folder seen as one group.

    As a `file://` entry its parent would be searched, and with it everything else that lies there. A sweep file
    speaks about the whole config, so its package is `_global_` unless it says otherwise.
    """

    def __init__(self, provider: str, path: str) -> None:
        super().__init__(provider, path)
        self.files = FileConfigSource(provider, self.path)

    @staticmethod
    def scheme() -> str:
        return "sweeps"

    def load_config(self, config_path: str) -> ConfigResult:
        name = _inside(config_path)
        if name is None:
            raise ConfigLoadError(f"Config not found : {config_path}")
        loaded = self.files.load_config(name)
        loaded.header["package"] = loaded.header["package"] or "_global_"
        return loaded

    def available(self) -> bool:
        return self.files.available()

    def is_group(self, config_path: str) -> bool:
        name = _inside(config_path)
        return config_path == "" if name is None else self.files.is_group(name)

    def is_config(self, config_path: str) -> bool:
        name = _inside(config_path)
        return bool(name) and self.files.is_config(name)

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        name = _inside(config_path)
        if name is None:
            return [] if results_filter == ObjectType.CONFIG else [GROUP]
        return self.files.list(name, results_filter)


class OwnSource(ConfigSource):
    """Files of somebody's own problems, from the current folder, as options of the group `problem`."""

    @staticmethod
    def scheme() -> str:
        return "own"

    def load_config(self, config_path: str) -> ConfigResult:
        if not self.is_config(config_path):
            raise ConfigLoadError(f"Config not found : {config_path}")
        tree = OmegaConf.create(defaults(_file(config_path)))  # says so if there is no such file
        return ConfigResult(self.scheme(), config_path, tree, {"package": "_global_"})

    def available(self) -> bool:
        return True

    def is_group(self, config_path: str) -> bool:
        return config_path in ("", "problem")

    def is_config(self, config_path: str) -> bool:
        return config_path.startswith("problem/") and _file(config_path).endswith(".py")

    def list(self, config_path: str, results_filter: ObjectType | None) -> list[str]:
        return ["problem"] if config_path == "" and results_filter != ObjectType.CONFIG else []


def _file(config_path: str) -> str:
    """The file behind `problem/my_problem.py`; Hydra may have added its own ending."""
    return config_path.removeprefix("problem/").removesuffix(".yaml")


def _inside(config_path: str) -> str | None:
    """The path below the group: "sweeps/a/b" gives "a/b", "sweeps" gives ""; None outside the group."""
    head, _, tail = config_path.partition("/")
    return tail if head == GROUP else None
