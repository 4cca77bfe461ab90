"""Which signs of compositional, procedural and averaging assembly a subject shows. Imports no JAX.

Three ways to use depth (arXiv 2602.05970, sec. 2 and 3): layers build one upon another, and easy inputs are done early
(compositional); layers walk along a smooth path, so that neighbouring updates are alike (procedural); layers are
estimates of one and the same displacement, whose errors average out (averaging). None of the signs is a proof, and
what has not converged shows those of averaging whatever it is: an unfinished student of a smooth teacher has nearly
orthogonal neighbouring updates too. So an unconverged student gets no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite, pi
from typing import Literal

import numpy as np

from .errors import ErrorSplit
from .measures import middle
from .nulls import Null
from .probe import Probed
from .summary import NORMAL

Assembly = Literal["compositional", "procedural", "averaging"]

MOST = 0.5  # of tokens or of a fall: what counts as most of it
ALIKE = 0.3  # rad below what chance gives: neighbouring updates are alike
RIGHT = 0.1  # rad from pi/2: they are not
EVEN, SMALL = 0.5, 0.6  # the coefficient of variation of the mean steps over middle layers; their mean in rad
MATTERS = 0.1  # of what the layers do: what is lost where their order, or what they see, matters
INDEPENDENT = 0.25  # of A / l: errors in common that averaging would not notice


@dataclass(frozen=True)
class Sign:
    """One sign: what it is, what was measured, and whether it is there (None: cannot be said).

    `interval` is the 95 % interval of the number over tokens, `null` what it would be by chance, each where known.
    """

    assembly: Assembly
    code: str
    words: str
    value: float
    present: bool | None
    interval: tuple[float, float] | None = None
    null: Null | None = None


@dataclass(frozen=True)
class Verdict:
    """What the signs say together: an assembly, `mixed`, or none with the reason why."""

    assembly: Assembly | Literal["mixed"] | None
    words: str
    signs: tuple[Sign, ...]


def judge(found: Probed) -> Verdict:
    """The signs that a subject shows and what they say together.

    Averaging is said where neighbouring updates stand at right angles, steps are even and small, and layers may change
    places; procedural where neighbouring updates are alike and do not merely point where all of them do, or need one
    another; compositional where most tokens stop early, or most of the fall in loss and of the progress is one layer's.
    """
    signs = (*_compositional(found), *_procedural(found), *_averaging(found))
    if reason := _refusal(found):
        return Verdict(None, f"no verdict: {reason}", signs)
    there = {sign.code: sign.present for sign in signs}
    shown: list[Assembly] = []
    if there["stop"] or (there["stages"] and there["leap"]):
        shown.append("compositional")
    if there["alike"]:
        shown.append("procedural")
    if there["right"] and there["even"] and there["any order"] is not False:
        shown.append("averaging")
    if len(shown) == 1:
        count = sum(sign.present is True for sign in signs if sign.assembly == shown[0])
        known = sum(sign.present is not None for sign in signs if sign.assembly == shown[0])
        return Verdict(shown[0], f"{shown[0]} ({count} of its {known} signs)", signs)
    return Verdict("mixed", f"mixed: {' and '.join(shown) or 'no assembly has its signs'}", signs)


def _refusal(found: Probed) -> str:
    if found.depth < 2:
        return "a single layer has no neighbour"
    if found.kind == "student" and not found.converged:
        return "not converged" if found.converged is False else "whether it has converged is not known (no twin)"
    return ""


def _compositional(found: Probed) -> list[Sign]:
    clusters = found.clusters
    share = float("nan") if clusters is None else clusters.share
    stages, leap = _largest_fall(found), _largest(np.diff(found.mean("progress")), found.depth)
    many = found.depth >= 4  # of fewer layers one always does much
    return [
        Sign("compositional", "stop", "share of tokens that stop early", share, _above(share, MOST)),
        Sign(
            "compositional",
            "stages",
            "largest part of the fall in loss, read out early, that is one middle layer's",
            stages,
            _above(stages, MOST) if many else None,
        ),
        Sign(
            "compositional",
            "leap",
            "largest part of the progress that is one middle layer's",
            leap,
            _above(leap, MOST) if many else None,
        ),
    ]


def _procedural(found: Probed) -> list[Sign]:
    angle, interval = _update(found)
    chance, which = _null(found, "random"), " between split pairs" if _marked(found) else ""
    ordered = found.shuffled
    parallel = _share(found, "parallel")
    return [
        Sign(
            "procedural",
            "alike",
            f"angle between neighbouring updates{which} (rad), {ALIKE} below random ones",
            angle,
            None if chance is None or not isfinite(angle) else angle < chance.low - ALIKE,
            interval,
            chance,
        ),
        Sign(
            "procedural",
            "in order",
            "the same, below that of layers in random orders",
            angle,
            angle < ordered.low if isfinite(ordered.low) and isfinite(angle) else None,
            interval,
            ordered,
        ),
        Sign(
            "procedural",
            "build on",
            "part of what layers do that is lost with all of them at h_0",
            parallel,
            _above(parallel, MATTERS),
        ),
    ]


def _averaging(found: Probed) -> list[Sign]:
    angle, interval = _update(found)
    chance, which = _null(found, "random"), " between split pairs" if _marked(found) else ""
    steps = found.mean("step")[middle(found.depth)]
    steps = steps[np.isfinite(steps)]
    unevenness = float(np.std(steps) / np.mean(steps)) if len(steps) and np.mean(steps) else float("nan")
    shuffled = _share(found, "shuffle")
    near = abs(angle - pi / 2) < RIGHT or (chance is not None and chance.low <= angle <= chance.high)
    signs = [
        Sign(
            "averaging",
            "right",
            f"angle between neighbouring updates{which} (rad), within {RIGHT} of pi/2",
            angle,
            near if isfinite(angle) else None,
            interval,
            chance,
        ),
        Sign(
            "averaging",
            "even",
            f"coefficient of variation of middle steps, below {EVEN} (and the steps below {SMALL} rad)",
            unevenness,
            unevenness < EVEN and float(np.mean(steps)) < SMALL if isfinite(unevenness) else None,
        ),
        Sign(
            "averaging",
            "any order",
            "part of what layers do that is lost when they are shuffled",
            shuffled,
            None if not isfinite(shuffled) else shuffled < MATTERS,
        ),
    ]
    split = found.errors.get("behind")
    if split is not None and split.layers > 1:
        signs.append(_independent(split))
    return signs


def _independent(split: ErrorSplit) -> Sign:
    unit = split.A / split.layers
    interval = (split.low / unit, split.high / unit) if unit else None
    words = "errors that layers have in common, C over A / l (0: independent errors)"
    return Sign("averaging", "independent", words, split.common, abs(split.common) < INDEPENDENT, interval)


def _update(found: Probed) -> tuple[float, tuple[float, float] | None]:
    """The mean angle between neighbouring updates, and its interval over tokens.

    Over the middle layers; of grown students over neighbours that were not split from one, since halves of a layer are
    alike from the start. There the interval is a wide one: positions are counted as if they erred together.
    """
    profile, alone = found.profile("update_middle"), 0
    if _marked(found):
        profile, alone = found.profile("update"), slice(1, None, 2)
    if profile is None:
        return float("nan"), None
    mean, half = float(np.mean(profile.mean[alone])), NORMAL * float(np.mean(profile.sem[alone]))
    return mean, (mean - half, mean + half) if isfinite(half) else None


def _null(found: Probed, null: str) -> Null | None:
    """The same by chance."""
    at = found.nulls.get((null, "update" if _marked(found) else "update_middle"), [])
    at = at[1::2] if _marked(found) else at
    if not at or not all(isfinite(one.low) for one in at):
        return None
    mean, low, high = (float(np.mean([getattr(one, name) for one in at])) for name in ("mean", "low", "high"))
    return Null(mean, low, high)


def _marked(found: Probed) -> bool:
    """Whether neighbours that were split from one have to be left out."""
    return found.zigzag is not None and isfinite(found.zigzag[1])


def _share(found: Probed, kind: str) -> float:
    share = None if found.interventions is None else found.interventions.share(kind)
    return float("nan") if share is None else share


def _largest_fall(found: Probed) -> float:
    """The largest part of the fall in early-readout loss that one middle layer makes."""
    early = found.mean("early")
    if len(early) and found.kind != "model":  # a model's own loss stands in the last place already
        early = np.append(early, found.number("loss"))
    return _largest(-np.diff(early), found.depth)


def _largest(parts: np.ndarray, depth: int) -> float:
    total, within = parts.sum(), parts[middle(depth)]
    return float(within.max() / total) if len(within) and isfinite(total) and total > 0 else float("nan")


def _above(value: float, bound: float) -> bool | None:
    return value > bound if isfinite(value) else None
