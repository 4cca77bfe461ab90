"""What a fitted law advises: the best width and depth of a size, and the best size and tokens for given compute."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..fields import ConfigError
from ..files import for_json
from .consequences import best_shape, frontier, ratios_within, shape_penalty
from .outcome import Consequences
from .studies import Study, as_json

TOLERANCE = 0.05  # of the reducible loss on the frontier
PENALTIES = (0.5, 2.0, 3.0, 4.0)  # m/l over the best


def shape(found: Study, parameters: Sequence[float] | None = None) -> dict[str, Any]:
    """The best shape at each size, and what other shapes cost, as one object.

    Args:
        found: of a law of width, depth and tokens (or tau).
        parameters: sizes, in the convention of the study; the geometric mean of the table's unless given.

    Raises:
        ConfigError: the law has no shape.
    """
    follows = _needed(found)
    law = follows.shape
    if law is None:
        needs = "width-depth-tokens or width-depth-tau"
        raise ConfigError(f"law shape: the law {found.fit.law.name} has none; allowed is --law {needs}")
    told = as_json(found)
    ratio = told["shape"]["m_over_l"]["value"]
    low, high = (ratio * end for end in ratios_within(law, TOLERANCE))
    shapes = [best_shape(law, size) for size in parameters or [follows.parameters]]
    return for_json(
        {
            "law": told["law"],
            "n": told["n"],
            **told["shape"],
            "n_convention": follows.convention.words,
            "shapes": [
                {
                    "parameters": best.parameters,
                    "width": best.width,
                    "depth": best.depth,
                    "m_over_l": best.ratio,
                    "model_loss": best.model_loss,
                }
                for best in shapes
            ],
            "penalty": [{"over_best": x, "of_model_loss": float(shape_penalty(law, x)) - 1} for x in PENALTIES],
            "tolerable": {"excess": TOLERANCE, "low": low, "high": high},
            "warnings": told["warnings"],
        }
    )


def compute_frontier(found: Study, compute: Sequence[float] | None = None) -> dict[str, Any]:
    """The best size, tokens and shape for each compute, as one object.

    Args:
        found: of a law of size and tokens.
        compute: C = 6 N D in operations; decades of the table's range unless given.

    Raises:
        ConfigError: the law has no frontier.
    """
    follows = _needed(found)
    if follows.d_over_n is None:
        raise ConfigError(
            f"law frontier: the law {found.fit.law.name} has none in tokens; allowed is a law of size and tokens"
        )
    told = as_json(found)
    points = []
    for operations in compute or _decades(follows.compute):
        best = frontier(follows.size, operations)
        point: dict[str, Any] = {
            "compute": operations,
            "parameters": best.parameters,
            "tokens": best.tokens,
            "d_over_n": best.tokens_per_parameter,
            "loss": best.loss,
        }
        if follows.shape is not None:
            model = best_shape(follows.shape, best.parameters)
            point |= {"width": model.width, "depth": model.depth}
        points.append(point)
    exponent = follows.compute_exponent
    return for_json(
        {
            "law": told["law"],
            "n": told["n"],
            **told["frontier"],
            "compute_exponent": exponent.value,
            "points": points,
            "warnings": told["warnings"],
        }
    )


def _needed(found: Study) -> Consequences:
    if found.consequences is None:
        zero = [name for name, value in found.fit.coefficients.items() if value == 0]
        why = f"{zero[0]} came out as 0" if zero else "it needs size and tokens (or tau)"
        raise ConfigError(f"nothing follows from the law {found.fit.law.name} on these rows: {why}")
    return found.consequences


def _decades(middle: float) -> list[float]:
    centre = round(float(np.log10(middle)))
    return [10.0**power for power in range(centre - 2, centre + 3)]
