"""The time experiment: a linear softmax head learns another one's peaked softmax (arXiv 2602.03685, sec. 3 and 4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from ..config import TimeConfig
from ..curvature import hutchinson_trace, top_eigenvalues
from ..network import norm_rows
from . import ROLES, Problem, Seen, Stream

Tree = Any


@dataclass(frozen=True)
class HeadStream(Stream):
    """RMS-normalised Gaussian inputs, and behind them a linear teacher.

    Students compute its outputs themselves: they are four times as large as the inputs, and no dearer to make than to
    fetch.
    """

    width: int
    vocab: int
    batch: int

    def init(self, source: Tree) -> Tree:
        """The teacher W[width, vocab], uniform in +-1/sqrt(width), and the inputs' scales [width] (see `source_of`)."""
        key = jax.random.fold_in(jax.random.key(source["seed"]), ROLES["teacher"])
        scales = jnp.arange(1.0, self.width + 1.0) ** (-source["spectrum"] / 2.0)
        return {"W": linear(key, self.width, self.vocab), "scales": scales}

    def draw(self, fixed: Tree, key: PRNGKeyArray) -> Tree:
        """Inputs [batch, width]."""
        return {"inputs": norm_rows(fixed["scales"] * jax.random.normal(key, (self.batch, self.width)))}

    def context(self, fixed: Tree) -> Tree:
        return {"W": fixed["W"]}

    def flops(self) -> float:
        """About as many as random numbers and norms take."""
        return 100.0 * self.batch * self.width


@dataclass(frozen=True)
class HeadProblem(Problem):
    """A student y = x W, by KL(teacher || student) of their softmaxes or by mean squared error."""

    stream: HeadStream
    loss: str
    eigenvalues: int
    lanczos: int
    probes: int

    def label(self) -> str:
        return f"{self.stream.width} inputs, {self.stream.vocab} outputs, {self.loss}"

    def init(self, key: PRNGKeyArray) -> Tree:
        return {"W": linear(key, self.stream.width, self.stream.vocab)}

    def start(self, params: Tree, hyper: Tree) -> Tree:
        return {"W": params["W"] * hyper["init_scale"]}

    def predict(self, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch vocab"]:
        """The student's outputs."""
        return batch["inputs"] @ params["W"]

    def target(self, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch vocab"]:
        """The teacher's outputs over the temperature."""
        return batch["inputs"] @ (context["W"] / hyper["temperature"])

    def compare(
        self, prediction: Float[Array, "batch vocab"], target: Float[Array, "batch vocab"]
    ) -> Float[Array, " batch"]:
        """KL(softmax(target) || softmax(prediction)), or the mean squared difference."""
        if self.loss == "mse":
            return jnp.mean(jnp.square(prediction - target), axis=1)
        return kl(prediction, target)

    def measures(self, seen: Seen) -> dict[str, Array]:
        """The weights' norm, the outputs' standard deviation, the next update's radial and tangential parts, the
        gradient's norm, and, where asked for, the Hessian's largest eigenvalues and trace."""
        W, update = seen.params["W"], seen.update["W"]
        norm = jnp.linalg.norm(W)
        radial, tangential = parts(update, W)
        said = jax.lax.map(lambda inputs: inputs @ W, seen.batches["inputs"])
        found = {
            "weight_norm": norm,
            "logit_std": jnp.std(said),
            "update_radial": radial,
            "update_tangential": jnp.linalg.norm(tangential),
            "gradient_norm": jnp.linalg.norm(seen.gradient["W"]),
        }
        if self.eigenvalues:
            largest = top_eigenvalues(seen.objective, seen.params, self.eigenvalues, self.lanczos)
            found |= {f"hessian_{i + 1}": largest[i] for i in range(self.eigenvalues)}
            found["hessian_trace"] = hutchinson_trace(seen.objective, seen.params, self.probes)
        return found

    def flops(self) -> float:
        """The outputs of student and teacher, and the gradient of the weights."""
        return 6.0 * self.stream.batch * self.stream.width * self.stream.vocab

    def activation_bytes(self) -> float:
        """Both softmaxes, their difference, and the outputs behind them."""
        return 4.0 * self.stream.batch * self.stream.vocab * 4


def linear(key: PRNGKeyArray, width: int, vocab: int) -> Float[Array, "width vocab"]:
    """Weights as torch's Linear has them, uniform in +-1/sqrt(width)."""
    return jax.random.uniform(key, (width, vocab), minval=-(width**-0.5), maxval=width**-0.5)


def parts(update: Float[Array, "width vocab"], W: Float[Array, "width vocab"]) -> tuple[Any, Any]:
    """The length of an update along W (negative where it shrinks W; 0 at W = 0), and the rest of it."""
    norm = jnp.linalg.norm(W)
    direction = W / jnp.where(norm > 0, norm, 1.0)
    radial = jnp.sum(update * direction)
    return radial, update - radial * direction


@jax.custom_vjp
def kl(prediction: Float[Array, "batch vocab"], target: Float[Array, "batch vocab"]) -> Float[Array, " batch"]:
    """KL(softmax(target) || softmax(prediction)) of every row; the target is not differentiated.

    Each softmax is computed once: its gradient, softmax(prediction) - softmax(target), is kept from the forward pass.
    """
    return _kl(prediction, target)[0]


def _kl(prediction: Any, target: Any) -> tuple[Any, Any]:
    (log_q, q), (log_p, p) = _log_softmax(prediction), _log_softmax(target)
    return jnp.sum(p * (log_p - log_q), axis=1), q - p


def _log_softmax(outputs: Any) -> tuple[Any, Any]:
    """The log of the softmax of every row, and the softmax."""
    centred = outputs - jax.lax.stop_gradient(jnp.max(outputs, axis=1, keepdims=True))
    weights = jnp.exp(centred)
    total = jnp.sum(weights, axis=1, keepdims=True)
    return centred - jnp.log(total), weights / total


kl.defvjp(_kl, lambda difference, g: (g[:, None] * difference, None))


def problem_of(config: TimeConfig) -> HeadProblem:
    """The static part of a resolved config."""
    stream = HeadStream(config.teacher.width, config.target.vocab, config.train.batch)
    measure = config.measure
    asked = (measure.eigenvalues, measure.lanczos, measure.probes) if measure.eigenvalues else (0, 0, 0)
    return HeadProblem(stream, config.target.loss, *asked)


def source_of(config: TimeConfig) -> Tree:
    """The numbers that a teacher and its inputs are made from."""
    assert config.teacher.seed is not None
    return {"seed": np.uint32(config.teacher.seed), "spectrum": np.float32(config.teacher.spectrum)}


def hyper_of(config: TimeConfig) -> dict[str, float]:
    """The numbers that the loss and the start use."""
    temperature = config.target.temperature
    return {"temperature": temperature, "init_scale": config.student.init / temperature}
