"""The options of a fit: names in short, conditions, ranges, and one line for what is wrong."""

import shlex

import polars as pl
import pytest

from toydepth.config import ConfigError
from toydepth.fit_options import FitOptions, parse_names, parse_range
from toydepth.selection import select


def table():
    kinds, depths = ("tied", "independent", "it's"), (2, 4, 8)
    rows = [
        {
            "id": f"{kind}-{depth}",
            "status": "done",
            "message": "",
            "seed": 0,
            "optimizer.name": "muon",
            "optimizer.lr": 0.01 * depth,
            "schedule.name": "linear",
            "schedule.floor": 0.0,
            "teacher.kind": kind,
            "teacher.depth": 64,
            "teacher.hidden": 64,
            "student.depth": depth,
            "student.hidden": 32,
            "target.temperature": None if kind == "tied" else 0.05 if kind == "independent" else 0.5,
            "loss": depth**-2.0,
            "flops": 1e9 * depth,
        }
        for kind in kinds
        for depth in depths
    ]
    return pl.DataFrame(rows)


CONDITIONS = {
    "teacher.kind == 'tied'": 3,
    "teacher.kind = 'tied'": 3,
    "kind='tied' or temperature<0.1": 6,
    "kind != 'tied' AND NOT depth > 2": 2,
    "depth in (2, 8) and target.temperature is null": 2,
    "lr < 3e-2": 3,
    "optimizer.lr between 2e-2 and .04": 6,
    "teacher.kind like 'i%'": 6,
    "kind = 'it''s'": 3,
    "\"teacher.kind\" = 'tied'": 3,
    "kind <> 'student.depth'": 9,
    "floor = floor(loss)": 9,
    "flops >= 4e9 and (loss < 0.1 and teacher.depth = 64)": 6,
    "status = 'done'": 9,
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_conditions(condition):
    runs, options = select(table(), FitOptions(where=condition))
    assert runs.height == CONDITIONS[condition]
    assert options.where == condition


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (FitOptions(where="teacher.knid = 'tied'"), ["teacher.knid: no such column; there are teacher.kind, "]),
        (FitOptions(where="knd = 'tied'"), ["knd: no such column; there are teacher.kind, "]),
        (FitOptions(where="kind = tied"), ["tied: no such column", "text stands in single quotes"]),
        (FitOptions(where='kind = "tied"'), ["tied: no such column", "text stands in single quotes"]),
        (FitOptions(where="name = 'muon'"), ["name: which of optimizer.name, schedule.name?"]),
        (FitOptions(where="kind = 'tied' and"), ["--where kind = 'tied' and: ", "columns are optimizer.name, "]),
        (FitOptions(where=""), ["--where : "]),
        (FitOptions(where="kind > 3"), ["cannot compare string"]),
        (FitOptions(where="depth"), ["must be of type `Boolean`"]),
        (FitOptions(where="__import__('os')"), ["unsupported function"]),
        (FitOptions(where="depth = 3"), ["--where depth = 3: none of the 9 runs is so"]),
        (FitOptions(range=(100, None)), ["--range 100:: no run has student.depth within it; they have 2 to 8"]),
        (FitOptions(range=(5, 7), where="depth < 8"), ["--range 5:7: ", "they have 2 to 4"]),
        (FitOptions(x="dept"), ["--x dept: no such column; there are ", "student.depth"]),
        (FitOptions(x="teacher.kind"), ["--x teacher.kind: allowed is a field with numbers, parameters or flops"]),
        (FitOptions(x="loss"), ["--x loss: no such column"]),
        (FitOptions(x="temperature", where="kind='tied'"), ["--x target.temperature: none of the runs has it"]),
        (FitOptions(by=("kind", "bogus")), ["--by bogus: no such column"]),
        (FitOptions(by=("name",)), ["--by name: which of optimizer.name, schedule.name?"]),
        (FitOptions(by=("depth",)), ["--by student.depth: that is what loss is a power of"]),
        (FitOptions(best_over=("depth",)), ["--best-over student.depth: that is what loss is a power of"]),
        (FitOptions(best_over=("seed",)), ["--best-over seed: allowed is a field of the student or of its training"]),
        (FitOptions(best_over=("kind",)), ["--best-over teacher.kind: allowed is", "(teacher, target, data, "]),
        (FitOptions(best_over=("lr", "temperature")), ["--best-over target.temperature: allowed is"]),
        (FitOptions(by=("lr",), best_over=("lr",)), ["--best-over optimizer.lr: it tells regimes (--by) apart"]),
        (FitOptions(best_over=("flops",)), ["--best-over flops: no such column"]),
    ],
)
def test_wrong_options_are_one_line(options, said):
    with pytest.raises(ConfigError) as refused:
        select(table(), options)
    assert len(str(refused.value).splitlines()) == 1
    assert all(part in str(refused.value) for part in said), refused.value


