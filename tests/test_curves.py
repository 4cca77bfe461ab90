"""Exponents of curves: the window in which they hold is found or given, and where there is none nothing is claimed."""

import json

import numpy as np
import polars as pl
import pytest

from toydepth import curves, derive, files, store
from toydepth.config import ConfigError
from toydepth.exponents import fitted, members
from toydepth.fit_options import FitOptions, declared

X = np.geomspace(0.01, 1e4, 121)


def bent(a=1 / 3, start=1.0, floor=0.0):
    """A curve that is flat at first, x^-a from `start` on, and ends in a floor."""
    return (1 + (X / start) ** 2) ** (-a / 2) + floor


def test_the_window_is_where_the_power_law_is():
    low, high = curves.find_window(X, bent())
    assert 0.5 < low < 4
    assert high == X[-1]
    low, high = curves.find_window(X, bent(floor=0.1))
    assert 100 < high < 3000
    for window in (curves.find_window(X, bent(a)) for a in (0.1, 1.0, 3.0)):
        assert window[1] / window[0] > 1e3


@pytest.mark.parametrize(
    "loss",
    [
        np.exp(-X / 10) + 1e-6,
        1e-3 * np.exp(np.random.default_rng(0).normal(0, 0.3, X.size)),
        1 + 0 * X,
        np.exp(-(X**0.5)) + 1e-30,
    ],
    ids=["exponential", "noise", "flat", "stretched exponential"],
)
def test_where_there_is_no_power_law_no_window_is_found(loss):
    assert curves.find_window(X, loss) is None


def test_less_than_a_decade_is_no_window():
    x = np.geomspace(1, 9, 40)
    assert curves.find_window(x, x**-0.5) is None
    x = np.geomspace(1, 11, 40)
    assert curves.find_window(x, x**-0.5) is not None


def table(rates=(0.1,), seeds=(0, 1, 2), kinds=("sgd",), law=lambda rate, x: bent()):
    """Runs of these rates, and a history for each, tau = rate * step."""
    runs, histories = [], {}
    for kind in kinds:
        for rate in rates:
            for seed in seeds:
                run = f"{kind}-{rate}-{seed}"
                fields = {"optimizer.name": kind, "optimizer.lr": rate, "seed": seed, "teacher.seed": seed}
                runs.append(
                    {"id": run, "status": "done", "loss": 1.0, "loss_sem": 0.0, "half_loss": None, "converged": None}
                    | fields
                )
                loss = law(rate, X) * (1 + 0.1 * seed)
                numbers = {"loss": loss, "loss_first": loss, "loss_second": loss, "weight_norm": X**0.4}
                histories[run] = pl.DataFrame({"step": X / rate, "tau": X} | numbers)
    return pl.DataFrame(runs), histories


def test_each_replicate_gives_a_slope_within_the_window():
    runs, histories = table()
    (e,) = curves.fit(curves.points(runs, histories, "tau"), "tau")
    assert e.alpha == pytest.approx(1 / 3, abs=0.01)
    assert (e.n_runs, e.n_replicates, e.converged) == (3, 3, None)
    assert e.verdict.startswith(f"a power law: {e.alpha:.3f} [")
    assert f"for tau {e.x_min:.3g} to 1e+04 (found, R2 " in e.verdict
    assert members(runs, e).height == 3
    assert fitted(runs, e).height == 3
    (given,) = curves.fit(curves.points(runs, histories, "tau"), "tau", (10.0, 1000.0))
    assert (given.x_min, given.x_max) == (pytest.approx(10, rel=0.2), pytest.approx(1000, rel=0.2))
    assert "(asked for" in given.verdict
    (norm,) = curves.fit(curves.points(runs, histories, "tau", "weight_norm"), "tau", (10.0, 1000.0))
    assert norm.alpha == pytest.approx(-0.4)


def test_without_a_window_there_is_no_exponent():
    runs, histories = table(law=lambda rate, x: np.exp(-x / 10) + 1e-6)
    (e,) = curves.fit(curves.points(runs, histories, "tau"), "tau")
    assert (e.alpha, e.ci_low, e.r2, e.x_min, e.law) == (None,) * 5
    assert e.verdict.startswith("no power law: in no decade of tau")
    assert e.n_runs == 3


