"""What is measured: the works of all problems, and their sizes. Imports no JAX."""

from __future__ import annotations

from typing import Any

from .depth_work import DepthWork
from .tasks_work import TasksWork
from .time_work import TimeWork
from .width_work import WidthWork
from .work import Work

_PUBLISHED: dict[str, Any] = {
    "loss": "kl",
    "width": 32,
    "hidden": 128,
    "vocab": 128,
    "teacher_depth": 128,
    "batch": 1024,
    "kinds": ("independent",),
    "seeds": (0,),
}
WORKS: dict[str, Work[Any]] = {
    work.name: work
    for work in (
        DepthWork("W1", 120, **_PUBLISHED, depths=(16,), temperatures=(1.0,)),
        DepthWork("W2", 24, **_PUBLISHED, depths=(6, 12, 16, 24, 32, 48), temperatures=(0.1, 0.3, 1.0, 3.0)),
        DepthWork(
            "W3",  # sweeps/alpha_quick.yaml, from zero and with Adam
            steps=40,
            loss="mse",
            width=16,
            hidden=64,
            vocab=128,
            teacher_depth=64,
            batch=512,
            kinds=("tied", "independent"),
            seeds=(0, 1, 2),
            depths=(2, 4, 8, 16),
            temperatures=(1.0,),
        ),
        TimeWork(
            "T1",
            steps=250,
            width=32,
            vocab=128,
            batch=1024,
            seeds=(0,),
            temperatures=(1e-4, 1e-3, 3e-3, 1e-2),
            rates=(0.0081, 0.0152, 0.023, 0.0433, 0.081, 0.152),
        ),
        WidthWork(
            "M1",  # sweeps/width_quick.yaml, at a constant rate
            steps=200,
            count=1000,
            exponent=1.0,
            batch=512,
            decay=-1.0,
            lr=0.01,
            seeds=(0,),
            widths=(10, 15, 25, 39, 63, 100),
        ),
        TasksWork(
            "K1",  # most of sweeps/tasks_phase.yaml, at a constant rate
            steps=200,  # soon afterwards Adam is unstable at this rate, and rounding errors grow up to 0.3 % of a loss
            count=16,
            features=8,
            inputs=256,
            alpha=1.0,
            clip=1.0,
            lr=0.01,
            seeds=(0,),
            betas=(0.9, 1.9),
            widths=(2, 4, 8, 16, 24, 32, 48, 64, 96),
        ),
    )
}
