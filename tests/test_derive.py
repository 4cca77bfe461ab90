"""`toydepth fit`: exponents and figures from run folders alone."""

import itertools
import json
import shlex
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from run_folders import PLANTED, write_run

from toydepth import config, derive, files
from toydepth.cli import main
from toydepth.fit_options import FitOptions

DERIVED = ["alpha.png", "alpha_vs_step.png", "exponents.csv", "exponents.json", "runs.parquet"]


@pytest.fixture
def sweep(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = Path("outputs/planted")
    for kind in PLANTED:
        for depth in (2, 4, 8):
            for seed in (0, 1):
                write_run(folder, kind, depth, seed)
    return folder


def typed(line: str) -> int:
    return main(shlex.split(line))


def test_fit_finds_the_planted_exponents_and_writes_what_a_sweep_ends_with(sweep, capsys):
    assert typed("fit outputs/planted") == 0
    assert sorted(path.name for path in sweep.iterdir()) == sorted([*DERIVED, "runs"])
    table = pl.read_csv(sweep / "exponents.csv")
    assert dict(table.select("teacher.kind", "alpha").iter_rows()) == pytest.approx(PLANTED)
    assert pl.read_parquet(sweep / "runs.parquet").height == 12
    out = capsys.readouterr().out
    assert "tied" in out
    assert "converged: 3.00" in out


def test_derived_files_can_be_deleted_and_come_back_the_same(sweep):
    typed("fit outputs/planted")
    tables = ["exponents.csv", "exponents.json"]
    before = [(sweep / name).read_bytes() for name in tables]
    for name in DERIVED:
        (sweep / name).unlink()
    typed("fit outputs/planted")
    assert [(sweep / name).read_bytes() for name in tables] == before


def test_fit_writes_elsewhere_when_told_to(sweep):
    assert typed("fit outputs/planted --out elsewhere/deep --floor free") == 0
    assert [path.name for path in sweep.iterdir()] == ["runs"]
    assert sorted(path.name for path in Path("elsewhere/deep").iterdir()) == DERIVED
    assert pl.read_csv("elsewhere/deep/exponents.csv")["floor"].null_count() == 0


def test_a_floor_that_the_losses_leave_open_is_said_and_not_fitted(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for depth, alpha in ((2, 0.5), (4, 1.5), (8, 3)):  # concave in depth: no power law with a floor is
        write_run(Path("outputs/bent"), "tied", depth, 0, alpha=alpha)
    assert typed("fit outputs/bent --floor free") == 0
    assert pl.read_csv("outputs/bent/exponents.csv").select("alpha", "ci_low", "floor").row(0) == (None,) * 3
    assert "no exponent: floor not identified" in " ".join(capsys.readouterr().out.split())
    assert typed("fit outputs/bent") == 0
    assert pl.read_csv("outputs/bent/exponents.csv")["alpha"][0] > 1


def test_runs_left_out_are_counted_in_words(sweep, capsys):
    write_run(sweep, "tied", 16, 0, status="diverged")
    assert typed("fit outputs/planted") == 0
    assert "1 diverged" in " ".join(capsys.readouterr().out.split())


def fitted(folder: Path = Path("outputs/planted")) -> tuple[dict, list[dict]]:
    record = json.loads((folder / "exponents.json").read_text())
    assert list(record) == ["fit", "exponents"]
    return record["fit"], record["exponents"]


def test_flops_a_range_and_a_condition_select_and_are_recorded(sweep):
    line = "fit outputs/planted --x flops --range 5e3:1e6 --where \"kind == 'tied' and status = 'done'\" --by kind"
    assert typed(line) == 0
    options, (e,) = fitted()
    assert options == {
        "x": "flops",
        "range": [5e3, 1e6],
        "floor": "none",
        "by": ["teacher.kind"],
        "where": "kind == 'tied' and status = 'done'",
        "best_over": [],
        "y": "loss",
    }
    assert e["alpha"] == pytest.approx(1.5)
    assert (e["regime"], e["variable"], e["n_runs"], e["x_min"]) == ({"teacher.kind": "tied"}, "flops", 4, 16e3)
    assert "student.depth changes with flops" in e["verdict"]
    assert pl.read_csv(sweep / "exponents.csv")["alpha"].to_list() == pytest.approx([1.5])
    assert pl.read_parquet(sweep / "runs.parquet").height == 12  # the table stays whole
    # Nothing of a fit stays behind for the next.
    assert typed("fit outputs/planted") == 0
    options, found = fitted()
    assert (options["x"], options["by"], len(found)) == ("student.depth", None, 2)


def test_the_best_rates_are_fitted_on_the_other_half(sweep, capsys):
    for kind, depth, seed, lr in itertools.product(PLANTED, (2, 4, 8), (0, 1), (0.01, 0.04)):
        write_run(sweep, kind, depth, seed, lr=lr)
    derived = derive.derive(sweep, FitOptions(x="depth", best_over=("lr",), floor="free"), figure=False)
    assert derived.options == FitOptions(x="student.depth", best_over=("optimizer.lr",), floor="free")
    assert derived.runs.height == 12
    assert set(derived.runs["optimizer.lr"]) == {0.04}
    assert derived.caption.endswith("(fit --floor free --best-over optimizer.lr)")
    assert [e.regime for e in derived.fits] == [{"teacher.kind": k, "target.loss": "mse"} for k in sorted(PLANTED)]
    for e in derived.fits:
        assert e.alpha == pytest.approx(PLANTED[e.regime["teacher.kind"]], rel=1e-3)
        assert e.c == pytest.approx(1.2 * 0.5 * 1.1**0.5, rel=1e-3)
        assert "best found over optimizer.lr (and with it optimizer.adam_lr)" in e.verdict
        assert "best optimizer.lr at the edge of its grid (0.04) at depth 2, 4, 8" in e.verdict
    best = fitted()[1][0]["best"]
    assert best[0] == {"student.depth": 2, "optimizer.lr": 0.04, "tried": 3, "unfit": 0, "at_edge": ["optimizer.lr"]}
    # A fit of all rates has a regime for each, and the planted constant.
    plain = derive.derive(sweep, figure=False)
    assert len(plain.fits) == 6
    derive.print_table(plain)
    assert "optimizer.lr" in capsys.readouterr().out


def test_figures_are_drawn_anew_where_those_there_are_of_other_options(sweep):
    def drawn(options, **more):
        (sweep / "alpha.png").write_bytes(b"an earlier one")
        derived = derive.derive(sweep, options, figure=False, **more)
        assert derived.redrawn == ((sweep / "alpha.png").read_bytes() != b"an earlier one")
        return derived.redrawn

    derive.derive(sweep)
    ranged = FitOptions(range=(2, 4))
    assert [drawn(FitOptions()), drawn(ranged), drawn(ranged), drawn(FitOptions())] == [False, True, False, True]
    assert fitted()[0]["range"] == [None, None]
    assert not drawn(FitOptions(x="depth"))  # the sweep's own size, by its name
    (sweep / "exponents.json").unlink()
    assert drawn(FitOptions())


@pytest.mark.parametrize("size", ["parameters", "student.depth"])
def test_the_size_is_the_one_that_the_sweep_was_made_for(sweep, size, capsys):
    files.write_json(sweep / "sweep.json", {"command": "toydepth run", "size": size})
    assert derive.derive(sweep, figure=False).caption == "toydepth run   (commit abc1234)"
    options, found = fitted()
    assert {options["x"], *(e["variable"] for e in found)} == {size}
    told = derive.derive(sweep, FitOptions(x="depth"), figure=False).caption
    assert ("--x student.depth" in told) == (size == "parameters")


def test_where_a_sweep_has_no_size_it_must_be_said(sweep, capfd):
    files.write_json(sweep / "sweep.json", {"command": "toydepth run", "size": None})
    assert typed("fit outputs/planted --x depth") == 0
    capfd.readouterr()
    with pytest.raises(config.ConfigError) as refused:
        derive.derive(sweep, FitOptions())
    there_are = "student.depth, parameters, flops"
    assert str(refused.value) == f"--x: say which field loss is a power of; there are {there_are}"


def test_all_options_go_together(sweep):
    for kind, depth, seed in itertools.product(PLANTED, (2, 4, 8), (0, 1)):
        write_run(sweep, kind, depth, seed, lr=0.01)
    line = "fit outputs/planted --x flops --floor free --by kind --where 'depth >= 2' --range :1e9 --best-over lr"
    assert typed(f"{line} --out all") == 0
    _, found = fitted(Path("all"))
    assert [e["alpha"] for e in found] == pytest.approx([PLANTED["independent"] / 2, PLANTED["tied"] / 2], rel=1e-3)
    assert {c["optimizer.lr"] for e in found for c in e["best"]} == {0.02}


def test_runs_that_recorded_no_halves_are_refused_for_best_over(sweep, capfd):
    write_run(sweep, "tied", 2, 0, lr=0.01)
    for path in sweep.glob("runs/tied*/result.json"):
        result = json.loads(path.read_text())
        del result["loss_first"]
        path.write_text(json.dumps(result))
    assert typed("fit outputs/planted --best-over lr") == 2
    assert "--best-over optimizer.lr: 7 of 13 runs did not record" in capfd.readouterr().err
    assert typed("fit outputs/planted") == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fit nowhere", "nowhere: no such folder"),
        ("fit outputs", "outputs: no runs in it"),
        ("fit unfinished", "unfinished: none of its runs has finished (1 running)"),
        ("fit outputs/planted --x widht", "--x widht: no such column; there are teacher.width"),
        ("fit outputs/planted --x teacher.kind", "--x teacher.kind: allowed is a field with numbers"),
        ("fit outputs/planted --x data.unique", "--x data.unique: a power law needs values above 0"),
        ("fit outputs/planted --floor low", "--floor"),
        ("fit outputs/planted --range 48:4", "--range 48:4: allowed is LOW:HIGH"),
        ("fit outputs/planted --range a", "--range a: allowed is LOW:HIGH"),
        ("fit outputs/planted --range 100:", "no run has student.depth within it; they have 2 to 8"),
        ("fit outputs/planted --by kind,", "--by kind,: allowed is a list"),
        ("fit outputs/planted --by knd", "--by knd: no such column; there are teacher.kind"),
        ("fit outputs/planted --where \"kind = 'tide'\"", "none of the 12 runs is so"),
        ("fit outputs/planted --where 'depth >'", "--where depth >: "),
        ("fit outputs/planted --best-over lr", "--best-over optimizer.lr: nothing to choose"),
        ("fit outputs/planted --best-over data.unique --x data.unique", "that is what loss is a power of"),
        ("fit outputs/planted --best-over kind", "--best-over teacher.kind: allowed is a field of the student or"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(sweep, capfd, words, said):
    write_run(Path("unfinished"), "tied", 2, 0, status="running")
    before = sorted(Path().rglob("*"))
    assert typed(words) == 2
    out, err = capfd.readouterr()
    assert (out, len(err.splitlines())) == ("", 1)
    assert said in err
    assert sorted(Path().rglob("*")) == before


def test_fit_does_not_import_jax(sweep):
    code = "import sys; from toydepth.cli import main; print(main(['fit', 'outputs/planted']), 'jax' in sys.modules)"
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1:] == ["0 False"], ended.stderr
