"""Jobs: a sweep's runs trained through submitit, in processes on this machine or by SLURM.

    unfinished runs --(what is compiled together, what grows from the same run)--> parts --> jobs

The command makes the sweep's folder, submits, waits and fits. Between it and its jobs there is only that folder: a
job reads its runs' configs there, and trains them as the command itself would.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import submitit
from submitit.core.utils import DelayedSubmission, FailedJobError
from tqdm import tqdm

from . import ensemble, files, store
from .cluster import PREFIX, Cluster
from .config import ConfigError, RunConfig, parse, resolve, run_id
from .devices import setup, usable_cores

JOBS = "jobs"  # beside `runs`: submitit's files and the jobs' logs
SECONDS_BETWEEN_LOOKS = {"local": 0.3, "slurm": 10.0}
STOPPED = 128 + signal.SIGTERM
IN_SLURM = ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "COMPLETING", "PREEMPTED", "REQUEUED")
log = logging.getLogger(__name__)

Handle = Any  # a submitit.Job


@dataclass(frozen=True)
class Place:
    """What a job on this machine may use, and the process that waits for it."""

    command: int
    cores: tuple[int, ...]
    gpus: str  # as in CUDA_VISIBLE_DEVICES


@dataclass(frozen=True)
class Job:
    """Runs of a sweep's folder, trained by one process: what submitit pickles, and calls there."""

    folder: Path
    names: tuple[str, ...]
    platform: str
    place: Place | None  # None: SLURM sees to it

    def __call__(self) -> int:
        """Trains the runs; returns 0, or 143 if it was asked to stop before they had ended.

        Raises:
            ConfigError: somebody's own code has changed since the job was submitted.
            RuntimeError: there is no GPU where one was asked for.
        """
        if self.place is not None:
            _settle(self.place)
        with _restarting() as restart:
            configs = self._configs()
            config = next(iter(configs.values()))
            if self.platform == "cpu":
                jax.config.update("jax_platforms", "cpu")
            cores = len(self.place.cores) if self.place and self.platform == "cpu" else None
            devices = setup(config.runtime.devices or cores, config.runtime.compile_cache)
            if (devices[0].platform == "cpu") != (self.platform == "cpu"):
                raise RuntimeError(f"{PREFIX}gpus_per_node: JAX finds no GPU on {socket.gethostname()}")
            from . import training

            try:
                code = training.train(configs, devices, self.folder)
            except KeyboardInterrupt:  # a second signal: what was not checkpointed is trained again
                code = STOPPED
            if code:
                restart()
            while code and self.place is None:  # SLURM starts again what it kills, and nothing that ends by itself
                signal.pause()
            return code

    def checkpoint(self) -> DelayedSubmission:
        """What submitit starts again after a time-out or a pre-emption: the same, for the folder says how far it is."""
        return DelayedSubmission(self)

    def _configs(self) -> dict[str, RunConfig]:
        """{id: resolved config} of the runs."""
        configs = {}
        for name in self.names:
            tree = files.read_json(store.run_folder(self.folder, name) / "config.json")
            config = resolve(parse(tree), self.platform)
            if run_id(config) != name:
                raise ConfigError(f"{name}: its code has changed since the job was submitted; repeat the command")
            configs[name] = config
        return configs


# --- in the command's process -------------------------------------------------------------------------------------


def parts(runs: Mapping[str, RunConfig]) -> list[tuple[str, ...]]:
    """The ids of runs, given as {id: resolved config}, parted into jobs: most work first.

    What is compiled together stays together: runs of one shape and mode. A grown run goes where the run belongs that
    its chain begins with, so that every stage is trained by one job.
    """
    work = {name: ensemble.Member(name, config).remaining_flops() for name, config in runs.items()}
    roots = [ensemble.Member(name, _root(config)) for name, config in runs.items()]
    together: dict[Any, list[str]] = {}
    for family in ensemble.plan(roots, devices=1) if roots else []:
        for member in (member for wave in family.waves for member in wave.members):
            together.setdefault((family.mode, member.shape), []).append(member.name)
    return sorted(map(tuple, together.values()), key=lambda names: -sum(work[name] for name in names))


def _root(config: RunConfig) -> RunConfig:
    """The run that a chain of grown ones begins with; itself for any other."""
    before = config.parent()
    return config if before is None else _root(before)


