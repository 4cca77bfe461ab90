"""The depth problem: its losses against NumPy, its start, and where its random numbers come from."""

import jax
import numpy as np
import pytest

from toydepth.config import parse, resolve
from toydepth.problems import hyper_of, problem_of, role_key, source_of
from toydepth.problems import losses as losses_of


def setting(seed=0, **target):
    """A problem with its teacher, one batch, random parameters and hyperparameters."""
    tree = {
        "teacher": {"depth": 6, "width": 4, "scale": 5},
        "student": {"depth": 3},
        "train": {"batch": 16},
        "seed": seed,
    }
    config = resolve(parse(tree | {"target": target}))
    problem = problem_of(config)
    fixed = problem.stream.init(source_of(config))
    batch = problem.stream.draw(fixed, role_key(config.seed, "data"))
    start = problem.init(role_key(config.seed, "student"))
    leaves, structure = jax.tree.flatten(start)
    keys = jax.random.split(jax.random.key(9), len(leaves))
    params = structure.unflatten([0.3 * jax.random.normal(k, a.shape) for k, a in zip(keys, leaves, strict=True)])
    return problem, fixed, batch, start, params, hyper_of(config)


def softmax(logits):
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def kl(p, q):
    return np.sum(p * (np.log(p) - np.log(q)), axis=1)


def final_states(problem, params, batch):
    h = np.asarray(problem.network(params["layers"], batch["inputs"]), np.float64)
    return h / np.sqrt(np.mean(h * h, axis=1, keepdims=True) + 1e-6)


@pytest.mark.parametrize(
    ("target", "student_temperature"),
    [
        ({"head": "learned"}, 1.0),
        ({"head": "teacher"}, 0.3),
        ({"head": "learned", "student_temperature": "teacher"}, 0.3),
        ({"head": "teacher", "student_temperature": "one"}, 1.0),
    ],
)
def test_kl_is_that_of_the_teacher_from_the_student(target, student_temperature):
    problem, fixed, batch, _, params, hyper = setting(loss="kl", temperature=0.3, vocab=10, **target)
    losses = losses_of(problem, params, batch, problem.stream.context(fixed), hyper)
    head = np.asarray(params["head"] if target["head"] == "learned" else fixed["head"], np.float64)
    teacher = softmax(np.asarray(batch["states"], np.float64) @ np.asarray(fixed["head"], np.float64).T / 0.3)
    student = softmax(final_states(problem, params, batch) @ head.T / student_temperature)
    np.testing.assert_allclose(losses, kl(teacher, student), rtol=1e-3, atol=1e-5)
    assert not np.allclose(losses, kl(student, teacher), rtol=1e-2)
    assert ("head" in params) == (target["head"] == "learned")


def test_mse_is_that_of_the_normalised_states():
    problem, fixed, batch, _, params, hyper = setting(loss="mse")
    losses = losses_of(problem, params, batch, problem.stream.context(fixed), hyper)
    expected = np.mean((final_states(problem, params, batch) - np.asarray(batch["states"])) ** 2, axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_a_student_starts_as_the_identity():
    problem, fixed, batch, start, _, hyper = setting(loss="mse")
    losses = losses_of(problem, start, batch, problem.stream.context(fixed), hyper)
    expected = np.mean((np.asarray(batch["inputs"]) - np.asarray(batch["states"])) ** 2, axis=1)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)


def test_a_learned_head_starts_at_zero():
    problem, fixed, batch, start, _, hyper = setting(loss="kl", temperature=0.3, vocab=10)
    losses = losses_of(problem, start, batch, problem.stream.context(fixed), hyper)
    teacher = softmax(np.asarray(batch["states"]) @ np.asarray(fixed["head"]).T / 0.3)
    np.testing.assert_allclose(losses, np.log(10) + np.sum(teacher * np.log(teacher), axis=1), rtol=1e-3, atol=1e-5)


def test_a_perfect_student_has_no_loss():
    problem, fixed, batch, _, _, hyper = setting(loss="kl", head="teacher", temperature=0.3, vocab=10)
    same = {**batch, "inputs": batch["states"]}  # already where the teacher ends
    start = problem.init(role_key(0, "student"))
    np.testing.assert_allclose(losses_of(problem, start, same, problem.stream.context(fixed), hyper), 0, atol=1e-5)


@pytest.mark.parametrize(("init", "ratio"), [("linear", 3**-0.5), ("normal", 1.0)])
def test_heads_have_their_published_scales(init, ratio):
    config = resolve(parse({"teacher": {"head_init": init, "width": 32}, "target": {"vocab": 2000}}))
    head = np.asarray(problem_of(config).stream.init(source_of(config))["head"])
    assert head.std() * 32**0.5 == pytest.approx(ratio, rel=0.02)


def test_random_numbers_come_from_seeds_and_roles():
    _, fixed, batch, start, _, _ = setting(seed=0)
    keys = [
        np.asarray(jax.random.key_data(role_key(s, r))) for s in (0, 1) for r in ("teacher", "student", "data", "eval")
    ]
    assert len(np.unique(keys, axis=0)) == 8
    assert not np.allclose(start["layers"]["W1"], fixed["layers"]["W1"][:3])
    other = resolve(parse({"teacher": {"depth": 6, "width": 4, "scale": 5, "seed": 7}, "train": {"batch": 16}}))
    stream = problem_of(other).stream
    again = stream.draw(stream.init(source_of(other)), role_key(0, "data"))
    np.testing.assert_array_equal(again["inputs"], batch["inputs"])  # the teacher's seed leaves the inputs alone
    assert not np.allclose(again["states"], batch["states"])
