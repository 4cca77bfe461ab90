"""The engine: one compile per shape group, shared teachers, equality alone and in company, divergence, resume."""

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable

import jax
import numpy as np
import pytest

from toydepth import batches, engine, ensemble, programs
from toydepth.config import twin
from toydepth.ensemble import Member
from toydepth.problems.depth import TeacherStream


class Memory:
    """A recorder that remembers."""

    def __init__(self, stop: Callable[[], bool] = lambda: False):
        self.rows, self.states, self.outcomes, self.finals, self.last, self.scores = {}, {}, {}, {}, {}, {}
        self.interrupted = stop

    def evaluated(self, member, row):
        self.rows.setdefault(member.name, []).append({k: v for k, v in row.items() if k != "seconds"})

    def checkpoint(self, member, state):
        self.states[member.name] = (member.step, state)

    def finished(self, member, outcome, state):
        self.outcomes[member.name], self.finals[member.name] = outcome, state["params"]
        self.last[member.name], self.scores[member.name] = state, (outcome.loss, outcome.loss_sem)

    def progress(self, flops):
        pass


def train(members, devices=None, **options):
    """Trains members named by the caller; returns the recorder."""
    memory = Memory(**options)
    devices = devices or jax.local_devices()
    for family in ensemble.plan(members, len(devices)):
        prepared = engine.prepare(family, devices)
        if not all(engine.train(prepared, wave, memory) for wave in family.waves):
            break
    return memory


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def grid(tiny, **fields):
    """Members over two depths, two kinds and two seeds, each with its twin."""
    members = []
    for depth in (1, 3):
        for kind in ("tied", "independent"):
            for seed in (0, 1):
                config = tiny(student__depth=depth, teacher__kind=kind, seed=seed, **fields)
                members += [
                    Member(f"{kind} {depth} {seed}", config),
                    Member(f"{kind} {depth} {seed} twin", twin(config)),
                ]
    return members


@pytest.fixture
def counted():
    """How often programs are traced and batches drawn while a test runs."""
    before = (Counter(programs.traces), Counter(batches.passes))
    return lambda: (programs.traces - before[0], batches.passes - before[1])


@pytest.mark.parametrize("batching", ["map", "vmap"])
def test_a_cohorts_teacher_runs_once_per_step_on_whatever_device(tiny, monkeypatch, batching):
    drawn = Counter()
    draw = TeacherStream.draw

    def counted_draw(self, fixed, key):
        jax.debug.callback(lambda data: drawn.update([data.tobytes()]), jax.random.key_data(key))
        return draw(self, fixed, key)

    monkeypatch.setattr(TeacherStream, "draw", counted_draw)
    members = [
        Member(f"{lr} {loss}", tiny(optimizer__lr=lr, target__loss=loss, runtime__batching=batching))
        for lr in (0.01, 0.02)
        for loss in ("mse", "kl")
    ]
    train(members)
    jax.effects_barrier()
    assert len(drawn) == 40 + 3  # steps and evaluation batches
    assert set(drawn.values()) == {1}


def test_other_shapes_are_traced_again(tiny, counted):
    train([Member("a", tiny()), Member("b", tiny(train__batch=8))])
    traces, _ = counted()
    assert traces == {"student": 2, "evaluation": 2, "teacher": 2}


@pytest.mark.parametrize(("loss", "optimizer"), [("mse", "muon"), ("kl", "adam")])
def test_a_run_alone_equals_the_run_in_company(tiny, loss, optimizer):
    fields = {"target__loss": loss, "optimizer__name": optimizer}
    company = train(grid(tiny, **fields))
    for name in ("tied 3 1",):
        member = next(m for m in grid(tiny, **fields) if m.name == name)
        alone = train([member], devices=jax.local_devices()[:1])
        assert alone.rows[name] == company.rows[name]
        assert same(alone.finals[name], company.finals[name])
    assert not same(company.finals["tied 3 0"], company.finals["tied 3 1"])


def test_chunks_of_any_length_make_the_same_run(tiny, monkeypatch):
    long = train([Member("a", tiny())])
    monkeypatch.setattr(engine, "SECONDS_BETWEEN_LOOKS", 1e-9)
    short = train([Member("a", tiny())])
    assert short.rows == long.rows
    assert same(short.finals, long.finals)


def test_vmap_agrees_with_map_within_rounding(tiny):
    def members(change=lambda config: config):
        return [Member(str(seed), change(tiny(seed=seed))) for seed in range(3)]

    mapped, batched = train(members()), train(members(_batched))
    assert set(batched.outcomes) == set(mapped.outcomes)
    for name, outcome in mapped.outcomes.items():
        assert batched.outcomes[name].loss == pytest.approx(outcome.loss, rel=1e-3)


def _batched(config):
    return dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, batching="vmap"))


def test_runs_differ_by_what_they_should_differ_by(tiny):
    base = train([Member("a", tiny())]).outcomes["a"].loss
    for change in ({"seed": 1}, {"teacher__seed": 1}, {"optimizer__lr": 0.02}, {"teacher__kind": "tied"}):
        assert train([Member("a", tiny(**change))]).outcomes["a"].loss != base


