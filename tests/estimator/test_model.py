"""``model_``: an ordinary transformers model, of which every prediction reads what it is now."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from conftest import Sentiment, tiny_vocabulary
from sklearn.exceptions import NotFittedError
from support.families import save_tiny
from torch import nn
from transformers import BertModel, pipeline

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core.families import FAMILIES
from skbert._core.infer import infer
from skbert._core.models.network import inference_network
from skbert._core.runtime.device import Precision
from skbert._core.training.stepper import Stepper
from skbert._estimator.base import encode
from skbert.exceptions import (
    InputError,
    InputTypeError,
    ModelError,
    NonFiniteError,
    SkbertWarning,
    TruncationWarning,
)
from skbert.inspection import prune_heads
from skbert.testing._samples import sample_of

SETTINGS: dict[str, Any] = {
    "epochs": 1,
    "learning_rate": 1e-2,
    "precision": "float32",
    "device": "cpu",
    "random_state": 0,
}
TEXTS = ["good food and friendly staff", "bad", "a book, a film, and an awful, awful end"]

# Kind of rows, estimator, and what is special about it.
CASES: dict[str, tuple[str, Callable[..., Any], dict[str, Any]]] = {
    "pooler": ("classes", BertClassifier, {"pooling": "pooler"}),
    "first token": ("classes", BertClassifier, {"pooling": "cls"}),
    "mean": ("classes", BertClassifier, {"pooling": "mean"}),
    "max": ("classes", BertClassifier, {"pooling": "max"}),
    "pairs": ("pairs", BertClassifier, {"pooling": "mean"}),
    "labels": ("labels", BertClassifier, {"pooling": "mean"}),
    "temperature": (
        "classes", BertClassifier,
        {"pooling": "mean", "calibrate": True, "validation_fraction": 0.4},
    ),
    "numbers": ("numbers", BertRegressor, {"pooling": "mean"}),
    "windows": ("classes", BertClassifier, {"max_length": 6, "long_text": "windows"}),
    "tags": ("tags", BertTokenTagger, {}),
    "spans": ("spans", BertSpanExtractor, {}),
    "choices": ("choices", BertChoiceRanker, {"pooling": "mean"}),
}  # fmt: skip


def fit(folder: Path, name: str, **changes: Any) -> tuple[Any, list[Any]]:
    kind, estimator, settings = CASES[name]
    sample = sample_of(kind, None, None)
    settings = {"model": folder, **SETTINGS, **settings, **changes}
    return estimator(**settings).fit(sample.X, sample.y), sample.X


def predicted_from(estimator: Any, X: list[Any]) -> tuple[np.ndarray[Any, Any], Any]:
    """The logits of rows of tokens that predictions come from, and these rows."""
    items = encode(
        estimator._fitted.task,
        estimator._rows(X, estimator._fitted.record),
        None,
        estimator._fitted.network,
    )
    precision = Precision("float32", torch.device("cpu"))
    return infer(estimator._fitted.network, items, precision).values, items


def of_the_model(estimator: Any, items: Any) -> np.ndarray[Any, Any]:
    """The logits of the same rows, from ``model_`` called as the documentation of BERT says."""
    rows = [items.tokens.ids[i].tolist() for i in range(len(items.tokens))]
    second = items.tokens.second.tolist()
    types = [
        [int(at >= start) for at in range(len(row))]
        for row, start in zip(rows, second, strict=True)
    ]
    inputs = estimator.tokenizer_.pad(
        {"input_ids": rows, "token_type_ids": types}, return_tensors="pt"
    )
    if isinstance(estimator, BertChoiceRanker):
        inputs = {name: values[:, None] for name, values in inputs.items()}
    with torch.no_grad():
        out = estimator.model_(**inputs)
    if "start_logits" in out:
        logits = torch.stack([out.start_logits, out.end_logits], dim=-1)
    else:
        logits = out.logits
    if estimator._fitted.network.head.reads == "tokens":
        logits = logits[inputs["attention_mask"].bool()]
    return logits.numpy()


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize("name", CASES)
def test_it_gives_the_logits_that_are_predicted_from(tiny_model: Path, name: str) -> None:
    estimator, X = fit(tiny_model, name)
    want, items = predicted_from(estimator, X)
    assert np.abs(want).max() > 1e-4
    np.testing.assert_allclose(of_the_model(estimator, items), want, atol=2e-5)


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp"])
def test_of_masked_words_it_gives_what_is_predicted(tiny_model: Path, objective: str) -> None:
    pretrainer = BertPretrainer(tiny_model, objective=objective, **SETTINGS)
    pretrainer.fit([[text, text] for text in TEXTS])
    text = "the [MASK] is good"
    guesses = pretrainer.predict_masked([text], top_k=3)
    rows = [text, text + " and the food, too"]
    inputs = pretrainer.tokenizer_(rows, return_tensors="pt", padding=True)
    with torch.no_grad():
        out = pretrainer.model_(**inputs)
    logits = (out.prediction_logits if "nsp" in objective else out.logits)[0, 2]
    pieces = pretrainer.tokenizer_.convert_ids_to_tokens(logits.topk(3).indices)
    assert guesses["token"].tolist() == pieces
    seen: list[Any] = []
    pretrainer.model_.register_forward_hook(lambda *_: seen.append(1))
    again = pretrainer.predict_masked([text], top_k=3)
    assert seen
    np.testing.assert_allclose(again["probability"], guesses["probability"], atol=1e-6)
    if "nsp" in objective:
        second = pretrainer.tokenizer_([[text, text]], return_tensors="pt")
        with torch.no_grad():
            follows = torch.softmax(pretrainer.model_(**second).seq_relationship_logits, 1)[0, 0]
        assert pretrainer.next_sentence_proba([(text, text)])[0] == pytest.approx(
            float(follows), rel=1e-4
        )


def test_of_next_words_it_gives_what_is_predicted(tiny_model: Path) -> None:
    pretrainer = BertPretrainer(tiny_model, objective="clm", **SETTINGS).fit(TEXTS)
    inputs = pretrainer.tokenizer_(TEXTS[:1], return_tensors="pt")
    with torch.no_grad():
        loss = pretrainer.model_(**inputs, labels=inputs["input_ids"]).loss
    want = pretrainer.perplexity(TEXTS[:1])
    assert np.exp(float(loss)) == pytest.approx(want, rel=1e-4)
    pretrainer.model_.cls.register_forward_hook(lambda _, given, out: 2.0 * out)
    assert abs(pretrainer.perplexity(TEXTS[:1]) / want - 1.0) > 1e-3


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
@pytest.mark.parametrize("way", ["pruned", "pickled", "saved", "grown"])
def test_it_still_does_after(tiny_model: Path, tmp_path: Path, pooling: str, way: str) -> None:
    estimator, X = fit(tiny_model, "mean", pooling=pooling)
    match way:
        case "pruned":
            estimator = prune_heads(estimator, {0: [1]})
        case "pickled":
            estimator = pickle.loads(pickle.dumps(estimator))
        case "saved":
            estimator.save(tmp_path / "saved")
            estimator = BertClassifier.load(tmp_path / "saved")
        case "grown":
            estimator.partial_fit(X[:2], ["new", "good"])
    inputs = estimator.tokenizer_(X, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = estimator.model_(**inputs).logits.numpy()
    scores = torch.softmax(torch.from_numpy(logits), dim=1).numpy()
    np.testing.assert_allclose(estimator.predict_proba(X), scores, atol=1e-5)


def test_positions_that_are_distances_are_read(tmp_path: Path) -> None:
    pretrainer = BertPretrainer(
        None, num_hidden_layers=2, hidden_size=32, num_attention_heads=2, intermediate_size=64,
        position_embedding_type="relative_key_query", **SETTINGS,
    )  # fmt: skip
    pretrainer.fit(TEXTS * 4).save(tmp_path / "saved")
    classifier = BertClassifier(tmp_path / "saved", pooling="mean", **SETTINGS)
    classifier.fit(TEXTS, ["a", "b", "a"])
    want = scores(classifier.model_, classifier.tokenizer_, TEXTS)
    np.testing.assert_allclose(classifier.predict_proba(TEXTS), want, atol=1e-5)


def test_transformers_pipeline_takes_it(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # which it would set itself
    classifier, X = fit(tiny_model, "mean")
    told = pipeline("text-classification", classifier.model_, tokenizer=classifier.tokenizer_)(X)
    assert [row["label"] for row in told] == classifier.predict(X).tolist()
    scores = [row["score"] for row in told]
    np.testing.assert_allclose(scores, classifier.predict_proba(X).max(axis=1), atol=1e-5)


@pytest.mark.long
def test_torch_exports_it(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    inputs = dict(classifier.tokenizer_(X, padding=True, return_tensors="pt"))
    program = torch.export.export(classifier.model_, (), inputs)
    scores = torch.softmax(program.module()(**inputs).logits, dim=1).detach().numpy()
    np.testing.assert_allclose(classifier.predict_proba(X), scores, atol=1e-5)


@pytest.mark.long  # a process
def test_it_opens_where_only_the_model_is_unpickled(tiny_model: Path, tmp_path: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    inputs = dict(classifier.tokenizer_(X, padding=True, return_tensors="pt"))
    parts = {"model": classifier.model_, "inputs": inputs, "want": classifier.predict_proba(X)}
    (tmp_path / "parts").write_bytes(pickle.dumps(parts))
    code = """
        import pickle, sys
        parts = pickle.load(open(sys.argv[1], "rb"))
        got = parts["model"](**parts["inputs"]).logits.softmax(1).detach().numpy()
        assert abs(got - parts["want"]).max() < 1e-5
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "parts")]
    subprocess.run(command, check=True)


