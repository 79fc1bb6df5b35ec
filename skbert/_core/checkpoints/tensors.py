"""The tensors of a saved folder: one safetensors file, its size and its hash.

Depends on safetensors and torch, which are imported when there is something to read or write.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skbert._arrays import Array
from skbert.exceptions import SaveError

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

__all__ = ["read_tensors", "write_tensors"]

_TENSORS, _HEADER = 20_000, 8_000_000  # most tensors, and bytes that describe them


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor | Array]) -> dict[str, Any]:
    """Write tensors; the result is what the manifest says of their file."""
    from safetensors.torch import save_file

    save_file(_separate(tensors), path, metadata={"format": "pt"})
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"size": file.tell(), "sha256": digest}


def _separate(
    tensors: Mapping[str, torch.Tensor | Array],
) -> dict[str, torch.Tensor]:
    """Contiguous tensors on the CPU of which no two share memory, as the file needs them."""
    import torch

    separate: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    for name, value in tensors.items():
        tensor = value.detach().cpu() if isinstance(value, torch.Tensor) else torch.tensor(value)
        tensor = tensor.contiguous()
        if tensor.untyped_storage().data_ptr() in seen:
            tensor = tensor.clone()
        seen.add(tensor.untyped_storage().data_ptr())
        separate[name] = tensor
    return separate


def read_tensors(path: Path, data: bytes) -> dict[str, torch.Tensor]:
    """The tensors of a file's bytes, which are those that `write_tensors` wrote."""
    from safetensors.torch import load

    _check_count(path, data)
    try:
        return load(data)
    except Exception as exc:
        raise SaveError(
            f"{path} has the right hash, but is no safetensors file: {exc}."
            " It was not written by skbert: do not use it."
        ) from exc


def _check_count(path: Path, data: bytes) -> None:
    """Refuse a header of far more tensors than any model has: each costs more than its bytes."""
    length = int.from_bytes(data[:8], "little")
    if _HEADER < length < len(data) or data.count(b'"data_offsets"', 8, 8 + length) > _TENSORS:
        raise SaveError(
            f"{path} describes more than {_TENSORS} tensors. It was not written by skbert: do not"
            " use it."
        )
