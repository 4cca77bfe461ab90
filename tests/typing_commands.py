"""What tests of the command line share: lines as they are typed, and a stand-in for training."""

import shlex
import sys
import types
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import toydepth
from toydepth.cli import main
from toydepth.config import DepthConfig


@dataclass
class Training:
    """Stands in for `toydepth.sweep`: remembers what it was asked to do, and does what a test tells it to."""

    configs: list[DepthConfig] = field(default_factory=list)
    command: str = ""
    calls: list[str] = field(default_factory=list)
    exit_code: int = 0
    act: Any = lambda on_folder: None

    def train(self, configs: list[DepthConfig], command: str, on_folder: Any) -> Any:
        self.calls.append("train")
        self.configs, self.command = configs, command
        self.act(on_folder)
        return types.SimpleNamespace(exit_code=self.exit_code)

    def plan(self, configs: list[DepthConfig]) -> None:
        self.calls.append("plan")
        self.configs = configs


@pytest.fixture
def training(monkeypatch, tmp_path):
    """An empty folder to type in, with training stood in for."""
    training = Training()
    module: Any = types.ModuleType("toydepth.sweep")
    module.train, module.plan = training.train, training.plan
    monkeypatch.setitem(sys.modules, "toydepth.sweep", module)
    monkeypatch.setattr(toydepth, "sweep", module, raising=False)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.chdir(tmp_path)
    return training


def typed(line: str) -> int:
    """The exit code of a line typed after `toydepth`."""
    return main(shlex.split(line))


def files() -> list[str]:
    return sorted(str(path) for path in Path().rglob("*"))


def values(training: Training, *names: str) -> list[tuple]:
    def value(config: Any, name: str) -> Any:
        for part in name.split("."):
            config = getattr(config, part)
        return config

    return [tuple(value(config, name) for name in names) for config in training.configs]
