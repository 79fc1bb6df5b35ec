"""Predictions as views: all rows are there, wrong ones are marked, and bad input is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy.sparse import csr_matrix
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC
from support.inert import Fixed, Lengths
from support.jobs import FORMS, JOBS

from skbert import BertClassifier, BertPretrainer, BertSpanExtractor, BertTransformer
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection import attributions, label_issues, report, show, worst_errors
from skbert.inspection._html import View

if TYPE_CHECKING:
    from pathlib import Path

PREDICTING = [key for key in FORMS if key[0] not in ("BertPretrainer", "BertTransformer")]


def words_of(cell: Any) -> list[str]:
    """The words of a row of X, whatever its form."""
    cells = [cell] if isinstance(cell, str) else cell
    return [word for each in cells for word in (each if isinstance(each, list) else each.split())]


@pytest.mark.parametrize(("name", "form"), PREDICTING, ids=map("-".join, PREDICTING))
def test_every_row_of_every_kind_is_shown(tiny_model: Path, name: str, form: str) -> None:
    job, rows = FORMS[name, form]
    estimator = job.make(tiny_model, **rows.params).fit(rows.X, rows.y)
    plain, checked = show(estimator, rows.X), show(estimator, rows.X, rows.y)
    for view in (plain, checked):
        blocks = repr(view).split("\n\n")
        assert [block.split()[1] for block in blocks[1:]] == [str(row) for row in range(12)]
        for block, cell in zip(blocks[1:], rows.X, strict=True):
            assert all(word in block for word in words_of(cell))
        assert max(map(len, repr(view).splitlines())) <= 80
        assert view._repr_html_().count("<article") == 12
    assert "wrong" not in repr(plain)
    assert "true" not in repr(plain)
    n_wrong = repr(checked).count("✗ wrong")
    if name != "BertRegressor":
        assert n_wrong + repr(checked).count("✓ right") == 12
        assert f"{n_wrong} of them wrong" in repr(checked).splitlines()[0]


def test_what_is_wrong_is_what_score_counts(tiny_model: Path) -> None:
    for name in ("BertClassifier", "BertChoiceRanker"):
        job, rows = FORMS[name, next(iter(JOBS[name].forms))]
        estimator = job.make(tiny_model).fit(rows.X, rows.y)
        n_wrong = repr(show(estimator, rows.X, rows.y)).count("✗ wrong")
        assert n_wrong == round(12 * (1 - estimator.score(rows.X, rows.y)))


def test_classes_with_bars() -> None:
    assert repr(show(Fixed(), ["some text", "more"], ["b", "a"])) == (
        "Fixed: 2 rows, 1 of them wrong\n\n"
        "Row 0  ✗ wrong\n"
        "  some text\n"
        "  a 0.70 ██████████████       ← predicted\n"
        "  b 0.20 ████                 ← true\n"
        "  c 0.10 ██\n\n"
        "Row 1  ✓ right\n"
        "  more\n"
        "  a 0.70 ██████████████       ← predicted, true\n"
        "  b 0.20 ████\n"
        "  c 0.10 ██"
    )


def test_a_class_that_fit_has_not_seen() -> None:
    shown = repr(show(Fixed(), ["some text"], ["z"]))
    assert "✗ wrong" in shown
    assert "true: z, which fit has not seen" in shown


def test_many_classes_are_cut_to_the_best_and_the_true_one() -> None:
    names = [f"class {i:02}" for i in range(40)]
    chances = np.linspace(1, 0, 40) / 20
    shown = repr(show(Fixed(names, chances), ["text"], ["class 30"]))
    assert "class 04" in shown
    assert "class 05" not in shown
    assert "class 30 0.01                      ← true" in shown
    assert "34 more, all less probable" in shown


def test_numbers_on_a_scale() -> None:
    shown = repr(show(Lengths(), ["four", "eighteen"], [5, 8]))
    assert "predicted 4, true 5, off by -1" in shown
    assert "predicted 8, true 8, off by +0" in shown
    html = show(Lengths(), ["four", "eighteen"], [5, 8])._repr_html_()
    assert "left:0.0%" in html
    assert "left:25.0%" in html
    assert "left:100.0%" in html
    assert "Scale: 4 to 8 (filled: predicted; outlined: true)" in html
    both = repr(show(Lengths(2), ["four"], [[4, -4.5]]))
    assert "output 1: predicted -4, true -4.5, off by +0.5" in both
    assert "NaN" not in show(Lengths(), ["same", "same"])._repr_html_()


def tagger_that_finds(tiny_model: Path, spans: list[tuple[int, int, int, str]], form: str) -> Any:
    """A fitted tagger that predicts these entities: row, start, end, label."""
    job, rows = FORMS["BertTokenTagger", form]
    tagger = job.make(tiny_model).fit(rows.X, rows.y)
    table = pd.DataFrame(spans, columns=["row", "start", "end", "label"]).assign(score=0.5)
    tagger.predict_spans = lambda X: table
    return tagger


def test_entities_beside_the_truth(tiny_model: Path) -> None:
    text = "Anna Lee met Omar in New York"
    found = [(0, 0, 4, "A"), (0, 13, 17, "A"), (0, 18, 20, "B")]
    tagger = tagger_that_finds(tiny_model, found, "texts")
    true = [(0, 8, "B"), (13, 17, "A"), (21, 29, "C")]
    shown = show(tagger, [text], [true])
    assert repr(shown) == (
        "BertTokenTagger: 1 row, 1 of them wrong\n\n"
        "Row 0  ✗ wrong\n"
        "  [Anna A ✗] Lee met [Omar A] [in B ✗] [New York C missed]\n"
        "  ✗ A “Anna”: B “Anna Lee” is true\n"
        "  ✗ B “in”: no entity is true"
    )
    html = shown._repr_html_()
    assert '<mark class="c0">Omar<small>A</small></mark>' in html
    assert '<mark class="c2 open">New York<small>C missed</small></mark>' in html
    assert "[Anna A] Lee" in repr(show(tagger, [text]))


def test_tags_of_words_beside_the_truth(tiny_model: Path) -> None:
    tagger = tagger_that_finds(tiny_model, [(0, 0, 2, "A"), (1, 1, 2, "B")], "words")
    words = [["Anna", "Lee", "sings"], ["to", "Omar"]]
    shown = repr(show(tagger, words, [["B-A", "I-A", "O"], ["O", "B-A"]]))
    assert "Row 0  ✓ right\n  [Anna Lee A] sings" in shown
    assert "Row 1  ✗ wrong\n  to [Omar B ✗]\n  ✗ B “Omar”: A “Omar” is true" in shown


def test_tags_without_a_scheme_are_words(tiny_model: Path) -> None:
    job, rows = FORMS["BertTokenTagger", "words"]
    tags = [["DET", "ADJ", "NOUN", "VERB", "O"]] * 12
    tagger = job.make(tiny_model, scheme=None, epochs=8, learning_rate=1e-2).fit(rows.X, tags)
    shown = show(tagger, rows.X, tags)
    assert shown._repr_html_().count("<mark") >= 12
    assert repr(shown).count("✗ wrong") == sum(
        predicted != true for predicted, true in zip(tagger.predict(rows.X), tags, strict=True)
    )


CONTEXT = "Anna lives in Oslo. Omar lives in Cairo."
BEST = [("Oslo", 14, 18, 0.5), ("Cairo", 34, 39, 0.2), ("Anna", 0, 4, 0.1)]


def extractor_that_finds(tiny_model: Path, answer: str) -> Any:
    """A fitted extractor that predicts this answer, with the same n-best list for every row."""
    job, rows = FORMS["BertSpanExtractor", "answers"]
    extractor = job.make(tiny_model).fit(rows.X, rows.y)
    names = ["answer", "start", "end", "score"]
    extractor.predict_answers = lambda X, n: pd.concat(
        [
            pd.DataFrame(BEST, columns=names).assign(row=row, rank=[1, 2, 3], no_answer_score=0.2)
            for row in range(len(X))
        ]
    )
    extractor.predict = lambda X: np.array([answer] * len(X), object)
    return extractor


def test_answers_in_their_contexts(tiny_model: Path) -> None:
    X = [("Where does Omar live?", CONTEXT), ("Where does Anna live?", CONTEXT)]
    shown = show(extractor_that_finds(tiny_model, "Oslo"), X, ["Cairo", ["Oslo", "oslo!"]])
    assert repr(shown) == (
        "BertSpanExtractor: 2 rows, 1 of them wrong\n\n"
        "Row 0  ✗ wrong\n"
        "  question: Where does Omar live?\n"
        "  context: Anna lives in [Oslo answer ✗]. Omar lives in [Cairo true].\n"
        "  Oslo        0.50 ██████████           ← predicted\n"
        "  Cairo       0.20 ████                 ← true\n"
        "  Anna        0.10 ██\n"
        "  (no answer) 0.20 ████\n"
        "  true: “Cairo”\n\n"
        "Row 1  ✓ right\n"
        "  question: Where does Anna live?\n"
        "  context: Anna lives in [Oslo answer]. Omar lives in Cairo.\n"
        "  Oslo        0.50 ██████████           ← predicted, true\n"
        "  Cairo       0.20 ████\n"
        "  Anna        0.10 ██\n"
        "  (no answer) 0.20 ████"
    )
    assert '<mark class="c1 open">Cairo<small>true</small></mark>' in shown._repr_html_()


def test_no_answer_is_shown(tiny_model: Path) -> None:
    X = [("Where does Mei live?", CONTEXT)]
    shown = repr(show(extractor_that_finds(tiny_model, ""), X, [""]))
    assert "(no answer) 0.20 ████                 ← predicted, true" in shown
    assert "[" not in shown


def test_an_empty_context(tiny_model: Path) -> None:
    job, rows = FORMS["BertSpanExtractor", "answers"]
    extractor = job.make(tiny_model).fit(rows.X, rows.y)
    shown = repr(show(extractor, [("Who?", ""), ("What?", "a room")], ["", "room"]))
    assert "context: (empty)" in shown
    assert "Row 1" in shown


def test_columns_have_their_names(tiny_model: Path) -> None:
    frame = pd.DataFrame({"id": [1] * 12, "claim": ["good food"] * 12, "proof": ["bad"] * 12})
    y = ["yes", "no"] * 6
    pairs = BertClassifier(tiny_model, epochs=1, text_columns=["claim", "proof"]).fit(frame, y)
    shown = show(pairs, frame)
    assert "  claim: good food\n  proof: bad\n" in repr(shown)
    assert "<small>proof</small>bad" in shown._repr_html_()
    swapped = BertClassifier(tiny_model, epochs=1, text_columns=[2, 1]).fit(frame, y)
    assert "  proof: bad\n  claim: good food\n" in repr(show(swapped, frame))
    single = BertClassifier(tiny_model, epochs=1, text_columns="proof").fit(frame, y)
    assert "\n  bad\n" in repr(show(single, frame))


TEXTS = ["good food", "bad room", "nice film", "poor staff"] * 3
LABELS = ["yes", "no"] * 6


@pytest.mark.parametrize(
    "container",
    [list, tuple, np.array, pd.Series, pl.Series, pa.array, lambda X: pd.Series(X, index=X)],
    ids=["list", "tuple", "array", "pandas", "polars", "arrow", "index"],
)
def test_containers(tiny_model: Path, container: Any) -> None:
    classifier = BertClassifier(tiny_model, epochs=1, random_state=0).fit(TEXTS, LABELS)
    expected = repr(show(classifier, TEXTS, LABELS, max_rows=5))
    assert repr(show(classifier, container(TEXTS), container(LABELS), max_rows=5)) == expected


def test_other_estimators_of_scikit_learn(tiny_model: Path) -> None:
    pipeline = make_pipeline(BertTransformer(tiny_model), LogisticRegression())
    search = GridSearchCV(BertClassifier(tiny_model, epochs=1), {"epochs": [1]}, cv=2)
    for estimator in (pipeline, search, make_pipeline(CountVectorizer(), LogisticRegression())):
        shown = repr(show(estimator.fit(TEXTS, LABELS), TEXTS, LABELS))
        assert shown.startswith(("Pipeline: 12 rows", "BertClassifier: 12 rows"))
        assert "  nice film\n" in shown


def test_only_the_first_rows_are_predicted(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    predict = Fixed.predict
    monkeypatch.setattr(Fixed, "predict", lambda self, X: seen.append(len(X)) or predict(self, X))
    shown = show(Fixed(), [f"text {i}" for i in range(1500)], ["a"] * 1500, max_rows=3)
    assert seen == [3]
    assert repr(shown).startswith("Fixed: 3 of 1,500 rows, 0 of them wrong")
    assert repr(shown).endswith("1,497 more rows are not shown: max_rows=1500 shows all.")
    assert "1,497 more rows" in shown._repr_html_()
    assert repr(show(Fixed(), ["text"] * 25)).count("Row ") == 20


def test_an_empty_text_is_said_to_be_empty() -> None:
    shown = show(Fixed(), ["", " \n", "text"])
    assert repr(shown).count("  (empty)\n") == 2
    assert shown._repr_html_().count("(empty)") == 2


def test_long_texts_lose_their_middle(tiny_model: Path) -> None:
    text = "begin " + "word " * 1000 + "end"
    shown = repr(show(Fixed(), [text]))
    assert "begin" in shown
    assert "end" in shown
    assert "[…3,809 characters left out…]" in " ".join(shown.split())
    context = "word " * 1000 + CONTEXT + " word" * 1000
    start = context.index("Oslo")
    extractor = extractor_that_finds(tiny_model, "Oslo")
    table = extractor.predict_answers([1], 1).assign(start=start, end=start + 4)
    extractor.predict_answers = lambda X, n: table
    shown = repr(show(extractor, [("Where?", context)]))
    assert "[Oslo answer]" in shown
    assert shown.count("characters left") == 2


def test_a_page_is_saved(tmp_path: Path) -> None:
    view = show(Fixed(), ["a <b>bold</b> text"], ["a"])
    assert isinstance(view, View)
    view.save(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>Fixed: 1 row, 0 of them wrong</title>" in page
    assert "a &lt;b&gt;bold&lt;/b&gt; text" in page


# --- what cannot be shown ------------------------------------------------------------------------


def test_estimators_that_do_not_predict(tiny_model: Path) -> None:
    transformer = BertTransformer(tiny_model).fit(["a text"])
    with pytest.raises(InputTypeError, match=r"A BertTransformer does not predict for rows. Give"):
        show(transformer, ["a text"])
    with pytest.raises(InputTypeError, match=r"A BertPretrainer does not predict for rows. Give"):
        show(BertPretrainer(tiny_model), ["a text"])
    with pytest.raises(InputTypeError, match="A type does not predict"):
        show(BertClassifier, ["a text"])
    with pytest.raises(InputTypeError, match=r"without probabilities.*CalibratedClassifierCV"):
        show(make_pipeline(CountVectorizer(), LinearSVC()).fit(TEXTS, LABELS), TEXTS)
    columns = make_pipeline(CountVectorizer(), MultiOutputClassifier(LogisticRegression()))
    with pytest.raises(InputTypeError, match=r"Pipeline predicts several columns of classes"):
        show(columns.fit(TEXTS, [[label, label] for label in LABELS]), TEXTS)


@pytest.mark.parametrize("call", [show, report, worst_errors, attributions])
@pytest.mark.parametrize("is_fitted", [False, True])
def test_searches_that_keep_no_estimator(call: Any, *, is_fitted: bool) -> None:
    search = GridSearchCV(Fixed(), {"chances": [(0.7, 0.2, 0.1)]}, cv=2, refit=False)
    if is_fitted:
        search.fit(["a", "b"] * 2, ["a", "b"] * 2)
    message = r"This GridSearchCV instance was initialized with `refit=False`.* refit=True"
    with pytest.raises(InputError, match=message):
        call(search, ["a"], ["a"])


@pytest.mark.parametrize("kind", [BertClassifier, BertSpanExtractor])
def test_estimators_that_are_not_fitted(kind: Any) -> None:
    with pytest.raises(NotFittedError):
        show(kind(), [("a", "b")])


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ("a text", None, r"X is 'a text', not a list of rows. For a single one, type \[X\]."),
        (7, None, "X is 7, not a list of rows"),
        ([], None, "0 sample"),
        (["a", "b"], ["a"], "X has 2 rows and y has 1"),
        (["a", "b"], ["a", None], "y contains NaN"),
        (["a", "b"], [[0, 1], [1, 0]], r"y has the shape \(2, 2\), but the estimator predicts"),
        (["a", "b"], [0, 1], "y has labels such as 0 and the predictions such as 'a'. Give both"),
    ],
)
def test_bad_rows_and_truths(X: Any, y: Any, message: str) -> None:
    with pytest.raises((InputError, InputTypeError), match=message):
        show(Fixed(), X, y)


def test_bad_truths_of_numbers() -> None:
    with pytest.raises(InputError, match="y has the shape"):
        show(Lengths(), ["a"], [[1, 2]])
    with pytest.raises(InputError, match="could not convert string to float: 'x'"):
        show(Lengths(), ["a"], ["x"])


def test_bad_rows_of_a_fitted_estimator(tiny_model: Path) -> None:
    classifier = BertClassifier(tiny_model, epochs=1).fit(TEXTS, LABELS)
    with pytest.raises(InputError, match="missing text"):
        show(classifier, ["good food", None])
    tagger = tagger_that_finds(tiny_model, [], "words")
    with pytest.raises(InputError, match=r"Row 0 of y has 1 tag\(s\), but row 0 of X has 2"):
        show(tagger, [["good", "food"]], [["O"]])


def test_rows_of_datasets_and_files_are_taken(tiny_model: Path, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    job, rows = JOBS["BertClassifier"], FORMS["BertClassifier", "classes"][1]
    classifier = job.make(tiny_model).fit(rows.X, rows.y)
    table = pa.table({"text": [*rows.X]})
    parquet.write_table(table, tmp_path / "x.parquet")
    expected = str(show(classifier, rows.X, rows.y, max_rows=3))
    for X in (datasets.Dataset(table), parquet.ParquetFile(tmp_path / "x.parquet")):
        assert str(show(classifier, X, rows.y, max_rows=3)) == expected
        issues = label_issues(job.make(tiny_model), X, rows.y, cv=2)
        expected_issues = label_issues(job.make(tiny_model), rows.X, rows.y, cv=2)
        pd.testing.assert_frame_equal(issues, expected_issues)


def test_frozen_estimators_are_shown_as_what_they_hold(tiny_model: Path) -> None:
    job, rows = FORMS["BertTokenTagger", "words"]
    tagger = job.make(tiny_model).fit(rows.X, rows.y)
    assert str(show(FrozenEstimator(tagger), rows.X)) == str(show(tagger, rows.X))


def test_sparse_labels_and_columns_of_one_number() -> None:
    X, y = ["good", "bad", "fine"] * 4, np.array([[1, 0], [0, 1], [1, 1]] * 4)
    several = OneVsRestClassifier(LogisticRegression())
    labels = make_pipeline(CountVectorizer(), several).fit(X, csr_matrix(y))
    assert "12 rows, 0 of them wrong" in str(show(labels, X, csr_matrix(y)))
    assert "Labels" in str(report(labels, X, csr_matrix(y), y_train=csr_matrix(y)))
    stars = pd.DataFrame({"stars": np.arange(12.0)})
    number = make_pipeline(CountVectorizer(), LinearRegression()).fit(X, stars)
    assert len(worst_errors(number, X, stars["stars"]).frame) == 10
