"""What exact theory says of a sweep's runs, and they of it, in sentences for its report. Imports no JAX.

So far of `problem=tasks` (arXiv 2605.29548), whose theory is exact; other problems get no remarks.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import polars as pl

from .exponents import usable
from .powerlaw import local_slopes
from .rare_tasks import GAP, HORIZONS, NEAR, WIDTH, Setting, captured, horizons, learnt, settings, tasks_of
from .tasks_config import Tasks
from .theory.tasks import Mixture, common_tasks, optimal_exponent, residual_slope

ONE_BY_ONE = 3  # settings that are spoken of one by one; more are summed up
REACHED = 0.75  # of the best signal: then a rare task counts as having been learnt in spite of a gap
DELAYED = 0.1  # of the signal, behind that of the mixture
ROUNDED = 1e-3  # by as much a bound may be exceeded in single precision
PRINTED = {0.5: 6, 1.0: 3, 1.5: 2, 2.0: 2}  # members of F for 32 tasks in the paper, by beta


def remarks(runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> list[str]:
    """What there is to say of a table of runs.

    Args:
        runs: one row per run.
        histories: run ids and their histories.
    """
    found = settings(runs)
    if not found:
        return []
    mixed = [setting for setting in found if setting.without_gap().height]
    said = [*_retention(found, histories), _boosted(mixed), _utility(mixed), _losses(mixed), *_learnt(mixed)]
    said += [*_sums(mixed), _bound(runs, histories), _definitions(found)]
    return [sentence for sentence in said if sentence]


# --- the mixture itself -------------------------------------------------------------------------------------


def _utility(mixed: Sequence[Setting]) -> str:
    shares = [share for setting in mixed for share in captured(setting)["share"]]
    if not shares:
        return ""
    return (
        f"The encoder captures at least {min(shares):.5f} of the best encoder's utility in each of {len(shares)} runs "
        "on the mixture."
    )


def _losses(mixed: Sequence[Setting]) -> str:
    """Losses of single tasks."""
    if not mixed:
        return ""
    table = pl.concat([tasks_of(setting).with_columns(label=pl.lit(setting.label)) for setting in mixed])
    ties, worst = table.filter("tied"), table.row(int(table["off"].arg_max() or 0), named=True)
    where = f"task {worst['task']} at width {worst['width']}" + (f", {worst['label']}" if len(mixed) > 1 else "")
    within = int((ties["off"] <= NEAR).sum())
    tied = (
        f" {ties.height} are exact ties, not misses: theory gives bounds, and {within} lie within."
        if ties.height
        else ""
    )
    return (
        f"Losses of single tasks are within {worst['off']:.1g} of theory, as shares of a task's variance: "
        f"{int((table['off'] <= NEAR).sum())} of {table.height} within {NEAR:g}; the farthest is {where}.{tied}"
    )


def _learnt(mixed: Sequence[Setting]) -> list[str]:
    """The widths from which on tasks are learnt."""
    found = {setting.label: learnt(setting) for setting in mixed if setting.without_gap()[WIDTH].n_unique() > 1}
    every = [(label, one) for label, ones in found.items() for one in ones]
    if not every:
        return []
    wrong = [f"task {one.task + 1}{f', {label}' if len(found) > 1 else ''}" for label, one in every if not one.agrees]
    rest = f"; not {'; '.join(wrong[:6])}{' ...' if len(wrong) > 6 else ''}" if wrong else ""
    said = [
        f"{len(every) - len(wrong)} of {len(every)} tasks are first learnt where theory says, between neighbours of "
        f"the grid of widths{rest}."
    ]
    for setting in [s for s in mixed if s.label in found][: ONE_BY_ONE if len(found) <= ONE_BY_ONE else 0]:
        one = found[setting.label][setting.rare]
        seen = "at no width tried"
        if one.seen:
            seen = f"from width {one.seen} on, " + (f"not yet at {one.before}" if one.before else "the least tried")
        tie = ", a tie" if one.predicted[0] < one.predicted[1] else ""
        said.append(f"{_of(setting, mixed)}task {one.task + 1} is learnt {seen}; predicted is {setting.critical}{tie}.")
    return said


def _sums(mixed: Sequence[Setting]) -> list[str]:
    """Loss against width beside the exact sum."""
    said = []
    for setting in mixed if len(mixed) <= ONE_BY_ONE else []:
        mean = setting.without_gap().group_by(WIDTH).agg(pl.col("population_loss").log().mean().exp()).sort(WIDTH)
        widths, losses = mean[WIDTH].to_numpy(), mean["population_loss"].to_numpy()
        exact = setting.mixture.mixture_loss(widths.tolist())
        known = exact > 0
        if known.sum() < 3:
            continue
        widths, losses, exact = widths[known], losses[known], exact[known]
        fitted, expected = (-np.polyfit(np.log(widths), np.log(values), 1)[0] for values in (losses, exact))
        slopes, t, far = local_slopes(widths, exact)[1], setting.tasks, ""
        if not t.ramp and min(t.beta, 2 * t.alpha) > 1:
            endless = residual_slope(t.beta, 2 * t.alpha)
            far = f" (far out it would be {endless:.2g} with endlessly many tasks and features; these are finite)"
        said.append(
            f"{_of(setting, mixed)}loss falls as width^-{fitted:.3f} over widths {widths[0]} to {widths[-1]}, the "
            f"exact sum over the same widths as width^-{expected:.3f}. It is no power law: the sum's local slopes go "
            f"from {slopes[0]:.2f} to {slopes[-1]:.2f}{far}."
        )
    return said


def _boosted(mixed: Sequence[Setting]) -> str:
    """Raising a rare task's frequency in place of the width."""
    boosts = sorted({setting.tasks.frequency_boost for setting in mixed})
    if len(boosts) < 2:
        return ""
    usual = Tasks(**{**vars(mixed[0].tasks), "frequency_boost": 1.0})
    mixture, rare, parts = Mixture(usual.frequencies(), usual.amplitudes()), mixed[0].rare, []
    for width in mixed[0].widths:
        seen = {s.tasks.frequency_boost: s.learns(rare, width) for s in mixed if width in s.widths}
        first = next((boost for boost in sorted(seen) if seen[boost]), None)
        before = max((boost for boost in seen if first is None or boost < first), default=None)
        told = f"learnt at {first:g} times its frequency" if first else "not learnt"
        told += f" and not at {before:g}" if before else ""
        parts.append(f"at width {width} {told} (exact: {mixture.boost_needed(rare, width):.3g})")
    return f"Frequency instead of width: task {rare + 1} is {'; '.join(parts)}."


