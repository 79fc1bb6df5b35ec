"""The span extractor: answers cut from contexts, its scores, its place in scikit-learn, saving."""

from __future__ import annotations

import copy
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import softmax
from sklearn import config_context
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.compose import ColumnTransformer
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import (
    GridSearchCV,
    KFold,
    cross_val_predict,
    cross_val_score,
    cross_validate,
)
from sklearn.pipeline import make_pipeline
from support.networks import assert_all_close, gradients
from support.spans import as_objects, by_hand, pairs
from transformers import (
    AutoModelForQuestionAnswering,
    AutoTokenizer,
    BertConfig,
    BertForQuestionAnswering,
    BertForTokenClassification,
)

from skbert import BertClassifier, BertSpanExtractor
from skbert._core.batches import collate
from skbert._core.checkpoints.vet import vet
from skbert._core.infer import infer
from skbert._core.items import Head, Items
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import Precision, seeded
from skbert._core.task import Batch
from skbert._core.text.tokens import Ragged
from skbert._extraction.task import MAX_ANSWERS, Answers
from skbert._validation.answers import warn_if_swapped
from skbert._validation.texts import check_texts
from skbert.datasets import load_questions
from skbert.exceptions import (
    InputError,
    InputTypeError,
    ModelError,
    SaveError,
    SkbertWarning,
    TruncationWarning,
)
from skbert.metrics import get_scorer, squad_em, squad_f1

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

CPU = torch.device("cpu")
# Learns the questions below from nothing in a second.
LEARNS = {"epochs": 8, "learning_rate": 3e-3, "head_learning_rate": 1e-2}
STILL = {"learning_rate": 1e-12, "head_learning_rate": 1e-12, "head_init": "random"}
KINDS = ("good", "bad", "great", "awful", "nice", "poor")
THINGS = ("movie", "film", "book", "food", "service", "staff", "phone", "room")


def extractor(model: Path, **params: Any) -> BertSpanExtractor:
    plain = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertSpanExtractor(model, **{**plain, **params})


def questions(n: int = 48, seed: int = 0) -> tuple[list[tuple[str, str]], list[str]]:
    """How things are: the answer is the one word of praise or blame, wherever it stands."""
    rng = np.random.default_rng(seed)
    X, y = [], []
    for _ in range(n):
        thing, kind = rng.choice(THINGS), str(rng.choice(KINDS))
        before = " ".join(rng.choice(["we", "it", "was", "to", "my", "you"], rng.integers(0, 12)))
        after = " ".join(rng.choice(["but", "on", "they", "for", "so"], rng.integers(0, 12)))
        X.append((f"how is the {thing}?", f"{before} the {thing} is {kind.upper()}, {after}"))
        y.append(kind.upper())
    return X, y


def unanswered(n: int = 48, seed: int = 0) -> tuple[list[tuple[str, str]], list[str]]:
    """The same questions, every third one without an answer."""
    X, y = questions(n, seed)
    for row in range(0, n, 3):
        X[row] = (X[row][0], X[row][1].replace(y[row], "red"))
        y[row] = ""
    return X, y


@pytest.fixture(scope="module")
def fitted(tiny_model: Path) -> BertSpanExtractor:
    """One that has learned, and is never asked to fit again."""
    return extractor(tiny_model, **LEARNS).fit(*questions())


@pytest.fixture(scope="module")
def silent(tiny_model: Path) -> BertSpanExtractor:
    """One that knows questions without an answer."""
    return extractor(tiny_model, **LEARNS).fit(*unanswered())


# --- against transformers ------------------------------------------------------------------------


def plain_twin(network: Network) -> Any:
    """The same weights in a model of transformers that knows nothing of packing."""
    config = copy.deepcopy(network.model.config)
    with torch.random.fork_rng(devices=[]):
        twin = BertForQuestionAnswering._from_config(config, attn_implementation="eager")
    twin.load_state_dict(network.model.state_dict())
    return twin.to(network.dtype).eval()


def fresh_network(folder: Path, dtype: torch.dtype) -> Network:
    with seeded(0, CPU):
        return open_network(vet(folder), Answers(128).head(), dtype=dtype)


