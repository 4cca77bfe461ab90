"""Choosing the best value at each x: the planted exponent comes out, and the choice does not flatter itself."""

import itertools

import numpy as np
import polars as pl
import pytest

from toydepth.best import choose
from toydepth.exponents import fit

DEPTHS = (2, 4, 8, 16)
RATES = (0.01, 0.02, 0.04, 0.08, 0.16)


def table(
    depths=DEPTHS,
    rates=RATES,
    replicates=3,
    loss=lambda depth, rate: depth**-2.0,
    noise=0.0,
    luck=0.0,
    draw=0,
    **fields,
):
    """Runs of all depths, rates and seeds: `noise` is an evaluation half's, `luck` a training's and so in both."""
    rng = np.random.default_rng(draw)
    rows = []
    for depth, rate, seed in itertools.product(depths, rates, range(replicates)):
        true = loss(depth, rate) * (1 + seed / 10) * np.exp(luck * rng.standard_normal())
        first, second = true * np.exp(noise * rng.standard_normal(2))
        rows.append(
            {
                "teacher.kind": "tied",
                "student.depth": depth,
                "optimizer.lr": rate,
                "seed": seed,
                "teacher.seed": seed,
                "status": "done",
                "loss": (first + second) / 2,
                "loss_sem": 0.01 * true,
                "loss_first": first,
                "loss_second": second,
                "half_loss": 1.1 * true,
                "converged": False,
                **fields,
            }
        )
    return pl.DataFrame(rows)


def moving(depth, rate):
    """A power law at the best rate, 0.16 / depth^1/2 on the grid's ends; elsewhere the loss is higher."""
    return depth**-2.0 * (1 + np.log2(rate * depth / 0.16) ** 2)


def best_fit(runs, over=("optimizer.lr",), variable="student.depth", by=None):
    best = choose(runs, variable, over, by)
    return [best.describe(e) for e in fit(best.runs, variable, by=by, tuned=best.fields)]


def test_the_exponent_at_the_best_rates_is_found_and_the_choices_are_named():
    runs = table(loss=moving)
    (e,) = best_fit(runs)
    assert e.alpha == pytest.approx(2)
    assert (e.n_runs, e.n_replicates, e.along) == (12, 3, ())
    assert [(c["student.depth"], c["optimizer.lr"], c["tried"]) for c in e.best] == [
        (depth, 0.16 / depth, 5) for depth in DEPTHS
    ]
    assert "best found over optimizer.lr;" in e.verdict
    assert {c["unfit"] for c in e.best} == {0}
    # Without the choice no rate has it.
    assert not any(abs((e.alpha or 0) - 2) < 0.2 for e in fit(runs))


def test_a_choice_does_not_flatter_itself():
    """Equal rates, evaluation noise alone: the lowest first halves are low by luck, their second halves are not."""
    runs = table(rates=[0.1 * i for i in range(1, 41)], noise=0.3, depths=[*range(2, 42)], loss=lambda depth, rate: 1)
    best = choose(runs, "student.depth", ["optimizer.lr"])
    assert best.runs.height == 40 * 3
    true = 1 + best.runs["seed"] / 10
    assert np.log(best.runs["loss_first"] / true).mean() < -0.3
    assert np.log(best.runs["loss"] / true).mean() == pytest.approx(0, abs=0.08)
    assert best.runs["loss"].equals(best.runs["loss_second"].alias("loss"))


def test_more_rates_at_greater_depth_do_not_steepen_the_exponent():
    rates = [0.01 * n for n in range(1, 65)]
    draws = [table(rates=rates, noise=0.3, draw=i, **{"target.temperature": float(i)}) for i in range(40)]
    tried = pl.col("student.depth").replace_strict({2: 1, 4: 4, 8: 16, 16: 64}, return_dtype=pl.Float64)
    runs = pl.concat(draws).filter(pl.col("optimizer.lr") < 0.01 * tried + 0.005)
    best = choose(runs, "student.depth", ["optimizer.lr"])
    fair = [e.alpha for e in fit(best.runs, tuned=best.fields)]
    flattered = [e.alpha for e in fit(best.runs.with_columns(loss="loss_first"), tuned=best.fields)]
    assert len(fair) == 40
    assert np.mean(fair) == pytest.approx(2, abs=0.05)
    assert np.mean(flattered) > 2.15


