"""Where the batches of a chunk are drawn, and how they lie: spread over the devices, more on those that train less.

Every device draws its part by a program of its own, so that one may draw while another still trains; then the parts
are brought together. Staged batches are arrays [devices, slots, rows, ...] that every device has whole: step i of a
chunk lies, for each slot, at the device and row that `places[i]` names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from .problems import UNSCHEDULED, Stream

if TYPE_CHECKING:
    from .ensemble import Family, Wave

Tree = Any
TRAINING_IS_SLOWER = 4 / 3  # an operation of an update against one of a draw: a backward pass recomputes and waits more


def spread(steps: int, load: Sequence[float], cost: float, rows: int) -> np.ndarray:
    """Which device draws which step of a chunk: (device, row) of each, [steps, 2].

    A step goes to the device that is done with it first.

    Args:
        steps: in the chunk.
        load: what each device has to train before it can draw.
        cost: that of drawing a step's batches, in the same unit.
        rows: for how many steps a device has room; all together for at least `steps`.
    """
    drawn = [0] * len(load)
    places = []
    for _ in range(steps):
        free = [d for d in range(len(load)) if drawn[d] < rows]
        device = min(free, key=lambda d: load[d] + cost * (drawn[d] + 1))
        places.append((device, drawn[device]))
        drawn[device] += 1
    return np.array(places, np.int32)


def rows_of(family: Family, devices: int) -> int:
    """For how many steps of a chunk each device needs room."""
    most = 1
    for wave in family.waves:
        load = loads(wave, devices, family.chunk)
        places = spread(family.chunk, load, draw_cost(family.mode.stream, wave.streams()), family.chunk)
        most = max(most, 1 + int(places[:, 1].max()))
    return most


def loads(wave: Wave, devices: int, steps: int) -> list[float]:
    """What each device has to train in so many steps of a wave, in operations of a draw."""
    load = [0.0] * devices
    for lanes in wave.lanes.values():
        for device, members in enumerate(lanes):
            load[device] += steps * TRAINING_IS_SLOWER * sum(m.shape.problem.flops() for m in members if m.active)
    return load


def draw_cost(stream: Stream, streams: int) -> float:
    """That of one step of all streams."""
    return stream.flops() * max(1, streams)


def staging(stream: Stream, count_trace: Callable[[], None]) -> Callable[..., Tree]:
    """(fixed[K], keys[K, 2], first[K], count[K], period[K], training[K], offsets[rows]) -> one device's batches
    [1, K, rows, ...].

    Offsets are steps counted from the chunk's first; where one is not below a slot's count, there are zeros. Evaluation
    batches (training 0) follow no schedule.
    """

    def draw(fixed: Tree, key: Any, step: Any, period: Any, training: Any) -> Tree:
        folded = jnp.where(period > 0, step % jnp.maximum(period, 1), step)
        key = jax.random.fold_in(jax.random.wrap_key_data(key), folded)
        return stream.scheduled(fixed, key, jnp.where(training > 0, step, UNSCHEDULED))

    def stage(fixed: Tree, keys: Any, first: Any, count: Any, period: Any, training: Any, offsets: Any) -> Tree:
        count_trace()

        def slot(args: Any) -> Tree:
            fixed, key, first, count, *kind = args

            def one(offset: Any) -> Tree:
                batch = jax.eval_shape(draw, fixed, key, first, *kind)
                nothing = lambda: jax.tree.map(lambda a: jnp.zeros(a.shape, a.dtype), batch)  # noqa: E731
                return jax.lax.cond(offset < count, lambda: draw(fixed, key, first + offset, *kind), nothing)

            return jax.lax.map(one, offsets)  # one batch fills a device, and `vmap` would draw beyond `count`

        return jax.tree.map(lambda a: a[None], jax.lax.map(slot, (fixed, keys, first, count, period, training)))

    return stage


def gathering(mesh: Mesh) -> Callable[[Tree], Tree]:
    """Batches that lie one part on each device -> all of them on every device."""

    def gather(part: Tree) -> Tree:
        return jax.tree.map(lambda a: jax.lax.all_gather(a[0], "runs"), part)

    return jax.shard_map(gather, mesh=mesh, in_specs=PartitionSpec("runs"), out_specs=PartitionSpec(), check_vma=False)


def joined(parts: Sequence[Tree], sharding: Any) -> Tree:
    """Arrays [1, ...] on one device each as arrays [devices, ...] over all of them; nothing moves."""

    def join(*arrays: Any) -> Any:
        shape = (len(arrays), *arrays[0].shape[1:])
        return jax.make_array_from_single_device_arrays(shape, sharding, list(arrays))

    return jax.tree.map(join, *parts)


def offsets_of(places: np.ndarray, devices: int, rows: int) -> np.ndarray:
    """The offsets that each device draws, [devices, rows]; where it has none, one that no count exceeds."""
    offsets = np.full((devices, rows), np.iinfo(np.int32).max, np.int32)
    offsets[places[:, 0], places[:, 1]] = np.arange(len(places))
    return offsets


def batch_of(staged: Tree, places: Any, slot: Any, i: Any) -> Tree:
    """The batch of step i of a chunk."""
    device, row = places[i]
    return jax.tree.map(lambda a: a[device, slot, row], staged)
