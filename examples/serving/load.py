"""Load the server on this machine: every answer is checked, and the server killed in between.

    python examples/serving/load.py                    # 20,000 requests, to OpenVINO
    python examples/serving/load.py --of onnx
    python examples/serving/load.py --of estimator
    python examples/serving/load.py --of sentence-transformers
    python examples/serving/load.py --requests 2000    # a short one

A classifier of the bundled messages is fitted and written. It says what it makes of fresh texts,
and then a server on the loopback address is asked the same, one text a request. The server is
ended once by SIGTERM and once by SIGKILL, and started again; a request that got no answer is sent
again. Prints requests per second, latencies of the requests that no restart met, and the memory of
each server after its first thousand requests and at its end.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from skbert import BertClassifier
from skbert.datasets import load_intents

APP = Path(__file__).with_name("app.py")
# What is served: how its folder is written, and the engine of the server that opens it.
SERVED: dict[str, tuple[Callable[[BertClassifier, str], None], str]] = {
    "onnx": (lambda one, folder: one.export(folder, format="onnx"), "runtime"),
    "openvino": (lambda one, folder: one.export(folder, format="openvino"), "runtime"),
    "estimator": (BertClassifier.save, "estimator"),
    "sentence-transformers": (BertClassifier.save_pretrained, "sentence-transformers"),
}
SEED = 0


def fresh_texts(n_texts: int) -> list[str]:
    """Short texts, all different: a few words each from two of the bundled messages."""
    messages = [message.split() for message in load_intents(return_X_y=True)[0]]
    drawn = np.random.default_rng(SEED)
    texts: dict[str, None] = {}
    while len(texts) < n_texts:
        first, second = (messages[i] for i in drawn.integers(len(messages), size=2))
        at, n_first, n_second = drawn.integers((len(first), 9, 5))
        texts[" ".join((*first[at : at + 3 + n_first], *second[:n_second]))] = None
    return [*texts]


def fitted() -> BertClassifier:
    """A classifier of the bundled messages."""
    X, y = load_intents(return_X_y=True)
    return BertClassifier(epochs=1, random_state=SEED, precision="float32").fit(X, y)


@dataclass
class Server:
    """A server process on a free port."""

    folder: str
    engine: str
    port: int = field(init=False)
    process: asyncio.subprocess.Process = field(init=False)

    def __post_init__(self) -> None:
        """Find a free port."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]

    async def start(self) -> float:
        """Start the process, and return after how many seconds it takes requests."""
        began = time.perf_counter()
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            str(APP),
            self.folder,
            "--engine",
            self.engine,
            "--port",
            str(self.port),
        )
        while time.perf_counter() - began < 60:
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return time.perf_counter() - began
            await asyncio.sleep(0.05)
        raise TimeoutError("the server does not answer")

    async def end(self, how: signal.Signals) -> int:
        """End the process; return its exit status."""
        self.process.send_signal(how)
        return await asyncio.wait_for(self.process.wait(), 60)

    @property
    def megabytes(self) -> float:
        """Memory that the process holds, as Linux says."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, text: str
) -> tuple[int, Any]:
    """Send one text over an open connection; return the status and the answer."""
    body = json.dumps({"texts": [text]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n"
    writer.write(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
    answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    size = int(answer.split("content-length:")[1].split()[0])
    return int(answer.split()[1]), json.loads(await reader.readexactly(size))


@dataclass
class Result:
    """What came of all requests."""

    names: list[str]
    expected: Any  # probabilities, a row for each text
    seconds: list[float] = field(default_factory=list)  # of requests that were sent once
    n_answered: int = 0
    n_wrong: int = 0
    n_again: int = 0  # sent again, as the server was ended or had too much to do

    def note(self, row: int, answer: Any, seconds: float | None) -> None:
        """Check one answer: the best label, or one as good but for rounding, and how sure."""
        (found,), (sure,) = answer["labels"], answer["probabilities"]
        expected = self.expected[row]
        probability = expected[self.names.index(found)]
        self.n_wrong += bool(probability < expected.max() - 1e-4 or abs(sure - probability) > 1e-4)
        self.n_answered += 1
        self.n_again += seconds is None
        if seconds is not None:
            self.seconds.append(seconds)


async def client(port: int, texts: list[str], rows: Iterator[int], result: Result) -> None:
    """One connection, which asks for the next row until there is none, again where it must."""
    streams = None
    for row in rows:
        if row >= len(texts):
            break
        for n_sent in count():
            began = time.perf_counter()
            try:
                streams = streams or await asyncio.open_connection("127.0.0.1", port)
                status, answer = await ask(*streams, texts[row])
            except (OSError, EOFError):
                streams = None
                await asyncio.sleep(0.1)
                continue
            if status == 200:
                result.note(row, answer, None if n_sent else time.perf_counter() - began)
                break
            assert status == 503, (status, answer)
            await asyncio.sleep(0.1)
    if streams:
        streams[1].close()


async def load(
    server: Server, texts: list[str], result: Result, n_clients: int
) -> list[tuple[str, float, float, float]]:
    """Ask for all texts, and end the server twice; how each of its lives ended, and its memory."""
    started, lives, rows = await server.start(), [], iter(range(len(texts) + n_clients))
    clients = [
        asyncio.create_task(client(server.port, texts, rows, result)) for _ in range(n_clients)
    ]
    ends = (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM)
    for turn, how in enumerate(ends):
        first = result.n_answered
        memory = 0.0
        until = len(texts) * (turn + 1) // len(ends)
        while result.n_answered < until and not all(each.done() for each in clients):
            if not memory and result.n_answered - first >= min(1000, (until - first) // 2):
                memory = server.megabytes
            assert server.process.returncode is None, "the server ended by itself"
            await asyncio.sleep(0.02)
        if turn + 1 == len(ends):
            await asyncio.gather(*clients)
        lives.append((how.name, started, memory, server.megabytes))
        status = await server.end(how)
        assert how == signal.SIGKILL or status in (0, -how), f"the server ended with {status}"
        if turn + 1 < len(ends):
            started = await server.start()
    return lives


def main() -> None:
    """Fit, write, load and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--of", choices=SERVED, default="openvino")
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--clients", type=int, default=64)
    options = parser.parse_args()
    texts = fresh_texts(options.requests)
    with tempfile.TemporaryDirectory() as scratch:
        folder = f"{scratch}/model"
        write, engine = SERVED[options.of]
        classifier = fitted()
        write(classifier, folder)
        result = Result([*map(str, classifier.classes_)], classifier.predict_proba(texts))
        server = Server(folder, engine)
        began = time.perf_counter()
        lives = asyncio.run(load(server, texts, result, options.clients))
        seconds = time.perf_counter() - began
    up = seconds - sum(started for _, started, *_ in lives)
    print(f"{options.of}: {result.n_answered} requests by {options.clients} clients, "
          f"{result.n_answered / up:.0f} a second; {seconds:.0f} s with all starts")  # fmt: skip
    print(f"wrong answers: {result.n_wrong}; sent again: {result.n_again}")
    p50, p99 = np.percentile(result.seconds, [50, 99]) * 1000
    print(f"latency: p50 {p50:.1f} ms, p99 {p99:.1f} ms")
    for how, started, memory, at_end in lives:
        print(f"{how}: ready after {started:.1f} s, {memory:.0f} MB after 1,000 requests, "
              f"{at_end:.0f} MB at the end")  # fmt: skip
    sys.exit(bool(result.n_wrong or result.n_answered != len(texts)))


if __name__ == "__main__":
    main()
