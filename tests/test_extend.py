"""The built wheel, used from an empty folder: as the checkout is used, and through every line of docs/extend.md."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest

import toydepth
from toydepth import files, store

pytestmark = pytest.mark.slow
ROOT = Path(toydepth.__file__).parents[1]
PAGE = ROOT / "docs" / "extend.md"


class Done(NamedTuple):
    """A command of the page, what it said, and the runs that were there when it had ended: {id: when its result was}"""

    line: str
    code: int
    out: str
    err: str
    runs: dict[str, int]


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The environment of a shell in which the wheel is installed: in a venv that sees its dependencies, not the
    checkout."""
    if not (ROOT / "pyproject.toml").exists():
        pytest.skip("not a checkout")
    folder = tmp_path_factory.mktemp("installed")

    def python(*words):
        subprocess.run([sys.executable, "-m", *words], check=True, capture_output=True, timeout=300)

    python("build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT))
    (wheel,) = folder.glob("*.whl")
    python("venv", "--without-pip", str(folder / "venv"))
    python("pip", "--python", str(folder / "venv"), "install", "--no-deps", "--no-index", "--quiet", str(wheel))
    (packages,) = (folder / "venv").glob("lib/python*/site-packages")
    dependencies = next(path for path in sys.path if path.endswith("site-packages"))
    # A folder named here is searched, but the editable install in it is not followed
    (packages / "dependencies.pth").write_text(dependencies + "\n")
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}"}


def typed(line, folder, environment):
    return subprocess.run(line, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)


