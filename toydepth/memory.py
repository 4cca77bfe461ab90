"""What training holds in memory: an estimate from shapes alone, made before anything is compiled.

The terms are those of XLA's programs (`compiled.memory_analysis()` on CPU, both batchings, euler to rk4, both losses)
and of the loop around them. In `map` mode the sum is within 25 % of what a process holds at its peak above one that
has imported JAX and set up its devices (tests/test_size.py measures it).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from math import ceil, prod
from typing import TYPE_CHECKING, Any

import jax

if TYPE_CHECKING:
    from .ensemble import Member, Mode, Shape

Tree = Any
WAITING_BYTES = 64e6  # the bound on states that wait to be written
LIBRARIES_BYTES = 375e6  # what training and the report at its end import, and the first compilation
SPREAD_BYTES = 135e6  # programs for several devices instead of one
DEVICE_BYTES = 16e6  # the programs of every further device
PROGRAM_BYTES = 23e6  # the programs of every further shape


@dataclass(frozen=True)
class Memory:
    """Bytes held at once while a wave trains, by what they are for.

    Attributes:
        states: parameters and optimizer states of all lanes, on their devices.
        working: what the running programs need: activations, gradients, new states, predictions.
        batches: the staged batches of a chunk on each device, the parts of the next one, and the evaluation batches.
        teachers: what is fixed behind the batches, on the host and on each device.
        host: copies of states, on their way to the devices or to a file.
        programs: libraries and compiled programs, which no limit bounds.
    """

    states: float
    working: float
    batches: float
    teachers: float
    host: float
    programs: float

    @property
    def arrays(self) -> float:
        """All but libraries and programs: what `runtime.memory_gb` bounds."""
        return self.total - self.programs

    @property
    def total(self) -> float:
        return sum(getattr(self, part.name) for part in fields(self))

    def words(self) -> str:
        """The parts in MB."""
        return ", ".join(f"{part.name} {getattr(self, part.name) / 1e6:.3g}" for part in fields(self))


@dataclass(frozen=True)
class Lane:
    """Bytes of one run of a shape: its parameters, its state (these and the optimizer's), what a backward pass keeps,
    and its evaluation batches with predictions and targets."""

    params: float
    state: float
    activations: float
    scored: float


@dataclass(frozen=True)
class Sizes:
    """What the memory of a family's waves is made of, whatever their lanes."""

    mode: Mode
    batch: float
    fixed: float
    lanes: dict[Shape, Lane]

    @classmethod
    def of(cls, mode: Mode, source: Tree, members: Iterable[Member]) -> Sizes:
        """The sizes of one batch, of what is fixed behind it, and of a lane of every shape among the members."""
        fixed = jax.eval_shape(mode.stream.init, source)
        batch = jax.eval_shape(mode.stream.draw, fixed, jax.random.key(0))
        context = jax.eval_shape(mode.stream.context, fixed)
        shapes = {member.shape: member.hyper for member in members}
        lanes = {shape: _lane(shape, mode, batch, context, hyper) for shape, hyper in shapes.items()}
        return cls(mode, tree_bytes(batch), tree_bytes(fixed), lanes)

    def memory(self, width: Mapping[Shape, int], cohorts: int, slots: int, rows: int, devices: int) -> Memory:
        """What a wave holds at its peak.

        Args:
            width: lanes of each shape on each device.
            cohorts: cohorts of the wave.
            slots: cohorts or streams staged side by side.
            rows: steps for which each device has room in a chunk.
            devices: how many there are.
        """
        states = devices * sum(n * self.lanes[shape].state for shape, n in width.items())
        copies = states if devices == 1 else 2 * states  # those of several devices are put together on the host
        largest = max(self.lanes[shape].state for shape in width)
        return Memory(
            states=states,
            working=devices * max(self._working(self.lanes[shape], n) for shape, n in width.items()),
            batches=devices * slots * self._staged(rows, devices) * self.batch,
            teachers=self.fixed * (cohorts + slots * (devices + 1)),
            host=copies + min(states, max(largest, WAITING_BYTES)) + 1.5 * largest,
            programs=LIBRARIES_BYTES + _spread(devices) + PROGRAM_BYTES * len(width),
        )

    def _staged(self, rows: int, devices: int) -> int:
        """Batches of one slot for each device: all devices' parts of a chunk, its own part of this chunk and of the
        next one, and the evaluation batches."""
        scored = ceil(self.mode.eval_batches / devices)
        return (devices + 2) * max(rows, scored) + devices * scored

    def _working(self, lane: Lane, width: int) -> float:
        """On one device. Looped, one lane runs, and the new states of all lie beside the old ones."""
        if self.mode.batching == "vmap":
            return width * max(lane.activations + 3 * lane.params, lane.scored + lane.params)
        copies = (width + 1) * lane.state if width > 1 else 0.0
        return lane.params + max(lane.activations + copies, lane.scored)


def _spread(devices: int) -> float:
    """Bytes of the programs that one device does without."""
    return SPREAD_BYTES + DEVICE_BYTES * (devices - 1) if devices > 1 else 0.0


def tree_bytes(tree: Tree) -> int:
    """Bytes of all leaves of a tree of arrays or shapes."""
    return sum(prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _lane(shape: Shape, mode: Mode, batch: Tree, context: Tree, hyper: Tree) -> Lane:
    problem = shape.problem
    params = jax.eval_shape(problem.init, jax.random.key(0))
    # The structure of an optimizer's state depends on the optimizer's name alone
    moments = jax.eval_shape(shape.transformation(defaultdict(float), 1.0).init, params)
    prediction = jax.eval_shape(problem.predict, params, batch, context, hyper)
    target = jax.eval_shape(problem.target, batch, context, hyper)
    return Lane(
        params=tree_bytes(params),
        state=tree_bytes((params, moments)),
        activations=problem.activation_bytes(),
        scored=mode.eval_batches * tree_bytes((batch, prediction, target)),
    )
