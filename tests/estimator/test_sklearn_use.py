"""The estimators in the hands of scikit-learn: searches, pipelines, ensembles, workers, copies.

Everything here is the shipped classes on texts. A tool of scikit-learn is right when it gives
what the estimator gives when it is fitted by hand on the same rows.
"""

from __future__ import annotations

import copy
import gc
import pickle
import warnings
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import loguniform
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.exceptions import FitFailedWarning
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import permutation_importance
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score, get_scorer, roc_auc_score
from sklearn.model_selection import (
    GridSearchCV,
    HalvingGridSearchCV,
    KFold,
    RandomizedSearchCV,
    StratifiedKFold,
    TunedThresholdClassifierCV,
    cross_val_predict,
    cross_val_score,
    cross_validate,
    learning_curve,
    validation_curve,
)
from sklearn.multiclass import OneVsOneClassifier, OneVsRestClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.semi_supervised import SelfTrainingClassifier

from skbert import BertClassifier, BertRegressor
from skbert._core.models.network import Network

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Sentiment

pytestmark = pytest.mark.long  # many fits each

HALVES = StratifiedKFold(2, shuffle=True, random_state=0)


SETTINGS: dict[str, Any] = {
    "epochs": 2, "learning_rate": 1e-4, "pooling": "mean", "device": "cpu", "random_state": 0,
}  # fmt: skip


@pytest.fixture
def classifier(tiny_model: Path) -> BertClassifier:
    return BertClassifier(str(tiny_model), **SETTINGS)


@pytest.fixture
def regressor(tiny_model: Path) -> BertRegressor:
    return BertRegressor(str(tiny_model), head_init="probe", **SETTINGS)


@pytest.fixture
def texts(sentiment: Sentiment) -> list[str]:
    return sentiment.texts


@pytest.fixture
def labels(sentiment: Sentiment) -> np.ndarray:
    return np.array(sentiment.labels)


@pytest.fixture
def stars(labels: np.ndarray) -> np.ndarray:
    """Numbers that go with the texts: about 5 for the good ones, about 1 for the bad."""
    return np.where(labels == "good", 5.0, 1.0) + np.linspace(-0.2, 0.2, len(labels))


@pytest.fixture
def pairs(texts: list[str], labels: np.ndarray) -> pd.DataFrame:
    """Texts in the first column, and a second one that has nothing to do with the labels."""
    other = ["the room", "a book", "my order", "this film", "some staff"] * 8
    return pd.DataFrame({"q": texts, "c": other, "price": np.arange(40.0)})


def take(rows: list[str], chosen: np.ndarray) -> list[str]:
    return [rows[row] for row in chosen]


def by_hand(
    estimator: Any, texts: list[str], y: np.ndarray, cv: Any, method: str = "predict"
) -> np.ndarray:
    """What cross_val_predict should give."""
    parts = {}
    for learn, held in cv.split(texts, y):
        fitted = clone(estimator).fit(take(texts, learn), y[learn])
        parts |= dict(zip(held.tolist(), getattr(fitted, method)(take(texts, held)), strict=True))
    return np.array([parts[row] for row in range(len(texts))])


# --- pipelines -----------------------------------------------------------------------------------


def lowered(texts: list[str]) -> list[str]:
    return [text.lower() for text in texts]


def test_pipeline(classifier: BertClassifier, texts: list[str], labels: np.ndarray) -> None:
    shouted = [text.upper() for text in texts]
    pipeline = make_pipeline(FunctionTransformer(lowered), classifier)
    pipeline.set_params(bertclassifier__epochs=1).fit(shouted, labels)
    alone = clone(classifier).set_params(epochs=1).fit(texts, labels)
    for method in ("predict", "predict_proba", "decision_function"):
        np.testing.assert_array_equal(
            getattr(pipeline, method)(shouted), getattr(alone, method)(texts)
        )
    assert pipeline.score(shouted, labels) == alone.score(texts, labels)
    np.testing.assert_array_equal(pipeline.classes_, ["bad", "good"])


