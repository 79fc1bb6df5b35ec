"""Memory that is freed stays with the process: touching it again costs no page faults."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

ROUNDS = """
import resource, torch
from skbert._core.runtime.freed_memory import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(4):
        tensors = [torch.ones(1 << 20) for _ in range(6)]  # of 4 MiB each
        del tensors
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

torch.set_num_threads(1)
before = faults()
keep_freed_memory()
faults()
print(before, faults())
"""


KEPT = """
import ctypes, resource
from skbert._core.runtime.freed_memory import all_memory_kept

libc = ctypes.CDLL(None)
libc.prctl(41, 1, 0, 0, 0)  # no huge pages: PR_SET_THP_DISABLE
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
usage = lambda: resource.getrusage(resource.RUSAGE_SELF)

def use():
    before = usage().ru_minflt
    blocks = [libc.malloc(4 << 20) for _ in range(20)]
    for block in blocks:
        ctypes.memset(block, 1, 4 << 20)
    for block in blocks:
        libc.free(block)
    return usage().ru_minflt - before

with all_memory_kept():
    use()
    inside = use()
use()
print(inside, use())
"""

own_settings = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
needs_glibc = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or own_settings,
    reason="another allocator, or one with settings",
)


def numbers_of(program: str, **environment: str) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()]


@needs_glibc
def test_memory_that_was_freed_is_used_again() -> None:
    before, after = numbers_of(ROUNDS)
    assert before > 20  # the system gives fresh memory in each round
    assert after < before / 10


@needs_glibc
def test_all_memory_is_kept_meanwhile_and_returned_after() -> None:
    inside, after = numbers_of(KEPT)
    assert inside < 100
    assert after > 10_000  # some of 20,480 pages


@needs_glibc
def test_what_the_environment_sets_stays() -> None:
    sizes = {"MALLOC_TRIM_THRESHOLD_": "1000000", "MALLOC_MMAP_THRESHOLD_": "33554432"}
    inside, _ = numbers_of(KEPT, **sizes)
    assert inside > 10_000
