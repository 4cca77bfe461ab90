"""Sweeps in jobs: equal to the last bit, lost and cancelled and pre-empted jobs, what SLURM is told, refusals."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import submitit
from typing_commands import files, training, typed

from toydepth import cluster, jobs, store
from toydepth.cli import main
from toydepth.config import parse, resolve, run_id

__all__ = ["training"]  # a fixture

STEPS = 100_000  # seconds of training: enough for a signal to arrive in its middle on a busy machine
LOCAL = "hydra.launcher.executor=submitit hydra.launcher.parallel=2 hydra.launcher.cpus=1"
TINY = (
    "teacher.depth=6 teacher.width=4 teacher.hidden=8 train.batch=16 train.eval_every=2000 train.eval_batches=2 "
    f"train.checkpoint_every=5000 optimizer=adam sweep.name=s sweep.report=false student.depth=1,2 train.steps={STEPS}"
)
SWEEP = [*TINY.split(), *LOCAL.split()]


@pytest.fixture
def command(tmp_path):
    """A function that starts the sweep in an empty folder; what is left of it at the end of a test is stopped."""
    begun = []

    def start():
        words = [sys.executable, "-m", "toydepth", "run", *SWEEP]
        begun.append(subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return begun[-1]

    yield start
    for process in begun:
        process.terminate()
        process.communicate()


def runs(folder):
    return {path.name: path for path in (folder / "outputs" / "s" / "runs").glob("*")}


def results(folder):
    """{run id: its result's losses and its history} without what depends on the machine's speed."""
    found = {}
    for name, path in runs(folder).items():
        result = store.result(path)
        losses = [result.get(key) for key in ("loss", "loss_sem", "half_loss")]
        found[name] = losses, store.history(path).drop("seconds").rows()
    return found


def at_work(folder):
    """The processes of the job of depth 2: submitit's own, and the one that trains; nothing where there is none."""
    for path in (folder / "outputs" / "s" / "jobs").glob("*_submitted.pkl"):
        handle = submitit.LocalJob(path.parent, path.name.removesuffix("_submitted.pkl"))
        if "-d2-" in handle.submission().function.names[0] and not handle.paths.result_pickle.exists():
            with suppress(FileNotFoundError):
                children = Path(f"/proc/{handle.job_id}/task/{handle.job_id}/children").read_text().split()
                return int(handle.job_id), *map(int, children)
    return ()


def wait_until(process, reached):
    deadline = time.monotonic() + 300
    while not reached():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def deep(folder):
    """The folders of the runs of depth 2."""
    return [path for name, path in runs(folder).items() if "-d2-" in name]


def checkpoints(folder):
    """The steps from which runs of depth 2 can be continued."""
    return [
        int(path.name) for run in deep(folder) for path in (run / "checkpoint").glob("[1-9]*") if path.name.isdigit()
    ]


def nothing_is_lost(folder):
    """Whether every step that was evaluated is behind a checkpoint."""
    (run,) = deep(folder)
    return max(checkpoints(folder)) >= store.history(run)["step"].max()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the sweep comes to in the command's own process."""
    folder = tmp_path_factory.mktemp("undisturbed")
    before = os.getcwd()
    os.chdir(folder)
    try:
        assert main(["run", *TINY.split()]) == 0
    finally:
        os.chdir(before)
    return results(folder)


@pytest.mark.slow
def test_a_killed_job_loses_nothing_of_the_others_and_the_same_command_ends_with_the_same_numbers(
    undisturbed, command, tmp_path
):
    process = command()
    wait_until(process, lambda: checkpoints(tmp_path))
    job, trains = at_work(tmp_path)
    os.kill(trains, signal.SIGKILL)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 1
    (line,) = (line for line in said.splitlines() if "job" in line and "ended before" in line)
    assert f"job {job} ended before 1 of its 1 runs" in line and "the same command continues" in line
    assert (tmp_path / line.partition("see ")[2].partition(";")[0]).is_file()
    found = results(tmp_path)
    kept = {name for name in found if "-d1-" in name}
    assert all(
        store.result(runs(tmp_path)[name])["device"].startswith("1 x ") for name in kept
    )  # its share of the cores
    assert {name: found[name] for name in kept} == {name: undisturbed[name] for name in kept}
    stamps = {name: (runs(tmp_path)[name] / "result.json").stat().st_mtime_ns for name in kept}

    process = command()
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0 and "2 done (1 of them before)" in said, said
    assert results(tmp_path) == undisturbed
    assert {name: (runs(tmp_path)[name] / "result.json").stat().st_mtime_ns for name in kept} == stamps


@pytest.mark.slow
def test_a_pre_empted_job_checkpoints_and_starts_again_and_a_cancelled_one_checkpoints(undisturbed, command, tmp_path):
    process = command()
    wait_until(process, lambda: checkpoints(tmp_path))
    job, first = at_work(tmp_path)
    os.kill(first, signal.SIGUSR2)
    wait_until(process, lambda: len(at_work(tmp_path)) == 2 and at_work(tmp_path) != (job, first))
    assert "Requeued" in (tmp_path / "outputs" / "s" / "jobs" / f"{job}_0_log.out").read_text()
    stopped_at = checkpoints(tmp_path)
    assert max(stopped_at) < STEPS and nothing_is_lost(tmp_path)
    lines = {path: (path / "history.jsonl").read_text().splitlines() for path in deep(tmp_path)}

    wait_until(process, lambda: max(checkpoints(tmp_path)) > max(stopped_at))
    both = at_work(tmp_path)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 143
    assert said.splitlines()[-1] == "interrupted; the same command continues where this one stopped"
    assert [pid for pid in both if Path(f"/proc/{pid}").exists()] == []
    assert max(checkpoints(tmp_path)) < STEPS and nothing_is_lost(tmp_path)

    process = command()
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    assert results(tmp_path) == undisturbed
    for path, before in lines.items():
        assert (path / "history.jsonl").read_text().splitlines()[: len(before)] == before  # seconds included


def test_a_job_is_what_is_compiled_together_and_chains_of_growth_stay_whole():
    zero = [{"student": {"depth": depth}, "seed": seed} for depth in (2, 4) for seed in (0, 1)]
    chain = [{"student": {"depth": depth, "init": "grow"}, "seed": seed} for depth, seed in ((4, 0), (8, 0), (8, 1))]
    apart = {"student": {"depth": 4}, "train": {"batch": 128}}
    configs = {run_id(config): config for config in (resolve(parse(tree)) for tree in [*zero, *chain, apart])}
    found = [sorted(configs[name].student.depth for name in part) for part in jobs.parts(configs)]
    assert sorted(found) == [[2, 2, 4, 8, 8], [4], [4, 4]]  # grown ones begin at depth 2
    assert found[0] == [2, 2, 4, 8, 8]  # most work first


def test_the_plan_says_how_many_jobs_there_would_be(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toydepth.forecast.CALIBRATION_SECONDS", 0.05)
    assert main(["plan", *SWEEP]) == 0
    assert "2 local jobs, 2 at a time, each with 1 core" in capsys.readouterr().out
    assert files() == []


def test_local_jobs_share_the_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 4, 5, 6, 7}, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def shares(jobs_, **fields):
        return [place.cores for place in jobs.places(cluster.Cluster(**fields), jobs_)]

    assert shares(2) == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert len(shares(20)) == 8
    assert shares(20, cpus=3) == [(0, 1, 2), (3, 4, 5)]
    gpus = jobs.places(cluster.Cluster(gpus_per_node=2, parallel=2), 5)
    assert [place.gpus for place in gpus] == ["0,1", "2,3"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("executor=dask", "hydra.launcher.executor=dask: allowed is one of inprocess, submitit"),
        ("hours=0", "hydra.launcher.hours=0: allowed is a finite number above 0"),
        ("gpus_per_node=-1", "hydra.launcher.gpus_per_node=-1: allowed is a whole number, at least 0"),
        ("sbatch=exclusive", "hydra.launcher.sbatch=exclusive: allowed is flags"),
        ("cluster=slurm", "hydra.launcher.cluster=slurm: allowed is local on a machine that has no srun"),
        ("cpus=4096", "hydra.launcher.cpus=4096: allowed is at most"),
        ("partitoin=gpu", "partitoin"),
    ],
)
def test_wrong_requests_are_one_line_and_leave_nothing(training, capfd, words, said):
    line = "hydra.launcher.executor=submitit " if not words.startswith("executor") else ""
    assert typed(f"run {line}hydra.launcher.{words}") == 2
    err = capfd.readouterr().err
    assert said in err and len(err.splitlines()) == 1
    assert (training.calls, files()) == ([], [])


