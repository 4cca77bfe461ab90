"""What a run is: frozen dataclasses, their defaults, and the one place where values are checked.

A config enters as a plain mapping (composed by Hydra or written in Python), becomes a frozen `RunConfig` through
`parse`, and is completed by `resolve`. Below that border nothing reads a dict or invents a default.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.util
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from . import extension
from .fields import ConfigError, choice, flag, integer, name, real, reference, text

# --- the sections -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Teacher:
    """The fixed residual network that makes targets (arXiv 2602.05970, app. C)."""

    kind: str = reference("independent", "independent", "tied", "blocks", "mixed")
    depth: int = integer(64, 1, 100_000)
    width: int = integer(16, 1, 65_536)
    hidden: int | None = integer(None, 1, 1_000_000)  # resolved: 4 x width
    seed: int | None = integer(None, 0, 2**32 - 1)  # resolved: the run's seed
    block_size: int = integer(8, 1)
    rho: float = real(0.5, 0.0, 1.0)
    scale: float = real(1.0, 0.0)
    head_init: str = choice("linear", "linear", "normal")


@dataclass(frozen=True)
class Student:
    """The trained residual network.

    `init=grow`: a student of depth `grow_from` is trained from zero, then every layer is split into two half steps and
    training goes on at twice the depth and `grow_rate` times the rate, until `depth` is reached; `train.steps` are
    those of each stage.
    """

    depth: int = integer(8, 1, 100_000)
    hidden: int | None = integer(None, 1, 1_000_000)  # resolved: the teacher's
    scheme: str = choice("euler", "euler", "midpoint", "rk4")
    init: str = choice("zero", "zero", "grow")
    grow_from: int = integer(2, 1, 100_000)
    grow_rate: float = real(0.3, 0.0, open_low=True)
    block: str = reference("published", "published")


@dataclass(frozen=True)
class Target:
    """What the student matches: the teacher's final state (mse) or its softmax at a temperature (kl)."""

    loss: str = choice("mse", "kl", "mse")
    temperature: float = real(1.0, 0.0, open_low=True)
    head: str = choice("learned", "learned", "teacher")
    student_temperature: str | None = choice(None, "one", "teacher")  # resolved: `teacher` iff the head is given
    vocab: int = integer(128, 2, 10_000_000)


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


@dataclass(frozen=True)
class Schedule:
    """The rate's course: warm-up, flat, then a decay to `floor`; all three as fractions."""

    name: str = choice("linear", "constant", "linear", "cosine", "wsd")
    decay_fraction: float | None = real(None, 0.0, 1.0)  # resolved: by the schedule's name, see `DECAYS`
    floor: float = real(0.0, 0.0, 1.0)
    warmup: float = real(0.0, 0.0, 1.0)


@dataclass(frozen=True)
class Train:
    """The budget. A twin is the same run at half the steps, with its own complete decay."""

    steps: int = integer(8000, 1)
    batch: int = integer(512, 1, 10_000_000)
    eval_every: int | None = integer(None, 1, matters=False)  # resolved: a twentieth of the steps
    eval_batches: int = integer(10, 1, 100_000)
    checkpoint_every: int | None = integer(None, 1, matters=False)  # resolved: a quarter of the steps
    stop: str = choice("steps", "steps")
    twin: bool = flag(True)


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
    memory_gb: float | None = real(None, 0.0, open_low=True, matters=False)  # null: half of what is free
    source: str | None = text(None)  # resolved: a hash of the files of your own code, see `toydepth.extension`
    debug: str | None = choice(None, "nan", "eager", "overfit", "profile", matters=False)
    tensorboard: bool = flag(False, matters=False)


@dataclass(frozen=True)
class Sweep:
    """Where runs go: `<root>/<name>/`; without a name, `<root>/adhoc/`."""

    name: str | None = name(None, matters=False)
    root: str = text("outputs", matters=False)
    on_error: str = choice("record", "record", "raise", matters=False)


RATES = {"muon": 0.02, "adam": 1e-3, "adamw": 1e-3, "sgd": 0.1}
DECAYS = {"constant": 0.0, "linear": 0.9, "cosine": 1.0, "wsd": 0.2}


