"""Do tokens move alike? PCA of their step angles, and the split into even movers and early stoppers. Imports no JAX.

A token stops early if its mean step over the later half of the middle layers is less than a quarter of its mean step
before. That looks at one token alone, so that it also counts where most tokens stop. Of Pythia-410m 0.4 % are said to
do, most of them first tokens of their documents (arXiv 2602.05970, sec. 3 and app. A; how they were split is not said).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float

from .measures import middle
from .summary import Spread

STOPPED = 0.25  # late steps over earlier ones, below which a token has stopped
KEPT = 4096  # tokens of the reservoir
EXAMPLES = 12


@dataclass(frozen=True)
class Clusters:
    """How tokens differ in their steps.

    Attributes:
        explained: the share of variance along each principal axis of the step angles, the largest first.
        axes: the first two of them, [axes, layers].
        share: of all tokens, those that stop early.
        share_first: the same of the first tokens of documents; nan where there are none.
        share_later: the same of the others.
        scores: the sampled tokens along the two axes, [tokens, axes].
        late: their mean late step over their mean step before.
        first: which of them are first ones.
        even_steps, early_steps: the mean step angles of the sampled tokens of either kind, nan where there are none.
        examples: tokens as text, of either kind.
    """

    explained: Float[np.ndarray, " layers"]
    axes: Float[np.ndarray, "axes layers"]
    share: float
    share_first: float
    share_later: float
    scores: Float[np.ndarray, "tokens axes"]
    late: Float[np.ndarray, " tokens"]
    first: Bool[np.ndarray, " tokens"]
    even_steps: Float[np.ndarray, " layers"]
    early_steps: Float[np.ndarray, " layers"]
    examples: dict[str, list[str]] = field(default_factory=dict)


class Clustering:
    """Counts tokens as they come: their covariance, their late steps, and a sample of bounded size.

    The sample is uniform over all tokens: each draws a random key, and those of the lowest keys are kept.
    """

    def __init__(self, layers: int, rng: np.random.Generator, kept: int = KEPT):
        self._rng, self._kept, self._layers = rng, kept, layers
        self._n, self._mean, self._m2 = 0, np.zeros(layers), np.zeros((layers, layers))
        self._ratios = {False: Spread(1), True: Spread(1)}
        self._keys, self._steps = np.empty(0), np.empty((0, layers))
        self._first, self._words = np.empty(0, bool), np.empty(0, object)

    def add(
        self,
        steps: Float[np.ndarray, "layers tokens"],
        first: Bool[np.ndarray, " tokens"],
        tokens: Sequence[str] | None = None,
    ) -> None:
        """Counts the step angles of a batch; a token that has none somewhere (a zero state) is passed over."""
        sound = np.isfinite(steps).all(0)
        rows, first = steps[:, sound].T, first[sound]
        if not len(rows):
            return
        words = np.array(["" for _ in rows] if tokens is None else list(tokens), object)
        words = words if tokens is None else words[sound]
        n, mean = len(rows), rows.mean(0)
        apart, centred = mean - self._mean, rows - mean
        self._m2 += centred.T @ centred + np.outer(apart, apart) * self._n * n / (self._n + n)
        self._mean = self._mean + apart * n / (self._n + n)
        self._n += n
        late = self._late(rows)
        for which, spread in self._ratios.items():
            spread.add(late[None, first == which])
        self._keep(rows, first, words)

    def _keep(self, rows: np.ndarray, first: np.ndarray, words: np.ndarray) -> None:
        keys = np.concatenate([self._keys, self._rng.random(len(rows))])
        lowest = np.argsort(keys, kind="stable")[: self._kept]
        self._keys = keys[lowest]
        self._steps = np.concatenate([self._steps, rows])[lowest]
        self._first = np.concatenate([self._first, first])[lowest]
        self._words = np.concatenate([self._words, words])[lowest]

    def _late(self, rows: np.ndarray) -> Float[np.ndarray, " tokens"]:
        within = middle(self._layers)
        half = (within.start + within.stop) // 2
        if not half:  # a single layer has no before
            return np.full(len(rows), np.nan)
        with np.errstate(invalid="ignore", divide="ignore"):
            return rows[:, half : within.stop].mean(1) / rows[:, :half].mean(1)

    def result(self) -> Clusters | None:
        """What came out; None for fewer than two tokens."""
        if self._n < 2:
            return None
        values, vectors = np.linalg.eigh(self._m2 / (self._n - 1))
        values, vectors = np.maximum(values[::-1], 0.0), vectors[:, ::-1].T
        total = values.sum()
        axes = vectors[:2] * np.sign(vectors[:2].sum(1, keepdims=True) + 1e-300)
        both = Spread(1)
        for spread in self._ratios.values():
            both.merge(spread)
        shares = {which: float(spread.share_below(STOPPED)[0]) for which, spread in self._ratios.items()}
        late = self._late(self._steps)
        early = late < STOPPED
        return Clusters(
            explained=values / total if total else values,
            axes=axes,
            share=float(both.share_below(STOPPED)[0]),
            share_first=shares[True],
            share_later=shares[False],
            scores=(self._steps - self._mean) @ axes.T,
            late=late,
            first=self._first,
            even_steps=_mean(self._steps[~early]),
            early_steps=_mean(self._steps[early]),
            examples={"even": self._some(~early), "early": self._some(early)},
        )

    def _some(self, which: np.ndarray) -> list[str]:
        return [str(word) for word in self._words[which] if word][:EXAMPLES]


def _mean(rows: Float[np.ndarray, "tokens layers"]) -> Float[np.ndarray, " layers"]:
    return rows.mean(0) if len(rows) else np.full(rows.shape[1], np.nan)
