"""Trains the unfinished runs of a sweep's folder: finds where they stand, plans, and hands them to the engine."""

from __future__ import annotations

import logging
import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import jax

from . import checkpoint, debug, engine, ensemble, store
from .batches import Kept
from .config import ConfigError, RunConfig, has_twin, run_id, twin
from .devices import memory
from .ensemble import Family, Member, Wave
from .locks import Claim, Holder, holders
from .programs import Programs
from .recorder import FolderRecorder, grow, resume

log = logging.getLogger(__name__)
KEPT_SHARE = 0.25  # of the memory, for batches that several stages of growth or several epochs need


def generations(runs: Mapping[str, RunConfig], folder: Path) -> list[list[Member]]:
    """What is to be trained for runs, given as {id: resolved config}: themselves, their twins, and what they grow from.

    A generation grows from the one before it. What has ended is left out, but for the runs asked for. All at step 0.
    """
    found: list[list[Member]] = []
    for chain in _chains(runs, folder).values():
        found += [[] for _ in range(len(chain) - len(found))]
        for generation, pair in zip(found, chain, strict=False):
            generation += [m for m in pair if m not in generation and (m.name in runs or not _ended(folder, m))]
    return [generation for generation in found if generation]


def _chains(runs: Mapping[str, RunConfig], folder: Path) -> dict[str, list[list[Member]]]:
    """{id: what must be trained for a run, one growing from the other}; a member comes with its twin, if it has one."""
    pairs: dict[str, list[Member]] = {}

    def pair(name: str, config: RunConfig) -> list[Member]:
        if name not in pairs:
            before = config.parent()
            origins = pair(store.stage_name(folder, run_id(before), runs), before) if before else [None, None]
            halves = [(name, config), (name + store.TWIN, twin(config))][: 2 if has_twin(config) else 1]
            pairs[name] = [Member(*half, origin) for half, origin in zip(halves, origins, strict=False)]
        return pairs[name]

    def chain(members: list[Member]) -> list[list[Member]]:
        starts = [m.parent for m in members if m.parent and not _ended(folder, m) and not _steps(folder, m)]
        if all(_ended(folder, parent) for parent in starts):
            return [members]
        return [*chain(pairs[starts[0].name.removesuffix(store.TWIN)]), members]

    return {name: chain(pair(name, config)) for name, config in runs.items()}


def _ended(folder: Path, member: Member) -> bool:
    return bool(store.result(store.run_folder(folder, member.name)))


def _steps(folder: Path, member: Member) -> list[int]:
    """The steps from which a member can be continued."""
    return checkpoint.steps(store.run_folder(folder, member.name) / "checkpoint")


def train(runs: Mapping[str, RunConfig], devices: Sequence[Any], folder: Path) -> int:
    """Trains runs, given as {id: resolved config}, from where their folders say they stand.

    Runs that another process trains, or that grow from what it trains, are left to it; see `left`.

    Returns 0, or the exit code of an interruption by SIGINT or SIGTERM; then every run can be continued.

    Raises:
        ConfigError: the folder cannot be written to.
    """
    with store.into(folder):
        claim = Claim(folder, _needs(runs, folder))
    with claim:
        mine = [name for name in runs if name in claim.runs and not store.settled(store.run_folder(folder, name))]
        return _train({name: runs[name] for name in mine}, devices, folder) if mine else 0


def left(runs: Mapping[str, RunConfig], folder: Path) -> Counter[Holder]:
    """How many of the runs that are still to be trained are in whose hands, or grow from what is."""
    held = holders(folder)
    over = ("failed", *store.ENDED)
    waiting = {name: runs[name] for name in runs if store.status(store.run_folder(folder, name)) not in over}
    needs = _needs(waiting, folder) if held else {}
    return Counter(next(held[id] for id in ids if id in held) for ids in needs.values() if held.keys() & ids)


def _needs(runs: Mapping[str, RunConfig], folder: Path) -> dict[str, list[str]]:
    """{id: the ids of all that must be trained for a run}."""
    chains = _chains(runs, folder)
    return {name: [pair[0].name.removeprefix(store.STAGES) for pair in chain] for name, chain in chains.items()}


