"""The named sweeps: the published settings field by field, what every file says of itself, and that each one trains."""

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from toydepth import cli, compose, optimizer, resolvers
from toydepth.config import DepthConfig, flatten, resolve, run_id
from toydepth.ensemble import Member

SWEEPS = sorted(path.stem for path in compose.data_folder("sweeps").glob("*.yaml"))
REPLICATES = (0, 1, 2)
DEPTHS = (6, 12, 16, 24, 32, 48)
TEMPERATURES = tuple(np.logspace(-2, 0, 16))
KINDS = ("tied", "independent")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to type in."""
    monkeypatch.chdir(tmp_path)


def composed(*words: str) -> list[Any]:
    """The resolved configs that a command would train."""
    found: list[Any] = []
    assert compose.compose_and_call(lambda configs, on_folder: found.extend(configs) or 0, list(words)) == 0
    return [resolve(config) for config in found]


@functools.cache
def sweep(name: str) -> list[Any]:
    """The resolved configs of a named sweep."""
    return composed(f"+sweeps={name}")


# --- the published experiments --------------------------------------------------------------------------------

COMMON = {
    "problem": "depth",
    "teacher.depth": 128, "teacher.width": 32, "teacher.hidden": 128, "teacher.scale": 1.0,
    "student.hidden": 128, "student.scheme": "euler", "student.init": "zero", "student.block": "published",
    "optimizer.name": "adam", "optimizer.b1": 0.9, "optimizer.b2": 0.999, "optimizer.eps": 1e-8,
    "optimizer.weight_decay": 0.0,
    "schedule.warmup": 0.0,
    "train.batch": 1024, "train.eval_batches": 10, "train.stop": "steps", "train.twin": True,
    "data.unique": 0,
}  # fmt: skip
DECAYING = {"schedule.name": "wsd", "schedule.decay_fraction": 0.2, "schedule.floor": 0.1, "train.eval_every": 500}
MSE = COMMON | DECAYING | {"target.loss": "mse", "optimizer.lr": 1.2e-3, "optimizer.depth_power": 0.5}
LEARNED = {
    "target.loss": "kl", "target.vocab": 128, "target.head": "learned", "target.student_temperature": "one",
    "teacher.head_init": "linear",
    "optimizer.lr": 6e-4, "optimizer.depth_power": 0.0, "schedule.name": "constant",
    "train.steps": 40_000,
}  # fmt: skip
GIVEN = {
    "target.loss": "kl", "target.vocab": 128, "target.head": "teacher", "target.student_temperature": "teacher",
    "teacher.head_init": "normal",
    "optimizer.lr": 2.4e-3, "optimizer.depth_power": 0.5,
    "train.steps": 80_000,
}  # fmt: skip


@dataclass(frozen=True)
class Published:
    """An experiment of arXiv 2602.05970: its fixed settings, what it sweeps, its number of runs, its peak rate."""

    fixed: dict[str, Any]
    runs: int
    rate: Callable[[int], float]
    kinds: tuple[str, ...] = KINDS
    depths: tuple[int, ...] = DEPTHS
    temperatures: tuple[float, ...] = (1.0,)
    ends_at: float = 0.1  # the last rate over the peak


def halved(depth: int) -> float:
    return 6e-4 * 2 / depth**0.5


PUBLISHED = {
    "paper_exp9": Published(COMMON | LEARNED, 288, lambda d: 6e-4, ("independent",), DEPTHS, TEMPERATURES, 1.0),
    "paper_exp9_1": Published(COMMON | LEARNED, 288, lambda d: 6e-4, ("tied",), DEPTHS, TEMPERATURES, 1.0),
    "paper_exp9_2": Published(MSE | {"train.steps": 40_000}, 36, halved),
    "paper_exp9_3": Published(
        COMMON | DECAYING | GIVEN, 288, lambda d: 6e-4 * 4 / d**0.5, ("tied",), DEPTHS, TEMPERATURES
    ),
    "paper_exp9_4": Published(
        MSE | {"train.steps": 80_000, "student.scheme": "midpoint"}, 36, halved, depths=(3, 6, 8, 12, 16, 24)
    ),
    "paper_exp9_5": Published(MSE | {"train.steps": 40_000, "teacher.depth": 24}, 36, halved),
    "paper_exp9_6": Published(MSE | {"train.steps": 80_000}, 36, halved),
}


def differences(configs: list[DepthConfig], published: Published) -> set[str]:
    """What of a sweep is not as published: names of fields, `runs`, or `teachers`."""
    flat = [flatten(config) for config in configs]
    found = {name for name, value in published.fixed.items() if any(fields[name] != value for fields in flat)}
    swept = {
        "teacher.kind": published.kinds,
        "student.depth": published.depths,
        "target.temperature": tuple(f"{value:.6g}" for value in published.temperatures),
        "seed": REPLICATES,
    }
    points = [
        tuple(f"{fields[name]:.6g}" if name == "target.temperature" else fields[name] for name in swept)
        for fields in flat
    ]
    found |= {name for i, name in enumerate(swept) if {point[i] for point in points} != set(swept[name])}
    if sorted(points) != sorted(itertools.product(*swept.values())):
        found.add("runs")
    if not len(points) == len({run_id(config) for config in configs}) == published.runs:
        found.add("runs")
    teachers = defaultdict(set)
    for config in configs:
        teachers[config.target.temperature, config.seed].add(config.teacher.seed)
    shared_by_depths = all(len(seeds) == 1 for seeds in teachers.values())
    if not shared_by_depths or len(set.union(*teachers.values())) != len(published.temperatures) * len(REPLICATES):
        found.add("teachers")
    return found


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_settings(name):
    assert differences(sweep(name), PUBLISHED[name]) == set()


def test_every_published_experiment_has_its_sweep():
    assert set(PUBLISHED) == {name for name in SWEEPS if name.startswith("paper_exp")}


CHANGED: dict[str, Callable[[DepthConfig], Any]] = {
    "teacher.depth": lambda config: 64,
    "teacher.head_init": lambda config: "normal",
    "student.hidden": lambda config: 64,
    "student.scheme": lambda config: "midpoint",
    "target.head": lambda config: "teacher",
    "target.student_temperature": lambda config: "teacher",
    "optimizer.name": lambda config: "adamw",
    "optimizer.lr": lambda config: 0.001,
    "optimizer.depth_power": lambda config: 0.5,
    "optimizer.b2": lambda config: 0.99,
    "schedule.name": lambda config: "linear",
    "train.steps": lambda config: 80_000,
    "train.batch": lambda config: 512,
    "train.twin": lambda config: config.student.depth > 6,
    "teacher.seed": lambda config: config.seed,  # one for all temperatures
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_changed_setting_is_noticed(name):
    """The control of `differences`."""
    altered = [changed(config, name, CHANGED[name](config)) for config in sweep("paper_exp9")]
    assert differences(altered, PUBLISHED["paper_exp9"]) == {"teachers" if name == "teacher.seed" else name}


def test_missing_and_different_points_are_noticed():
    """The control of `differences`."""
    configs, published = sweep("paper_exp9"), PUBLISHED["paper_exp9"]
    assert differences(configs[1:], published) == {"runs"}
    assert differences([*configs, configs[0]], published) == {"runs"}
    assert differences([c for c in configs if c.seed], published) == {"runs", "seed", "teachers"}
    assert differences([c for c in configs if c.student.depth < 48], published) == {"runs", "student.depth"}
    warmer = [changed(c, "target.temperature", c.target.temperature * 1.001) for c in configs]
    assert differences(warmer, published) == {"runs", "target.temperature"}
    each = [changed(c, "teacher.seed", c.teacher.seed - c.student.depth) for c in configs]
    assert differences(each, published) == {"teachers"}


def changed(config: DepthConfig, name: str, value: Any) -> DepthConfig:
    section, _, key = name.partition(".")
    return replace(config, **{section: replace(getattr(config, section), **{key: value})})


def rates(config: DepthConfig, shares: tuple[float, ...]) -> list[float]:
    """The rates used after these shares of the steps."""
    hyper = optimizer.hyper_of(config)
    return [hyper["lr"] * float(optimizer.factor(hyper, share * config.train.steps, xp=np)) for share in shares]


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_rates(name):
    published = PUBLISHED[name]
    seen = set()
    for config in sweep(name):
        peak, end = published.rate(config.student.depth), published.ends_at
        expected = [peak, peak, peak * (1 + end) / 2, peak * end]
        assert rates(config, (0, 0.79, 0.9, 1)) == pytest.approx(expected, rel=1e-6)
        seen.add(config.student.depth)
    assert seen == set(published.depths)


@pytest.mark.parametrize("word", ["optimizer.depth_power=0.4", "schedule.decay_fraction=0.3", "schedule.floor=0"])
def test_another_rate_is_noticed(word):
    (config,) = composed("+sweeps=paper_exp9_6", "seed=0", "teacher=tied", "student.depth=48", word)
    peak = halved(48)
    assert rates(config, (0, 0.79, 0.9, 1)) != pytest.approx([peak, peak, 0.55 * peak, 0.1 * peak], rel=1e-3)


# --- what is computed -----------------------------------------------------------------------------------------


def test_a_temperature_of_ones_own_has_its_own_teacher():
    def seeds(*words: str) -> dict[tuple[float, int], int]:
        configs = composed("+sweeps=paper_exp9", "student.depth=6,12", *words)
        return {(config.target.temperature, config.seed): config.teacher.seed for config in configs}

    both = seeds("target.temperature=0.1,1")
    assert list(both) == [(t, s) for t in (0.1, 1.0) for s in REPLICATES]
    assert len(set(both.values())) == 6
    assert seeds("target.temperature=0.1", "seed=2") == {(0.1, 2): both[0.1, 2]}
    assert seeds("target.temperature=1.0", "seed=2") == {(1.0, 2): both[1.0, 2]}
    assert seeds("target.temperature=0.1", "seed=2", "teacher.seed=5") == {(0.1, 2): 5}


def test_seeds_are_the_same_everywhere():
    """Runs are named by them: if one of these numbers changes, so do the folders and the teachers of every KL sweep."""
    assert (resolvers.seed(0, 0.01), resolvers.seed(2, 1), resolvers.seed("a")) == (2391055046, 3880856950, 839819387)
    assert resolvers.seed(2, 1.0) == resolvers.seed(2, 1) != resolvers.seed(1, 2)
    assert 0 <= min(resolvers.seed(i) for i in range(100)) < max(resolvers.seed(i) for i in range(100)) < 2**32


def test_logspace_is_numpys():
    assert resolvers.logspace(-2, 0, 3) == "0.01,0.1,1"
    values = [float(word) for word in resolvers.logspace(-2, 0, 16).split(",")]
    assert values == pytest.approx(list(np.logspace(-2, 0, 16)), rel=5e-6)


@pytest.mark.parametrize("arguments", ["-2,0,1", "-2,0,2.5", "-2,0,x", "a,0,3", "-2,null,3"])
def test_a_wrong_logspace_is_one_line(arguments, capsys):
    Path("sweeps").mkdir()
    text = f"hydra: {{sweeper: {{params: {{target.temperature: '${{toydepth.logspace:{arguments}}}'}}}}}}\n"
    Path("sweeps/mine.yaml").write_text(text)
    assert cli.main(["plan", "+sweeps=mine", "target=kl"]) == 2
    err = capsys.readouterr().err
    assert "toydepth.logspace:" in err and "at least 2" in err
    assert len(err.splitlines()) == 1


# --- presets --------------------------------------------------------------------------------------------------


def test_groups_and_fields_win_over_a_preset():
    (plain,) = composed("preset=quick")
    assert (plain.optimizer.name, plain.train.steps, plain.target.loss) == ("muon", 3500, "mse")
    (adapted,) = composed("preset=quick", "optimizer=adam", "train=smoke", "target=kl", "teacher.width=8")
    assert (adapted.optimizer.name, adapted.train.steps, adapted.target.loss) == ("adam", 200, "kl")
    assert (adapted.teacher.width, adapted.teacher.depth, adapted.optimizer.lr) == (8, 64, 0.02)
    (other,) = composed("+sweeps=alpha_quick", "seed=0", "teacher=tied", "student.depth=2", "preset=published")
    assert (other.optimizer.name, other.train.batch) == ("adam", 1024)


QUICK = {
    "teacher.width": 16, "teacher.hidden": 64, "target.loss": "mse", "optimizer.name": "muon", "optimizer.lr": 0.02,
    "optimizer.adam_lr": 0.02, "optimizer.depth_power": 0.5, "schedule.name": "linear", "schedule.decay_fraction": 0.9,
    "schedule.floor": 0.0, "train.batch": 512, "train.twin": True,
}  # fmt: skip
GROWN = {"student.init": "grow", "student.grow_rate": 0.3, "optimizer.lr": 0.01, "optimizer.adam_lr": 0.01}
OWN = {
    "alpha": {"train.steps": 16_000, "teacher.depth": 64} | GROWN,
    "alpha_quick": {"train.steps": 6000, "teacher.depth": 64} | GROWN,
    "scheme": {"train.steps": 6000, "teacher.depth": 64, "teacher.kind": "tied"},
    "shallow_teacher": {"train.steps": 3500, "teacher.depth": 8},
    "teacher_blocks": {"train.steps": 3500, "teacher.depth": 64, "teacher.kind": "blocks"},
    "teacher_rho": {"train.steps": 3500, "teacher.depth": 64, "teacher.kind": "mixed"},
    "temperature_quick": {"train.steps": 3000, "teacher.depth": 64, "target.loss": "kl", "target.head": "teacher"},
    "width_control": {"train.steps": 3500, "teacher.depth": 64},
}


@pytest.mark.parametrize("name", OWN)
def test_quick_sweeps_differ_in_what_they_are_about_and_nothing_else(name):
    for fields in map(flatten, sweep(name)):
        assert {key: fields[key] for key in QUICK | OWN[name]} == QUICK | OWN[name]


def test_every_sweep_is_in_one_of_the_tables():
    assert {name for name in SWEEPS if sweep(name)[0].problem == "depth"} == set(PUBLISHED) | set(OWN)


# --- what a file says of itself -------------------------------------------------------------------------------


def complaints(name: str, text: str) -> list[str]:
    """What is wrong with a sweep's file as a document of what it does."""
    head = [line.removeprefix("#").strip() for line in text.partition("\n\n")[0].splitlines()]
    flat = [flatten(config) for config in sweep(name)]
    swept = {key for key in flat[0] if len({fields[key] for fields in flat}) > 1} - {"teacher.seed"}
    sound = {
        "opens with its command": head[0] == f"toydepth run +sweeps={name}",
        "names the paper": any("arXiv" in line for line in head),
        "says what it must show": any(line.startswith("Must show:") for line in head),
        "says how long it takes": "minutes" in head[-1] or "hours" in head[-1],
        "names itself": {fields["sweep.name"] for fields in flat} == {name},
        "sweeps at least two fields": len(swept) >= 2,
    }
    return [said for said, holds in sound.items() if not holds]


