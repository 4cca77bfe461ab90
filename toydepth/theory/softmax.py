"""Why loss falls as time^-1/3: a softmax head that grows along its teacher (Liu et al. 2026, arXiv 2602.03685, Fig. 3).

The teacher's logits are beta_star * u, those of a student that is aligned with it beta * u, where u = W x has unit
variance: W[outputs, width] ~ N(0, 1/width), x ~ N(0, I) is RMS-normalised. Then softmax is a Boltzmann distribution
with energies -u, and with A(beta) = <ln sum_i exp(beta u_i)> over inputs and U = -A', the mean energy,

    L(beta) = KL(teacher || student) = A(beta) - A(beta_star) - (beta - beta_star) A'(beta_star)
    dL/dbeta = U(beta_star) - U(beta)

so that one table of A and U gives every temperature. Below the crossover c0 = sqrt(2 ln outputs) U is -beta, as if
energies were independent Gaussians without end; far above it only the lowest two energies matter, whose gap has a
density that does not vanish at zero, so U = U_0 + c2 / beta^2 and

    -dL/dbeta = c2 / beta^2 * (1 - r^2),  L = c2 / beta * (1 - r)^2,  r = beta / beta_star.

Hence beta ~ tau^1/3 and L ~ tau^-1/3 for c0 << beta << beta_star.

Which window and which normalisation give the published exponents, -2.26 +- 0.01 of -dL/dbeta and -1.15 +- 0.04 of L?
The window is c0 to 4 c0, and beta_star must be out of the way. At beta_star = inf the exponents there are
-2.258 +- 0.007 and -1.166 +- 0.007 (60 draws of W); from c0 to 5 c0 they are -2.25 and -1.15. At a published
temperature as it is, -dL/dbeta has the published exponent (-2.27 at beta_star = 100), but L has not, in no window above
c0: the factor (1 - r)^2 makes it -1.31 at 100, and steeper at lower beta_star. Divided by their factors of r, the
published grid's curves give -2.25 to -2.26 and -1.16 to -1.19, wherever beta_star leaves a window (`exponents`). U ends
at minus the expected largest of 128 Gaussians, -2.595, and passes the published -2.55 at beta = 7.6; -c0 = -3.1 is its
limit for very many outputs only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log, sqrt

import numpy as np
from jaxtyping import Float

from ..powerlaw import power_laws, student_interval

# beta_star of the published grid, T = 0.01 ... 0.063; there weights are N(0, 1 / (T^2 width)).
PUBLISHED_STARS = 1 / np.logspace(-2, -1.2, 8)
BETAS = np.geomspace(0.1, 100, 100)
# The window of the power law: from c0 up to these multiples of c0 and of beta_star; narrower than a factor, none.
TIMES_CROSSOVER, OF_STAR, NARROWEST = 4.0, 0.25, 2.0


@dataclass(frozen=True)
class Curves:
    """What the theory says of one teacher, for each draw of W, at each beta below beta_star.

    `loss` is L in nats, `force` is -dL/dbeta, `energy` is U; `outputs` is the number of outputs.
    """

    beta_star: float
    outputs: int
    beta: Float[np.ndarray, " betas"]
    loss: Float[np.ndarray, "replicates betas"]
    force: Float[np.ndarray, "replicates betas"]
    energy: Float[np.ndarray, "replicates betas"]


@dataclass(frozen=True)
class Slope:
    """A fitted exponent: values ~ beta^-alpha for low <= beta <= high.

    The mean over draws of W, its Student's 95 % interval (None for one draw), and the mean R2 of log against log.
    """

    alpha: float
    ci_low: float | None
    ci_high: float | None
    r2: float
    low: float
    high: float


def crossover(outputs: int) -> float:
    """c0 = sqrt(2 ln outputs), in units of the logits' deviation: 3.115 for 128, 4.555 for 32,000."""
    return sqrt(2 * log(outputs))


def star(temperature: float) -> float:
    """beta_star of the time experiment's teacher, whose weights are uniform in +-1/sqrt(width): 0.577 / T."""
    return 1 / (sqrt(3) * temperature)


def curves(
    stars: Sequence[float] | Float[np.ndarray, " stars"],
    beta: Float[np.ndarray, " betas"] = BETAS,
    *,
    outputs: int = 128,
    width: int = 32,
    batch: int = 1024,
    replicates: int = 10,
    seed: int = 0,
) -> list[Curves]:
    """L, -dL/dbeta and U of aligned students, one `Curves` per beta_star; the same W and inputs serve all of them.

    Args:
        stars: the teachers' beta_star; `inf` is the limit of hard labels (T = 0).
        beta: where students stand, ascending and above 0; each teacher keeps those below its beta_star.
        replicates: draws of W, with `batch` inputs each.
    """
    at = np.concatenate([beta, np.asarray(stars, float)])
    draws = [_draw(np.random.default_rng([seed, i]), outputs, width, batch) for i in range(replicates)]
    excess, gap = np.stack([_excess_and_gap(at, below) for below, _ in draws], axis=1)
    ground = np.array([[lowest] for _, lowest in draws])
    found = []
    for i, beta_star in enumerate(stars, start=len(beta)):
        k = slice(int(np.searchsorted(beta, beta_star)))
        force = gap[:, k] - gap[:, [i]]
        saved = (beta_star - beta[k]) * gap[:, [i]] if beta_star < inf else 0.0
        loss = excess[:, k] - excess[:, [i]] - saved
        found.append(Curves(float(beta_star), outputs, beta[k], loss, force, ground + gap[:, k]))
    return found


