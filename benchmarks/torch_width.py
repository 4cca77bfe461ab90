"""Peers (a) and (b) of the work in width: PyTorch, eager and compiled, as a good engineer would write it in an evening.

One run after another. A feature is active where a uniform number is below its probability; that number over the
probability is its value, so that no second one is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .report import Report
from .torch_peer import trained
from .width_work import WidthRun, WidthWork
from .work import Arrays, named


def objective(x: Tensor, W: Tensor, b: Tensor) -> Tensor:
    """The squared errors of all features, on average over samples."""
    y = torch.relu(torch.addmm(b, x @ W, W.t()))
    return (y - x).square().sum(1).mean()


class WidthTrainee:
    """A run in training. `minimised` may be compiled."""

    def __init__(self, work: WidthWork, start: Arrays, run: WidthRun, minimised: Any):
        assert work.decay < 0  # rows are pulled to a norm of 1
        self.work, self.minimised = work, minimised
        features = named(start, run.teacher)
        self.inputs, self.frequencies = torch.tensor(features["inputs"]), torch.tensor(features["frequencies"])
        self.scales = 2.0 / self.frequencies
        self.W, self.b = (torch.tensor(start[f"{run.student} {name}"], requires_grad=True) for name in ("W", "b"))
        self.optimizer = torch.optim.Adam([self.W, self.b], lr=work.lr, fused=True)
        torch.manual_seed(run.seed)

    def train(self, steps: int) -> None:
        share = self.work.lr * self.work.decay
        for _ in range(steps):
            chance = torch.rand(self.work.batch, self.work.count)
            x = torch.where(chance < self.frequencies, chance * self.scales, 0.0)
            loss = self.minimised(x, self.W, self.b)
            self.optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                self.W += share * (self.W - self.W / self.W.norm(dim=1, keepdim=True))
            self.optimizer.step()

    @torch.no_grad()
    def loss(self) -> float:
        return float(objective(self.inputs, self.W, self.b))


def eager(work: WidthWork, start: Arrays, runs: Sequence[WidthRun], threads: int) -> Report:
    """Peer (a)."""
    return trained(runs, work.steps, threads, lambda run: WidthTrainee(work, start, run, objective))


def compiled(work: WidthWork, start: Arrays, runs: Sequence[WidthRun], threads: int) -> Report:
    """Peer (b)."""
    minimised: Any = torch.compile(objective, fullgraph=True, dynamic=False)
    return trained(runs, work.steps, threads, lambda run: WidthTrainee(work, start, run, minimised), compiles=True)
