"""The benchmark at tiny sizes: all contestants do the same work, and what is counted and printed is right."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks import bench, contestant, instrument, overhead, report, start, tables
from benchmarks.depth_work import DepthWork
from benchmarks.tasks_work import TasksWork
from benchmarks.time_work import TimeWork
from benchmarks.width_work import WidthWork
from benchmarks.works import WORKS
from toydepth import engine, ensemble
from toydepth.config import parse, resolve
from toydepth.problems import problem_of

KEYS = {
    "updates_per_second",
    "fraction_of_peak",
    "final_loss",
    "compile_seconds",
    "programs",
    "peak_memory_gb",
    "first_step_seconds",
}
NOISE = 0.1  # of a loss; a rate that is wrong by a quarter changes it by more than twice as much
ROUNDING = 1e-3  # of a loss, where gradients are exact


def tiny(loss, **changes):
    """A work in depth that trains in a moment."""
    common = {"width": 8, "hidden": 16, "vocab": 8, "teacher_depth": 4, "batch": 256, "temperatures": (0.5,)}
    work = DepthWork("tiny", 40, loss=loss, kinds=("tied",), seeds=(0,), depths=(2, 3), **common)
    return dataclasses.replace(work, **changes)


TINY = {
    "kl": tiny("kl"),
    "mse": tiny("mse"),
    "time": TimeWork(
        "tiny", 40, width=8, vocab=16, batch=256, seeds=(0,), temperatures=(0.01, 0.03), rates=(0.01, 0.02)
    ),
    "width": WidthWork("tiny", 60, count=50, exponent=1.0, batch=256, decay=-1.0, lr=0.02, seeds=(0,), widths=(4, 8)),
    "tasks": TasksWork(
        "tiny",
        40,
        count=4,
        features=3,
        inputs=16,
        alpha=1.0,
        clip=0.5,
        lr=0.01,
        seeds=(0,),
        betas=(1.0, 2.0),
        widths=(3, 6),
    ),
}


def wrong(work):
    """Works that differ by fewer steps, by rates that are too high by a quarter, or in what else a loss depends on."""
    others = [dataclasses.replace(work, steps=work.steps * 3 // 4)]
    if isinstance(work, TimeWork):
        return [*others, dataclasses.replace(work, rates=tuple(1.25 * rate for rate in work.rates))]
    if isinstance(work, WidthWork):
        others.append(dataclasses.replace(work, decay=20 * work.decay))  # at half of it nothing changes
    if isinstance(work, TasksWork):
        others.append(dataclasses.replace(work, clip=2 * work.clip))
    return [*others, dataclasses.replace(work, lr=1.25 * work.lr)]


def losses_of(name, work, begin):
    """A peer's losses on a work, in the order of its runs; PyTorch is an extra."""
    if name != "jax_plain":
        pytest.importorskip("torch")
    found = contestant.function(name, work.problem)(work, begin, work.runs, 1)
    assert found.updates == (work.steps - 1) * len(work.runs)
    assert list(found.losses) == [run.label for run in work.runs]
    return np.array(list(found.losses.values()))


@pytest.fixture(scope="module")
def ours(request):
    """(a work, where all start, what toydepth reports)."""
    work = TINY[request.param]
    begin = start.draw(work)
    return work, begin, instrument.toydepth(work, begin, work.runs, 1)


@pytest.mark.parametrize(
    ("ours", "name"),
    [
        ("kl", "jax_plain"),
        ("kl", "torch_eager"),
        ("mse", "jax_plain"),
        ("mse", "torch_eager"),
        ("time", "torch_eager"),
        ("width", "torch_eager"),
        ("tasks", "torch_eager"),
    ],
    indirect=["ours"],
)
def test_peers_reach_the_losses_of_toydepth_in_as_many_steps(ours, name):
    work, begin, found = ours
    expected = np.array([found.losses[run.label] for run in work.runs])
    allowed = ROUNDING if isinstance(work, TasksWork) else NOISE

    def difference(work):
        return abs(np.mean(losses_of(name, work, begin) / expected) - 1.0)

    assert difference(work) < allowed
    for other in wrong(work):
        assert difference(other) > allowed


