"""Sets, intervals, rejection and temperatures of fitted estimators, against their own outputs."""

from __future__ import annotations

import pickle
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn
from scipy.special import softmax
from sklearn.base import clone
from sklearn.metrics import log_loss
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from support.job import LABELS, NUMBERS, TEXTS, WORDS, Job
from support.jobs import FORMS, JOBS

import skbert
from skbert import BertClassifier
from skbert._core.models.output import scale_output
from skbert.exceptions import InputError
from skbert.metrics import squad_em

HOLD_OUT = {"validation_fraction": 0.5, "head_init": "random"}
OF_SETS = [name for name, job in JOBS.items() if hasattr(job.estimator, "predict_set")]
FORMS_OF_SETS = [key for key in FORMS if key[0] in OF_SETS]
REJECTING = [name for name in OF_SETS if hasattr(JOBS[name].estimator, "reject_threshold")]
CALIBRATED = [name for name in OF_SETS if hasattr(JOBS[name].estimator(), "calibrate")]
COVERAGE = 0.6  # that six rows held out can give


def held_out(job: Job, model: Path, **params: Any) -> Any:
    """A fitted estimator that held out half of the rows."""
    form = job.usual
    return job.make(model, **{**HOLD_OUT, **form.params, **params}).fit(form.X, form.y)


def slow_sets(estimator: Any, X: Any, coverage: float) -> list[Any]:
    """The sets by their definition, from probabilities and the scores that are kept."""
    level = level_of(estimator, coverage)
    name = type(estimator).__name__
    if name == "BertRegressor":
        predicted = estimator.predict(X).astype(float).reshape(len(X), -1)
        ends = np.stack([predicted - level, predicted + level], axis=-1)
        return list(ends[:, 0] if estimator.n_outputs_ == 1 else ends)
    if name == "BertSpanExtractor":
        return [
            [*dict.fromkeys(passing(chances, texts, level))]
            for texts, chances in answers_of(estimator, X)
        ]
    chances = estimator.predict_proba(X)
    if name == "BertTokenTagger":
        tags = estimator.classes_
        return [[passing(word, tags, level) for word in row] for row in chances]
    if name == "BertChoiceRanker":
        return [passing(row[: len(x[1])], range(len(x[1])), level)
                for row, x in zip(chances, X, strict=True)]  # fmt: skip
    return [passing(row, estimator.classes_, level) for row in chances]


def answers_of(estimator: Any, X: Any) -> list[tuple[list[str], np.ndarray]]:
    """The answers kept of each row, "no answer" last, and their probabilities."""
    scored = estimator._outputs(estimator._fitted, estimator._rows(X, None))
    return [
        ([*(context[begin:end] for begin, end in spans), ""], softmax([*scores, null]))
        for (_, context), (spans, scores, null) in zip(X, scored, strict=True)
    ]


def passing(chances: Any, labels: Any, level: float) -> list[Any]:
    order = np.argsort(-np.asarray(chances, float), kind="stable")
    return [np.asarray(labels)[at].item() if not isinstance(labels[at], str) else labels[at]
            for at in order if 1 - float(chances[at]) <= level]  # fmt: skip


def level_of(estimator: Any, coverage: float) -> Any:
    scores = estimator.conformity_scores_
    weights = getattr(estimator, "conformity_weights_", np.ones(len(scores)))
    n = round(weights.sum())
    return scores[np.flatnonzero(np.cumsum(weights) >= (n + 1) * coverage - 1e-9)[0]]


def plain(sets: Any) -> Any:
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in sets]


@pytest.mark.parametrize(("name", "form"), FORMS_OF_SETS)
def test_sets_are_those_of_the_definition(name: str, form: str, tiny_model: Path) -> None:
    job, rows = FORMS[name, form]
    estimator = job.make(tiny_model, **{**HOLD_OUT, **rows.params}).fit(rows.X, rows.y)
    for coverage in (0.3, COVERAGE, 0.85):
        sets = estimator.predict_set(rows.X, coverage)
        assert isinstance(sets, np.ndarray)
        assert len(sets) == len(rows.X)
        assert plain(sets) == plain(slow_sets(estimator, rows.X, coverage))


