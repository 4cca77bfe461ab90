"""Schedules, and optimizers on stacked layers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from toydepth import optimizer


def rates(config, steps):
    return optimizer.factor({k: float(v) for k, v in optimizer.hyper_of(config).items()}, np.arange(float(steps)), np)


def test_schedules_have_their_shapes(tiny):
    flat = rates(tiny(schedule__name="constant"), 40)
    assert np.all(flat == 1)
    linear = rates(tiny(schedule__name="linear", schedule__decay_fraction=0.5), 41)
    assert np.all(linear[:21] == 1)
    np.testing.assert_allclose(linear[21:], np.linspace(1, 0, 21)[1:], atol=1e-12)
    published = rates(tiny(schedule__name="wsd", schedule__decay_fraction=0.2, schedule__floor=0.1), 41)
    assert np.all(published[:33] == 1)
    assert published[40] == pytest.approx(0.1)
    cosine = rates(tiny(schedule__name="cosine"), 41)
    np.testing.assert_allclose(cosine, 0.5 * (1 + np.cos(np.pi * np.arange(41) / 40)), atol=1e-12)
    warm = rates(tiny(schedule__name="linear", schedule__warmup=0.25, schedule__decay_fraction=0.5), 40)
    np.testing.assert_allclose(warm[:10], np.arange(1, 11) / 10)
    assert np.all(warm[10:20] == 1)


def test_traced_and_numpy_schedules_agree(tiny):
    hyper = optimizer.hyper_of(tiny(schedule__name="cosine", schedule__warmup=0.1, schedule__decay_fraction=0.7))
    traced = jax.jit(jax.vmap(lambda s: optimizer.factor(hyper, s)))(jnp.arange(40.0))
    np.testing.assert_allclose(traced, optimizer.factor(hyper, np.arange(40.0), np), atol=1e-6)


def test_rates_scale_with_depth(tiny):
    shallow = optimizer.hyper_of(tiny(student__depth=1))
    deep = optimizer.hyper_of(tiny(student__depth=16))
    assert shallow["lr"] == pytest.approx(4 * deep["lr"])
    assert shallow["adam_lr"] == pytest.approx(4 * deep["adam_lr"])
    flat = optimizer.hyper_of(tiny(student__depth=16, optimizer__depth_power=0))
    assert flat["lr"] == pytest.approx(shallow["lr"])


@pytest.fixture
def layers():
    key = jax.random.split(jax.random.key(0), 4)
    shapes = {"W1": (3, 8, 4), "W2": (3, 4, 8), "b1": (3, 8)}
    params = {"layers": {n: jax.random.normal(k, s) for k, (n, s) in zip(key, shapes.items(), strict=False)}}
    return params | {"head": jax.random.normal(key[3], (8, 4))}


def one_update(name, params, gradients, **numbers):
    hyper = {"lr": 0.1, "adam_lr": 0.01, "weight_decay": 0.0, "momentum": 0.9, "b1": 0.9, "b2": 0.99, "eps": 1e-8}
    tx = optimizer.build(name, hyper | numbers, 1.0)
    return tx.update(gradients, tx.init(params), params)[0]


def test_muon_orthogonalises_each_layers_own_matrix(layers):
    gradients = jax.tree.map(jnp.cos, layers)
    found = one_update("muon", layers, gradients)
    alone = optax.contrib.muon(0.1, beta=0.9)
    for name in ("W1", "W2"):
        for i in range(3):
            # Optax reads a matrix as input x output, ours are output x input
            matrix = {"w": layers["layers"][name][i].T}
            update, _ = alone.update({"w": gradients["layers"][name][i].T}, alone.init(matrix), matrix)
            np.testing.assert_allclose(found["layers"][name][i], update["w"].T, rtol=1e-3, atol=1e-5)
    singular = np.linalg.svd(np.asarray(found["layers"]["W2"][0]), compute_uv=False) / 0.1
    assert singular.min() > 0.5
    assert singular.max() < 1.5


def test_muon_leaves_biases_and_heads_to_adam(layers):
    gradients = jax.tree.map(jnp.cos, layers)
    found = one_update("muon", layers, gradients)
    for update in (found["layers"]["b1"], found["head"]):
        np.testing.assert_allclose(np.abs(update), 0.01, rtol=0.02)  # Adam's first step has the size of the rate
    faster = one_update("muon", layers, gradients, adam_lr=0.02)
    np.testing.assert_allclose(faster["head"], 2 * found["head"], rtol=1e-4)
    np.testing.assert_array_equal(faster["layers"]["W1"], found["layers"]["W1"])


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_optimizers_are_those_of_optax(name, layers):
    reference = {
        "adam": optax.adam(0.1, 0.9, 0.99, 1e-8),
        "adamw": optax.adamw(0.1, 0.9, 0.99, 1e-8, weight_decay=0.03),
        "sgd": optax.chain(optax.add_decayed_weights(0.03), optax.sgd(0.1, momentum=0.9)),
    }[name]
    gradients = jax.tree.map(jnp.cos, layers)
    found = one_update(name, layers, gradients, weight_decay=0.03)
    expected, _ = reference.update(gradients, reference.init(layers), layers)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd", "muon"])
def test_the_states_structure_does_not_depend_on_the_numbers(name, layers):
    small = optimizer.build(name, dict.fromkeys(NUMBERS, 0.0), 1.0).init(layers)
    other = optimizer.build(name, dict.fromkeys(NUMBERS, 0.7), 0.3).init(layers)
    assert jax.tree.structure(small) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(small), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


NUMBERS = ("lr", "adam_lr", "weight_decay", "momentum", "b1", "b2", "eps")