@pytest.mark.parametrize("ours", TINY, indirect=True)
def test_toydepth_is_timed_between_the_first_chunk_and_the_last(ours):
    work, _, found = ours
    first = (instrument.LONGER * work.steps - found.updates / len(work.runs)) % work.steps
    programs = {run.program for run in work.runs}
    assert found.updates == pytest.approx(round(found.updates))
    assert 1 <= first <= 8
    assert found.programs >= 2 + 3 * len(programs)  # init and stage; fresh, advance and evaluate for each shape
    assert set(found.details) == {f"compile_seconds {program}" for program in programs}


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch.compile needs a C++ compiler")
@pytest.mark.parametrize(("name", "programs"), [("W1", 3), ("T1", 1), ("M1", 6), ("K1", 5)])
def test_compiled_pytorch_does_what_eager_pytorch_does(tmp_path, name, programs):
    pytest.importorskip("torch")
    work = WORKS[name].scaled(1 / 16)
    begin = start.draw(work)
    np.savez(tmp_path / f"{name}.npz", **begin)  # type: ignore[arg-type]
    compiled = bench.contest(name, "torch_compile", 1 / 16, tmp_path)
    losses = np.array(list(compiled["losses"].values()))
    assert compiled["programs"] >= programs  # W1 has a teacher, a student and an objective, M1 and K1 one per width
    assert losses == pytest.approx(losses_of("torch_eager", work, begin), rel=1e-3)
    for other in wrong(work):
        assert losses != pytest.approx(losses_of("torch_eager", other, begin), rel=1e-3)


@pytest.mark.parametrize("name", ["W1", "W2", "W3"])
def test_operations_are_counted_as_toydepth_counts_them(name):
    work = WORKS[name]
    assert isinstance(work, DepthWork)
    total, teachers = 0.0, {}
    for run in work.runs:
        problem = problem_of(resolve(parse(work.config(run, work.steps))))
        assert work.student_flops(run.depth) == problem.flops() != work.student_flops(run.depth + 1)
        total += problem.flops()
        teachers[run.kind, run.seed] = problem.stream.flops()
    assert work.flops() == pytest.approx((total + sum(teachers.values())) / len(work.runs))


def test_works_have_the_runs_that_claims_speak_of():
    expected = {"W1": 1, "W2": 24, "W3": 24, "T1": 24, "M1": 6, "K1": 18}
    assert {name: len(work.runs) for name, work in WORKS.items()} == expected
    assert all(len({run.label for run in work.runs}) == len(work.runs) for work in WORKS.values())


@pytest.mark.parametrize(
    ("contestant", "work", "fits"),
    [
        ("jax_plain", "W2", True),
        ("jax_plain", "T1", False),  # written for the works in depth alone
        ("torch_compile", "M1", True),
        ("torch_eager_two_processes", "K1", True),
        ("torch_eager_two_processes", "T1", True),
        ("torch_eager_two_processes", "W1", False),  # a single run
    ],
)
def test_contestants_take_part_where_they_have_something_to_train(contestant, work, fits):
    assert bench.fits(contestant, WORKS[work]) == fits


def test_the_hand_written_scan_is_the_engines_mathematics():
    work = overhead.work_of(1 / 16)
    steps = overhead.STEPS
    members = instrument.members_of(work, work.runs, steps, "cpu")
    finals = {}

    class Keeping(instrument.Clock):
        def finished(self, member, outcome, state):
            finals[member.name] = state["params"]

    (family,) = ensemble.plan(members, 1)
    devices = jax.local_devices()[:1]
    assert engine.train(engine.prepare(family, devices), family.waves[0], Keeping(members, steps))
    params, _ = overhead.scan(members)(overhead.fresh(members), 0)
    for i, member in enumerate(members):
        for name in ("W1", "W2"):
            by_hand = params["layers"][name][i]
            assert np.allclose(by_hand, finals[member.name]["layers"][name], atol=1e-4)
            assert not np.allclose(by_hand, params["layers"][name][i - 1], atol=1e-4)


def made(updates, seconds, losses, **figures):
    """A contestant's report."""
    common = {"compile_seconds": 1.0, "programs": 3, "peak_memory_gb": 0.5, "first_step_seconds": 2.0, "details": {}}
    return {"updates": updates, "seconds": seconds, "losses": losses, **common, **figures}


def test_a_summary_is_made_of_medians():
    work = tiny("mse", depths=(2,), steps=10)
    reports = [made(10, s, {"a": loss}) for s, loss in ((1.0, 0.3), (2.0, 0.1), (10.0, 0.2))]
    found = bench.summary(work, reports, peak=1e-3)
    assert found["updates_per_second"] == 5.0
    assert found["updates_per_second_range"] == [1.0, 10.0]
    assert found["final_loss"] == pytest.approx(0.2)
    assert found["fraction_of_peak"] == pytest.approx(5.0 * work.flops() / 1e6)
    assert set(found) >= KEYS


