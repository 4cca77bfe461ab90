"""Ready readers: public tables of trained models, recognised by their columns, with what is peculiar to each.

Facts from the sources named in the notebook's section on laws; none of these files is part of the project.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import polars as pl

from ..fields import ConfigError
from .tables import Table, read_file, with_columns
from .tau import CURVE, Schedule, integral

WITHOUT, WITH = "without embeddings", "with embeddings"

GPT3 = {  # width, layers, parameters (Brown et al. 2020, table 2.1; the 13B width as printed there)
    "small": (768, 12, 125e6),
    "medium": (1024, 24, 350e6),
    "large": (1536, 24, 760e6),
    "xl": (2048, 24, 1.3e9),
    "2.7b": (2560, 32, 2.7e9),
    "6.7b": (4096, 32, 6.7e9),
    "13b": (5140, 40, 13e9),
    "175b": (12288, 96, 175e9),
}
GPT3_FROM, GPT3_BINS = 20e9, 24  # tokens: before it the cut-off of the figure bites; a few points per model are enough

PYTHIA = {  # width, layers, peak learning rate (Biderman et al. 2023, table 1)
    "14m": (128, 6, 1e-3),
    "31m": (256, 6, 1e-3),
    "70m": (512, 6, 1e-3),
    "160m": (768, 12, 6e-4),
    "410m": (1024, 24, 3e-4),
    "1b": (2048, 16, 3e-4),
    "1.4b": (2048, 24, 2e-4),
    "2.8b": (2560, 32, 1.6e-4),
    "6.9b": (4096, 32, 1.2e-4),
    "12b": (5120, 36, 1.2e-4),
}
PYTHIA_SCHEDULE, PYTHIA_BATCH = Schedule("cosine", 143_000, warmup=0.01, floor=0.1), 2_097_152

MULTIPOWERLAW_WARMUP = 2160  # steps of linear rise before every curve starts


@dataclass(frozen=True)
class Reader:
    """How one kind of file is read: the columns that it is known by, those of the schema, and what else is done."""

    name: str
    known_by: frozenset[str]
    columns: Mapping[str, str] = field(default_factory=dict)
    counting: str = "as in the table"
    prepare: Callable[[pl.DataFrame], pl.DataFrame] = lambda frame: frame
    notes: tuple[tuple[str, str], ...] = ()
    models: frozenset[str] = frozenset()  # its models' names, where its columns are anybody's

    def knows(self, frame: pl.DataFrame) -> bool:
        """Whether a file is of this kind."""
        if not self.known_by <= set(frame.columns):
            return False
        return not self.models or set(frame.select(_short_name())["model"].to_list()) <= self.models

    def read(self, frame: pl.DataFrame, name: str) -> Table:
        table = Table(with_columns(self.prepare(frame), self.columns, name), name, self.counting)
        for code, text in self.notes:
            table = table.noted(code, text)
        return table


def read(path: Path, columns: Mapping[str, str] | None = None) -> Table:
    """A table from a file, or from a folder of MultiPowerLaw curves.

    Args:
        path: CSV, JSONL or Parquet.
        columns: {name in the schema: column of the file}; known files need none, and others none whose columns have the
            schema's names.

    Raises:
        ConfigError: the file cannot be read, or has no such column.
    """
    if path.is_dir():
        return _curves(path)
    frame = read_file(path)
    reader = next((reader for reader in READERS if reader.knows(frame)), Reader("own", frozenset()))
    table = reader.read(frame, path.name)
    return Table(with_columns(table.frame, columns or {}, path.name), table.name, table.counting, table.notes)


def _digitised_gpt3(frame: pl.DataFrame) -> pl.DataFrame:
    """Means of validation loss within bins of log tokens, from thousands of points read off a figure."""
    tokens, ends = pl.col("step") * 1e9, np.log([GPT3_FROM, 300e9])
    bins = ((tokens.log() - ends[0]) / (ends[1] - ends[0]) * GPT3_BINS).floor()
    points = frame.with_columns(pl.col("val_loss").cast(pl.Float64, strict=False)).drop_nulls("val_loss")
    binned = (
        points.with_columns(tokens=tokens, bin=bins)
        .filter(pl.col("bin").is_between(0, GPT3_BINS - 1))
        .group_by("model", "bin", maintain_order=True)
        .agg(pl.col("tokens").log().mean().exp(), pl.col("val_loss").mean(), points=pl.len())
        .sort("model", "bin")
    )
    return _from_names(binned, GPT3, ("width", "depth", "parameters"))


def _pythia(frame: pl.DataFrame) -> pl.DataFrame:
    """Checkpoints of Pythia: sizes and peak rates by name, tokens and tau by step."""
    frame = _from_names(frame.with_columns(_short_name()), PYTHIA, ("width", "depth", "lr"))
    tau = PYTHIA_SCHEDULE.tau(frame["step"].to_numpy(), frame["lr"].to_numpy())
    return frame.with_columns(tau=tau, tokens=pl.col("step") * PYTHIA_BATCH)


def _short_name() -> pl.Expr:
    return pl.col("model").cast(str).str.to_lowercase().str.strip_prefix("pythia-").str.strip_suffix("-deduped")


def _from_names(frame: pl.DataFrame, known: Mapping[str, tuple[float, ...]], names: tuple[str, ...]) -> pl.DataFrame:
    unknown = sorted(set(frame["model"].cast(str).to_list()) - known.keys())
    if unknown:
        raise ConfigError(f"model={unknown[0]}: allowed are {', '.join(known)}")
    return frame.with_columns(
        pl.col("model")
        .replace_strict({key: values[i] for key, values in known.items()}, return_dtype=pl.Float64)
        .alias(n)
        for i, n in enumerate(names)
    )


def _curves(folder: Path) -> Table:
    """MultiPowerLaw's curves: `csv_25/cosine_24000.csv` and so on, of one size (millions) or of all."""
    files = sorted(folder.glob("csv_*/*.csv")) or sorted(folder.glob("*.csv"))
    curves = []
    for path in files:
        frame = read_file(path)
        size = path.parent.name.removeprefix("csv_")
        if not {"step", "lr", "loss"} <= set(frame.columns) or not size.isdigit():
            raise ConfigError(f"{path}: allowed are curves csv_SIZE/NAME.csv with the columns step, lr, loss")
        frame = frame.select("step", pl.col("lr", "loss").cast(pl.Float64)).sort("step")
        tau = integral(frame["step"].to_numpy(), frame["lr"].to_numpy(), MULTIPOWERLAW_WARMUP)
        named = {CURVE: pl.lit(path.stem), "model": pl.lit(f"{size}M"), "parameters": pl.lit(float(size) * 1e6)}
        curves.append(frame.with_columns(tau=tau, **named))
    if not curves:
        raise ConfigError(f"{folder}: no curves csv_SIZE/NAME.csv in it")
    table = pl.concat(curves)
    return Table(table if table["model"].n_unique() > 1 else table.drop("parameters"), folder.name, "nominal")