def test_history_has_every_evaluation_and_the_right_rates(tiny):
    config = tiny(train__steps=25, schedule__name="constant", optimizer__lr=0.02, optimizer__depth_power=0)
    rows = train([Member("a", config)]).rows["a"]
    assert [row["step"] for row in rows] == [0, 10, 20, 25]
    assert [row["tau"] for row in rows] == pytest.approx([0, 0.2, 0.4, 0.5])
    assert rows[0]["train_loss"] is None
    assert all(row["loss_sem"] < row["loss"] for row in rows)
    each = train(
        [Member("a", dataclasses.replace(config, train=dataclasses.replace(config.train, eval_every=1)))]
    ).rows["a"]
    for i, j in ((0, 10), (10, 20), (20, 25)):
        mean = sum(row["train_loss"] for row in each[i + 1 : j + 1]) / (j - i)
        assert next(row for row in rows if row["step"] == j)["train_loss"] == pytest.approx(mean, rel=1e-5)


def test_a_fixed_data_set_is_reused(tiny):
    """With one batch of data the train loss falls far below the evaluation loss; with fresh data it does not."""
    fields = {"train__steps": 400, "train__eval_every": 400, "teacher__scale": 3, "optimizer__name": "adam"}
    few, fresh = (
        train([Member("a", tiny(data__unique=n, optimizer__lr=0.03, student__depth=4, **fields))]).rows["a"]
        for n in (16, 0)
    )
    last = [train([Member("a", tiny(data__unique=16, optimizer__lr=0.03, student__depth=4, **fields))])]
    assert last[0].rows["a"] == few
    assert few[-1]["loss"] > 1.5 * few[-1]["train_loss"]
    assert fresh[-1]["loss"] < few[-1]["loss"]


@pytest.mark.parametrize("loss", ["mse", "kl"])
@pytest.mark.parametrize(("name", "lr"), [("sgd", 1e6), ("adam", 1e6)])
def test_a_hopeless_rate_diverges_and_leaves_its_neighbours_alone(tiny, loss, name, lr):
    common = {"target__loss": loss, "optimizer__name": name}
    healthy = Member("healthy", tiny(optimizer__lr=0.01, **common))
    expected = train([Member("healthy", tiny(optimizer__lr=0.01, **common))])
    found = train([Member("hopeless", tiny(optimizer__lr=lr, **common)), healthy])
    outcome = found.outcomes["hopeless"]
    assert outcome.status == "diverged"
    assert "step" in outcome.message
    assert found.outcomes["healthy"].status == "done"
    assert found.rows["healthy"] == expected.rows["healthy"]
    assert same(found.finals["healthy"], expected.finals["healthy"])


def test_a_healthy_run_with_a_high_loss_has_not_diverged(tiny):
    slow = train([Member("a", tiny(optimizer__lr=1e-7, teacher__scale=20, train__steps=10))]).outcomes["a"]
    assert slow.status == "done"
    assert slow.loss > 0.5


def test_an_interrupted_run_continues_bit_for_bit(tiny, monkeypatch):
    undisturbed = train(grid(tiny))
    monkeypatch.setattr(engine, "SECONDS_BETWEEN_LOOKS", 1e-9)  # short chunks, so that there is a middle
    looks = itertools.count()
    first = train(grid(tiny), stop=lambda: next(looks) >= 30)
    assert 0 < len(first.states) <= len(undisturbed.finals)
    assert len(first.outcomes) < len(undisturbed.outcomes)
    again = []
    for member in grid(tiny):
        if member.name in first.outcomes:
            continue
        if member.name in first.states:
            member.step, member.state = first.states[member.name]
            member.first_loss = first.rows[member.name][0]["loss"]
        again.append(member)
    assert any(member.step > 0 for member in again)
    second = train(again)
    for name, final in undisturbed.finals.items():
        assert same(final, second.finals.get(name, first.finals.get(name)))


def test_a_run_stopped_at_its_start_has_nothing_to_continue_from(tiny):
    assert train([Member("a", tiny())], stop=lambda: True).states == {}


def test_a_run_stopped_behind_its_last_step_is_finished(tiny):
    whole = train([Member("a", tiny())])
    late = Member("a", tiny())
    late.step, late.state = 40, whole.last["a"]
    late.first_loss, late.loss, late.loss_sem = whole.rows["a"][0]["loss"], *whole.scores["a"]
    again = train([late])
    assert again.outcomes["a"].loss == whole.outcomes["a"].loss
    assert same(again.finals, whole.finals)
    assert again.rows == {}


def test_members_of_one_ensemble_may_stand_at_different_steps(tiny):
    whole = train([Member("a", tiny(seed=1)), Member("b", tiny(seed=1, optimizer__lr=0.02))])
    looks = itertools.count()
    part = train([Member("a", tiny(seed=1))], stop=lambda: next(looks) >= 2)
    a = Member("a", tiny(seed=1))
    a.step, a.state = part.states["a"]
    a.first_loss = part.rows["a"][0]["loss"]
    assert 0 < a.step < 40
    mixed = train([a, Member("b", tiny(seed=1, optimizer__lr=0.02))])
    assert same(mixed.finals, whole.finals)


def test_plan_keeps_cohorts_together_and_finishes_first_replicates_first(tiny):
    (family,) = ensemble.plan(grid(tiny), 2)
    assert [[c.seed for c in wave.cohorts] for wave in family.waves] == [[0, 0], [1, 1]]
    for wave in family.waves:
        for lanes in wave.lanes.values():
            assert sorted(len(lane) for lane in lanes) == [2, 2]  # two runs and two twins on two devices
    assert set(family.width.values()) == {2}
