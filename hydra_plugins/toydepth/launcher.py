"""The launcher: composes and checks all points of a multirun, then has them trained together, here or in jobs."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.utils import JobReturn, configure_log, env_override, setup_globals
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from toydepth import cluster
from toydepth.config import parse

ConfigStore.instance().store(group="schema", name="launcher", node=asdict(cluster.Cluster()))


class Point(NamedTuple):
    """One combination of a multirun: its overrides and its composed config."""

    overrides: list[str]
    config: DictConfig


class ToydepthLauncher(Launcher):
    """Hands all runs of a command to the task function at once: `task(configs, on_folder)`.

    Its fields, `hydra.launcher.*`, are those of `toydepth.cluster.Cluster`.
    """

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        self.config: DictConfig
        self.hydra_context: HydraContext
        self.task_function: TaskFunction

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.hydra_context, self.task_function, self.config = hydra_context, task_function, config

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Composes every point and checks it before the first is trained.

        Raises:
            toydepth.config.ConfigError: a point or a field of the launcher has a bad value; nothing has been trained
                or written.
        """
        setup_globals()
        configure_log(self.config.hydra.job_logging, self.config.hydra.verbose)
        HydraConfig.instance().set_config(self.config)
        points = compose(self.hydra_context, self.config, job_overrides)
        configs = [parse(container(point.config)) for point in points]
        jobs = cluster.parse(self.fields, configs)
        described = OmegaConf.masked_copy(self.config, "hydra")
        with read_write(described.hydra), open_dict(described.hydra):
            del described.hydra["help"], described.hydra["hydra_help"]  # half of the file, and of the time to write it

        def on_folder(index: int, folder: Path) -> None:
            describe(points[index], initial_job_idx + index, described, folder)

        with env_override(container(self.config.hydra.job.env_set)), cluster.using(jobs):
            self.task_function(configs, on_folder)  # type: ignore
        return []


def describe(point: Point, index: int, hydra: DictConfig, folder: Path) -> None:
    """Writes what Hydra writes into a job's folder, `.hydra/`, unless an earlier command has done so."""
    target = folder / ".hydra"
    if target.exists():
        return
    with read_write(hydra.hydra), open_dict(hydra.hydra):
        hydra.hydra.job.num, hydra.hydra.job.id = index, str(index)
        hydra.hydra.overrides.task = point.overrides
        hydra.hydra.runtime.output_dir = str(folder.resolve())
    target.mkdir(parents=True)
    OmegaConf.save(point.config, target / "config.yaml")
    OmegaConf.save(hydra.hydra.overrides.task, target / "overrides.yaml")
    OmegaConf.save(hydra, target / "hydra.yaml")


def container(config: DictConfig) -> dict[str, Any]:
    """The config as plain values, with its interpolations resolved."""
    return OmegaConf.to_container(config, resolve=True)  # type: ignore


def compose(context: HydraContext, master: DictConfig, points: Sequence[Sequence[str]]) -> list[Point]:
    """The composed config of every point, without Hydra's own section.

    Hydra composes once per distinct choice of groups; the other overrides are applied to copies, by Hydra's own
    rules. Interpolations are left for the caller to resolve.
    """
    loader = context.config_loader
    parser = OverridesParser.create(config_loader=loader)
    parsed: dict[str, Override] = {}
    groups: dict[str, bool] = {}
    composed: dict[tuple[str, ...], bytes] = {}  # pickled: unpickling copies a config in a fifth of deepcopy's time
    hydra_overrides = list(master.hydra.overrides.hydra)

    def is_group(override: Override) -> bool:
        """Whether the override chooses an option of a group, and not a value."""
        key = override.key_or_group
        if "." in key:  # a field; asking for a group takes Hydra a tenth of a second
            return False
        if key not in groups:
            options = loader.get_group_options(key, config_name=master.hydra.job.config_name, overrides=hydra_overrides)
            groups[key] = bool(options)
        return groups[key] and not isinstance(override.value(), dict)

    result = []
    for point in points:
        for text in point:
            if text not in parsed:
                (parsed[text],) = parser.parse_overrides([text])
        choices = tuple(text for text in point if is_group(parsed[text]))
        if choices not in composed:
            config = loader.load_sweep_config(master, list(choices))
            with read_write(config), open_dict(config):
                del config["hydra"]
            composed[choices] = pickle.dumps(config)
        config = pickle.loads(composed[choices])
        ConfigLoaderImpl._apply_overrides_to_config([parsed[text] for text in point if text not in choices], config)
        result.append(Point(list(point), config))
    return result
