"""What can be a block: three ways to write one give one set of numbers, and what is none is told why."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen, nnx

from toydepth import blocks
from toydepth.network import Block, Network, rms_norm

SIZES = {"width": 4, "hidden": 8}


class NnxBlock(nnx.Module):
    """The published block, written again."""

    def __init__(self, width, hidden, *, rngs):
        self.W1 = nnx.Param(jax.random.normal(rngs.params(), (hidden, width)))
        self.b1 = nnx.Param(jnp.zeros(hidden))
        self.W2 = nnx.Param(jax.random.normal(rngs.params(), (width, hidden)))

    def __call__(self, h):
        return h + self.W2[...] @ jax.nn.relu(self.W1[...] @ rms_norm(h) + self.b1[...]) ** 2


class LinenBlock(linen.Module):
    width: int
    hidden: int

    @linen.compact
    def __call__(self, h):
        W1 = self.param("W1", linen.initializers.normal(), (self.hidden, self.width))
        b1 = self.param("b1", linen.initializers.zeros, (self.hidden,))
        W2 = self.param("W2", linen.initializers.normal(), (self.width, self.hidden))
        return h + W2 @ jax.nn.relu(W1 @ rms_norm(h) + b1) ** 2


def init(key, width, hidden):
    return {"W1": jax.random.normal(key, (hidden, width)), "b1": jnp.zeros(hidden), "W2": jnp.zeros((width, hidden))}


def apply(params, h):
    return h + params["W2"] @ jax.nn.relu(params["W1"] @ rms_norm(h) + params["b1"]) ** 2


def without_norm(params, h):
    return h + params["W2"] @ jax.nn.relu(params["W1"] @ h + params["b1"]) ** 2


def last_and_gradient(block):
    """The last states of the published network's weights through a block, and their gradient."""
    network = Network(4, 8, 3, block=block)
    layers = Network(4, 8, 3).init(jax.random.key(0))
    h = jax.random.normal(jax.random.key(1), (5, 4))
    gradient = jax.grad(lambda layers: jnp.sum(jnp.sin(network(layers, h))))(layers)
    return jax.tree.leaves((network(layers, h), gradient))


@pytest.mark.parametrize("block", [NnxBlock, LinenBlock, (init, apply)], ids=["nnx", "linen", "pair"])
def test_the_published_block_is_the_same_however_it_is_written(block):
    rewritten, pair, published = map(last_and_gradient, (block, (init, apply), Block))
    for found, same, by_hand in zip(rewritten, pair, published, strict=True):
        np.testing.assert_array_equal(found, same)
        np.testing.assert_allclose(found, by_hand, rtol=1e-5, atol=2e-6)  # the published one has code of its own


def test_another_block_is_told_apart():
    assert not np.allclose(last_and_gradient((init, without_norm))[0], last_and_gradient(Block)[0], rtol=1e-3)


@pytest.mark.parametrize("block", [NnxBlock, LinenBlock, (init, apply)], ids=["nnx", "linen", "pair"])
def test_layers_are_drawn_independently_and_by_their_index(block):
    network = Network(4, 8, 3, block=block)
    layers = network.init(jax.random.key(0), jnp.array([0, 1, 0]))
    assert jax.tree.map(jnp.shape, layers) == {"W1": (3, 8, 4), "b1": (3, 8), "W2": (3, 4, 8)}
    np.testing.assert_array_equal(layers["W1"][0], layers["W1"][2])
    assert not np.allclose(layers["W1"][0], layers["W1"][1])
    assert not np.allclose(layers["W1"][0], network.init(jax.random.key(1))["W1"][0])


def test_equal_kinds_and_sizes_share_their_functions():
    for kind in (NnxBlock, LinenBlock, (init, apply)):
        one, other, wider = (Network(4, hidden, 3, block=kind) for hidden in (8, 8, 16))
        assert one == other and hash(one) == hash(other)
        assert one.functions is other.functions
        assert one.functions is not wider.functions
    assert Network(4, 8, 3, block=(init, apply)).functions is not Network(4, 8, 3, block=(init, without_norm)).functions


