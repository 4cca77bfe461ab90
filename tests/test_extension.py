"""Somebody's own code: how it is found and told apart, what is refused, and that it trains as the rest does."""

import dataclasses
import json
import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path

import jax
import pytest

import toydepth
from toydepth import engine, ensemble, extension, programs, store
from toydepth.cli import main
from toydepth.config import ConfigError, parse, resolve, run_id
from toydepth.ensemble import Member
from toydepth.problems import problem_of, source_of

PAGE = Path(toydepth.__file__).parents[1] / "docs" / "extend.md"
SMALL = "train.steps=20 train.batch=16 train.eval_every=10 train.eval_batches=2 optimizer=adam"

PAIR = """
import jax, jax.numpy as jnp
import math
from toydepth.network import rms_norm

def init(key, width, hidden):
    return {"W": jax.random.normal(key, (width, width)) / width}

def apply(params, h):
    return h + jnp.tanh(params["W"] @ rms_norm(h))

block = (init, apply)
"""
TEACHER = """
import jax

drawn = []

def init(key, width, hidden, depth):
    jax.debug.callback(lambda key: drawn.append(key.tobytes()), jax.random.key_data(key))
    return {"A": jax.random.normal(key, (width, width))}

def apply(params, x):
    return params["A"] @ x

matrix = (init, apply)
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, empty."""
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def problem(folder):
    """The problem of docs/extend.md, as a file in the current folder."""
    (text,) = re.findall(r"^```python\n(# my_problem.py\n.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (folder / "my_problem.py").write_text(text)
    return folder / "my_problem.py"


def write(text, name="my_code.py", time=None):
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if time is not None:
        os.utime(path, (time, time))
    return path


def config(**student):
    tree = {
        "teacher": {"depth": 4, "width": 4, "hidden": 8},
        "student": {"depth": 2, "block": "my_code.py:block"} | student,
        "optimizer": {"name": "adam", "lr": 0.01},
        "train": {"steps": 20, "batch": 16, "eval_every": 10, "eval_batches": 2, "twin": False},
    }
    return parse(tree)


# --- found and told apart -----------------------------------------------------------------------------------


def test_the_hash_is_of_the_content_and_of_nothing_else():
    write("a = 1\n", "one.py", time=1)
    write("a = 1\n", "below/two.py", time=2)
    write("a = 2\n", "three.py")
    one, two, three = (extension.source_hash({"f": f"{name}.py:a"}) for name in ("one", "below/two", "three"))
    assert one == two != three
    assert extension.source_hash({"f": "one.py:a", "g": "three.py:a"}) not in (one, three)
    assert extension.source_hash({}) is None


def test_a_runs_id_follows_the_content():
    write(PAIR)
    before, deeper = run_id(resolve(config())), run_id(resolve(config(depth=3)))
    write(PAIR, time=1)
    assert run_id(resolve(config())) == before != deeper
    write(PAIR + "# edited\n")
    assert run_id(resolve(config())) != before
    assert resolve(config(block="published")).runtime.source is None


def test_what_is_loaded_twice_is_the_same_object():
    write("class A: pass\n", "one.py")
    first = extension.load("f", "one.py:A")
    assert extension.load("f", "one.py:A") is first
    assert extension.load("f", str(Path("one.py").resolve()) + ":A") is first
    write("class A: pass  # edited\n", "one.py")
    assert extension.load("f", "one.py:A") is not first
    write("class A: pass\n", "one.py")
    assert extension.load("f", "one.py:A") is first


def test_an_edit_within_a_second_of_the_same_size_is_seen():
    write("value = 1\n", "one.py", time=1_000_000_000)
    assert extension.load("f", "one.py:value") == 1
    write("value = 2\n", "one.py", time=1_000_000_000)
    assert extension.load("f", "one.py:value") == 2
    assert [path.name for path in Path().iterdir()] == ["one.py"]  # and nothing is left beside it


def test_a_module_is_found_from_the_current_folder():
    before = list(sys.path)
    write("value = 3\n", "own_package/own_module.py")
    try:
        assert extension.load("f", "own_package.own_module:value") == 3
        assert extension.file_of("f", "own_package.own_module:value").read_text() == "value = 3\n"
    finally:
        for name in ("own_package", "own_package.own_module"):
            sys.modules.pop(name, None)
    assert sys.path == before
    with pytest.raises(ConfigError, match=r"f=own_package\.other:value: Python finds no module own_package\.other"):
        extension.load("f", "own_package.other:value")


def test_a_file_may_import_its_neighbours_and_hold_dataclasses():
    write("value = 4\n", "below/own_neighbour.py")
    text = (
        "from __future__ import annotations\n"
        "from dataclasses import dataclass\nfrom own_neighbour import value\n"
        "@dataclass\nclass A:\n    x: int = value\n"
    )
    write(text, "below/one.py")
    try:
        assert extension.load("f", "below/one.py:A")().x == 4
    finally:
        sys.modules.pop("own_neighbour", None)


# --- refused ------------------------------------------------------------------------------------------------

WRONG = {
    "no file": (None, "block", "there is no file "),
    "syntax": ("x = (\n", "block", "cannot be imported: SyntaxError"),
    "an import": ("import jax\nimport nowhere_to_be_found\n", "block", r"ModuleNotFoundError: .* \(line 2\)"),
    "an error when run": ("x = 1\n\ny = x / 0\n", "block", r"ZeroDivisionError: .* \(line 3\)"),
    "no such name": (PAIR, "blok", "my_code.py has no blok; it has init, apply, block"),
    "no block": (PAIR, "apply", "is neither a Flax module's class nor a pair of functions"),
    "an error in init": (PAIR.replace("/ width}", "/ math.nowhere}"), "block", "AttributeError: .*nowhere"),
    "an error in apply": (PAIR.replace("tanh(", "tanh(1 / 0 + "), "block", "ZeroDivisionError"),
    "shapes that do not fit": (PAIR.replace("(width, width)", "(width, hidden)"), "block", "dot_general"),
    "another shape": (PAIR.replace("h + ", "h[:2] + ").replace("(h))", "(h))[:2]"), "block", r"to float32\[2\]"),
    "float16": (PAIR.replace("(width, width)", "(width, width), jnp.float16"), "block", "a parameter W of float16"),
}  # fmt: skip


@pytest.mark.parametrize("field", ["student.block", "teacher.kind"])
@pytest.mark.parametrize("case", WRONG)
def test_wrong_code_is_refused_in_one_line_and_leaves_nothing(case, field, capsys):
    text, name, reason = WRONG[case]
    if text is not None:
        write(text.replace("hidden):", "hidden, depth=0):"))
    code = main(["run", f"{field}=my_code.py:{name}", *shlex.split(SMALL)])
    (line,) = capsys.readouterr().err.splitlines()
    assert code == 2
    assert re.match(rf"toydepth: {field}=my_code\.py:{name}: .*{reason}", line), line
    assert [str(path) for path in Path().rglob("*")] == ["my_code.py"] * (text is not None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "problem=my_code.py.*: there is no file"),
        ("x = 1\n", "problem=my_code.py.*: my_code.py has no Config; it has x"),
        ("Config = 3\n", "problem=my_code.py: allowed is a file whose Config is a dataclass"),
        ("x = 1 / 0\n", "problem=my_code.py.*: cannot be imported: ZeroDivisionError"),
    ],
)
def test_a_wrong_problem_is_refused_in_one_line_and_leaves_nothing(text, reason, capsys):
    if text is not None:
        write(text)
    assert main(["run", "problem=my_code.py", *shlex.split(SMALL)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"toydepth: {reason}", line), line
    assert [str(path) for path in Path().rglob("*")] == ["my_code.py"] * (text is not None)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("axis=1)", "axis=None)", r"TypeError: compare returns \[\], allowed is one loss for each sample"),
        ('source["power"]', 'source["powr"]', "KeyError: 'powr'"),
        ("def compare(", "def compair(", "TypeError: Can't instantiate abstract class Regression .*compare"),
        ("jnp.zeros(shape[::-1])", "jnp.zeros(shape[::-1], jnp.float16)", "TypeError: a parameter is float16"),
        ("config.map.width, config", "[config.map.width], config", "TypeError"),
    ],
)
def test_a_problem_that_does_not_work_is_refused_in_one_line_and_leaves_nothing(problem, old, new, reason, capsys):
    problem.write_text(problem.read_text().replace(old, new))
    assert main(["run", "problem=my_problem.py", *shlex.split(SMALL)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"toydepth: problem=my_problem.py: {reason}", line), line
    assert [path.name for path in Path().iterdir()] == ["my_problem.py"]


# --- trained ------------------------------------------------------------------------------------------------


class Memory:
    """A recorder that remembers losses."""

    def __init__(self):
        self.losses = {}

    def evaluated(self, member, row):
        self.losses.setdefault(member.name, []).append(row["loss"])

    def checkpoint(self, member, state):
        pass

    def finished(self, member, outcome, state):
        assert outcome.status == "done", outcome.message

    def progress(self, flops):
        pass

    def interrupted(self):
        return False


def train(configs):
    """Trains {name: resolved config}; returns the losses of each, and what was traced for them."""
    before, memory = Counter(programs.traces), Memory()
    devices = jax.local_devices()
    for family in ensemble.plan([Member(name, config) for name, config in configs.items()], len(devices)):
        prepared = engine.prepare(family, devices)
        assert all(engine.train(prepared, wave, memory) for wave in family.waves)
    jax.effects_barrier()
    return memory.losses, programs.traces - before


def varied(config, **optimizer):
    return resolve(dataclasses.replace(config, optimizer=dataclasses.replace(config.optimizer, **optimizer)))


def test_runs_with_the_same_block_share_their_programs_and_others_do_not():
    write(PAIR)
    (losses, traces) = train({"a": varied(config()), "b": varied(config(), lr=0.02)})
    assert traces == {"student": 1, "evaluation": 1, "teacher": 1}
    assert losses["a"][0] == losses["b"][0] and losses["a"][-1] != losses["b"][-1]
    assert all(loss[-1] < loss[0] for loss in losses.values())
    before, again = (problem_of(resolve(config())) for _ in range(2))
    assert before == again and hash(before) == hash(again)
    write(PAIR + "# edited\n")
    assert problem_of(resolve(config())) != before


def test_a_teacher_is_drawn_once_for_each_seed_and_its_students_are_a_cohort():
    write(TEACHER, "my_teacher.py")

    def with_teacher(seed, depth, lr=0.01):
        tree = {"teacher": {"kind": "my_teacher.py:matrix", "width": 4}, "student": {"depth": depth}, "seed": seed}
        small = {"steps": 20, "batch": 16, "eval_every": 10, "eval_batches": 2, "twin": False}
        return resolve(parse(tree | {"train": small, "optimizer": {"name": "adam", "lr": lr}}))

    configs = {f"{s} {d} {lr}": with_teacher(s, d, lr) for s in (0, 1) for d in (1, 2) for lr in (0.01, 0.02)}
    (family,) = ensemble.plan([Member(name, config) for name, config in configs.items()], 2)
    cohorts = [cohort for wave in family.waves for cohort in wave.cohorts]
    assert sorted(sorted(m.name[0] for m in cohort.members) for cohort in cohorts) == [["0"] * 4, ["1"] * 4]
    drawn = extension.load("teacher.kind", "my_teacher.py:drawn")
    losses, _ = train(configs)
    assert len(drawn) == len(set(drawn)) == 2
    assert len({loss[0] for loss in losses.values()}) == 2  # the identity's loss on either teacher
    made = [
        problem_of(configs[name]).stream.init(source_of(configs[name])) for name in ("0 1 0.01", "0 2 0.02", "1 1 0.01")
    ]
    one, again, other = (teacher["layers"]["A"] for teacher in made)
    assert (one == again).all() and (one != other).any()


def test_a_run_is_opened_with_the_code_that_it_was_made_with():
    write(PAIR)
    write(TEACHER, "my_teacher.py")
    tree = {
        "teacher": {"kind": "my_teacher.py:matrix", "width": 4},
        "student": {"depth": 2, "block": "my_code.py:block"},
    }
    small = {"steps": 20, "batch": 16, "eval_every": 10, "eval_batches": 2, "twin": False}
    assert toydepth.train([parse(tree | {"train": small})]).exit_code == 0
    (folder,) = Path("outputs/adhoc/runs").iterdir()
    write(PAIR.replace("tanh", "sin"))
    Path("my_teacher.py").unlink()
    run = toydepth.open(folder)
    assert run.loss() == run.result["loss"]
    with pytest.raises(TypeError, match="somebody's own"):
        run.teacher.states(run.inputs[0])
    (folder / "source" / "student.block.py").write_text(PAIR.replace("tanh", "sin"))
    with pytest.raises(ConfigError, match=r"my_code\.py:block.* is not what the run was made with"):
        toydepth.open(folder)


@pytest.mark.usefixtures("without_pictures")
def test_an_own_problem_trains_and_is_fitted_against_its_size(problem, capsys):
    words = f"problem=my_problem.py map.width=8 map.rank=1,2 sweep.name=rank {SMALL} train.steps=200 optimizer.lr=0.02"
    assert main(["run", *shlex.split(words)]) == 0
    assert "exponent of loss in map.rank" in capsys.readouterr().out
    table = store.collect(Path("outputs/rank")).sort("map.rank")
    assert table["map.rank"].to_list() == [1, 2]
    assert table["loss"].is_sorted(descending=True)
    assert {json.loads(p.read_text())["problem"] for p in Path("outputs").rglob("config.json")} == {"my_problem.py"}
    assert main(["fit", "outputs/rank", "--x", "student.depth"]) == 2
    assert main(["fit", "outputs/rank", "--x", "map.rank"]) == 0


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("map.rank=0", "map.rank=0: allowed is a whole number, at least 1"),
        ("map.rank=40", "map.rank=40: allowed is at most map.width=32"),
        ("map.power=0.5", "map.power=0.5: allowed is a finite number above 0.5"),
        ("data.unique=3", "data.unique=3: allowed is 0, or a multiple of train.batch=16"),
        ("map.rnk=4", "map.rnk: no such field; did you mean map.rank"),
        ("student.depth=2", "student: no such field; there are .*map"),
    ],
)
def test_an_own_problems_fields_are_checked(problem, word, reason, capsys):
    assert main(["run", "problem=my_problem.py", *shlex.split(SMALL), word]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match(f"toydepth: {reason}", line), line
    assert [path.name for path in Path().iterdir()] == ["my_problem.py"]


def test_a_file_that_ends_python_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("script.py").write_text("import sys\nblock = 1\nsys.exit(0)\n")
    assert main(["run", "student.block=script.py:block", "train=smoke"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "student.block=script.py:block: cannot be imported: SystemExit" in line
