"""The width experiment: an autoencoder holds more features than it has dimensions (arXiv 2505.10465, sec. 2 to 4)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..config import WidthConfig
from . import Problem, Seen, Stream

Tree = Any

LARGEST = 2.0  # active features have values uniform in (0, LARGEST)
MEAN_SQUARE = LARGEST**2 / 3
REPRESENTED, STRONG = 0.5, 1.0  # norms above which a feature's row counts as such
CORNER = 64  # features whose overlaps are kept for a picture
QUANTILES = (5, 25, 50, 75, 95)  # of the rows' norms, in percent
ALMOST_SURE = 1 - 2**-24  # the largest probability below 1 that float32 tells from it


@dataclass(frozen=True)
class FeatureStream(Stream):
    """Sparse inputs: feature i is active with probability p_i, at a value uniform in (0, 2).

    Events fall on samples and features at random, on each feature of each sample with rate -log(1 - p_i), so that it
    meets one or more with probability p_i, independently of all others. That takes three random numbers for each
    active feature, where a Bernoulli draw takes one for each of all.

    Attributes:
        room: the events that a batch holds; more happen in one batch of 10^12 (see `problem_of`), and are left out.
    """

    count: int
    batch: int
    room: int

    def init(self, source: Tree) -> Tree:
        """The frequencies p[count], and the shares of their events, summed up from the rarest feature on."""
        rates = event_rates(source["frequencies"])
        return {"frequencies": source["frequencies"], "events": jnp.cumsum(rates[::-1])}

    def draw(self, fixed: Tree, key: PRNGKeyArray) -> Tree:
        """The active features of a batch: in which sample, which one, and its value, each [room].

        Where there are fewer, and where an event meets an active feature again, the value is 0.
        """
        number, places = jax.random.split(key)
        total = fixed["events"][-1]
        happens = jnp.arange(self.room) < jax.random.poisson(number, self.batch * total)
        at, sample, value = jax.random.bits(places, (3, self.room))
        # 32 bits as a float are finest near 0, where the rarest features are
        share = at.astype(jnp.float32) * 2.0**-32 * total
        feature = self.count - 1 - jnp.searchsorted(fixed["events"], share).clip(0, self.count - 1).astype(jnp.int32)
        size = self.batch * self.count
        place = jnp.where(happens, (sample % self.batch).astype(jnp.int32) * self.count + feature, size)
        order = jnp.argsort(place)
        place, value = place[order], value[order].astype(jnp.float32) * LARGEST * 2.0**-32
        first = jnp.concatenate([jnp.ones(1, bool), place[1:] != place[:-1]])
        value = jnp.where(first & (place < size), value, 0.0)
        sample, feature = jnp.divmod(jnp.minimum(place, size - 1), self.count)
        return {"sample": sample, "feature": feature, "value": value}

    def context(self, fixed: Tree) -> Tree:
        """The frequencies, for what is measured."""
        return {"frequencies": fixed["frequencies"]}

    def flops(self) -> float:
        """Sorting and searching the events."""
        return 20.0 * self.room * math.log2(self.room)


@dataclass(frozen=True)
class SuperpositionProblem(Problem):
    """relu(x W W^T + b) is to be x; the loss of a sample is the sum of the squared errors of all features."""

    stream: FeatureStream
    width: int

    def label(self) -> str:
        return f"{self.stream.count} features, width {self.width}"

    def init(self, key: PRNGKeyArray) -> Tree:
        """W[count, width] ~ N(0, 1 / width), b[count] ~ N(0, 1)."""
        rows, biases = jax.random.split(key)
        W = jax.random.normal(rows, (self.stream.count, self.width)) * self.width**-0.5
        return {"W": W, "b": jax.random.normal(biases, (self.stream.count,))}

    def start(self, params: Tree, hyper: Tree) -> Tree:
        return params | {"b": params["b"] * hyper["bias"]}

    def predict(self, params: Tree, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch count"]:
        """The features as they come out."""
        W, sample = params["W"], batch["sample"]
        rows = batch["value"][:, None] * W[batch["feature"]]
        hidden = jnp.zeros((self.stream.batch, self.width)).at[sample].add(rows, indices_are_sorted=True)
        return jax.nn.relu(hidden @ W.T + params["b"])

    def target(self, batch: Tree, context: Tree, hyper: Tree) -> Float[Array, "batch count"]:
        """The features as they went in."""
        x = jnp.zeros((self.stream.batch, self.stream.count))
        return x.at[batch["sample"], batch["feature"]].add(batch["value"], indices_are_sorted=True)

    def compare(
        self, prediction: Float[Array, "batch count"], target: Float[Array, "batch count"]
    ) -> Float[Array, " batch"]:
        """The sum over features of the squared errors, as the paper's figures show it."""
        return jnp.sum(jnp.square(prediction - target), axis=1)

    def transform(self, hyper: Tree, rate: Any) -> optax.GradientTransformation:
        """Decay of the rows of W (see `decayed`), and the rate of b."""

        def change(updates: Tree, params: Tree) -> Tree:
            W = updates["W"] + decayed(params["W"], rate * hyper["row_decay"])
            return {"W": W, "b": updates["b"] * hyper["bias_rate"]}

        return optax.stateless(change)

    def measures(self, seen: Seen) -> dict[str, Array]:
        """The shares of features with a row of norm above 1/2 and above 1, the mean squared overlap of the represented
        rows, <v^2> sum p_i over the unrepresented ones (what the loss is in the weak regime, arXiv 2505.10465,
        Fig. 5), and quantiles of the norms."""
        W = seen.params["W"]
        norms = jnp.linalg.norm(W, axis=1)
        represented = norms > REPRESENTED
        missing = MEAN_SQUARE * jnp.sum(jnp.where(represented, 0.0, seen.context["frequencies"]))
        quantiles = jnp.percentile(norms, jnp.array(QUANTILES))
        return {
            "represented": jnp.mean(represented),
            "strong": jnp.mean(norms > STRONG),
            "overlap": mean_squared_overlap(W, represented),
            "missing": missing,
            **{f"norm_{q:02}": quantiles[i] for i, q in enumerate(QUANTILES)},
        }

    def pictured(self, params: Tree) -> dict[str, Array]:
        """The norms of all rows [count], and W W^T of the most frequent features."""
        W = params["W"]
        corner = W[:CORNER]
        return {"row_norms": jnp.linalg.norm(W, axis=1), "overlaps": corner @ corner.T}

    def flops(self) -> float:
        """x W W^T and its gradients but for the sparse x W, and a few operations for each of the outputs."""
        return 6.0 * self.stream.batch * self.stream.count * (self.width + 30)

    def activation_bytes(self) -> float:
        """The outputs, the inputs, their difference, and the hidden rows."""
        return 4.0 * self.stream.batch * (3 * self.stream.count + 2 * self.width)