def test_rates_are_regimes_of_their_own_or_are_pooled():
    runs, histories = table(rates=(0.1, 0.2))
    rows = curves.points(runs, histories, "tau")
    assert [e.regime for e in curves.fit(rows, "tau")] == [{"optimizer.lr": 0.1}, {"optimizer.lr": 0.2}]
    (pooled,) = curves.fit(rows, "tau", by=("optimizer.name",))
    assert pooled.n_runs == 6
    assert "pooled over optimizer.lr" in pooled.verdict
    assert pooled.r2 > 0.99
    # Curves that do not lie on one line say so by their R2.
    runs, histories = table(rates=(0.1, 0.2), law=lambda rate, x: bent() * (rate / 0.1) ** 3)
    (apart,) = curves.fit(curves.points(runs, histories, "tau"), "tau", (10.0, 1000.0), by=("optimizer.name",))
    assert apart.r2 < 0.5


@pytest.fixture
def folder(tmp_path):
    """A sweep's folder with the runs of two optimizers at two rates."""
    runs, histories = table(rates=(0.1, 0.2), kinds=("adam", "sgd"))
    sweep = tmp_path / "sweep"
    for run in runs.to_dicts():
        path = sweep / "runs" / run["id"]
        path.mkdir(parents=True)
        config = {
            "problem": "time",
            "seed": run["seed"],
            "optimizer": {"name": run["optimizer.name"], "lr": run["optimizer.lr"]},
        }
        from toydepth.config import parse, resolve

        store.write_config(path, resolve(parse(config)))
        rows = histories[run["id"]].with_columns(pl.col("step").round().cast(pl.Int64)).unique("step").sort("step")
        rows = rows.with_columns(loss_sem=0.0, lr=0.1, train_loss=1.0, seconds=0.0)
        (path / "history.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows.to_dicts()))
        files.write_json(path / "status.json", {"status": "done", "message": "", "step": 1})
        numbers = dict.fromkeys(("loss", "loss_sem", "loss_first", "loss_second"), 0.5)
        files.write_json(
            path / "result.json", numbers | {"status": "done", "steps": 1, "measures": {"weight_norm": 2.0}}
        )
    return sweep


def test_a_sweep_declares_its_fits_and_what_is_asked_for_wins(folder, capsys):
    fits = "--where \"optimizer.name = 'sgd'\"; --x step --best-over lr --by optimizer.name"
    files.write_json(folder / "sweep.json", {"command": "toydepth run", "size": "tau", "fit": fits})
    derived = derive.derive(folder)
    assert [e.variable for e in derived.fits] == ["tau", "tau", "step", "step"]
    assert [e.regime.get("optimizer.lr") for e in derived.fits] == [0.1, 0.2, None, None]
    frame = pl.read_csv(folder / "exponents.csv")
    assert frame["variable"].to_list() == ["tau", "tau", "step", "step"]
    assert (folder / "alpha.png").stat().st_size > 20_000
    assert len(json.loads((folder / "exponents.json").read_text())["fit"]) == 2
    derive.print_table(derived)
    assert "exponent of loss in tau, loss in step" in capsys.readouterr().out
    (e,) = derive.derive(folder, FitOptions(x="tau", by=(), y="weight_norm", range=(1.0, None)), figure=False).fits
    assert (e.quantity, e.alpha) == ("weight_norm", pytest.approx(-0.4, abs=0.01))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (FitOptions(y="wait_norm"), r"--y wait_norm: no history has it; there are .*weight_norm"),
        (FitOptions(x="seed", y="wait_norm"), r"--x seed|--y wait_norm: no such quantity was recorded"),
        (FitOptions(floor="free"), r"--floor free: allowed is only none with --x tau"),
    ],
)
def test_what_cannot_be_fitted_is_refused_in_a_line(folder, options, said):
    files.write_json(folder / "sweep.json", {"command": "toydepth run", "size": "tau"})
    with pytest.raises(ConfigError, match=said):
        derive.derive(folder, options, figure=False)


def test_declared_fits_are_read_as_typed_and_refused_in_a_line():
    first, second = declared("--x tau --range 4.4:162; --y weight_norm --by lr;")
    assert (first.x, first.range, second.y, second.by) == ("tau", (4.4, 162.0), "weight_norm", ("lr",))
    for text in ("--rnge 1:2", "--range 2:1", "tau", "--where 'x"):
        with pytest.raises(ConfigError, match=r"^sweep\.fit: "):
            declared(text)
