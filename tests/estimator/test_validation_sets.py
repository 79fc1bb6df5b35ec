"""What a fit validates on: rows given to it, groups held out, and the score that decides."""

from __future__ import annotations

import itertools
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import sklearn
import sklearn.metrics
import torch
from pyarrow import dataset, parquet
from scipy.sparse import csr_array
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_validate
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer
from support.jobs import FORMS

from skbert import BertClassifier, BertPretrainer, BertRegressor, BertTokenTagger
from skbert._core.training.watch import hold_out_groups
from skbert._estimator import fitting
from skbert.exceptions import InputError, InputTypeError, SaveError, TruncationWarning
from skbert.metrics import get_scorer, squad_f1

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sentiment

TRAINED_FORMS = [
    pytest.param(job, form, id=f"{name}-{kind}")
    for (name, kind), (job, form) in FORMS.items()
    if job.is_trained
]


class Parts:
    """Remembers which rows were trained on and which were held out last."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.last: Any = None
        draw = fitting.rows_to_hold_out

        def remembered(*args: Any) -> Any:
            self.last = draw(*args) or self.last
            return self.last if args[1].validation is None else None

        monkeypatch.setattr(fitting, "rows_to_hold_out", remembered)

    def of(self, values: Any) -> tuple[list[Any], list[Any]]:
        training, held_out = ([values[row] for row in part] for part in self.last)
        return training, held_out


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Parts:
    return Parts(monkeypatch)


def passes(estimator: Any) -> list[dict[str, float]]:
    """The history without what a clock says."""
    return [
        {name: value for name, value in record.items() if name != "seconds"}
        for record in estimator.history_
    ]


def classifier(folder: Path, **params: Any) -> BertClassifier:
    usual = {"epochs": 3, "learning_rate": 3e-3, "device": "cpu", "random_state": 0}
    return BertClassifier(folder, **{**usual, **params})


# --- X_val ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("job", "form"), TRAINED_FORMS)
def test_rows_given_are_as_the_same_rows_held_out(
    job: Any, form: Any, tiny_model: Path, parts: Parts
) -> None:
    params = {**form.params, "epochs": 2}
    drawn = job.make(tiny_model, validation_fraction=0.3, **params).fit(form.X, form.y)
    X, X_val = parts.of(form.X)
    beside = {"X_val": X_val}
    y = None
    if form.y is not None:
        y, beside["y_val"] = parts.of(form.y)
    given = job.make(tiny_model, **params).fit(X, y, **beside)
    assert passes(given) == passes(drawn)
    assert "validation_loss" in given.history_[0]
    states = (each.model_.state_dict() for each in (given, drawn))
    for one, other in zip(*map(dict.values, states), strict=True):
        assert torch.equal(one, other)


def test_rows_given_take_the_place_of_rows_held_out(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    beside = {"X_val": X[30:], "y_val": y[30:]}
    alone = classifier(tiny_model).fit(X[:30], y[:30], **beside)
    both = classifier(tiny_model, validation_fraction=0.5).fit(X[:30], y[:30], **beside)
    assert passes(both) == passes(alone)


def test_weights_of_rows_given(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    X_val, y_val = [*X[30:], "good"], [*y[30:], "bad"]
    plain = classifier(tiny_model).fit(X[:30], y[:30], X_val=X_val[:-1], y_val=y_val[:-1])
    weighted = classifier(tiny_model).fit(
        X[:30], y[:30], X_val=X_val, y_val=y_val, sample_weight_val=[1.0] * 10 + [0.0]
    )
    assert passes(weighted) == passes(plain)


def test_frames_and_any_container_can_be_given(tiny_model: Path, sentiment: Sentiment) -> None:
    frame = pd.DataFrame({"text": sentiment.texts, "label": sentiment.labels})
    train, held_out = frame[:30], frame[30:]
    by_frame = classifier(tiny_model).fit(
        train[["text"]], train["label"], X_val=held_out[["text"]], y_val=held_out["label"]
    )
    by_list = classifier(tiny_model).fit(
        sentiment.texts[:30], sentiment.labels[:30], X_val=sentiment.texts[30:],
        y_val=sentiment.labels[30:],
    )  # fmt: skip
    assert passes(by_frame) == passes(by_list)
    with pytest.raises(InputError, match=r"X is X_val[\s\S]*feature names should match"):
        classifier(tiny_model).fit(
            train[["text"]], train["label"],
            X_val=held_out[["text"]].rename(columns={"text": "body"}), y_val=held_out["label"],
        )  # fmt: skip


def test_patience_and_what_is_tuned_take_rows_given(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    beside = {"X_val": X[30:], "y_val": y[30:]}
    fitted = classifier(tiny_model, patience=1, calibrate=True).fit(X[:30], y[:30], **beside)
    assert fitted.temperature_ != 1
    indicator = np.array(
        [[label == "good", "e" in text] for text, label in zip(X, y, strict=True)]
    )
    fitted = classifier(tiny_model, tune_thresholds=True).fit(
        X[:30], indicator[:30], X_val=X[30:], y_val=indicator[30:]
    )
    assert (fitted.thresholds_ != 0.5).any()


def test_rows_given_go_through_a_pipeline(tiny_model: Path, sentiment: Sentiment) -> None:
    X, y = sentiment
    pipeline = make_pipeline(FunctionTransformer(), classifier(tiny_model))
    beside = {"X_val": X[30:], "y_val": y[30:]}
    pipeline.fit(X[:30], y[:30], **{f"bertclassifier__{k}": v for k, v in beside.items()})
    assert "validation_loss" in pipeline[-1].history_[0]


def test_texts_that_are_cut_are_said_to_be_of_x_val(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    with pytest.warns(TruncationWarning) as caught:
        classifier(tiny_model, max_length=40, scoring="accuracy").fit(
            X, y, X_val=["good " * 50] * 2, y_val=["good", "bad"]
        )
    assert [str(warning.message)[:21] for warning in caught] == ["2 of 2 rows of X_val "]


# --- groups --------------------------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.3, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("seed", range(20))
def test_no_group_is_on_both_sides(fraction: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, size=rng.integers(2, 40))
    groups = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    training, held_out = hold_out_groups(groups, fraction, rng)
    assert np.array_equal(np.sort([*training, *held_out]), np.arange(len(groups)))
    assert len(training)
    assert len(held_out)
    assert not {*groups[training]} & {*groups[held_out]}
    wanted = min(max(1, round(fraction * len(groups))), len(groups) - 1)
    assert abs(len(held_out) - wanted) <= sizes.max()


@pytest.mark.parametrize("kind", [list, np.array, pd.Series])
def test_groups_of_any_kind_are_held_out_together(
    kind: Any, tiny_model: Path, sentiment: Sentiment, parts: Parts
) -> None:
    names = [f"document {row // 3}" for row in range(len(sentiment.texts))]
    fitted = classifier(tiny_model, validation_fraction=0.25, long_text="windows", max_length=6)
    fitted.fit(*sentiment, groups=kind(names))
    training, held_out = parts.of(names)
    assert not {*training} & {*held_out}
    assert 7 <= len(held_out) <= 13
    again = clone(fitted).fit(*sentiment, groups=kind(names))
    assert passes(again) == passes(fitted)


def test_groups_of_documents_in_pretraining(tiny_model: Path, parts: Parts) -> None:
    texts = ["good book", "bad film", "nice room", "poor food"] * 3
    pretrainer = BertPretrainer(
        tiny_model, epochs=1, validation_fraction=0.5, device="cpu", random_state=0
    )
    pretrainer.fit(texts, groups=["a"] * 6 + ["b"] * 6)
    assert [len({*part}) for part in parts.of(["a"] * 6 + ["b"] * 6)] == [1, 1]


@pytest.mark.parametrize("routed", [False, True])
def test_rows_given_reach_every_fit_of_a_search(
    routed: bool, tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    with sklearn.config_context(enable_metadata_routing=routed):
        for n, seen in ((12, 12), (40, 20)):  # scikit-learn cuts what is as long as X
            scorer = Sequence(*np.arange(4.0))
            asking = classifier(tiny_model, epochs=1, scoring=scorer)
            if routed:
                asking.set_fit_request(X_val=True, y_val=True)
            search = GridSearchCV(asking, {"epochs": [1]}, cv=2, refit=False, error_score="raise")
            search.fit(X, y, X_val=X[:n], y_val=y[:n])
            assert [len(rows) for rows, _ in scorer.rows] == [seen] * 4


@pytest.fixture
def routing() -> Any:
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_groups_are_routed(tiny_model: Path, sentiment: Sentiment, parts: Parts) -> None:
    X, y = sentiment
    groups = np.arange(len(X)) // 4
    asking = classifier(tiny_model, epochs=1, validation_fraction=0.3).set_fit_request(groups=True)
    pipeline = Pipeline([("same", FunctionTransformer()), ("classifier", asking)])
    pipeline.fit(X, y, groups=groups)
    training, held_out = parts.of(groups)
    assert not {*training} & {*held_out}
    search = GridSearchCV(asking, {"epochs": [1, 2]}, cv=GroupKFold(2), refit=False)
    search.fit(X, y, groups=groups)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    parts.last = None
    cross_validate(pipeline, X, y, cv=GroupKFold(2), params={"groups": groups})
    assert len(parts.last[0]) + len(parts.last[1]) == len(X) // 2


@pytest.mark.usefixtures("routing")
def test_rows_given_are_routed_through_the_steps_before(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    asking = classifier(tiny_model, epochs=1).set_fit_request(X_val=True, y_val=True)
    upper = FunctionTransformer(lambda texts: [text.upper() for text in texts])
    pipeline = Pipeline([("upper", upper), ("classifier", asking)], transform_input=["X_val"])
    pipeline.fit(X[:30], y[:30], X_val=X[30:], y_val=y[30:])
    capitals = [text.upper() for text in X]
    direct = classifier(tiny_model, epochs=1)
    direct.fit(capitals[:30], y[:30], X_val=capitals[30:], y_val=y[30:])
    assert passes(pipeline[-1]) == passes(direct)


# --- scoring -------------------------------------------------------------------------------------


def test_scoring_keeps_the_pass_that_a_loop_by_hand_keeps(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    X, lots = sentiment.texts, np.random.default_rng(0).permutation(len(sentiment.labels))
    y = [sentiment.labels[lot] for lot in lots]
    beside = {"X_val": X[30:], "y_val": y[30:]}
    recipe = {"epochs": 6, "schedule": "constant"}
    each = [
        classifier(tiny_model, **{**recipe, "epochs": n}).fit(X[:30], y[:30]) for n in range(1, 7)
    ]
    scores = [
        sklearn.metrics.f1_score(y[30:], one.predict(X[30:]), average="macro") for one in each
    ]
    kept = each[int(np.argmax(scores))]
    fitted = classifier(tiny_model, scoring="f1_macro", **recipe).fit(X[:30], y[:30], **beside)
    assert [record["validation_score"] for record in fitted.history_] == scores
    np.testing.assert_array_equal(fitted.predict_proba(X), kept.predict_proba(X))
    by_loss = classifier(tiny_model, **recipe).fit(X[:30], y[:30], **beside)
    for record, other in zip(fitted.history_, by_loss.history_, strict=True):
        assert record["validation_loss"] == other["validation_loss"]


class Sequence:
    """A scorer that gives these scores, one after another."""

    def __init__(self, *scores: Any) -> None:
        self.scores = list(scores)
        self.rows: list[tuple[Any, Any]] = []

    def __call__(self, estimator: Any, X: Any, y: Any) -> Any:
        self.rows.append((X, y))
        return self.scores[len(self.rows) - 1]

    def __deepcopy__(self, memo: object) -> Sequence:
        return self


@pytest.mark.parametrize(
    ("scores", "kept"),
    [((0.1, 0.5, 0.5), 2), ((np.nan, -3.0, np.nan), 2), ((3, 2, 1), 1), ((np.nan,) * 3, 3)],
)
def test_the_first_of_the_best_scores_is_kept(
    scores: tuple[float, ...], kept: int, tiny_model: Path, sentiment: Sentiment
) -> None:
    X, y = sentiment
    recipe = {"schedule": "constant", "head_init": "random"}
    fitted = classifier(tiny_model, scoring=Sequence(*scores), **recipe)
    fitted.fit(X[:30], y[:30], X_val=X[30:], y_val=y[30:])
    alone = classifier(tiny_model, epochs=kept, **recipe).fit(X[:30], y[:30])
    np.testing.assert_array_equal(fitted.predict_proba(X), alone.predict_proba(X))
    np.testing.assert_array_equal(
        [record["validation_score"] for record in fitted.history_], scores
    )


def test_patience_counts_passes_without_a_better_score(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    scorer = Sequence(0.0, 0.2, 0.2, 0.1, 0.9, 0.9)  # the first one is before training
    fitted = classifier(tiny_model, epochs=6, patience=2, scoring=scorer, validation_fraction=0.25)
    fitted.fit(*sentiment)
    assert fitted.probe_score_ == 0.0
    assert fitted.n_iter_ == 3


@pytest.mark.parametrize("container", [list, np.array, pd.Series])
def test_a_scorer_gets_the_rows_held_out_as_they_were_given(
    container: Any, tiny_model: Path, sentiment: Sentiment, parts: Parts
) -> None:
    X, y = (container(values) for values in sentiment)
    scorer = Sequence(1.0, 2.0)
    weight = np.ones(len(X))
    weight[::5] = 0
    classifier(tiny_model, epochs=1, scoring=scorer, validation_fraction=0.25).fit(
        X, y, sample_weight=weight
    )
    held_out = [row for row in parts.last[1] if weight[row]]
    for seen, values in zip(scorer.rows[-1], sentiment, strict=True):
        assert type(seen) is type(container(values))
        assert list(seen) == [values[row] for row in held_out]


def test_a_scorer_gets_rows_of_any_container(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    frame = pd.DataFrame({"text": sentiment.texts})
    table = pa.Table.from_pandas(frame)
    parquet.write_table(table, tmp_path / "rows.parquet", row_group_size=9)
    file, labels = parquet.ParquetFile(tmp_path / "rows.parquet"), pd.Series(sentiment.labels)
    given = [
        (frame, labels), (table, labels), (table.to_batches()[0], labels), (file, labels),
        (dataset.dataset(tmp_path / "rows.parquet"), labels), (pl.from_pandas(frame), labels),
        (frame, pd.Index(labels)), (frame, labels.astype("string").array),
        (frame, np.array(sentiment.labels, np.dtypes.StringDType())),
        (table, pa.chunked_array([sentiment.labels])), (frame, pl.Series(sentiment.labels)),
    ]  # fmt: skip
    how = {"epochs": 1, "validation_fraction": 0.25, "text_columns": "text"}
    fits = (classifier(tiny_model, scoring="accuracy", **how).fit(X, y) for X, y in given)
    scores = [each.history_[0] for each in fits]
    assert {each["validation_score"] for each in scores} == {scores[0]["validation_score"]}
    Y = np.array([(labels == "good"), ["film" in text for text in sentiment.texts]], int).T
    model = classifier(tiny_model, scoring="f1_macro", **how)
    fits = (clone(model).fit(frame, y) for y in (Y, csr_array(Y), torch.tensor(Y)))
    scores = [each.history_[0] for each in fits]
    assert {each["validation_score"] for each in scores} == {scores[0]["validation_score"]}


def test_a_scorer_changes_nothing_but_the_choice(tiny_model: Path, sentiment: Sentiment) -> None:
    def touching(estimator: Any, X: Any, y: Any) -> float:
        estimator.model_.eval()
        estimator.predict(["good " * 300, *X])
        return float(estimator.score(X, y) * 0)

    X, y = sentiment
    beside = {"X_val": X[30:], "y_val": y[30:]}
    recipe = {"head_init": "random", "schedule": "constant"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fitted = classifier(tiny_model, scoring=touching, **recipe).fit(X[:30], y[:30], **beside)
    plain = classifier(tiny_model, **recipe).fit(X[:30], y[:30], **beside)
    for record, other in zip(passes(fitted), passes(plain), strict=True):
        assert record | {"validation_score": 0} == other | {"validation_score": 0}


@pytest.mark.parametrize(
    ("name", "form", "scoring"),
    [
        ("BertTokenTagger", "words", "entity_f1"),
        ("BertSpanExtractor", "answers", "squad_f1"),
        ("BertChoiceRanker", "lists of options", "mean_reciprocal_rank"),
        ("BertRegressor", "numbers", "neg_mean_absolute_error"),
        ("BertClassifier", "labels", "f1_micro"),
    ],
)
def test_scores_by_name_for_every_job(
    name: str, form: str, scoring: str, tiny_model: Path, parts: Parts
) -> None:
    job, rows = FORMS[name, form]
    fitted = job.make(tiny_model, validation_fraction=0.3, scoring=scoring).fit(rows.X, rows.y)
    X, y = (parts.of(values)[1] for values in rows[:2])
    try:
        scorer = get_scorer(scoring)
    except InputError:
        scorer = sklearn.metrics.get_scorer(scoring)
    assert fitted.history_[-1]["validation_score"] == pytest.approx(scorer(fitted, X, y))


def test_a_function_scores_a_pretrainer(tiny_model: Path) -> None:
    texts = ["good book", "bad film", "nice room", "poor food"] * 3

    def perplexity(estimator: Any, X: Any, y: Any) -> float:
        assert y is None
        return -float(estimator.perplexity(X))

    pretrainer = BertPretrainer(
        tiny_model, epochs=2, scoring=perplexity, device="cpu", random_state=0
    ).fit(texts, X_val=texts[:4])
    assert all(record["validation_score"] < -1 for record in pretrainer.history_)
    with pytest.raises(ValueError, match="'scoring' parameter"):
        pretrainer.set_params(scoring="accuracy").fit(texts, X_val=texts[:4])


def test_scoring_survives_saving_and_cloning(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    fitted = classifier(tiny_model, epochs=1, scoring="accuracy", validation_fraction=0.25)
    fitted.fit(*sentiment).save(tmp_path / "saved")
    assert BertClassifier.load(tmp_path / "saved").scoring == "accuracy"
    scorer = sklearn.metrics.make_scorer(sklearn.metrics.accuracy_score)
    own = clone(fitted).set_params(scoring=scorer).fit(*sentiment)
    assert passes(own) == passes(fitted)
    for save in (own.__getstate__, lambda: own.save(tmp_path / "own")):
        with pytest.raises(SaveError, match=r"scoring is make_scorer.*scoring='loss'"):
            save()
    own.set_params(scoring="loss").save(tmp_path / "own")
    assert BertClassifier.load(tmp_path / "own").predict(["good"]) == own.predict(["good"])


# --- what is refused -----------------------------------------------------------------------------

BESIDE = {"X_val": ["good book", "bad film"], "y_val": ["good", "bad"]}


@pytest.mark.parametrize(
    ("params", "given", "words"),
    [
        ({"patience": 1}, {}, "patience=1 needs a validation set"),
        ({"calibrate": True}, {}, "calibrate=True needs a validation set"),
        ({"tune_thresholds": True}, {}, "tune_thresholds=True needs a validation set"),
        ({"scoring": "f1_macro"}, {}, "scoring='f1_macro' needs a validation set"),
        ({"scoring": Sequence(1.0)}, {}, "^scoring needs a validation set"),
        ({"scoring": "f1-macro"}, BESIDE, "Did you mean 'f1_macro'"),
        ({"scoring": "squad"}, BESIDE, "'squad_"),
        ({"scoring": None}, BESIDE, "'scoring' parameter"),
        ({"scoring": ["f1_macro"]}, BESIDE, "'scoring' parameter"),
        ({"scoring": sklearn.metrics.f1_score}, BESIDE, r"f1_score is a metric.*make_scorer"),
        ({"scoring": squad_f1}, BESIDE, r"squad_f1 is a metric.*make_scorer"),
        ({"scoring": Sequence("good", "good")}, BESIDE, "returned 'good', of type str"),
        ({"scoring": Sequence({"f1": 1.0}, {})}, BESIDE, "of type dict"),
        ({"scoring": Sequence(None, None)}, BESIDE, "of type NoneType"),
        ({"scoring": Sequence(np.ones(2), 1)}, BESIDE, "of type ndarray"),
    ],
)  # fmt: skip
def test_refused(
    params: dict[str, Any], given: dict[str, Any], words: str, tiny_model: Path,
    sentiment: Sentiment,
) -> None:  # fmt: skip
    estimator = classifier(tiny_model, **params)
    with pytest.raises((InputError, InputTypeError, ValueError), match=words) as caught:
        estimator.fit(*sentiment, **given)
    assert " object at 0x" not in str(caught.value)
    assert str(caught.value).strip().endswith((".", "?"))
    assert not hasattr(estimator, "classes_")


def test_a_score_that_does_not_take_y_says_so(tiny_model: Path, sentiment: Sentiment) -> None:
    shares = np.tile([[0.7, 0.3], [0.2, 0.8]], (len(sentiment.texts) // 2, 1))
    estimator = classifier(tiny_model, validation_fraction=0.25, scoring="accuracy")
    with pytest.raises(InputError, match=r"^scoring cannot score .*continuous.*scoring='loss'\.$"):
        estimator.fit(sentiment.texts, shares, classes=["bad", "good"])


def test_tags_that_only_y_val_holds_are_named(tiny_model: Path) -> None:
    tagger = BertTokenTagger(tiny_model, epochs=1, device="cpu")
    X, y = [["good", "book"]] * 4, [["B-A", "O"]] * 4
    with pytest.raises(InputError, match=r"y_val.*row 1: \['B-C', 'I-C'\]"):
        tagger.fit(X, y, X_val=X[:2], y_val=[["B-A", "O"], ["B-C", "I-C"]])
    texts, spans = ["good book"] * 4, [[(0, 4, "A")]] * 4
    with pytest.raises(InputError, match=r"y_val.*row 1: \['B-C', 'I-C'\]"):
        tagger.fit(texts, spans, X_val=texts[:2], y_val=[[(0, 4, "A")], [(5, 9, "C")]])
    with pytest.raises(InputError, match="y_val is not"):
        tagger.fit(texts, spans, X_val=texts[:2])


def test_numbers_of_other_columns_are_refused(tiny_model: Path) -> None:
    texts = ["good book", "bad film", "nice room", "poor food"]
    regressor = BertRegressor(tiny_model, epochs=1, device="cpu")
    with pytest.raises(InputError, match=r"y is y_val.*2 columns"):
        regressor.fit(texts, [1.0, 2, 3, 4], X_val=texts[:2], y_val=[[1.0, 2.0], [3.0, 4.0]])
    regressor.fit(texts, [1.0, 2, 3, 4], X_val=texts[:2], y_val=[1.0, 20.0])
    assert regressor.mean_ == 2.5


# --- the history ---------------------------------------------------------------------------------


def test_the_history_is_a_frame(tiny_model: Path, sentiment: Sentiment, tmp_path: Path) -> None:
    fitted = classifier(tiny_model, validation_fraction=0.25).fit(*sentiment)
    frame = fitted.history_frame()
    assert frame.index.name == "epoch"
    assert frame.reset_index().to_dict("records") == fitted.history_
    fitted.save_pretrained(tmp_path / "checkpoint")
    opened = BertClassifier.from_pretrained(tmp_path / "checkpoint")
    with pytest.raises(InputError, match="opened from a checkpoint"):
        opened.history_frame()
    with pytest.raises(sklearn.exceptions.NotFittedError):
        clone(fitted).history_frame()


@pytest.mark.parametrize("scoring", ["loss", "accuracy"])
def test_callbacks_see_each_pass_and_each_step_if_they_ask(
    scoring: str, tiny_model: Path, sentiment: Sentiment
) -> None:
    pytest.importorskip("sklearn.callback", reason="callbacks came with scikit-learn 1.9")

    class Logging:
        def __init__(self) -> None:
            self.passes: list[list[dict[str, float]]] = []
            self.steps: list[tuple[int, int, float]] = []

        def setup(self, estimator: Any, context: Any) -> None: ...

        def teardown(self, estimator: Any, context: Any) -> None: ...

        def on_fit_task_begin(self, estimator: Any, context: Any) -> None: ...

        def on_fit_task_end(
            self, estimator: Any, context: Any, *, fitted_estimator: Any = None
        ) -> None:
            self.passes.append(fitted_estimator.history_)

        def on_step(self, estimator: Any, context: Any, *, step: int, loss: float) -> None:
            self.steps.append((context.task_id, step, loss))

    logging = Logging()
    fitted = classifier(tiny_model, batch_size=10, validation_fraction=0.25, scoring=scoring)
    fitted.set_callbacks(logging).fit(*sentiment)
    so_far = itertools.accumulate([[each] for each in fitted.history_])
    assert logging.passes == [*so_far, fitted.history_]
    assert [each[:2] for each in logging.steps] == [(step // 3, step + 1) for step in range(9)]
    losses = np.reshape([loss for *_, loss in logging.steps], (3, 3)).mean(axis=1)
    np.testing.assert_allclose(losses, [each["loss"] for each in fitted.history_], rtol=1e-5)
    plain = clone(fitted).set_callbacks().fit(*sentiment)
    assert passes(plain) == passes(fitted)