def event_rates(frequencies: Float[Array, " count"]) -> Float[Array, " count"]:
    """The rates at which events must fall on features that are to meet one or more with these probabilities."""
    return -jnp.log1p(-jnp.minimum(frequencies, ALMOST_SURE))


def decayed(W: Float[Array, "count width"], share: Any) -> Float[Array, "count width"]:
    """What decay adds to the rows of W, for a share of them (the rate times the decay).

    A share above 0 pulls rows to zero, -share W_i. One below 0 pulls them to a norm of 1 from both sides,
    share W_i (1 - 1 / |W_i|); a row of zeros stays one.
    """
    norms = jnp.linalg.norm(W, axis=1, keepdims=True)
    to_one = share * (W - W / jnp.where(norms > 0, norms, 1.0))
    return jnp.where(share < 0, to_one, -share * W)


def mean_squared_overlap(W: Float[Array, "count width"], chosen: Array) -> Array:
    """The mean of cos^2 over all pairs of different chosen rows; not a number for fewer than two of them."""
    norms = jnp.linalg.norm(W, axis=1, keepdims=True)
    unit = jnp.where(chosen[:, None], W / jnp.where(norms > 0, norms, 1.0), 0.0)
    n = jnp.sum(chosen)
    return (jnp.sum(jnp.square(unit.T @ unit)) - n) / (n * (n - 1))


def problem_of(config: WidthConfig) -> SuperpositionProblem:
    """The static part of a resolved config."""
    expected = config.train.batch * float(event_rates(source_of(config)["frequencies"]).sum())
    room = 2 ** math.ceil(math.log2(expected + 8 * math.sqrt(expected) + 8))  # so that many frequencies share programs
    return SuperpositionProblem(FeatureStream(config.features.count, config.train.batch, room), config.student.width)


def source_of(config: WidthConfig) -> Tree:
    """The features' frequencies."""
    return {"frequencies": np.float32(config.features.frequencies())}


def hyper_of(config: WidthConfig) -> dict[str, float]:
    """The decay, how b starts, and its rate over that of W."""
    optimizer, student = config.optimizer, config.student
    assert optimizer.lr and optimizer.bias_lr and optimizer.bias_power is not None
    bias_rate = optimizer.bias_lr * student.width**-optimizer.bias_power / (optimizer.lr * config.rate_scale())
    return {"row_decay": student.decay, "bias": student.bias, "bias_rate": bias_rate}
