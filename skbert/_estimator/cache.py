"""Vectors kept in a file, so that the same text, or all texts of a fit, are not encoded twice.

There is one SQLite file for each set of settings, shared by threads and processes. It holds
numbers under hashes, and no text. Depends on numpy and a network's weights.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary
from zlib import crc32

import numpy as np
import torch
from joblib import Memory

from skbert._arrays import Array, IntArray
from skbert._core.attention.pooling import POOLER
from skbert._core.models.intact import attributes_of
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert._core.training.optim import trainable_parameters
from skbert.exceptions import InputError, warn

__all__ = ["VectorCache", "cache_folder", "fingerprint", "frozen_fingerprint", "open_cache"]

Compute = Callable[[IntArray], Array]
OnRead = Callable[[int], object]

_FORMAT = 1
_CHUNK_SIZE = 1024  # vectors computed and written together
_PATIENCE = 30.0  # seconds to wait for a process that computes but gives no heartbeat
_BEAT, _POLL = 1.0, 0.05  # seconds between two heartbeats, and between two attempts
_TABLE = "CREATE TABLE vectors (key TEXT PRIMARY KEY, vector BLOB, checksum INTEGER)"
_SCHEMA = [("index", None), ("table", _TABLE)]
_HASHES: WeakKeyDictionary[torch.nn.Module, tuple[tuple[object, ...], str]] = WeakKeyDictionary()
_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def cache_folder(memory: str | os.PathLike[str] | Memory | None) -> Path | None:
    """Return the folder that the parameter ``memory`` names, and make it if it is missing."""
    location = memory.location if isinstance(memory, Memory) else memory
    if location is None:
        return None
    if not os.fspath(location):
        raise InputError(
            "memory='' is not a folder. Give the folder to keep vectors in, such as "
            "memory='vectors', or memory=None to keep none."
        )
    try:
        folder = Path(location).expanduser() / "skbert"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise InputError(
            f"memory={os.fspath(location)!r}: the folder cannot be made: {error}. Give a "
            "folder that you may write to, or memory=None."
        ) from error
    return folder


def fingerprint(network: Network) -> str:
    """Return a hash of everything in a network that turns text into vectors."""
    return _known(network, partial(_hash_of_all, network))


def frozen_fingerprint(network: Network, freeze: int | str) -> str:
    """Return a hash of everything in a network that ``freeze`` leaves as it is."""
    return _known(network, partial(_hash_of_frozen, network, freeze), freeze)


def _known(network: Network, compute: Callable[[], str], *what: object) -> str:
    """A hash, computed once as long as the weights behind it cannot have changed."""
    key = (network.dtype, network.pooling, *what)
    known = _HASHES.get(network.model)
    if known is None or known[0] != key or network.is_handed_out:
        known = _HASHES[network.model] = (key, compute())
    return known[1]


def _hash_of_all(network: Network) -> str:
    digest = hashlib.sha256(network.text_tokenizer.backend.to_str().encode())
    _add_weights(digest, network, {
        name: tensor for name, tensor in network.model.state_dict().items()
        if network.pooling == POOLER or not network.family.is_of_pooler(name)
    })  # fmt: skip
    return digest.hexdigest()


def _hash_of_frozen(network: Network, freeze: int | str) -> str:
    trained = trainable_parameters(network.model, network.head_class.prefixes, freeze)
    ids = {*map(id, trained)}
    digest = hashlib.sha256(network.pooling.encode())
    _add_weights(digest, network, {
        name: tensor.detach()
        for name, tensor in network.model.state_dict(keep_vars=True).items()
        if id(tensor) not in ids and not network.family.is_of_pooler(name)  # which reads states
    })  # fmt: skip
    return digest.hexdigest()


def _add_weights(
    digest: hashlib._Hash, network: Network, weights: Mapping[str, torch.Tensor]
) -> None:
    """Add these weights to a hash, and what else a model computes with, but for dropout."""
    config, family, body = network.model.config, network.family, network.model.base_model
    common = dict.fromkeys((*family.sizes, *family.rates, *family.choices))
    known = sorted({*family.own_settings(common), *family.checks})
    settings = [(name, getattr(config, name, None)) for name in known if "drop" not in name]
    digest.update(repr((family.model_type, settings, attributes_of(body))).encode())
    weights = {**weights, **dict(body.named_buffers(prefix="body"))}  # saved or not
    names = sorted(weights)
    with ThreadPoolExecutor(torch.get_num_threads()) as threads:
        hashes = threads.map(_hash_of_weight, [weights[name] for name in names])
        for name, own in zip(names, hashes, strict=True):
            digest.update(name.encode() + own)


def _hash_of_weight(weight: torch.Tensor) -> bytes:
    digest = hashlib.sha256(f"{weight.dtype} {tuple(weight.shape)}".encode())
    digest.update(np.ascontiguousarray(weight.cpu().numpy()).data)
    return digest.digest()


def open_cache(
    folder: Path, settings: Mapping[str, Any], width: int, precision: Precision
) -> VectorCache:
    """Return the cache of vectors computed under the same settings in a precision."""
    computed = {"products": precision.products, "device": precision.device.type}
    dtype = np.dtype(str(precision.weight_dtype).removeprefix("torch."))
    return VectorCache(folder, {**settings, **computed}, width, dtype)


class VectorCache:
    """Vectors of ``width`` numbers of type ``dtype``, computed under the same settings."""

    def __init__(
        self, folder: Path, settings: Mapping[str, Any], width: int, dtype: np.dtype[Any]
    ) -> None:
        described = json.dumps({**settings, "format": _FORMAT}, sort_keys=True)
        self.path = folder / f"{hashlib.sha256(described.encode()).hexdigest()[:32]}.sqlite"
        self.width = width
        self.dtype = dtype

    def vectors(
        self, keys: Sequence[str], compute: Compute, on_read: OnRead = lambda n: None
    ) -> Array:
        """Return vectors ``(n_keys, width)``; ``compute`` makes those that are not in the file.

        It is called with their places in ``keys``, which must differ. While one process computes
        some of them, others wait as long as it gives heartbeats, and then read them from the file.
        ``on_read`` is called with how many were in the file.
        """
        vectors = np.empty((len(keys), self.width), self.dtype)
        left: IntArray = np.arange(len(keys))
        is_known = np.zeros(len(keys), bool)

        def fill_in(rows: IntArray) -> None:
            rows = rows[~is_known[rows]]
            if len(rows):
                vectors[rows] = compute(rows)
                is_known[rows] = True

        for _ in range(2):  # a damaged file is set aside once
            try:
                with self._connection() as connection:
                    n_left = len(left)
                    left = self._read(connection, keys, vectors, left)
                    on_read(n_left - len(left))
                    while len(left):
                        self._extend(connection, keys, vectors, left[:_CHUNK_SIZE], fill_in)
                        left = left[_CHUNK_SIZE:]
                break
            except sqlite3.Error as error:
                if not self._rename_if_damaged(error):
                    break
        fill_in(left)
        return vectors

    @contextmanager
    def _connection(self) -> Iterator[sqlite3.Connection]:
        self._check_plain()
        connection = sqlite3.connect(self.path, timeout=0.0, isolation_level=None)
        try:
            if not self._schema(connection):
                self._ask(connection, "BEGIN IMMEDIATE")
                if not self._schema(connection):
                    connection.execute(_TABLE)
                self._ask(connection, "COMMIT")
            if self._schema(connection) != _SCHEMA:
                raise _foreign("its table is not the one that skbert makes")
            yield connection
        finally:
            connection.close()  # what is not committed is undone

    def _check_plain(self) -> None:
        """Refuse a link or a pipe, which SQLite would follow or wait for."""
        with suppress(FileNotFoundError):
            mode = self.path.lstat().st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # SQLite refuses a folder
                raise _foreign("it is a link or no plain file")

    def _schema(self, connection: sqlite3.Connection) -> list[Any]:
        """Return what the file declares; a foreign view or trigger is never run."""
        return self._ask(connection, "SELECT type, sql FROM sqlite_master ORDER BY type LIMIT 3")

    def _ask(
        self, connection: sqlite3.Connection, sql: str, values: Sequence[Any] = ()
    ) -> list[Any]:
        """Return all rows of a statement, after waiting for a process that has locked the file."""
        beat, silent_since = self._heartbeat(), time.monotonic()
        while True:
            try:
                return connection.execute(sql, values).fetchall()
            except UnicodeDecodeError as error:  # SQLite's own message quotes what is damaged
                raise _foreign("its text is not UTF-8") from error
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if self._heartbeat() != beat:
                    beat, silent_since = self._heartbeat(), time.monotonic()
                elif time.monotonic() > silent_since + _PATIENCE:
                    raise
            time.sleep(_POLL)  # in short steps, so that Ctrl-C works

    def _heartbeat(self) -> int:
        """Return a number that changes while another process computes."""
        try:
            return self.path.with_suffix(".busy").stat().st_mtime_ns
        except OSError:
            return 0

    @contextmanager
    def _beating(self) -> Iterator[None]:
        """Show other processes that this one computes, and has not been stopped."""
        path, is_done = self.path.with_suffix(".busy"), threading.Event()

        def beat() -> None:
            with suppress(OSError):
                path.touch()
                while not is_done.wait(_BEAT):
                    path.touch()

        with deferred_interrupts():  # which would leave a thread that nobody stops
            thread = threading.Thread(target=beat, daemon=True)
            thread.start()
            try:
                yield
            finally:
                is_done.set()
                thread.join()
                with suppress(OSError):
                    path.unlink()

    def _read(
        self,
        connection: sqlite3.Connection,
        keys: Sequence[str],
        vectors: Array,
        rows: IntArray,
    ) -> IntArray:
        """Fill in the rows that are in the file; return the others."""
        row_of = {keys[row]: row for row in rows.tolist()}
        kept = self._ask(
            connection,
            "SELECT key, CAST(vector AS BLOB), checksum FROM vectors"
            " WHERE key IN (SELECT value FROM json_each(?))",
            [json.dumps(list(row_of))],
        )
        size = self.width * self.dtype.itemsize
        for key, vector, checksum in kept:
            is_complete = vector is not None and len(vector) == size and crc32(vector) == checksum
            if is_complete and key in row_of:
                vectors[row_of.pop(key)] = np.frombuffer(vector, self.dtype)
        return np.fromiter(row_of.values(), np.int64, len(row_of))

    def _extend(
        self,
        connection: sqlite3.Connection,
        keys: Sequence[str],
        vectors: Array,
        rows: IntArray,
        fill_in: Callable[[IntArray], object],
    ) -> None:
        """Fill in the rows, and write those that no other process wrote in the meantime."""
        self._ask(connection, "BEGIN IMMEDIATE")  # waits for a process that computes now
        missing = self._read(connection, keys, vectors, rows)
        if len(missing):
            with self._beating():
                fill_in(missing)
            new = ((keys[row], vectors[row].tobytes()) for row in missing.tolist())
            connection.executemany(
                "INSERT OR REPLACE INTO vectors VALUES (?, ?, ?)",
                ((key, vector, crc32(vector)) for key, vector in new),
            )
        self._ask(connection, "COMMIT")

    def _rename_if_damaged(self, error: sqlite3.Error) -> bool:
        """Warn that the file cannot be used; rename a damaged one, and return whether it was."""
        renamed = self.path.with_suffix(".damaged")
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGED:
            with suppress(OSError):
                self.path.replace(renamed)
                warn(
                    f"The cache file {self.path} is damaged ({error}). It was renamed to "
                    f"{renamed.name}, and its texts are encoded again."
                )
                return True
        warn(
            f"The cache file {self.path} cannot be used ({error}): texts are encoded without it. "
            "Make sure that it can be written and that the disk is not full, or set memory=None."
        )
        return False


def _foreign(what: str) -> sqlite3.DatabaseError:
    """The error for a file that skbert did not make."""
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    return error
