"""The Hessian of a loss by Hessian-vector products: its largest eigenvalues (Lanczos), its trace (Hutchinson)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

Tree = Any
Product = Callable[[Float[Array, " parameters"]], Float[Array, " parameters"]]


def hessian_product(loss: Callable[[Tree], Any], params: Tree) -> tuple[Product, int]:
    """v -> H v for the Hessian of `loss` at `params`, both flat, and the number of parameters."""
    flat, unravel = ravel_pytree(params)
    gradient = jax.grad(lambda at: loss(unravel(at)))
    return lambda v: jax.jvp(gradient, (flat,), (v,))[1], flat.size


def top_eigenvalues(
    loss: Callable[[Tree], Any], params: Tree, count: int, steps: int, seed: int = 0
) -> Float[Array, " count"]:
    """The `count` algebraically largest eigenvalues of the Hessian, largest first.

    Lanczos from a random vector, orthogonalised twice against all earlier ones; exact once `steps` reaches the number
    of distinct eigenvalues that the vector has a part in.

    Args:
        loss: params -> a number.
        params: where.
        count: at most `steps`.
        steps: Hessian-vector products; at most as many as there are parameters are made.
        seed: of the first vector.
    """
    product, size = hessian_product(loss, params)
    steps = min(steps, size)
    first = jax.random.normal(jax.random.key(seed), (size,))

    def step(basis: Any, i: Any) -> tuple[Any, tuple[Any, Any]]:
        v = basis[i]
        w = product(v)
        along = v @ w
        for _ in range(2):
            w = w - basis.T @ (basis @ w)
        length = jnp.linalg.norm(w)
        # Where the space is exhausted, a vector of zeros adds eigenvalues of zero and nothing else
        following = jnp.where(length > 1e-6 * jnp.maximum(jnp.abs(along), 1e-30), w / jnp.maximum(length, 1e-30), 0.0)
        return basis.at[i + 1].set(following), (along, jnp.where(following.any(), length, 0.0))

    basis = jnp.zeros((steps + 1, size)).at[0].set(first / jnp.linalg.norm(first))
    _, (along, between) = jax.lax.scan(step, basis, jnp.arange(steps))
    tridiagonal = jnp.diag(along) + jnp.diag(between[:-1], 1) + jnp.diag(between[:-1], -1)
    return jnp.linalg.eigvalsh(tridiagonal)[::-1][:count]


def hutchinson_trace(loss: Callable[[Tree], Any], params: Tree, probes: int, seed: int = 1) -> Float[Array, ""]:
    """An unbiased estimate of the Hessian's trace: the mean of v H v over random signs v."""
    product, size = hessian_product(loss, params)
    signs = jax.random.rademacher(jax.random.key(seed), (probes, size), jnp.float32)
    return jnp.mean(jax.lax.map(lambda v: v @ product(v), signs))