def test_a_share_of_the_peak_that_means_nothing_is_left_out(capsys):
    found = bench.summary(TINY["time"], [made(10, 1.0, {"a": 1.0})], peak=1.0)
    assert found["fraction_of_peak"] is None and found["updates_per_second"] == 10.0
    common = {"sizes": {"T1": {}}, "peak_gflops": {}, "machine": {"cores": 2}, "startup_seconds": {}}
    tables.print_tables(common | {"T1": {"toydepth": found}})
    assert "%" not in capsys.readouterr().out


def test_contestants_are_compared_with_toydepth():
    work = tiny("mse")
    entries = {
        "toydepth": bench.summary(work, [made(10, 1.0, {"a": 1.0, "b": 2.0})], 1.0),
        "jax_plain": bench.summary(work, [made(10, 4.0, {"a": 1.1, "b": 2.0})], 1.0),
        "torch_compile": {"missing": "no compiler"},
    }
    bench.compare(entries)
    assert entries["jax_plain"]["toydepth_is_faster_by"] == 4.0
    assert entries["jax_plain"]["largest_loss_difference"] == pytest.approx(0.1)
    assert entries["toydepth"]["largest_loss_difference"] == 0.0
    assert entries["torch_compile"] == {"missing": "no compiler"}


def test_processes_side_by_side_are_as_fast_as_the_slower_one():
    found = bench.merged([made(10, 1.0, {"a": 1.0}), made(20, 4.0, {"b": 2.0})])
    assert found["updates"] / found["seconds"] == 7.5
    assert found["losses"] == {"a": 1.0, "b": 2.0}
    assert found["peak_memory_gb"] == 1.0


def test_runs_are_dealt_to_processes_evenly():
    runs = WORKS["W2"].runs
    parts = report.deal(runs, 2)
    assert sorted(parts[0] + parts[1], key=runs.index) == runs
    assert len({sum(run.depth for run in part) for part in parts}) == 1


def test_compilation_is_said_to_grow_by_the_deepest_over_the_shallowest():
    details = {"compile_seconds depth 6": 2.0, "compile_seconds depth 48": 3.0, "compile_seconds depth 12": 9.0}
    assert tables.compile_growth({"W2": {"toydepth": {"details": details}}}) == 1.5
    assert tables.compile_growth({"W1": {}}) is None


@pytest.mark.slow
def test_the_whole_benchmark_writes_every_figure(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(bench, "startup", lambda: {"run --help": 0.5})
    monkeypatch.setitem(bench.CONTESTANTS, "torch_compile", ("no_such_contestant", 1))
    monkeypatch.setitem(contestant.CONTESTANTS, "no_such_contestant", {"depth": "no_such_module:train"})
    words = ["--works", "W1", "--contestants", "toydepth", "jax_plain", "torch_compile", "torch_eager_two_processes"]
    assert bench.main([*words, "--repeats", "1", "--scale", "0.0625", "--out", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "bench.json").read_text())
    assert set(found["W1"]) == {"toydepth", "jax_plain", "torch_compile"}  # one run is not split among processes
    for name in ("toydepth", "jax_plain"):
        assert found["W1"][name].keys() >= KEYS
        assert all(found["W1"][name][key] > 0 for key in KEYS)
    assert "no_such_contestant" in found["W1"]["torch_compile"]["missing"]
    assert found["peak_gflops"]["jax"] > 0 and found["peak_gflops"]["numpy"] > 0
    assert found["overhead"]["engine"] > 0
    printed = capsys.readouterr().out
    assert "toydepth is" in printed and "torch_compile is missing: KeyError: 'no_such_contestant'" in printed


@pytest.mark.parametrize(("name", "expected"), [("torch_compile", 0), ("jax_plain", 1)])
def test_a_failing_contestant_fails_the_benchmark_unless_it_is_the_compiled_one(tmp_path, monkeypatch, name, expected):
    common = {"sizes": {"W1": {}}, "peak_gflops": {}, "machine": {"cores": 2}, "startup_seconds": {}}

    def measured(works, *_):
        return common | {"W1": {name: {"missing": "why"}}}

    monkeypatch.setattr(bench, "measure", measured)
    assert bench.main(["--works", "W1", "--out", str(tmp_path)]) == expected


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--works", "W9"], "'W9' (choose from"),
        (["--contestants", "keras"], "'keras' (choose from"),
        (["--repeats", "0"], "--repeats"),
        (["--scale", "2"], "2: allowed is a number above 0, at most 1"),
    ],
)
def test_a_wrong_request_is_refused_in_a_line(words, said, capsys):
    with pytest.raises(SystemExit) as refused:
        bench.main(words)
    assert refused.value.code == 2
    assert said in capsys.readouterr().err.splitlines()[-1]


def test_the_process_that_starts_the_others_stays_small():
    code = "import sys, benchmarks.bench; print({'jax', 'torch'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
