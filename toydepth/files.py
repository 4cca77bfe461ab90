"""Small files, written whole or not at all, and read without trust: what is damaged is passed over with a line."""

from __future__ import annotations

import json
import logging
import math
import os
import secrets
import shutil
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

PART = ".part-"  # in the name of what is still being written; it begins with a dot
log = logging.getLogger(__name__)
_passed_over: set[Path] = set()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty if there is none or it is damaged."""
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, ValueError, RecursionError) as error:
        pass_over(path, str(error).partition("\n")[0] if isinstance(error, OSError) else "damaged")
        return {}
    if not isinstance(found, dict):
        pass_over(path, "damaged")
        return {}
    return found


def pass_over(path: Path, why: str) -> None:
    """Says that a file is damaged; once for each."""
    if path not in _passed_over:
        _passed_over.add(path)
        log.warning("passed over %s: %s", path, why)


def write_json(path: Path, value: Mapping[str, Any], durable: bool = True) -> None:
    """Writes an object whole or not at all."""
    write_text(path, json.dumps(value, indent=1) + "\n", durable)


def for_json(value: Any) -> Any:
    """A value as JSON has it; numbers that are not finite become null."""
    if isinstance(value, Mapping):
        return {str(key): for_json(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return for_json(value.tolist())
    if isinstance(value, list | tuple):
        return [for_json(one) for one in value]
    if isinstance(value, np.generic):
        return for_json(value.item())
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Writes a file whole or not at all: beside its place, flushed to disk if `durable`, then moved there."""
    _write_whole(path, lambda file: file.write(text.encode()), durable)


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes named arrays (npz), as `write_text` does."""
    _write_whole(path, lambda file: np.savez(file, **arrays), True)  # type: ignore[arg-type]


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The named arrays of an npz file; none if there is no such file or it is damaged."""
    try:
        with np.load(path) as found:
            return dict(found)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, zipfile.BadZipFile):
        pass_over(path, "damaged")
        return {}


def _write_whole(path: Path, write: Callable[[IO[bytes]], Any], durable: bool) -> None:
    part = part_of(path)
    try:
        with part.open("wb") as file:
            write(file)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def part_of(path: Path) -> Path:
    """A name beside a path for what will take its place when complete."""
    return path.with_name(f".{path.name}{PART}{secrets.token_hex(4)}")


def remove_parts(folder: Path) -> None:
    """Removes what a kill left half written in a run's folder, which nobody else may be training."""
    for part in (*folder.glob(f".*{PART}*"), *folder.glob(f"checkpoint/.*{PART}*")):
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
