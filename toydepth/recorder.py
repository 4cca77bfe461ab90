"""Writes what the engine reports into run folders, and draws the bar."""

from __future__ import annotations

import functools
import logging
import math
import platform
import queue
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from . import checkpoint, store
from .config import has_twin
from .engine import Outcome
from .ensemble import Member, Shape, parameters
from .exponents import CONVERGED_ABOVE, budget_slope
from .programs import fresh_state, state_of

Tree = Any
SCORES = ("loss", "loss_sem", "loss_first", "loss_second")  # of an evaluation
log = logging.getLogger(__name__)


class FolderRecorder:
    """The engine's recorder for a sweep's folder.

    One thread writes everything, in the order in which it came, while training goes on. What cannot be written
    fails the run that it belongs to, and no other.

    Args:
        folder: the sweep's folder.
        total_flops: the work of all members, for the bar.
        runs: how many runs are trained.
        label: what stands before the bar.
        devices: what trains.
    """

    def __init__(self, folder: Path, total_flops: float, runs: int, label: str, devices: Sequence[Any]):
        self.folder, self.runs, self.done = folder, runs, 0
        self.facts = _facts(devices)
        self.stop = threading.Event()
        self.failures: set[str] = set()
        self.ended: dict[str, dict[str, tuple[Member, Outcome]]] = {}
        self.losses: dict[str, float] = {}
        self.bar = tqdm(
            total=total_flops,
            desc=label,
            bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed} gone, {remaining} left{postfix}",
            mininterval=0.2 if sys.stderr.isatty() else 5.0,
            dynamic_ncols=True,
        )
        self._boards: dict[str, Any] = {}
        self._jobs: queue.SimpleQueue[tuple[str, Callable[[], None]] | None] = queue.SimpleQueue()
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    # --- what the engine calls ---

    def evaluated(self, member: Member, row: dict[str, float | None]) -> None:
        run, twin = _split(member)
        folder, step = store.run_folder(self.folder, member.name), member.step
        self._jobs.put((run, lambda: store.append_history(folder, row)))
        if member.config.runtime.tensorboard:
            self._jobs.put((run, lambda: self._scalars(member.name, row)))
        if not twin:
            self._jobs.put((run, lambda: store.write_status(folder, "running", step)))
            self.losses[run] = member.loss
            self._postfix(member)

    def checkpoint(self, member: Member, state: Tree) -> None:
        tree, step = _with_progress(member, state), member.step
        path = store.run_folder(self.folder, member.name) / "checkpoint"
        self._jobs.put((_split(member)[0], lambda: checkpoint.save_step(path, step, tree)))

    def finished(self, member: Member, outcome: Outcome, state: Tree) -> None:
        run, twin = _split(member)
        ended = self.ended.setdefault(run, {})
        ended["twin" if twin else "run"] = (member, outcome)
        if not twin or member.config.grows():
            self.checkpoint(member, state)
        if twin:
            result, path = self._result(member, outcome), store.run_folder(self.folder, member.name)
            self._jobs.put((run, lambda: store.write_json(path / "result.json", result)))
        else:
            self.losses.pop(run, None)
        if "run" in ended and (half := self._half_loss(run, ended)) is not None:
            self._jobs.put((run, lambda: self._conclude(run, half)))

    def progress(self, flops: float) -> None:
        self.bar.update(flops)

    def interrupted(self) -> bool:
        return self.stop.is_set()

    # --- what training calls ---

    def failed(self, run: str, error: Exception) -> None:
        """Records that a run could not be trained or written, unless it has ended; its checkpoint stays."""
        self._jobs.put((run, lambda: self._fail(run, error)))

    def flush(self) -> None:
        """Waits until all that was reported so far is written."""
        written = threading.Event()
        self._jobs.put(("", written.set))
        written.wait()

    def close(self) -> None:
        """Waits until everything is written."""
        self._jobs.put(None)
        self._writer.join()
        if self.runs > 1:
            self.bar.set_postfix_str(f"{self.done}/{self.runs} runs done")
        for board in self._boards.values():
            board.close()
        self.bar.close()

    # --- inside ---

    def _write(self) -> None:
        while job := self._jobs.get():
            run, write = job
            if run not in self.failures:
                try:
                    write()
                except Exception as error:
                    self._fail(run, error)

    def _scalars(self, name: str, row: Mapping[str, float | None]) -> None:
        """Adds a line of history to the TensorBoard file of a run or a twin."""
        if name not in self._boards:
            from tensorboardX import SummaryWriter

            folder = store.run_folder(self.folder, name) / "tensorboard"
            self._boards[name] = SummaryWriter(str(folder), purge_step=int(row["step"] or 0))
        for quantity, value in row.items():
            if quantity != "step" and value is not None:
                self._boards[name].add_scalar(quantity, value, row["step"])

    def _fail(self, run: str, error: Exception) -> None:
        self.failures.add(run)
        folder = store.run_folder(self.folder, run)
        if store.ended(folder):
            return
        message = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        log.error("%s failed: %s", run, message)
        try:
            store.write_status(folder, "failed", 0, message)
            store.write_text(folder / "error.log", "".join(traceback.format_exception(error)))
        except OSError as second:
            log.error("%s: and that could not be written: %s", run, second)

    def _half_loss(self, run: str, ended: dict[str, Any]) -> float | None:
        """The twin's loss; NaN if the run has no twin or it diverged; None while the twin is still on its way."""
        member = ended["run"][0] if "run" in ended else ended["twin"][0]
        if "twin" in ended:
            outcome = ended["twin"][1]
            return outcome.loss if outcome.status == "done" else math.nan
        if not has_twin(member.config):
            return math.nan
        earlier = store.result(store.run_folder(self.folder, run + store.TWIN))
        if not earlier:
            return None
        return earlier["loss"] if earlier["status"] == "done" else math.nan

    def _conclude(self, run: str, half_loss: float) -> None:
        """Writes what is left of a finished run: parameters, checkpoint, result, and last its status."""
        member, outcome = self.ended[run]["run"]
        folder = store.run_folder(self.folder, run)
        result = self._result(member, outcome)
        slope = math.nan
        if outcome.status == "done" and outcome.loss > 0 and half_loss > 0:
            slope = budget_slope(outcome.loss, half_loss)
        result |= {"half_loss": _finite(half_loss), "slope": _finite(slope)}
        result["converged"] = slope > CONVERGED_ABOVE if math.isfinite(slope) else None
        if outcome.status == "done":
            tree = checkpoint.restore(folder / "checkpoint" / str(member.step), template(member.shape))
            checkpoint.save(folder / "params", tree["state"]["params"])
        store.write_json(folder / "result.json", result)
        store.write_status(folder, outcome.status, member.step, outcome.message)
        self.done += 1

    def _result(self, member: Member, outcome: Outcome) -> dict[str, Any]:
        problem = member.shape.problem
        return {
            "status": outcome.status,
            **{name: _finite(getattr(outcome, name)) for name in SCORES},
            "steps": member.step,
            "parameters": parameters(problem),
            "flops": member.earlier_flops + problem.flops() * member.step,
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


def resume(sweep: Path, member: Member) -> None:
    """Sets a member to its latest checkpoint, and cuts its history there; to the start where there is none.

    The start of a grown run is written as its first checkpoint, after which it needs its shallower one no more.

    Raises:
        checkpoint.CheckpointError: the run that it grows from diverged, or has no final state to read.
    """
    folder, found = store.run_folder(sweep, member.name), None
    if checkpoint.steps(folder / "checkpoint"):
        found = checkpoint.restore_latest(folder / "checkpoint", template(member.shape))
    if found is not None:
        member.step, tree = found
        for name in PROGRESS:
            setattr(member, name, float(tree["progress"][name]))
        member.state = tree["state"]
    folder.mkdir(parents=True, exist_ok=True)
    store.cut_history(folder, member.step or -1)
    if found is None and member.parent is not None:
        parent = member.parent
        if store.result(store.run_folder(sweep, parent.name)).get("status") == "diverged":
            said = store.read_json(store.run_folder(sweep, parent.name) / "status.json").get("message", "diverged")
            raise checkpoint.CheckpointError(f"it grows from {parent.name}, which {said}")
        path = store.run_folder(sweep, parent.name) / "checkpoint" / str(parent.steps)
        params = checkpoint.restore(path, template(parent.shape))["state"]["params"]
        state = state_of(member.shape, jax.tree.map(np.asarray, member.shape.problem.grown(params)))
        member.state = jax.device_get(state)
        checkpoint.save_step(folder / "checkpoint", 0, _with_progress(member, member.state))


@functools.cache
def template(shape: Shape) -> Tree:
    """The structure, shapes and dtypes of a member's checkpoint."""
    progress = {name: np.zeros((), np.float32) for name in PROGRESS}
    return {"state": jax.eval_shape(lambda: fresh_state(shape, jax.random.key(0))), "progress": progress}


def _split(member: Member) -> tuple[str, bool]:
    """The id of a member's run, and whether the member is its twin."""
    return member.name.removesuffix(store.TWIN), member.name.endswith(store.TWIN)


PROGRESS = ("seconds", "first_loss", *SCORES)


def _with_progress(member: Member, state: Tree) -> Tree:
    return {"state": state, "progress": {name: np.asarray(getattr(member, name), np.float32) for name in PROGRESS}}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _facts(devices: Sequence[Any]) -> dict[str, Any]:
    """What a result must name so that it can be made again."""
    packages = ("toydepth", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy")
    return {
        "versions": {"python": platform.python_version()} | {name: version(name) for name in packages},
        "device": f"{len(devices)} x {devices[0].device_kind}, {platform.machine()}",
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
