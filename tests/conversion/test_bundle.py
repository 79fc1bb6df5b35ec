"""The reader of TensorFlow's checkpoints: what TensorFlow wrote, and files that want harm."""

from __future__ import annotations

import os
import shutil
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from support import DATA
from support.bundle_writer import (
    MAGIC,
    Rows,
    block,
    closed,
    entry,
    field,
    header,
    sealed,
    slow_crc32c,
    table,
    varint,
    write_bundle,
)

from skbert._conversion import bundle, crc32c
from skbert._conversion.bundle import Bundle
from skbert.exceptions import ModelError, ModelNotFoundError

TF = DATA / "tf"
WHOLE = ("pretraining", "classifier", "squad", "encoder")
DATA = "bert_model.ckpt.data-00000-of-00001"


def prefix_of(name: str) -> str:
    return str(TF / name / "bert_model.ckpt")


@pytest.fixture(scope="module")
def weights() -> dict[str, np.ndarray]:
    with np.load(TF / "weights.npz") as archive:
        return dict(archive)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the many files of a test that draws its cases."""
    return tmp_path_factory.mktemp("bundle")


@pytest.fixture
def encoder(tmp_path: Path) -> Path:
    """A copy of a checkpoint that TensorFlow wrote, to be damaged."""
    return Path(shutil.copytree(TF / "encoder", tmp_path / "encoder"))


def opened(folder: Path, index: bytes, data: bytes = bytes(64)) -> Bundle:
    """Open an index that was made up, beside some data."""
    (folder / "bert_model.ckpt.index").write_bytes(index)
    (folder / DATA).write_bytes(data)
    return Bundle(str(folder / "bert_model.ckpt"))


# --- checksums -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "checksum"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_published_checksums(data: bytes, checksum: int) -> None:
    assert crc32c.crc32c(data) == slow_crc32c(data) == checksum


@given(st.binary(max_size=200), st.integers(4, 40).map(lambda n: 4 * n))
def test_checksums_of_any_length_and_in_any_chunks(data: bytes, chunk: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(crc32c, "_CHUNK", chunk)
        assert crc32c.crc32c(data) == slow_crc32c(data)


def test_checksum_of_much_is_quick() -> None:
    data = np.arange(4_000_001, dtype=np.uint32).view(np.uint8)[:-3]
    start = time.perf_counter()
    first = crc32c.crc32c(data)
    assert time.perf_counter() - start < 5  # some 60 ms; byte by byte it would be 30 s
    assert crc32c.crc32c(data[1:]) != first


# --- what TensorFlow wrote -----------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_reads_what_tensorflow_wrote(name: str, weights: dict[str, np.ndarray]) -> None:
    found = Bundle(prefix_of(name))
    known = [each for each in found.entries if each in weights]
    assert len(known) >= 39
    for each in known:
        np.testing.assert_array_equal(found.read(each), weights[each])
        assert found.entries[each].shape == weights[each].shape


def test_slots_and_counters_are_read_as_any_tensor(weights: dict[str, np.ndarray]) -> None:
    found = Bundle(prefix_of("pretraining"))
    name = "bert/encoder/layer_1/attention/self/query/kernel"
    np.testing.assert_array_equal(found.read(f"{name}/adam_v"), weights[name] / 2)
    assert found.entries["global_step"].dtype == 9
    assert found.entries["global_step"].shape == ()
    with pytest.raises(
        ModelError, match=r"gives 'global_step' the type number 9 and 8 bytes, where"
    ):
        found.read("global_step")


def test_names_are_in_order() -> None:
    names = list(Bundle(prefix_of("pretraining")).entries)
    assert names == sorted(names)
    assert len(names) == 3 * 46 + 1


def test_several_data_files() -> None:
    assert len(list((TF / "classifier").glob("*.data-*-of-00002"))) == 2
    shards = [each.shard for each in Bundle(prefix_of("classifier")).entries.values()]
    assert set(shards) == {0, 1}


def test_tensors_cannot_be_written() -> None:
    found = Bundle(prefix_of("encoder")).read("bert/embeddings/word_embeddings")
    assert found.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        found[0] = 0


def test_objects_of_tensorflow_2() -> None:
    assert set(Bundle(prefix_of("objects")).entries) == {
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        "dense/.ATTRIBUTES/VARIABLE_VALUE",
    }


def test_the_writer_of_the_tests_writes_as_tensorflow_does(
    tmp_path: Path, weights: dict[str, np.ndarray]
) -> None:
    """The same entries, byte for byte, though not in the same place of the data."""
    tensors = {name: values for name, values in weights.items() if name.startswith("bert/")}
    ours, theirs = Bundle(write_bundle(tmp_path, tensors)), Bundle(prefix_of("encoder"))
    assert ours.entries.keys() == theirs.entries.keys()
    for name, found in theirs.entries.items():
        mine = ours.entries[name]
        assert (mine.shape, mine.checksum, mine.dtype) == (found.shape, found.checksum, 1)


names = st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=30)


@settings(max_examples=30)
@given(
    st.dictionaries(
        names,
        hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)),
        max_size=40,
    ),
    st.integers(1, 12),
    st.integers(1, 3),
)
@example({"a": np.zeros((0, 3), np.float32)}, 1, 1)
@example({}, 1, 1)
def test_round_trip(
    scratch: Path, tensors: dict[str, np.ndarray], per_block: int, shards: int
) -> None:
    found = Bundle(write_bundle(scratch, tensors, per_block=per_block, shards=shards))
    assert list(found.entries) == sorted(tensors, key=str.encode)
    for name, values in tensors.items():
        assert found.entries[name].shape == values.shape
        if values.size:
            np.testing.assert_array_equal(found.read(name), values)
            assert found.read(name).shape == values.shape


# --- damage --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 47, 48, 1000, 1523])
def test_a_cut_index_is_refused(length: int, encoder: Path) -> None:
    path = encoder / "bert_model.ckpt.index"
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(ModelError) as info:
        Bundle(str(encoder / "bert_model.ckpt"))
    assert f"{path} is damaged or cut short, at byte {max(length - 48, 0)}: " in str(info.value)


def refused(contents: bytes) -> str:
    """What the error says if the index has these contents."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Bundle, "_contents", lambda self: contents)  # much faster than writing them
        with pytest.raises(ModelError) as info:
            Bundle(prefix_of("encoder"))
    return str(info.value)


