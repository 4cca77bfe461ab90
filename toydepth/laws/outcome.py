"""What follows from a fitted law, with intervals: its shape, its frontier, and how parameters were counted for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .consequences import PER_BLOCK, Number, ShapeLaw, SizeLaw, best_shape, frontier, split
from .intervals import Interval, percentiles
from .law import Law

SHAPED = (("width", "depth", "tokens"), ("width", "depth", "tau"))
SIZED = (("parameters", "tokens"), ("parameters", "tau"))


@dataclass(frozen=True)
class Convention:
    """How parameters are counted: as per_block * m^2 * l, and that in words."""

    per_block: float
    words: str


WITHOUT_EMBEDDINGS = Convention(PER_BLOCK, "N = 12 m^2 l, without embeddings")


@dataclass(frozen=True)
class Known:
    """A number, and its 95 % interval where there are draws."""

    value: float
    interval: Interval | None = None


@dataclass(frozen=True)
class Consequences:
    """What follows from a fit; where it depends on them, for models of `parameters` and for `compute`.

    Without a `shape` the law does not tell width from depth; without `d_over_n` it is one of tau, whose tokens hang on
    the batch and the rate.
    """

    shape: ShapeLaw | None
    size: SizeLaw
    convention: Convention
    parameters: float
    compute: float
    m_over_l: Known | None
    c_N: Known
    d_over_n: Known | None
    compute_exponent: Known

    @property
    def width_depth_time(self) -> tuple[float, float, float] | None:
        """The parts of the loss at the optimum, depth's taken as 1."""
        if self.shape is None:
            return None
        width, depth, time = split(self.shape)
        return float(width), float(depth), float(time)


def table_convention(
    parameters: Float[np.ndarray, " rows"],
    width: Float[np.ndarray, " rows"],
    depth: Float[np.ndarray, " rows"],
    counting: str = "as in the table",
) -> Convention:
    """Parameters as a table counts them, taken as their median number per m^2 l."""
    per_block = np.asarray(parameters, float) / (np.square(width, dtype=float) * depth)
    low, middle, high = np.quantile(per_block, [0, 0.5, 1])
    words = f"N {counting}, taken as {middle:.3g} m^2 l ({low:.3g} to {high:.3g} in the table)"
    return Convention(float(middle), words)


def in_numbers(law: Law, values: Mapping[str, Number], per_block: Number = PER_BLOCK) -> ShapeLaw | SizeLaw | None:
    """A fitted law as one that something follows from, or None: it lacks size or time, or a part of it came out as 0.

    Args:
        law: any; what is needed are width and depth, or parameters; and tokens or tau.
        values: its coefficients, exponents and floor by name, numbers or draws.
        per_block: parameters of a layer over m^2.
    """
    if any(np.all(np.asarray(values[name]) == 0) for name in law.coefficients):
        return None
    numbers = [values[name] for name in law.names]
    if law.variables in SHAPED:
        return ShapeLaw(*numbers, per_block=per_block)
    return SizeLaw(*numbers) if law.variables in SIZED else None


def consequences(
    law: Law,
    values: Mapping[str, float],
    parameters: float,
    compute: float,
    convention: Convention = WITHOUT_EMBEDDINGS,
    draws: Mapping[str, Float[np.ndarray, " draws"]] | None = None,
) -> Consequences | None:
    """All that follows from a fitted law; None where `in_numbers` has None.

    Args:
        law: the law that was fitted.
        values: its coefficients, exponents and floor by name.
        parameters: the size that m/l is told for, where it depends on it.
        compute: the C that D/N is told for, where it depends on it.
        convention: how parameters are counted; for a law of parameters, only its words count.
        draws: bootstrap draws of the free ones among `values`, for the intervals.
    """
    found = in_numbers(law, values, convention.per_block)
    drawn = None if draws is None else in_numbers(law, {**values, **draws}, convention.per_block)
    if found is None:
        return None

    def known(what: Callable[[ShapeLaw | SizeLaw], Number]) -> Known:
        with np.errstate(all="ignore"):
            draws = None if drawn is None else what(drawn)
            return Known(float(what(found)), percentiles(draws) if isinstance(draws, np.ndarray) else None)

    def ratio(law: ShapeLaw | SizeLaw) -> Number:
        return best_shape(law, parameters).ratio if isinstance(law, ShapeLaw) else np.nan

    shape, in_tokens = found if isinstance(found, ShapeLaw) else None, "tokens" in law.variables
    return Consequences(
        shape=shape,
        size=found.of_size(),
        convention=convention,
        parameters=parameters,
        compute=compute,
        m_over_l=None if shape is None else known(ratio),
        c_N=known(lambda law: law.of_size().c_N),
        d_over_n=known(lambda law: frontier(law.of_size(), compute).tokens_per_parameter) if in_tokens else None,
        compute_exponent=known(lambda law: law.of_size().compute_exponent),
    )