def linear(params, h):
    return h + params["A"] @ h


def matrix(key, width, hidden):
    return {"A": jax.random.normal(key, (width, width)) / 2}


@pytest.mark.parametrize(("scheme", "order"), [("euler", 1), ("midpoint", 2), ("rk4", 4)])
def test_a_schemes_step_with_equal_linear_blocks_is_the_exponentials_series(scheme, order):
    """h <- (1 + A + ... + A^p / p!) h, for a scheme of order p and blocks h + A h."""
    network = Network(4, 8, 1, scheme, (matrix, linear))
    layer = jax.tree.map(lambda a: a[0], network.init(jax.random.key(0)))
    first = layer[network.stages[0]] if network.stages else layer
    assert len({np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(layer)}) == max(1, len(network.stages))
    h = jax.random.normal(jax.random.key(1), (4,))
    found = network.layer(dict.fromkeys(network.stages, first) or first, h)
    series, term = [np.asarray(h, np.float64)], np.asarray(h, np.float64)
    for k in range(1, order + 2):
        term = np.asarray(first["A"], np.float64) @ term / k
        series.append(series[-1] + term)
    np.testing.assert_allclose(found, series[order], rtol=1e-5)
    assert not np.allclose(found, series[order + 1], rtol=1e-4)


class Dropout(NnxBlock):
    def __init__(self, width, hidden, *, rngs):
        super().__init__(width, hidden, rngs=rngs)
        self.dropout = nnx.Dropout(0.1, rngs=rngs)


class Normalised(linen.Module):
    width: int
    hidden: int

    @linen.compact
    def __call__(self, h):
        return h + linen.BatchNorm(use_running_average=False)(h)


class OfOneSize(nnx.Module):
    def __init__(self, width):
        self.W = nnx.Param(jnp.zeros((width, width)))


def half(key, width, hidden):
    return {"inner": {"W": jnp.zeros((width, width), jnp.bfloat16)}}


BAD = {
    "a function": (apply, "neither a Flax module's class nor a pair"),
    "one of three": ((init, apply, apply), "neither a Flax module's class nor a pair"),
    "another class": (dict, "neither a Flax module's class nor a pair"),
    "other arguments": (OfOneSize, "unexpected keyword argument 'hidden'"),
    "dropout": (Dropout, r"state besides its parameters \(RngCount, RngKey\)"),
    "batch statistics": (Normalised, r"state besides its parameters \(batch_stats\)"),
    "no parameters": ((lambda key, width, hidden: {}, lambda params, h: h), "has no parameters"),
    "half precision": ((half, lambda params, h: h), "parameter inner.W of bfloat16"),
    "another width": ((init, lambda params, h: h[:2]), r"maps a state float32\[4\] to float32\[2\]"),
    "another type": ((init, lambda params, h: h.astype(jnp.bfloat16)), r"to bfloat16\[4\]"),
    "two states": ((init, lambda params, h: (h, h)), "to tuple"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_block_is_told_why(name):
    kind, reason = BAD[name]
    assert re.search(reason, complaint(kind))


@pytest.mark.parametrize("kind", [Block, NnxBlock, LinenBlock, (init, apply)])
def test_what_is_a_block_is_let_through(kind):
    assert complaint(kind) == ""


def complaint(kind) -> str:
    """What is said against a block; empty if it is let through."""
    try:
        blocks.check(blocks.functions(kind, **SIZES), 4)
    except TypeError as error:
        return str(error)
    return ""


def test_flops_are_those_of_the_matrices_and_little_more():
    matrices = 4.0 * 64 * 256
    assert matrices < blocks.flops(blocks.functions(Block, width=64, hidden=256), 64) < 1.1 * matrices
    assert blocks.flops(blocks.functions(Block, width=64, hidden=512), 64) > 1.9 * matrices
