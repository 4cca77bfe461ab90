"""The schemes against a solver of its own kind: their orders on a smooth flow, and what a wrong coefficient does."""

import diffrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toydepth import schemes
from toydepth.network import Network

STEPS = np.array([4, 6, 8, 12, 16, 24])


def flow(h):
    """A smooth velocity that turns, bends and stretches."""
    turned = jnp.array([[0.2, 1.1, -0.4], [-0.9, 0.1, 0.7], [0.5, -0.6, -0.3]]) @ h
    return jnp.tanh(turned) + 0.3 * jnp.sin(h)


def slope(step):
    """The order of a scheme: how the error of its last state falls with the number of steps."""
    start = jnp.array([1.0, -0.5, 0.3])
    fine = diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, h, args: flow(h)),
        diffrax.Dopri8(),
        t0=0.0,
        t1=1.0,
        dt0=None,
        y0=start,
        stepsize_controller=diffrax.PIDController(rtol=1e-12, atol=1e-12),
    )
    errors = []
    for steps in STEPS:
        h = start
        for _ in range(steps):
            h = step(lambda h, steps=steps: h + flow(h) / steps, h)
        errors.append(float(jnp.linalg.norm(h - fine.ys[-1])))
    return -np.polyfit(np.log(STEPS), np.log(errors), 1)[0]


@pytest.mark.parametrize("name", schemes.SCHEMES)
def test_error_falls_with_the_schemes_order(name):
    with jax.enable_x64(True):
        found = slope(lambda block, h: schemes.SCHEMES[name]([block] * schemes.STAGES[name], h))
    assert found == pytest.approx(schemes.ORDERS[name], abs=0.2)


def wrong_midpoint(block, h):
    """The midpoint with a third of the first update instead of half of it."""
    return h + schemes._update(block, h + schemes._update(block, h) / 3)


def wrong_rk4(block, h):
    """The classical step with weights 1, 2, 1, 2 instead of 1, 2, 2, 1."""
    k1 = schemes._update(block, h)
    k2 = schemes._update(block, h + k1 / 2)
    k3 = schemes._update(block, h + k2 / 2)
    k4 = schemes._update(block, h + k3)
    return h + (k1 + 2 * k2 + k3 + 2 * k4) / 6


@pytest.mark.parametrize(("step", "order"), [(wrong_midpoint, 2), (wrong_rk4, 4)])
def test_a_wrong_coefficient_shows(step, order):
    with jax.enable_x64(True):
        assert abs(slope(step) - order) > 0.5


@pytest.mark.parametrize("name", schemes.SCHEMES)
def test_the_stages_of_a_layer_are_independent_blocks(name):
    """Each stage has weights of its own, and the last state depends on all of them."""
    network = Network(width=4, hidden=8, depth=2, scheme=name)
    layers = network.init(jax.random.key(0))
    leaves = jax.tree.leaves(layers)
    assert len(leaves) == 3 * schemes.STAGES[name]
    assert all(leaf.shape[0] == 2 for leaf in leaves)
    h = jax.random.normal(jax.random.key(1), (5, 4))
    gradient = jax.grad(lambda layers: jnp.sum(network(layers, h) ** 2))(layers)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))
    flat = [np.asarray(leaf).ravel() for leaf in leaves if leaf.shape[1:] == (8, 4)]
    assert len({array.tobytes() for array in flat}) == schemes.STAGES[name]


def test_midpoint_is_the_published_pair_of_blocks():
    """d1 = MLP1(norm h), d2 = MLP2(norm(h + d1 / 2)), h <- h + d2 (reference: app. C.3)."""
    network = Network(width=4, hidden=8, depth=1, scheme="midpoint")
    layer = jax.tree.map(lambda a: np.asarray(a[0], np.float64), network.init(jax.random.key(2)))
    h = np.array([0.5, -1.0, 0.2, 0.8])

    def mlp(weights, h):
        normed = h / np.sqrt(np.mean(h * h))
        return weights["W2"] @ np.maximum(weights["W1"] @ normed + weights["b1"], 0) ** 2

    d1 = mlp(layer["stage1"], h)
    expected = h + mlp(layer["stage2"], h + d1 / 2)
    found = network.layer(jax.tree.map(jnp.float32, layer), jnp.float32(h))
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert not np.allclose(found, h + mlp(layer["stage2"], h + d1), rtol=1e-5)
