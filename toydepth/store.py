"""Run folders: what lies where, written whole or not at all, and read into one tidy table. Imports no JAX.

What is damaged is passed over wherever it is read, with a line in the log that names the file.

outputs/<sweep>/            sweep.json  runs.parquet  exponents.csv  exponents.json  alpha.png
                        alpha_vs_*.png  report.html
    runs/<run id>/          config.json  history.jsonl  result.json  status.json  checkpoint/  params/  .hydra/
        source/             somebody's own block, teacher or problem as it was when the run was made
        twin/               history.jsonl  result.json  checkpoint/  params/ (if grown)    (the run at half the steps)
    stages/<run id>/        the same, of runs that nobody asked for but that grown ones start from
"""

from __future__ import annotations

import json
import os
import shutil
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from . import files, locks
from .config import ConfigError, RunConfig, flatten, matters, own_code, parse, recorded, replaced
from .extension import file_of

HISTORY = {"step": pl.Int64} | dict.fromkeys(
    ("loss", "loss_sem", "train_loss", "lr", "tau", "seconds", "loss_first", "loss_second"), pl.Float64
)
RESULT = {
    "loss": pl.Float64,
    "loss_sem": pl.Float64,
    "loss_first": pl.Float64,
    "loss_second": pl.Float64,
    "half_loss": pl.Float64,
    "steps": pl.Int64,
    "slope": pl.Float64,
    "converged": pl.Boolean,
    "parameters": pl.Int64,
    "flops": pl.Float64,
    "compile_seconds": pl.Float64,
    "seconds": pl.Float64,
}
NUMBERS = {int, float, type(None)}  # what stands in a line of a history
ADHOC = "adhoc"
ENDED = ("done", "diverged")  # what is not trained again
STATUS = (*ENDED, "running", "failed")
STAGES = "stages/"  # before a run's id: a run that only serves grown ones as a start
TWIN = "/twin"  # behind a run's id: the name of its twin


def sweep_folder(config: RunConfig) -> Path:
    """Where the runs of a config's sweep lie; those of a debug preset lie apart."""
    debug = config.runtime.debug
    return Path(config.sweep.root) / (f"debug_{debug}" if debug else config.sweep.name or ADHOC)


def run_folder(sweep: Path, name: str) -> Path:
    """The folder of a run or of a stage (`stages/<run id>`), or of its twin (`<run id>/twin`)."""
    return sweep / name if name.startswith(STAGES) else sweep / "runs" / name


def stage_name(sweep: Path, name: str, requested: Container[str]) -> str:
    """Under which name the run is found that a grown one starts from: a run of the sweep, or a stage beside them."""
    return name if name in requested or begun(run_folder(sweep, name)) else STAGES + name


def begun(folder: Path) -> bool:
    """Whether something of a run has been trained."""
    return (folder / "history.jsonl").exists() or (folder / "checkpoint").exists()


def promote(sweep: Path, name: str) -> None:
    """Makes a run of what has been trained as a stage, now that it is asked for and nobody is training it."""
    stage, run = run_folder(sweep, STAGES + name), run_folder(sweep, name)
    if not stage.exists() or begun(run):
        return
    with into(sweep), locks.turn(sweep):
        if name not in locks.holders(sweep) and stage.exists():
            shutil.rmtree(run, ignore_errors=True)  # asked for while the stage was in training: nothing but a config
            os.replace(stage, run)


def arrays(folder: Path) -> dict[str, np.ndarray]:
    """What a finished run keeps for figures; nothing if that is lost."""
    return files.read_arrays(folder / "arrays.npz")


def pictured(sweep: Path) -> Callable[[str], dict[str, np.ndarray]]:
    """A run's id -> what it keeps for figures (see `arrays`)."""
    return lambda run: arrays(run_folder(sweep, run))


def write_status(folder: Path, status: str, step: int, message: str = "") -> None:
    """Says how a run stands: done | running | failed | diverged."""
    files.write_json(folder / "status.json", {"status": status, "message": message, "step": step}, status != "running")


