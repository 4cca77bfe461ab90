"""What YAML files can compute: `${toydepth.NAME:arguments}`. Imports no JAX."""

from __future__ import annotations

import zlib

from .config import ConfigError


def seed(*parts: float | str) -> int:
    """A 32-bit seed made of numbers and words, the same on every machine; 1 and 1.0 are one number.

    `teacher.seed: ${toydepth.seed:${seed},${target.temperature}}` gives each replicate a teacher of its own at every
    temperature.
    """
    return zlib.crc32(repr([float(part) if isinstance(part, int | float) else part for part in parts]).encode())


def logspace(low: float, high: float, count: int) -> str:
    """`count` numbers from 10^low to 10^high at equal ratios, as a swept field's values: `0.01,0.1,1`.

    Six significant digits: they can be typed, and no machine's last bit decides a run's id or a seed made of them.

    Raises:
        ConfigError: the ends are no numbers, or the count is no whole number above 1.
    """
    given = f"toydepth.logspace:{low},{high},{count}"
    if not all(isinstance(end, int | float) for end in (low, high)) or not isinstance(count, int) or count < 2:
        raise ConfigError(f"{given}: allowed is the exponents of two ends, and a count of at least 2")
    return ",".join(f"{10 ** (low + (high - low) * i / (count - 1)):.6g}" for i in range(count))
