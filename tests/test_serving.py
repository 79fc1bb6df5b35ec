"""The example of a server: concurrent requests get their own answers, and limits hold."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support import ROOT

from skbert import BertClassifier

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import ModuleType

    from conftest import Sentiment

pytest.importorskip("fastapi", reason="fastapi is not installed")
uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed")


@pytest.fixture(scope="module")
def example() -> Any:
    """Give the modules of the example."""
    sys.path.insert(0, str(ROOT / "examples" / "serving"))
    try:
        import app
        import load

        yield app, load
    finally:
        sys.path.remove(str(ROOT / "examples" / "serving"))


class Echo:
    """Says of each text how many words it has; notes its batches, and waits if told to."""

    classes_ = tuple(range(10))

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.go = threading.Event()
        self.go.set()

    def predict_proba(self, X: list[str]) -> Any:
        assert self.go.wait(30)
        self.sizes.append(len(X))
        if "bad" in X:
            raise ValueError("a bad text")
        return np.eye(10)[[len(text.split()) for text in X]]


@contextlib.asynccontextmanager
async def served(app: Any) -> AsyncIterator[int]:
    """Serve an application on a free port, which is given."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server.serve())
    try:
        while not server.started:
            await asyncio.sleep(0.01)
            assert not task.done()
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


