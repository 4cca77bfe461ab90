"""The compiled programs of a family: one that stages batches, and for each ensemble one that trains, one that scores.

The teacher program draws the batches of the next steps, every (stream, step) once, spread over all devices. The
student programs take the staged batches and train their lanes on them. Lanes lie on the devices along the leading
axis and are looped (`map`) or batched (`vmap`) there. A chunk's length, a lane's step and every hyperparameter are
traced, so each program is compiled once; and since teacher and student never share a program, a run's bits do not
depend on its company.
"""

from __future__ import annotations

import functools
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from .devices import usable_cores
from .ensemble import Family, Mode, Shape
from .optimizer import factor
from .problems import Problem, Seen, losses
from .staging import batch_of, gathering, rows_of, staging

Tree = Any

traces: Counter[str] = Counter()  # how often each kind of program has been traced in this process


class Programs:
    """A family's compiled programs, for its fixed numbers of slots, steps and lanes.

    Attributes:
        init: source -> what is fixed behind a stream's batches.
        fresh: for each shape, (key, hyper) -> a member's state at step 0.
        rows: steps for which each device has room in staged batches, for training and for evaluation.
        staged: the shapes of staged batches.
        stage: for each device, (fixed[K], keys[K, 2], first[K], count[K], period[K], training[K], offsets) -> its part
            of the staged batches, see `toydepth.staging`.
        gather: all parts -> the staged batches, on every device.
        advance: for each shape, (state, hyper, first, count, since, slot, places, staged, context) -> state, donated;
            `since` is the step of the last evaluation.
        evaluate: for each shape, (params, hyper, active, slot, places, staged, context) -> the mean loss, its
            standard error, and the mean losses of either half of the samples.
        measure: for each shape whose problem measures anything, (state, hyper, active, slot, step, places, staged,
            context) -> {quantity: a number or a row of them}.
        compile_seconds: seconds that tracing and compiling took, for each of them.
    """

    def __init__(self, family: Family, mesh: Mesh):
        self.family, self.mesh, self.devices = family, mesh, mesh.devices.size
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self.by_lane = NamedSharding(mesh, PartitionSpec("runs"))
        self.compile_seconds: dict[Any, float] = {}
        mode, slots = family.mode, family.slots

        init = self._traced("init", jax.jit(mode.stream.init), (family.waves[0].cohorts[0].source,))
        fixed = init.out_info
        context = self._stacked(jax.eval_shape(mode.stream.context, fixed), slots, self.replicated)
        self.rows = {"data": rows_of(family, self.devices), "eval": math.ceil(mode.eval_batches / self.devices)}
        jobs: dict[Any, Any] = {"init": init}
        stage = jax.jit(staging(mode.stream, lambda: traces.update(teacher=1)))
        for d, device in enumerate(mesh.devices.flat):
            here = SingleDeviceSharding(device)
            per_slot = self._array((slots,), jnp.int32, here)
            keys = self._array((slots, 2), jnp.uint32, here)
            offsets = self._array((max(self.rows.values()),), jnp.int32, here)
            arguments = (self._stacked(fixed, slots, here), keys, *[per_slot] * 4, offsets)
            jobs["stage", d] = self._traced(("stage", d), stage, arguments)
        parts = jax.tree.map(
            lambda a: self._array((self.devices, *a.shape[1:]), a.dtype, self.by_lane), jobs["stage", 0].out_info
        )
        jobs["gather"] = self._traced("gather", jax.jit(gathering(mesh)), (parts,))
        self.staged = jax.tree.map(lambda a: self._array(a.shape, a.dtype, self.replicated), parts)
        scored = jax.tree.map(
            lambda a: self._array((*a.shape[:2], self.rows["eval"], *a.shape[3:]), a.dtype, self.replicated),
            self.staged,
        )
        places = self._array((family.chunk, 2), jnp.int32, self.replicated)
        key = jax.eval_shape(jax.random.key, 0)
        for shape, width in family.width.items():
            lanes = width * self.devices
            member = next(m for w in family.waves for m in w.members if m.shape == shape)
            fresh = self._traced(("fresh", shape), jax.jit(functools.partial(fresh_state, shape)), (key, member.hyper))
            jobs["fresh", shape] = fresh
            state = self._stacked(fresh.out_info, lanes, self.by_lane)
            hyper = self._stacked(member.hyper, lanes, self.by_lane)
            whole = self._array((lanes,), jnp.int32, self.by_lane)
            arguments = (state, hyper, whole, whole, whole, whole, places, self.staged, context)
            advance = jax.jit(_advance(shape, mode.batching, mesh), donate_argnums=0)
            jobs["advance", shape] = self._traced(("advance", shape), advance, arguments)
            arguments = (state["params"], hyper, whole, whole, places, scored, context)
            evaluate = jax.jit(_evaluate(shape, mode, mesh))
            jobs["evaluate", shape] = self._traced(("evaluate", shape), evaluate, arguments)
            measure = jax.jit(_measure(shape, mode, mesh))
            measured = self._traced(("measure", shape), measure, (state, hyper, *[whole] * 3, places, scored, context))
            if measured.out_info:
                jobs["measure", shape] = measured
        lowered = {name: self._lowered(name, traced) for name, traced in jobs.items()}  # Python's work: in one thread
        with ThreadPoolExecutor(min(usable_cores(), len(jobs))) as pool:
            compiled = dict(zip(jobs, pool.map(self._compiled, jobs, lowered.values()), strict=True))
        self.init, self.gather = compiled["init"], compiled["gather"]
        self.stage = [compiled["stage", d] for d in range(self.devices)]
        self.fresh = {shape: compiled["fresh", shape] for shape in family.width}
        self.advance = {shape: compiled["advance", shape] for shape in family.width}
        self.evaluate = {shape: compiled["evaluate", shape] for shape in family.width}
        self.measure = {shape: compiled["measure", shape] for shape in family.width if ("measure", shape) in compiled}

    def _traced(self, name: Any, function: Any, arguments: tuple[Any, ...]) -> Any:
        start = time.perf_counter()
        traced = function.trace(*arguments)
        self.compile_seconds[name] = time.perf_counter() - start
        return traced

    def _lowered(self, name: Any, traced: Any) -> Any:
        start = time.perf_counter()
        with jax.default_matmul_precision(self.family.mode.precision):
            lowered = traced.lower()
        self.compile_seconds[name] += time.perf_counter() - start
        return lowered

    def _compiled(self, name: Any, lowered: Any) -> Any:
        start = time.perf_counter()
        program = lowered.compile()
        self.compile_seconds[name] += time.perf_counter() - start
        return program

    @staticmethod
    def _array(shape: tuple[int, ...], dtype: Any, sharding: Any) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    def _stacked(self, tree: Tree, size: int, sharding: Any) -> Tree:
        return jax.tree.map(lambda a: self._array((size, *a.shape), a.dtype, sharding), tree)


