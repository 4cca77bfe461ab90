"""One contestant on one work, in a process of its own: `python -m benchmarks.contestant '{...}'`, for `bench`.

The request is a JSON object with the fields of `Request`; the report, a JSON object too, is the last line printed.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .report import Report, deal
from .works import WORKS

# the function that trains, for each problem that a contestant takes part in
CONTESTANTS = {
    "toydepth": dict.fromkeys(("depth", "time", "width", "tasks"), "instrument:toydepth"),
    "torch_eager": {
        "depth": "torch_peer:eager",
        "time": "torch_time:eager",
        "width": "torch_width:eager",
        "tasks": "torch_tasks:eager",
    },
    "torch_compile": {
        "depth": "torch_peer:compiled",
        "time": "torch_time:compiled",
        "width": "torch_width:compiled",
        "tasks": "torch_tasks:compiled",
    },
    "jax_plain": {"depth": "jax_peer:plain"},
}


@dataclass(frozen=True)
class Request:
    """What a process is asked to measure."""

    contestant: str
    work: str
    scale: float
    start: str  # the file of arrays to start from
    part: int = 0  # which of the parts that the runs are dealt to
    parts: int = 1
    threads: int = 1


def answer(request: Request) -> dict[str, Any]:
    """The contestant's report as a mapping, with the peak of this process's memory."""
    work = WORKS[request.work].scaled(request.scale)
    runs = deal(work.runs, request.parts)[request.part] if request.parts > 1 else work.runs
    report = function(request.contestant, work.problem)(work, np.load(request.start), runs, request.threads)
    return dataclasses.asdict(report) | {"peak_memory_gb": peak_memory_gb()}


def function(contestant: str, problem: str) -> Callable[..., Report]:
    """What trains (work, start, runs, threads) for a contestant."""
    module, name = CONTESTANTS[contestant][problem].split(":")
    return getattr(importlib.import_module(f".{module}", __package__), name)


def takes_part(contestant: str, problem: str) -> bool:
    """Whether there is anything to run."""
    return problem in CONTESTANTS[contestant]


def peak_memory_gb() -> float:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


if __name__ == "__main__":
    try:
        print(json.dumps(answer(Request(**json.loads(sys.argv[1])))))
    except Exception as error:
        print(f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}", file=sys.stderr)
        sys.exit(1)
