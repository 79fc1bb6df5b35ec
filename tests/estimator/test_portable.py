"""Fitted estimators as arrays and plain values: what skops and MLflow store; pickles beside it."""

from __future__ import annotations

import copy
import json
import pickle
import re
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from support import DATA, ROOT

import skbert
from skbert import BertClassifier, BertRegressor, BertTransformer
from skbert._catalogue import ESTIMATORS
from skbert.exceptions import ModelError, SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Sentiment

SAVED = DATA / "saved_0_1"
EXPECTED = json.loads((SAVED / "expected.json").read_text(encoding="utf-8"))
PLAIN = (str, int, float, bool, type(None), np.ndarray)


def trusted(*names: str) -> list[str]:
    """The types that docs/saving.md says to trust."""
    page = (ROOT / "docs" / "saving.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r'^\| `(\w+)` \| `"([\w.]+)"` \|$', page, flags=re.MULTILINE))
    assert rows == {name: f"{home}.{name}" for name, home in ESTIMATORS.items()}
    return [rows[name] for name in names]


def values(state: Any) -> Iterator[Any]:
    if isinstance(state, dict | list | tuple):
        for part in state.values() if isinstance(state, dict) else state:
            yield from values(part)
    else:
        yield state


def assert_same(first: Any, second: Any, name: str) -> None:
    X = EXPECTED[name]["X"]
    assert type(first) is type(second)
    assert first.get_params() == second.get_params()
    states = (each.model_.state_dict() for each in (first, second))
    for (key, value), (other_key, other) in zip(*(s.items() for s in states), strict=True):
        assert key == other_key
        assert torch.equal(value, other)
    for method in EXPECTED[name]["outputs"]:
        with warnings.catch_warnings(action="ignore"):  # names of columns
            found, expected = (getattr(each, method)(X) for each in (second, first))
        np.testing.assert_equal(np.asarray(found).tolist(), np.asarray(expected).tolist())


@pytest.mark.parametrize("name", EXPECTED)
def test_the_state_is_arrays_and_plain_values(name: str) -> None:
    fitted = skbert.load(SAVED / name)
    state = fitted.__getstate__()
    assert all(type(value) in PLAIN for value in values(state))
    assert all(value.dtype.kind == "f" for value in state["tensors"].values())
    again = object.__new__(type(fitted))
    again.__setstate__(state)
    assert_same(fitted, again, name)
    before = copy.deepcopy(state["tensors"])
    with torch.no_grad():
        next(again.model_.parameters()).add_(1)
    np.testing.assert_equal(state["tensors"], before)


def test_the_state_of_an_unfitted_estimator_is_its_parameters() -> None:
    blank = BertClassifier("somewhere", epochs=7)
    again = object.__new__(BertClassifier)
    again.__setstate__(blank.__getstate__())
    assert again.get_params() == blank.get_params()
    assert not hasattr(again, "_fitted")


def test_a_state_is_checked_like_a_folder() -> None:
    state = skbert.load(SAVED / "classifier").__getstate__()
    described = json.loads(state["members"]["state.json"])
    described["attributes"]["dict"] = [
        [key, {"array": ["a"], "dtype": "<U1"} if key == "classes_" else value]
        for key, value in described["attributes"]["dict"]
    ]
    members = {**state["members"], "state.json": json.dumps(described)}
    wrong = [
        {**state, "members": members},
        {**state, "members": {**state["members"], "more.json": "{}"}},
        {**state, "members": {"state.json": "{}"}},
        {**state, "members": 3},
        {**state, "header": {**state["header"], "class": "BertRegressor"}},
        {**state, "header": {**state["header"], "dtype": "int8"}},
        {**state, "tensors": {}},
        {**state, "tensors": {"a": "b"}},
    ]
    for each in wrong:
        with pytest.raises(SaveError):
            object.__new__(BertClassifier).__setstate__(each)


@pytest.mark.parametrize("way", ["pickle", "deepcopy"])
def test_pickles_and_copies_take_the_model_as_it_is(way: str) -> None:
    fitted = skbert.load(SAVED / "classifier")
    texts = EXPECTED["classifier"]["X"]
    fitted.model_.classifier = torch.nn.Sequential(fitted.model_.classifier, torch.nn.Tanh())
    expected = fitted.decision_function(texts)
    copied = pickle.loads(pickle.dumps(fitted)) if way == "pickle" else copy.deepcopy(fitted)
    np.testing.assert_array_equal(copied.decision_function(texts), expected)
    assert copy.copy(fitted)._fitted.network is fitted._fitted.network
    with pytest.raises(ModelError, match="pickle the estimator"):
        fitted.__getstate__()


def test_a_transformer_over_an_estimator_keeps_its_encoder(tiny_model: Path) -> None:
    inner = skbert.load(SAVED / "classifier")
    texts = EXPECTED["classifier"]["X"]
    fitted = BertTransformer(inner, device="cpu", precision="float32").fit(texts)
    again = object.__new__(BertTransformer)
    again.__setstate__(fitted.__getstate__())
    np.testing.assert_array_equal(again.transform(texts), fitted.transform(texts))
    assert again.model == ""


# --- skops and MLflow ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_skops_round_trips(name: str) -> None:
    sio = pytest.importorskip("skops.io", reason="skops is not installed")
    fitted = skbert.load(SAVED / name)
    data = sio.dumps(fitted)
    types = trusted(EXPECTED[name]["class"])
    assert sio.get_untrusted_types(data=data) == types
    assert_same(fitted, sio.loads(data, trusted=types), name)


@pytest.mark.parametrize(
    "params",
    [{}, {"label_texts": True}, {"text_columns": "text", "feature_columns": ["number", "kind"]}],
    ids=["several columns of classes", "texts of labels", "columns beside the text"],
)
def test_skops_asks_for_no_more_types(
    params: dict[str, Any], tiny_model: Path, sentiment: Sentiment
) -> None:
    sio = pytest.importorskip("skops.io", reason="skops is not installed")
    X = pd.DataFrame({"text": sentiment.texts, "number": np.arange(40.0), "kind": ["a", "b"] * 20})
    labels = pd.Series(sentiment.labels, name="mood")
    if not params:
        labels = pd.DataFrame({"mood": labels, "kind": X["kind"]})
    fitted = BertClassifier(str(tiny_model), epochs=1, device="cpu", **params)
    read = X if "feature_columns" in params else X["text"]
    fitted.fit(read, labels)
    again = sio.loads(sio.dumps(fitted), trusted=trusted("BertClassifier"))
    np.testing.assert_array_equal(again.predict_proba(read), fitted.predict_proba(read))


def test_skops_round_trips_a_pipeline(tiny_model: Path, sentiment: Sentiment) -> None:
    sio = pytest.importorskip("skops.io", reason="skops is not installed")
    pipeline = make_pipeline(BertTransformer(str(tiny_model), device="cpu"), LogisticRegression())
    pipeline.fit(*sentiment)
    again = sio.loads(sio.dumps(pipeline), trusted=trusted("BertTransformer"))
    np.testing.assert_array_equal(
        again.predict_proba(sentiment.texts), pipeline.predict_proba(sentiment.texts)
    )
    blank = sio.loads(sio.dumps(clone(pipeline)), trusted=trusted("BertTransformer"))
    assert blank[0].get_params() == pipeline[0].get_params()


@pytest.mark.parametrize("name", EXPECTED)
def test_skops_asks_for_nothing_more_where_a_pipeline_ends_with_one(name: str) -> None:
    sio = pytest.importorskip("skops.io", reason="skops is not installed")
    pipeline = make_pipeline(FunctionTransformer(), skbert.load(SAVED / name))
    data = sio.dumps(pipeline)
    types = trusted(EXPECTED[name]["class"])
    assert sio.get_untrusted_types(data=data) == types
    again = sio.loads(data, trusted=types)
    assert_same(pipeline[-1], again[-1], name)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
@pytest.mark.long
def test_mlflow_round_trips(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("skops.io", reason="skops is not installed")
    mlflow: Any = pytest.importorskip("mlflow", reason="mlflow is not installed")
    flavour = pytest.importorskip("mlflow.sklearn", reason="mlflow is not installed")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    classifier = BertClassifier(str(tiny_model), epochs=1, device="cpu", precision="float32")
    pipeline = make_pipeline(FunctionTransformer(), classifier).fit(*sentiment)
    proba = pipeline.predict_proba(sentiment.texts)
    settings = {
        "skops_trusted_types": trusted("BertClassifier"), "pip_requirements": ["skbert"],
        "pyfunc_predict_fn": "predict_proba",
    }  # fmt: skip
    flavour.save_model(pipeline, str(tmp_path / "model"), **settings)
    with mlflow.start_run():
        logged = flavour.log_model(pipeline, name="model", **settings).model_uri
    for uri in (str(tmp_path / "model"), logged):
        again = flavour.load_model(uri)
        np.testing.assert_array_equal(again.predict_proba(sentiment.texts), proba)
        served = mlflow.pyfunc.load_model(uri)
        for X in (sentiment.texts, pd.DataFrame({"text": sentiment.texts})):
            np.testing.assert_array_equal(served.predict(X), proba)


@pytest.mark.filterwarnings("ignore")  # MLflow's own
@pytest.mark.long
def test_mlflow_keeps_an_estimator_of_an_earlier_version(tmp_path: Path) -> None:
    pytest.importorskip("skops.io", reason="skops is not installed")
    flavour = pytest.importorskip("mlflow.sklearn", reason="mlflow is not installed")
    fitted: Any = BertRegressor.load(SAVED / "regressor")
    flavour.save_model(
        fitted, str(tmp_path / "model"), skops_trusted_types=trusted("BertRegressor"),
        pip_requirements=["skbert"],
    )  # fmt: skip
    assert_same(fitted, flavour.load_model(str(tmp_path / "model")), "regressor")
