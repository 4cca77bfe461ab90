"""Trains the unfinished runs of a sweep's folder: finds where they stand, plans, and hands them to the engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax

from . import checkpoint, debug, engine, ensemble, store
from .config import RunConfig, has_twin, run_id, twin
from .devices import memory
from .ensemble import Family, Member
from .recorder import FolderRecorder, resume


def generations(runs: Mapping[str, RunConfig], folder: Path) -> list[list[Member]]:
    """What is to be trained for runs, given as {id: resolved config}: themselves, their twins, and what they grow from.

    A generation grows from the one before it. What has ended is left out, but for the runs asked for. All at step 0.
    """
    known: dict[str, Member] = {}
    found: list[list[Member]] = []

    def add(name: str, config: RunConfig) -> tuple[int, Member]:
        """The generation and the member of a run; it and its twin are added once."""
        before = config.parent()
        level, parent = -1, None
        if before is not None:
            level, parent = add(store.stage_name(folder, run_id(before), runs), before)
        halves = [(name, config, parent)]
        if has_twin(config):
            other = parent and known[parent.name + store.TWIN]
            halves.append((name + store.TWIN, twin(config), other))
        for each, settings, origin in halves:
            if each not in known:
                known[each] = Member(each, settings, origin)
                ended = bool(store.result(store.run_folder(folder, each)))
                if not ended or (each == name and name in runs):
                    found.extend([] for _ in range(level + 2 - len(found)))
                    found[level + 1].append(known[each])
        return level + 1, known[name]

    for name, config in runs.items():
        add(name, config)
    return [generation for generation in found if generation]


def train(runs: Mapping[str, RunConfig], devices: Sequence[Any], folder: Path) -> int:
    """Trains runs, given as {id: resolved config}, from where their folders say they stand.

    Returns 0, or the exit code of an interruption by SIGINT or SIGTERM; then every run can be continued.
    """
    waiting = generations(runs, folder)
    config = next(iter(runs.values()))
    label = config.sweep.name or f"{len(runs)} run{'s' * (len(runs) > 1)}"
    total = sum(member.remaining_flops() for generation in waiting for member in generation)
    recorder = FolderRecorder(folder, total, len(runs), label, devices)
    with _signals(recorder) as received, _profiled(folder, config):
        try:
            for generation in waiting:
                if not _train_generation(generation, devices, folder, recorder):
                    break
                recorder.flush()  # the next one starts from what is written
        finally:
            recorder.close()
    ended = all(store.ended(store.run_folder(folder, name)) for name in runs)
    return 128 + received[0] if received and not ended else 0


def _train_generation(
    members: Sequence[Member], devices: Sequence[Any], folder: Path, recorder: FolderRecorder
) -> bool:
    """Trains members from where their folders say they stand. Returns False if interrupted."""
    config = members[0].config
    ready = []
    for member in members:
        if member.name.startswith(store.STAGES) and not member.name.endswith(store.TWIN):
            store.write_config(store.run_folder(folder, member.name), member.config)
        try:
            resume(folder, member)
        except checkpoint.CheckpointError as error:
            recorder.failed(member.name.removesuffix(store.TWIN), error)
        else:
            ready.append(member)
    if config.runtime.debug in ("nan", "eager"):
        return debug.train(ready, recorder, config.runtime.debug)
    for family in ensemble.plan(ready, len(devices), memory(devices, config.runtime.memory_gb)):
        if not _train_family(family, devices, recorder, raising=config.sweep.on_error == "raise"):
            return False
    return True


def _train_family(family: Family, devices: Sequence[Any], recorder: FolderRecorder, raising: bool) -> bool:
    """Trains a family, wave by wave; an error fails the runs of its wave. Returns False if interrupted."""
    programs = None
    for wave in family.waves:
        try:
            programs = programs or engine.prepare(family, devices)
            if not engine.train(programs, wave, recorder):
                return False
        except Exception as error:
            if raising:
                raise
            for member in wave.members:
                recorder.failed(member.name.removesuffix(store.TWIN), error)
    return True


@contextmanager
def _profiled(folder: Path, config: RunConfig) -> Iterator[None]:
    """Under `debug=profile`, writes a trace of what JAX does into `trace/` of the sweep's folder."""
    with jax.profiler.trace(str(folder / "trace")) if config.runtime.debug == "profile" else nullcontext():
        yield


@contextmanager
def _signals(recorder: FolderRecorder) -> Iterator[list[int]]:
    """The first SIGINT or SIGTERM asks the engine to checkpoint and stop; a second one ends the process."""
    received: list[int] = []

    def handle(number: int, frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)
        recorder.stop.set()

    try:
        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not the main thread: signals are somebody else's business
        before = {}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
