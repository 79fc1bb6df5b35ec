"""Heads: their importance against finite differences, pruning against zeroed weights, attention
against transformers.

A gate on a head's output is the same as a factor on that head's columns of the layer's output
weights; this is the reference here, since it needs no hook.
"""

from __future__ import annotations

import copy
import json
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

import joblib
import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from transformers import AutoModel, BertForSequenceClassification, BertModel

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core import attention_heads as engine
from skbert._core.infer import infer, mean_loss
from skbert._core.runtime.device import Precision
from skbert._estimator.base import encode
from skbert.exceptions import InputError, InputTypeError, ModelError, SkbertWarning
from skbert.inspection import attentions, head_importance, prune_heads
from skbert.testing._samples import sample_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment

CPU = torch.device("cpu")
N_LAYERS, N_HEADS, SIZE = 2, 4, 8
USUAL = {"epochs": 1, "learning_rate": 1e-3, "device": "cpu", "random_state": 0}
EXACT = {**USUAL, "precision": "float64"}
DOCUMENTS = [["the food is good", "i love it"], ["the room is bad", "i hate it", "too slow"]]
CASES: dict[str, tuple[type, str, dict[str, Any]]] = {
    "classes": (BertClassifier, "classes", {}),
    "pairs": (BertClassifier, "pairs", {"pooling": "mean"}),
    "labels": (BertClassifier, "labels", {"class_weight": "balanced"}),
    "windows": (BertClassifier, "classes", {"max_length": 8, "long_text": "windows"}),
    "numbers": (BertRegressor, "numbers", {}),
    "tags": (BertTokenTagger, "tags", {"max_length": 16}),
    "spans": (BertSpanExtractor, "spans", {"max_length": 32, "on_ambiguous": "first"}),
    "choices": (BertChoiceRanker, "choices", {"head_learning_rate": 1e-2}),
}


class Case(NamedTuple):
    """A fitted estimator, to be left as it is, and what it learned from."""

    fitted: Any
    X: list[Any]
    y: list[Any]


@pytest.fixture(scope="module")
def four_heads(make_tiny_model: Callable[..., Path]) -> Path:
    return make_tiny_model(num_attention_heads=N_HEADS)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, four_heads: Path) -> Case:
    kind, sample, params = CASES[request.param]
    rows = sample_of(sample, None, None)
    return Case(kind(four_heads, **EXACT, **params).fit(rows.X, rows.y), rows.X, rows.y)


@pytest.fixture(scope="module")
def classes(four_heads: Path) -> Case:
    rows = sample_of("classes", None, None)
    return Case(BertClassifier(four_heads, **EXACT).fit(rows.X, rows.y), rows.X, rows.y)


def with_factors(estimator: Any, factors: np.ndarray) -> Any:
    """A copy whose heads give so many times what they gave."""
    changed = copy.deepcopy(estimator)
    for layer, row in zip(changed.model_.base_model.encoder.layer, factors, strict=True):
        weight = layer.attention.output.dense.weight.data
        weight *= torch.as_tensor(row).to(weight).repeat_interleave(SIZE)
    return changed


def without(heads: dict[int, list[int]]) -> np.ndarray:
    factors = np.ones((N_LAYERS, N_HEADS))
    for layer, gone in heads.items():
        factors[layer, gone] = 0
    return factors


def logits(estimator: Any, X: Any) -> np.ndarray:
    """What the head gives for all rows or tokens."""
    network, precision = estimator._fitted.network, Precision(estimator.precision, CPU)
    rows = encode(
        estimator._fitted.task, estimator._rows(X, estimator._fitted.record), None, network
    )
    return infer(network, rows, precision).values


def items_to_learn(estimator: Any, X: Any, y: Any) -> Any:
    rows = estimator._rows(X, estimator._fitted.record)
    fitted = estimator._fitted
    plan = estimator._prepare_targets(y, rows, fitted.task.max_length, fitted, None)
    items = encode(fitted.task, rows, plan.targets, fitted.network)
    return items.weighted(plan.weights)


def losses(estimator: Any, samples: list[Any]) -> np.ndarray:
    """Mean loss of each sample."""
    fitted, exact = estimator._fitted, Precision("float64", CPU)
    return np.array([mean_loss(fitted.network, fitted.task, each, exact) for each in samples])


def weight_of(estimator: Any, items: Any) -> float:
    """The weight that the task gives these items; no logits are needed to tell."""
    seen: list[float] = []
    task = estimator._fitted.task

    class Counting:
        def loss(self, logits: Any, batch: Any) -> Any:
            loss, weight = task.loss(logits, batch)
            seen.append(float(weight))
            return loss, weight

    mean_loss(estimator._fitted.network, Counting(), items, Precision("float64", CPU))
    return sum(seen)


