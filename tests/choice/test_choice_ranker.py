"""The choice ranker: against transformers, rows of any number of options, scikit-learn, saving.

What X and y may look like is in ``test_check_choices.py``.
"""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from support.networks import CPU, assert_all_close, gradients, sentences, watch
from transformers import AutoModelForMultipleChoice, AutoTokenizer, BertForMultipleChoice

from skbert import BertChoiceRanker, BertClassifier
from skbert._choice.task import Choice
from skbert._core import infer as inference
from skbert._core import segments
from skbert._core.batches import collate
from skbert._core.checkpoints.vet import vet
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import Precision, seeded
from skbert._core.training import stepper as stepping
from skbert._core.training.loop import TrainingLoop
from skbert._core.training.recipe import Recipe
from skbert._validation.choices import check_choices
from skbert.datasets import load_choices
from skbert.exceptions import InputError, InputTypeError, ModelError, TruncationWarning
from skbert.metrics import get_scorer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.items import Items

LEARNS = {"pooling": "mean", "epochs": 5, "learning_rate": 3e-3, "head_learning_rate": 1e-2}


def questions(n: int = 30) -> tuple[list[tuple[str, list[str]]], list[int]]:
    """Rows of two to five options, of which one is good."""
    things = "movie film book food service staff phone room order refund".split()
    X, y = [], []
    for row in range(n):
        size, thing = 2 + row % 4, things[row % 10]
        options = [f"awful {things[(row + k) % 10]}, bad and poor" for k in range(size)]
        y.append(row * 7 % size)
        options[y[-1]] = f"great {thing}, i love it"
        X.append((f"the {thing} is", options))
    return X, y


X, Y = questions()


def ranker(model: Path, **params: Any) -> BertChoiceRanker:
    plain = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertChoiceRanker(model, **{**plain, **params})


@pytest.fixture(scope="module")
def fitted(tiny_model: Path) -> BertChoiceRanker:
    """A ranker that learned its rows; do not fit it again."""
    return ranker(tiny_model, **LEARNS).fit(X, Y)


def open_model(folder: Path, dtype: torch.dtype = torch.float32) -> Network:
    with seeded(0, CPU):
        return open_network(vet(folder), Choice(128).head(), pooling="pooler", dtype=dtype)


def objects(cells: list[Any]) -> np.ndarray:
    array = np.empty(len(cells), dtype=object)
    array[:] = cells
    return array


# --- against transformers ------------------------------------------------------------------------

FOUR = [
    (prompt, sentences([3, 9, 1, 6], seed)) for seed, prompt in enumerate(sentences([5, 2, 8]))
]
SWAG = [(prompt, "i love", options) for prompt, options in FOUR]


def reference(network: Network, rows: list[tuple], targets: list[int]) -> tuple[Any, Any, Any]:
    """Loss, logits and gradients of transformers, on a padded batch."""
    twin = BertForMultipleChoice._from_config(
        copy.deepcopy(network.model.config), attn_implementation="eager"
    )
    twin.load_state_dict(network.model.state_dict())
    twin = twin.to(network.dtype).eval()
    first = [row[0] for row in rows for _ in row[-1]]
    second = [" ".join([*row[1:-1], option]) for row in rows for option in row[-1]]
    flat = network.tokenizer(first, second, padding=True, truncation=True, return_tensors="pt")
    shape = (len(rows), len(rows[0][-1]), -1)
    inputs = {name: table.view(shape) for name, table in flat.items()}
    out = twin(**inputs, labels=torch.tensor(targets))
    out.loss.backward()
    return out.loss.detach(), out.logits.detach(), gradients(twin)


def packed(network: Network, rows: list[tuple], targets: list[int]) -> tuple[Any, Any, Any]:
    task = Choice(128)
    items = task.encode(check_choices(rows), np.array(targets), network.text_tokenizer)
    batch = collate(items, np.arange(len(items)), CPU, network.dtype)
    logits = network.logits(batch)
    loss, weight = task.loss(logits, batch)
    (loss / weight).backward()
    return (loss / weight).detach(), logits.detach(), gradients(network.model)


