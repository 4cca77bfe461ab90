"""The residual network that teachers and students are made of (arXiv 2602.05970, app. C).

    h_0 = norm(x),   h_{l+1} = h_l + W2_l relu(W1_l norm(h_l) + b1_l)^2,   y = norm(h_depth)

A block is written for one state vector; the batch is added outside as the first axis, `h[batch, width]`. Layers are
stacked on a leading axis and applied by a scan, so that compile time does not grow with depth. The published block has
a faster way through its layers, `columns.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .blocks import Functions, functions
from .columns import EPSILON, apply_published
from .schemes import SCHEMES, STAGES

Layers = Any  # the pytree of the blocks' parameters, every leaf with a leading axis for the layers


def rms_norm(h: Float[Array, " width"]) -> Float[Array, " width"]:
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

    def __call__(self, h: Float[Array, " width"]) -> Float[Array, " width"]:
        return h + self.W2[...] @ jnp.square(jax.nn.relu(self.W1[...] @ rms_norm(h) + self.b1[...]))


@dataclass(frozen=True)
class Network:
    """`depth` blocks in an integration scheme: the static part of a network. Parameters are passed in, stacked.

    `block` is a Flax module or a pair of functions, see `toydepth.blocks`. A scheme of several stages has as many
    independent blocks in each of its layers, as published for the midpoint (app. C.3), under the names of `stages`.
    """

    width: int
    hidden: int
    depth: int
    scheme: str = "euler"
    block: Any = Block

    @property
    def stages(self) -> tuple[str, ...]:
        """The names of a layer's blocks; a single one needs none."""
        count = STAGES[self.scheme]
        return tuple(f"stage{i + 1}" for i in range(count)) if count > 1 else ()

    @property
    def functions(self) -> Functions:
        """The block's (init, apply)."""
        return functions(self.block, width=self.width, hidden=self.hidden)

    def init(self, key: PRNGKeyArray, index: Int[Array, " layers"] | None = None) -> Layers:
        """Fresh layers. Layer l is drawn from `fold_in(key, index[l])`; equal indices give equal layers."""
        index = jnp.arange(self.depth) if index is None else index
        fresh, _ = self.functions

        def layer(i: Int[Array, ""]) -> Any:
            key_i = jax.random.fold_in(key, i)
            keys = jax.random.split(key_i, len(self.stages)) if self.stages else ()
            return {name: fresh(k) for name, k in zip(self.stages, keys, strict=True)} or fresh(key_i)

        return jax.lax.map(layer, index)  # a map, since XLA compiles stacked random numbers very slowly

    def layer(self, layer: Any, h: Float[Array, " width"]) -> Float[Array, " width"]:
        """One layer on one state vector: a step of the scheme."""
        _, apply = self.functions
        stages = [layer[name] for name in self.stages] or [layer]
        return SCHEMES[self.scheme]([functools.partial(apply, stage) for stage in stages], h)

    def __call__(self, layers: Layers, h: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
        """The last state h_depth, before the final norm. Differentiable; the backward pass recomputes layers."""
        if self.block is Block and self.scheme == "euler":
            return apply_published(layers, h)
        return apply_layers(self.layer, layers, h)

    def states(self, layers: Layers, h: Float[Array, "batch width"]) -> Float[Array, "depth+1 batch width"]:
        """All states h_0 ... h_depth."""
        block = rows(self.layer)
        _, later = jax.lax.scan(lambda h, layer: (block(layer, h),) * 2, h, layers)
        return jnp.concatenate([h[None], later])


def rows(block: Callable[..., Any]) -> Callable[..., Any]:
    """A function of (layer, one vector) as a function of (layer, rows of vectors).

    Rows, because JAX's batching rules move the batch axis to the front wherever ranks differ: asked for columns,
    XLA gets columns for states, rows for hidden units, and copies that transpose in between.
    """
    return jax.vmap(block, in_axes=(None, 0))


norm_rows = jax.vmap(rms_norm)


def entry(x: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
    """h_0 = norm(x), with the same bits wherever it stands: a branch of a condition is compiled by itself."""
    return jax.lax.cond(jnp.all(jnp.isfinite(x)), norm_rows, lambda x: jnp.full_like(x, jnp.nan), x)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def apply_layers(
    block: Callable[..., Any], layers: Layers, h: Float[Array, "batch width"]
) -> Float[Array, "batch width"]:
    """The stacked layers applied in order. Reverse mode only.

    `block` must be hashable and must not close over traced values. The forward pass keeps the states between
    layers, the backward pass recomputes what is inside a layer.
    """
    return jax.lax.scan(lambda h, layer: (rows(block)(layer, h), None), h, layers)[0]


def _forward(block: Callable[..., Any], layers: Layers, h: Any) -> tuple[Any, Any]:
    last, inputs = jax.lax.scan(lambda h, layer: (rows(block)(layer, h), h), h, layers)
    return last, (layers, inputs)


def _backward(block: Callable[..., Any], kept: Any, gradient: Any) -> tuple[Any, Any]:
    layers, inputs = kept
    # XLA's CPU code for the gradient of a tall matrix (hidden x width) is slower than that of its transpose, so tall
    # matrices are differentiated transposed, and turned back once for all layers.
    tall = jax.tree.map(lambda w: w.ndim == 3 and w.shape[1] > w.shape[2], layers)

    def turned(tree: Layers) -> Layers:
        return jax.tree.map(lambda w, is_tall: jnp.swapaxes(w, -1, -2) if is_tall else w, tree, tall)

    def through(gradient: Any, at: Any) -> tuple[Any, Any]:
        layer, h = at
        _, pull = jax.vjp(lambda layer, h: rows(block)(turned(layer), h), turned(layer), h)
        by_layer, gradient = pull(gradient)
        return gradient, by_layer

    gradient, by_layer = jax.lax.scan(through, gradient, (layers, inputs), reverse=True)
    return turned(by_layer), gradient


apply_layers.defvjp(_forward, _backward)


def teacher_layers(
    network: Network,
    key: PRNGKeyArray,
    index: Int[Array, " layers"],
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
