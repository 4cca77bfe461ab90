"""`toydepth probe` as a user types it: what it writes and says, and what it refuses, in one line."""

import json
import re
import shutil
import subprocess
import sys
from html import unescape

import numpy as np
import polars as pl
import pytest

from toydepth import cli, files, store
from toydepth.config import parse, resolve
from toydepth.figures.style import DARK, LIGHT
from toydepth.sweep import train


def config(root, kind, depth, seed, **student):
    return parse(
        {
            "teacher": {"kind": kind, "depth": 8, "width": 4, "scale": 3},
            "student": {"depth": depth} | student,
            "optimizer": {"name": "adam", "lr": 0.01},
            "train": {"steps": 30, "batch": 16, "eval_every": 10, "eval_batches": 2},
            "sweep": {"root": str(root), "name": "grown"},
            "seed": seed,
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a finished sweep of grown students."""
    root = tmp_path_factory.mktemp("outputs")
    kinds = ("tied", "independent")
    train([config(root, kind, depth, seed, init="grow") for kind in kinds for depth in (2, 4) for seed in (0, 1)])
    return root / "grown"


@pytest.fixture
def inside(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*words):
    return cli.main(["probe", *map(str, words)])


def words(page):
    """What a reader sees."""
    page = re.sub(r"<(style|head).*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", page)).split())


def a_run(folder):
    return sorted((folder / "runs").glob("tied-grow-d4-*"))[0]


def test_a_run_leaves_arrays_a_table_an_object_and_a_page(folder, inside, capsys):
    assert typed(a_run(folder), "--name", "mine") == 0
    out = inside / "outputs" / "probe" / "mine"
    assert {path.name for path in out.iterdir()} >= {"arrays.npz", "table.parquet", "probe.json", "probe.html"}
    record = json.loads((out / "probe.json").read_text())
    assert [one["kind"] for one in record["subjects"]] == ["teacher", "student"]
    student = record["subjects"][1]
    assert student["zigzag"][0] < student["zigzag"][1]
    assert student["errors"]["before"]["residual"] < 1e-6
    assert {"drop", "swap", "repeat", "shuffle", "parallel", "none"} <= set(student["interventions"]["means"])
    assert record["command"].startswith("toydepth probe ") and record["seed"] == 0
    table = pl.read_parquet(out / "table.parquet")
    assert set(table["convention"]) == {"before", "behind"} and set(table["group"]) == {"later"}
    step = table.filter(
        (pl.col("subject") == student["name"]) & (pl.col("measure") == "step") & (pl.col("convention") == "before")
    )
    assert step["layer"].to_list() == [0, 1, 2, 3] and step["n"].to_list() == [32] * 4
    np.testing.assert_allclose(step["mean"], student["means"]["step.before.later"])
    assert (step["q05"] <= step["q50"]).all() and (step["null_layers_low"] < step["null_layers_high"]).all()
    with np.load(out / "arrays.npz") as arrays:
        np.testing.assert_allclose(arrays[f"{student['name']}.step.before.later.mean"], step["mean"])
        assert arrays[f"{student['name']}.pairs"].shape == (4, 4)
    said = capsys.readouterr().out
    assert "no verdict" in said and "depth 8" in said
    assert said.rstrip().endswith("outputs/probe/mine/probe.html")


@pytest.fixture(scope="module")
def looked(folder, tmp_path_factory):
    """The folder that `toydepth probe` leaves of the sweep."""
    out = tmp_path_factory.mktemp("looked") / "grown"
    assert typed(folder, "--out", out, "--no-changes", "--tokens", 16) == 0
    return out


def test_a_sweep_tells_what_depends_on_depth(looked):
    record = json.loads((looked / "probe.json").read_text())
    assert len(record["subjects"]) == 12
    assert "interventions" not in record["subjects"][0]
    assert [one["regime"]["teacher.kind"] for one in record["across"]["steps"]] == ["independent", "tied"]
    assert all(one["ci_low"] < one["alpha"] < one["ci_high"] for one in record["across"]["steps"])
    assert {"split pair", "between pairs"} <= {one["quantity"] for one in record["across"]["at_depths"]}
    assert (looked / "across.png").stat().st_size > 10_000


def test_the_page_asks_for_nothing_and_explains_the_zigzag(looked):
    page = (looked / "probe.html").read_text()
    said = words(page)
    assert "A start leaves its mark" in said and "within split pairs" in said
    assert "falls as depth to the power of" in said
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', page) and "<script" not in page
    assert LIGHT.page in page and DARK.page in page


def test_what_no_longer_applies_is_gone(folder, looked, inside):
    """A run that was not split has no mark, and pictures of an earlier call are removed."""
    shutil.copytree(looked, "here")
    mine = inside / "here" / "mine.png"
    mine.write_bytes(b"kept")
    assert (inside / "here" / "across.png").exists()
    shallow = sorted((folder / "runs").glob("tied-grow-d2-*"))[0]
    assert typed(shallow, "--out", "here", "--no-changes") == 0
    assert not (inside / "here" / "across.png").exists() and mine.exists()
    assert "A start leaves its mark" not in words((inside / "here" / "probe.html").read_text())


def test_the_same_seed_gives_the_same_numbers_and_another_one_other_nulls(folder, inside):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        assert typed(a_run(folder), "--name", name, "--seed", seed, "--no-page") == 0
    a, b, c = (pl.read_parquet(inside / "outputs" / "probe" / name / "table.parquet") for name in "abc")
    assert a.equals(b) and not a.equals(c)
    assert a["mean"].equals(c["mean"])
    assert not list((inside / "outputs").rglob("*.html"))


def test_tokens_limit_what_is_looked_at(folder, inside):
    assert typed(a_run(folder), "--tokens", 5, "--no-page", "--out", "here") == 0
    assert {one["tokens"] for one in json.loads((inside / "here" / "probe.json").read_text())["subjects"]} == {5}


# --- what is refused ----------------------------------------------------------------------------------------


@pytest.fixture
def places(inside, folder):
    """Folders that cannot be looked into."""
    (inside / "nothing").mkdir()
    (inside / "empty" / "runs").mkdir(parents=True)
    (inside / "file").write_text("")
    unfinished = inside / "undone" / "runs" / a_run(folder).name
    unfinished.mkdir(parents=True)
    (unfinished / "config.json").write_bytes((a_run(folder) / "config.json").read_bytes())
    store.write_status(unfinished, "running", 3)
    (inside / "odd").mkdir()
    (inside / "odd" / "config.json").write_text("{")
    return unfinished


REFUSED = {
    "": "nothing to look at; allowed is a FOLDER, or --model",
    "nothing --model x": "both nothing and --model x; allowed is one of them",
    "nowhere": "nowhere: no such folder",
    "file": "file: no such folder",
    "nothing": "nothing: neither a run's folder",
    "empty": "empty: no runs in it",
    "undone": r"undone: none of its runs is done \(1 running\)",
    "RUN": "no parameters to read; the run is running",
    "nothing --tokens 1": "--tokens 1: allowed is a number from 2 up",
    "nothing --seed -1": "--seed -1: allowed is a number from 0 up",
    "nothing --name a/b": "--name a/b: allowed is a name without slashes",
    "nothing --text a": "--text: allowed is only with --model",
    "nothing --trace a": "--trace: allowed is only with --model",
    "--model x --trace a": "--trace: allowed is only together with --subject and --answer",
    "--model x --text a --noise 2": "--noise 2: allowed is only with --trace",
    "--model x": "--model: what it reads is missing",
    "nothing --bogus": "unrecognized arguments: --bogus",
    "nothing --tokens few": "invalid int value: 'few'",
}


@pytest.mark.parametrize("line", REFUSED)
def test_a_wrong_request_is_one_line(places, inside, capfd, line):
    before = sorted(inside.rglob("*"))
    assert typed(*line.replace("RUN", str(places)).split()) == 2
    said = capfd.readouterr().err
    assert re.search(REFUSED[line], said) and len(said.splitlines()) == 1, said
    assert sorted(inside.rglob("*")) == before


def test_a_damaged_config_is_named(places, capfd):
    assert typed("odd") == 2
    assert "odd: config.json is damaged" in capfd.readouterr().err.splitlines()[-1]


def test_another_problem_is_refused(inside, capfd):
    run = store.run_folder(inside / "clock", "time")
    store.write_config(run, resolve(parse({"problem": "time"})))
    files.write_json(run / "result.json", {"loss": 1.0, "steps": 4})
    store.write_status(run, "done", 4)
    for place in (run, inside / "clock"):
        assert typed(place) == 2
        assert "its problem is time; allowed is depth" in capfd.readouterr().err
    assert not (inside / "outputs" / "probe").exists()


def test_help_and_a_refusal_need_no_jax_and_no_torch(inside):
    code = (
        "import sys; from toydepth import cli, geometry; cli.main(['probe', '--help']); cli.main(['probe', 'nowhere']);"
        "from toydepth.geometry import look, judge, measure, across_depths;"
        "sys.exit(any(name in sys.modules for name in ('jax', 'torch', 'transformers')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage: toydepth probe" in done.stdout
