"""The residual network that teachers and students are made of (arXiv 2602.05970, app. C).

    h_0 = norm(x),   h_{l+1} = h_l + W2_l relu(W1_l norm(h_l) + b1_l)^2,   y = norm(h_depth)

A block is written for one state vector. The batch is added outside as the last axis, so that states are columns
`h[width, batch]`; layers are stacked on a leading axis and applied by a scan, so that compile time does not grow
with depth.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

Layers = Any  # the pytree of a block's parameters, every leaf with a leading axis for the layers
EPSILON = 1e-6


def rms_norm(h: Float[Array, "width"]) -> Float[Array, "width"]:
    """h / sqrt(mean h^2), without a gain."""
    return h * jax.lax.rsqrt(jnp.mean(h * h) + EPSILON)


class Block(nnx.Module):
    """The published block, h <- h + W2 relu(W1 norm(h) + b1)^2, for one state vector.

    Weights and bias start uniform in +-1/sqrt(fan in), as torch's Linear does (reference: app. C).
    """

    def __init__(self, width: int, hidden: int, *, rngs: nnx.Rngs):
        def uniform(shape: tuple[int, ...], fan_in: int) -> nnx.Param:
            return nnx.Param(jax.random.uniform(rngs.params(), shape, minval=-(fan_in**-0.5), maxval=fan_in**-0.5))

        self.W1 = uniform((hidden, width), width)
        self.b1 = uniform((hidden,), width)
        self.W2 = uniform((width, hidden), hidden)

    def __call__(self, h: Float[Array, "width"]) -> Float[Array, "width"]:
        return h + self.W2[...] @ jnp.square(jax.nn.relu(self.W1[...] @ rms_norm(h) + self.b1[...]))


@dataclass(frozen=True)
class Network:
    """`depth` blocks of one kind: the static part of a network. Parameters are passed in, stacked over layers."""

    width: int
    hidden: int
    depth: int

    def init(self, key: PRNGKeyArray, index: Int[Array, "layers"] | None = None) -> Layers:
        """Fresh layers. Layer l is drawn from `fold_in(key, index[l])`; equal indices give equal layers."""
        index = jnp.arange(self.depth) if index is None else index

        def layer(i: Int[Array, ""]) -> Any:
            block = Block(self.width, self.hidden, rngs=nnx.Rngs(params=jax.random.fold_in(key, i)))
            return nnx.to_pure_dict(nnx.state(block))

        return jax.lax.map(layer, index)  # a map, since XLA compiles stacked random numbers very slowly

    def block(self, layer: Any, h: Float[Array, "width"]) -> Float[Array, "width"]:
        """One block on one state vector."""
        shape = nnx.eval_shape(lambda: Block(self.width, self.hidden, rngs=nnx.Rngs(0)))
        graph, state = nnx.split(shape)
        nnx.replace_by_pure_dict(state, layer)
        return nnx.merge(graph, state)(h)

    def __call__(self, layers: Layers, h: Float[Array, "width batch"]) -> Float[Array, "width batch"]:
        """The last state h_depth, before the final norm. Differentiable; the backward pass recomputes layers."""
        return apply_layers(self.block, layers, h)

    def states(self, layers: Layers, h: Float[Array, "width batch"]) -> Float[Array, "depth+1 width batch"]:
        """All states h_0 ... h_depth."""
        block = columns(self.block)
        _, later = jax.lax.scan(lambda h, layer: (block(layer, h),) * 2, h, layers)
        return jnp.concatenate([h[None], later])


def columns(block: Callable[..., Any]) -> Callable[..., Any]:
    """A function of (layer, one vector) as a function of (layer, columns of vectors)."""
    return jax.vmap(block, in_axes=(None, -1), out_axes=-1)


norm_columns = jax.vmap(rms_norm, in_axes=-1, out_axes=-1)


def apply_layers(
    block: Callable[..., Any], layers: Layers, h: Float[Array, "width batch"]
) -> Float[Array, "width batch"]:
    """The stacked layers applied in order; only the states between layers are kept for the backward pass."""
    step = jax.checkpoint(lambda h, layer: (columns(block)(layer, h), None))
    return jax.lax.scan(step, h, layers)[0]


def teacher_layers(
    network: Network,
    key: PRNGKeyArray,
    index: Int[Array, "layers"],
    rho: Float[Array, ""],
    scale: Float[Array, ""],
) -> Layers:
    """A teacher's layers, W_l = sqrt(rho) W_shared + sqrt(1 - rho) W_own[index_l], with W2 scaled by 1/sqrt(depth).

    Args:
        network: the teacher's shape.
        key: where all its weights come from.
        index: which own layer is used at each depth: 0, 1, 2, ... for fresh ones, repeated for tied blocks.
        rho: the share of weight variance that all layers have in common; 1 is a tied teacher.
        scale: multiplies 1/sqrt(depth).

    Source: arXiv 2602.05970, app. C (rho = 0 and 1); the values between are an extension.
    """
    own_key, shared_key = jax.random.fold_in(key, 0), jax.random.fold_in(key, 1)
    own = network.init(own_key, index)
    shared = network.init(shared_key, jnp.zeros(1, jnp.int32))
    layers = jax.tree.map(lambda s, o: jnp.sqrt(rho) * s + jnp.sqrt(1.0 - rho) * o, shared, own)
    return layers | {"W2": layers["W2"] * (scale * network.depth**-0.5)}
