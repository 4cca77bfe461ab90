"""The figure is drawn from whatever there is, without touching matplotlib's global state."""

import sys

import matplotlib
import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from toydepth import figures
from toydepth.exponents import fit
from toydepth.figures import alpha_figure


def sweep(kinds=("tied", "independent"), temperatures=(None,), depths=(2, 4, 8), replicates=2):
    rows, histories = [], {}
    for kind in kinds:
        for temperature in temperatures:
            for seed in range(replicates):
                for depth in depths:
                    run = f"{kind}-{temperature}-{seed}-{depth}"
                    loss = float(depth) ** {"tied": -3, "independent": -1}[kind] * (1 + 0.1 * seed)
                    rows.append(
                        {
                            "id": run,
                            "teacher.kind": kind,
                            "target.loss": "kl" if temperature else "mse",
                            "target.temperature": temperature,
                            "student.depth": depth,
                            "seed": seed,
                            "teacher.seed": seed,
                            "status": "done",
                            "loss": loss,
                            "half_loss": 1.1 * loss,
                            "converged": False,
                        }
                    )
                    steps = np.array([0, 10, 100, 1000])
                    histories[run] = pl.DataFrame({"step": steps, "loss": loss + 1 / (1 + steps)})
    return pl.DataFrame(rows, schema_overrides={"target.temperature": pl.Float64}), histories


@pytest.fixture
def drawn(monkeypatch):
    """The figure object that was saved, besides the file."""
    kept = []
    save = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (kept.append(self), save(self, *a, **k))[1])
    return kept


def texts(figure):
    below = figure.axes[3]
    legend = below.get_legend()
    return [t.get_text() for t in (legend.get_texts() if legend else [])], below.texts[0].get_text()


CASES = {
    "two regimes": sweep(),
    "eight regimes": sweep(temperatures=(0.03, 0.1, 0.3, 1.0)),
    "no histories": (sweep()[0], {}),
    "one run": sweep(kinds=("tied",), depths=(8,), replicates=1),
    "one depth": sweep(depths=(8,)),
    "one replicate": sweep(replicates=1),
    "all diverged": (sweep()[0].with_columns(status=pl.lit("diverged")), {}),
    "nothing": (sweep()[0].clear(), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_draws_whatever_there_is(case, tmp_path, drawn):
    runs, histories = CASES[case]
    exponents = fit(runs)
    before = dict(matplotlib.rcParams)
    alpha_figure(exponents, runs, histories, tmp_path / "alpha.png", caption="toydepth run, commit abc")
    assert (tmp_path / "alpha.png").read_bytes().startswith(b"\x89PNG")
    assert dict(matplotlib.rcParams) == before
    entries, footer = texts(drawn[0])
    assert len(entries) == len(exponents)
    assert footer.endswith("toydepth run, commit abc")
    assert [ax.get_title(loc="left").split()[0] for ax in drawn[0].axes[:3]] == ["Loss", "Local", "Loss"]


def test_labels_hold_the_verdicts_and_the_footer_what_was_left_out(tmp_path, drawn):
    runs, histories = sweep()
    bad = (pl.col("student.depth") == 8) & (pl.col("seed") == 0)
    runs = runs.with_columns(status=pl.when(bad).then(pl.lit("diverged")).otherwise("status"))
    exponents = fit(runs)
    alpha_figure(exponents, runs, histories, tmp_path / "alpha.png")
    entries, footer = texts(drawn[0])
    for e, entry in zip(exponents, entries, strict=True):
        assert e.regime["teacher.kind"] in entry
        assert e.verdict in " ".join(entry.split("\n"))
    assert footer == "Left out of the fits: 2 diverged."
    # Diverged runs are not drawn either: 5 of 6 runs per regime remain among the small points.
    assert len(drawn[0].axes[0].lines[0].get_xdata()) == 5


def test_panels_show_points_twins_levels_and_curves(tmp_path, drawn):
    runs, histories = sweep()
    alpha_figure(fit(runs), runs, histories, tmp_path / "alpha.png")
    left, middle, right = drawn[0].axes[:3]
    assert left.get_xscale() == left.get_yscale() == right.get_xscale() == right.get_yscale() == "log"
    assert [t.get_text() for t in left.get_xticklabels()] == ["2", "4", "8"]
    hollow = [line for line in left.lines if line.get_markerfacecolor() == "none"]
    assert [len(line.get_xdata()) for line in hollow] == [3, 3]
    levels = [line.get_ydata()[0] for line in middle.lines if set(line.get_xdata()) == {0, 1}]
    assert levels == [1, 3]
    assert len(right.lines) == 6
    assert all(min(line.get_xdata()) > 0 for line in right.lines)


def test_regimes_differ_in_colour_and_marker():
    looks = {(figures._colour(i), figures._marker(i)) for i in range(24)}
    assert len(looks) == 24


def test_pyplot_is_not_used():
    assert "matplotlib.pyplot" not in vars(figures).values()
    assert "plt" not in vars(figures)
    assert sys.modules["toydepth.figures"].Figure is Figure
