"""Which tasks a narrow encoder learns: rare tasks, capacity and interference (arXiv 2605.29548, sections 3 and 4).

Task k is met with probability pi_k and has features of amplitudes sigma_kj in directions of their own, so that with the
best decoders an encoder of projection P leaves L = sum_k pi_k tr((1 - P) C_k). What feature j of task k is worth is its
utility u_kj = pi_k sigma_kj^2, and the best encoder of width N holds the N features of the largest utilities (theorem
3, Ky Fan). Where utilities are equal across the edge, any subspace of the tied features is as good, and losses of
single tasks are known within bounds only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float

EQUAL = 1e-9  # utilities closer than this share of each other are tied
COMMON_MASS = 0.8  # of all samples, that of the common tasks


@dataclass(frozen=True)
class Mixture:
    """Tasks as theory knows them.

    Attributes:
        frequencies: pi_k, [count].
        amplitudes: sigma_kj, [count, features].
    """

    frequencies: Float[np.ndarray, " count"]
    amplitudes: Float[np.ndarray, "count features"]

    @property
    def spectrum(self) -> Float[np.ndarray, "count features"]:
        """lambda_kj = sigma_kj^2; a task's sum is its loss when nothing of it is learnt."""
        return self.amplitudes**2

    @property
    def utilities(self) -> Float[np.ndarray, "count features"]:
        """u_kj = pi_k lambda_kj, the eigenvalues of M = sum_k pi_k C_k."""
        return self.frequencies[:, None] * self.spectrum

    @property
    def totals(self) -> Float[np.ndarray, " count"]:
        """tr C_k."""
        return self.spectrum.sum(1)

    def held(self, width: int) -> tuple[Bool[np.ndarray, "count features"], Bool[np.ndarray, "count features"]]:
        """The features that every best encoder of a width holds, and those of which it holds only some: tied ones,
        where the width ends among them."""
        u = self.utilities
        edge = np.sort(u, axis=None)[::-1][min(width, u.size) - 1]
        above, tied = u > edge * (1 + EQUAL), np.abs(u - edge) <= edge * EQUAL
        every = above.sum() + tied.sum() <= width
        return (above | tied, np.zeros_like(tied)) if every else (above, tied)

    def is_tied(self, width: int) -> bool:
        """Whether utilities are equal across the edge, so that more than one subspace is best."""
        return bool(self.held(width)[1].any())

    def losses(self, width: int) -> tuple[Float[np.ndarray, " count"], Float[np.ndarray, " count"]]:
        """The least and the largest loss that each task can have at a width; equal but for ties."""
        surely, tied = self.held(width)
        left = np.where(surely, 0.0, self.spectrum).sum(1)
        room = width - surely.sum()
        lowest, highest = left.copy(), left.copy()
        for k in np.flatnonzero(tied.any(1)):
            worth = np.sort(self.spectrum[k][tied[k]])  # one feature, or equal ones
            others = tied.sum() - len(worth)
            lowest[k] -= worth[::-1][: min(len(worth), room)].sum()
            highest[k] -= worth[: max(0, room - others)].sum()
        return lowest, highest

    def signals(self, width: int) -> tuple[Float[np.ndarray, " count"], Float[np.ndarray, " count"]]:
        """The least and the largest share of each task that is captured, tr(P C_k) / tr C_k."""
        lowest, highest = self.losses(width)
        return 1.0 - highest / self.totals, 1.0 - lowest / self.totals

    def mixture_loss(self, widths: Sequence[int]) -> Float[np.ndarray, " widths"]:
        """What is left at each width: the sum of the utilities beyond the first `width` ones. Ties do not matter."""
        u = np.sort(self.utilities, axis=None)[::-1]
        left = np.append(np.cumsum(u[::-1])[::-1], 0.0)
        return left[np.minimum(np.asarray(widths, int), u.size)]

    def staircase(self, task: int, features: int = 1) -> tuple[int, int]:
        """N*_k(m): the width from which on `features` of a task (0-based) are held; two numbers where ties leave it
        open, the width from which on they can be and the one from which on they must be."""
        u = self.utilities
        own = np.sort(u[task])[::-1][features - 1]
        equal = np.abs(u - own) <= own * EQUAL
        before = int((u > own * (1 + EQUAL)).sum())
        needed = features - int((u[task] > own * (1 + EQUAL)).sum())  # of the task's own tied ones
        return before + needed, before + int(equal.sum()) - int(equal[task].sum()) + needed

    def residual_common(self, common: Bool[np.ndarray, " count"], width: int) -> float:
        """delta_F*(N): the least that an encoder can leave of the common tasks (corollary 5)."""
        u = np.sort(self.utilities[common], axis=None)[::-1]
        return float(u[width:].sum())

    def stable_until(self, common: Bool[np.ndarray, " count"], task: int) -> int:
        """The width from which on an encoder that holds common tasks alone gives way to the first feature of a rare
        one: the least N whose N-th common utility is not above it (proposition 6)."""
        u = np.sort(self.utilities[common], axis=None)[::-1]
        return int((u > self.utilities[task].max() * (1 + EQUAL)).sum()) + 1

    def boost_needed(self, task: int, width: int, features: int = 1) -> float:
        """How many times as frequent a task must become for its `features`-th feature to be held at a width: the
        answer is exact, since utilities are proportional to frequencies."""
        own = np.sort(self.utilities[task])[::-1][features - 1]
        others = np.sort(np.delete(self.utilities, task, axis=0), axis=None)[::-1]
        return float(others[width - features] / own) if width - features < len(others) else 0.0