def window(beta_star: float, outputs: int) -> tuple[float, float] | None:
    """Where c0 << beta << beta_star: from c0 to 4 c0 or beta_star / 4. None if that is less than a factor of 2."""
    low = crossover(outputs)
    high = min(TIMES_CROSSOVER * low, OF_STAR * beta_star)
    return (low, high) if high >= NARROWEST * low else None


def exponents(found: Curves, corrected: bool = False) -> tuple[Slope, Slope] | None:
    """The exponents of L and of -dL/dbeta in the window; None where there is no window.

    `corrected`: of L / (1 - r)^2 and of -dL/dbeta / (1 - r^2), without what the expansion at low temperature says of
    the approach to beta_star.
    """
    within = window(found.beta_star, found.outputs)
    if within is None:
        return None
    r = found.beta / found.beta_star if corrected else 0 * found.beta
    return _slope(found.beta, found.loss / (1 - r) ** 2, within), _slope(found.beta, found.force / (1 - r**2), within)


def course(
    found: Curves, c_eff: float = 1.0
) -> tuple[Float[np.ndarray, " betas"], Float[np.ndarray, " betas"], Float[np.ndarray, " betas"]]:
    """tau, beta and L along d beta / d tau = -(c_eff / outputs) dL/dbeta from beta = 0, means over draws of W.

    tau(beta) = outputs / c_eff * integral of d beta / (-dL/dbeta), by the trapezoidal rule in log beta. Where all of
    the gradient goes into beta, gradient flow has c_eff = 1, since |W|^2 = outputs at beta = 1; what an optimizer
    really has is the theory's one free constant (`rate`).
    """
    beta, force = found.beta, found.force.mean(0)
    steps = np.diff(np.log(beta)) * (beta[1:] / force[1:] + beta[:-1] / force[:-1]) / 2
    tau = found.outputs / c_eff * np.cumsum([beta[0] / force[0], *steps])
    return tau, beta, found.loss.mean(0)


def rate(found: Curves, tau: Float[np.ndarray, " points"], loss: Float[np.ndarray, " points"]) -> float:
    """The c_eff whose course fits measured losses best, by least squares in log tau.

    Points whose loss the course does not pass are left out; ValueError if none remains.
    """
    tau, loss = np.asarray(tau, float), np.asarray(loss, float)
    times, _, known = course(found)
    used = (tau > 0) & (loss > known[-1]) & (loss < known[0])
    if not used.any():
        raise ValueError(f"no loss lies between {known[-1]:.3g} and {known[0]:.3g}, the theory's range")
    expected = np.interp(-np.log(loss[used]), -np.log(known), np.log(times))
    return float(np.exp(np.mean(expected - np.log(tau[used]))))


def _draw(
    rng: np.random.Generator, outputs: int, width: int, batch: int
) -> tuple[Float[np.ndarray, "batch outputs"], float]:
    """Logits at beta = 1 of each input, less their largest; and U_0, minus the mean of the largest."""
    head = rng.standard_normal((outputs, width)) / sqrt(width)
    x = rng.standard_normal((batch, width))
    logits = x @ head.T * (sqrt(width) / np.linalg.norm(x, axis=1, keepdims=True))
    largest = logits.max(1, keepdims=True)
    return logits - largest, -float(largest.mean())


def _excess_and_gap(
    beta: Float[np.ndarray, " betas"], below: Float[np.ndarray, "batch outputs"]
) -> tuple[Float[np.ndarray, " betas"], Float[np.ndarray, " betas"]]:
    """A(beta) + beta U_0 and U(beta) - U_0, without cancellation; both vanish at infinity."""
    excess, gap = np.zeros(len(beta)), np.zeros(len(beta))
    for k in np.flatnonzero(beta < inf):
        weights = np.exp(beta[k] * below)
        total = weights.sum(1)
        excess[k] = np.log(total).mean()
        gap[k] = -(np.einsum("bo,bo->b", weights, below) / total).mean()
    return excess, gap


def _slope(beta: np.ndarray, values: Float[np.ndarray, "replicates betas"], within: tuple[float, float]) -> Slope:
    used = (beta >= within[0]) & (beta <= within[1])
    laws = power_laws([(beta[used], row[used]) for row in values], "none", lowest=0.0)
    alphas = [law.alpha for law in laws]
    r2 = float(np.mean([law.r2 for law in laws]))
    return Slope(float(np.mean(alphas)), *student_interval(alphas), r2, *within)