def test_one_choice_for_all_replicates_is_less_lucky_than_one_for_each():
    runs = table(depths=range(2, 42), loss=lambda depth, rate: 1, luck=0.3, replicates=9)

    def optimism(runs):
        chosen = choose(runs, "student.depth", ["optimizer.lr"]).runs
        return -np.log(chosen["loss"] / (1 + chosen["seed"] / 10)).mean()

    together = optimism(runs)
    each = np.mean([optimism(one) for one in runs.partition_by("seed")])
    assert each == pytest.approx(1.16 * 0.3, abs=0.05)
    assert together == pytest.approx(1.16 * 0.3 / 3, abs=0.05)


def test_a_value_at_the_edge_of_its_grid_is_told():
    (e,) = best_fit(table(loss=moving))
    assert "best optimizer.lr at the edge of its grid (0.01) at depth 16" in e.verdict
    (e,) = best_fit(table(loss=moving, depths=(2, 4, 8)))
    assert "edge" not in e.verdict
    (e,) = best_fit(table(loss=moving, rates=(0.04, 0.08)))
    assert "at the edge of its grid (0.04) at depth 4, 8, 16 and (0.08) at depth 2" in e.verdict
    # One value is no grid, a word has no edge.
    low = pl.col("student.depth") > 2
    (e,) = best_fit(table(loss=moving).filter(low | (pl.col("optimizer.lr") == 0.08)))
    assert [len(c["at_edge"]) for c in e.best] == [0, 0, 0, 1]
    words = (
        table(loss=moving)
        .rename({"optimizer.lr": "rate"})
        .with_columns(pl.col("rate").cast(pl.String).alias("student.init"))
    )
    (e,) = best_fit(words, ["student.init"])
    assert e.alpha == pytest.approx(2)
    assert "edge" not in e.verdict
    # Values of which we know that they diverge lie beyond the edge; unfinished ones do not.
    above = (pl.col("optimizer.lr") == 0.16) & (pl.col("student.depth") == 2)
    for status, at_edge in [("diverged", []), ("running", ["optimizer.lr"])]:
        unfit = table(loss=moving).with_columns(status=pl.when(above).then(pl.lit(status)).otherwise("status"))
        (e,) = best_fit(unfit)
        assert e.best[0] == {"student.depth": 2, "optimizer.lr": 0.08, "tried": 4, "unfit": 1, "at_edge": at_edge}
        assert "(1 of 20 could not be chosen: not done in as many replicates)" in e.verdict


def test_a_value_that_diverged_in_one_replicate_is_not_the_best():
    bad = (pl.col("optimizer.lr") == 0.04) & (pl.col("student.depth") == 4) & (pl.col("seed") == 2)
    runs = table(loss=moving).with_columns(status=pl.when(bad).then(pl.lit("diverged")).otherwise("status"))
    (e,) = best_fit(runs)
    assert e.best[1]["optimizer.lr"] == 0.02
    assert e.left_out == {}
    # Where no value has any loss, the runs are counted.
    runs = table(loss=moving).with_columns(
        status=pl.when(pl.col("student.depth") == 16).then(pl.lit("diverged")).otherwise("status")
    )
    (e,) = best_fit(runs)
    assert e.left_out == {"diverged": 15}
    assert (e.alpha, len(e.best)) == (pytest.approx(2), 3)


TEACHERS = {0: 4.0, 1: 2.0, 2: 1.0}


def on_teachers(seeds_of):
    """0.01 is better than 0.02 on every teacher; each is done with the given seeds and diverged with the others."""
    runs = table(rates=tuple(seeds_of), loss=lambda depth, rate: depth**-2.0 * (1.0 if rate == 0.01 else 1.3))
    loss = pl.col("loss_first", "loss_second", "loss") * pl.col("seed").replace_strict(TEACHERS)
    pairs = pl.concat_list("optimizer.lr", pl.col("seed").cast(pl.Float64))
    done = pairs.is_in([[rate, float(seed)] for rate, seeds in seeds_of.items() for seed in seeds])
    return runs.with_columns(loss, status=pl.when(done).then(pl.lit("done")).otherwise(pl.lit("diverged")))


