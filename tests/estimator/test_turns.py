"""Many rows are predicted in turns: the results are those of all rows at once."""

from __future__ import annotations

import functools
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.jobs import JOBS, TEXTS, WORDS

import skbert
from skbert._core.text import tokens
from skbert._estimator import base
from skbert.exceptions import TruncationWarning

if TYPE_CHECKING:
    from pathlib import Path

# One method of each estimator, and rows enough for three turns of 3.
ROWS: dict[str, tuple[str, Any]] = {
    "classes": ("predict_proba", [*TEXTS, *TEXTS[::-1]]),
    "labels": ("predict_proba", [*TEXTS, *TEXTS[::-1]]),
    "numbers": ("predict", [*TEXTS, *TEXTS[::-1]]),
    "tags": ("predict", [*WORDS, *WORDS[::-1]]),
    "spans": ("predict", [("a movie ?", text) for text in [*TEXTS, *TEXTS]]),
    "choices": ("predict_proba", [("what ?", TEXTS[:n]) for n in (2, 3, 4, 2, 4, 3, 2)]),
}


def quietly(call: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def told(result: Any) -> list[Any]:
    return [np.asarray(row).tolist() for row in result]


@pytest.mark.parametrize("job", ROWS)
def test_the_results_are_the_same(
    job: str, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, X, y = JOBS[job]
    method, rows = ROWS[job]
    settings = {"epochs": 1, "batch_size": 2, "precision": "float64", "device": "cpu"}
    estimator = quietly(functools.partial(kind(tiny_model, **settings).fit, X, y))
    ask = functools.partial(getattr(estimator, method), rows)
    whole = told(quietly(ask))
    counts: list[int] = []
    infer = base.infer

    def counted(network: Any, items: Any, *rest: Any) -> Any:
        counts.append(len(np.unique(items.samples)))
        return infer(network, items, *rest)

    monkeypatch.setattr(base, "infer", counted)
    monkeypatch.setattr(base, "_CHUNK_SIZE", 3)
    for one, other in zip(told(quietly(ask)), whole, strict=True):
        if method == "predict" and job != "numbers":
            assert one == other
        else:
            np.testing.assert_allclose(one, other, atol=1e-10)
    assert counts == [3, 3, len(rows) - 6]


def test_the_next_rows_are_tokenised_meanwhile(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows are not computed before the second ones are begun, and yet all is done."""
    model = skbert.BertTransformer(tiny_model).fit(["a"])
    begun, infer, encode = threading.Semaphore(0), base.infer, tokens.encode_texts
    computed: list[Any] = []

    def note(*given: Any) -> Any:
        begun.release()
        return encode(*given)

    def compute(*given: Any) -> Any:
        if not computed:
            assert begun.acquire(timeout=10)
            assert begun.acquire(timeout=10)
        computed.append(given)
        return infer(*given)

    rows = [f"{first} {second}" for first in TEXTS for second in TEXTS]
    expected = model.transform(rows)
    monkeypatch.setattr(base, "_CHUNK_SIZE", 4)
    monkeypatch.setattr(base, "infer", compute)
    monkeypatch.setattr("skbert._embedding.task.encode_texts", note)
    before = threading.active_count()
    np.testing.assert_allclose(model.transform(rows), expected, atol=1e-2)
    assert len(computed) == 4
    assert threading.active_count() == before


def test_rows_that_are_cut_are_counted_once(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = skbert.BertTransformer(tiny_model, max_length=5).fit(["a"])
    monkeypatch.setattr(base, "_CHUNK_SIZE", 2)
    with pytest.warns(TruncationWarning, match="^3 of 5 rows were longer") as caught:
        model.transform(
            ["a", "a good movie and book", "a b c d e", "good food", "the food is bad"]
        )
    assert len(caught) == 1


def test_an_error_comes_through(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = skbert.BertTransformer(tiny_model).fit(["a"])
    monkeypatch.setattr(base, "_CHUNK_SIZE", 2)

    def fail(*_: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr("skbert._embedding.task.encode_texts", fail)
    with pytest.raises(MemoryError, match="none left"):
        model.transform(TEXTS)
