"""The linear probe: the solution that scikit-learn's linear models reach on the same features."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import log_loss
from support.networks import CPU, GPU, Labels, open_model

from skbert._core.infer import infer
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.training.probe import probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.batches import Batch
    from skbert._core.items import Items
    from skbert._core.task import Task

SINGLE = Precision("float32", CPU)


@dataclass(frozen=True)
class Numbers(Labels):
    """Numbers by least squares."""

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        losses = (logits - batch.targets).square().mean(dim=1)
        return (losses * batch.weights).sum(), batch.weights.sum()


def topics(n_classes: int) -> tuple[list[str], np.ndarray[Any, Any]]:
    """Short texts of some topics, and the topic of each; a third of them is ambiguous."""
    things = ["movie film book", "food service staff", "phone room order", "refund late broken"]
    rows = []
    for topic in range(n_classes):
        words = things[topic].split()
        rows += [
            (f"{how} {word} {end}", topic)
            for how in ("the", "great", "awful")
            for word in words
            for end in ("!", "is late", f"and {things[topic - 1].split()[0]}")
        ]
    texts, codes = zip(*rows, strict=True)
    return list(texts), np.array(codes)


def weights_for(codes: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).uniform(0.1, 3.0, len(codes)) * (1 + 2 * codes)


def probed(
    network: Network, task: Task, items: Items
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Features and logits after the probe."""
    probe(network, task, items, SINGLE)
    features = infer(network, items, SINGLE, forward=Network.features).values
    return features, infer(network, items, SINGLE).values


def logistic(strength: float = 1.0) -> LogisticRegression:
    return LogisticRegression(C=strength, tol=1e-10, max_iter=10_000)


