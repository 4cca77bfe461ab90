"""tau, the learning rate summed over optimiser steps: from a schedule or from a logged curve; and what it leaves open.

If loss were a function of tau alone, curves of one model under different schedules would fall on one another
(arXiv 2602.03685 proposes L - L0 ~ tau^-1/3). `equal_tau` says by how much they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl
from jaxtyping import Float

from ..fields import ConfigError
from .fitting import Fit, fit
from .law import named
from .tables import Table

CURVE, CONSTANT = "schedule", "constant"  # the column that tells curves apart, and how a constant rate is called

_SHAPES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "constant": lambda t: np.ones_like(t),
    "linear": lambda t: 1 - t,
    "cosine": lambda t: (1 + np.cos(np.pi * t)) / 2,
}


@dataclass(frozen=True)
class Schedule:
    """A learning rate over `total` steps: a linear rise over a share of them, then a fall to a share of the peak."""

    name: str
    total: int
    warmup: float = 0.0
    floor: float = 0.0

    def tau(self, steps: Float[np.ndarray, " rows"], peak: Float[np.ndarray, " rows"]) -> Float[np.ndarray, " rows"]:
        """Learning rate summed over so many steps[rows], each row under its own peak rate[rows]."""
        rises = round(self.warmup * self.total)
        step = np.arange(self.total)
        fall = _SHAPES[self.name](np.clip((step - rises) / max(self.total - rises, 1), 0, 1))
        rate = np.where(step < rises, (step + 1) / max(rises, 1), self.floor + (1 - self.floor) * fall)
        sums = np.concatenate([[0.0], np.cumsum(rate)])
        return peak * np.interp(steps, np.arange(self.total + 1), sums)


def parse_schedule(text: str) -> Schedule:
    """A schedule from NAME:total=STEPS,warmup=SHARE,floor=SHARE."""
    name, _, options = text.partition(":")
    values: dict[str, float] = {}
    try:
        for pair in filter(None, options.split(",")):
            key, _, value = pair.partition("=")
            values[key.strip()] = float(value)
        total = int(values.pop("total"))
        shares = [values.get("warmup", 0.0), values.get("floor", 0.0)]
        sound = name in _SHAPES and values.keys() <= {"warmup", "floor"} and total > 0
        sound = sound and all(0 <= share <= 1 for share in shares)
    except (KeyError, ValueError, OverflowError):
        sound = False
    if not sound:
        names = ", ".join(_SHAPES)
        raise ConfigError(
            f"--schedule {text}: allowed is NAME:total=STEPS,warmup=SHARE,floor=SHARE with NAME {names}, shares 0 to 1"
        )
    return Schedule(name, total, *shares)


def integral(
    step: Float[np.ndarray, " rows"], rate: Float[np.ndarray, " rows"], warmup: int = 0
) -> Float[np.ndarray, " rows"]:
    """tau at the rows of one logged curve, ascending in step.

    The rate is taken as linear between rows, and before the first one as that row's, after a linear rise over `warmup`
    steps. The offset matters: raw steps in its place change exponents from 0.45 to 0.7.
    """
    if not len(step):
        return np.zeros(0)
    first = rate[0] * (step[0] - min(warmup, step[0]) / 2)
    return first + np.concatenate([[0.0], np.cumsum(np.diff(step) * (rate[1:] + rate[:-1]) / 2)])


def with_tau(table: Table, schedule: Schedule | None) -> Table:
    """The table with tau, if it lacks it but has steps and learning rates.

    With a schedule the column `lr` holds peak rates; without one each model's (and each schedule's) rows are a curve.
    """
    frame = table.frame
    if "tau" in frame.columns or not {"step", "lr"} <= set(frame.columns):
        if schedule is not None:
            missing = "it has tau already" if "tau" in frame.columns else "it needs the columns step and lr"
            raise ConfigError(f"--schedule {schedule.name}: {table.name}: {missing}")
        return table
    for name in ("step", "lr"):
        if not frame[name].dtype.is_numeric():
            raise ConfigError(f"{table.name}: {name} holds text: allowed are numbers")
    if schedule is not None:
        tau = schedule.tau(frame["step"].to_numpy(), frame["lr"].to_numpy())
        return _replaced(table, frame.with_columns(tau=tau))
    by = [name for name in ("model", CURVE) if name in frame.columns]
    curves = frame.partition_by(by, maintain_order=True) if by else [frame]
    return _replaced(table, pl.concat([_curve(curve.sort("step"), 0) for curve in curves]))


def _curve(curve: pl.DataFrame, warmup: int) -> pl.DataFrame:
    return curve.with_columns(tau=integral(curve["step"].to_numpy(), curve["lr"].to_numpy(), warmup))


def _replaced(table: Table, frame: pl.DataFrame) -> Table:
    return Table(frame, table.name, table.counting, table.notes)


# --- what tau leaves open ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class EqualTau:
    """A run under some schedule beside the constant-rate run of the same model, where both have the same tau."""

    model: str
    schedule: str
    tau: float
    loss: float
    constant_loss: float

    @property
    def difference(self) -> float:
        """How much higher the run's loss is than that at the constant rate, in nats."""
        return self.loss - self.constant_loss


@dataclass(frozen=True)
class ConstantRate:
    """Power laws in tau of one model at a constant rate: with the exponent free, and with it at 1/3."""

    model: str
    free: Fit
    third: Fit


def equal_tau(table: Table) -> list[EqualTau]:
    """The end of every curve that is not at a constant rate, beside the longest constant one of the same model."""
    rows = []
    for model, curves in _by_model(table):
        constant = _constant(curves)
        if constant is None:
            continue
        for name, curve in curves.items():
            end = curve[-1]
            tau, loss = end["tau"][0], end["loss"][0]
            if not name.startswith(CONSTANT) and constant["tau"][0] <= tau <= constant["tau"][-1]:
                there = np.interp(np.log(tau), np.log(constant["tau"].to_numpy()), constant["loss"].to_numpy())
                rows.append(EqualTau(model, name, tau, loss, float(there)))
    return rows


def constant_rate(table: Table) -> list[ConstantRate]:
    """The laws of loss in tau of each model's longest curve at a constant rate."""
    law, laws = named("tau"), []
    for model, curves in _by_model(table):
        curve = _constant(curves)
        if curve is not None and curve.height > 10:
            sizes, loss = {"tau": curve["tau"].to_numpy()}, curve["loss"].to_numpy()
            laws.append(ConstantRate(model, fit(sizes, loss, law), fit(sizes, loss, law.expected())))
    return laws


def _by_model(table: Table) -> list[tuple[str, dict[str, pl.DataFrame]]]:
    """Each model's curves, by schedule, ascending in tau."""
    if not {CURVE, "model", "tau", "loss"} <= set(table.frame.columns):
        return []
    models = []
    for (model,), rows in table.frame.group_by(["model"], maintain_order=True):
        curves = rows.sort("tau").partition_by(CURVE, as_dict=True, maintain_order=True)
        models.append((str(model), {str(name): curve for (name,), curve in curves.items()}))
    return models


def _constant(curves: Mapping[str, pl.DataFrame]) -> pl.DataFrame | None:
    constant = [curve for name, curve in curves.items() if name.startswith(CONSTANT)]
    return max(constant, key=lambda curve: curve["tau"][-1], default=None)
