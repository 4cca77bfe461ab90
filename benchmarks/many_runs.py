"""Many runs: how long `toydepth fit` takes over thousands of folders, and what hundreds of tiny runs need.

    python -m benchmarks.many_runs fit 5000      # synthetic results in the real layout
    python -m benchmarks.many_runs train 500     # seeds x rates, 20 steps each

Prints one JSON object. The folders lie in a temporary place and are removed.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from toydepth import files, store
from toydepth.config import parse, resolve, run_id

KINDS, DEPTHS, SEEDS = {"tied": 2.9, "independent": 1.1}, (2, 3, 4, 6, 8), 20
EVALUATIONS = 20
TINY = ["teacher=tied", "teacher.depth=6", "teacher.width=4", "train.batch=16", "train.steps=20", "optimizer=adam"]


def write(folder: Path, runs: int) -> None:
    """Results of a sweep over teachers, depths, seeds and rates, as training leaves them (without parameters)."""
    noise = np.random.default_rng(0)
    rates = np.geomspace(1e-4, 1e-1, runs // (len(KINDS) * len(DEPTHS) * SEEDS))
    for kind, alpha in KINDS.items():
        for depth in DEPTHS:
            for seed in range(SEEDS):
                for lr in rates:
                    tree = {"teacher": {"kind": kind}, "student": {"depth": depth}, "seed": seed}
                    config = resolve(parse(tree | {"optimizer": {"lr": float(lr)}}))
                    run = folder / "runs" / run_id(config)
                    store.write_config(run, config)
                    _write_result(run, depth**-alpha * np.exp(0.05 * noise.standard_normal()))


def _write_result(run: Path, loss: float) -> None:
    (run / "twin").mkdir()
    scores = {"loss": loss, "loss_sem": loss / 50, "loss_first": loss, "loss_second": loss}
    result: dict[str, Any] = {"status": "done", **scores, "steps": 8000, "parameters": 5000, "flops": 1e12}
    result |= {"half_loss": 1.1 * loss, "slope": -0.14, "converged": False, "seconds": 10.0, "compile_seconds": 1.0}
    rows = [{"step": 400 * i, "lr": 0.01, "tau": 4.0 * i, "seconds": 0.5 * i} for i in range(EVALUATIONS + 1)]
    lines = [json.dumps(row | {"loss": loss, "loss_sem": loss / 50, "train_loss": loss}) for row in rows]
    for folder in (run, run / "twin"):
        (folder / "history.jsonl").write_text("\n".join(lines) + "\n")
        files.write_json(folder / "result.json", result | {"commit": "abc1234"}, durable=False)
    files.write_json(run / "status.json", {"status": "done", "message": "", "step": 8000}, durable=False)


def _typed(*words: str) -> float:
    """Seconds that a command took, as one would type it."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-m", "toydepth", *words], check=True, stdout=sys.stderr)
    return time.perf_counter() - start


def fit(runs: int) -> dict[str, Any]:
    """Seconds of a first fit, which draws the figures, of one more, and of a fit of the best rates."""
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / "sweep"
        write(folder, runs)
        found = {"runs": sum(1 for _ in (folder / "runs").iterdir())}
        seconds = {"fit_seconds": _typed("fit", str(folder)), "again_seconds": _typed("fit", str(folder))}
        return found | seconds | {"best_seconds": _typed("fit", str(folder), "--best-over", "lr")}


def train(runs: int) -> dict[str, Any]:
    """Seconds and memory of a sweep over 25 seeds and as many rates as that takes, and its folders."""
    with tempfile.TemporaryDirectory() as root:
        rates = ",".join(f"{lr:.3g}" for lr in np.geomspace(1e-4, 1e-2, runs // 25))
        seeds = ",".join(map(str, range(25)))
        swept = [f"optimizer.lr={rates}", f"seed={seeds}", "sweep.name=many", f"sweep.root={root}"]
        seconds = _typed("run", *TINY, *swept)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        statuses = [store.status(run) for run in (Path(root) / "many" / "runs").iterdir()]
        return {"folders": len(statuses), "done": statuses.count("done"), "seconds": seconds, "peak_gb": peak / 1e9}


if __name__ == "__main__":
    print(json.dumps({"fit": fit, "train": train}[sys.argv[1]](int(sys.argv[2])), indent=1))