@pytest.mark.parametrize(
    ("seeds_of", "best"),
    [
        ({0.01: (0, 1), 0.02: (1, 2)}, 0.01),  # over teacher 1; the mean over its own teachers favours 0.02
        ({0.01: (0, 1, 2), 0.02: (1, 2)}, 0.01),
        ({0.01: (0, 1), 0.02: (0, 1, 2)}, 0.02),  # done in more replicates
        ({0.01: (0,), 0.02: (2,)}, 0.02),  # none shared: nothing better is known than each its own
    ],
)
def test_values_are_compared_over_the_replicates_that_they_share(seeds_of, best):
    choices = choose(on_teachers(seeds_of), "student.depth", ["optimizer.lr"]).choices
    assert choices["optimizer.lr"].to_list() == [best] * len(DEPTHS)


def test_the_half_budget_is_the_chosen_runs_own():
    (e,) = best_fit(table(loss=moving))
    assert e.alpha_half == pytest.approx(2)
    other = table(loss=moving).with_columns(half_loss=pl.col("half_loss") * (1 + pl.col("optimizer.lr")))
    (e,) = best_fit(other)
    by_hand = -np.polyfit(np.log(DEPTHS), [np.log(d**-2.0 * (1 + 0.16 / d)) for d in DEPTHS], 1)[0]
    assert e.alpha_half == pytest.approx(by_hand) != pytest.approx(2, abs=0.01)


def test_fields_that_follow_a_chosen_one_are_chosen_with_it():
    runs = table(loss=moving).with_columns(pl.col("optimizer.lr").alias("optimizer.adam_lr"))
    (e,) = best_fit(runs)
    assert e.alpha == pytest.approx(2)
    assert "best found over optimizer.lr (and with it optimizer.adam_lr)" in e.verdict
    crossed = pl.concat([table(loss=moving, **{"optimizer.adam_lr": r}) for r in (0.1, 0.2)])
    assert [e.regime["optimizer.adam_lr"] for e in best_fit(crossed)] == [0.1, 0.2]
    (e,) = best_fit(crossed, ["optimizer.lr", "optimizer.adam_lr"])
    assert [c["tried"] for c in e.best] == [10] * 4


def test_regimes_choose_for_themselves_and_pooled_fields_stay_apart():
    def other(depth, rate):
        return depth**-1.0 * (1 + np.log2(rate / 0.04) ** 2)

    names = [("muon", moving), ("adam", other)]
    runs = pl.concat([table(loss=loss, **{"optimizer.name": name, "target.temperature": None}) for name, loss in names])
    found = best_fit(runs)
    assert [(e.regime["optimizer.name"], e.alpha) for e in found] == [
        ("adam", pytest.approx(1)),
        ("muon", pytest.approx(2)),
    ]
    assert {c["optimizer.lr"] for c in found[0].best} == {0.04}
    (e,) = best_fit(runs, by=["target.temperature"])
    assert e.alpha == pytest.approx(1.5)
    assert e.pooled == ("optimizer.name",)
    assert [c["optimizer.name"] for c in e.best] == ["adam", "muon"] * 4
    (e,) = best_fit(runs, ["optimizer.lr", "optimizer.name"])
    assert e.alpha == pytest.approx(2, abs=0.1)
    assert {c["optimizer.name"] for c in e.best[1:]} == {"muon"}


def test_counts_choose_among_runs_of_the_same_count():
    runs = pl.concat([table(loss=moving, **{"train.steps": n}) for n in (1000, 1700)])
    flops = pl.col("student.depth") * pl.col("train.steps") * 1.0
    (e,) = best_fit(runs.with_columns(flops=flops), variable="flops")
    assert e.along == ("student.depth", "train.steps")
    assert (e.n_runs, len(e.best)) == (24, 8)
    with pytest.raises(ValueError, match="nothing to choose"):
        choose(runs.with_columns(flops=flops).filter(pl.col("optimizer.lr") == 0.01), "flops", ["train.steps"])


def test_runs_without_halves_are_refused():
    for runs in (table().drop("loss_first"), table().with_columns(loss_second=pl.lit(None, pl.Float64))):
        with pytest.raises(ValueError, match="60 of 60 runs did not record their loss on each half"):
            choose(runs, "student.depth", ["optimizer.lr"])
    some = table().with_columns(loss_first=pl.when(pl.col("seed") > 0).then("loss_first"))
    with pytest.raises(ValueError, match="20 of 60 runs"):
        choose(some, "student.depth", ["optimizer.lr"])
    with pytest.raises(ValueError, match="nothing to choose"):
        choose(table(rates=(0.1,)), "student.depth", ["optimizer.lr"])
