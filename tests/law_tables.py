"""What tests of laws share: planted laws, tables that are built from them, and where the public ones lie."""

import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from toydepth.laws.law import Law, named

THEORY = {"c_m": 380.0, "c_l": 3.2, "c_D": 1060.0, "a_m": 1.0, "a_l": 1.0, "a_D": 1 / 3, "L0": 1.78}
SHAPED = named("width-depth-tokens")
DATA = Path(os.environ.get("TOYDEPTH_DATA") or Path(__file__).parents[2] / "shared" / "data")

needs_data = pytest.mark.skipif(not (DATA / "chinchilla").is_dir(), reason="the public tables are not at hand")


def grid(ratio: float | None = None) -> pl.DataFrame:
    """100 models, 5 widths x 5 depths x 4 budgets; with a ratio, 20 whose width is that many times their depth."""
    widths, depths = (256, 512, 1024, 2048, 4096), (4, 8, 16, 32, 64)
    shapes = [(m, l) for m in widths for l in depths] if ratio is None else [(m, m / ratio) for m in widths]  # noqa: E741
    rows = [(float(m), float(l), float(d)) for m, l in shapes for d in np.geomspace(1e9, 1e11, 4)]  # noqa: E741
    return pl.DataFrame(rows, schema=["width", "depth", "tokens"], orient="row")


def planted(
    values: dict[str, float] = THEORY,
    noise: float = 0.005,
    seed: int = 0,
    law: Law = SHAPED,
    sizes: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """A table whose losses follow a law, times exp of Gaussian noise."""
    sizes = grid() if sizes is None else sizes
    loss = law.loss({name: sizes[name].to_numpy() for name in law.variables}, values)
    return sizes.with_columns(loss=loss * np.exp(noise * np.random.default_rng(seed).normal(size=len(loss))))


def sizes_of(frame: pl.DataFrame, law: Law = SHAPED) -> dict[str, np.ndarray]:
    return {name: frame[name].to_numpy() for name in law.variables}
