"""Columns of numbers and categories beside the texts: what they mean, teach and refuse."""

from __future__ import annotations

import copy
import json
import math
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import torch
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from support.families import save_own

from skbert import BertClassifier, BertRegressor, BertTransformer
from skbert._core.checkpoints import archive
from skbert._core.families import FAMILIES
from skbert._validation.features import feature_column_of
from skbert.exceptions import InputError, InputTypeError, ModelError, SaveError
from skbert.inspection import attributions, head_importance, report, show, worst_errors

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment

BOTH = pytest.mark.parametrize("kind", [BertClassifier, BertRegressor])
CHOSEN = {"text_columns": "text", "feature_columns": ["stars", "channel"]}


def estimator(kind: Any, model: Path, **params: Any) -> Any:
    usual = {"epochs": 1, "pooling": "mean", "device": "cpu", "precision": "float32",
             "random_state": 0}  # fmt: skip
    return kind(model, **usual | CHOSEN | params)


@pytest.fixture(scope="module")
def frame(sentiment: Sentiment) -> pd.DataFrame:
    """Texts that say nothing of ``y``, which follows from ``channel``; ``number`` from both."""
    n = len(sentiment.texts)
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"text": sentiment.texts, "stars": rng.normal(3.0, 1.0, n)})
    table["channel"] = rng.choice(["mail", "chat"], n)
    table["y"] = np.where(table["channel"] == "mail", "x", "z")
    table["number"] = 5.0 + 2.0 * table["stars"] + 3.0 * (table["channel"] == "mail")
    table.loc[3, "stars"] = np.nan
    table.loc[5, "channel"] = None
    return table


def target(kind: type, frame: pd.DataFrame) -> Any:
    return frame["y"] if kind is BertClassifier else frame["number"]


def output(fitted: Any, X: Any) -> np.ndarray:
    method = "predict_proba" if hasattr(fitted, "predict_proba") else "predict"
    result: np.ndarray = getattr(fitted, method)(X)
    return result


# --- what is learned -----------------------------------------------------------------------------


@BOTH
def test_a_planted_column_is_learned(kind: Any, tiny_model: Path, frame: pd.DataFrame) -> None:
    y = target(kind, frame)
    scores = [
        estimator(kind, tiny_model, feature_columns=columns).fit(frame, y).score(frame, y)
        for columns in (None, CHOSEN["feature_columns"])
    ]
    assert scores[0] < 0.8
    assert scores[1] > 0.95


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_reads_features(family: str, frame: pd.DataFrame, tmp_path: Path) -> None:
    model = save_own(FAMILIES[family], tmp_path / "model")
    pooling = "auto" if family == "eurobert" else "mean"
    fitted = estimator(BertClassifier, model, pooling=pooling).fit(frame, frame["y"])
    assert fitted.score(frame, frame["y"]) > 0.9
    fitted.save(tmp_path / "saved")
    loaded = BertClassifier.load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict_proba(frame), fitted.predict_proba(frame))


def test_features_are_those_of_scikit_learn(tiny_model: Path, frame: pd.DataFrame) -> None:
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), StandardScaler())
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    columns = ColumnTransformer([("n", numbers, ["stars"]), ("c", encoder, ["channel"])])
    expected = columns.fit(frame[:30]).transform(frame)
    fitted = estimator(BertClassifier, tiny_model).fit(frame[:30], frame["y"][:30])
    rows = fitted._rows(frame, fitted._fitted.record)
    np.testing.assert_allclose(rows.features, expected, atol=1e-12)


def test_logits_are_one_linear_layer_over_vector_and_features(
    tiny_model: Path, frame: pd.DataFrame
) -> None:
    plain = estimator(BertRegressor, tiny_model, feature_columns=None, precision="float64")
    plain.fit(frame, frame["number"])
    wide = estimator(BertRegressor, tiny_model, precision="float64").fit(frame, frame["number"])
    states = {**plain.model_.state_dict()}
    weight = states.pop("classifier.weight")
    wide.model_.load_state_dict(states, strict=False)
    added = torch.linspace(-1.0, 1.0, wide.model_.classifier.in_features - weight.shape[1])
    with torch.no_grad():
        wide.model_.classifier.weight.copy_(torch.cat([weight, added[None].to(weight)], dim=1))
    rows = wide._rows(frame, wide._fitted.record)
    expected = plain.predict(frame) + wide.scale_ * (rows.features @ added.double().numpy())
    plain_mean, wide_mean = plain.mean_, wide.mean_
    np.testing.assert_allclose(wide.predict(frame), expected + wide_mean - plain_mean)