@pytest.mark.parametrize(("name", "form"), FORMS_OF_SETS)
def test_larger_coverage_gives_larger_sets(name: str, form: str, tiny_model: Path) -> None:
    job, rows = FORMS[name, form]
    estimator = job.make(tiny_model, **{**HOLD_OUT, **rows.params}).fit(rows.X, rows.y)
    few, many = (estimator.predict_set(rows.X, share) for share in (0.3, 0.85))
    if name == "BertRegressor":
        assert (few[..., 0] >= many[..., 0]).all()
        assert (few[..., 1] <= many[..., 1]).all()
        return
    if name == "BertTokenTagger":
        few, many = ([word for row in sets for word in row] for sets in (few, many))
    assert all({*a} <= {*b} for a, b in zip(few, many, strict=True))


def distances(estimator: Any, X: Any, y: Any) -> np.ndarray:
    """1 minus the probability of the truth of each row, or its absolute error."""
    match type(estimator).__name__:
        case "BertRegressor":
            return np.abs(estimator.predict(X) - np.array(y))[:, None]
        case "BertTokenTagger":
            tags = estimator.classes_.tolist()
            return np.concatenate([
                [1 - float(word[tags.index(tag)]) for word, tag in zip(row, true, strict=True)]
                for row, true in zip(estimator.predict_proba(X), y, strict=True)
            ])  # fmt: skip
        case "BertSpanExtractor":
            return np.array([
                min((1 - chance for text, chance in zip(*pair, strict=True)
                     if squad_em([true], [text])), default=2.0)
                for true, pair in zip(y, answers_of(estimator, X), strict=True)
            ])  # fmt: skip
        case "BertClassifier":
            places = [estimator.classes_.tolist().index(label) for label in y]
            return 1 - estimator.predict_proba(X)[np.arange(len(X)), places].astype(float)
        case _:
            return 1 - estimator.predict_proba(X)[np.arange(len(X)), y].astype(float)


