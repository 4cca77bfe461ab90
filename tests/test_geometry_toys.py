"""Teachers and students of run folders as subjects: published geometry, exact splits, orders, dependence on depth."""

import jax
import numpy as np
import pytest
from published import GEOMETRY, SEEDS

import toydepth
from toydepth import store
from toydepth.config import parse, resolve
from toydepth.geometry import toys
from toydepth.geometry.across import BETWEEN, SPLIT_PAIR, UPDATE, across_depths
from toydepth.geometry.probe import look
from toydepth.geometry.toys import Toy, of_run, of_sweep
from toydepth.network import norm_rows
from toydepth.opened import DepthRun
from toydepth.sweep import train


def teacher(tmp_path, kind, seed=0, inputs=256, scale=1.0):
    """The published teacher, looked at without a run."""
    tree = {"teacher": {"kind": kind, "width": 32, "depth": 128, "scale": scale}, "seed": seed}
    tree["train"] = {"batch": inputs, "eval_batches": 1}
    return Toy(DepthRun(tmp_path, resolve(parse(tree))), "teacher", kind)


def geometry(found):
    norms = found.mean("norm")
    return {
        "total angle": found.mean("end")[0],
        "norm ratio": norms[-1] / norms[0],
        "identity mse": found.mean("early")[0],
        "angle between updates": found.mean("update").mean(),
        "first step": found.mean("step")[0],
        "last step": found.mean("step")[-1],
    }


def deviations(tmp_path, kind, scale=1.0, seeds=SEEDS):
    """How many standard errors the mean over seeds lies from the published geometry."""
    found = [geometry(look(teacher(tmp_path, kind, s, 64, scale), changes=False)) for s in range(seeds)]
    means = {name: np.mean([one[name] for one in found]) for name in found[0]}
    return {n: abs(means[n] - mean) / (sd / seeds**0.5) for n, (mean, sd) in GEOMETRY[kind].items()}


@pytest.mark.parametrize("kind", ["independent", "tied"])
def test_teachers_have_the_published_geometry(tmp_path, kind):
    found = deviations(tmp_path, kind)
    assert max(found.values()) < 4, found


def test_a_wrong_scale_shows_in_the_geometry(tmp_path):
    assert max(deviations(tmp_path, "tied", scale=1.15, seeds=3).values()) > 4


def test_layers_of_a_rough_teacher_hardly_need_one_another(tmp_path):
    """All at h_0 or shuffled they say the same within 4 % of what they do; those of a smooth one need the path."""
    rough, smooth = (look(teacher(tmp_path, kind)).interventions for kind in ("independent", "tied"))
    assert rough is not None and smooth is not None
    assert rough.loss == pytest.approx(0, abs=1e-9)
    assert 0.0012 < rough.mean("parallel") < 0.0026
    assert 0.0012 < rough.mean("shuffle") < 0.0026
    assert rough.mean("none") == pytest.approx(0.0539, abs=0.012)
    assert 0.30 < smooth.mean("parallel") < 0.60
    assert smooth.mean("none") == pytest.approx(1.22, abs=0.17)
    assert smooth.share("shuffle") == pytest.approx(0, abs=1e-6)  # of equal layers


# --- trained runs -------------------------------------------------------------------------------------------


def config(root, kind="tied", depth=4, seed=0, student=None, target=None):
    return parse(
        {
            "teacher": {"kind": kind, "depth": 8, "width": 4, "scale": 3},
            "student": {"depth": depth} | (student or {}),
            "target": target or {},
            "optimizer": {"name": "adam", "lr": 0.01},
            "train": {"steps": 30, "batch": 16, "eval_every": 10, "eval_batches": 4, "twin": False},
            "sweep": {"root": str(root), "name": "probed"},
            "seed": seed,
        }
    )


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """The folder of a finished sweep: two kinds, depths 2 and 4, two replicates."""
    root = tmp_path_factory.mktemp("outputs")
    kinds, depths = ("tied", "independent"), (2, 4)
    train([config(root, kind, depth, seed) for kind in kinds for depth in depths for seed in (0, 1)])
    return root / "probed"


@pytest.fixture(scope="module")
def grown(tmp_path_factory):
    """A run's folder: a student grown from depth 2 to depth 4."""
    root = tmp_path_factory.mktemp("outputs")
    train([config(root, student={"init": "grow"})])
    (folder,) = (root / "probed" / "runs").iterdir()
    return folder


@pytest.fixture(scope="module")
def kl(tmp_path_factory):
    """Run folders of students that match a softmax: {head: folder}; one of them with layers of two stages."""
    root = tmp_path_factory.mktemp("outputs")
    schemes = {"learned": "euler", "teacher": "midpoint"}
    target = {"loss": "kl", "temperature": 0.3, "vocab": 9}
    train([config(root, student={"scheme": s}, target=target | {"head": head}) for head, s in schemes.items()])
    runs = [toydepth.open(folder) for folder in (root / "probed" / "runs").iterdir()]
    return {run.config.target.head: run.folder for run in runs}


def a_run(sweep):
    return sorted((sweep / "runs").glob("tied-d4-*"))[0]


