"""Writes what the engine reports into run folders, and draws the bar."""

from __future__ import annotations

import functools
import logging
import math
import platform
import subprocess
import sys
import threading
import time
import traceback
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

from . import checkpoint, files, store
from .config import has_twin
from .engine import Outcome, finite
from .ensemble import Member, Shape, parameters
from .exponents import CONVERGED_ABOVE, budget_slope
from .memory import WAITING_BYTES, tree_bytes
from .programs import fresh_state, state_of

Tree = Any
SCORES = ("loss", "loss_sem", "loss_first", "loss_second")  # of an evaluation
log = logging.getLogger(__name__)


class FolderRecorder:
    """The engine's recorder for a sweep's folder.

    One thread writes everything, in the order in which it came, while training goes on, unless too much waits to be
    written. What cannot be written fails the run that it belongs to, and no other.

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
        vars(self.bar)["_time"] = time.monotonic  # instead of the clock on the wall, which may jump
        self.bar.start_t = self.bar.last_print_t = time.monotonic()
        self._boards: dict[str, Any] = {}
        self._jobs = _Jobs(WAITING_BYTES)
        self._writer = threading.Thread(target=self._write, daemon=True)
        self._writer.start()

    # --- what the engine calls ---

    def evaluated(self, member: Member, row: dict[str, float | None]) -> None:
        run, twin = _split(member)
        folder, step = store.run_folder(self.folder, member.name), member.step
        self._jobs.put(run, lambda: store.append_history(folder, row))
        if member.config.runtime.tensorboard:
            self._jobs.put(run, lambda: self._scalars(member.name, row))
        if not twin:
            self._jobs.put(run, lambda: store.write_status(folder, "running", step))
            self.losses[run] = member.loss
            self._postfix(member)

    def checkpoint(self, member: Member, state: Tree) -> None:
        tree, step = _with_progress(member, state), member.step
        folder = store.run_folder(self.folder, member.name)
        self._jobs.put(_split(member)[0], lambda: _save_step(folder, step, tree), tree_bytes(tree))

    def finished(self, member: Member, outcome: Outcome, state: Tree) -> None:
        run, twin = _split(member)
        ended = self.ended.setdefault(run, {})
        ended["twin" if twin else "run"] = (member, outcome)
        if not twin or member.config.grows():
            self.checkpoint(member, state)
        if twin:
            result, path = self._result(member, outcome), store.run_folder(self.folder, member.name)
            if member.config.grows() and outcome.status == "done":
                self._jobs.put(run, lambda: _keep_params(path, member))
            self._jobs.put(run, lambda: files.write_json(path / "result.json", result))
        else:
            self.losses.pop(run, None)
        if "run" in ended and (half := self._half_loss(run, ended)) is not None:
            self._jobs.put(run, lambda: self._conclude(run, half))

    def progress(self, flops: float) -> None:
        self.bar.update(flops)

    def interrupted(self) -> bool:
        """Whether a signal came, or nothing more can be written for any run."""
        failed = sum(not run.startswith(store.STAGES) for run in self.failures)
        return self.stop.is_set() or failed == self.runs

    # --- what training calls ---

    def failed(self, run: str, error: Exception) -> None:
        """Records that a run could not be trained or written, unless it has ended; its checkpoint stays."""
        self._jobs.put(run, lambda: self._fail(run, error))

    def flush(self) -> None:
        """Waits until all that was reported so far is written."""
        written = threading.Event()
        self._jobs.put("", written.set)
        written.wait()

    def close(self) -> None:
        """Waits until everything is written."""
        self._jobs.put("", None)
        self._writer.join()
        if self.runs > 1:
            self.bar.set_postfix_str(f"{self.done}/{self.runs} runs done")
        for board in self._boards.values():
            board.close()
        self.bar.close()

    # --- inside ---

    def _write(self) -> None:
        for run, write in self._jobs:
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
        message, unsaid = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}", ""
        try:
            store.write_status(folder, "failed", 0, message)
            files.write_text(folder / "error.log", "".join(traceback.format_exception(error)))
        except OSError as second:
            unsaid = f" (nor could its status be written: {second.strerror})"
        log.error("%s failed: %s%s", run, message, unsaid)

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
            _keep_params(folder, member)
        files.write_json(folder / "result.json", result)
        store.write_status(folder, outcome.status, member.step, outcome.message)
        self.done += not run.startswith(store.STAGES)

    def _result(self, member: Member, outcome: Outcome) -> dict[str, Any]:
        problem = member.shape.problem
        return {
            "status": outcome.status,
            **{name: _finite(getattr(outcome, name)) for name in SCORES},
            "measures": finite(member.measured),
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


class _Jobs:
    """What waits to be written, in order. Whoever adds to it waits while that would make more than `limit` bytes."""

    def __init__(self, limit: float):
        self._limit, self._held = limit, 0
        self._waiting: deque[tuple[str, Callable[[], None] | None, int]] = deque()
        self._changed = threading.Condition()

    def put(self, run: str, write: Callable[[], None] | None, size: int = 1000) -> None:
        """Adds a run's job that holds `size` bytes; None ends the iteration."""
        with self._changed:
            self._changed.wait_for(lambda: not self._held or self._held + size <= self._limit)
            self._held += size
            self._waiting.append((run, write, size))
            self._changed.notify_all()

    def __iter__(self) -> Iterator[tuple[str, Callable[[], None]]]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                run, write, size = self._waiting.popleft()
            if write is None:
                return
            yield run, write
            del write  # and what it holds
            with self._changed:
                self._held -= size
                self._changed.notify_all()


