"""Somebody's own code: a block, a teacher or a problem that a config names by file or by module. Imports no JAX.

my_block.py:MyBlock     a name in a file, looked for from the current folder
package.module:MyBlock  a name in a module that Python finds
my_problem.py           a whole file
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import sys
import traceback
import types
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .fields import ConfigError


def file_of(field: str, reference: str) -> Path:
    """The file that a reference speaks of.

    Raises:
        ConfigError: there is none; the message names the field.
    """
    place = reference.rpartition(":")[0] if ":" in reference else reference
    if place.endswith(".py"):
        path = Path(place)
        if not path.is_file():
            raise ConfigError(f"{field}={reference}: there is no file {path.absolute()}")
        return path
    with _importable(Path()):
        try:
            spec = importlib.util.find_spec(place)
        except (ImportError, ValueError, AttributeError):
            spec = None
    if spec is None or not spec.origin or not Path(spec.origin).is_file():
        raise ConfigError(f"{field}={reference}: Python finds no module {place}; a file is named as {place}.py:Name")
    return Path(spec.origin)


def source_hash(references: Mapping[str, str]) -> str | None:
    """A hash of the files that {field: reference} speak of, not of what they import; None for no references."""
    if not references:
        return None
    digest = hashlib.sha256()
    for field, reference in sorted(references.items()):
        digest.update(file_of(field, reference).read_bytes())
    return digest.hexdigest()[:8]


def load(field: str, reference: str) -> Any:
    """What a reference names: the object behind the colon, or the module of a whole file.

    A file is run once for each of its contents, so that what is loaded twice is the same object.

    Raises:
        ConfigError: it cannot be imported, or has no such name; the message names the field.
    """
    path = file_of(field, reference)
    place, colon, name = reference.rpartition(":")
    try:
        if (place or reference).endswith(".py"):
            module = _module(path.resolve(), path.read_bytes())
        else:
            module = _imported(place, path)
    except (Exception, SystemExit) as error:  # a script may end itself when it is imported
        line = next(
            (
                f.lineno
                for f in reversed(traceback.extract_tb(error.__traceback__))
                if f.filename == str(path.resolve())
            ),
            None,
        )
        where = f" (line {line})" if line else ""
        raise ConfigError(f"{field}={reference}: cannot be imported: {type(error).__name__}: {error}{where}") from error
    if not colon:
        return module
    if not hasattr(module, name):
        names = [known for known, value in vars(module).items() if _own(module, known, value)]
        raise ConfigError(f"{field}={reference}: {path} has no {name}; it has {', '.join(names) or 'no names'}")
    return getattr(module, name)


def _own(module: Any, name: str, value: Any) -> bool:
    """Whether a name is one that a module gives, and not one that it imports."""
    imported = isinstance(value, types.ModuleType) or getattr(value, "__module__", module.__name__) != module.__name__
    return not name.startswith("_") and not imported


def _imported(place: str, path: Path) -> Any:
    """A module that Python finds; refused if its file has changed since it was imported."""
    with _importable(Path()):
        module = importlib.import_module(place)
    version = hashlib.sha256(path.read_bytes()).hexdigest()
    if _versions.setdefault(place, version) != version:
        raise ImportError(f"{path} has changed since it was imported; start Python anew")
    return module


_versions: dict[str, str] = {}  # of modules, when they were first loaded here


@functools.cache
def _module(path: Path, source: bytes) -> Any:
    """The module made by running a file of this content.

    Without Python's own loader, which takes an edit of the same size within a second for none.
    """
    name = f"{path.stem}_{hashlib.sha256(source).hexdigest()[:8]}"
    module = types.ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # dataclasses look their module up there
    try:
        with _importable(path.parent):
            exec(compile(source, path, "exec"), vars(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Lets Python find the modules of a folder, as it does for a script that lies there."""
    entry = str(folder.resolve())
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        sys.path.remove(entry)
