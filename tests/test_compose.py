"""From words to configs: Hydra's grammar, named sweeps, many points composed at once, refusals in a line."""

from pathlib import Path
from typing import Any

import pytest
from hydra import initialize_config_dir
from hydra._internal.callbacks import Callbacks
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.types import HydraContext, RunMode
from omegaconf import OmegaConf
from typing_commands import files, training, typed, values

from toydepth.compose import data_folder, register, searchpath
from toydepth.config import DepthConfig, parse

__all__ = ["training"]  # a fixture


# --- requests that are fine -------------------------------------------------------------------------------------


def test_a_bare_run_is_one_run_with_the_defaults(training):
    assert typed("run") == 0
    assert training.configs == [DepthConfig()]
    assert training.command == "toydepth run"


SMOKE = {"steps": 200, "batch": 64, "eval_batches": 2}
GRID = "teacher=tied,independent student.depth=2,4,8 target=kl target.temperature=0.03,0.3 seed=0,1"


@pytest.mark.parametrize("flag", ["", "-m ", "--multirun "])
def test_a_grid_reaches_training_at_once(training, flag):
    assert typed(f"run {flag}{GRID}") == 0
    assert training.calls == ["train"]
    assert training.command == f"toydepth run {flag}{GRID}"
    points = values(training, "teacher.kind", "student.depth", "target.loss", "target.temperature", "seed")
    kinds, depths, temperatures = ("tied", "independent"), (2, 4, 8), (0.03, 0.3)
    assert points == [(k, d, "kl", t, s) for k in kinds for d in depths for t in temperatures for s in (0, 1)]


def test_plan_takes_the_same_words_and_writes_nothing(training):
    assert typed(f"plan {GRID}") == 0
    assert training.calls == ["plan"]
    assert len(training.configs) == 24
    assert files() == []


@pytest.mark.parametrize(
    ("words", "tree"),
    [
        ("teacher=tied", {"teacher": {"kind": "tied"}}),
        ("teacher.kind=tied", {"teacher": {"kind": "tied"}}),
        ("teacher=blocks teacher.block_size=4", {"teacher": {"kind": "blocks", "block_size": 4}}),
        ("target=kl_given", {"target": {"loss": "kl", "head": "teacher"}}),
        ("optimizer=adam schedule=wsd", {"optimizer": {"name": "adam"}, "schedule": {"name": "wsd"}}),
        ("runtime=map train=smoke", {"runtime": {"batching": "map"}, "train": SMOKE}),
        ("train=smoke train.batch=32", {"train": SMOKE | {"batch": 32}}),
    ],
)
def test_groups_and_fields(training, words, tree):
    assert typed(f"run {words}") == 0
    assert training.configs == [parse(tree)] != [DepthConfig()]


@pytest.mark.parametrize(
    ("words", "names", "expected"),
    [
        ("seed=range(3)", "seed", [0, 1, 2]),
        ("student.depth=choice(2,4)", "student.depth", [2, 4]),
        ("teacher.width=8,32 'student.hidden=${teacher.width}'", "student.hidden", [8, 32]),
        ("'student.hidden=${teacher.width}' teacher=tied,mixed", "student.hidden", [16, 16]),
        ("++train.steps=10,20", "train.steps", [10, 20]),
        ("~teacher.depth teacher.width=8", "teacher.depth", [64]),
        ("""sweep.name="'a b, c'" """, "sweep.name", ["a b, c"]),
        ("optimizer.lr=1e-2,null", "optimizer.lr", [0.01, None]),
        ("train.steps=1e3", "train.steps", [1000]),
        ("teacher=glob(t*)", "teacher.kind", ["tied"]),
        ("teacher={kind:tied}", "teacher.kind", ["tied"]),
    ],
)
def test_overrides_follow_hydras_grammar(training, words, names, expected):
    assert typed(f"run {words}") == 0
    assert [value for (value,) in values(training, names)] == expected


# --- named sweeps -----------------------------------------------------------------------------------------------


def test_a_named_sweep_needs_no_flag_and_the_command_line_wins(training):
    assert typed("run +sweeps=alpha_quick train.steps=200 train.batch=64 student.depth=2,4 optimizer=adam") == 0
    assert len(training.configs) == 2 * 2 * 3
    assert set(values(training, "train.steps", "train.batch", "optimizer.name")) == {(200, 64, "adam")}
    assert set(values(training, "student.depth")) == {(2,), (4,)}
    assert set(values(training, "teacher.kind", "sweep.name")) == {(k, "alpha_quick") for k in ("tied", "independent")}
    assert typed("run +sweeps=alpha_quick seed=7 teacher=mixed") == 0
    assert set(values(training, "seed", "teacher.kind")) == {(7, "mixed")}


