"""Kinds of config fields: a dataclass field that carries its own check, as metadata."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import field
from typing import Any


class ConfigError(ValueError):
    """A request that cannot be run: one line naming the field, its value and what is allowed."""


def refuse(name: str, value: Any, allowed: str) -> None:
    """Raises the one-line error of a bad value."""
    shown = "null" if value is None else str(value).lower() if isinstance(value, bool) else value
    raise ConfigError(f"{name}={shown}: allowed is {allowed}")


FLOAT32 = (1.2e-38, 3.4e38)  # the smallest and the largest magnitude that training can hold
FILE = re.compile(r"[^:\0]+\.py")
REFERENCE = re.compile(r"[^:\0]+:[A-Za-z_]\w*")


def _field(default: Any, check: Callable[[Any], Any], allowed: str, matters: bool = True, code: bool = False) -> Any:
    """A dataclass field with a check.

    Args:
        default: its default.
        check: turns a value into the field's own type, or raises ValueError.
        allowed: what is allowed, in words.
        matters: whether it can change a run's numbers.
        code: whether its value may name somebody's own code.
    """
    metadata = {"check": check, "allowed": allowed, "matters": matters, "code": code}
    return field(default=default, metadata=metadata)


def _optional(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def integer(default: int | None, low: int, high: int = 2**31 - 1, **more: Any) -> Any:
    """A whole number in [low, high]; a default of None stands for a value that `resolve` fills in."""

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if not math.isfinite(value) or int(value) != value or not low <= value <= high:
            raise ValueError
        return int(value)

    null = default is None
    top = "" if high == 2**31 - 1 else f" and at most {high}"
    allowed = f"a whole number, at least {low}{top}" + (", or null" if null else "")
    return _field(default, _optional(check) if null else check, allowed, **more)


def real(
    default: float | None,
    low: float,
    high: float = math.inf,
    open_low: bool = False,
    open_high: bool = False,
    **more: Any,
) -> Any:
    """A finite number in [low, high], without an end that is open."""

    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError
        if value < low or value > high or (open_low and value == low) or (open_high and value == high):
            raise ValueError
        if value and not FLOAT32[0] <= abs(value) <= FLOAT32[1]:  # what would compute as 0 or infinity
            raise ValueError
        return float(value)

    null = default is None
    bound = f"above {low:g}" if open_low else f"at least {low:g}"
    top = "" if high == math.inf else f" and below {high:g}" if open_high else f" and at most {high:g}"
    allowed = f"a finite number {bound}{top}" + (", or null" if null else "")
    return _field(default, _optional(check) if null else check, allowed, **more)


def choice(default: str | None, *options: str, **more: Any) -> Any:
    """One of the named options."""

    def check(value: Any) -> str:
        if value not in options:
            raise ValueError
        return value

    null = default is None
    allowed = ("one of " if len(options) > 1 else "only ") + ", ".join(options) + (", or null" if null else "")
    return _field(default, _optional(check) if null else check, allowed, **more)


def name(default: str | None, **more: Any) -> Any:
    """A folder's name, not a path; null where none is given."""

    def check(value: Any) -> str | None:
        found = None if value is None else str(value).strip()
        if found is not None and (not found or found in (".", "..") or set(found) & set("/\\\0")):
            raise ValueError
        return found

    return _field(default, check, "a name without slashes, or null", **more)


def flag(default: bool, **more: Any) -> Any:
    """true or false."""

    def check(value: Any) -> bool:
        if not isinstance(value, bool):
            raise ValueError
        return value

    return _field(default, check, "true or false", **more)


def text(default: str | None, **more: Any) -> Any:
    """A path or a name; null where none is given."""

    def check(value: Any) -> str | None:
        if value is None and default is None:
            return None
        if not isinstance(value, str | int) or isinstance(value, bool) or not str(value).strip():
            raise ValueError
        return str(value)

    return _field(default, check, "a non-empty text" + (", or null" if default is None else ""), **more)


def reference(default: str, *options: str, whole: bool = False, **more: Any) -> Any:
    """One of the named options, or somebody's own code: `file.py:Name`, `module:Name`, or `file.py` if `whole`."""
    pattern, shown = (FILE, "file.py") if whole else (REFERENCE, "file.py:Name or module:Name")

    def check(value: Any) -> str:
        if value not in options and not (isinstance(value, str) and pattern.fullmatch(value)):
            raise ValueError
        return value

    allowed = f"{', '.join(options)}, or your own as {shown}"
    return _field(default, check, allowed, code=True, **more)