def test_every_cut_of_the_index_is_refused() -> None:
    whole = Path(prefix_of("encoder") + ".index").read_bytes()
    for length in range(len(whole)):
        assert "is damaged or cut short, at byte " in refused(whole[:length])


@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF])
def test_every_byte_of_the_index_counts(flip: int) -> None:
    whole = Path(prefix_of("encoder") + ".index").read_bytes()
    for at in range(len(whole)):
        changed = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
        assert "is damaged or cut short, at byte " in refused(changed)


@pytest.mark.parametrize("length", [0, 1, 100, 6143])
def test_cut_data_is_refused(length: int, encoder: Path) -> None:
    (encoder / DATA).write_bytes((encoder / DATA).read_bytes()[:length])
    with pytest.raises(ModelError, match=r"index is damaged .*, where \d+ to \d+ is free") as info:
        Bundle(str(encoder / "bert_model.ckpt"))
    assert f"to {length} is free" in str(info.value)


def test_every_flipped_bit_of_the_data_is_found_when_it_is_read(encoder: Path) -> None:
    path = encoder / DATA
    whole = path.read_bytes()
    found = Bundle(str(encoder / "bert_model.ckpt"))
    rng = np.random.default_rng(0)
    for name, where in found.entries.items():
        at = where.offset + int(rng.integers(where.size))
        flipped = whole[at] ^ 1 << int(rng.integers(8))
        path.write_bytes(whole[:at] + bytes([flipped]) + whole[at + 1 :])
        with pytest.raises(ModelError) as info:
            Bundle(str(encoder / "bert_model.ckpt")).read(name)
        assert f"{DATA} is damaged or cut short, at byte {where.offset}: " in str(info.value)
        assert f"{name!r} has another checksum" in str(info.value)


def test_data_that_shrinks_after_it_was_checked(encoder: Path) -> None:
    found = Bundle(str(encoder / "bert_model.ckpt"))
    (encoder / DATA).write_bytes(b"")
    with pytest.raises(ModelError, match="was changed while it was opened"):
        found.read("bert/pooler/dense/bias")


