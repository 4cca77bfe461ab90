"""Peers (a) and (b) of the works in depth: PyTorch, eager and compiled, as a good engineer would write them in an
evening.

One run after another, each step drawing inputs, running the teacher without gradients and updating the student; rows
of states, layers stacked in one tensor for each kind of weight, so that fused Adam has three or four tensors to update
and autograd stacks the gradients once. What was tried and made no difference beyond noise: `F.rms_norm`, `F.normalize`
or `linalg.vecdot` in place of the norm as written, and `F.linear` with a separate sum in place of `addmm`.

`torch.compile` is given a few layers at a time: one at a time gains nothing, since entering a compiled function costs
what fusing saves, and compile time grows with the layers (a student's group of 8 took 13 s, 48 would take minutes). It
needs a C++ compiler on the machine; without one this contestant is missing, and the table gives the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .depth_work import DepthRun, DepthWork, student_of, teacher_of
from .report import Report, Trainee, one_after_another
from .work import Arrays, R

EPSILON = 1e-6
TEACHER_GROUP, STUDENT_GROUP = 16, 4  # layers compiled together

Through = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def norm(h: Tensor) -> Tensor:
    """h / sqrt(mean h^2), for rows of states."""
    return h * torch.rsqrt(h.square().mean(1, keepdim=True) + EPSILON)


def layers(h: Tensor, W1: Tensor, b1: Tensor, W2: Tensor) -> Tensor:
    """The stacked layers, applied in order to rows of states."""
    for w1, b, w2 in zip(W1.unbind(), b1.unbind(), W2.unbind(), strict=True):
        active = torch.relu_(torch.addmm(b, norm(h), w1.t()))
        h = torch.addmm(h, active.square(), w2.t())
    return h


def grouped(through: Through, size: int) -> Through:
    """Stacked layers applied by a function of at most `size` of them."""

    def apply(h: Tensor, W1: Tensor, b1: Tensor, W2: Tensor) -> Tensor:
        for group in zip(W1.split(size), b1.split(size), W2.split(size), strict=True):
            h = through(h, *group)
        return h

    return apply


def mse(last: Tensor, states: Tensor) -> Tensor:
    """Of the student's normalised last states."""
    return F.mse_loss(norm(last), states)


def kl(last: Tensor, states: Tensor, head: Tensor, teacher_head: Tensor, temperature: Tensor) -> Tensor:
    """KL(teacher at its temperature || student at 1)."""
    target = F.log_softmax(states @ teacher_head.t() / temperature, 1)
    return F.kl_div(F.log_softmax(norm(last) @ head.t(), 1), target, reduction="batchmean", log_target=True)


class TorchRun:
    """A run in training. `teacher_layers`, `student_layers` and `objective` may be compiled."""

    def __init__(
        self,
        work: DepthWork,
        start: Arrays,
        run: DepthRun,
        teacher_layers: Through,
        student_layers: Through,
        loss: Any,
    ):
        self.work, self.teacher_layers, self.student_layers, self.objective = work, teacher_layers, student_layers, loss
        self.teacher = {name: torch.tensor(array) for name, array in teacher_of(start, run).items()}
        self.teacher_weights = [self.teacher[name] for name in ("W1", "b1", "W2")]
        self.params = {name: torch.tensor(a, requires_grad=True) for name, a in student_of(start, run, work).items()}
        self.weights = [self.params[name] for name in ("W1", "b1", "W2")]
        self.heads = ()
        if work.loss == "kl":
            self.heads = (self.params["head"], self.teacher["head"], torch.tensor(run.temperature))
        self.optimizer = torch.optim.Adam(self.params.values(), lr=work.rate(run), fused=True)
        torch.manual_seed(run.seed)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            with torch.no_grad():
                inputs = norm(torch.randn(self.work.batch, self.work.width))
                states = norm(self.teacher_layers(inputs, *self.teacher_weights))
            loss = self.objective(self.student_layers(inputs, *self.weights), states, *self.heads)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    @torch.no_grad()
    def loss(self) -> float:
        last = layers(self.teacher["inputs"], *self.weights)
        return float((mse if self.work.loss == "mse" else kl)(last, self.teacher["states"], *self.heads))


def eager(work: DepthWork, start: Arrays, runs: Sequence[DepthRun], threads: int) -> Report:
    """Peer (a)."""
    objective = mse if work.loss == "mse" else kl
    return trained(runs, work.steps, threads, lambda run: TorchRun(work, start, run, layers, layers, objective))


def compiled(work: DepthWork, start: Arrays, runs: Sequence[DepthRun], threads: int) -> Report:
    """Peer (b)."""
    through = torch.compile(layers, fullgraph=True, dynamic=False)
    objective: Any = torch.compile(mse if work.loss == "mse" else kl, fullgraph=True, dynamic=False)
    teacher, student = grouped(through, TEACHER_GROUP), grouped(through, STUDENT_GROUP)
    begin = lambda run: TorchRun(work, start, run, teacher, student, objective)  # noqa: E731
    return trained(runs, work.steps, threads, begin, compiles=True)


def trained(
    runs: Sequence[R], steps: int, threads: int, begin: Callable[[R], Trainee], compiles: bool = False
) -> Report:
    """Trains runs one after another on some threads, and says what was compiled, if anything is."""
    torch.set_num_threads(threads)
    before = _graphs() if compiles else 0
    report = one_after_another(runs, steps, begin)
    if compiles:
        report.programs = _graphs() - before
    else:
        report.compile_seconds = 0.0
    return report


def _graphs() -> int:
    """Graphs compiled in this process."""
    from torch._dynamo.utils import counters

    return counters["stats"]["unique_graphs"]
