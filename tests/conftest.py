"""Two CPU devices for every test, as on a two-core laptop, settled before JAX starts."""

import jax
import pytest

from toydepth.config import parse, resolve

jax.config.update("jax_num_cpu_devices", 2)


@pytest.fixture
def tiny():
    """A function that makes resolved configs of a size that trains in a moment."""

    def make(**fields):
        tree = {
            "teacher": {"depth": 6, "width": 4, "hidden": 8},
            "student": {"depth": 2},
            "train": {"steps": 40, "batch": 16, "eval_every": 10, "eval_batches": 3, "checkpoint_every": 20},
        }
        for name, value in fields.items():
            *sections, field = name.split("__")
            at = tree
            for section in sections:
                at = at.setdefault(section, {})
            at[field] = value
        return resolve(parse(tree))

    return make
