"""Error splits, layers in other orders, and the verdict, on planted networks."""

import numpy as np
import pytest
from planted import Planted, rotation, walk

from toydepth.geometry.errors import Splitting
from toydepth.geometry.interventions import intervene, orders, spread
from toydepth.geometry.probe import look
from toydepth.geometry.verdict import judge

RNG = np.random.default_rng(3)


# --- R = C + (A - C) / l ------------------------------------------------------------------------------------


def student(errors, tokens=400, width=8, seed=0):
    """States whose layers, each taken for the whole of the way, miss the target y by given errors."""
    rng = np.random.default_rng(seed)
    start, y = rng.standard_normal((2, tokens, width))
    updates = (y + errors - start) / len(errors)
    return np.concatenate([start[None], start + np.cumsum(updates, axis=0)]), y


def split(states, y, convention="before", batch=150):
    made = Splitting(len(states) - 1, convention)
    for i in range(0, len(y), batch):
        made.add(states[:, i : i + batch], y[i : i + batch])
    return made.result()


@pytest.mark.parametrize("convention", ["before", "behind"])
@pytest.mark.parametrize("layers", [1, 2, 7])
def test_the_split_is_exact(convention, layers):
    states, y = RNG.standard_normal((layers + 1, 50, 6)), RNG.standard_normal((50, 6))
    found = split(states.astype(np.float32), y.astype(np.float32), convention)
    assert found.residual < 1e-10
    assert np.isnan(found.C) == (layers == 1)


def test_the_split_is_that_of_a_naive_loop():
    states, y = student(RNG.standard_normal((3, 5, 4)), tokens=5, width=4)
    found = split(states, y)
    errors = [states[0] + 3 * (states[i + 1] - states[i]) - y for i in range(3)]
    products = [[float(np.mean(a * b)) for b in errors] for a in errors]
    assert pytest.approx(np.mean((states[-1] - y) ** 2)) == found.R
    assert pytest.approx(np.mean([products[i][i] for i in range(3)])) == found.A
    assert pytest.approx(np.mean([products[i][j] for i in range(3) for j in range(3) if i != j])) == found.C
    np.testing.assert_allclose(found.products, products, rtol=1e-9)


def test_independent_errors_have_nothing_in_common():
    errors = RNG.standard_normal((16, 400, 8))
    found = split(*student(errors))
    assert found.low < 0 < found.high
    assert abs(found.C) < 0.01 * found.A
    assert pytest.approx(found.A / 16, rel=0.15) == found.R


def test_a_common_error_is_not_averaged():
    errors = np.repeat(RNG.standard_normal((1, 400, 8)), 16, axis=0) + 0.1 * RNG.standard_normal((16, 400, 8))
    found = split(*student(errors))
    assert pytest.approx(found.A, rel=0.03) == found.C
    assert pytest.approx(found.A, rel=0.03) == found.R
    assert found.common == pytest.approx(16, rel=0.05)


def test_behind_the_norm_the_error_is_the_mse_loss():
    states, y = student(0.3 * RNG.standard_normal((4, 400, 8)))
    normed = [h / np.sqrt(np.mean(h * h, axis=1, keepdims=True)) for h in (states[-1], 5 * y)]
    found = split(states, 5 * y, "behind")
    assert pytest.approx(np.mean((normed[0] - normed[1]) ** 2), rel=1e-4) == found.R
    assert split(states, 5 * y).R > 2 * found.R


# --- layers in other orders ---------------------------------------------------------------------------------


def test_orders_are_what_they_are_called():
    made = orders(4, np.random.default_rng(0), shuffles=3)
    assert made["drop", 1] == [0, 2, 3] and made["repeat", 1] == [0, 1, 1, 2, 3] and made["swap", 1] == [0, 2, 1, 3]
    assert made["reverse", None] == [3, 2, 1, 0] and made["parallel", None] is None and made["none", None] == []
    assert [key for key in made if key[0] == "shuffle"] == [("shuffle", i) for i in range(3)]
    assert all(sorted(made["shuffle", i]) == [0, 1, 2, 3] for i in range(3))  # type: ignore[arg-type]
    assert len([key for key in made if key[0] == "swap"]) == 3
    assert set(orders(1, np.random.default_rng(0))) == {("drop", 0), ("repeat", 0), ("parallel", None), ("none", None)}


