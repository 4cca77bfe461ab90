"""Names that are loaded when they are asked for, so that fits and help texts wait for no JAX and no PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def loader(package: str, rooms: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """A package's `__getattr__`.

    Args:
        package: the package's `__name__`.
        rooms: for each of its modules, the names that the package has from it.
    """
    room_of = {name: room for room, names in rooms.items() for name in names}

    def load(name: str) -> Any:
        if name not in room_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{room_of[name]}", package), name)

    return load
