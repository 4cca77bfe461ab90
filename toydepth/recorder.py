"""Writes what the engine reports into run folders, and draws the bar."""

from __future__ import annotations

import math
import platform
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from . import checkpoint, store
from .config import has_twin
from .engine import Outcome
from .ensemble import Member, parameters
from .programs import fresh_state

Tree = Any
CONVERGED = -0.1  # log2(loss at N steps / loss at N/2), above which a run has converged


class FolderRecorder:
    """The engine's recorder for a sweep's folder.

    Checkpoints and results are written by one thread in the order in which they came, while training goes on.

    Args:
        folder: the sweep's folder.
        total_flops: the work of all members, for the bar.
        runs: how many runs are trained.
        label: what stands before the bar.
    """

    def __init__(self, folder: Path, total_flops: float, runs: int, label: str):
        self.folder, self.runs, self.done = folder, runs, 0
        self.facts = _facts()
        self.stop = threading.Event()
        self.ended: dict[str, dict[str, tuple[Member, Outcome, Tree]]] = {}
        self.losses: dict[str, float] = {}
        self.bar = tqdm(
            total=total_flops,
            desc=label,
            bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left{postfix}",
            mininterval=0.2 if sys.stderr.isatty() else 5.0,
            dynamic_ncols=True,
        )
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    # --- what the engine calls ---

    def evaluated(self, member: Member, row: dict[str, float | None]) -> None:
        folder = self._folder(member)
        store.append_history(folder, row)
        if not member.name.endswith(store.TWIN):
            store.write_status(folder, "running", member.step)
            self.losses[member.name] = member.loss
            self._postfix(member)

    def checkpoint(self, member: Member, state: Tree) -> None:
        self._raise()
        tree, path, step = _with_progress(member, state), self._folder(member) / "checkpoint", member.step
        self._jobs.put(lambda: checkpoint.save_step(path, step, tree))

    def finished(self, member: Member, outcome: Outcome, state: Tree) -> None:
        self._raise()
        run, twin = member.name.removesuffix(store.TWIN), member.name.endswith(store.TWIN)
        ended = self.ended.setdefault(run, {})
        ended["twin" if twin else "run"] = (member, outcome, state)
        if twin:
            result = self._result(member, outcome)
            path = self._folder(member)
            self._jobs.put(lambda: store.write_json(path / "result.json", result))
        half = self._half_loss(run, ended)
        if "run" in ended and half is not None:
            self._jobs.put(lambda: self._conclude(run, half))

    def progress(self, flops: float) -> None:
        self.bar.update(flops)

    def interrupted(self) -> bool:
        return self.stop.is_set()

    # --- what the sweep calls ---

    def failed(self, member: Member, message: str) -> None:
        """Records that a member could not be trained; whatever it has on disk stays."""
        folder = store.run_folder(self.folder, member.name.removesuffix(store.TWIN))
        store.write_status(folder, "failed", member.step, message)

    def close(self) -> None:
        """Waits until everything is written; raises what went wrong in writing."""
        self._jobs.put(None)
        self._writer.join()
        self.bar.close()
        self._raise()

    # --- inside ---

    def _write(self) -> None:
        while job := self._jobs.get():
            try:
                job()
            except BaseException as error:  # handed to the training thread, which raises it
                self._error = error

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _folder(self, member: Member) -> Path:
        folder = store.run_folder(self.folder, member.name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _half_loss(self, run: str, ended: dict[str, Any]) -> float | None:
        """The twin's loss; NaN if the run has no twin or it diverged; None while the twin is still on its way."""
        member = ended["run"][0] if "run" in ended else ended["twin"][0]
        if "twin" in ended:
            outcome = ended["twin"][1]
            return outcome.loss if outcome.status == "done" else math.nan
        if not has_twin(member.config):
            return math.nan
        earlier = store.read_json(store.run_folder(self.folder, run + store.TWIN) / "result.json")
        if not earlier:
            return None
        return earlier["loss"] if earlier["status"] == "done" else math.nan

    def _conclude(self, run: str, half_loss: float) -> None:
        """Writes what is left of a finished run: parameters, checkpoint, result, and last its status."""
        member, outcome, state = self.ended[run].pop("run")
        folder = self._folder(member)
        result = self._result(member, outcome)
        slope = math.nan
        if outcome.status == "done" and outcome.loss > 0 and half_loss > 0:
            slope = math.log2(outcome.loss / half_loss)
        found = {"half_loss": half_loss, "slope": slope}
        result |= {name: value if math.isfinite(value) else None for name, value in found.items()}
        result["converged"] = bool(slope > CONVERGED) if math.isfinite(slope) else None
        if outcome.status == "done":
            checkpoint.save_step(folder / "checkpoint", member.step, _with_progress(member, state))
            checkpoint.save(folder / "params", state["params"])
            written = checkpoint.restore(folder / "params", state["params"])
            if not all(np.array_equal(*pair) for pair in zip(*map(jax.tree.leaves, (written, state["params"])))):  # noqa: B905
                raise checkpoint.CheckpointError(f"{folder / 'params'}: what was written does not read back")
        store.write_json(folder / "result.json", result)
        store.write_status(folder, outcome.status, member.step, outcome.message)
        self.done += 1
        self.losses.pop(run, None)
        self._postfix(member)

    def _result(self, member: Member, outcome: Outcome) -> dict[str, Any]:
        problem = member.shape.problem
        return {
            "status": outcome.status,
            "loss": outcome.loss if math.isfinite(outcome.loss) else None,
            "loss_sem": outcome.loss_sem if math.isfinite(outcome.loss_sem) else None,
            "steps": member.step,
            "parameters": parameters(problem),
            "flops": problem.flops() * member.step,
            "compile_seconds": outcome.compile_seconds,
            "seconds": member.seconds,
            "batching": member.config.runtime.batching,
            **self.facts,
        }

    def _postfix(self, member: Member) -> None:
        if self.runs == 1:
            text = f"step {member.step}/{member.steps}, loss {member.loss:.3g}"
        else:
            spread = (
                f", losses {min(self.losses.values()):.2g} to {max(self.losses.values()):.2g}" if self.losses else ""
            )
            text = f"{self.done}/{self.runs} runs done{spread}"
        self.bar.set_postfix_str(text, refresh=False)


def resume(folder: Path, member: Member) -> None:
    """Sets a member to its latest checkpoint, and cuts its history there; to the start where there is none."""
    template = _with_progress(member, jax.eval_shape(lambda: fresh_state(member.shape, jax.random.key(0))))
    found = checkpoint.restore_latest(folder / "checkpoint", template)
    if found is None:
        store.cut_history(folder, -1)
        return
    member.step, tree = found
    for name in PROGRESS:
        setattr(member, name, float(tree["progress"][name]))
    member.state = tree["state"]
    store.cut_history(folder, member.step)


PROGRESS = ("seconds", "first_loss", "loss", "loss_sem")


def _with_progress(member: Member, state: Tree) -> Tree:
    return {"state": state, "progress": {name: np.asarray(getattr(member, name), np.float32) for name in PROGRESS}}


def _facts() -> dict[str, Any]:
    """What a result must name so that it can be made again."""
    packages = ("toydepth", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    device = jax.local_devices()[0]
    return {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "device": f"{len(jax.local_devices())} x {device.device_kind}, {platform.machine()}",
        "commit": commit(),
    }


def commit() -> str | None:
    """The source's commit, with `+` behind it if files have changed since; None outside a checkout."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", here, *words], capture_output=True, text=True, check=True).stdout.strip()

    try:
        tracked = git("ls-files", "--error-unmatch", Path(__file__).name)
        return (
            git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
            if tracked
            else None
        )
    except (OSError, subprocess.CalledProcessError):
        return None
