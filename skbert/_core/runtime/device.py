"""Device, precision, seeds, and memory that runs out.

Depends on torch and the other modules of this folder.
"""

from __future__ import annotations

import copy
import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from skbert._core.runtime.distributed import local_rank
from skbert._core.runtime.forks import ForkSafeLock
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert._core.runtime.modes import default_modes
from skbert._core.runtime.wait_policy import adaptive_wait_policy
from skbert.exceptions import InputError

__all__ = [
    "AsyncCopy",
    "Budget",
    "Precision",
    "generator_state",
    "has_instructions",
    "has_vectors",
    "has_wide_vectors",
    "is_out_of_memory",
    "memory_advice",
    "pick_device",
    "seeded",
    "set_generator_state",
    "uses_int8",
]

_SEEDING = ForkSafeLock()
# oneDNN refuses what it cannot compute when it describes a primitive; to create it takes memory.
# CPython raises nothing where it has no memory for the call of a function, and notices that later.
_NO_MEMORY = re.compile(
    "can't allocate memory|out of memory|CUBLAS_STATUS_ALLOC_FAILED|could not create a primitive$"
    "|^error return without exception set$"
)
_ADVICE = (
    "Use gradient_checkpointing=True, a smaller max_length, freeze more layers, or a smaller"
    " model."
)
_DEVICE = re.compile(r"cpu|mps|cuda(:\d+)?")
# Bounds that a user may set to oneDNN, in its words, below the instructions for bfloat16.
_WITHOUT_BFLOAT16 = re.compile("SSE41|AVX|AVX2.*|AVX512_CORE(_VNNI)?")


def pick_device(name: str) -> torch.device:
    """The device that ``auto``, ``cpu``, ``cuda``, ``cuda:k`` or ``mps`` means here.

    Each process of torchrun has a GPU of its own where none is named.
    """
    n_devices = {
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
        "cpu": 1,
    }
    if name == "auto":
        name = next(kind for kind, count in n_devices.items() if count)
    picked = f"cuda:{local_rank()}" if name == "cuda" else name
    kind, _, index = picked.partition(":")
    if not _DEVICE.fullmatch(name):
        raise InputError(
            f"device={name!r} is not a device: give 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'."
        )
    if int(index or 0) >= n_devices[kind]:
        seen = f"{n_devices[kind] or 'no'} {kind.upper()} device{'s' * (n_devices[kind] > 1)}"
        raise InputError(f"device={name!r}: torch sees {seen}; use device='auto'.")
    return torch.device(picked)


# Whether products of inference are in int8, as autocast is on: for this thread.
_INT8 = ContextVar("_INT8", default=False)


def uses_int8() -> bool:
    """Whether the products of layers are to be in int8, where nothing is trained."""
    return _INT8.get()