def test_a_folder_of_ones_own_sweeps_is_found_and_comes_first(training):
    own = Path("sweeps")
    own.mkdir()
    (own / "mine.yaml").write_text("train: {steps: 7}\nhydra: {sweeper: {params: {seed: '3,4'}}}\n")
    (own / "alpha_quick.yaml").write_text("# @package _global_\ntrain: {steps: 9}\n")
    assert typed("run +sweeps=mine") == 0
    assert values(training, "train.steps", "seed") == [(7, 3), (7, 4)]
    assert typed("run +sweeps=alpha_quick") == 0
    assert values(training, "train.steps") == [(9,)]
    assert typed("run +sweeps=temperature_quick") == 0
    assert len(training.configs) > 1


def test_a_faulty_sweep_file_is_one_line(training, capfd):
    own = Path("sweeps")
    own.mkdir()
    faults = {"trian: {steps: 3}": "did you mean train", "train: {steps: 3": "faulty.yaml", "[a, b]": "sweeps/faulty"}
    for text, said in faults.items():
        (own / "faulty.yaml").write_text(text)
        assert typed("run +sweeps=faulty") == 2
        err = capfd.readouterr().err
        assert len(err.splitlines()) == 1
        assert said in err
    assert training.calls == []


def test_the_packages_own_sweeps_are_searched_once_from_the_checkout(monkeypatch):
    monkeypatch.chdir(data_folder("sweeps").parent)
    assert searchpath() == ["own://", f"sweeps://{data_folder('sweeps')}"]


# --- composing --------------------------------------------------------------------------------------------------


@pytest.fixture
def context():
    register()
    with initialize_config_dir(str(data_folder("conf")), version_base="1.3"):
        hydra = GlobalHydra.instance().hydra
        assert hydra is not None
        yield HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks())


POINTS = [
    ["teacher=tied", "student.depth=2", "seed=0"],
    ["teacher=tied", "student.depth=4", "student.hidden=${teacher.width}"],
    ["teacher=blocks", "++student.depth=4", "target=kl", "teacher.block_size=2"],
    ["target=kl_given", "target.temperature=0.3", "~teacher.rho", "sweep.name='a, b'"],
    ["+sweeps=alpha_quick", "train.steps=3", "teacher={kind: mixed, rho: 0.25}"],
]


def test_composing_together_gives_what_hydra_composes_one_by_one(context):
    from hydra_plugins.toydepth.launcher import compose

    loader = context.config_loader
    master = loader.load_configuration("config", overrides=[], run_mode=RunMode.MULTIRUN)
    points = compose(context, master, POINTS)
    assert len({str(point.config) for point in points}) == len(POINTS)
    for point, overrides in zip(points, POINTS, strict=True):
        alone = loader.load_sweep_config(master, overrides)
        expected: Any = OmegaConf.to_container(alone)
        del expected["hydra"]
        assert OmegaConf.to_container(point.config) == expected


def test_hydra_composes_once_per_choice_of_groups(training, monkeypatch):
    choices = []
    compose = ConfigLoaderImpl.load_sweep_config

    def counted(self, master_config, sweep_overrides):
        choices.append(sweep_overrides)
        return compose(self, master_config, sweep_overrides)

    monkeypatch.setattr(ConfigLoaderImpl, "load_sweep_config", counted)
    assert typed("run teacher=tied,independent target=kl seed=range(20) student.depth=2,4") == 0
    assert len(training.configs) == 80
    assert choices == [["teacher=tied", "target=kl"], ["teacher=independent", "target=kl"]]


def test_a_runs_folder_gets_what_hydra_writes(training):
    training.act = lambda on_folder: on_folder(1, Path("runs/a"))
    assert typed("run teacher=tied,mixed student.hidden=4 hydra.verbose=false") == 0
    assert [name for name in files() if Path(name).is_file()] == [
        f"runs/a/.hydra/{name}.yaml" for name in ("config", "hydra", "overrides")
    ]
    described = {name: OmegaConf.load(f"runs/a/.hydra/{name}.yaml") for name in ("config", "hydra", "overrides")}
    assert described["overrides"] == ["teacher=mixed", "student.hidden=4"]
    config: Any = OmegaConf.to_container(described["config"], resolve=True)
    assert parse(config) == training.configs[1]
    hydra = described["hydra"].hydra
    assert hydra.job.num == 1
    assert hydra.overrides.task == described["overrides"]
    assert hydra.overrides.hydra == ["hydra.verbose=false"]
    assert hydra.runtime.output_dir == str(Path("runs/a").resolve())