def common_tasks(frequencies: Float[np.ndarray, " count"], mass: float = COMMON_MASS) -> Bool[np.ndarray, " count"]:
    """The smallest set of the most frequent tasks that has a mass of all samples (appendix B.1).

    With 32 tasks and beta = 0.5, 1, 1.5, 2 it has 22, 14, 6 and 3 members; the paper prints 6, 3, 2 and 2.
    """
    order = np.argsort(-frequencies, kind="stable")
    before = np.append(0.0, np.cumsum(frequencies[order])[:-1])
    common = np.zeros(len(frequencies), bool)
    common[order[before < mass - 1e-12]] = True
    return common


def corrected(signal: Float[np.ndarray, " *n"], width: float, inputs: int) -> Float[np.ndarray, " *n"]:
    """A captured share above a random subspace's: (s - N/D) / (1 - N/D); 1 is all, negative is less than chance."""
    chance = width / inputs
    return (signal - chance) / (1.0 - chance)


def effective_rank(spectrum: Float[np.ndarray, " features"], share: float = 0.9) -> int:
    """How many features hold a share of a task's spectrum: the paper's complexity."""
    ordered = np.sort(spectrum)[::-1]
    return int(np.searchsorted(np.cumsum(ordered), share * ordered.sum() * (1 - 1e-12)) + 1)


def residual_slope(beta: float, decay: float, endless_tasks: bool = True) -> float:
    """The exponent with which the exact sum falls in the width, far out: L ~ N^-slope.

    Utilities k^-beta j^-decay of which (beta, decay > 1) N(u > t) ~ t^(-1 / min(beta, decay)) are above t leave
    N^-(min(beta, decay) - 1), but for a logarithm where they are equal. With finitely many tasks the spectra's tails
    alone remain: N^-(decay - 1). With finitely many features too, L ends at 0, and local slopes grow without bound.

    Args:
        beta: of the frequencies.
        decay: of the spectra, lambda_j ~ j^-decay; twice that of the amplitudes.
        endless_tasks: whether there are infinitely many.
    """
    return (min(beta, decay) if endless_tasks else decay) - 1.0


def optimal_exponent(alpha: float, beta: float) -> float:
    """gamma in L_C(N) ~ N^-gamma, the loss that compute-optimal models of N parameters reach under
    L = A / N^alpha + B / D^beta and C = 6 N D (section 2).

    The loss falls with compute as C^-(alpha beta / (alpha + beta)) and N grows as C^(beta / (alpha + beta)), so gamma
    is alpha itself, whatever beta. The paper prints 0.34 beside alpha = 0.46.
    """
    in_compute, parameters = alpha * beta / (alpha + beta), beta / (alpha + beta)
    return in_compute / parameters


# --- one neuron between two tasks (example 7) ----------------------------------------------------------------


def turned(angle: float, rate: float, towards_rare: Sequence[bool]) -> Float[np.ndarray, " steps"]:
    """The angle of one neuron u = cos(angle) a + sin(angle) b after each of a sequence of updates.

    Each follows the gradient of the loss of the common task's direction a, or of the rare one's b, on the circle:
    angle -+ rate sin(2 angle).
    """
    angles = []
    for rare in towards_rare:
        angle += rate * math.sin(2 * angle) * (1 if rare else -1)
        angles.append(angle)
    return np.array(angles)


def forgetting_rate(rate: float, gap: int, angle: float = 1e-3) -> float:
    """d log(angle) per step over a gap of common updates after a rare one, simulated; -2 rate to first order."""
    angles = turned(turned(angle, rate, [True])[-1], rate, [False] * gap)
    steps = np.arange(1, gap + 1)
    return float(np.polyfit(steps, np.log(angles), 1)[0])
