"""Two CPU devices for every test, as on a two-core laptop, settled before JAX starts; programs compiled once."""

import logging
import os
import sys

import absl.logging
import jax
import pytest

from toydepth.config import parse, resolve

jax.config.update("jax_num_cpu_devices", 2)
# When logging is configured anew, absl closes the stream that its handler holds, unless it is one of the process's own;
# here it would be the file into which pytest captures.
absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__


@pytest.fixture(autouse=True, scope="session")
def compile_cache(tmp_path_factory, worker_id):
    """Equal programs are compiled once, by whichever worker comes first, also for the commands that tests start."""
    session = tmp_path_factory.getbasetemp()
    settings = {
        "jax_compilation_cache_dir": str((session if worker_id == "master" else session.parent) / "compiled"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


@pytest.fixture(autouse=True)
def logging_as_before():
    """A command sets up logging for its process; here the next test finds it as it was."""
    root, absl_log = logging.getLogger(), logging.getLogger("absl")
    before = root.handlers[:], root.level, absl_log.handlers[:], absl_log.propagate
    yield
    root.handlers[:], root.level, absl_log.handlers[:], absl_log.propagate = before


@pytest.fixture
def without_pictures(monkeypatch):
    """Commands draw no figures and write no page, which take longer than small networks train: others' concern."""
    monkeypatch.setattr("toydepth.figures.draw", lambda *arguments: [])
    monkeypatch.setattr("toydepth.report.write", lambda derived: derived.out / "report.html")


@pytest.fixture
def tiny():
    """A function that makes resolved configs of a size that trains in a moment."""

    def make(**fields):
        tree = {
            "teacher": {"depth": 6, "width": 4, "hidden": 8},
            "student": {"depth": 2},
            "optimizer": {"name": "adam", "lr": 0.01},
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
