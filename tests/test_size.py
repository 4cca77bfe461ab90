"""Any size: memory is foreseen, bounded by splitting, refused where nothing helps; and spread over many devices."""

import dataclasses
import json
import platform
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from test_engine import Memory

from toydepth import cli, config, engine, ensemble, forecast, store
from toydepth.devices import give_back_memory
from toydepth.ensemble import Member

# A process's memory at its peak above what it holds when it has imported JAX and set up its devices, in bytes.
MEASURE = """
import sys
import jax
from toydepth.devices import setup

def held(name):
    lines = open("/proc/self/status").read().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name))

setup(1)
idle = held("VmRSS")
from toydepth.cli import main
code = main(sys.argv[1:])
print(code, held("VmHWM") - idle)
"""


# --- the estimate -----------------------------------------------------------------------------------------------


def _words(fields):
    return [
        f"{section}.{name}={value}".lower() for section, sections in fields.items() for name, value in sections.items()
    ]


SIZES = {
    "programs": {
        "teacher": {"depth": 8, "width": 8},
        "train": {"batch": 32, "steps": 20},
    },
    "batches": {
        "teacher": {"depth": 2, "width": 64},
        "train": {"batch": 8192, "steps": 17, "eval_every": 17},
        "target": {"loss": "kl"},
    },
    "states": {
        "teacher": {"depth": 2, "width": 512},
        "train": {"batch": 16, "steps": 8, "eval_every": 8, "checkpoint_every": 2},
        "student": {"depth": 18},
    },
}
RATES = {"programs": [0.001], "batches": [0.001], "states": [1e-5, 2e-5]}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory as Linux tells it")
def test_the_estimate_is_within_a_quarter_of_the_peak(tmp_path):
    found = {}
    for name, fields in SIZES.items():
        common = {"runtime": {"devices": 1}, "optimizer": {"name": "adam"}}
        fields = common | fields | {"train": {"twin": False, **fields["train"]}}
        rates = ",".join(map(str, RATES[name]))
        words = [*_words(fields), f"optimizer.lr={rates}", f"sweep.root={tmp_path / name}"]
        ended = subprocess.run([sys.executable, "-c", MEASURE, "run", "-m", *words], capture_output=True, text=True)
        code, peak = ended.stdout.split()[-2:]
        assert code == "0", ended.stderr
        parsed = [config.parse(fields | {"optimizer": {"name": "adam", "lr": lr}}) for lr in RATES[name]]
        runs = {str(i): config.resolve(each, "cpu") for i, each in enumerate(parsed)}
        (family,) = forecast.families(runs, tmp_path, jax.local_devices()[:1])
        found[name] = family.memory.total, float(peak)
    peaks = [peak for _, peak in found.values()]
    assert max(peaks) >= 10 * min(peaks), found
    assert {name: about / peak for name, (about, peak) in found.items() if not 0.75 <= about / peak <= 1.25} == {}


def memory(tiny, devices=1, **fields):
    (family,) = ensemble.plan([Member("a", tiny(**fields))], devices)
    return family.memory


def test_what_grows_with_what(tiny):
    base = memory(tiny)
    part = dataclasses.asdict(base)
    assert part == {name: getattr(base, name) for name in part}
    assert base.total == sum(part.values()) == base.arrays + base.programs
    assert memory(tiny, train__batch=32).batches == 2 * base.batches
    assert memory(tiny, teacher__depth=60).teachers > 5 * base.teachers
    assert memory(tiny, student__depth=20).states == pytest.approx(10 * base.states, rel=0.01)
    assert memory(tiny, optimizer__name="sgd").states == pytest.approx(2 / 3 * base.states, rel=0.01)
    assert memory(tiny, devices=2).batches > 1.6 * base.batches
    assert memory(tiny, student__scheme="rk4").working > 2 * base.working
    assert memory(tiny, train__eval_batches=300).working > 5 * base.working


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="measures memory as Linux tells it")
def test_freed_memory_is_given_back():
    def held():
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS"))

    blocks = [bytearray(64_000) for _ in range(2000)]  # too small to be mapped one by one
    del blocks[:-1]  # the last one keeps all of the others from being given back by themselves
    before = held()
    give_back_memory()
    assert before - held() > 60e6 or platform.libc_ver()[0] != "glibc"
    assert len(blocks) == 1


# --- splitting and refusing -------------------------------------------------------------------------------------


def large(tiny):
    """Runs whose states weigh more than their batches."""
    fields = {"teacher__width": 16, "teacher__hidden": 64, "train__steps": 4, "student__depth": 4}
    return [Member(f"{i}", tiny(optimizer__lr=0.001 * (i + 1), **fields)) for i in range(60)]


def trained(family):
    """The recorder of a family's training on both devices."""
    seen, programs = Memory(), engine.prepare(family, jax.local_devices())
    assert all(engine.train(programs, wave, seen) for wave in family.waves)
    return seen