@pytest.mark.parametrize("rows", [FOUR, SWAG, [FOUR[1]]], ids=["prompts", "two texts", "one row"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_loss_logits_and_gradients_agree_with_transformers(
    tiny_model_no_dropout: Path, rows: list[tuple], dtype: torch.dtype
) -> None:
    network = open_model(tiny_model_no_dropout, dtype)
    targets = [2, 0, 3][: len(rows)]
    loss, logits, grads = packed(network, rows, targets)
    want_loss, want_logits, want_grads = reference(network, rows, targets)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(loss, want_loss, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        logits.view(want_logits.shape), want_logits, rtol=tolerance, atol=tolerance
    )
    assert len(want_grads) == len(list(network.model.parameters()))
    assert_all_close(grads, want_grads, tolerance)


def test_rows_of_different_counts_add_up(tiny_model_no_dropout: Path) -> None:
    """Each question by itself in transformers; all of them together here."""
    network = open_model(tiny_model_no_dropout)
    rows, targets = X[:8], Y[:8]
    loss, logits, grads = packed(network, rows, targets)
    alone = [reference(network, [row], [y]) for row, y in zip(rows, targets, strict=True)]
    torch.testing.assert_close(loss, torch.stack([a[0] for a in alone]).mean())
    want = torch.cat([a[1].flatten() for a in alone])
    torch.testing.assert_close(logits[:, 0], want, rtol=1e-5, atol=1e-5)
    mean = {name: sum(a[2][name] for a in alone) / len(alone) for name in grads}
    assert_all_close(grads, mean, 1e-5)


def test_weights_of_questions_weigh_the_loss(tiny_model_no_dropout: Path) -> None:
    network = open_model(tiny_model_no_dropout)
    task, weights = Choice(128), np.array([2.0, 0.5, 3.0])
    items = task.encode(check_choices(X[:3]), np.array(Y[:3]), network.text_tokenizer).weighted(
        weights
    )
    batch = collate(items, np.arange(3), CPU, torch.float32)
    loss, weight = task.loss(network.logits(batch), batch)
    alone = [float(reference(network, [X[i]], [Y[i]])[0]) for i in range(3)]
    assert float(weight) == 5.5
    assert float(loss.detach()) == pytest.approx(float(weights @ alone), rel=1e-5)


def test_many_questions_take_no_more_memory_than_their_options(
    monkeypatch: pytest.MonkeyPatch, tiny_model: Path
) -> None:
    counts = []
    compute = segments.log_softmax_within

    def counted(logits: torch.Tensor, each: torch.Tensor, most: int) -> torch.Tensor:
        counts.append(most)
        return compute(logits, each, most)

    monkeypatch.setattr(segments, "log_softmax_within", counted)
    ranker(tiny_model, validation_fraction=0.5, epochs=1).fit(X, Y)
    assert max(counts) == max(len(options) for _, options in X)


# --- tokens --------------------------------------------------------------------------------------


def decoded(network: Network, items: Items) -> list[str]:
    return [network.tokenizer.decode(ids) for ids in map(items.tokens.ids.__getitem__,
            range(len(items.tokens)))]  # fmt: skip


def test_a_row_is_prompt_and_option(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    rows = [("the cat", ["sat", "ran"]), ("a dog", ["is", "is", "was"])]
    items = Choice(128).encode(check_choices(rows), None, network.text_tokenizer)
    assert decoded(network, items) == [
        "[CLS] the cat [SEP] sat [SEP]", "[CLS] the cat [SEP] ran [SEP]",
        "[CLS] a dog [SEP] is [SEP]", "[CLS] a dog [SEP] was [SEP]",
    ]  # fmt: skip
    assert items.rows.tolist() == [0, 2, 4]
    assert items.samples.tolist() == [0, 1]
    rows = [("the cat", "it", ["sat", ""])]
    items = Choice(128).encode(check_choices(rows), None, network.text_tokenizer)
    assert decoded(network, items) == [
        "[CLS] the cat [SEP] it sat [SEP]", "[CLS] the cat [SEP] it [SEP]"]  # fmt: skip


@pytest.mark.parametrize("long_text", ["truncate", "head_tail"])
def test_questions_that_were_cut_are_counted(tiny_model: Path, long_text: str) -> None:
    network = open_model(tiny_model)
    fits = ("the movie is", ["good", "good and bad and great"])  # 3 + 5 and 3 special tokens
    long = ("the movie is", ["good", "good and bad and great very", "and " * 20])
    longer = ("the movie is " * 9, ["good", "bad", "nice"])
    for rows, count in (([fits], 0), ([long], 1), ([fits, long, fits], 1), ([longer, long], 2)):
        items = Choice(11, long_text).encode(check_choices(rows), None, network.text_tokenizer)
        assert items.n_truncated == count
        assert items.tokens.lengths.max() == 11
    assert len(items.tokens) == 6


def test_cut_rows_are_said_in_fit(tiny_model: Path) -> None:
    with pytest.warns(TruncationWarning, match="15 of 30 rows"):
        ends = ranker(tiny_model, max_length=14, long_text="head_tail").fit(
            [(prompt * (1 + row % 2 * 4), options) for row, (prompt, options) in enumerate(X)], Y
        )
    assert ends.n_truncated_ == 15


# --- predictions ---------------------------------------------------------------------------------


def test_it_learns_and_all_answers_agree(fitted: BertChoiceRanker) -> None:
    assert fitted.score(X, Y) == 1.0
    best = fitted.predict(X)
    assert best.dtype == np.int64
    assert best.tolist() == Y
    texts = fitted.predict_text(X)
    assert texts.dtype == object
    assert texts.shape == (30,)
    assert texts.tolist() == [options[y] for (_, options), y in zip(X, Y, strict=True)]
    proba = fitted.predict_proba(X)
    assert proba.shape == (30, 5)
    assert proba.dtype == np.float32
    np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=1e-5)
    assert proba.argmax(axis=1).tolist() == Y
    there = [[k < len(options) for k in range(5)] for _, options in X]
    np.testing.assert_array_equal(proba > 0, there)


def test_the_ranking(fitted: BertChoiceRanker) -> None:
    ranking = fitted.rank(X)
    assert list(ranking) == ["row", "rank", "option", "text", "probability"]
    assert list(ranking.index) == list(range(sum(len(options) for _, options in X)))
    proba = fitted.predict_proba(X)
    for row, part in ranking.groupby("row"):
        options = X[int(row)][1]
        assert part["rank"].tolist() == list(range(1, len(options) + 1))
        assert sorted(part["option"]) == list(range(len(options)))
        assert part["text"].tolist() == [options[at] for at in part["option"]]
        assert part["probability"].is_monotonic_decreasing
        np.testing.assert_array_equal(part["probability"], proba[row, part["option"]])
    firsts = ranking[ranking["rank"] == 1]
    assert firsts["option"].tolist() == fitted.predict(X).tolist()


def test_other_rows_change_nothing(fitted: BertChoiceRanker) -> None:
    alone = fitted.predict_proba(X[:1])
    assert alone.shape == (1, 2)
    more = fitted.predict_proba([*X[:1], ("it", [f"great {k}" for k in range(40)])])
    assert more.shape == (2, 40)
    np.testing.assert_allclose(more[:1, :2], alone, atol=1e-6)
    assert not more[0, 2:].any()


def test_the_order_of_options_and_rows_does_not_matter(fitted: BertChoiceRanker) -> None:
    expected = fitted.predict_proba(X)
    turned = fitted.predict_proba([(prompt, options[::-1]) for prompt, options in X[::-1]])
    for row, (_, options) in enumerate(X):
        n = len(options)
        np.testing.assert_allclose(turned[-1 - row, :n][::-1], expected[row, :n], atol=1e-5)


def test_one_option_is_chosen(fitted: BertChoiceRanker) -> None:
    one = [("the film is", ["bad"]), ("a book", ["good"])]
    assert fitted.predict(one).tolist() == [0, 0]
    assert fitted.predict_proba(one).tolist() == [[1.0], [1.0]]
    assert fitted.predict_text(one).tolist() == ["bad", "good"]


def test_of_equal_options_the_first_counts(fitted: BertChoiceRanker) -> None:
    twice = [("it is", ["bad", "great", "bad", "great", "great"])]
    once = [("it is", ["bad", "great"])]
    proba = fitted.predict_proba(twice)
    np.testing.assert_allclose(proba[:, :2], fitted.predict_proba(once), atol=1e-6)
    assert not proba[:, 2:].any()
    assert fitted.predict(twice).tolist() == [1]
    assert fitted.score(twice, [3]) == fitted.score(twice, [1]) == 1.0
    assert fitted.rank(twice)["option"].tolist() == [1, 0]


def test_an_option_keeps_its_column(fitted: BertChoiceRanker) -> None:
    frame = pd.DataFrame({"p": ["it is"] * 2, "a": [None, "bad"], "b": ["bad", "great"],
                          "c": ["great", None], "d": [None, None]})  # fmt: skip
    assert fitted.predict(frame.to_numpy(object)).tolist() == [2, 1]
    proba = fitted.predict_proba(frame.to_numpy(object))
    np.testing.assert_array_equal(
        proba > 0, [[False, True, True, False], [True, True, False, False]]
    )
    assert fitted.score(frame.to_numpy(object), [2, 1]) == 1.0


def test_float64(tiny_model: Path) -> None:
    fine = ranker(tiny_model, precision="float64").fit(X, Y)
    assert fine.predict_proba(X).dtype == np.float64
    np.testing.assert_allclose(fine.predict_proba(X).sum(axis=1), 1, rtol=1e-12)


def test_learns_on_every_device(device: str, tiny_model: Path) -> None:
    learned = ranker(tiny_model, device=device, **LEARNS).fit(X, Y)
    assert learned.score(X, Y) == 1.0
    assert learned.model_.device.type == device


# --- forms of X and y ----------------------------------------------------------------------------


def wide(rows: list[tuple[str, list[str]]]) -> pd.DataFrame:
    cells = [[prompt, *options, *[None] * (5 - len(options))] for prompt, options in rows]
    return pd.DataFrame(cells, columns=["prompt", *"abcde"])


CONTAINERS: dict[str, Callable[[list[tuple[str, list[str]]]], Any]] = {
    "tuple": tuple,
    "object array of rows": objects,
    "Series, odd index": lambda rows: pd.Series(rows, index=range(100, 100 - len(rows), -1)),
    "frame": lambda rows: pd.DataFrame(rows, columns=["prompt", "choices"]),
    "polars": lambda rows: pl.DataFrame({"p": [r[0] for r in rows], "o": [r[1] for r in rows]}),
    "wide frame": wide,
    "wide array": lambda rows: wide(rows).to_numpy(object),
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_containers_do_not_matter(container: str, tiny_model: Path) -> None:
    hold = CONTAINERS[container]
    expected = ranker(tiny_model).fit(X, Y).predict_proba(X)
    found = ranker(tiny_model).fit(hold(X), pd.Series(Y, index=range(30, 0, -1)))
    np.testing.assert_array_equal(found.predict_proba(hold(X)), expected)
    np.testing.assert_array_equal(found.predict_proba(X), expected)
    named = "frame" in container or container == "polars"
    assert hasattr(found, "feature_names_in_") == named
    assert found.n_features_in_ == (6 if container == "wide frame" else 2)


def test_y_may_be_texts(tiny_model: Path) -> None:
    expected = ranker(tiny_model).fit(X, Y).predict_proba(X)
    texts = [options[y] for (_, options), y in zip(X, Y, strict=True)]
    for y in (texts, np.array(texts), pd.Series(texts)):
        found = ranker(tiny_model).fit(X, y)
        np.testing.assert_array_equal(found.predict_proba(X), expected)
        assert found.score(X, y) == found.score(X, Y)


def test_text_columns(tiny_model: Path) -> None:
    rows = [("it was", prompt, options) for prompt, options in X]
    expected = ranker(tiny_model).fit(rows, Y)
    assert expected.n_features_in_ == 3
    frame = pd.DataFrame(rows, columns=["first", "second", "endings"])
    frame = frame.assign(id=range(30))[["endings", "id", "second", "first"]]
    found = ranker(tiny_model, text_columns=["first", "second", "endings"]).fit(frame, Y)
    np.testing.assert_array_equal(found.predict_proba(frame), expected.predict_proba(rows))
    assert found.feature_names_in_.tolist() == ["endings", "id", "second", "first"]
    with pytest.raises(InputError, match="X has 2 features"):
        expected.predict(X)


def test_missing_prompts(tiny_model: Path) -> None:
    rows = [(None, X[0][1]), *X[1:]]
    with pytest.raises(InputError, match="row 0 of column 0"):
        ranker(tiny_model).fit(rows, Y)
    found = ranker(tiny_model, missing="empty").fit(rows, Y).predict_proba(rows)
    expected = ranker(tiny_model).fit([("", X[0][1]), *X[1:]], Y)
    np.testing.assert_array_equal(found, expected.predict_proba([("", X[0][1]), *X[1:]]))


def test_bad_input_is_refused_before_a_model_is_opened() -> None:
    nowhere = BertChoiceRanker("no/such/model", device="cpu")
    with pytest.raises(InputError, match="without options: row 0"):
        nowhere.fit([("p", [])], [0])
    with pytest.raises(NotFittedError):
        nowhere.predict(X)
    for name in ("predict_text", "predict_proba", "rank"):
        with pytest.raises(NotFittedError):
            getattr(nowhere, name)(X)
    with pytest.raises(NotFittedError):
        nowhere.score(X, Y)
    with pytest.raises(ValueError, match=r"'long_text' parameter .* must be a str among"):
        nowhere.set_params(long_text="windows").fit(X, Y)


def test_a_bad_y_is_refused(tiny_model: Path, fitted: BertChoiceRanker) -> None:
    with pytest.raises(InputError, match="Row 3 of y is 9, which is not an option"):
        ranker(tiny_model).fit(X, [*Y[:3], 9, *Y[4:]])
    with pytest.raises(InputTypeError, match="mixes"):
        fitted.score(X, [X[0][1][0], *Y[1:]])
    with pytest.raises(InputError, match="Row 1 of y is 'blue'"):
        fitted.score(X[:2], [X[0][1][0], "blue"])


# --- fit -----------------------------------------------------------------------------------------


def test_weights_of_zero_leave_rows_out(tiny_model_no_dropout: Path) -> None:
    exact = {"precision": "float64", "batch_size": 30, "pooling": "mean", "learning_rate": 1e-3}
    weight = (np.arange(30) % 3 > 0).astype(float)
    kept = [row for row, w in zip(X, weight, strict=True) if w]
    y = np.array(Y)[weight > 0]
    weighed = ranker(tiny_model_no_dropout, **exact).fit(X, Y, weight)
    left = ranker(tiny_model_no_dropout, **exact).fit(kept, y)
    np.testing.assert_allclose(weighed.predict_proba(X), left.predict_proba(X), rtol=1e-9)
    ones = ranker(tiny_model_no_dropout, **exact).fit(X, Y, np.ones(30))
    none = ranker(tiny_model_no_dropout, **exact).fit(X, Y)
    np.testing.assert_array_equal(ones.predict_proba(X), none.predict_proba(X))
    assert np.abs(ones.predict_proba(X) - left.predict_proba(X)).max() > 1e-4


def test_held_out_rows_are_scored(tiny_model: Path) -> None:
    held = ranker(tiny_model, **LEARNS, validation_fraction=0.3).fit(X, Y)
    assert {"validation_loss", "validation_score"} <= held.history_[0].keys()
    assert held.history_[-1]["validation_score"] == 1.0
    assert held.history_[-1]["validation_loss"] < held.history_[0]["validation_loss"]


def test_warm_start_goes_on(tiny_model: Path) -> None:
    twice = ranker(tiny_model, **{**LEARNS, "epochs": 2}, warm_start=True).fit(X, Y)
    before = twice.predict_proba(X)
    learned = float(twice.history_[-1]["loss"])
    more = twice.fit([*X[:4], ("a book", ["bad", "great"])], [*Y[:4], 1])
    assert np.abs(more.predict_proba(X) - before).max() > 1e-6
    assert more.history_[0]["loss"] < learned + 0.1


def test_the_seed_fixes_everything(tiny_model: Path) -> None:
    one, other = (ranker(tiny_model, epochs=2).fit(X, Y).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    seeded_otherwise = ranker(tiny_model, epochs=2, random_state=1).fit(X, Y)
    assert (seeded_otherwise.predict_proba(X) != one).any()


def test_x_and_y_are_left_alone(tiny_model: Path) -> None:
    rows, y = copy.deepcopy(X), list(Y)
    frame = wide(X)
    before = frame.copy()
    ranker(tiny_model).fit(rows, y).predict(rows)
    ranker(tiny_model).fit(frame, y).rank(frame)
    assert (rows, y) == (X, Y)
    pd.testing.assert_frame_equal(frame, before)


def test_options_are_probed(tiny_model: Path) -> None:
    auto, probed = (ranker(tiny_model, head_init=how).fit(X, Y) for how in ("auto", "probe"))
    np.testing.assert_array_equal(auto.predict_proba(X), probed.predict_proba(X))


def test_a_random_head_learns_too(tiny_model: Path) -> None:
    pooled = {"pooling": "pooler", "epochs": 12, "learning_rate": 3e-3}
    assert ranker(tiny_model, head_init="random", **pooled).fit(X, Y).score(X, Y) > 0.6


# --- very many options ---------------------------------------------------------------------------


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every batch that goes through a network from now on."""
    return watch(monkeypatch, "hidden", lambda batch: batch.input_ids.shape[1])


MANY = [X[0], ("the film is", sentences((np.arange(60) % 9 + 1).tolist())), *X[1:4]]
MANY_Y = np.array([Y[0], 17, *Y[1:4]])
EXACT = Recipe(epochs=1, batch_size=1, max_grad_norm=None, learning_rate=1e-3)


def trained(folder: Path, precision: str = "float64", **changes: Any) -> dict[str, torch.Tensor]:
    """Weights after a pass over `MANY`."""
    exact = Precision(precision, CPU)
    network = open_model(folder, exact.weight_dtype)
    task = Choice(128)
    items = task.encode(check_choices(MANY), MANY_Y, network.text_tokenizer)
    with seeded(0, CPU):
        (_,) = TrainingLoop(network, task, items, replace(EXACT, **changes), exact, 0)
    return {name: p.detach().clone() for name, p in network.model.named_parameters()}


def step_gradients(folder: Path, dtype: torch.dtype, budget: int) -> dict[str, torch.Tensor]:
    """Gradients of one step on the question of many options, within a budget of tokens."""
    network = open_model(folder, dtype)
    task, precision = Choice(128), Precision(str(dtype).removeprefix("torch."), CPU)
    items = task.encode(check_choices(MANY), MANY_Y, network.text_tokenizer)
    stepper = stepping.Stepper(network, task, EXACT, precision, 1)
    stepper.set_items(items)
    stepper._budget.tokens = budget
    stepper._backward(np.array([1]))
    assert network.word_embedding is not None
    named = [*network.model.named_parameters(), ("words", network.word_embedding.rows)]
    found = {name: p.grad.clone() for name, p in named if p.grad is not None}
    stepper.close()
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("budget", [1, 20, 100])
def test_an_item_beyond_the_budget_has_the_same_gradients(
    tiny_model_no_dropout: Path,
    sizes: list[int],
    dtype: torch.dtype,
    tolerance: float,
    budget: int,
) -> None:
    want = step_gradients(tiny_model_no_dropout, dtype, 10**6)
    assert len(sizes) == 1
    whole = sizes.pop()
    got = step_gradients(tiny_model_no_dropout, dtype, budget)
    assert sum(sizes) == 2 * whole  # each turn once on the way forth, once on the way back
    assert max(sizes) <= max(budget, 15)
    assert_all_close(got, want, tolerance)


@pytest.mark.parametrize("changes", [{}, {"gradient_checkpointing": True}, {"freeze": 1}], ids=str)
def test_a_small_budget_learns_the_same(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int], changes: dict
) -> None:
    want = trained(tiny_model_no_dropout, **changes)
    assert max(sizes) > 300
    del sizes[:]
    monkeypatch.setitem(stepping.TRAINING_TOKENS, "cpu", 100)
    got = trained(tiny_model_no_dropout, **changes)
    assert max(sizes) <= 100
    assert_all_close(got, want, 1e-9)


def test_turns_with_dropout_are_reproducible(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(stepping.TRAINING_TOKENS, "cpu", 100)
    one, other = (trained(tiny_model, "float32") for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_turn_draws_the_same_dropout_on_the_way_back(tiny_model: Path) -> None:
    """The gradient is that of the loss that was computed: along itself it tells the next loss."""
    network = open_model(tiny_model, torch.float64)
    task, exact = Choice(128), Precision("float64", CPU)
    items = task.encode(check_choices(MANY), MANY_Y, network.text_tokenizer)
    stepper = stepping.Stepper(network, task, EXACT, exact, 1)
    stepper.set_items(items)
    stepper._budget.tokens = 100
    network.model.train()
    weight = network.output_layer.weight

    def loss() -> float:
        with seeded(3, CPU):
            return float(stepper._backward(np.array([1]))[0][0])

    first = loss()
    gradient = weight.grad.clone()
    assert loss() == first
    step = 1e-6 * gradient / gradient.norm()
    with torch.no_grad():
        weight += step
    assert (loss() - first) / 1e-6 == pytest.approx(float(gradient.norm()), rel=1e-4)
    stepper.close()


def test_five_hundred_options_stay_within_the_budget(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    for table in (stepping.TRAINING_TOKENS, inference.INFERENCE_TOKENS):
        monkeypatch.setitem(table, "cpu", 512)
    options = [f"{word} {k}" for k in range(100) for word in "bad poor awful worst sad".split()]
    many = [*X, ("the book is", [*options[:123], "great", *options[123:]])]
    fitted = ranker(tiny_model, validation_fraction=0.3, **LEARNS).fit(many, [*Y, 123])
    assert fitted.predict(many[-1:]).tolist() == [123]
    assert fitted.predict_proba(many).shape == (31, 501)
    assert max(sizes) <= 512


# --- scikit-learn --------------------------------------------------------------------------------


def test_it_is_no_classifier(tiny_model: Path) -> None:
    plain = ranker(tiny_model)
    assert not is_classifier(plain)
    assert not is_regressor(plain)
    tags = plain.__sklearn_tags__()
    assert tags.target_tags.required
    assert not tags.input_tags.two_d_array


@pytest.fixture(scope="module")
def scores(tiny_model: Path) -> list[float]:
    """Accuracy on each of three folds, without any help."""
    learner, y, found = ranker(tiny_model, **LEARNS), np.array(Y), []
    for learn, held in KFold(3).split(X):
        learner.fit([X[i] for i in learn], y[learn])
        found.append(learner.score([X[i] for i in held], y[held]))
    return found


FOLDS = {"list": list, "object array of rows": objects, "frame": CONTAINERS["frame"], "wide": wide,
         "Series": CONTAINERS["Series, odd index"], "polars": CONTAINERS["polars"]}  # fmt: skip


@pytest.mark.parametrize("container", FOLDS)
@pytest.mark.long
def test_cross_validation(container: str, tiny_model: Path, scores: list[float]) -> None:
    rows, learner = FOLDS[container](X), ranker(tiny_model, **LEARNS)
    found = cross_val_score(learner, rows, Y, cv=3)
    assert found.tolist() == scores
    assert min(scores) >= 0.8


@pytest.mark.parametrize("container", ["list", "object array of rows", "frame"])
@pytest.mark.long
def test_cross_validated_predictions(
    container: str, tiny_model: Path, scores: list[float]
) -> None:
    learner = ranker(tiny_model, **LEARNS)
    guesses = cross_val_predict(learner, FOLDS[container](X), Y, cv=3)
    assert guesses.dtype == np.int64
    assert np.mean(guesses == Y) == pytest.approx(np.mean(scores))


def test_texts_and_reciprocal_ranks_in_cross_validation(tiny_model: Path) -> None:
    texts = [options[y] for (_, options), y in zip(X, Y, strict=True)]
    learner = ranker(tiny_model, **LEARNS)
    assert cross_val_score(learner, X, texts, cv=3).min() >= 0.8
    scores = cross_val_score(learner, X, Y, cv=3, scoring=get_scorer("mean_reciprocal_rank"))
    assert scores.min() > 0.8


@pytest.mark.parametrize("hold", [list, objects, wide], ids=["list", "objects", "wide frame"])
@pytest.mark.long
def test_a_grid_search(hold: Callable[..., Any], tiny_model: Path) -> None:
    grid = {"epochs": [1, 5], "pooling": ["mean"]}
    search = GridSearchCV(ranker(tiny_model, **LEARNS, freeze=0), grid, cv=3).fit(hold(X), Y)
    assert search.best_score_ >= 0.8
    assert search.score(hold(X), Y) == 1.0
    assert search.predict(hold(X)).tolist() == Y
    piped = make_pipeline(FunctionTransformer(), ranker(tiny_model, **LEARNS)).fit(hold(X), Y)
    assert piped.score(hold(X), Y) == 1.0


def test_score_takes_weights(fitted: BertChoiceRanker) -> None:
    wrong = [y if row % 3 else (y + 1) % len(X[row][1]) for row, y in enumerate(Y)]
    assert fitted.score(X, wrong) == pytest.approx(2 / 3)
    weight = np.arange(30) % 3
    assert fitted.score(X, wrong, sample_weight=weight) == 1.0
    with pytest.raises(InputError, match="sample_weight"):
        fitted.score(X, Y, sample_weight=[1.0])
    assert isinstance(fitted.score(X, Y), float)


def test_weights_reach_fit_and_score_by_routing(tiny_model: Path) -> None:
    wrong = np.arange(30) % 5 == 0
    y = [(y + 1) % len(X[row][1]) if wrong[row] else y for row, y in enumerate(Y)]
    weight = (~wrong).astype(float)
    with config_context(enable_metadata_routing=True):
        asks = ranker(tiny_model, **LEARNS).set_fit_request(sample_weight=True)
        asks.set_score_request(sample_weight=True)
        found = cross_validate(asks, X, y, cv=3, params={"sample_weight": weight})["test_score"]
    for score, (learn, held) in zip(found, KFold(3).split(X), strict=True):
        learner = ranker(tiny_model, **LEARNS)
        learner.fit([X[i] for i in learn], [y[i] for i in learn], weight[learn])
        rest = [X[i] for i in held], [y[i] for i in held]
        assert score == learner.score(*rest, sample_weight=weight[held])


# --- saving --------------------------------------------------------------------------------------


def test_pickle_and_save_keep_everything(fitted: BertChoiceRanker, tmp_path: Path) -> None:
    fitted.save(tmp_path / "ranker")
    expected = fitted.predict_proba(X)
    copies = [pickle.loads(pickle.dumps(fitted)), BertChoiceRanker.load(tmp_path / "ranker"),
              copy.deepcopy(fitted)]  # fmt: skip
    for same in copies:
        np.testing.assert_array_equal(same.predict_proba(X), expected)
        assert same.get_params() == fitted.get_params() | {"model": same.model}
        assert str(same.model) == str(fitted.model)
        assert same.history_ == fitted.history_
        assert same.n_features_in_ == 2
    fresh = clone(copies[1])
    assert not hasattr(fresh, "history_")
    with pytest.raises(NotFittedError):
        fresh.predict(X)


def test_transformers_opens_the_folder(tiny_model: Path, tmp_path: Path) -> None:
    fitted = ranker(tiny_model, pooling="pooler").fit(X, Y)
    fitted.save_pretrained(tmp_path)
    model = AutoModelForMultipleChoice.from_pretrained(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert type(model) is BertForMultipleChoice
    proba = fitted.predict_proba(X)
    for row, (prompt, options) in enumerate(X[:8]):
        n = len(options)
        inputs = tokenizer([prompt] * n, options, padding=True, return_tensors="pt")
        with torch.no_grad():
            logits = model(**{name: table[None] for name, table in inputs.items()}).logits
        np.testing.assert_allclose(proba[row, :n], logits.softmax(1)[0].numpy(), atol=1e-5)


def test_sentence_transformers_scores_the_options(
    fitted: BertChoiceRanker, tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    fitted.save_pretrained(tmp_path)
    model = library.SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    again = BertChoiceRanker.from_pretrained(tmp_path, device="cpu", precision="float32")
    np.testing.assert_array_equal(again.predict(X), fitted.predict(X))
    proba = fitted.predict_proba(X)
    for row, (prompt, options) in enumerate(X[:8]):
        pairs = [(prompt, option) for option in options]
        scores = torch.from_numpy(model.encode(pairs, show_progress_bar=False))[:, 0]
        n = len(options)
        np.testing.assert_allclose(proba[row, :n], scores.softmax(0).numpy(), atol=1e-5)


def test_a_fine_tuned_checkpoint_opens_fitted(tiny_model: Path, tmp_path: Path) -> None:
    network = open_model(tiny_model)
    with torch.no_grad():
        network.output_layer.weight.mul_(30)
    plain = BertForMultipleChoice._from_config(network.model.config, attn_implementation="eager")
    plain.load_state_dict(network.model.state_dict())
    plain.config.num_labels = 2  # what transformers writes for models of this class
    plain.save_pretrained(tmp_path)
    network.tokenizer.save_pretrained(tmp_path)
    opened = BertChoiceRanker.from_pretrained(tmp_path, device="cpu", precision="float32")
    assert opened.pooling_ == "pooler"
    _, logits, _ = reference(network, FOUR, [0, 0, 0])
    np.testing.assert_allclose(opened.predict_proba(FOUR), logits.softmax(1).numpy(), atol=1e-5)
    assert opened.predict(SWAG).shape == (3,)  # nothing was seen in fit that X should be like
    opened.save(tmp_path / "saved")
    again = BertChoiceRanker.load(tmp_path / "saved")
    np.testing.assert_array_equal(again.predict_proba(FOUR), opened.predict_proba(FOUR))
    tuned = ranker(tmp_path, head_init="random").fit(X, Y)
    assert tuned.predict(X).shape == (30,)


def test_other_checkpoints_do_not_open(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no head for BertForMultipleChoice"):
        BertChoiceRanker.from_pretrained(tiny_model)
    texts = ["good movie", "bad movie"] * 5
    kinds = ["good", "bad"] * 5
    BertClassifier(tiny_model, epochs=1, pooling="pooler").fit(texts, kinds).save_pretrained(
        tmp_path
    )
    with pytest.raises(ModelError, match="no head for BertForMultipleChoice"):
        BertChoiceRanker.from_pretrained(tmp_path)


# --- the real encoder ----------------------------------------------------------------------------


def test_the_real_encoder_beats_guessing(minilm: Path) -> None:
    frame, y = load_choices(return_X_y=True)
    learner = ranker(minilm, freeze="all").fit(frame[:80], y[:80])
    assert learner.score(frame[80:], y[80:]) > 0.45  # guessing: 0.33


@pytest.mark.parametrize("name", ["choice_accuracy", "mean_reciprocal_rank"])
def test_scorers_read_options_as_the_ranker_in_a_pipeline_does(
    name: str, tiny_model: Path
) -> None:
    rows, y = questions(12)
    given = [(prompt, options[:2]) for prompt, options in rows]
    X = pd.DataFrame([(i, prompt, *options) for i, (prompt, options) in enumerate(given)],
                     columns=["id", "prompt", "a", "b"])  # fmt: skip
    right = [options[min(at, 1)] for (_, options), at in zip(given, y, strict=True)]
    ranker = BertChoiceRanker(
        tiny_model, text_columns=["prompt", "b", "a"], epochs=1, device="cpu", random_state=0
    )
    swap = FunctionTransformer(lambda X: X.rename(columns={"a": "b", "b": "a"}))
    for steps, seen in (((), X), ((swap,), swap.transform(X))):
        chain = make_pipeline(*steps, ranker).fit(X, right)
        alone = get_scorer(name)(chain[-1], seen, right)
        assert get_scorer(name)(chain, X, right) == alone
        if name == "choice_accuracy":
            assert chain.score(X, right) == alone
    search = GridSearchCV(make_pipeline(ranker), {}, cv=2, scoring=get_scorer(name)).fit(X, right)
    assert search.score(X, right) == get_scorer(name)(search.best_estimator_[-1], X, right)
