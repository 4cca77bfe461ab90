"""What waits to be written is bounded, and neither a slow nor a failing writer holds anybody up for good."""

import threading
import time
from types import SimpleNamespace

import jax
import pytest

from toydepth import checkpoint, ensemble, recorder, store
from toydepth.recorder import FolderRecorder, fresh_state


@pytest.fixture
def made(tmp_path, tiny, monkeypatch):
    """A recorder whose bound is three states, a member, and its state."""
    member = ensemble.Member("a", tiny())
    state = jax.device_get(fresh_state(member.shape, jax.random.key(0), member.hyper))
    held = recorder.tree_bytes(recorder._with_progress(member, state))
    monkeypatch.setattr(recorder, "WAITING_BYTES", 3 * held)
    store.run_folder(tmp_path, "a").mkdir(parents=True)
    made = FolderRecorder(tmp_path, 1.0, 1, "test", jax.devices())
    yield SimpleNamespace(recorder=made, member=member, state=state)
    made.close()


def test_no_more_waits_to_be_written_than_the_bound(made, monkeypatch):
    gate, written, reported = threading.Event(), [], []

    def save_step(folder, step, tree, notes):
        gate.wait()
        written.append(step)

    monkeypatch.setattr(checkpoint, "save_step", save_step)

    def report():
        for step in range(10):
            made.member.step = step
            made.recorder.checkpoint(made.member, made.state)
            reported.append(step)

    thread = threading.Thread(target=report)
    thread.start()
    thread.join(0.3)
    before = len(reported)
    gate.set()
    thread.join()
    assert before <= 3 and len(reported) == 10
    made.recorder.flush()
    assert written == list(range(10))


def test_a_writer_that_fails_lets_everybody_go_on(made, monkeypatch):
    def full(folder, step, tree, notes):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_step", full)
    monkeypatch.setattr(store, "write_status", full)
    for step in range(10):
        made.member.step = step
        made.recorder.checkpoint(made.member, made.state)
    made.recorder.flush()
    assert made.recorder.failures == {"a"}
    assert made.recorder.interrupted()  # there is nothing left that could be written


def test_the_bar_does_not_ask_the_clock_on_the_wall(made, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: -1e9)
    made.recorder.progress(0.5)
    assert 0 <= made.recorder.bar.format_dict["elapsed"] < 1000
