"""Long arrays that grow part by part, in memory or, beyond a size, in a temporary file.

The file has no name in any folder: it is gone with the array, and with the process, however that
ends. Depends on numpy only.
"""

from __future__ import annotations

import tempfile
from tempfile import TemporaryFile
from typing import BinaryIO, cast

import numpy as np

from skbert._arrays import Array
from skbert.exceptions import TrainingError

__all__ = ["SPILL_BYTES", "GrowingArray"]

SPILL_BYTES = 1 << 28  # of one array, beyond which it lies in a file


class GrowingArray:
    """An array to which parts are appended, all of one type and shape but for their length."""

    def __init__(self) -> None:
        self._parts: list[Array] = []  # in memory
        self._n_bytes = 0
        self._file: BinaryIO | None = None

    def append(self, part: Array) -> None:
        """Append a part; beyond `SPILL_BYTES` all of them are written to a file."""
        self._n_bytes += part.nbytes
        if self._file is None and self._n_bytes > SPILL_BYTES:
            self._file = cast("BinaryIO", TemporaryFile(prefix="skbert-"))  # noqa: SIM115
            for earlier in self._parts:
                self._write(earlier)
            self._parts = [part[:0]]  # whose type and shape say what the file holds
        if self._file is None:
            self._parts.append(part)
        else:
            self._write(part)

    def array(self) -> Array:
        """The whole array; what is written to one that lies in a file stays in memory."""
        if self._file is None:
            return self._parts[0] if len(self._parts) == 1 else np.concatenate(self._parts)
        first = self._parts[0]
        with self._file as file:
            file.flush()
            mapped = np.memmap(file, first.dtype, "c")
        return np.asarray(mapped).reshape(-1, *first.shape[1:])

    def _write(self, part: Array) -> None:
        try:
            cast("BinaryIO", self._file).write(np.ascontiguousarray(part).data)
        except OSError as error:
            raise TrainingError(
                f"{self._n_bytes / 1e9:.1f} GB of token ids could not be written to a temporary "
                f"file in {tempfile.gettempdir()}: {error}. Set the environment variable TMPDIR "
                "to a folder on a disk with more free space."
            ) from error
