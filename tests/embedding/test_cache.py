"""The cache of vectors: how little is encoded, what decides that a vector is the same, damage."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pytest
import torch
from conftest import tiny_vocabulary
from safetensors.torch import load_file, save_file
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from support.caches import CacheOfTexts
from support.families import save_tiny

from skbert import BertClassifier, BertTransformer
from skbert._core.families import FAMILIES
from skbert._core.models.network import Network
from skbert._estimator import cache as module
from skbert._estimator.cache import cache_folder, fingerprint
from skbert._validation.texts import Texts
from skbert.exceptions import InputError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Sentiment

TEXTS = ["the food was great", "the staff is awful", "x", "the food was great", "best book of all"]
WIDTH = 3


def plain(model: Any, **params: Any) -> BertTransformer:
    usual = {"device": "cpu", "precision": "float32", "pooling": "mean"}
    return BertTransformer(model, **{**usual, **params})


@pytest.fixture
def tokens(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens went through each forward pass of any network."""
    seen: list[int] = []
    real = Network.hidden

    def counting(self: Network, batch: Any) -> torch.Tensor:
        seen.append(batch.input_ids.numel())
        return real(self, batch)

    monkeypatch.setattr(Network, "hidden", counting)
    return seen


def files(folder: Path) -> list[Path]:
    return sorted((folder / "skbert").glob("*.sqlite"))


def rows_in(folder: Path) -> list[tuple[str, bytes]]:
    connections = [sqlite3.connect(path) for path in files(folder)]
    rows = [row for each in connections for row in each.execute("SELECT key, vector FROM vectors")]
    for connection in connections:
        connection.close()
    return rows


# --- how little is encoded -----------------------------------------------------------------------


def search(transformer: BertTransformer, n_jobs: int | None = None) -> GridSearchCV:
    grid = {"logisticregression__C": [0.01, 0.1, 0.3, 1, 3, 10]}
    folds = KFold(5, shuffle=True, random_state=0)
    return GridSearchCV(
        make_pipeline(transformer, LogisticRegression()), grid, cv=folds, n_jobs=n_jobs
    )


@pytest.mark.long
def test_a_search_encodes_each_text_once(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, tokens: list[int]
) -> None:
    """5 folds of 6 candidates: 31 times all texts without the cache, once with it."""
    without = search(plain(tiny_model)).fit(*sentiment)
    spent, once = sum(tokens), plain(tiny_model)
    tokens.clear()
    with_cache = search(plain(tiny_model, memory=tmp_path)).fit(*sentiment)
    cached = sum(tokens)
    assert spent == 31 * cached  # 30 fits and the last one, each with its fold held out
    tokens.clear()
    expected = once.fit_transform(sentiment.texts)
    assert cached == sum(tokens)  # not one token more than in a single pass
    for name in ("mean_test_score", "params"):
        assert list(with_cache.cv_results_[name]) == list(without.cv_results_[name])
    proba = (each.predict_proba(sentiment.texts) for each in (with_cache, without))
    np.testing.assert_allclose(*proba, atol=1e-5)
    tokens.clear()
    found = plain(tiny_model, memory=tmp_path).fit_transform(sentiment.texts)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
    assert tokens == []


@pytest.mark.long  # processes, too
def test_a_search_with_two_workers(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, tokens: list[int]
) -> None:
    alone = search(plain(tiny_model)).fit(*sentiment)
    together = search(plain(tiny_model, memory=tmp_path), n_jobs=2).fit(*sentiment)
    assert list(together.cv_results_["mean_test_score"]) == list(
        alone.cv_results_["mean_test_score"]
    )
    assert len(rows_in(tmp_path)) == len(sentiment.texts)
    tokens.clear()
    plain(tiny_model, memory=tmp_path).fit_transform(sentiment.texts)
    assert tokens == []


