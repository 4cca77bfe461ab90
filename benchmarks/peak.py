"""The matrix-product peak of one library on the cores of this process: float32, 2048 cubed, the best of ten."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SIZE, REPEATS = 2048, 10


def product(library: str, size: int) -> Callable[[], Any]:
    """A function that multiplies two matrices and waits for the result."""
    a, b = np.random.default_rng(0).standard_normal((2, size, size), np.float32)
    if library == "torch":
        import torch

        x, y = torch.from_numpy(a), torch.from_numpy(b)
        return lambda: x @ y
    if library == "jax":
        import jax

        u, v = jax.device_put((a, b))
        multiply = jax.jit(jax.numpy.matmul)
        return lambda: multiply(u, v).block_until_ready()
    assert library == "numpy"
    return lambda: a @ b


def gflops(library: str, size: int = SIZE) -> float:
    """GFLOP/s of the best product."""
    multiply, best = product(library, size), float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        multiply()
        best = min(best, time.perf_counter() - start)
    return 2.0 * size**3 / best / 1e9


if __name__ == "__main__":
    print(gflops(sys.argv[1], int(sys.argv[2])))
