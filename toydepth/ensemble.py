"""Planning: which runs are trained together.

    members --(stream, evaluation, batching, precision)--> families
    family  --(problem, optimizer)-->                       ensembles: one compiled program each
    family  --(teacher, data seed)-->                       cohorts, taken a few at a time: waves

A wave trains all runs of its cohorts to the end, all ensembles side by side on shared batches. Waves are as small as
fills the devices, so that a long sweep yields finished replicates early; on accelerators, where runs are batched,
they are as large as memory allows.
"""

from __future__ import annotations

import bisect
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import optax

from .config import ConfigError, RunConfig
from .memory import Memory, Sizes
from .optimizer import build
from .optimizer import hyper_of as optimizer_hyper
from .problems import Problem, Stream, hyper_of, problem_of, source_of
from .staging import rows_of

Tree = Any
STAGED_BYTES = 128e6  # the bound on batches staged ahead, per device


@dataclass(frozen=True)
class Shape:
    """What one student program is compiled for."""

    problem: Problem
    optimizer: str
    clipped: bool = False

    def transformation(self, hyper: Tree, share: Any) -> optax.GradientTransformation:
        """The optimizer at `share` of its peak rate, and what the problem has to say about its updates."""
        optimizer, change = build(self.optimizer, hyper, share), self.problem.transform(hyper, share * hyper["lr"])
        if self.clipped:
            optimizer = optax.chain(optax.clip_by_global_norm(hyper["clip"]), optimizer)
        return optimizer if change is None else optax.chain(optimizer, change)


@dataclass(frozen=True)
class Mode:
    """What all programs of a family have in common."""

    stream: Stream
    eval_batches: int
    batching: str
    precision: str


