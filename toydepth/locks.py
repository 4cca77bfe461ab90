"""Which process trains what in a sweep's folder, so that no two train the same run.

A process notes the runs it trains in a file of its own, `.training-*`, and keeps that file locked (`flock`); the kernel
unlocks it when the process ends, in whatever way. Who reads and then changes what all share does so in turn, holding
`.lock`. Both files are gone when nobody trains. On a file system without locks all goes on, unlocked, with a warning.
"""

from __future__ import annotations

import errno
import fcntl
import functools
import json
import logging
import os
import platform
import secrets
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """A living process that trains runs of a sweep's folder."""

    host: str
    pid: int
    since: str  # local time

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


class Claim:
    """The runs that this process may train in a sweep's folder, until the `with` block ends.

    Args:
        folder: the sweep's folder.
        wanted: {run id: the ids of all that must be trained for it, its own included}; it is had whole or not at all.

    Attributes:
        runs: those of the wanted runs of which nothing is in other hands.

    Raises:
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, wanted: Mapping[str, Collection[str]]):
        self._path = folder / f".training-{secrets.token_hex(4)}"
        with turn(folder):
            taken = holders(folder)
            self.runs = {run for run, ids in wanted.items() if taken.keys().isdisjoint(ids)}
            for dead in {*_claims(folder), *folder.glob(".part.training-*")} - set(_living(folder)):
                dead.unlink(missing_ok=True)
            self._file = self._write({id for run in self.runs for id in wanted[run]})

    def __enter__(self) -> Claim:
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):  # a folder that has become read-only: without its lock the file says nothing
            self._path.unlink(missing_ok=True)
        self._file.close()

    def _write(self, ids: set[str]) -> IO[str]:
        """Writes the claim, whole and locked or not at all; returns the file, still open."""
        holder = Holder(platform.node(), os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S"))
        part = self._path.with_name(f".part{self._path.name}")
        file = part.open("w")
        try:
            _lock(file.fileno(), fcntl.LOCK_EX)
            file.write(json.dumps({"holder": asdict(holder), "runs": sorted(ids)}))
            file.flush()
            os.replace(part, self._path)
        except OSError:
            part.unlink(missing_ok=True)
            with suppress(OSError):  # what could not be written is tried once more
                file.close()
            raise
        return file


def holders(folder: Path) -> dict[str, Holder]:
    """{run id: who trains it} of a sweep's folder; only living processes count."""
    return {run: holder for holder, runs in _living(folder).values() for run in runs}


@contextmanager
def turn(folder: Path) -> Iterator[None]:
    """Waits until no other process is within such a block for the folder. Not to be nested.

    Raises:
        OSError: the folder cannot be written to.
    """
    path = folder / ".lock"
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        _lock(file, fcntl.LOCK_EX)
        if _is(path, file):
            break
        os.close(file)  # it was removed by whoever had it before
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        os.close(file)


def _claims(folder: Path) -> Iterator[Path]:
    return folder.glob(".training-*")


def _living(folder: Path) -> dict[Path, tuple[Holder, list[str]]]:
    """The claims whose processes are alive, and what they say."""
    found = {}
    for path in _claims(folder):
        with suppress(OSError, ValueError, TypeError, KeyError), path.open() as file:
            if not _lock(file.fileno(), fcntl.LOCK_SH | fcntl.LOCK_NB):
                said = json.load(file)
                found[path] = Holder(**said["holder"]), said["runs"]
    return found


def _lock(file: int, how: int) -> bool:
    """Locks an open file; False if that would be to wait and `how` forbids it. True where there are no locks."""
    try:
        fcntl.flock(file, how)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        _warn(error.strerror)
    return True


@functools.cache
def _warn(reason: str) -> None:
    log.warning("runs are not locked (%s): let no second process train in the same folder", reason)


def _is(path: Path, file: int) -> bool:
    """Whether an open file is the one that lies at a path."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(file))
    except FileNotFoundError:
        return False
