"""Displays of fits, heads and vectors: what they draw is what the estimators hold."""

from __future__ import annotations

import copy
import re
import sys
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot as plt
from scipy.sparse import csr_array
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert.exceptions import InputError, InputTypeError
from skbert.inspection import (
    AttentionDisplay,
    ConfusionDisplay,
    CountsDisplay,
    EmbeddingMapDisplay,
    FitDisplay,
    HeadImportanceDisplay,
    LearningRateDisplay,
    ReliabilityDisplay,
    ThresholdDisplay,
    attentions,
    head_importance,
    prune_heads,
)
from skbert.testing._samples import sample_of

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sentiment
    from matplotlib.axes import Axes

QUICK = {"epochs": 2, "device": "cpu", "random_state": 0, "precision": "float32"}
HISTORY = [
    {"epoch": 1, "loss": 0.9, "learning_rate": 2e-5, "validation_loss": 0.8,
     "validation_score": 0.5},
    {"epoch": 2, "loss": 0.5, "learning_rate": 1e-5, "validation_loss": 0.4,
     "validation_score": 0.7},
    {"epoch": 3, "loss": 0.3, "learning_rate": 0.0, "validation_loss": 0.6,
     "validation_score": 0.8},
]  # fmt: skip


@pytest.fixture(scope="module")
def classifier(tiny_model: Path, sentiment: Sentiment) -> BertClassifier:
    return BertClassifier(tiny_model, validation_fraction=0.2, **QUICK).fit(*sentiment)


@pytest.fixture(scope="module")
def transformer(tiny_model: Path, sentiment: Sentiment) -> BertTransformer:
    return BertTransformer(tiny_model, device="cpu").fit(sentiment.texts)


def boxes_overlap(axes: Axes, *, axis: str) -> bool:
    """Whether two names of an axis lie on each other, once they are drawn."""
    axes.figure.canvas.draw()
    labels = axes.get_yticklabels() if axis == "y" else axes.get_xticklabels()
    at = 1 if axis == "y" else 0
    places = np.array([label.get_transform().transform(label.get_position()) for label in labels])
    size = max(
        label.get_fontsize() * axes.figure.dpi / 72 for label in labels
    )  # height of a line, as wide as a slanted one takes
    return bool((np.abs(np.diff(places[:, at])) < size).any())


# --- fits ----------------------------------------------------------------------------------------


def test_the_panels_hold_the_history(classifier: BertClassifier) -> None:
    display = FitDisplay.from_estimator(classifier)
    history = classifier.history_
    assert display.history.to_dict("records") == history
    training, validation, star = display.axes_["loss"].lines
    assert training.get_ydata().tolist() == [each["loss"] for each in history]
    losses = [each["validation_loss"] for each in history]
    assert validation.get_ydata().tolist() == losses
    assert [*star.get_ydata()] == [min(losses)]
    score, before = display.axes_["score"].lines
    assert score.get_ydata().tolist() == [each["validation_score"] for each in history]
    assert before.get_ydata()[0] == classifier.probe_score_
    [rate] = display.axes_["learning_rate"].lines
    assert rate.get_ydata().tolist() == [each["learning_rate"] for each in history]


def test_the_epoch_whose_weights_are_kept_has_the_star() -> None:
    display = FitDisplay(HISTORY).plot()
    star = display.axes_["loss"].lines[-1]
    assert (*star.get_xdata(), *star.get_ydata()) == (2, 0.4)
    assert [text.get_text() for text in display.axes_["loss"].get_legend().get_texts()] == [
        "training", "validation", "weights that are kept",
    ]  # fmt: skip
    assert [*display.axes_["learning_rate"].get_xticks()] == [1, 2, 3]


def test_without_held_out_rows_there_is_no_score() -> None:
    history = [
        {name: each[name] for name in ("epoch", "loss", "learning_rate")} for each in HISTORY
    ]
    display = FitDisplay(history, probe_score=float("nan")).plot()
    assert list(display.axes_) == ["loss", "learning_rate"]
    assert len(display.axes_["loss"].lines) == 1