@pytest.mark.parametrize(("dtype", "digits"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_loss_logits_and_gradients_are_those_of_transformers(
    tiny_model_no_dropout: Path, dtype: torch.dtype, digits: float
) -> None:
    network = fresh_network(tiny_model_no_dropout, dtype)
    twin = plain_twin(network)
    X, y = unanswered(12)
    texts = pairs(*(list(part) for part in zip(*X, strict=True)))
    starts = [context.find(text) if text else -1 for (_, context), text in zip(X, y, strict=True)]
    spans = np.array([(s, s + len(t) if t else -1) for s, t in zip(starts, y, strict=True)])
    task = Answers(128)
    items = task.encode(texts, spans, network.text_tokenizer)
    assert len(items) == len(X)
    batch = collate(items, np.arange(len(items)), CPU, dtype)
    logits = network.logits(batch)
    loss, weight = task.loss(logits, batch)
    (loss / weight).backward()
    logits = logits.detach()

    tokenized = network.tokenizer(
        texts.first, texts.second, padding=True, return_tensors="pt", return_offsets_mapping=True
    )
    offsets = tokenized.pop("offset_mapping")
    told = tokenized["token_type_ids"].bool() & (offsets[..., 1] > 0)
    where = torch.zeros(len(X), 2, dtype=torch.long)
    for row, (begin, end) in enumerate(spans.tolist()):
        if begin >= 0:
            where[row, 0] = torch.nonzero(told[row] & (offsets[row, :, 0] == begin))[0, 0]
            where[row, 1] = torch.nonzero(told[row] & (offsets[row, :, 1] == end))[0, 0]
    out = twin(**tokenized)
    real = tokenized["attention_mask"].bool()
    padded = torch.stack([out.start_logits, out.end_logits], dim=-1)
    torch.testing.assert_close(logits, padded[real], rtol=digits, atol=digits)
    assert items.places is not None
    np.testing.assert_array_equal(
        items.places.values, torch.where(told[..., None], offsets, -1)[real].numpy()
    )

    # Its own loss counts padding as places to point at, so each row goes by itself.
    total = torch.zeros((), dtype=dtype)
    for row, length in enumerate(real.sum(dim=1).tolist()):
        alone = {name: ids[row : row + 1, :length] for name, ids in tokenized.items()}
        total = total + twin(
            **alone, start_positions=where[row : row + 1, 0], end_positions=where[row : row + 1, 1]
        ).loss / len(X)  # fmt: skip
    total.backward()
    torch.testing.assert_close((loss / weight).detach(), total.detach(), rtol=digits, atol=digits)
    want = gradients(twin)
    assert len(want) == len(list(network.model.parameters()))
    assert_all_close(gradients(network.model), want, digits)


def test_a_weight_is_a_factor_on_the_loss_of_all_windows(tiny_model_no_dropout: Path) -> None:
    network = fresh_network(tiny_model_no_dropout, torch.float64)
    task = Answers(32)
    contexts = ["bad " * 90 + "good", "bad good"]
    items = task.encode(
        pairs(["how?"] * 2, contexts), np.array([[360, 364], [4, 8]]), network.text_tokenizer
    )
    assert np.bincount(items.samples).tolist() == [7, 1]

    def loss(part: Items) -> float:
        batch = collate(part, np.arange(len(part)), CPU, torch.float64)
        with torch.inference_mode():
            total, weight = task.loss(network.logits(batch), batch)
        return float(total / weight)

    alone = [loss(items.of_samples(np.array([sample]))) for sample in (0, 1)]
    for weights in ([1.0, 1.0], [3.0, 0.5], [0.0, 2.0]):
        got = loss(items.weighted(np.array(weights)))
        assert got == pytest.approx(np.average(alone, weights=weights))


# --- answers -------------------------------------------------------------------------------------


def test_learns_to_answer(fitted: BertSpanExtractor) -> None:
    X, y = questions(seed=1)
    answers = fitted.predict(X)
    assert (answers.dtype, answers.shape) == (object, (len(X),))
    assert {type(answer) for answer in answers} == {str}
    assert fitted.score(X, y) > 0.9
    assert fitted.score(X, y) == squad_f1(y, answers)
    assert fitted.no_answer_threshold_ == np.inf
    assert (fitted.n_iter_, fitted.n_truncated_, fitted.n_features_in_) == (8, 0, 2)


def test_learns_to_be_silent(silent: BertSpanExtractor) -> None:
    X, y = unanswered(seed=1)
    assert silent.no_answer_threshold_ == 0.0
    answers = silent.predict(X)
    assert squad_em(y, answers) > 0.9
    assert (answers == "").any()
    assert silent.score(X, [[], *y[1:]]) == silent.score(X, y)


def test_learns_on_every_device(device: str, tiny_model: Path) -> None:
    X, y = unanswered()
    learned = extractor(tiny_model, device=device, **LEARNS).fit(X, y)
    assert learned.score(X, y) > 0.9
    assert learned.model_.device.type == device


def test_without_empty_answers_in_fit_there_are_none_in_predict(tiny_model: Path) -> None:
    X, y = questions(8)
    never = extractor(tiny_model, **STILL).fit(X, y)
    assert "" not in never.predict(X).tolist()
    assert (never.predict_answers(X)["no_answer_score"] == 0).all()
    # A context without a single token has no part to give.
    assert never.predict([("how?", ""), ("how?", " \n"), ("how?", "good")]).tolist() == [
        "", "", "good"]  # fmt: skip


@pytest.mark.parametrize("threshold", [-np.inf, -1e6, -0.5, 0, 1e6, np.inf])
def test_a_threshold_may_be_given(threshold: float, tiny_model: Path) -> None:
    X, y = questions(8)
    given = extractor(tiny_model, no_answer_threshold=threshold, **STILL).fit(X, y)
    assert given.no_answer_threshold_ == threshold
    best = given.predict_answers(X, n_best=1)
    said = np.full(len(X), True)
    if np.isfinite(threshold):
        said = np.log(best["no_answer_score"] / best["score"]).to_numpy() <= threshold
    elif threshold < 0:
        said[:] = False
    assert (given.predict(X) == np.where(said, best["answer"], "")).all()
    assert (best["no_answer_score"] > 0).all() == (threshold < np.inf)
    assert said.all() == (threshold > 1)


def test_a_threshold_is_tuned_on_the_rows_held_out(tiny_model: Path) -> None:
    X, y = unanswered(60)
    learned = extractor(tiny_model, validation_fraction=0.4, **LEARNS).fit(X, y)
    held = learned.history_[-1]
    assert 0 <= held["validation_score"] <= 1
    tuned = learned.no_answer_threshold_
    assert tuned not in (0.0, np.inf)
    plain = extractor(tiny_model, validation_fraction=0.4, **LEARNS)
    plain.set_params(no_answer_threshold=0.0).fit(X, y)
    assert plain.no_answer_threshold_ == 0.0
    for name, weight in learned.model_.state_dict().items():
        assert torch.equal(weight, plain.model_.state_dict()[name])
    none_empty = extractor(tiny_model, validation_fraction=0.4, **STILL).fit(*questions(8))
    assert none_empty.no_answer_threshold_ == np.inf


def test_answered_rows_do_not_tune_a_threshold(tiny_model: Path) -> None:
    X, y = unanswered(60)
    answered = [row for row, answer in enumerate(y) if answer][:6]
    beside = {"X_val": [X[row] for row in answered], "y_val": [y[row] for row in answered]}
    given = extractor(tiny_model, **LEARNS).fit(X, y, **beside)
    drawn = extractor(tiny_model, validation_fraction=0.1, **LEARNS)
    drawn.fit(X, y, groups=np.isin(np.arange(60), answered))  # the smaller group is held out
    assert given.no_answer_threshold_ == drawn.no_answer_threshold_ == 0.0


def test_long_contexts_are_read_to_their_end(tiny_model: Path) -> None:
    X, y = questions()
    rng = np.random.default_rng(0)
    filler = ["we", "it", "was", "to", "my", "you"]
    X = [(q, " ".join([*rng.choice(filler, 70), c, *rng.choice(filler, 30)])) for q, c in X]
    learned = extractor(tiny_model, max_length=48, **LEARNS).fit(X, y)
    assert learned.n_truncated_ == 0
    assert learned.score(X, y) > 0.9


def straddling(n: int = 24) -> tuple[list[tuple[str, str]], list[str]]:
    """Answers of five words, many of which lie in no window, and some questions without one."""
    rng = np.random.default_rng(0)
    X, y = [], []
    for row in range(n):
        words = [*rng.choice(["we", "it", "was", "to", "my", "you"], 40)]
        at = int(rng.integers(35))
        words[at : at + 5] = ["good"] * 5
        X.append(("which film?", " ".join(words)))
        y.append("good good good good good" if row % 3 else "")
    return X, y


@pytest.mark.parametrize("stride", [0, 2])
def test_rows_are_read_alike_with_and_without_their_answers(
    stride: int, lively_model: Path
) -> None:
    X, y = straddling()
    learned = extractor(lively_model, max_length=20, stride=stride, **STILL).fit(X, y)
    state = learned._state()
    texts = check_texts(X)
    characters = np.array([[c.find(a), c.find(a) + len(a)] if a else [-1, -1]
                           for (_, c), a in zip(X, y, strict=True)])  # fmt: skip
    answers = []
    for given in (characters, None):
        items = state.task.encode(texts, given, state.network.text_tokenizer)
        outputs = infer(state.network, items, Precision("float32", CPU))
        answers.append((len(items), state.task.decode(outputs, items)))
    (n_in_training, known), (n_alone, unknown) = answers
    assert n_in_training > n_alone
    for one, other in zip(known, unknown, strict=True):
        assert one.spans.tolist() == other.spans.tolist()
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-5)
        assert one.null == pytest.approx(other.null, abs=1e-5)


def test_what_is_validated_is_the_score(tiny_model: Path) -> None:
    X, y = straddling(36)
    learned = extractor(tiny_model, max_length=20, stride=0, **{**LEARNS, "epochs": 20})
    learned.set_params(no_answer_threshold=0.0).fit(X, y, X_val=X, y_val=y)
    scores = [record["validation_score"] for record in learned.history_]
    assert learned.score(X, y) in scores
    assert 0 < max(scores) < 1


def test_answers_are_cut_from_the_context_as_it_was_given(fitted: BertSpanExtractor) -> None:
    before = "\U0001f468\u200d\U0001f469\u200d\U0001f467 cafe\u0301 \u5317\u4eac\x07 \ud83d "
    context = before + "the film is GREAT, but so"
    with pytest.warns(UserWarning, match="lone surrogates"):
        table = fitted.predict_answers([("how is the film?", context)], n_best=MAX_ANSWERS)
    for answer, begin, end in zip(table["answer"], table["start"], table["end"], strict=True):
        assert context.replace("\ud83d", "\ufffd")[begin:end] == answer
    assert table["answer"][0] == "GREAT"
    assert table["start"][0] == len(before) + len("the film is ")


def test_a_question_that_is_cut_is_told(fitted: BertSpanExtractor) -> None:
    with pytest.warns(TruncationWarning, match="1 of 2 questions"):
        answers = fitted.predict([("how " * 300, "the film is good"), ("how?", "it is good")])
    assert answers.tolist() == ["good", "good"]


# --- several answers -----------------------------------------------------------------------------


@pytest.mark.parametrize("n_best", [1, 5, MAX_ANSWERS])
def test_several_answers(n_best: int, fitted: BertSpanExtractor) -> None:
    X = [*questions(6)[0], ("how?", "")]
    table = fitted.predict_answers(X, n_best=n_best)
    assert table.columns.tolist() == [
        "row", "rank", "answer", "start", "end", "score", "no_answer_score"]  # fmt: skip
    assert table["row"].unique().tolist() == list(range(6))  # an empty context has no answers
    for row, part in table.groupby("row"):
        assert part["rank"].tolist() == list(range(1, len(part) + 1))
        assert len(part) == n_best
        assert part["score"].is_monotonic_decreasing
        context = X[row][1]
        cut = [context[b:e] for b, e in zip(part["start"], part["end"], strict=True)]
        assert part["answer"].tolist() == cut
        assert not part.duplicated(["start", "end"]).any()
        if n_best == MAX_ANSWERS:
            assert part["score"].sum() + part["no_answer_score"].iloc[0] == pytest.approx(1)
    best = table[table["rank"] == 1]["answer"].tolist()
    assert [*best, ""] == fitted.predict(X).tolist()


def test_probabilities_are_a_softmax_of_the_best_and_no_answer(silent: BertSpanExtractor) -> None:
    X = questions(5)[0]
    X[1] = ("how?", "good")
    table = silent.predict_answers(X, n_best=MAX_ANSWERS)
    model = plain_twin(silent._fitted.network)
    for row, (question, context) in enumerate(X):
        with torch.inference_mode():
            out = model(**silent.tokenizer_(question, context, return_tensors="pt"))
        logits = torch.stack([out.start_logits[0], out.end_logits[0]], dim=1).numpy()
        items = silent._fitted.task.encode(
            pairs([question], [context]), None, silent._fitted.network.text_tokenizer
        )
        spans, null = by_hand(items, Ragged(logits, items.tokens.ids.starts), 30)
        scores = sorted(spans.values(), reverse=True)[:MAX_ANSWERS]
        *expected, none = softmax([*scores, null])
        part = table[table["row"] == row]
        np.testing.assert_allclose(part["score"], expected, rtol=1e-3, atol=1e-7)
        np.testing.assert_allclose(part["no_answer_score"], none, rtol=1e-3)


@pytest.mark.parametrize("n_best", [0, 21, -1, 2.5, "5", None, True])
def test_numbers_of_answers_that_are_none(n_best: Any, fitted: BertSpanExtractor) -> None:
    with pytest.raises((InputError, InputTypeError), match="int from 1 to 20; type n_best=5"):
        fitted.predict_answers([("how?", "good")], n_best=n_best)


def test_the_longest_answer(tiny_model: Path) -> None:
    X, y = questions(8)
    for longest in (1, 3):
        short = extractor(tiny_model, max_answer_length=longest, **STILL).fit(X, y)
        table = short.predict_answers(X, n_best=MAX_ANSWERS)
        n_tokens = [len(ids) for ids in short.tokenizer_(table["answer"].tolist())["input_ids"]]
        assert max(n_tokens) == longest + 2


# --- X and y -------------------------------------------------------------------------------------


def test_containers(fitted: BertSpanExtractor) -> None:
    X = questions(5)[0]
    expected = fitted.predict(X)
    frame = pd.DataFrame(X, columns=["question", "context"], index=[3, 3, 1, 0, 9])
    for held in (frame, np.array(X), np.array(X, dtype=object), as_objects(X), tuple(X)):
        np.testing.assert_array_equal(fitted.predict(held), expected)


def test_columns_by_name(tiny_model: Path) -> None:
    X, y = questions(6)
    frame = pd.DataFrame(X, columns=["question", "context"])
    swapped = frame[["context", "question"]]
    wide = swapped.assign(title="a title")
    by_name = extractor(tiny_model, text_columns=["question", "context"], **STILL).fit(wide, y)
    plain = extractor(tiny_model, **STILL).fit(X, y)
    np.testing.assert_array_equal(by_name.predict(wide), plain.predict(X))
    with pytest.raises(InputError, match=r"question\s+comes first"):
        extractor(tiny_model).fit(swapped, y)
    assert extractor(tiny_model, **STILL).fit(frame, y).feature_names_in_.tolist() == [
        "question", "context"]  # fmt: skip


@pytest.mark.parametrize("X", [["one text", "another"], pd.DataFrame({"a": ["b", "c"]})])
def test_one_column_is_not_enough(X: Any, tiny_model: Path, fitted: BertSpanExtractor) -> None:
    with pytest.raises(InputError, match=r"one text per row.*zip\(questions, contexts\)"):
        extractor(tiny_model).fit(X, ["b", "c"])
    with pytest.raises(InputError, match=r"2 features|per row"):
        fitted.predict(X)


def test_columns_of_texts_are_refused(tiny_model: Path) -> None:
    with pytest.raises(InputError, match="zip"):
        extractor(tiny_model).fit((["how?"] * 3, ["good"] * 3), ["good"] * 3)


def test_forms_of_y_teach_the_same(tiny_model: Path) -> None:
    X, y = questions(6)
    starts = [context.index(text) for (_, context), text in zip(X, y, strict=True)]
    placed = list(zip(y, starts, strict=True))
    forms = [y, placed, [[text, "or so"] for text in y], as_objects(placed), pd.Series(placed)]
    weights = [extractor(tiny_model).fit(X, form).model_.qa_outputs.weight for form in forms]
    for weight in weights[1:]:
        assert torch.equal(weight, weights[0])


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (["good", "bad", "of"], r"1 answer.*row 2 \('of'\)"),
        (["good", None, ""], "missing.*row 1"),
        (["good", "bad"], "inconsistent"),
        (["good", "is", "film"], r"row 1 \('is', 2 times\).*on_ambiguous"),
        (["good", ("bad", 3), "film"], "start is 3"),
        (None, "requires y"),
    ],
)
def test_bad_answers_are_refused_before_any_model_is_trained(
    y: Any, words: str, tiny_model: Path
) -> None:
    X = [("how?", "it is good"), ("how?", "it is, is bad"), ("what?", "a film")]
    with pytest.raises(InputError, match=words):
        extractor(tiny_model).fit(X, y)


