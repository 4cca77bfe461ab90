"""A set of runs from one command: completed, checked against its folder, planned, trained, fitted."""

from __future__ import annotations

import logging
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import cluster, derive, files, store
from .config import ConfigError, RunConfig, own_code, resolve, run_id
from .devices import give_back_memory, setup
from .locks import Holder
from .problems import problem_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Summary:
    """How a command's runs stand when it ends."""

    folder: Path
    counts: Counter[str]  # runs by status
    skipped: int  # runs that were finished before
    left: Counter[Holder]  # runs that other processes are training, or that grow from what they train
    exit_code: int  # 0 all done, or left to living processes; 1 some failed or diverged; 130, 143 interrupted

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
    wanted = cluster.requested()
    devices, folder, runs = _prepare(configs, wanted, training=True)
    unfinished = _unfinished(runs, folder)
    if unfinished and not wanted:
        from . import forecast

        forecast.families(unfinished, folder, devices)  # what cannot fit into memory must be said before
    store.open_sweep(folder, [run.config for run in runs], command)
    for run in runs:
        path = store.run_folder(folder, run.name)
        store.promote(folder, run.name)
        if run.config.runtime.debug:
            shutil.rmtree(path, ignore_errors=True)  # looked at once more, and so are its stages
            shutil.rmtree(folder / store.STAGES, ignore_errors=True)
        store.write_config(path, run.config)
        for index in run.indices if on_folder else ():
            on_folder(index, path)  # type: ignore[misc]
    unfinished = _unfinished(runs, folder)
    interrupted = 0
    if unfinished and wanted:
        from . import jobs

        jobs.train(wanted, unfinished, folder)
    elif unfinished:
        from . import training  # and with it all that only training needs

        interrupted = training.train(unfinished, devices, folder)
    counts = Counter(store.status(store.run_folder(folder, run.name)) or "running" for run in runs)
    left = _left(unfinished, folder)
    exit_code = interrupted or int(counts["done"] + left.total() < len(runs))
    summary = Summary(folder, counts, len(runs) - len(unfinished), left, exit_code)
    _report(summary, runs, trained=bool(unfinished))
    return summary


def plan(configs: Sequence[RunConfig]) -> None:
    """Prints what `train` would do with these configs; trains nothing and writes nothing."""
    from . import forecast

    wanted = cluster.requested()
    devices, folder, runs = _prepare(configs, wanted, training=False)
    store.check_sweep(folder, [run.config for run in runs])
    unfinished = _unfinished(runs, folder)
    forecast.print_forecast([run.config for run in runs], unfinished, folder, devices)
    if wanted:
        from . import jobs

        print(jobs.forecast(wanted, unfinished))


def _prepare(
    configs: Sequence[RunConfig], wanted: cluster.Cluster | None, training: bool
) -> tuple[Sequence[Any], Path, list[_Run]]:
    """Devices, the sweep's folder and its distinct runs, resolved for where they are trained."""
    folders = {store.sweep_folder(config) for config in configs}
    if not configs:
        raise ConfigError("no runs: a swept field has no values")
    if len(folders) != 1:
        raise ConfigError(f"sweep.name: one command makes one sweep, not {len(folders)}")
    if wanted and training:
        from . import jobs

        jobs.stay_off_accelerators()
    devices = setup(configs[0].runtime.devices, configs[0].runtime.compile_cache if training else None)
    platform = wanted.platform if wanted else devices[0].platform
    runs: dict[str, _Run] = {}
    for index, config in enumerate(configs):
        resolved = resolve(config, platform)
        if own_code(resolved):
            problem_of(resolved)  # what is wrong with it must be said before anything is written
        name = run_id(resolved)
        runs.setdefault(name, _Run(name, resolved, [])).indices.append(index)
    return devices, folders.pop(), list(runs.values())


def _unfinished(runs: Sequence[_Run], folder: Path) -> dict[str, RunConfig]:
    """{id: resolved config} of the runs that have not ended."""
    return {run.name: run.config for run in runs if not store.ended(store.run_folder(folder, run.name))}


def _left(unfinished: dict[str, RunConfig], folder: Path) -> Counter[Holder]:
    """How many of the runs that are still to be trained are in whose hands."""
    if all(store.ended(store.run_folder(folder, name)) for name in unfinished):
        return Counter()
    from . import training

    return training.left(unfinished, folder)


def _report(summary: Summary, runs: Sequence[_Run], trained: bool) -> None:
    """Fits what is there, prints it, and says in one line how the command ended."""
    config = runs[0].config
    several, wanted = config.sweep.name is not None or len(runs) > 1, config.sweep.report and not config.runtime.debug
    derived = None
    if config.size and wanted and several and summary.counts["done"]:
        try:
            give_back_memory()  # figures take some of their own
            derived = derive.derive(summary.folder, figure=trained)
            from . import report  # and with it matplotlib

            if derived.redrawn or not (summary.folder / report.PAGE).exists():
                report.write(derived)
        except ConfigError as error:
            log.warning("no exponent: %s", error)
    for run in runs if config.runtime.debug == "overfit" else ():
        history = store.history(store.run_folder(summary.folder, run.name))
        if history.height > 1:
            before, after = history["loss"][0], history["train_loss"][-1]
            print(f"{run.name}: train loss {after:.3g} on its one batch, evaluation loss {before:.3g} at step 0")
    if len(runs) == 1 and summary.counts["done"]:
        path = store.run_folder(summary.folder, runs[0].name)
        result = store.result(path)
        print(f"loss {result['loss']:.4g} +- {result['loss_sem']:.1g} after {result['steps']} steps: {path}")
        return
    if derived is not None:
        derive.print_table(derived)
    for run in runs:
        status = files.read_json(store.run_folder(summary.folder, run.name) / "status.json")
        if status.get("status") in ("diverged", "failed"):
            log.warning("%s: %s", run.name, status["message"])
    grown = ", or grow from what it trains" * any(run.config.parent() is not None for run in runs)
    for holder, n in summary.left.items():
        print(f"{n} run{'s are' if n > 1 else ' is'} being trained by {holder}{grown}: left to it")
    print(summary.line())