@pytest.mark.parametrize("name", OF_SETS)
def test_conformalize_measures_the_rows_given(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    form = job.usual
    estimator = job.make(tiny_model, head_init="random").fit(form.X, form.y)
    weights = {n: w.clone() for n, w in estimator.model_.state_dict().items()}
    with pytest.raises(InputError, match=r"the last fit held out none.*conformalize\(X, y\)"):
        estimator.predict_set(form.X)
    assert estimator.conformalize(form.X, form.y) is estimator
    wanted = np.sort(distances(estimator, form.X, form.y), axis=0)
    np.testing.assert_allclose(estimator.conformity_scores_, wanted, atol=1e-6)
    assert all((estimator.model_.state_dict()[n] == w).all() for n, w in weights.items())
    assert len(estimator.predict_set(form.X, COVERAGE)) == len(form.X)


@pytest.mark.parametrize("name", OF_SETS)
def test_rows_held_out_are_measured_with_the_final_weights(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    form = job.usual
    every = held_out(job, tiny_model)
    scores = every.conformity_scores_
    everywhere = distances(every, form.X, form.y)
    n_wanted = 6 * (len(WORDS[0]) if name == "BertTokenTagger" else 1)
    assert len(scores) == n_wanted
    near = np.abs(np.sort(everywhere.ravel())[:, None] - scores.ravel()).min(axis=0)
    assert (near < 1e-5).all()


@pytest.mark.parametrize("name", OF_SETS)
def test_scores_that_belong_to_other_weights_are_dropped(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    form = job.usual
    first = held_out(job, tiny_model, warm_start=True)
    first.set_params(validation_fraction=None).fit(form.X, form.y)
    second = held_out(job, tiny_model)
    second.model_ = second.model_
    for estimator in (first, second):
        assert not hasattr(estimator, "conformity_scores_")
        with pytest.raises(InputError, match="the model was changed since"):
            estimator.predict_set(form.X, COVERAGE)
        estimator.conformalize(form.X, form.y).predict_set(form.X, COVERAGE)


def test_partial_fit_drops_scores_or_measures_anew(tiny_model: Path) -> None:
    estimator = held_out(JOBS["BertClassifier"], tiny_model)
    old = estimator.conformity_scores_
    estimator.partial_fit(TEXTS, LABELS)
    assert not np.array_equal(old, estimator.conformity_scores_)
    estimator.set_params(validation_fraction=None).partial_fit(TEXTS, LABELS)
    with pytest.raises(InputError, match="predict_set needs rows with known y"):
        estimator.predict_set(TEXTS)
    with pytest.raises(InputError, match="reject_threshold needs rows with known y"):
        estimator.reject_threshold()


@pytest.mark.parametrize("name", OF_SETS)
def test_sets_outlive_saving_pickling_and_copying(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    job = JOBS[name]
    estimator = held_out(job, tiny_model)
    estimator.save(tmp_path / "saved")
    X = job.usual.X
    wanted = plain(estimator.predict_set(X, COVERAGE))
    for copy in (skbert.load(tmp_path / "saved"), pickle.loads(pickle.dumps(estimator))):
        assert plain(copy.predict_set(X, COVERAGE)) == wanted
    assert not hasattr(clone(estimator), "conformity_scores_")


def test_an_estimator_without_rows_held_out_keeps_nothing(
    tiny_model: Path, tmp_path: Path
) -> None:
    estimator = JOBS["BertClassifier"].make(tiny_model).fit(TEXTS, LABELS)
    assert not hasattr(estimator, "conformity_scores_")
    assert not hasattr(estimator, "held_out_confidences_")
    estimator.save(tmp_path / "saved")
    with pytest.raises(InputError, match="conformalize"):
        skbert.load(tmp_path / "saved").predict_set(TEXTS)


def test_a_checkpoint_is_measured_before_it_gives_sets(tiny_model: Path, tmp_path: Path) -> None:
    held_out(JOBS["BertClassifier"], tiny_model).save_pretrained(tmp_path / "checkpoint")
    opened = BertClassifier.from_pretrained(tmp_path / "checkpoint")
    with pytest.raises(InputError, match="conformalize"):
        opened.predict_set(TEXTS)
    opened.conformalize(TEXTS, LABELS)
    assert all({*labels} <= {"no", "yes"} for labels in opened.predict_set(TEXTS, COVERAGE))


def test_sets_of_texts_and_of_words_have_a_list_for_each_word(tiny_model: Path) -> None:
    tagger = held_out(JOBS["BertTokenTagger"], tiny_model)
    of_words, of_texts = tagger.predict_set(WORDS, COVERAGE), tagger.predict_set(TEXTS, COVERAGE)
    assert [len(row) for row in of_words] == [len(words) for words in WORDS]
    assert [len(row) for row in of_texts] == [len(row) for row in tagger.predict_proba(TEXTS)]


def test_labels_in_a_set_are_those_of_y(tiny_model: Path) -> None:
    for labels in ([1, 2] * 6, [True, False] * 6, np.array([1, 2] * 6, np.uint8)):
        classifier = JOBS["BertClassifier"].make(tiny_model, **HOLD_OUT).fit(TEXTS, labels)
        kinds = {type(label) for row in classifier.predict_set(TEXTS, 0.85) for label in row}
        assert kinds == {type(np.asarray(labels)[0].item())}


def test_rows_of_several_labels_are_covered_as_a_whole(tiny_model: Path) -> None:
    X, y, _ = FORMS["BertClassifier", "labels"][1]
    classifier = JOBS["BertClassifier"].make(tiny_model).fit(X, y).conformalize(X, y)
    chances, present = classifier.predict_proba(X).astype(float), np.array(y, bool)
    least = [row[true].min() if true.any() else 1.0
             for row, true in zip(chances, present, strict=True)]  # fmt: skip
    np.testing.assert_allclose(classifier.conformity_scores_, np.sort(1 - np.array(least)))
    sets = classifier.predict_set(X, 0.9)
    inside = [{*np.flatnonzero(true)} <= {*row} for row, true in zip(sets, present, strict=True)]
    assert np.mean(inside) >= 0.9
    assert not hasattr(classifier, "held_out_confidences_")


def test_an_answer_out_of_reach_is_said(tiny_model: Path) -> None:
    X, y, _ = JOBS["BertSpanExtractor"].usual
    extractor = JOBS["BertSpanExtractor"].make(tiny_model, max_answer_length=1).fit(X, y)
    extractor.conformalize(X, ["book is", *y[1:]])  # one answer of two words
    assert extractor.conformity_scores_[-1] == 2.0
    with pytest.raises(InputError, match=r"coverage=0.9 cannot be reached: only 91.7%"):
        extractor.predict_set(X, 0.9)


@pytest.mark.parametrize("name", ["BertClassifier", "BertTokenTagger"])
def test_unknown_labels_cannot_be_measured(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    X, y, _ = job.usual
    estimator = job.make(tiny_model).fit(X, y)
    other = ["maybe", *y[1:]] if name == "BertClassifier" else [["B-Z"] * 5, *y[1:]]
    with pytest.raises(InputError, match="labels that the estimator was not fitted on"):
        estimator.conformalize(X, other)
    assert not hasattr(estimator, "conformity_scores_")


def test_few_rows_held_out_are_said(tiny_model: Path) -> None:
    estimator = held_out(JOBS["BertRegressor"], tiny_model)
    with pytest.raises(InputError, match=r"coverage=0\.99 needs at least 99 rows .* there are 6"):
        estimator.predict_set(TEXTS, 0.99)


@pytest.mark.parametrize("coverage", [np.float32(0.5), np.float64(0.5)])
def test_numbers_of_numpy_are_coverages(coverage: Any, tiny_model: Path) -> None:
    estimator = held_out(JOBS["BertRegressor"], tiny_model)
    assert (estimator.predict_set(TEXTS, coverage) == estimator.predict_set(TEXTS, 0.5)).all()


# --- rejection -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REJECTING)
def test_rows_below_are_none(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    estimator, X = held_out(job, tiny_model), job.usual.X
    plain_labels, chances = estimator.predict(X), estimator.predict_proba(X).max(axis=1)
    limit = float(np.median(chances))
    answers = estimator.predict(X, reject_below=limit)
    assert answers.dtype == object
    assert [answer is None for answer in answers] == (chances.astype(float) < limit).tolist()
    assert 0 < sum(answer is None for answer in answers) < len(X)
    for answer, label in zip(answers, plain_labels.tolist(), strict=True):
        assert answer is None or (answer == label and type(answer) is type(label))
    assert estimator.predict(X, reject_below=0).tolist() == plain_labels.tolist()
    assert (estimator.predict(X, reject_below=None) == plain_labels).all()
    assert estimator.predict(X).dtype == plain_labels.dtype


@pytest.mark.parametrize("name", REJECTING)
def test_confidences_are_those_of_the_rows(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    X, y, _ = job.usual
    estimator = job.make(tiny_model).fit(X, y).conformalize(X, y)
    kept = estimator.held_out_confidences_
    np.testing.assert_allclose(kept[:, 0], estimator.predict_proba(X).max(axis=1), atol=1e-6)
    assert kept[:, 1].astype(bool).tolist() == (estimator.predict(X) == np.array(y)).tolist()


def test_a_threshold_leaves_few_errors(tiny_model: Path) -> None:
    classifier = JOBS["BertClassifier"].make(tiny_model).fit(TEXTS, LABELS)
    chances = np.linspace(0.5, 1.0, 400)
    right = (np.arange(400) >= 200) | (np.arange(400) % 2 == 0)
    classifier.held_out_confidences_ = np.stack([chances, right], axis=1)
    threshold = classifier.reject_threshold(0.05)
    assert 0.7 < threshold < 0.8
    assert classifier.reject_threshold(0.3) < threshold
    assert classifier.reject_threshold(0.9) == 0.0
    assert classifier.reject_threshold(0.05, confidence=0.5) <= threshold
    with pytest.raises(InputError, match=r"max_error=0.001 with confidence=0.95: the 400 rows"):
        classifier.reject_threshold(0.001)


def test_several_labels_are_not_rejected(tiny_model: Path) -> None:
    X, y, _ = FORMS["BertClassifier", "labels"][1]
    classifier = JOBS["BertClassifier"].make(tiny_model, **HOLD_OUT).fit(X, y)
    with pytest.raises(InputError, match=r"reject_below=0\.5 is for one label per row"):
        classifier.predict(X, reject_below=0.5)
    with pytest.raises(InputError, match="one label per row"):
        classifier.reject_threshold()


def test_rejection_goes_through_a_pipeline(tiny_model: Path) -> None:
    pipeline = make_pipeline(FunctionTransformer(), JOBS["BertClassifier"].make(tiny_model)).fit(
        TEXTS, LABELS
    )
    assert pipeline.predict(TEXTS, reject_below=1.0).tolist() == [None] * 12
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline[-1].set_predict_request(reject_below=True)
        assert pipeline.predict(TEXTS, reject_below=1.0).tolist() == [None] * 12
    predicted = cross_val_predict(pipeline, TEXTS, LABELS, cv=2)
    assert {*predicted} <= {*LABELS}


# --- temperatures --------------------------------------------------------------------------------


def outputs(estimator: Any, X: Any) -> np.ndarray:
    """All probabilities, in one row."""
    name = type(estimator).__name__
    if name == "BertSpanExtractor":
        return np.array(estimator.predict_answers(X)["score"])
    chances = estimator.predict_proba(X)
    return np.concatenate([np.asarray(row, float).ravel() for row in chances])


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_temperature_divides_the_logits(name: str, tiny_model: Path, tmp_path: Path) -> None:
    job = JOBS[name]
    plain_one, calibrated = (held_out(job, tiny_model, calibrate=each) for each in (False, True))
    temperature = calibrated.temperature_
    assert plain_one.temperature_ == 1.0
    assert temperature != 1.0
    X = job.usual.X
    if name == "BertClassifier":
        logits = np.log(plain_one.predict_proba(X))
        expected = softmax(logits / temperature, axis=1)
        np.testing.assert_allclose(calibrated.predict_proba(X), expected, rtol=1e-4)
    assert not np.array_equal(outputs(plain_one, X), outputs(calibrated, X))
    assert list(plain_one.predict(X)) == list(calibrated.predict(X))
    calibrated.save(tmp_path / "saved")
    loaded = skbert.load(tmp_path / "saved")
    assert loaded.temperature_ == temperature
    np.testing.assert_array_equal(outputs(loaded, X), outputs(calibrated, X))


@pytest.mark.parametrize("name", CALIBRATED)
def test_no_other_temperature_has_a_lower_loss(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    plain_one, calibrated = (held_out(job, tiny_model, calibrate=each) for each in (False, True))
    again = held_out(job, tiny_model, calibrate=True)
    assert again.temperature_ == calibrated.temperature_
    assert 1 / 20 <= calibrated.temperature_ <= 20
    # The loss of a row is minus the logarithm of the probability of its truth.
    if name == "BertSpanExtractor":
        return
    one, other = (-np.log1p(-each.conformity_scores_) for each in (plain_one, calibrated))
    assert other.mean() <= one.mean() + 1e-6


def test_a_temperature_is_that_of_rows_not_of_their_windows(lively_model: Path) -> None:
    rng = np.random.default_rng(0)
    words = ["good", "bad", "movie", "food", "film", "great"]
    X = [" ".join(rng.choice(words, size)) for size in rng.integers(4, 40, 60)]
    y = ["good" in text.split()[:4] for text in X]  # later windows say nothing of it
    settings = {"epochs": 20, "learning_rate": 3e-3, "precision": "float32", "random_state": 0}
    windows = {"max_length": 12, "long_text": "windows"}

    def loss_of(classifier: BertClassifier) -> float:
        return log_loss(y[30:], classifier.predict_proba(X[30:]))

    losses = {}
    for calibrate in (False, True):
        classifier = BertClassifier(lively_model, calibrate=calibrate, **settings, **windows)
        classifier.fit(X[:30], y[:30], X_val=X[30:], y_val=y[30:])
        losses[calibrate] = loss_of(classifier)
    assert 0.1 < classifier.temperature_ < 10
    for factor in (0.5, 0.8, 0.95, 1.05, 1.25, 2.0):
        other = deepcopy(classifier)
        scale_output(other._fitted.network, factor)
        assert loss_of(other) > losses[True]
    assert losses[True] < losses[False]


@pytest.mark.parametrize("name", CALIBRATED)
def test_a_temperature_needs_rows_held_out(name: str, tiny_model: Path) -> None:
    job = JOBS[name]
    estimator = job.make(tiny_model, calibrate=True)
    with pytest.raises(InputError, match="calibrate=True needs a validation set"):
        estimator.fit(job.usual.X, job.usual.y)


@pytest.mark.parametrize("decoding", ["viterbi", "argmax"])
def test_tags_do_not_depend_on_the_temperature(decoding: str, tiny_model: Path) -> None:
    job = JOBS["BertTokenTagger"]
    plain_one, calibrated = (
        held_out(job, tiny_model, calibrate=each, decoding=decoding) for each in (False, True)
    )
    assert list(plain_one.predict(TEXTS)) == list(calibrated.predict(TEXTS))


def test_intervals_of_large_numbers_are_finite(tiny_model: Path) -> None:
    numbers = [1e37 * number for number in NUMBERS]
    regressor = JOBS["BertRegressor"].make(tiny_model, **HOLD_OUT).fit(TEXTS, numbers)
    assert np.isfinite(regressor.predict_set(TEXTS, COVERAGE)).all()


def test_rows_that_weigh_nothing_are_not_measured(tiny_model: Path) -> None:
    X, y = [*TEXTS, *TEXTS[:3]], [*LABELS, *["junk"] * 3]
    classifier = BertClassifier(tiny_model, class_weight={"junk": 0}, epochs=1).fit(X, y)
    classifier.conformalize(X, y)
    assert len(classifier.conformity_scores_) == len(TEXTS)
    with pytest.raises(InputError, match="All rows have a weight of 0"):
        classifier.conformalize(TEXTS[:3], ["junk"] * 3)
