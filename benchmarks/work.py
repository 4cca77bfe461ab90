"""What a work is, whatever is trained: runs, their configs, and what its contestants share. Imports no JAX."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Run(ABC):
    """One run of a work.

    Attributes:
        seed: of its teacher, of its start and of its data.
    """

    seed: int

    @property
    @abstractmethod
    def label(self) -> str:
        """What it is known by; no other run of the work has the same one."""

    @property
    @abstractmethod
    def program(self) -> str:
        """What its training program is compiled for, in words; runs of one program share them."""

    @property
    @abstractmethod
    def teacher(self) -> str:
        """The name of what it learns from and is evaluated on, among the arrays to start from."""

    @property
    @abstractmethod
    def student(self) -> str:
        """The name of its parameters at step 0, among the arrays to start from."""

    @property
    def size(self) -> float:
        """How much there is to train, beside other runs of the work."""
        return 1.0


R = TypeVar("R", bound=Run)


@dataclass(frozen=True)
class Work(ABC, Generic[R]):
    """Runs to be trained by Adam at constant rates on fresh inputs.

    Attributes:
        problem: which of toydepth's problems is trained.
        name: what it is known by.
        steps: where final losses are compared; whoever is fast may be timed for longer.
    """

    problem: ClassVar[str]
    name: str
    steps: int

    @property
    @abstractmethod
    def runs(self) -> list[R]:
        """The runs, the smallest first."""

    @abstractmethod
    def scaled(self, scale: float) -> Work[R]:
        """A smaller work of the same kind, for a scale of at most 1."""

    @abstractmethod
    def config(self, run: R, steps: int) -> dict[str, Any]:
        """A run as a mapping for `toydepth.parse`: evaluated every `self.steps`, without a twin."""

    def flops(self) -> float | None:
        """Useful operations for each update, on average over the work; None where matrix products are too small a part
        of the work for their peak to mean anything."""
        return None

    def budget(self, steps: int, batch: int) -> dict[str, Any]:
        """The fields `train` of a run's config."""
        return {
            "steps": steps,
            "batch": batch,
            "eval_every": self.steps,
            "eval_batches": 1,
            "checkpoint_every": steps,
            "twin": False,
        }


def shrunk(size: int, scale: float) -> int:
    """A size times a scale, at least 1."""
    return max(1, round(size * scale))


def named(start: Arrays, whose: str) -> dict[str, np.ndarray]:
    """The arrays to start from that belong to a teacher or a student, by their own names."""
    prefix = f"{whose} "
    return {name.removeprefix(prefix): start[name] for name in start if name.startswith(prefix)}