# --- what is done to it --------------------------------------------------------------------------


def by_data(model: Any) -> None:
    model.bert.encoder.layer[1].intermediate.dense.weight.data[3] += 5.0
    model.bert.encoder.layer[1].output.dense.weight.data[:5, 3] += 5.0


def by_few_rows_of_a_fused_step(model: Any) -> None:
    weight = model.bert.encoder.layer[0].output.dense.weight
    weight.grad = torch.zeros_like(weight)
    weight.grad[3] = 1.0
    torch.optim.AdamW([weight], lr=5.0, weight_decay=0.0, fused=True).step()


def by_another_linear(model: Any) -> None:
    attention = model.bert.encoder.layer[0].attention.self
    attention.value = nn.Linear(32, 32)
    attention.value.weight.data[:9].fill_(2.0)


def by_a_linear_without_bias(model: Any) -> None:
    model.bert.encoder.layer[0].attention.self.value = nn.Linear(32, 32, bias=False)
    model.bert.encoder.layer[0].attention.self.value.weight.data[:9].fill_(2.0)


def by_a_wider_pair(model: Any) -> None:
    layer = model.bert.encoder.layer[1]
    layer.intermediate.dense, layer.output.dense = nn.Linear(32, 96), nn.Linear(96, 32)


def by_an_activation(model: Any) -> None:
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn = nn.Sigmoid()


