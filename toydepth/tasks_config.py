"""The fields of the rare-task experiment: many regression tasks share one narrow encoder (arXiv 2605.29548, sec. 3)."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from .fields import choice, integer, real, refuse
from .run_config import SCHEDULES, Optimizer, RunConfig, Schedule, Train, fill

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Tasks:
    """What is to be learnt: regression tasks k = 1 ... `count` on orthogonal blocks of an input x ~ N(0, I).

    Task k is met with probability pi_k ~ k^-beta. Its target are the `features` coordinates of its block, the j-th
    times j^-alpha_k; alpha_k is alpha, or with a ramp falls evenly from alpha + ramp for the most frequent task to
    alpha - ramp for the rarest, which is then the most complex. One task, `rare`, is looked at closely: its pi is
    `frequency_boost` times as large as k^-beta would have it, and `injection` may withhold it.
    """

    count: int = integer(16, 1, 256)
    features: int = integer(8, 1, 4096)
    inputs: int = integer(256, 1, 65_536)
    beta: float = real(1.0, 0.0, 10.0)
    alpha: float = real(1.0, -10.0, 10.0)
    ramp: float = real(0.0, -10.0, 10.0)
    rare: int | None = integer(None, 1, 256)  # resolved: the last
    frequency_boost: float = real(1.0, 0.0, open_low=True)

    def frequencies(self) -> np.ndarray:
        """The probability pi_k of every task, [count]; their sum is 1."""
        import numpy as np  # only here, since most commands need no arrays

        weights = np.arange(1.0, self.count + 1.0) ** -self.beta
        weights[(self.rare or self.count) - 1] *= self.frequency_boost
        return weights / weights.sum()

    def amplitudes(self) -> np.ndarray:
        """The amplitude sigma_kj of every feature, [count, features]; their squares are a task's spectrum."""
        import numpy as np

        alphas = np.linspace(self.alpha + self.ramp, self.alpha - self.ramp, self.count)
        return np.arange(1.0, self.features + 1.0) ** -alphas[:, None]


@dataclass(frozen=True)
class Student:
    """A linear encoder of `width` rows, orthonormal at the start, and a linear decoder for each task."""

    width: int = integer(32, 1, 65_536)


@dataclass(frozen=True)
class Injection:
    """`gap` = 0: every sample's task is drawn afresh. G: task `tasks.rare` comes in every G-th batch only, in as many
    samples as it would have had in all G."""

    gap: int = integer(0, 0)