def test_submitit_is_asked_for_by_name_where_it_is_missing(training, capfd, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert typed("run hydra.launcher.executor=submitit") == 2
    assert capfd.readouterr().err.endswith("unless submitit is installed: pip install toydepth[cluster]\n")
    assert typed("run") == 0


SBATCH = "#!/bin/sh\ncp $1 $(dirname $0)/submitted\necho sbatch: error: invalid partition >&2\nexit 1\n"


def test_slurm_is_told_what_the_fields_say_and_what_it_refuses_is_one_line(tmp_path, monkeypatch, capfd):
    for name, text in (("srun", "#!/bin/sh\n"), ("sbatch", SBATCH)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.chdir(tmp_path)
    fields = {
        "executor": "submitit", "cluster": "slurm", "partition": "gpu", "account": "physics", "hours": 1.5,
        "gpus_per_node": 2, "cpus": 8, "memory_gb": 32, "parallel": 4, "setup": "module load cuda",
        "sbatch": "--constraint=a100 --exclusive",
    }  # fmt: skip
    words = [f"hydra.launcher.{name}={value!r}" for name, value in fields.items()]
    assert main(["run", *TINY.split(), *words]) == 2
    assert capfd.readouterr().err.splitlines()[-1] == (
        "toydepth: hydra.launcher.cluster=slurm: sbatch: error: invalid partition"
    )
    told = (tmp_path / "submitted").read_text().splitlines()
    for flag in shlex.split(
        "partition=gpu account=physics time=90 gpus-per-node=2 cpus-per-task=8 mem=32GB array=0-1%2 constraint=a100 "
        "exclusive nodes=1 ntasks-per-node=1 job-name=toydepth-s"
    ):
        assert f"#SBATCH --{flag}" in told
    assert "module load cuda" in told
    assert any(line.startswith("srun ") and "--cpus-per-task=8" in line for line in told)
    # runs are resolved for the GPUs of their jobs, whatever this machine has
    assert {store.config(path).runtime.batching for path in runs(tmp_path).values()} == {"vmap"}
