"""`make bench`: how fast toydepth is beside what one would otherwise write.

Each contestant runs in a process of its own, so that its first step, its compilations and its memory are its own;
repeats are interleaved, so that a slow minute of the machine hits all alike. Prints tables and writes `bench.json`:
for each work and contestant the student updates per second, the share of the matrix-product peak (useful operations
only, see `Work.flops`), and more. This process imports neither JAX nor PyTorch.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from .contestant import Request, takes_part
from .tables import print_tables
from .work import Work
from .works import WORKS

# how many processes, each with as many threads as there are cores for it
CONTESTANTS = {
    "toydepth": ("toydepth", 1),
    "torch_eager": ("torch_eager", 1),
    "torch_eager_two_processes": ("torch_eager", 2),
    "torch_compile": ("torch_compile", 1),
    "jax_plain": ("jax_plain", 1),
}
LIBRARIES = {"numpy": "numpy", "torch": "torch", "jax": "jax"}
PACKAGES = ("toydepth", "jax", "jaxlib", "optax", "numpy", "torch")
STARTUP_REPEATS = 5
Entry = dict[str, Any]


class Missing(Exception):
    """A measurement could not be made, and why."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the benchmark; returns 0, or 1 if a contestant that should work is missing."""
    options = _parse(arguments)
    load = os.getloadavg()[0]
    if load > 0.5:
        _progress(f"the machine is busy (load {load:.1f}): measure on an idle one")
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options.works, options.contestants, options.repeats, options.scale, Path(folder))
    found |= {"minutes": (time.monotonic() - started) / 60.0, "load_before": load}
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "bench.json"
    path.write_text(json.dumps(found, indent=2) + "\n")
    print_tables(found)
    print(path)
    entries = [(name, entry) for work in options.works for name, entry in found[work].items()]
    return int(any("missing" in entry and name != "torch_compile" for name, entry in entries))


def measure(works: Sequence[str], contestants: Sequence[str], repeats: int, scale: float, folder: Path) -> Entry:
    """All measurements, as they go into `bench.json`; `folder` is for what processes share."""
    sizes = {name: WORKS[name].scaled(scale) for name in works}
    reports: dict[tuple[str, str], list[Entry]] = {(w, c): [] for w in works for c in contestants if fits(c, sizes[w])}
    missing: dict[tuple[str, str], str] = {}
    peaks: dict[str, float] = {}
    for name in works:
        _python(folder, "start", name, str(scale), str(folder / f"{name}.npz"))
    for repeat in range(repeats):
        _progress(f"repeat {repeat + 1} of {repeats}")
        for library in LIBRARIES:
            try:
                size = max(64, round(2048 * min(1.0, scale)))
                peaks[library] = max(peaks.get(library, 0.0), float(_python(folder, "peak", library, str(size))))
            except Missing as error:
                _progress(f"  peak of {library}: {error}")
        for work, contestant in reports:
            if (work, contestant) in missing:
                continue
            try:
                report = contest(work, contestant, scale, folder)
            except Missing as error:
                missing[work, contestant] = str(error)
                _progress(f"  {work} {contestant}: {error}")
            else:
                reports[work, contestant].append(report)
                _progress(f"  {work} {contestant}: {report['updates'] / report['seconds']:.4g} updates/s")
    peak = max(peaks.values(), default=math.nan)
    found: Entry = {work: {} for work in works}
    for (work, contestant), made in reports.items():
        if (work, contestant) in missing:
            found[work][contestant] = {"missing": missing[work, contestant]}
        elif made:
            found[work][contestant] = summary(sizes[work], made, peak)
    for work in works:
        compare(found[work])
    found |= {"peak_gflops": peaks, "startup_seconds": startup(), "repeats": repeats, "scale": scale}
    if "toydepth" in contestants:
        try:
            found["overhead"] = json.loads(_python(folder, "overhead", str(scale)))
        except Missing as error:
            found["overhead"] = {"missing": str(error)}
    return found | {"machine": _machine(), "sizes": {name: dataclasses.asdict(size) for name, size in sizes.items()}}


def fits(contestant: str, work: Work[Any]) -> bool:
    """Whether a contestant takes part in a work: it trains the problem, and has a run for each process."""
    kind, processes = CONTESTANTS[contestant]
    return takes_part(kind, work.problem) and processes <= len(work.runs)


