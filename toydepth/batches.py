"""The batches of a wave: drawn one chunk ahead of their training, and kept where they are needed more than once."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from .ensemble import Cohort, Wave
from .problems import role_key
from .programs import Programs
from .staging import draw_cost, joined, loads, offsets_of, spread

Tree = Any

passes: Counter[str] = Counter()  # batches drawn in this process, by role: `data` for training, `eval`


def stack(trees: list[Tree]) -> Tree:
    """Trees stacked along a new axis; an empty place is filled with some other tree's values."""
    filler = next(tree for tree in trees if tree is not None)
    filled = [filler if tree is None else tree for tree in trees]
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *filled)


@dataclass(frozen=True)
class Staged:
    """Batches on all devices, where each step's lie (see `toydepth.staging`), and what students see of teachers."""

    places: Any
    batches: Tree
    context: Tree


class Kept:
    """Batches on the host that several waves need, or several epochs of one: drawn once.

    Args:
        room: bytes that they may take in all.
    """

    def __init__(self, room: float):
        self.room = room
        self._batches: dict[Any, Tree] = {}  # for each cohort, arrays over its steps
        self._drawn: dict[Any, np.ndarray] = {}

    def expect(self, cohort: Cohort, like: Tree) -> None:
        """Makes room for a cohort's batches, shaped like one of them, if there is enough."""
        if self.expects(cohort):
            return
        steps = cohort.period or max(member.steps for member in cohort.members)
        size = steps * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(like))
        if size <= self.room:
            self.room -= size
            self._batches[cohort.key] = jax.tree.map(lambda a: np.empty((steps, *a.shape), a.dtype), like)
            self._drawn[cohort.key] = np.zeros(steps, bool)

    def expects(self, cohort: Cohort) -> bool:
        """Whether there is room for a cohort's batches."""
        return cohort.key in self._batches

    def only(self, cohorts: Sequence[Cohort]) -> None:
        """Forgets all others."""
        keys = {cohort.key for cohort in cohorts}
        for key in self._batches.keys() - keys:
            self.room += sum(leaf.nbytes for leaf in jax.tree.leaves(self._batches.pop(key)))
            del self._drawn[key]

    def add(self, cohort: Cohort, first: int, batches: Tree) -> None:
        """Keeps an expected cohort's batches from a step on."""
        steps = self._steps(cohort, first, len(jax.tree.leaves(batches)[0]))
        if steps.max() >= len(self._drawn[cohort.key]):
            return  # an earlier wave expected fewer
        jax.tree.map(lambda kept, new: kept.__setitem__(steps, new), self._batches[cohort.key], batches)
        self._drawn[cohort.key][steps] = True

    def take(self, cohort: Cohort, first: int, count: int) -> Tree | None:
        """A cohort's next batches from a step on; None if one of them has not been kept."""
        steps, drawn = self._steps(cohort, first, count), self._drawn.get(cohort.key)
        if drawn is None or steps.max() >= len(drawn) or not drawn[steps].all():
            return None
        return jax.tree.map(lambda kept: kept[steps], self._batches[cohort.key])

    @staticmethod
    def _steps(cohort: Cohort, first: int, count: int) -> np.ndarray:
        steps = np.arange(first, first + count)
        return steps % cohort.period if cohort.period else steps


