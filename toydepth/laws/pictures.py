"""Every picture of a study: panels for a page, and the same as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..figures import Panel
from ..figures.frontier import Models, capacity_panels, frontier_panels, shape_panels
from ..figures.laws import part_panels, profile_panels, residual_panels, scan_panels
from ..figures.sheet import sheet
from .comparison import exclusion_scan
from .consequences import ShapeLaw
from .outcome import Consequences, in_numbers
from .published import Published
from .studies import Study

Panels = dict[str, list[Panel]]

TITLES = {
    "parts": "The parts of the loss",
    "frontier": "The compute frontier",
    "shape": "Shape",
    "capacity": "Capacity",
    "profiles": "How far exponents are known",
    "scan": "What is dropped",
    "residuals": "What the law misses",
}


def panels(found: Study, others: Sequence[Published] = ()) -> Panels:
    """{stem of a file: its panels}, in the order of `TITLES`; without what the law or the table has nothing for.

    Args:
        found: the study.
        others: published fits of the same table, to be shown beside the profiles.
    """
    law, sizes, follows = found.fit.law, found.table.sizes(found.fit.law), found.consequences
    drawn = {name: found.draws[name] for name in law.parameters if name in found.draws}
    made: Panels = {"parts": part_panels(found.fit, sizes, found.table.loss)}
    if follows is not None:
        models, counted = models_of(found, follows), follows.convention.words.replace("^2", "²")
        if follows.d_over_n is not None:
            made["frontier"] = frontier_panels(follows.size, models, counted)
            made["capacity"] = capacity_panels(follows.size, models.parameters.min(), models.parameters.max())
        if follows.shape is not None:
            numbers = in_numbers(law, {**found.fit.values, **drawn}, follows.convention.per_block) if drawn else None
            made["shape"] = shape_panels(
                follows.shape,
                models,
                follows.parameters,
                counted,
                numbers if isinstance(numbers, ShapeLaw) else None,
            )
    made["profiles"] = profile_panels(found.fit, found.profiles(), _beside(found, others))
    expected = law.expected()
    fixed = exclusion_scan(found.whole, expected, huber=found.fit.huber) if expected != law else {}
    size = np.nan if follows is None else follows.parameters
    made["scan"] = scan_panels(found.scan(), fixed, found.dropped, size)
    made["residuals"] = residual_panels(found.fit, sizes)
    return {stem: made[stem] for stem in TITLES if made.get(stem)}


def draw(made: Panels, out: Path, caption: str) -> list[Path]:
    """Writes a PNG for each group of panels into a folder, and returns their paths.

    One that an earlier call drew and that no longer applies is removed.
    """
    for stem in TITLES.keys() - made.keys():
        (out / f"{stem}.png").unlink(missing_ok=True)
    return [sheet(group, out / f"{stem}.png", caption) for stem, group in made.items()]


def models_of(found: Study, follows: Consequences) -> Models:
    """The table's models, parameters counted as in what follows from the fit."""
    columns = {name: found.table.frame[name].to_numpy().astype(float) for name in found.fit.law.variables}
    time = columns["tokens" if "tokens" in columns else "tau"]
    if follows.shape is None:
        return Models(columns["parameters"], time, found.table.loss)
    width, depth = columns["width"], columns["depth"]
    return Models(follows.convention.per_block * width**2 * depth, time, found.table.loss, width, depth)


def _beside(found: Study, others: Sequence[Published]) -> dict[str, list[tuple[str, float, float]]]:
    """{exponent: published values, and how much worse all their numbers fit the table, in units of chi-square}."""
    best = found.fit
    worse = [(other, best.n * (other.mse_log / best.mse_log - 1)) for other in others]
    return {
        name: [("published", other.values[name], more) for other, more in worse] for name in best.law.free_exponents
    }