def test_a_loss_without_a_score_is_drawn() -> None:
    history = [{k: v for k, v in each.items() if k != "validation_score"} for each in HISTORY]
    assert list(FitDisplay(history).plot().axes_) == ["loss", "learning_rate"]


def test_long_fits_have_few_ticks() -> None:
    history = [{**HISTORY[0], "epoch": epoch} for epoch in range(1, 101)]
    assert len(FitDisplay(history).plot().axes_["learning_rate"].get_xticks()) <= 13


def test_a_history_has_its_entries() -> None:
    with pytest.raises(InputError, match=r"no 'learning_rate'.*history_ of a fitted"):
        FitDisplay([{"epoch": 1, "loss": 0.3}])


def test_fits_that_cannot_be_drawn(
    tiny_model: Path, transformer: BertTransformer, sentiment: Sentiment
) -> None:
    with pytest.raises(NotFittedError):
        FitDisplay.from_estimator(BertClassifier(tiny_model))
    with pytest.raises(InputTypeError, match="BertTransformer has no history_"):
        FitDisplay.from_estimator(transformer)
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(*sentiment)
    with pytest.raises(
        InputTypeError, match=r"Pipeline has no history_.*of a Pipeline, such a st"
    ):
        FitDisplay.from_estimator(pipeline)


# --- heads ---------------------------------------------------------------------------------------


def test_the_attention_is_that_of_the_head(transformer: BertTransformer) -> None:
    X = ["the food is good", "i love it"]
    display = AttentionDisplay.from_estimator(transformer, X, layer=1, head=0, item=1)
    expected = attentions(transformer, X)[1]
    np.testing.assert_array_equal(display.weights, expected.weights[1, 0])
    np.testing.assert_array_equal(np.asarray(display.im_.get_array()), expected.weights[1, 0])
    assert display.tokens == expected.tokens
    for labels in (display.ax_.get_xticklabels(), display.ax_.get_yticklabels()):
        assert [each.get_text() for each in labels] == expected.tokens
    assert display.ax_.get_title() == "Attention of head 0 in layer 1"


def test_a_head_that_is_pruned(classifier: BertClassifier) -> None:
    pruned = prune_heads(classifier, {0: [1]})
    with pytest.raises(InputError, match="Head 1 of layer 0 is pruned"):
        AttentionDisplay.from_estimator(pruned, ["a"], layer=0, head=1)


def test_weights_and_tokens_go_together() -> None:
    with pytest.raises(InputError, match="there are 3 tokens"):
        AttentionDisplay(np.eye(2), ["a", "b", "c"])