def by_the_function_of_an_activation(model: Any) -> None:
    model.bert.encoder.layer[0].intermediate.intermediate_act_fn.act = torch.sigmoid


def by_a_hook(model: Any) -> None:
    model.bert.encoder.layer[0].register_forward_hook(lambda _, given, out: 0 * out + 1.0)


def by_a_hook_inside(model: Any) -> None:
    dense = model.bert.encoder.layer[1].output.dense
    dense.register_forward_pre_hook(lambda _, given: (given[0] * 3.0,))


def by_a_hook_on_the_whole(model: Any) -> None:
    def shift(_: Any, given: Any, out: Any) -> Any:
        out.logits = out.logits.flip(-1) + 1.0
        return out

    model.register_forward_hook(shift)


def by_another_forward(model: Any) -> None:
    layer = model.bert.encoder.layer[1]
    layer.forward = lambda states, *_, **__: states


def by_a_head(model: Any) -> None:
    model.classifier = nn.Sequential(nn.Linear(32, 8), nn.Tanh(), nn.Linear(8, 2))


def by_a_normalisation_without_bias(model: Any) -> None:
    model.bert.encoder.layer[0].output.LayerNorm = nn.LayerNorm(32, bias=False)
    model.bert.encoder.layer[0].output.LayerNorm.weight.data.mul_(3.0)


def by_a_strided_weight(model: Any) -> None:
    norm = model.bert.encoder.layer[0].output.LayerNorm
    norm.weight.data = torch.linspace(0.1, 9.0, 64)[::2]


def by_an_expanded_weight(model: Any) -> None:
    norm = model.bert.encoder.layer[1].attention.output.LayerNorm
    norm.weight.data = torch.tensor(2.5).expand(32)


def by_a_turned_weight(model: Any) -> None:
    dense = model.bert.encoder.layer[0].attention.output.dense
    dense.weight.data = 40 * dense.weight.data.t()


def by_fewer_layers(model: Any) -> None:
    model.bert.encoder.layer = model.bert.encoder.layer[:1]


def by_shared_memory(model: Any) -> None:
    for layer in model.bert.encoder.layer:
        layer.output.LayerNorm.weight.data = layer.attention.output.LayerNorm.weight.data
        layer.output.LayerNorm.weight.data *= 1.5


def by_half_precision(model: Any) -> None:
    by_data(model)
    model.half()


def by_an_epsilon(model: Any) -> None:
    model.bert.encoder.layer[1].output.LayerNorm.eps = 1.0


def with_scaling(model: Any, scaling: float) -> None:
    attention = model.bert.encoder.layer[0].attention.self
    attention.query.weight.data *= 200
    attention.value.weight.data *= 20
    attention.scaling = scaling


def by_scores_of_zero(model: Any) -> None:
    with_scaling(model, 0.0)


def by_the_sign_of_scores(model: Any) -> None:
    with_scaling(model, -1.0)


def by_a_method(model: Any) -> None:
    model.bert.encoder.layer[1].feed_forward_chunk = lambda states: 2 * states


def by_positions_it_keeps(model: Any) -> None:
    kept = model.bert.embeddings.position_ids
    kept.copy_(kept.flip(1))