def by_differences(estimator: Any, X: Any, y: Any, step: float = 1e-5) -> np.ndarray:
    """Importance by changing each head a little and computing all losses again."""
    items = items_to_learn(estimator, X, y)
    samples = [items.of_samples(np.array([each])) for each in np.unique(items.samples)]
    weights = np.array([weight_of(estimator, each) for each in samples])
    found = np.zeros((N_LAYERS, N_HEADS))
    for at in np.ndindex(*found.shape):
        up, down = np.ones(found.shape), np.ones(found.shape)
        up[at], down[at] = 1 + step, 1 - step
        upper, lower = (losses(with_factors(estimator, each), samples) for each in (up, down))
        found[at] = np.abs(upper - lower) @ weights / (2 * step)
    return found / weight_of(estimator, items)


# --- importance ----------------------------------------------------------------------------------


@pytest.mark.long
def test_importance_equals_finite_differences(case: Case) -> None:
    got = head_importance(*case, normalize=False)
    want = by_differences(*case)
    assert got.shape == (N_LAYERS, N_HEADS)
    assert got.dtype == np.float64
    assert (want > 1e-7).all()
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-9)


def test_importance_is_the_mean_over_rows_of_what_changes_the_public_loss(classes: Case) -> None:
    fitted, X, y = classes
    step, rows = 1e-5, np.arange(len(X))
    codes = np.searchsorted(fitted.classes_, y)

    def row_losses(factor: float) -> np.ndarray:
        factors = np.ones((N_LAYERS, N_HEADS))
        factors[1, 2] = factor
        return -np.log(with_factors(fitted, factors).predict_proba(X)[rows, codes])

    want = np.abs(row_losses(1 + step) - row_losses(1 - step)).mean() / (2 * step)
    got = head_importance(fitted, X, y, normalize=False)[1, 2]
    np.testing.assert_allclose(got, want, rtol=1e-5)


def test_rows_do_not_cancel_each_other_out(classes: Case) -> None:
    fitted, X, y = classes
    whole = head_importance(fitted, X, y, normalize=False)
    parts = [head_importance(fitted, [X[i]], [y[i]], normalize=False) for i in range(len(X))]
    np.testing.assert_allclose(whole, np.mean(parts, axis=0), rtol=1e-9)


def test_normalized_layers_have_length_1(case: Case) -> None:
    plain, normalized = (head_importance(*case, normalize=each) for each in (False, True))
    np.testing.assert_allclose(np.linalg.norm(normalized, axis=1), 1)
    scale = np.linalg.norm(plain, axis=1, keepdims=True)
    np.testing.assert_allclose(normalized, plain / scale)


def test_a_layer_without_gradients_is_not_divided_by_zero(classes: Case) -> None:
    silent = with_factors(classes.fitted, np.array([[0.0] * 4, [1.0] * 4]))
    found = head_importance(silent, classes.X, classes.y)
    assert (found[0] == 0).all()
    np.testing.assert_allclose(np.linalg.norm(found[1]), 1)


