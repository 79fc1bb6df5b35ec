"""Seeded changes inside files that lengths, checksums or hashes hold together: sealed again.

So they reach what stands behind the first check of a reader.
"""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import sqlite3
import zipfile
from typing import TYPE_CHECKING, Any

from support.bundle_writer import block, entry, field, header, table, varint
from support.damage.bytes_and_json import NUMBERS, change_bytes, change_json

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from support.damage.bytes_and_json import Change

MOST_BYTES = 10_000_000  # of a file that is damaged once more


def change_header(random: Random, data: bytes) -> Change:
    """Change the JSON header of a safetensors file, and write down its new length."""
    length = int.from_bytes(data[:8], "little")
    done, head = change_json(random, data[8 : 8 + length])
    if random.random() < 0.3:
        head += b" " * (-len(head) % 8)
    return f"header {done}", len(head).to_bytes(8, "little") + head + data[8 + length :]


def change_numbers(random: Random, data: bytes) -> Change:
    """Put odd floating-point numbers among the weights of a safetensors file."""
    start = 8 + int.from_bytes(data[:8], "little")
    if start + 4 > len(data):
        return change_bytes(random, data)
    odd = (b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", b"\1\0\0\0")
    changed = bytearray(data)
    for _ in range(random.choice((1, 10, 200))):
        at = start + 4 * random.randrange((len(data) - start) // 4)
        changed[at : at + 4] = random.choice(odd)
    return "odd numbers", bytes(changed)


class _Bomb:
    """Runs something when it is unpickled."""

    def __init__(self, random: Random) -> None:
        self.call = random.choice((
            (eval, ("__import__('os').system('touch unpickled')",)),
            (exec, ("open('unpickled', 'w')",)),
            (print, ("unpickled",)),
            (bytearray, (3_000_000_000,)),
        ))  # fmt: skip

    def __reduce__(self) -> Any:
        return self.call


_OPCODES = (
    b"cos\nsystem\n", b"cbuiltins\neval\n", b"c__builtin__\nexec\n", b"ctorch\nload\n", b"(", b"R",
    b"o", b"b", b"0", b"2", b"}", b"]", b")", b"\x85", b"\x86", b"\x87", b"Q", b"\x81", b"\x92",
    b"\x93", b"u", b"s", b"N", b"\x88", b"J\xff\xff\xff\x7f", b"X\xff\xff\xff\xff", b"\x8a\xff",
    b"X\x0a\0\0\0posix open", b"ccollections\nOrderedDict\n", b"h\x00", b"q\x00", b".",
)  # fmt: skip


def change_pickle(random: Random, data: bytes) -> Change:
    """Change the pickle, or another record, of a file of torch.save; all checksums are right."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            records = [(entry.filename, archive.read(entry)) for entry in archive.infolist()]
    except (zipfile.BadZipFile, NotImplementedError, EOFError, ValueError):
        return change_bytes(random, data)
    at = next((row for row, (name, _) in enumerate(records) if name.endswith("data.pkl")), 0)
    name, held = records[at]
    how = random.choice(("opcodes", "opcodes", "bytes", "bytes", "bomb", "records"))
    if how == "opcodes":
        for _ in range(random.choice((1, 1, 3))):
            where = random.randrange(len(held))
            end = where + random.choice((0, 0, 1, 4))
            held = held[:where] + random.choice(_OPCODES) + held[end:]
    elif how == "bytes":
        held = change_bytes(random, held)[1]
    elif how == "bomb":
        held = pickle.dumps(_Bomb(random), protocol=random.choice((0, 1, 2, 4)))
    records[at] = (name, held)
    if how == "records":
        _change_records(random, records)
    packing = random.choice((zipfile.ZIP_STORED,) * 9 + (zipfile.ZIP_DEFLATED,))
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", packing) as archive:
        for name, held in records:
            archive.writestr(zipfile.ZipInfo(name), held, packing)  # of a fixed time
    return f"pickle: {how}", out.getvalue()


def _change_records(random: Random, records: list[tuple[str, bytes]]) -> None:
    """Rename, repeat, leave out or exchange records of a zip file."""
    row, other = random.randrange(len(records)), random.randrange(len(records))
    (name, held), (name_2, held_2) = records[row], records[other]
    names = ("../evil", "/etc/evil", "archive/../data.pkl", "archive/code/evil.py", name.upper())
    match random.randrange(5):
        case 0:
            records[row] = (random.choice(names), held)
        case 1:
            records[row], records[other] = (name, held_2), (name_2, held)
        case 2:
            del records[row]
        case 3:
            records.append((random.choice(names), held))
        case _:
            records[row] = (name, change_bytes(random, held)[1])


def is_small_file(path: Path) -> bool:
    """Whether there is a file that can be read whole."""
    return path.is_file() and not path.is_symlink() and path.stat().st_size < MOST_BYTES


def seal_manifest(folder: Path) -> None:
    """Write down the sizes and hashes of the files of a saved folder, and the digest of these."""
    path = folder / "MANIFEST.json"
    if not is_small_file(path):
        return
    try:
        manifest = json.loads(path.read_bytes())
        manifest.pop("digest", None)
        for name, listed in manifest["members"].items():
            if not is_small_file(folder / name):
                continue
            data = (folder / name).read_bytes()
            listed.update(size=len(data), sha256=hashlib.sha256(data).hexdigest())
        text = json.dumps(manifest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, LookupError, TypeError, AttributeError, OSError, RecursionError):
        return
    manifest["digest"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(manifest))


def change_index(random: Random, data: bytes) -> Change:
    """Write another index of a TensorFlow checkpoint, with odd entries and right checksums."""
    names = [
        b"",
        b"a/b",
        b"bert/embeddings/word_embeddings",
        b"\0x",
        b"\xff",
        b"../x",
        b"z" * 1100,
    ]
    rows = [(name, _odd_entry(random)) for name in random.sample(names, random.randrange(1, 7))]
    rows += [(b"", header(random.choice(NUMBERS)))] * (random.random() < 0.5)
    blocks = [sorted(rows)[at : at + 3] for at in range(0, len(rows), 3)]
    made = table(blocks)
    if random.random() < 0.3:
        made = table([*blocks, block(rows, kind=random.choice((0, 1, 255)))])
    return "another index", made


def _odd_entry(random: Random) -> bytes:
    shape = [random.choice(NUMBERS) for _ in range(random.choice((0, 1, 2, 9)))]
    more = random.choice((b"", field(7, b"x"), field(2, b"\xff" * 9), varint(2**63), b"\x0b"))
    return entry(
        shape, random.choice(NUMBERS), random.choice(NUMBERS), dtype=random.choice((1, 2, 99)),
        shard=random.choice(NUMBERS), checksum=random.randbytes(4), more=more,
    )  # fmt: skip


_STATEMENTS = (
    "UPDATE vectors SET vector = zeroblob(24)", "UPDATE vectors SET vector = NULL",
    "UPDATE vectors SET vector = 'text'", "UPDATE vectors SET checksum = 'text'",
    "UPDATE vectors SET vector = 1e308", "DELETE FROM vectors", "DROP TABLE vectors",
    "UPDATE vectors SET vector = zeroblob(5000000)", "UPDATE vectors SET key = key || 'x'",
    "INSERT INTO vectors VALUES ('x', zeroblob(10), -9223372036854775808)",
    "CREATE VIEW v AS SELECT load_extension('evil')", "CREATE INDEX i ON vectors (vector)",
    "CREATE TRIGGER t AFTER INSERT ON vectors BEGIN DELETE FROM vectors; END",
    "ALTER TABLE vectors RENAME TO others", "ALTER TABLE vectors ADD COLUMN more TEXT",
    "CREATE TABLE other (x)", "PRAGMA journal_mode = WAL", "PRAGMA user_version = 7",
    "PRAGMA encoding = 'UTF-16'", "PRAGMA application_id = 7", "VACUUM",
    "DROP TABLE vectors; CREATE VIEW vectors AS SELECT 'a' key, zeroblob(24) vector, 0 checksum",
    "DROP TABLE vectors; CREATE TABLE vectors (key, vector, checksum)",
    "PRAGMA writable_schema = 1; UPDATE sqlite_master SET sql = 'CREATE TABLE vectors (a, b)'",
    "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 1",
    "PRAGMA writable_schema = 1; UPDATE sqlite_master SET rootpage = 99999 WHERE type = 'table'",
)  # fmt: skip


def change_database(random: Random, path: Path) -> str:
    """Change an SQLite file by statements that its owner may run."""
    done = random.choice(_STATEMENTS)
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        connection.executescript(done)
    except sqlite3.Error:
        return "statement refused"
    finally:
        connection.close()
    return done[:60]
