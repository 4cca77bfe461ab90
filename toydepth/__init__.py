"""toydepth: how does loss fall with depth, and why? A JAX instrument for neural-scaling toy experiments."""

from typing import TYPE_CHECKING

from .lazy import loader

if TYPE_CHECKING:
    from .config import ConfigError, RunConfig, parse
    from .opened import Run, open
    from .sweep import train

__all__ = ["ConfigError", "Run", "RunConfig", "open", "parse", "train"]
__getattr__ = loader(
    __name__, {"config": ("ConfigError", "RunConfig", "parse"), "opened": ("Run", "open"), "sweep": ("train",)}
)