def test_deep_networks_are_changed_at_some_layers_evenly_spread():
    assert spread(100, 5) == [0, 25, 50, 74, 99]
    assert spread(3, 5) == [0, 1, 2] and spread(1, 5) == [0] and spread(0, 5) == []


def test_losses_find_their_way_to_their_change():
    subject = Planted(walk(5, tokens=20, width=8))
    found = intervene(subject, np.random.default_rng(0))
    moves = np.diff(subject.states, axis=0)
    assert found.loss < 1e-12
    dropped = {c.layer: c.loss for c in found.changes if c.kind == "drop"}
    for layer in range(5):
        assert dropped[layer] == pytest.approx(np.mean(moves[layer] ** 2), rel=1e-4)
    assert found.mean("shuffle") == pytest.approx(0, abs=1e-10)  # updates that do not depend on the state
    assert found.share("none") == 1 and found.share("shuffle") == pytest.approx(0, abs=1e-9)
    assert found.mean("unheard") is None and found.share("unheard") is None


# --- the verdict --------------------------------------------------------------------------------------------


def signs(found):
    return {sign.code: sign.present for sign in judge(found).signs}


def test_a_smooth_network_is_procedural_and_a_random_walk_averages():
    smooth, rough = look(Planted(rotation(20))), look(Planted(walk(20)))
    assert judge(smooth).assembly == "procedural"
    assert judge(rough).assembly == "averaging"
    assert signs(smooth)["alike"] and signs(smooth)["in order"] and not signs(smooth)["right"]
    assert signs(rough)["right"] and signs(rough)["even"] and signs(rough)["any order"] and not signs(rough)["alike"]


def test_a_network_that_stops_early_is_compositional():
    h = walk(20)
    h[6:] = h[6] + 0.01 * (h[6:] - h[6])
    few, most = (np.arange(64)[None, :, None] < count for count in (8, 40))
    assert not signs(look(Planted(np.where(few, h, walk(20)))))["stop"]
    found = look(Planted(np.where(most, h, walk(20))))
    assert signs(found)["stop"] and found.clusters.share == 40 / 64


def test_a_network_that_leaps_is_compositional():
    early = np.where(np.arange(20)[:, None] < 3, 5.0, 0.1) * np.ones(64)
    leaping = walk(20)
    leaping[4:] += 30 * np.random.default_rng(9).standard_normal((1, 64, 512))
    found = look(Planted(leaping, early=early, loss=np.full(64, 0.1)))
    assert signs(found)["stages"] and signs(found)["leap"]
    assert "compositional" in judge(found).words
    assert not signs(look(Planted(walk(20), early=np.linspace(5, 0.1, 20)[:, None] * np.ones(64))))["stages"]


@pytest.mark.parametrize(("converged", "reason"), [(False, "not converged"), (None, "not known")])
def test_a_student_that_has_not_converged_gets_no_verdict(converged, reason):
    verdict = judge(look(Planted(walk(20), kind="student", converged=converged)))
    assert verdict.assembly is None and verdict.words.startswith("no verdict") and reason in verdict.words
    assert verdict.signs
    assert judge(look(Planted(walk(20), kind="student", converged=True))).assembly == "averaging"
    assert judge(look(Planted(walk(20), kind="teacher"))).assembly == "averaging"


def test_a_single_layer_gets_no_verdict():
    assert judge(look(Planted(walk(1)))).words == "no verdict: a single layer has no neighbour"


def test_the_marks_of_growing_are_left_out():
    """Halves of split layers are parallel from the start; that says nothing about what was learned."""
    start = walk(8)
    halves = np.repeat(np.diff(start, axis=0) / 2, 2, axis=0)
    subject = Planted(np.concatenate([start[:1], start[:1] + np.cumsum(halves, axis=0)]))
    assert signs(look(subject))["alike"]
    subject.grown = True
    found = look(subject)
    assert found.zigzag == pytest.approx((0, np.pi / 2), abs=0.02)
    assert signs(found)["right"] and not signs(found)["alike"]
    assert judge(found).assembly == "averaging"