# --- indexes that are made up, with checksums that fit -------------------------------------------


HEAD = (b"", header())
SIZE = varint(len(block([HEAD])) - 5)
ONE = field(1, 1)  # of an entry: the type float32


def keyed(value: bytes) -> bytes:
    """An index with one tensor that is described like this."""
    return table([[HEAD, (b"a", value)]])


def raw_block(entries: bytes, restarts: bytes = bytes(4) + b"\1\0\0\0") -> bytes:
    return table([sealed(entries + restarts)])


MADE_UP: dict[str, tuple[bytes, str]] = {
    "empty": (b"", r"at byte 0: there is no footer"),
    "no table": (bytes(100), r"at byte 52: there is no footer"),
    "footer only": (bytes(40) + MAGIC, r"at byte 0: 5 bytes are announced, 0 are left"),
    "no header": (table([[(b"a", entry([1]))]]), r"at byte 0: the first entry is no header"),
    "nothing": (table([]), r"at byte 0: the first entry is no header"),
    "no shards": (table([[(b"", header(0))]]), r"at byte 3: 0 data files, where 1 to 99999"),
    "many shards": (table([[(b"", header(10**6))]]), r"at byte 3: 1000000 data files"),
    "big endian": (table([[(b"", header(1, 1))]]), r"written on a big-endian machine"),
    "another shard": (keyed(entry([1], shard=1)), r"a tensor in data file 1 of 1"),
    "beyond the data": (keyed(entry([4], offset=52)), r"'a' is at 52 to 68 of .*0 to 64 is"),
    "far beyond": (keyed(entry([1], offset=2**62)), r"is at 4611686018427387904 to"),
    "negative offset": (keyed(entry([1], offset=-4)), r"a number that is negative"),
    "negative size": (keyed(entry([1], size=-4)), r"a number that is negative"),
    "negative axis": (keyed(entry([-1, -1])), r"a number that is negative"),
    "huge shape": (keyed(entry([2**40, 2**40], size=64)), r"64 bytes for float32 numbers of the"),
    "no shape": (keyed(ONE + field(5, 64)), r"64 bytes for float32 numbers of the shape \(\)"),
    "many axes": (keyed(entry([1] * 9)), r"a shape of 9 axes"),
    "two on one place": (table([[HEAD, (b"a", entry([4])), (b"b", entry([4], offset=12))]]),
                         r"'b' is at 12 to 28 of .*, where 16 to 64 is free"),
    "many on one place": (table([[HEAD, *((b"%04d" % i, entry([16])) for i in range(2000))]]),
                          r"'0001' is at 0 to 64 of .*, where 64 to 64 is free"),
    "endless number": (keyed(b"\x08" + b"\xff" * 12), r"a number that is negative"),
    "long zero": (keyed(b"\x08\x81\x00"), r"not written the short way"),
    "cut number": (keyed(b"\x08\xff"), r"1 bytes are announced, 0 are left"),
    "length beyond": (keyed(ONE + b"\x12\x7f\x00"), r"127 bytes are announced, 1 are left"),
    "groups": (keyed(ONE + b"\x13\x14"), r"field 2 of kind 3"),
    "unknown groups": (keyed(ONE + varint(99 << 3 | 3)), r"field 99 of kind 3"),
    "number for a shape": (keyed(field(2, 7)), r"field 2 of kind 0"),
    "text for a number": (keyed(field(1, b"xy")), r"field 1 of kind 2"),
    "in parts": (keyed(entry([1], more=field(7, b""))), r"at byte \d+, a variable that was saved"),
    "a part": (table([[HEAD, (b"\0a", entry([1]))]]), r"a variable that was saved in parts"),
    "no name": (table([[HEAD, (b"\xff\xfe", entry([1]))]]), r"the name b'\\xff.* is not UTF-8"),
    "a name twice": (table([[HEAD, (b"a", entry([1])), (b"a", entry([1]))]]),
                     r"a key is not larger than the one before"),
    "out of order": (table([[HEAD, (b"b", entry([1]))], [(b"a", entry([1]))]]),
                     r"a key is not larger than the one before"),
    "shares too much": (raw_block(b"\1\1\0a"), r"at byte 0: a key of 1 \+ 1 bytes after one of 0"),
    "long key": (table([[HEAD, (b"a" * 1025, b"")]]), r"a key of 0 \+ 1025 bytes after one of 0"),
    "long value": (keyed(bytes(70_000)), r"after one of 0, a value of 70000"),
    "key beyond": (raw_block(b"\0\x7f\0a"), r"at byte 3: 127 bytes are announced, 1 are left"),
    "value beyond": (raw_block(b"\0\0\x7fa"), r"at byte 3: 127 bytes are announced, 1 are left"),
    "many restarts": (raw_block(b"", b"\xff" * 4), r"at byte 0: 4294967295 restarts do not fit 4"),
    "tiny block": (table([sealed(b"")]), r"at byte 0: 0 restarts do not fit 0 bytes"),
    "compressed": (table([block([HEAD], kind=1)]), r"is compressed, at byte 0, which is not read"),
    "a gap": (closed(b"x" + block([HEAD]), [(b"", varint(1) + SIZE)]),
              r"at byte 0: the next block is said to begin at 1"),
    "a block twice": (closed(block([HEAD]), [(b"", varint(0) + SIZE)] * 2),
                      r"the next block is said to begin at 0"),
    "a block beyond": (closed(block([HEAD]), [(b"", varint(0) + varint(2**40))]),
                       r"the next block is said to begin at"),
    "no place": (closed(block([HEAD]), [(b"", b"")]), r"1 bytes are announced, 0 are left"),
}  # fmt: skip


