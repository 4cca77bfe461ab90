"""Trains the unfinished runs of a sweep's folder: finds where they stand, plans, and hands them to the engine."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax

from . import debug, engine, ensemble, store
from .config import RunConfig, has_twin, twin
from .devices import memory
from .ensemble import Family, Member
from .recorder import FolderRecorder, resume


def members_of(runs: Mapping[str, RunConfig], folder: Path) -> list[Member]:
    """The runs, given as {id: resolved config}, and their twins that have not ended; all at step 0."""
    members = []
    for name, config in runs.items():
        members.append(Member(name, config))
        half = name + store.TWIN
        if has_twin(config) and not store.result(store.run_folder(folder, half)):
            members.append(Member(half, twin(config)))
    return members


def train(runs: Mapping[str, RunConfig], devices: Sequence[Any], folder: Path) -> int:
    """Trains runs, given as {id: resolved config}, from where their folders say they stand.

    Returns 0, or the exit code of an interruption by SIGINT or SIGTERM; then every run can be continued.
    """
    members = members_of(runs, folder)
    for member in members:
        resume(store.run_folder(folder, member.name), member)
    config = next(iter(runs.values()))
    label = config.sweep.name or f"{len(runs)} run{'s' * (len(runs) > 1)}"
    recorder = FolderRecorder(folder, sum(member.remaining_flops() for member in members), len(runs), label, devices)
    with _signals(recorder) as received, _profiled(folder, config):
        try:
            if config.runtime.debug in ("nan", "eager"):
                debug.train(members, recorder, config.runtime.debug)
                members = []
            for family in ensemble.plan(members, len(devices), memory(devices, config.runtime.memory_gb)):
                if not _train_family(family, devices, recorder, raising=config.sweep.on_error == "raise"):
                    break
        finally:
            recorder.close()
    ended = all(store.ended(store.run_folder(folder, name)) for name in runs)
    return 128 + received[0] if received and not ended else 0


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