@pytest.mark.parametrize("name", SWEEPS)
def test_sweep_files_are_documents(name):
    assert complaints(name, (compose.data_folder("sweeps") / f"{name}.yaml").read_text()) == []


def test_a_poor_document_is_noticed():
    Path("sweeps").mkdir()
    text = "# toydepth run +sweeps=else\n# Fast.\n\nsweep: {name: other}\nhydra: {sweeper: {params: {seed: '0,1'}}}\n"
    Path("sweeps/poor.yaml").write_text(text)
    assert len(complaints("poor", text)) == 6


# --- that each one trains -------------------------------------------------------------------------------------


CUT = {
    "depth": ["student.depth=2,4", "train.eval_every=20", "teacher.width=8", "teacher.depth=8"],
    "time": ["teacher.width=4", "target.vocab=8"],
    "width": ["features.count=24", "student.width=3,6,12"],
    "tasks": ["tasks.count=4", "tasks.features=2", "tasks.inputs=16", "student.width=2,4", "train.twin=false"],
    "paper_time_exp1": ["target.temperature=0.001,1"],
    "paper_time_exp1_1": ["target.temperature=0.001,1"],
    "paper_time_exp2": ["student.init=0,1"],
    "paper_time_exp2_1": ["student.init=0,1"],
    "time_reuse": ["data.unique=0,640"],
    "scheme": ["student.scheme=rk4"],
    "width_control": ["student.hidden=32"],
    "width_phase": ["student.decay=-1,0.1"],
    "width_density": ["features.density=1,2"],
    "width_start": ["features.count=200", "student.width=5,7,10,39,63,100"],  # those that its fits are of
    "paper_width_exp10": ["features.exponent=1,2", "student.decay=-1,1"],
    "paper_width_exp10_3": ["features.exponent=0,1", "student.decay=-1,1"],
    "paper_width_exp15": ["features.density=1,2.62137", "student.decay=-1,1"],
    "tasks_frequency": ["tasks.frequency_boost=1,4.5"],
    "tasks_retention": ["injection.gap=0,5", "optimizer.lr=0.003"],
}  # the rest is in other sweeps


