"""toydepth: how does loss fall with depth, and why? A JAX instrument for neural-scaling toy experiments."""

from typing import Any

__all__ = ["ConfigError", "RunConfig", "parse", "train"]


def __getattr__(name: str) -> Any:
    """Loads what is asked for when it is asked for, so that fitting and help texts need no JAX."""
    if name in ("ConfigError", "RunConfig", "parse"):
        from . import config

        return getattr(config, name)
    if name == "train":
        from .sweep import train

        return train
    raise AttributeError(f"module 'toydepth' has no attribute {name!r}")