@dataclass(frozen=True)
class TasksOptimizer(Optimizer):
    """AdamW as published, its gradient clipped; SGD is plain."""

    name: str = choice("adamw", "adam", "adamw", "sgd")
    depth_power: float = real(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class TasksSchedule(Schedule):
    """A short warm-up, then the rate falls as step^-1/2, as published."""

    name: str = choice("inverse_sqrt", *SCHEDULES)
    warmup: float = real(0.02, 0.0, 1.0)


@dataclass(frozen=True)
class TasksTrain(Train):
    """The budget. `gradient=population` trains on exact expectations, `sampled` on batches.

    Evaluations may come in pairs: once more `eval_after` steps after each of those that `eval_every` asks for. Where a
    task is withheld, the first of a pair is right before its return, and the second when the optimizer, which averages
    gradients, has made the most of it.
    """

    steps: int = integer(6000, 1)
    batch: int = integer(128, 1, 10_000_000)
    gradient: str = choice("population", "population", "sampled")
    eval_batches: int | None = integer(None, 1, 100_000)  # resolved: 1 for population, else 10
    eval_after: int | None = integer(None, 0, matters=False)  # resolved: see `_memory`, 0 without a gap

    def next_evaluation(self, step: int) -> int:
        following = super().next_evaluation(step)
        if not self.eval_after or self.evals_per_decade:
            return following
        assert self.eval_every
        second = following - self.eval_every + self.eval_after
        return second if step < second < following else following


RATES = {"adam": 0.01, "adamw": 0.003, "sgd": 0.1}
CLIP = 1.0  # as published
MOST_CYCLES = 50  # evaluated, unless more are asked for


@dataclass(frozen=True)
class TasksConfig(RunConfig):
    """`problem=tasks`: which tasks a narrow encoder learns (arXiv 2605.29548)."""

    size: ClassVar[str | None] = "student.width"

    tasks: Tasks = field(default_factory=Tasks)
    student: Student = field(default_factory=Student)
    injection: Injection = field(default_factory=Injection)
    optimizer: TasksOptimizer = field(default_factory=TasksOptimizer)
    schedule: TasksSchedule = field(default_factory=TasksSchedule)
    train: TasksTrain = field(default_factory=TasksTrain)

    def unused(self) -> set[str]:
        sampling = {"train.batch", "train.eval_batches"} if self.train.gradient == "population" else set()
        return super().unused() | sampling | {"optimizer.depth_power"}

    def check(self) -> None:
        super().check()
        tasks, gap, exact = self.tasks, self.injection.gap, self.train.gradient == "population"
        if tasks.count * tasks.features > tasks.inputs:
            refuse("tasks.inputs", tasks.inputs, f"at least {tasks.count * tasks.features}, tasks.count x features")
        if self.student.width > tasks.inputs:
            refuse("student.width", self.student.width, f"at most {tasks.inputs}, tasks.inputs")
        if (tasks.rare or 1) > tasks.count:
            refuse("tasks.rare", tasks.rare, f"at most {tasks.count}, tasks.count")
        if gap and tasks.count == 1:
            refuse("injection.gap", gap, "0 with one task only")
        most = math.floor(1.0 / float(tasks.frequencies()[(tasks.rare or tasks.count) - 1]))
        if gap > most:
            refuse("injection.gap", gap, f"at most {most}, where one batch holds no other task than tasks.rare")
        if self.data.unique and (gap or exact):
            refuse("data.unique", self.data.unique, "0 with injection.gap or train.gradient=population")

    def complete(self, platform: str) -> TasksConfig:
        optimizer, gap, train = self.optimizer, self.injection.gap, self.train
        every = gap * math.ceil(train.steps / (gap * MOST_CYCLES)) if gap else None
        before = dataclasses.replace(
            self,
            tasks=fill(self.tasks, rare=self.tasks.count),
            optimizer=fill(optimizer, lr=RATES[optimizer.name], clip=None if optimizer.name == "sgd" else CLIP),
            train=fill(
                train,
                eval_every=every,
                eval_after=min(_memory(optimizer), gap - 1) if gap else 0,
                eval_batches=1 if train.gradient == "population" else 10,
            ),
        )
        config = RunConfig.complete(before, platform)
        assert isinstance(config, TasksConfig)
        return config

    def slug(self) -> list[str]:
        t, gap = self.tasks, self.injection.gap
        spectrum = ([] if t.alpha == 1 else [f"a{t.alpha:.4g}"]) + ([f"r{t.ramp:.4g}"] if t.ramp else [])
        boost = [] if t.frequency_boost == 1 else [f"x{t.frequency_boost:.4g}"]
        how = [] if self.train.gradient == "population" else ["sampled"]
        name = [] if self.optimizer.name == "adamw" else [self.optimizer.name]
        gaps = [f"gap{gap}"] if gap else []
        return [
            "tasks",
            f"b{t.beta:.4g}",
            *spectrum,
            *boost,
            *how,
            *gaps,
            *name,
            f"m{self.student.width}",
            f"s{self.seed}",
        ]


def _memory(optimizer: Optimizer) -> int:
    """Over how many steps an optimizer averages gradients: 1 / (1 - b1), or with SGD 1 / (1 - momentum)."""
    kept = (optimizer.momentum or 0.0) if optimizer.name == "sgd" else optimizer.b1
    return math.ceil(1.0 / (1.0 - kept) - 1e-6)
