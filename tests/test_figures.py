"""The figure is drawn from whatever there is, without touching matplotlib's global state."""

import sys

import matplotlib
import numpy as np
import polars as pl
import pytest
from matplotlib.figure import Figure

from toydepth import figures
from toydepth.exponents import fit
from toydepth.figures import alpha_figure, trends
from toydepth.figures.style import LIGHT, marker


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


def test_of_many_regimes_some_are_named_and_the_others_counted(tmp_path, drawn):
    runs, histories = sweep(temperatures=tuple(0.05 * i for i in range(1, 21)), replicates=1)
    exponents = fit(runs)
    alpha_figure(exponents, runs, histories, tmp_path / "alpha.png", "toydepth run")
    entries, footer = texts(drawn[0])
    assert (len(exponents), len(entries)) == (40, 24)
    assert {entry.split(",")[0] for entry in entries} == {"tied", "independent"}
    assert footer == "16 more regimes: exponents.csv   toydepth run"
    assert len(drawn[0].axes[2].lines) == 2 * 8  # the least and the greatest depth of eight regimes


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
    looks = {(LIGHT.colour(i), marker(i)) for i in range(24)}
    assert len(looks) == 24


def test_pyplot_is_not_used():
    assert "matplotlib.pyplot" not in vars(figures).values()
    assert "plt" not in vars(figures)
    assert sys.modules["toydepth.figures"].Figure is Figure


# --- the exponent against fields and steps ------------------------------------------------------------------


def planted(alphas, depths=(2, 4, 8), replicates=3, converged=True, **fixed):
    """A table of runs with a planted exponent for each combination of fields {(field, value), ...: alpha}."""
    rows = []
    for fields, a in alphas.items():
        for seed in range(replicates):
            for depth in depths:
                loss = depth ** -(a + 0.1 * (seed - 1)) * (1 + 0.1 * seed)
                rows.append(
                    {"id": f"r{len(rows)}", "teacher.kind": "tied", "target.loss": "mse", **fixed, **dict(fields)}
                    | {"student.depth": depth, "seed": seed, "teacher.seed": seed, "status": "done", "steps": 100}
                    | {"loss": loss, "half_loss": loss * depth**0.5, "converged": converged}
                )
    return pl.DataFrame(rows, infer_schema_length=None)


def names(alphas, **fixed):
    return [panel.name for panel in figures.panels(fit(planted(alphas, **fixed)), planted(alphas, **fixed), {})[3:]]


def axes(panel, look=LIGHT):
    ax = Figure().add_subplot()
    panel.draw(ax, look)
    return ax


def over(name, *values, alpha=lambda i: 1.0 + 0.3 * i):
    return {((name, value),): alpha(i) for i, value in enumerate(values)}


RATES = {(("optimizer.lr", v), ("optimizer.adam_lr", v / 2)): 1.0 + v for v in (0.1, 0.2, 0.3)}
GRID = {(("target.temperature", t), ("teacher.rho", r)): 1 + t + r for t in (0.1, 0.2, 0.3) for r in (0.0, 0.5)}
CLASH = {(("teacher.hidden", a), ("student.hidden", b)): 1 + 0.1 * a for a in (1, 2, 3) for b in (1, 2, 3)}


@pytest.mark.parametrize(
    ("alphas", "expected"),
    [
        (over("target.temperature", 0.1, 0.3, 1.0), ["alpha_vs_temperature"]),
        (over("target.temperature", 0.1, 0.3), []),
        (over("student.block", "a.py:A", "b.py:B", "c.py:C"), []),
        (over("train.twin", True, False, None), []),
        (over("student.scheme", "euler", "rk4"), ["alpha_vs_scheme"]),
        (over("student.scheme", "euler", "mine"), []),
        (RATES, ["alpha_vs_lr"]),
        (GRID, ["alpha_vs_temperature"]),
        (CLASH, ["alpha_vs_teacher_hidden", "alpha_vs_student_hidden", "alpha_map"]),
    ],
)
def test_a_field_gets_a_picture_if_it_takes_three_numbers_or_is_the_scheme(alphas, expected):
    assert names(alphas) == expected


