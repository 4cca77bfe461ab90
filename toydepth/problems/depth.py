"""The depth experiment: a residual student imitates a deep residual teacher (arXiv 2602.05970, sec. 4, app. C)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .. import blocks
from ..config import ConfigError, DepthConfig
from ..extension import load
from ..network import Block, Network, entry, norm_rows, rows, teacher_layers
from . import ROLES, Problem, Stream

Tree = Any
W2 = jax.tree_util.DictKey("W2")


@dataclass(frozen=True)
class TeacherStream(Stream):
    """Gaussian inputs and the final states of a teacher on them: a residual network, or somebody's own module."""

    network: Network
    vocab: int
    batch: int
    own: Any = None

    def init(self, source: Tree) -> Tree:
        """The teacher of a source (see `source_of`): its parameters, stacked over layers, and a head [vocab, width]."""
        key = jax.random.key(source["seed"])
        layers_key, head_key = jax.random.split(jax.random.fold_in(key, ROLES["teacher"]))
        if self.own is None:
            layers = teacher_layers(self.network, layers_key, source["index"], source["rho"], source["scale"])
        else:
            layers = self.functions[0](layers_key)
        shape, bound = (self.vocab, self.network.width), self.network.width**-0.5
        linear = jax.random.uniform(head_key, shape, minval=-bound, maxval=bound)
        normal = jax.random.normal(head_key, shape) * bound
        return {"layers": layers, "head": jnp.where(source["normal_head"], normal, linear)}

    def draw(self, fixed: Tree, key: PRNGKeyArray) -> Tree:
        """Inputs x ~ N(0, I), RMS-normalised, and the teacher's RMS-normalised final states, both [batch, width]."""
        inputs = entry(self.inputs(key))
        return {"inputs": inputs, "states": self.states(fixed, inputs)}

    def inputs(self, key: PRNGKeyArray) -> Float[Array, "batch width"]:
        """x ~ N(0, I)."""
        return jax.random.normal(key, (self.batch, self.network.width))

    def states(self, fixed: Tree, inputs: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        """The teacher's RMS-normalised final states."""
        if self.own is None:
            return norm_rows(self.network(fixed["layers"], inputs))
        return norm_rows(rows(self.functions[1])(fixed["layers"], inputs))

    def context(self, fixed: Tree) -> Tree:
        return {"head": fixed["head"]}

    def flops(self) -> float:
        if self.own is None:
            return _forward_flops(self.network) * self.batch
        return blocks.flops(self.functions, self.network.width) * self.batch

    @property
    def functions(self) -> blocks.Functions:
        """Somebody's own teacher as (init, apply)."""
        network = self.network
        return blocks.functions(self.own, width=network.width, hidden=network.hidden, depth=network.depth)


@dataclass(frozen=True)
class DepthProblem(Problem):
    """A student of `network.depth` layers on a teacher's stream."""

    stream: TeacherStream
    network: Network
    loss: str
    head: str

    def label(self) -> str:
        network = self.network
        kind = "" if network.block is Block else f", {getattr(network.block, '__name__', 'own block')}"
        scheme = "" if network.scheme == "euler" else f", {network.scheme}"
        return f"depth {network.depth}, width {network.width}, hidden {network.hidden}{scheme}{kind}, {self.loss}"

    def init(self, key: PRNGKeyArray) -> Tree:
        """Layers with W2 = 0 (the identity map) and, where the student learns its head, a zero head.

        Somebody's own block starts as it is written.
        """
        layers = self.network.init(key)
        if self.network.block is Block:
            layers = jax.tree_util.tree_map_with_path(_without_w2, layers)
        params = {"layers": layers}
        return params | {"head": jnp.zeros((self.stream.vocab, self.network.width))} if self._learns_head else params

    def grown(self, params: Tree) -> Tree:
        """A student of half the depth with every layer split into two half steps: both keep W1 and b1, W2 is halved."""

        def split(path: Any, leaf: Any) -> Any:
            twice = jnp.repeat(leaf, 2, axis=0)
            return twice / 2 if path[-1] == W2 else twice

        return params | {"layers": jax.tree_util.tree_map_with_path(split, params["layers"])}

    def predict(self, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch outputs"]:
        """The student's RMS-normalised final states (mse), or the log of its softmax (kl)."""
        return self.read(params, self.network(params["layers"], batch["inputs"]), context, hyper)

    def read(
        self, params: Tree, last: Float[Array, "batch width"], context: Tree, hyper: Tree
    ) -> Float[Array, "batch outputs"]:
        """What the student says where `last` are its states before the final norm."""
        # Normalised, a state that has overflowed would be 0 and pass for a sound one
        states = jnp.where(jnp.isfinite(jnp.sum(last * last)), norm_rows(last), jnp.nan)
        if self.loss == "mse":
            return states
        head = params["head"] if self._learns_head else context["head"]
        return jax.nn.log_softmax(states @ head.T / hyper["student_temperature"], axis=1)

    def target(self, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch outputs"]:
        """The teacher's final states, or the log of its softmax at the temperature."""
        if self.loss == "mse":
            return batch["states"]
        return jax.nn.log_softmax(batch["states"] @ context["head"].T / hyper["temperature"], axis=1)

    def compare(
        self, prediction: Float[Array, "batch outputs"], target: Float[Array, "batch outputs"]
    ) -> Float[Array, " batch"]:
        """The mean squared difference of the states, or KL(teacher || student)."""
        if self.loss == "mse":
            return jnp.mean(jnp.square(prediction - target), axis=1)
        return jnp.sum(jnp.exp(target) * (target - prediction), axis=1)

    def layers(self, params: Tree, batch: Tree) -> dict[str, Array]:
        """The state behind every layer, and its mean square, which overflows first."""
        states = self.network.states(params["layers"], batch["inputs"])[1:]
        return {"state": states, "state's mean square": jnp.mean(states * states, axis=-1)}

    def flops(self) -> float:
        """One forward and one backward (twice a forward) pass; recomputation does not count."""
        heads = 2.0 * self.stream.vocab * self.network.width if self.loss == "kl" else 0.0
        return 3.0 * (_forward_flops(self.network) + heads) * self.stream.batch

    def activation_bytes(self) -> float:
        """The states between layers; then one layer's stages, each with its hidden units and their gradients, or the
        logits, their softmaxes and their gradients, whatever is larger."""
        network = self.network
        layer = max(1, len(network.stages)) * (2 * network.hidden + 3 * network.width)
        logits = 5 * self.stream.vocab if self.loss == "kl" else 0
        return 4.0 * self.stream.batch * (network.width * network.depth + max(layer, logits))

    @property
    def _learns_head(self) -> bool:
        return self.loss == "kl" and self.head == "learned"


def problem_of(config: DepthConfig) -> DepthProblem:
    """The static part of a resolved config.

    Raises:
        ConfigError: somebody's own block or teacher cannot be loaded, or is none.
    """
    teacher, student, target = config.teacher, config.student, config.target
    assert teacher.hidden and student.hidden
    own = load("teacher.kind", teacher.kind) if ":" in teacher.kind else None
    block = load("student.block", student.block) if ":" in student.block else Block
    reference = Network(teacher.width, teacher.hidden, teacher.depth)
    stream = TeacherStream(reference, target.vocab, config.train.batch, own)
    network = Network(teacher.width, student.hidden, student.depth, student.scheme, block)
    problem = DepthProblem(stream, network, target.loss, target.head if target.loss == "kl" else "none")
    if own is not None:
        _check("teacher.kind", teacher.kind, lambda: stream.functions, teacher.width)
    if block is not Block:
        _check("student.block", student.block, lambda: network.functions, teacher.width)
    return problem


def source_of(config: DepthConfig) -> Tree:
    """The numbers that a teacher is made from; its kind is data, not a shape."""
    teacher = config.teacher
    assert teacher.seed is not None
    layers = np.arange(teacher.depth, dtype=np.int32)
    return {
        "seed": np.uint32(teacher.seed),
        "index": layers // teacher.block_size if teacher.kind == "blocks" else layers,
        "rho": np.float32({"tied": 1.0, "mixed": teacher.rho}.get(teacher.kind, 0.0)),
        "scale": np.float32(teacher.scale),
        "normal_head": np.bool_(teacher.head_init == "normal"),
    }


def hyper_of(config: DepthConfig) -> dict[str, float]:
    """The numbers that the loss uses."""
    temperature = config.target.temperature
    student = temperature if config.target.student_temperature == "teacher" else 1.0
    return {"temperature": temperature, "student_temperature": student}


def _forward_flops(network: Network) -> float:
    """Of one sample through all layers; the published block's matrix products, or what XLA counts of another one."""
    published = network.block is Block
    block = 4.0 * network.width * network.hidden if published else blocks.flops(network.functions, network.width)
    return block * network.depth * max(1, len(network.stages))


def _without_w2(path: Any, leaf: Any) -> Any:
    return jnp.zeros_like(leaf) if path[-1] == W2 else leaf


def _check(field: str, reference: str, found: Callable[[], blocks.Functions], width: int) -> None:
    """Tries somebody's own code on shapes alone, so that what is wrong with it is said before anything compiles."""
    try:
        blocks.check(found(), width)
    except Exception as error:
        reason = str(error) if isinstance(error, TypeError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{field}={reference}: {(reason.splitlines() or [''])[0]}") from error