def fresh_state(shape: Shape, key: Any, hyper: Tree) -> Tree:
    """A member's state at step 0."""
    return state_of(shape, shape.problem.start(shape.problem.init(key), hyper))


def state_of(shape: Shape, params: Tree) -> Tree:
    """A state that starts from parameters. The optimizer's state does not depend on its hyperparameters."""
    optimizer = shape.transformation(defaultdict(float), 1.0)
    return {
        "params": params,
        "optimizer": optimizer.init(params),
        "loss_sum": jnp.zeros(()),
        "loss_count": jnp.zeros(()),
        "limit": jnp.array(jnp.inf),
        "diverged": jnp.array(-1, jnp.int32),
    }


def _advance(shape: Shape, batching: str, mesh: Mesh) -> Callable[..., Tree]:
    """(state, hyper, first, count, since, slot, places, staged, context) -> state `count` steps later, per lane."""

    def local(
        state: Tree, hyper: Tree, first: Any, count: Any, since: Any, slot: Any, places: Any, staged: Tree, ctx: Tree
    ) -> Tree:
        traces["student"] += 1

        def lane(args: Any) -> Tree:
            state, hyper, first, count, since, slot = args
            context = _at(ctx, slot)

            def step(carry: Any) -> Any:
                i, state = carry
                return i + 1, update(shape, state, hyper, batch_of(staged, places, slot, i), context, first + i, since)

            def unfinished(carry: Any) -> Any:
                return (carry[0] < count) & (carry[1]["diverged"] < 0)

            return jax.lax.while_loop(unfinished, step, (jnp.zeros((), jnp.int32), state))[1]

        return _each(batching)(lane)((state, hyper, first, count, since, slot))

    runs, spec = PartitionSpec("runs"), PartitionSpec()
    specs = (runs, runs, runs, runs, runs, runs, spec, spec, spec)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=runs, check_vma=False)


def update(shape: Shape, state: Tree, hyper: Tree, batch: Tree, context: Tree, step: Any, since: Any) -> Tree:
    """A member's state after one step; `diverged` is the step if its loss, a gradient or a parameter gives cause."""
    loss, grads = jax.value_and_grad(mean_loss)(state["params"], shape.problem, batch, context, hyper)
    optimizer = shape.transformation(hyper, factor(hyper, jnp.asarray(step, jnp.float32)))
    updates, moments = optimizer.update(grads, state["optimizer"], state["params"])
    params = optax.apply_updates(state["params"], updates)
    fresh = step == since  # the mean train loss is that since the last evaluation
    sound = (loss <= state["limit"]) & _finite(grads) & _finite(params)
    return {
        "params": params,
        "optimizer": moments,
        "loss_sum": jnp.where(fresh, 0.0, state["loss_sum"]) + loss,
        "loss_count": jnp.where(fresh, 0.0, state["loss_count"]) + 1.0,
        "limit": state["limit"],
        "diverged": jnp.where(sound, -1, step).astype(jnp.int32),
    }


def mean_loss(params: Tree, problem: Problem, batch: Tree, context: Tree, hyper: Tree) -> Any:
    """The objective: the mean loss of a batch."""
    return jnp.mean(losses(problem, params, batch, context, hyper))


