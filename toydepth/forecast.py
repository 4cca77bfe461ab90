"""What a command would do: runs, shape groups, sizes, memory, time. Trains nothing and writes nothing."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from .config import RunConfig
from .ensemble import Family, Member, parameters, plan
from .problems import source_of
from .programs import fresh_state, update
from .store import TWIN
from .training import generations, rooms

CALIBRATION_SECONDS = 2.0


def print_forecast(
    configs: Sequence[RunConfig], unfinished: Mapping[str, RunConfig], folder: Path, devices: Sequence[Any]
) -> None:
    """Prints the plan of a command.

    Args:
        configs: the distinct resolved configs.
        unfinished: those whose runs have not ended, by run id.
        folder: the sweep's folder.
        devices: what would train.
    """
    _print(len(configs), len(configs) - len(unfinished), families(unfinished, folder, devices), folder, devices)


def families(unfinished: Mapping[str, RunConfig], folder: Path, devices: Sequence[Any]) -> list[Family]:
    """What would be trained, planned as for training, generation by generation; all from step 0.

    Raises:
        ConfigError: a run does not fit into the memory.
    """
    if not unfinished:
        return []
    waiting = generations(unfinished, folder)
    room, _ = rooms(waiting, devices)
    return [family for generation in waiting for family in plan(generation, len(devices), room)]


def _print(runs: int, done: int, families: Sequence[Family], folder: Path, devices: Sequence[Any]) -> None:
    members = [member for family in families for wave in family.waves for member in wave.members]
    console = Console()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("shape group", "optimizer", "runs", "twins", "parameters", "TFLOP"):
        table.add_column(name, justify="left" if name in ("shape group", "optimizer") else "right")
    for family in families:
        for shape in family.width:
            here = [m for wave in family.waves for m in wave.members if m.shape == shape]
            twins = sum(m.name.endswith(TWIN) for m in here)
            flops = sum(m.remaining_flops() for m in here)
            row = (len(here) - twins, twins, f"{parameters(shape.problem):,}", f"{flops / 1e12:.3g}")
            table.add_row(shape.problem.label(), shape.optimizer, *map(str, row))
    if families:
        console.print(table)
    students = sum(member.remaining_flops() for member in members)
    teachers = sum(_teacher_flops(family) for family in families)
    largest = max((family.memory for family in families), key=lambda memory: memory.total, default=None)
    held = f"memory about {largest.total / 1e6:.0f} MB ({largest.words()})\n" if largest else ""
    notes = "".join(f"{family.note}\n" for family in families if family.note)
    with jax.default_matmul_precision(members[0].config.runtime.precision if members else "float32"):
        rate = calibrate(members, devices) if members else 0.0
    seconds = (students + teachers) / rate if members else 0.0
    groups = sum(len(family.width) for family in families)
    waves = sum(len(family.waves) for family in families)
    console.print(
        f"{runs} runs, {done} of them done; {groups} shape groups in {waves} waves on {len(devices)} devices\n"
        f"students {students / 1e12:.3g} TFLOP, teachers {teachers / 1e12:.3g} TFLOP\n"
        f"{held}{notes}"
        f"predicted time {_duration(seconds)} and compilation, at {rate / 1e9:.0f} GFLOP/s\n"
        f"folder {folder}",
        highlight=False,
        soft_wrap=True,
    )


def calibrate(members: Sequence[Member], devices: Sequence[Any]) -> float:
    """FLOPs per second of all devices together: updates of the middle member, by work, timed for two seconds."""
    ordered = sorted(members, key=lambda m: m.shape.problem.flops())
    work = np.cumsum([m.remaining_flops() for m in ordered])
    member = ordered[int(np.searchsorted(work, work[-1] / 2))]
    shape, stream = member.shape, member.shape.problem.stream
    fixed = jax.jit(stream.init)(source_of(member.config))
    batch, context = jax.jit(stream.draw)(fixed, jax.random.key(0)), stream.context(fixed)
    state = jax.jit(functools.partial(fresh_state, shape))(jax.random.key(1), member.hyper)
    advance = jax.jit(functools.partial(update, shape))
    places = [jax.device_put((state, member.hyper, batch, context), device) for device in devices]
    jax.block_until_ready([advance(*place, 0, 1) for place in places])
    start, n = time.perf_counter(), 0
    while time.perf_counter() - start < CALIBRATION_SECONDS:
        jax.block_until_ready([advance(*place, 0, 1) for place in places])
        n += len(places)
    return n * shape.problem.flops() / (time.perf_counter() - start)


def _teacher_flops(family: Family) -> float:
    """Every (cohort, step) is drawn once, for its longest member."""
    steps = sum(max(m.steps - m.step for m in cohort.members) for wave in family.waves for cohort in wave.cohorts)
    return steps * family.mode.stream.flops()


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
