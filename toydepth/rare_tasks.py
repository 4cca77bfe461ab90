"""What runs of `problem=tasks` came to beside exact theory (arXiv 2605.29548). Works on tables; imports no JAX.

`tasks_of` puts every task of every run beside its prediction; `learnt`, `cycles` and `horizons` sum up what the paper's
figures show; `remarks` says it in sentences, for the report.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from .exponents import partition, usable
from .tasks_config import Tasks
from .theory.tasks import Mixture, common_tasks, corrected, local_slopes, optimal_exponent, residual_slope

WIDTH, GAP, OPTIMIZER, GRADIENT = "student.width", "injection.gap", "optimizer.name", "train.gradient"
NEAR = 1e-3  # of a task's own variance: closer than that to theory is agreement
ENOUGH = 0.5  # of a task's first feature, captured: then it counts as learnt
REACHED = 0.75  # of the best signal: then a rare task counts as having been learnt in spite of a gap
HORIZONS = (0.3, 1.0)  # shares of the steps at which a rare task is looked at
PRINTED = {0.5: 6, 1.0: 3, 1.5: 2, 2.0: 2}  # members of F for 32 tasks in the paper, by beta
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
    def widths(self) -> list[int]:
        return self.runs[WIDTH].unique().sort().to_list()

    def without_gap(self) -> pl.DataFrame:
        """The runs on the mixture itself."""
        return self.runs.filter(pl.col(GAP) == 0)


def settings(runs: pl.DataFrame) -> list[Setting]:
    """The settings of a table's finished runs, in the order of their fields; none in tables of other problems."""
    if not {f"tasks.{name}" for name in FIELDS} | {WIDTH, GAP} <= set(runs.columns):
        return []
    done = usable(runs)
    names = [*(f"tasks.{name}" for name in FIELDS), OPTIMIZER, "optimizer.lr", GRADIENT, "train.steps"]
    apart = [name for name in names if done[name].n_unique() > 1]
    found = []
    for rows in partition(done, apart) if done.height else []:
        known = {name: rows[f"tasks.{name}"][0] for name in FIELDS}
        tasks = Tasks(**{name: value for name, value in known.items() if value is not None})
        shown = [name for name in apart if rows[name][0] is not None and not (name == "optimizer.lr" and OPTIMIZER in apart)]
        label = ", ".join(_said(name, rows[name][0]) for name in shown)
        found.append(Setting(label or "all runs", tasks, rows))
    return found


def _said(name: str, value: Any) -> str:
    if name in (OPTIMIZER, GRADIENT):
        return str(value)
    return f"{name.rpartition('.')[2].replace('_', ' ')} {value:g}"


def tasks_of(setting: Setting) -> pl.DataFrame:
    """Every task of every run on the mixture itself: `width`, `task` (1-based), `loss` as a share of tr C_k, `signal`,
    the least and the largest share that theory allows (`low`, `high`; equal but for ties), and `tied`."""
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
                pl.col(f"task_{k + 1:02}_normalised").alias("loss"),
                pl.col(f"task_{k + 1:02}_signal").alias("signal"),
                pl.lit(low[k]).alias("low"),
                pl.lit(high[k]).alias("high"),
                pl.lit(bool(high[k] - low[k] > NEAR)).alias("tied"),
            )
            found.append(columns)
    return pl.concat(found) if found else pl.DataFrame()


def misses(table: pl.DataFrame) -> pl.Series:
    """How far each task's loss lies outside of what theory allows."""
    return table.select(
        pl.max_horizontal(pl.col("low") - pl.col("loss"), pl.col("loss") - pl.col("high"), 0.0)
    ).to_series()


def captured(setting: Setting) -> pl.DataFrame:
    """Captured utility of every run on the mixture itself, as a share of the best encoder's: `width`, `share`."""
    u, rows = np.sort(setting.mixture.utilities, axis=None)[::-1], setting.without_gap()
    best = [float(u[:width].sum()) for width in rows[WIDTH]]
    return rows.select(pl.col(WIDTH).alias("width"), (pl.col("captured") / pl.Series(best)).alias("share"))


