"""Several text columns as named fields: what estimators make of them, from fit to inspection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
    load,
)
from skbert.exceptions import InputError, InputTypeError, TruncationWarning
from skbert.inspection import attributions, report, show, worst_errors

if TYPE_CHECKING:
    from pathlib import Path

FIELDS = ["title", "body", "tags"]
TITLES = ["good", "great movie", "", "awful", "i hate it", "bad"] * 2
BODIES = ["i love it", "good", "great", "bad movie", "awful " * 40, "i hate this movie"] * 2
TAGS = ["a, b", "", "a", "b", "", "b, a"] * 2
Y = ["yes", "yes", "yes", "no", "no", "no"] * 2
STILL: dict[str, Any] = {"epochs": 1, "random_state": 0, "max_length": 32, "pooling": "mean",
                         "precision": "float32", "device": "cpu"}  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore::skbert.exceptions.TruncationWarning")
KINDS = pytest.mark.parametrize("kind", [BertClassifier, BertRegressor, BertTransformer])


@pytest.fixture
def table() -> pd.DataFrame:
    return pd.DataFrame({"id": range(12), "tags": TAGS, "title": TITLES, "body": BODIES})


def made(kind: Any, model: Path, **params: Any) -> Any:
    still = STILL if kind is not BertTransformer else {"max_length": 32}
    return kind(model, **still, **params)


def fitted(kind: Any, model: Path, X: Any, **params: Any) -> Any:
    y = [float(each == "yes") for each in Y] if kind is BertRegressor else Y
    return made(kind, model, **params).fit(X, y)


def outputs(estimator: Any, X: Any) -> Any:
    name = next(n for n in ("predict_proba", "transform", "predict") if hasattr(estimator, n))
    return np.asarray(getattr(estimator, name)(X))


# --- what a row says -----------------------------------------------------------------------------


@KINDS
def test_fields_say_what_one_text_says(kind: Any, tiny_model: Path, table: pd.DataFrame) -> None:
    """Where nothing is cut, a row is the text that its fields make together."""
    table["body"] = [body[:30] for body in BODIES]
    rows = zip(TITLES, table["body"], TAGS, strict=True)
    texts = [
        " ".join(f"{name}: {text}" for name, text in zip(FIELDS, row, strict=True) if text)
        for row in rows
    ]
    y = [1.0, 2, 3] * 4 if kind is BertRegressor else Y
    one = made(kind, tiny_model, long_text="windows").fit(texts, y)
    several = made(kind, tiny_model, long_text="windows", text_columns=FIELDS).fit(table, y)
    name = "transform" if kind is BertTransformer else "predict"
    np.testing.assert_array_equal(getattr(several, name)(table), getattr(one, name)(texts))


@KINDS
def test_one_field_is_a_plain_text(kind: Any, tiny_model: Path, table: pd.DataFrame) -> None:
    plain = outputs(fitted(kind, tiny_model, BODIES), BODIES)
    for columns in ("body", ["body"], {"body": "text"}):
        one = fitted(kind, tiny_model, table, text_columns=columns)
        np.testing.assert_array_equal(outputs(one, table), plain)


@KINDS
def test_two_columns_are_a_pair_and_fields_by_name(
    kind: Any, tiny_model: Path, table: pd.DataFrame
) -> None:
    chosen, names = ["title", "body"], {"title": "title", "body": "body"}
    pair = outputs(fitted(kind, tiny_model, [*zip(TITLES, BODIES, strict=True)]),
                   [*zip(TITLES, BODIES, strict=True)])  # fmt: skip
    by_name = outputs(fitted(kind, tiny_model, table, text_columns=chosen), table)
    np.testing.assert_array_equal(by_name, pair)
    assert not np.array_equal(outputs(fitted(kind, tiny_model, table, text_columns=names), table),
                              pair)  # fmt: skip


@pytest.mark.parametrize("long_text", ["truncate", "head_tail", "windows"])
def test_the_length_and_the_order_of_rows_change_nothing(
    long_text: str, tiny_model: Path, table: pd.DataFrame
) -> None:
    transformer = made(BertTransformer, tiny_model, text_columns=FIELDS, long_text=long_text)
    transformer.fit(table[:1])
    found = [transformer.set_params(verbose=0).transform(table[i : i + 1])[0] for i in range(4)]
    np.testing.assert_allclose(transformer.transform(table[:4]), found, atol=1e-6)
    np.testing.assert_array_equal(
        transformer.transform(table[3::-1]), transformer.transform(table[:4])[::-1]
    )


def test_a_missing_field_is_left_out(tiny_model: Path, table: pd.DataFrame) -> None:
    gaps = table[:4].replace("", None)
    transformer = made(BertTransformer, tiny_model, text_columns=FIELDS)
    with pytest.raises(InputError, match=r"row 2 of column 'title'.*missing='empty'"):
        transformer.fit(gaps)
    found = transformer.set_params(missing="empty").fit_transform(gaps)
    np.testing.assert_array_equal(found, transformer.transform(table[:4]))


def test_token_vectors(tiny_model: Path, table: pd.DataFrame) -> None:
    """Names and special tokens have none; a piece in several windows has the mean of theirs."""
    params: dict[str, Any] = {"text_columns": FIELDS, "long_text": "windows"}
    transformer = made(BertTransformer, tiny_model, **params).fit(table)
    pieces = transformer.transform_tokens(table)
    tokenizer = transformer.tokenizer_
    wanted = [
        sum(len(tokenizer(text, add_special_tokens=False).input_ids) for text in row)
        for row in table[FIELDS].itertuples(index=False)
    ]
    assert [len(row) for row in pieces] == wanted
    cut = transformer.set_params(long_text="truncate").fit(table)
    with pytest.warns(TruncationWarning, match="1 of 6"):
        short = cut.transform_tokens(table)
    np.testing.assert_allclose(short[0], pieces[0], atol=1e-6)
    names = len(tokenizer("title: body:", add_special_tokens=False).input_ids)
    assert len(short[4]) == 32 - 2 - names


# --- as an estimator of scikit-learn -------------------------------------------------------------


def test_names_and_numbers_of_columns(tiny_model: Path, table: pd.DataFrame) -> None:
    transformer = made(BertTransformer, tiny_model, text_columns=FIELDS).fit(table[:4])
    assert transformer.n_features_in_ == 4
    assert transformer.feature_names_in_.tolist() == [*table.columns]
    assert transformer.get_feature_names_out()[0] == "title_body_tags_0"
    array = table[FIELDS].to_numpy()[:4]
    np.testing.assert_array_equal(transformer.transform(array), transformer.transform(table[:4]))
    np.testing.assert_array_equal(
        transformer.transform(pl.from_pandas(table[:4])), transformer.transform(table[:4])
    )
    transformer.fit(array)
    assert transformer.n_features_in_ == 3
    assert not hasattr(transformer, "feature_names_in_")
    assert transformer.get_feature_names_out(FIELDS)[1] == "title_body_tags_1"
    places = made(BertTransformer, tiny_model, text_columns=[2, 3, 1]).fit(table[:4])
    assert places.get_feature_names_out()[0] == "title_body_tags_0"


@pytest.mark.parametrize("columns", [FIELDS, {"title": "t", "tags": "u"}, {2: "t", 3: "text"}])
def test_save_load_pickle_and_clone(
    columns: Any, tiny_model: Path, tmp_path: Path, table: pd.DataFrame
) -> None:
    X = table[:4]
    classifier = made(BertClassifier, tiny_model, text_columns=columns).fit(X, Y[:4])
    classifier.save(tmp_path / "saved")
    loaded = load(tmp_path / "saved")
    assert loaded.text_columns == columns
    np.testing.assert_array_equal(loaded.predict_proba(X), classifier.predict_proba(X))
    again = clone(classifier).fit(X, Y[:4])
    np.testing.assert_array_equal(again.predict_proba(X), classifier.predict_proba(X))


def test_in_a_pipeline_a_column_transformer_and_a_search(
    tiny_model: Path, table: pd.DataFrame
) -> None:
    transformer = made(BertTransformer, tiny_model, text_columns=FIELDS, long_text="windows")
    both = ColumnTransformer([("text", transformer, FIELDS), ("id", "passthrough", ["id"])])
    found = both.fit_transform(table)
    np.testing.assert_array_equal(found[:, :-1], transformer.fit_transform(table))
    assert both.get_feature_names_out()[0] == "text__title_body_tags_0"
    search = GridSearchCV(
        make_pipeline(transformer, LogisticRegression()),
        {"berttransformer__text_columns": ["body", FIELDS, {"title": "t", "body": "b"}]},
        cv=2,
    ).fit(table, Y)
    wanted = make_pipeline(transformer, LogisticRegression()).fit(table, Y).predict(table)
    found = clone(search.estimator).set_params(berttransformer__text_columns=FIELDS).fit(table, Y)
    np.testing.assert_array_equal(found.predict(table), wanted)


def test_the_cache_knows_fields(tiny_model: Path, tmp_path: Path, table: pd.DataFrame) -> None:
    X = table[:4]
    choices = (FIELDS, {"title": "a", "body": "b", "tags": "c"}, [2, 3, 1], ["title", "body"])
    for columns in choices:
        kept = made(BertTransformer, tiny_model, text_columns=columns, memory=tmp_path).fit(X)
        first = kept.transform(X)
        np.testing.assert_array_equal(kept.transform(X), first)
        fresh = made(BertTransformer, tiny_model, text_columns=columns).fit(X)
        np.testing.assert_array_equal(fresh.transform(X), first)


def test_beside_texts_of_labels_and_rows_held_out(tiny_model: Path, table: pd.DataFrame) -> None:
    classifier = made(BertClassifier, tiny_model, text_columns=FIELDS, label_texts=True)
    classifier.fit(table, Y, X_val=table[:4], y_val=Y[:4])
    assert "validation_loss" in classifier.history_[0]
    assert set(classifier.predict(table)) <= {"yes", "no"}


# --- inspection ----------------------------------------------------------------------------------


@KINDS
def test_attributions_name_places_in_the_columns(
    kind: Any, tiny_model: Path, table: pd.DataFrame
) -> None:
    X = table[:4]
    y = [1.0, 2.0, 3.0, 4.0] if kind is BertRegressor else Y[:4]
    estimator = made(kind, tiny_model, text_columns=FIELDS).fit(X, y)
    target = estimator.transform(X[::-1])[0] if kind is BertTransformer else None
    for row, found in enumerate(attributions(estimator, X, target)):
        texts = X[FIELDS].iloc[row].tolist()
        assert found.texts == texts
        words = [texts[field][start:end] for field, start, end in found.spans.tolist()]
        assert words == found.words == " ".join(texts).replace(",", " ,").split()
        total = found.output - found.baseline_output
        assert found.values.sum() + found.residual == pytest.approx(total)


@pytest.mark.parametrize("long_text", ["truncate", "windows"])
def test_pages_show_fields(long_text: str, tiny_model: Path, table: pd.DataFrame) -> None:
    classifier = made(BertClassifier, tiny_model, text_columns=FIELDS, long_text=long_text)
    classifier.set_params(text_columns={"title": "Subject", "body": "body"})
    classifier.set_params(max_length=None).fit(table, Y)
    page = repr(show(classifier, table[:2], Y[:2]))
    assert "Subject" in page
    assert "great movie" in page
    text = repr(report(classifier, table, Y))
    words = classifier.tokenizer_(f"Subject: {TITLES[4]} body: {BODIES[4]}")["input_ids"]
    assert f"the longest {len(words)}, special tokens included" in " ".join(text.split())
    worst = worst_errors(classifier, table, Y)
    assert "body" in repr(worst)


# --- refusals ------------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({}, "does not choose"),
        ({"title": "a", "body": "a"}, "same field name"),
        ({"title": " ", "body": "a"}, "no field name"),
        ({"title": None, "body": "a"}, "no field name"),
        ({"title": "a", "boddy": "b"}, "Did you mean 'body'"),
        (["title", "body", "title"], "does not choose"),
        (["title", "body", 2], "twice"),
    ],
)
def test_choices_that_are_refused(
    kind: Any, columns: Any, words: str, tiny_model: Path, table: pd.DataFrame
) -> None:
    with pytest.raises(InputError, match=words):
        made(kind, tiny_model, text_columns=columns).fit(table, Y)


def test_rows_that_are_refused(tiny_model: Path, table: pd.DataFrame) -> None:
    numbers = made(BertClassifier, tiny_model, text_columns=["title", "body", "id"])
    with pytest.raises(InputTypeError, match="row 0 of column 'id' holds 0, of type int"):
        numbers.fit(table, Y)
    short = made(BertClassifier, tiny_model, text_columns=FIELDS).set_params(max_length=8)
    with pytest.raises(
        InputError, match=r"3 fields.*max_length=8.*Set max_length to \d+ at least"
    ):
        short.fit(table, Y)
    classifier = made(BertClassifier, tiny_model, text_columns=FIELDS).fit(table[:4], Y[:4])
    with pytest.raises(InputError, match="yet now missing:\n- tags"):
        classifier.predict(table.drop(columns="tags"))
    with pytest.raises(InputError, match="X has 2 features, but BertClassifier is expecting 3"):
        classifier.predict([*zip(TITLES, BODIES, strict=True)])
    with pytest.raises(InputError, match="X has 1 features, but BertClassifier is expecting 3"):
        classifier.predict(BODIES)
    with pytest.raises(InputError, match=r"4 columns.*named fields"):
        made(BertClassifier, tiny_model).fit(table, Y)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (BertSpanExtractor, r"fields of one text.*text_columns=\['question', 'context'\]"),
        (BertTokenTagger, "names fields, which BertTokenTagger does not read"),
        (BertPretrainer, "names fields, which BertPretrainer does not read"),
        (BertChoiceRanker, "does not choose a prompt and options"),
    ],
)
def test_estimators_without_fields(
    kind: Any, words: str, tiny_model: Path, table: pd.DataFrame
) -> None:
    estimator = kind(tiny_model, text_columns={"title": "a", "body": "b"})
    with pytest.raises(InputError, match=words):
        estimator.fit(table, Y)
