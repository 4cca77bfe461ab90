"""Exponents: planted ones are recovered and covered, and verdicts say what is known."""

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

from toydepth import exponents, powerlaw
from toydepth.exponents import COLUMNS, Exponent, fit, to_dicts, to_frame

DEPTHS = np.array([2, 3, 4, 6, 8, 12])
SCHEMA = {"half_loss": pl.Float64, "converged": pl.Boolean, "target.temperature": pl.Float64}


def table(kind="tied", a=2.9, replicates=3, depths=DEPTHS, noise=0.02, gain=0.0, slope=-0.01, seed=0, **fields):
    """Runs of one regime: loss = depth^-a with noise; twins whose exponent is lower by `gain` (None: no twins)."""
    rng = np.random.default_rng(seed)
    rows = []
    for replicate in range(replicates):
        step = gain if gain is None else gain + 0.01 * rng.standard_normal()
        for depth in depths:
            loss = float(depth) ** -a * np.exp(noise * rng.standard_normal())
            half = None if step is None else loss * 2**-slope * float(depth) ** step
            rows.append(
                {
                    "id": f"{kind}-{depth}-{replicate}",
                    "teacher.kind": kind,
                    "target.loss": "mse",
                    "target.temperature": None,
                    "student.depth": int(depth),
                    "seed": replicate,
                    "teacher.seed": replicate,
                    "status": "done",
                    "loss": loss,
                    "half_loss": half,
                    "converged": None if half is None else bool(np.log2(loss / half) > exponents.CONVERGED_ABOVE),
                    **fields,
                }
            )
    return pl.DataFrame(rows, schema_overrides=SCHEMA)


def draws(a, floor, replicates, seed, n=400):
    """`n` regimes (told apart by temperature) with 5 % noise per run and a further 5 % per replicate."""
    rng = np.random.default_rng(seed)
    power = DEPTHS ** -float(a)
    loss = (power + floor * power[-1]) * (1 + 0.05 * rng.standard_normal((n, replicates, len(DEPTHS))))
    loss = loss * np.exp(0.05 * rng.standard_normal((n, replicates, 1)))
    draw, replicate, depth = np.indices(loss.shape).reshape(3, -1)
    columns = {
        "id": np.arange(loss.size).astype(str),
        "target.temperature": draw.astype(float),
        "student.depth": DEPTHS[depth],
        "seed": replicate,
        "teacher.seed": replicate,
        "status": np.full(loss.size, "done"),
        "loss": loss.ravel(),
    }
    return pl.DataFrame(columns).with_columns(half_loss=pl.lit(None), converged=pl.lit(None))


def coverage(found: list[Exponent], a: float) -> float:
    return float(np.mean([e.ci_low <= a <= e.ci_high for e in found if e.ci_low is not None and e.ci_high is not None]))


@pytest.mark.parametrize("replicates", [2, 3, 5, 10])
@pytest.mark.parametrize("floor", ["none", "free"])
@pytest.mark.parametrize("a", [1, 3])
def test_intervals_cover_planted_exponents(a, floor, replicates):
    runs = draws(a, 0.2 if floor == "free" else 0.0, replicates, seed=replicates)
    found = fit(runs, floor=floor)
    assert len(found) == 400
    assert all(e.n_replicates == replicates and e.n_runs == 6 * replicates for e in found)
    assert 0.90 <= coverage(found, a) <= 0.99


def test_coverage_fails_for_the_wrong_form_and_for_a_wrong_truth():
    runs = draws(1, 0.2, replicates=10, seed=0)
    assert coverage(fit(runs, floor="none"), 1) < 0.5
    assert coverage(fit(runs, floor="free"), 1.3) < 0.5


