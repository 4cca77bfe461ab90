"""What a contestant reports, and the loop of those who train one run after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from .work import R


@dataclass
class Report:
    """A contestant's figures on one work.

    Attributes:
        updates, seconds: student updates in the steady state, after all compilation, and how long they took.
        losses: of every run after the work's steps, on its evaluation batch, by the run's label.
        first_step_at: when the first step was done, as `time.time()`.
        compile_seconds: spent on tracing and compiling, summed over threads.
        programs: how many were compiled.
        details: whatever else is worth keeping.
    """

    updates: float = 0.0
    seconds: float = 0.0
    losses: dict[str, float] = field(default_factory=dict)
    first_step_at: float = 0.0
    compile_seconds: float = 0.0
    programs: int = 0
    details: dict[str, Any] = field(default_factory=dict)


class Trainee(Protocol):
    """One run of a contestant."""

    def train(self, steps: int) -> None:
        """Takes some steps, and returns when they are done."""
        ...

    def loss(self) -> float:
        """The loss on the run's evaluation batch."""
        ...


def one_after_another(runs: Sequence[R], steps: int, begin: Callable[[R], Trainee]) -> Report:
    """Trains runs one after another. A run's first step, which may compile, counts as `compile_seconds` as far as it
    takes longer than the others; the others are the steady state."""
    report = Report()
    for run in runs:
        trainee = begin(run)
        start = time.perf_counter()
        trainee.train(1)
        first = time.perf_counter() - start
        report.first_step_at = report.first_step_at or time.time()
        start = time.perf_counter()
        trainee.train(steps - 1)
        seconds = time.perf_counter() - start
        report.compile_seconds += max(0.0, first - seconds / (steps - 1))
        report.seconds += seconds
        report.updates += steps - 1
        report.losses[run.label] = trainee.loss()
    return report


def deal(runs: Sequence[R], parts: int) -> list[list[R]]:
    """Runs dealt to processes, the largest first, each to the one with the least to train so far."""
    dealt: list[list[R]] = [[] for _ in range(parts)]
    for run in sorted(runs, key=lambda run: -run.size):
        min(dealt, key=lambda part: sum(r.size for r in part)).append(run)
    return dealt