def test_batches_do_not_matter(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    want = head_importance(*case)
    monkeypatch.setitem(engine.TRAINING_TOKENS, "cpu", 10)
    np.testing.assert_allclose(head_importance(*case), want, rtol=1e-9)


def test_where_memory_runs_out_less_is_computed_at_a_time(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    importance, looks = head_importance(*case), attentions(case.fitted, case.X)
    collate, sizes = engine.collate, []

    def small(items: Any, chosen: Any, *how: Any) -> Any:
        sizes.append(len(chosen))
        if len(chosen) > 3:
            raise torch.OutOfMemoryError
        return collate(items, chosen, *how)

    monkeypatch.setattr(engine, "collate", small)
    np.testing.assert_allclose(head_importance(*case), importance, rtol=1e-9)
    for got, want in zip(attentions(case.fitted, case.X), looks, strict=True):
        assert got[:2] == want[:2]
        np.testing.assert_allclose(got.weights, want.weights, atol=1e-12)
    assert max(sizes) > 3


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no room"), ValueError("no room")])
def test_other_errors_and_one_row_too_many_are_raised(
    classes: Case, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def never(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(engine, "collate", never)
    with pytest.raises(type(error), match="no room"):
        head_importance(*classes)


def test_rows_of_a_class_that_weighs_nothing_do_not_count(four_heads: Path) -> None:
    rows = sample_of("classes", None, None)
    weighed = BertClassifier(four_heads, **EXACT, class_weight={"bad": 0.0})
    weighed.fit(rows.X, rows.y)
    whole = head_importance(weighed, rows.X, rows.y)
    np.testing.assert_allclose(head_importance(weighed, rows.X[::2], rows.y[::2]), whole)
    with pytest.raises(InputError, match="All rows of X have a weight of 0"):
        head_importance(weighed, rows.X[1::2], rows.y[1::2])


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "nsp", "clm"])
def test_importance_for_pre_training(four_heads: Path, objective: str) -> None:
    pretrainer = BertPretrainer(four_heads, objective=objective, **EXACT).fit(DOCUMENTS)
    found = head_importance(pretrainer, DOCUMENTS)
    assert (found > 0).all()
    np.testing.assert_array_equal(head_importance(pretrainer, DOCUMENTS), found)


def test_padded_rows_give_the_same(
    four_heads: Path, classes: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted, X, y = classes
    monkeypatch.setattr(BertForSequenceClassification, "_supports_attention_backend", False)
    padded = BertClassifier(four_heads, **EXACT).fit(X, y)
    assert not padded._fitted.network.is_packed
    padded.model_.load_state_dict(fitted.model_.state_dict())
    np.testing.assert_allclose(head_importance(padded, X, y), head_importance(*classes), rtol=1e-6)
    for got, want in zip(attentions(padded, X), attentions(fitted, X), strict=True):
        assert got[:2] == want[:2]
        np.testing.assert_allclose(got.weights, want.weights, atol=1e-12)
    heads = {0: [1, 3], 1: [0]}
    pruned = prune_heads(padded, heads)
    np.testing.assert_allclose(logits(pruned, X), logits(prune_heads(fitted, heads), X))


def test_low_precision_is_no_matter(four_heads: Path, classes: Case) -> None:
    low = BertClassifier(four_heads, **USUAL, precision="bfloat16").fit(classes.X, classes.y)
    full = copy.deepcopy(low).set_params(precision="float32")
    found = (head_importance(each, classes.X, classes.y) for each in (low, full))
    np.testing.assert_array_equal(*found)


def test_the_estimator_stays_as_it_was(case: Case) -> None:
    estimator = copy.deepcopy(case.fitted)
    model = estimator.model_
    model.train()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    next(model.parameters()).requires_grad_(False)
    before, attributes = copy.deepcopy(model), dict(vars(estimator))
    config, state = model.config.to_json_string(), torch.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002 - the global one is looked at

    head_importance(estimator, case.X, case.y)
    attentions(estimator, case.X, head_mask=np.zeros((N_LAYERS, N_HEADS)))
    prune_heads(estimator, {0: [1]})

    assert vars(estimator) == attributes
    assert estimator.model_ is model
    assert model.config.to_json_string() == config
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    assert all(part.training for part in model.modules())
    assert not any(part._forward_pre_hooks or part._forward_hooks for part in model.modules())
    for parameter, old in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(parameter, old)
        assert parameter.requires_grad == old.requires_grad
        assert (parameter.grad == 1).all()


def test_gradients_are_found_where_they_are_switched_off(classes: Case) -> None:
    want = head_importance(*classes)
    with torch.no_grad():
        np.testing.assert_array_equal(head_importance(*classes), want)
    assert torch.is_grad_enabled()


def test_labels_that_were_not_in_fit_are_refused(four_heads: Path, classes: Case) -> None:
    fitted, X, y = classes
    with pytest.raises(InputError, match=r"y would need 3 outputs, .* has 2: .*Leave out"):
        head_importance(fitted, X, ["new", *y[1:]])
    assert fitted.model_.config.num_labels == 2
    rows = sample_of("tags", None, None)
    tagger = BertTokenTagger(four_heads, **EXACT).fit(rows.X, rows.y)
    new = [["B-NEW", *rows.y[0][1:]], *rows.y[1:]]
    with pytest.raises(InputError, match="some of its labels were not in fit"):
        head_importance(tagger, rows.X, new)


@pytest.mark.parametrize("call", [head_importance, lambda e, X, y: prune_heads(e, {0: [0]})])
def test_estimators_of_another_kind_are_refused(
    four_heads: Path, classes: Case, call: Any
) -> None:
    fitted, X, y = classes
    for other in (make_pipeline(fitted), None, BertTransformer(four_heads).fit(X)):
        with pytest.raises(InputTypeError, match=r"has the type .*of a Pipeline, such a step"):
            call(other, X, y)
    with pytest.raises(NotFittedError):
        call(BertClassifier(four_heads), X, y)
    with pytest.raises(InputTypeError, match="has the type Pipeline"):
        attentions(make_pipeline(fitted), X)


def test_bad_rows_are_refused_as_in_fit(classes: Case) -> None:
    fitted, X, y = classes
    with pytest.raises(InputError, match="row 0"):
        head_importance(fitted, [None, *X[1:]], y)
    with pytest.raises(InputError, match="X has 8 rows and y has 7"):
        head_importance(fitted, X, y[1:])
    with pytest.raises(InputTypeError, match="row 0"):
        attentions(fitted, [3.5])


# --- pruning -------------------------------------------------------------------------------------

GONE = {0: [1, 3], 1: [0]}


def test_pruned_heads_are_heads_that_give_zeros(case: Case) -> None:
    pruned = prune_heads(case.fitted, GONE)
    want = logits(with_factors(case.fitted, without(GONE)), case.X)
    np.testing.assert_allclose(logits(pruned, case.X), want, rtol=1e-9, atol=1e-12)
    assert np.abs(want - logits(case.fitted, case.X)).max() > 1e-6
    assert type(pruned) is type(case.fitted)
    assert len(pruned.predict(case.X)) == len(case.X)


def test_weights_really_shrink(classes: Case) -> None:
    pruned = prune_heads(classes.fitted, {0: (1, 3), np.int64(1): np.array([0])})
    shapes = []
    for layer in pruned.model_.bert.encoder.layer:
        own, dense = layer.attention.self, layer.attention.output.dense
        n_left = own.num_attention_heads
        for linear in (own.query, own.key, own.value):
            assert linear.weight.shape == (n_left * SIZE, 32)
            assert linear.bias.shape == (linear.out_features,) == (own.all_head_size,)
        assert dense.weight.shape == (32, dense.in_features) == (32, n_left * SIZE)
        assert dense.weight.is_contiguous()
        shapes.append(n_left)
    assert shapes == [2, 3]
    sizes = [sum(p.numel() for p in e.model_.parameters()) for e in (classes.fitted, pruned)]
    assert sizes[0] - sizes[1] == 3 * SIZE * (4 * 32 + 3)
    assert pruned.model_.config.pruned_heads == GONE


@pytest.mark.parametrize("way", ["deepcopy", "pickle", "joblib", "save"])
def test_copies_and_files_keep_the_pruning(case: Case, tmp_path: Path, way: str) -> None:
    pruned = prune_heads(case.fitted, GONE)
    if way == "save":
        pruned.save(tmp_path / "saved")
        again = type(pruned).load(tmp_path / "saved")
        config = json.loads((tmp_path / "saved" / "config.json").read_text())
        assert config["pruned_heads"] == {"0": [1, 3], "1": [0]}
    elif way == "joblib":
        joblib.dump(pruned, tmp_path / "pruned")
        again = joblib.load(tmp_path / "pruned")
    else:
        again = copy.deepcopy(pruned) if way == "deepcopy" else pickle.loads(pickle.dumps(pruned))
    np.testing.assert_array_equal(logits(again, case.X), logits(pruned, case.X))
    assert type(again.model_) is type(pruned.model_)
    assert again.model_.config.pruned_heads == GONE
    twice = prune_heads(again, {1: [1]})
    assert twice.model_.config.pruned_heads == {0: [1, 3], 1: [0, 1]}
    assert again.score(case.X, case.y) == pruned.score(case.X, case.y)


def test_a_loaded_one_is_saved_and_pickled_again(classes: Case, tmp_path: Path) -> None:
    prune_heads(classes.fitted, GONE).save(tmp_path / "one")
    once = BertClassifier.load(tmp_path / "one")
    once.save(tmp_path / "two")
    twice = pickle.loads(pickle.dumps(BertClassifier.load(tmp_path / "two")))
    np.testing.assert_array_equal(logits(twice, classes.X), logits(once, classes.X))


def test_further_fits_learn_without_the_heads(case: Case, tmp_path: Path) -> None:
    pruned = prune_heads(case.fitted, GONE)
    pruned.set_params(warm_start=True, epochs=8, learning_rate=5e-3)
    before = {name: tensor.clone() for name, tensor in pruned.model_.state_dict().items()}
    pruned.fit(case.X, case.y)
    after = pruned.model_.state_dict()
    assert {name: tensor.shape for name, tensor in after.items()} == {
        name: tensor.shape for name, tensor in before.items()
    }
    key = next(name for name in before if name.endswith("0.attention.self.query.weight"))
    assert not torch.equal(before[key], after[key])
    first, *later = [record["loss"] for record in pruned.history_]
    assert min(later) < first
    pruned.save(tmp_path / "saved")
    again = type(pruned).load(tmp_path / "saved")
    np.testing.assert_array_equal(logits(again, case.X), logits(pruned, case.X))
    cold = pruned.set_params(warm_start=False, epochs=1).fit(case.X, case.y)
    assert not getattr(cold.model_.config, "pruned_heads", None)


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "clm"])
def test_a_pruned_pretrainer(four_heads: Path, tmp_path: Path, objective: str) -> None:
    pretrainer = BertPretrainer(four_heads, objective=objective, **EXACT).fit(DOCUMENTS)
    pruned = prune_heads(pretrainer, GONE)
    want = with_factors(pretrainer, without(GONE)).score(DOCUMENTS)
    assert pruned.score(DOCUMENTS) == pytest.approx(want, abs=1e-9)
    pruned.save(tmp_path / "saved")
    loaded = BertPretrainer.load(tmp_path / "saved")
    assert loaded.score(DOCUMENTS) == pruned.score(DOCUMENTS)
    words = loaded.model_.get_input_embeddings().weight
    assert loaded.model_.get_output_embeddings().weight is words
    went_on = BertPretrainer(tmp_path / "saved", objective=objective, **EXACT).fit(DOCUMENTS)
    assert went_on.model_.config.pruned_heads == GONE


def test_the_saved_folder_is_a_pruned_model_for_every_estimator(
    classes: Case, tmp_path: Path
) -> None:
    fitted, X, _ = classes
    pruned = prune_heads(fitted, GONE)
    pruned.save(tmp_path / "saved")
    exact = {"precision": "float64", "device": "cpu"}
    for model in (tmp_path / "saved", pruned):
        vectors = BertTransformer(model, pooling="cls", **exact).fit(X)
        assert vectors.model_.config.pruned_heads == GONE
        want = BertTransformer(with_factors(fitted, without(GONE)), pooling="cls", **exact)
        np.testing.assert_allclose(vectors.transform(X), want.fit(X).transform(X), atol=1e-12)
    vectors.save(tmp_path / "vectors")
    again = BertTransformer.load(tmp_path / "vectors")
    np.testing.assert_array_equal(again.transform(X), vectors.transform(X))
    assert type(again.model_) is BertModel
    regressor = BertRegressor(tmp_path / "saved", **EXACT).fit(X, range(len(X)))
    assert regressor.model_.config.pruned_heads == GONE
    assert clone(regressor).fit(X, range(len(X))).model_.config.pruned_heads == GONE


def test_the_model_runs_as_one_of_transformers(classes: Case, tmp_path: Path) -> None:
    fitted, X, _ = classes
    pruned = prune_heads(fitted, GONE)
    pruned.save(tmp_path / "saved")
    for estimator in (pruned, BertClassifier.load(tmp_path / "saved")):
        model = copy.deepcopy(estimator.model_)
        tokens = estimator.tokenizer_(X, padding=True, return_tensors="pt")
        for implementation in ("sdpa", "eager"):
            model.set_attn_implementation(implementation)
            out = model(**tokens).logits.detach().numpy()
            np.testing.assert_allclose(out, logits(estimator, X), atol=1e-9)
        shapes = [each.shape[1] for each in model(**tokens, output_attentions=True).attentions]
        assert shapes == [2, 3]
        assert isinstance(model, BertForSequenceClassification)


def test_transformers_would_not_open_it_so_it_is_not_written(
    classes: Case, tmp_path: Path
) -> None:
    pruned = prune_heads(classes.fitted, GONE)
    with pytest.raises(
        ModelError, match=r"lost the heads \{0: \[1, 3\], 1: \[0\]\}.*save\(path\)"
    ):
        pruned.save_pretrained(tmp_path / "plain")
    assert not (tmp_path / "plain").exists()
    pruned.save(tmp_path / "saved")
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        AutoModel.from_pretrained(tmp_path / "saved")
    unpruned = prune_heads(classes.fitted, {})
    unpruned.save_pretrained(tmp_path / "plain")
    AutoModel.from_pretrained(tmp_path / "plain")


def test_a_plain_folder_that_says_what_is_gone_opens(classes: Case, tmp_path: Path) -> None:
    pruned = prune_heads(classes.fitted, GONE)
    pruned.model_.save_pretrained(tmp_path)
    pruned.tokenizer_.save_pretrained(tmp_path)
    opened = BertClassifier.from_pretrained(tmp_path, precision="float64", device="cpu")
    np.testing.assert_allclose(logits(opened, classes.X), logits(pruned, classes.X), atol=1e-6)
    assert opened.predict(classes.X).tolist() == pruned.predict(classes.X).tolist()
    assert opened.model_.config.pruned_heads == GONE


@pytest.mark.parametrize("entry", [None, {"0": [1]}, {"0": [1, 3], "1": [0, 2]}])
def test_another_list_of_heads_does_not_fit_the_weights(
    classes: Case, tmp_path: Path, entry: Any
) -> None:
    folder = tmp_path / "saved"
    prune_heads(classes.fitted, GONE).save(folder)
    (folder / "MANIFEST.json").unlink()  # it would say that the configuration was changed
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "pruned_heads": entry}))
    with pytest.raises(ModelError, match=r"lacks \d+ of the model's weights, or holds them in"):
        BertTransformer(folder).fit(classes.X)