def test_a_floor_held_above_zero_would_not_be_covered():
    """Why `fit` lets a replicate's floor go below zero: `power_law`, which does not, is biased upwards."""
    runs = draws(1, 0.0, replicates=10, seed=0, n=100)
    loss = runs["loss"].to_numpy().reshape(100, 10, 6)
    curves = [(DEPTHS.astype(float), curve) for curve in loss.reshape(1000, 6)]
    held = np.reshape([law.alpha for law in powerlaw.power_laws(curves, "free", lowest=0.0)], (100, 10))
    intervals = [powerlaw.student_interval(list(alphas)) for alphas in held]
    assert np.mean([low <= 1 <= high for low, high in intervals if low is not None and high is not None]) < 0.85
    assert coverage(fit(runs, floor="free"), 1) >= 0.90


VERDICTS = {
    "converged: 2.": table(),
    "still climbing: at least 2.": table(gain=0.5, slope=-0.3),
    "still falling: at most 2.": table(gain=-0.5, slope=-1.5),
    "not converged (0 of 18 runs): ": table(gain=0.0, slope=-0.3),
    "convergence unknown (no half-budget twins): 2.": table(gain=None),
    "converged where known (6 of 18 runs": None,
    "not converged (0 of 6 runs): 2.": table(replicates=1, gain=0.5, slope=-0.3),
    "no exponent: a replicate needs 2 values of student.depth, the fullest has 1": table(depths=[8]),
    "no exponent: no run is done": table().with_columns(status=pl.lit("diverged")),
}


@pytest.mark.parametrize("start", VERDICTS)
def test_verdicts(start):
    runs = VERDICTS[start]
    if runs is None:
        start = "converged where known (6 of 18): 2."
        twin = pl.col("seed") == 0
        runs = table().with_columns(pl.when(twin).then(pl.col("half_loss", "converged")))
    (e,) = fit(runs)
    assert e.verdict.startswith(start), e.verdict
    assert ("one replicate: no interval" in e.verdict) == (e.n_replicates == 1)
    assert (e.ci_low is None) == (e.n_replicates < 2)


def test_alpha_slope_compares_budgets_on_the_same_runs():
    runs = table(gain=0.5, slope=-0.3, noise=0.0)
    (e,) = fit(runs)
    assert e.alpha_slope == pytest.approx(0.5, abs=0.03)
    assert e.alpha == pytest.approx(2.9)
    assert e.alpha_half == pytest.approx(2.4, abs=0.03)
    # Twins of the shallow half alone: alpha(N) must then be taken from the shallow half too.
    bent = pl.when(pl.col("student.depth") > 4).then(pl.col("loss") * 0.1).otherwise("loss")
    few = runs.with_columns(bent.alias("loss"), half_loss=pl.when(pl.col("student.depth") <= 4).then("half_loss"))
    (e,) = fit(few)
    assert e.alpha is not None
    assert e.alpha > 3.5
    assert e.alpha_slope == pytest.approx(0.5, abs=0.03)


def test_regimes_are_the_fields_that_vary():
    runs = pl.concat(
        [
            table(kind, a, **{"target.temperature": t, "train.batch": 512, "sweep.name": name})
            for kind, a in [("tied", 3), ("independent", 1)]
            for t, name in [(0.1, "a"), (1.0, "b")]
        ]
    )
    found = fit(runs)
    assert [tuple(e.regime) for e in found] == [("teacher.kind", "target.loss", "target.temperature")] * 4
    assert [e.regime["teacher.kind"] for e in found] == ["independent"] * 2 + ["tied"] * 2
    assert [round(e.alpha or 0) for e in found] == [1, 1, 3, 3]
    assert all(exponents.members(runs, e).height == 18 for e in found)
    # A null is a value of a field like any other.
    both = pl.concat([table(), runs], how="diagonal")
    mixed = fit(both.drop("train.batch"))
    assert len(mixed) == 5
    assert [exponents.members(both, e).height for e in mixed] == [18] * 5


def test_a_field_that_follows_the_variable_is_no_regime_but_is_named():
    follows = table().with_columns((pl.col("student.depth") * 1000).alias("train.steps"))
    (e,) = fit(follows)
    assert e.along == ("train.steps",)
    assert "train.steps changes with student.depth" in e.verdict
    crossed = pl.concat([table(**{"train.steps": n}) for n in (1000, 2000)])
    assert [e.regime["train.steps"] for e in fit(crossed)] == [1000, 2000]
    assert not any(e.along for e in fit(crossed))


