"""Why loss falls as 1 / width: more features than dimensions (Liu et al. 2025, arXiv 2505.10465).

An autoencoder y = relu(x W W^T + b) holds `features` sparse inputs in `width` dimensions; x_i is v_i ~ U(0, 2) with
probability p_i, else 0. Loss is the squared error summed over features.

Weak superposition: the most frequent features are represented, each by a dimension of its own, and loss is what is
left out, <v^2> times the frequency mass of all others (Fig. 5). Strong superposition: all features are represented,
their rows of W overlap, and loss follows the mean squared overlap, which is 1 / width for directions without
preference, whatever the frequencies (Fig. 6). The frequencies themselves are fields of the experiment
(`width_config.Features`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from jaxtyping import Float

MEAN_SQUARE = 4 / 3  # <v^2> of U(0, 2)


def weak_loss(p: Float[np.ndarray, " features"], widths: Sequence[int]) -> Float[np.ndarray, " widths"]:
    """<v^2> sum of p_i over all but the `width` most frequent features, at each width.

    With p_i ~ i^-a, a > 1, it falls as width^-(a - 1) while width is far below the number of features; for a <= 1 the
    mass lies in the rarest features, and there is no power law. Of a feature that no row touches, a bias b_i = p_i
    would answer with the mean and save another p_i^2, little for the rare ones that are left out.
    """
    left_out = np.append(np.cumsum(np.sort(p))[::-1], 0.0)
    return MEAN_SQUARE * left_out[np.minimum(widths, len(p))]


def random_overlap(widths: Float[np.ndarray, " widths"]) -> Float[np.ndarray, " widths"]:
    """Expected squared overlap of two directions without preference: 1 / width."""
    return 1 / np.asarray(widths, float)


def least_overlap(features: int, width: float) -> float:
    """The lowest possible mean squared overlap of `features` directions, that of tight frames.

    (features - width) / (width features), or 0 where each has a dimension of its own (Welch 1974): for many
    features hardly less than that of random directions.
    """
    return max(0.0, (features - width) / (width * (features - 1)))


def welch_bound(features: int, width: float) -> float:
    """The lowest possible largest |overlap| of a pair: the root of `least_overlap`, about 1 / sqrt(width)."""
    return sqrt(least_overlap(features, width))


def most_equiangular(width: int) -> int:
    """How many directions can at most overlap equally: width (width + 1) / 2 (Gerzon's bound).

    So about width^2 / 2 features can lie near Welch's bound, all overlaps near 1 / sqrt(width); more of them must have
    some larger ones.
    """
    return width * (width + 1) // 2