def test_on_ambiguous_first(tiny_model: Path) -> None:
    X = [("how?", "good, it is good"), ("how?", "bad")]
    first = extractor(tiny_model, on_ambiguous="first").fit(X, ["good", "bad"])
    said = extractor(tiny_model).fit(X, [("good", 0), "bad"])
    assert torch.equal(first.model_.qa_outputs.weight, said.model_.qa_outputs.weight)


@pytest.mark.parametrize(
    "params",
    [
        {"stride": -1},
        {"stride": 1.5},
        {"max_answer_length": 0},
        {"on_ambiguous": "last"},
        {"no_answer_threshold": "best"},
        {"no_answer_threshold": None},
        {"max_length": 1000},
    ],
)
def test_bad_parameters(params: dict[str, Any], tiny_model: Path) -> None:
    with pytest.raises(ValueError, match=next(iter(params))):
        extractor(tiny_model, **params).fit(*questions(4))


def test_rows_are_384_tokens_at_most_unless_told(make_tiny_model: Callable[..., Path]) -> None:
    wide = make_tiny_model(max_position_embeddings=512)
    X, y = [("how?", "it is good")], ["good"]
    assert extractor(wide).fit(X, y)._fitted.task.max_length == 384
    assert extractor(wide, max_length=512).fit(X, y)._fitted.task.max_length == 512
    narrow = make_tiny_model(max_position_embeddings=64)
    assert extractor(narrow).fit(X, y)._fitted.task.max_length == 64