def test_the_exponent_stands_at_its_value_with_its_interval():
    runs = planted(over("target.temperature", 0.01, 0.1, 1.0))
    fits = fit(runs)
    ax = axes(figures.panels(fits, runs, {})[3])
    (line,) = [line for line in ax.lines if len(line.get_xdata()) == 3]
    np.testing.assert_allclose(line.get_xdata(), [0.01, 0.1, 1.0])
    np.testing.assert_allclose(line.get_ydata(), [1.0, 1.3, 1.6])
    bars = [c.get_segments()[0] for c in ax.collections]
    np.testing.assert_allclose([bar[:, 1] for bar in bars], [[e.ci_low, e.ci_high] for e in fits])
    assert ax.get_xscale() == "log"
    assert [line.get_ydata()[0] for line in ax.lines if set(line.get_xdata()) == {0, 1}] == [1, 3]


@pytest.mark.parametrize(("values", "scale"), [((1, 2, 8), "linear"), ((1, 2, 9), "log"), ((0, 0.5, 9), "linear")])
def test_the_axis_is_logarithmic_where_values_are_positive_and_span_more_than_a_factor_of_8(values, scale):
    runs = planted(over("teacher.rho", *values))
    assert axes(figures.panels(fit(runs), runs, {})[3]).get_xscale() == scale


@pytest.mark.parametrize(("converged", "face"), [(True, LIGHT.colour(0)), (False, LIGHT.page)])
def test_markers_are_open_where_not_all_runs_had_converged(converged, face):
    runs = planted(over("target.temperature", 0.1, 0.3, 1.0), converged=converged)
    ax = axes(figures.panels(fit(runs), runs, {})[3])
    assert {line.get_markerfacecolor() for line in ax.lines if line.get_marker() == "o"} == {face}


def test_other_fields_make_lines_of_their_own_but_not_those_that_follow():
    for alphas, lines in ((GRID, 2), (RATES, 1)):
        runs = planted(alphas)
        panel = figures.panels(fit(runs), runs, {})[3]
        assert len([line for line in axes(panel).lines if len(line.get_xdata()) == 3]) == lines
        assert ("(with it changes optimizer.adam_lr)" in panel.caption) == (alphas is RATES)
    runs = planted(RATES).with_columns(pl.col("optimizer.lr").alias("optimizer.eps"))
    panel = figures.panels(fit(runs), runs, {})[3]
    assert "(with it change optimizer.adam_lr, optimizer.eps)" in panel.caption


def test_the_rule_of_the_schemes_is_drawn():
    runs = planted(over("student.scheme", "euler", "midpoint", "rk4"))
    panel = figures.panels(fit(runs), runs, {})[3]
    assert "Dashed: 2p + 1, expected" in panel.caption
    ax = axes(panel)
    rule = [
        line.get_ydata() for line in ax.lines if list(line.get_xdata()) == [1, 2, 4] and line.get_marker() == "None"
    ]
    assert [3, 5, 9] in [list(y) for y in rule]
    assert ax.get_ylim()[1] > 9
    # Nothing is known of somebody's own teacher.
    own = runs.with_columns(pl.lit("mine.py:teacher").alias("teacher.kind"))
    panel = figures.panels(fit(own), own, {})[3]
    assert "2p + 1" not in panel.caption + "".join(text.get_text() for text in axes(panel).texts)


def drawn_levels(runs, variable="student.depth"):
    """The names of the dashed lines across, panel by panel."""
    shown = figures.panels(fit(runs, variable), runs, climbing(runs))
    names = [[text.get_text() for text in axes(panel).texts] for panel in shown]
    return {
        panel.name: [t for t in found if t in ("rough", "smooth")] for panel, found in zip(shown, names, strict=True)
    }