def test_windows_share_the_features_of_their_row(tiny_model: Path, frame: pd.DataFrame) -> None:
    long = frame.assign(text=frame["text"] + " and so on" * 20)
    fitted = estimator(BertClassifier, tiny_model, long_text="windows", max_length=16)
    assert fitted.fit(long, long["y"]).score(long, long["y"]) > 0.9


def test_equal_texts_with_other_features_differ(tiny_model: Path, frame: pd.DataFrame) -> None:
    fitted = estimator(BertClassifier, tiny_model).fit(frame, frame["y"])
    rows = pd.DataFrame({"text": ["a good book"] * 3, "channel": ["mail", "chat", "mail"],
                         "stars": 3.0})  # fmt: skip
    assert (fitted.predict(rows) == ["x", "z", "x"]).all()


def test_pairs_and_fields_take_features(tiny_model: Path, frame: pd.DataFrame) -> None:
    more = frame.assign(title="a book", tags="nice")
    for columns in (["text", "title"], ["text", "title", "tags"]):
        fitted = estimator(BertClassifier, tiny_model, text_columns=columns, pooling="auto")
        assert fitted.fit(more, more["y"]).score(more, more["y"]) > 0.9


def test_what_is_no_feature_column_is_a_text(tiny_model: Path, frame: pd.DataFrame) -> None:
    X = frame[["text", "stars", "channel"]]
    chosen = estimator(BertClassifier, tiny_model).fit(X, frame["y"])
    rest = estimator(BertClassifier, tiny_model, text_columns=None).fit(X, frame["y"])
    np.testing.assert_array_equal(rest.predict_proba(X), chosen.predict_proba(X))
    with pytest.raises(InputError, match="Beside feature_columns X has 3 columns"):
        estimator(BertClassifier, tiny_model, text_columns=None).fit(frame, frame["y"])


def test_columns_by_position_are_those_of_fit(tiny_model: Path, frame: pd.DataFrame) -> None:
    X, y = frame[["text", "stars", "channel"]], frame["y"]
    for texts in ("text", 0, None):
        given = {"text_columns": texts, "feature_columns": [1, 2]}
        fitted = estimator(BertClassifier, tiny_model, **given).fit(X, y)
        for other in (X[["text", "channel", "stars"]], X.rename(columns={"stars": "age"})):
            with pytest.raises(InputError, match="feature names should match"):
                fitted.predict(other)


def test_texts_that_nobody_chose_are_those_of_fit(tiny_model: Path, frame: pd.DataFrame) -> None:
    X = frame[["text", "stars", "channel"]].assign(about="a book")
    fitted = estimator(BertClassifier, tiny_model, text_columns=None).fit(X, frame["y"])
    expected = fitted.predict_proba(X)
    np.testing.assert_array_equal(fitted.predict_proba(X[[*X.columns[::-1]]]), expected)
    np.testing.assert_array_equal(fitted.predict_proba(X.assign(more=1.0)), expected)
    with pytest.raises(InputError, match=r"(?s)feature names should match.*missing:\n- about"):
        fitted.predict_proba(X.rename(columns={"about": "title"}))


@pytest.mark.parametrize(
    "convert",
    [pl.from_pandas, pa.Table.from_pandas, lambda X: X.convert_dtypes(),
     lambda X: X.astype({"channel": "category"})],
    ids=["polars", "pyarrow", "nullable", "category"],
)  # fmt: skip
def test_containers(
    convert: Callable[[pd.DataFrame], Any], tiny_model: Path, frame: pd.DataFrame
) -> None:
    fitted = estimator(BertClassifier, tiny_model).fit(frame, frame["y"])
    other = estimator(BertClassifier, tiny_model).fit(convert(frame), frame["y"].tolist())
    np.testing.assert_array_equal(
        fitted.predict_proba(convert(frame)), fitted.predict_proba(frame)
    )
    np.testing.assert_array_equal(other.predict_proba(frame), fitted.predict_proba(frame))


