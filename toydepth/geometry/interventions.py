"""What layers do for one another: the loss where some are left out, swapped, repeated, shuffled. Imports no JAX.

    drop l       without layer l
    swap l       layers l and l+1 in each other's place
    repeat l     layer l twice
    shuffle      all layers in a random order
    reverse      all layers from the last to the first
    parallel     every layer at h_0, h_0 + sum_l f_l(h_0)
    none         no layer at all: h_0 is read out

A network whose layers average lets all of them pass; one that builds up or walks a path does not. That of a rough toy
teacher is close to one wide two-layer network: all its layers in parallel at h_0 lose 4 % of what they do. So loss ~
1/depth may there be the ordinary law of a hidden layer's width.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .seen import Orders, Subject

POSITIONS, SHUFFLES = 8, 4
BASE = "as trained"


@dataclass(frozen=True)
class Intervention:
    """One change and the mean loss with it; `layer` is where it was made, None if everywhere."""

    kind: str
    layer: int | None
    loss: float


@dataclass(frozen=True)
class Interventions:
    """The losses of a subject with its layers as trained and with each change."""

    loss: float
    changes: tuple[Intervention, ...]

    def mean(self, kind: str) -> float | None:
        """The mean loss over the changes of a kind; None if there is none."""
        found = [change.loss for change in self.changes if change.kind == kind]
        return float(np.mean(found)) if found else None

    def share(self, kind: str) -> float | None:
        """How much of what the layers do is lost: 0 as trained, 1 as without any layer; None where that is nothing."""
        found, nothing = self.mean(kind), self.mean("none")
        if found is None or nothing is None or not nothing > self.loss:
            return None
        return (found - self.loss) / (nothing - self.loss)


def orders(
    depth: int, rng: np.random.Generator, positions: int = POSITIONS, shuffles: int = SHUFFLES
) -> dict[tuple[str, int | None], Sequence[int] | None]:
    """{(kind, layer): the layers to apply, in order}; None stands for all of them at h_0.

    Args:
        depth: the number of layers.
        rng: what random orders are drawn from.
        positions: at how many layers, evenly spread, one is dropped, swapped, repeated; at all if they are fewer.
        shuffles: how many random orders.
    """
    layers = list(range(depth))
    made: dict[tuple[str, int | None], Sequence[int] | None] = {}
    for i in spread(depth, positions):
        made["drop", i] = layers[:i] + layers[i + 1 :]
        made["repeat", i] = layers[: i + 1] + layers[i:]
    for i in spread(depth - 1, positions):
        made["swap", i] = [*layers[:i], i + 1, i, *layers[i + 2 :]]
    if depth > 1:
        for i in range(shuffles):
            made["shuffle", i] = rng.permutation(depth).tolist()
        made["reverse", None] = layers[::-1]
    made["parallel", None] = None
    made["none", None] = []
    return made


def intervene(
    subject: Subject, rng: np.random.Generator, positions: int = POSITIONS, shuffles: int = SHUFFLES
) -> Interventions:
    """The losses of a subject with its layers changed; arguments as of `orders`."""
    made = orders(subject.depth, rng, positions, shuffles)
    named: Orders = {BASE: list(range(subject.depth))} | {f"{kind} {at}": order for (kind, at), order in made.items()}
    losses = subject.losses(named)
    changes = [Intervention(kind, None if kind == "shuffle" else at, losses[f"{kind} {at}"]) for kind, at in made]
    return Interventions(losses[BASE], tuple(changes))


def spread(count: int, most: int) -> list[int]:
    """At most so many of 0 ... count - 1, evenly spread, both ends included."""
    return sorted({round(x) for x in np.linspace(0, count - 1, min(count, most))}) if count > 0 else []
