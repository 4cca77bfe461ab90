"""The exact split of a student's error into the error of its layers and what these have in common. Imports no JAX.

A student's last state is the mean of what its layers say, each taken for the whole of the way:

    h_L = (1/L) sum_l s_l,    s_l = h_0 + L dh_l,    e_l = s_l - y

so that its squared error R is

    R = |(1/L) sum_l e_l|^2 = C + (A - C) / L,    A = mean_l |e_l|^2,    C = mean_{l != k} e_l . e_k

per coordinate (divided by the width), averaged over inputs. If layers err independently, C = 0 and R = A / L: the
averaging that gives loss ~ 1/depth. If they err alike, C = A and depth averages nothing. Source: Peng, Liu, Z. Liu and
Gore 2026, "Emergent inverse-depth scaling from nonlinearity in attention".

The target y is the teacher's state, in two conventions: `before` takes both last states as they are before the final
norm; `behind` takes the teacher's behind it and divides all errors by the root mean square of the student's own last
state, so that R is what an mse loss compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from .summary import NORMAL, Moments

Convention = Literal["before", "behind"]  # of the final norm: where the last state is taken
CONVENTIONS: tuple[Convention, ...] = ("before", "behind")
EPSILON = 1e-6  # of the norm of the toys


@dataclass(frozen=True)
class ErrorSplit:
    """R = C + (A - C) / L, per coordinate.

    Attributes:
        R: the mean squared error of the last state.
        A: the mean squared error of a layer.
        C: the mean product of the errors of two layers; nan with one layer.
        low, high: the 95 % interval of C over inputs, counted as independent.
        products: the mean products of the errors of any two layers, [layers, layers].
    """

    R: float
    A: float
    C: float
    low: float
    high: float
    products: Float[np.ndarray, "layers layers"]

    @property
    def layers(self) -> int:
        return len(self.products)

    @property
    def common(self) -> float:
        """C / (A / L): what layers have in common against what averaging independent errors would leave."""
        return self.C / (self.A / self.layers) if self.A else float("nan")

    @property
    def residual(self) -> float:
        """How far the two sides of the identity are from one another, relative to R: rounding alone."""
        right = self.A if self.layers == 1 else self.C + (self.A - self.C) / self.layers
        return abs(self.R - right) / self.R if self.R else abs(right)


class Splitting:
    """Counts batches of a student's states and of what its last state should have been."""

    def __init__(self, layers: int, convention: Convention = "before"):
        self._convention = convention
        self._n, self._squared, self._products = 0, 0.0, np.zeros((layers, layers))
        self._cross = Moments(1)

    def add(self, states: Float[np.ndarray, "layers+1 inputs width"], y: Float[np.ndarray, "inputs width"]) -> None:
        """Counts a batch; `y` are the teacher's last states before the final norm."""
        h, y = np.asarray(states, np.float64), np.asarray(y, np.float64)
        layers, width = len(h) - 1, h.shape[-1]
        unit = np.ones(len(y))
        if self._convention == "behind":
            unit = _rms(h[-1])
            y = y / _rms(y)[:, None] * unit[:, None]
        errors = (h[0] + layers * np.diff(h, axis=0) - y) / unit[:, None]
        whole = (h[-1] - y) / unit[:, None]
        self._n += len(y)
        self._squared += float(np.sum(whole**2)) / width
        self._products += np.einsum("lnd,knd->lk", errors, errors, optimize=True) / width
        if layers > 1:
            of_input = np.sum(errors.sum(0) ** 2, -1) - np.sum(errors**2, (0, 2))
            self._cross.add(of_input[None] / (width * layers * (layers - 1)))

    def result(self) -> ErrorSplit:
        """What came out."""
        products = self._products / max(1, self._n)
        layers = len(products)
        off = ~np.eye(layers, dtype=bool)
        C = float(products[off].mean()) if layers > 1 else float("nan")
        half = NORMAL * float(self._cross.sd[0]) / max(1.0, float(self._cross.n[0])) ** 0.5
        A = float(np.diag(products).mean())
        return ErrorSplit(self._squared / max(1, self._n), A, C, C - half, C + half, products)


def _rms(h: Float[np.ndarray, "inputs width"]) -> Float[np.ndarray, " inputs"]:
    return np.sqrt(np.mean(h * h, axis=-1) + EPSILON)