CHANGES = [
    by_data, by_few_rows_of_a_fused_step, by_another_linear, by_a_linear_without_bias,
    by_a_wider_pair, by_an_activation, by_the_function_of_an_activation, by_a_hook,
    by_a_hook_inside, by_a_hook_on_the_whole, by_another_forward, by_a_head,
    by_a_normalisation_without_bias, by_a_strided_weight, by_an_expanded_weight,
    by_a_turned_weight, by_fewer_layers, by_shared_memory, by_half_precision, by_an_epsilon,
    by_scores_of_zero, by_the_sign_of_scores, by_a_method, by_positions_it_keeps,
]  # fmt: skip


def scores(model: Any, tokenizer: Any, texts: list[str]) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        logits = model(**tokenizer(texts, padding=True, return_tensors="pt")).logits
    return torch.softmax(logits.double(), dim=1).numpy()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_has_its_effect_on_the_next_prediction(
    tiny_model: Path, change: Callable[[Any], None], precision: str
) -> None:
    torch.manual_seed(0)
    classifier, X = fit(tiny_model, "mean", precision=precision)
    before = classifier.predict_proba(X)
    model = classifier.model_
    assert np.array_equal(classifier.predict_proba(X), before)
    change(model)
    after = classifier.predict_proba(X)
    assert np.abs(after - before).max() > 1e-3
    tolerance = 1e-5 if precision == "float32" else 3e-2
    want = scores(model, classifier.tokenizer_, X)
    np.testing.assert_allclose(after, want, atol=tolerance)


@pytest.mark.parametrize("part", ["bert", "bert.encoder.layer.0"])
def test_a_compiled_encoder_is_not_run_in_place_of_a_changed_one(
    part: str, tiny_model: Path, lively_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda encoder, **_: encoder.forward)  # as quick
    fitted = BertClassifier(lively_model, compile=True, **SETTINGS).fit(TEXTS, [0, 1, 0])
    other = BertModel.from_pretrained(tiny_model)  # its layers attend over whole batches
    changed = other if part == "bert" else other.encoder.layer[0]
    before = fitted.predict_proba(TEXTS)
    fitted.model_.set_submodule(part, copy.deepcopy(changed))
    alone = np.concatenate([fitted.predict_proba([text]) for text in TEXTS])
    np.testing.assert_allclose(fitted.predict_proba(TEXTS), alone, atol=1e-5)
    assert np.abs(alone - before).max() > 1e-3


