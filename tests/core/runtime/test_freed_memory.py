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


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc"
    or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ),
    reason="another allocator, or one with settings",
)
def test_memory_that_was_freed_is_used_again() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ROUNDS], capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert before > 20  # the system gives fresh memory in each round
    assert after < before / 10
