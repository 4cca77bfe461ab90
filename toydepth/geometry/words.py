"""What was seen in words: a table for a terminal."""

from __future__ import annotations

from pathlib import Path

from ..terminal import console, grid
from .probe import Probed
from .results import Results
from .verdict import Verdict

COLUMNS = ("subject", "layers", "step", "updates", "shuffled", "at h_0", "C/(A/l)", "verdict")
NAMED = 36  # letters of a name


def print_results(results: Results, where: Path) -> None:
    """Prints a row per subject, what depends on depth, and where everything lies."""
    out = console()
    rows = [_row(found, verdict) for found, verdict in zip(results.subjects, results.verdicts, strict=True)]
    if rows:
        made = grid(COLUMNS, rows)
        made.columns[-1].no_wrap, made.columns[-1].justify = False, "left"
        out.print(made, markup=False)
        out.print(
            "step, updates: angles (rad) of middle layers; shuffled: in any order; at h_0: lost with all of them there"
        )
    if results.across is not None:
        for one in results.across.steps:
            if one.alpha is None:
                continue
            ends = "one replicate" if one.ci_low is None else f"[{one.ci_low:.2f}, {one.ci_high:.2f}]"
            regime = ", ".join(str(value) for value in one.regime.values())
            out.print(f"{regime}: step ~ depth^-{one.alpha:.2f} {ends}", markup=False)
    if (traced := results.traced) is not None:
        best = float(traced.restored.max())
        out.print(
            f"p({traced.answer.strip()}) {traced.p_clean:.3g}, corrupted {traced.p_corrupt:.3g}, at best {best:.3g}"
        )
    for line in results.skipped:
        out.print(f"! not looked at: {line}", markup=False)
    out.print(f"written to {where}", soft_wrap=True, markup=False)


def _row(found: Probed, verdict: Verdict) -> list[str]:
    made, split = found.interventions, found.errors.get("behind")
    name = found.name if len(found.name) <= NAMED else f"{found.name[: NAMED - 1]}…"
    return [
        name,
        str(found.depth),
        _number(found.number("step_middle")),
        _number(found.number("update_middle")),
        _number(found.shuffled.mean),
        _percent(None if made is None else made.share("parallel")),
        _number(None if split is None else split.common),
        verdict.words,
    ]


def _number(value: float | None) -> str:
    return "" if value is None or value != value else f"{value:.3g}"


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"