def test_in_steps_or_at_once_is_the_same(classes: Case) -> None:
    at_once = prune_heads(classes.fitted, GONE)
    in_steps = prune_heads(prune_heads(classes.fitted, {0: [3]}), {0: [1, 3], 1: [0, 0]})
    assert in_steps.model_.config.pruned_heads == GONE
    for name, tensor in at_once.model_.state_dict().items():
        assert torch.equal(in_steps.model_.state_dict()[name], tensor)


def test_importance_and_attention_of_a_pruned_estimator(case: Case) -> None:
    pruned, gated = prune_heads(case.fitted, GONE), with_factors(case.fitted, without(GONE))
    got, want = (head_importance(each, case.X, case.y) for each in (pruned, gated))
    gone = without(GONE) == 0
    np.testing.assert_array_equal(np.isnan(got), gone)
    np.testing.assert_allclose(got[~gone], want[~gone], rtol=1e-6)
    for one, other in zip(attentions(pruned, case.X), attentions(gated, case.X), strict=True):
        assert np.isnan(one.weights[gone]).all()
        np.testing.assert_allclose(one.weights[~gone], other.weights[~gone], atol=1e-12)


IMPORTANCE = np.array([[0.1, 0.2, 0.3, 0.9], [0.8, 0.15, 0.7, 0.6]])


