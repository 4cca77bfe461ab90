"""How states move from layer to layer: angles, norms, progress, per token. Imports no JAX.

    step     theta_l  = angle(h_l, h_{l+1})          l = 0 ... L-1    the step of layer l as a rotation
    update   theta'_l = angle(dh_l, dh_{l+1})        l = 0 ... L-2    dh_l = h_{l+1} - h_l
    norm     |h_l|                                   l = 0 ... L
    end      angle(h_l, h_L)                         l = 0 ... L-1
    progress (h_l - h_0).(h_L - h_0) / |h_L - h_0|^2 l = 0 ... L

Angles are in radians. Source: arXiv 2602.05970, app. A.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from jaxtyping import Float

States = Float[np.ndarray, "layers+1 tokens width"]
Measures = dict[str, Float[np.ndarray, "positions tokens"]]

PER_LAYER = ("step", "update", "norm", "end", "progress")
FLOATS = 1 << 20  # in double precision at once; small enough to stay near the processor
MIDDLE = ("step_middle", "update_middle")  # per token, means over the middle layers


def angle(a: Float[np.ndarray, "*axes width"], b: Float[np.ndarray, "*axes width"]) -> Float[np.ndarray, "*axes"]:
    """The angle between vectors, in radians; nan where one of them is zero.

    As 2 atan2(|u - v|, |u + v|) of the unit vectors u, v, in double precision: the arccos of a cosine near 1 loses half
    of its digits, and angles of 0.01 are what smooth networks have.
    """
    u, v = _unit(a), _unit(b)
    return 2.0 * np.arctan2(_length(u - v), _length(u + v))


def measure(states: States) -> Measures:
    """The measures of a batch of tokens; rows are the positions l, columns the tokens.

    Args:
        states: h_0 ... h_L. Put h_L behind the final norm in the last place for the other convention.

    Returns:
        The measures of the table above, and `step_middle`, `update_middle` [1, tokens], means over the middle layers
        (see `middle` and `middle_pairs`).
    """
    tokens, at_once = states.shape[1], max(1, FLOATS // max(1, states.shape[0] * states.shape[2]))
    parts = [_measure(states[:, i : i + at_once]) for i in range(0, max(tokens, 1), at_once)]
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0]}


def _measure(states: States) -> Measures:
    layers = len(states) - 1
    wide = [np.asarray(h, np.float64) for h in states]  # since differences of single precision would round
    updates = [after - before for before, after in pairwise(wide)]
    whole = wide[-1] - wide[0]
    squared = np.sum(whole * whole, axis=-1)
    with np.errstate(invalid="ignore", divide="ignore"):
        progress = np.stack([np.sum((h - wide[0]) * whole, axis=-1) / squared for h in wide])
    found = {
        "step": _rows([angle(before, after) for before, after in pairwise(wide)], states),
        "update": _rows([angle(before, after) for before, after in pairwise(updates)], states),
        "norm": _rows([_length(h) for h in wide], states),
        "end": _rows([angle(h, wide[-1]) for h in wide[:-1]], states),
        "progress": progress,
    }
    return found | {
        "step_middle": _mean(found["step"][middle(layers)]),
        "update_middle": _mean(found["update"][middle_pairs(layers)]),
    }


def middle(layers: int) -> slice:
    """The middle layers: all but the first and the last, which language models use otherwise; all of fewer than 4."""
    return slice(1, layers - 1) if layers >= 4 else slice(0, layers)


def middle_pairs(layers: int) -> slice:
    """The positions of neighbouring updates that are both of middle layers."""
    within = middle(layers)
    return slice(within.start, within.stop - 1)


def _mean(rows: Float[np.ndarray, "positions tokens"]) -> Float[np.ndarray, "1 tokens"]:
    """The mean over positions: of those that are known, nan where none is."""
    known = np.isfinite(rows)
    with np.errstate(invalid="ignore"):
        return (np.where(known, rows, 0.0).sum(0) / known.sum(0))[None]


def _rows(rows: list[np.ndarray], states: States) -> Float[np.ndarray, "positions tokens"]:
    return np.stack(rows) if rows else np.empty((0, states.shape[1]))


def _unit(a: np.ndarray) -> np.ndarray:
    a = np.asarray(a, np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        return a / _length(a)[..., None]


def _length(a: np.ndarray) -> np.ndarray:
    return np.sqrt(np.sum(a * a, axis=-1))
