"""What can be trained. A problem knows its parameters, its batches and its loss, and nothing of folders or bars.

A problem is a frozen, hashable object that holds the *static* part of a config: whatever decides shapes and code.
Everything else comes in as arrays: `source` (what its stream is made from) and `hyper` (numbers of one run).
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..config import SCHEMAS, ConfigError, RunConfig
from ..extension import load

Tree = Any  # a pytree of arrays

UNSCHEDULED = -1  # in place of a step, for batches that follow no schedule
# Every random number comes from a run's own seeds and one of these roles, never from its place in a sweep.
ROLES = {"teacher": 0, "student": 1, "data": 2, "eval": 3}


def role_key(seed: int, role: str) -> PRNGKeyArray:
    """The random key of a seed in a role, wherever and in whatever company it is used."""
    return jax.random.fold_in(jax.random.key(seed), ROLES[role])


class Stream(ABC):
    """Makes batches. Runs with equal streams, sources and data seeds see the same batches: they are a cohort."""

    @abstractmethod
    def init(self, source: Tree) -> Tree:
        """The fixed things behind the batches (a teacher's weights), from a source."""

    @abstractmethod
    def draw(self, fixed: Tree, key: PRNGKeyArray) -> Tree:
        """One batch, as an evaluation uses it."""

    def scheduled(self, fixed: Tree, key: PRNGKeyArray, step: Any) -> Tree:
        """The training batch of a step, counted from 0, or an evaluation's (step `UNSCHEDULED`): what `draw` gives,
        unless batches change in the course of training."""
        return self.draw(fixed, key)

    def context(self, fixed: Tree) -> Tree:
        """What a student may see of the fixed things; nothing unless said."""
        return {}

    @abstractmethod
    def flops(self) -> float:
        """Floating-point operations of one draw."""


class Seen(NamedTuple):
    """A run at an evaluation: what `Problem.measures` may use.

    Attributes:
        params: its parameters.
        gradient: that of `objective` at `params`.
        update: what its optimizer would add to `params` next, given that gradient.
        objective: params -> the mean loss of the evaluation batches, differentiable.
        batches: the evaluation batches, stacked on a leading axis.
        context, hyper: as in `predict`.
    """

    params: Tree
    gradient: Tree
    update: Tree
    objective: Callable[[Tree], Any]
    batches: Tree
    context: Tree
    hyper: Tree


class Problem(ABC):
    """What is trained on a stream.

    Attributes:
        stream: where its batches come from.
    """

    stream: Stream

    @abstractmethod
    def label(self) -> str:
        """A few words for people."""

    @abstractmethod
    def init(self, key: PRNGKeyArray) -> Tree:
        """A run's parameters at step 0."""

    def start(self, params: Tree, hyper: Tree) -> Tree:
        """The parameters at step 0, where they depend on numbers that may be swept; those of `init` unless said."""
        return params

    def grown(self, params: Tree) -> Tree:
        """Parameters of this problem from the final ones of `RunConfig.parent`, where there is one."""
        raise NotImplementedError(f"{type(self).__name__} cannot be grown")

    @abstractmethod
    def predict(self, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Tree:
        """What a run says of every sample of a batch."""

    @abstractmethod
    def target(self, batch: Tree, context: Tree, hyper: Tree) -> Tree:
        """What it should have said."""

    @abstractmethod
    def compare(self, prediction: Tree, target: Tree) -> Float[Array, " batch"]:
        """The loss of every sample. Evaluations compute the three apart, so that each can be repeated to the bit."""

    def transform(self, hyper: Tree, rate: Any) -> optax.GradientTransformation | None:
        """What changes the optimizer's updates before they are added, at a learning rate; None: nothing does."""
        return None

    def measures(self, seen: Seen) -> dict[str, Array]:
        """{quantity: a number, or a row of them}, recorded beside the loss at every evaluation; nothing unless said.

        The names become columns of `history.jsonl` and, at the end, of `result.json` and `runs.parquet`; of a row, each
        number has a column, name_01 and so on.
        """
        return {}

    def pictured(self, params: Tree) -> dict[str, Array]:
        """{name: an array} of a finished run's parameters that figures show, kept in `arrays.npz`; none unless said."""
        return {}

    def layers(self, params: Tree, batch: Tree) -> dict[str, Array]:
        """{quantity: its values with a leading axis for the layers}, in the order in which they are computed.

        Where `debug=nan` looks for the first layer that is not finite; empty for a problem without layers.
        """
        return {}

    @abstractmethod
    def flops(self) -> float:
        """Floating-point operations of one update: one forward and one backward pass."""

    @abstractmethod
    def activation_bytes(self) -> float:
        """Bytes kept from the forward pass for the backward pass."""


def losses(problem: Problem, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, " batch"]:
    """The loss of every sample of a batch."""
    return problem.compare(problem.predict(params, batch, context, hyper), problem.target(batch, context, hyper))


def problem_of(config: RunConfig) -> Problem:
    """The static problem of a resolved config.

    Raises:
        ConfigError: somebody's own code cannot be loaded, or does not work.
    """
    module = _module(config)
    if config.problem in SCHEMAS:
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

    if not isinstance(problem, Problem) or not isinstance(stream, Stream):
        raise TypeError("problem_of must return a toydepth.problems.Problem with a toydepth.problems.Stream")
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
    if config.problem in SCHEMAS:
        return importlib.import_module(f".{config.problem}", __name__)
    return load("problem", config.problem)
