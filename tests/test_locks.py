"""Claims on runs: one process each, whole or not at all, gone with the process; turns; file systems without locks."""

import errno
import fcntl
import logging
import os
import subprocess
import sys
import threading

import pytest

from toydepth import locks
from toydepth.locks import Claim, holders, turn

ANOTHER = """
import sys
from pathlib import Path
from toydepth.locks import Claim
with Claim(Path(sys.argv[1]), {"a": ["a"], "c": ["a", "b", "c"]}):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def another(tmp_path):
    """Another process, which holds a, b and c."""
    words = [sys.executable, "-c", ANOTHER, str(tmp_path)]
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_what_another_process_holds_is_left_and_the_rest_is_had_whole(tmp_path, another):
    with Claim(tmp_path, {"b": ["b"], "e": ["d", "e"], "f": ["a", "f"]}) as claim:
        assert claim.runs == {"e"}  # f grows from a
        found = holders(tmp_path)
        assert found.keys() == {"a", "b", "c", "d", "e"}
        assert found["a"].pid == another.pid != os.getpid() == found["e"].pid
        assert str(found["a"]).startswith(f"process {another.pid} on ")
        with Claim(tmp_path, {"d": ["d"]}) as third:  # nor twice by one process
            assert third.runs == set()
    assert holders(tmp_path).keys() == {"a", "b", "c"}
    another.communicate("")
    assert list(tmp_path.iterdir()) == []


def test_a_killed_process_holds_nothing(tmp_path, another):
    another.kill()
    another.wait()
    assert holders(tmp_path) == {}
    assert len(list(tmp_path.iterdir())) == 1
    with Claim(tmp_path, {"a": ["a"]}) as claim:
        assert claim.runs == {"a"}
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_claim_of_a_living_process_is_passed_over(tmp_path):
    with Claim(tmp_path, {"a": ["a"]}):
        (path,) = tmp_path.glob(".training-*")
        path.write_text('{"holder": 3')
        assert holders(tmp_path) == {}


def test_turns_are_taken(tmp_path):
    inside, most, shut = [], [], []

    def take():
        for _ in range(50):
            with turn(tmp_path):
                inside.append(1)
                most.append(len(inside))
                shut.append((tmp_path / ".lock").exists())  # else somebody may come in beside
                inside.pop()

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 200 and max(most) == 1 and all(shut)
    assert list(tmp_path.iterdir()) == []


def test_without_locks_all_goes_on_with_one_warning(tmp_path, monkeypatch, caplog):
    def unsupported(file, how):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    locks._warn.cache_clear()
    with caplog.at_level(logging.WARNING), Claim(tmp_path, {"a": ["a"]}) as one, Claim(tmp_path, {"a": ["a"]}) as two:
        assert one.runs == two.runs == {"a"}
    assert len(caplog.records) == 1 and "No locks available" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_an_error(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        Claim(tmp_path / "gone", {"a": ["a"]})