def status(folder: Path) -> str:
    """A run's status; empty where nothing has run."""
    return str(_standing(folder).get("status", ""))


def _standing(folder: Path) -> dict[str, Any]:
    """A run's status.json; empty if there is none or it is damaged."""
    path = folder / "status.json"
    found = files.read_json(path)
    if found and not (found.get("status") in STATUS and isinstance(found.get("message", ""), str)):
        files.pass_over(path, "damaged")
        return {}
    return found


def result(folder: Path) -> dict[str, Any]:
    """What a run or a twin came to; empty if it has not ended, or what is there is no result."""
    path = folder / "result.json"
    found = files.read_json(path)
    status, loss = found.get("status", "done"), found.get("loss")
    kinds = {name: (bool,) if dtype == pl.Boolean else (int, float) for name, dtype in RESULT.items()}
    numbers = all(found.get(name) is None or type(found[name]) in kinds[name] for name in RESULT)
    if found and not (numbers and status in ENDED and (status == "diverged" or loss is not None)):
        files.pass_over(path, "damaged")
        return {}
    return found


def ended(folder: Path) -> bool:
    """Whether a run has its result and is not to be trained again."""
    return bool(result(folder)) and status(folder) in ENDED


def settled(folder: Path) -> bool:
    """Whether a run has its result; its status then says so, even if a kill or damage came in between."""
    found = result(folder)
    if found and status(folder) not in ENDED:
        files.remove_parts(folder)
        stands, step = found.get("status", "done"), found.get("steps", 0)
        write_status(folder, stands, step, "" if stands == "done" else f"diverged by step {step}")
    return bool(found)


def append_history(folder: Path, row: Mapping[str, float | None]) -> None:
    """Adds a line to a run's history."""
    with (folder / "history.jsonl").open("a") as file:
        file.write(_text([row]))


def cut_history(folder: Path, step: int) -> None:
    """Removes the history after a step, and whatever in it is damaged."""
    path = folder / "history.jsonl"
    if path.exists():
        files.write_text(path, _text(row for row in _rows(path) if row["step"] <= step))


def history_digest(folder: Path, step: int) -> int:
    """A number that tells whether the history up to a step is what it was."""
    path = folder / "history.jsonl"
    return zlib.crc32(_text(row for row in _rows(path) if row["step"] <= step).encode()) if path.exists() else 0


def history(folder: Path) -> pl.DataFrame:
    """A run's history: one row per evaluation, with the columns of `HISTORY` and what its problem measured."""
    path = folder / "history.jsonl"
    rows = list(_rows(path)) if path.exists() else []
    measured = dict.fromkeys((name for row in rows for name in row if name not in HISTORY), pl.Float64)
    return pl.DataFrame(rows, schema=HISTORY | measured)


def check_sweep(folder: Path, configs: Sequence[RunConfig]) -> dict[str, list[Any]]:
    """The values of every field in a sweep's folder once these configs have joined it.

    Raises:
        ConfigError: a field that the sweep does not sweep has changed, or a file is in the way.
    """
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise ConfigError(f"sweep.root, sweep.name: {path} is a file; a folder for the runs is needed there")
    now = _values(map(matters, configs))
    mixes = configs[0].runtime.debug or configs[0].sweep.name in (None, ADHOC)
    return now if mixes else _joined(folder, files.read_json(folder / "sweep.json"), now)


def open_sweep(folder: Path, configs: Sequence[RunConfig], command: str) -> None:
    """Makes a sweep's folder, or checks that the configs belong into the one there is, and notes the command.

    Raises:
        ConfigError: as `check_sweep`, or the folder cannot be written to; nothing has been written.
    """
    check_sweep(folder, configs)  # before anything is made
    with into(folder):
        (folder / "runs").mkdir(parents=True, exist_ok=True)
        with locks.turn(folder):
            values = check_sweep(folder, configs)
            swept = {name: found for name, found in values.items() if len(found) > 1}
            fixed = {name: found[0] for name, found in values.items() if len(found) == 1}
            earlier = files.read_json(folder / "sweep.json").get("commands")
            commands = [*earlier, command] if isinstance(earlier, list) else [command]
            record = {"command": command, "commands": commands, "size": configs[0].size, "fit": configs[0].sweep.fit}
            record |= {"fixed": fixed, "swept": swept}
            files.write_json(folder / "sweep.json", record)


