"""Peers (a) and (b) of the work in time: PyTorch, eager and compiled, as a good engineer would write it in an evening.

One run after another. Cross entropy has the gradient of KL at less than half its cost, so that is what is minimised;
KL is what is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .report import Report
from .time_work import TimeRun, TimeWork
from .torch_peer import norm, trained
from .work import Arrays, named


def objective(inputs: Tensor, W: Tensor, teacher: Tensor) -> Tensor:
    """The cross entropy between the teacher, over its temperature, and the student."""
    with torch.no_grad():
        target = F.softmax(inputs @ teacher, 1)
    return F.cross_entropy(inputs @ W, target)


class TimeTrainee:
    """A run in training. `minimised` may be compiled."""

    def __init__(self, work: TimeWork, start: Arrays, run: TimeRun, minimised: Any):
        self.work, self.minimised = work, minimised
        teacher = named(start, run.teacher)
        self.inputs = torch.tensor(teacher["inputs"])
        self.teacher = torch.tensor(teacher["W"]) / run.temperature
        self.W = torch.tensor(start[f"{run.student} W"], requires_grad=True)
        self.optimizer = torch.optim.Adam([self.W], lr=run.lr, fused=True)
        torch.manual_seed(run.seed)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            inputs = norm(torch.randn(self.work.batch, self.work.width))
            loss = self.minimised(inputs, self.W, self.teacher)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def loss(self) -> float:
        target = F.log_softmax(self.inputs @ self.teacher, 1)
        said = F.log_softmax(self.inputs @ self.W, 1)
        return float(F.kl_div(said, target, reduction="batchmean", log_target=True))


def eager(work: TimeWork, start: Arrays, runs: Sequence[TimeRun], threads: int) -> Report:
    """Peer (a)."""
    return trained(runs, work.steps, threads, lambda run: TimeTrainee(work, start, run, objective))


def compiled(work: TimeWork, start: Arrays, runs: Sequence[TimeRun], threads: int) -> Report:
    """Peer (b)."""
    minimised: Any = torch.compile(objective, fullgraph=True, dynamic=False)
    return trained(runs, work.steps, threads, lambda run: TimeTrainee(work, start, run, minimised), compiles=True)
