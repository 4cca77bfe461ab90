"""A linear softmax head learns another one's peaked softmax: loss against time. Imports no JAX."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import dataclass
from typing import Any, ClassVar

from .work import Run, Work, shrunk


@dataclass(frozen=True)
class TimeRun(Run):
    """One student: the seed of its teacher, the temperature and the learning rate."""

    temperature: float
    lr: float

    @property
    def label(self) -> str:
        return f"s{self.seed} T{self.temperature:g} lr{self.lr:g}"

    @property
    def program(self) -> str:
        return "head"

    @property
    def teacher(self) -> str:
        return f"teacher s{self.seed}"

    @property
    def student(self) -> str:
        return f"student s{self.seed}"


@dataclass(frozen=True)
class TimeWork(Work[TimeRun]):
    """Heads width -> vocab, trained from zero by KL: all combinations of the plural fields."""

    problem: ClassVar[str] = "time"

    width: int
    vocab: int
    batch: int
    seeds: tuple[int, ...]
    temperatures: tuple[float, ...]
    rates: tuple[float, ...]

    @property
    def runs(self) -> list[TimeRun]:
        return [TimeRun(*column) for column in itertools.product(self.seeds, self.temperatures, self.rates)]

    def scaled(self, scale: float) -> TimeWork:
        """The work with the batch times `scale`."""
        return dataclasses.replace(self, batch=shrunk(self.batch, scale))

    def config(self, run: TimeRun, steps: int) -> dict[str, Any]:
        return {
            "problem": self.problem,
            "seed": run.seed,
            "teacher": {"width": self.width},
            "target": {"loss": "kl", "temperature": run.temperature, "vocab": self.vocab},
            "optimizer": {"name": "adam", "lr": run.lr},
            "schedule": {"name": "constant"},
            "train": self.budget(steps, self.batch) | {"evals_per_decade": 0},
        }
