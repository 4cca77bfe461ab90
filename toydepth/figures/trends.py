"""The exponent against a swept field of its regimes, and against the step budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from ..exponents import Exponent, fitted, points_needed
from ..powerlaw import student_interval
from ..regimes import ALWAYS_SHOWN, SEEDS, change
from ..schemes import ORDERS
from .style import (
    SCHEME,
    Look,
    Panel,
    draw_levels,
    few,
    last,
    levels_of,
    limit_to,
    log_x,
    marker,
    of_published_teachers,
    size_name,
    words,
)

LOG_ABOVE = 8  # what a field's values must span for a log axis
MOST_BANDS = 4  # regimes with bands around their lines

Point = tuple[float, float, float | None, float | None]  # x, alpha, its interval


# --- against a field ----------------------------------------------------------------------------------------


def field_panels(exponents: Sequence[Exponent], runs: pl.DataFrame) -> list[Panel]:
    """A panel for each field that takes three values or more among the regimes, or that is the student's scheme."""
    known = [e for e in exponents if e.alpha is not None]
    fields = swept_fields(known)
    short = [last(name) for name in fields]
    panels = []
    for name in fields:
        stem = last(name) if short.count(last(name)) == 1 else name.replace(".", "_")
        with_it = _followers(name, known)
        rule = name == SCHEME and of_published_teachers(known, runs)
        caption = (
            f"The exponent against {name}"
            + (f" (with it {change(with_it)} {', '.join(with_it)})" if with_it else "")
            + ", with 95 % intervals over replicates. Filled: all runs had converged; open: not all, or not known."
            + (" Dashed: 2p + 1, expected of a smooth teacher and a scheme of order p." if rule else "")
        )
        lines = _lines(name, known)
        regimes = [{n: v for n, v in line[0].regime.items() if n not in (name, *with_it)} for line in lines]
        entries = [(i, words(regime, regimes)) for i, regime in enumerate(regimes)] if len(lines) > 1 else []
        draw = partial(_against_field, name=name, lines=lines, levels=levels_of(known, runs), rule=rule)
        panels.append(Panel(f"alpha_vs_{stem}", f"Exponent against {last(name)}", caption, draw, entries))
    return panels


def swept_fields(exponents: Sequence[Exponent]) -> list[str]:
    """The regimes' fields that deserve a panel; of fields that change together, the first."""
    chosen: list[str] = []
    for name in dict.fromkeys(name for e in exponents for name in e.regime):
        values = {e.regime.get(name) for e in exponents} - {None}
        numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
        enough = len(values) >= 3 if numbers else name == SCHEME and len(values & set(ORDERS)) >= 2
        if enough and not any(_together(name, other, exponents) for other in chosen):
            chosen.append(name)
    return chosen


def _together(a: str, b: str, exponents: Sequence[Exponent]) -> bool:
    """Whether each value of a comes with one of b, and each of b with one of a."""
    pairs = {(e.regime.get(a), e.regime.get(b)) for e in exponents} - {(None, None)}
    return len(pairs) == len({p[0] for p in pairs}) == len({p[1] for p in pairs})


def _followers(name: str, exponents: Sequence[Exponent]) -> list[str]:
    """Fields that are settled by this one, given the teacher's kind and the loss, without being constant."""

    def most(field: str, *by: str) -> int:
        groups: dict[tuple[Any, ...], set[Any]] = {}
        for e in exponents:
            if e.regime.get(name) is not None:
                groups.setdefault(tuple(e.regime.get(n) for n in by), set()).add(e.regime[field])
        return max(map(len, groups.values()))

    others = [n for n in exponents[0].regime if n not in (name, *ALWAYS_SHOWN)]
    return [n for n in others if most(n, *ALWAYS_SHOWN, name) == 1 < most(n, *ALWAYS_SHOWN)]


def _lines(name: str, exponents: Sequence[Exponent]) -> list[list[Exponent]]:
    """The exponents that a field tells apart, by what else does."""
    shown = [e for e in exponents if e.regime.get(name) is not None and (name != SCHEME or e.regime[name] in ORDERS)]
    apart = {name, *_followers(name, exponents)}
    lines: dict[tuple[Any, ...], list[Exponent]] = {}
    for e in sorted(shown, key=partial(_place, name)):
        lines.setdefault(tuple(v for n, v in e.regime.items() if n not in apart), []).append(e)
    return list(lines.values())