@pytest.mark.parametrize(
    ("fixed", "known"),
    [
        ({}, True),
        ({"student.scheme": "euler"}, True),
        ({"student.scheme": "midpoint"}, False),
        ({"teacher.kind": "mine.py:teacher"}, False),
    ],
)
def test_levels_are_drawn_where_they_are_known_to_hold(fixed, known):
    runs = planted(over("target.temperature", 0.1, 0.3, 1.0), **fixed)
    across = drawn_levels(runs)
    assert {name for name, found in across.items() if found} == (
        {"slopes", "alpha_vs_temperature", "alpha_vs_step"} if known else set()
    )
    assert {tuple(found) for found in across.values()} <= {(), ("rough", "smooth")}
    assert not any(drawn_levels(runs.with_columns(parameters=10 * pl.col("student.depth")), "parameters").values())


@pytest.mark.parametrize(("variable", "share"), [("flops", 0.5), ("train.steps", 0.5), ("parameters", 1)])
def test_hollow_twins_stand_at_what_they_cost(variable, share):
    runs = planted(over("teacher.kind", "tied")).with_columns((100 * pl.col("student.depth")).alias(variable))
    ax = axes(figures.panels(fit(runs, variable), runs, {})[0])
    (hollow,) = [line for line in ax.lines if line.get_markerfacecolor() == "none"]
    np.testing.assert_allclose(hollow.get_xdata(), [200 * share, 400 * share, 800 * share])


def climbing(runs, steps=(0, 25, 50, 75, 100)):
    """Histories whose exponent climbs to that of the run in proportion to the step."""
    return {
        run: pl.DataFrame({"step": steps, "loss": [loss ** (step / 100) for step in steps]})
        for run, loss in runs.select("id", "loss").iter_rows()
    }


def test_the_course_of_the_exponent_ends_at_the_exponent_and_the_twins_at_that_of_half_the_budget():
    runs = planted(over("teacher.kind", "tied", "mixed"))
    for e in fit(runs):
        found = trends.course(e, runs, climbing(runs))
        assert [p[0] for p in found] == [25, 50, 75, 100]
        np.testing.assert_allclose([p[1] for p in found], [e.alpha * share for share in (0.25, 0.5, 0.75, 1)])
        np.testing.assert_allclose(found[-1][2:], [e.ci_low, e.ci_high])
        half, full = trends.budgets(e, runs)
        assert half[:2] == pytest.approx((50, e.alpha_half))
        assert full == pytest.approx((100, e.alpha, e.ci_low, e.ci_high))
        assert half[1] == pytest.approx(full[1] - 0.5)


@pytest.mark.parametrize("floor", ["none", "free"])
def test_at_half_the_budget_the_picture_shows_the_tables_number(floor):
    """Two of three replicates have twins at too few depths for an alpha; their slopes there are others."""
    depths = (2, 3, 4, 6, 8, 12)
    every = planted(over("teacher.kind", "tied"), depths=depths)
    twin = (pl.col("seed") == 0) | (pl.col("student.depth") <= 3)
    other = pl.col("half_loss") * pl.col("student.depth") ** (pl.col("seed") / 2)
    runs = every.with_columns(half_loss=pl.when(twin).then(other))
    (e,) = fit(runs, floor=floor)
    half, _ = trends.budgets(e, runs)
    assert half[1] == pytest.approx(fit(runs)[0].alpha_half)
    assert half[2:] == (None, None)
    # With twins at half the depths all three count.
    enough = every.with_columns(half_loss=pl.when(twin | (pl.col("student.depth") <= 4)).then(other))
    (e,) = fit(enough)
    assert trends.budgets(e, enough)[0][1] == pytest.approx(e.alpha_half) != pytest.approx(half[1], abs=0.1)


def test_runs_that_share_a_replicate_and_x_count_at_half_the_budget_if_all_have_twins():
    runs = pl.concat([planted(over("teacher.kind", "tied"), **{"optimizer.lr": r}) for r in (0.1, 0.2)])
    runs = runs.with_columns(half_loss=pl.col("half_loss") * pl.col("optimizer.lr") * pl.col("student.depth") ** 0.3)
    lone = (pl.col("optimizer.lr") == 0.2) & (pl.col("student.depth") == 8)
    runs = runs.with_columns(half_loss=pl.when(~lone).then("half_loss"))
    (e,) = fit(runs, by=["teacher.kind"])
    assert trends.budgets(e, runs)[0][1] == pytest.approx(e.alpha_half)


