"""What a command says of where its runs are trained: the fields `hydra.launcher.*`. Imports no JAX and no submitit.

In the command's own process, or in jobs (see `jobs.py`): processes on this machine, or SLURM's.
"""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from .config import RunConfig, build
from .fields import choice, integer, real, refuse, text

PREFIX = "hydra.launcher."
FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(.+))?")


@dataclass(frozen=True)
class Cluster:
    """Where runs are trained. A job is one process on one node; it trains what is compiled together."""

    executor: str = choice("inprocess", "inprocess", "submitit")
    cluster: str = choice("local", "local", "slurm")
    hours: float = real(24.0, 0.0, 10_000.0, open_low=True)  # of a job; then it checkpoints and is started again
    restarts: int = integer(3, 0)  # how often that may happen; being pre-empted does not count
    parallel: int | None = integer(None, 1)  # jobs at a time; null: what the machine's cores, or SLURM, allow
    cpus: int | None = integer(None, 1)  # cores of a job; null: its share of the machine's, or SLURM's default
    gpus_per_node: int = integer(0, 0)  # GPUs of a job; above 0 `runtime.batching=auto` means vmap
    # The rest is SLURM's alone
    memory_gb: float | None = real(None, 0.0, open_low=True)  # of a job; null: the partition's default
    partition: str | None = text(None)
    account: str | None = text(None)
    setup: str | None = text(None)  # a line of shell before a job starts
    sbatch: str | None = text(None)  # other flags, as for sbatch: "--constraint=a100 --exclusive"

    @property
    def platform(self) -> str:
        """What runs are resolved for: it decides their batching, and so their ids. This machine need not have it."""
        return "gpu" if self.gpus_per_node else "cpu"

    def flags(self) -> dict[str, Any]:
        """{name: value} of the other sbatch flags; True for one without a value."""
        found = {}
        for word in shlex.split(self.sbatch or ""):
            flag = FLAG.fullmatch(word)
            if flag is None:
                raise ValueError(word)
            found[flag[1]] = flag[2] or True
        return found


def parse(tree: Mapping[str, Any], configs: Sequence[RunConfig]) -> Cluster | None:
    """The jobs that the fields ask for; None if the configs are to be trained in the command's own process.

    Raises:
        ConfigError: a bad value, or something is missing.
    """
    cluster: Cluster = build(Cluster, tree, PREFIX, Cluster)
    try:
        cluster.flags()
    except ValueError:
        refuse(PREFIX + "sbatch", cluster.sbatch, 'flags as in "--constraint=a100 --exclusive", or null')
    if cluster.executor == "inprocess":
        return None
    if importlib.util.find_spec("submitit") is None:
        allowed = "inprocess, unless submitit is installed: pip install toydepth[cluster]"
        refuse(PREFIX + "executor", "submitit", allowed)
    if cluster.cluster == "slurm" and shutil.which("srun") is None:
        refuse(PREFIX + "cluster", "slurm", "local on a machine that has no srun")
    if cluster.cluster == "local" and cluster.cpus is not None:
        from .devices import usable_cores

        if cluster.cpus > usable_cores():
            refuse(PREFIX + "cpus", cluster.cpus, f"at most {usable_cores()}, this machine's, with cluster=local")
    for config in configs:
        if config.runtime.debug:
            refuse("debug", config.runtime.debug, f"only with {PREFIX}executor=inprocess")
    return cluster


_requested: ContextVar[Cluster | None] = ContextVar("cluster", default=None)


def requested() -> Cluster | None:
    """Where the current command's runs are to be trained; None: in its own process."""
    return _requested.get()


@contextmanager
def using(cluster: Cluster | None) -> Iterator[None]:
    """Within it, `requested()` is this."""
    token = _requested.set(cluster)
    try:
        yield
    finally:
        _requested.reset(token)