def test_not_fitted(tiny_model: Path) -> None:
    with pytest.raises(NotFittedError):
        extractor(tiny_model).predict([("how?", "good")])
    with pytest.raises(NotFittedError):
        extractor(tiny_model).predict_answers([("how?", "good")])


# --- weights -------------------------------------------------------------------------------------


def test_weight_of_two_is_the_row_twice(tiny_model_no_dropout: Path) -> None:
    X, y = unanswered(12)
    times = np.arange(len(X)) % 3  # 0, 1 or 2
    exact = {"precision": "float64", "batch_size": 200, "epochs": 3, "learning_rate": 1e-3}
    weighted = extractor(tiny_model_no_dropout, **exact).fit(X, y, sample_weight=times)
    rows = np.repeat(np.arange(len(X)), times)
    twice = extractor(tiny_model_no_dropout, **exact).fit(
        [X[row] for row in rows], [y[row] for row in rows]
    )
    plain = extractor(tiny_model_no_dropout, **exact).fit(X, y)
    one, two, other = (e.model_.qa_outputs.weight for e in (weighted, twice, plain))
    torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-8)
    assert not torch.allclose(one, other, rtol=1e-4)


def test_score_is_weighted(silent: BertSpanExtractor) -> None:
    X, y = unanswered(12)
    y = [("wrong" if row < 4 else text) for row, text in enumerate(y)]
    weight = np.arange(12.0)
    hits = np.array([squad_f1([gold], [told]) for gold, told in
                     zip(y, silent.predict(X), strict=True)])  # fmt: skip
    assert silent.score(X, y, sample_weight=weight) == pytest.approx(hits @ weight / weight.sum())


