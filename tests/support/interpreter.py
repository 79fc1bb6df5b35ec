"""Triton's interpreter, which runs the kernels for GPUs here, without needless work."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from skbert._core.gpu import operations

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

__all__ = ["patch_once_a_launch", "with_large_programs"]

SIZES = (
    ("attention", "_TOKENS", 128),
    ("gelu", "_TOKENS", 32),
    ("gelu", "_GATED_TOKENS", 32),
    ("layernorm", "_NUMBERS", 1 << 14),
    ("rotary", "_TOKENS", 128),
)


def patch_once_a_launch() -> None:
    """Let the interpreter replace the functions of its language once for each launch of a kernel.

    It replaces them again at every call of a function within a kernel, tens of times for each
    program, which takes a third of its time; nothing puts them back before the launch ends.
    """
    interpreter: Any = import_module("triton.runtime.interpreter")
    patch: Callable[[Any], Any] = interpreter._patch_lang
    launch: Callable[..., None] = interpreter.GridExecutor.__call__
    patched: set[int] = set()  # in this launch

    def patch_new(function: Any) -> Any:
        where = id(function.__globals__)
        if where in patched:
            return None  # of calls within a kernel nobody asks how to put back what was there
        patched.add(where)
        return patch(function)

    def launch_afresh(*given: Any, **settings: Any) -> None:
        patched.clear()
        launch(*given, **settings)

    interpreter._patch_lang = patch_new
    interpreter.GridExecutor.__call__ = launch_afresh


def with_large_programs(patch: pytest.MonkeyPatch) -> None:
    """Let a program compute more tokens, as the interpreter takes its time for each program.

    Enough programs are left to share what they compute; `test_gpu_kernels` has them all.
    """
    for name, size, number in SIZES:
        patch.setattr(operations.kernels(name), size, number)