class Precision:
    """The type of the weights, and the one that autocast computes in, which may be lower.

    With ``int8`` the products of inference are in int8, and all else is as with ``auto``.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.is_int8 = name == "int8"
        if self.is_int8 and device.type != "cpu":
            raise InputError(
                f"precision='int8' is for predictions on a CPU, and device={str(device)!r}: use"
                " precision='auto', or device='cpu'."
            )
        if name in ("auto", "int8"):
            name = "bfloat16" if _has_fast_bfloat16(device) else "float32"
        self.weight_dtype = torch.float64 if name == "float64" else torch.float32
        self.compute_dtype: torch.dtype = getattr(torch, name)
        self.device = device

    @contextmanager
    def autocast(self) -> Iterator[None]:
        """Autocast inside the ``with``, where the precision is a mixed one."""
        before = _INT8.set(self.is_int8)
        try:
            if self.compute_dtype == self.weight_dtype:
                yield
                return
            try:
                with torch.autocast(self.device.type, dtype=self.compute_dtype):
                    yield
            finally:
                torch.clear_autocast_cache()  # inside somebody's autocast torch does not
        finally:
            _INT8.reset(before)

    @property
    def products(self) -> str:
        """The type of the products of inference."""
        return "int8" if self.is_int8 else str(self.compute_dtype)

    @property
    def of_training(self) -> Precision:
        """The same without int8, which is for inference."""
        twin = copy.copy(self)
        twin.is_int8 = False
        return twin

    @property
    def needs_loss_scale(self) -> bool:
        """Whether small gradients would be lost without scaling the loss."""
        return self.compute_dtype == torch.float16


def _has_fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        with torch.cuda.device(device):
            return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    bound = os.environ.get("ONEDNN_MAX_CPU_ISA", "ALL").upper()
    if device.type != "cpu" or _WITHOUT_BFLOAT16.fullmatch(bound):
        return False
    if has_instructions("amx_bf16"):
        return True
    return has_instructions("avx512_bf16") and not _lacks_its_tiles()


def _lacks_its_tiles() -> bool:
    """Whether the processor was built with tiles for bfloat16 that the system does not offer.

    In vectors such a processor multiplies half as many numbers in bfloat16 as in float32.
    """
    return "Intel" in _capabilities().get("cpu_name", "") and has_instructions("avx512_fp16")


def has_instructions(name: str) -> bool:
    """Whether torch reports that the processor has these instructions, such as avx512_bf16."""
    return bool(_capabilities().get(name))


def _capabilities() -> dict[str, Any]:
    found: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return found


def has_vectors() -> bool:
    """Whether the processor computes with 8 numbers at once or more, as x86 does with AVX2."""
    return has_instructions("avx2")


def has_wide_vectors() -> bool:
    """Whether the processor computes with 16 numbers at once, as x86 does with AVX512."""
    return has_instructions("avx512_vl")


class Budget:
    """The most tokens that are computed together; halved when memory runs out."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def halve(self, error: BaseException, device: torch.device, shortest: int) -> None:
        """Halve the budget; MemoryError with advice if that would change nothing.

        ``shortest`` is the number of tokens in the shortest of the rows that need too much.
        """
        if self.tokens < max(64, shortest):
            n_tokens = max(self.tokens, shortest)
            raise MemoryError(
                f"Out of memory on {device} with only {n_tokens} tokens at a time: the model "
                f"itself, or a row of this length, hardly fits. {_ADVICE}"
            ) from error
        self.tokens //= 2
        if device.type == "cuda":
            torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on any device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    known = isinstance(error, RuntimeError | SystemError)
    return known and _NO_MEMORY.search(str(error)) is not None


@contextmanager
def memory_advice() -> Iterator[None]:
    """Say what to do where memory runs out inside the ``with``, whatever asked for it."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error) or _ADVICE in str(error):
            raise
        found = f": {error}" if str(error) else "."
        raise MemoryError(f"Out of memory{found} {_ADVICE}") from error


class AsyncCopy:
    """Numbers copied from a device without waiting for it to compute them."""

    def __init__(self, numbers: torch.Tensor) -> None:
        self._event: Any = None
        self._numbers = numbers.detach()
        if numbers.is_cuda:
            pinned = torch.empty(numbers.shape, dtype=numbers.dtype, pin_memory=True)
            self._numbers = pinned.copy_(self._numbers, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(numbers.device))

    def is_ready(self) -> bool:
        """Whether the numbers can be read without waiting."""
        return self._event is None or bool(self._event.query())

    def read(self) -> torch.Tensor:
        """The numbers; waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        return self._numbers.cpu()


def generator_state(device: torch.device) -> torch.Tensor:
    """The state of torch's generators of random numbers, a row of bytes."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return torch.cat(states)


def set_generator_state(state: torch.Tensor, device: torch.device) -> None:
    """Put torch's generators into a state that `generator_state` returned."""
    size, state = len(torch.get_rng_state()), state.clone()  # torch reads it only where aligned
    torch.set_rng_state(state[:size])
    if device.type == "cuda":
        torch.cuda.set_rng_state(state[size:], device)


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed torch's random numbers inside the ``with``, and restore the generators after it.

    torch's layers draw from one global generator, so that threads which fit at the same time
    would take each other's numbers: they wait for each other here. torch's modes are the default
    ones, and Ctrl-C is deferred.
    """
    devices = [device] if device.type == "cuda" else []
    with (
        _SEEDING.lock, deferred_interrupts(), adaptive_wait_policy(), default_modes(),
        torch.random.fork_rng(devices),
    ):  # fmt: skip
        torch.default_generator.manual_seed(seed)
        if device.type == "cuda":
            with torch.cuda.device(device):
                torch.cuda.manual_seed(seed)
        yield