# --- requests that are refused ----------------------------------------------------------------------------------

REFUSED = {
    "teacher=foo": ["teacher=foo", "tied"],
    "teacher=tied,foo seed=0,1": ["teacher=foo", "tied"],
    "teacher.kind=foo": ["teacher.kind=foo", "tied"],
    "schedule=foo": ["schedule=foo", "linear"],
    "problem=foo": ["problem=foo", "depth"],
    "student.depth=0": ["student.depth=0", "at least 1"],
    "student.depth=-3": ["student.depth=-3", "at least 1"],
    "student.depth=2.5": ["student.depth=2.5", "whole number"],
    "student.depth=abc": ["student.depth=abc", "whole number"],
    "student.depth=2,4,0": ["student.depth=0", "at least 1"],
    "student.depth=[2,4]": ["student.depth=[2, 4]", "whole number"],
    "target=kl target.temperature=0": ["target.temperature=0", "above 0"],
    "target=kl target.temperature=-1": ["target.temperature=-1", "above 0"],
    "target=kl target.temperature=nan": ["target.temperature=nan", "finite"],
    "teacher.hidden=0": ["teacher.hidden=0", "at least 1"],
    "student.hidden=0": ["student.hidden=0", "at least 1"],
    "train.batch=0": ["train.batch=0", "at least 1"],
    "train.steps=0": ["train.steps=0", "at least 1"],
    "train.eval_every=0": ["train.eval_every=0", "at least 1"],
    "optimizer.lr=-1": ["optimizer.lr=-1", "above 0"],
    "optimizer.lr=inf": ["optimizer.lr=inf", "finite"],
    "teacher.rho=1.5": ["teacher.rho=1.5", "at most 1"],
    "teacher.block_size=0": ["teacher.block_size=0", "at least 1"],
    "seed=-1": ["seed=-1", "at least 0"],
    "seed=5000000000": ["seed=5000000000", "at most 4294967295"],
    "teacher.width=1000000000": ["teacher.width=1000000000", "at most"],
    "optimizer.lr=1e-60": ["optimizer.lr=1e-60", "finite"],
    "optimizer.b1=1": ["optimizer.b1=1", "below 1"],
    "optimizer=adam optimizer.weight_decay=0.1": ["optimizer.weight_decay=0.1", "adamw"],
    "data.unique=100": ["data.unique=100", "train.batch=512"],
    "sweep.name=..": ["sweep.name=..", "without slashes"],
    "sweep.name=a/b": ["sweep.name=a/b", "without slashes"],
    "target.head=teacher": ["target.head=teacher", "mse"],
    "train.stepss=3": ["train.stepss", "train.steps?"],
    "+train.stepss=3": ["train.stepss", "train.steps?"],
    "train.stepss=3,4": ["train.stepss", "train.steps?"],
    "depth=3": ["depth", "student.depth"],
    "teachr=tied": ["teachr", "teacher"],
    "student=foo": ["student=foo", "section"],
    "+sweeps=alpha_quik": ["sweeps=alpha_quik", "alpha, alpha_quick"],
    "+sweeps=alpha_quick,temperature_quick": ["+sweeps=alpha_quick,temperature_quick", "one named sweep"],
    "hydra.job.env_set.A=1": ["+hydra.job.env_set.A=1"],
    "sweeps=alpha_quick": ["+sweeps=alpha_quick"],
    "foo": ["foo", "field=value"],
    "student.depth=[2,": ["student.depth=[2,", "field=value"],
    "--bogus": ["--bogus"],
    "--help teacher=foo": ["teacher=foo", "tied"],
    "--cfg job --info": ["--cfg", "--info"],
    "--cfg job seed=0,1": ["seed=0,1", "one value"],
    "'student.hidden=${teacher.widht}'": ["student.hidden", "teacher.widht"],
    "'student.hidden=${foo:1}'": ["student.hidden", "foo"],
    "hydra/launcher=foo": ["hydra/launcher=foo", "toydepth"],
    "'seed=interval(0,1)'": ["INTERVAL"],
}


@pytest.mark.parametrize("words", REFUSED)
def test_a_wrong_request_is_one_line_and_runs_nothing(training, capfd, words):
    assert typed(f"run {words}") == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.startswith("toydepth: ")
    assert len(err.splitlines()) == 1
    assert all(part in err for part in REFUSED[words])
    assert training.calls == []
    assert files() == []