def places(cluster: Cluster, jobs: int) -> list[Place | None]:
    """Where jobs can work at the same time: on this machine each gets its share of the cores."""
    if cluster.cluster == "slurm":
        return [None] * jobs
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(usable_cores()))
    gpus = cluster.gpus_per_node
    at_once = min(jobs, cluster.parallel or (1 if gpus else max(1, len(cores) // (cluster.cpus or 1))))
    share = cluster.cpus or max(1, len(cores) // max(1, at_once))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpus * at_once)))
    return [
        Place(
            os.getpid(),
            tuple(cores[(place * share + core) % len(cores)] for core in range(share)),
            ",".join(visible.split(",")[place * gpus : (place + 1) * gpus]),
        )
        for place in range(at_once)
    ]


def forecast(cluster: Cluster, runs: Mapping[str, RunConfig]) -> str:
    """A line for people: how many jobs would train the runs, and with what."""
    jobs = len(parts(runs))
    found = places(cluster, jobs)
    cores = len(found[0].cores) if found and found[0] else cluster.cpus
    each = [f"{n} {what}{'s' * (n > 1)}" for n, what in ((cores, "core"), (cluster.gpus_per_node, "GPU")) if n]
    at_once = min(jobs, cluster.parallel or jobs, len(found))
    return f"{jobs} {cluster.cluster} jobs, {at_once} at a time" + (f", each with {' and '.join(each)}" if each else "")


def stay_off_accelerators() -> None:
    """JAX only counts in the command's own process; GPUs are the jobs'."""
    jax.config.update("jax_platforms", "cpu")


def train(cluster: Cluster, runs: Mapping[str, RunConfig], folder: Path) -> None:
    """Has runs, given as {id: resolved config} and with their folders made, trained in jobs; waits for the jobs' end.

    What became of a run is said by its folder. A job that ended before its runs is named in the log.

    Raises:
        ConfigError: SLURM refuses the jobs.
        KeyboardInterrupt: the command was interrupted; its jobs are told to checkpoint and stop, and local ones have.
    """
    config = next(iter(runs.values()))
    executor = _executor(cluster, folder, config)
    working = _at_work(folder) if cluster.cluster == "slurm" else []
    begun = {name for job, _ in working for name in job.names}
    waiting = parts({name: config for name, config in runs.items() if name not in begun})
    free, total = places(cluster, len(waiting)), len(waiting) + len(working)
    bar = tqdm(
        total=len(runs),
        desc=config.sweep.name or f"{len(runs)} run{'s' * (len(runs) > 1)}",
        bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed} gone{postfix}",
        dynamic_ncols=True,
    )
    left = set(runs)
    try:
        while waiting or working:
            if waiting and free:
                jobs = [
                    Job(folder, names, cluster.platform, place) for names, place in zip(waiting, free, strict=False)
                ]
                waiting, free = waiting[len(jobs) :], free[len(jobs) :]
                working += zip(jobs, _submit(executor, jobs), strict=True)
            time.sleep(SECONDS_BETWEEN_LOOKS[cluster.cluster])
            over = [(job, handle) for job, handle in working if handle.done()]
            working = [pair for pair in working if pair not in over]
            free += [job.place for job, _ in over]
            left -= {name for name in left if store.ended(store.run_folder(folder, name))}
            bar.n = len(runs) - len(left)
            text = f"{total - len(waiting) - len(working)}/{total} jobs, {bar.n}/{len(runs)} runs done"
            bar.set_postfix_str(text, refresh=text != bar.postfix or sys.stderr.isatty())
            for job, handle in over:
                _say_if_lost(job, handle)
    except KeyboardInterrupt:
        _stop(cluster, [handle for _, handle in working])
        raise
    finally:
        bar.close()


def _executor(cluster: Cluster, folder: Path, config: RunConfig) -> submitit.AutoExecutor:
    executor = submitit.AutoExecutor(
        folder / JOBS,
        cluster.cluster,
        local_max_num_timeout=cluster.restarts,
        slurm_max_num_timeout=cluster.restarts,
    )
    executor.update_parameters(
        name=f"toydepth-{config.sweep.name or store.ADHOC}",
        timeout_min=math.ceil(60 * cluster.hours),
        nodes=1,
        tasks_per_node=1,
        gpus_per_node=cluster.gpus_per_node or None,
        cpus_per_task=cluster.cpus,
        mem_gb=cluster.memory_gb,
        stderr_to_stdout=True,
        slurm_partition=cluster.partition,
        slurm_account=cluster.account,
        slurm_array_parallelism=cluster.parallel,
        slurm_setup=cluster.setup and [cluster.setup],
        slurm_additional_parameters=cluster.flags(),
        slurm_srun_args=cluster.cpus and [f"--cpus-per-task={cluster.cpus}"],  # srun forgets what sbatch was told
    )
    return executor


def _submit(executor: submitit.AutoExecutor, jobs: Sequence[Job]) -> list[Handle]:
    """Submits jobs, together as an array where SLURM takes them."""
    said = io.StringIO()  # submitit prints what sbatch says
    try:
        with _ignoring_ctrl_c(), contextlib.redirect_stderr(said):
            return executor.submit_array(jobs)
    except FailedJobError as error:
        reason = " ".join(str(error).split()) or "sbatch failed"
        raise ConfigError(f"{PREFIX}cluster=slurm: {reason}") from error


@contextlib.contextmanager
def _ignoring_ctrl_c() -> Iterator[None]:
    """Processes begun within it ignore SIGINT from birth: Ctrl-C in a terminal is for the command, which tells them."""
    try:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:  # not the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _at_work(folder: Path) -> list[tuple[Job, Handle]]:
    """Jobs of an earlier command in SLURM's queue or at work: they are waited for, and not submitted again."""
    found = []
    for path in sorted((folder / JOBS).glob("*_submitted.pkl")):
        handle = submitit.SlurmJob(folder / JOBS, path.name.removesuffix("_submitted.pkl"))
        if not handle.done() and handle.state.split()[0] in IN_SLURM:
            found.append((handle.submission().function, handle))
    return found


def _say_if_lost(job: Job, handle: Handle) -> None:
    """Names a job in the log that ended before its runs did."""
    lost = [name for name in job.names if not store.ended(store.run_folder(job.folder, name))]
    if lost and not _ended_well(job, handle):
        with tqdm.external_write_mode(sys.stderr):
            log.error(
                "job %s ended before %d of its %d runs: see %s; the same command continues them",
                handle.job_id, len(lost), len(job.names), job.folder / JOBS / handle.paths.stdout.name,
            )  # fmt: skip


def _ended_well(job: Job, handle: Handle) -> bool:
    """Whether a job did all it could: its runs have ended, have failed, or are trained by somebody else."""
    if job.place is not None and not handle.paths.result_pickle.exists():
        return False  # submitit would wait for the file, which may lag behind on a cluster
    return handle.exception() is None and handle.result() == 0


def _stop(cluster: Cluster, handles: Sequence[Handle]) -> None:
    """Tells jobs to checkpoint and stop. Waits for local ones; SLURM kills what has not stopped after its KillWait."""
    for handle in handles:
        if cluster.cluster == "slurm":
            handle.cancel()
        elif not handle.done():
            os.kill(int(handle.job_id), signal.SIGTERM)  # submitit's own way leaves them one second
    while cluster.cluster == "local" and not all(handle.done() for handle in handles):
        time.sleep(0.05)


# --- in a job's process -------------------------------------------------------------------------------------------


def _settle(place: Place) -> None:
    """Keeps a local job on its share of the machine, out of reach of Ctrl-C, and no longer than its command lives."""
    os.setsid()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, place.cores)
    os.environ["CUDA_VISIBLE_DEVICES"] = place.gpus
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # until training checkpoints
    threading.Thread(target=_stop_after, args=((place.command, os.getppid()),), daemon=True).start()


def _stop_after(processes: Sequence[int]) -> None:
    """Asks this process to stop as soon as one of those is gone."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            for process in processes:
                os.kill(process, 0)
            time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _restarting() -> Iterator[Callable[[], None]]:
    """Within it, submitit's signal of a time-out or a pre-emption first lets training checkpoint and stop.

    Yields what is to be called when training was stopped: it ends the process, to be started again, if that signal was
    the reason.
    """
    number = signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]
    submitits, idle = signal.getsignal(number), signal.getsignal(signal.SIGTERM)
    asked = False

    def restart() -> None:
        if asked:
            submitits(number, None)  # type: ignore[operator,misc]

    def stop(number: int, frame: Any) -> None:
        nonlocal asked
        training, again = signal.getsignal(signal.SIGTERM) != idle, asked
        asked = True
        if not training:
            restart()
        elif not again:
            signal.raise_signal(signal.SIGTERM)

    signal.signal(number, stop)
    yield restart
    signal.signal(number, submitits)
