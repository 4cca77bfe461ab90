"""A run opened from its folder: its config, history and result, and its teacher and student as functions."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import polars as pl
from jaxtyping import Array, Float

from . import checkpoint, extension, programs, store
from .config import ConfigError, DepthConfig, RunConfig, own_code
from .network import Network, entry, norm_rows
from .problems import Problem, hyper_of, problem_of, role_key, source_of
from .problems.depth import DepthProblem

Tree = Any
Outputs = Float[Array, "*batches batch outputs"]


@dataclasses.dataclass(frozen=True)
class Function:
    """A teacher or a student with its parameters, as a function of inputs.

    Called with inputs x[..., batch, width], which it RMS-normalises, it returns what the loss compares: RMS-normalised
    final states [..., batch, width] (target.loss=mse), or the log of the softmax [..., batch, vocab] (kl).

    Attributes:
        params: its parameters; leaves below `layers` have a leading axis for the layers.
        network: its static part; None of somebody's own teacher, whose layers are not known here.
    """

    params: Tree
    network: Network | None
    _outputs: Callable[[Tree, Any], Any]
    _states: Callable[[Tree, Any], Any] | None
    _read: Callable[[Tree, Any], Any]
    _precision: str

    def __call__(self, x: Float[Array, "*batches batch width"]) -> Outputs:
        x = jnp.asarray(x, jnp.float32)
        stacked = x.reshape(-1, *x.shape[-2:])
        with jax.default_matmul_precision(self._precision):
            outputs = self._outputs(self.params, stacked)
        return outputs.reshape(*x.shape[:-1], outputs.shape[-1])

    def read(self, h: Float[Array, "*batches batch width"]) -> Outputs:
        """What it returns where `h` are its states before the final norm: the final norm, and the head (kl)."""
        h = jnp.asarray(h, jnp.float32)
        with jax.default_matmul_precision(self._precision):
            outputs = self._read(self.params, h.reshape(-1, *h.shape[-2:]))
        return outputs.reshape(*h.shape[:-1], outputs.shape[-1])

    def states(self, x: Float[Array, "batch width"]) -> Float[Array, "depth+1 batch width"]:
        """All states h_0 ... h_depth, h_0 = norm(x), before the final norm.

        Raises:
            TypeError: somebody's own teacher, which has no layers that are known here.
        """
        if self._states is None:
            raise TypeError("this teacher is somebody's own function; its layers are not known")
        with jax.default_matmul_precision(self._precision):
            return self._states(self.params, jnp.asarray(x, jnp.float32))


class Run:
    """A run of any problem.

    Attributes:
        folder: where it lies.
        config: its resolved config.
        history: one row per evaluation (polars), see `toydepth.store.HISTORY`, with what its problem measured.
        result: result.json as a dict; empty if the run has not ended.
        status: done | running | failed | diverged.
        arrays: what it keeps for figures, by name.
    """

    def __init__(self, folder: Path, config: RunConfig):
        self.folder, self.config = folder, config
        self.history: pl.DataFrame = store.history(folder)
        self.result: dict[str, Any] = store.result(folder)
        self.status: str = store.status(folder)
        self.arrays: dict[str, np.ndarray] = store.arrays(folder)

    @functools.cached_property
    def params(self) -> Tree:
        """The final parameters, those in params/.

        Raises:
            ConfigError: the run has no readable parameters (it is not done).
        """
        template = jax.eval_shape(self._problem.init, jax.random.key(0))
        try:
            return checkpoint.restore(self.folder / "params", template)
        except checkpoint.CheckpointError as error:
            raise ConfigError(
                f"{self.folder}: no parameters to read; the run is {self.status or 'not started'}"
            ) from error

    @functools.cached_property
    def batches(self) -> Tree:
        """The batches that the run was evaluated on, stacked on a leading axis."""
        draw, key = self._problem.stream.draw, role_key(self.config.seed, "eval")
        count = jnp.arange(self.config.train.eval_batches)
        drawn = jax.jit(lambda fixed, i: jax.lax.map(lambda i: draw(fixed, jax.random.fold_in(key, i)), i))
        return drawn(self._fixed, count)

    def predictions(self) -> Tree:
        """What the run says of `batches`, stacked as they are."""
        return self._on_batches(programs.predictions, self.params, self.batches)

    def targets(self) -> Tree:
        """What it should have said."""
        return self._on_batches(programs.targets, self.batches)

    def loss(self) -> float:
        """The mean loss on `batches`: the recorded one, to the last bit on the same device kind and versions."""
        return float(_score(self._problem, self.predictions(), self.targets()))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.folder.name}: {self.status}, loss {self.result.get('loss')}>"

    @functools.cached_property
    def _problem(self) -> Problem:
        return problem_of(store.with_kept_code(self.folder, self.config))

    @property
    def _precision(self) -> str:
        return self.config.runtime.precision

    @functools.cached_property
    def _fixed(self) -> Tree:
        return jax.device_get(jax.jit(self._problem.stream.init)(source_of(self.config)))

    @functools.cached_property
    def _context(self) -> Tree:
        return self._problem.stream.context(self._fixed)

    @functools.cached_property
    def _hyper(self) -> dict[str, np.float32]:
        return {name: np.float32(value) for name, value in hyper_of(self.config).items()}

    def _on_batches(self, of: Callable[..., Any], *arguments: Tree) -> Tree:
        compiled = jax.jit(functools.partial(of, self._problem))
        with jax.default_matmul_precision(self._precision):
            return compiled(*arguments, self._context, self._hyper)


class DepthRun(Run):
    """A run of the depth experiment.

    Attributes:
        student: the trained student as a function.
        teacher: the teacher as a function.
    """

    config: DepthConfig
    _problem: DepthProblem

    @functools.cached_property
    def student(self) -> Function:
        """The student with the parameters in params/.

        Raises:
            ConfigError: the run has no readable parameters (it is not done).
        """
        problem = self._problem

        def outputs(params: Tree, inputs: Any, context: Tree, hyper: Tree) -> Any:
            return programs.predictions(problem, params, {"inputs": _normed(inputs)}, context, hyper)

        read = functools.partial(_read_student, problem)
        states = jax.jit(_states(problem.network))
        return Function(
            self.params, problem.network, self._bound(outputs), states, self._reading(read), self._precision
        )

    @functools.cached_property
    def teacher(self) -> Function:
        """The teacher, made again from the run's seeds."""
        problem, stream = self._problem, self._problem.stream

        def outputs(params: Tree, inputs: Any, context: Tree, hyper: Tree) -> Any:
            states = jax.lax.map(lambda x: stream.states(params, x), _normed(inputs))
            return programs.targets(problem, {"states": states}, context, hyper)

        network = stream.network if stream.own is None else None
        states = None if network is None else jax.jit(_states(network))
        read = self._reading(functools.partial(_read_teacher, problem))
        return Function(self._fixed, network, self._bound(outputs), states, read, self._precision)

    def states(self, x: Float[Array, "batch width"]) -> tuple[Array, Array]:
        """The states of the teacher and of the student on inputs, each [depth+1, batch, width]."""
        return self.teacher.states(x), self.student.states(x)

    @functools.cached_property
    def inputs(self) -> Float[Array, "eval_batches batch width"]:
        """The inputs that the run was evaluated on."""
        key, draw = role_key(self.config.seed, "eval"), self._problem.stream.inputs
        batches = jnp.arange(self.config.train.eval_batches)
        return jax.jit(lambda i: jax.lax.map(lambda i: draw(jax.random.fold_in(key, i)), i))(batches)

    def loss(self, student: Outputs | None = None, teacher: Outputs | None = None) -> float:
        """The mean loss of a student's outputs against a teacher's; without any, that on the evaluation inputs.

        On the evaluation inputs this is the recorded loss to the last bit, on the same device kind and versions, for
        runs trained in `map` mode with at least two evaluation batches.
        """
        student = self.student(self.inputs) if student is None else student
        teacher = self.teacher(self.inputs) if teacher is None else teacher
        shaped = (jnp.asarray(a).reshape(-1, *a.shape[-2:]) for a in (student, teacher))
        return float(_score(self._problem, *shaped))

    def compare(self, student: Outputs, teacher: Outputs) -> Float[Array, "*batches batch"]:
        """The loss of a student's outputs against a teacher's, input by input."""
        student, teacher = jnp.asarray(student), jnp.asarray(teacher)
        shaped = (a.reshape(-1, *a.shape[-2:]) for a in (student, teacher))
        return _compare(self._problem, *shaped).reshape(student.shape[:-1])

    def _reading(self, read: Callable[..., Any]) -> Callable[[Tree, Any], Any]:
        """A compiled function of (parameters, states, context, numbers) as one of parameters and states."""
        context, hyper = self._context, self._hyper
        return lambda params, h: read(params, h, context, hyper)

    def _bound(self, outputs: Callable[..., Any]) -> Callable[[Tree, Any], Any]:
        """Outputs as a compiled function of parameters and inputs; context and numbers are traced, as in training."""
        context, hyper, compiled = self._context, self._hyper, jax.jit(outputs)
        return lambda params, inputs: compiled(params, inputs, context, hyper)


