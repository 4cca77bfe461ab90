"""`toydepth fit`: exponents and figure from run folders alone."""

import shlex
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from toydepth import config, store
from toydepth.cli import main

PLANTED = {"tied": 3.0, "independent": 1.0}
DERIVED = ["alpha.png", "exponents.csv", "exponents.json", "runs.parquet"]


def write_run(folder: Path, kind: str, depth: int, seed: int, status: str = "done") -> None:
    """A run's folder with a planted loss; each replicate has a constant of its own."""
    tree = {"teacher": {"kind": kind}, "student": {"depth": depth}, "seed": seed, "train": {"steps": 10}}
    resolved = config.resolve(config.parse(tree))
    run = store.run_folder(folder, config.run_id(resolved))
    store.write_config(run, resolved)
    loss = (1 + seed / 10) * depth ** -PLANTED[kind]
    for step, value in ((0, 1.0), (10, loss)):
        row = {"step": step, "loss": value, "loss_sem": value / 100, "train_loss": value}
        store.append_history(run, row | {"lr": 0.1, "tau": 0.1 * step, "seconds": step})
    if status == "done":
        result = {"loss": loss, "loss_sem": loss / 100, "half_loss": loss * 1.01, "steps": 10}
        store.write_json(run / "result.json", result | {"slope": -0.014, "converged": True})
    store.write_status(run, status, 10)


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


def test_runs_left_out_are_counted_in_words(sweep, capsys):
    write_run(sweep, "tied", 16, 0, status="diverged")
    assert typed("fit outputs/planted") == 0
    assert "1 diverged" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fit nowhere", "nowhere: no such folder"),
        ("fit outputs", "outputs: no runs in it"),
        ("fit unfinished", "unfinished: none of its runs has finished (1 running)"),
        ("fit outputs/planted --variable width", "variable=width"),
        ("fit outputs/planted --variable teacher.kind", "variable=teacher.kind"),
        ("fit outputs/planted --floor low", "--floor"),
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
