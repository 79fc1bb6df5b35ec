"""What opening a file must never do, done on purpose, so that a test sees the watch notice it."""

from __future__ import annotations

import importlib
import os
import pickle
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["WRONGS"]


def run_code(folder: Path) -> None:
    exec(compile("1", str(folder / "evil.py"), "exec"))


def run_text(folder: Path) -> None:
    eval("1 + 1")


def import_module(folder: Path) -> None:
    (folder / "evil_of_a_model.py").write_text("1\n")
    sys.path.insert(0, str(folder))
    try:
        importlib.import_module("evil_of_a_model")
    finally:
        sys.path.remove(str(folder))


def start_process(folder: Path) -> None:
    subprocess.run(["true"], check=True)


def run_shell(folder: Path) -> None:
    os.system("true")


def unpickle(folder: Path) -> None:
    pickle.loads(b"cos\nsystem\n.")


def read_outside(folder: Path) -> None:
    (folder.parent / "outside" / "config.json").read_bytes()


def read_by_a_link(folder: Path) -> None:
    (folder / "link").symlink_to(folder.parent / "outside" / "config.json")
    (folder / "link").read_bytes()


def write_outside(folder: Path) -> None:
    (folder.parent / "outside" / "new").mkdir()


def leave_a_file(folder: Path) -> None:
    os.close(os.open("left", os.O_CREAT))


def raise_another_error(folder: Path) -> None:
    raise KeyError("evil")


def ask_for_memory(folder: Path) -> None:
    bytearray(3 << 30)


def hide_that_memory_lacks(folder: Path) -> None:
    from skbert.exceptions import ModelError

    try:
        bytearray(3 << 30)
    except MemoryError as error:
        raise ModelError("damaged") from error


def give_odd_numbers(folder: Path) -> Any:
    return [0.0, float("nan")]


def never_end(folder: Path) -> None:
    time.sleep(600)


def end_the_process(folder: Path) -> None:
    os._exit(3)


# And what the watch says of it.
WRONGS: dict[Callable[[Path], Any], str] = {
    run_code: "evil.py",
    run_text: "<string>",
    import_module: "evil_of_a_model was imported",
    start_process: "subprocess.Popen",
    run_shell: "os.system",
    unpickle: "pickle.find_class",
    read_outside: "open: ",
    read_by_a_link: "open: ",
    write_outside: "os.mkdir: ",
    leave_a_file: "left",
    raise_another_error: "KeyError",
    ask_for_memory: "MemoryError",
    hide_that_memory_lacks: "ModelError",
    give_odd_numbers: "not finite",
    never_end: "took too long",
    end_the_process: "ended the process, which returned 3",
}
