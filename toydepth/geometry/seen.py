"""What the measures look at: states on their way through a network's layers, and who shows them. Imports no JAX.

    h_0 -> h_1 -> ... -> h_L        dh_l = h_{l+1} - h_l, what layer l adds

A subject is a network that can be looked into: a toy teacher, a toy student, a language model. It shows its states
batch by batch, so that what is kept never grows with the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float

Kind = Literal["teacher", "student", "model"]
Orders = Mapping[str, Sequence[int] | None]  # a name -> layer indices in the order of use; None: all at once at h_0


@dataclass(frozen=True)
class Seen:
    """One batch of tokens (of toys: inputs) on their way through a network's layers.

    Attributes:
        states: h_0 ... h_L before the final norm.
        last_normed: h_L behind the final norm, the other convention for the last state; None without a final norm.
        first: whether a token is the first one of its document. Toys have none.
        loss: the subject's own loss at each token (of language models the cross-entropy of the next token, in nats);
            nan where there is none.
        early: the loss when h_l is read out early, l = 0 ... L-1. Language models send h_l straight through the last
            block, the final norm and the head, and have their own loss at L-1; toys send it through the final norm (and
            the head). nan where it is not computed; None if there is no such readout.
        tokens: the tokens as text, for examples.
    """

    states: Float[np.ndarray, "layers+1 tokens width"]
    last_normed: Float[np.ndarray, "tokens width"] | None
    first: Bool[np.ndarray, " tokens"]
    loss: Float[np.ndarray, " tokens"] | None = None
    early: Float[np.ndarray, "layers tokens"] | None = None
    tokens: list[str] | None = None

    @property
    def depth(self) -> int:
        """The number of layers L."""
        return len(self.states) - 1

    def __len__(self) -> int:
        """The number of tokens."""
        return self.states.shape[1]


class Subject(ABC):
    """A network that shows its states; to be extended.

    Attributes:
        name: what it is called in tables.
        depth: its number of layers (blocks) L.
        width: the dimension of a state.
        kind: teacher | student | model.
        converged: whether its training had converged; None if it was not trained here.
        grown: whether its layers come in pairs that were split from one.
        fields: of toys, the run's resolved fields, {dotted name: value}.
        id: of toys, the run's id.
    """

    name: str
    depth: int
    width: int
    kind: Kind
    converged: bool | None = None
    grown: bool = False
    fields: Mapping[str, Any] = MappingProxyType({})
    id: str = ""

    @abstractmethod
    def batches(self) -> Iterator[Seen]:
        """Its states on its inputs, in batches of bounded memory; the same ones at every call."""

    @abstractmethod
    def losses(self, orders: Orders) -> dict[str, float]:
        """Its mean loss with layers in other orders.

        Args:
            orders: names, and the indices of the layers to apply, in their order; None applies every layer to h_0 and
                adds what they say, h_0 + sum_l f_l(h_0).
        """

    def targets(self) -> Iterator[Float[np.ndarray, "tokens width"]] | None:
        """The last states that it should have had, before the final norm, batch by batch; None where there are none."""
        return None
