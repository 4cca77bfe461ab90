"""Where all contestants start: the teachers, the students at step 0 and the evaluation batches, drawn by toydepth.

Only the training inputs are each contestant's own, so that final losses differ by no more than their noise.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import numpy as np

from toydepth.config import parse, resolve
from toydepth.problems import Problem, hyper_of, problem_of, role_key, source_of

from .work import Work
from .works import WORKS


def draw(work: Work[Any]) -> dict[str, np.ndarray]:
    """The arrays that `work.named` looks up: each has the name of its teacher or student before its own."""
    start: dict[str, np.ndarray] = {}
    drawn = set()
    for run in work.runs:
        config = resolve(parse(work.config(run, work.steps)))
        problem, hyper = problem_of(config), hyper_of(config)
        if run.student not in drawn:
            params = jax.jit(problem.init)(role_key(run.seed, "student"))
            start |= _leaves(run.student, problem.start(params, hyper))
        if run.teacher not in drawn:
            fixed = jax.jit(problem.stream.init)(source_of(config))
            start |= _leaves(run.teacher, fixed) | _leaves(run.teacher, _evaluation(problem, fixed, run.seed, hyper))
        drawn |= {run.student, run.teacher}
    return start


def _evaluation(problem: Problem, fixed: Any, seed: int, hyper: Any) -> Any:
    """The evaluation batch. Inputs that are drawn as a list of active features are what they are to come out as."""
    batch = jax.jit(problem.stream.draw)(fixed, jax.random.fold_in(role_key(seed, "eval"), 0))
    if "feature" not in batch:
        return batch
    return {"inputs": problem.target(batch, problem.stream.context(fixed), hyper)}


def _leaves(whose: str, tree: Any) -> dict[str, np.ndarray]:
    """A tree's arrays, by the last names on the ways to them."""
    return {f"{whose} {path[-1].key}": np.asarray(leaf) for path, leaf in jax.tree.leaves_with_path(tree)}


if __name__ == "__main__":
    name, scale, path = sys.argv[1:]
    np.savez(path, **draw(WORKS[name].scaled(float(scale))))  # type: ignore[arg-type]