@contextmanager
def into(folder: Path) -> Iterator[None]:
    """Turns what the file system refuses into a line about `sweep.root`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"sweep.root: cannot write to {folder}: {error.strerror}") from error


def _joined(folder: Path, record: Mapping[str, Any], now: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The values of all fields, of the runs already in a sweep's folder and the new ones."""
    fixed, swept = record.get("fixed"), record.get("swept")
    if isinstance(fixed, dict) and isinstance(swept, dict):
        before = {name: [value] for name, value in fixed.items()} | swept
    else:  # lost or broken: the runs themselves say what they are
        before = _values(filter(None, map(fields, (folder / "runs").glob("*"))))
    for name, values in now.items():
        if name == "runtime.source":  # somebody's own code may be worked on; its runs are told apart
            now[name] = [*before.get(name, []), *(value for value in values if value not in before.get(name, []))]
            continue
        old = before.get(name, values)
        used = [value for value in old if value is not None]  # null: not used by the other choices
        if len(used) == 1 and used[0] not in values and any(value is not None for value in values):
            raise ConfigError(
                f"{name}={values[0]}: the sweep in {folder} has {name}={used[0]} and does not sweep it; "
                f"keep that value, or start a sweep of another name with sweep.name="
            )
        now[name] = old + [value for value in values if value not in old]
    return now


def config(run: Path) -> RunConfig | None:
    """A run's config; None if it has none, one of another version, or one of somebody's own problem that is gone."""
    tree = _tree(run)
    named, copy = str(tree.get("problem", "")), _copy(run, "problem")
    try:
        found = parse(tree | {"problem": str(copy)} if copy.is_file() else tree) if tree else None
    except ConfigError:
        return None
    return replaced(found, {"problem": named}) if found else None


def with_kept_code(run: Path, config: RunConfig) -> RunConfig:
    """A run's config, with references to somebody's own code leading to what the run has kept of it."""
    kept = {}
    for field, reference in own_code(config).items():
        if (copy := _copy(run, field)).is_file():
            _, colon, name = reference.rpartition(":") if ":" in reference else ("", "", "")
            kept[field] = f"{copy}{colon}{name}"
    return replaced(config, kept)


def _copy(run: Path, field: str) -> Path:
    """Where a run keeps the file that a field names."""
    return run / "source" / f"{field}.py"


def fields(run: Path) -> dict[str, Any]:
    """{dotted name: value} of a run's fields that matter; empty if it has none, or those of another version."""
    try:
        tree = _tree(run)
        return recorded(tree) if tree else {}
    except ConfigError:
        return {}


def _tree(run: Path) -> dict[str, Any]:
    """A run's config as it was written; empty if it has none or it is damaged."""
    tree = files.read_json(run / "config.json")
    return tree if isinstance(tree.get("problem", ""), str) else {}