@pytest.mark.parametrize(
    ("fraction", "gone"),
    [
        (0, {}),
        (0.05, {}),
        (0.25, {0: [0], 1: [1]}),
        (np.float32(0.5), {0: [0, 1, 2], 1: [1]}),
        (0.75, {0: [0, 1, 2], 1: [1, 2, 3]}),
    ],
)
def test_a_fraction_takes_the_least_important(
    classes: Case, fraction: float, gone: dict[int, list[int]]
) -> None:
    pruned = prune_heads(classes.fitted, fraction=fraction, importance=IMPORTANCE)
    assert pruned is not classes.fitted
    assert pruned.model_.config.pruned_heads == gone
    want = logits(with_factors(classes.fitted, without(gone)), classes.X)
    np.testing.assert_allclose(logits(pruned, classes.X), want, atol=1e-12)


def test_each_layer_keeps_its_best_head(classes: Case) -> None:
    layers_apart = np.array([[1.0, 2, 3, 4], [10, 20, 30, 40]])
    pruned = prune_heads(classes.fitted, fraction=0.5, importance=layers_apart.tolist())
    assert pruned.model_.config.pruned_heads == {0: [0, 1, 2], 1: [0]}
    known = np.where(np.isin(layers_apart, [1, 2, 3, 10]), np.nan, layers_apart)
    again = prune_heads(pruned, fraction=0.5, importance=known)
    assert again.model_.config.pruned_heads == {0: [0, 1, 2], 1: [0, 1, 2]}


