"""The benchmark at tiny sizes: all contestants do the same work, and what is counted and printed is right."""

import dataclasses
import json
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from benchmarks import bench, instrument, jax_peer, overhead, report, start, tables
from benchmarks.works import WORKS, Work
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


def tiny(loss, **changes):
    """A work that trains in a moment."""
    work = Work("tiny", loss, 8, 16, 8, 4, 256, ("tied",), (0,), (2, 3), (0.5,), steps=40)
    return dataclasses.replace(work, **changes)


def peer(name):
    """A peer's function; PyTorch is an extra."""
    if name == "jax_plain":
        return jax_peer.plain
    pytest.importorskip("torch")
    from benchmarks import torch_peer

    return torch_peer.eager


@pytest.fixture(scope="module", params=["kl", "mse"])
def ours(request):
    """(loss, where all start, what toydepth reports)."""
    work = tiny(request.param)
    begin = start.draw(work)
    return request.param, begin, instrument.toydepth(work, begin, work.runs, 1)


@pytest.mark.parametrize("name", ["jax_plain", "torch_eager"])
def test_peers_reach_the_losses_of_toydepth_in_as_many_steps(ours, name):
    loss, begin, expected = ours

    def difference(**changes):
        work = tiny(loss, **changes)
        found = peer(name)(work, begin, work.runs, 1)
        assert found.losses.keys() == expected.losses.keys()
        assert found.updates == (work.steps - 1) * len(work.runs)
        ratios = [found.losses[label] / value for label, value in expected.losses.items()]
        return abs(np.mean(ratios) - 1.0)

    assert difference() < NOISE
    assert difference(lr=tiny(loss).lr * 1.25) > NOISE
    assert difference(steps=30) > NOISE


def test_toydepth_is_timed_between_the_first_chunk_and_the_last(ours):
    loss, _, found = ours
    work = tiny(loss)
    first = (instrument.LONGER * work.steps - found.updates / len(work.runs)) % work.steps
    assert found.updates == pytest.approx(round(found.updates))
    assert 1 <= first <= 8
    assert found.programs >= 2 + 3 * len(work.depths)  # init and stage; fresh, advance and evaluate for each depth
    assert set(found.details) == {f"compile_seconds depth {depth}" for depth in work.depths}


@pytest.mark.slow
@pytest.mark.skipif(not any(map(shutil.which, ("g++", "clang++"))), reason="torch.compile needs a C++ compiler")
def test_compiled_pytorch_does_what_eager_pytorch_does(tmp_path):
    eager = peer("torch_eager")
    work = WORKS["W1"].scaled(1 / 16)
    begin = start.draw(work)
    np.savez(tmp_path / "W1.npz", **begin)  # type: ignore[arg-type]
    compiled = bench.contest("W1", "torch_compile", 1 / 16, tmp_path)
    assert compiled["programs"] >= 3  # teacher, student, objective
    assert compiled["losses"] == pytest.approx(eager(work, begin, work.runs, 1).losses, rel=1e-3)
    other = dataclasses.replace(work, lr=work.lr * 1.25)
    assert compiled["losses"] != pytest.approx(eager(other, begin, work.runs, 1).losses, rel=1e-3)


@pytest.mark.parametrize("work", WORKS.values(), ids=WORKS)
def test_operations_are_counted_as_toydepth_counts_them(work):
    total, teachers = 0.0, {}
    for run in work.runs:
        problem = problem_of(resolve(parse(work.config(run, work.steps))))
        assert work.student_flops(run.depth) == problem.flops() != work.student_flops(run.depth + 1)
        total += problem.flops()
        teachers[run.kind, run.seed] = problem.stream.flops()
    assert work.flops() == pytest.approx((total + sum(teachers.values())) / len(work.runs))
    assert len(work.runs) == {"W1": 1, "W2": 24, "W3": 24}[work.name]


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