def test_importance_is_that_of_the_function(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    X, y = sentiment.texts[:8], sentiment.labels[:8]
    display = HeadImportanceDisplay.from_estimator(classifier, X, y, normalize=False)
    expected = head_importance(classifier, X, y, normalize=False)
    np.testing.assert_array_equal(display.importance, expected)
    np.testing.assert_array_equal(np.asarray(display.im_.get_array()), expected)
    assert [each.get_text() for each in display.ax_.texts] == [
        f"{v:.2g}" for v in expected.ravel()
    ]


def test_pruned_heads_are_grey_and_large_tables_have_no_numbers() -> None:
    display = HeadImportanceDisplay(np.array([[0.5, np.nan], [1.0, 0.25]])).plot()
    assert [each.get_text() for each in display.ax_.texts] == ["0.5", "", "1", "0.25"]
    assert display.im_.get_array().mask.tolist() == [[False, True], [False, False]]
    assert not HeadImportanceDisplay(np.ones((24, 16))).plot().ax_.texts


def test_importance_is_a_table() -> None:
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        HeadImportanceDisplay(np.ones(3))


@pytest.mark.parametrize("display", [AttentionDisplay, HeadImportanceDisplay])
def test_heads_of_what_has_none(display: Any, tiny_model: Path) -> None:
    where = {"layer": 0, "head": 0} if display is AttentionDisplay else {"y": ["a"]}
    with pytest.raises(InputTypeError, match="LogisticRegression"):
        display.from_estimator(LogisticRegression(), ["a"], **where)
    with pytest.raises(NotFittedError):
        display.from_estimator(BertClassifier(tiny_model), ["a"], **where)


# --- maps ----------------------------------------------------------------------------------------


class Points(HTMLParser):
    """The titles and the elements of a map."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.titles: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        if self.elements[-1] == "title":
            self.titles.append(data)


def test_the_places_are_those_of_a_pca(transformer: BertTransformer, sentiment: Sentiment) -> None:
    X, y = sentiment
    display = EmbeddingMapDisplay.from_estimator(transformer, X, y)
    pca = PCA(2, svd_solver="full")
    expected = pca.fit_transform(transformer.transform(X).astype(float))
    np.testing.assert_allclose(display.coordinates, expected, atol=1e-6)
    assert display.axis_names[0].startswith(
        f"first component, {pca.explained_variance_ratio_[0]:.0%}"
    )
    bad, good = display.ax_.collections
    is_good = np.array(y) == "good"
    np.testing.assert_allclose(good.get_offsets(), display.coordinates[is_good])
    np.testing.assert_allclose(bad.get_offsets(), display.coordinates[~is_good])
    assert [each.get_text() for each in display.ax_.get_legend().get_texts()] == ["bad", "good"]


def test_other_estimators_are_read_by_their_encoder(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    X = sentiment.texts[:9]
    display = EmbeddingMapDisplay.from_estimator(classifier, X)
    encoder = BertTransformer(model=classifier, device="cpu", precision="float32").fit(X)
    expected = EmbeddingMapDisplay.from_estimator(encoder, X)
    np.testing.assert_array_equal(display.coordinates, expected.coordinates)
    [points] = display.ax_.collections
    assert len(points.get_offsets()) == 9


def test_long_texts_are_read_as_the_estimator_reads_them(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    X = [text * 40 for text in sentiment.texts[:4]]
    read = copy.copy(classifier).set_params(long_text="windows")
    found = EmbeddingMapDisplay.from_estimator(read, X).coordinates
    how = {"long_text": "windows", "device": "cpu", "precision": "float32"}
    encoder = BertTransformer(model=classifier, **how).fit(X)
    expected = EmbeddingMapDisplay.from_estimator(encoder, X).coordinates
    np.testing.assert_array_equal(found, expected)


def test_feature_columns_are_no_texts(tiny_model: Path, sentiment: Sentiment) -> None:
    X = pd.DataFrame({"text": sentiment.texts, "plan": ["basic", "plus"] * 20})[:20]
    fitted = BertClassifier(tiny_model, feature_columns=["plan"], **QUICK)
    fitted.fit(X, sentiment.labels[:20])
    found = EmbeddingMapDisplay.from_estimator(fitted, X).coordinates
    encoder = BertTransformer(model=fitted, device="cpu", precision="float32").fit(["a"])
    expected = EmbeddingMapDisplay.from_estimator(encoder, X["text"].tolist()).coordinates
    np.testing.assert_array_equal(found, expected)


def test_labels_with_any_name_are_in_the_legend() -> None:
    display = EmbeddingMapDisplay(
        np.eye(3)[:, :2], ["a", "b", "c"], ["__label__good", "_", ""]
    ).plot()
    names = [each.get_text() for each in display.ax_.get_legend().get_texts()]
    assert names == ["", "_", "__label__good"]
    assert display.to_view()._repr_html_().count('class="key"') == 3


def test_any_transformer_to_arrays_will_do(sentiment: Sentiment) -> None:
    texts = sentiment.texts
    pipeline = make_pipeline(TfidfVectorizer(), PCA(5)).fit(texts)
    assert EmbeddingMapDisplay.from_estimator(pipeline, texts).coordinates.shape == (40, 2)


def test_the_24_most_frequent_labels_are_told_apart() -> None:
    labels = [i for i in range(26) for _ in range(2 if i < 24 else 1)]
    places = np.random.default_rng(0).normal(size=(50, 2))
    display = EmbeddingMapDisplay(places, ["x"] * 50, labels).plot()
    others, *own = display.ax_.collections
    assert len(others.get_offsets()) == 2
    looks = {
        (tuple(each.get_facecolor()[0]), each.get_paths()[0].vertices.tobytes()) for each in own
    }
    assert len(own) == len(looks) == 24
    names = [each.get_text() for each in display.ax_.get_legend().get_texts()]
    assert names[0] == "2 other labels"


@pytest.mark.parametrize(
    "numbers", [np.linspace(-1, 2.5, 50), [*map(float, range(50))], pd.Series(np.arange(50) / 7)]
)
def test_numbers_have_a_scale_of_colours(numbers: Any) -> None:
    places = np.random.default_rng(0).normal(size=(50, 2))
    display = EmbeddingMapDisplay(places, ["x"] * 50, numbers).plot()
    [points] = display.ax_.collections
    np.testing.assert_array_equal(np.asarray(points.get_array()), numbers)
    assert points.get_cmap().name == "cividis"
    assert display.ax_.get_legend() is None
    [scale] = display.ax_.child_axes
    assert scale.get_ylabel() == "label"
    view = display.to_view()
    assert view.body.count("</g>") == 50
    assert len({*re.findall(r'fill="(#\w+)"', view.body)}) == 7
    assert Points(view.body).titles.count(f"{[*numbers][1]}: x") == 1
    assert "\n8 " in repr(view)


def test_few_whole_floats_are_classes() -> None:
    display = EmbeddingMapDisplay(np.eye(3)[:, :2], list("abc"), [0.0, 1.0, 1.0]).plot()
    assert [each.get_text() for each in display.ax_.get_legend().get_texts()] == ["0.0", "1.0"]


def test_texts_stand_at_their_points_and_do_nothing() -> None:
    hostile = "</title><script>alert(1)</script>\x00\u202e\ud800\"'&"
    texts = [hostile, "long " * 100, "plain"]
    display = EmbeddingMapDisplay([[0, 0], [1, 2], [2, 1]], texts, ["<b>", "<b>", "c"])
    page = Points(display.to_view()._repr_html_())
    assert set(page.elements) <= {"div", "style", "p", "b", "span", "svg", "path", "g", "title"}
    assert page.elements.count("g") == 3
    assert page.titles[0].startswith("<b>: </title><script>alert(1)</script>⟨U+0000⟩⟨U+202E⟩")
    assert len(page.titles[1]) < 310
    assert page.titles[2] == "c: plain"
    assert not hasattr(display, "ax_")


def test_the_view_has_its_points_where_the_figure_has_them() -> None:
    display = EmbeddingMapDisplay([[0, 0], [1, 2], [2, 1]], list("abc"))
    places = re.findall(r"translate\(([\d.]+) ([\d.]+)\)", display.to_view().body)
    assert places == [("12.0", "468.0"), ("360.0", "12.0"), ("708.0", "240.0")]
    assert repr(display.to_view()).startswith("Map of 3 texts; across: first dimension")


def test_plain_text_of_a_map_is_legible() -> None:
    display = EmbeddingMapDisplay([[0, 1], [1, 0]], ["a", "b"], ["\x1b[31mred", "\u202eblue"])
    assert "\x1b" not in repr(display.to_view())
    assert "\u202e" not in repr(display.to_view())


def test_equal_texts_have_a_map(transformer: BertTransformer) -> None:
    display = EmbeddingMapDisplay.from_estimator(transformer, ["a"] * 2)
    assert display.axis_names[0] == "first component, 0% of the variance"


def test_texts_with_one_vector_lie_on_one_point() -> None:
    view = EmbeddingMapDisplay([[1, 1], [1, 1]], ["a", "b"]).to_view()
    assert len(set(re.findall(r"translate\([\d. ]+\)", view.body))) == 1


def test_umap_is_used_if_it_is_there(
    transformer: BertTransformer, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ImportError, match=r'pip install "skbert\[umap\]".*method="pca"'):
        EmbeddingMapDisplay.from_estimator(transformer, sentiment.texts, method="umap")
    seen: list[dict[str, Any]] = []

    class UMAP:
        def __init__(self, **settings: Any) -> None:
            seen.append(settings)

        def fit_transform(self, vectors: np.ndarray) -> np.ndarray:
            return vectors[:, :2] + 1

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=UMAP))
    display = EmbeddingMapDisplay.from_estimator(
        transformer, sentiment.texts, method="umap", random_state=3
    )
    assert seen == [{"n_components": 2, "metric": "cosine", "random_state": 3, "n_jobs": 1}]
    np.testing.assert_allclose(
        display.coordinates, transformer.transform(sentiment.texts)[:, :2] + 1, atol=1e-6
    )
    assert display.ax_.get_xlabel() == "UMAP, first dimension"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"method": "tsne"}, InputError, "method='tsne' is unknown. Give one of 'pca', 'umap'"),
        ({"method": []}, InputError, r"method=\[\] is unknown"),
        ({"method": None}, InputError, "method=None is unknown"),
        ({"labels": [0.5, 1.5]}, InputError, "labels has 2"),
        ({"labels": [0.5, np.nan, 1.5]}, InputError, "row 1"),
        ({"labels": [[0.5, 1.5]] * 3}, InputError, "columns"),
        ({"labels": ["a"]}, InputError, "labels has 1"),
        ({"labels": [[0, 1]] * 3}, InputError, "one label per row"),
        ({"X": ["one"]}, InputError, "at least 2 rows"),
        ({"X": "one text"}, InputError, "string object received"),
    ],
)
def test_maps_that_cannot_be_drawn(
    transformer: BertTransformer, changes: Any, error: Any, message: str
) -> None:
    values = {"X": ["a", "b", "c"], "labels": None, **changes}
    with pytest.raises(error, match=message):
        EmbeddingMapDisplay.from_estimator(transformer, **values)


@pytest.mark.parametrize(
    ("made", "error", "message"),
    [
        (csr_array(np.eye(3)), InputTypeError, r"sparse matrix.*TruncatedSVD\(50\)"),
        (np.array(["a", "b", "c"]), InputTypeError, "does not give numbers: could not convert"),
        (np.arange(3), InputError, r"shape \(3,\), and a map needs at least 2 rows and 2 feat"),
        (np.ones((3, 2, 2)), InputError, r"shape \(3, 2, 2\)"),
        (np.ones((3, 1)), InputError, r"shape \(3, 1\)"),
        ([[1, 2], [3, np.nan], [np.inf, 4]], InputError, "NaN or infinity for row 1 of X"),
    ],
)
def test_vectors_are_an_array_of_numbers(made: Any, error: Any, message: str) -> None:
    fitted = FunctionTransformer(lambda _: made).fit(["a"] * 3)
    with pytest.raises(error, match=message):
        EmbeddingMapDisplay.from_estimator(fitted, ["a"] * 3)


@pytest.mark.parametrize("estimator", [None, BertTransformer, object(), LogisticRegression()])
def test_what_has_no_vectors(estimator: Any) -> None:
    with pytest.raises(InputTypeError, match=r"gives no vectors. Give a fitted BertTransformer"):
        EmbeddingMapDisplay.from_estimator(estimator, ["a", "b"])


@pytest.mark.parametrize(
    ("kind", "sample"), [(BertTokenTagger, "tags"), (BertChoiceRanker, "choices")]
)
def test_words_and_options_are_no_texts(kind: Any, sample: str, tiny_model: Path) -> None:
    rows = sample_of(sample, None, None)
    fitted = kind(tiny_model, **QUICK).fit(rows.X, rows.y)
    with pytest.raises(InputTypeError, match=f"Row 0 of X is .*{kind.__name__}. Join words"):
        EmbeddingMapDisplay.from_estimator(fitted, rows.X)
    assert len(EmbeddingMapDisplay.from_estimator(fitted, ["a", "b c", "d"]).coordinates) == 3


def test_maps_need_vectors(tiny_model: Path, sentiment: Sentiment) -> None:
    with pytest.raises(NotFittedError):
        EmbeddingMapDisplay.from_estimator(BertTransformer(tiny_model), ["a", "b"])
    pipeline = make_pipeline(CountVectorizer(), LogisticRegression()).fit(*sentiment)
    with pytest.raises(InputTypeError, match=r"pipeline\[:-1\]"):
        EmbeddingMapDisplay.from_estimator(pipeline, ["a", "b"])
    with pytest.raises(InputError, match="there are 3 texts"):
        EmbeddingMapDisplay([[0, 1]], ["a", "b", "c"])


# --- predictions of our estimators ---------------------------------------------------------------


def test_the_displays_of_classes_take_a_classifier(
    classifier: BertClassifier, sentiment: Sentiment
) -> None:
    X, y = sentiment
    matrix = ConfusionDisplay.from_estimator(classifier, X, y).confusion_matrix
    assert np.trace(matrix) == round(40 * classifier.score(X, y))
    assert ReliabilityDisplay.from_estimator(classifier, X, y).bins["count"].sum() == 40
    assert ThresholdDisplay.from_estimator(classifier, X, y).labels == ["good"]


def test_thresholds_of_several_labels_are_those_of_a_classifier(tiny_model: Path) -> None:
    rows = sample_of("labels", None, None)
    fitted = BertClassifier(tiny_model, **QUICK).fit(rows.X, rows.y)
    display = ThresholdDisplay.from_estimator(fitted, rows.X, rows.y)
    assert display.labels == fitted.classes_.tolist()
    with pytest.raises(InputError, match="one label at a time"):
        ReliabilityDisplay.from_estimator(fitted, rows.X, rows.y)
    with pytest.raises(InputError, match="several labels"):
        ConfusionDisplay.from_estimator(fitted, rows.X, rows.y)


@pytest.mark.parametrize(
    ("kind", "sample", "unit", "params"),
    [
        (BertTokenTagger, "tags", "entities", {}),
        (BertSpanExtractor, "spans", "answers", {"on_ambiguous": "first"}),
    ],
)
def test_counts_of_a_tagger_and_an_extractor(
    kind: Any, sample: str, unit: str, params: Any, tiny_model: Path
) -> None:
    rows = sample_of(sample, None, None)
    fitted = kind(tiny_model, **QUICK, **params).fit(rows.X, rows.y)
    display = CountsDisplay.from_estimator(fitted, rows.X, rows.y)
    expected = CountsDisplay.from_predictions(rows.y, fitted.predict(rows.X))
    assert display.counts.equals(expected.counts)
    assert display.unit == unit
    if unit == "answers":
        assert display.counts["true"].sum() == display.counts["predicted"].sum() == len(rows.X)
    with pytest.raises(InputTypeError, match=r"not a classifier.*CountsDisplay"):
        ConfusionDisplay.from_estimator(fitted, rows.X, rows.y)


def test_spans_are_counted_by_the_words_that_they_touch(tiny_model: Path) -> None:
    X, y = ["Ann met Bob", "Eve sings"], [[(0, 3, "PER"), (8, 11, "PER")], [(0, 3, "PER")]]
    fitted = BertTokenTagger(tiny_model, **QUICK).fit(X, y)
    wide = [[(start, end + (end < len(text)), label) for start, end, label in row]
            for text, row in zip(X, fitted.predict(X), strict=True)]  # fmt: skip
    assert sum(map(len, wide))
    counts = CountsDisplay.from_estimator(fitted, X, wide).counts
    assert counts["correct"].sum() == counts["true"].sum() == counts["predicted"].sum()
    frozen = CountsDisplay.from_estimator(FrozenEstimator(fitted), X, wide).counts
    assert frozen.equals(counts)


# --- all of them ---------------------------------------------------------------------------------

CURVE = pd.DataFrame({"threshold": [0.2, 0.8], "precision": 0.5, "recall": 1.0, "f1": [0.6, 0.7]})
DRAWN: dict[str, Any] = {
    "fit": FitDisplay(HISTORY),
    "attention": AttentionDisplay(np.eye(3), ["a", "$b$", "c"]),
    "importance": HeadImportanceDisplay(np.ones((2, 3))),
    "map": EmbeddingMapDisplay(np.eye(2), ["a", "b"], ["x", "_y"]),
    "map of numbers": EmbeddingMapDisplay(np.eye(2), ["a", "b"], [0.5, 1.5]),
    "confusions": ConfusionDisplay(np.array([[2, 1], [0, 3]]), ["a", "b"]),
    "reliability": ReliabilityDisplay(pd.DataFrame({
        "lower": [0.0, 0.5], "upper": [0.5, 1.0], "count": [1, 0], "confidence": [0.4, np.nan],
        "accuracy": [1.0, np.nan],
    })),
    "thresholds": ThresholdDisplay({"a": CURVE, "b": CURVE}),
    "threshold": ThresholdDisplay({"a": CURVE}),
    "counts": CountsDisplay(pd.DataFrame({"true": [1], "predicted": [2], "correct": [1]}, ["a"])),
    "learning rates": LearningRateDisplay(*np.array([[1e-6, 1e-5], [1.0, 0.5], [1.0, 0.8]])),
}  # fmt: skip
ESTIMATED = ("fit", "attention", "importance", "map")


@pytest.mark.parametrize("name", DRAWN)
def test_a_display_is_drawn_in_the_axes_that_are_given(name: str) -> None:
    figure, (left, right) = plt.subplots(1, 2, layout="compressed")
    display = DRAWN[name].plot(ax=right)
    assert display.ax_ is right
    assert display.figure_ is figure
    assert not left.has_data()
    assert display.plot() is display
    assert display.figure_ is not figure
    display.figure_.canvas.draw()


@pytest.mark.parametrize("name", DRAWN)
def test_matplotlib_is_needed_to_plot(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "skbert\[plot\]"'):
        DRAWN[name].plot()


@pytest.mark.parametrize("name", ESTIMATED)
def test_matplotlib_is_named_before_anything_is_computed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    where = {"layer": 0, "head": 0} if name == "attention" else {}
    rows = () if name == "fit" else (["a"],)
    with pytest.raises(ImportError, match=type(DRAWN[name]).__name__):
        type(DRAWN[name]).from_estimator(LogisticRegression(), *rows, **where)


def test_names_of_150_classes_do_not_collide() -> None:
    rng = np.random.default_rng(0)
    names = np.array([f"a long name of the class {i}" for i in range(150)])
    chances = rng.dirichlet(np.full(150, 0.1), 600)
    true = names[rng.integers(0, 150, 600)]
    thresholds = ThresholdDisplay.from_predictions(true, chances, names)
    assert not boxes_overlap(thresholds.ax_, axis="y")
    confusions = ConfusionDisplay.from_predictions(true, names[chances.argmax(axis=1)])
    for axis in "xy":
        assert not boxes_overlap(confusions.ax_, axis=axis)
    small = plt.figure(figsize=(3, 3)).add_subplot()
    attention = AttentionDisplay(np.full((150, 150), 1 / 150), names).plot(small)
    for axis in "xy":
        assert not boxes_overlap(attention.ax_, axis=axis)


def test_names_lie_within_the_figure() -> None:
    names = [f"a long name of the class {i}" for i in range(12)]
    display = ConfusionDisplay.from_predictions(names, names[::-1])
    display.figure_.canvas.draw()
    box = display.ax_.get_tightbbox()
    assert box is not None
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= display.figure_.bbox.width
    assert box.y1 <= display.figure_.bbox.height


def test_the_star_stands_at_the_epoch_that_scoring_chose() -> None:
    history = [
        {"epoch": 1 + i, "loss": 1.0, "learning_rate": 1e-5, "validation_loss": loss,
         "validation_score": score}
        for i, (loss, score) in enumerate([(0.8, 0.5), (0.4, 0.7), (0.6, 0.9), (0.6, 0.9)])
    ]  # fmt: skip
    for scoring, epoch in {"loss": 2, "accuracy": 3}.items():
        star = FitDisplay(history, scoring=scoring).plot().axes_["loss"].get_lines()[2]
        assert star.get_xdata()[0] == epoch
