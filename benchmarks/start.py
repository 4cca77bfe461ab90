"""Where all contestants start: the teachers, the students at step 0 and the evaluation batches, drawn by toydepth.

Only the training inputs are each contestant's own, so that final losses differ by no more than their noise.
"""

from __future__ import annotations

import sys

import jax
import numpy as np

from toydepth.config import parse, resolve
from toydepth.problems import problem_of, role_key, source_of

from .works import WORKS, Work


def draw(work: Work) -> dict[str, np.ndarray]:
    """The arrays that `works.teacher_of` and `works.student_of` look up."""
    start: dict[str, np.ndarray] = {}
    for run in work.runs:
        config = resolve(parse(work.config(run, work.steps)))
        problem = problem_of(config)
        student, teacher = f"student s{run.seed} d{run.depth}", f"teacher {run.kind} s{run.seed}"
        if f"{student} W1" not in start:
            layers = jax.jit(problem.init)(role_key(run.seed, "student"))["layers"]
            start |= {f"{student} {name}": np.asarray(leaf) for name, leaf in layers.items()}
        if f"{teacher} W1" not in start:
            fixed = jax.jit(problem.stream.init)(source_of(config))
            batch = jax.jit(problem.stream.draw)(fixed, jax.random.fold_in(role_key(run.seed, "eval"), 0))
            found = fixed["layers"] | {"head": fixed["head"]} | batch
            start |= {f"{teacher} {name}": np.asarray(leaf) for name, leaf in found.items()}
    return start


if __name__ == "__main__":
    name, scale, path = sys.argv[1:]
    np.savez(path, **draw(WORKS[name].scaled(float(scale))))  # type: ignore[arg-type]
