"""The benchmark's tables on the terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

WIDTH = 150
COLUMNS = (
    "",
    "updates/s",
    "(range)",
    "toydepth is",
    "of peak",
    "final loss",
    "differs by",
    "first step s",
    "compile s",
    "programs",
    "memory GB",
)


def print_tables(found: dict[str, Any]) -> None:
    """Prints what `bench` measured."""
    console = Console()
    console.width = max(console.width, WIDTH)  # a file or a pipe has no width of its own
    for work in found["sizes"]:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        for name in (work, *COLUMNS[1:]):
            table.add_column(name, justify="left" if name == work else "right")
        missing = []
        for contestant, entry in found[work].items():
            if "missing" in entry:
                missing.append(f"{contestant} is missing: {entry['missing']}")
            else:
                table.add_row(contestant, *_cells(entry))
        console.print(table)
        console.print(*missing, "", sep="\n", markup=False, highlight=False)
    for line in _lines(found):
        console.print(line, markup=False, highlight=False)


def _cells(entry: dict[str, Any]) -> list[str]:
    low, high = entry["updates_per_second_range"]
    faster, differs = entry.get("toydepth_is_faster_by"), entry.get("largest_loss_difference")
    share = entry["fraction_of_peak"]
    return [
        f"{entry['updates_per_second']:.4g}",
        f"{low:.4g}..{high:.4g}",
        "" if faster is None else f"{faster:.2f} x",
        "" if share is None else f"{share:.1%}",
        f"{entry['final_loss']:.4g}",
        "" if differs is None else f"{differs:.1%}",
        f"{entry['first_step_seconds']:.1f}",
        f"{entry['compile_seconds']:.1f}",
        f"{entry['programs']:.0f}",
        f"{entry['peak_memory_gb']:.2f}",
    ]


def _lines(found: dict[str, Any]) -> list[str]:
    peaks = ", ".join(f"{name} {value:.0f}" for name, value in found["peak_gflops"].items())
    lines = [f"matrix-product peak, GFLOP/s on {found['machine']['cores']} cores: {peaks}"]
    overhead = found.get("overhead", {})
    if "missing" in overhead:
        lines.append(f"overhead is missing: {overhead['missing']}")
    elif overhead:
        lines.append(
            f"engine {overhead['engine']:.4g} updates/s, hand-written scan {overhead['scan']:.4g}, on one device: "
            f"overhead {overhead['overhead']:.1%}"
        )
    growth = compile_growth(found)
    if growth:
        lines.append(f"compile seconds of the training program, deepest over shallowest in W2: {growth:.2f}")
    lines += [f"toydepth {command}: {seconds:.2f} s" for command, seconds in found["startup_seconds"].items()]
    return lines


def compile_growth(found: dict[str, Any]) -> float | None:
    """How much longer W2's deepest student takes to compile than its shallowest."""
    details = found.get("W2", {}).get("toydepth", {}).get("details", {})
    seconds = {int(name.rpartition(" ")[2]): value for name, value in details.items()}
    return seconds[max(seconds)] / seconds[min(seconds)] if seconds else None
