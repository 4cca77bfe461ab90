"""Planning: which runs are trained together.

    members --(stream, evaluation, batching, precision)--> families
    family  --(problem, optimizer)-->                       ensembles: one compiled program each
    family  --(teacher, data seed)-->                       cohorts, taken a few at a time: waves

A wave trains all runs of its cohorts to the end, all ensembles side by side on shared batches. Waves are as small as
fills the devices, so that a long sweep yields finished replicates early; on accelerators, where runs are batched,
they are as large as memory allows.
"""

from __future__ import annotations

import functools
import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np

from .config import RunConfig
from .optimizer import build
from .optimizer import hyper_of as optimizer_hyper
from .problems import Problem, Stream, hyper_of, problem_of, source_of

Tree = Any
STAGED_BYTES = 128e6  # the bound on batches staged ahead, per device


@dataclass(frozen=True)
class Shape:
    """What one student program is compiled for."""

    problem: Problem
    optimizer: str


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
    shape: Shape = field(init=False)
    hyper: dict[str, np.float32] = field(init=False)

    def __post_init__(self) -> None:
        self.shape = Shape(problem_of(self.config), self.config.optimizer.name)
        numbers = hyper_of(self.config) | optimizer_hyper(self.config)
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
        assert train.eval_every and train.checkpoint_every
        later = [(step // every + 1) * every for every in (train.eval_every, train.checkpoint_every)]
        return min(self.steps, *later)

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


@dataclass
class Wave:
    """Cohorts trained together, and the lanes of each ensemble: `lanes[shape][device]` is a list of members."""

    cohorts: list[Cohort]
    lanes: dict[Shape, list[list[Member]]]

    @property
    def members(self) -> list[Member]:
        return [member for cohort in self.cohorts for member in cohort.members]

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


def plan(members: Sequence[Member], devices: int, memory: float = math.inf) -> list[Family]:
    """Members grouped into families, waves and ensembles for a number of devices and bytes of memory.

    Members that have diverged are left out. The order of waves follows the data seeds, so that the first replicate of
    every regime is finished first.
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
    cohorts = sorted(cohorts, key=lambda cohort: cohort.seed)
    waves = [_wave(part, devices) for part in _partition(mode, cohorts, devices, limit)]
    slots = max(max(wave.streams(), len(wave.cohorts)) for wave in waves)
    shapes = {shape: None for wave in waves for shape in wave.lanes}
    width = {shape: max(max(map(len, wave.lanes[shape])) for wave in waves if shape in wave.lanes) for shape in shapes}
    by_memory = int(min(STAGED_BYTES, limit / 8) / (slots * batch_bytes(mode.stream, cohorts[0].source)))
    chunk = max(min(by_memory, 128), mode.eval_batches)
    return Family(mode, waves, slots, devices * math.ceil(chunk / devices), width)


def _partition(mode: Mode, cohorts: list[Cohort], devices: int, limit: float) -> list[list[Cohort]]:
    """Cohorts dealt into waves: enough to keep all devices busy in every ensemble, never more than fits."""
    if mode.batching == "vmap":
        enough = len(cohorts)
    else:
        work: dict[Shape, list[float]] = defaultdict(list)
        for member in cohorts[0].members:
            work[member.shape].append(member.remaining_flops())
        lanes = min(int(sum(flops) / max(1.0, *flops)) or 1 for flops in work.values())  # a twin is half a lane
        enough = devices // math.gcd(devices, lanes)
    parts: list[list[Cohort]] = [[]]
    held = 0.0
    for piece in (piece for cohort in cohorts for piece in _split(cohort, mode.batching, limit)):
        memory = sum(member_bytes(member, mode.batching) for member in piece.members)
        if parts[-1] and (len(parts[-1]) >= enough or held + memory > limit):
            parts.append([])
            held = 0.0
        parts[-1].append(piece)
        held += memory
    return parts


def _split(cohort: Cohort, batching: str, limit: float) -> list[Cohort]:
    """A cohort as pieces that fit into memory; usually itself."""
    pieces, held = [replace(cohort, members=[])], 0.0
    for member in cohort.members:
        memory = member_bytes(member, batching)
        if pieces[-1].members and held + memory > limit:
            pieces.append(replace(cohort, members=[]))
            held = 0.0
        pieces[-1].members.append(member)
        held += memory
    return pieces


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


def batch_bytes(stream: Stream, source: Tree) -> int:
    """Bytes of one batch of a stream."""
    fixed = jax.eval_shape(stream.init, source)
    return tree_bytes(jax.eval_shape(stream.draw, fixed, jax.random.key(0)))


def parameters(problem: Problem) -> int:
    """The number of trained parameters."""
    return sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.init, jax.random.key(0))))


@functools.cache
def state_bytes(shape: Shape) -> int:
    """Bytes of a member's parameters and optimizer state."""
    params = jax.eval_shape(shape.problem.init, jax.random.key(0))
    hyper = defaultdict(float)  # the state's structure depends on the optimizer's name alone
    return tree_bytes(params) + tree_bytes(jax.eval_shape(build(shape.optimizer, hyper, 1.0).init, params))


def member_bytes(member: Member, batching: str) -> float:
    """What a member holds: its state, in and out; batched with others also the states kept for its backward pass."""
    kept = member.shape.problem.activation_bytes() if batching == "vmap" else 0.0
    return 2.0 * state_bytes(member.shape) + kept


def tree_bytes(tree: Tree) -> int:
    """Bytes of all leaves of a tree of arrays or shapes."""
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))