READERS = (
    Reader(
        "chinchilla",
        frozenset({"model_size", "FLOP", "loss", "num_tokens", "d_model", "n_layers"}),
        {"width": "d_model", "depth": "n_layers", "tokens": "num_tokens", "parameters": "model_size"},
        WITH,
    ),
    Reader(  # digitised points without the table of models: tokens follow from C = 6 N D
        "chinchilla, points",
        frozenset({"Model Size", "Training FLOP", "loss"}),
        {"parameters": "Model Size"},
        WITH,
        lambda frame: frame.with_columns(tokens=pl.col("Training FLOP") / (6 * pl.col("Model Size"))),
    ),
    Reader(
        "gemstones",
        frozenset({"run_name", "width", "depth", "tokens", "params_active_precise", "final_loss"}),
        {"parameters": "params_active_precise", "loss": "final_loss", "model": "run_name"},
        WITH,
    ),
    Reader(
        "gpt3, binned",
        frozenset({"model", "m", "l", "D", "L", "tau"}),
        {"width": "m", "depth": "l", "tokens": "D", "loss": "L"},
    ),
    Reader(
        "gpt3, digitised",
        frozenset({"model", "step", "train_loss", "val_loss"}),
        {"loss": "val_loss"},
        "as published",
        _digitised_gpt3,
        (("digitised", f"validation losses read off a figure: means in {GPT3_BINS} bins of log tokens per model"),),
    ),
    Reader(
        "farseer",
        frozenset({"N", "D", "D/N", "smooth loss"}),
        {"parameters": "N", "tokens": "D", "loss": "smooth loss"},
        WITHOUT,
        notes=(
            (
                "farseer",
                "loss is the training loss in nats per token (smooth loss), not L, which is bits per character; "
                "N counts no embeddings (N_add_emb does); the column D/N is not D over N and is not used",
            ),
        ),
    ),
    Reader("pythia", frozenset({"model", "step", "loss"}), prepare=_pythia, models=frozenset(PYTHIA)),
)
