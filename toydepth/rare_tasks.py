"""What runs of `problem=tasks` came to beside exact theory (arXiv 2605.29548). Works on tables; imports no JAX.

`tasks_of` puts every task of every run beside its prediction; `learnt`, `cycles` and `horizons` sum up what the paper's
figures show.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from .exponents import partition, usable
from .tasks_config import Tasks
from .theory.tasks import Mixture, corrected

WIDTH, GAP, OPTIMIZER, GRADIENT = "student.width", "injection.gap", "optimizer.name", "train.gradient"
NEAR = 1e-3  # of a task's own variance: closer than that to theory is agreement
ENOUGH = 0.5  # of a task's first feature, captured: then it counts as learnt
HORIZONS = (0.3, 1.0)  # shares of the steps at which a rare task is looked at
FIELDS = ("count", "features", "inputs", "beta", "alpha", "ramp", "rare", "frequency_boost")


@dataclass(frozen=True)
class Setting:
    """Runs that share their tasks and their way of training: one regime but for width and gap.

    Attributes:
        label: how it differs from the others of its table, in words.
        tasks: its tasks.
        runs: its rows.
    """

    label: str
    tasks: Tasks
    runs: pl.DataFrame

    @property
    def mixture(self) -> Mixture:
        return Mixture(self.tasks.frequencies(), self.tasks.amplitudes())

    @property
    def rare(self) -> int:
        """The task that is looked at, 0-based."""
        return (self.tasks.rare or self.tasks.count) - 1

    @property
    def critical(self) -> str:
        """The width from which on that task is learnt, in words; a range where ties leave it open."""
        low, high = self.mixture.staircase(self.rare)
        return f"{low}" if low == high else f"{low} to {high}"

    @property
    def widths(self) -> list[int]:
        return self.runs[WIDTH].unique().sort().to_list()

    def learns(self, task: int, width: int) -> bool:
        """Whether a task (0-based) is learnt at a width, by its mean signal over replicates."""
        signal = self.without_gap().filter(pl.col(WIDTH) == width)[f"task_signal_{task + 1:02}"].to_numpy()
        return bool(signal.mean() > self.needed(task))

    def needed(self, task: int) -> float:
        """The signal above which a task counts as learnt: half of its first feature's share."""
        mixture = self.mixture
        return float(ENOUGH * mixture.spectrum[task].max() / mixture.totals[task])

    def without_gap(self) -> pl.DataFrame:
        """The runs on the mixture itself."""
        return self.runs.filter(pl.col(GAP) == 0)


def settings(runs: pl.DataFrame) -> list[Setting]:
    """The settings of a table's finished runs, in the order of their fields; none in tables of other problems."""
    if not {f"tasks.{name}" for name in FIELDS} | {WIDTH, GAP} <= set(runs.columns):
        return []
    done = usable(runs).filter(pl.col("tasks.count").is_not_null())  # a folder may hold other problems too
    names = [*(f"tasks.{name}" for name in FIELDS), OPTIMIZER, "optimizer.lr", GRADIENT, "train.steps"]
    apart = [name for name in names if done[name].n_unique() > 1]
    found = []
    for rows in partition(done, apart) if done.height else []:
        known = {name: rows[f"tasks.{name}"][0] for name in FIELDS}
        tasks = Tasks(**{name: value for name, value in known.items() if value is not None})
        shown = [
            name for name in apart if rows[name][0] is not None and not (name == "optimizer.lr" and OPTIMIZER in apart)
        ]
        label = ", ".join(_said(name, rows[name][0]) for name in shown)
        found.append(Setting(label or "all runs", tasks, rows))
    return found


def _said(name: str, value: Any) -> str:
    if name in (OPTIMIZER, GRADIENT):
        return str(value)
    return f"{name.rpartition('.')[2].replace('_', ' ')} {value:g}"


def tasks_of(setting: Setting) -> pl.DataFrame:
    """Every task of every run on the mixture itself: `width`, `task` (1-based), `loss` as a share of tr C_k, `signal`,
    the least and the largest share that theory allows (`low`, `high`; equal but for ties), whether they are `tied`,
    and how far outside of them the loss is (`off`)."""
    mixture, rows = setting.mixture, setting.without_gap()
    found = []
    for width in rows[WIDTH].unique().sort().to_list():
        low, high = (bound / mixture.totals for bound in mixture.losses(width))
        here = rows.filter(pl.col(WIDTH) == width)
        for k in range(setting.tasks.count):
            columns = here.select(
                pl.col("id"),
                pl.lit(width).alias("width"),
                pl.lit(k + 1).alias("task"),
                pl.col(f"task_normalised_{k + 1:02}").alias("loss"),
                pl.col(f"task_signal_{k + 1:02}").alias("signal"),
                pl.lit(low[k]).alias("low"),
                pl.lit(high[k]).alias("high"),
                pl.lit(bool(high[k] - low[k] > NEAR)).alias("tied"),
            )
            found.append(columns)
    if not found:
        return pl.DataFrame()
    off = pl.max_horizontal(pl.col("low") - pl.col("loss"), pl.col("loss") - pl.col("high"), 0.0)
    return pl.concat(found).with_columns(off=off)