def _values(runs: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """{dotted name: its distinct values} over runs, each given by its fields that matter."""
    values: dict[str, list[Any]] = {}
    for run in runs:
        for name, value in run.items():
            seen = values.setdefault(name, [])
            if value not in seen:
                seen.append(value)
    return values


def write_config(folder: Path, config: RunConfig) -> None:
    """Makes a run's folder with its resolved config, and a copy of somebody's own code if it uses some."""
    tree: dict[str, Any] = {}
    for name, value in flatten(config).items():
        *sections, field = name.split(".")
        at = tree
        for section in sections:
            at = at.setdefault(section, {})
        at[field] = value
    with into(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if files.read_json(folder / "config.json") != tree:
            files.write_json(folder / "config.json", tree)
        for field, reference in own_code(config).items():
            copy = _copy(folder, field)
            copy.parent.mkdir(exist_ok=True)
            copy.write_bytes(file_of(field, reference).read_bytes())


def collect(folder: Path) -> pl.DataFrame:
    """One row per run of a sweep's folder: `id`, `status`, `message`, `commit`, its fields under dotted names, its
    result.

    Fields that a run does not use are null. A run whose config is damaged or of another version is left out.
    """
    rows = [row for row in map(_row, _runs(folder)) if row]
    if not rows:
        return pl.DataFrame()
    frame = pl.DataFrame(rows, infer_schema_length=None)
    kinds = RESULT | {"commit": pl.String}
    return frame.with_columns(pl.col(name).cast(dtype, strict=False) for name, dtype in kinds.items())


def provenance(folder: Path, runs: pl.DataFrame) -> str:
    """The command that made a sweep, and the commits of the finished ones of its runs, a table of `collect`."""
    commits = sorted(runs["commit"].drop_nulls().unique()) if runs.height else []
    command = str(files.read_json(folder / "sweep.json").get("command", ""))
    return command + (f"   (commit {', '.join(commits)})" if commits else "")


def histories(folder: Path) -> Mapping[str, pl.DataFrame]:
    """{run id: history} of a sweep's folder, each read when it is first asked for."""
    return _Histories(folder)


class _Histories(Mapping[str, pl.DataFrame]):
    def __init__(self, folder: Path):
        self._runs = {path.name: path for path in _runs(folder)}
        self._read: dict[str, pl.DataFrame] = {}

    def __getitem__(self, run: str) -> pl.DataFrame:
        if run not in self._read:
            self._read[run] = history(self._runs[run])
        return self._read[run]

    def __contains__(self, run: object) -> bool:
        return run in self._runs

    def __iter__(self) -> Iterator[str]:
        return iter(self._runs)

    def __len__(self) -> int:
        return len(self._runs)


def _runs(folder: Path) -> list[Path]:
    """The folders of a sweep's runs, in the order of names."""
    try:
        with os.scandir(folder / "runs") as found:  # which knows what is a folder without asking the disk again
            names = sorted(entry.name for entry in found if entry.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / "runs" / name for name in names]


def _row(run: Path) -> dict[str, Any]:
    """A run's row of the table; empty if it does not say what it is."""
    stands, found, known = _standing(run), result(run), fields(run)
    if not known:
        if (run / "config.json").exists():
            files.pass_over(run / "config.json", "damaged, or of another version")
        return {}
    status = found.get("status", "done") if found else stands.get("status", "running")
    row = {"id": run.name, "status": "running" if status == "done" and not found else status}
    row |= {"message": stands.get("message", ""), "commit": _commit(found)} | known
    row |= {name: found.get(name) for name in RESULT}
    measures = found.get("measures")
    return row | (dict.fromkeys(measures, None) | _numbers(measures) if isinstance(measures, dict) else {})


def _commit(found: Mapping[str, Any]) -> str | None:
    """The commit that a result is of, where that is known."""
    return str(found["commit"]) if found.get("commit") else None


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those values that are numbers."""
    return {name: float(value) for name, value in values.items() if type(value) in (int, float)}


def _rows(path: Path) -> Iterable[dict[str, Any]]:
    """The sound lines of a history."""
    lines = path.read_text(errors="replace").splitlines()
    last = -1
    for row in _objects(lines):
        if not isinstance(row, dict) or not _sound(row) or row["step"] <= last:
            files.pass_over(path, "some of its lines are damaged")
            continue
        last = row["step"]
        yield row


def _objects(lines: Sequence[str]) -> Iterable[Any]:
    """What each line says in JSON, None where it says nothing."""
    try:
        together = json.loads(f"[{','.join(lines)}]")  # thousands of histories are read, and calls are what it costs
    except (ValueError, RecursionError):
        together = []
    return together if len(together) == len(lines) else map(_object, lines)


def _object(line: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _sound(row: Mapping[str, Any]) -> bool:
    """Whether this is a line of a history."""
    values = row.values()
    plain = NUMBERS.issuperset(map(type, values)) and type(row.get("step")) is int
    return plain and all(abs(value) < 2**63 for value in values if type(value) is int)


def _text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Rows as lines of a history."""
    return "".join(json.dumps(row) + "\n" for row in rows)
