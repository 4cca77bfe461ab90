"""What there is to compute on."""

from __future__ import annotations

import contextlib
import os
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
