"""An autoencoder that holds more features than it has dimensions: loss against width. Imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

from .work import Run, Work, shrunk


@dataclass(frozen=True)
class WidthRun(Run):
    """One student: the seed of its start and its data, and its width."""

    width: int

    @property
    def label(self) -> str:
        return f"s{self.seed} m{self.width}"

    @property
    def program(self) -> str:
        return f"width {self.width}"

    @property
    def teacher(self) -> str:
        return f"features s{self.seed}"

    @property
    def student(self) -> str:
        return f"student s{self.seed} m{self.width}"

    @property
    def size(self) -> float:
        return self.width + 30.0  # what does not depend on the width takes as long as 30 more of it


@dataclass(frozen=True)
class WidthWork(Work[WidthRun]):
    """relu(x W W^T + b) is to be x, for `count` features of frequencies i^-exponent, one of them active on average:
    all combinations of the plural fields."""

    problem: ClassVar[str] = "width"

    count: int
    exponent: float
    batch: int
    decay: float
    lr: float
    seeds: tuple[int, ...]
    widths: tuple[int, ...]

    @property
    def runs(self) -> list[WidthRun]:
        return [WidthRun(*column) for column in itertools.product(self.seeds, self.widths)]

    def scaled(self, scale: float) -> WidthWork:
        """The work with the batch times `scale`."""
        return dataclasses.replace(self, batch=shrunk(self.batch, scale))

    def config(self, run: WidthRun, steps: int) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "seed": run.seed,
            "features": {"count": self.count, "frequency": "power", "exponent": self.exponent, "density": 1.0},
            "student": {"width": run.width, "decay": self.decay},
            "optimizer": {"name": "adam", "lr": self.lr},
            "schedule": {"name": "constant", "warmup": 0.0},
            "train": self.budget(steps, self.batch),
        }
