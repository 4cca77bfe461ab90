"""What can be a block: a Flax module or a pair of functions, written for one state vector.

class MyBlock(nnx.Module):                          # or linen, with the fields `width` and `hidden`
    def __init__(self, width, hidden, *, rngs): ...
    def __call__(self, h): return h + ...           # [width] -> [width]

my_block = (init, apply)                            # init(key, width, hidden) -> params, apply(params, h) -> h
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen, nnx

Params = Any
Functions = tuple[Callable[[Any], Params], Callable[[Params, Any], Any]]


@functools.cache
def functions(kind: Any, **sizes: Any) -> Functions:
    """A block of given sizes as (init, apply): init(key) -> params and apply(params, h[width]) -> h[width].

    Equal kinds and sizes give the same functions, so that what is compiled for them is shared.

    Raises:
        TypeError: `kind` is none of the things that can be a block.
    """
    if isinstance(kind, type) and issubclass(kind, nnx.Module):
        build: Any = kind
        return of_module(lambda rngs: build(**sizes, rngs=rngs))
    if isinstance(kind, type) and issubclass(kind, linen.Module):
        module = kind(**sizes)
        return (
            lambda key: _only_params(module.init(key, jnp.zeros(sizes["width"]))),
            lambda params, h: module.apply({"params": params}, h),
        )
    if isinstance(kind, tuple) and len(kind) == 2 and all(map(callable, kind)):
        init, apply = kind
        return lambda key: init(key, **sizes), apply
    raise TypeError("is neither a Flax module's class nor a pair of functions (init, apply)")


def of_module(build: Callable[[nnx.Rngs], nnx.Module]) -> Functions:
    """An nnx module, built from its random numbers, as (init, apply).

    Raises:
        TypeError: when called, if the module has other state than parameters.
    """

    def init(key: Any) -> Params:
        return nnx.to_pure_dict(_state(build(nnx.Rngs(key)))[1])

    def apply(params: Params, h: Any) -> Any:
        graph, state = _state(nnx.eval_shape(lambda: build(nnx.Rngs(0))))
        nnx.replace_by_pure_dict(state, params)
        return nnx.merge(graph, state)(h)  # type: ignore[operator]

    return init, apply


def check(block: Functions, width: int) -> None:
    """Raises TypeError, with a message for people, unless a block maps state vectors to state vectors."""
    init, apply = block
    params = jax.eval_shape(init, jax.random.key(0))
    if not jax.tree.leaves(params):
        raise TypeError("has no parameters")
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            raise TypeError(f"has a parameter {jax.tree_util.keystr(path, simple=True, separator='.')} of {leaf.dtype}")
    state = jax.ShapeDtypeStruct((width,), jnp.float32)
    found = jax.eval_shape(apply, params, state)
    if not isinstance(found, jax.ShapeDtypeStruct) or (found.shape, found.dtype) != (state.shape, state.dtype):
        shown = f"{found.dtype}{list(found.shape)}" if isinstance(found, jax.ShapeDtypeStruct) else type(found).__name__
        raise TypeError(f"maps a state float32[{width}] to {shown}, not to another state")


def flops(block: Functions, width: int) -> float:
    """Floating-point operations of a block on one state vector, counted by XLA."""
    init, apply = block
    params = jax.eval_shape(init, jax.random.key(0))
    costs = jax.jit(apply).lower(params, jax.ShapeDtypeStruct((width,), jnp.float32)).cost_analysis()
    return float((costs or {}).get("flops", 0.0))


def _state(module: nnx.Module) -> tuple[Any, Any]:
    graph, params, rest = nnx.split(module, nnx.Param, ...)
    if jax.tree.leaves(rest):
        kinds = sorted({type(variable).__name__ for _, variable in nnx.to_flat_state(rest)})
        raise TypeError(f"has state besides its parameters ({', '.join(kinds)}), which is not trained or kept")
    return graph, params


def _only_params(variables: Any) -> Params:
    if set(variables) - {"params"}:
        raise TypeError(f"has state besides its parameters ({', '.join(set(variables) - {'params'})})")
    return variables.get("params", {})
