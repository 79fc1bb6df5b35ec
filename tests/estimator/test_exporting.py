"""Exported folders predict as their estimators do, or are refused and not written."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from sklearn.exceptions import NotFittedError
from support.job import LABELS, TEXTS, Form, Job
from support.jobs import FORMS

import skbert.runtime
from skbert import (
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertTransformer,
    load,
)
from skbert._core.checkpoints import archive
from skbert._estimator import exporting
from skbert._estimator.exporting import _compared
from skbert._estimator.state import loads
from skbert.exceptions import InputError, InputTypeError, ModelError, SaveError

if TYPE_CHECKING:
    from pathlib import Path

FORMATS = ["onnx", "openvino"]
TRAINS = {"fit", "fit_transform", "partial_fit", "conformalize", "score"}


@pytest.fixture(scope="module")
def fitted(lively_model: Path) -> BertClassifier:
    settings = {"epochs": 1, "precision": "float32", "random_state": 0}
    classifier = BertClassifier(lively_model, **settings).fit(TEXTS, LABELS)
    assert {*classifier.predict(TEXTS)} == {*LABELS}
    return classifier


def assert_same(own: Any, theirs: Any) -> None:
    if isinstance(own, pd.DataFrame):
        pd.testing.assert_frame_equal(own, theirs, atol=1e-4, check_dtype=False)
        return
    own, theirs = np.asarray(own), np.asarray(theirs)
    assert own.shape == theirs.shape
    if own.dtype.kind == "f":
        np.testing.assert_allclose(theirs, own, atol=1e-4)
    elif own.dtype == object:
        for one, other in zip(own, theirs, strict=True):
            assert_same(one, other)
    else:
        assert own.tolist() == theirs.tolist()


def agreement_in(folder: Path) -> Any:
    return loads((folder / "state.json").read_bytes())["agreement"]


def test_a_folder_predicts_as_its_estimator_does(fitted: BertClassifier, tmp_path: Path) -> None:
    fitted.export(tmp_path / "model", X=TEXTS)
    model = skbert.runtime.load(tmp_path / "model")
    assert_same(fitted.predict_proba(TEXTS), model.predict_proba(TEXTS))
    assert agreement_in(tmp_path / "model") == {"labels": 1.0, "n_rows": len(TEXTS)}
    for opens in (load, BertClassifier.load):
        with pytest.raises(SaveError, match=r"skbert\.runtime\.load"):
            opens(tmp_path / "model")


class Desk(BertClassifier):
    """A class of a user's own."""


def test_a_derived_class_is_exported_as_its_base(lively_model: Path, tmp_path: Path) -> None:
    settings = {"epochs": 1, "precision": "float32", "random_state": 0}
    own = Desk(lively_model, **settings).fit(TEXTS, LABELS)
    own.export(tmp_path / "model", X=TEXTS)
    assert_same(own.predict(TEXTS), skbert.runtime.load(tmp_path / "model").predict(TEXTS))