def contest(work: str, contestant: str, scale: float, folder: Path) -> Entry:
    """One contestant's report on one work; those of several processes at once are merged.

    Raises:
        Missing: it cannot run here.
    """
    kind, processes = CONTESTANTS[contestant]
    threads = max(1, _cores() // processes)
    since = time.time()
    running = [
        _start(folder, "contestant", json.dumps(dataclasses.asdict(request)))
        for part in range(processes)
        for request in (Request(kind, work, scale, str(folder / f"{work}.npz"), part, processes, threads),)
    ]
    reports = [json.loads(text) for text in _wait(running)]
    return merged(reports) | {"first_step_seconds": min(r["first_step_at"] for r in reports) - since}


def merged(reports: Sequence[Entry]) -> Entry:
    """The report of processes that ran side by side; the slowest says how long it took."""
    total = {name: sum(r[name] for r in reports) for name in ("updates", "programs", "peak_memory_gb")}
    longest = {name: max(r[name] for r in reports) for name in ("seconds", "compile_seconds")}
    losses = {label: loss for r in reports for label, loss in r["losses"].items()}
    return total | longest | {"losses": losses, "details": reports[0]["details"]}


def summary(work: Work[Any], reports: Sequence[Entry], peak: float) -> Entry:
    """Medians over a contestant's reports, and the least and the most updates per second."""
    rates = [r["updates"] / r["seconds"] for r in reports]
    median = {
        name: statistics.median(r[name] for r in reports)
        for name in ("compile_seconds", "programs", "peak_memory_gb", "first_step_seconds")
    }
    losses = {label: statistics.median(r["losses"][label] for r in reports) for label in reports[0]["losses"]}
    details = {name: statistics.median(r["details"][name] for r in reports) for name in reports[0]["details"]}
    rate, flops = statistics.median(rates), work.flops()
    return {
        "updates_per_second": rate,
        "updates_per_second_range": [min(rates), max(rates)],
        "fraction_of_peak": None if flops is None else rate * flops / (peak * 1e9),
        "final_loss": math.exp(statistics.fmean(math.log(loss) for loss in losses.values())),
        **median,
        "losses": losses,
        "details": details,
    }


def compare(entries: dict[str, Entry]) -> None:
    """Adds how far each contestant is from toydepth: its speed, and the largest difference of a run's loss."""
    ours = entries.get("toydepth", {})
    for entry in entries.values():
        if "updates_per_second" in entry and "updates_per_second" in ours:
            entry["toydepth_is_faster_by"] = ours["updates_per_second"] / entry["updates_per_second"]
            differences = [abs(entry["losses"][label] / loss - 1.0) for label, loss in ours["losses"].items()]
            entry["largest_loss_difference"] = max(differences)


def startup() -> dict[str, float]:
    """Seconds that help texts take, the median of a few."""
    found = {}
    for command in ("run", "fit"):
        seconds = []
        for _ in range(STARTUP_REPEATS):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-m", "toydepth", command, "--help"], capture_output=True, check=True)
            seconds.append(time.perf_counter() - start)
        found[f"{command} --help"] = statistics.median(seconds)
    return found


def _python(folder: Path, module: str, *words: str) -> str:
    """The last line that a module of this package prints."""
    return _wait([_start(folder, module, *words)])[0]


def _start(folder: Path, module: str, *words: str) -> subprocess.Popen[str]:
    """A process that finds no compiled programs of earlier ones."""
    fresh = {
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "TORCHINDUCTOR_CACHE_DIR": tempfile.mkdtemp(dir=folder),
    }
    return subprocess.Popen(
        [sys.executable, "-m", f"{__package__}.{module}", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | fresh,
        cwd=Path(__file__).parents[1],
    )


def _wait(running: Sequence[subprocess.Popen[str]]) -> list[str]:
    """The last line of each; raises `Missing` with the last line of what one said if it failed."""
    said = [(*process.communicate(), process.returncode) for process in running]
    for _, errors, code in said:
        if code:
            raise Missing((errors.strip().splitlines() or [f"exit code {code}"])[-1])
    return [(out.strip().splitlines() or [""])[-1] for out, _, _ in said]


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _machine() -> Entry:
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "cores": _cores(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--works", nargs="+", choices=list(WORKS), default=list(WORKS))
    parser.add_argument("--contestants", nargs="+", choices=list(CONTESTANTS), default=list(CONTESTANTS))
    parser.add_argument("--repeats", type=int, choices=range(1, 101), metavar="1..100", default=3)
    parser.add_argument("--scale", type=_scale, default=1.0, help="times batches and depths; 1 is what claims rest on")
    parser.add_argument("--out", type=Path, default=Path("outputs/bench"))
    return parser.parse_args(arguments)


def _scale(text: str) -> float:
    try:
        scale = float(text)
    except ValueError:
        scale = math.nan
    if not 0.0 < scale <= 1.0:
        raise argparse.ArgumentTypeError(f"{text}: allowed is a number above 0, at most 1")
    return scale


if __name__ == "__main__":
    sys.exit(main())