def counted(runs):
    """The table with sizes that follow from the config, and with losses of flops^-0.7."""
    depth, steps = pl.col("student.depth"), pl.col("train.steps")
    runs = runs.with_columns(parameters=100 * depth, flops=(300 * depth * steps).cast(pl.Float64))
    return runs.with_columns(loss=pl.col("flops") ** -0.7, half_loss=1.05 * pl.col("flops") ** -0.6)


def test_counts_are_moved_by_depth_and_budget_and_these_are_no_regimes():
    runs = counted(
        pl.concat([table(**{"train.steps": n, "optimizer.lr": r}) for n in (1000, 1700) for r in (0.1, 0.2)])
    )
    found = fit(runs, "flops")
    assert [e.regime["optimizer.lr"] for e in found] == [0.1, 0.2]
    for e in found:
        assert e.along == ("student.depth", "train.steps")
        assert (e.n_runs, e.x_min, e.x_max) == (36, 300 * 2 * 1000, 300 * 12 * 1700)
        assert e.alpha == pytest.approx(0.7)
        assert "student.depth, train.steps change with flops" in e.verdict
    # Steps do not change how many parameters there are, so they remain a regime; so does what depth splits.
    assert [e.regime["train.steps"] for e in fit(runs, "parameters")] == [1000, 1000, 1700, 1700]
    assert all(e.along == ("student.depth",) for e in fit(runs, "parameters"))
    assert len(fit(runs, "student.depth")) == 4


def test_counts_that_coincide_or_are_coupled_still_pool_what_moves_them():
    coupled = table().with_columns((1000 * pl.col("student.depth")).alias("train.steps"))
    (e,) = fit(counted(coupled), "flops")
    assert e.along == ("student.depth", "train.steps")
    assert e.alpha == pytest.approx(0.7)
    # 4 layers for 1,000 steps cost what 2 layers cost for 2,000: an x then has two depths.
    (e,) = fit(counted(pl.concat([table(**{"train.steps": n}) for n in (1000, 2000)])), "flops")
    assert e.along == ("student.depth", "train.steps")
    assert e.alpha == pytest.approx(0.7)


def test_schemes_and_other_teachers_remain_regimes_though_they_change_the_counts():
    tables = [
        counted(table(**{"train.steps": 1000, "student.scheme": scheme, "teacher.width": width})).with_columns(
            flops=pl.col("flops") * factor * width, loss=pl.col("loss") * factor
        )
        for scheme, factor in [("euler", 1), ("rk4", 4.1)]
        for width in (16, 32)
    ]
    found = fit(pl.concat(tables), "flops")
    assert len({(e.regime["student.scheme"], e.regime["teacher.width"]) for e in found}) == len(found) == 4
    assert [e.alpha for e in found] == pytest.approx([0.7] * 4)
    assert fit(pl.concat(tables), "flops", by=["teacher.kind"])[0].alpha != pytest.approx(0.7, abs=0.1)


def test_a_twins_smaller_count_changes_no_exponent():
    runs = counted(table(**{"train.steps": 1000}))
    (e,) = fit(runs, "flops")
    flops, half = (runs.filter(pl.col("seed") == 0)[name].to_numpy() for name in ("flops", "half_loss"))
    assert e.alpha_half == pytest.approx(powerlaw.alpha(flops / 2, half)) == pytest.approx(0.6)
    assert e.alpha_half != pytest.approx(powerlaw.alpha(flops**0.9, half))


def test_runs_that_have_no_count_yet_are_counted_as_left_out():
    young = (pl.col("seed") == 1) & (pl.col("student.depth") == 12)
    runs = counted(table(**{"train.steps": 1000}))
    runs = runs.with_columns(
        flops=pl.when(~young).then("flops"), status=pl.when(young).then(pl.lit("running")).otherwise("status")
    )
    (e,) = fit(runs, "flops")
    assert e.left_out == {"running": 1}
    assert (e.n_runs, e.alpha) == (17, pytest.approx(0.7))


