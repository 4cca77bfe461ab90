"""The training loop: chunks of steps inside compiled programs; the host looks only between chunks.

A chunk: the teacher program stages the next batches of every stream, each ensemble's program trains its lanes on
them, then the host reads which lanes diverged, evaluates and checkpoints the members that are due, and reports.
The loop knows no problem and no folder: it reports to a `Recorder`.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import numpy as np
from jax.sharding import Mesh

from .batches import Batches, Kept, Staged, stack
from .ensemble import Family, Member, Shape, Wave
from .optimizer import factor
from .problems import role_key
from .programs import Programs

Tree = Any
DIVERGED = 1000.0  # times the evaluation at step 0
ROUNDING = 1e-6  # a step-0 evaluation below this is one of 0
SECONDS_BETWEEN_LOOKS = 2.0

updates: Counter[str] = Counter()  # made in this process, by member


@dataclass(frozen=True)
class Outcome:
    """How a member ended: `done` or `diverged`, and its last evaluation, on the whole set and on either half of it."""

    status: str
    message: str
    loss: float
    loss_sem: float
    loss_first: float
    loss_second: float
    compile_seconds: float


class Recorder(Protocol):
    """Where the engine reports to. It may write folders, draw bars, or just remember."""

    def evaluated(self, member: Member, row: dict[str, float | None]) -> None:
        """A member was evaluated; `row` is a line of its history."""
        ...

    def checkpoint(self, member: Member, state: Tree) -> None:
        """The member could be continued from `state`, which lies on the host, at its present step."""
        ...

    def finished(self, member: Member, outcome: Outcome, state: Tree) -> None:
        """A member is done or has diverged; `state` is its last one."""
        ...

    def progress(self, flops: float) -> None:
        """A chunk is done, with this much work."""
        ...

    def interrupted(self) -> bool:
        """Whether to checkpoint everything and stop."""
        ...


def prepare(family: Family, devices: Sequence[Any]) -> Programs:
    """Compiles a planned family's programs for these devices."""
    with jax.default_matmul_precision(family.mode.precision):
        return Programs(family, Mesh(np.array(devices), ("runs",)))


def train(
    programs: Programs, wave: Wave, recorder: Recorder, kept: Kept | None = None, again: Set[Any] = frozenset()
) -> bool:
    """Trains every member of a wave of the programs' family; returns False if it was interrupted.

    A member that diverges is reported and leaves its neighbours alone.

    Args:
        programs: compiled for the wave's family.
        wave: what is trained.
        recorder: where to report to.
        kept: batches that are at hand, and where to keep those that are needed again.
        again: keys of the cohorts that later waves need.
    """
    precision = jax.default_matmul_precision(programs.family.mode.precision)
    with precision, Batches(programs, wave, kept or Kept(0.0), again) as batches:
        return _Loop(programs, wave, batches, recorder).run()