@pytest.mark.parametrize("output", ["default", "pandas", "polars"])
@pytest.mark.parametrize("chosen", [["q"], ["q", "c"]])
def test_column_transformer_before_the_estimator(
    classifier: BertClassifier,
    pairs: pd.DataFrame,
    labels: np.ndarray,
    chosen: list[str],
    output: str,
) -> None:
    choose = ColumnTransformer(
        [("texts", "passthrough", chosen)], verbose_feature_names_out=False
    ).set_output(transform=output)
    pipeline = make_pipeline(choose, classifier).fit(pairs, labels)
    rows = pairs["q"].tolist() if len(chosen) == 1 else list(zip(pairs.q, pairs.c, strict=True))
    alone = clone(classifier).fit(rows, labels)
    np.testing.assert_array_equal(pipeline.predict_proba(pairs), alone.predict_proba(rows))
    assert pipeline[-1].n_features_in_ == len(chosen)
    if output != "default":
        assert pipeline[-1].feature_names_in_.tolist() == chosen


@pytest.mark.parametrize("chosen", ["q", ["q"], ["q", "c"]], ids=str)
def test_columns_chosen_by_hand_or_by_name(
    classifier: BertClassifier,
    pairs: pd.DataFrame,
    labels: np.ndarray,
    chosen: str | list[str],
) -> None:
    def select(frame: pd.DataFrame) -> Any:
        return frame[chosen]

    before = make_pipeline(FunctionTransformer(select), classifier).fit(pairs, labels)
    inside = clone(classifier).set_params(text_columns=chosen).fit(pairs, labels)
    np.testing.assert_array_equal(before.predict_proba(pairs), inside.predict_proba(pairs))


def test_probabilities_beside_other_columns(
    classifier: BertClassifier, pairs: pd.DataFrame, labels: np.ndarray
) -> None:
    def probability(frame: pd.DataFrame) -> np.ndarray:
        return frozen.predict_proba(frame)[:, 1:]

    frozen = FrozenEstimator(clone(classifier).fit(pairs[["q"]], labels))
    columns = ColumnTransformer(
        [("text", FunctionTransformer(probability), ["q"]), ("price", "passthrough", ["price"])]
    )
    both = columns.fit_transform(pairs)
    np.testing.assert_allclose(both[:, 0], frozen.predict_proba(pairs[["q"]])[:, 1])
    np.testing.assert_array_equal(both[:, 1], pairs["price"])
    model = make_pipeline(columns, LogisticRegression()).fit(pairs, labels)
    assert model.score(pairs, labels) == 1.0


# --- searches ------------------------------------------------------------------------------------


def test_grid_search(classifier: BertClassifier, texts: list[str], labels: np.ndarray) -> None:
    grid = {"head_init": ["random", "probe"], "epochs": [1, 2]}
    search = GridSearchCV(classifier, grid, cv=HALVES).fit(texts, labels)
    for params, score in zip(
        search.cv_results_["params"], search.cv_results_["mean_test_score"], strict=True
    ):
        candidate = clone(classifier).set_params(**params)
        assert score == accuracy_score(labels, by_hand(candidate, texts, labels, HALVES))
    assert search.best_params_["head_init"] == "probe"  # a good head where little is learned
    assert search.best_score_ == search.cv_results_["mean_test_score"].max() > 0.9
    again = clone(classifier).set_params(**search.best_params_).fit(texts, labels)
    np.testing.assert_array_equal(search.predict_proba(texts), again.predict_proba(texts))