def _evaluate(shape: Shape, mode: Mode, mesh: Mesh) -> Callable[..., Tree]:
    """(params, hyper, active, slot, places, staged, context) -> the mean loss, its standard error, and the means over
    every other sample from the first and from the second one on, per active lane."""
    problem, batches = shape.problem, mode.eval_batches

    def local(params: Tree, hyper: Tree, active: Any, slot: Any, places: Any, staged: Tree, ctx: Tree) -> Tree:
        traces["evaluation"] += 1

        def lane(args: Any) -> Tree:
            params, hyper, active, slot = args

            def scores() -> Any:
                context = _at(ctx, slot)
                inputs = jax.lax.map(lambda i: batch_of(staged, places, slot, i), jnp.arange(batches))
                return score(
                    problem,
                    predictions(problem, params, inputs, context, hyper),
                    targets(problem, inputs, context, hyper),
                )

            return jax.lax.cond(active > 0, scores, lambda: (jnp.nan,) * 4)

        return _each(mode.batching)(lane)((params, hyper, active, slot))

    runs, spec = PartitionSpec("runs"), PartitionSpec()
    specs = (runs, runs, runs, runs, spec, spec, spec)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=runs, check_vma=False)


def _measure(shape: Shape, mode: Mode, mesh: Mesh) -> Callable[..., Tree]:
    """(state, hyper, active, slot, step, places, staged, context) -> what the problem measures, per active lane."""
    problem, batches = shape.problem, mode.eval_batches

    def local(
        state: Tree, hyper: Tree, active: Any, slot: Any, step: Any, places: Any, staged: Tree, ctx: Tree
    ) -> Tree:
        def lane(args: Any) -> Tree:
            state, hyper, active, slot, step = args

            def found() -> Tree:
                inputs = jax.lax.map(lambda i: batch_of(staged, places, slot, i), jnp.arange(batches))
                return problem.measures(seen(shape, state, hyper, inputs, _at(ctx, slot), step))

            nothing = lambda: jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan, a.dtype), jax.eval_shape(found))  # noqa: E731
            return jax.lax.cond(active > 0, found, nothing)

        return _each(mode.batching)(lane)((state, hyper, active, slot, step))

    runs, spec = PartitionSpec("runs"), PartitionSpec()
    specs = (runs, runs, runs, runs, runs, spec, spec, spec)
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=runs, check_vma=False)


def seen(shape: Shape, state: Tree, hyper: Tree, batches: Tree, context: Tree, step: Any) -> Seen:
    """A run at an evaluation, as its problem measures it."""
    params = state["params"]

    def objective(params: Tree) -> Any:
        return jnp.mean(jax.lax.map(lambda batch: mean_loss(params, shape.problem, batch, context, hyper), batches))

    gradient = jax.grad(objective)(params)
    optimizer = shape.transformation(hyper, factor(hyper, jnp.asarray(step, jnp.float32)))
    update, _ = optimizer.update(gradient, state["optimizer"], params)
    return Seen(params, gradient, update, objective, batches, context, hyper)


# A loop's body is compiled by itself, so that predictions, targets and score give the same bits in programs of their
# own. One that is known to run once would be compiled together with what stands around it.


def _looped(f: Callable[[Tree], Tree], batches: Tree) -> Tree:
    """`jax.lax.map` over batches that stays a loop where there is one batch only."""
    count = jax.lax.optimization_barrier(jnp.int32(len(jax.tree.leaves(batches)[0])))
    out = jax.eval_shape(lambda batches: jax.lax.map(f, batches), batches)

    def body(i: Any, out: Tree) -> Tree:
        return jax.tree.map(lambda rows, row: rows.at[i].set(row), out, f(_at(batches, i)))

    return jax.lax.fori_loop(0, count, body, jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), out))


def predictions(problem: Problem, params: Tree, batches: Tree, context: Tree, hyper: Tree) -> Tree:
    """What a run says of every sample of batches that are stacked on a leading axis."""
    return _looped(lambda batch: problem.predict(params, batch, context, hyper), batches)


def targets(problem: Problem, batches: Tree, context: Tree, hyper: Tree) -> Tree:
    """What it should have said."""
    return _looped(lambda batch: problem.target(batch, context, hyper), batches)


def score(problem: Problem, predictions: Tree, targets: Tree) -> tuple[Any, Any, Any, Any]:
    """The mean loss, its standard error, and the mean losses of either half of the samples."""
    losses = _looped(lambda pair: problem.compare(*pair), (predictions, targets))
    halves = jnp.mean(losses[:, 0::2]), jnp.mean(losses[:, 1::2])  # a lone sample has no second half
    return jnp.mean(losses), jnp.std(losses) / math.sqrt(losses.size), *halves


def _each(batching: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """How a function of one lane becomes a function of a device's lanes."""
    return jax.vmap if batching == "vmap" else lambda f: lambda xs: jax.lax.map(f, xs)


def _at(tree: Tree, index: Any) -> Tree:
    return jax.tree.map(lambda a: a[index], tree)


def _finite(tree: Tree) -> Any:
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