def test_replicates_may_have_sizes_of_their_own():
    runs = counted(table(**{"train.steps": 1000})).with_columns(flops=pl.col("flops") * (1 + 0.01 * pl.col("seed")))
    (e,) = fit(runs, "flops")
    assert (e.n_replicates, e.n_runs) == (3, 18)
    assert e.alpha == pytest.approx(0.7)


def test_by_pools_what_else_varies_and_says_so():
    rates = [table(kind, a, noise=0, **{"optimizer.lr": r}) for kind, a in [("tied", 3), ("mixed", 2)] for r in (1, 2)]
    runs = pl.concat(rates).with_columns(loss=pl.col("loss") * pl.col("optimizer.lr"))
    assert len(fit(runs)) == 4
    assert not any("pooled" in e.verdict for e in fit(runs))
    found = fit(runs, by=["teacher.kind"])
    assert [e.regime for e in found] == [{"teacher.kind": "mixed"}, {"teacher.kind": "tied"}]
    assert [e.alpha for e in found] == pytest.approx([2, 3])
    assert [(e.n_runs, e.n_replicates, e.pooled) for e in found] == [(36, 3, ("optimizer.lr",))] * 2
    assert [e.c for e in found] == pytest.approx([2**0.5] * 2)  # a cell's geometric mean
    assert all("pooled over optimizer.lr" in e.verdict for e in found)
    assert to_frame(found).columns == ["teacher.kind", *COLUMNS]
    # Only what varies within a regime is pooled there.
    (tied, mixed) = fit(
        runs.filter((pl.col("optimizer.lr") == 1) | (pl.col("teacher.kind") == "tied")), by=["teacher.kind"]
    )[::-1]
    assert (tied.pooled, mixed.pooled) == (("optimizer.lr",), ())
    (everything,) = fit(runs, by=["target.loss"])
    assert everything.pooled == ("teacher.kind", "optimizer.lr")


def test_diverged_and_unfinished_runs_are_left_out_and_counted():
    bad = (pl.col("seed") == 0) & (pl.col("student.depth") == 12)
    young = (pl.col("seed") == 1) & (pl.col("student.depth") > 3)
    status = pl.when(bad).then(pl.lit("diverged")).when(young).then(pl.lit("running")).otherwise("status")
    runs = table(noise=0.0).with_columns(status.alias("status"), loss=pl.when(bad | young).then(1e9).otherwise("loss"))
    (e,) = fit(runs)
    assert e.alpha == pytest.approx(2.9)
    assert e.left_out == {"running": 4, "diverged": 1, "in replicates with too few points": 2}
    assert (e.n_runs, e.n_replicates) == (11, 2)
    assert "left out: 4 running, 1 diverged" in e.verdict
    assert "replicates differ in their values of student.depth" in e.verdict
    assert not fit(table())[0].left_out
    unusable = table().with_columns(loss=pl.when(bad).then(float("nan")).otherwise("loss"))
    assert fit(unusable)[0].left_out == {"done without a usable loss": 1}


def test_replicates_that_share_a_teacher_are_not_called_independent():
    shared = table().with_columns(pl.lit(0).alias("teacher.seed"))
    assert "3 replicates share 1 teacher seed" in fit(shared)[0].verdict
    assert "teacher seed" not in fit(table())[0].verdict


def test_without_a_teachers_seed_replicates_are_told_apart_by_their_own():
    for runs in (table().drop("teacher.seed"), table().with_columns(pl.lit(None, pl.Int64).alias("teacher.seed"))):
        (e,) = fit(runs)
        assert (e.n_replicates, "not independent" in e.verdict) == (3, False)


def test_the_runs_behind_an_exponent_are_those_of_its_replicates():
    few = (pl.col("seed") == 1) & (pl.col("student.depth") > 3)
    runs = table().with_columns(status=pl.when(few).then(pl.lit("running")).otherwise("status"))
    for there in (runs, runs.drop("teacher.seed")):
        (e,) = fit(there)
        assert e.n_runs == 12
        assert exponents.fitted(there, e)["id"].to_list() == runs.filter(pl.col("seed") != 1)["id"].to_list()