def test_only_steps_at_which_all_runs_were_evaluated_count():
    runs = planted(over("teacher.kind", "tied"))
    histories = climbing(runs)
    histories["r0"] = climbing(runs, steps=(0, 20, 50, 100))["r0"]
    (e,) = fit(runs)
    assert [p[0] for p in trends.course(e, runs, histories)] == [50, 100]
    del histories["r0"]
    assert trends.course(e, runs, histories) == []


def test_the_picture_against_the_step_says_what_mid_run_points_are():
    runs = planted(over("teacher.kind", "tied", "mixed"))
    *_, panel = figures.panels(fit(runs), runs, climbing(runs))
    assert panel.name == "alpha_vs_step"
    assert "mid-run, before the rate's decay is complete; they usually fall short" in panel.caption
    ax = axes(panel)
    honest = [list(line.get_xdata()) for line in ax.lines if line.get_marker() in ("o", "s")]
    assert sorted(honest) == [[50], [50], [100], [100]]
    assert "alpha_vs_step" not in [panel.name for panel in figures.panels(fit(runs), runs, {})]


@pytest.mark.parametrize(
    ("fixed", "same"),
    [
        ({"schedule.name": "constant"}, True),
        ({"schedule.name": "constant", "schedule.warmup": 0.0}, True),
        ({"schedule.name": "constant", "schedule.warmup": 0.1}, False),
        ({"schedule.name": "wsd"}, False),
    ],
)
def test_at_a_constant_rate_mid_run_points_are_runs_of_that_many_steps(fixed, same):
    runs = planted(over("teacher.kind", "tied"), **fixed)
    *_, panel = figures.panels(fit(runs), runs, climbing(runs))
    assert ("which at a constant rate are those of runs of that many steps" in panel.caption) == same
    assert ("usually fall short" in panel.caption) != same


def test_of_many_regimes_a_few_are_shown_against_the_step_and_counted():
    runs = planted(over("target.temperature", *(0.1 * i for i in range(1, 21))), replicates=1)
    *_, panel = figures.panels(fit(runs), runs, climbing(runs))
    assert panel.caption.endswith("8 of 20 regimes.")


def test_draw_writes_all_that_applies_alpha_first_and_removes_what_no_longer_does(tmp_path):
    runs = planted(over("target.temperature", 0.1, 0.3, 1.0))
    (tmp_path / "alpha_vs_mine.png").write_bytes(b"not ours")
    written = figures.draw(fit(runs), runs, climbing(runs), tmp_path)
    assert [path.name for path in written] == ["alpha.png", "alpha_vs_temperature.png", "alpha_vs_step.png"]
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in written)
    fewer = runs.filter(pl.col("target.temperature") < 1)
    assert [path.name for path in figures.draw(fit(fewer), fewer, {}, tmp_path)] == ["alpha.png"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alpha.png", "alpha_vs_mine.png"]


def test_a_picture_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    runs = planted(over("teacher.kind", "tied"))
    (tmp_path / "alpha.png").write_bytes(b"before")

    def broken(figure, path, **_):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", broken)
    with pytest.raises(OSError, match="disk full"):
        figures.draw(fit(runs), runs, {}, tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("alpha.png", b"before")]


def test_images_for_pages_come_in_two_looks_and_are_the_same_each_time():
    runs = planted(over("teacher.kind", "tied"))
    panel, *_ = figures.panels(fit(runs), runs, {})
    light, dark = figures.svg(panel, LIGHT), figures.svg(panel, figures.DARK)
    assert LIGHT.colour(0).lower().encode() in light
    assert LIGHT.colour(0).lower().encode() not in dark
    assert figures.DARK.ink.lower().encode() in dark
    assert figures.svg(panel, LIGHT) == light