def blocks():
    """(language, text) of the page's fenced blocks, in order."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def page(installed, tmp_path_factory):
    """An empty folder in which somebody has followed the page to its end, and what its commands came to."""
    folder = tmp_path_factory.mktemp("page")
    done = []
    for language, text in blocks():
        if language != "sh":
            place = folder / text.splitlines()[0].removeprefix("# ")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
            continue
        for line in text.splitlines():
            ended = typed(line, folder, installed)
            stamps = {path.parent.name: path.stat().st_mtime_ns for path in folder.glob("outputs/*/runs/*/result.json")}
            done.append(Done(line, ended.returncode, ended.stdout, ended.stderr, stamps))
    return folder, done


def said(page, *words):
    """The commands of the page that have all of these words in them."""
    found = [done for done in page[1] if all(word in done.line for word in words)]
    assert found
    return found


def test_an_installed_wheel_works_from_an_empty_folder(installed, tmp_path):
    words = "+sweeps=alpha_quick train.steps=20 train.batch=64 student.depth=2 seed=0,1"
    done = typed(f"toydepth run {words}", tmp_path, installed)
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "outputs/alpha_quick/runs").iterdir())) == 4
    where = typed('python -c "import toydepth; print(toydepth.__file__)"', tmp_path, installed)
    assert str(ROOT) not in where.stdout and "venv" in where.stdout


def test_every_command_of_the_page_does_what_it_should(page):
    folder, done = page
    assert len(done) >= 10
    for command in done:
        assert command.code == 0, f"{command.line}\n{command.err}"
    states = {store.status(path) for path in folder.glob("outputs/*/runs/*")}
    assert states == {"done"}


def test_an_edited_block_gets_runs_of_its_own_and_leaves_the_others_alone(page):
    before, after = (done.runs for done in said(page, "+sweeps=gated"))
    assert {name: after[name] for name in before} == before  # not trained again
    added = set(after) - set(before)
    assert len(added) == 4 and all("-Gated-" in name for name in added)
    assert "8 done (4 of them before)" in said(page, "+sweeps=gated")[1].out
    configs = [files.read_json(path) for path in page[0].glob("outputs/gated/runs/*/config.json")]
    hashes = {(config["student"]["block"], config["runtime"]["source"]) for config in configs}
    assert len(hashes) == 3 and ("published", None) in hashes


def test_the_table_and_the_report_call_a_block_as_its_user_does(page):
    folder = page[0] / "outputs" / "gated"
    table = pl.read_csv(folder / "exponents.csv")
    assert sorted(table["student.block"]) == ["my_block.py:Gated", "my_block.py:Gated", "published"]
    assert table["runtime.source"].n_unique() == 3
    assert table["n_runs"].to_list() == [4, 4, 4]
    assert (
        "student.block" in said(page, "+sweeps=gated")[0].out and "runtime.source" not in said(page, "+sweeps")[0].out
    )
    html = (folder / "report.html").read_text()
    assert "my_block.py:Gated" in html and all(name in html for name in table["runtime.source"].drop_nulls())
    teachers = pl.read_csv(page[0] / "outputs" / "rotation" / "exponents.csv")
    assert teachers["teacher.kind"].to_list() == ["my_teacher.py:Rotation"]


def test_opened_runs_repeat_their_loss_with_the_block_they_were_made_with(page):
    lines = [line.split() for line in said(page, "look.py")[0].out.splitlines()]
    assert len(lines) == 4
    assert {(seed, same) for _, seed, same, *_ in lines} == {("0", "True"), ("1", "True")}
    assert len({source for source, *_ in lines}) == 2


def test_an_own_problem_has_the_exponent_that_it_must(page):
    table = pl.read_csv(page[0] / "outputs" / "rank" / "exponents.csv")
    assert table["variable"].to_list() == ["map.rank"]
    assert 1.4 < table["alpha"][0] < 1.8
    assert (page[0] / "outputs" / "rank" / "report.html").exists()


def test_fits_and_reports_need_the_folder_alone(page, installed, tmp_path):
    """From another folder, without the files that the runs were made with."""
    for name, size in (("rank", "map.rank"), ("gated", "student.depth")):
        shutil.copytree(page[0] / "outputs" / name, tmp_path / name)
        done = typed(f"toydepth report {name} --x {size} --out again_{name}", tmp_path, installed)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"again_{name}" / "report.html").exists()
        files = (tmp_path / place / "exponents.csv" for place in (name, f"again_{name}"))
        assert len({file.read_bytes() for file in files}) == 1
    (run, *_) = (tmp_path / "rank" / "runs").glob("*")
    shutil.rmtree(run)
    assert typed("toydepth fit rank", tmp_path, installed).returncode == 0
    assert pl.read_csv(tmp_path / "rank" / "exponents.csv")["n_runs"].to_list() == [7]


STEPS = 2000
SMALL = f"""student.block=my_block.py:Gated student.depth=1 seed=0,1,2 sweep.name=s teacher.depth=8 teacher.width=4
    teacher.hidden=8 sweep.report=false train.batch=32 train.steps={STEPS} train.eval_every=250 train.eval_batches=2
    train.checkpoint_every=500 optimizer=adam"""


def test_a_killed_sweep_of_an_own_block_ends_as_if_nothing_had_happened(page, installed, tmp_path):
    results = []
    for place in ("undisturbed", "killed"):
        folder = tmp_path / place
        folder.mkdir()
        shutil.copy(page[0] / "my_block.py", folder)
        if place == "killed":
            kill_under_way(folder, installed)
        done = typed(f"toydepth run {' '.join(SMALL.split())}", folder, installed)
        assert done.returncode == 0, done.stderr
        results.append({path.name: numbers(path) for path in folder.glob("outputs/s/runs/*")})
    assert results[0] == results[1]
    assert len({result["loss"] for result, _ in results[0].values()}) == 3


def kill_under_way(folder, environment):
    """Starts the sweep and kills it when it has left a checkpoint from which a run can be continued."""
    process = subprocess.Popen(
        ["toydepth", "run", *SMALL.split()], cwd=folder, env=environment,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 300
    try:
        while not under_way(folder):
            assert process.poll() is None, "the sweep ended before it could be killed"
            assert time.monotonic() < deadline, "never under way"
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    assert under_way(folder)


def under_way(folder):
    """The runs that are not done and have a checkpoint between their first and their last step."""
    names = (path for path in folder.glob("outputs/s/runs/*/checkpoint/*") if path.name.isdigit())
    return [path for path in names if 0 < int(path.name) < STEPS and store.status(path.parents[1]) != "done"]


def numbers(run):
    """What a run's folder says that does not depend on the machine's speed."""
    result = json.loads((run / "result.json").read_text())
    history = store.history(run).drop("seconds").rows()
    return {name: result[name] for name in ("loss", "loss_sem", "half_loss", "slope", "steps", "status")}, history