# --- in scikit-learn -----------------------------------------------------------------------------


def test_it_is_neither_classifier_nor_regressor(tiny_model: Path) -> None:
    assert not is_classifier(extractor(tiny_model))
    assert not is_regressor(extractor(tiny_model))
    assert extractor(tiny_model).__sklearn_tags__().target_tags.required


def frames(X: list[Any]) -> pd.DataFrame:
    return pd.DataFrame(X, columns=["question", "context"])


@pytest.mark.parametrize("hold", [list, as_objects, frames], ids=["list", "array", "frame"])
@pytest.mark.long
def test_cross_validation(hold: Callable[..., Any], tiny_model: Path) -> None:
    X, y = unanswered(15)
    placed = [(text, context.index(text)) if text else [] for (_, context), text in
              zip(X, y, strict=True)]  # fmt: skip
    quick = extractor(tiny_model, epochs=2, learning_rate=3e-3)
    expected = cross_val_score(quick, X, y, cv=3)
    assert np.isfinite(expected).all()
    answers = cross_val_predict(quick, X, y, cv=3)
    assert (answers.dtype, answers.shape) == (object, (15,))
    for targets in (y, placed, as_objects(placed), pd.Series(placed)):
        np.testing.assert_array_equal(cross_val_score(quick, hold(X), targets, cv=3), expected)
        np.testing.assert_array_equal(cross_val_predict(quick, hold(X), targets, cv=3), answers)
    for learn, held in KFold(3).split(X):
        alone = clone(quick).fit([X[row] for row in learn], [y[row] for row in learn])
        np.testing.assert_array_equal(alone.predict([X[row] for row in held]), answers[held])


