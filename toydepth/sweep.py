"""A set of runs from one command: completed, checked against its folder, planned, trained, fitted."""

from __future__ import annotations

import logging
import signal
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from . import derive, engine, ensemble, forecast, store
from .config import ConfigError, RunConfig, resolve, run_id, twin
from .ensemble import Member
from .recorder import TWIN, FolderRecorder, has_twin, resume

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Summary:
    """How a command's runs stand when it ends."""

    folder: Path
    counts: Counter[str]  # runs by status
    skipped: int  # runs that were finished before
    exit_code: int  # 0 all done; 1 some failed or diverged; 130, 143 interrupted

    def line(self) -> str:
        """One line for people."""
        parts = [f"{n} {status}" for status, n in sorted(self.counts.items())]
        earlier = f" ({self.skipped} of them before)" if self.skipped else ""
        return f"{', '.join(parts)}{earlier}: {self.folder}"


@dataclass
class _Run:
    """A run of this command: its id, its resolved config, and which of the command's configs asked for it."""

    name: str
    config: RunConfig
    indices: list[int]


def train(
    configs: Sequence[RunConfig],
    command: str = "toydepth.train",
    on_folder: Callable[[int, Path], None] | None = None,
) -> Summary:
    """Trains the runs of one sweep; skips what is done, continues what is not, then fits and draws.

    Args:
        configs: parsed configs; equal ones are trained once.
        command: what is noted as the command that made them.
        on_folder: called with a config's index and its run's folder once that exists.

    Raises:
        ConfigError: the request is wrong; nothing has been trained.
    """
    devices, folder, runs = _prepare(configs)
    store.open_sweep(folder, [run.config for run in runs], command)
    for run in runs:
        path = store.run_folder(folder, run.name)
        store.write_config(path, run.config)
        for index in run.indices if on_folder else ():
            on_folder(index, path)  # type: ignore[misc]
    finished = [run for run in runs if _ended(folder, run)]
    members = [member for run in runs if run not in finished for member in _members(folder, run)]
    interrupted = _train(members, devices, folder, len(runs) - len(finished), configs[0]) if members else 0
    counts = Counter(store.status(store.run_folder(folder, run.name)) or "running" for run in runs)
    exit_code = interrupted or int(counts["done"] < len(runs))
    summary = Summary(folder, counts, len(finished), exit_code)
    _report(summary, runs)
    return summary


def plan(configs: Sequence[RunConfig]) -> None:
    """Prints what `train` would do with these configs; trains nothing and writes nothing."""
    devices, folder, runs = _prepare(configs)
    finished = [run for run in runs if _ended(folder, run)]
    members = [member for run in runs if run not in finished for member in _members(folder, run, continued=False)]
    families = ensemble.plan(members, len(devices), configs[0].runtime.memory_gb)
    forecast.print_forecast([run.config for run in runs], members, families, len(finished), len(devices))


def _prepare(configs: Sequence[RunConfig]) -> tuple[Sequence[Any], Path, list[_Run]]:
    """Devices, the sweep's folder and its distinct runs."""
    folders = {store.sweep_folder(config) for config in configs}
    if len(folders) != 1:
        raise ConfigError(f"sweep.name: one command makes one sweep, not {len(folders)}")
    cache = configs[0].runtime.compile_cache
    if cache:
        jax.config.update("jax_compilation_cache_dir", str(Path(cache).absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    devices = engine.setup(configs[0].runtime.devices)
    runs: dict[str, _Run] = {}
    for index, config in enumerate(configs):
        resolved = resolve(config, devices[0].platform)
        name = run_id(resolved)
        runs.setdefault(name, _Run(name, resolved, [])).indices.append(index)
    return devices, folders.pop(), list(runs.values())


def _ended(folder: Path, run: _Run) -> bool:
    path = store.run_folder(folder, run.name)
    return store.status(path) in ("done", "diverged") and bool(store.read_json(path / "result.json"))


def _members(folder: Path, run: _Run, continued: bool = True) -> list[Member]:
    """The run and its twin, without the twin if that has ended; each where its folder says it stands if `continued`."""
    members = [Member(run.name, run.config)]
    if has_twin(run.config) and not store.read_json(store.run_folder(folder, run.name + TWIN) / "result.json"):
        members.append(Member(run.name + TWIN, twin(run.config)))
    for member in members if continued else ():
        resume(store.run_folder(folder, member.name), member)
    return members


def _train(members: list[Member], devices: Sequence[Any], folder: Path, runs: int, config: RunConfig) -> int:
    """Trains the members; returns 0, or the exit code of an interruption."""
    flops = sum(member.remaining_flops() for member in members)
    recorder = FolderRecorder(folder, flops, runs, config.sweep.name or f"{runs} run{'s' * (runs > 1)}")
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
        path = store.run_folder(folder, member.name.removesuffix(TWIN))
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


def _report(summary: Summary, runs: Sequence[_Run]) -> None:
    """Fits what is there, prints it, and says in one line how the command ended."""
    if len(runs) == 1 and summary.counts["done"]:
        path = store.run_folder(summary.folder, runs[0].name)
        result = store.read_json(path / "result.json")
        print(f"loss {result['loss']:.4g} +- {result['loss_sem']:.1g} after {result['steps']} steps: {path}")
        return
    if summary.counts["done"]:
        try:
            derive.print_table(derive.derive(summary.folder))
        except ConfigError as error:
            log.warning("no exponent: %s", error)
    for run in runs:
        status = store.read_json(store.run_folder(summary.folder, run.name) / "status.json")
        if status.get("status") in ("diverged", "failed"):
            log.warning("%s: %s", run.name, status["message"])
    print(summary.line())
