"""The fields of the width experiment: an autoencoder holds more features than it has dimensions (arXiv 2505.10465)."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from .fields import choice, integer, real, refuse
from .run_config import SCHEDULES, Optimizer, RunConfig, Schedule, Train, fill

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True)
class Features:
    """What is to be represented: features that are active with probabilities p_i, at values uniform in (0, 2).

    p_i falls with the rank i as i^-exponent, exp(-i / length), or linearly; all p_i add up to `density`.
    """

    count: int = integer(1000, 2, 1_000_000)
    frequency: str = choice("power", "power", "exponential", "linear")
    exponent: float = real(1.0, 0.0, 100.0)
    length: float = real(400.0, 0.0, open_low=True)
    density: float = real(1.0, 0.0, open_low=True)

    def frequencies(self) -> np.ndarray:
        """The probability p_i of every feature, [count], the most frequent first."""
        weights = _weights(self.frequency, self.count, self.exponent, self.length)
        return self.density * weights / weights.sum()


@functools.lru_cache(maxsize=64)
def _weights(frequency: str, count: int, exponent: float, length: float) -> np.ndarray:
    """Numbers in the proportions of the frequencies, the first of them the largest."""
    import numpy as np  # only here, since most commands need no arrays

    rank = np.arange(1.0, count + 1.0)
    if frequency == "power":
        return rank**-exponent
    return np.exp((1.0 - rank) / length) if frequency == "exponential" else count + 1.0 - rank


@dataclass(frozen=True)
class Student:
    """relu(x W W^T + b), with a row of W, of `width` numbers, for each feature.

    At every step `decay` times the rate pulls rows to zero, or where it is negative to a norm of 1. b has no decay, and
    starts as Gaussian numbers of standard deviation `bias`.
    """

    width: int = integer(32, 1, 65_536)
    decay: float = real(-1.0, -100.0, 100.0)
    bias: float = real(1.0, 0.0, 1e6)


@dataclass(frozen=True)
class WidthOptimizer(Optimizer):
    """W's rate is `lr / student.width ** width_power`, that of b is `bias_lr / student.width ** bias_power`."""

    name: str = choice("adam", "adam", "sgd")
    depth_power: float = real(0.0, 0.0, 0.0)
    lr: float | None = real(0.01, 0.0, open_low=True)
    width_power: float = real(0.0, -10.0, 10.0)
    bias_lr: float | None = real(None, 0.0, open_low=True)  # resolved: lr
    bias_power: float | None = real(None, -10.0, 10.0)  # resolved: width_power


@dataclass(frozen=True)
class WidthSchedule(Schedule):
    """A tenth of the steps warms up, then a cosine to 5 %, as published."""

    name: str = choice("cosine", *SCHEDULES)
    floor: float = real(0.05, 0.0, 1.0)
    warmup: float = real(0.1, 0.0, 1.0)


@dataclass(frozen=True)
class WidthTrain(Train):
    """The budget."""

    steps: int = integer(6000, 1)


@dataclass(frozen=True)
class WidthConfig(RunConfig):
    """`problem=width`: loss against the width that features share (arXiv 2505.10465)."""

    size: ClassVar[str | None] = "student.width"

    features: Features = field(default_factory=Features)
    student: Student = field(default_factory=Student)
    optimizer: WidthOptimizer = field(default_factory=WidthOptimizer)
    schedule: WidthSchedule = field(default_factory=WidthSchedule)
    train: WidthTrain = field(default_factory=WidthTrain)

    def unused(self) -> set[str]:
        shapes = {"power": "exponent", "exponential": "length"}
        others = {f"features.{name}" for kind, name in shapes.items() if kind != self.features.frequency}
        return super().unused() | others | {"optimizer.depth_power"}

    def check(self) -> None:
        super().check()
        f = self.features
        most = f.density / float(f.frequencies()[0])
        if f.density > most * (1 + 1e-9):
            refuse("features.density", f.density, f"at most {most:.6g}, where the first feature is always active")
        if f.count * self.train.batch >= 2**31:
            refuse("train.batch", self.train.batch, f"below {2**31 // f.count}, 2^31 / features.count")

    def complete(self, platform: str) -> WidthConfig:
        config = super().complete(platform)
        assert isinstance(config, WidthConfig)
        optimizer = config.optimizer
        rates = fill(optimizer, bias_lr=optimizer.lr, bias_power=optimizer.width_power)
        return dataclasses.replace(config, optimizer=rates)

    def rate_scale(self) -> float:
        return self.student.width**-self.optimizer.width_power

    def slug(self) -> list[str]:
        f, student = self.features, self.student
        shape = {"power": f"a{f.exponent:.4g}", "exponential": f"exp{f.length:.4g}", "linear": "linear"}[f.frequency]
        density = [] if f.density == 1 else [f"E{f.density:.4g}"]
        bias = [] if student.bias == 1 else [f"b{student.bias:.4g}"]
        return ["width", shape, *density, f"g{student.decay:.4g}", *bias, f"m{student.width}", f"s{self.seed}"]
