"""Many regression tasks share one narrow linear encoder: which of them it learns. Imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

from .work import Run, Work, shrunk


@dataclass(frozen=True)
class TasksRun(Run):
    """One student: the seed of its start, how fast the frequencies of its tasks fall, and its width."""

    beta: float
    width: int

    @property
    def label(self) -> str:
        return f"s{self.seed} b{self.beta:g} m{self.width}"

    @property
    def program(self) -> str:
        return f"width {self.width}"

    @property
    def teacher(self) -> str:
        return f"tasks s{self.seed} b{self.beta:g}"

    @property
    def student(self) -> str:
        return f"student s{self.seed} m{self.width}"

    @property
    def size(self) -> float:
        return self.width + 150.0  # what does not depend on the width takes as long as 150 more of it


@dataclass(frozen=True)
class TasksWork(Work[TasksRun]):
    """`count` tasks of frequencies k^-beta, whose features have amplitudes j^-alpha, share an encoder; gradients are
    exact and clipped to a norm: all combinations of the plural fields."""

    problem: ClassVar[str] = "tasks"

    count: int
    features: int
    inputs: int
    alpha: float
    clip: float
    lr: float
    seeds: tuple[int, ...]
    betas: tuple[float, ...]
    widths: tuple[int, ...]

    @property
    def runs(self) -> list[TasksRun]:
        """The runs, the narrowest first."""
        columns = itertools.product(self.widths, self.betas, self.seeds)
        return [TasksRun(seed, beta, width) for width, beta, seed in columns]

    def scaled(self, scale: float) -> TasksWork:
        """The work with features, inputs and widths times `scale`; widths that become equal are merged."""
        features = shrunk(self.features, scale)
        return dataclasses.replace(
            self,
            features=features,
            inputs=max(self.count * features, shrunk(self.inputs, scale)),
            widths=tuple(sorted({shrunk(width, scale) for width in self.widths})),
        )

    def config(self, run: TasksRun, steps: int) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "seed": run.seed,
            "tasks": {
                "count": self.count,
                "features": self.features,
                "inputs": self.inputs,
                "beta": run.beta,
                "alpha": self.alpha,
            },
            "student": {"width": run.width},
            "optimizer": {"name": "adam", "lr": self.lr, "clip": self.clip},
            "schedule": {"name": "constant", "warmup": 0.0},
            "train": self.budget(steps, batch=1) | {"gradient": "population"},
        }
