"""Peers (a) and (b) of the work with tasks: PyTorch, eager and compiled, as a good engineer would write it in an
evening.

One run after another, all decoders stacked in one matrix. The roots of the frequencies multiply decoders, which are
smaller than errors, and targets, once; `addmm` and `dot` took less time than a difference and a sum of squares, with
or without `F.mse_loss` or `linalg.vector_norm`, and compiled all are alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .report import Report
from .tasks_work import TasksRun, TasksWork
from .torch_peer import trained
from .work import Arrays, named


def objective(D: Tensor, W: Tensor, roots: Tensor, target: Tensor) -> Tensor:
    """sum_k pi_k ||A_k - D_k W||^2, for the roots of pi_k and a target of all sqrt(pi_k) A_k."""
    errors = torch.addmm(target, roots * D, W, beta=-1).flatten()
    return errors.dot(errors)


class TasksTrainee:
    """A run in training. `minimised` may be compiled."""

    def __init__(self, work: TasksWork, start: Arrays, run: TasksRun, minimised: Any):
        self.minimised = minimised
        tasks, student = named(start, run.teacher), named(start, run.student)
        self.roots = torch.tensor(tasks["weights"]).sqrt().repeat_interleave(work.features)[:, None]
        teacher = torch.eye(work.count * work.features, work.inputs) * torch.tensor(tasks["amplitudes"]).reshape(-1, 1)
        self.target = self.roots * teacher
        self.D = torch.tensor(student["D"]).reshape(-1, run.width).requires_grad_()
        self.W = torch.tensor(student["W"], requires_grad=True)
        self.clip = work.clip
        self.optimizer = torch.optim.Adam([self.D, self.W], lr=work.lr, fused=True)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            loss = self.minimised(self.D, self.W, self.roots, self.target)
            self.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_([self.D, self.W], self.clip)
            self.optimizer.step()

    @torch.no_grad()
    def loss(self) -> float:
        return float(objective(self.D, self.W, self.roots, self.target))


def eager(work: TasksWork, start: Arrays, runs: Sequence[TasksRun], threads: int) -> Report:
    """Peer (a)."""
    return trained(runs, work.steps, threads, lambda run: TasksTrainee(work, start, run, objective))


def compiled(work: TasksWork, start: Arrays, runs: Sequence[TasksRun], threads: int) -> Report:
    """Peer (b)."""
    torch._dynamo.config.recompile_limit = len(work.widths)
    minimised: Any = torch.compile(objective, fullgraph=True, dynamic=False)
    return trained(runs, work.steps, threads, lambda run: TasksTrainee(work, start, run, minimised), compiles=True)
