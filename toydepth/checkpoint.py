"""Trees of arrays on disk, through Orbax: written whole, read back as NumPy with shapes and dtypes checked."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp

Tree = Any
log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that is missing, broken, or of another shape than asked for."""


def save(path: Path, tree: Tree) -> None:
    """Writes a tree of arrays; the folder appears under its name only when complete."""
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(_named(tree)), force=True)


def restore(path: Path, template: Tree) -> Tree:
    """Reads a tree with the structure, shapes and dtypes of `template`; its leaves are NumPy arrays.

    Raises:
        CheckpointError: it cannot be read, or a leaf is missing or differs in shape or dtype.
    """
    names = _named(template)
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


def save_step(folder: Path, step: int, tree: Tree) -> None:
    """Writes the checkpoint of a step, then removes those of earlier steps."""
    save(folder / str(step), tree)
    for old in steps(folder):
        if old != step:
            shutil.rmtree(folder / str(old), ignore_errors=True)


def restore_latest(folder: Path, template: Tree) -> tuple[int, Tree] | None:
    """The latest readable (step, tree); None where there is none. Broken ones are passed over."""
    for step in reversed(steps(folder)):
        try:
            return step, restore(folder / str(step), template)
        except CheckpointError as error:
            log.warning("passed over a broken checkpoint: %s", error)
    return None


def steps(folder: Path) -> list[int]:
    """The steps that have a complete checkpoint."""
    return sorted(int(path.name) for path in folder.glob("*") if path.name.isdigit()) if folder.is_dir() else []


def _named(tree: Tree) -> dict[str, Any]:
    """{path: leaf}: a flat dict outlives changes of the classes that make up an optimizer's state."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}