@pytest.mark.long
def test_grid_search(tiny_model: Path) -> None:
    X, y = questions(12)
    search = GridSearchCV(
        extractor(tiny_model),
        {"max_answer_length": [1, 5], "stride": [None, 4]},
        cv=3,
        scoring={"f1": get_scorer("squad_f1"), "em": get_scorer("squad_em")},
        refit="f1",
        error_score="raise",
    ).fit(frames(X), y)
    assert len(search.cv_results_["mean_test_em"]) == 4
    assert search.best_estimator_.predict(frames(X)).shape == (12,)
    assert search.score(frames(X), y) == search.best_estimator_.score(X, y)


def test_at_the_end_of_a_pipeline(tiny_model: Path) -> None:
    X, y = questions(6)
    wide = frames(X).assign(title="a title")
    chosen = ColumnTransformer([("text", "passthrough", ["question", "context"])])
    piped = make_pipeline(chosen, extractor(tiny_model)).fit(wide, y)
    expected = extractor(tiny_model).fit(X, y).predict(X)
    np.testing.assert_array_equal(piped.predict(wide), expected)


def test_weights_are_routed(tiny_model: Path) -> None:
    X, y = questions(8)
    weight = np.arange(8) % 2 + 0.5
    with config_context(enable_metadata_routing=True):
        asking = extractor(tiny_model).set_fit_request(sample_weight=True)
        asking.set_score_request(sample_weight=True)
        got = cross_validate(
            asking, X, y, cv=2, params={"sample_weight": weight}, return_estimator=True
        )
    held = next(iter(KFold(2).split(X)))[1]
    first = got["estimator"][0]
    expected = first.score([X[i] for i in held], [y[i] for i in held], weight[held])
    assert got["test_score"][0] == pytest.approx(expected)
    alone = extractor(tiny_model).fit(X[4:], y[4:], sample_weight=weight[4:])
    assert torch.equal(alone.model_.qa_outputs.weight, first.model_.qa_outputs.weight)