def test_ctrl_c_leaves_no_heart_beating(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it comes as the thread starts."""
    transformer = plain(tiny_model, memory=tmp_path).fit(["a"])
    threads: list[threading.Thread] = []
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        if "(beat)" in thread.name:
            threads.append(thread)
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(module.threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        transformer.transform(["b"])
    assert threads
    assert not any(thread.is_alive() for thread in threads)
    assert not [*tmp_path.rglob("*.busy")]


PROCESS = """
import sys, numpy as np
from skbert import BertTransformer
from skbert._core.models.network import Network
rows, real = [], Network.hidden
Network.hidden = lambda self, batch: rows.append(len(batch.layout.lengths)) or real(self, batch)
model, memory = sys.argv[1:]
texts = ["good " * (1 + i % 7) + str(i) for i in range(300)]
transformer = BertTransformer(model, device="cpu", precision="float32", memory=memory)
transformer.fit(texts).transform(texts)
print(sum(rows))
"""


@pytest.mark.long
def test_processes_share_the_work(tiny_model: Path, tmp_path: Path) -> None:
    """Two that start together encode each text once between them."""
    command = [sys.executable, "-c", textwrap.dedent(PROCESS), str(tiny_model), str(tmp_path)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    counts = [int(process.communicate(timeout=200)[0]) for process in running]
    assert sum(counts) == 300
    assert len(rows_in(tmp_path)) == 300


def test_threads_share_the_work(tiny_model: Path, tmp_path: Path, tokens: list[int]) -> None:
    transformer = plain(tiny_model, memory=tmp_path).fit(TEXTS)
    expected = plain(tiny_model).fit_transform(TEXTS)
    tokens.clear()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(transformer.transform, [TEXTS] * 24))
    for each in found:
        np.testing.assert_allclose(each, expected, rtol=0, atol=1e-6)
    assert len(tokens) == 1


def test_only_new_texts_are_encoded(tiny_model: Path, tmp_path: Path, tokens: list[int]) -> None:
    transformer = plain(tiny_model, memory=tmp_path).fit(TEXTS)
    assert tokens == []
    transformer.transform(TEXTS)
    tokens.clear()
    transformer.transform([*TEXTS, "a b c"])
    assert tokens == [5]  # with [CLS] and [SEP]
    tokens.clear()
    PCA = plain(tiny_model, memory=tmp_path, n_components=2, normalize=True)
    PCA.fit(TEXTS).transform(TEXTS)
    assert tokens == []  # what comes after the encoder shares its vectors


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_kept_vectors_are_the_vectors(tiny_model: Path, tmp_path: Path, precision: str) -> None:
    pairs = [("a", "b"), ("ab", ""), ("a", "b c")]
    for X in (TEXTS, pairs):
        for params in ({}, {"pooling": "mean_max"}, {"layers": [0, 1], "layer_join": "concat"}):
            transformer = plain(tiny_model, precision=precision, memory=tmp_path, **params)
            first = transformer.fit_transform(X)
            np.testing.assert_array_equal(transformer.transform(X), first)
            direct = plain(tiny_model, precision=precision, **params).fit_transform(X)
            np.testing.assert_array_equal(first, direct)
            assert first.dtype == precision


def test_nothing_but_numbers_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    plain(tiny_model, memory=tmp_path).fit_transform(TEXTS)
    (path,) = files(tmp_path)
    content = path.read_bytes()
    assert not any(text.encode() in content for text in TEXTS if len(text) > 1)
    rows = rows_in(tmp_path)
    assert len(rows) == len(set(TEXTS))
    assert {(len(key), len(vector)) for key, vector in rows} == {(64, 32 * 4)}


# --- what decides that a vector is the same ------------------------------------------------------


@pytest.mark.filterwarnings("ignore::skbert.exceptions.TruncationWarning")
def test_every_setting_has_vectors_of_its_own(
    tiny_model: Path, make_tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    changes = [
        {}, {"pooling": "max"}, {"pooling": "pooler"}, {"layers": 1}, {"layers": [1, 2]},
        {"layers": [2, 1], "layer_join": "concat"}, {"max_length": 5},
        {"max_length": 5, "long_text": "windows"}, {"precision": "float64"},
        {"precision": "bfloat16"}, {"model": make_tiny_model(seed=1)},
        {"model": make_tiny_model(num_attention_heads=4)},
        {"model": make_tiny_model(hidden_act="relu")},
    ]  # fmt: skip
    X = ["the staff is awful and so slow", "good"]
    for count, change in enumerate(changes, 1):
        params = {"model": tiny_model, **change}
        found = plain(**params, memory=tmp_path).fit_transform(X)
        np.testing.assert_array_equal(found, plain(**params).fit_transform(X))
        assert len(files(tmp_path)) == count, change


def test_the_same_settings_share_a_file(tiny_model: Path, tmp_path: Path) -> None:
    expected = plain(tiny_model, memory=tmp_path).fit_transform(TEXTS)
    same = [
        plain(tiny_model, memory=str(tmp_path), layers=None, max_length=128),
        plain(tiny_model, memory=joblib.Memory(tmp_path, verbose=0), normalize=True),
        plain(plain(tiny_model).fit(TEXTS), memory=tmp_path, n_components=2),
    ]
    for transformer in same:
        transformer.fit_transform(TEXTS)
    saved = tmp_path / "saved"
    same[1].save(saved)
    loaded = BertTransformer.load(saved).set_params(normalize=False)
    np.testing.assert_array_equal(loaded.transform(TEXTS), expected)
    assert len(files(tmp_path)) == 1


def test_fine_tuning_makes_other_vectors(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    taught = BertClassifier(tiny_model, epochs=1, pooling="mean", device="cpu", random_state=0)
    for rate in (1e-3, 1e-2):
        taught.set_params(learning_rate=rate).fit(*sentiment)
        found = plain(taught, memory=tmp_path).fit_transform(TEXTS)
        np.testing.assert_array_equal(found, plain(taught).fit_transform(TEXTS))
    assert len(files(tmp_path)) == 2


def test_the_fingerprint(tiny_model: Path, make_tiny_model: Callable[..., Path]) -> None:
    def print_of(model: Any, **params: Any) -> str:
        return fingerprint(plain(model, **params).fit(TEXTS)._fitted.network)

    one = print_of(tiny_model)
    assert one == print_of(make_tiny_model())  # another folder, the same model
    assert one != print_of(tiny_model, pooling="pooler")
    assert one != print_of(make_tiny_model(seed=1))
    assert one != print_of(make_tiny_model(layer_norm_eps=1e-6))
    network = plain(tiny_model).fit(TEXTS)._fitted.network
    with torch.no_grad():
        network.model.encoder.layer[0].output.dense.bias[3] += 1e-6
    assert fingerprint(network) != one


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("albert", {"num_hidden_layers": 5}),
        ("deberta-v2", {"conv_act": "tanh"}),
        ("bert", {"position_embedding_type": "relative_key_query"}),
    ],
)
def test_settings_that_change_no_weight_change_the_fingerprint(
    tmp_path: Path, family: str, settings: dict[str, object]
) -> None:
    more: dict[str, Any] = {"conv_kernel_size": 3} if family == "deberta-v2" else {}
    folder = save_tiny(FAMILIES[family], tmp_path / "model", tiny_vocabulary(), **more)
    config = json.loads((folder / "config.json").read_text())
    if family == "bert":  # whose tables both kinds of distances read
        weights = load_file(folder / "model.safetensors")
        size = config["hidden_size"] // config["num_attention_heads"]
        n_distances = 2 * config["max_position_embeddings"] - 1
        for number in range(config["num_hidden_layers"]):
            name = f"encoder.layer.{number}.attention.self.distance_embedding.weight"
            weights[name] = torch.rand(n_distances, size)
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        config["position_embedding_type"] = "relative_key"
    found = []
    for changes in ({}, settings):
        (folder / "config.json").write_text(json.dumps(config | changes))
        transformer = plain(folder, memory=tmp_path / "kept").fit(TEXTS)
        vectors = transformer.transform(TEXTS)
        np.testing.assert_array_equal(vectors, plain(folder).fit(TEXTS).transform(TEXTS))
        found.append(vectors)
    assert np.abs(found[0] - found[1]).max() > 1e-4


def test_the_fingerprint_is_taken_once(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[Network] = []
    monkeypatch.setattr(
        "skbert._estimator.cache._hash_of_all", lambda network: taken.append(network) or "f"
    )
    transformer = plain(tiny_model, memory=tmp_path)
    transformer.fit_transform(TEXTS)
    transformer.transform(TEXTS)
    assert len(taken) == 1
    transformer.set_params(precision="float64").transform(TEXTS)  # other weights, in a way
    assert len(taken) == 2
    transformer.fit(TEXTS).transform(TEXTS)
    assert len(taken) == 3
    assert transformer.model_ is not None  # whoever has it may change it
    transformer.transform(TEXTS)
    assert len(taken) == 4


# --- one file by itself --------------------------------------------------------------------------


def texts(n: int) -> Texts:
    return Texts([f"text {i}" for i in range(n)], None, None, 1)


def lengths(rows: Texts) -> np.ndarray:
    return np.array([[len(text), int(text.split()[1]), 1] for text in rows.first], np.float32)


@pytest.fixture
def cache(tmp_path: Path) -> CacheOfTexts:
    return CacheOfTexts(tmp_path, {"a": 1}, WIDTH, np.dtype(np.float32))


def only(n: int) -> Callable[[Texts], np.ndarray]:
    """Compute that many texts at once, and no other number."""

    def compute(rows: Texts) -> np.ndarray:
        assert len(rows) == n
        return lengths(rows)

    return compute


def refuse(rows: Texts) -> np.ndarray:
    raise AssertionError(rows)


def test_many_texts_are_written_in_parts(
    cache: CacheOfTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_SIZE", 100)
    asked: list[int] = []

    def stopping(rows: Texts) -> np.ndarray:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(len(rows))
        return lengths(rows)

    with pytest.raises(KeyboardInterrupt):
        cache.vectors(texts(1000), stopping)
    assert asked == [100, 100, 100]
    np.testing.assert_array_equal(cache.vectors(texts(300), refuse), lengths(texts(300)))
    asked.clear()
    found = cache.vectors(texts(350), stopping)
    assert asked == [50]
    np.testing.assert_array_equal(found, lengths(texts(350)))


def test_what_cannot_be_written_is_computed_once(
    cache: CacheOfTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_CHUNK_SIZE", 100)
    asked: list[int] = []

    def counting(rows: Texts) -> np.ndarray:
        asked.append(len(rows))
        return lengths(rows)

    def full(_vector: bytes) -> int:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(module, "crc32", full)
    with pytest.warns(SkbertWarning, match="disk is full"):
        found = cache.vectors(texts(250), counting)
    np.testing.assert_array_equal(found, lengths(texts(250)))
    assert asked == [100, 150]


@pytest.mark.parametrize("blob", [b"", b"123", b"\0" * 12, b"\0" * 16, "a text", None, 7, 1.5])
def test_vectors_that_are_not_whole_are_made_again(cache: CacheOfTexts, blob: Any) -> None:
    cache.vectors(texts(3), lengths)
    with sqlite3.connect(cache.path) as connection:
        connection.execute("UPDATE vectors SET vector = ? WHERE rowid = 2", [blob])
    connection.close()
    asked: list[str] = []
    for _ in range(2):
        found = cache.vectors(texts(3), lambda rows: asked.extend(rows.first) or lengths(rows))
        np.testing.assert_array_equal(found, lengths(texts(3)))
    assert asked == ["text 1"]


@pytest.mark.parametrize("damage", ["noise", "head", "middle", "name", "table"])
def test_a_damaged_file_is_set_aside(cache: CacheOfTexts, damage: str) -> None:
    cache.vectors(texts(500), lengths)
    content = bytearray(cache.path.read_bytes())
    match damage:
        case "noise":
            content = bytearray(b"no database at all " * 100)
        case "head":
            content[:64] = bytes(64)
        case "middle":
            content[4096:] = b"\xff" * (len(content) - 4096)
        case "name":  # SQLite's message quotes it
            content[content.index(b"TABLE vectors") + 6] = 0xFF
        case "table":
            cache.path.unlink()
            with sqlite3.connect(cache.path) as connection:
                connection.execute("CREATE TABLE vectors (name TEXT)")
            connection.close()
            content = bytearray(cache.path.read_bytes())
    cache.path.write_bytes(content)
    with pytest.warns(SkbertWarning, match="is damaged.*renamed") as caught:
        found = cache.vectors(texts(500), lengths)
    assert len(caught) == 1
    np.testing.assert_array_equal(found, lengths(texts(500)))
    assert cache.path.with_suffix(".damaged").read_bytes() == content
    np.testing.assert_array_equal(cache.vectors(texts(500), refuse), found)


@pytest.mark.filterwarnings("ignore:The cache file")
def test_a_truncated_file_never_gives_wrong_vectors(cache: CacheOfTexts) -> None:
    cache.vectors(texts(500), lengths)
    content = cache.path.read_bytes()
    for size in (0, 1, 100, 4096, 5000, len(content) // 2, len(content) - 1):
        cache.path.write_bytes(content[:size])
        found = cache.vectors(texts(500), lengths)
        np.testing.assert_array_equal(found, lengths(texts(500)))


def test_a_file_that_cannot_be_used(cache: CacheOfTexts) -> None:
    cache.path.mkdir()
    with pytest.warns(SkbertWarning, match="cannot be used"):
        found = cache.vectors(texts(5), lengths)
    np.testing.assert_array_equal(found, lengths(texts(5)))


@pytest.mark.parametrize("kind", ["link", "link to nothing", "pipe", "device"])
def test_what_is_no_plain_file_is_set_aside(
    cache: CacheOfTexts, tmp_path: Path, kind: str
) -> None:
    other = tmp_path / "other.sqlite"
    other.write_bytes(b"")
    match kind:
        case "pipe":
            os.mkfifo(cache.path)
        case _:
            places = {"link": other, "link to nothing": tmp_path / "new", "device": "/dev/zero"}
            cache.path.symlink_to(places[kind])
    with pytest.warns(SkbertWarning, match="it is a link or no plain file.* was renamed"):
        found = cache.vectors(texts(5), lengths)
    np.testing.assert_array_equal(found, lengths(texts(5)))
    np.testing.assert_array_equal(cache.vectors(texts(5), refuse), found)
    assert not other.read_bytes()
    assert not (tmp_path / "new").exists()


def test_a_file_that_stays_locked(cache: CacheOfTexts, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.vectors(texts(3), lengths)
    monkeypatch.setattr(module, "_PATIENCE", 0.05)
    other = sqlite3.connect(cache.path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    np.testing.assert_array_equal(cache.vectors(texts(3), refuse), lengths(texts(3)))
    with pytest.warns(SkbertWarning, match="locked.*without it"):
        found = cache.vectors(texts(5), lengths)
    other.close()
    np.testing.assert_array_equal(found, lengths(texts(5)))


HOSTILE = {
    "a recursive view": (
        "CREATE VIEW vectors AS WITH RECURSIVE more(key) AS"
        " (SELECT 1 UNION ALL SELECT key + 1 FROM more)"
        " SELECT CAST(key AS TEXT) AS key, x'00' AS vector, 0 AS checksum FROM more"
    ),
    "a trigger that never ends": (
        "CREATE TABLE vectors (key TEXT PRIMARY KEY, vector BLOB, checksum INTEGER);"
        "CREATE TABLE other (n);"
        "CREATE TRIGGER endless AFTER INSERT ON vectors BEGIN INSERT INTO other"
        " WITH RECURSIVE more(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM more)"
        " SELECT n FROM more; END"
    ),
    "another table": "CREATE TABLE vectors (key, vector, checksum, more)",
    "a table of another name": "CREATE TABLE numbers (n)",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_file_with_other_tables_is_set_aside_unread(cache: CacheOfTexts, kind: str) -> None:
    connection = sqlite3.connect(cache.path)
    connection.executescript(HOSTILE[kind])
    connection.close()
    with pytest.warns(SkbertWarning, match=r"is damaged.*its table is not the one"):
        found = cache.vectors(texts(5), lengths)
    np.testing.assert_array_equal(found, lengths(texts(5)))
    np.testing.assert_array_equal(cache.vectors(texts(5), refuse), found)


def test_a_file_of_version_0_1_is_read(cache: CacheOfTexts) -> None:
    expected = cache.vectors(texts(5), lengths)
    rows = rows_of(cache.path)
    cache.path.unlink()
    connection = sqlite3.connect(cache.path)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS vectors (key TEXT PRIMARY KEY, vector BLOB, checksum INTEGER)"
    )
    connection.executemany("INSERT INTO vectors VALUES (?, ?, ?)", rows)
    connection.commit()
    connection.close()
    np.testing.assert_array_equal(cache.vectors(texts(5), refuse), expected)


def rows_of(path: Path) -> list[Any]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT * FROM vectors").fetchall()
    connection.close()
    return rows


# --- processes that stop -------------------------------------------------------------------------

HOLDS = """
    import pathlib, sqlite3, sys, time
    path, seconds = pathlib.Path(sys.argv[1]), float(sys.argv[2])
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN IMMEDIATE")
    print("holds", flush=True)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        path.with_suffix(".busy").touch()
        time.sleep(0.02)
    connection.execute("COMMIT")
"""


@contextmanager
def another_process(cache: CacheOfTexts, seconds: float) -> Iterator[Any]:
    """Another process that holds the file that long, and shows that it lives."""
    cache.vectors(texts(1), lengths)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDS), str(cache.path), str(seconds)],
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"holds\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.long
def test_a_process_that_computes_is_waited_for(
    cache: CacheOfTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    with another_process(cache, 2.0):  # four times as long
        np.testing.assert_array_equal(cache.vectors(texts(5), only(4)), lengths(texts(5)))
    assert len(rows_of(cache.path)) == 5


def test_a_process_that_is_stopped_is_not_waited_for(
    cache: CacheOfTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.5)
    with another_process(cache, 600.0) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.warns(SkbertWarning, match="locked.*without it"):
            found = cache.vectors(texts(5), lengths)
    np.testing.assert_array_equal(found, lengths(texts(5)))


def test_the_lock_of_a_dead_process_is_gone(
    cache: CacheOfTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.0)
    with another_process(cache, 600.0) as process:
        process.kill()
        process.wait()
        np.testing.assert_array_equal(cache.vectors(texts(5), only(4)), lengths(texts(5)))


def test_who_computes_shows_it_until_the_end(
    cache: CacheOfTexts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_BEAT", 0.01)
    sign = cache.path.with_suffix(".busy")

    def compute(rows: Texts) -> np.ndarray:
        signs: set[int] = set()
        while len(signs) < 3:
            signs.update(path.stat().st_mtime_ns for path in cache.path.parent.glob("*.busy"))
        if len(rows) == 2:
            raise KeyboardInterrupt
        return lengths(rows)

    cache.vectors(texts(5), compute)
    assert not sign.exists()
    with pytest.raises(KeyboardInterrupt):
        cache.vectors(texts(7), compute)
    assert not sign.exists()


def test_waiting_can_be_interrupted(cache: CacheOfTexts) -> None:
    def interrupt(*given: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with another_process(cache, 600.0):
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            with pytest.raises(KeyboardInterrupt):
                cache.vectors(texts(5), refuse)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# --- places --------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory", ["", "a\0b", "~nobody-of-that-name/x"])
def test_places_where_no_vectors_can_be_kept(
    memory: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"^memory=.*Give (a|the) folder"):
        plain(tiny_model, memory=memory).fit(TEXTS)
    assert not list(tmp_path.iterdir())


def test_where_the_cache_lies(tmp_path: Path, tiny_model: Path) -> None:
    assert cache_folder(None) is None
    assert cache_folder(joblib.Memory(None, verbose=0)) is None
    there = tmp_path / "new" / "skbert"
    for memory in (tmp_path / "new", str(tmp_path / "new"), joblib.Memory(tmp_path / "new")):
        assert cache_folder(memory) == there
    assert there.is_dir()
    (tmp_path / "file").write_text("taken")
    transformer = plain(tiny_model, memory=str(tmp_path / "file"))
    with pytest.raises(InputError, match=r"memory='.*file': the folder cannot be made"):
        transformer.fit(TEXTS)


def test_the_work_of_a_damaged_cache_is_done_again(tiny_model: Path, tmp_path: Path) -> None:
    transformer = plain(tiny_model, memory=tmp_path)
    expected = transformer.fit_transform(TEXTS)
    (path,) = files(tmp_path)
    path.write_bytes(b"\x00" * 8192)
    with pytest.warns(SkbertWarning, match="is damaged"):
        np.testing.assert_array_equal(transformer.transform(TEXTS), expected)
    np.testing.assert_array_equal(transformer.transform(TEXTS), expected)
    assert [each.name for each in files(tmp_path)] == [path.name]
