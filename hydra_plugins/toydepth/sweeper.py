"""The sweeper: every combination of the values given, of one grid or several, handed to the launcher as one batch."""

from __future__ import annotations

from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from hydra_plugins.toydepth.source import GROUP
from toydepth.config import ConfigError


class ToydepthSweeper(BasicSweeper):
    """Hydra's grid of values, without its one composition per point (65 to 100 ms each) and without its files.

    The launcher composes and checks every point before anything is trained; a folder is made by the run that needs
    it, so that a plan or a refused request leaves no trace.

    A sweep file may name several `grids`: its points are then those of each, over `params` and below what is typed.
    """

    def __init__(self, params: dict[str, str] | None = None, grids: list[dict[str, str]] | None = None) -> None:
        super().__init__(max_batch_size=None, params=params)
        self.grids = [{**(params or {}), **grid} for grid in grids or [{}]]

    def sweep(self, arguments: list[str]) -> Any:
        assert self.launcher is not None
        assert self.hydra_context is not None
        parser = OverridesParser.create(config_loader=self.hydra_context.config_loader)
        points: list[Any] = []
        for grid in self.grids:
            self.params = grid
            # the command line comes last, so that it wins over `hydra.sweeper` of a sweep file
            overrides = parser.parse_overrides([*self._parse_config(), *arguments])
            for override in overrides:
                if override.key_or_group == GROUP and override.is_sweep_override():  # its own grid would be lost
                    raise ConfigError(f"{override.input_line}: allowed is one named sweep in a command")
            (found,) = self.split_arguments(overrides, max_batch_size=None)
            points += [point for point in found if point not in points]
        return self.launcher.launch(points, initial_job_idx=0)
