"""The teacher's geometry, its limits, and the network's gradient."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from published import GEOMETRY, SEEDS

from toydepth.blocks import functions
from toydepth.config import parse, resolve
from toydepth.network import Block, Network, norm_rows, rows
from toydepth.problems import problem_of, source_of

SAME_BLOCK = (  # the published one as a pair of functions, which no hand-written gradient is for
    lambda key, width, hidden: functions(Block, width=width, hidden=hidden)[0](key),
    lambda params, h: functions(Block, width=len(h), hidden=len(params["b1"]))[1](params, h),
)


def teacher(**fields):
    """A teacher's network and its layers."""
    config = resolve(parse({"teacher": fields}))
    stream = problem_of(config).stream
    return stream.network, compiled(stream)(source_of(config))["layers"]


@functools.cache
def compiled(stream):
    return jax.jit(stream.init)


def angle(a, b):
    return jnp.arccos(jnp.clip(jnp.sum(a * b, 1) / jnp.linalg.norm(a, axis=1) / jnp.linalg.norm(b, axis=1), -1, 1))


def geometry(kind, seed, scale=1.0):
    network, layers = teacher(kind=kind, width=32, depth=128, seed=seed, scale=scale)
    return measures(network, layers, jax.random.normal(jax.random.key(1000 + seed), (1024, 32)))


@functools.partial(jax.jit, static_argnums=0)
def measures(network, layers, x):
    h = network.states(layers, norm_rows(x))
    steps = jnp.diff(h, axis=0)
    middle = [angle(steps[i], steps[i + 1]).mean() for i in range(0, 127, 18)]
    return {
        "total angle": angle(h[0], h[-1]).mean(),
        "norm ratio": (jnp.linalg.norm(h[-1], axis=1) / jnp.linalg.norm(h[0], axis=1)).mean(),
        "identity mse": jnp.mean((norm_rows(h[-1]) - norm_rows(h[0])) ** 2),
        "angle between updates": jnp.mean(jnp.array(middle)),
        "first step": angle(h[0], h[1]).mean(),
        "last step": angle(h[-2], h[-1]).mean(),
    }


def deviations(kind, scale=1.0):
    """How many standard errors the mean over seeds lies from the published geometry."""
    found = [geometry(kind, seed, scale) for seed in range(SEEDS)]
    means = {name: np.mean([float(row[name]) for row in found]) for name in found[0]}
    return {n: abs(means[n] - mean) / (sd / SEEDS**0.5) for n, (mean, sd) in GEOMETRY[kind].items()}


@pytest.mark.parametrize("kind", ["independent", "tied"])
def test_geometry_is_the_published_one(kind):
    found = deviations(kind)
    assert max(found.values()) < 4, found


@pytest.mark.parametrize("kind", ["independent", "tied"])
def test_a_wrong_scale_shows_in_the_geometry(kind):
    assert max(deviations(kind, scale=1.1).values()) > 4


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_mixed_has_the_other_kinds_as_limits():
    independent, tied = teacher(kind="independent")[1], teacher(kind="tied")[1]
    assert equal(teacher(kind="mixed", rho=0.0)[1], independent)
    assert equal(teacher(kind="mixed", rho=1.0)[1], tied)
    assert not equal(teacher(kind="mixed", rho=0.5)[1], independent)


@pytest.mark.parametrize("rho", [0.0, 0.3, 0.7, 1.0])
def test_mixed_layers_share_rho_of_their_variance(rho):
    _, layers = teacher(kind="mixed", rho=rho, width=32, depth=16)
    for name, fan_in in (("W1", 32), ("W2", 128)):
        w = np.asarray(layers[name]).reshape(16, -1) * (1.0 if name == "W1" else 16**0.5)
        variance = 1 / (3 * fan_in)
        assert np.mean(w * w) == pytest.approx(variance, rel=0.05)
        shared = np.mean([np.mean(w[i] * w[i + 1]) for i in range(15)])
        assert shared == pytest.approx(rho * variance, abs=0.05 * variance)


@pytest.mark.parametrize(("size", "distinct"), [(1, 10), (3, 4), (4, 3), (9, 2), (10, 1), (50, 1)])
def test_blocks_are_tied_inside_and_the_last_may_be_short(size, distinct):
    _, layers = teacher(kind="blocks", depth=10, block_size=size)
    w = np.asarray(layers["W1"])
    assert len(np.unique(w.reshape(10, -1), axis=0)) == distinct
    for i in range(9):
        assert np.array_equal(w[i], w[i + 1]) == (i // size == (i + 1) // size)


def test_blocks_of_one_layer_are_the_independent_teacher():
    assert equal(teacher(kind="blocks", block_size=1)[1], teacher(kind="independent")[1])


def test_initial_weights_are_uniform_as_in_torch():
    layers = Network(16, 64, 50).init(jax.random.key(0))
    for name, bound in (("W1", 16**-0.5), ("b1", 16**-0.5), ("W2", 64**-0.5)):
        w = np.asarray(layers[name])
        assert np.abs(w).max() <= bound
        assert np.abs(w).max() > 0.99 * bound
        assert np.var(w) == pytest.approx(bound**2 / 3, rel=0.03)


def test_a_block_is_the_published_equation():
    network = Network(4, 8, 1)
    layer = jax.tree.map(lambda a: np.asarray(a)[0], network.init(jax.random.key(0)))
    h = np.arange(1.0, 5.0, dtype=np.float32)
    normed = h / np.sqrt(np.mean(h * h))
    expected = h + layer["W2"] @ np.maximum(layer["W1"] @ normed + layer["b1"], 0) ** 2
    np.testing.assert_allclose(network.layer(layer, h), expected, rtol=1e-5)
    assert not np.allclose(network.layer(layer | {"b1": -layer["b1"]}, h), expected, rtol=1e-5)


@pytest.mark.parametrize(("scheme", "block"), [("euler", Block), ("midpoint", Block), ("euler", SAME_BLOCK)])
def test_gradient_is_that_of_the_plain_composition(scheme, block):
    network = Network(6, 12, 5, scheme, block)
    layers, h = network.init(jax.random.key(0)), jax.random.normal(jax.random.key(1), (32, 6))

    def plain(layers, h):
        for i in range(5):
            h = rows(network.layer)(jax.tree.map(lambda a, i=i: a[i], layers), h)
        return h

    weights = jax.random.normal(jax.random.key(2), (32, 6))
    found = jax.jit(jax.grad(lambda p, h: jnp.sum(weights * network(p, h)), argnums=(0, 1)))(layers, h)
    expected = jax.jit(jax.grad(lambda p, h: jnp.sum(weights * plain(p, h)), argnums=(0, 1)))(layers, h)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(network(layers, h), plain(layers, h), rtol=1e-4)
    np.testing.assert_allclose(network.states(layers, h)[-1], plain(layers, h), rtol=1e-4)
