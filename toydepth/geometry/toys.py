"""Subjects from run folders: the teacher and the student of a depth run, and all those of a sweep. Uses JAX.

    from toydepth.geometry.toys import of_run, of_sweep

    teacher, student = of_run("outputs/alpha_quick/runs/tied-grow-d8-mse-s0-1a2b3c4d")
    for seen in student.batches():
        seen.states                 # [layers + 1, inputs, width]

They look at the inputs that the run was evaluated on, so that a student's mean loss here is the recorded one.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from .. import store
from ..config import ConfigError, flatten
from ..network import Network, entry, norm_rows, rows
from ..opened import DepthRun
from ..opened import open as open_run
from .seen import Kind, Orders, Seen, Subject

INPUTS = 8192  # that are looked at, unless it is said
CHANGED = 2048  # of them, on which the losses of other orders are measured
FLOATS = 1 << 22  # of a batch's states, and of what they are read out as


class Toy(Subject):
    """The teacher or the student of a depth run.

    Args:
        run: the run.
        kind: which of the two.
        name: what it is called.
        limit: on how many inputs it is looked at, at most.

    Attributes:
        depth: its number of layers L; those of a scheme of several stages count once.
        width: the dimension of a state.
        converged: of students, whether the run had converged; None where that is not known.
        grown: whether it is a student whose layers were split in two on the way.
        fields: the run's resolved fields, {dotted name: value}.
        id: the run's id.

    Raises:
        ConfigError: the run has no parameters, or the teacher is somebody's own, which has no layers that are known.
    """

    def __init__(self, run: DepthRun, kind: Kind, name: str, limit: int = INPUTS):
        function = run.student if kind == "student" else run.teacher
        if function.network is None:
            raise ConfigError(f"{run.folder}: the teacher is somebody's own; its layers are not known")
        self.name, self.id, self.fields = name, run.folder.name, flatten(run.config)
        self.kind = kind
        self._run, self._function, self._network = run, function, function.network
        params = function.params["layers"]
        self.depth, self.width = int(jax.tree.leaves(params)[0].shape[0]), run.config.teacher.width
        self.converged = run.result.get("converged") if kind == "student" else None
        student = run.config.student
        self.grown = kind == "student" and student.init == "grow" and student.depth > student.grow_from
        self._x = np.asarray(run.inputs).reshape(-1, self.width)[:limit]
        outputs = run.config.target.vocab if run.config.target.loss == "kl" else self.width
        self._rows = max(1, FLOATS // ((self.depth + 1) * max(self.width, outputs)))

    def batches(self) -> Iterator[Seen]:
        """Its states on the run's evaluation inputs.

        `early` is the loss of h_l behind the final norm (and the head) against the teacher's output: of a teacher, how
        far it is from where it will be. Inputs are no documents, so none of them is a first token.
        """
        for part in self._parts(len(self._x)):
            h = self._walked(self._entered(part))
            losses = self._losses(h, part)
            nobody = np.zeros(h.shape[1], bool)
            yield Seen(np.asarray(h), np.asarray(norm_rows(h[-1])), nobody, losses[-1], losses[:-1])

    def losses(self, orders: Orders) -> dict[str, float]:
        """Its mean loss with layers in other orders, on at most 2048 inputs; see `Subject`."""
        sums, count = dict.fromkeys(orders, 0.0), min(len(self._x), CHANGED)
        for part in self._parts(count):
            h = self._entered(part)
            for name, order in orders.items():
                last = self._at_once(h) if order is None else self._in_order(order, h)
                sums[name] += float(self._losses(last[None], part)[0].sum(dtype=np.float64))
        return {name: total / count for name, total in sums.items()}

    def targets(self) -> Iterator[Float[np.ndarray, "inputs width"]] | None:
        """Of a student, batch by batch, the teacher's last states before the final norm.

        None where a student's states need not become the teacher's: it learns a head of its own, or it has nothing to
        learn from but somebody's own outputs. None of a teacher.
        """
        target = self._run.config.target
        own_head = target.loss == "kl" and target.head == "learned"
        if self.kind != "student" or own_head or self._run.teacher.network is None:
            return None
        return (self._teacher_states[part] for part in self._parts(len(self._x)))

    # --- how its layers are applied -------------------------------------------------------------------------

    def _parts(self, count: int) -> Iterator[slice]:
        return (slice(i, min(i + self._rows, count)) for i in range(0, count, self._rows))

    def _entered(self, part: slice) -> Any:
        return _enter(jnp.asarray(self._x[part]))

    def _walked(self, h: Any) -> Any:
        return self._precisely(_walk, self._network, self._function.params["layers"], h)

    def _in_order(self, order: Sequence[int], h: Any) -> Any:
        if not order:
            return h
        return self._precisely(_reorder, self._network, self._function.params["layers"], np.array(order), h)

    def _at_once(self, h: Any) -> Any:
        return self._precisely(_at_once, self._network, self._function.params["layers"], h)

    def _precisely(self, walk: Callable[..., Any], *arguments: Any) -> Any:
        with jax.default_matmul_precision(self._run.config.runtime.precision):
            return walk(*arguments)

    # --- what it is compared with ---------------------------------------------------------------------------

    def _losses(self, h: Any, part: slice) -> Float[np.ndarray, "states inputs"]:
        said, wanted = self._function.read(h), self._wanted[part]
        return np.asarray(self._run.compare(said, jnp.broadcast_to(wanted, said.shape)))

    @functools.cached_property
    def _teacher_states(self) -> Float[np.ndarray, "inputs width"]:
        teacher = self._run.teacher
        walk = functools.partial(self._precisely, _walk, teacher.network, teacher.params["layers"])
        return np.concatenate([walk(self._entered(part))[-1] for part in self._parts(len(self._x))])

    @functools.cached_property
    def _wanted(self) -> Float[np.ndarray, "inputs outputs"]:
        teacher = self._run.teacher
        if teacher.network is None:
            return np.asarray(teacher(jnp.asarray(self._x)))
        return np.asarray(teacher.read(jnp.asarray(self._teacher_states)))


def of_run(folder: str | Path, limit: int = INPUTS) -> list[Toy]:
    """The teacher and the student of a run's folder; without a teacher that is somebody's own.

    Raises:
        ConfigError: it is no run's folder, its problem is not depth, or it has no parameters.
    """
    run = _opened(Path(folder))
    student = Toy(run, "student", run.folder.name, limit)
    return [*([_teacher(run, limit)] if run.teacher.network else []), student]


def of_sweep(folder: str | Path, limit: int = INPUTS) -> Iterator[Toy]:
    """The students of all done runs of a sweep's folder, each distinct teacher once before its first student.

    Raises:
        ConfigError: there are no runs, none is done, or one of them is of another problem.
    """
    table = store.collect(Path(folder))
    if table.is_empty():
        raise ConfigError(f"{folder}: no runs in it (a sweep's folder has them in runs/)")
    done = table.filter(table["status"] == "done")
    if done.is_empty():
        counts = ", ".join(f"{n} {status}" for status, n in table["status"].value_counts(sort=True).iter_rows())
        raise ConfigError(f"{folder}: none of its runs is done ({counts})")
    order = [name for name in ("teacher.kind", "teacher.seed", "seed", "student.depth") if name in done.columns]
    return _each(Path(folder), done.sort(order)["id"].to_list(), limit)


def skipped(folder: str | Path) -> list[str]:
    """What `of_sweep` passes over: how many runs are not done."""
    counts = store.collect(Path(folder))["status"].value_counts(sort=True).iter_rows()
    return [f"{n} {status} {'run' if n == 1 else 'runs'}" for status, n in counts if status != "done"]


def _each(folder: Path, ids: Sequence[str], limit: int) -> Iterator[Toy]:
    met: set[Any] = set()
    for name in ids:
        run = _opened(store.run_folder(folder, name))
        target = run.config.target
        teacher = (*dataclasses.astuple(run.config.teacher), target.loss, target.loss == "kl" and target.temperature)
        if teacher not in met and run.teacher.network is not None:
            met.add(teacher)
            yield _teacher(run, limit)
        yield Toy(run, "student", run.folder.name, limit)


def _opened(folder: Path) -> DepthRun:
    run = open_run(folder)
    if not isinstance(run, DepthRun):
        raise ConfigError(f"{folder}: its problem is {run.config.problem}; allowed is depth, whose states have layers")
    return run


def _teacher(run: DepthRun, limit: int) -> Toy:
    teacher = run.config.teacher
    told = {"blocks": f" of {teacher.block_size} layers", "mixed": f", rho {teacher.rho:g}"}.get(teacher.kind, "")
    seed = "" if run.config.target.loss == "mse" else f", T {run.config.target.temperature:g}"
    return Toy(run, "teacher", f"teacher {teacher.kind}{told}, depth {teacher.depth}, s{teacher.seed}{seed}", limit)


# Compiled once for all runs of a shape.


@jax.jit
def _enter(x: Float[Any, "inputs width"]) -> Any:
    return entry(x)


@functools.partial(jax.jit, static_argnums=0)
def _walk(network: Network, layers: Any, h: Any) -> Any:
    return network.states(layers, h)


@functools.partial(jax.jit, static_argnums=0)
def _reorder(network: Network, layers: Any, order: Any, h: Any) -> Any:
    chosen = jax.tree.map(lambda a: a[order], layers)
    return jax.lax.scan(lambda h, layer: (rows(network.layer)(layer, h), None), h, chosen)[0]


@functools.partial(jax.jit, static_argnums=0)
def _at_once(network: Network, layers: Any, h: Any) -> Any:
    moved = jax.lax.scan(lambda sum, layer: (sum + rows(network.layer)(layer, h) - h, None), jnp.zeros_like(h), layers)
    return h + moved[0]