def assert_same_solution(
    logits: np.ndarray[Any, Any],
    model: LogisticRegression,
    features: np.ndarray[Any, Any],
    codes: np.ndarray[Any, Any],
    weights: np.ndarray[Any, Any] | None = None,
) -> None:
    want = model.predict_proba(features)
    found = softmax(logits.astype(np.float64), axis=1)
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-2)
    losses = [log_loss(codes, p, sample_weight=weights) for p in (found, want)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    base = log_loss(codes, np.full_like(want, 1 / want.shape[1]), sample_weight=weights)
    assert losses[1] < 0.8 * base  # there is something to learn


@pytest.mark.parametrize(("n_classes", "weighted"), [(3, True), (4, False)])
def test_it_reaches_logistic_regression(minilm: Path, n_classes: int, weighted: bool) -> None:
    texts, codes = topics(n_classes)
    weights = weights_for(codes) if weighted else None
    network = open_model(minilm, n_outputs=n_classes, pooling="mean")
    task = Labels(n_classes)
    items = task.encode((texts, None), codes, network.text_tokenizer).weighted(weights)
    features, logits = probed(network, task, items)
    model = logistic().fit(features, codes, sample_weight=weights)
    assert_same_solution(logits, model, features, codes, weights)
    if weighted:
        plain = logistic().fit(features, codes).predict_proba(features)
        assert np.abs(plain - model.predict_proba(features)).max() > 0.05  # weights do matter


def test_two_classes_are_two_outputs(minilm: Path) -> None:
    # Two opposite vectors of half the length have half the squared norm of one: C is 2 then.
    texts, codes = topics(2)
    network = open_model(minilm, n_outputs=2, pooling="mean")
    task = Labels(2)
    items = task.encode((texts, None), codes, network.text_tokenizer)
    features, logits = probed(network, task, items)
    assert_same_solution(logits, logistic(2.0).fit(features, codes), features, codes)


@pytest.fixture(scope="module")
def lively(make_tiny_model: Callable[..., Path]) -> Path:
    """A tiny BERT whose features differ from text to text."""
    return make_tiny_model(initializer_range=0.5)


def test_a_pooler_will_do(lively: Path) -> None:
    texts, codes = topics(3)
    network = open_model(lively, n_outputs=3)
    task = Labels(3)
    items = task.encode((texts, None), codes, network.text_tokenizer)
    features, logits = probed(network, task, items)
    assert_same_solution(logits, logistic().fit(features, codes), features, codes)


@pytest.mark.parametrize("weighted", [False, True])
def test_it_reaches_ridge_regression(minilm: Path, weighted: bool) -> None:
    texts, codes = topics(4)
    weights = weights_for(codes) if weighted else None
    targets = np.stack([codes - 1.5, codes % 2 + 0.1 * codes], axis=1)
    network = open_model(minilm, n_outputs=2, pooling="mean")
    task = Numbers(2)
    items = task.encode((texts, None), targets, network.text_tokenizer).weighted(weights)
    features, outputs = probed(network, task, items)
    # The mean over two targets halves the squares: alpha is 0.5 / (1 / 2).
    model = Ridge(alpha=1.0).fit(features, targets, sample_weight=weights)
    want = model.predict(features)
    np.testing.assert_allclose(outputs, want, rtol=0, atol=0.1)  # of targets from -1.5 to 1.5

    def objective(values: np.ndarray[Any, Any], coef: np.ndarray[Any, Any]) -> float:
        squares = np.average(((values - targets) ** 2).mean(axis=1), weights=weights)
        total = len(codes) if weights is None else weights.sum()
        return float(squares + 0.5 * (coef**2).sum() / total)

    found, best = (
        objective(outputs, network.output_layer.weight.detach().numpy()),
        objective(want, model.coef_),
    )
    assert best - 1e-6 <= found <= best + 5e-4
    assert best < 0.1 * np.var(targets, axis=0).mean()


@pytest.mark.parametrize("ridge", [1e-5, 1e-3])
def test_a_head_may_hold_it_back_from_some_weight_on(minilm: Path, ridge: float) -> None:
    texts, codes = topics(3)
    network = open_model(minilm, n_outputs=3, pooling="mean")
    network.head = replace(network.head, ridge=ridge)
    task = Labels(3)
    items = task.encode((texts, None), codes, network.text_tokenizer)
    features, logits = probed(network, task, items)
    model = logistic(1.0 / max(1.0, ridge * len(codes) ** 2)).fit(features, codes)
    assert_same_solution(logits, model, features, codes)


def test_of_many_rows_it_reads_some(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a great movie", "late food"] * 30  # every other row is of one class
    codes = np.arange(60) % 2
    network = open_model(minilm)
    items = Labels().encode((texts, None), codes, network.text_tokenizer)
    read: list[int] = []

    def counted(network: Network, items: Items, *args: Any, **kwargs: Any) -> Any:
        read.append(int(items.sizes.sum()))
        return infer(network, items, *args, **kwargs)

    monkeypatch.setattr("skbert._core.training.probe._MAX_TOKENS", 100)
    monkeypatch.setattr("skbert._core.training.probe.infer", counted)
    _, logits = probed(network, Labels(), items)
    assert 50 < read[0] <= 120
    assert (logits.argmax(axis=1) == codes).all()


@pytest.mark.parametrize("n_rows", [0, 40])
def test_texts_of_labels_have_vectors_of_the_usual_length(minilm: Path, n_rows: int) -> None:
    texts, codes = topics(3)
    texts = [*texts[:n_rows], *["film book"[:n] for n in (4, 9)], "the late service", "phone"]
    codes = np.array([*codes[:n_rows], 0, 0, 1, 2])
    network = open_model(minilm, n_outputs=3, pooling="mean")
    items = Labels(3).encode((texts, None), codes, network.text_tokenizer)
    probe(network, Labels(3), items, SINGLE, 4)
    features = infer(network, items, SINGLE, forward=Network.features).values
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    assert np.ptp(lengths[n_rows:]) > 0.1
    features[n_rows:] *= (lengths[:n_rows] if n_rows else lengths).mean() / lengths[n_rows:]
    model = logistic().fit(features, codes)
    with torch.no_grad():
        logits = network.output_layer(torch.from_numpy(features)).numpy()
    assert_same_solution(logits, model, features, codes)


def test_texts_of_labels_are_always_read(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a great movie"] * 60 + ["late food", "the phone"]
    codes = np.array([0] * 60 + [1, 2])
    network = open_model(minilm, n_outputs=3)
    items = Labels(3).encode((texts, None), codes, network.text_tokenizer)
    read: list[int] = []

    def noted(network: Network, items: Items, *args: Any, **kwargs: Any) -> Any:
        read.extend(items.samples)
        return infer(network, items, *args, **kwargs)

    monkeypatch.setattr("skbert._core.training.probe._MAX_TOKENS", 60)
    monkeypatch.setattr("skbert._core.training.probe.infer", noted)
    probe(network, Labels(3), items, SINGLE, 2)
    assert read[-2:] == [60, 61]
    assert 5 < len(read) < 20


def test_rows_that_weigh_nothing_are_not_seen(minilm: Path) -> None:
    texts, codes = topics(3)
    weights = np.where(np.arange(len(codes)) % 4 == 0, 0.0, 1.0)
    task = Labels(3)
    results = []
    for wrong in (codes, np.where(weights == 0, 2 - codes, codes)):
        network = open_model(minilm, n_outputs=3, pooling="mean")
        items = task.encode((texts, None), wrong, network.text_tokenizer)
        probe(network, task, items.weighted(weights), SINGLE)
        results.append(network.output_layer.weight.detach())
    assert torch.equal(results[0], results[1])


def test_nothing_but_the_output_layer_changes(tiny_model: Path) -> None:
    texts, codes = topics(3)
    network = open_model(tiny_model, n_outputs=3)
    before = {name: tensor.clone() for name, tensor in network.model.state_dict().items()}
    state = torch.get_rng_state()
    probe(
        network, Labels(3), Labels(3).encode((texts, None), codes, network.text_tokenizer), SINGLE
    )
    changed = {n for n, t in network.model.state_dict().items() if not torch.equal(t, before[n])}
    assert changed == {"classifier.weight", "classifier.bias"}
    assert all(p.grad is None for p in network.model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_where_the_head_starts_does_not_matter(lively: Path) -> None:
    texts, codes = topics(3)
    found = []
    for seed in (0, 9):
        network = open_model(lively, n_outputs=3, seed=seed)
        items = Labels(3).encode((texts, None), codes, network.text_tokenizer)
        at_random = log_loss(codes, softmax(infer(network, items, SINGLE).values, axis=1))
        _, logits = probed(network, Labels(3), items)
        found.append(softmax(logits, axis=1))
        assert log_loss(codes, found[-1]) < 0.7 * at_random
    np.testing.assert_allclose(found[0], found[1], rtol=0, atol=1e-2)


@pytest.mark.parametrize("precision", ["bfloat16", "float64"])
def test_other_precisions(lively: Path, precision: str) -> None:
    texts, codes = topics(3)
    exact = Precision(precision, CPU)
    network = open_model(lively, n_outputs=3, dtype=exact.weight_dtype)
    items = Labels(3).encode((texts, None), codes, network.text_tokenizer)
    probe(network, Labels(3), items, exact)
    assert network.output_layer.weight.dtype == exact.weight_dtype
    features = infer(network, items, exact, forward=Network.features).values
    want = logistic().fit(features, codes).predict_proba(features)
    found = softmax(infer(network, items, exact).values, axis=1)
    np.testing.assert_allclose(found, want, rtol=0, atol=3e-2)


@pytest.mark.gpu
def test_on_a_gpu(minilm: Path) -> None:
    texts, codes = topics(3)
    network = open_model(minilm, n_outputs=3, pooling="mean")
    network.to(GPU, torch.float32)
    items = Labels(3).encode((texts, None), codes, network.text_tokenizer)
    exact = Precision("float32", GPU)
    probe(network, Labels(3), items, exact)
    features = infer(network, items, exact, forward=Network.features).values
    logits = infer(network, items, exact).values
    assert_same_solution(logits, logistic().fit(features, codes), features, codes)
