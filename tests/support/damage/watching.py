"""Watches what a process does while it opens a file: code, processes, files, time and memory."""

from __future__ import annotations

import os
import resource
import site
import sys
import sysconfig
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Watch", "limit_memory"]

MOST_BYTES = 2 << 30  # beyond what the process had before
ROOT = Path(__file__).resolve().parents[3]
TRUSTED = tuple(
    {os.path.realpath(path) for path in (
        sys.prefix, sys.base_prefix, ROOT / "skbert", ROOT / "tests" / "support",
        *ROOT.glob("*.egg-info"), *site.getsitepackages(), *sysconfig.get_paths().values(),
    )}
)  # fmt: skip
SYSTEM = ("/dev/null", "/dev/urandom", "/proc/self/status", "/proc/self/clear_refs",
          "/proc/cpuinfo", "/proc/meminfo", "/sys/fs/cgroup/memory.max")  # fmt: skip
FORBIDDEN = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork",
             "os.startfile", "pty.", "socket.", "urllib.", "http.", "ftplib.", "smtplib.",
             "webbrowser.", "ctypes.dlopen", "pickle.find_class", "os.kill", "os.putenv",
             "code.__new__", "sys.addaudithook")  # fmt: skip
CHANGES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link", "os.chmod",
           "os.truncate", "os.utime", "os.chown", "sqlite3.connect", "shutil.")  # fmt: skip
OF_NAMES = ("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.symlink", "os.link")
# They make small functions from text that they wrote themselves.
WRITERS = ("dataclasses.py", "collections/__init__.py", "inspect.py", "functools.py", "typing.py")


class Watch:
    """Notes what must not happen while files are opened.

    Parameters
    ----------
    own : tuple of str
        Folders in which files may be read, made, changed and removed.
    """

    def __init__(self, own: tuple[str, ...]) -> None:
        self.own = tuple(map(os.path.realpath, own))
        self.readable: tuple[str, ...] = ()
        self.faults: list[str] = []
        self.is_on = False
        self.seconds, self.n_bytes = 0.0, 0
        sys.addaudithook(self._note)  # cannot be removed; notes nothing while it is off

    @contextmanager
    def watching(self, *readable: Path) -> Iterator[None]:
        """Note what must not happen meanwhile, seconds of the processor, and the most memory.

        Files in ``readable`` may be read, too.
        """
        self.faults, also = [], tuple(map(os.path.realpath, readable))
        self.readable = (*self.own, *also, *SYSTEM, *TRUSTED)
        modules = set(sys.modules)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before, begin = _memory("VmRSS"), time.process_time()
        self.is_on = True
        try:
            yield
        finally:
            self.is_on = False
            self.seconds = time.process_time() - begin
            self.n_bytes = max(0, _memory("VmHWM") - before)
            self._check_modules(set(sys.modules) - modules)
            if self.n_bytes > MOST_BYTES:
                self.faults.append(f"took {self.n_bytes} bytes")

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        self.is_on = False  # what looking does is not noted
        try:
            fault = self._fault(event, arguments)
        finally:
            self.is_on = True
        if fault:
            self.faults.append(f"{event}: {fault}"[:300])

    def _fault(self, event: str, arguments: tuple[Any, ...]) -> str:
        """What is wrong with an event; "" if nothing."""
        if event == "open":
            return self._fault_of_open(*arguments)
        if event in ("exec", "compile"):
            return _fault_of_code(*arguments)
        if event.startswith(FORBIDDEN):
            return str(arguments)
        if event.startswith(CHANGES):
            base = _folder_of(arguments[-1])  # of a handle, where there is one
            paths = [path for path in arguments if isinstance(path, str | bytes | os.PathLike)]
            real = [os.path.join(base, os.fsdecode(path)) for path in paths]  # noqa: PTH118
            astray = [path for path in real if not _is_in(path, self.own, event not in OF_NAMES)]
            return str(astray) if astray else ""
        return ""

    def _fault_of_open(self, path: Any, mode: Any, flags: Any) -> str:
        writes = isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))
        caller = sys._getframe(3).f_code  # rmtree opens folders by names in others
        if isinstance(path, int) or (caller.co_name.startswith("_rmtree_safe") and not writes):
            return ""
        allowed = self.own if writes else self.readable
        return "" if _is_in(path, allowed) else f"{path} with mode {mode}"

    def _check_modules(self, names: set[str]) -> None:
        for name in names:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and not _is_in(file, TRUSTED):
                self.faults.append(f"the module {name} was imported from {file}")


def _is_in(path: Any, folders: tuple[str, ...], follows: bool = True) -> bool:
    """Whether a path leads into a folder; without ``follows``, whether its name is there."""
    home, name = os.path.split(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100
    real = os.path.realpath(path) if follows else os.path.join(os.path.realpath(home), name)  # noqa: PTH118
    return any(real == folder or real.startswith(folder + os.sep) for folder in folders)


def _folder_of(handle: Any) -> str:
    is_handle = isinstance(handle, int) and handle >= 0
    return os.readlink(f"/proc/self/fd/{handle}") if is_handle else ""  # noqa: PTH115


def _fault_of_code(code: Any, filename: Any = None) -> str:
    """Code must come from the files of Python and its libraries, or be written by these."""
    name = filename if filename is not None else getattr(code, "co_filename", "")
    name = os.fsdecode(name) if isinstance(name, bytes | str) else ""
    if name.startswith("<frozen ") or (name.startswith("/") and _is_in(name, TRUSTED)):
        return ""
    frame: Any = sys._getframe(3)
    while frame is not None and frame.f_code.co_filename.startswith("<"):
        frame = frame.f_back
    writer = frame.f_code.co_filename if frame is not None else ""
    return "" if writer.endswith(WRITERS) else f"{name} by {writer}"


def _memory(field: str) -> int:
    with Path("/proc/self/status").open(encoding="ascii", errors="replace") as file:
        return next((int(line.split()[1]) * 1024 for line in file if line.startswith(field)), 0)


def limit_memory() -> None:
    """Let the process have no more than so many bytes beyond what it has now."""
    most = _memory("VmSize") + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
