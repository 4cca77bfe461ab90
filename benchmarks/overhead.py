"""What the framework costs: the engine beside a hand-written scan of the same mathematics.

Four students of depth 16 that share a teacher, on one device: a scan over steps, in it one draw of the teacher and a
loop over the students with `jax.grad` and `optax.adam`, nothing else. What the engine does on top (chunks and their
staged batches, checks for divergence, sums of train losses, evaluations, the host between chunks) is its overhead.
Both run on one core: toydepth gives every core a device of its own, and what XLA makes of idle cores beside a single
device differs from program to program.
"""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

from toydepth import engine, ensemble
from toydepth.devices import setup
from toydepth.ensemble import Family, Member
from toydepth.problems import role_key, source_of
from toydepth.programs import fresh_state, mean_loss

from .depth_work import DepthWork
from .instrument import Clock, members_of
from .works import WORKS

STEPS, REPEATS = 40, 5


def work_of(scale: float) -> DepthWork:
    """Depth 16 of W2."""
    work = WORKS["W2"]
    assert isinstance(work, DepthWork)
    return dataclasses.replace(work, depths=(16,), steps=STEPS).scaled(scale)


def scan(members: list[Member]) -> Callable[[Any, int], Any]:
    """(states, first step) -> states after STEPS more, as one program; states are (params, moments), stacked."""
    config, shape = members[0].config, members[0].shape
    problem = shape.problem
    fixed = jax.jit(problem.stream.init)(source_of(config))
    context, key = problem.stream.context(fixed), role_key(config.seed, "data")
    hypers = jax.tree.map(lambda *leaves: np.stack(leaves), *(m.hyper for m in members))

    def update(params: Any, moments: Any, hyper: Any, batch: Any) -> tuple[Any, Any]:
        grads = jax.grad(mean_loss)(params, problem, batch, context, hyper)
        updates, moments = optax.adam(hyper["lr"]).update(grads, moments)
        return optax.apply_updates(params, updates), moments

    def step(states: Any, i: Any) -> tuple[Any, None]:
        batch = problem.stream.draw(fixed, jax.random.fold_in(key, i))
        params, moments = states
        return jax.lax.map(lambda lane: update(lane[0], lane[1], lane[2], batch), (params, moments, hypers)), None

    def steps(states: Any, first: Any) -> Any:
        return jax.lax.scan(step, states, first + np.arange(STEPS))[0]

    return jax.jit(steps, donate_argnums=0)


def fresh(members: list[Member]) -> Any:
    """The members' (params, moments) at step 0, stacked."""
    params = [fresh_state(m.shape, role_key(m.config.seed, "student"), m.hyper)["params"] for m in members]
    stacked = jax.tree.map(lambda *leaves: jax.numpy.stack(leaves), *params)
    return stacked, jax.vmap(optax.adam(0.0).init)(stacked)


def measure(scale: float = 1.0, repeats: int = REPEATS) -> dict[str, float]:
    """Updates per second of either, medians over interleaved repeats, and the share of time that the engine adds."""
    devices = setup(1)
    work = work_of(scale)
    scanned = scan(members_of(work, work.runs, STEPS, devices[0].platform))
    families: list[Family] = []
    programs: Any = None
    seconds: dict[str, list[float]] = {"engine": [], "scan": []}
    for repeat in range(repeats + 1):
        members = members_of(work, work.runs, 2 * STEPS, devices[0].platform)
        families = ensemble.plan(members, 1)
        programs = programs or engine.prepare(families[0], devices)
        clock = Clock(members, STEPS)
        engine.train(programs, families[0].waves[0], clock)
        states = fresh(members)
        start = time.perf_counter()
        jax.block_until_ready(scanned(states, 0))
        if repeat:  # the first time it compiles
            seconds["scan"].append((time.perf_counter() - start) / (STEPS * len(members)))
            seconds["engine"].append(clock.seconds / clock.updates)
    by_engine, by_hand = statistics.median(seconds["engine"]), statistics.median(seconds["scan"])
    return {"engine": 1.0 / by_engine, "scan": 1.0 / by_hand, "overhead": by_engine / by_hand - 1.0}


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # before JAX starts its threads
    print(json.dumps(measure(float(sys.argv[1]))))
