"""Counts what JAX compiles."""

from __future__ import annotations

import jax

_STAGES = ("jaxpr_trace_duration", "jaxpr_to_mlir_module_duration", "backend_compile_duration")


class Compilations:
    """Programs that JAX has compiled since this was made, and the seconds it took to trace, lower and compile them,
    summed over threads."""

    def __init__(self) -> None:
        self.programs, self.seconds = 0, 0.0
        jax.monitoring.register_event_duration_secs_listener(self._took)

    def _took(self, event: str, duration_secs: float, **_: str | int) -> None:
        stage = event.rpartition("/")[2]
        self.programs += stage == _STAGES[-1]
        self.seconds += duration_secs * (stage in _STAGES)