def captured(setting: Setting) -> pl.DataFrame:
    """Captured utility of every run on the mixture itself, as a share of the best encoder's: `width`, `share`."""
    u, rows = np.sort(setting.mixture.utilities, axis=None)[::-1], setting.without_gap()
    best = [float(u[:width].sum()) for width in rows[WIDTH]]
    return rows.select(pl.col(WIDTH).alias("width"), (pl.col("captured") / pl.Series(best)).alias("share"))


@dataclass(frozen=True)
class Learnt:
    """When a task (0-based) is first learnt, on a grid of widths: half of its first feature is captured.

    Attributes:
        seen: the least width of the grid at which it is, the mean over replicates; None: at none.
        before: the width of the grid before that one; 0: there is none.
        predicted: the least width at which theory lets it be learnt, and the one at which it must be.
    """

    task: int
    seen: int | None
    before: int
    predicted: tuple[int, int]
    largest: int

    @property
    def agrees(self) -> bool:
        """Whether the prediction lies between the grid's neighbours."""
        low, high = self.predicted
        if self.seen is None:
            return high > self.largest
        return low <= self.seen and high > self.before


def learnt(setting: Setting) -> list[Learnt]:
    """When each task is first learnt, by its mean signal over replicates."""
    mean, found = setting.without_gap().group_by(WIDTH).agg(pl.col("^task_signal_.*$").mean()).sort(WIDTH), []
    widths = mean[WIDTH].to_list()
    for k in range(setting.tasks.count if widths else 0):
        signals = zip(widths, mean[f"task_signal_{k + 1:02}"], strict=True)
        seen = next((width for width, signal in signals if signal > setting.needed(k)), None)
        before = max((w for w in widths if seen is None or w < seen), default=0)
        found.append(Learnt(k, seen, before, setting.mixture.staircase(k), widths[-1]))
    return found


def cycles(history: pl.DataFrame, gap: int, until: int) -> tuple[float, float] | None:
    """A run's gain and decay of the rare task's signal per cycle: what its return adds, and what the gap that follows
    takes away, means over the second half of the steps up to `until`; None if evaluations do not show it."""
    both = history.select("step", "rare_signal").drop_nulls()
    steps, signal = both["step"].to_numpy().astype(int), both["rare_signal"].to_numpy()
    at = dict(zip(steps.tolist(), signal.tolist(), strict=True))
    before = [step for step in sorted(at) if step % gap == 0 and until / 2 <= step <= until]
    pairs = [(step, min((later for later in at if step < later < step + gap), default=None)) for step in before[:-1]]
    gains = [at[later] - at[step] for step, later in pairs if later is not None]
    if not gains:
        return None
    passed = (max(before) - min(before)) / gap
    gain, net = float(np.mean(gains)), (at[max(before)] - at[min(before)]) / passed
    return gain, net - gain


def horizons(setting: Setting, histories: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The rare task's corrected signal at both horizons, a row for each run: `width`, `gap`, `step`, `corrected`,
    `static` (the best encoder's; up to `static_high` where ties leave it open), and with a gap `gain` and `decay`."""
    mixture, found = setting.mixture, []
    for run, width, gap in setting.runs.select("id", WIDTH, GAP).iter_rows():
        history = histories.get(run)
        if history is None or "rare_corrected" not in history.columns:
            continue
        seen = history.select("step", "rare_corrected").drop_nulls()
        steps = seen["step"].to_numpy()
        if not len(steps):
            continue
        static, high = (corrected(s, width, setting.tasks.inputs)[setting.rare] for s in mixture.signals(width))
        for share in HORIZONS:
            whole = steps if not gap else steps[steps % gap == 0]  # right before a return: what was retained
            near = int(whole[np.argmin(np.abs(whole - share * steps.max()))])
            value = float(seen.filter(pl.col("step") == near)["rare_corrected"][0])
            turns = cycles(history, gap, near) if gap else None
            row = {"id": run, "width": width, "gap": gap, "share": share, "step": near, "corrected": value}
            row |= {"static": float(static), "static_high": float(high)}
            row |= {"gain": turns[0] if turns else None, "decay": turns[1] if turns else None}
            found.append(row)
    return pl.DataFrame(found, infer_schema_length=None)
