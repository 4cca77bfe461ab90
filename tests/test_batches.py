"""Batches: who draws which, where they lie, and that none is drawn twice that could have been kept."""

import collections

import numpy as np
import pytest

from toydepth import batches, engine, ensemble
from toydepth.batches import Kept
from toydepth.config import parse, resolve
from toydepth.devices import setup
from toydepth.ensemble import Member
from toydepth.staging import offsets_of, rows_of, spread


def member(name="a", depth=2, steps=12, batch=8, **data):
    config = {
        "teacher": {"kind": "tied", "depth": 4, "width": 4},
        "student": {"depth": depth},
        "optimizer": {"name": "adam", "lr": 0.01},
        "train": {"steps": steps, "batch": batch, "eval_every": 4, "eval_batches": 2, "twin": False},
        "data": data,
    }
    return Member(name, resolve(parse(config), "cpu"))


class Losses:
    """A recorder that notes the last losses."""

    def __init__(self):
        self.last = {}

    def evaluated(self, member, row):
        self.last[member.name] = member.loss

    def checkpoint(self, member, state): ...

    def finished(self, member, outcome, state): ...

    def progress(self, flops): ...

    def interrupted(self):
        return False


@pytest.fixture(scope="module")
def devices():
    return setup(None)


def train(devices, members, kept=None, again=False):
    """The last losses of members trained as one family, and how many training batches were drawn for them."""
    (family,) = ensemble.plan(members, len(devices))
    losses, before = Losses(), batches.passes["data"]
    programs = engine.prepare(family, devices)
    for wave in family.waves:
        assert engine.train(programs, wave, losses, kept, {c.key for c in wave.cohorts} if again else set())
    return losses.last, batches.passes["data"] - before


def test_devices_that_train_less_draw_more():
    places = spread(12, [12.0, 0.0], cost=2.0, rows=12)
    assert collections.Counter(places[:, 0].tolist()) == {0: 3, 1: 9}  # 12 + 3 x 2 = 9 x 2
    even = spread(5, [15.0, 15.0], cost=1.0, rows=3)
    assert even.tolist() == [[0, 0], [1, 0], [0, 1], [1, 1], [0, 2]]


def test_a_device_draws_no_more_than_it_has_room_for():
    places = spread(6, [54.0, 0.0], cost=1.0, rows=4)
    assert collections.Counter(places[:, 0].tolist()) == {0: 2, 1: 4}
    offsets = offsets_of(places, 2, 4)
    assert sorted(offsets[offsets < 6].tolist()) == [0, 1, 2, 3, 4, 5]
    assert all(offsets[d, row] == i for i, (d, row) in enumerate(places))


def test_a_family_has_room_for_whole_chunks(devices):
    (family,) = ensemble.plan([member()], 2)  # one lane: the other device draws nearly all
    rows = rows_of(family, 2)
    assert family.chunk / 2 < rows <= family.chunk


def test_kept_batches_serve_later_waves_with_the_same_bits(devices):
    alone, drawn = train(devices, [member(depth=4)])
    assert drawn == 12
    kept = Kept(1e6)
    assert train(devices, [member(depth=2)], kept, again=True)[1] == 12
    assert train(devices, [member(depth=4)], kept) == (alone, 0)
    assert train(devices, [member(depth=4, steps=16)], kept)[1] > 0  # its last steps have not been drawn
    kept.only([])
    assert kept.room == 1e6 and train(devices, [member(depth=4)], kept) == (alone, 12)


def test_epochs_of_a_fixed_set_draw_it_once(devices):
    losses, drawn = train(devices, [member(unique=32)])
    assert drawn == 12  # no room to keep anything
    assert train(devices, [member(unique=32)], Kept(1e6)) == (losses, 4)


def test_what_does_not_fit_is_drawn_again(devices):
    kept = Kept(12 * 8 * 4 * 2 * 4 - 1)  # steps x batch x width x (inputs, states) x bytes
    train(devices, [member()], kept, again=True)
    assert not kept.expects(ensemble.plan([member()], 1)[0].waves[0].cohorts[0])
    assert train(devices, [member(depth=4)], kept)[1] == 12


def test_kept_batches_are_those_that_were_drawn():
    (family,) = ensemble.plan([member(unique=32)], 1)
    (cohort,) = family.waves[0].cohorts
    kept = Kept(1e6)
    kept.expect(cohort, {"inputs": np.zeros((8, 4), np.float32)})
    drawn = np.random.default_rng(0).normal(size=(3, 8, 4)).astype(np.float32)
    kept.add(cohort, 7, {"inputs": drawn})  # steps 7, 8, 9 of epochs of 4
    assert kept.take(cohort, 3, 4) is None
    assert (kept.take(cohort, 3, 3)["inputs"] == drawn).all()


def test_threads_are_given_arrays_of_one_device(devices, monkeypatch):
    """Two threads that ask an array for its parts at once may be given a list that is still being made."""
    awaited, part = [], batches.Batches._part

    def noted(self, d, trained, *rest):
        awaited.extend((array.devices(), {devices[d]}) for array in trained)
        return part(self, d, trained, *rest)

    monkeypatch.setattr(batches.Batches, "_part", noted)
    train(devices, [member()])
    assert awaited and all(found == expected for found, expected in awaited)
