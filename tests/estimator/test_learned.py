"""What a fit may break: nothing. Refused, failed or interrupted, it leaves what was learned."""

from __future__ import annotations

import copy
import pickle
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError
from support.job import LABELS, TEXTS, Job
from support.jobs import JOBS, TRAINED

from skbert import BertClassifier, BertPretrainer, BertSpanExtractor, BertTransformer
from skbert._core.checkpoints.weights import check_learned
from skbert._core.training.optim import trainable_parameters
from skbert._core.training.stepper import Stepper
from skbert._estimator import base
from skbert.exceptions import InputError, ModelError, NonFiniteError, SkbertError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ALL = pytest.mark.parametrize("job", TRAINED.values(), ids=TRAINED)


def plain(kind: type, model: Path, **changes: Any) -> Any:
    settings = {"epochs": 2, "batch_size": 4, "device": "cpu", "random_state": 0}
    return kind(model, **(settings | changes))


def weights(estimator: Any) -> dict[str, torch.Tensor]:
    return {name: w.clone() for name, w in estimator.model_.state_dict().items()}


def answers(estimator: Any) -> Any:
    X = next(job.usual.X for job in TRAINED.values() if isinstance(estimator, job.estimator))
    if isinstance(estimator, BertPretrainer):
        return estimator.score(X)
    return [str(answer) for answer in estimator.predict(X)]