def test_ten_times_too_large_is_split_said_and_trained_to_the_same_bits(tiny):
    (roomy,) = ensemble.plan(large(tiny), 2)
    limit = roomy.memory.arrays / 10
    (tight,) = ensemble.plan(large(tiny), 2, limit)
    assert (len(roomy.waves), roomy.note) == (1, "")
    assert len(tight.waves) >= 10
    assert tight.memory.arrays <= limit
    assert sorted(m.name for wave in tight.waves for m in wave.members) == sorted(m.name for m in large(tiny))
    assert f"60 runs and twins are trained in {len(tight.waves)} parts instead of 1" in tight.note
    assert "\n" not in tight.note
    whole, parts = trained(roomy), trained(tight)
    assert parts.outcomes.keys() == whole.outcomes.keys()
    assert parts.rows == whole.rows


def test_several_depths_and_teachers_are_split_too(tiny):
    members = [
        Member(f"{d} {s} {kind}", tiny(student__depth=d, seed=s, teacher__kind=kind))
        for d in (1, 4, 16)
        for s in range(5)
        for kind in ("tied", "independent")
    ]
    (roomy,) = ensemble.plan(members, 2)
    alone = max(family.memory.arrays for m in members for family in ensemble.plan([m], 2, roomy.memory.arrays / 2))
    for limit in (0.9 * roomy.memory.arrays, alone):
        (tight,) = ensemble.plan(members, 2, limit)
        assert tight.memory.arrays <= limit
        assert sorted(m.name for wave in tight.waves for m in wave.members) == sorted(m.name for m in members)


WIDE = ["teacher.width=64", "teacher.depth=2", "train.steps=4", "optimizer=adam", "sweep.name=s"]


@pytest.mark.parametrize("command", ["plan", "run"])
def test_what_does_not_fit_alone_is_refused_before_anything_is_trained(tmp_path, monkeypatch, capfd, command):
    monkeypatch.chdir(tmp_path)
    assert cli.main([command, *WIDE, "student.depth=1,4", "runtime.memory_gb=0.001"]) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("toydepth: runtime.memory_gb=0.001; a run of depth 1, width 64, hidden 256")
    assert "GB even alone" in line
    assert list(Path().rglob("history.jsonl")) == []


def test_plan_shows_the_parts_and_says_what_is_split(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toydepth.forecast.CALIBRATION_SECONDS", 0.05)
    words = ["plan", *WIDE, "train.batch=8", "student.depth=8", "seed=0,1,2,3,4,5,6,7"]
    assert cli.main(words) == 0
    out = capfd.readouterr().out
    assert all(f"{part} " in out for part in ("states", "working", "batches", "teachers", "host", "programs"))
    assert "parts instead of" not in out
    lr = "optimizer.lr=" + ",".join(f"0.00{i}" for i in range(1, 9))
    assert cli.main([*words, lr, "runtime.memory_gb=0.1"]) == 0
    assert len([line for line in capfd.readouterr().out.splitlines() if "parts instead of" in line]) == 1


# --- many devices -----------------------------------------------------------------------------------------------

TINY = [
    "teacher.depth=6", "teacher.width=4", "teacher.hidden=8", "train.batch=16", "train.steps=40",
    "train.eval_batches=3", "optimizer=adam", "sweep.name=s", "sweep.report=false",
]  # fmt: skip


def losses(root):
    """{run id and step: its losses} of a sweep."""
    histories = store.histories(root / "s").items()
    return {(name, row[0]): row[1:] for name, history in histories for row in history.drop("seconds", "lr").rows()}


@pytest.mark.slow
@pytest.mark.parametrize("runs", [["student.depth=1,3", "seed=0,1,2"], ["student.depth=2"]])
def test_eight_devices_give_the_losses_of_one(tmp_path, runs):
    """Twelve runs and twins keep eight devices busy; one run and its twin leave most of them idle."""
    for devices in (1, 8):
        words = ["run", *TINY, *runs, f"runtime.devices={devices}", f"sweep.root={tmp_path / str(devices)}"]
        code = f"import sys, jax; from toydepth.cli import main; code = main({words}); print(code, len(jax.devices()))"
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert ended.stdout.splitlines()[-1] == f"0 {devices}", ended.stderr
    one, eight = (losses(tmp_path / devices) for devices in ("1", "8"))
    assert len(one) >= 21
    assert eight == one
    for path in (tmp_path / "8").rglob("result.json"):
        assert json.loads(path.read_text()).get("device", "8 x ").startswith("8 x ")


def test_few_runs_leave_devices_idle(tiny):
    (family,) = ensemble.plan([Member(str(seed), tiny(seed=seed)) for seed in range(3)], 8)
    (wave,) = family.waves
    (lanes,) = wave.lanes.values()
    assert sorted(map(len, lanes)) == [0, 0, 0, 0, 0, 1, 1, 1]
    assert set(family.width.values()) == {1}
    assert family.chunk % 8 == 0