@dataclass(frozen=True)
class Learnt:
    """When a task (0-based) is first learnt, on a grid of widths.

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
    """When each task is first learnt: half of its first feature is captured."""
    mixture, rows, found = setting.mixture, setting.without_gap(), []
    widths = rows[WIDTH].unique().sort().to_list()
    for k in range(setting.tasks.count if widths else 0):
        needed = ENOUGH * mixture.spectrum[k].max() / mixture.totals[k]
        mean = {w: rows.filter(pl.col(WIDTH) == w)[f"task_{k + 1:02}_signal"].mean() for w in widths}
        seen = next((w for w in widths if float(mean[w]) > needed), None)  # type: ignore[arg-type]
        before = max((w for w in widths if seen is None or w < seen), default=0)
        found.append(Learnt(k, seen, before, mixture.staircase(k), widths[-1]))
    return found


def cycles(history: pl.DataFrame, gap: int, until: int) -> tuple[float, float] | None:
    """A run's gain and decay of the rare task's signal per cycle, means over the second half of the steps up to `until`:
    what its return adds, and what the gap that follows takes away; None if evaluations do not show it."""
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


# --- in sentences -------------------------------------------------------------------------------------------


def remarks(runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> list[str]:
    """What theory says of a table of runs, and what the runs say of theory; nothing for other problems."""
    found = settings(runs)
    if not found:
        return []
    said = [_bound(runs, histories)]
    for setting in found:
        prefix = f"{setting.label}: " if len(found) > 1 else ""
        said += [prefix + sentence for sentence in _static(setting) if sentence]
    said += _retention(found, histories)
    said += [_boosted(found), _definitions(found)]
    return [sentence for sentence in said if sentence]


def _static(setting: Setting) -> list[str]:
    """The mixture itself: utility, losses of tasks, critical widths, and loss against width."""
    if setting.without_gap().is_empty():
        return []
    shares, table = captured(setting)["share"], tasks_of(setting)
    off, ties = misses(table), int(table["tied"].sum())
    worst = table.row(int(off.arg_max() or 0), named=True)
    tied = f" {ties} of them are exact ties, for which theory gives bounds only." if ties else ""
    agree = learnt(setting)
    wrong = [one for one in agree if not one.agrees]
    rarest = agree[setting.rare]
    low, high = rarest.predicted
    where = f"{low}" if low == high else f"{low} to {high}, a tie"
    seen = f"from width {rarest.seen} on, not yet at {rarest.before}" if rarest.seen else "at no width tried"
    return [
        f"the encoder captures at least {float(shares.min()):.5f} of the best encoder's utility at each of "  # type: ignore[arg-type]
        f"{shares.len()} runs.",
        f"losses of single tasks are within {float(off.max()):.1g} of theory, as shares of a task's variance "  # type: ignore[arg-type]
        f"({int((off <= NEAR).sum())} of {table.height} within {NEAR:g}; the farthest is task {worst['task']} at width "
        f"{worst['width']}).{tied}",
        f"task {rarest.task + 1} is learnt {seen}; predicted is {where}. "
        + (
            f"All {len(agree)} tasks are first learnt where theory says, between neighbours of the grid."
            if not wrong
            else f"{len(agree) - len(wrong)} of {len(agree)} tasks are first learnt where theory says; not "
            + ", ".join(str(one.task + 1) for one in wrong)
            + "."
        ),
        _sum(setting),
    ]


def _sum(setting: Setting) -> str:
    """Loss against width beside the exact sum."""
    rows = setting.without_gap()
    mean = rows.group_by(WIDTH).agg(pl.col("population_loss").log().mean().exp()).sort(WIDTH)
    widths, losses = mean[WIDTH].to_numpy(), mean["population_loss"].to_numpy()
    exact = setting.mixture.mixture_loss(widths.tolist())
    known = exact > 0
    if known.sum() < 3:
        return ""
    widths, losses, exact = widths[known], losses[known], exact[known]
    fitted, expected = (-np.polyfit(np.log(widths), np.log(values), 1)[0] for values in (losses, exact))
    slopes = -local_slopes(widths, exact)
    t = setting.tasks
    tail = f"{residual_slope(t.beta, 2 * t.alpha):.2g} far out with endlessly many tasks and features" if not t.ramp else ""
    far = f" ({tail}; these are finite)" if tail and min(t.beta, 2 * t.alpha) > 1 else ""
    return (
        f"loss falls as width^-{fitted:.3f} over widths {widths[0]} to {widths[-1]}, the exact sum over the same widths as "
        f"width^-{expected:.3f}. It is no power law: the sum's local slopes go from {slopes[0]:.2f} to {slopes[-1]:.2f}{far}."
    )


def _bound(runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> str:
    """Theorem 4, at all evaluations."""
    ratios = []
    for run in usable(runs)["id"]:
        history = histories.get(run)
        if history is not None and {"common_gradient", "common_bound"} <= set(history.columns):
            both = history.select("common_gradient", "common_bound").drop_nulls()
            bound = both["common_bound"].to_numpy()
            ratios += (both["common_gradient"].to_numpy()[bound > 0] / bound[bound > 0]).tolist()
    if not ratios:
        return ""
    above = sum(ratio > 1 + 1e-3 for ratio in ratios)
    held = "held at all" if not above else f"was exceeded at {above} of"
    return (
        f"Theorem 4, ||G_F|| <= 2 sqrt(lambda_1(M_F) delta_F), {held} {len(ratios)} evaluations; the gradient of the "
        f"common tasks came to {max(ratios):.3g} of its bound at most."
    )


def _retention(found: Sequence[Setting], histories: Mapping[str, pl.DataFrame]) -> list[str]:
    """Rare tasks that were withheld."""
    said, ends = [], {}
    for setting in found:
        if setting.runs.filter(pl.col(GAP) > 0).is_empty():
            continue
        prefix = f"{setting.label}: " if len(found) > 1 else ""
        table = horizons(setting, histories)
        low, high = setting.mixture.staircase(setting.rare)
        mean = table.group_by("width", "gap", "share").agg(
            pl.col("step", "corrected", "static", "static_high", "gain", "decay").mean()
        )
        mean = mean.sort("width", "gap", "share")
        ends[setting.label] = mean.filter(pl.col("share") == HORIZONS[-1])
        below = mean.filter((pl.col("width") < low) & (pl.col("share") == HORIZONS[-1]))
        if below.height:
            best = below.sort("corrected").row(-1, named=True)
            line = (
                f"{prefix}below the critical width ({_range(low, high)}) task {setting.rare + 1} is not learnt at any "
                f"gap: its corrected signal ends at {best['corrected']:.3f} at most (0 is chance)."
            )
            turns = below.filter(pl.col("gain").is_not_null())
            for row in turns.iter_rows(named=True):
                line += (
                    f" At width {row['width']}, gap {row['gap']}, each return adds {row['gain']:.2g} and the gap takes "
                    f"{-row['decay']:.2g} ({abs(row['gain'] + row['decay']) / row['gain']:.1%} apart)."
                )
            said.append(line)
        for row in _delays(mean, high):
            said.append(prefix + row)
    if len(ends) == 2:
        said.append(_arms(*ends.items()))
    return said


def _delays(mean: pl.DataFrame, critical: int) -> list[str]:
    """Of widths above the critical one: what the longest gap does at either horizon."""
    above = mean.filter((pl.col("width") >= critical) & (pl.col("gap") > 0))
    if above.is_empty():
        return []
    longest = above.filter(pl.col("gap") == pl.col("gap").max())
    parts, come, late = [], 0, 0
    for (width,), rows in longest.group_by("width", maintain_order=True):
        first, last = rows.sort("share").rows(named=True)
        come += last["corrected"] >= REACHED * last["static"]
        late += first["corrected"] < REACHED * first["static"]
        told = [f"{row['corrected']:.2f} after {row['step']:,.0f} steps" for row in (first, last)]
        tied = "" if last["static_high"] - last["static"] < NEAR else f" to {last['static_high']:.2f}, a tie"
        parts.append(f"at width {width} {' and '.join(told)} (best encoder {last['static']:.2f}{tied})")
    gap, n = longest["gap"][0], len(parts)
    if come and late:
        said = "above the critical width the gap delays learning and does not prevent it; it prevents it only below"
    elif come:
        said = "above the critical width the gap does not prevent learning"
    else:
        said = "above the critical width learning had not come to its end, so that a delay is not told from prevention"
    return [
        f"{said}. At gap {gap} the corrected signal is {'; '.join(parts)}: {come} of {n} widths have come to "
        f"{REACHED:.0%} of the best encoder's."
    ]


def _arms(one: tuple[str, pl.DataFrame], other: tuple[str, pl.DataFrame]) -> str:
    """What differs between two ways of training, at the last horizon."""
    (name, first), (second_name, second) = one, other
    both = first.join(second, on=["width", "gap"], suffix="_other")
    if both.is_empty():
        return ""
    difference = (both["corrected_other"] - both["corrected"]).to_numpy()
    far = both.row(int(np.argmax(np.abs(difference))), named=True)
    return (
        f"{second_name} against {name}, at the last horizon: the corrected signals differ by {np.abs(difference).mean():.2f} "
        f"on average, at most at width {far['width']}, gap {far['gap']}: {far['corrected_other']:.2f} against "
        f"{far['corrected']:.2f}. {_effect(name, first)} {_effect(second_name, second)}"
    )


def _effect(name: str, ends: pl.DataFrame) -> str:
    """What a longer gap costs, with one way of training."""
    costs = []
    for _, rows in ends.group_by("width"):
        values = rows.sort("gap")["corrected"]
        costs.append(float(values[0] - values[-1]))
    return f"With {name} the longest gap costs {max(costs):.2f} of the signal at most."


def _boosted(found: Sequence[Setting]) -> str:
    """Raising a rare task's frequency in place of the width."""
    boosts = sorted({setting.tasks.frequency_boost for setting in found})
    if len(boosts) < 2:
        return ""
    base = found[0]
    plain = Tasks(**{name: getattr(base.tasks, name) for name in FIELDS if name != "frequency_boost"})
    mixture, parts = Mixture(plain.frequencies(), plain.amplitudes()), []
    for width in base.widths:
        needed = mixture.boost_needed(base.rare, width)
        seen = {s.tasks.frequency_boost: one[base.rare] for s in found if (one := _at(s, width))}
        first = next((boost for boost in sorted(seen) if seen[boost]), None)
        told = f"is learnt from {first:g} times its frequency on" if first else "is not learnt"
        parts.append(f"at width {width} task {base.rare + 1} {told}, predicted is {needed:.3g}")
    return (
        "Frequency instead of width: " + "; ".join(parts) + f" (tried were {', '.join(f'{b:g}' for b in boosts)} times)."
    )


