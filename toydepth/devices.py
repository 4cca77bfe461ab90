"""What there is to compute on."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax


def setup(devices: int | None, compile_cache: str | None = None) -> list[Any]:
    """The devices to use: all, or the first few. On CPU each core is one, which is settled before JAX starts.

    Args:
        devices: how many; None for all.
        compile_cache: a folder for compiled programs, which later processes on this machine then load.
    """
    if compile_cache:
        jax.config.update("jax_compilation_cache_dir", str(Path(compile_cache).absolute()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.2)
    with contextlib.suppress(RuntimeError):  # JAX has started already: what it has is what there is
        jax.config.update("jax_num_cpu_devices", devices or usable_cores())
    found = jax.local_devices()
    return found[: devices or len(found)]


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory(devices: Sequence[Any], limit_gb: float | None) -> float:
    """Bytes that training may use: the limit if there is one, else half of what is free on the devices."""
    if limit_gb is not None:
        return limit_gb * 1e9
    statistics = [device.memory_stats() for device in devices]
    if all(statistics):
        return 0.5 * sum(found["bytes_limit"] - found["bytes_in_use"] for found in statistics)
    return 0.5 * _free_bytes()


def give_back_memory() -> None:
    """Hands freed memory to the system where the C library would keep it, as glibc does: compiling leaves 250 MB."""
    gc.collect()
    with contextlib.suppress(AttributeError, OSError, TypeError):  # no such library, or another one
        ctypes.CDLL(None).malloc_trim(0)


def _free_bytes() -> float:
    with contextlib.suppress(OSError):  # Linux
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024.0 * int(line.split()[1])
    return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