def test_grid_search_over_a_pipeline_and_other_scores(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    search = GridSearchCV(
        make_pipeline(FunctionTransformer(lowered), classifier),
        {"bertclassifier__freeze": [0, "all"]},
        cv=HALVES,
        scoring=["roc_auc", "neg_log_loss"],
        refit="neg_log_loss",
    ).fit(texts, labels)
    assert (search.cv_results_["mean_test_roc_auc"] > 0.9).all()
    assert search.best_score_ == search.cv_results_["mean_test_neg_log_loss"].max()


def test_randomized_search(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    search = partial(
        RandomizedSearchCV,
        classifier,
        {"learning_rate": loguniform(1e-5, 1e-3), "epochs": [1, 2]},
        n_iter=3,
        cv=HALVES,
        random_state=0,
    )
    first, second = search().fit(texts, labels), search().fit(texts, labels)
    assert len(first.cv_results_["params"]) == 3
    assert first.cv_results_["params"] == second.cv_results_["params"]
    np.testing.assert_array_equal(
        first.cv_results_["mean_test_score"], second.cv_results_["mean_test_score"]
    )
    np.testing.assert_array_equal(first.predict_proba(texts), second.predict_proba(texts))


def test_halving_search_with_passes_as_the_resource(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    search = HalvingGridSearchCV(
        classifier,
        {"head_init": ["random", "probe"], "pooling": ["cls", "mean"]},
        resource="epochs",
        max_resources=4,
        min_resources=1,
        factor=2,
        cv=HALVES,
        random_state=0,
    ).fit(texts, labels)
    assert search.n_resources_ == [1, 2, 4]
    assert search.n_candidates_ == [4, 2, 1]
    assert search.best_params_ == {"head_init": "probe", "pooling": "mean", "epochs": 4}
    assert search.score(texts, labels) == 1.0


def test_a_candidate_that_fails_is_nan_and_the_others_are_fine(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    grid = {"learning_rate": [1e-4, -1.0], "max_length": [None, 100_000]}
    search = GridSearchCV(classifier, grid, cv=HALVES, error_score=np.nan)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        search.fit(texts, labels)
    failed = [warning for warning in caught if warning.category is FitFailedWarning]
    assert len(failed) == 1
    assert "6 fits failed out of a total of 8" in str(failed[0].message)
    assert "max_length=100000" in str(failed[0].message)
    assert "'learning_rate' parameter of BertClassifier" in str(failed[0].message)
    scores = search.cv_results_["mean_test_score"]
    assert np.isnan(scores).sum() == 3
    assert search.best_params_ == {"learning_rate": 1e-4, "max_length": None}
    assert search.score(texts, labels) == 1.0


def test_curves(classifier: BertClassifier, texts: list[str], labels: np.ndarray) -> None:
    sizes, learned, held = learning_curve(
        classifier, texts, labels, train_sizes=[8, 20], cv=HALVES
    )
    assert sizes.tolist() == [8, 20]
    assert held[1].mean() >= 0.9
    assert learned.shape == held.shape == (2, 2)
    _, held = validation_curve(
        classifier,
        texts,
        labels,
        param_name="head_init",
        param_range=["random", "probe"],
        cv=HALVES,
    )
    assert held[1].mean() > 0.9 > held[0].mean()


# --- cross-validation ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["predict", "predict_proba", "decision_function"])
def test_cross_val_predict(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray, method: str
) -> None:
    got = cross_val_predict(classifier, texts, labels, cv=HALVES, method=method)
    np.testing.assert_array_equal(got, by_hand(classifier, texts, labels, HALVES, method))
    if method == "predict_proba":
        np.testing.assert_allclose(got.sum(axis=1), 1, rtol=1e-6)
        assert (np.array(["bad", "good"])[got.argmax(axis=1)] == labels).mean() > 0.9


def test_cross_validate_gives_fitted_estimators(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    result = cross_validate(
        classifier, texts, labels, cv=HALVES, return_estimator=True, return_indices=True
    )
    for fitted, held, score in zip(
        result["estimator"], result["indices"]["test"], result["test_score"], strict=True
    ):
        assert fitted.score(take(texts, held), labels[held]) == score


def test_multi_label_cross_validation(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    present = np.stack([labels == "good", labels == "bad"], axis=1).astype(int)
    halves = KFold(2, shuffle=True, random_state=0)
    expected = by_hand(classifier, texts, present, halves, "predict_proba")
    got = cross_val_predict(classifier, texts, present, cv=halves, method="predict_proba")
    np.testing.assert_array_equal(got, expected)
    predicted = (expected >= 0.5).astype(int)
    scores = cross_validate(
        classifier, texts, present, cv=halves, scoring=["f1_micro", "accuracy"]
    )
    for fold, (_, held) in enumerate(halves.split(texts)):
        truth, guess = present[held], predicted[held]
        assert scores["test_f1_micro"][fold] == f1_score(truth, guess, average="micro")
        assert scores["test_accuracy"][fold] == accuracy_score(truth, guess)
        assert roc_auc_score(truth, expected[held]) > 0.7


def test_several_numbers_in_cross_val_predict(
    regressor: BertRegressor, texts: list[str], stars: np.ndarray
) -> None:
    targets = np.stack([stars, 100 - 10 * stars], axis=1)
    halves = KFold(2, shuffle=True, random_state=0)
    got = cross_val_predict(regressor, texts, targets, cv=halves)
    assert got.shape == (40, 2)
    np.testing.assert_array_equal(got, by_hand(regressor, texts, targets, halves))
    assert cross_val_score(regressor, texts, targets, cv=halves).min() > 0.3


def test_regressors_that_wrap_the_regressor(
    regressor: BertRegressor, texts: list[str], stars: np.ndarray
) -> None:
    in_logs = TransformedTargetRegressor(regressor, func=np.log, inverse_func=np.exp)
    alone = clone(regressor).fit(texts, np.log(stars)).predict(texts)
    np.testing.assert_allclose(in_logs.fit(texts, stars).predict(texts), np.exp(alone), rtol=1e-5)
    each = MultiOutputRegressor(regressor).fit(texts, np.stack([stars, -stars], axis=1))
    np.testing.assert_array_equal(
        each.predict(texts)[:, 0], clone(regressor).fit(texts, stars).predict(texts)
    )


# --- calibration, thresholds, ensembles, inspection ----------------------------------------------


@pytest.mark.parametrize("ensemble", [True, False])
def test_calibration(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray, ensemble: bool
) -> None:
    calibrated = CalibratedClassifierCV(classifier, cv=HALVES, ensemble=ensemble)
    probabilities = calibrated.fit(texts, labels).predict_proba(texts)
    assert probabilities.shape == (40, 2)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-6)
    assert len(calibrated.calibrated_classifiers_) == (2 if ensemble else 1)
    assert calibrated.score(texts, labels) == 1.0


def test_frozen(classifier: BertClassifier, texts: list[str], labels: np.ndarray) -> None:
    frozen = FrozenEstimator(clone(classifier).fit(texts, labels))
    before = frozen.predict_proba(texts)
    frozen.fit(texts[:4], ["bad", "good", "bad", "good"])
    np.testing.assert_array_equal(frozen.predict_proba(texts), before)
    np.testing.assert_array_equal(clone(frozen).predict_proba(texts), before)
    calibrated = CalibratedClassifierCV(frozen).fit(texts, labels)
    order = np.argsort(before[:, 1], kind="stable")
    assert (np.diff(calibrated.predict_proba(texts)[order, 1]) >= 0).all()


def test_tuned_threshold(classifier: BertClassifier, texts: list[str], labels: np.ndarray) -> None:
    gain = get_scorer("balanced_accuracy")
    tuned = TunedThresholdClassifierCV(classifier, scoring=gain, cv=HALVES).fit(texts, labels)
    assert tuned.best_score_ > 0.9
    above = tuned.predict_proba(texts)[:, 1] >= tuned.best_threshold_
    np.testing.assert_array_equal(tuned.predict(texts), np.where(above, "good", "bad"))


def test_stacking_and_voting(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    words = make_pipeline(TfidfVectorizer(), LogisticRegression())
    members = [("bert", classifier), ("words", words)]
    stacked = StackingClassifier(members, cv=HALVES).fit(texts, labels)
    beneath = stacked.transform(texts)
    assert beneath.shape == (40, 2)
    alone = clone(classifier).fit(texts, labels).predict_proba(texts)
    np.testing.assert_array_equal(beneath[:, 0], alone[:, 1])
    assert stacked.score(texts, labels) == 1.0
    voting = VotingClassifier(members, voting="soft").fit(texts, labels)
    mean = (alone + clone(words).fit(texts, labels).predict_proba(texts)) / 2
    np.testing.assert_allclose(voting.predict_proba(texts), mean, rtol=1e-6)


def test_one_classifier_for_each_class_or_column(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    kinds = np.where(np.arange(40) % 4, labels, "odd")
    each = OneVsRestClassifier(classifier).fit(texts, kinds)
    assert each.predict_proba(texts).shape == (40, 3)
    alone = clone(classifier).fit(texts, (kinds == "odd").astype(int))
    got = each.estimators_[list(each.classes_).index("odd")]
    np.testing.assert_array_equal(got.predict_proba(texts), alone.predict_proba(texts))
    columns = np.stack([labels, kinds], axis=1)
    several = MultiOutputClassifier(classifier).fit(texts, columns)
    first = clone(classifier).fit(texts, labels)
    np.testing.assert_array_equal(several.predict(texts)[:, 0], first.predict(texts))
    several.partial_fit(texts, columns)
    assert several.predict(texts).shape == (40, 2)


def test_what_turns_texts_into_numbers_takes_numbers_of_rows(
    classifier: BertClassifier, regressor: BertRegressor, texts: list[str], labels: np.ndarray
) -> None:
    codes = np.where(np.arange(40) % 4, (labels == "good").astype(int), -1)
    columns = np.stack([codes == 1, np.arange(40) % 2], axis=1).astype(int)
    for refusing, y in (
        (SelfTrainingClassifier(classifier), codes),
        (OneVsOneClassifier(classifier), labels),
        (ClassifierChain(classifier), columns),
        (RegressorChain(regressor), columns),
    ):
        with pytest.raises(ValueError, match="could not convert string to float: "):
            refusing.fit(np.array(texts, object)[:, None], y)
    lookup = FunctionTransformer(lambda rows: np.array(texts)[rows.ravel()])
    rows = np.arange(40)[:, None]
    trained = SelfTrainingClassifier(make_pipeline(lookup, classifier), threshold=0.5)
    trained.fit(rows, codes)
    labelled = np.flatnonzero(trained.transduction_ != -1)
    assert len(labelled) > (codes != -1).sum()
    alone = clone(classifier).fit(take(texts, labelled), trained.transduction_[labelled])
    np.testing.assert_array_equal(
        trained.estimator_[-1].predict_proba(texts), alone.predict_proba(texts)
    )
    pairwise = OneVsOneClassifier(make_pipeline(lookup, classifier)).fit(rows, labels)
    both = clone(classifier).fit(texts, (labels == "good").astype(int))
    np.testing.assert_array_equal(pairwise.predict(rows) == "good", both.predict(texts) == 1)


def test_bagging(classifier: BertClassifier, texts: list[str], labels: np.ndarray) -> None:
    column = np.array(texts, dtype=object)[:, None]
    bagged = BaggingClassifier(classifier, n_estimators=3, random_state=0).fit(column, labels)
    members = [member.predict_proba(column) for member in bagged.estimators_]
    assert (members[0] != members[1]).any()  # other rows, and another random_state
    boosted = AdaBoostClassifier(classifier, n_estimators=2, random_state=0).fit(column, labels)
    assert boosted.score(column, labels) == 1.0
    np.testing.assert_allclose(bagged.predict_proba(column), np.mean(members, axis=0), rtol=1e-6)
    assert bagged.score(column, labels) > 0.9


def test_permutation_importance_of_two_columns(
    classifier: BertClassifier, pairs: pd.DataFrame, labels: np.ndarray
) -> None:
    frame = pairs[["q", "c"]]
    fitted = classifier.fit(frame, labels)
    result = permutation_importance(fitted, frame, labels, n_repeats=3, random_state=0)
    text, other = result.importances_mean
    assert text > 0.2
    assert abs(other) < 0.1


# --- metadata routing ----------------------------------------------------------------------------


@pytest.fixture
def mislabelled(labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a part is wrong, and weights of zero for just those."""
    wrong = np.arange(len(labels)) % 5 == 0
    flipped = np.where(labels == "good", "bad", "good")
    return np.where(wrong, flipped, labels), (~wrong).astype(float)


def test_weights_reach_fit_and_score_in_cross_validation(
    classifier: BertClassifier, texts: list[str], mislabelled: tuple[np.ndarray, np.ndarray]
) -> None:
    y, weight = mislabelled
    with config_context(enable_metadata_routing=True):
        asks = clone(classifier).set_fit_request(sample_weight=True)
        asks.set_score_request(sample_weight=True)
        result = cross_validate(
            asks, texts, y, cv=HALVES, params={"sample_weight": weight}, return_estimator=True
        )
    folds = zip(HALVES.split(texts, y), result["estimator"], result["test_score"], strict=True)
    for (learn, held), fitted, score in folds:
        alone = clone(classifier).fit(take(texts, learn), y[learn], weight[learn])
        np.testing.assert_array_equal(fitted.predict_proba(texts), alone.predict_proba(texts))
        assert score == alone.score(take(texts, held), y[held], sample_weight=weight[held])


def test_weights_reach_fit_in_a_search_over_a_pipeline(
    classifier: BertClassifier, texts: list[str], mislabelled: tuple[np.ndarray, np.ndarray]
) -> None:
    y, weight = mislabelled
    with config_context(enable_metadata_routing=True):
        asks = clone(classifier).set_fit_request(sample_weight=True)
        asks.set_score_request(sample_weight=True)
        pipeline = make_pipeline(FunctionTransformer(lowered), asks)
        search = GridSearchCV(pipeline, {"bertclassifier__epochs": [1, 2]}, cv=HALVES)
        search.fit(texts, y, sample_weight=weight)
        piped = clone(pipeline).fit(texts, y, sample_weight=weight)
    for fitted, epochs in ((piped, 2), (search, search.best_params_["bertclassifier__epochs"])):
        alone = clone(classifier).set_params(epochs=epochs).fit(texts, y, sample_weight=weight)
        np.testing.assert_array_equal(fitted.predict_proba(texts), alone.predict_proba(texts))
    without = clone(classifier).fit(texts, y)
    assert (without.predict_proba(texts) != piped.predict_proba(texts)).any()


def test_weights_that_nobody_asked_for_are_refused(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    with config_context(enable_metadata_routing=True), pytest.raises(ValueError, match="request"):
        cross_validate(classifier, texts, labels, params={"sample_weight": np.ones(40)})


# --- workers -------------------------------------------------------------------------------------


def test_worker_processes_give_the_same_scores(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    search = GridSearchCV(classifier, {"epochs": [1, 2]}, cv=HALVES, scoring="neg_log_loss")
    alone = clone(search).fit(texts, labels)
    with joblib.parallel_config(backend="loky", n_jobs=2, inner_max_num_threads=1):
        together = clone(search).fit(texts, labels)
    for name in ("split0_test_score", "split1_test_score", "params"):
        assert list(alone.cv_results_[name]) == list(together.cv_results_[name])
    np.testing.assert_array_equal(alone.predict_proba(texts), together.predict_proba(texts))


def test_threads_give_the_same_scores(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    scores = partial(
        cross_val_score, classifier, texts, labels, cv=StratifiedKFold(4), scoring="neg_log_loss"
    )
    alone = scores(n_jobs=1)
    with joblib.parallel_config(backend="threading", n_jobs=4):
        together = scores()
    np.testing.assert_array_equal(alone, together)


def test_workers_share_the_cores(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    def threads(*_: object) -> int:
        return torch.get_num_threads()

    before = threads()
    found = cross_val_score(classifier, texts, labels, cv=HALVES, scoring=threads, n_jobs=2)
    assert (2 * found <= max(2, joblib.cpu_count())).all()
    assert threads() == before


def test_the_memory_of_a_fold_is_free_before_the_next(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    def networks(*_: object) -> int:
        return sum(type(thing) is Network for thing in gc.get_objects())

    gc.collect()
    before = networks()
    gc.disable()  # nothing is to wait for it
    try:
        found = cross_val_score(classifier, texts, labels, cv=StratifiedKFold(4), scoring=networks)
        after = networks()
    finally:
        gc.enable()
    np.testing.assert_array_equal(found, before + 1)
    assert after == before


# --- containers ----------------------------------------------------------------------------------


def containers() -> dict[str, Callable[[list[str]], Any]]:
    polars = pytest.importorskip("polars")
    pyarrow = pytest.importorskip("pyarrow")
    return {
        "tuple": tuple,
        "str array": np.array,
        "object array": lambda texts: np.array(texts, dtype=object),
        "column": lambda texts: np.array(texts, dtype=object)[:, None],
        "Series": lambda texts: pd.Series(texts, index=np.arange(len(texts))[::-1]),
        "categories": lambda texts: pd.Series(texts, dtype="category"),
        "frame": lambda texts: pd.DataFrame({"text": texts}),
        "polars Series": polars.Series,
        "polars frame": lambda texts: polars.DataFrame({"text": texts}),
        "pyarrow array": pyarrow.array,
    }


def test_containers_give_equal_predictions(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    expected = clone(classifier).fit(texts, labels).predict_proba(texts)
    for name, make in containers().items():
        got = clone(classifier).fit(make(texts), labels).predict_proba(make(texts))
        np.testing.assert_array_equal(got, expected, err_msg=name)


def test_containers_of_pairs_give_equal_predictions(
    classifier: BertClassifier, pairs: pd.DataFrame, labels: np.ndarray
) -> None:
    polars = pytest.importorskip("polars")
    frame = pairs[["q", "c"]]
    rows = list(frame.itertuples(index=False, name=None))
    expected = clone(classifier).fit(rows, labels).predict_proba(rows)
    ways = {
        "frame": frame,
        "array": frame.to_numpy(),
        "lists": [list(row) for row in rows],
        "polars": polars.from_pandas(frame),
    }
    for name, X in ways.items():
        got = clone(classifier).fit(X, labels).predict_proba(X)
        np.testing.assert_array_equal(got, expected, err_msg=name)


@pytest.mark.parametrize("make", [np.array, pd.Series, pd.DataFrame, "polars"], ids=str)
def test_splitters_cut_any_container(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray, make: Any
) -> None:
    if make == "polars":
        make = pytest.importorskip("polars").Series
    X = make({"text": texts}) if make is pd.DataFrame else make(texts)
    got = cross_val_predict(classifier, X, labels, cv=HALVES, method="predict_proba")
    expected = by_hand(classifier, texts, labels, HALVES, "predict_proba")
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "make",
    [list, pd.Series, partial(pd.Series, dtype="category"), partial(np.array, dtype=object)],
    ids=["list", "Series", "categories", "object array"],
)
def test_containers_of_labels_give_equal_predictions(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray, make: Any
) -> None:
    expected = clone(classifier).fit(texts, labels)
    got = clone(classifier).fit(texts, make(labels))
    np.testing.assert_array_equal(got.predict_proba(texts), expected.predict_proba(texts))
    assert got.predict(texts).tolist() == expected.predict(texts).tolist()
    assert got.score(texts, make(labels)) == expected.score(texts, labels)


# --- copies --------------------------------------------------------------------------------------


def test_clone_keeps_the_parameters_and_nothing_learned(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    classifier.set_params(class_weight={"good": 2.0}, freeze=1, max_length=32)
    fitted = classifier.fit(texts, labels)
    cloned = clone(fitted)
    assert cloned.get_params() == fitted.get_params()
    assert not [name for name in dir(cloned) if name.endswith("_") and hasattr(cloned, name)
                if not name.startswith("_")]  # fmt: skip
    np.testing.assert_array_equal(
        cloned.fit(texts, labels).predict_proba(texts), fitted.predict_proba(texts)
    )


@pytest.mark.parametrize("make", [BertClassifier, BertRegressor])
def test_parameters_are_set_and_given_back(make: type) -> None:
    estimator = make("some/model", epochs=7)
    assert estimator.get_params()["model"] == "some/model"
    names = list(estimator.get_params())
    assert estimator.set_params(epochs=9, freeze="all") is estimator
    assert (estimator.epochs, estimator.freeze) == (9, "all")
    assert list(make(**estimator.get_params()).get_params()) == names
    with pytest.raises(ValueError, match="Invalid parameter 'epoch'"):
        estimator.set_params(epoch=1)


def test_only_what_differs_is_printed(tiny_model: Path) -> None:
    assert repr(BertClassifier()) == "BertClassifier()"
    assert repr(BertClassifier("my-model", epochs=5)) == (
        "BertClassifier(epochs=5, model='my-model')"
    )
    drawn = make_pipeline(FunctionTransformer(), BertRegressor("<script>my-model"))._repr_html_()
    assert "BertRegressor" in drawn
    assert "<script>my-model" not in drawn


def through_joblib(estimator: Any, folder: Path) -> Any:
    joblib.dump(estimator, folder / "estimator.joblib")
    return joblib.load(folder / "estimator.joblib")


COPIES: dict[str, Callable[[Any, Any], Any]] = {
    "pickle": lambda estimator, folder: pickle.loads(pickle.dumps(estimator)),
    "joblib": through_joblib,
    "deepcopy": lambda estimator, folder: copy.deepcopy(estimator),
}


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_a_classifier_predict_the_same_bits(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray, way: str, tmp_path: Path
) -> None:
    fitted = classifier.fit(texts, labels)
    again = COPIES[way](fitted, tmp_path)
    np.testing.assert_array_equal(again.predict_proba(texts), fitted.predict_proba(texts))
    np.testing.assert_array_equal(again.predict(texts), fitted.predict(texts))
    assert again.get_params() == fitted.get_params()
    assert again.history_ == fitted.history_
    before = fitted.predict_proba(texts)
    again.set_params(warm_start=True).fit(texts, labels[::-1])
    np.testing.assert_array_equal(fitted.predict_proba(texts), before)


@pytest.mark.parametrize("way", COPIES)
def test_copies_of_a_regressor_predict_the_same_bits(
    regressor: BertRegressor, texts: list[str], stars: np.ndarray, way: str, tmp_path: Path
) -> None:
    fitted = regressor.fit(texts, stars)
    again = COPIES[way](fitted, tmp_path)
    np.testing.assert_array_equal(again.predict(texts), fitted.predict(texts))


def test_a_refit_gives_the_same_bits(
    classifier: BertClassifier, texts: list[str], labels: np.ndarray
) -> None:
    first = classifier.fit(texts, labels).predict_proba(texts)
    second = classifier.fit(texts, labels).predict_proba(texts)
    np.testing.assert_array_equal(first, second)
    other = classifier.set_params(random_state=1).fit(texts, labels).predict_proba(texts)
    assert (other != first).any()