def _train(runs: Mapping[str, RunConfig], devices: Sequence[Any], folder: Path) -> int:
    """Trains runs that are in nobody else's hands."""
    waiting = generations(runs, folder)
    config = next(iter(runs.values()))
    label = config.sweep.name or f"{len(runs)} run{'s' * (len(runs) > 1)}"
    total = sum(member.remaining_flops() for generation in waiting for member in generation)
    recorder = FolderRecorder(folder, total, len(runs), label, devices)
    with _signals(recorder) as received, _profiled(folder, config):
        try:
            _Training(waiting, devices, folder, recorder).run()
        finally:
            recorder.close()
    ended = all(store.ended(store.run_folder(folder, name)) for name in runs)
    return 128 + received[0] if received and not ended else 0


def rooms(waiting: Sequence[Sequence[Member]], devices: Sequence[Any]) -> tuple[float, float]:
    """Bytes for the waves of generations, and for the batches that several of them, or several epochs, need."""
    members = [member for generation in waiting for member in generation]
    room = memory(devices, members[0].config.runtime.memory_gb) if members else 0.0
    again = len(waiting) > 1 or any(member.config.data.unique for member in members)
    return (room * (1.0 - KEPT_SHARE), room * KEPT_SHARE) if again else (room, 0.0)


class _Training:
    """Trains generations of members to the end: wave by wave, the deepest that can be trained first.

    So a long sweep of grown runs, too, yields whole replicates early, and batches are kept no longer than needed.
    """

    def __init__(
        self, waiting: Sequence[Sequence[Member]], devices: Sequence[Any], folder: Path, recorder: FolderRecorder
    ):
        self.waiting, self.devices, self.folder, self.recorder = waiting, devices, folder, recorder
        self.config = waiting[0][0].config
        self.programs: dict[int, Programs] = {}  # by the family's identity

    def run(self) -> None:
        """Trains until all have ended or an interruption."""
        ready = [[member for member in generation if self._resume(member)] for generation in self.waiting]
        if self.config.runtime.debug in ("nan", "eager"):
            for generation in ready:
                grown = [member for member in generation if self._started(member)]
                if not debug.train(grown, self.recorder, self.config.runtime.debug):
                    return
            return
        for_waves, for_kept = rooms(ready, self.devices)
        plans = [ensemble.plan(generation, len(self.devices), for_waves) for generation in ready]
        families = [family for plan in plans for family in plan]
        for note in filter(None, (family.note for family in families)):
            log.info(note)
        waves = [(family, wave) for family in families for wave in family.waves]
        kept = Kept(for_kept)
        while waves:
            family, wave = waves.pop(self._next([wave for _, wave in waves]))
            later = [cohort for _, other in waves for cohort in other.cohorts]
            kept.only([*wave.cohorts, *later])
            if not self._wave(family, wave, kept, {cohort.key for cohort in later}):
                return

    @staticmethod
    def _next(waves: Sequence[Wave]) -> int:
        """The last of the waves, which come generation by generation, that grows from none of the others."""
        pending = {member for wave in waves for member in wave.members}
        free = [i for i, wave in enumerate(waves) if pending.isdisjoint(member.parent for member in wave.members)]
        depth = [waves[i].members[0].generation for i in free]
        return free[depth.index(max(depth))]

    def _resume(self, member: Member) -> bool:
        """Sets a member to where its folder says it stands; if that fails, so has its run."""
        folder = store.run_folder(self.folder, member.name)
        is_stage = member.name.startswith(store.STAGES) and not member.name.endswith(store.TWIN)
        try:
            if is_stage:
                store.write_config(folder, member.config)
            resume(self.folder, member)
        except (ConfigError, OSError) as error:
            self._fail([member], error)
            return False
        return True

    def _started(self, member: Member) -> bool:
        """Whether a member has a state to go on from; a grown one gets it now."""
        if member.parent is None or member.state is not None:
            return True
        try:
            grow(self.folder, member)
        except (checkpoint.CheckpointError, OSError) as error:
            self._fail([member], error)
            return False
        return True

    def _wave(self, family: Family, wave: Wave, kept: Kept, again: Set[Any]) -> bool:
        """Trains a wave; an error fails its runs. Returns False if interrupted."""
        self.recorder.flush()  # what it grows from must be written
        wave = wave.without([member for member in wave.members if not self._started(member)])
        if not wave.members:
            return True
        try:
            programs = self.programs.get(id(family)) or engine.prepare(family, self.devices)
            self.programs[id(family)] = programs
            return engine.train(programs, wave, self.recorder, kept, again)
        except Exception as error:
            if self.config.sweep.on_error == "raise":
                raise
            self._fail(wave.members, error)
            return True

    def _fail(self, members: Sequence[Member], error: Exception) -> None:
        for member in members:
            self.recorder.failed(member.name.removesuffix(store.TWIN), error)


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
