"""Fits that others have published of a table, beside one's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .law import Law, named
from .tables import Table

_DEPTH_SCALING = "published fit (arXiv 2602.05970, app. B)"
_CHINCHILLA = {
    "c_m": 333.4,
    "c_l": 1284 / 100**1.201,  # printed for 100 l
    "c_D": 8.487 * 1e6**0.2991,  # printed for D in millions
    "a_m": 0.977,
    "a_l": 1.201,
    "a_D": 0.2991,
    "L0": 1.7503,
}


@dataclass(frozen=True)
class Published:
    """Whose numbers, which, and their mean squared log residual on a table's rows."""

    source: str
    values: Mapping[str, float]
    mse_log: float


def published(table: Table, law: Law) -> list[Published]:
    """For Chinchilla's models, the fit with which the part of depth was first told apart; for others, none."""
    if law.freed() != named("width-depth-tokens") or not {"model_size", "FLOP", "n_layers"} <= set(table.frame.columns):
        return []
    predicted = law.loss(table.sizes(law), _CHINCHILLA)
    return [Published(_DEPTH_SCALING, _CHINCHILLA, float(np.mean((np.log(table.loss) - np.log(predicted)) ** 2)))]
