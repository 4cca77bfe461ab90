"""Trees of arrays on disk, through Orbax: written whole, read back as NumPy; bytes, shapes and dtypes are checked."""

from __future__ import annotations

import json
import logging
import os
import shutil
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

from . import files

Tree = Any
SEAL = "seal.json"  # in a checkpoint's folder: the CRC-32 of every file (Orbax notices lost bytes, not changed ones)
OVERHEAD = 100_000  # bytes that a checkpoint takes beyond its arrays, in whole blocks
log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that is missing, broken, or of another shape than asked for."""


def save(path: Path, tree: Tree) -> None:
    """Writes a tree of arrays; the folder appears under its name only when complete."""
    _save(path, tree, {})


def _save(path: Path, tree: Tree, notes: Mapping[str, Any]) -> None:
    part = files.part_of(path)
    try:
        _make_room(part, sum(np.asarray(leaf).nbytes for leaf in jax.tree.leaves(tree)) + OVERHEAD)
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(part.absolute(), args=ocp.args.PyTreeSave(_named(tree)))
        digests = {str(file.relative_to(part)): _digest(file) for file in sorted(part.rglob("*")) if file.is_file()}
        files.write_json(part / SEAL, {"crc32": digests, "notes": notes})
        shutil.rmtree(path, ignore_errors=True)
        os.replace(part, path)
    finally:
        for rest in path.parent.glob(f"{part.name}*"):  # Orbax writes beside it first
            shutil.rmtree(rest, ignore_errors=True)


def _make_room(path: Path, size: int) -> None:
    """Raises `OSError` where that many bytes cannot be written: Orbax says the same at length, in several threads."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("wb") as file:
            file.write(bytes(size))
    finally:
        path.unlink(missing_ok=True)


def restore(path: Path, template: Tree) -> Tree:
    """Reads a tree with the structure, shapes and dtypes of `template`; its leaves are NumPy arrays.

    Raises:
        CheckpointError: it cannot be read, its files have changed, or a leaf is missing or differs in shape or dtype.
    """
    names = _named(template)
    for name, digest in _seal(path, "crc32").items():
        if not (path / name).is_file() or _digest(path / name) != digest:
            raise CheckpointError(f"{path}: {name} is damaged")
    try:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            wanted = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), names)
            arguments = ocp.args.PyTreeRestore(item=names, restore_args=wanted)
            found = checkpointer.restore(path.absolute(), args=arguments)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise CheckpointError(f"{path}: {reason[:200]}") from error
    for name, leaf in names.items():
        if found[name].shape != leaf.shape or found[name].dtype != leaf.dtype:
            raise CheckpointError(
                f"{path}: {name} is {found[name].dtype}{list(found[name].shape)}, not {leaf.dtype}{list(leaf.shape)}"
            )
    return jax.tree.unflatten(jax.tree.structure(template), [found[name] for name in names])


def save_step(folder: Path, step: int, tree: Tree, notes: Mapping[str, Any] | None = None) -> None:
    """Writes the checkpoint of a step with notes, and keeps one earlier one beside it, in case it gets damaged."""
    _save(folder / str(step), tree, notes or {})
    earlier = [old for old in steps(folder) if old < step]
    for old in steps(folder):
        if old not in (step, *earlier[-1:]):
            shutil.rmtree(folder / str(old), ignore_errors=True)


def restore_latest(
    folder: Path, template: Tree, fits: Callable[[int, Mapping[str, Any]], bool] = lambda step, notes: True
) -> tuple[int, Tree] | None:
    """The latest readable (step, tree) whose step and notes fit; None where there is none."""
    for step in reversed(steps(folder)):
        try:
            tree = restore(folder / str(step), template)
        except CheckpointError as error:
            log.warning("passed over a broken checkpoint: %s", error)
            continue
        if fits(step, _seal(folder / str(step), "notes")):
            return step, tree
    return None


def forget_after(folder: Path, step: int) -> None:
    """Removes the checkpoints of later steps, which have been passed over."""
    for later in steps(folder):
        if later > step:
            shutil.rmtree(folder / str(later), ignore_errors=True)


def steps(folder: Path) -> list[int]:
    """The steps that have a complete checkpoint."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdecimal()) if folder.is_dir() else []


def _seal(path: Path, part: str) -> dict[str, Any]:
    """What a checkpoint's seal says of its files or in its notes; nothing in one of an earlier version.

    Raises:
        CheckpointError: the seal is damaged.
    """
    try:
        return dict(json.loads((path / SEAL).read_bytes())[part])
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError) as error:
        raise CheckpointError(f"{path}: {SEAL} is damaged") from error


def _digest(file: Path) -> int:
    return zlib.crc32(file.read_bytes())


def _named(tree: Tree) -> dict[str, Any]:
    """{path: leaf}: a flat dict outlives changes of the classes that make up an optimizer's state."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
