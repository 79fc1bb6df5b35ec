"""Whatever is frozen, a fit with the defaults says more of its rows than a constant would."""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
)
from skbert._core.cpu.layers import Layers
from skbert._core.models.network import Network
from skbert._core.task import Batch
from skbert._core.training import frozen, stepper
from skbert._estimator import run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

WHERE = {"device": "cpu", "precision": "float32", "random_state": 0}
LEARNS = {"epochs": 20, "learning_rate": 3e-3}  # layers of a tiny model, from nothing
FREEZE = [0, 1, 2, "all"]  # the tiny model has two layers
FROZEN = [2, "all"]
POOLING = ["auto", "cls", "mean"]  # "auto" is BERT's pooler here
THINGS = "movie film book food service staff phone room".split()
KINDS = ("good", "bad", "great", "awful")

Rows = tuple[list[Any], list[Any]]


def texts(*, pairs: bool) -> Rows:
    """Forty-eight texts or pairs that say of a thing that it is good or bad; a third is good."""
    X, y = [], []
    for row in range(48):
        thing, other = THINGS[row % 8], THINGS[(row * 3 + 1) % 8]
        label, said = ("bad", "i hate it") if row % 3 else ("good", "great, i love it")
        text, second = f"the {thing} is {label}, {said}", f"my {other} works"
        X.append((text, second) if pairs else f"{text}, {second}")
        y.append(label)
    return X, y


def numbers(*, pairs: bool) -> Rows:
    X, y = texts(pairs=pairs)
    return X, [5.0 if label == "good" else 1.0 for label in y]


def options() -> Rows:
    X, y = [], []
    for row in range(30):
        of_row = [f"awful {THINGS[(row + k) % 8]}, bad" for k in range(2 + row % 4)]
        y.append(row * 7 % len(of_row))
        of_row[y[-1]] = f"great {THINGS[row % 8]}, i love it"
        X.append((f"the {THINGS[row % 8]} is", of_row))
    return X, y


def words() -> Rows:
    X = [["the", THINGS[row % 8], "is", KINDS[row % 4], "for", "you"] for row in range(40)]
    return X, [["O", "B-THING", "O", "O", "O", "B-WHO"]] * 40


