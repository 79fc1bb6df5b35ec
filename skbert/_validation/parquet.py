"""Parquet files as columns that are read forward, a few thousand rows at a time.

Takes what pyarrow opens, a ``ParquetFile`` or a ``Dataset`` of files, and never imports it.
Depends on `skbert.exceptions`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from skbert.exceptions import InputError

__all__ = ["FileRows", "ParquetFile", "RowGroup", "row_groups_of", "with_rows"]

_BATCH_ROWS = 8192  # decoded at once
_NO_FILES = ("", "in-memory")  # what pyarrow calls the files of tables
_DAMAGED = (OSError, ValueError, NotImplementedError)  # what pyarrow raises


class ParquetFile(Protocol):
    """What is used of ``pyarrow.parquet.ParquetFile``."""

    num_row_groups: int
    metadata: Any
    iter_batches: Callable[..., Iterator[Any]]


class _Dataset(Protocol):
    """What is used of ``pyarrow.dataset.Dataset``."""

    count_rows: Callable[[], int]
    to_batches: Callable[..., Iterator[Any]]


class RowGroup(NamedTuple):
    """A row group of a file, which reads the columns of these names, batch after batch."""

    place: str  # in words; empty where the rows of several files are one group
    n_rows: int
    batches: Callable[[list[str]], Iterator[Any]]
    file_of: Callable[[int], str] | None = None  # of a row, where several files are one group

    def read(self, columns: list[str]) -> Iterator[Any]:
        """Read the columns, or raise an error that names the place of what is damaged."""
        n_read = 0
        try:
            for batch in self.batches(columns):
                yield batch
                n_read += len(batch)
        except _DAMAGED as error:
            raise InputError(
                f"{self.place or 'X'} cannot be read beyond row {n_read} of its {self.n_rows}: "
                f"{error}. The file is damaged: write or copy it again."
            ) from error


class FileRows:
    """The rows of parquet files as a table with columns."""

    def __init__(self, names: list[str], groups: list[RowGroup]) -> None:
        self.column_names = names
        self.groups = groups
        self.starts = [0, *accumulate(group.n_rows for group in groups)]

    def __len__(self) -> int:
        return self.starts[-1]

    def __getitem__(self, name: str) -> FileColumn:
        return FileColumn(self, name)

    def column(self, position: int) -> FileColumn:
        """Return the column at a position."""
        return self[self.column_names[position]]

    def origin_of_row(self, row: int) -> str:
        """Return where in the files a row is, in words."""
        group = next(at for at, start in enumerate(self.starts[1:]) if row < start)
        of_group, (place, _, _, file_of) = row - self.starts[group], self.groups[group]
        if file_of is not None:
            file = file_of(of_group)
            return f" (in {file})" if file not in _NO_FILES else ""
        return f" (row {of_group} of {place})"


class FileColumn:
    """One column of parquet files, whose parts are read one after another."""

    def __init__(self, rows: FileRows, name: str) -> None:
        self._rows, self._name = rows, name
        self._cells = self._cells_from(0)
        self._waiting: list[Any] = []  # read, but not asked for yet
        self._next = 0  # row of the first of these

    def __len__(self) -> int:
        return len(self._rows)

    def to_pylist(self) -> list[Any]:
        """Return all cells."""
        return self[0 : len(self)]

    def __getitem__(self, part: slice) -> list[Any]:
        """Return the cells of a part; parts in their order are read in one go."""
        begin, end, _ = part.indices(len(self))
        if begin != self._next:
            self._cells, self._waiting = self._cells_from(begin), []
        cells = self._waiting
        while len(cells) < end - begin:
            cells += next(self._cells)
        self._waiting, self._next = cells[end - begin :], end
        return cells[: end - begin]

    def _cells_from(self, row: int) -> Iterator[list[Any]]:
        """Yield the cells from a row on, batch after batch."""
        starts = self._rows.starts
        for group, start, end in zip(self._rows.groups, starts, starts[1:], strict=False):
            at = start
            for batch in group.read([self._name]) if end > row else ():
                cells = batch.column(self._name)[max(row - at, 0) :]
                at += len(batch)
                yield cells.to_pylist() if len(cells) else []


def with_rows(X: Any) -> Any:
    """Return parquet files that pyarrow has opened as `FileRows`, anything else as it is."""
    if hasattr(X, "read_row_group") and hasattr(X, "schema_arrow"):
        return FileRows(X.schema_arrow.names, row_groups_of(X, ""))
    if hasattr(X, "get_fragments") and hasattr(X, "to_batches"):
        return FileRows(X.schema.names, [_all_rows_of(X)])
    return X


def row_groups_of(file: ParquetFile, name: str) -> list[RowGroup]:
    """Return the row groups of a ``ParquetFile``; the name of the file is for errors."""

    def batches(group: int) -> Callable[[list[str]], Iterator[Any]]:
        return lambda columns: file.iter_batches(_BATCH_ROWS, [group], columns)

    of_file = f" of {name}" if name else ""
    return [
        RowGroup(f"row group {at}{of_file}", file.metadata.row_group(at).num_rows, batches(at))
        for at in range(file.num_row_groups)
    ]


def _all_rows_of(dataset: _Dataset) -> RowGroup:
    """Return the rows of a ``Dataset``, after its filter, as one group."""

    def batches(columns: list[str]) -> Iterator[Any]:
        return dataset.to_batches(
            columns=columns, batch_size=_BATCH_ROWS, batch_readahead=1, fragment_readahead=1
        )

    def file_of(row: int) -> str:
        for batch in dataset.to_batches(columns=["__filename"]):
            if row < len(batch):
                return str(batch.column(0)[row])
            row -= len(batch)
        raise IndexError

    return RowGroup("", dataset.count_rows(), batches, file_of)