async def post(port: int, body: bytes, path: str = "/predict") -> tuple[int, Any]:
    """The status and the answer of one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    if path == "/health":
        head = f"GET {path} HTTP/1.1\r\nHost: here\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\nConnection: close\r\n\r\n")
    with contextlib.suppress(ConnectionError):
        writer.write(body)
        await writer.drain()
    answer = await reader.read()
    writer.close()
    status, _, content = answer.partition(b"\r\n\r\n")
    return int(status.split()[1]), json.loads(content)


def asking(*texts: str) -> bytes:
    return json.dumps({"texts": texts}).encode()


def test_concurrent_requests_get_their_own_answers(
    example: tuple[ModuleType, ModuleType], lively_model: Path, sentiment: Sentiment
) -> None:
    app, load = example
    fitted = BertClassifier(
        lively_model, epochs=1, device="cpu", precision="float32", random_state=0
    )
    fitted.fit(*sentiment)
    texts = [f"{text} {i}" for i, text in enumerate(sentiment.texts * 8)]
    assert {*fitted.predict(texts)} == {*sentiment.labels}
    result = load.Result([*fitted.classes_], fitted.predict_proba(texts))

    async def ask_all() -> None:
        async with served(app.make_app(fitted)) as port:
            rows = iter(range(len(texts) + 32))
            await asyncio.gather(*(load.client(port, texts, rows, result) for _ in range(32)))
            assert await post(port, b"", "/health") == (200, {"status": "ok", "waiting": 0})

    asyncio.run(ask_all())
    assert (result.n_answered, result.n_wrong, result.n_again) == (len(texts), 0, 0)


def test_a_wrong_answer_is_counted(example: tuple[ModuleType, ModuleType]) -> None:
    result = example[1].Result(["bad", "good"], np.array([[0.25, 0.75], [0.6, 0.4]]))
    result.note(0, {"labels": ["good"], "probabilities": [0.75005]}, 0.1)
    result.note(1, {"labels": ["good"], "probabilities": [0.6]}, 0.1)
    result.note(1, {"labels": ["bad"], "probabilities": [0.6002]}, None)
    assert (result.n_answered, result.n_wrong, result.n_again) == (3, 2, 1)


def test_what_waits_together_is_computed_together(
    example: tuple[ModuleType, ModuleType],
) -> None:
    echo = Echo()

    async def ask_many() -> list[Any]:
        async with served(example[0].make_app(echo, most_rows=16)) as port:
            echo.go.clear()
            first = asyncio.create_task(post(port, asking("one")))
            await asyncio.sleep(0.1)
            rest = [asyncio.create_task(post(port, asking("a " * (i % 9 + 1)))) for i in range(40)]
            await asyncio.sleep(0.3)
            echo.go.set()
            return [await first, *[await each for each in rest]]

    answers = asyncio.run(ask_many())
    labels = [answer["labels"] for status, answer in answers if status == 200]
    assert labels == [["1"], *[[str(i % 9 + 1)] for i in range(40)]]
    assert echo.sizes == [1, 16, 16, 8]


def test_a_full_queue_is_refused_and_empties_again(
    example: tuple[ModuleType, ModuleType],
) -> None:
    echo = Echo()

    async def overload() -> tuple[list[Any], Any]:
        async with served(example[0].make_app(echo, most_waiting=10)) as port:
            echo.go.clear()
            tasks = [asyncio.create_task(post(port, asking("a", "b"))) for _ in range(12)]
            await asyncio.sleep(0.3)
            echo.go.set()
            return [await each for each in tasks], await post(port, asking("c d"))

    answers, after = asyncio.run(overload())
    statuses = [status for status, _ in answers]
    assert (statuses.count(200), statuses.count(503)) == (5, 7)
    assert after == (200, {"labels": ["2"], "probabilities": [1.0]})


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (asking(), 422, "at least 1 item"),
        (asking(*"a" * 65), 422, "at most 64 items"),
        (asking("a" * 10_001), 422, "at most 10000 characters"),
        (b'{"texts": [1]}', 422, "valid string"),
        (b'{"texts": ["\\ud800"]}', 422, "unicode"),
        (b"{", 422, "JSON"),
        (b'{"texts": ["' + b"a" * 1_000_001 + b'"]}', 413, "at most 1000000 bytes"),
        (asking("bad"), 422, "a bad text"),
    ],
    ids=["no text", "many", "long", "no str", "surrogate", "no JSON", "large", "refused"],
)
def test_bad_requests_are_refused(
    body: bytes, status: int, says: str, example: tuple[ModuleType, ModuleType]
) -> None:
    async def ask_twice() -> tuple[Any, Any]:
        async with served(example[0].make_app(Echo())) as port:
            return await post(port, body), await post(port, asking("a b c"))

    refused, after = asyncio.run(ask_twice())
    assert refused[0] == status
    assert says in json.dumps(refused[1])
    assert after[1]["labels"] == ["3"]


def test_a_classifier_of_several_labels_is_refused(
    example: tuple[ModuleType, ModuleType],
) -> None:
    for several in ({"classes_": [["a", "b"], ["x", "y"]]}, {"thresholds_": [0.5, 0.5]}):
        echo = Echo()
        vars(echo).update(several)
        with pytest.raises(SystemExit, match="several labels"):
            example[0].make_app(echo)


def test_the_fault_of_one_request_is_no_others(example: tuple[ModuleType, ModuleType]) -> None:
    echo = Echo()

    async def ask_mixed() -> list[Any]:
        async with served(example[0].make_app(echo)) as port:
            echo.go.clear()
            texts = ["one", "two words", "bad", "three more words"]
            tasks = [asyncio.create_task(post(port, asking(text))) for text in texts]
            await asyncio.sleep(0.3)
            echo.go.set()
            return [await each for each in tasks]

    answers = asyncio.run(ask_mixed())
    assert [status for status, _ in answers] == [200, 200, 422, 200]
    assert [answer["labels"] for status, answer in answers if status == 200] == [
        ["1"], ["2"], ["3"]
    ]  # fmt: skip


def test_a_caller_who_gives_up_leaves_the_others_their_answers(
    example: tuple[ModuleType, ModuleType],
) -> None:
    """Though the batch, in which that caller was alone, fails."""
    echo = Echo()

    async def give_up() -> Any:
        async with sys.modules["batching"].Batches(echo.predict_proba) as batches:
            echo.go.clear()
            lost = asyncio.create_task(batches.results(["bad"]))
            await asyncio.sleep(0.1)
            lost.cancel()
            await asyncio.sleep(0.1)
            echo.go.set()
            return await asyncio.wait_for(batches.results(["a b"]), 30)

    assert len(asyncio.run(give_up())) == 1


def test_what_waits_at_the_end_is_answered(example: tuple[ModuleType, ModuleType]) -> None:
    echo = Echo()

    async def end_early() -> list[Any]:
        async with served(example[0].make_app(echo)) as port:
            echo.go.clear()
            tasks = [asyncio.create_task(post(port, asking("a b"))) for _ in range(20)]
            await asyncio.sleep(0.3)
            threading.Timer(0.3, echo.go.set).start()
        return [await each for each in tasks]

    assert asyncio.run(end_early()) == [(200, {"labels": ["2"], "probabilities": [1.0]})] * 20
    assert not [each for each in threading.enumerate() if each.name.startswith("compute")]


def test_the_texts_of_the_load_are_fresh(example: tuple[ModuleType, ModuleType]) -> None:
    texts = example[1].fresh_texts(20_000)
    assert len({*texts}) == 20_000
    assert texts[:100] == example[1].fresh_texts(100)


@pytest.mark.slow
def test_a_server_is_loaded_and_restarted(example: tuple[ModuleType, ModuleType]) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples/serving/load.py"), "--requests", "600"],
        capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "wrong answers: 0;" in done.stdout
