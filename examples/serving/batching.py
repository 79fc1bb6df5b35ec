"""One thread computes for many callers: texts that wait at the same time share a batch."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self


class FullError(Exception):
    """More texts wait than may."""


@dataclass
class Waiting:
    """The texts of one caller, and where its results go."""

    texts: Sequence[str]
    results: asyncio.Future[Sequence[Any]]


class Batches:
    """Texts of concurrent callers, computed together in one thread.

    Parameters
    ----------
    compute : callable
        From a list of texts to a result for each.
    most_rows : int
        Texts in a batch. A caller's texts are not divided, so the last may make it larger.
    most_waiting : int
        Texts that may wait, over all callers.
    patience : float
        Seconds that a text waits for others where nothing is computed.
    """

    def __init__(
        self,
        compute: Callable[[list[str]], Sequence[Any]],
        *,
        most_rows: int = 64,
        most_waiting: int = 1024,
        patience: float = 0.002,
    ) -> None:
        self.compute = compute
        self.most_rows, self.most_waiting, self.patience = most_rows, most_waiting, patience
        self.n_waiting = 0
        self._queue: deque[Waiting] = deque()
        self._arrival = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="compute")
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        """Start to compute."""
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Compute what still waits, and end the thread."""
        while self.n_waiting:
            await asyncio.sleep(self.patience)
        assert self._task is not None
        self._task.cancel()
        self._thread.shutdown()

    async def results(self, texts: Sequence[str]) -> Sequence[Any]:
        """The results for some texts; FullError where too many wait already."""
        if self.n_waiting + len(texts) > self.most_waiting:
            raise FullError
        waiting = Waiting(texts, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self.n_waiting += len(texts)
        self._arrival.set()
        return await waiting.results

    async def _run(self) -> None:
        while True:
            if not self._queue:
                self._arrival.clear()
                await self._arrival.wait()
                await asyncio.sleep(self.patience)
            batch = self._take()
            try:
                await self._compute(batch)
            finally:
                self.n_waiting -= sum(len(each.texts) for each in batch)

    def _take(self) -> list[Waiting]:
        """Those that came first."""
        batch: list[Waiting] = []
        n_rows = 0
        while self._queue and n_rows < self.most_rows:
            batch.append(self._queue.popleft())
            n_rows += len(batch[-1].texts)
        return batch

    async def _compute(self, batch: list[Waiting]) -> None:
        loop = asyncio.get_running_loop()
        asked = [each for each in batch if not each.results.done()]  # the others hung up
        texts = [text for each in asked for text in each.texts]
        if not texts:
            return
        try:
            found = list(await loop.run_in_executor(self._thread, self.compute, texts))
        except Exception as error:  # noqa: BLE001 - whoever asked hears of it
            if len(asked) == 1:
                if not asked[0].results.done():
                    asked[0].results.set_exception(error)
                return
            for each in asked:  # the fault of one is no other's
                await self._compute([each])
            return
        for each in asked:
            own, found = found[: len(each.texts)], found[len(each.texts) :]
            if not each.results.done():
                each.results.set_result(own)