def test_what_load_would_refuse_is_not_written(fitted: BertClassifier, tmp_path: Path) -> None:
    changed = copy.deepcopy(fitted)
    changed.conformity_scores_ = "far"
    with pytest.raises(SaveError, match=r"cannot be exported, .*conformity_scores_='far'"):
        changed.export(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("engine", [pytest.param("onnx", marks=pytest.mark.slow), "openvino"])
def test_int8_is_near_and_says_how_near(
    fitted: BertClassifier, tmp_path: Path, engine: str
) -> None:
    fitted.export(tmp_path / "int8", format=engine, precision="int8", X=TEXTS)
    model = skbert.runtime.load(tmp_path / "int8")
    own, theirs = fitted.predict_proba(TEXTS), model.predict_proba(TEXTS)
    assert 0 < np.abs(own - theirs).max() < 0.02
    assert agreement_in(tmp_path / "int8")["labels"] == 1.0
    assert archive.header(tmp_path / "int8")["precision"] == "int8"


def test_too_little_agreement_is_refused_with_its_figure(
    fitted: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_way_round(*_: object) -> tuple[str, float]:
        return "labels", 0.9876

    monkeypatch.setattr(exporting, "_compared", other_way_round)
    with pytest.raises(ModelError, match=r"98\.76%.*12 rows of X.*Nothing was written"):
        fitted.export(tmp_path / "model", X=TEXTS)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("own", "theirs", "are_numbers", "expected"),
    [
        (["a", "b", "c", "d"], ["a", "b", "c", "x"], False, ("labels", 0.75)),
        ([[0, 1], [1, 1]], [[0, 1], [1, 0]], False, ("labels", 0.75)),
        ([1.0, 2.0, 3.0], [1.0, 2.0, 3.0], True, ("r2", 1.0)),
        ([[1.0, 5.0], [3.0, 5.5]], [[1.0, 5.0], [3.0, 6.0]], True, ("r2", -1.0)),
    ],
)
def test_how_far_predictions_agree(
    own: Any, theirs: Any, are_numbers: bool, expected: tuple[str, float]
) -> None:
    name, value = exporting._compared(np.array(own), np.array(theirs), are_numbers)
    assert (name, value) == (expected[0], pytest.approx(expected[1]))


def test_tags_are_compared_word_by_word() -> None:
    own, theirs = np.empty(2, object), np.empty(2, object)
    own[:], theirs[:] = [["O", "B"], ["O", "O"]], [["O", "B"], ["O"]]
    assert exporting._compared(own, theirs, False) == ("labels", 2 / 5)
    nothing = np.empty(2, object)
    nothing[:] = [[], []]
    assert exporting._compared(nothing, nothing, False) == ("labels", 1.0)


@pytest.mark.parametrize(
    ("settings", "error", "what"),
    [
        ({"format": "ONNX"}, InputError, "format='ONNX' is unknown.*'onnx', 'openvino'"),
        ({"format": None}, InputError, "format=None"),
        ({"precision": "int4"}, InputError, "precision='int4' is unknown.*'float32', 'int8'"),
        ({"precision": "int8"}, InputError, "needs rows.*X=X_train"),
        ({"precision": "int8", "X": TEXTS[:9]}, InputError, "X has 9 rows, too few.*and 10 at"),
        (
            {"precision": "int8", "X": "one text"},
            (InputError, InputTypeError),
            "string object received",
        ),
        ({"X": [1, 2]}, InputTypeError, "int"),
        ({"X": []}, InputError, "X"),
    ],
)
def test_bad_settings_are_refused_before_anything_is_written(
    fitted: BertClassifier, tmp_path: Path, settings: dict[str, Any], error: type, what: str
) -> None:
    with pytest.raises(error, match=what):
        fitted.export(tmp_path / "model", **settings)
    assert list(tmp_path.iterdir()) == []


def test_other_files_are_never_replaced(fitted: BertClassifier, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for path in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(SaveError, match=r"no earlier save|is a file"):
            fitted.export(path)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_unfitted_estimators_have_nothing_to_export(lively_model: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        BertRegressor(lively_model).export(tmp_path / "model")


def test_a_missing_library_is_named(
    fitted: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skbert._core.export import formats

    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "onnxscript" else 1)
    with pytest.raises(ModelError, match=r"onnxscript.*pip install 'skbert\[openvino\]'"):
        fitted.export(tmp_path / "model", format="openvino")


def test_a_pretrainer_is_refused_with_advice(lively_model: Path, tmp_path: Path) -> None:
    pretrainer = BertPretrainer(lively_model, epochs=1, random_state=0).fit(TEXTS)
    with pytest.raises(ModelError, match=r"masked language modelling.*BertTransformer"):
        pretrainer.export(tmp_path / "model")


@pytest.mark.slow
@pytest.mark.parametrize("engine", FORMATS)
@pytest.mark.parametrize(
    ("job", "form"),
    [
        pytest.param(job, form, id=f"{name} {kind}")
        for (name, kind), (job, form) in FORMS.items()
        if job.estimator is not BertPretrainer
    ],
)
def test_every_kind_of_estimator(
    job: Job, form: Form, engine: str, lively_model: Path, tmp_path: Path
) -> None:
    estimator = job.make(lively_model, precision="float32", **form.params)
    estimator.fit(form.X, form.y) if form.y is not None else estimator.fit(form.X)
    estimator.export(tmp_path / "model", format=engine, X=form.X)
    model = skbert.runtime.load(tmp_path / "model")
    methods = [name for name in job.methods - TRAINS if hasattr(model, name)]
    assert methods
    for name in methods:
        if name != "predict_set":  # needs rows set aside
            assert_same(getattr(estimator, name)(form.X), getattr(model, name)(form.X))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::skbert.exceptions.TruncationWarning")
@pytest.mark.parametrize(
    "settings",
    [
        {"pooling": pooling, "long_text": long_text}
        for pooling, long_text in [
            ("pooler", "windows"), ("cls", "head_tail"), ("mean", "truncate"), ("max", "windows"),
        ]
    ]
    + [
        {"pooling": "mean_max"},
        {"pooling": "mean", "layers": [1, -1], "layer_join": "concat", "normalize": True},
        {"pooling": "max", "layers": [0, 1], "layer_join": "mean"},
    ],
    ids=str,
)  # fmt: skip
def test_every_pooling(lively_model: Path, tmp_path: Path, settings: dict[str, Any]) -> None:
    texts = [*TEXTS, "a", "good " * 50]
    transformer = BertTransformer(lively_model, precision="float32", max_length=16, **settings)
    own = transformer.fit_transform(texts)
    transformer.export(tmp_path / "model")
    assert_same(own, skbert.runtime.load(tmp_path / "model").transform(texts))


def test_scales_and_agreement_are_of_different_rows(
    fitted: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are more rows than scales are chosen by."""
    monkeypatch.setattr("skbert._core.export.int8._ROWS", 10)
    monkeypatch.setattr(exporting, "_FEWEST_OTHERS", 6)
    fitted.export(tmp_path / "int8", precision="int8", X=[*TEXTS, *TEXTS[:4]])
    assert agreement_in(tmp_path / "int8")["n_rows"] == 6
    fitted.export(tmp_path / "few", precision="int8", X=[*TEXTS, *TEXTS[:3]])
    assert agreement_in(tmp_path / "few")["n_rows"] == 15  # five would say little


def test_a_function_that_scored_a_fit_is_left_out(lively_model: Path, tmp_path: Path) -> None:
    settings = {"epochs": 1, "validation_fraction": 0.25, "random_state": 0}
    classifier = BertClassifier(lively_model, scoring=BertClassifier.score, **settings)
    classifier.fit(TEXTS, LABELS).export(tmp_path / "model")
    assert callable(classifier.scoring)
    found = skbert.runtime.load(tmp_path / "model").predict(TEXTS)
    assert found.tolist() == classifier.predict(TEXTS).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_weights_beside_a_graph_come_into_its_file(
    precision: str, fitted: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch writes weights of 1.5 GiB in a file of their own; ONNX's file may have 2."""
    program = "torch.onnx._internal.exporter._onnx_program"
    monkeypatch.setattr(f"{program}._LARGE_MODEL_THRESHOLD", 1000)
    fitted.export(tmp_path / "model", precision=precision, X=TEXTS)
    assert agreement_in(tmp_path / "model")["labels"] == 1.0
    monkeypatch.setattr("skbert._core.export.formats._PROTOBUF_BYTES", 1000)
    if precision == "float32":
        with pytest.raises(ModelError, match="more than the 1000 bytes"):
            fitted.export(tmp_path / "large", precision=precision, X=TEXTS)


def test_numbers_that_hardly_differ_are_compared_by_their_size() -> None:
    own = np.full((1, 1), 3.0)
    assert _compared(own, own + 0.001, are_numbers=True) == ("r2", pytest.approx(0.998889, 1e-5))
    assert _compared(own, own + 0.1, are_numbers=True)[1] < 0


@pytest.mark.slow
def test_feature_columns(lively_model: Path, tmp_path: Path) -> None:
    X = pd.DataFrame({"text": TEXTS, "stars": range(12), "kind": ["a", "b"] * 6})
    settings = {"feature_columns": ["stars", "kind"], "epochs": 1, "precision": "float32"}
    classifier = BertClassifier(lively_model, random_state=0, **settings).fit(X, LABELS)
    classifier.export(tmp_path / "model")
    assert_same(
        classifier.predict_proba(X), skbert.runtime.load(tmp_path / "model").predict_proba(X)
    )


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("engine", FORMATS)
def test_int8_of_the_real_encoder_on_intents(
    minilm: Path, shared_data: Path, tmp_path: Path, engine: str
) -> None:
    train, test = (
        pd.read_csv(shared_data / "intents" / f"{name}.csv") for name in ("train", "test")
    )
    X, y, texts = list(train.text), list(train.label), list(test.text)
    classifier = BertClassifier(minilm, precision="float32", random_state=0).fit(X, y)
    classifier.export(tmp_path / "labels", format=engine, precision="int8", X=X[::30])
    model = skbert.runtime.load(tmp_path / "labels")
    assert np.mean(classifier.predict(texts) == model.predict(texts)) >= 0.995
    transformer = BertTransformer(minilm, precision="float32", normalize=True).fit(X[:1])
    transformer.export(tmp_path / "vectors", format=engine, precision="int8", X=X[::30])
    model = skbert.runtime.load(tmp_path / "vectors")
    assert (transformer.transform(texts) * model.transform(texts)).sum(axis=1).mean() >= 0.99
