"""One page on the triad: how loss falls with time, width and depth in three toys, beside what the papers report.

`make triad` trains the three quick sweeps and writes the page; `python -m toydepth.triad outputs` writes it from their
folders alone. Imports no JAX.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from . import figures, files, pages, store
from .config import ConfigError
from .derive import Derived, derive, writable
from .exponents import Exponent
from .figures import curves, losses
from .regimes import CURVES

PAGE = "triad.html"


@dataclass(frozen=True)
class Expected:
    """A number of the triad: which regime of which sweep shows it, what theory says, and what papers report.

    Attributes:
        law: the size, in a word.
        sweep: the sweep that shows it.
        words: which of its regimes.
        is_it: whether an exponent is that regime's.
        theory: the exponent that theory gives.
        toy: what the paper's own toy shows.
        models: what real language models show.
        source: where both stand.
    """

    law: str
    sweep: str
    words: str
    is_it: Callable[[Exponent], bool]
    theory: float
    toy: str
    models: str
    source: str


def _pooled_sgd(e: Exponent) -> bool:
    return e.variable == "tau" and e.regime.get("optimizer.name") == "sgd" and "optimizer.lr" in e.pooled


def _strong(e: Exponent) -> bool:
    strong = (e.regime.get("student.decay") or 0.0) < 0
    return e.quantity == "loss" and strong and e.regime.get("student.bias", 1.0) == 1.0


def _teacher(kind: str) -> Callable[[Exponent], bool]:
    return lambda e: e.quantity == "loss" and e.regime.get("teacher.kind") == kind


TRIAD = (
    Expected(
        "time",
        "time_quick",
        "SGD, a target at T = 0.0001, late in training",
        _pooled_sgd,
        1 / 3,
        "0.337 ± 0.002 (Adam at one rate)",
        "0.31 to 0.37 (Pythia 70M to 12B)",
        "arXiv 2602.03685",
    ),
    Expected(
        "width",
        "width_quick",
        "superposition (rows pulled to norm 1), frequencies 1/i, the published start",
        _strong,
        1.0,
        "0.98 (0.89 to 1.01 for other frequencies)",
        "0.91 ± 0.04 (27 models)",
        "arXiv 2505.10465",
    ),
    Expected(
        "depth",
        "alpha_quick",
        "a rough teacher (independent layers)",
        _teacher("independent"),
        1.0,
        "about 1",
        "1.2 ± 0.3 (Chinchilla)",
        "arXiv 2602.05970",
    ),
    Expected(
        "depth",
        "alpha_quick",
        "a smooth teacher (tied layers)",
        _teacher("tied"),
        3.0,
        "about 3",
        "not seen",
        "arXiv 2602.05970",
    ),
)


def write(root: Path, out: Path) -> Path:
    """Writes triad.html from the folders of the three sweeps in `root`, and returns its path.

    Raises:
        ConfigError: a sweep is missing or unfinished, or `out` cannot be written to.
    """
    found: dict[str, Derived] = {}
    for expected in TRIAD:
        folder = root / expected.sweep
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; toydepth run +sweeps={expected.sweep} makes it")
        found.setdefault(expected.sweep, derive(folder, figure=False))
    rows = [(expected, _exponent(expected, found[expected.sweep])) for expected in TRIAD]
    panels = [
        _panel(derived, [e for expected, e in rows if e and expected.sweep == sweep], sweep)
        for sweep, derived in found.items()
    ]
    page = pages.render(
        "triad.html.j2",
        name="The triad",
        rows=rows,
        pictures=pages.pictures(panels),
        captions={sweep: derived.caption for sweep, derived in found.items()},
    )
    with writable(out):
        out.mkdir(parents=True, exist_ok=True)
        files.write_text(out / PAGE, page)
    return out / PAGE


def _exponent(expected: Expected, derived: Derived) -> Exponent | None:
    """The regime's exponent; None where the sweep has none."""
    return next((e for e in derived.fits if expected.is_it(e)), None)


def _panel(derived: Derived, shown: Sequence[Exponent], sweep: str) -> figures.Panel:
    """Loss against the sweep's size, for the regimes shown alone."""
    panels = curves.panels if shown and shown[0].variable in CURVES else losses.panels
    panel = panels(shown, derived.runs, store.histories(derived.folder))[0]
    return replace(panel, name=f"triad_{sweep}")


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m toydepth.triad [ROOT] [--out DIR]`: prints the page's path."""
    parser = argparse.ArgumentParser("python -m toydepth.triad", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("root", type=Path, nargs="?", default=Path("outputs"), help="where the sweeps' folders lie")
    parser.add_argument("--out", type=Path, help="where to write; default: ROOT/triad")
    given = parser.parse_args(arguments)
    try:
        print(write(given.root, given.out or given.root / "triad"))
    except ConfigError as error:
        print(f"toydepth: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
