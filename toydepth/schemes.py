"""Integration schemes: how a layer's blocks move the state of a residual network.

A block maps a state h to h + f(h), as if over a unit of time. A scheme of order p takes one such step with several
independent blocks; for equal ones it is the classical Runge-Kutta step of that order, whose error over a path that is
cut into l steps falls as l^-p (arXiv 2602.05970, app. C.3, for the midpoint).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # figures, which import no JAX, need the orders
    from jaxtyping import Array, Float

    State = Float[Array, " width"]
    Blocks = Sequence[Callable[[State], State]]


def euler(blocks: Blocks, h: State) -> State:
    """h <- h + f(h); order 1."""
    (block,) = blocks
    return block(h)


def midpoint(blocks: Blocks, h: State) -> State:
    """h <- h + f_2(h + f_1(h) / 2); order 2."""
    first, second = blocks
    return h + _update(second, h + _update(first, h) / 2)


def rk4(blocks: Blocks, h: State) -> State:
    """h <- h + (k_1 + 2 k_2 + 2 k_3 + k_4) / 6, each k_i = f_i at the state that k_(i-1) leads to; order 4."""
    first, second, third, fourth = blocks
    k1 = _update(first, h)
    k2 = _update(second, h + k1 / 2)
    k3 = _update(third, h + k2 / 2)
    k4 = _update(fourth, h + k3)
    return h + (k1 + 2 * k2 + 2 * k3 + k4) / 6


def _update(block: Callable[[State], State], h: State) -> State:
    return block(h) - h


SCHEMES = {"euler": euler, "midpoint": midpoint, "rk4": rk4}
STAGES = {"euler": 1, "midpoint": 2, "rk4": 4}  # independent blocks in a layer
ORDERS = {"euler": 1, "midpoint": 2, "rk4": 4}