def _against_field(
    ax: Axes, look: Look, name: str, lines: Sequence[Sequence[Exponent]], levels: Mapping[float, str], rule: bool
) -> None:
    shown = [e for line in lines for e in line]
    xs = sorted({_place(name, e) for e in shown})
    log = name != SCHEME and xs[0] > 0 and xs[-1] > LOG_ABOVE * xs[0]
    for i, line in enumerate(lines):
        # Side by side, or the bars of lines that share their values would hide one another.
        offset = 0.006 * (i - (len(lines) - 1) / 2)
        points = []
        for e in line:
            x = _place(name, e)
            x = x * (xs[-1] / xs[0]) ** offset if log else x + offset * (xs[-1] - xs[0])
            points.append((x, e.alpha or 0.0, e.ci_low, e.ci_high))
            _draw_point(ax, look, i, points[-1], filled=e.converged == 1)
        ax.plot([p[0] for p in points], [p[1] for p in points], color=look.colour(i), linewidth=1.2)
    values = [e.alpha or 0.0 for e in shown]
    if name == SCHEME:
        _name_schemes(ax, xs)
        values += _draw_rule(ax, look, xs) if rule else []
    elif log:
        log_x(ax, xs)
    elif len(xs) <= 8 and min(np.diff(xs)) > 0.09 * (xs[-1] - xs[0]):
        ax.xaxis.set_major_locator(FixedLocator(xs))
    draw_levels(ax, look, levels)
    limit_to(ax, values, list(levels))
    ax.set(xlabel=last(name), ylabel=f"exponent of loss in {size_name(shown)}")


def _name_schemes(ax: Axes, orders: Sequence[float]) -> None:
    """Names the schemes at their orders."""
    names = {p: scheme for scheme, p in ORDERS.items()}
    ax.xaxis.set_major_locator(FixedLocator(orders))
    ax.xaxis.set_major_formatter(FuncFormatter(lambda p, _: f"{names.get(int(p), '')}\np = {p:g}"))


def _draw_rule(ax: Axes, look: Look, orders: Sequence[float]) -> list[float]:
    """Draws what is expected of a smooth teacher and schemes of these orders, and returns it."""
    expected = [2 * p + 1 for p in orders]
    ax.plot(orders, expected, color=look.grey, linewidth=1, linestyle=(0, (4, 3)), zorder=1)
    at = (orders[-1], expected[-1]), (-16, 0), "data", "offset points"
    ax.annotate("2p + 1", *at, ha="right", va="center", color=look.grey)
    return expected


def _place(name: str, e: Exponent) -> float:
    """Where a regime stands on the axis of a field."""
    value = e.regime[name]
    return float(ORDERS[value] if name == SCHEME else value)


# --- against the step budget --------------------------------------------------------------------------------


def step_panels(
    exponents: Sequence[Exponent], runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]
) -> list[Panel]:
    """A panel of the exponent against the step, if any regime's histories have steps in common."""
    known = few([(i, e) for i, e in enumerate(exponents) if e.alpha is not None])
    courses = [(i, e, course(e, runs, histories), budgets(e, runs)) for i, e in known]
    courses = [found for found in courses if len(found[2]) > 1]
    if not courses:
        return []
    bands = " with 95 % intervals" if len(courses) <= MOST_BANDS else ""
    caption = (
        f"Thin lines{bands}: fits to the losses at one step, {_mid_run([e for _, e, *_ in courses], runs)}. Points, "
        "with 95 % intervals over replicates: runs of half the budget (open) and of all of it (filled)."
        + (" All without a floor." if any(e.floor is not None for e in exponents) else "")
        + (f" {len(courses)} of {len(exponents)} regimes." if len(courses) < len(exponents) else "")
    )
    draw = partial(_against_step, courses=courses, exponents=exponents, levels=levels_of(exponents, runs))
    regimes = [e.regime for e in exponents]
    entries = [(i, words(e.regime, regimes)) for i, e, *_ in courses]
    return [Panel("alpha_vs_step", "Exponent against the step budget", caption, draw, entries)]


def _mid_run(exponents: Sequence[Exponent], runs: pl.DataFrame) -> str:
    """What a loss at a step within a run says of a run of that many steps."""
    rows = pl.concat([fitted(runs, e) for e in exponents])
    if "student.init" in rows.columns and (rows["student.init"] == "grow").any():
        return "within the last stage where students have grown, so not those of runs of that many steps"
    flat = "schedule.name" in rows.columns and (rows["schedule.name"] == "constant").all()
    if flat and ("schedule.warmup" not in rows.columns or (rows["schedule.warmup"] == 0).all()):
        return "which at a constant rate are those of runs of that many steps"
    return (
        "mid-run, before the rate's decay is complete; they usually fall short of what a run of that many steps, "
        "with a decay of its own, would reach"
    )