# --- withheld and returned ----------------------------------------------------------------------------------


def _retention(found: Sequence[Setting], histories: Mapping[str, pl.DataFrame]) -> list[str]:
    """Rare tasks that were withheld."""
    said, ends = [], {}
    for setting in found:
        table = horizons(setting, histories) if setting.runs.filter(pl.col(GAP) > 0).height else pl.DataFrame()
        if table.is_empty():
            continue
        numbers = pl.col("step", "corrected", "static", "static_high", "gain", "decay").mean()
        mean = table.group_by("width", "gap", "share").agg(numbers).sort("width", "gap", "share")
        ends[setting.label] = mean.filter(pl.col("share") == HORIZONS[-1])
        said += [_of(setting, found) + line for line in (*_below(mean, setting), *_above(mean, setting))]
    return said + ([_arms(*ends.items())] if len(ends) == 2 else [])


def _below(mean: pl.DataFrame, setting: Setting) -> list[str]:
    """Of widths below the critical one."""
    low = setting.mixture.staircase(setting.rare)[0]
    below = mean.filter(pl.col("width") < low)
    if below.is_empty():
        return []
    ends = below.filter(pl.col("share") == HORIZONS[-1])
    turns = [
        f"at width {row['width']}, gap {row['gap']}, a return adds {row['gain']:.2g} and the gap takes "
        f"{-row['decay']:.2g} ({abs(row['gain'] + row['decay']) / row['gain']:.1%} apart)"
        for row in below.filter((pl.col("share") == HORIZONS[0]) & (pl.col("gain") > 0)).iter_rows(named=True)
    ]
    line = (
        f"below the critical width ({setting.critical}) task {setting.rare + 1} is not learnt at any gap: its "
        f"corrected signal ends at {ends['corrected'].to_numpy().max():.3f} at most, where 0 is chance and "
        f"{ends['static'].to_numpy().max():.3f} the best encoder's."
    )
    return [line + (f" Update and forget: {'; '.join(turns)}." if turns else "")]