def test_a_fraction_of_what_is_left_by_its_own_importance(classes: Case) -> None:
    once = prune_heads(classes.fitted, {0: [3]})
    importance = head_importance(once, classes.X, classes.y)
    assert np.isnan(importance[0, 3])
    twice = prune_heads(once, fraction=2 / 7, importance=importance)
    gone = twice.model_.config.pruned_heads
    assert sum(map(len, gone.values())) == 3
    assert 3 in gone[0]


BAD_HEADS = [
    ({0: [0, 1, 2, 3]}, InputError, r"leaves no head in layer 0, which has \[0, 1, 2, 3\]"),
    ({2: [0]}, InputError, "heads has the key 2, but the layers are 0 to 1"),
    ({-1: [0]}, InputError, "heads has the key -1"),
    ({"0": [0]}, InputError, "heads has the key '0'"),
    ({True: [0]}, InputError, "heads has the key True"),
    ({1: [4]}, InputError, r"heads\[1\] has 4, but the heads are 0 to 3"),
    ({1: [0, -1]}, InputError, r"heads\[1\] has -1"),
    ({1: [0.0]}, InputError, r"heads\[1\] has 0\.0"),
    ({1: [False]}, InputError, r"heads\[1\] has False"),
    ({1: "0"}, InputError, r"heads\[1\] has '0'"),
    ({1: 0}, InputTypeError, "is not a dict of lists"),
    ([(0, 1)], InputTypeError, r"is not a dict of lists\. Give a list of heads for each layer"),
]


