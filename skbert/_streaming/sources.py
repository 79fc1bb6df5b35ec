"""Tables in files: parquet files that are read row group by row group, and CSV files.

Depends on pyarrow and on the reader of parquet files in `_validation`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from skbert._validation.parquet import FileRows, RowGroup, row_groups_of
from skbert.exceptions import InputError

__all__ = [
    "PART_ROWS",
    "Part",
    "check_columns",
    "digest",
    "open_parquet",
    "open_table",
    "parts_of",
]

PART_ROWS = 16_384  # rows of one part at most; a row group is one part or several


@dataclass(frozen=True)
class Part:
    """Some neighbouring rows of one row group, which can be read as X.

    An error about one of them names its row in the file and in the row group.
    """

    number: int
    group: RowGroup
    first_row: int  # of the part, in the file
    row_in_group: int
    table: Any

    def __len__(self) -> int:
        return len(self.table)

    @property
    def column_names(self) -> list[str]:
        """Names of the columns."""
        names: list[str] = self.table.column_names
        return names

    def __getitem__(self, name: str) -> Any:
        return self.table.column(name)

    def column(self, position: int) -> Any:
        """Return the column at a position."""
        return self.table.column(position)

    def origin_of_row(self, row: int) -> str:
        """Return where in the file a row is, in words."""
        return f" (row {row - self.first_row + self.row_in_group} of {self.group.place})"

    def only(self, names: Sequence[str]) -> Part:
        """Return the part with only these columns."""
        return replace(self, table=self.table.select(names))


def open_parquet(path: Path) -> FileRows:
    """Open a parquet file that has rows, or raise an error that says what is wrong with it."""
    _check_is_file(path)
    try:
        file = parquet.ParquetFile(
            path, pre_buffer=False, buffer_size=1 << 20, page_checksum_verification=True
        )
    except (OSError, pa.ArrowException) as error:
        raise InputError(
            f"{path} cannot be opened as a parquet file: {error}. It is none, or was cut off "
            "while it was written or copied: write or copy it again."
        ) from error
    rows = FileRows(file.schema_arrow.names, row_groups_of(file, str(path)))
    if not len(rows):
        raise InputError(f"{path} holds no rows. Give a file with at least one.")
    return rows


def open_table(path: Path, texts: Sequence[str], classes: Sequence[str]) -> Any:
    """Open a file with rows to learn from, CSV with names in its first line or parquet.

    An empty cell of CSV is missing. Columns of texts are read as such, whatever they look like.
    Classes are numbers or booleans where no two of them are written in different ways, so that 01
    and 1 stay different; dates and times stay texts.
    """
    if ".csv" not in map(str.lower, path.suffixes):
        return open_parquet(path)
    _check_is_file(path)
    try:
        types = dict.fromkeys(texts, pa.string())
        table = _with_written_classes(path, _read_csv(path, types), classes)
    except (OSError, pa.ArrowException) as error:
        if "UTF8" in str(error):
            raise InputError(
                f"{path} is not in UTF-8: {error}. Write it again as UTF-8."
            ) from error
        raise InputError(
            f"{path} cannot be read as a CSV file in UTF-8 with a header: {error}. Write it "
            "again, with quotes around texts that hold commas or line breaks."
        ) from error
    if not len(table):
        raise InputError(f"{path} holds no rows. Give a file with at least one.")
    for name, kind in zip(table.column_names, table.schema.types, strict=True):
        if pa.types.is_binary(kind):  # what pyarrow makes of other bytes
            raise InputError(
                f"{path} is not in UTF-8: the column {name!r} holds other bytes. Write it again "
                "as UTF-8."
            )
    return table


def _with_written_classes(path: Path, table: pa.Table, classes: Sequence[str]) -> pa.Table:
    """The table, with classes as they are written where what was read would lose something."""
    kinds = enumerate(zip(table.column_names, table.schema.types, strict=True))
    read = [at for at, (name, kind) in kinds if name in classes and not pa.types.is_string(kind)]
    if read:
        written = _read_csv(path, dict.fromkeys(classes, pa.string()))
        for at in read:
            if _loses(table.column(at), written.column(at)):
                table = table.set_column(at, table.column_names[at], written.column(at))
    return table


def _loses(column: pa.ChunkedArray, written: pa.ChunkedArray) -> bool:
    """Whether classes that were read are fewer than those written, or not as they are written."""
    if pa.types.is_integer(column.type):
        return bool(written != column.cast(pa.string()))
    return pa.types.is_temporal(column.type) or len(written.unique()) > len(column.unique())


def _read_csv(path: Path, types: Mapping[str, Any]) -> Any:
    # A block holds a whole row, which may be long, of a file that may be compressed.
    block_size = min(max(8 * path.stat().st_size, 1 << 20), 1 << 30)
    return csv.read_csv(
        path,
        read_options=csv.ReadOptions(block_size=block_size),
        parse_options=csv.ParseOptions(newlines_in_values=True),
        convert_options=csv.ConvertOptions(
            column_types=types, null_values=[""], strings_can_be_null=True
        ),
    )


def _check_is_file(path: Path) -> None:
    if not path.is_file():
        problem = "is a folder, not a file" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {problem}. Give the path of a file.")


def check_columns(path: Path, names: Sequence[str], wanted: Sequence[str], option: str) -> None:
    """Raise unless the columns are in a file, each once; ``option`` chooses them."""
    for name in wanted:
        if [*names].count(name) != 1:
            raise InputError(
                f"{path} has the column {name!r} {[*names].count(name)} times instead of once; "
                f"its columns are {[*names]}. Choose others with {option}."
            )


def parts_of(rows: FileRows, columns: Sequence[str]) -> Iterator[Part]:
    """Yield the parts of a file, with these columns; only one is in memory at a time."""
    number = 0
    for group, start in zip(rows.groups, rows.starts, strict=False):
        at = 0
        for table in _tables(group, [*columns]):
            yield Part(number, group, start + at, at, table)
            number, at = number + 1, at + len(table)


def _tables(group: RowGroup, columns: list[str]) -> Iterator[Any]:
    """Yield the rows of a row group in tables of `PART_ROWS`, the last one shorter."""
    waiting: list[Any] = []
    for batch in group.read(columns):
        waiting.append(batch)
        while sum(map(len, waiting)) >= PART_ROWS:
            table = pa.Table.from_batches(waiting)
            yield table[:PART_ROWS]
            waiting = table[PART_ROWS:].to_batches()
    if sum(map(len, waiting)):
        yield pa.Table.from_batches(waiting)


def digest(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