def test_hidden_states_may_be_asked_for_and_nothing_becomes_slower(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    want = classifier.predict_proba(X)
    inputs = classifier.tokenizer_(X, padding=True, return_tensors="pt")
    assert len(classifier.model_(**inputs, output_hidden_states=True).hidden_states) == 3
    assert inference_network(classifier._fitted.network).is_packed
    assert np.array_equal(classifier.predict_proba(X), want)
    again = pickle.loads(pickle.dumps(classifier))
    assert np.array_equal(again.predict_proba(X), want)
    assert len(again.model_(**inputs, output_hidden_states=True).hidden_states) == 3
    assert len(classifier.model_(**inputs, output_hidden_states=True).hidden_states) == 3


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
def test_an_output_layer_that_is_not_linear_cannot_grow(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    by_a_head(classifier.model_)
    with pytest.raises(ModelError, match="Sequential"):
        classifier.partial_fit(X, ["good", "bad"] * 3 + ["new", "good"])


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize("change", [change for change in CHANGES if change is not by_a_head])
def test_what_was_changed_goes_on_learning(
    tiny_model: Path, change: Callable[[Any], None]
) -> None:
    torch.manual_seed(0)
    classifier, X = fit(tiny_model, "mean", precision="bfloat16")
    change(classifier.model_)
    classifier.partial_fit(X, ["good", "bad"] * 4)
    after = classifier.predict_proba(X)
    assert np.isfinite(after).all()
    want = scores(classifier.model_, classifier.tokenizer_, X)
    np.testing.assert_allclose(after, want, atol=3e-2)


@pytest.mark.filterwarnings("ignore::skbert.exceptions.SkbertWarning")
@pytest.mark.parametrize("name", CASES)
def test_hooks_run_in_every_estimator(tiny_model: Path, name: str) -> None:
    estimator, X = fit(tiny_model, name)
    want, items = predicted_from(estimator, X)
    seen: list[Any] = []
    estimator.model_.register_forward_hook(lambda *_: seen.append(1))
    got, _ = predicted_from(estimator, X)
    assert seen
    np.testing.assert_allclose(got, want, atol=2e-5)
    assert items.tokens.ids.values.size == len(got) or len(got) == len(items.tokens)


def test_a_hook_on_all_modules_there_are_runs(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    want, seen = classifier.predict_proba(X), set()
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, given, out: seen.add(type(module).__name__)
    )
    try:
        np.testing.assert_allclose(classifier.predict_proba(X), want, atol=1e-5)
    finally:
        hook.remove()
    assert {"BertForSequenceClassification", "BertLayer", "Linear", "LayerNorm"} <= seen


def test_training_mode_makes_no_prediction_random(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    want = classifier.predict_proba(X)
    classifier.model_.train()
    assert np.array_equal(classifier.predict_proba(X), want)
    assert not classifier.model_.training


def test_another_attention_gives_the_same(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    want = classifier.predict_proba(X)
    classifier.model_.set_attn_implementation("eager")
    inputs = classifier.tokenizer_(X, padding=True, return_tensors="pt")
    attentions = classifier.model_(**inputs, output_attentions=True).attentions
    assert len(attentions) == 2
    assert attentions[0].shape[:2] == (len(X), 2)
    np.testing.assert_allclose(classifier.predict_proba(X), want, atol=1e-5)


def test_features_are_read_off_a_changed_encoder(tiny_model: Path, tmp_path: Path) -> None:
    transformer = BertTransformer(
        tiny_model, pooling="mean", memory=str(tmp_path), precision="float32"
    )
    before = transformer.fit_transform(TEXTS)
    assert np.array_equal(transformer.transform(TEXTS), before)
    layer = transformer.model_.encoder.layer[1]
    layer.output.dense.weight.data[5] += 2.0
    changed = transformer.transform(TEXTS)
    assert np.abs(changed - before).max() > 1e-3
    hook = layer.register_forward_hook(lambda _, given, out: out * 0 + 1.0)
    np.testing.assert_allclose(transformer.transform(TEXTS), 1.0, atol=1e-5)
    assert np.abs(np.concatenate(transformer.transform_tokens(TEXTS)) - 1.0).max() < 1e-5
    hook.remove()
    assert np.array_equal(transformer.transform(TEXTS), changed)


@pytest.mark.parametrize(
    "change",
    [by_an_epsilon, by_scores_of_zero, by_a_method, by_positions_it_keeps,
     by_the_function_of_an_activation],
)  # fmt: skip
def test_what_is_no_weight_is_in_the_key_of_kept_vectors(
    tiny_model: Path, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    def fitted(memory: Path | None) -> BertTransformer:
        how = {"pooling": "mean", "precision": "float32"}
        return BertTransformer(tiny_model, memory=memory, **how).fit(TEXTS)

    keeping, without = fitted(tmp_path), fitted(None)
    before = keeping.transform(TEXTS)
    for transformer in (keeping, without):
        change(SimpleNamespace(bert=transformer.model_))
    after = keeping.transform(TEXTS)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, without.transform(TEXTS), atol=1e-6)
    np.testing.assert_array_equal(fitted(tmp_path).transform(TEXTS), before)


def test_how_far_a_layer_sees_is_what_the_configuration_says(tmp_path: Path) -> None:
    folder = save_tiny(FAMILIES["modernbert"], tmp_path / "model", tiny_vocabulary(), "embedding")
    texts = ["good food and friendly staff " * 8]
    transformer = BertTransformer(folder, pooling="mean", precision="float32").fit(texts)
    model = transformer.model_
    for layer in model.layers:
        layer.attn.Wqkv.weight.data *= 6
    before = transformer.transform(texts)
    model.config.local_attention = 4
    inputs = transformer.tokenizer_(texts, return_tensors="pt")
    with torch.no_grad():
        states = model(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
    after = transformer.transform(texts)
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, states.mean(1).numpy(), atol=1e-5)


@pytest.mark.filterwarnings("ignore::skbert.exceptions.TruncationWarning")
@pytest.mark.parametrize("family", ["roberta", "mpnet"])
def test_positions_are_counted_as_the_model_counts_them(tmp_path: Path, family: str) -> None:
    folder = save_tiny(FAMILIES[family], tmp_path / "model", tiny_vocabulary(), "embedding")
    assert tiny_vocabulary()["[PAD]"] == 0  # MPNet's begin after 1 all the same
    transformer = BertTransformer(folder, pooling="mean", precision="float32").fit(TEXTS)
    model = transformer.model_
    model.embeddings.position_embeddings.weight.data *= 50
    for text, vector in zip(TEXTS, transformer.transform(TEXTS), strict=True):
        inputs = transformer.tokenizer_([text], return_tensors="pt")
        with torch.no_grad():
            states = model(inputs["input_ids"], inputs["attention_mask"]).last_hidden_state
        np.testing.assert_allclose(vector, states[0].mean(0).numpy(), atol=1e-5)
    longest = "a " * model.config.max_position_embeddings
    transformer.set_params(max_length=None).fit([longest]).transform([longest])
    inputs = transformer.tokenizer_([longest], truncation=True, return_tensors="pt")
    transformer.model_(inputs["input_ids"], inputs["attention_mask"])


@pytest.mark.parametrize("n_outputs", [1, 3])
def test_an_output_layer_of_another_size_is_refused(tiny_model: Path, n_outputs: int) -> None:
    classifier, X = fit(tiny_model, "mean")
    classifier.model_.classifier = nn.Linear(32, n_outputs)
    with pytest.raises(ModelError, match=f"has {n_outputs} outputs, but 2 are needed"):
        classifier.predict(X)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_what_overflows_is_no_vector(tiny_model: Path, precision: str) -> None:
    transformer = BertTransformer(tiny_model, pooling="mean", precision=precision).fit(TEXTS)
    transformer.model_.encoder.layer[1].intermediate.dense.weight.data *= 1e25
    with pytest.raises(NonFiniteError):
        transformer.transform(TEXTS)


@pytest.mark.parametrize("freeze", [1, "all"])
def test_an_earlier_model_has_no_hold_on_a_later_one(tiny_model: Path, freeze: int | str) -> None:
    classifier, X = fit(tiny_model, "mean", freeze=freeze)
    earlier = classifier.model_
    classifier.partial_fit(X, classifier.predict(X))
    before = classifier.predict_proba(X)
    for weight in earlier.parameters():
        weight.data.fill_(0.5)
    np.testing.assert_array_equal(classifier.predict_proba(X), before)


def test_features_of_a_changed_classifier_are_of_what_it_became(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    by_another_forward(classifier.model_)
    transformer = BertTransformer(classifier, pooling="cls", precision="float32").fit(X)
    inputs = classifier.tokenizer_(X, padding=True, return_tensors="pt")
    with torch.no_grad():
        first = classifier.model_.bert(**inputs).last_hidden_state[:, 0].numpy()
    np.testing.assert_allclose(transformer.transform(X), first, atol=1e-5)


def by_a_bias_it_lacks(model: Any) -> None:
    model.bert.encoder.layer[0].output.LayerNorm.bias = None


@pytest.mark.parametrize(
    "change",
    [by_a_wider_pair, by_an_activation, by_a_head, by_an_epsilon, by_another_forward,
     by_a_bias_it_lacks],
)  # fmt: skip
def test_what_cannot_be_opened_again_is_not_saved(
    tiny_model: Path, tmp_path: Path, change: Callable[[Any], None]
) -> None:
    classifier, _ = fit(tiny_model, "mean")
    change(classifier.model_)
    with pytest.raises(ModelError, match="replaced"):
        classifier.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_hooks_are_not_saved_without_a_word(tiny_model: Path, tmp_path: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    by_a_hook_inside(classifier.model_)
    with pytest.warns(SkbertWarning, match="Hooks of model_ are not saved"):
        classifier.save(tmp_path / "saved")
    again = BertClassifier.load(tmp_path / "saved")
    assert np.abs(again.predict_proba(X) - classifier.predict_proba(X)).max() > 1e-3


def test_a_changed_model_stays_changed_in_a_copy(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    by_another_linear(classifier.model_)
    by_an_activation(classifier.model_)
    want = classifier.predict_proba(X)
    for again in (copy.deepcopy(classifier), pickle.loads(pickle.dumps(classifier))):
        np.testing.assert_allclose(again.predict_proba(X), want, atol=1e-6)
        by_data(again.model_)
        assert np.abs(again.predict_proba(X) - want).max() > 1e-3
    np.testing.assert_allclose(classifier.predict_proba(X), want, atol=1e-6)


class LowRank(nn.Module):
    """A layer with a product of two small matrices beside it, which alone is trained."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.base_layer = layer.requires_grad_(False)
        self.down, self.up = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)
        nn.init.normal_(self.up.weight, std=3.0)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.base_layer(states) + self.up(self.down(states))


def by_an_adapter(model: Any) -> None:
    """What peft does in place, by hand."""
    model.base_model.requires_grad_(False)
    for layer in model.base_model.encoder.layer:
        layer.attention.self.value = LowRank(layer.attention.self.value)


def by_peft(model: Any) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    settings = peft.LoraConfig(task_type="SEQ_CLS", target_modules=["query", "value"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's own
        peft.get_peft_model(model, settings)


@pytest.mark.parametrize("pooling", ["pooler", "mean"])
@pytest.mark.parametrize("adapt", [by_an_adapter, by_peft])
def test_an_adapter_trains_alone_through_its_own_modules(
    tiny_model: Path, adapt: Callable[[Any], None], pooling: str
) -> None:
    torch.manual_seed(0)
    classifier, X = fit(tiny_model, pooling, warm_start=True, epochs=3)
    adapt(classifier.model_)
    fixed = {name for name, p in classifier.model_.named_parameters() if not p.requires_grad}
    before = {name: p.clone() for name, p in classifier.model_.named_parameters()}
    assert len(fixed) > 30
    y = [label for _, label in zip(X, classifier.predict(X)[::-1], strict=True)]
    classifier.fit(X, y)
    after = dict(classifier.model_.named_parameters())
    assert {name for name, p in after.items() if not p.requires_grad} == fixed
    changed = {name for name, p in after.items() if not torch.equal(p, before[name])}
    assert changed == after.keys() - fixed
    want = scores(classifier.model_, classifier.tokenizer_, X)
    np.testing.assert_allclose(classifier.predict_proba(X), want, atol=1e-5)


class Wrapper(nn.Module):
    """What peft's models are to the caller."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def get_base_model(self) -> Any:
        return self.model


@pytest.mark.parametrize("pooling", ["pooler", "mean"])
def test_a_model_can_be_put_in(tiny_model: Path, pooling: str) -> None:
    torch.manual_seed(0)
    classifier, X = fit(tiny_model, pooling, warm_start=True)
    other, _ = fit(tiny_model, pooling)
    other.model_.classifier.bias.data += torch.tensor([0.0, 1.0])
    want = other.predict_proba(X)
    assert np.abs(classifier.predict_proba(X) - want).max() > 0.1
    state, plain = other.model_.state_dict(), type(classifier.model_)(classifier.model_.config)
    plain.load_state_dict(state)
    for model in (other.model_, Wrapper(plain)):
        classifier.model_ = model
        np.testing.assert_allclose(classifier.predict_proba(X), want, atol=1e-6)
        np.testing.assert_allclose(
            scores(classifier.model_, classifier.tokenizer_, X), want, atol=1e-5
        )
    adapted = copy.deepcopy(plain)
    by_an_adapter(adapted)
    classifier.model_ = Wrapper(adapted)
    assert np.abs(classifier.predict_proba(X) - want).max() > 1e-5
    before = adapted.bert.encoder.layer[1].attention.self.value.up.weight.clone()
    classifier.fit(X, classifier.predict(X))
    after = classifier.model_.bert.encoder.layer[1].attention.self.value
    assert not torch.equal(after.up.weight, before)
    assert torch.equal(after.base_layer.weight, adapted.bert.encoder.layer[1].attention.self.value
                       .base_layer.weight)  # fmt: skip
    with pytest.raises(ModelError, match="merge the adapter"):
        classifier.save("nowhere")


def test_a_model_that_is_put_in_stays_as_it_is(tiny_model: Path) -> None:
    mean, X = fit(tiny_model, "mean")
    pooler, _ = fit(tiny_model, "pooler")
    want, plain = pooler.predict_proba(X), type(mean.model_)(copy.deepcopy(pooler.model_.config))
    plain.load_state_dict(pooler.model_.state_dict())
    tokens = mean.tokenizer_(X, padding=True, return_tensors="pt")
    with torch.no_grad():
        logits = plain.eval()(**tokens).logits
        for model in (pooler.model_, plain):
            mean.model_ = model
            assert np.abs(mean.predict_proba(X) - want).max() > 1e-3
            assert mean.model_.classifier is model.classifier
        np.testing.assert_array_equal(plain(**tokens).logits, logits)
    np.testing.assert_array_equal(pooler.predict_proba(X), want)
    pooler.model_ = mean.model_  # whose encoder is pooled otherwise
    np.testing.assert_allclose(pooler.predict_proba(X), want, atol=1e-6)


def test_a_model_of_fewer_tokens_cuts_texts_there(
    make_tiny_model: Callable[..., Path], tiny_model: Path
) -> None:
    classifier, _ = fit(tiny_model, "mean")
    short, _ = fit(make_tiny_model(max_position_embeddings=20), "mean")
    classifier.model_ = short.model_
    with pytest.warns(TruncationWarning):
        got = classifier.predict_proba(["the " * 60])
    with pytest.warns(TruncationWarning):
        np.testing.assert_allclose(got, short.predict_proba(["the " * 60]), atol=1e-6)


def test_vectors_of_another_kind_of_model(
    make_tiny_model: Callable[..., Path], tiny_model: Path
) -> None:
    texts = ["good film", "bad film", "the"]
    for changes, settings in (
        ({"num_hidden_layers": 3}, {"layers": -1}),
        ({"hidden_size": 64}, {"n_components": 1}),
    ):
        other = BertTransformer(make_tiny_model(**changes)).fit(texts).model_
        transformer = BertTransformer(tiny_model, precision="float32", **settings).fit(texts)
        want = transformer.transform(texts)
        with pytest.raises(InputTypeError, match="as what was fitted reads"):
            transformer.model_ = other
        np.testing.assert_array_equal(transformer.transform(texts), want)
    transformer = BertTransformer(tiny_model, layers=-1).fit(texts)
    transformer.model_.encoder.layer = transformer.model_.encoder.layer[:1]
    with pytest.raises(ModelError, match="model_ has 1 layers, but layer 2 is read"):
        transformer.transform(texts)


@pytest.mark.parametrize("what", ["hook", "forward", "no bias"])
def test_training_goes_on_with_the_output_layer_as_it_is(tiny_model: Path, what: str) -> None:
    classifier, X = fit(tiny_model, "mean", learning_rate=1e-12, head_learning_rate=1e-12)
    y, layer, before = classifier.predict(X), classifier.model_.classifier, None
    if what == "hook":
        layer.register_forward_hook(lambda _module, _arguments, out: 3 * out)
    elif what == "forward":
        layer.forward = lambda x: 3 * nn.functional.linear(x, layer.weight, layer.bias)
    else:
        layer.bias = None
    before = classifier.predict_proba(X)
    classifier.partial_fit(X, y)
    np.testing.assert_allclose(classifier.predict_proba(X), before, atol=1e-5)
    if what == "no bias":
        classifier.partial_fit(X, [f"new {label}" for label in y])
        assert len(classifier.classes_) == 2 * len({*y})
        assert classifier.model_.classifier.bias is None


def test_positions_that_a_caller_moved_are_not_saved(tiny_model: Path, tmp_path: Path) -> None:
    classifier, _ = fit(tiny_model, "mean")
    classifier.model_.bert.embeddings.position_ids.copy_(torch.arange(127, -1, -1)[None])
    with pytest.raises(ModelError, match="cannot be opened again"):
        classifier.save(tmp_path / "saved")


def test_another_kind_of_model_cannot_be_put_in(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean")
    tagger, _ = fit(tiny_model, "tags")
    want = classifier.predict_proba(X)
    for model in (tagger.model_, Wrapper(tagger.model_), nn.Linear(2, 2), None):
        with pytest.raises(InputTypeError, match=r"can be replaced by a BertForSequenceClassif"):
            classifier.model_ = model
    assert np.array_equal(classifier.predict_proba(X), want)
    with pytest.raises(NotFittedError):
        BertClassifier().model_ = classifier.model_


def test_weights_that_the_caller_fixed_stay_as_they_are(tiny_model: Path) -> None:
    classifier, X = fit(tiny_model, "mean", warm_start=True)
    classifier.model_.bert.embeddings.requires_grad_(False)
    before = {name: p.clone() for name, p in classifier.model_.named_parameters()}
    classifier.fit(X, classifier.predict(X))
    for name, weight in classifier.model_.named_parameters():
        of_embeddings = name.startswith("bert.embeddings.")
        assert weight.requires_grad is not of_embeddings
        if name.startswith(("bert.embeddings.", "bert.encoder.")):
            assert torch.equal(weight, before[name]) is of_embeddings, name
    classifier.model_.requires_grad_(False)
    with pytest.raises(InputError, match="nothing to train: all weights of model_"):
        classifier.fit(X, classifier.predict(X))


def test_an_adapter_has_its_effect(tiny_model: Path, sentiment: Sentiment) -> None:
    peft = pytest.importorskip("peft", reason="peft is not installed")
    classifier, X = fit(tiny_model, "mean")
    before = classifier.predict_proba(X)
    settings = peft.LoraConfig(target_modules=["query", "value"], init_lora_weights=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peft's own
        adapted = peft.get_peft_model(classifier.model_, settings)
    after = classifier.predict_proba(X)
    assert np.abs(after - before).max() > 1e-4
    np.testing.assert_allclose(after, scores(adapted, classifier.tokenizer_, X), atol=1e-5)


def test_a_replaced_output_layer_is_refused_before_training(tiny_model: Path) -> None:
    how = {"calibrate": True, "validation_fraction": 0.5}
    classifier, X = fit(tiny_model, "mean", warm_start=True, **how)
    y = classifier.predict(X)
    classifier.model_.classifier = nn.Sequential(classifier.model_.classifier)
    with (
        patch.object(Stepper, "step", side_effect=AssertionError("trained")),
        pytest.raises(ModelError, match="neither scaled"),
    ):
        classifier.set_params(warm_start=False).partial_fit(X, y)


def test_a_model_that_was_looked_at_is_as_any_other_once_training_goes_on(
    tiny_model: Path,
) -> None:
    classifier, X = fit(tiny_model, "mean")
    y = classifier.predict(X)
    held = classifier.model_
    assert classifier._fitted.network.is_handed_out
    classifier.partial_fit(X, y)
    assert not classifier._fitted.network.is_handed_out
    before = classifier.predict_proba(X)
    with torch.no_grad():
        held.classifier.weight.zero_()  # of the model before
    np.testing.assert_array_equal(classifier.predict_proba(X), before)
    classifier.model_.base_model.encoder.register_forward_hook(lambda *given: None)
    classifier.partial_fit(X, y)
    assert classifier._fitted.network.is_handed_out
    classifier, X = fit(tiny_model, "mean")
    classifier.model_.classifier = nn.Linear(64, 5)
    with pytest.raises(ModelError, match="has 5 outputs, but 2 are needed"):
        classifier.partial_fit(X, y)
