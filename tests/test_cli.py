"""The command line as a user types it. Training is stood in for, so that nothing here compiles or imports JAX."""

import logging
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from omegaconf.errors import OmegaConfBaseException
from typing_commands import files, training, typed

from toydepth.config import ConfigError

__all__ = ["training"]  # a fixture


# --- requests that are refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words", ["", "bogus", "fit", "fit nowhere", "report", "report nowhere", "fit . --floor=low", "fit . --bogus"]
)
def test_other_wrong_requests(training, capfd, words):
    assert typed(words) == (2 if words else 0)
    assert len(capfd.readouterr().err.splitlines()) == (1 if words else 0)
    assert files() == []


def test_another_launcher_is_refused(training, capfd):
    assert typed("run hydra/launcher=basic") == 2
    assert capfd.readouterr().err == "toydepth: hydra/launcher: allowed is only toydepth (runs are trained together)\n"
    assert training.calls == []


def test_the_traceback_is_there_for_who_asks(training, monkeypatch):
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ConfigError, match=r"student\.depth=0"):
        typed("run student.depth=0")
    assert os.environ["HYDRA_FULL_ERROR"] == "1"


# --- how a command ends -----------------------------------------------------------------------------------------


def test_the_exit_code_is_the_sweeps(training):
    training.exit_code = 1
    assert typed("run") == 1


def ends_with(error: BaseException) -> Any:
    def act(on_folder: Any) -> None:
        raise error

    return act


def test_a_refusal_by_the_sweep_is_one_line(training, capfd):
    training.act = ends_with(ConfigError("train.steps=3: outputs/a holds runs with 4; choose another sweep.name="))
    assert typed("run train.steps=3") == 2
    assert len(capfd.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("error", [KeyError("a"), ValueError("b"), OmegaConfBaseException("c")])
def test_an_error_of_our_own_is_not_called_a_wrong_request(training, error):
    training.act = ends_with(error)
    with pytest.raises(type(error)):
        typed("run")


def test_an_error_of_our_own_exits_with_1_and_a_traceback(tmp_path):
    code = "from toydepth import cli; cli.COMMANDS['run'] = lambda words: 1 / 0; raise SystemExit(cli.main(['run']))"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 1
    assert "ZeroDivisionError" in ended.stderr


def test_interrupts_have_their_own_exit_codes(training, capfd):
    training.act = ends_with(KeyboardInterrupt())
    assert typed("run") == 130
    training.act = lambda on_folder: os.kill(os.getpid(), signal.SIGTERM)
    handler = signal.getsignal(signal.SIGTERM)
    assert typed("run") == 143
    assert signal.getsignal(signal.SIGTERM) is handler
    assert capfd.readouterr().err.count("interrupted") == 2


def test_a_run_logs_short_lines_and_none_from_absl(training, capsys):
    def act(on_folder: Any) -> None:
        for name in ("absl", "jax._src", "orbax.x", "flax", "toydepth"):
            logging.getLogger(name).info(f"{name} info")
        logging.getLogger("absl").setLevel(logging.INFO)  # as importing absl does
        logging.getLogger("absl").warning("absl warning")
        logging.getLogger("jax._src").warning("jax warning")

    training.act = act
    assert typed("run seed=0,1") == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == ["toydepth info", "jax warning"]
    assert len(logging.getLogger().handlers) == 1
    assert files() == []


# --- looking ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--help", ["toydepth run", "toydepth plan", "toydepth fit"]),
        ("run --help teacher=tied", ["alpha_quick", "teacher=blocks | ", "teacher.kind=tied ", "at least 1"]),
        ("plan --cfg job teacher=tied", ["kind: tied", "depth: 8"]),
        ("run --cfg hydra --package hydra.launcher", ["ToydepthLauncher"]),
        ("run --info defaults", ["problem/depth"]),
        ("fit --help", ["--x", "--range", "--floor", "--by", "--where", "--best-over", "--out"]),
    ],
)
def test_looking_costs_nothing(training, capsys, words, shown):
    assert typed(words) == 0
    out = capsys.readouterr().out
    assert all(part in out for part in shown)
    assert training.calls == []
    assert files() == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("toydepth ", "run plan fit report law probe"),
        ("toydepth p", "plan probe"),
        ("toydepth run teacher=", "teacher=blocks teacher=independent teacher=mixed teacher=tied"),
        ("toydepth plan teacher=tied student.d", "student.depth="),
        ("toydepth run +sweeps=alpha", "+sweeps=alpha +sweeps=alpha_quick"),
        ("toydepth fit ", ""),
    ],
)
def test_tab_completion(training, capsys, monkeypatch, line, expected):
    monkeypatch.setenv("COMP_LINE", line)
    assert typed("-sc query=bash") == 0
    assert capsys.readouterr().out.strip() == expected


def test_nothing_imports_jax_before_it_is_needed(tmp_path):
    lines = ["--help", "run --help", "plan --cfg job", "fit --help", "run student.depth=0", "fit nowhere"]
    code = "import sys; from toydepth.cli import main; codes = [main(line.split()) for line in sys.argv[1:]]"
    code += "; print(codes, 'jax' in sys.modules)"
    ended = subprocess.run([sys.executable, "-c", code, *lines], cwd=tmp_path, capture_output=True, text=True)
    assert ended.stdout.splitlines()[-1:] == ["[0, 0, 0, 0, 2, 2] False"], ended.stderr


def test_python_m_toydepth_is_toydepth(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "toydepth", "run", "teacher=foo"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "toydepth: teacher=foo: allowed is one of blocks, independent, mixed, tied\n"