class Batches:
    """Draws the batches of one wave, until the `with` block ends.

    Args:
        programs: the compiled programs of the wave's family.
        wave: whose cohorts.
        kept: where batches lie that are needed more than once.
        again: keys of the cohorts that later waves need.
    """

    def __init__(self, programs: Programs, wave: Wave, kept: Kept, again: Set[Any]):
        self.programs, self.family, self.wave, self.kept = programs, programs.family, wave, kept
        self.fixed = [jax.device_get(programs.init(cohort.source)) for cohort in wave.cohorts]
        self.contexts = [self.family.mode.stream.context(fixed) for fixed in self.fixed]
        self._placed: tuple[tuple[int, ...], list[Tree], Tree] | None = None
        self._threads = ThreadPoolExecutor(programs.devices)
        one = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[3:], a.dtype), programs.staged)
        for cohort in wave.cohorts:
            if cohort.key in again or (
                cohort.period and any(member.steps > cohort.period for member in cohort.members)
            ):
                kept.expect(cohort, one)

    def __enter__(self) -> Batches:
        return self

    def __exit__(self, *error: object) -> None:
        self._threads.shutdown()

    def evaluation(self) -> Staged:
        """The evaluation batches of all cohorts, cohort c in slot c."""
        everyone = range(len(self.wave.cohorts))
        places, parts = self._draw("eval", {(c, 0): self.family.mode.eval_batches for c in everyone}, [])
        rows = self.programs.rows["eval"]
        batches = jax.tree.map(lambda a: a[:, :, :rows], self._gathered(parts))
        return Staged(self._on_all(places), batches, self._teachers(tuple(everyone))[1])

    def ahead(self, streams: Mapping[tuple[int, int], int], trained: Sequence[Any], steps: int) -> Callable[[], Staged]:
        """The next batches of {(cohort, step): how many}, one stream in each slot; to be called for when needed.

        Args:
            streams: what is needed.
            trained: arrays over all devices; a device draws when its parts are there, and it has nothing else to do.
            steps: that are trained until then.
        """
        context = self._teachers(tuple(c for c, _ in streams))[1]
        taken = [self.kept.take(self.wave.cohorts[c], first, n) for (c, first), n in streams.items()]
        if all(batches is not None for batches in taken):
            places, staged = self._laid_out(taken, max(streams.values()))
            return lambda: Staged(places, staged, context)
        places, parts = self._draw("data", streams, trained, steps)

        def call() -> Staged:
            batches = self._gathered(parts)
            self._keep(streams, places, batches)
            return Staged(self._on_all(places), batches, context)

        return call

    def _draw(
        self, role: str, streams: Mapping[tuple[int, int], int], trained: Sequence[Any], steps: int = 0
    ) -> tuple[np.ndarray, list[Future[Tree]]]:
        """Has each device draw its part of the batches; returns the places of steps, and the parts to come."""
        p, slots, cohorts = self.programs, self.family.slots, [c for c, _ in streams]
        passes[role] += sum(streams.values())
        seeds = [self.wave.cohorts[c].seed for c in (*cohorts, *[cohorts[0]] * (slots - len(cohorts)))]
        keys = np.stack([np.asarray(jax.random.key_data(role_key(seed, role))) for seed in seeds])
        first = [step for _, step in streams]
        period = [self.wave.cohorts[c].period if role == "data" else 0 for c in cohorts]
        training = [int(role == "data")] * len(cohorts)
        columns = ([*column, *[0] * (slots - len(column))] for column in (first, streams.values(), period, training))
        numbers = [np.array(column, np.int32) for column in columns]
        load, cost = loads(self.wave, p.devices, steps), draw_cost(self.family.mode.stream, len(streams))
        places = spread(max(streams.values()), load, cost, p.rows[role])
        offsets = offsets_of(places, p.devices, max(p.rows.values()))
        fixed = self._teachers(tuple(cohorts))[0]
        # Here and not in the threads: two that take an array apart at once may find it half taken apart (an IndexError)
        awaited = [[array.addressable_shards[d].data for array in trained] for d in range(p.devices)]
        parts = [
            self._threads.submit(self._part, d, awaited[d], fixed[d], (keys, *numbers, offsets[d]))
            for d in range(p.devices)
        ]
        return places, parts

    def _part(self, d: int, trained: Sequence[Any], fixed: Tree, numbers: tuple[np.ndarray, ...]) -> Tree:
        """One device's part, when `trained` is there. In a thread, since a program of one device may run within its
        call."""
        jax.block_until_ready(trained)
        return self.programs.stage[d](fixed, *jax.device_put(numbers, self.programs.mesh.devices.flat[d]))

    def _gathered(self, parts: list[Future[Tree]]) -> Tree:
        drawn = [part.result() for part in parts]
        if len(drawn) == 1:  # nothing to bring together, and a copy saved
            return joined(drawn, self.programs.replicated)
        return self.programs.gather(joined(drawn, self.programs.by_lane))

    def _keep(self, streams: Mapping[tuple[int, int], int], places: np.ndarray, batches: Tree) -> None:
        """Keeps what was drawn, where it is expected."""
        wanted = [
            stream for stream in enumerate(streams.items()) if self.kept.expects(self.wave.cohorts[stream[1][0][0]])
        ]
        here = jax.tree.map(lambda a: np.asarray(a.addressable_data(0)), batches) if wanted else None
        for slot, ((c, first), n) in wanted:
            device, row = places[:n].T
            drawn = jax.tree.map(operator.itemgetter((device, slot, row)), here)
            self.kept.add(self.wave.cohorts[c], first, drawn)

    def _laid_out(self, taken: list[Tree], steps: int) -> tuple[Any, Tree]:
        """Kept batches as if they had been drawn: the places of steps, and the batches on all devices."""
        p = self.programs
        places = spread(steps, [0.0] * p.devices, 1.0, p.rows["data"])

        def lay(like: Any, *streams: Any) -> np.ndarray:
            staged = np.zeros(like.shape, like.dtype)
            for slot, stream in enumerate(streams):
                device, row = places[: len(stream)].T
                staged[device, slot, row] = stream
            return staged

        return self._on_all(places), jax.device_put(jax.tree.map(lay, p.staged, *taken), p.replicated)

    def _on_all(self, places: np.ndarray) -> Any:
        """The places of steps as of those of a whole chunk, on all devices."""
        whole = np.zeros((self.family.chunk, 2), np.int32)
        whole[: len(places)] = places
        return jax.device_put(whole, self.programs.replicated)

    def _teachers(self, cohorts: tuple[int, ...]) -> tuple[list[Tree], Tree]:
        """What is fixed for each slot's cohort, once on each device, and what its students may see of it, on all."""
        if self._placed is None or self._placed[0] != cohorts:
            p, padded = self.programs, (*cohorts, *[cohorts[0]] * (self.family.slots - len(cohorts)))
            fixed = stack([self.fixed[c] for c in padded])
            context = jax.device_put(stack([self.contexts[c] for c in padded]), p.replicated)
            self._placed = (cohorts, [jax.device_put(fixed, device) for device in p.mesh.devices.flat], context)
        return self._placed[1:]