def resume(sweep: Path, member: Member) -> None:
    """Sets a member to its latest sound checkpoint, and cuts its history there; to the start where there is none.

    Raises:
        OSError: its folder cannot be written to.
    """
    folder = store.run_folder(sweep, member.name)
    folder.mkdir(parents=True, exist_ok=True)
    files.remove_parts(folder)

    def fits(step: int, notes: Mapping[str, Any]) -> bool:
        now = store.history_digest(folder, step or -1)
        sound = notes.get("history", now) == now  # an earlier version noted nothing
        if not sound:
            files.pass_over(folder / "history.jsonl", f"damaged before step {step}; an earlier checkpoint is taken")
        return sound

    found = None
    if checkpoint.steps(folder / "checkpoint"):
        found = checkpoint.restore_latest(folder / "checkpoint", template(member.shape), fits)
    if found is not None:
        member.step, tree = found
        for name in PROGRESS:
            setattr(member, name, float(tree["progress"][name]))
        member.state = tree["state"]
    checkpoint.forget_after(folder / "checkpoint", -1 if found is None else member.step)
    store.cut_history(folder, member.step or -1)
    if not _split(member)[1]:
        store.write_status(folder, "running", member.step)


def grow(sweep: Path, member: Member) -> None:
    """Starts a member that has no state yet from the one it grows from, which has ended.

    The start is written as its first checkpoint, after which it needs its shallower one no more.

    Raises:
        checkpoint.CheckpointError: the run that it grows from diverged, or has no final state to read.
        OSError: its folder cannot be written to.
    """
    assert member.parent is not None
    params = _final_params(sweep, member.parent)
    state = state_of(member.shape, jax.tree.map(np.asarray, member.shape.problem.grown(params)))
    member.state = jax.device_get(state)
    _save_step(store.run_folder(sweep, member.name), 0, _with_progress(member, member.state))


def _final_params(sweep: Path, parent: Member) -> Tree:
    """What a member ended with: its parameters, or those of its last checkpoint where they are lost.

    It lies where it was trained, or among the runs if it has been asked for since.
    """
    whole = template(parent.shape)
    for name in dict.fromkeys((parent.name, parent.name.removeprefix(store.STAGES))):
        folder = store.run_folder(sweep, name)
        if store.result(folder).get("status") == "diverged":
            said = files.read_json(folder / "status.json").get("message", "diverged")
            raise checkpoint.CheckpointError(f"it grows from {parent.name}, which {said}")
        for path, wanted in (("params", whole["state"]["params"]), (f"checkpoint/{parent.steps}", whole)):
            if (folder / path).exists():
                try:
                    found = checkpoint.restore(folder / path, wanted)
                    return found if path == "params" else found["state"]["params"]
                except checkpoint.CheckpointError as error:
                    log.warning("passed over a broken checkpoint: %s", error)
    raise checkpoint.CheckpointError(f"it grows from {parent.name}, which has no final parameters to read")


def _save_step(folder: Path, step: int, tree: Tree) -> None:
    """Writes a checkpoint into a run's folder, with what tells whether the history before it stays what it is."""
    notes = {"history": store.history_digest(folder, step or -1)}
    checkpoint.save_step(folder / "checkpoint", step, tree, notes)


def _keep_params(folder: Path, member: Member) -> None:
    """Writes a finished member's parameters, those of its last checkpoint, into its folder."""
    tree = checkpoint.restore(folder / "checkpoint" / str(member.step), template(member.shape))
    checkpoint.save(folder / "params", tree["state"]["params"])
    if arrays := member.shape.problem.pictured(tree["state"]["params"]):
        files.write_arrays(folder / "arrays.npz", {name: np.asarray(array) for name, array in arrays.items()})


@functools.cache
def template(shape: Shape) -> Tree:
    """The structure, shapes and dtypes of a member's checkpoint."""
    progress = {name: np.zeros((), np.float32) for name in PROGRESS}
    state = jax.eval_shape(lambda: fresh_state(shape, jax.random.key(0), defaultdict(float)))
    return {"state": state, "progress": progress}


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
