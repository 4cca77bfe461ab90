"""A residual student learns a residual teacher: loss against depth. Imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from .work import Arrays, Run, Work, named, shrunk


@dataclass(frozen=True)
class DepthRun(Run):
    """One student: the kind and seed of its teacher (the seed is also its own and its data's), depth, temperature."""

    kind: str
    depth: int
    temperature: float

    @property
    def label(self) -> str:
        return f"{self.kind} s{self.seed} d{self.depth} T{self.temperature:g}"

    @property
    def program(self) -> str:
        return f"depth {self.depth}"

    @property
    def teacher(self) -> str:
        return f"teacher {self.kind} s{self.seed}"

    @property
    def student(self) -> str:
        return f"student s{self.seed} d{self.depth}"

    @property
    def size(self) -> float:
        return self.depth


@dataclass(frozen=True)
class DepthWork(Work[DepthRun]):
    """Students to be trained by Adam at `lr` / sqrt(depth): all combinations of the plural fields."""

    problem: ClassVar[str] = "depth"

    loss: str
    width: int
    hidden: int
    vocab: int
    teacher_depth: int
    batch: int
    kinds: tuple[str, ...]
    seeds: tuple[int, ...]
    depths: tuple[int, ...]
    temperatures: tuple[float, ...]
    lr: float = 0.01

    @property
    def runs(self) -> list[DepthRun]:
        """The runs, the shallowest first."""
        columns = itertools.product(self.depths, self.temperatures, self.kinds, self.seeds)
        return [DepthRun(seed, kind, depth, temperature) for depth, temperature, kind, seed in columns]

    def rate(self, run: DepthRun) -> float:
        """The learning rate of a run."""
        return self.lr * run.depth**-0.5

    def student_flops(self, depth: int) -> float:
        """Of one update: one forward and one backward pass (twice a forward) through layers and head."""
        head = 2.0 * self.vocab * self.width if self.loss == "kl" else 0.0
        return 3.0 * (4.0 * self.width * self.hidden * depth + head) * self.batch

    def teacher_flops(self) -> float:
        """Of one forward pass of a teacher."""
        return 4.0 * self.width * self.hidden * self.teacher_depth * self.batch

    def flops(self) -> float:
        """Useful operations for each student update, on average over the work.

        Every step needs one pass of each teacher, however many students share it and however often it is repeated;
        recomputation in the backward pass does not count either.
        """
        students = sum(self.student_flops(run.depth) for run in self.runs)
        teachers = len(self.kinds) * len(self.seeds) * self.teacher_flops()
        return (students + teachers) / len(self.runs)

    def scaled(self, scale: float) -> DepthWork:
        """The work with batch and depths times `scale`; depths that become equal are merged."""
        return dataclasses.replace(
            self,
            teacher_depth=shrunk(self.teacher_depth, scale),
            batch=shrunk(self.batch, scale),
            depths=tuple(sorted({shrunk(depth, scale) for depth in self.depths})),
        )

    def config(self, run: DepthRun, steps: int) -> dict[str, Any]:
        return {
            "seed": run.seed,
            "teacher": {"kind": run.kind, "depth": self.teacher_depth, "width": self.width, "hidden": self.hidden},
            "student": {"depth": run.depth},
            "target": {"loss": self.loss, "temperature": run.temperature, "vocab": self.vocab},
            "optimizer": {"name": "adam", "lr": self.lr},
            "schedule": {"name": "constant"},
            "train": self.budget(steps, self.batch),
        }


def teacher_of(start: Arrays, run: DepthRun) -> dict[str, np.ndarray]:
    """What a run's teacher is and what the run is evaluated on: W1, b1, W2, head, inputs, states."""
    return named(start, run.teacher)


def student_of(start: Arrays, run: DepthRun, work: DepthWork) -> dict[str, np.ndarray]:
    """A run's parameters at step 0: W1, b1, W2 = 0, and, if it learns one, a head of 0."""
    params = {name: start[f"{run.student} {name}"] for name in ("W1", "b1", "W2")}
    head = {"head": np.zeros((work.vocab, work.width), np.float32)} if work.loss == "kl" else {}
    return params | head