class State:
    """All of a fitted estimator."""

    def __init__(self, estimator: Any) -> None:
        self.estimator = estimator
        self.attributes = dict(vars(estimator))
        self.weights, self.answers = weights(estimator), answers(estimator)

    def assert_as_it_was(self) -> None:
        now = vars(self.estimator)
        assert now.keys() == self.attributes.keys()
        assert all(now[name] is value for name, value in self.attributes.items())
        after = weights(self.estimator)
        assert all(torch.equal(after[name], w) for name, w in self.weights.items())
        assert answers(self.estimator) == self.answers
        assert not self.estimator.model_.training
        assert all(p.requires_grad and p.grad is None for p in self.estimator.model_.parameters())


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], object]], None]:
    """Give a function: what happens in a step of the training that follows, once."""
    whole, steps = Stepper.step, []

    def happen(number: int, what: Callable[[], object]) -> None:
        def step(stepper: Any, chosen: Any) -> None:
            steps.append(number)
            if len(steps) == number:
                what()
            whole(stepper, chosen)

        steps.clear()
        monkeypatch.setattr(Stepper, "step", step)

    return happen


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@ALL
@pytest.mark.parametrize("again", [False, True])
def test_a_fit_that_fails_leaves_the_old_one(
    job: Job, again: bool, tiny_model: Path, at_step: Callable[..., None]
) -> None:
    X, y, _ = job.usual
    fitted = plain(job.estimator, tiny_model).fit(X, y)
    fitted.warm_start = again
    before = State(fitted)
    bad_y = [None] * len(X)
    with pytest.raises(SkbertError):
        fitted.fit([None] * len(X), y)
    if y is not None:
        with pytest.raises(SkbertError):
            fitted.fit(X, bad_y)
    at_step(4, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fitted.fit(X, y)
    before.assert_as_it_was()
    for changes in ({"learning_rate": 1e30, "max_grad_norm": None}, {"max_length": 10**4}):
        usual = fitted.get_params()
        before = State(fitted.set_params(**changes))
        with pytest.raises((NonFiniteError, InputError)):
            fitted.fit(X, y)
        before.assert_as_it_was()
        fitted.set_params(**usual)
    fitted.fit(X, y)  # and it can go on


@pytest.mark.parametrize("name", ["BertClassifier", "BertRegressor", "BertPretrainer"])
def test_rows_that_cannot_be_held_out_leave_the_old_fit(name: str, tiny_model: Path) -> None:
    job, held_out = JOBS[name], {"validation_fraction": 0.3, "warm_start": True}
    X, y, _ = job.usual
    fitted = plain(job.estimator, tiny_model, **held_out).fit(X, y)
    before = State(fitted)
    with pytest.raises(InputError, match="hold"):
        fitted.fit(X[:1], y and y[:1])
    if y is LABELS:
        with pytest.raises(InputError, match="hold"):
            fitted.partial_fit(X[:1], y[:1])
        with pytest.raises(InputError, match="all validation rows"):
            fitted.partial_fit(X[:6], y[:6], sample_weight=[1.0] + [0.0] * 5)
    before.assert_as_it_was()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_interrupted_batch_with_new_labels_leaves_the_old_ones(
    step: int, tiny_model: Path, at_step: Callable[..., None]
) -> None:
    fitted = plain(BertClassifier, tiny_model).fit(TEXTS, LABELS)
    before = State(fitted)
    at_step(step, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fitted.partial_fit(TEXTS, ["perhaps"] * 12, classes=["never"])
    before.assert_as_it_was()
    fitted.partial_fit(TEXTS, ["perhaps"] * 12)
    assert fitted.classes_.tolist() == ["no", "perhaps", "yes"]


@ALL
def test_a_first_fit_that_fails_leaves_nothing(
    job: Job, tiny_model: Path, at_step: Callable[..., None]
) -> None:
    X, y, _ = job.usual
    fresh = plain(job.estimator, tiny_model)
    before = dict(vars(fresh))
    at_step(2, interrupt)
    with pytest.raises(KeyboardInterrupt):
        fresh.fit(X, y)
    assert vars(fresh) == before


def test_a_transformer_that_cannot_fit_stays_fitted(tiny_model: Path, tmp_path: Path) -> None:
    fitted = BertTransformer(tiny_model, device="cpu", n_components=3).fit(TEXTS)
    vectors, before = fitted.transform(TEXTS), dict(vars(fitted))
    with pytest.raises(InputError, match="n_components"):
        fitted.fit(TEXTS[:2])
    with pytest.raises(InputError):
        fitted.fit([None])
    with pytest.raises(ModelError):
        fitted.set_params(model=tmp_path / "none").fit(TEXTS)
    fitted.set_params(model=tiny_model)
    assert all(vars(fitted)[name] is value for name, value in before.items())
    np.testing.assert_array_equal(fitted.transform(TEXTS), vectors)
    fitted.set_params(n_components=None).fit(TEXTS)
    assert not hasattr(fitted, "components_")


def test_nothing_of_an_earlier_fit_is_left_after_another(tiny_model: Path) -> None:
    fitted = plain(BertClassifier, tiny_model, validation_fraction=0.3, pooling="mean")
    fitted.fit(TEXTS, np.eye(2, dtype=int)[[0, 1] * 6])
    assert {"thresholds_", "probe_score_"} <= fitted._fitted.attributes.keys()
    fitted.set_params(validation_fraction=None).fit(TEXTS, LABELS)
    assert not {"thresholds_", "probe_score_"} & fitted._fitted.attributes.keys()


def test_understanding_y_changes_nothing(tiny_model: Path) -> None:
    fitted = plain(BertClassifier, tiny_model).fit(TEXTS, LABELS)
    before, state = State(fitted), torch.get_rng_state()
    rows = fitted._rows(TEXTS, fitted._fitted.record)
    plan = fitted._prepare_targets(["perhaps"] * 12, rows, 64, fitted._fitted, None, classes=["a"])
    assert plan.task.head().n_outputs == 4
    assert plan.output_map.tolist() == [1, 3]  # of a, no, perhaps, yes
    assert torch.equal(torch.get_rng_state(), state)
    before.assert_as_it_was()


def test_what_does_not_learn_is_not_copied(tiny_model: Path) -> None:
    fitted = plain(BertClassifier, tiny_model, freeze=1).fit(TEXTS, LABELS)

    def weights() -> dict[str, torch.nn.Parameter]:
        return dict(fitted._fitted.network.model.named_parameters())  # which nobody else holds

    before = weights()
    fitted.partial_fit(TEXTS, LABELS)
    after = weights()
    shared = {name for name in before if after[name] is before[name]}
    below = ("bert.embeddings.", "bert.encoder.layer.0.")
    assert shared == {name for name in before if name.startswith(below)}
    fitted.set_params(precision="float64").partial_fit(TEXTS, LABELS)
    assert next(iter(before.values())).dtype == torch.float32


# --- attributes ----------------------------------------------------------------------------------


def test_classes_and_unfitted_estimators_have_nothing_learned() -> None:
    for name in ("classes_", "history_", "n_features_in_"):
        assert not hasattr(BertClassifier, name)
        assert not hasattr(BertClassifier(), name)
    with pytest.raises(
        AttributeError, match="'BertClassifier' object has no attribute 'classes_'"
    ):
        _ = BertClassifier().classes_
    with pytest.raises(
        AttributeError, match="'BertClassifier' object has no attribute 'classes_'"
    ):
        del BertClassifier().classes_
    for name in ("model_", "tokenizer_", "pooling_"):
        assert not hasattr(BertClassifier(), name)
        with pytest.raises(NotFittedError, match="This BertClassifier instance is not fitted yet"):
            getattr(BertClassifier(), name)


def test_a_temperature_only_says_what_was_done(tiny_model: Path) -> None:
    fitted = plain(BertClassifier, tiny_model).fit(TEXTS, LABELS)
    with pytest.raises(AttributeError, match=r"temperature_ cannot be assigned.*model_"):
        fitted.temperature_ = 2.0
    assert fitted.temperature_ == 1.0


def test_a_score_of_the_head_before_training_is_of_that_fit(tiny_model: Path) -> None:
    params = {"validation_fraction": 0.5, "head_init": "probe", "pooling": "mean"}
    fitted = plain(BertClassifier, tiny_model, **params).fit(TEXTS, LABELS)
    assert 0 <= fitted.probe_score_ <= 1
    measured = fitted.probe_score_
    assert fitted.conformalize(TEXTS, LABELS).probe_score_ == measured
    assert not hasattr(fitted.partial_fit(TEXTS, LABELS), "probe_score_")


def test_training_goes_on_with_the_same_pooling(tiny_model: Path) -> None:
    fitted = plain(BertClassifier, tiny_model, pooling="mean", warm_start=True)
    fitted.fit(TEXTS, LABELS).set_params(pooling="cls")
    message = "pooling='cls', but the fit to go on from has pooling='mean'"
    for go_on in (fitted.fit, fitted.partial_fit):
        with pytest.raises(InputError, match=message):
            go_on(TEXTS, LABELS)
    assert fitted.set_params(pooling="auto").fit(TEXTS, LABELS).pooling_ == "mean"


def test_what_is_assigned_before_a_fit_is_kept_until_then(tiny_model: Path) -> None:
    estimator = plain(BertClassifier, tiny_model)
    estimator.classes_ = ["mine"]
    estimator.thresholds_ = estimator.temperature_ = 3.0
    del estimator.temperature_
    assert estimator.classes_ == pickle.loads(pickle.dumps(estimator)).classes_ == ["mine"]
    assert not hasattr(estimator, "temperature_")
    with pytest.raises(NotFittedError):
        estimator.predict(TEXTS)
    estimator.fit(TEXTS, LABELS)
    assert estimator.classes_.tolist() == ["no", "yes"]
    assert not hasattr(estimator, "thresholds_")


def test_what_was_learned_can_be_replaced_and_removed(tiny_model: Path) -> None:
    fitted = plain(BertClassifier, tiny_model).fit(TEXTS, LABELS)
    other = copy.copy(fitted)
    fitted.classes_ = np.array(["a", "b"])
    assert set(fitted.predict(TEXTS)) <= {"a", "b"}
    assert other.classes_.tolist() == ["no", "yes"]
    del fitted.history_
    assert not hasattr(fitted, "history_")
    assert other.history_
    with pytest.raises(AttributeError, match="history_"):
        del fitted.history_


@pytest.mark.parametrize("way", [copy.deepcopy, lambda fitted: pickle.loads(pickle.dumps(fitted))])
def test_the_state_of_an_estimator_is_read_only(
    way: Callable[[Any], Any], tiny_model: Path
) -> None:
    fitted = way(plain(BertClassifier, tiny_model).fit(TEXTS, LABELS))
    with pytest.raises(TypeError, match="does not support item assignment"):
        fitted._fitted.attributes["classes_"] = ["mine"]
    assert fitted.classes_.tolist() == ["no", "yes"]


# --- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fit", "partial_fit"])
def test_predictions_do_not_notice_a_fit_in_another_thread(
    name: str, tiny_model: Path, at_step: Callable[..., None]
) -> None:
    def go_on(fitted: Any) -> Any:
        return getattr(fitted, name)(TEXTS, ["yes", "no", "perhaps"] * 4)

    alone = go_on(plain(BertClassifier, tiny_model).fit(TEXTS, LABELS))
    fitted = plain(BertClassifier, tiny_model).fit(TEXTS, LABELS)
    before, seen = fitted.predict_proba(TEXTS), []
    with ThreadPoolExecutor(1) as other:
        at_step(3, lambda: seen.append(other.submit(fitted.predict_proba, TEXTS).result()))
        go_on(fitted)
    np.testing.assert_array_equal(seen, [before])
    for weight, same in zip(weights(fitted).values(), weights(alone).values(), strict=True):
        assert torch.equal(weight, same)


def test_a_prediction_reads_one_state(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = plain(BertClassifier, tiny_model).fit(TEXTS, LABELS)
    want, compute = fitted.predict(TEXTS), base.infer

    def infer(*given: Any, **options: Any) -> Any:
        found = compute(*given, **options)
        monkeypatch.setattr(base, "infer", compute)
        fitted.fit(TEXTS, ["p", "q", "r"] * 4)  # as another thread may at any time
        return found

    monkeypatch.setattr(base, "infer", infer)
    np.testing.assert_array_equal(fitted.predict(TEXTS), want)
    assert set(fitted.predict(TEXTS)) <= {"p", "q", "r"}


def test_batches_of_two_threads_are_both_learned(
    tiny_model: Path, at_step: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted = plain(BertClassifier, tiny_model).fit(TEXTS, LABELS)
    read, has_read = BertClassifier._rows, threading.Event()
    other = threading.Thread(target=fitted.partial_fit, args=(TEXTS, ["second"] * 12))

    def note(estimator: Any, X: Any, record: Any) -> Any:
        rows = read(estimator, X, record)
        if threading.current_thread() is other:
            has_read.set()
        return rows

    def meanwhile() -> None:
        other.start()
        assert has_read.wait(60)

    monkeypatch.setattr(BertClassifier, "_rows", note)
    at_step(1, meanwhile)
    fitted.partial_fit(TEXTS, ["first"] * 12)
    other.join()
    assert fitted.classes_.tolist() == ["first", "no", "second", "yes"]


# --- numbers of numpy ----------------------------------------------------------------------------


def test_small_numbers_of_numpy_do_not_overflow(tiny_model: Path) -> None:
    small = {"batch_size": np.int8(100), "accumulate": np.int8(2), "max_length": np.int8(100)}
    fitted = plain(BertClassifier, tiny_model, **small).fit(TEXTS, LABELS)
    same = plain(BertClassifier, tiny_model, batch_size=100, accumulate=2, max_length=100)
    same.fit(TEXTS, LABELS)
    np.testing.assert_array_equal(fitted.predict_proba(TEXTS), same.predict_proba(TEXTS))
    params = fitted.get_params()
    assert all(params[name] is value for name, value in small.items())
    assert type(fitted._fitted.task.max_length) is int


def test_opened_models_read_small_numbers_too(tiny_model: Path, tmp_path: Path) -> None:
    X, y, _ = JOBS["BertSpanExtractor"].usual
    fitted = plain(BertSpanExtractor, tiny_model).fit(X, y)
    fitted.save_pretrained(tmp_path / "plain")
    small = {"max_length": np.int8(100), "stride": np.int8(40), "max_answer_length": np.int8(100)}
    opened = BertSpanExtractor.from_pretrained(tmp_path / "plain", device="cpu", **small)
    numbers = vars(opened._fitted.task).values()
    assert [type(number) for number in numbers] == [int] * len(numbers)
    assert all(opened.get_params()[name] is value for name, value in small.items())


def test_new_models_take_small_numbers() -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 100, "max_position_embeddings": 100}  # fmt: skip
    small = {name: np.int8(size) for name, size in sizes.items()}
    fitted = plain(BertPretrainer, None, **small, vocab_size=np.int8(55)).fit(TEXTS)
    same = plain(BertPretrainer, None, **sizes, vocab_size=55).fit(TEXTS)
    assert fitted.score(TEXTS) == same.score(TEXTS)


# --- more than there is --------------------------------------------------------------------------


def test_more_batches_in_a_step_than_rows_are_refused(tiny_model: Path) -> None:
    fitted = plain(BertClassifier, tiny_model, accumulate=10**9)
    text = (
        r"accumulate=1000000000 .*steps of 4000000000 rows, but there are only 12 .*accumulate=3"
    )
    with pytest.raises(InputError, match=text):
        fitted.fit(TEXTS, LABELS)
    fitted.partial_fit(TEXTS[:2], LABELS[:2])  # a stream may bring few rows at a time
    same = plain(BertClassifier, tiny_model, accumulate=2).partial_fit(TEXTS[:2], LABELS[:2])
    np.testing.assert_array_equal(fitted.predict_proba(TEXTS), same.predict_proba(TEXTS))


@pytest.mark.parametrize("freeze", [0, 1])
def test_a_last_step_that_ruins_the_weights_is_refused(tiny_model: Path, freeze: int) -> None:
    kept = plain(BertClassifier, tiny_model, warm_start=True, freeze=freeze).fit(TEXTS, LABELS)
    before, said = weights(kept), answers(kept)
    ruinous = {"epochs": 1, "batch_size": 12, "learning_rate": 1e30, "warmup": 0.0}
    with pytest.raises(NonFiniteError, match="After the last step the weight"):
        kept.set_params(**ruinous).fit(TEXTS, LABELS)
    assert all(torch.equal(weight, before[name]) for name, weight in weights(kept).items())
    assert answers(kept) == said


def test_only_weights_that_were_trained_are_looked_at_after_the_last_step(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = plain(BertClassifier, tiny_model, freeze=1).fit(TEXTS, LABELS)
    model, read = kept.model_, []
    monkeypatch.setattr(torch, "aminmax", lambda x: read.append(x.shape) or (x.min(), x.max()))
    trained = trainable_parameters(model, ("classifier.",), 1)
    check_learned(model, "classifier", trained)
    assert 0 < len(read) == len(trained) < len([*model.parameters()])


class Narrow(BertClassifier):
    """A subclass whose constructor takes one parameter; its user sets others as attributes."""

    def __init__(self, model: Path) -> None:
        super().__init__(model, device="cpu", random_state=0)

    def _finish(self, *given: Any) -> dict[str, Any]:
        self.notes.append(self.epochs)
        return super()._finish(*given)


def test_what_a_subclass_keeps_besides_its_parameters_counts_in_a_fit(tiny_model: Path) -> None:
    fitted = Narrow(tiny_model)
    fitted.epochs, fitted.batch_size, fitted.notes = 1, np.int8(4), []
    fitted.fit(TEXTS, LABELS)
    assert (fitted.n_iter_, fitted.notes, fitted.fit(TEXTS, LABELS).notes) == (1, [1, 1], [1, 1])
    assert isinstance(fitted.batch_size, np.int8)
