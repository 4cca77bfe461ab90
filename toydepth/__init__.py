"""toydepth: how does loss fall with depth, and why? A JAX instrument for neural-scaling toy experiments."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .config import ConfigError, RunConfig, parse
    from .opened import Run, open
    from .sweep import train

__all__ = ["ConfigError", "Run", "RunConfig", "open", "parse", "train"]
_ROOMS = {"train": ".sweep", "open": ".opened", "Run": ".opened"}


def __getattr__(name: str) -> Any:
    """Loads what is asked for when it is asked for, so that fitting and help texts need no JAX."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'toydepth' has no attribute {name!r}")
    return getattr(import_module(_ROOMS.get(name, ".config"), __name__), name)
