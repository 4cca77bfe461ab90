"""What is measured: three works, their sizes, and the floating-point operations that they need. Imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run:
    """One student: the kind and seed of its teacher (the seed is also its own and its data's), depth, temperature."""

    kind: str
    seed: int
    depth: int
    temperature: float

    @property
    def label(self) -> str:
        return f"{self.kind} s{self.seed} d{self.depth} T{self.temperature:g}"


@dataclass(frozen=True)
class Work:
    """Students to be trained by Adam at `lr` / sqrt(depth) on fresh inputs, all combinations of the plural fields.

    `steps` is where final losses are compared; whoever is fast may be timed for longer.
    """

    name: str
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
    steps: int
    lr: float = 0.01

    @property
    def runs(self) -> list[Run]:
        """The runs, the shallowest first."""
        columns = itertools.product(self.depths, self.temperatures, self.kinds, self.seeds)
        return [Run(kind, seed, depth, temperature) for depth, temperature, kind, seed in columns]

    def rate(self, run: Run) -> float:
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

    def scaled(self, scale: float) -> Work:
        """The work with batch and depths times `scale`; depths that become equal are merged."""

        def shrunk(size: int) -> int:
            return max(1, round(size * scale))

        return dataclasses.replace(
            self,
            teacher_depth=shrunk(self.teacher_depth),
            batch=shrunk(self.batch),
            depths=tuple(sorted({shrunk(depth) for depth in self.depths})),
        )

    def config(self, run: Run, steps: int) -> dict[str, Any]:
        """A run as a mapping for `toydepth.parse`: evaluated every `self.steps`, without a twin."""
        return {
            "seed": run.seed,
            "teacher": {"kind": run.kind, "depth": self.teacher_depth, "width": self.width, "hidden": self.hidden},
            "student": {"depth": run.depth},
            "target": {"loss": self.loss, "temperature": run.temperature, "vocab": self.vocab},
            "optimizer": {"name": "adam", "lr": self.lr},
            "schedule": {"name": "constant"},
            "train": {
                "steps": steps,
                "batch": self.batch,
                "eval_every": self.steps,
                "eval_batches": 1,
                "checkpoint_every": steps,
                "twin": False,
            },
        }


_PUBLISHED: dict[str, Any] = {
    "loss": "kl",
    "width": 32,
    "hidden": 128,
    "vocab": 128,
    "teacher_depth": 128,
    "batch": 1024,
    "kinds": ("independent",),
    "seeds": (0,),
}
WORKS = {
    work.name: work
    for work in (
        Work("W1", **_PUBLISHED, depths=(16,), temperatures=(1.0,), steps=60),
        Work("W2", **_PUBLISHED, depths=(6, 12, 16, 24, 32, 48), temperatures=(0.1, 0.3, 1.0, 3.0), steps=12),
        Work(
            "W3",  # sweeps/alpha_quick.yaml, from zero and with Adam
            loss="mse",
            width=16,
            hidden=64,
            vocab=128,
            teacher_depth=64,
            batch=512,
            kinds=("tied", "independent"),
            seeds=(0, 1, 2),
            depths=(2, 4, 8, 16),
            temperatures=(1.0,),
            steps=40,
        ),
    )
}


def teacher_of(start: Arrays, run: Run) -> dict[str, np.ndarray]:
    """What a run's teacher is and what the run is evaluated on: W1, b1, W2, head, inputs, states."""
    names = ("W1", "b1", "W2", "head", "inputs", "states")
    return {name: start[f"teacher {run.kind} s{run.seed} {name}"] for name in names}


def student_of(start: Arrays, run: Run, work: Work) -> dict[str, np.ndarray]:
    """A run's parameters at step 0: W1, b1, W2 = 0, and, if it learns one, a head of 0."""
    params = {name: start[f"student s{run.seed} d{run.depth} {name}"] for name in ("W1", "b1", "W2")}
    head = {"head": np.zeros((work.vocab, work.width), np.float32)} if work.loss == "kl" else {}
    return params | head