def answers() -> Rows:
    X, y = [], []
    for row in range(40):
        before = "we it was to my you".split()[: row % 7]
        y.append(KINDS[row // 3 % 4].upper())
        X.append((f"how is the {THINGS[row % 8]}?", f"{' '.join(before)} it is {y[-1]}, but so"))
    return X, y


ROWS: dict[Any, Callable[[], Rows]] = {
    BertClassifier: lambda: texts(pairs=True),
    BertRegressor: lambda: numbers(pairs=False),
    BertTokenTagger: words,
    BertSpanExtractor: answers,
    BertChoiceRanker: options,
}


def most_common(y: list[Any]) -> float:
    """What the best constant scores."""
    return Counter(y).most_common(1)[0][1] / len(y)


def learning(freeze: int | str) -> dict[str, Any]:
    """The defaults where all layers are frozen; else they would take thousands of rows."""
    return {**WHERE, "freeze": freeze, **({} if freeze in FROZEN else LEARNS)}


# Each number of layers and each pooling with texts and with pairs.
ROWS_OF_TEXTS = [
    (freeze, pooling, bool((row + column) % 2))
    for row, freeze in enumerate(FREEZE)
    for column, pooling in enumerate(POOLING)
]


@pytest.mark.parametrize(("freeze", "pooling", "pairs"), ROWS_OF_TEXTS)
@pytest.mark.long
def test_rows_of_texts(lively_model: Path, freeze: int | str, pooling: str, pairs: bool) -> None:
    params = {**learning(freeze), "pooling": pooling}
    X, y = texts(pairs=pairs)
    assert BertClassifier(lively_model, **params).fit(X, y).score(X, y) > most_common(y) + 0.1
    X, y = numbers(pairs=pairs)
    regressor = BertRegressor(lively_model, head_init="probe", **params)
    assert regressor.fit(X, y).score(X, y) > 0.2


def test_texts_and_pairs_are_learned_with_each_freeze_and_each_pooling() -> None:
    assert {(f, pairs) for f, _, pairs in ROWS_OF_TEXTS} == {*product(FREEZE, (False, True))}
    assert {(p, pairs) for _, p, pairs in ROWS_OF_TEXTS} == {*product(POOLING, (False, True))}


@pytest.mark.parametrize("freeze", FROZEN)
def test_several_labels_of_pairs(lively_model: Path, freeze: int | str) -> None:
    X, y = texts(pairs=True)
    both = np.array([[label == "good", label == "bad"] for label in y], dtype=int)
    learner = BertClassifier(lively_model, **learning(freeze)).fit(X, both)
    assert learner.score(X, both) > most_common(y) + 0.1


@pytest.mark.parametrize(("freeze", "pooling"), list(product(FREEZE, POOLING)))
def test_options(lively_model: Path, freeze: int | str, pooling: str) -> None:
    X, y = options()
    learner = BertChoiceRanker(lively_model, **learning(freeze), pooling=pooling).fit(X, y)
    assert learner.score(X, y) > most_common(y) + 0.1


@pytest.mark.parametrize("freeze", FREEZE)
def test_words(lively_model: Path, freeze: int | str) -> None:
    X, y = words()
    assert BertTokenTagger(lively_model, **learning(freeze)).fit(X, y).score(X, y) > 0.2


@pytest.mark.parametrize("freeze", FREEZE)
def test_answers(lively_model: Path, freeze: int | str) -> None:
    X, y = answers()
    score = BertSpanExtractor(lively_model, **learning(freeze)).fit(X, y).score(X, y)
    assert score > most_common(y) + 0.1


def agreement() -> Rows:
    """Sixty pairs, half of which say the same."""
    first = [f"The {thing} is {kind}." for thing in THINGS for kind in KINDS][:30]
    same = [(text, text.replace("The", "Our")) for text in first]
    return [*same, *zip(first, first[7:] + first[:7], strict=True)], [1] * 30 + [0] * 30


def test_pairs_with_the_real_encoder(minilm: Path) -> None:
    X, y = agreement()
    learner = BertClassifier(minilm, **WHERE, epochs=1, freeze="all").fit(X, y)
    assert learner.pooling_ == "pooler"
    assert learner.score(X, y) > 0.7


def test_pairs_below_a_frozen_pooler_start_as_if_probed_at_the_rate_of_heads(
    lively_model: Path,
) -> None:
    X, y = texts(pairs=True)
    for freeze, how in ((1, "random"), (2, "probe"), ("all", "probe")):
        rate = 1e-3 if how == "probe" else None
        given = {**WHERE, "epochs": 1, "freeze": freeze}
        chosen = BertClassifier(lively_model, **given, head_init=how, head_learning_rate=rate)
        np.testing.assert_array_equal(
            BertClassifier(lively_model, **given).fit(X, y).predict_proba(X),
            chosen.fit(X, y).predict_proba(X),
        )


@pytest.mark.parametrize(
    "kind", [BertClassifier, BertRegressor, BertTokenTagger, BertSpanExtractor]
)
@pytest.mark.parametrize("pooling", ["auto", "mean"])
def test_a_frozen_encoder_reads_each_row_once(
    kind: Any, pooling: str, tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = {
        BertClassifier: texts(pairs=False), BertRegressor: numbers(pairs=False),
        BertTokenTagger: words(), BertSpanExtractor: answers(),
    }[kind]  # fmt: skip
    heads = {} if kind in (BertTokenTagger, BertSpanExtractor) else {"pooling": pooling}
    n_read = Counter[str]()
    hidden = Network.hidden

    def counted(network: Network, batch: Batch) -> torch.Tensor:
        n_read["training" if network.model.training else "ready"] += len(batch.layout.lengths)
        return hidden(network, batch)

    def fitted() -> Any:
        n_read.clear()
        return kind(
            tiny_model_no_dropout,
            freeze="all",
            validation_fraction=0.25,
            epochs=3,
            **WHERE,
            **heads,
        ).fit(X, y)

    monkeypatch.setattr(Network, "hidden", counted)
    once = fitted()
    assert not n_read["training"]
    n_once = n_read["ready"]
    monkeypatch.setattr(frozen, "_MOST_BYTES", 0)
    each_pass = fitted()
    assert n_read["training"]
    assert n_read["ready"] > n_once
    for one, other in zip(once.history_, each_pass.history_, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-4)
        assert one["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-4)


@pytest.mark.parametrize("n_epochs", [2, 5])
def test_a_score_after_each_pass_reads_rows_held_out_once(
    n_epochs: int, tiny_model: Path, rows_read: list[int]
) -> None:
    def score_of_another_model(classifier: Any, X: Any, y: Any) -> float:
        before = classifier.score(X, y)
        embeddings = classifier.model_.get_input_embeddings().weight
        kept = embeddings.detach().clone()
        with torch.no_grad():
            embeddings.copy_(kept.flip(0))
            changed = classifier.predict_proba(X)
            embeddings.copy_(kept)
        assert np.abs(changed - classifier.predict_proba(X)).max() > 1e-5
        return float(before)

    X, y = texts(pairs=False)
    settings = {**WHERE, "freeze": "all", "validation_fraction": 0.25, "epochs": n_epochs}
    found = BertClassifier(tiny_model, scoring="accuracy", **settings).fit(X, y)
    assert len(rows_read) == 3  # rows to train on, those held out for the loss, and for the score
    scores = [record["validation_score"] for record in found.history_]
    other = BertClassifier(tiny_model, scoring=score_of_another_model, **settings).fit(X, y)
    assert [record["validation_score"] for record in other.history_] == scores


def test_a_clone_that_was_trained_before_reads_no_row_to_train_on(
    tiny_model: Path, tmp_path: Path, rows_read: list[int]
) -> None:
    X, y = texts(pairs=False)
    settings = {**WHERE, "freeze": "all", "epochs": 2, "checkpoint_dir": tmp_path / "kept"}
    first = clone(BertClassifier(tiny_model, **settings)).fit(X, y)
    assert len(rows_read) == 1
    again = clone(BertClassifier(tiny_model, **settings)).fit(X, y)
    assert len(rows_read) == 1
    np.testing.assert_array_equal(again.predict_proba(X), first.predict_proba(X))


@pytest.mark.parametrize("kind", [*ROWS])
def test_frozen_layers_read_each_row_once(
    kind: Any, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = ROWS[kind]()
    n_runs = Counter[tuple[int, bool]]()  # of a layer, and in training
    run_layers = Layers.__call__

    def counted(runner: Layers, family: Any, model: Any, numbers: range, *given: Any) -> Any:
        n_runs.update((number, model.training) for number in numbers)
        return run_layers(runner, family, model, numbers, *given)

    def fitted() -> Any:
        n_runs.clear()
        where = {**WHERE, "validation_fraction": 0.25, "epochs": 3}
        return kind(tiny_model, freeze=1, **where).fit(X, y)

    monkeypatch.setattr(Layers, "__call__", counted)
    once = fitted()
    assert n_runs[0, False] == 2  # the rows to train on, and those held out
    assert not n_runs[0, True]
    assert n_runs[1, True]
    monkeypatch.setattr(frozen, "_MOST_BYTES", 0)
    in_every_pass = fitted()
    assert n_runs[0, True] == n_runs[1, True]
    for one, other in zip(once.history_, in_every_pass.history_, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], abs=1e-4)
        assert one["validation_loss"] == pytest.approx(other["validation_loss"], abs=1e-4)


def test_what_is_kept_of_all_rows_has_a_limit(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = texts(pairs=False)
    kept = []

    def noted(*given: Any) -> Any:
        parts = with_states(*given)
        kept.append([part.states is not None for part in parts])
        return parts

    with_states = run.with_states
    monkeypatch.setattr(run, "with_states", noted)
    classifier = BertClassifier(tiny_model, freeze=1, epochs=1, validation_fraction=0.25, **WHERE)
    n_bytes = classifier.fit(X, y).history_[0]["n_tokens"] / 0.75 * 32 * 4
    for share, is_kept in ((1.1, True), (0.9, False)):
        monkeypatch.setattr(frozen, "_MOST_BYTES", share * n_bytes)
        classifier.fit(X, y)
        assert kept[-1] == [is_kept, is_kept]


def test_a_fit_learns_from_frozen_weights_as_they_are(tiny_model: Path) -> None:
    X, y = texts(pairs=False)
    first = BertClassifier(tiny_model, freeze=1, epochs=1, warm_start=True, **WHERE).fit(X, y)
    edited = copy.deepcopy(first)
    name = "bert.encoder.layer.0.output.dense.weight"
    with torch.no_grad():
        edited.model_.get_parameter(name).mul_(3.0)
    tripled = edited.model_.get_parameter(name).clone()
    assert first.fit(X, y).history_[-1]["loss"] != edited.fit(X, y).history_[-1]["loss"]
    assert torch.equal(edited.model_.get_parameter(name), tripled)


def test_a_fit_that_fails_leaves_no_weight_frozen(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X, y = texts(pairs=False)
    fitted = BertClassifier(tiny_model, epochs=1, warm_start=True, **WHERE).fit(X, y)
    with monkeypatch.context() as patch:
        patch.setattr(stepper, "adamw", fail)
        with pytest.raises(MemoryError):
            fitted.set_params(freeze=1).fit(X, y)
    assert all(weight.requires_grad for weight in fitted.model_.parameters())


def fail(*_: Any) -> None:
    raise MemoryError


def test_a_fit_that_recomputes_layers_leaves_an_ordinary_model(tiny_model: Path) -> None:
    X, y = texts(pairs=False)
    own = {"gradient_checkpointing": True, "epochs": 1, **WHERE}
    fitted = BertClassifier(tiny_model, **own).fit(X, y)
    assert not any(module._forward_hooks for module in fitted._fitted.network.model.modules())
    opened = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(opened.predict_proba(X), fitted.predict_proba(X))


@pytest.mark.parametrize("freeze", [1, "all"])
def test_what_somebody_changes_in_frozen_layers_has_an_effect(
    freeze: int | str, tiny_model: Path
) -> None:
    X, y = texts(pairs=False)
    classifier = BertClassifier(tiny_model, freeze=freeze, epochs=1, warm_start=True, **WHERE)
    classifier.fit(X, y)
    runs = Counter[str]()
    layer = classifier.model_.get_submodule("bert.encoder.layer.0")
    layer.register_forward_hook(lambda *given: runs.update(["forward"]))
    classifier.epochs = 3
    classifier.fit(X, y)
    assert runs["forward"] >= 3  # in every pass
