"""`toydepth law` as a user types it: what it prints and writes, and that every bad table gets one clear line."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from law_tables import DATA, THEORY, grid, needs_data, planted
from typing_commands import typed

KEYS = ["law", "n", "coefficients", "exponents", "standard_errors", "intervals", "mse_log", "relative_error"]
KEYS += ["aic", "bic", "starts", "starts_agreeing", "shape", "frontier", "warnings"]


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """An empty folder to type in, with a planted table in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TOYDEPTH_DATA", raising=False)
    planted().write_csv("planted.csv")
    return tmp_path


def told(capsys, line):
    """The object that a line prints."""
    assert typed(line) == 0
    return json.loads(capsys.readouterr().out)


# --- what is printed and written --------------------------------------------------------------------------------


def test_json_is_one_object_with_the_promised_keys(folder, capsys):
    found = told(capsys, "law fit planted.csv --fix a_m=1,a_l=1,a_D=1/3 --draws 50 --json --no-page")
    assert list(found) == KEYS
    assert (found["law"], found["n"]) == ("width-depth-tokens", 100)
    assert list(found["coefficients"]) == ["c_m", "c_l", "c_D", "L0"]
    assert found["exponents"] == {"a_m": 1, "a_l": 1, "a_D": pytest.approx(1 / 3)}
    known = found["intervals"]["c_m"]
    assert known["low"] < THEORY["c_m"] < known["high"] and known["bootstrap"]["low"] < THEORY["c_m"]
    ratio = found["shape"]["m_over_l"]
    assert ratio["low"] < THEORY["c_m"] / (2 * THEORY["c_l"]) < ratio["high"]
    assert found["shape"]["width_depth_time"] == pytest.approx([2, 1, 3])
    assert "without embeddings" in found["frontier"]["n_convention"]
    assert found["warnings"] == []
    assert json.loads(Path("outputs/law/planted/law.json").read_text()) == found


def test_words_say_the_same(folder, capsys):
    assert typed("law fit planted.csv --draws 20 --drop 5 --out here") == 0
    text = capsys.readouterr().out
    assert "95 rows of planted.csv (5 with the highest losses dropped)" in text
    assert "8 of 8 starts agree" in text and "best m/l" in text
    written = {path.name for path in Path("here").iterdir()}
    assert {
        "law.json",
        "rows.csv",
        "profiles.csv",
        "scan.csv",
        "compared.csv",
        "bootstrap.parquet",
        "law.html",
    } <= written
    rows = pl.read_csv("here/rows.csv")
    assert rows.height == 95 and np.allclose(np.log(rows["loss"] / rows["predicted"]), rows["log_residual"])


def test_seeds_decide_draws(folder, capsys):
    lines = [f"law fit planted.csv --fix expected --draws 20 --seed {seed} --json --no-page" for seed in (1, 1, 2)]
    first, again, other = (told(capsys, line)["intervals"]["c_m"]["bootstrap"] for line in lines)
    assert first == again != other


def test_the_best_shape_and_frontier(folder, capsys):
    shape = told(capsys, "law shape planted.csv --fix expected --draws 20 --parameters 1e9 --json")
    [best] = shape["shapes"]
    assert 12 * best["width"] ** 2 * best["depth"] == pytest.approx(1e9)
    assert best["m_over_l"] == pytest.approx(shape["m_over_l"]["value"])
    assert shape["penalty"][1] == {"over_best": 2, "of_model_loss": pytest.approx(0.058, abs=1e-3)}
    frontier = told(capsys, "law frontier planted.csv --fix expected --draws 20 --compute 1e21,1e24 --json")
    small, large = frontier["points"]
    assert 6 * small["parameters"] * small["tokens"] == pytest.approx(1e21)
    assert small["d_over_n"] == pytest.approx(large["d_over_n"])
    assert frontier["compute_exponent"] == pytest.approx(1 / 6)
    for line in ("law shape planted.csv --fix expected --draws 5", "law frontier planted.csv --fix expected --draws 5"):
        assert typed(line) == 0
        assert "best" in capsys.readouterr().out