@pytest.mark.parametrize(("heads", "error", "message"), BAD_HEADS)
def test_heads_that_there_are_not(
    classes: Case, heads: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prune_heads(classes.fitted, heads)


def test_what_was_measured_of_all_heads_is_forgotten(
    four_heads: Path, sentiment: Sentiment
) -> None:
    fitted = BertClassifier(
        four_heads, validation_fraction=0.5, epochs=1, device="cpu", random_state=0
    ).fit(*sentiment)
    assert len(fitted.predict_set(sentiment.texts, 0.8)) == 40
    pruned = prune_heads(fitted, GONE)
    with pytest.raises(InputError, match="nothing was measured"):
        pruned.predict_set(sentiment.texts, 0.8)
    assert len(fitted.predict_set(sentiment.texts, 0.8)) == 40


def test_the_last_head_of_a_pruned_layer_stays(classes: Case) -> None:
    once = prune_heads(classes.fitted, {1: [0, 1, 2]})
    with pytest.raises(InputError, match=r"leaves no head in layer 1, which has \[3\]"):
        prune_heads(once, {1: [3]})
    assert prune_heads(once, {1: [0]}).model_.config.pruned_heads == {1: [0, 1, 2]}


@pytest.mark.parametrize(
    "how",
    [
        {},
        {"heads": {0: [1]}, "fraction": 0.5, "importance": IMPORTANCE},
        {"heads": {0: [1]}, "fraction": 0.5},
        {"heads": {0: [1]}, "importance": IMPORTANCE},
        {"fraction": 0.5},
        {"importance": IMPORTANCE},
    ],
)
def test_one_way_to_say_which_heads(classes: Case, how: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"in one way: heads=\{0: \[2, 5\]\}, or fraction="):
        prune_heads(classes.fitted, **how)


@pytest.mark.parametrize(
    ("fraction", "importance", "error", "message"),
    [
        (1, IMPORTANCE, InputError, "fraction=1 must be a number from 0 to below 1"),
        (-0.1, IMPORTANCE, InputError, r"fraction=-0\.1 must be"),
        (float("nan"), IMPORTANCE, InputError, "fraction=nan must be"),
        ("half", IMPORTANCE, InputError, "fraction='half' must be"),
        (0.9, IMPORTANCE, InputError, r"fraction=0\.9 is 7 of 8 heads, but .*fraction=6/8"),
        (0.5, IMPORTANCE.T, InputError, r"importance has the shape \(4, 2\)\. Give .*\(2, 4\)"),
        (0.5, IMPORTANCE[0], InputError, r"importance has the shape \(4,\)"),
        (0.5, [["a"] * 4] * 2, InputTypeError, "importance does not hold numbers"),
        (0.5, [[1], [2, 3]], InputTypeError, "importance does not hold numbers"),
        (0.5, IMPORTANCE * [1, 1, np.nan, 1], InputError, r"importance\[0, 2\] is nan"),
        (0.5, IMPORTANCE * [[1], [np.inf]], InputError, r"importance\[1, 0\] is inf"),
    ],
)
def test_fractions_and_importances_that_cannot_be(
    classes: Case, fraction: Any, importance: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        prune_heads(classes.fitted, fraction=fraction, importance=importance)


# --- attention -----------------------------------------------------------------------------------


def eager(model: Any, tokens: Any) -> np.ndarray:
    """What transformers says itself, ``(n_layers, n_heads, n_tokens, n_tokens)``, of one row."""
    twin = copy.deepcopy(model).eval()
    twin.set_attn_implementation("eager")
    with torch.no_grad():
        found = twin(**tokens, output_attentions=True).attentions
    return torch.cat(found).numpy()


@pytest.mark.parametrize("name", ["classes", "pairs"])
def test_attention_equals_that_of_transformers(four_heads: Path, name: str) -> None:
    rows = sample_of(name, None, None)
    single = {**USUAL, "precision": "float32"}
    fitted = BertClassifier(four_heads, **single).fit(rows.X, rows.y)
    found = attentions(fitted, rows.X)
    assert [each.row for each in found] == list(range(len(rows.X)))
    for text, (_, tokens, weights) in zip(rows.X, found, strict=True):
        pair = (text,) if name == "classes" else text
        told = fitted.tokenizer_(*pair, return_tensors="pt")
        assert tokens == told.tokens()
        assert weights.dtype == np.float32
        assert weights.shape == (N_LAYERS, N_HEADS, len(tokens), len(tokens))
        np.testing.assert_allclose(weights, eager(fitted.model_, told), rtol=0, atol=1e-5)


def test_attention_of_the_real_encoder(minilm: Path) -> None:
    X = ["The parcel was due on Monday and I still have nothing.", "Where is it?", ""]
    transformer = BertTransformer(minilm, precision="float32", device="cpu").fit(X)
    for text, (_, tokens, weights) in zip(X, attentions(transformer, X), strict=True):
        told = transformer.tokenizer_(text, return_tensors="pt")
        assert tokens == told.tokens()
        np.testing.assert_allclose(weights, eager(transformer.model_, told), rtol=0, atol=1e-5)


def test_rows_of_tokens_and_the_rows_they_come_from(case: Case) -> None:
    found = attentions(case.fitted, case.X)
    rows = [each.row for each in found]
    assert rows == sorted(rows)
    assert set(rows) == set(range(len(case.X)))
    for _, tokens, weights in found:
        assert tokens[0] == "[CLS]"
        assert weights.shape == (N_LAYERS, N_HEADS, len(tokens), len(tokens))
        assert weights.dtype == np.float64
        np.testing.assert_allclose(weights.sum(axis=-1), 1)


def test_windows_and_options_have_rows_of_their_own(four_heads: Path) -> None:
    rows = sample_of("choices", None, None)
    ranker = BertChoiceRanker(four_heads, **EXACT).fit(rows.X, rows.y)
    found = attentions(ranker, rows.X)
    assert [each.row for each in found] == [
        row for row, (_, options) in enumerate(rows.X) for _ in options
    ]
    assert found[3].tokens[-2:] == ["slow", "[SEP]"]  # the second option of the second row
    words = BertTransformer(four_heads, max_length=6, long_text="windows").fit(["good"])
    assert [each.row for each in attentions(words, ["a good book", "the best film in town"])] == [
        0, 1, 1,
    ]  # fmt: skip


def test_all_layers_are_seen_whatever_is_read(four_heads: Path, classes: Case) -> None:
    for how in (
        {"layers": 1},
        {"layers": [0, 1], "layer_join": "concat"},
        {"pooling": "mean_max"},
    ):
        transformer = BertTransformer(four_heads, device="cpu", precision="float64", **how)
        transformer.fit(classes.X)
        want = transformer.transform(classes.X)
        for each in attentions(transformer, classes.X):
            assert len(each.weights) == N_LAYERS
            assert np.isfinite(each.weights).all()
        np.testing.assert_array_equal(transformer.transform(classes.X), want)


def test_a_mask_scales_what_heads_give(case: Case) -> None:
    mask = np.array([[1, 0, 0.5, 1], [0, 1, 1, 2]])
    scaled = attentions(with_factors(case.fitted, mask), case.X)
    masked = attentions(case.fitted, case.X, head_mask=mask.tolist())
    plain = attentions(case.fitted, case.X, head_mask=np.ones((N_LAYERS, N_HEADS)))
    for got, want, usual in zip(masked, scaled, plain, strict=True):
        assert got[:2] == want[:2]
        np.testing.assert_allclose(got.weights, want.weights * mask[:, :, None, None], atol=1e-12)
        assert np.abs(got.weights[1, 1] - usual.weights[1, 1]).max() > 0


def test_without_a_mask_nothing_is_masked(case: Case) -> None:
    ones = attentions(case.fitted, case.X, head_mask=np.ones((N_LAYERS, N_HEADS)))
    for got, want in zip(attentions(case.fitted, case.X), ones, strict=True):
        np.testing.assert_array_equal(got.weights, want.weights)


@pytest.mark.parametrize(
    ("mask", "error", "message"),
    [
        (np.ones((4, 2)), InputError, r"head_mask has the shape \(4, 2\)\. Give one number"),
        (np.full((2, 4), np.nan), InputError, r"head_mask\[0, 0\] is nan"),
        ({0: [1]}, InputTypeError, "head_mask does not hold numbers"),
    ],
)
def test_masks_that_cannot_be(
    classes: Case, mask: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        attentions(classes.fitted, classes.X, head_mask=mask)


def test_words_that_read_both_ways_after_they_did_not(four_heads: Path) -> None:
    texts = ["the food is good", "i love the room"]
    writer = BertPretrainer(four_heads, objective="clm", **EXACT).fit(texts)
    with pytest.raises(InputTypeError, match=r"BertTransformer\(model=estimator\)"):
        attentions(writer, texts)
    with pytest.warns(SkbertWarning, match="is a decoder"):
        reader = BertTransformer(writer, device="cpu", precision="float64").fit(texts)
    for text, (_, _, weights) in zip(texts, attentions(reader, texts), strict=True):
        assert np.abs(weights - np.tril(weights)).max() > 0.01
        told = reader.tokenizer_(text, return_tensors="pt")
        np.testing.assert_allclose(weights, eager(reader.model_, told), atol=1e-12)


def test_on_each_device(four_heads: Path, classes: Case, device: str) -> None:
    fitted, X, y = classes
    there = copy.deepcopy(fitted).set_params(device=device)
    importance = head_importance(there, X, y)
    np.testing.assert_allclose(importance, head_importance(fitted, X, y), rtol=1e-6)
    for got, want in zip(attentions(there, X), attentions(fitted, X), strict=True):
        np.testing.assert_allclose(got.weights, want.weights, atol=1e-9)
    pruned = prune_heads(there, fraction=0.25, importance=importance)
    assert pruned.predict(X).shape == (len(X),)
    assert pruned.model_.device.type == device
