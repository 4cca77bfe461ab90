"""A subject looked at from all sides: its measures, the nulls beside them, its clusters, interventions, errors.

Imports no JAX. States are seen once and let go, so that memory does not grow with the text.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from ..fields import ConfigError
from .clusters import Clustering, Clusters
from .errors import CONVENTIONS, ErrorSplit, Splitting
from .interventions import Interventions, intervene
from .measures import MIDDLE, PER_LAYER, Measures, States, measure
from .nulls import Null, Pairs, random_updates, shuffled_layers, shuffled_mean, shuffled_tokens
from .seen import Kind, Seen, Subject
from .summary import Moments, Profile, Summary

BEFORE, BEHIND = CONVENTIONS
NULL_TOKENS = 256  # of a batch, which random paths are drawn for

Key = tuple[str, str, str]  # measure, convention, group


@dataclass(frozen=True)
class Probed:
    """What was seen of a subject.

    Attributes:
        name, kind, depth, width, converged: as of the subject.
        tokens: how many were seen.
        profiles: {(measure, convention, group): what is known of it at each position}. Measures are those of
            `measures.measure`, `loss` (the subject's own) and `early` (when h_l is read out).
        nulls: {(null, measure): the null at each position}, of all tokens but first ones, before the final norm.
        pairs: the mean angles between the updates of any two layers.
        shuffled: the mean angle between neighbouring updates of the middle layers in random orders of the layers.
        clusters: how tokens differ in their steps; None of fewer than two.
        interventions: the losses with layers changed; None if that was not asked for.
        errors: {convention: R = C + (A - C)/L}; empty of what is no student, or has a head of its own.
        grown: whether its layers come in pairs that were split from one.
        fields: of toys, the run's fields, {dotted name: value}.
        id: of toys, the run's id.
    """

    name: str
    kind: Kind
    depth: int
    width: int
    converged: bool | None
    tokens: int
    profiles: Mapping[Key, Profile]
    nulls: Mapping[tuple[str, str], list[Null]]
    pairs: Float[np.ndarray, "layers layers"]
    shuffled: Null
    clusters: Clusters | None
    interventions: Interventions | None
    errors: Mapping[str, ErrorSplit]
    grown: bool = False
    fields: Mapping[str, Any] = field(default_factory=dict)
    id: str = ""

    def profile(self, measure: str, convention: str = BEFORE, group: str = "later") -> Profile | None:
        """What is known of a measure; None if there is nothing."""
        return self.profiles.get((measure, convention, group))

    def mean(self, measure: str, convention: str = BEFORE, group: str = "later") -> Float[np.ndarray, " positions"]:
        """The means of a measure at each position; empty if there is nothing."""
        found = self.profile(measure, convention, group)
        return np.empty(0) if found is None else found.mean

    def number(self, measure: str) -> float:
        """The mean of a measure that has one position (`step_middle`, `update_middle`, `loss`); nan without one."""
        found = self.mean(measure)
        return float(found[0]) if len(found) else math.nan

    @property
    def zigzag(self) -> tuple[float, float] | None:
        """Of a grown student, the mean angle between updates of layers split from one, and of neighbours that were not.

        None of everything else. The second is nan where there is only one pair.
        """
        angles = self.mean("update")
        if not self.grown or not len(angles):
            return None
        return float(np.nanmean(angles[0::2])), float(np.nanmean(angles[1::2])) if len(angles) > 1 else math.nan


def look(subject: Subject, seed: int = 0, changes: bool = True) -> Probed:
    """Looks at a subject.

    Args:
        subject: a toy, a language model, or anything that shows its states; see `seen.Subject`.
        seed: of the nulls, the sample of tokens and the random orders.
        changes: whether to measure the losses with layers changed.

    Raises:
        ConfigError: the subject shows no token.
    """
    rng, orders_rng = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    summary, nulls, pairs = Summary(), _Nulls(rng), Pairs(subject.depth)
    clustering = Clustering(subject.depth, np.random.default_rng([seed, 2]))
    targets = subject.targets()
    splits = {c: Splitting(subject.depth, c) for c in CONVENTIONS} if targets is not None else {}
    tokens = 0
    for seen in subject.batches():
        later, tokens = ~seen.first, tokens + len(seen)
        measures = measure(seen.states)
        summary.add(measures | _losses(seen), seen.first, BEFORE)
        if seen.last_normed is not None:
            summary.add(measure(_normed(seen)), seen.first, BEHIND)
        if later.any():
            states = seen.states if later.all() else seen.states[:, later]
            pairs.add(states)
            nulls.add(states)
        clustering.add(measures["step"], seen.first, seen.tokens)
        if targets is not None:
            y = next(targets)
            for split in splits.values():
                split.add(seen.states, y)
    if not tokens:
        raise ConfigError(f"{subject.name}: shows no token")
    mean = pairs.mean
    return Probed(
        name=subject.name,
        kind=subject.kind,
        depth=subject.depth,
        width=subject.width,
        converged=subject.converged,
        tokens=tokens,
        profiles=summary.profiles(),
        nulls=nulls.found(),
        pairs=mean,
        shuffled=shuffled_mean(mean, rng),
        clusters=clustering.result(),
        interventions=intervene(subject, orders_rng) if changes else None,
        errors={convention: split.result() for convention, split in splits.items()},
        grown=subject.grown,
        fields=subject.fields,
        id=subject.id,
    )


def _losses(seen: Seen) -> Measures:
    """The losses of a batch as measures."""
    own = {} if seen.loss is None else {"loss": np.asarray(seen.loss, np.float64)[None]}
    return own if seen.early is None else own | {"early": np.asarray(seen.early, np.float64)}


def _normed(seen: Seen) -> States:
    """The states of a batch, with the last one behind the final norm."""
    assert seen.last_normed is not None
    return np.concatenate([seen.states[:-1], seen.last_normed[None]])


class _Nulls:
    """The measures of random paths, on some tokens of every batch."""

    def __init__(self, rng: np.random.Generator):
        self._rng, self._moments = rng, {}

    def add(self, states: States) -> None:
        tokens = states.shape[1]
        some = states[:, np.linspace(0, tokens - 1, min(tokens, NULL_TOKENS)).astype(int)]
        self._count("layers", measure(shuffled_layers(some, self._rng)))
        self._count("random", measure(random_updates(some, self._rng)))
        self._count("tokens", {"update": shuffled_tokens(some, self._rng)})

    def _count(self, null: str, measures: Measures) -> None:
        for name in (*PER_LAYER, *MIDDLE):
            if name in measures:
                moments = self._moments.setdefault((null, name), Moments(len(measures[name])))
                moments.add(measures[name])

    def found(self) -> dict[tuple[str, str], list[Null]]:
        return {key: moments.null() for key, moments in self._moments.items()}
