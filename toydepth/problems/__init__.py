"""What can be trained. A problem knows its parameters, its batches and its loss, and nothing of folders or bars.

A problem is a frozen, hashable object that holds the *static* part of a config: whatever decides shapes and code.
Everything else comes in as arrays: `source` (what its stream is made from) and `hyper` (numbers of one run).
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ..config import ConfigError, DepthConfig, RunConfig
from ..extension import load

Tree = Any  # a pytree of arrays

# Every random number comes from a run's own seeds and one of these roles, never from its place in a sweep.
ROLES = {"teacher": 0, "student": 1, "data": 2, "eval": 3}


def role_key(seed: int, role: str) -> PRNGKeyArray:
    """The random key of a seed in a role, wherever and in whatever company it is used."""
    return jax.random.fold_in(jax.random.key(seed), ROLES[role])


class Stream(Protocol):
    """Makes batches. Runs with equal streams, sources and data seeds see the same batches: they are a cohort."""

    def init(self, source: Tree) -> Tree:
        """The fixed things behind the batches (a teacher's weights), from a source."""
        ...

    def draw(self, fixed: Tree, key: PRNGKeyArray) -> Tree:
        """One batch."""
        ...

    def context(self, fixed: Tree) -> Tree:
        """What a student may see of the fixed things."""
        ...

    def flops(self) -> float:
        """Floating-point operations of one draw."""
        ...


class Problem(Protocol):
    """What is trained on a stream."""

    @property
    def stream(self) -> Stream:
        """Where its batches come from."""
        ...

    def label(self) -> str:
        """A few words for people."""
        ...

    def init(self, key: PRNGKeyArray) -> Tree:
        """A run's parameters at step 0."""
        ...

    def grown(self, params: Tree) -> Tree:
        """Parameters of this problem from the final ones of `RunConfig.parent`, where there is one."""
        ...

    def predict(self, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Tree:
        """What a run says of every sample of a batch."""
        ...

    def target(self, batch: Tree, context: Tree, hyper: Tree) -> Tree:
        """What it should have said."""
        ...

    def compare(self, prediction: Tree, target: Tree) -> Float[Array, " batch"]:
        """The loss of every sample. Evaluations compute the three apart, so that each can be repeated to the bit."""
        ...

    def layers(self, params: Tree, batch: Tree) -> dict[str, Array]:
        """{quantity: its values with a leading axis for the layers}, in the order in which they are computed.

        Where `debug=nan` looks for the first layer that is not finite; empty for a problem without layers.
        """
        ...

    def flops(self) -> float:
        """Floating-point operations of one update: one forward and one backward pass."""
        ...

    def activation_bytes(self) -> float:
        """Bytes kept from the forward pass for the backward pass."""
        ...


def losses(problem: Problem, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, " batch"]:
    """The loss of every sample of a batch."""
    return problem.compare(problem.predict(params, batch, context, hyper), problem.target(batch, context, hyper))


def problem_of(config: RunConfig) -> Problem:
    """The static problem of a resolved config.

    Raises:
        ConfigError: somebody's own code cannot be loaded, or does not work.
    """
    module = _module(config)
    if isinstance(config, DepthConfig):
        return module.problem_of(config)
    try:
        problem = module.problem_of(config)
        _check(problem, module.source_of(config), module.hyper_of(config))
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        raise ConfigError(f"problem={config.problem}: {reason}") from error
    return problem


def source_of(config: RunConfig) -> Tree:
    """What a resolved config's stream is made from: a dict of numbers, equal for equal streams."""
    return _module(config).source_of(config)


def hyper_of(config: RunConfig) -> dict[str, float]:
    """The numbers of a resolved config that its loss uses."""
    return _module(config).hyper_of(config)


def _check(problem: Problem, source: Tree, hyper: dict[str, float]) -> None:
    """Tries somebody's own problem on shapes alone."""
    stream = problem.stream

    def step(key: Any) -> Any:
        fixed, params = stream.init(source), problem.init(key)
        batch, context = stream.draw(fixed, key), stream.context(fixed)
        problem.layers(params, batch)
        return params, losses(problem, params, batch, context, hyper)

    hash(problem)
    params, loss = jax.eval_shape(step, jax.random.key(0))
    for leaf in jax.tree.leaves(params):
        if leaf.dtype != jnp.float32:
            raise TypeError(f"a parameter is {leaf.dtype}, allowed is float32")
    if loss.ndim != 1:
        raise TypeError(f"compare returns {list(loss.shape)}, allowed is one loss for each sample, [batch]")
    for words_or_number in (problem.label, problem.flops, problem.activation_bytes, stream.flops):
        words_or_number()


def _module(config: RunConfig) -> Any:
    """The module of a problem: one of this folder, or somebody's own file with the same three functions."""
    if isinstance(config, DepthConfig):
        from . import depth

        return depth
    return load("problem", config.problem)