def test_laws_are_compared_on_the_same_rows(folder, capsys):
    assert typed("law compare planted.csv --laws width-depth-tokens,width-tokens") == 0
    rows = pl.read_csv("outputs/law/planted/compared.csv")
    assert rows["n"].unique().to_list() == [100] and rows["bic"].is_sorted()
    assert rows["law"][0] == "width-depth-tokens (a_m=1, a_l=1, a_D=0.333)"
    assert "held out" in capsys.readouterr().out


def test_public_tables_are_listed_and_found(folder, capsys, monkeypatch):
    assert typed("law data") == 0
    assert "chinchilla" in capsys.readouterr().out
    monkeypatch.setenv("TOYDEPTH_DATA", str(folder))
    Path("farseer").mkdir()
    planted().write_csv("farseer/1222_full.csv")
    assert typed("law data farseer") == 0
    assert capsys.readouterr().out == f"{folder}/farseer/1222_full.csv\n"


@needs_data
def test_chinchilla_by_its_name(folder, capsys, monkeypatch):
    monkeypatch.setenv("TOYDEPTH_DATA", str(DATA))
    found = told(capsys, "law fit chinchilla --drop 40 --draws 20 --json --no-page")
    assert found["n"] == 203 and found["starts_agreeing"] == found["starts"]
    assert found["exponents"]["a_l"] == pytest.approx(1.325, abs=2e-3)
    assert {"collinear", "extrapolates_worse"} <= {warning["code"] for warning in found["warnings"]}


@needs_data
def test_the_curves_of_multipowerlaw_by_their_name(folder, capsys, monkeypatch):
    monkeypatch.setenv("TOYDEPTH_DATA", str(DATA))
    assert typed("law fit multipowerlaw --law tau --only model=400M --fix expected --draws 5 --no-page") == 0
    assert "tau alone does not fix the loss" in " ".join(capsys.readouterr().out.split())


# --- bad tables -------------------------------------------------------------------------------------------------


def loss_at(row, value):
    return pl.when(pl.int_range(pl.len()) == row).then(value).otherwise("loss").alias("loss")