def test_what_is_seen_is_what_the_run_says(sweep):
    run = toydepth.open(a_run(sweep))
    subjects = of_run(a_run(sweep))
    assert [one.kind for one in subjects] == ["teacher", "student"]
    assert [one.depth for one in subjects] == [8, 4]
    x = run.inputs.reshape(-1, 4)
    for subject, function in zip(subjects, (run.teacher, run.student), strict=True):
        (seen,) = subject.batches()
        assert len(seen) == 64 and not seen.first.any()
        np.testing.assert_allclose(seen.states, function.states(x), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(seen.last_normed, norm_rows(seen.states[-1]), rtol=1e-5)
    student = look(subjects[1])
    assert student.number("loss") == pytest.approx(run.result["loss"], rel=1e-4)
    wanted = np.asarray(run.teacher(run.inputs)).reshape(-1, 4)
    early = [np.mean((norm_rows(h) - wanted) ** 2) for h in student_states(subjects[1])]
    np.testing.assert_allclose(student.mean("early"), early[:-1], rtol=1e-4)
    assert look(subjects[0]).number("loss") == pytest.approx(0, abs=1e-10)


def student_states(subject):
    (seen,) = subject.batches()
    return seen.states


@pytest.mark.parametrize("head", ["learned", "teacher"])
def test_students_of_a_softmax_are_read_out_through_their_head(kl, head):
    run = toydepth.open(kl[head])
    teacher, student = of_run(kl[head])
    found = look(student)
    assert found.number("loss") == pytest.approx(run.result["loss"], rel=1e-3)
    assert look(teacher).number("loss") == pytest.approx(0, abs=1e-6)
    assert found.depth == 4  # layers of several stages count once
    assert bool(found.errors) == (head == "teacher")  # with a head of its own its states need not be the teacher's


def test_a_limit_and_small_batches_change_only_what_they_should(sweep, monkeypatch):
    whole, limited = (of_run(a_run(sweep), limit)[1] for limit in (8192, 10))
    assert sum(len(seen) for seen in limited.batches()) == 10
    monkeypatch.setattr(toys, "FLOATS", 7 * 5 * 4)
    few = of_run(a_run(sweep))[1]
    assert [len(seen) for seen in few.batches()] == [7] * 9 + [1]
    np.testing.assert_allclose(np.concatenate([s.states for s in few.batches()], 1), student_states(whole), rtol=1e-5)
    assert look(few).number("loss") == pytest.approx(look(whole).number("loss"), rel=1e-5)


def test_layers_are_applied_in_the_orders_asked_for(sweep):
    _, student = of_run(a_run(sweep))
    run = toydepth.open(a_run(sweep))
    network, layers = run.student.network, run.student.params["layers"]
    x = norm_rows(run.inputs.reshape(-1, 4))
    wanted = np.asarray(run.teacher(run.inputs)).reshape(-1, 4)

    def loss(h):
        return float(np.mean((norm_rows(h) - wanted) ** 2))

    def layer(i, h):
        return jax.vmap(lambda h: network.layer(jax.tree.map(lambda a: a[i], layers), h))(h)

    def walked(order):
        h = x
        for i in order:
            h = layer(i, h)
        return h

    orders = {"own": [0, 1, 2, 3], "some": [3, 1], "again": [0, 0, 1, 2, 3], "none": [], "at once": None}
    found = student.losses(orders)
    for name, order in orders.items():
        expected = x + sum(layer(i, x) - x for i in range(4)) if order is None else walked(order)
        assert found[name] == pytest.approx(loss(expected), rel=1e-4)
    assert len({round(value, 6) for value in found.values()}) == 5


def test_the_split_of_a_students_error_is_exact_and_adds_up_to_its_loss(sweep, grown):
    for folder in (*sorted((sweep / "runs").iterdir()), grown):
        found = look(of_run(folder)[1], changes=False)
        for split in found.errors.values():
            assert split.residual < 1e-6
        assert pytest.approx(found.number("loss"), rel=1e-3) == found.errors["behind"].R
        assert pytest.approx(found.errors["behind"].R, rel=1e-3) != found.errors["before"].R
    assert look(of_run(folder)[0], changes=False).errors == {}


def test_halves_of_a_split_layer_stay_near_one_another(grown, sweep):
    found = look(of_run(grown)[1])
    within, between = found.zigzag
    assert within < 0.5 * between
    angles = found.mean("update")
    np.testing.assert_allclose((within, between), (angles[0::2].mean(), angles[1::2].mean()))
    assert look(of_run(a_run(sweep))[1]).zigzag is None  # from zero
    assert look(of_run(grown)[0]).zigzag is None  # the teacher


# --- sweeps -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen(sweep):
    return [look(one, changes=False) for one in of_sweep(sweep, 16)]


def test_a_sweep_shows_each_teacher_once(seen):
    assert [one.kind for one in seen].count("student") == 8
    teachers = [one.name for one in seen if one.kind == "teacher"]
    assert len(teachers) == len(set(teachers)) == 4


def test_steps_are_fitted_over_replicates(seen, sweep):
    made = across_depths(seen, store.collect(sweep))
    assert [one.regime["teacher.kind"] for one in made.steps] == ["independent", "tied"]
    for one in made.steps:
        mine = [s for s in seen if s.fields.get("teacher.kind") == one.regime["teacher.kind"] and s.kind == "student"]
        slopes = []
        for seed in (0, 1):
            points = [(s.depth, s.number("step_middle")) for s in mine if s.fields["seed"] == seed]
            x, y = np.log(points).T
            slopes.append(-np.polyfit(x, y, 1)[0])
        assert one.alpha == pytest.approx(np.mean(slopes))
        assert one.ci_low is not None and one.ci_low < one.alpha < one.ci_high
        assert one.quantity == "step angle"
    line = made.line(made.regimes()[1], UPDATE)
    assert [one.depth for one in line] == [2, 4] and all(len(one.values) == 2 for one in line)
    assert line[1].low < line[1].mean < line[1].high
    assert not made.line(made.regimes()[1], SPLIT_PAIR) and not made.line(made.regimes()[1], BETWEEN)
    assert len(made.differences) == 2