@pytest.mark.parametrize("case", MADE_UP)
def test_made_up_indexes_are_refused(case: str, tmp_path: Path) -> None:
    index, message = MADE_UP[case]
    start = time.perf_counter()
    tracemalloc.start()
    try:
        with pytest.raises(ModelError, match=message):
            opened(tmp_path, index)
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - start < 5


def test_what_is_made_up_opens_where_it_is_right(tmp_path: Path) -> None:
    """The cases above are refused for their fault, not for being made up."""
    found = opened(tmp_path, keyed(entry([2, 8], more=field(99, 7) + field(98, b"later"))))
    assert found.entries["a"].shape == (2, 8)
    assert opened(tmp_path, table([[HEAD], [(b"a", entry([2, 8], dtype=7, size=3))]])).entries


def test_a_damaged_tensor_that_is_not_read_does_no_harm(tmp_path: Path) -> None:
    found = opened(tmp_path, keyed(entry([2, 8])))
    with pytest.raises(ModelError, match="at byte 0: 'a' has another checksum"):
        found.read("a")


@pytest.mark.parametrize("shape", [(0,), (2**62, 0), (0, 2**62, 2**62)])
def test_a_tensor_without_numbers(shape: tuple[int, ...], tmp_path: Path) -> None:
    found = opened(tmp_path, keyed(entry(shape, size=0)))
    with pytest.raises(ModelError, match="gives 'a' the type number 1 and 0 bytes, where float32"):
        found.read("a")


def test_a_shape_that_is_given_twice_counts_once(tmp_path: Path) -> None:
    shape = field(2, field(2, field(1, 2)) * 4)
    found = opened(tmp_path, keyed(entry([1] * 8, size=64, more=shape)))
    assert found.entries["a"].shape == (2, 2, 2, 2)


def test_too_many_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Rows = [HEAD, *((b"%d" % i, entry([0])) for i in range(4))]
    monkeypatch.setattr(bundle, "_MOST_ENTRIES", 4)
    assert len(opened(tmp_path, table([rows])).entries) == 4
    monkeypatch.setattr(bundle, "_MOST_ENTRIES", 3)
    with pytest.raises(ModelError, match="more than 3 tensors"):
        opened(tmp_path, table([rows]))


def test_a_huge_index_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "bert_model.ckpt.index"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # takes no room
    with pytest.raises(ModelError, match="1099511627776 bytes, where an index has at most"):
        Bundle(str(tmp_path / "bert_model.ckpt"))


