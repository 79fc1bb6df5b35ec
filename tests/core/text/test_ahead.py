"""What another thread computes while the results before it are used."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from typing import Any

import pytest

from skbert._core.text.ahead import computed_ahead


def test_the_next_part_is_computed_while_one_is_used() -> None:
    begun: list[tuple[int, int]] = []

    def compute(part: int) -> int:
        begun.append((part, threading.get_ident()))
        return part * part

    results = computed_ahead(compute, [2, 3, 4])
    assert next(results) == 4
    deadline = time.monotonic() + 30
    while len(begun) < 3 and time.monotonic() < deadline:
        time.sleep(0.001)
    assert [part for part, _ in begun] == [2, 3, 4]
    assert threading.get_ident() not in {thread for _, thread in begun}
    assert [*results] == [9, 16]


@pytest.mark.parametrize("parts", [[], [5]])
def test_a_single_part_needs_no_thread(parts: list[int]) -> None:
    assert [*computed_ahead(lambda part: (part, threading.get_ident()), parts)] == [
        (part, threading.get_ident()) for part in parts
    ]


def test_an_error_arrives_with_the_part_it_is_of() -> None:
    results = computed_ahead(lambda part: 1 // part, [1, 0, 1])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_parts_that_nobody_asks_for_are_not_begun() -> None:
    go_on, begun = threading.Event(), list[int]()

    def compute(part: int) -> int:
        begun.append(part)
        assert part == 0 or go_on.wait(30)
        return part

    results: Any = computed_ahead(compute, range(9))
    assert next(results) == 0
    threading.Timer(0.2, go_on.set).start()
    results.close()
    assert begun in ([0], [0, 1])


def test_without_new_threads_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the end of a process."""

    def refuse(*_: object) -> None:
        raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    monkeypatch.setattr(concurrent.futures.ThreadPoolExecutor, "submit", refuse)
    assert [*computed_ahead(abs, [-1, -2, 3])] == [1, 2, 3]
