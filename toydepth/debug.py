"""Training step by step, for looking closely: `debug=nan` and `debug=eager`.

One run after another, the host between all steps; the same update, batches and folders as in the engine, without its
chunks. `nan` stops a run at the first value that is not finite and says where it arose; `eager` compiles nothing, so
that a print or a breakpoint in somebody's own block is reached at every step.
"""

from __future__ import annotations

import contextlib
import functools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .engine import DIVERGED, ROUNDING, Recorder, columns, ended, row, verdict
from .ensemble import Member, Shape
from .optimizer import factor
from .problems import losses, role_key, source_of
from .programs import fresh_state, mean_loss, predictions, score, seen, targets, update

Tree = Any


def train(members: Sequence[Member], recorder: Recorder, mode: str) -> bool:
    """Trains members one after another, in mode `nan` or `eager`, until they end; False if interrupted."""
    for member in members:
        compiling = jax.disable_jit() if mode == "eager" else contextlib.nullcontext()
        with jax.default_matmul_precision(member.config.runtime.precision), compiling:
            if not _train(member, recorder):
                return False
    return True


def _train(member: Member, recorder: Recorder) -> bool:
    """Trains one member; False if interrupted."""
    shape, config, hyper = member.shape, member.config, member.hyper
    problem, stream, period = shape.problem, shape.problem.stream, config.data.unique // config.train.batch
    data, key = role_key(config.seed, "data"), role_key(config.seed, "eval")
    fixed = jax.jit(stream.init)(source_of(config))
    context = stream.context(fixed)
    draw = jax.jit(lambda i: stream.draw(fixed, jax.random.fold_in(key, i)))
    following = jax.jit(lambda i, step: stream.scheduled(fixed, jax.random.fold_in(data, i), step))
    advance = jax.jit(functools.partial(update, shape))
    drawn = [draw(i) for i in range(config.train.eval_batches)]
    batches = jax.tree.map(lambda *leaves: jnp.stack(leaves), *drawn)

    @jax.jit
    def evaluate(params: Tree) -> Any:
        said = predictions(problem, params, batches, context, hyper)
        return score(problem, said, targets(problem, batches, context, hyper))

    @jax.jit
    def measure(state: Tree, step: int) -> Any:
        return problem.measures(seen(shape, state, hyper, batches, context, step))

    def look(state: Tree) -> None:
        member.scored(*map(float, evaluate(state["params"])))
        member.measured = columns(measure(state, member.step))
        recorder.evaluated(member, row(member, state["loss_sum"], state["loss_count"]))

    state = member.state or jax.jit(functools.partial(fresh_state, shape))(role_key(config.seed, "student"), hyper)
    look(state)
    state |= {"limit": jnp.float32(DIVERGED * max(member.first_loss, ROUNDING))}
    evaluates, message = config.train.evaluates, ""
    while member.active:
        if recorder.interrupted():
            return False
        start, step = time.perf_counter(), member.step
        batch = following(step % period if period else step, step)
        later = advance(state, hyper, batch, context, step, step if evaluates(step) else -1)
        member.diverged = int(later["diverged"])
        if member.diverged >= 0:
            found = first_not_finite(shape, state, hyper, batch, context, step)
            member.scored(*map(float, evaluate(later["params"])))
            message = f"diverged at step {step}: {found}" if found else verdict(member)
            break
        state, member.step = later, step + 1
        member.seconds += time.perf_counter() - start
        recorder.progress(problem.flops())
        if evaluates(member.step) or not member.active:
            look(state)
    outcome = ended(member, message or verdict(member))
    recorder.finished(member, outcome, jax.device_get(state))
    return True


def first_not_finite(shape: Shape, state: Tree, hyper: Tree, batch: Tree, context: Tree, step: int) -> str:
    """The first quantity of a step that is not finite, in the order in which they are computed, in words.

    Args:
        shape: the problem and the optimizer.
        state: the member's state before the step.
        hyper, batch, context: what the step uses.
        step: its number.

    Returns:
        Such as "layer 3 of 8: state is inf" (layers count from 1); empty if all is finite.
    """
    for found in _quantities(shape, state, hyper, batch, context, step):
        if message := _said(*found):
            return message
    return ""


def _quantities(
    shape: Shape, state: Tree, hyper: Tree, batch: Tree, context: Tree, step: int
) -> Iterator[tuple[str, Any, bool, bool]]:
    """(name, values, whether their first axis is the layers, whether the last layer comes first)."""
    problem, params = shape.problem, state["params"]
    yield from (("batch's " + name, leaf, False, False) for name, leaf in _leaves(batch))
    yield from ((f"parameter {name}", leaf, _layered(name), False) for name, leaf in _leaves(params))
    layers = problem.layers(params, batch)
    # Layer by layer, since a quantity that is computed later may be the first to overflow
    for layer in range(max((len(values) for values in layers.values()), default=0)):
        yield from ((_place(layer, len(v)) + name, v[layer], False, False) for name, v in layers.items())
    yield from (
        ("prediction" + (name and f" {name}"), leaf, False, False)
        for name, leaf in _leaves(problem.predict(params, batch, context, hyper))
    )
    yield "loss", losses(problem, params, batch, context, hyper), False, False
    grads = jax.grad(mean_loss)(params, problem, batch, context, hyper)
    yield from ((f"gradient of {name}", leaf, _layered(name), True) for name, leaf in _leaves(grads))
    optimizer = shape.transformation(hyper, factor(hyper, jnp.float32(step)))
    updates, moments = optimizer.update(grads, state["optimizer"], params)
    yield from ((f"optimizer's {name}", leaf, False, False) for name, leaf in _leaves(moments))
    yield from ((f"update of {name}", leaf, _layered(name), False) for name, leaf in _leaves(updates))
    after = jax.tree.map(jnp.add, params, updates)
    yield from ((f"parameter {name} after the update", leaf, _layered(name), False) for name, leaf in _leaves(after))


def _said(name: str, values: Any, layered: bool, last_first: bool) -> str:
    """What is not finite among the values of a quantity, in words; empty if nothing is."""
    array = np.asarray(values)
    if not np.issubdtype(array.dtype, np.floating) or np.isfinite(array).all():
        return ""
    where = ""
    if layered:
        wrong = ~np.isfinite(array.reshape(len(array), -1)).all(1)
        layer = int(np.flatnonzero(wrong)[-1 if last_first else 0])
        array, where = array[layer], _place(layer, len(array))
    return f"{where}{name} is {_kind(array)}"


def _kind(array: np.ndarray) -> str:
    bad = array[~np.isfinite(array)]
    return "nan" if np.isnan(bad).any() else "inf" if math.inf in bad else "-inf"


def _place(layer: int, depth: int) -> str:
    return f"layer {layer + 1} of {depth}: "


def _layered(name: str) -> bool:
    return name.startswith("layers.")


def _leaves(tree: Tree) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path, simple=True, separator="."), leaf) for path, leaf in leaves]