def test_clone_and_warm_start(tiny_model: Path) -> None:
    X, y = unanswered(12)
    learned = extractor(tiny_model, warm_start=True, epochs=2, learning_rate=1e-3).fit(X, y)
    assert clone(learned).get_params() == learned.get_params()
    assert not hasattr(clone(learned), "model_")
    before = learned.model_.qa_outputs.weight.clone()
    bare = learned.set_params(**STILL).fit(X, y)
    torch.testing.assert_close(bare.model_.qa_outputs.weight, before)
    learned.fit(*questions(6))  # these alone would never be answered by ""
    assert learned.no_answer_threshold_ == 0.0
    assert extractor(tiny_model, **STILL).fit(*questions(6)).no_answer_threshold_ == np.inf


def test_the_same_seed_gives_the_same_bits(tiny_model: Path) -> None:
    X, y = unanswered(12)
    first, second = (extractor(tiny_model, epochs=2).fit(X, y) for _ in range(2))
    assert torch.equal(first.model_.qa_outputs.weight, second.model_.qa_outputs.weight)
    pd.testing.assert_frame_equal(first.predict_answers(X), second.predict_answers(X))


# --- saving and opening --------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fitted", "silent"])
@pytest.mark.parametrize("way", ["save", "pickle", "deepcopy"])
def test_copies(name: str, way: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    whole: BertSpanExtractor = request.getfixturevalue(name)
    X = unanswered(8, seed=3)[0]
    if way == "save":
        whole.save(tmp_path / "folder")
        other = BertSpanExtractor.load(tmp_path / "folder")
    elif way == "pickle":
        other = pickle.loads(pickle.dumps(whole))
    else:
        other = copy.deepcopy(whole)
    assert other.get_params() == {**whole.get_params(), "model": other.model}
    assert other.no_answer_threshold_ == whole.no_answer_threshold_
    assert other._fitted.task == whole._fitted.task
    pd.testing.assert_frame_equal(other.predict_answers(X), whole.predict_answers(X))
    np.testing.assert_array_equal(other.predict(X), whole.predict(X))


def test_another_estimator_does_not_open_it(fitted: BertSpanExtractor, tmp_path: Path) -> None:
    fitted.save(tmp_path / "folder")
    with pytest.raises(SaveError, match="BertSpanExtractor"):
        BertClassifier.load(tmp_path / "folder")


def test_transformers_opens_it_with_equal_logits(
    silent: BertSpanExtractor, tmp_path: Path
) -> None:
    silent.save_pretrained(tmp_path / "folder")
    model = AutoModelForQuestionAnswering.from_pretrained(tmp_path / "folder").eval()
    texts = AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert type(model) is BertForQuestionAnswering
    for question, context in questions(5)[0]:
        items = silent._fitted.task.encode(
            pairs([question], [context]), None, silent._fitted.network.text_tokenizer
        )
        batch: Batch = collate(items, np.arange(1), CPU, torch.float32)
        with torch.inference_mode():
            got = silent._fitted.network.logits(batch)
            out = model(**texts(question, context, return_tensors="pt"))
        want = torch.stack([out.start_logits[0], out.end_logits[0]], dim=1)
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


def test_from_pretrained(silent: BertSpanExtractor, tmp_path: Path) -> None:
    X = unanswered(8, seed=3)[0]
    silent.save_pretrained(tmp_path / "folder")
    params = {"device": "cpu", "precision": "float32"}
    opened = BertSpanExtractor.from_pretrained(tmp_path / "folder", **params)
    assert opened.no_answer_threshold_ == np.inf
    best = silent.predict_answers(X, n_best=1)
    assert opened.predict(X).tolist() == best["answer"].tolist()
    told = BertSpanExtractor.from_pretrained(
        tmp_path / "folder", no_answer_threshold=0.0, **params
    )
    np.testing.assert_array_equal(told.predict(X), silent.predict(X))
    pd.testing.assert_frame_equal(told.predict_answers(X), silent.predict_answers(X))
    opened.save(tmp_path / "saved")
    again = BertSpanExtractor.load(tmp_path / "saved")
    assert again.predict(X).tolist() == opened.predict(X).tolist()


def test_checkpoints_that_answer_no_questions(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no head for BertForQuestionAnswering"):
        BertSpanExtractor.from_pretrained(tiny_model)
    config = BertConfig.from_pretrained(tiny_model, num_labels=3)
    for kind, words in (
        (BertForTokenClassification, "no head"),
        (BertForQuestionAnswering, "3 outputs per token"),
    ):
        with torch.random.fork_rng():
            kind(config).save_pretrained(tmp_path / kind.__name__)
        AutoTokenizer.from_pretrained(tiny_model).save_pretrained(tmp_path / kind.__name__)
        with pytest.raises(ModelError, match=words):
            BertSpanExtractor.from_pretrained(tmp_path / kind.__name__)


def test_the_head(tiny_model: Path) -> None:
    head = Answers(128).head()
    assert head == Head("question answering", 2, reads="tokens")
    learned = extractor(tiny_model).fit(*questions(4))
    assert type(learned.model_) is BertForQuestionAnswering


# --- the real encoder ----------------------------------------------------------------------------


def test_the_real_encoder_learns_to_answer(minilm: Path) -> None:
    places = {"Anna": "Oslo", "Omar": "Cairo", "Mei": "Taipei", "Luis": "Lima"}
    X = [
        (f"Where does {who} live?", f"{who} has lived in {place} for two years.")
        for who, place in places.items()
    ]
    learned = extractor(minilm, epochs=5).fit(X, list(places.values()))
    asked = [("Where does Ruth live?", "Ruth has lived in Berlin for two years.")]
    assert learned.predict(asked).tolist() == ["Berlin"]


# --- question and context the other way round ----------------------------------------------------


CONTEXT = "Anna has lived in Oslo for two years, and Omar in Cairo."


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (CONTEXT, "Where does Anna live?"),
        (CONTEXT, 'Where does "Anna live?" '),
        ("安娜住在奥斯陆。", "安娜住在哪里\uff1f"),
        ("آنا تعيش في أوسلو.", "أين تعيش آنا؟"),
        (CONTEXT, "Anna home"),  # neither is a question: the longer one is the context
    ],
)
def test_rows_that_look_swapped_are_warned_of(first: str, second: str) -> None:
    with pytest.warns(SkbertWarning, match=r"2 of 3 rows of X look as if .*row 0 has"):
        warn_if_swapped([first, "Who?", first], [second, CONTEXT, second])
    warn_if_swapped([second, first], [first, second])  # no more than half of the rows


@pytest.mark.parametrize(
    ("question", "context"),
    [
        ("Where does Anna live?", CONTEXT),
        ("Anna home", CONTEXT),
        ("Who wonders?", "Why is that? Nobody knows. Or is it Anna?"),
        ("Tell me in one word where it is that Anna lives nowadays.", "Anna lives in Oslo."),
        ("Where, " + "in all of the world " * 9 + "does Anna live?", "In Oslo."),
        ("where does anna live", ""),
        ("where does anna live", "  "),
        ("", ""),
    ],
)
def test_rows_in_the_right_order_are_not(question: str, context: str) -> None:
    warn_if_swapped([question], [context])


def test_the_questions_that_ship_with_the_package_are_in_order() -> None:
    X, _ = load_questions(return_X_y=True)
    warn_if_swapped(X["question"].tolist(), X["context"].tolist())
    with pytest.warns(SkbertWarning, match="120 of 120 rows"):
        warn_if_swapped(X["context"].tolist(), X["question"].tolist())
