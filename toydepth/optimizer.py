"""Optax optimizers and learning-rate schedules, built from traced hyperparameters.

Only an optimizer's name is static; rates, momenta, decay and the schedule's shape are arrays, so that one compiled
program serves every value.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, scale_by_muon

from .config import RunConfig

Tree = Any


def hyper_of(config: RunConfig) -> dict[str, float]:
    """The traced numbers of a resolved config's optimizer and schedule."""
    optimizer, schedule, scale = config.optimizer, config.schedule, config.rate_scale()
    assert optimizer.lr is not None and optimizer.adam_lr is not None and optimizer.b2 is not None
    assert optimizer.momentum is not None and optimizer.weight_decay is not None and schedule.decay_fraction is not None
    return {
        "lr": optimizer.lr * scale,
        "adam_lr": optimizer.adam_lr * scale,
        "weight_decay": optimizer.weight_decay,
        "momentum": optimizer.momentum,
        "b1": optimizer.b1,
        "b2": optimizer.b2,
        "eps": optimizer.eps,
        "steps": float(config.train.steps),
        "warmup": schedule.warmup,
        "decay": schedule.decay_fraction if schedule.name != "constant" else 0.0,
        "floor": schedule.floor,
        "cosine": float(schedule.name == "cosine"),
        "power": 0.5 if schedule.name == "inverse_sqrt" else 0.0,
        "clip": optimizer.clip or 0.0,
    }


def factor(hyper: Tree, step: Any, xp: Any = jnp) -> Any:
    """The rate at a step (0-based) as a share of the peak: warm-up, then flat or as step^-power, decay to `floor`.

    Works on traced values (`xp=jax.numpy`) and on NumPy arrays of steps (`xp=numpy`).
    """
    done = step / hyper["steps"]
    warmed = (step + 1.0) / xp.maximum(1.0, hyper["warmup"] * hyper["steps"])
    warm = xp.minimum(1.0, warmed) * xp.maximum(1.0, warmed) ** -hyper["power"]
    into = xp.clip((done - (1.0 - hyper["decay"])) / xp.maximum(hyper["decay"], 1e-9), 0.0, 1.0)
    shape = xp.where(hyper["cosine"] > 0, 0.5 * (1.0 + xp.cos(xp.pi * into)), 1.0 - into)
    return warm * (hyper["floor"] + (1.0 - hyper["floor"]) * shape)


def build(name: str, hyper: Tree, share: Any) -> optax.GradientTransformation:
    """The named optimizer at `share` of its peak rate; the structure of its state depends on the name alone.

    Muon (momentum, Nesterov, five Newton-Schulz steps, update scaled by sqrt(max(1, rows/columns))) trains each
    layer's own matrices, that is leaves [depth, rows, columns] below `layers`; biases and heads go to Adam.
    """
    lr, adam_lr = share * hyper["lr"], share * hyper["adam_lr"]
    adam = optax.scale_by_adam(hyper["b1"], hyper["b2"], hyper["eps"])
    decay = optax.add_decayed_weights(hyper["weight_decay"])
    if name == "adam":
        return optax.chain(adam, optax.scale(-lr))
    if name == "adamw":
        return optax.chain(adam, decay, optax.scale(-lr))
    if name == "sgd":
        return optax.chain(decay, optax.trace(hyper["momentum"]), optax.scale(-lr))
    assert name == "muon"
    muon = optax.chain(
        scale_by_muon(beta=hyper["momentum"], weight_dimension_numbers=matrices),
        optax.stateless(lambda updates, params: jax.tree.map(_scaled_by_shape, updates)),
        decay,
        optax.scale(-lr),
    )
    return optax.partition({"muon": muon, "adam": optax.chain(adam, optax.scale(-adam_lr))}, _labels)


def _scaled_by_shape(update: Any) -> Any:
    """A stack of matrices times sqrt(max(1, rows / columns)), so that wide and tall ones move alike."""
    _, rows, columns = update.shape
    return update * max(1.0, rows / columns) ** 0.5


def _labels(params: Tree) -> Tree:
    """muon for the leaves that `matrices` names, adam for the others."""
    return jax.tree.map(
        lambda spec: "adam" if spec is None else "muon",
        matrices(params),
        is_leaf=lambda spec: spec is None or isinstance(spec, MuonDimensionNumbers),
    )


def matrices(params: Tree) -> Tree:
    """Which leaves are stacks of layer matrices, and how Muon is to read them; None for the others."""

    def spec(path: Any, leaf: Any) -> MuonDimensionNumbers | None:
        stacked = path[0] == jax.tree_util.DictKey("layers") and leaf.ndim == 3
        return MuonDimensionNumbers(reduction_axis=2, output_axis=1) if stacked else None

    return jax.tree_util.tree_map_with_path(spec, params)
