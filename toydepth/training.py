"""Trains the unfinished runs of a sweep's folder: finds where they stand, plans, and hands them to the engine."""

from __future__ import annotations

import logging
import signal
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import engine, ensemble, store
from .config import RunConfig, has_twin, twin
from .ensemble import Member
from .recorder import FolderRecorder, resume

log = logging.getLogger(__name__)


def members_of(runs: Mapping[str, RunConfig], folder: Path) -> list[Member]:
    """The runs, given as {id: resolved config}, and their twins that have not ended; all at step 0."""
    members = []
    for name, config in runs.items():
        members.append(Member(name, config))
        half = name + store.TWIN
        if has_twin(config) and not store.read_json(store.run_folder(folder, half) / "result.json"):
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
    recorder = FolderRecorder(folder, sum(member.remaining_flops() for member in members), len(runs), label)
    with _signals(recorder) as received:
        try:
            for family in ensemble.plan(members, len(devices), config.runtime.memory_gb):
                try:
                    if not engine.train(family, devices, recorder):
                        break
                except Exception as error:
                    if config.sweep.on_error == "raise":
                        raise
                    _failed(folder, recorder, family, error)
        finally:
            recorder.close()
    return 128 + received[0] if received else 0


def _failed(folder: Path, recorder: FolderRecorder, family: ensemble.Family, error: Exception) -> None:
    """Records an error with all runs of the family that had not ended."""
    message = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
    log.error("failed: %s (traceback in the runs' error.log)", message)
    for member in (m for wave in family.waves for m in wave.members):
        path = store.run_folder(folder, member.name.removesuffix(store.TWIN))
        if store.status(path) not in ("done", "diverged"):
            recorder.failed(member, message)
            store.write_text(path / "error.log", "".join(traceback.format_exception(error)))


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