def open(folder: str | Path) -> Any:
    """Opens a run's folder, `outputs/<sweep>/runs/<run id>`: a `DepthRun`, or a `Run` of another problem.

    Raises:
        ConfigError: there is no run, or its own code has changed and is not kept.
    """
    path = Path(folder)
    if not (path / "config.json").is_file():
        raise ConfigError(f"{path}: no run's folder (there is no config.json in it)")
    config = store.config(path)
    if config is None:
        raise ConfigError(f"{path}: config.json is damaged, or another version's")
    if extension.source_hash(own_code(store.with_kept_code(path, config))) != config.runtime.source:
        named = ", ".join(own_code(config).values())
        raise ConfigError(f"{path}: {named} is not what the run was made with, and the run has kept no copy of it")
    return DepthRun(path, config) if isinstance(config, DepthConfig) else Run(path, config)


@functools.partial(jax.jit, static_argnums=0)
def _score(problem: Problem, predictions: Tree, targets: Tree) -> Any:
    return programs.score(problem, predictions, targets)[0]


# Compiled once for all runs of a shape, since a sweep's runs are looked into one after another.


@functools.partial(jax.jit, static_argnums=0)
def _compare(problem: Problem, student: Tree, teacher: Tree) -> Any:
    return jax.lax.map(lambda pair: problem.compare(*pair), (student, teacher))


@functools.partial(jax.jit, static_argnums=0)
def _read_student(problem: DepthProblem, params: Tree, h: Any, context: Tree, hyper: Tree) -> Any:
    return jax.lax.map(lambda last: problem.read(params, last, context, hyper), h)


@functools.partial(jax.jit, static_argnums=0)
def _read_teacher(problem: DepthProblem, params: Tree, h: Any, context: Tree, hyper: Tree) -> Any:
    return jax.lax.map(lambda last: problem.target({"states": norm_rows(last)}, context, hyper), h)


def _normed(inputs: Float[Array, "batches batch width"]) -> Any:
    return jax.lax.map(entry, inputs)


def _states(network: Network) -> Callable[[Tree, Any], Any]:
    return lambda params, x: network.states(params["layers"], entry(x))