def _above(mean: pl.DataFrame, setting: Setting) -> list[str]:
    """Of widths above the critical one: what the longest gap does at either horizon."""
    critical = setting.mixture.staircase(setting.rare)[1]
    above = mean.filter((pl.col("width") >= critical) & (pl.col("gap") > 0))
    if above.is_empty():
        return []
    longest = above.filter(pl.col("gap") == pl.col("gap").max())
    usual = mean.filter(pl.col("gap") == 0)
    parts, come, late = [], 0, 0
    for (width,), rows in longest.group_by("width", maintain_order=True):
        first, last = rows.sort("share").rows(named=True)
        mixed = usual.filter(pl.col("width") == width).sort("share")["corrected"].to_list()
        come += last["corrected"] >= REACHED * last["static"]
        late += first["corrected"] < (mixed[0] if mixed else first["static"]) - DELAYED
        told = [f"{row['corrected']:.2f} after {row['step']:,.0f} steps" for row in (first, last)]
        tied = "" if last["static_high"] - last["static"] < NEAR else f" to {last['static_high']:.2f}, a tie"
        beside = f", mixture {mixed[0]:.2f} and {mixed[1]:.2f}" if mixed else ""
        parts.append(f"at width {width} {' and '.join(told)} (best encoder {last['static']:.2f}{tied}{beside})")
    if come and late:
        said = "above the critical width the gap delays learning and does not prevent it; it prevents it only below"
    elif come:
        said = "above the critical width the gap does not prevent learning"
    else:
        said = "above the critical width learning had not come to its end, so that a delay is not told from prevention"
    return [
        f"{said}. At gap {longest['gap'][0]} the corrected signal is {'; '.join(parts)}: {come} of {len(parts)} "
        f"widths have come to {REACHED:.0%} of the best encoder's."
    ]


def _arms(one: tuple[str, pl.DataFrame], other: tuple[str, pl.DataFrame]) -> str:
    """What differs between two ways of training, at the last horizon."""
    (name, first), (second_name, second) = one, other
    both = first.join(second, on=["width", "gap"], suffix="_other")
    if both.is_empty():
        return ""
    apart = np.abs((both["corrected_other"] - both["corrected"]).to_numpy())
    far = both.row(int(np.argmax(apart)), named=True)
    return (
        f"{second_name} against {name}, at the end: the corrected signals differ by {apart.mean():.2f} on average, "
        f"most at width {far['width']}, gap {far['gap']}: {far['corrected_other']:.2f} against {far['corrected']:.2f}. "
        f"{_cost(name, first)} {_cost(second_name, second)}"
    )


def _cost(name: str, ends: pl.DataFrame) -> str:
    """What the longest gap costs, with one way of training."""
    costs = []
    for _, rows in ends.group_by("width"):
        values = rows.sort("gap")["corrected"]
        costs.append(float(values[0] - values[-1]))
    return f"With {name} the longest gap costs {max(costs):.2f} of the signal at most."


# --- bounds and definitions ---------------------------------------------------------------------------------


def _bound(runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> str:
    """Theorem 4, at all evaluations."""
    ratios: list[float] = []
    for run in usable(runs)["id"]:
        history = histories.get(run)
        if history is not None and {"common_gradient", "common_bound"} <= set(history.columns):
            both = history.select("common_gradient", "common_bound").drop_nulls().filter(pl.col("common_bound") > 0)
            ratios += (both["common_gradient"] / both["common_bound"]).to_list()
    if not ratios:
        return ""
    above = sum(ratio > 1 + ROUNDED for ratio in ratios)
    held = f"was exceeded at {above} of" if above else "held at all"
    return (
        f"Theorem 4, ||G_F|| <= 2 sqrt(lambda_1(M_F) delta_F), {held} {len(ratios)} evaluations; the gradient of the "
        f"common tasks came to {max(ratios):.2f} of its bound at most."
    )


def _definitions(found: Sequence[Setting]) -> str:
    """What is computed from definitions where the paper prints other numbers."""
    sizes = {s.tasks.beta: int(common_tasks(s.mixture.frequencies).sum()) for s in found}
    here = ", ".join(f"{n} of {found[0].tasks.count} at beta {beta:g}" for beta, n in sizes.items())
    of_32 = [int(common_tasks(Tasks(count=32, beta=beta).frequencies()).sum()) for beta in PRINTED]
    return (
        f"Computed here, not copied: the common tasks F are the most frequent ones that make up 80 % of the samples "
        f"({here}). For 32 tasks at beta {_list(PRINTED)} that gives {_list(of_32)}, where the paper prints "
        f"{_list(PRINTED.values())}. Nor does its loss at optimal compute, L_C ~ N^-0.34, follow from its eq. 1, "
        f"which has it fall as N^-{optimal_exponent(0.46, 0.51):.2f}, like the loss with unlimited data."
    )


def _of(setting: Setting, among: Sequence[Setting]) -> str:
    """Which setting a sentence is about, where there are several."""
    return f"{setting.label}: " if len(among) > 1 else ""


def _list(numbers: Iterable[float]) -> str:
    return ", ".join(f"{number:g}" for number in numbers)