def test_names_in_short():
    names = {
        "depth": "student.depth",
        "hidden": "student.hidden",
        "lr": "optimizer.lr",
        "teacher.depth": "teacher.depth",
    }
    for short, full in {**names, "flops": "flops", "seed": "seed"}.items():
        assert select(table(), FitOptions(x=short))[1].x == full
    _, options = select(table(), FitOptions(by=("kind", "temperature"), best_over=("lr",)))
    assert (options.by, options.best_over) == (("teacher.kind", "target.temperature"), ("optimizer.lr",))


def test_the_size_is_the_sweeps_own_unless_given():
    assert select(table(), FitOptions(), "student.hidden")[1].x == "student.hidden"
    assert select(table(), FitOptions(x="depth"), "student.hidden")[1].x == "student.depth"
    assert select(table(), FitOptions(x="depth"), None)[1].x == "student.depth"
    with pytest.raises(ConfigError) as refused:
        select(table(), FitOptions(), None)
    there_are = "optimizer.lr, student.depth, target.temperature, flops"
    assert str(refused.value) == f"--x: say which field loss is a power of; there are {there_are}"
    with pytest.raises(ConfigError, match=r"--x map\.rank: no such column"):
        select(table(), FitOptions(), "map.rank")


def test_ranges():
    assert parse_range("4:48") == (4, 48)
    assert parse_range(":1e9") == (None, 1e9)
    assert parse_range("2.5:") == (2.5, None)
    assert parse_range("4:4") == (4, 4)
    for text in ("48:4", "a", "a:b", "4", ":", "", "1:2:3", "nan:3", "3:nan"):
        with pytest.raises(ConfigError, match=f"--range {text}: allowed is LOW:HIGH"):
            parse_range(text)
    for limits, depths in [((4, 8), {4, 8}), ((None, 4), {2, 4}), ((4.5, None), {8}), ((None, None), {2, 4, 8})]:
        assert set(select(table(), FitOptions(range=limits))[0]["student.depth"]) == depths
    assert set(select(table(), FitOptions(x="flops", range=(4e9, None)))[0]["student.depth"]) == {4, 8}


def test_unfinished_runs_stay_where_their_size_is_not_known():
    young = pl.col("student.depth") == 2
    runs = table().with_columns(
        flops=pl.when(~young).then("flops"), status=pl.when(young).then(pl.lit("running")).otherwise("status")
    )
    assert select(runs, FitOptions(x="flops", range=(8e9, None)))[0]["student.depth"].to_list() == [2, 8] * 3
    assert select(runs.with_columns(status=pl.lit("done")), FitOptions(x="flops"))[0].height == 6


def test_lists_of_names():
    assert parse_names("a, b.c,a", "--by") == ("a", "b.c")
    for text in ("", "a,", ",", "a,,b"):
        with pytest.raises(ConfigError, match=r"--by .*: allowed is a list FIELD,FIELD"):
            parse_names(text, "--by")


def test_options_are_told_as_they_are_typed():
    assert FitOptions().words() == ""
    options = FitOptions("flops", (4, None), "free", ("a", "b"), "kind = 'tied'", ("lr",))
    told = """--x flops --range 4: --floor free --by a,b --where "kind = 'tied'" --best-over lr"""
    assert options.words() == told
    assert options.words("flops") == told.removeprefix("--x flops ")
    for condition in ("kind = 'tied'", "a != 'b'", "a < 3", "\"a.b\" = '$x'"):
        assert shlex.split(FitOptions(where=condition).words()) == ["--where", condition]