def course(e: Exponent, runs: pl.DataFrame, histories: Mapping[str, pl.DataFrame]) -> list[Point]:
    """A regime's exponent, fitted without a floor, at each step that all its runs were evaluated at."""
    rows = _cells(e, runs)
    found = [histories[run].select("step", "loss", pl.lit(run).alias("id")) for run in rows["id"] if run in histories]
    if len(found) < rows.height or not found:
        return []
    evaluated = pl.concat(found).filter((pl.col("step") > 0) & (pl.col("loss") > 0))
    table = rows.drop("loss", "step").join(evaluated, on="id")
    everywhere = table.group_by("step").len().filter(pl.col("len") == rows.height)
    return _alphas(table.join(everywhere, on="step"), "loss")


def budgets(e: Exponent, runs: pl.DataFrame) -> list[Point]:
    """A regime's exponent, fitted without a floor, at half the budget (from the twins) and at all of it."""
    rows = _cells(e, runs)
    if rows["step"].null_count() or rows["step"].n_unique() != 1:
        return []
    # As in the fit: losses of one replicate and x count as one, and a replicate needs enough of them.
    points = rows.group_by(*SEEDS, "x").agg(twinned=(pl.col("half_loss") > 0).fill_null(False).all())
    per_replicate = points.group_by(SEEDS).agg(pl.len().alias("points"), pl.col("twinned").sum())
    needed = points_needed(int(per_replicate["points"].to_numpy().max()), "none" if e.floor is None else "free")
    kept = points.filter("twinned").join(per_replicate.filter(pl.col("twinned") >= needed), on=SEEDS, how="semi")
    twins = rows.join(kept, on=(*SEEDS, "x"), how="semi").with_columns(pl.col("step") / 2)
    return _alphas(twins, "half_loss") + _alphas(rows, "loss")


def _cells(e: Exponent, runs: pl.DataFrame) -> pl.DataFrame:
    """The runs behind an exponent: id, x, replicate, loss, half_loss, and as `step` how many steps they took."""
    rows = fitted(runs, e)
    x, numbers = pl.col(e.variable).cast(pl.Float64).alias("x"), pl.col("loss", "half_loss").cast(pl.Float64)
    steps = pl.col("steps") if "steps" in rows.columns else pl.lit(None, pl.Int64)
    return rows.select("id", x, *SEEDS, numbers, steps.alias("step"))


def _alphas(table: pl.DataFrame, loss: str) -> list[Point]:
    """At each step, the mean over replicates of their slopes of log loss against log x, and its interval."""
    log = table.with_columns(pl.col("x").log(), pl.col(loss).log().alias("y"))
    log = log.group_by("step", *SEEDS, "x").agg(pl.col("y").mean())
    slope = log.group_by("step", *SEEDS).agg((-pl.cov("x", "y") / pl.var("x")).alias("alpha"))
    slope = (
        slope.filter(pl.col("alpha").is_finite())
        .sort("step", *SEEDS)
        .group_by("step", maintain_order=True)
        .agg("alpha")
    )
    return [(float(step), float(np.mean(found)), *student_interval(found)) for step, found in slope.iter_rows()]


def _against_step(
    ax: Axes,
    look: Look,
    courses: Sequence[tuple[int, Exponent, list[Point], list[Point]]],
    exponents: Sequence[Exponent],
    levels: Mapping[float, str],
) -> None:
    values = []
    for i, _, points, honest in courses:
        colour = look.colour(i)
        steps, alphas, low, high = (np.array(column, float) for column in zip(*points, strict=True))
        ax.plot(steps, alphas, color=colour, linewidth=1.3, alpha=0.75)
        if len(courses) <= MOST_BANDS:
            ax.fill_between(steps, low, high, color=colour, alpha=0.13, linewidth=0)
        values += alphas[len(alphas) // 4 :].tolist()
        ax.plot([p[0] for p in honest], [p[1] for p in honest], color=colour, linewidth=2.2)
        for point in honest:
            _draw_point(ax, look, i, point, filled=point is honest[-1])
        values += [p[1] for p in honest]
    log_x(ax, [])
    draw_levels(ax, look, levels)
    limit_to(ax, values, list(levels))
    ax.set(xlabel="step", ylabel=f"exponent of loss in {size_name(exponents)}")


def _draw_point(ax: Axes, look: Look, i: int, point: Point, filled: bool) -> None:
    x, alpha, low, high = point
    bars = None if low is None or high is None else [[alpha - low], [high - alpha]]
    face = look.colour(i) if filled else look.page
    ax.errorbar(x, alpha, bars, fmt=marker(i), color=look.colour(i), markerfacecolor=face, markersize=5.5, zorder=4)