class _Loop:
    """Trains the members of one wave to the end."""

    def __init__(self, programs: Programs, wave: Wave, batches: Batches, recorder: Recorder):
        self.programs, self.family, self.wave = programs, programs.family, wave
        self.batches, self.recorder = batches, recorder
        self.cohort_of = {m: i for i, cohort in enumerate(wave.cohorts) for m in cohort.members}
        self.lanes = {shape: self._flat(shape) for shape in wave.lanes}
        self.place = {m: (shape, i) for shape, lanes in self.lanes.items() for i, m in enumerate(lanes) if m}
        self.pace = 0.0  # seconds a step took in the last chunk
        self.ready: tuple[dict[tuple[int, int], int], Callable[[], Staged]] | None = None  # for the next chunk
        self.states: dict[Shape, Tree] = {}
        self.hypers: dict[Shape, Tree] = {}

    def run(self) -> bool:
        """Trains to the end; False if interrupted."""
        self._start()
        stopped = [m for m in self.wave.members if not m.active]  # between their last step and their result
        self._measure(stopped)
        self._finish(stopped)
        while active := [m for m in self.wave.members if m.active]:
            if self.recorder.interrupted():
                self._checkpoint([m for m in active if m.step > 0])
                return False
            self._chunk(active)
        return True

    def _flat(self, shape: Shape) -> list[Member | None]:
        """The ensemble's lanes in the order of its arrays; None where a device has fewer than the widest."""
        width = self.family.width[shape]
        return [m for lanes in self.wave.lanes[shape] for m in (*lanes, *[None] * (width - len(lanes)))]

    def _start(self) -> None:
        """Puts teachers, evaluation batches and states on the devices, and evaluates step 0."""
        sharding = self.programs.by_lane
        self.scored_on = self.batches.evaluation()
        for shape, lanes in self.lanes.items():
            fresh = self.programs.fresh[shape]
            states = [m and (m.state or fresh(role_key(m.config.seed, "student"), m.hyper)) for m in lanes]
            self.states[shape] = jax.device_put(stack(states), sharding)
            self.hypers[shape] = jax.device_put(stack([m and m.hyper for m in lanes]), sharding)
            for m in lanes:
                if m is not None:
                    m.state = None
        self._evaluate([m for m in self.wave.members if m.step == 0])
        for shape, lanes in self.lanes.items():
            limit = [math.inf if m is None else DIVERGED * max(m.first_loss, ROUNDING) for m in lanes]
            self.states[shape]["limit"] = jax.device_put(np.array(limit, np.float32), sharding)

    def _chunk(self, active: list[Member]) -> None:
        """The next few steps of every active member."""
        start = time.perf_counter()
        ahead, call = self.ready or self._ahead({m: m.step for m in active})
        staged = call()
        slots = {stream: slot for slot, stream in enumerate(ahead)}
        stream_of = {m: (self.cohort_of[m], m.step) for m in active}
        for shape, lanes in self.lanes.items():
            at = [stream_of.get(m) if m else None for m in lanes]
            if not any(at):
                continue
            first = [stream[1] if stream else 0 for stream in at]
            count = [ahead[stream] if stream else 0 for stream in at]
            since = [m.step if m and m.config.train.evaluates(m.step) else -1 for m in lanes]
            slot = [slots[stream] if stream else 0 for stream in at]
            arrays = self._integers(self.programs.by_lane, first, count, since, slot)
            self.states[shape] = self.programs.advance[shape](
                self.states[shape], self.hypers[shape], *arrays, staged.places, staged.batches, staged.context
            )
        # The next batches are asked for before the host waits for these steps, so that the devices never wait for it
        reached = {m: m.step + ahead[stream_of[m]] for m in active}
        later = {m: step for m, step in reached.items() if step < m.steps}
        self.ready = self._ahead(later, max(ahead.values())) if later else None
        diverged = {shape: np.asarray(state["diverged"]) for shape, state in self.states.items()}
        before = sum(m.remaining_flops() for m in active)
        for m in active:
            shape, lane = self.place[m]
            m.diverged = int(diverged[shape][lane])
            updates[m.name] += reached[m] - m.step
            m.step = m.diverged if m.diverged >= 0 else reached[m]
        self._account(active, before, time.perf_counter() - start, max(ahead.values()))
        self._evaluate([m for m in active if not m.active or m.config.train.evaluates(m.step)])
        self._checkpoint([m for m in active if m.active and m.step % (m.config.train.checkpoint_every or 1) == 0])
        self._finish([m for m in active if not m.active])

    def _ahead(
        self, steps: dict[Member, int], before: int = 0
    ) -> tuple[dict[tuple[int, int], int], Callable[[], Staged]]:
        """How many steps of every (cohort, step) stream come next, from where the members will stand; their batches,
        drawn while the `before` steps that precede them are trained."""
        ahead: dict[tuple[int, int], int] = {}
        room = self._room()
        for m, step in steps.items():
            stream = (self.cohort_of[m], step)
            until = m.boundary(step) - step
            even = math.ceil(until / math.ceil(until / room))  # unequal chunks would wait for each other's batches
            ahead[stream] = min(ahead.get(stream, room), even)
        return ahead, self.batches.ahead(ahead, [state["diverged"] for state in self.states.values()], before)

    def _room(self) -> int:
        """Steps of the next chunk: what fits, about two seconds of work so that the bar moves, and one per device."""
        wanted = SECONDS_BETWEEN_LOOKS / self.pace if self.pace else 8
        return int(min(self.family.chunk, max(self.programs.devices, wanted)))

    def _account(self, active: list[Member], before: float, seconds: float, steps: int) -> None:
        """Shares the chunk's wall time among the members by their work, and reports progress."""
        self.pace = seconds / steps
        total = sum(m.shape.problem.flops() for m in active)
        for m in active:
            m.seconds += seconds * m.shape.problem.flops() / total
        self.recorder.progress(before - sum(m.remaining_flops() for m in active if m.diverged < 0))

    def _evaluate(self, due: list[Member]) -> None:
        """Scores the members on their cohorts' evaluation batches and reports a line of history for each."""
        on = self.scored_on
        self._measure(due)
        for shape, lanes in self.lanes.items():
            here = [m for m in due if self.place[m][0] == shape]
            if not here:
                continue
            active = [int(m in here) if m else 0 for m in lanes]
            slot = [self.cohort_of[m] if m else 0 for m in lanes]
            arrays = self._integers(self.programs.by_lane, active, slot)
            state = self.states[shape]
            scores = self.programs.evaluate[shape](
                state["params"], self.hypers[shape], *arrays, on.places, on.batches, on.context
            )
            *scores, summed, count = (np.asarray(a) for a in (*scores, state["loss_sum"], state["loss_count"]))
            for m in here:
                lane = self.place[m][1]
                m.scored(*(float(score[lane]) for score in scores))
                if m.diverged < 0:
                    self.recorder.evaluated(m, row(m, summed[lane], count[lane]))

    def _measure(self, due: list[Member]) -> None:
        """Notes what the members' problems measure."""
        on = self.scored_on
        for shape, program in self.programs.measure.items():
            lanes = self.lanes.get(shape, [])
            if not any(m in due for m in lanes):
                continue
            active = [int(m in due) for m in lanes]
            slot = [self.cohort_of[m] if m else 0 for m in lanes]
            step = [m.step if m else 0 for m in lanes]
            arrays = self._integers(self.programs.by_lane, active, slot, step)
            found = program(self.states[shape], self.hypers[shape], *arrays, on.places, on.batches, on.context)
            values = {name: np.asarray(of_lanes) for name, of_lanes in found.items()}
            for m in due:
                if m.shape == shape:
                    lane = self.place[m][1]
                    m.measured = columns({name: of_lanes[lane] for name, of_lanes in values.items()})

    def _checkpoint(self, members: list[Member]) -> None:
        for m, state in self._host_states(members):
            self.recorder.checkpoint(m, state)

    def _finish(self, members: list[Member]) -> None:
        for m, state in self._host_states(members):
            outcome = ended(m, verdict(m), self.programs.compile_seconds["advance", m.shape])
            self.recorder.finished(m, outcome, state)

    def _host_states(self, members: list[Member]) -> Iterator[tuple[Member, Tree]]:
        """The members with copies of their states on the host; fetched once for each ensemble."""
        for shape in dict.fromkeys(m.shape for m in members):
            states = jax.device_get(self.states[shape])
            for m in members:
                if m.shape == shape:
                    lane = self.place[m][1]
                    yield m, jax.tree.map(lambda a, lane=lane: np.array(a[lane]), states)

    def _integers(self, sharding: Any, *arrays: Any) -> list[Any]:
        return [jax.device_put(np.asarray(a, np.int32), sharding) for a in arrays]


