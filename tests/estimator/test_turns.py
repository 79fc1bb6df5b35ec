"""Many rows are predicted in turns: the results are those of all rows at once."""

from __future__ import annotations

import functools
import threading
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from support.job import TEXTS, Form, Job
from support.jobs import FORMS

import skbert
from skbert._core.text import fields
from skbert._estimator import base, predicting
from skbert.exceptions import TruncationWarning

if TYPE_CHECKING:
    from pathlib import Path

METHODS = ("predict_proba", "predict", "transform")  # of each estimator the first that it has


def quietly(call: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def told(result: Any) -> list[Any]:
    return [np.asarray(row).tolist() for row in result]


@pytest.mark.parametrize(
    ("job", "form"),
    [pytest.param(*each, id=" ".join(key)) for key, each in FORMS.items() if each[0].kinds],
)
def test_the_results_are_the_same(
    job: Job, form: Form, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    estimator = job.make(tiny_model, precision="float64", **form.params)
    quietly(functools.partial(estimator.fit, form.X, form.y))
    method = next(name for name in METHODS if hasattr(estimator, name))
    ask = functools.partial(getattr(estimator, method), form.X[:8])
    whole = told(quietly(ask))
    counts: list[int] = []
    infer = base.infer

    def counted(network: Any, items: Any, *rest: Any, **options: Any) -> Any:
        counts.append(len(np.unique(items.samples)))
        return infer(network, items, *rest, **options)

    monkeypatch.setattr(base, "infer", counted)
    monkeypatch.setattr(predicting, "_CHUNK_SIZE", 3)
    for one, other in zip(told(quietly(ask)), whole, strict=True):
        if np.asarray(other).dtype.kind == "f":
            np.testing.assert_allclose(one, other, atol=1e-10)
        else:
            assert one == other
    assert counts == [3, 3, 2]


def test_the_next_rows_are_tokenised_meanwhile(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rows are not computed before the second ones are begun, and yet all is done."""
    model = skbert.BertTransformer(tiny_model).fit(["a"])
    begun, infer, encode = threading.Semaphore(0), base.infer, fields.encode_rows
    computed: list[Any] = []

    def note(*given: Any) -> Any:
        begun.release()
        return encode(*given)

    def compute(*given: Any, **options: Any) -> Any:
        if not computed:
            assert begun.acquire(timeout=10)
            assert begun.acquire(timeout=10)
        computed.append(given)
        return infer(*given, **options)

    rows = [f"{first} {second}" for first in TEXTS[:4] for second in TEXTS[:4]]
    expected = model.transform(rows)
    monkeypatch.setattr(predicting, "_CHUNK_SIZE", 4)
    monkeypatch.setattr(base, "infer", compute)
    monkeypatch.setattr("skbert._embedding.task.encode_rows", note)
    before = threading.active_count()
    np.testing.assert_allclose(model.transform(rows), expected, atol=1e-2)
    assert len(computed) == 4
    assert threading.active_count() == before


def test_rows_that_are_cut_are_counted_once(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = skbert.BertTransformer(tiny_model, max_length=5).fit(["a"])
    monkeypatch.setattr(predicting, "_CHUNK_SIZE", 2)
    with pytest.warns(TruncationWarning, match="^3 of 5 different rows were too long") as caught:
        model.transform(
            ["a", "a good movie and book", "a b c d e", "good food", "the food is bad"]
        )
    assert len(caught) == 1


def test_an_error_comes_through(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = skbert.BertTransformer(tiny_model).fit(["a"])
    monkeypatch.setattr(predicting, "_CHUNK_SIZE", 2)

    def fail(*_: Any) -> Any:
        raise MemoryError("none left")

    monkeypatch.setattr("skbert._embedding.task.encode_rows", fail)
    with pytest.raises(MemoryError, match="none left"):
        model.transform(TEXTS)
