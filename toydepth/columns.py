"""The published block's layers, written by hand for many states at once: the same mathematics as `network.Block`.

    n = norm(h),   r = relu(W1 n + b1),   h' = h + W2 r^2

States are columns here, `h[width, batch]`, and with g the gradient with respect to h' a layer is passed backwards by

    d W2 = g (r^2)^T,   dz = 2 r * (W2^T g),   d W1 = dz n^T,   d b1 = dz 1
    dn = W1^T dz,       d h = g + s (dn - n mean(n dn)),   s = 1 / sqrt(mean h^2 + epsilon)

It is here for speed alone. On CPUs XLA multiplies small matrices fast only where none of them has to be turned, and
derives, from a block that is written for one vector, products that must be. Here every product is of matrices as they
lie, but for the transposes of the weights, which are made once for all layers.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Layers = Any  # {"W1": [depth, hidden, width], "b1": [depth, hidden], "W2": [depth, width, hidden]}
EPSILON = 1e-6


@jax.custom_vjp
def apply_published(layers: Layers, h: Float[Array, "batch width"]) -> Float[Array, "batch width"]:
    """The stacked layers applied in order to rows of states. Reverse mode only.

    The forward pass keeps the states between layers, the backward pass recomputes what is inside a layer.
    """
    return jax.lax.scan(lambda h, layer: (_after(layer, h), None), h.T, layers)[0].T


def _after(layer: Any, h: Float[Array, "width batch"]) -> Float[Array, "width batch"]:
    _, n = _normed(h)
    return h + layer["W2"] @ jnp.square(_activations(layer, n))


def _normed(h: Float[Array, "width batch"]) -> tuple[Float[Array, " batch"], Float[Array, "width batch"]]:
    s = jax.lax.rsqrt(jnp.mean(h * h, 0) + EPSILON)
    return s, h * s


def _activations(layer: Any, n: Float[Array, "width batch"]) -> Float[Array, "hidden batch"]:
    return jax.nn.relu(layer["W1"] @ n + layer["b1"][:, None])


def _forward(layers: Layers, h: Any) -> tuple[Any, Any]:
    last, before = jax.lax.scan(lambda h, layer: (_after(layer, h), h), h.T, layers)
    return last.T, (layers, before)


def _backward(kept: Any, gradient: Any) -> tuple[Any, Any]:
    layers, before = kept

    def through(g: Any, at: Any) -> tuple[Any, Any]:
        layer, h = at
        s, n = _normed(h)
        r = _activations(layer, n)
        dz = (layer["W2T"] @ g) * (2.0 * r)
        dn = layer["W1T"] @ dz
        return g + s * (dn - n * jnp.mean(n * dn, 0)), (dz @ n.T, jnp.sum(dz, 1), jnp.square(r) @ g.T)

    turned = {"W1T": jnp.swapaxes(layers["W1"], 1, 2), "W2T": jnp.swapaxes(layers["W2"], 1, 2)}
    gradient, (W1, b1, W2T) = jax.lax.scan(through, gradient.T, (layers | turned, before), reverse=True)
    return {"W1": W1, "b1": b1, "W2": jnp.swapaxes(W2T, 1, 2)}, gradient.T


apply_published.defvjp(_forward, _backward)