def ended(member: Member, message: str, compile_seconds: float = 0.0) -> Outcome:
    """How a member ended that has diverged with this message, or is done if it is empty."""
    seen = member.loss, member.loss_sem, member.loss_first, member.loss_second
    return Outcome("diverged" if message else "done", message, *seen, compile_seconds)


def row(member: Member, loss_sum: Any, loss_count: Any) -> dict[str, float | None]:
    """A line of history of a member that was just evaluated; the sums are of the train losses since the last one."""
    train_loss = float(loss_sum / loss_count) if member.step else None
    evaluated = {"step": member.step, "loss": member.loss, "loss_sem": member.loss_sem, "train_loss": train_loss}
    halves = {"loss_first": member.loss_first, "loss_second": member.loss_second}
    return evaluated | _rates(member) | {"seconds": member.seconds} | finite(halves | member.measured)


def verdict(member: Member) -> str:
    """Why a member that has ended diverged; empty if it did not."""
    if member.diverged >= 0:
        return f"diverged at step {member.diverged}: not finite, or loss above {DIVERGED:g} x {member.first_loss:.3g}"
    if not member.loss <= max(member.first_loss, ROUNDING):
        return f"diverged by step {member.step}: loss {member.loss:.3g}, above {member.first_loss:.3g} at step 0"
    return ""


def columns(measured: Mapping[str, Any]) -> dict[str, float]:
    """{quantity: a number} of what a problem measured: of a row of numbers, each by a name of its own."""
    found: dict[str, float] = {}
    for name, value in measured.items():
        numbers = np.asarray(value, np.float64)
        found |= (
            {f"{name}_{i:02}": float(n) for i, n in enumerate(numbers, 1)} if numbers.ndim else {name: float(numbers)}
        )
    return found


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Numbers as JSON has them."""
    return {name: number if math.isfinite(number) else None for name, number in numbers.items()}


def _rates(member: Member) -> dict[str, float]:
    """The rate at the member's step, and tau, the sum of the rates of all steps before."""
    hyper = {name: float(value) for name, value in member.hyper.items()}
    rates = hyper["lr"] * factor(hyper, np.arange(member.step + 1.0), np)
    return {"lr": float(rates[-1]), "tau": float(rates[:-1].sum())}
