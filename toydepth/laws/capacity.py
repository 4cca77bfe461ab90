"""What more data can do for a small model, and what only size can (arXiv 2605.29548, section 2).

Two losses belong to a size: that of a model trained for the best use of compute, and that after unlimited data. The
first is where models are; the second is as far as a model of that size can go.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .consequences import SizeLaw, frontier_at


@dataclass(frozen=True)
class Gap:
    """The gap in loss between a small and a large model, both compute-optimal, and how it could be closed.

    `tokens` is how many tokens the small model needs to come as low as the large one: infinite if it never does.
    """

    small: float
    large: float
    loss_small: float
    loss_large: float
    limit_small: float
    tokens: float

    @property
    def total(self) -> float:
        """How much higher the small model's loss is."""
        return self.loss_small - self.loss_large

    @property
    def by_data(self) -> float:
        """The part of the gap that more data for the small model closes."""
        return min(self.total, self.loss_small - self.limit_small)

    @property
    def by_size(self) -> float:
        """The part that no amount of data closes; 0 where the small model was only undertrained."""
        return self.total - self.by_data


def gap(law: SizeLaw, small: float, large: float) -> Gap:
    """Takes the gap between two sizes apart.

    Raises:
        ValueError: the first size is not below the second.
    """
    if not 0 < small < large:
        raise ValueError(f"a gap needs 0 < small < large, got {small:g} and {large:g}")
    near, far, limit = frontier_at(law, small), frontier_at(law, large), law.limit(small)
    reachable = float(far.loss - limit)
    tokens = (law.c_D / reachable) ** (1 / law.a_D) if reachable > 0 else np.inf
    return Gap(small, large, float(near.loss), float(far.loss), float(limit), float(tokens))


def critical_size(law: SizeLaw, large: float, tolerance: float = 0.0) -> float:
    """N_s*: a smaller model stays over `tolerance` (nats) above a compute-optimal large one, whatever its data.

    The size where limit(N) = loss(large) + tolerance. Without a tolerance it is a fixed fraction of the large size,
    (1 + a_N/a_D)^(-1/a_N): an eighth for exponents of 1/3.
    """
    reducible = float(frontier_at(law, large).loss - law.floor) + tolerance
    return float((law.c_N / reducible) ** (1 / law.a_N))