def _at(setting: Setting, width: int) -> list[bool]:
    """Which tasks are learnt at a width."""
    rows, mixture = setting.without_gap().filter(pl.col(WIDTH) == width), setting.mixture
    if rows.is_empty():
        return []
    means = [float(rows[f"task_{k + 1:02}_signal"].mean()) for k in range(setting.tasks.count)]  # type: ignore[arg-type]
    return [m > ENOUGH * lam.max() / t for m, lam, t in zip(means, mixture.spectrum, mixture.totals, strict=True)]


def _definitions(found: Sequence[Setting]) -> str:
    """What is computed from definitions where the paper prints other numbers."""
    sizes = {s.tasks.beta: int(common_tasks(s.mixture.frequencies).sum()) for s in found}
    here = ", ".join(f"{n} of {found[0].tasks.count} at beta {beta:g}" for beta, n in sizes.items())
    of_32 = {beta: int(common_tasks(Tasks(count=32, beta=beta).frequencies()).sum()) for beta in PRINTED}
    gamma = optimal_exponent(0.46, 0.51)
    return (
        f"Computed here, not copied: the common tasks F are the most frequent ones that make up 80 % of the samples ({here}). "
        f"For 32 tasks at beta {_list(PRINTED)} that gives {_list(of_32.values())}, where the paper prints "
        f"{_list(PRINTED.values())}. Nor does its loss at optimal compute, L_C ~ N^-0.34, follow from its eq. 1, which "
        f"has it fall as N^-{gamma:.2f}, like the loss with unlimited data."
    )


def _list(numbers: Any) -> str:
    return ", ".join(f"{number:g}" for number in numbers)


def _range(low: int, high: int) -> str:
    return f"{low}" if low == high else f"{low} to {high}"
