"""Forked processes that a test may kill, starve or give a disk of their own.

A fork has imported everything already, so that it costs milliseconds where a new process costs
seconds. What it breaks, it breaks for itself alone.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import traceback
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_FORK = multiprocessing.get_context("fork")
_NEW_MOUNTS, _PRIVATE, _REMOUNT_READ_ONLY = 0x20000, 0x44000, 0x21
_ADMIN = 21  # the number of the right to mount
_RESIDENT, _WRITABLE = 1, 5  # columns of /proc/self/statm
_MMAP_THRESHOLD = -3  # as glibc has it
_SMALLEST = 1 << 16  # bytes


@contextmanager
def child(job: Callable[..., object], *given: object) -> Iterator[Any]:
    """A process that runs a function; it is killed at the end."""
    process = _FORK.Process(target=job, args=given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def in_a_child(job: Callable[..., Any], *given: object, seconds: float = 120) -> Any:
    """What a function gives in a forked process; the error it raises there is raised here."""
    ours, theirs = _FORK.Pipe(duplex=False)
    with ours, child(_tell, theirs, job, given) as process:
        theirs.close()
        if not ours.poll(seconds):
            pytest.fail(f"the process hung for {seconds} seconds")
        try:
            error, found = ours.recv()
        except EOFError:
            process.join()
            pytest.fail(f"the process ended with {process.exitcode}")
    if error is not None:
        raise error
    return found


def _tell(pipe: Any, job: Callable[..., Any], given: tuple[object, ...]) -> None:
    try:
        answer = None, job(*given)
    except BaseException as error:  # noqa: BLE001 - raised again by the parent
        error.add_note(traceback.format_exc())
        answer = error, None
    pipe.send(answer)


# --- memory --------------------------------------------------------------------------------------


def limit_memory(mb: float) -> None:
    """Let this process have so much writable memory in addition to what it has.

    What it has freed and kept, as processes of long test runs have, is taken first, so that no
    block of `_SMALLEST` or more is made of it. Address space that glibc merely reserves for
    threads, 64 MB at a time, does not count: with it more memory could serve less.
    """
    libc = ctypes.CDLL(None)
    libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    n_bytes = 1 << 23
    libc.mallopt(_MMAP_THRESHOLD, n_bytes)
    _limit_growth(0)
    while n_bytes >= _SMALLEST:
        if not libc.malloc(n_bytes):
            n_bytes //= 2
    _limit_growth(int(mb * 2**20))


def _limit_growth(n_bytes: int) -> None:
    """Let this process have so much writable memory in addition to what it has."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (_n_bytes(_WRITABLE) + n_bytes, hard))


def resident_mb() -> float:
    """How much memory this process occupies."""
    return _n_bytes(_RESIDENT) / 2**20


def _n_bytes(column: int) -> int:
    """How much memory of one kind this process has."""
    pages = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[column])
    return pages * resource.getpagesize()


# --- disks ---------------------------------------------------------------------------------------


def small_disk(folder: Path, size: str) -> None:
    """Put a file system of that size on a folder, for this process alone."""
    libc = ctypes.CDLL(None, use_errno=True)
    nothing, where = ctypes.c_char_p(b"none"), ctypes.c_char_p(os.fsencode(folder))
    _check(libc.unshare(_NEW_MOUNTS))
    _check(libc.mount(nothing, ctypes.c_char_p(b"/"), None, ctypes.c_ulong(_PRIVATE), None))
    options = ctypes.c_char_p(f"size={size}".encode())
    _check(libc.mount(nothing, where, ctypes.c_char_p(b"tmpfs"), ctypes.c_ulong(0), options))


def make_read_only(folder: Path) -> None:
    """Let nobody write to the file system that `small_disk` put there, not even root."""
    libc = ctypes.CDLL(None, use_errno=True)
    where = ctypes.c_char_p(os.fsencode(folder))
    _check(libc.mount(None, where, None, ctypes.c_ulong(_REMOUNT_READ_ONLY), None))


def _check(result: int) -> None:
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _can_mount() -> bool:
    status = Path("/proc/self/status")
    lines = status.read_text(encoding="utf-8").splitlines() if status.is_file() else []
    rights = [int(line.split()[1], 16) for line in lines if line.startswith("CapEff")]
    return any(each >> _ADMIN & 1 for each in rights)


needs_mount = pytest.mark.skipif(not _can_mount(), reason="may not mount a small disk: be root")