def test_floor_and_poor_fit_are_said():
    assert "floor not told from 0" in fit(table(noise=0.05), floor="free")[0].verdict
    lifted = table(a=3, noise=0.01, replicates=5).with_columns(pl.col("loss") + 0.01)
    assert "floor not told" not in fit(lifted, floor="free")[0].verdict
    assert fit(lifted, floor="free")[0].floor == pytest.approx(0.01, rel=0.05)
    assert fit(lifted)[0].floor is None
    assert "a poor fit" in fit(table(a=0.05, noise=0.3))[0].verdict


def test_a_floor_that_is_not_identified_leaves_no_exponent_but_a_line():
    concave = table(noise=0.0).with_columns(loss=1 - 0.3 * pl.col("student.depth").log())
    (e,) = fit(concave, floor="free")
    assert (e.alpha, e.ci_low, e.ci_high, e.floor, e.c, e.law) == (None,) * 6
    assert e.verdict.startswith("no exponent: floor not identified (3 of 3 replicates: losses that do not level off")
    assert (e.n_runs, e.n_replicates) == (18, 3)
    assert to_frame([e])["alpha"].to_list() == [None]
    (plain,) = fit(concave)
    assert plain.alpha is not None
    # One replicate is enough: the others' mean would be one of those that happened to bend.
    one = pl.when(pl.col("seed") == 1).then(1 - 0.3 * pl.col("student.depth").log()).otherwise("loss")
    (e,) = fit(table(noise=0.0).with_columns(loss=one), floor="free")
    assert "(1 of 3 replicates: " in e.verdict
    assert e.alphas == ()
    # Twins alone that do not level off take the comparison of budgets away, and nothing else.
    (e,) = fit(table(noise=0.0).with_columns(half_loss=2 - 0.6 * pl.col("student.depth").log()), floor="free")
    assert e.alpha == pytest.approx(2.9, rel=1e-3)
    assert (e.alpha_half, e.alpha_slope) == (None, None)


def test_order_of_rows_and_company_do_not_matter():
    runs = pl.concat([table("tied", 3, seed=1), table("independent", 1, seed=2)])
    shuffled = fit(runs.sample(fraction=1, shuffle=True, seed=0))
    assert [e.verdict for e in shuffled] == [e.verdict for e in fit(runs)]
    alone = fit(runs.filter(pl.col("teacher.kind") == "tied"), floor="free")[0]
    assert alone.alpha == pytest.approx(fit(runs, floor="free")[1].alpha, rel=1e-9)


def test_frame_and_json():
    found = fit(pl.concat([table(replicates=1), table("independent", 1)]))
    frame = to_frame(found)
    assert frame.columns == ["teacher.kind", "target.loss", *COLUMNS]
    assert COLUMNS[:4] == ("variable", "alpha", "ci_low", "ci_high")
    assert COLUMNS[-4:] == ("converged", "alpha_slope", "verdict", "quantity")
    assert frame["ci_low"].is_null().to_list() == [False, True]
    assert frame.write_csv().splitlines()[2].split(",")[4:6] == ["", ""]
    entry = json.loads(json.dumps(to_dicts(found), allow_nan=False))[0]
    assert len(entry["alphas"]) == 3
    assert len(entry["local_slopes"]) == 5
    assert to_frame([]).columns == list(COLUMNS)


@pytest.mark.parametrize(
    ("variable", "floor", "message"),
    [
        ("student.dept", "none", "student.dept: not"),
        ("teacher.kind", "none", "not a numeric"),
        ("seed", "none", "above 0"),
        ("student.depth", "fixed", "floor=fixed: allowed are none, free"),
    ],
)
def test_wrong_requests_name_the_field(variable, floor, message):
    with pytest.raises(ValueError, match=message):
        fit(table(), variable, floor)


def test_an_empty_table_has_no_exponents():
    assert fit(table().clear()) == []


def test_no_jax():
    code = "import sys, toydepth.exponents, toydepth.figures; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