TRAINED: dict[Any, str] = {}  # the first sweep with these programs


@pytest.mark.slow
@pytest.mark.parametrize("name", SWEEPS)
def test_every_sweep_trains(name, monkeypatch):
    """Cut down to one replicate, few values and small networks, so that many have equal programs: those are trained
    once. Pages, which take as long, are other tests' concern."""
    monkeypatch.setattr("toydepth.report.write", lambda derived: derived.out / "report.html")
    words = ["seed=0", "train.steps=20", "train.batch=64", "train.eval_batches=2", "train.checkpoint_every=20"]
    first = sweep(name)[0]
    words += ["target.temperature=0.1"] if first.problem == "depth" and first.target.loss == "kl" else []
    words = [f"+sweeps={name}", *words, *CUT[first.problem], *CUT.get(name, [])]
    configs = composed(*words)
    if (other := TRAINED.setdefault(programs(configs), name)) != name:
        pytest.skip(f"its programs are those of {other}")
    assert cli.main(["run", *words]) == 0
    rows = pl.read_csv(f"outputs/{name}/exponents.csv")
    assert rows["n_runs"].sum() >= len(configs)
    assert rows["alpha"].null_count() == 0 or first.problem == "time"  # 20 steps may be no power law


def programs(configs: list[Any]) -> frozenset[Any]:
    """All that is compiled for runs, and every choice that is made by name, that of the fit too."""
    return frozenset((Member("", config).shape, *choices(config)) for config in configs)


def choices(config: Any) -> list[str]:
    fields = flatten(config)
    return [
        value for name, value in fields.items() if isinstance(value, str) and name not in ("sweep.name", "sweep.root")
    ]
