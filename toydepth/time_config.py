"""The fields of the time experiment: a linear softmax head learns a peaked target (arXiv 2602.03685, sec. 3 and 4)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import ClassVar

from .fields import choice, flag, integer, real, refuse
from .run_config import SCHEDULES, Optimizer, RunConfig, Schedule, Train, fill


@dataclass(frozen=True)
class Teacher:
    """One bias-free linear map on RMS-normalised Gaussian inputs, weights uniform in +-1/sqrt(width).

    The inputs' covariance has eigenvalues k^-spectrum, k = 1 ... width; 0 is white.
    """

    width: int = integer(32, 1, 65_536)
    seed: int | None = integer(None, 0, 2**32 - 1)  # resolved: the run's seed
    spectrum: float = real(0.0, 0.0, 10.0)


@dataclass(frozen=True)
class Student:
    """A map of the teacher's form. It starts as its own random draw (uniform, as the teacher's) times init / T."""

    init: float = real(0.0, 0.0, 1e6)


@dataclass(frozen=True)
class Target:
    """The teacher's softmax at a temperature (kl), or its outputs divided by it (mse)."""

    loss: str = choice("kl", "kl", "mse")
    temperature: float = real(1e-3, 0.0, open_low=True)
    vocab: int = integer(128, 2, 10_000_000)


@dataclass(frozen=True)
class Measure:
    """The Hessian of the loss at every evaluation: its largest eigenvalues by `lanczos` steps, its trace by `probes`.

    Both are recorded only with `eigenvalues` above 0.
    """

    eigenvalues: int = integer(0, 0, 16)
    lanczos: int = integer(24, 2, 256)
    probes: int = integer(16, 1, 4096)


@dataclass(frozen=True)
class TimeOptimizer(Optimizer):
    """As everywhere; a single map has no depth, and no layers that Muon would train."""

    name: str = choice("adam", "adam", "adamw", "sgd")
    depth_power: float = real(0.0, 0.0, 0.0)


@dataclass(frozen=True)
class TimeSchedule(Schedule):
    """As everywhere, flat unless said: a law in time is one of the training itself, not of its decay."""

    name: str = choice("constant", *SCHEDULES)


@dataclass(frozen=True)
class TimeTrain(Train):
    """The budget. Curves are fitted, so evaluations are log-spaced, and there is no twin at half the steps."""

    steps: int = integer(2000, 1)
    batch: int = integer(1024, 1, 10_000_000)
    evals_per_decade: int = integer(20, 0, 1000, matters=False)
    eval_batches: int = integer(4, 1, 100_000)
    twin: bool = flag(False)


@dataclass(frozen=True)
class TimeConfig(RunConfig):
    """`problem=time`: loss against tau, the sum of learning rates (arXiv 2602.03685)."""

    size: ClassVar[str | None] = "tau"

    teacher: Teacher = field(default_factory=Teacher)
    student: Student = field(default_factory=Student)
    target: Target = field(default_factory=Target)
    measure: Measure = field(default_factory=Measure)
    optimizer: TimeOptimizer = field(default_factory=TimeOptimizer)
    schedule: TimeSchedule = field(default_factory=TimeSchedule)
    train: TimeTrain = field(default_factory=TimeTrain)

    def unused(self) -> set[str]:
        measured = {"measure.lanczos", "measure.probes"} if not self.measure.eigenvalues else set()
        return super().unused() | measured | {"optimizer.depth_power"}

    def check(self) -> None:
        super().check()
        measure, size = self.measure, self.teacher.width * self.target.vocab
        if measure.eigenvalues > min(measure.lanczos, size):
            limit = min(measure.lanczos, size)
            refuse("measure.eigenvalues", measure.eigenvalues, f"at most {limit}, measure.lanczos or the parameters")

    def complete(self, platform: str) -> TimeConfig:
        config = super().complete(platform)
        assert isinstance(config, TimeConfig)
        return dataclasses.replace(config, teacher=fill(config.teacher, seed=config.seed))

    def slug(self) -> list[str]:
        loss = [] if self.target.loss == "kl" else [self.target.loss]
        start = [f"i{self.student.init:.4g}"] if self.student.init else []
        rate = f"lr{self.optimizer.lr:.4g}"
        return ["time", *loss, f"T{self.target.temperature:.4g}", *start, self.optimizer.name, rate, f"s{self.seed}"]
