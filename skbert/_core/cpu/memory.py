"""Where tensors lie in memory, checked before a kernel goes there.

A kernel trusts the addresses that it is given, so that each comes from here. Depends on torch
only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

__all__ = [
    "address_of",
    "addresses",
    "check_apart",
    "check_ranges",
    "is_readable",
    "optional_address",
    "share_memory",
]

Range = tuple[int, int]  # where a tensor begins and ends


def is_readable(x: torch.Tensor) -> bool:
    """Whether a kernel can read a tensor of this layout."""
    return x.is_cpu and x.is_contiguous() and not x.data_ptr() % x.itemsize


def share_memory(written: Iterable[torch.Tensor], read: Iterable[torch.Tensor] = ()) -> bool:
    """Whether a contiguous tensor that is written to overlaps with any other."""
    return _overlap(map(_range_of, written), map(_range_of, read))


def _range_of(x: torch.Tensor) -> Range:
    begin = x.data_ptr()
    return begin, begin + x.nbytes


def _overlap(written: Iterable[Range], read: Iterable[Range]) -> bool:
    """Whether a range that is written to overlaps with any other."""
    ranges = [(*each, True) for each in written] + [(*each, False) for each in read]
    end_written = end_read = 0
    for begin, end, is_written in sorted(ranges):
        if begin == end:
            continue
        if begin < end_written or (is_written and begin < end_read):
            return True
        if is_written:
            end_written = end
        else:
            end_read = max(end_read, end)
    return False


def check_apart(written: Iterable[torch.Tensor], read: Iterable[torch.Tensor]) -> None:
    """Raise ValueError if a contiguous tensor that is written to overlaps with any other."""
    check_ranges(map(_range_of, written), map(_range_of, read))


def check_ranges(written: Iterable[Range], read: Iterable[Range]) -> None:
    """Raise ValueError if a range that is written to overlaps with any other."""
    if _overlap(written, read):
        raise ValueError("a kernel was to write to memory that another of its tensors has")


def address_of(name: str, x: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> int:
    """Where a tensor begins; ValueError unless it is what a kernel reads there.

    A kernel goes on from there without looking, so that this is where to look.
    """
    if x.shape == shape and x.dtype == dtype and is_readable(x):
        return x.data_ptr()
    raise ValueError(
        f"a kernel was given {tuple(x.shape)} of {x.dtype} on {x.device} with strides "
        f"{x.stride()} as {name}, which is to be {tuple(shape)} of {dtype}, contiguous and "
        "aligned, on the CPU"
    )


def optional_address(
    name: str, x: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype
) -> int:
    """Where a tensor begins, 0 for none."""
    return 0 if x is None else address_of(name, x, shape, dtype)


def addresses(*tensors: torch.Tensor | None) -> list[int]:
    """Where tensors begin that were made here for a kernel; 0 for none."""
    return [0 if x is None else x.data_ptr() for x in tensors]