@dataclass(eq=False)  # a member is itself, whatever else looks like it
class Member:
    """A run, or a run's twin, on its way: what it is, where it stands, and what was last seen of it."""

    name: str
    config: RunConfig
    parent: Member | None = None  # whose final parameters it starts from, grown
    state: Tree | None = None  # a checkpointed state to continue from
    step: int = 0
    seconds: float = 0.0
    diverged: int = -1  # the step at which it diverged
    first_loss: float = math.nan  # the evaluation at step 0
    loss: float = math.nan  # the latest evaluation, its standard error, and the losses of either half of the set
    loss_sem: float = math.nan
    loss_first: float = math.nan
    loss_second: float = math.nan
    measured: dict[str, float] = field(default_factory=dict)  # what its problem measured at the latest evaluation
    shape: Shape = field(init=False)
    hyper: dict[str, np.float32] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = Shape(problem_of(self.config), self.config.optimizer.name, self.config.optimizer.clip is not None)
        its_own, numbers = hyper_of(self.config), optimizer_hyper(self.config)
        if taken := sorted(its_own.keys() & numbers.keys()):
            names = ", ".join(taken)
            raise ConfigError(
                f"problem={self.config.problem}: hyper_of has {names}; allowed are names that no optimizer has"
            )
        numbers |= its_own
        self.hyper = {name: np.float32(value) for name, value in numbers.items()}

    @property
    def steps(self) -> int:
        return self.config.train.steps

    @property
    def active(self) -> bool:
        return self.step < self.steps and self.diverged < 0

    def scored(self, loss: float, loss_sem: float, loss_first: float, loss_second: float) -> None:
        """Notes an evaluation at the member's step."""
        self.loss, self.loss_sem, self.loss_first, self.loss_second = loss, loss_sem, loss_first, loss_second
        if self.step == 0:
            self.first_loss = loss

    def boundary(self, step: int) -> int:
        """The first step after `step` at which the host must look: an evaluation, a checkpoint or the end."""
        train = self.config.train
        assert train.checkpoint_every
        return min(
            self.steps, train.next_evaluation(step), (step // train.checkpoint_every + 1) * train.checkpoint_every
        )

    @property
    def generation(self) -> int:
        """How many runs it has grown from, one after the other."""
        return self.parent.generation + 1 if self.parent else 0

    @property
    def earlier_flops(self) -> float:
        """The work of all runs that it has grown from."""
        parent = self.parent
        return parent.earlier_flops + parent.steps * parent.shape.problem.flops() if parent else 0.0

    def remaining_flops(self) -> float:
        return (self.steps - self.step) * self.shape.problem.flops()


@dataclass
class Cohort:
    """Members that see the same batches."""

    source: Tree
    seed: int
    period: int  # batches before the data repeat; 0: never
    members: list[Member] = field(default_factory=list)

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for cohorts that see the same batches."""
        one = self.members[0]
        leaves = (np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(self.source))
        return (one.shape.problem.stream, one.config.runtime.precision, self.seed, self.period, *leaves)


@dataclass
class Wave:
    """Cohorts trained together, and the lanes of each ensemble: `lanes[shape][device]` is a list of members."""

    cohorts: list[Cohort]
    lanes: dict[Shape, list[list[Member]]]

    @property
    def members(self) -> list[Member]:
        return [member for cohort in self.cohorts for member in cohort.members]

    def without(self, members: Sequence[Member]) -> Wave:
        """This wave without some members, and without cohorts of which none is left."""

        def kept(group: list[Member]) -> list[Member]:
            return [member for member in group if member not in members]

        cohorts = [replace(cohort, members=kept(cohort.members)) for cohort in self.cohorts]
        lanes = {shape: [kept(lane) for lane in on_devices] for shape, on_devices in self.lanes.items()}
        return Wave([cohort for cohort in cohorts if cohort.members], lanes)

    def streams(self) -> int:
        """Distinct (cohort, step) pairs; never more later than at the start."""
        return sum(len({m.step for m in cohort.members if m.active}) for cohort in self.cohorts)


@dataclass
class Family:
    """Waves that share their programs, with the sizes those programs are compiled for."""

    mode: Mode
    waves: list[Wave]
    slots: int  # cohorts or streams staged side by side
    chunk: int  # steps staged ahead, a multiple of the devices
    width: dict[Shape, int]  # lanes per device
    memory: Memory = field(init=False)  # of its largest wave
    note: str = ""  # a line on why there are more waves than there would be with more memory


def plan(members: Sequence[Member], devices: int, memory: float = math.inf) -> list[Family]:
    """Members grouped into families, waves and ensembles for a number of devices and bytes of memory.

    Members that have diverged are left out. The order of waves follows the data seeds, so that the first replicate of
    every regime is finished first.

    Raises:
        ConfigError: a member does not fit into the memory even alone with its teacher.
    """
    grouped: dict[Mode, dict[Any, Cohort]] = defaultdict(dict)
    for member in members:
        if member.diverged >= 0:
            continue
        config = member.config
        mode = Mode(
            member.shape.problem.stream, config.train.eval_batches, config.runtime.batching, config.runtime.precision
        )
        source, period = source_of(config), config.data.unique // config.train.batch
        key = (*(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(source)), config.seed, period)
        grouped[mode].setdefault(key, Cohort(source, config.seed, period)).members.append(member)
    return [_family(mode, list(cohorts.values()), devices, memory) for mode, cohorts in grouped.items()]


def _family(mode: Mode, cohorts: list[Cohort], devices: int, limit: float) -> Family:
    """The family of cohorts, in as many waves as the memory asks for."""
    cohorts = sorted(cohorts, key=lambda cohort: cohort.seed)
    members = [member for cohort in cohorts for member in cohort.members]
    sizes = Sizes.of(mode, cohorts[0].source, members)
    roomy = _sized(sizes, _waves(sizes, cohorts, devices, math.inf), devices, math.inf)
    if roomy.memory.arrays <= limit:
        return roomy
    for member in {member.shape: member for member in members}.values():
        _check_alone(sizes, member, devices, limit)
    family, target = roomy, limit
    # Waves share the sizes of their programs, so that some may grow by the others
    while family.memory.arrays > limit and any(len(wave.members) > 1 for wave in family.waves):
        family = _sized(sizes, _waves(sizes, cohorts, devices, target), devices, limit)
        target *= 0.8
    if len(family.waves) > len(roomy.waves):
        family.note = (
            f"{len(members)} runs and twins are trained in {len(family.waves)} parts instead of {len(roomy.waves)}: "
            f"they would need {gigabytes(roomy.memory.arrays)}, and {_allowed(members[0], limit)}"
        )
    return family


def _sized(sizes: Sizes, waves: list[Wave], devices: int, limit: float) -> Family:
    """A family of waves whose programs serve the largest of them; chunks are as long as memory is left for."""
    slots = max(max(wave.streams(), len(wave.cohorts)) for wave in waves)
    shapes = {shape: None for wave in waves for shape in wave.lanes}
    width = {shape: max(max(map(len, wave.lanes[shape])) for wave in waves if shape in wave.lanes) for shape in shapes}
    wanted, scored = min(STAGED_BYTES / (slots * sizes.batch), 128), sizes.mode.eval_batches
    longest, shortest = (devices * math.ceil(max(n, scored) / devices) for n in (wanted, min(wanted, 8)))
    family = Family(sizes.mode, waves, slots, longest, width)
    while True:
        rows = rows_of(family, devices)
        held = [
            sizes.memory({shape: width[shape] for shape in wave.lanes}, len(wave.cohorts), slots, rows, devices)
            for wave in waves
        ]
        family.memory = max(held, key=lambda memory: memory.arrays)
        if family.memory.arrays <= limit or family.chunk <= shortest:
            return family
        family.chunk = max(devices * (family.chunk // (2 * devices)), shortest)


def _check_alone(sizes: Sizes, member: Member, devices: int, limit: float) -> None:
    """Raises `ConfigError` unless a run fits into the memory alone."""
    wave = _wave([Cohort({}, 0, 0, [member])], devices)
    need = _sized(sizes, [wave], devices, limit).memory
    if need.arrays > limit:
        label = member.shape.problem.label()
        raise ConfigError(
            f"{_allowed(member, limit)}; a run of {label} needs {gigabytes(need.arrays * 1.01)} even alone with its "
            f"teacher; allowed is that or more, or a smaller train.batch, train.eval_batches or network"
        )


def _allowed(member: Member, limit: float) -> str:
    """The limit in words."""
    given = member.config.runtime.memory_gb
    return (
        f"runtime.memory_gb={given:g}" if given else f"runtime.memory_gb is {gigabytes(limit)} (half of what is free)"
    )


def _waves(sizes: Sizes, cohorts: list[Cohort], devices: int, limit: float) -> list[Wave]:
    """Cohorts dealt into waves: enough to keep all devices busy in every ensemble, never more than fits.

    What does not fit even alone is a wave of its own.
    """
    if sizes.mode.batching == "vmap":
        enough = len(cohorts)
    else:
        work: dict[Shape, list[float]] = defaultdict(list)
        for member in cohorts[0].members:
            work[member.shape].append(member.remaining_flops())
        lanes = min(int(sum(flops) / max(1.0, *flops)) or 1 for flops in work.values())  # a twin is half a lane
        enough = devices // math.gcd(devices, lanes)

    def fits(cohorts: list[Cohort]) -> bool:
        wave = _wave(cohorts, devices)
        return _sized(sizes, [wave], devices, limit).memory.arrays <= limit

    waves, rest = [], cohorts
    while rest:
        part, rest = _next(rest, enough, fits)
        waves.append(_wave(part, devices))
    return waves


def _next(
    cohorts: list[Cohort], enough: int, fits: Callable[[list[Cohort]], bool]
) -> tuple[list[Cohort], list[Cohort]]:
    """The next wave's cohorts, or as many members of the first one as fit, and what is left for later waves."""
    if whole := _most(cohorts[:enough], fits):
        return cohorts[:whole], cohorts[whole:]
    first = cohorts[0]
    n = max(1, _most(first.members, lambda members: fits([replace(first, members=members)])))
    left = [replace(first, members=first.members[n:])] if n < len(first.members) else []
    return [replace(first, members=first.members[:n])], [*left, *cohorts[1:]]


def _most(items: list[Any], fits: Callable[[list[Any]], bool]) -> int:
    """How many of the first items fit together."""
    return bisect.bisect_left(range(1, len(items) + 1), True, key=lambda n: not fits(items[:n]))


def _wave(cohorts: list[Cohort], devices: int) -> Wave:
    """Lanes dealt to devices: longest first, each to the device with the least work so far."""
    by_shape: dict[Shape, list[Member]] = defaultdict(list)
    for cohort in cohorts:
        for member in cohort.members:
            by_shape[member.shape].append(member)
    load = [0.0] * devices
    lanes: dict[Shape, list[list[Member]]] = {}
    for shape in sorted(by_shape, key=lambda shape: -shape.problem.flops()):
        lanes[shape] = [[] for _ in range(devices)]
        for member in sorted(by_shape[shape], key=lambda member: -member.remaining_flops()):
            device = min(range(devices), key=lambda d: (load[d], len(lanes[shape][d]), d))
            lanes[shape][device].append(member)
            load[device] += member.remaining_flops()
    return Wave(cohorts, lanes)


def parameters(problem: Problem) -> int:
    """The number of trained parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.init, jax.random.key(0))))


def gigabytes(size: float) -> str:
    """Bytes in words."""
    return f"{size / 1e9:.3g} GB"
