"""Peer (c) of the works in depth: plain JAX, as a good engineer would write it in an evening.

One run after another; one jitted step that draws inputs, runs the teacher and updates the student, with its state
donated; rows of states, `lax.scan` over layers, a Python loop over steps. Runs of one depth share the compiled step.
Layers are recomputed in the backward pass, which was 5 to 8 % faster than keeping what is inside them; turning the
weights made no difference.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from .compilations import Compilations
from .depth_work import DepthRun, DepthWork, student_of, teacher_of
from .report import Report, one_after_another
from .work import Arrays

EPSILON = 1e-6
Tree = Any


def norm(h: Any) -> Any:
    """h / sqrt(mean h^2), for rows of states."""
    return h * jax.lax.rsqrt(jnp.mean(h * h, axis=1, keepdims=True) + EPSILON)


def layer(h: Any, weights: Tree) -> tuple[Any, None]:
    """One layer on rows of states."""
    active = jax.nn.relu(norm(h) @ weights["W1"].T + weights["b1"])
    return h + jnp.square(active) @ weights["W2"].T, None


def through(weights: Tree, h: Any) -> Any:
    """All layers on rows of states."""
    stacked = {name: weights[name] for name in ("W1", "b1", "W2")}
    return jax.lax.scan(jax.checkpoint(layer), h, stacked)[0]


def objective(params: Tree, inputs: Any, states: Any, teacher: Tree, temperature: Any) -> Any:
    """KL(teacher at its temperature || student at 1), or, without a head, the mean squared error of the states."""
    last = norm(through(params, inputs))
    if "head" not in params:
        return jnp.mean(jnp.square(last - states))
    target = jax.nn.log_softmax(states @ teacher["head"].T / temperature)
    return jnp.mean(jnp.sum(jnp.exp(target) * (target - jax.nn.log_softmax(last @ params["head"].T)), axis=1))


evaluate = jax.jit(objective)


class JaxRun:
    """A run in training."""

    def __init__(self, work: DepthWork, start: Arrays, run: DepthRun, step: Any):
        self.step, self.temperature, self.key, self.done = step, run.temperature, jax.random.key(run.seed), 0
        self.teacher = jax.device_put(teacher_of(start, run))
        self.params = jax.device_put(student_of(start, run, work))
        self.rate = work.rate(run)
        self.moments = optax.adam(self.rate).init(self.params)

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.params, self.moments = self.step(
                self.params, self.moments, self.key, self.done, self.teacher, self.temperature, self.rate
            )
            self.done += 1
        jax.block_until_ready(self.params)

    def loss(self) -> float:
        inputs, states = self.teacher["inputs"], self.teacher["states"]
        return float(evaluate(self.params, inputs, states, self.teacher, self.temperature))


def plain(work: DepthWork, start: Arrays, runs: Sequence[DepthRun], threads: int) -> Report:
    """Peer (c). JAX takes the cores that it finds; `threads` is for the others."""

    def step(params: Tree, moments: Tree, key: Any, i: Any, teacher: Tree, temperature: Any, rate: Any) -> Any:
        inputs = norm(jax.random.normal(jax.random.fold_in(key, i), (work.batch, work.width)))
        states = norm(through(teacher, inputs))
        grads = jax.grad(objective)(params, inputs, states, teacher, temperature)
        updates, moments = optax.adam(rate).update(grads, moments)
        return optax.apply_updates(params, updates), moments

    compilations = Compilations()
    jitted = jax.jit(step, donate_argnums=(0, 1))
    report = one_after_another(runs, work.steps, lambda run: JaxRun(work, start, run, jitted))
    report.compile_seconds, report.programs = compilations.seconds, compilations.programs
    return report
