"""toydepth itself, measured through its engine: planned, compiled and trained as its command does it.

The recorder only counts. A real run of some thousand steps is evaluated 20 times and checkpointed 4 times; in a
benchmark of some dozen steps the same would weigh a hundred times what it does, and the peers do neither. The steady
state runs, in each wave, from the end of the first chunk to the end of the last, whatever the host does in between;
an evaluation every so often is part of it. The first step is seen when the first chunk is done, up to 8 steps later;
composing the request by Hydra comes before all this, see `startup` in `bench`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from toydepth import engine, ensemble
from toydepth.config import parse, resolve
from toydepth.devices import memory, setup
from toydepth.engine import Outcome
from toydepth.ensemble import Member

from .compilations import Compilations
from .report import Report
from .work import Arrays, R, Work

LONGER = 4  # times the work's steps, so that the steady state lasts seconds here too


class Clock:
    """A recorder of one wave that notes when chunks are done, and the losses at one step."""

    def __init__(self, members: Sequence[Member], loss_at: int):
        self.flops_per_update = sum(m.shape.problem.flops() for m in members) / len(members)
        self.loss_at = loss_at
        self.losses: dict[str, float] = {}
        self.chunks: list[tuple[float, float]] = []  # when, and the work done

    @property
    def seconds(self) -> float:
        return self.chunks[-1][0] - self.chunks[0][0]

    @property
    def updates(self) -> float:
        return sum(flops for _, flops in self.chunks[1:]) / self.flops_per_update

    def evaluated(self, member: Member, row: dict[str, float | None]) -> None:
        if member.step == self.loss_at:
            self.losses[member.name] = member.loss

    def checkpoint(self, member: Member, state: Any) -> None:
        pass

    def finished(self, member: Member, outcome: Outcome, state: Any) -> None:
        if outcome.status != "done":
            raise RuntimeError(f"{member.name} {outcome.message}")

    def progress(self, flops: float) -> None:
        self.chunks.append((time.perf_counter(), flops))

    def interrupted(self) -> bool:
        return False


def members_of(work: Work[R], runs: Sequence[R], steps: int, platform: str) -> list[Member]:
    """A work's runs as the engine's members."""
    return [Member(run.label, resolve(parse(work.config(run, steps)), platform)) for run in runs]


def toydepth(work: Work[R], start: Arrays, runs: Sequence[R], threads: int) -> Report:
    """toydepth on all devices. It draws its own start, which is everybody's; `threads` is for the others."""
    compilations = Compilations()
    devices = setup(None)
    members = members_of(work, runs, LONGER * work.steps, devices[0].platform)
    program = {member.shape: run.program for member, run in zip(members, runs, strict=True)}
    report = Report()
    for family in ensemble.plan(members, len(devices), memory(devices, None)):
        programs = engine.prepare(family, devices)
        for shape in family.width:
            report.details[f"compile_seconds {program[shape]}"] = programs.compile_seconds["advance", shape]
        for wave in family.waves:
            clock = Clock(wave.members, work.steps)
            before = time.time() - time.perf_counter()
            engine.train(programs, wave, clock)
            report.first_step_at = report.first_step_at or before + clock.chunks[0][0]
            report.updates += clock.updates
            report.seconds += clock.seconds
            report.losses |= clock.losses
    report.compile_seconds, report.programs = compilations.seconds, compilations.programs
    return report
