"""What the measures come to where layers have nothing to do with one another. Imports no JAX.

    layers    each token's updates in another order: what order alone does
    tokens    this token's update beside another token's next one: what all tokens have in common
    random    updates of equal norm in random directions: what chance alone does, pi/2 between neighbours

Each of them is made from the states at hand, with a generator that is passed in. States are not isotropic: a few large
directions and a common drift make cosines of their own, so that an angle means something beside these alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .measures import States, angle, middle

NULLS = ("layers", "tokens", "random")
DRAWS = 2000  # orders of the layers
GRAM_FLOATS = 1 << 22  # that pairs of updates may take at once


@dataclass(frozen=True)
class Null:
    """What a mean comes to under a null: its mean, and the interval that holds 95 % of its draws."""

    mean: float
    low: float
    high: float


def shuffled_layers(states: States, rng: np.random.Generator) -> States:
    """The states of each token with its updates in a random order, its own for each token."""
    updates = np.diff(np.asarray(states, np.float64), axis=0)
    order = np.argsort(rng.random(updates.shape[:2]), axis=0)
    return _walked(states, np.take_along_axis(updates, order[..., None], axis=0))


def random_updates(states: States, rng: np.random.Generator) -> States:
    """The states of each token with updates of the same norms in random directions."""
    updates = np.diff(np.asarray(states, np.float64), axis=0)
    drawn = rng.standard_normal(updates.shape)
    scale = np.linalg.norm(updates, axis=-1) / np.linalg.norm(drawn, axis=-1)
    return _walked(states, drawn * scale[..., None])


def shuffled_tokens(states: States, rng: np.random.Generator) -> Float[np.ndarray, "layers-1 tokens"]:
    """The angles between a token's update and the next layer's update of another token; nan of a lone token."""
    updates = np.diff(np.asarray(states, np.float64), axis=0)
    tokens = updates.shape[1]
    if tokens < 2:
        return np.full((max(0, len(updates) - 1), tokens), np.nan)
    # A turn of a shuffled ring: nobody is beside himself
    ring = rng.permutation(tokens)
    other = np.empty(tokens, int)
    other[ring] = np.roll(ring, 1)
    return angle(updates[:-1], updates[1:, other])


def _walked(states: States, updates: np.ndarray) -> States:
    start = np.asarray(states[:1], np.float64)
    return np.concatenate([start, start + np.cumsum(updates, axis=0)])


class Pairs:
    """The mean angle between the updates of any two layers, over all tokens.

    From it follows exactly what neighbouring updates come to where the layers stand in another order: the unit that is
    exchanged is the layer, since all tokens share it, and the interval is that over orders.
    """

    def __init__(self, layers: int):
        self._sum, self._count = np.zeros((layers, layers)), np.zeros((layers, layers))

    def add(self, states: States) -> None:
        """Counts a batch of tokens."""
        layers = len(states) - 1
        at_once = max(1, GRAM_FLOATS // (layers * max(layers, states.shape[2])))
        for first in range(0, states.shape[1], at_once):
            part = np.asarray(states[:, first : first + at_once], np.float64)
            updates = np.diff(part, axis=0).transpose(1, 0, 2)
            norms = np.linalg.norm(updates, axis=-1, keepdims=True)
            with np.errstate(invalid="ignore", divide="ignore"):
                unit = updates / norms
            between = np.arccos(np.clip(unit @ unit.transpose(0, 2, 1), -1.0, 1.0))
            known = np.isfinite(between)
            self._sum += np.where(known, between, 0.0).sum(0)
            self._count += known.sum(0)

    @property
    def mean(self) -> Float[np.ndarray, "layers layers"]:
        """The mean angles, 0 on the diagonal; nan where no token moves."""
        with np.errstate(invalid="ignore", divide="ignore"):
            found = self._sum / self._count
        found[np.diag_indices_from(found)] = 0.0
        return found


def shuffled_mean(pairs: Float[np.ndarray, "layers layers"], rng: np.random.Generator, draws: int = DRAWS) -> Null:
    """What the mean angle between neighbouring updates of the middle layers comes to in random orders of them.

    Args:
        pairs: the mean angle between any two layers' updates (`Pairs.mean`).
        rng: what orders are drawn from.
        draws: how many.
    """
    inner = pairs[middle(len(pairs)), middle(len(pairs))]
    if len(inner) < 2:
        return Null(*(float("nan"),) * 3)
    orders = np.argsort(rng.random((draws, len(inner))), axis=1)
    means = inner[orders[:, :-1], orders[:, 1:]].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Null(float(means.mean()), float(low), float(high))