def test_arrays_and_rows_by_position(tiny_model: Path, frame: pd.DataFrame) -> None:
    array = frame[["text", "stars", "channel"]].to_numpy()
    by_position = {"text_columns": 0, "feature_columns": [1, -1]}
    fitted = estimator(BertClassifier, tiny_model, **by_position).fit(array, frame["y"])
    assert fitted.n_features_in_ == 3
    rows = [tuple(row) for row in array.tolist()]
    np.testing.assert_array_equal(fitted.predict_proba(rows), fitted.predict_proba(array))
    of_series = estimator(BertClassifier, tiny_model, **by_position)
    of_series.fit(pd.Series(rows), frame["y"])
    np.testing.assert_array_equal(
        of_series.predict_proba(pd.Series(rows)), fitted.predict_proba(array)
    )


def test_positions_count_in_a_table_as_wide_as_in_fit(
    tiny_model: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    array = frame[["text", "number", "stars", "channel"]].to_numpy()
    by_position = {"text_columns": 0, "feature_columns": [1, 2]}
    estimator(BertClassifier, tiny_model, **by_position).fit(array, frame["y"]).save(tmp_path)
    loaded = BertClassifier.load(tmp_path)
    assert loaded.n_features_in_ == 4
    loaded.predict(array)
    for other in (array[:, [0, 2, 3]], array[:, [0, 1, 2, 3, 3]]):
        with pytest.raises(InputError, match="is expecting 4 features as input"):
            loaded.predict(other)


def test_numbers_of_a_declared_category_are_names(tiny_model: Path, frame: pd.DataFrame) -> None:
    codes = frame.assign(channel=pd.Categorical((frame["y"] == "x").astype(int)))
    fitted = estimator(BertClassifier, tiny_model).fit(codes, codes["y"])
    assert fitted._fitted.record.features[1].categories == ("0", "1")
    as_floats = codes.assign(channel=codes["channel"].astype(float))
    np.testing.assert_array_equal(fitted.predict_proba(as_floats), fitted.predict_proba(codes))


def test_unknown_and_missing_values(tiny_model: Path, frame: pd.DataFrame) -> None:
    fitted = estimator(BertClassifier, tiny_model).fit(frame[10:], frame["y"][10:])
    odd = frame[:3].assign(channel=["fax", None, "mail"], stars=[None, None, 2.0])
    features = fitted._rows(odd, fitted._fitted.record).features
    (number, category), median = fitted._fitted.record.features, np.nanmedian(frame["stars"][10:])
    assert features[:2, 0] == pytest.approx((median - number.means[0]) / number.scales[0])
    assert category.categories == ("chat", "mail")
    assert features[:, 1:].tolist() == [[0, 0], [0, 0], [0, 1]]  # nothing was missing in fit


# --- what an estimator does ----------------------------------------------------------------------


@BOTH
def test_copies_and_files_predict_the_same(
    kind: Any, tiny_model: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    fitted = estimator(kind, tiny_model).fit(frame, target(kind, frame))
    expected = output(fitted, frame)
    fitted.save(tmp_path / "saved")
    for twin in (
        kind.load(tmp_path / "saved"), pickle.loads(pickle.dumps(fitted)), copy.deepcopy(fitted),
        clone(fitted).fit(frame, target(kind, frame)),
    ):  # fmt: skip
        np.testing.assert_array_equal(output(twin, frame), expected)
    anew = kind(tmp_path / "saved", epochs=1).fit(frame["text"], target(kind, frame))
    assert anew.model_.classifier.in_features == fitted.model_.config.hidden_size


def test_a_saved_model_is_a_model_for_other_jobs(
    tiny_model: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    fitted = estimator(BertClassifier, tiny_model).fit(frame, frame["y"])
    fitted.save(tmp_path / "saved")
    vectors = BertTransformer(tmp_path / "saved", pooling="mean").fit_transform(frame["text"])
    same = BertTransformer(fitted, pooling="mean").fit_transform(frame["text"])
    np.testing.assert_array_equal(vectors, same)
    with pytest.raises(ModelError, match="no head"):
        BertClassifier.from_pretrained(tmp_path / "saved")
    with pytest.raises(ModelError, match="feature_columns"):
        fitted.save_pretrained(tmp_path / "plain")
    with pytest.raises(InputError, match="needs a fit"):
        BertClassifier.from_pretrained(tmp_path / "saved", feature_columns=["stars"])


@BOTH
def test_training_goes_on_with_the_record_of_the_first_fit(
    kind: Any, tiny_model: Path, frame: pd.DataFrame
) -> None:
    y = target(kind, frame)
    fitted = estimator(kind, tiny_model, warm_start=True).fit(frame, y)
    record, before = fitted._fitted.record, output(fitted, frame)
    fitted.fit(frame.assign(stars=frame["stars"] * 2 + 1), y)
    assert fitted._fitted.record == record
    assert (output(fitted, frame) != before).any()
    with pytest.raises(InputError, match="fitted with"):
        fitted.set_params(feature_columns="stars").fit(frame, y)
    with pytest.raises(InputError, match="fitted with"):
        fitted.predict(frame)


def test_partial_fit_grows_classes_and_keeps_features(
    tiny_model: Path, frame: pd.DataFrame
) -> None:
    fitted = estimator(BertClassifier, tiny_model).partial_fit(frame, frame["y"])
    before = fitted.model_.classifier.in_features
    fitted.partial_fit(frame[:4], ["new", "x", "z", "x"])
    assert fitted.model_.classifier.in_features == before
    assert fitted.predict_proba(frame).shape == (len(frame), 3)


def test_searches(tiny_model: Path, frame: pd.DataFrame) -> None:
    grid = {"feature_columns": [None, ["stars"], ["stars", "channel"]]}
    search = GridSearchCV(estimator(BertClassifier, tiny_model), grid, cv=2, error_score="raise")
    search.fit(frame, frame["y"])
    assert search.best_params_ == {"feature_columns": ["stars", "channel"]}


def test_a_column_learns_as_the_head_does(tiny_model: Path, frame: pd.DataFrame) -> None:
    held = {"validation_fraction": 0.2, "calibrate": True, "freeze": "all"}
    fitted = estimator(BertClassifier, tiny_model, head_init="random", epochs=5, **held)
    weights = fitted.fit(frame, frame["y"]).model_.classifier.weight[:, -2:]
    assert torch.isfinite(weights).all()
    assert fitted.temperature_ > 0


def test_inspection(tiny_model: Path, frame: pd.DataFrame) -> None:
    fitted = estimator(BertClassifier, tiny_model).fit(frame, frame["y"])
    found = attributions(fitted, frame[:4], "x", max_steps=5000)
    for each in found:
        assert abs(each.residual) <= 2e-3 * abs(each.output - each.baseline_output) + 1e-6
    other = attributions(fitted, frame[:4].assign(channel="mail"), "x", max_steps=5000)
    differences = [a.output - b.output for a, b in zip(other, found, strict=True)]
    bases = [a.baseline_output - b.baseline_output for a, b in zip(other, found, strict=True)]
    np.testing.assert_allclose(differences, bases, atol=1e-5)  # features are held fixed
    assert "a" in show(fitted, frame[:4]).text
    assert worst_errors(fitted, frame, frame["y"], 2).text
    assert head_importance(fitted, frame, frame["y"]).shape
    assert report(fitted, frame, frame["y"]).text


def test_another_model_needs_the_same_inputs(tiny_model: Path, frame: pd.DataFrame) -> None:
    fitted = estimator(BertClassifier, tiny_model).fit(frame, frame["y"])
    plain = estimator(BertClassifier, tiny_model, feature_columns=None).fit(frame, frame["y"])
    with pytest.raises(InputTypeError, match="feature_columns"):
        fitted.model_ = plain.model_
    before = fitted.predict_proba(frame)
    fitted.model_ = copy.deepcopy(fitted.model_)
    np.testing.assert_allclose(fitted.predict_proba(frame), before, rtol=1e-5)


# --- what is refused -----------------------------------------------------------------------------

BAD_IN_FIT: dict[str, tuple[Any, type[Exception], str]] = {
    "dates": (lambda n: pd.date_range("2024-01-01", periods=n), InputTypeError, "row 0.*dates"),
    "lists": (lambda n: [[1, 2]] * n, InputTypeError, r"row 0 of column 'extra'.*list"),
    "complex": (lambda n: [1j] * n, InputTypeError, "row 0.*complex"),
    "text in numbers": (lambda n: [1.5] * (n - 1) + ["?"], InputTypeError, "row 39.*to_numeric"),
    "infinite": (lambda n: [1.5, np.inf] + [0.5] * (n - 2), InputError, "infinite.*row 1"),
    "too large": (lambda n: [1e308, -1e308] * (n // 2), InputError, "too large"),
    "ids": (lambda n: [f"id {at}" for at in range(n)], InputError, "40 different values.*an id"),
    "numbers in texts": (lambda n: [str(at) for at in range(n)], InputError, "astype"),
    "nothing": (lambda n: [None] * n, InputError, "no value"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_IN_FIT)
def test_bad_columns_in_fit(name: str, tiny_model: Path, frame: pd.DataFrame) -> None:
    make, error, words = BAD_IN_FIT[name]
    bad = frame.assign(extra=pd.Series(list(make(len(frame))), dtype=object))
    with pytest.raises(error, match=words) as caught:
        estimator(BertClassifier, tiny_model, feature_columns="extra").fit(bad, frame["y"])
    assert "'extra'" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"stars": "many"}, InputTypeError, "row 0 of column 'stars'.*'many'"),
        ({"stars": -np.inf}, InputError, "row 0 of column 'stars'"),
        ({"stars": 1e30}, InputError, "'stars'.*1e\\+30 in row 0, too far"),
        ({"channel": 1.5}, InputTypeError, "row 0 of column 'channel'.*1.5"),
        ({"channel": pd.Timestamp("2024-01-01")}, InputTypeError, "row 0 of column 'channel'"),
    ],
)  # fmt: skip
def test_bad_columns_in_predict(
    changes: dict[str, Any], error: Any, words: str, tiny_model: Path, frame: pd.DataFrame
) -> None:
    fitted = estimator(BertClassifier, tiny_model).fit(frame, frame["y"])
    with pytest.raises(error, match=words):
        fitted.predict(frame.astype(dict.fromkeys(changes, object)).assign(**changes))
    with pytest.raises(InputError, match="feature_columns names the column 'stars'"):
        fitted.predict(frame.drop(columns="stars"))


@pytest.mark.parametrize("columns", [[], ["stars", "stars"], [True], [["stars"]], "strs", 99,
                                     ["text", "stars"]])  # fmt: skip
def test_bad_choices(columns: Any, tiny_model: Path, frame: pd.DataFrame) -> None:
    with pytest.raises(InputError, match="feature_columns"):
        estimator(BertClassifier, tiny_model, feature_columns=columns).fit(frame, frame["y"])


def test_a_model_without_features_does_not_grow_some(
    tiny_model: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    own = {"feature_columns": None, "pooling": "pooler"}
    plain = estimator(BertClassifier, tiny_model, **own).fit(frame, frame["y"])
    plain.save_pretrained(tmp_path / "plain")
    opened = BertClassifier.from_pretrained(tmp_path / "plain", warm_start=True)
    with pytest.raises(InputError, match="without feature_columns"):
        opened.set_params(**CHOSEN).fit(frame, frame["y"])


NUMBER, CATEGORY = ("stars", 1.0, (0.5,), (2.0,)), ("channel", ("mail", None))


@pytest.mark.parametrize(
    "value",
    [1, (), ("a",), (1.5, ("b",)), ("a", ()), ("a", ("b", "b")), ("a", (1,)), ("a", 1.0, (), ()),
     ("a", 1.0, (0.5,), (0.0,)), ("a", math.nan, (0.5,), (1.0,)), ("a", 1.0, (0.5, 1.0), (1.0,)),
     ("a", 1.0, (0.5,) * 3, (1.0,) * 3), ("a", tuple(map(str, range(1002))))],
)  # fmt: skip
def test_hostile_records_are_refused(value: Any) -> None:
    assert feature_column_of(NUMBER) == NUMBER
    assert feature_column_of(CATEGORY) == CATEGORY
    with pytest.raises(ValueError, match="feature column"):
        feature_column_of(value)


def test_a_record_of_other_features_than_the_weights(
    tiny_model: Path, frame: pd.DataFrame, tmp_path: Path
) -> None:
    estimator(BertClassifier, tiny_model).fit(frame, frame["y"]).save(tmp_path / "saved")
    names = [path.name for path in (tmp_path / "saved").iterdir()
             if path.name not in {"MANIFEST.json", "model.safetensors"}]  # fmt: skip
    header, members, tensors = archive.read(tmp_path / "saved", names)
    del header["versions"]
    state = json.loads(members["state.json"])
    state["seen"]["tuple"][2]["tuple"].pop()
    changed = {**members, "state.json": json.dumps(state).encode()}
    archive.write(tmp_path / "forged", changed, header, tensors)
    with pytest.raises(SaveError):
        BertClassifier.load(tmp_path / "forged")