BAD = {
    "a missing column": (lambda t: t.drop("depth"), "no columns for a law"),
    "text in a number": (lambda t: t.with_columns(loss_at(3, pl.lit("high"))), "loss='high' in row 4"),
    "a loss of zero": (lambda t: t.with_columns(loss_at(3, 0.0)), "loss=0 in row 4: allowed is a number above 0"),
    "a negative loss": (lambda t: t.with_columns(loss_at(5, -2.0)), "loss=-2 in row 6"),
    "a negative width": (lambda t: t.with_columns(width=-pl.col("width")), "width=-256 in row 1"),
    "sizes beyond numbers": (lambda t: t.with_columns(tokens=pl.col("tokens") * 1e290), "tokens=1e+299 in row 1"),
    "fewer rows than parameters": (lambda t: t.head(7), "7 rows are too few for the 7 parameters"),
    "one depth only": (lambda t: t.filter(pl.col("depth") == 8), "depth is only 8 in the 20 rows"),
    "two depths": (lambda t: t.filter(pl.col("depth") < 9), "depth is only 4 and 8 in the 40 rows"),
    "no numbers at all": (lambda t: t.with_columns(loss=pl.lit(float("nan"))), "0 rows are too few"),
    "one loss": (lambda t: t.with_columns(loss=pl.lit(2.0)), "loss is 2 in all 100 rows"),
    "no rows": (lambda t: t.clear(), "no rows in it"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_table_gets_one_clear_line(folder, capsys, kind):
    spoil, message = BAD[kind]
    spoil(planted()).write_csv("bad.csv")
    assert typed("law fit bad.csv") == 2
    out, error = capsys.readouterr()
    assert out == "" and len(error.splitlines()) == 1
    assert error.startswith("toydepth: ") and message in error
    assert not Path("outputs").exists()


HANDLED = {
    "NaN": (lambda t: t.with_columns(loss_at(3, float("nan"))), "incomplete_rows", 99),
    "infinity": (lambda t: t.with_columns(loss_at(3, float("inf"))), "incomplete_rows", 99),
    "nothing": (lambda t: t.with_columns(loss_at(3, None)), "incomplete_rows", 99),
    "duplicate rows": (lambda t: pl.concat([t, t.head(10)]), "duplicate_rows", 100),
    "collinear sizes": (lambda t: planted(sizes=grid(ratio=64)), "collinear", 20),
    "more rows than are needed": (lambda t: _many(200_000), "sampled", 8000),
}


def _many(rows):
    rng = np.random.default_rng(0)
    sizes = {
        name: np.exp(rng.uniform(*np.log(ends), rows))
        for name, ends in {"width": (256, 4096), "depth": (4, 64), "tokens": (1e9, 1e11)}.items()
    }
    return planted(sizes=pl.DataFrame(sizes))


@pytest.mark.parametrize("kind", HANDLED)
def test_an_odd_table_is_fitted_and_said(folder, capsys, kind):
    make, code, rows = HANDLED[kind]
    make(planted()).write_csv("odd.csv")
    found = told(capsys, "law fit odd.csv --fix expected --draws 5 --json --no-page")
    assert found["n"] == rows
    assert code in [warning["code"] for warning in found["warnings"]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.csv", b""),
        ("ragged.csv", b"width,depth\n1,2\n1,2,3,4\n"),
        ("binary.csv", bytes(range(256))),
        ("broken.jsonl", b'{"width": 1\n'),
        ("broken.parquet", b"PAR1"),
        ("table.xlsx", b"PK"),
    ],
)
def test_a_file_that_cannot_be_read_gets_one_clear_line(folder, capsys, name, content):
    Path(name).write_bytes(content)
    assert typed(f"law fit {name}") == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and error.startswith(f"toydepth: {name}: ")


@pytest.mark.parametrize(
    "line",
    [
        "bogus",
        "fit",
        "fit nowhere.csv",
        "fit nowhere",
        "fit .",
        "fit planted.csv --bogus",
        "fit planted.csv --law bogus",
        "fit planted.csv --law width-depth-tau",
        "fit planted.csv --columns width",
        "fit planted.csv --columns width=bogus",
        "fit planted.csv --fix a_x=1",
        "fit planted.csv --fix a_m=1/0",
        "fit planted.csv --fix a_m=-1",
        "fit planted.csv --drop 100",
        "fit planted.csv --drop -1",
        "fit planted.csv --where 'width >'",
        "fit planted.csv --where 'bogus > 1'",
        "fit planted.csv --where 'width > 1e9'",
        "fit planted.csv --range width=9:1",
        "fit planted.csv --only width=3",
        "fit planted.csv --huber 0",
        "fit planted.csv --schedule cosine",
        "fit planted.csv --out planted.csv",
        "shape planted.csv --law tokens",
        "shape planted.csv --parameters many",
        "frontier planted.csv --law width-depth",
        "compare planted.csv --laws bogus",
        "data bogus",
    ],
)
def test_a_wrong_request_gets_one_clear_line(folder, capsys, line):
    assert typed(f"law {line}") == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_laws_and_their_help_import_no_jax(folder):
    code = (
        "import sys, toydepth.laws; from toydepth.cli import main; "
        "assert main(['law', 'fit', '--help']) == main(['law', '--help']) == 0; "
        "assert main(['law', 'fit', 'planted.csv', '--fix', 'expected', '--draws', '2', '--no-page']) == 0; "
        "assert not {'jax', 'pooch'} & set(sys.modules), 'imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
