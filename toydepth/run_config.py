"""The fields that every run has, whatever its problem: optimizer, schedule, budget, data, computing, folder."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from . import extension
from .fields import choice, flag, integer, name, real, reference, refuse, text
from .fit_options import declared

SCHEDULES = ("constant", "linear", "cosine", "wsd", "inverse_sqrt")


@dataclass(frozen=True)
class Optimizer:
    """`lr / student.depth ** depth_power` is the rate used. Muon trains matrices, its Adam part the rest."""

    name: str = choice("muon", "adam", "adamw", "sgd", "muon")
    lr: float | None = real(None, 0.0, open_low=True)  # resolved: the optimizer's own, see `RATES`
    adam_lr: float | None = real(None, 0.0, open_low=True)  # resolved: lr
    depth_power: float = real(0.5, -10.0, 10.0)
    weight_decay: float | None = real(None, 0.0)  # resolved: 0.01 for adamw, 0 for the others
    momentum: float | None = real(None, 0.0, 1.0, open_high=True)  # resolved: 0.95 for muon, 0 for sgd
    b1: float = real(0.9, 0.0, 1.0, open_high=True)
    b2: float | None = real(None, 0.0, 1.0, open_high=True)  # resolved: 0.99 beside muon, else 0.999
    eps: float = real(1e-8, 0.0, open_low=True)
    clip: float | None = real(None, 0.0, open_low=True)  # the largest norm of the gradient; null: any


@dataclass(frozen=True)
class Schedule:
    """The rate's course: warm-up, flat, then a decay to `floor`; all three as fractions.

    With `inverse_sqrt` it is not flat between them, but falls as step^-1/2 from the end of the warm-up on.
    """

    name: str = choice("linear", *SCHEDULES)
    decay_fraction: float | None = real(None, 0.0, 1.0)  # resolved: by the schedule's name, see `DECAYS`
    floor: float = real(0.0, 0.0, 1.0)
    warmup: float = real(0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Train:
    """The budget. A twin is the same run at half the steps, with its own complete decay."""

    steps: int = integer(8000, 1)
    batch: int = integer(512, 1, 10_000_000)
    eval_every: int | None = integer(None, 1, matters=False)  # resolved: a twentieth of the steps
    evals_per_decade: int = integer(0, 0, 1000, matters=False)  # n: evaluated at n steps per decade, log-spaced instead
    eval_batches: int = integer(10, 1, 100_000)
    checkpoint_every: int | None = integer(None, 1, matters=False)  # resolved: a quarter of the steps
    stop: str = choice("steps", "steps")
    twin: bool = flag(True)

    def next_evaluation(self, step: int) -> int:
        """The first step after `step` at which a run of these resolved fields is evaluated, but for its last one."""
        if not self.evals_per_decade:
            assert self.eval_every
            return (step // self.eval_every + 1) * self.eval_every
        nth = math.floor(self.evals_per_decade * math.log10(max(step, 1)))
        later = (round(10 ** (i / self.evals_per_decade)) for i in itertools.count(nth))
        return next(found for found in later if found > step)

    def evaluates(self, step: int) -> bool:
        """Whether a run is evaluated at a step, step 0 included."""
        return step in (0, self.steps) or self.next_evaluation(step - 1) == step


@dataclass(frozen=True)
class Data:
    """`unique` = 0: fresh inputs at every step; n: a fixed set of n inputs, reused in epochs."""

    unique: int = integer(0, 0)


@dataclass(frozen=True)
class Runtime:
    """How to compute. Only batching and precision can touch the numbers."""

    batching: str = choice("auto", "auto", "map", "vmap")  # resolved: map on CPU, vmap on accelerators
    devices: int | None = integer(None, 1, matters=False)  # null: all
    precision: str = choice("float32", "float32", "tensorfloat32", "bfloat16")
    compile_cache: str | None = text(None, matters=False)  # a folder for compiled programs; null: none
    memory_gb: float | None = real(
        None, 0.0, open_low=True, matters=False
    )  # of arrays alone; null: half of what is free
    source: str | None = text(None)  # resolved: a hash of the files of your own code, see `toydepth.extension`
    debug: str | None = choice(None, "nan", "eager", "overfit", "profile", matters=False)
    tensorboard: bool = flag(False, matters=False)


@dataclass(frozen=True)
class Sweep:
    """Where runs go: `<root>/<name>/`; without a name, `<root>/adhoc/`."""

    name: str | None = name(None, matters=False)
    root: str = text("outputs", matters=False)
    on_error: str = choice("record", "record", "raise", matters=False)
    fit: str | None = text(None, matters=False)  # options of `toydepth fit`, several between semicolons; null: none
    report: bool = flag(True, matters=False)  # at the end fit what is done, draw it and write its page


RATES = {"muon": 0.02, "adam": 1e-3, "adamw": 1e-3, "sgd": 0.1}
DECAYS = {"constant": 0.0, "linear": 0.9, "cosine": 1.0, "wsd": 0.2, "inverse_sqrt": 0.0}


@dataclass(frozen=True)
class RunConfig:
    """The fields that every problem has."""

    size: ClassVar[str | None] = None  # the field that loss is a power of, where a command fits of itself

    problem: str = reference("depth", "depth", "time", "width", "tasks", whole=True)
    seed: int = integer(0, 0, 2**32 - 1)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    train: Train = field(default_factory=Train)
    data: Data = field(default_factory=Data)
    runtime: Runtime = field(default_factory=Runtime)
    sweep: Sweep = field(default_factory=Sweep)

    def unused(self) -> set[str]:
        """Dotted names of fields that this config's other choices make irrelevant."""
        optimizer = self.optimizer.name
        unused = set()
        if optimizer != "muon":
            unused.add("optimizer.adam_lr")
        if optimizer not in ("sgd", "muon"):
            unused.add("optimizer.momentum")
        if optimizer == "sgd":
            unused |= {"optimizer.b1", "optimizer.b2", "optimizer.eps"}
        if optimizer == "adam":
            unused.add("optimizer.weight_decay")
        if self.schedule.name == "constant":
            unused |= {"schedule.decay_fraction", "schedule.floor"}
        return unused

    def check(self) -> None:
        """Raises `ConfigError` for combinations that no single field shows."""
        if self.sweep.fit:
            declared(self.sweep.fit)
        if self.data.unique % self.train.batch:
            refuse("data.unique", self.data.unique, f"0, or a multiple of train.batch={self.train.batch}")
        if self.optimizer.name == "adam" and self.optimizer.weight_decay:
            refuse("optimizer.weight_decay", self.optimizer.weight_decay, "0 with optimizer=adam; adamw decays weights")
        if self.runtime.debug == "overfit" and self.data.unique != self.train.batch:
            refuse("data.unique", self.data.unique, f"train.batch={self.train.batch} with debug=overfit: its one batch")
        if self.runtime.tensorboard and not importlib.util.find_spec("tensorboardX"):
            refuse(
                "runtime.tensorboard",
                True,
                "false, unless tensorboardX is installed: pip install toydepth[tensorboard]",
            )
        if self.schedule.warmup + (self.schedule.decay_fraction or 0.0) > 1.0:
            refuse("schedule.warmup", self.schedule.warmup, "together with schedule.decay_fraction at most 1")

    def complete(self, platform: str) -> RunConfig:
        """This config with every default that depends on other fields filled in."""
        optimizer, schedule, train, runtime = self.optimizer, self.schedule, self.train, self.runtime
        muon = optimizer.name == "muon"
        lr = optimizer.lr or RATES[optimizer.name]
        return dataclasses.replace(
            self,
            optimizer=fill(
                optimizer,
                lr=lr,
                adam_lr=lr,
                weight_decay=0.01 if optimizer.name == "adamw" else 0.0,
                momentum=0.95 if muon else 0.0,
                b2=0.99 if muon else 0.999,
            ),
            schedule=fill(schedule, decay_fraction=min(DECAYS[schedule.name], 1.0 - schedule.warmup)),
            train=fill(
                train, eval_every=max(1, train.steps // 20), checkpoint_every=max(1, math.ceil(train.steps / 4))
            ),
            runtime=dataclasses.replace(
                runtime,
                batching={"cpu": "map"}.get(platform, "vmap") if runtime.batching == "auto" else runtime.batching,
                source=extension.source_hash(own_code(self)),
            ),
        )

    def rate_scale(self) -> float:
        """What the learning rates are multiplied by."""
        return 1.0

    def grows(self) -> bool:
        """Whether others may start from this run."""
        return False

    def parent(self) -> RunConfig | None:
        """The run whose final parameters this one starts from, after `Problem.grown`; None if it starts afresh."""
        return None

    def slug(self) -> list[str]:
        """The readable parts of a run's id."""
        return [word(self.problem), f"s{self.seed}"]


# --- configs as trees of fields -----------------------------------------------------------------------------


def own_code(config: RunConfig) -> dict[str, str]:
    """{dotted name: reference} of the fields that name somebody's own code."""
    flat = flatten(config)
    named = {name: flat[name] for name, spec in fields_of(type(config), "") if spec.metadata["code"]}
    return {name: value for name, value in named.items() if ":" in value or value.endswith(".py")}


def flatten(config: RunConfig) -> dict[str, Any]:
    """{dotted name: value} of every field."""
    names, values = _getter(type(config))
    return dict(zip(names, values(config), strict=True))


@functools.cache
def _getter(kind: type) -> tuple[tuple[str, ...], Callable[[RunConfig], tuple[Any, ...]]]:
    """The names of a schema's fields, and what gets all of their values."""
    names = tuple(name for name, _ in fields_of(kind, ""))
    return names, operator.attrgetter(*names)


def word(reference: str) -> str:
    """A reference as one word of a folder's name: the object's name, or the file's."""
    return re.sub(r"\W", "_", reference.rpartition(":")[2].rpartition("/")[2].removesuffix(".py"))


def fill(section: Any, **values: Any) -> Any:
    """The section with its Nones replaced by `values`."""
    missing = {name: value for name, value in values.items() if getattr(section, name) is None}
    return dataclasses.replace(section, **missing)


def flat_tree(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """{dotted name: value} of a nested mapping's leaves, below a prefix."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flat_tree(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


@functools.cache
def fields_of(kind: type, prefix: str) -> tuple[tuple[str, dataclasses.Field[Any]], ...]:
    """(dotted name, its dataclass field) of a config's fields, below a prefix."""
    specs: list[tuple[str, dataclasses.Field[Any]]] = []
    for spec in dataclasses.fields(kind):
        if "check" in spec.metadata:
            specs.append((prefix + spec.name, spec))
        else:
            section: Any = spec.default_factory
            specs += fields_of(section, f"{prefix}{spec.name}.")
    return tuple(specs)