@settings(max_examples=300)
@given(st.data())
def test_changed_blocks_with_new_checksums_do_no_harm(scratch: Path, data: st.DataObject) -> None:
    """Whatever stands in a block: it is read, or refused by a ModelError."""
    rows: Rows = [HEAD, *((b"bert/%d" % i, entry([2, i], offset=8 * i)) for i in range(4))]
    contents = bytearray(block(rows)[:-5])
    for _ in range(data.draw(st.integers(1, 4))):
        contents[data.draw(st.integers(0, len(contents) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ModelError):
        found = opened(scratch, table([sealed(bytes(contents))]))
        assert len(found.entries) <= 4
        assert all(each.offset + each.size <= 64 for each in found.entries.values())


# --- finding the files ---------------------------------------------------------------------------


def test_a_wrong_prefix_is_told_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"there is no checkpoint .*nope") as info:
        Bundle(str(TF / "encoder" / "nope"))
    assert f"Give {prefix_of('encoder')!r}." in str(info.value)
    with pytest.raises(ModelNotFoundError) as info:
        Bundle(str(TF / "encoder"))
    assert f"Give {prefix_of('encoder')!r}." in str(info.value)
    with pytest.raises(ModelNotFoundError, match=r"without, '.index', such as 'uncased/bert_mo"):
        Bundle(str(tmp_path / "no folder" / "bert_model.ckpt"))


@pytest.mark.parametrize("prefix", ["", "a" * 5000, "a\0b", "~/x", "/dev/null/x"])
def test_odd_prefixes(prefix: str) -> None:
    with pytest.raises(ModelNotFoundError, match="there is no checkpoint"):
        Bundle(prefix)


@pytest.mark.parametrize("ending", ["index", "data-00000-of-00001"])
def test_one_file_of_a_checkpoint_is_no_prefix(ending: str) -> None:
    prefix = prefix_of("encoder")
    with pytest.raises(ModelError) as info:
        Bundle(f"{prefix}.{ending}")
    assert f"{ending} is one file of a checkpoint: give its prefix {prefix!r}." in str(info.value)


def test_v1_is_refused_with_advice() -> None:
    with pytest.raises(ModelError, match=r"old V1 format, .*\.Saver\(write_version=") as info:
        Bundle(prefix_of("v1"))
    assert not isinstance(info.value, ModelNotFoundError)


def test_v1_under_the_name_of_an_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="index is damaged or cut short, at byte"):
        opened(tmp_path, (TF / "v1" / "bert_model.ckpt").read_bytes())


@pytest.mark.parametrize("contents", [b"", b"short", bytes(100)])
def test_another_file_is_no_checkpoint(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "bert_model.ckpt").write_bytes(contents)
    with pytest.raises(ModelError, match="is a file, but not a TensorFlow checkpoint"):
        Bundle(str(tmp_path / "bert_model.ckpt"))


def test_a_file_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise PermissionError(13, "Permission denied")

    (tmp_path / "v1.ckpt").write_bytes(bytes(100))
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(os, "open", refuse)
    for prefix in (str(tmp_path / "v1.ckpt"), prefix_of("encoder")):
        with pytest.raises(ModelError, match=r"can(not)? be read: .*Permission denied"):
            Bundle(prefix)


def test_a_missing_data_file(tmp_path: Path) -> None:
    shutil.copytree(TF / "classifier", tmp_path, dirs_exist_ok=True)
    (tmp_path / "bert_model.ckpt.data-00001-of-00002").unlink()
    with pytest.raises(ModelNotFoundError, match=r"data-00001-of-00002 is missing, but .*index"):
        Bundle(str(tmp_path / "bert_model.ckpt"))


def test_a_checkpoint_in_parts_is_refused() -> None:
    with pytest.raises(ModelError, match=r"at byte \d+, a variable that was saved in parts"):
        Bundle(prefix_of("sliced"))


def test_names_of_data_files_come_from_the_prefix_alone(tmp_path: Path) -> None:
    """Only a number of the index goes into the name of a file."""
    write_bundle(tmp_path, {"../../etc/passwd": np.ones(3)})
    moved = tmp_path / "other.ckpt"
    for path in list(tmp_path.iterdir()):
        path.rename(path.with_name(path.name.replace("bert_model", "other")))
    found = Bundle(str(moved))
    np.testing.assert_array_equal(found.read("../../etc/passwd"), 1)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_a_pipe_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "bert_model.ckpt.index")
    with pytest.raises(ModelNotFoundError):
        Bundle(str(tmp_path / "bert_model.ckpt"))
