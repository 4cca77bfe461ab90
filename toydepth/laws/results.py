"""What a `law` command leaves in its folder: the object of `--json`, and tables for whoever plots or goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from ..derive import writable
from ..files import write_json
from .comparison import Compared
from .studies import Study, as_json


def write(found: Study, out: Path) -> None:
    """Writes law.json, rows.csv (with predictions), profiles.csv, scan.csv, compared.csv and bootstrap.parquet."""
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        _rows(found).write_csv(out / "rows.csv")
        profiles = found.profiles()
        if profiles:
            parts = [
                pl.DataFrame({"parameter": name, "value": x, "delta_chi2": d}) for name, (x, d) in profiles.items()
            ]
            pl.concat(parts).write_csv(out / "profiles.csv")
        scan = found.scan()
        if scan:
            rows = [
                {"dropped": count, "n": fit.n, **fit.values, "mse_log": fit.mse_log, "bic": fit.bic}
                for count, fit in scan.items()
            ]
            pl.DataFrame(rows).write_csv(out / "scan.csv")
        pl.DataFrame(found.draws).write_parquet(out / "bootstrap.parquet")
        correlation = pl.DataFrame(found.fit.correlation, schema=list(found.fit.law.parameters))
        correlation.insert_column(0, pl.Series("parameter", found.fit.law.parameters)).write_csv(
            out / "correlation.csv"
        )
        write_json(out / "law.json", as_json(found))
    write_compared(found.compared, out)


def write_compared(compared: Sequence[Compared], out: Path) -> None:
    """Writes compared.csv: a row for each law, criteria and held-out errors."""
    rows = [
        {
            "law": other.name,
            "n": other.fit.n,
            "k": other.fit.k,
            "mse_log": other.fit.mse_log,
            "relative_error": other.fit.relative_error,
            "aic": other.fit.aic,
            "bic": other.fit.bic,
            **{f"held_out_{name}": value for name, value in asdict(other.held_out).items()},
        }
        for other in compared
    ]
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        pl.DataFrame(rows, infer_schema_length=None).write_csv(out / "compared.csv")


def write_object(told: Mapping[str, Any], out: Path, name: str) -> None:
    """Writes one JSON object into a folder."""
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / name, told)


def _rows(found: Study) -> pl.DataFrame:
    law = found.fit.law
    sizes = found.table.sizes(law)
    columns = {**sizes, "loss": found.table.loss, "predicted": found.fit.predict(sizes)}
    return pl.DataFrame({**columns, "log_residual": np.asarray(found.fit.residuals)})
