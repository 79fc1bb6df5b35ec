"""Checks of all arguments of a kernel, made before C is called.

A kernel trusts its addresses and numbers, so that each of them is checked here.
What has a wrong type raises TypeError, and any other fault ValueError. Depends on torch only.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter, mod

import torch

__all__ = [
    "WrittenMemory",
    "address_of",
    "address_of_array",
    "addresses",
    "addresses_of",
    "are_readable",
    "check_dropout",
    "check_integer",
    "check_multiple",
    "check_no_overlap",
    "check_real",
    "check_type",
    "has_shared_memory",
    "is_readable",
    "optional_address",
    "shape_of",
]

Range = tuple[int, int]  # where a tensor begins and ends

_MAX_FLOAT = torch.finfo(torch.float32).max
_MAX_SEED = 2**63 - 1
_REAL = (float, int)
_OVERLAP = "a kernel was to write to memory that another of its tensors has"
_IS_CPU, _LAYOUT, _ITEMSIZE = map(attrgetter, ("is_cpu", "layout", "itemsize"))


# --- numbers -------------------------------------------------------------------------------------


def check_type(name: str, value: object, kind: type | tuple[type, ...]) -> None:
    """Raise TypeError unless a value is of this type."""
    if not isinstance(value, kind):
        raise _type_error(name, value)


def _type_error(name: str, value: object) -> TypeError:
    return TypeError(f"a kernel takes no {type(value).__name__} as {name}")


def check_integer(name: str, value: int, low: int, high: int) -> None:
    """Raise an error unless a value is an integer from ``low`` to ``high``."""
    if not isinstance(value, int):
        raise _type_error(name, value)
    if not low <= value <= high:
        raise ValueError(f"a kernel takes {name} from {low} to {high}, not {value}")


def check_real(
    name: str, value: float, low: float = -_MAX_FLOAT, high: float = _MAX_FLOAT
) -> None:
    """Raise an error unless a value is a number from ``low`` to ``high``, which NaN is not."""
    if not isinstance(value, _REAL):
        raise _type_error(name, value)
    if not low <= value <= high:
        raise ValueError(f"a kernel takes {name} from {low} to {high}, not {value}")


def check_dropout(dropout: float, seed: int) -> None:
    """Raise an error unless these are a probability, as torch takes it, and a seed."""
    check_real("dropout", dropout, 0, 1)
    check_integer("seed", seed, 0, _MAX_SEED)


def check_multiple(name: str, size: int, step: int) -> None:
    """Raise ValueError unless a size is positive and a multiple of ``step``."""
    if size <= 0 or size % step:
        raise ValueError(f"a kernel takes {name} that is a multiple of {step}, not {size}")


# --- tensors -------------------------------------------------------------------------------------


def shape_of(name: str, x: torch.Tensor, n_dims: int) -> torch.Size:
    """The shape of a tensor of so many dimensions."""
    if not isinstance(x, torch.Tensor):
        raise _type_error(name, x)
    shape = x.shape
    if len(shape) != n_dims:
        raise ValueError(f"a kernel takes {name} of {n_dims} dimensions, not {tuple(shape)}")
    return shape


def is_readable(x: torch.Tensor) -> bool:
    """Whether a kernel can read a tensor: strided, contiguous and aligned, on the CPU.

    And whether its numbers are in memory as they are, not with the other sign; mere zeros, and a
    tensor that wraps others, have none.
    """
    is_dense = x.is_cpu and x.layout == torch.strided and x.is_contiguous()
    if not is_dense or x.is_neg():
        return False
    address = x.data_ptr()
    return not address % x.itemsize and bool(address or not x.numel())


def are_readable(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether a kernel can read all of these; without a loop in Python if all is as it should."""
    are_dense = (
        all(map(_IS_CPU, tensors))
        and {*map(_LAYOUT, tensors)} <= {torch.strided}
        and all(map(torch.Tensor.is_contiguous, tensors))
        and not any(map(torch.Tensor.is_neg, tensors))
    )
    begins = [*addresses_of(tensors)] if are_dense else [0]
    are_aligned = all(begins) and not any(map(mod, begins, map(_ITEMSIZE, tensors)))
    return are_aligned or all(map(is_readable, tensors))


def address_of(name: str, x: torch.Tensor, shape: Sequence[int], dtype: torch.dtype) -> int:
    """The address of a tensor; an error unless it has this shape and type and is readable."""
    if not isinstance(x, torch.Tensor):
        raise _type_error(name, x)
    if x.shape == shape and x.dtype == dtype and is_readable(x):
        return x.data_ptr()
    raise ValueError(
        f"a kernel was given {tuple(x.shape)} of {x.dtype} on {x.device} as {name}, which is to "
        f"be {tuple(shape)} of {dtype}, contiguous and aligned, on the CPU"
    )


def optional_address(
    name: str, x: torch.Tensor | None, shape: Sequence[int], dtype: torch.dtype
) -> int:
    """The address of a tensor, checked; 0 for None."""
    return 0 if x is None else address_of(name, x, shape, dtype)


def address_of_array(values: array[int] | array[float]) -> int:
    """The address of an array of C, which numbers get sooner than a tensor."""
    return values.buffer_info()[0]


def addresses(*tensors: torch.Tensor | None) -> list[int]:
    """The addresses of tensors that need no check, such as new ones; 0 for None."""
    return [0 if x is None else x.data_ptr() for x in tensors]


def addresses_of(tensors: Iterable[torch.Tensor]) -> Iterator[int]:
    """The addresses of many tensors that need no check, without a loop in Python."""
    return map(torch.Tensor.data_ptr, tensors)


# --- memory that is written to -------------------------------------------------------------------


def has_shared_memory(written: Iterable[torch.Tensor], read: Iterable[torch.Tensor] = ()) -> bool:
    """Whether a tensor that is written to overlaps in memory with any other; all contiguous."""
    return _has_overlap(map(_range_of, written), map(_range_of, read))


def _range_of(x: torch.Tensor) -> Range:
    begin = x.data_ptr()
    return begin, begin + x.nbytes


def _has_overlap(written: Iterable[Range], read: Iterable[Range]) -> bool:
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


def check_no_overlap(written: Iterable[torch.Tensor], read: Iterable[torch.Tensor]) -> None:
    """Raise ValueError if a contiguous tensor that is written to overlaps with any other."""
    _check_ranges(map(_range_of, written), map(_range_of, read))


def _check_ranges(written: Iterable[Range], read: Iterable[Range]) -> None:
    """Raise ValueError if a range that is written to overlaps with any other."""
    if _has_overlap(written, read):
        raise ValueError(_OVERLAP)


class WrittenMemory:
    """Ranges that kernels write to again and again, of which none overlaps with another."""

    def __init__(self, ranges: Sequence[Range] = ()) -> None:
        _check_ranges(ranges, [])
        # Where they begin and end, in order.
        self._edges = sorted(edge for each in ranges if each[0] < each[1] for edge in each)

    def check_apart(self, ranges: Iterable[Range]) -> None:
        """Raise ValueError if one of these overlaps with such a range."""
        edges = self._edges
        for begin, end in ranges:
            place = bisect_right(edges, begin)
            is_inside = place % 2 == 1
            if begin < end and (is_inside or (place < len(edges) and edges[place] < end)):
                raise ValueError(_OVERLAP)