@dataclass(frozen=True)
class RunConfig:
    """The fields that every problem has."""

    size: ClassVar[str | None] = None  # the field that loss is a power of, where a command fits of itself

    problem: str = reference("depth", "depth", whole=True)
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
            optimizer=_fill(
                optimizer,
                lr=lr,
                adam_lr=lr,
                weight_decay=0.01 if optimizer.name == "adamw" else 0.0,
                momentum=0.95 if muon else 0.0,
                b2=0.99 if muon else 0.999,
            ),
            schedule=_fill(schedule, decay_fraction=min(DECAYS[schedule.name], 1.0 - schedule.warmup)),
            train=_fill(
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
        return [_word(self.problem), f"s{self.seed}"]


@dataclass(frozen=True)
class DepthConfig(RunConfig):
    """`problem=depth`: a student imitates a deep residual teacher (arXiv 2602.05970, sec. 4 and app. C)."""

    size: ClassVar[str | None] = "student.depth"

    teacher: Teacher = field(default_factory=Teacher)
    student: Student = field(default_factory=Student)
    target: Target = field(default_factory=Target)

    def unused(self) -> set[str]:
        unused = super().unused()
        if self.teacher.kind != "blocks":
            unused.add("teacher.block_size")
        if self.teacher.kind != "mixed":
            unused.add("teacher.rho")
        if ":" in self.teacher.kind:
            unused.add("teacher.scale")
        if self.student.init != "grow":
            unused |= {"student.grow_from", "student.grow_rate"}
        if self.target.loss == "mse":
            unused |= {"teacher.head_init"} | {
                f"target.{name}" for name in ("temperature", "head", "student_temperature", "vocab")
            }
        return unused

    def check(self) -> None:
        super().check()
        student = self.student
        if student.init == "grow":
            reached = [student.grow_from * 2**doublings for doublings in range(18)]
            if student.depth not in reached:
                near = ", ".join(str(depth) for depth in reached if depth <= max(4 * student.depth, 8 * reached[0]))
                refuse(
                    "student.depth", student.depth, f"{near} with student.init=grow and student.grow_from={reached[0]}"
                )
            if student.block != "published":
                refuse("student.init", "grow", "zero with a block of your own, which toydepth cannot split")
        if self.target.loss == "mse" and self.target.head == "teacher":
            refuse("target.head", "teacher", "learned with target.loss=mse (states have no head), or target.loss=kl")

    def complete(self, platform: str) -> DepthConfig:
        config = super().complete(platform)
        assert isinstance(config, DepthConfig)
        teacher = _fill(config.teacher, hidden=4 * config.teacher.width, seed=config.seed)
        temperature = "teacher" if config.target.head == "teacher" else "one"
        return dataclasses.replace(
            config,
            teacher=teacher,
            student=_fill(config.student, hidden=teacher.hidden),
            target=_fill(config.target, student_temperature=temperature),
        )

    def rate_scale(self) -> float:
        grown = self.student.grow_rate if self.parent() else 1.0
        return grown * self.student.depth**-self.optimizer.depth_power

    def grows(self) -> bool:
        return self.student.init == "grow"

    def parent(self) -> DepthConfig | None:
        student = self.student
        if student.init != "grow" or student.depth == student.grow_from:
            return None
        return dataclasses.replace(self, student=dataclasses.replace(student, depth=student.depth // 2))

    def slug(self) -> list[str]:
        loss = [self.target.loss] if self.target.loss == "mse" else ["kl", f"T{self.target.temperature:.4g}"]
        shape = [] if self.student.scheme == "euler" else [self.student.scheme]
        shape += [] if self.student.init == "zero" else [self.student.init]
        shape += [] if self.student.block == "published" else [_word(self.student.block)]
        return [_word(self.teacher.kind), *shape, f"d{self.student.depth}", *loss, f"s{self.seed}"]


SCHEMAS: dict[str, type[RunConfig]] = {"depth": DepthConfig}


def schema(problem: str) -> type[RunConfig]:
    """The config of a problem: a built-in one, or the `Config` of somebody's own `problem=file.py`.

    Raises:
        ConfigError: there is no such problem, or its file has no `Config` that extends `RunConfig`.
    """
    if problem in SCHEMAS:
        return SCHEMAS[problem]
    if not isinstance(problem, str) or not problem.endswith(".py"):
        refuse("problem", problem, f"{', '.join(SCHEMAS)}, or your own as file.py")
    found = extension.load("problem", f"{problem}:Config")
    if not (isinstance(found, type) and issubclass(found, RunConfig)):
        refuse("problem", problem, "a file whose Config is a dataclass that extends toydepth.RunConfig")
    return found


# --- the border ---------------------------------------------------------------------------------------------


def refuse(name: str, value: Any, allowed: str) -> None:
    """Raises the one-line error of a bad value."""
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
    raise ConfigError(f"{name}={shown}: allowed is {allowed}")


def parse(tree: Mapping[str, Any]) -> RunConfig:
    """A checked `RunConfig` from a nested mapping; raises `ConfigError` for an unknown key or a bad value."""
    kind = schema(tree.get("problem", "depth"))
    config = _build(kind, tree, "", kind)
    config.check()
    return config


def resolve(config: RunConfig, platform: str = "cpu") -> RunConfig:
    """The config with every dependent default filled in. `platform` is JAX's name of the backend."""
    return config.complete(platform)


def own_code(config: RunConfig) -> dict[str, str]:
    """{dotted name: reference} of the fields that name somebody's own code."""
    flat = flatten(config)
    named = {name: flat[name] for name, spec in _specs(type(config), "") if spec.metadata["code"]}
    return {name: value for name, value in named.items() if ":" in value or value.endswith(".py")}


def replaced(config: RunConfig, values: Mapping[str, Any]) -> RunConfig:
    """The config with other values of some fields, given as {dotted name: value}; nothing is checked."""
    for dotted, value in values.items():
        section, _, last = dotted.rpartition(".")
        changed = dataclasses.replace(getattr(config, section), **{last: value}) if section else value
        config = dataclasses.replace(config, **{section or last: changed})
    return config


def flatten(config: RunConfig) -> dict[str, Any]:
    """{dotted name: value} of every field."""
    return _flatten(dataclasses.asdict(config), "")


def matters(config: RunConfig) -> dict[str, Any]:
    """{dotted name: value} of the fields that decide a resolved run's numbers; the ones it does not use are None."""
    unused = config.unused()
    names = [name for name, spec in _specs(type(config), "") if spec.metadata["matters"]]
    flat = flatten(config)
    return {name: None if name in unused else flat[name] for name in names}


def recorded(tree: Mapping[str, Any]) -> dict[str, Any]:
    """What `matters` gives, from a run's config.json alone: somebody's own problem is not loaded for it.

    Raises:
        ConfigError: the tree is another version's.
    """
    kind = SCHEMAS.get(tree.get("problem", "depth"), RunConfig)
    own = {} if kind in SCHEMAS.values() else {name: tree[name] for name in tree.keys() - kind.__dataclass_fields__}
    known = {name: value for name, value in tree.items() if name not in own}
    return matters(_build(kind, known, "", kind)) | _flatten(own, "")


def run_id(config: RunConfig) -> str:
    """A readable slug and a hash of the fields that matter to the numbers, of a resolved config."""
    used = {name: value for name, value in matters(config).items() if value is not None}
    text = json.dumps(used, sort_keys=True)
    return "-".join([*config.slug(), hashlib.sha256(text.encode()).hexdigest()[:8]])


def has_twin(config: RunConfig) -> bool:
    """Whether a run is compared with one at half its steps."""
    return config.train.twin and config.train.steps >= 2


def twin(config: RunConfig) -> RunConfig:
    """The resolved config's half-budget twin: half the steps, evaluated at as many points."""
    train = config.train
    half = dataclasses.replace(
        train, steps=max(1, train.steps // 2), eval_every=max(1, (train.eval_every or 1) // 2), twin=False
    )
    return dataclasses.replace(config, train=half)


def defaults(problem: str = "depth") -> dict[str, Any]:
    """The defaults of a problem as a nested dict: what Hydra composes upon."""
    return dataclasses.asdict(schema(problem)()) | {"problem": problem}


def allowed(problem: str = "depth") -> dict[str, str]:
    """{dotted name: what is allowed} for help texts and error messages."""
    return {name: spec.metadata["allowed"] for name, spec in _specs(schema(problem), "")}


def _build(kind: type, tree: Mapping[str, Any], prefix: str, root: type) -> Any:
    specs = {spec.name: spec for spec in dataclasses.fields(kind)}
    for key in tree:
        if key not in specs:
            raise ConfigError(f"{prefix}{key}: no such field; {_hint(prefix + str(key), root, list(specs))}")
    values = {}
    for key, value in tree.items():
        spec = specs[key]
        if "check" not in spec.metadata:
            section: Any = spec.default_factory  # a section's factory is its class
            if not isinstance(value, Mapping):
                refuse(prefix + key, value, f"a section with {', '.join(s.name for s in dataclasses.fields(section))}")
            values[key] = _build(section, value, f"{prefix}{key}.", root)
            continue
        try:
            values[key] = spec.metadata["check"](value)
        except (ValueError, TypeError):
            refuse(prefix + key, value, spec.metadata["allowed"])
    return kind(**values)


def _hint(name: str, root: type, siblings: list[str]) -> str:
    """What an unknown field may have been meant to be: the same word in another section, or a similar one."""
    names = [known for known, _ in _specs(root, "")]
    sections = sorted({known.partition(".")[0] for known in names})
    word = name.rpartition(".")[2]
    close = [known for known in names if known.rpartition(".")[2] == word]
    close = close or difflib.get_close_matches(name, names + sections, n=1)
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(siblings)}"


def _word(reference: str) -> str:
    """A reference as one word of a folder's name: the object's name, or the file's."""
    return re.sub(r"\W", "_", reference.rpartition(":")[2].rpartition("/")[2].removesuffix(".py"))


def _fill(section: Any, **values: Any) -> Any:
    """The section with its Nones replaced by `values`."""
    missing = {name: value for name, value in values.items() if getattr(section, name) is None}
    return dataclasses.replace(section, **missing)


def _flatten(tree: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _specs(kind: type, prefix: str) -> list[tuple[str, dataclasses.Field[Any]]]:
    specs: list[tuple[str, dataclasses.Field[Any]]] = []
    for spec in dataclasses.fields(kind):
        if "check" in spec.metadata:
            specs.append((prefix + spec.name, spec))
        else:
            section: Any = spec.default_factory
            specs += _specs(section, f"{prefix}{spec.name}.")
    return specs
