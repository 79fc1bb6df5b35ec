"""BertPretrainer: the losses of transformers' own classes, and models for everybody else."""

from __future__ import annotations

import copy
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.utils import estimator_checks
from support.checks import DATA_FREE, run
from transformers import AutoTokenizer

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core.batches import collate, steps_of_a_pass
from skbert._core.checkpoints.vet import vet
from skbert._core.infer import infer, mean_loss
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import Precision, seeded
from skbert._core.text.tokens import TextTokenizer
from skbert._core.training.loop import TrainingLoop
from skbert._core.training.recipe import Recipe
from skbert._core.training.stepper import TRAINING_TOKENS
from skbert._pretraining.masking import mask, pair, pair_and_mask
from skbert._pretraining.tasks import MaskedWords, NextSentence, NextWord, WordsAndSentences
from skbert._validation.documents import Documents
from skbert.exceptions import (
    InputError,
    InputTypeError,
    ModelError,
    SkbertWarning,
    TruncationWarning,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.items import Items

CPU = torch.device("cpu")
EXACT = Precision("float32", CPU)
OBJECTIVES = ["mlm", "mlm+nsp", "nsp", "clm"]
SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
    "learning_rate": 1e-3,
    "epochs": 1,
    "precision": "float32",
    "random_state": 0,
}
EAGER = {**SMALL, "hidden_size": 32, "learning_rate": 5e-3, "epochs": 12, "batch_size": 8}
CLASSES = {
    "mlm": "BertForMaskedLM",
    "mlm+nsp": "BertForPreTraining",
    "nsp": "BertForNextSentencePrediction",
    "clm": "BertLMHeadModel",
}
TASKS = {"mlm": MaskedWords, "mlm+nsp": WordsAndSentences, "nsp": NextSentence, "clm": NextWord}
HOW = {"fraction": 0.3, "whole_words": False}


@pytest.fixture(scope="module")
def stories() -> list[list[str]]:
    things = "movie film book food service staff phone room order refund".split()
    return [
        [f"the {thing} is here.", f"i love this {thing}!", f"the {thing} was good.", "so nice."]
        for thing in things
    ] * 2


def documents(rows: list[list[str]]) -> Documents:
    return Documents(rows, are_texts=False, names=None)


def open_(folder: Path, objective: str, dtype: torch.dtype = torch.float32) -> Network:
    with seeded(0, CPU):
        return open_network(vet(folder), TASKS[objective](128).head(), dtype=dtype)


def drawn(network: Network, objective: str, rows: list[list[str]], size: int = 128) -> Items:
    """The items of one pass."""
    rng = np.random.default_rng(0)
    items = TASKS[objective](size).encode(documents(rows), True, network.text_tokenizer)
    if objective == "mlm":
        return mask(network.text_tokenizer, items, rng, **HOW)
    if objective == "nsp":
        return pair(network.text_tokenizer, items, rng, max_length=size)
    if objective == "mlm+nsp":
        return pair_and_mask(network.text_tokenizer, items, rng, max_length=size, **HOW)
    return items


def padded(items: Items, objective: str) -> dict[str, torch.Tensor]:
    """The same items as transformers' classes take them."""
    table = items.tokens.ids
    shape = (len(table), int(table.lengths.max()))
    ids, segments, attention = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    words = torch.full(shape, -100)
    for row in range(len(table)):
        n = len(table[row])
        ids[row, :n] = torch.from_numpy(table[row].astype(np.int64))
        segments[row, int(items.tokens.second[row]) : n] = 1
        attention[row, :n] = 1
        if objective == "clm":
            words[row, :n] = ids[row, :n]
        elif items.selected_tokens is not None:
            targets = items.targets[row][-len(items.selected_tokens[row]) :]
            words[row, items.selected_tokens[row]] = torch.from_numpy(targets)
    batch = {"input_ids": ids, "token_type_ids": segments, "attention_mask": attention}
    if objective == "nsp":
        return {**batch, "labels": torch.from_numpy(items.targets)}
    if objective == "mlm+nsp":
        batch["next_sentence_label"] = torch.tensor(
            [items.targets[row][0] for row in range(len(items))]
        )
    return {**batch, "labels": words}


def twin_of(network: Network) -> Any:
    """The same weights in transformers' own class, with its own attention."""
    config = copy.deepcopy(network.model.config)
    with torch.random.fork_rng(devices=[]):
        twin = type(network.model)._from_config(config, attn_implementation="eager")
    twin.load_state_dict(network.model.state_dict())
    return twin.to(network.dtype).eval()


# --- against transformers ------------------------------------------------------------------------


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_and_gradients_are_those_of_transformers(
    tiny_model_no_dropout: Path, stories: list[list[str]], objective: str, long: bool
) -> None:
    network = open_(tiny_model_no_dropout, objective)
    assert type(network.model).__name__ == CLASSES[objective]
    assert network.is_packed
    rows = [story * 5 for story in stories[:6]] if long else stories
    items = drawn(network, objective, rows)
    assert (items.sizes.max() > 64) == long
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)
    total, weight = TASKS[objective](128).loss(network.logits(batch), batch)
    (total / weight).backward()
    twin = twin_of(network)
    out = twin(**padded(items, objective))
    out.loss.backward()
    assert (total / weight).item() == pytest.approx(out.loss.item(), abs=1e-5)
    got, want = (
        {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        for model in (network.model, twin)
    )
    assert got.keys() == want.keys()
    for name, gradient in want.items():
        torch.testing.assert_close(got[name], gradient, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "clm"])
def test_only_chosen_tokens_go_through_the_vocabulary(
    tiny_model: Path, stories: list[list[str]], objective: str
) -> None:
    network = open_(tiny_model, objective)
    items = drawn(network, objective, stories)
    seen: list[int] = []
    decoder = network.model.cls.predictions.decoder
    decoder.register_forward_hook(lambda module, given, out: seen.append(len(given[0])))
    network.logits(collate(items, np.arange(len(items)), CPU, torch.float32))
    assert seen == [len(items.selected_tokens.values)]
    assert seen[0] < items.sizes.sum()


def test_a_row_that_is_causal_sees_nothing_later(tiny_model_no_dropout: Path) -> None:
    network = open_(tiny_model_no_dropout, "clm")
    for n_words in (5, 50):
        text = "good bad " * n_words
        items = drawn(network, "clm", [[text + "great"], [text + "awful"]])
        logits = infer(network, items, EXACT)
        np.testing.assert_allclose(logits[0][:-2], logits[1][:-2], atol=1e-5)
        assert abs(logits[0][-1] - logits[1][-1]).max() > 1e-4


@pytest.mark.gpu
def test_a_gpu_reads_from_left_to_right_too(
    tiny_model_no_dropout: Path, stories: list[list[str]]
) -> None:
    cuda = torch.device("cuda")
    network = open_(tiny_model_no_dropout, "clm")
    items = drawn(network, "clm", stories)
    want = infer(network, items, EXACT).values
    for name, tolerance in (
        ("float32", 1e-4),
        ("bfloat16", 5e-2),
    ):  # the latter in flash attention
        precision = Precision(name, cuda)
        network.to(cuda, precision.weight_dtype)
        np.testing.assert_allclose(infer(network, items, precision).values, want, atol=tolerance)


def test_a_padded_model_gives_the_same(
    tiny_model_no_dropout: Path, stories: list[list[str]]
) -> None:
    for objective in ("mlm", "clm"):
        network = open_(tiny_model_no_dropout, objective)
        items = drawn(network, objective, stories)
        want = infer(network, items, EXACT).values
        network.is_packed, network.model.config._attn_implementation = False, "eager"
        np.testing.assert_allclose(infer(network, items, EXACT).values, want, atol=1e-5)


# --- the engine's part ---------------------------------------------------------------------------


def test_inference_gives_each_item_its_chosen_tokens(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = open_(tiny_model_no_dropout, "mlm")
    rows = [["good " * n] for n in (3, 30, 7, 50, 1)]
    items = drawn(network, "mlm", rows)
    outputs = infer(network, items, EXACT)
    for row in range(len(items)):
        alone = infer(network, items.take(np.array([row])), EXACT)
        assert len(outputs[row]) == len(items.selected_tokens[row])
        np.testing.assert_allclose(outputs[row], alone.values, atol=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_mean_loss_is_that_of_one_batch(
    tiny_model_no_dropout: Path,
    stories: list[list[str]],
    monkeypatch: pytest.MonkeyPatch,
    objective: str,
) -> None:
    network, task = open_(tiny_model_no_dropout, objective), TASKS[objective](128)
    items = drawn(network, objective, stories)
    batch = collate(items, np.arange(len(items)), CPU, torch.float32)
    total, weight = task.loss(network.logits(batch), batch)
    monkeypatch.setitem(inspect.unwrap(infer).__globals__["INFERENCE_TOKENS"], "cpu", 40)
    want = (total / weight).item()
    assert mean_loss(network, task, items, EXACT) == pytest.approx(want, abs=1e-5)


def test_every_pass_has_items_of_its_own(tiny_model: Path, stories: list[list[str]]) -> None:
    network, task = open_(tiny_model, "mlm"), MaskedWords(128)
    base = task.encode(documents(stories), True, network.text_tokenizer)
    seen: list[Items] = []

    def fresh(tokenizer: TextTokenizer, items: Items, rng: np.random.Generator) -> Items:
        assert items is base
        seen.append(mask(tokenizer, items, rng, **HOW))
        return seen[-1]

    for seed in (0, 0):
        list(TrainingLoop(network, task, base, Recipe(epochs=2), EXACT, seed, draw_items=fresh))
    one, two, again, _ = (items.tokens.ids.values.tolist() for items in seen)
    assert one != two
    assert one == again


def test_rows_that_stand_apart_are_counted_one_by_one(tiny_model: Path) -> None:
    network = open_(tiny_model, "mlm")
    items = MaskedWords(8).encode(
        documents([["good " * 60], ["bad"]]), True, network.text_tokenizer
    )
    assert len(np.unique(items.samples)) == 2
    steps = steps_of_a_pass(items, 4, np.random.default_rng(0))
    assert [len(step) for step in steps] == [4, 4, 3]
    assert Recipe(batch_size=4).steps_per_pass(items) == 3


def test_small_budgets_change_nothing(
    tiny_model_no_dropout: Path, stories: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = []
    for budget in (8192, 30):
        monkeypatch.setitem(TRAINING_TOKENS, "cpu", budget)
        network = open_(tiny_model_no_dropout, "mlm+nsp", torch.float64)
        items = drawn(network, "mlm+nsp", stories)
        exact = Precision("float64", CPU)
        passes = TrainingLoop(network, WordsAndSentences(128), items, Recipe(epochs=2), exact, 0)
        losses.append([epoch.loss for epoch in passes])
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


# --- from nothing --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fitted(stories: list[list[str]]) -> dict[str, BertPretrainer]:
    """A small model for each objective."""
    return {
        objective: BertPretrainer(None, objective=objective, **SMALL).fit(stories)
        for objective in OBJECTIVES
    }


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_a_model_from_nothing(fitted: dict[str, BertPretrainer], objective: str) -> None:
    pretrainer = fitted[objective]
    model = pretrainer.model_
    assert type(model).__name__ == CLASSES[objective]
    config = model.config
    sizes = {name: getattr(config, name) for name in SMALL if hasattr(config, name)}
    assert sizes == {name: SMALL[name] for name in sizes}
    assert len(sizes) == 5
    assert config.vocab_size == len(pretrainer.tokenizer_) < 100
    assert config.is_decoder == (objective == "clm")
    assert pretrainer.pooling_ == ("pooler" if "nsp" in objective else "mean")
    assert pretrainer.n_iter_ == len(pretrainer.history_) == 1
    assert not hasattr(pretrainer, "n_features_in_")


@pytest.mark.parametrize("objective", ["mlm", "mlm+nsp", "clm"])
def test_decoder_and_word_embeddings_stay_one(
    fitted: dict[str, BertPretrainer], objective: str
) -> None:
    model = fitted[objective].model_
    words = model.get_input_embeddings().weight
    assert model.get_output_embeddings().weight is words
    assert words.grad is None


def test_it_learns_what_texts_say() -> None:
    texts = [f"the {a} is {b}" for a, b in (("sky", "blue"), ("grass", "green"))] * 40
    pretrainer = BertPretrainer(None, **{**EAGER, "epochs": 24}).fit(texts)
    best = pretrainer.predict_masked(["the sky is [MASK]", "the grass is [MASK]"], top_k=1)
    assert best["token"].tolist() == ["blue", "green"]
    assert pretrainer.history_[-1]["loss"] < 0.5 * pretrainer.history_[0]["loss"]


def test_it_learns_what_comes_next() -> None:
    texts = ["one two three four five"] * 60
    pretrainer = BertPretrainer(None, objective="clm", **EAGER).fit(texts)
    assert pretrainer.generate(["one two", ""]).tolist() == [texts[0]] * 2
    assert pretrainer.perplexity(texts) < 1.2


def test_it_learns_which_sentences_follow() -> None:
    pairs = [[f"{a} {a}", f"{a} too"] for a in "red blue green".split()] * 20
    eager = {**EAGER, "hidden_size": 64, "learning_rate": 3e-3, "epochs": 40, "random_state": 1}
    pretrainer = BertPretrainer(None, objective="nsp", head_learning_rate=None, **eager)
    pretrainer.fit(pairs)
    follows = pretrainer.next_sentence_proba([("red red", "red too"), ("red red", "blue too")])
    assert follows[0] > 0.6
    assert follows[1] < 0.3


def test_the_head_of_drawn_pairs_has_the_rate_of_the_encoder(stories: list[list[str]]) -> None:
    weights = {}
    for rate in ("auto", None, 1e-3):
        rates = {"learning_rate": 1e-4, "head_learning_rate": rate}
        pretrainer = BertPretrainer(None, objective="nsp", **{**SMALL, **rates})
        weights[rate] = pretrainer.fit(stories).model_.cls.seq_relationship.weight
    assert torch.equal(weights["auto"], weights[None])
    assert not torch.equal(weights["auto"], weights[1e-3])


def test_the_same_seed_gives_the_same_bits(stories: list[list[str]]) -> None:
    for objective in ("mlm+nsp", "clm"):
        one, two = (BertPretrainer(None, objective=objective, **SMALL).fit(stories)
                    for _ in range(2))  # fmt: skip
        for name, tensor in one.model_.state_dict().items():
            assert torch.equal(tensor, two.model_.state_dict()[name]), name
    other = clone(one).set_params(random_state=1).fit(stories)
    assert other.score(stories) != one.score(stories)


def test_rows_held_out_and_patience(stories: list[list[str]]) -> None:
    for objective in OBJECTIVES:
        pretrainer = BertPretrainer(
            None, objective=objective, validation_fraction=0.3, patience=1,
            **{**SMALL, "epochs": 3},
        ).fit(stories)  # fmt: skip
        assert all(record["validation_loss"] > 0 for record in pretrainer.history_)


def test_going_on_with_warm_start(stories: list[list[str]]) -> None:
    pretrainer = BertPretrainer(None, warm_start=True, **SMALL).fit(stories)
    before, size = pretrainer.score(stories), pretrainer.model_.config.vocab_size
    pretrainer.set_params(epochs=5).fit([*stories, ["something entirely different"]])
    assert pretrainer.score(stories) > before
    assert pretrainer.model_.config.vocab_size == size
    with pytest.raises(InputError, match="objective='clm', but the fitted model learned another"):
        pretrainer.set_params(objective="clm").fit(stories)


def test_whole_words_and_shares_reach_the_masks(stories: list[list[str]]) -> None:
    plain, more, whole = (
        BertPretrainer(None, **SMALL, **how).fit(stories).history_[0]["loss"]
        for how in (
            {"vocab_size": 60},
            {"vocab_size": 60, "mask_fraction": 0.6},
            {"vocab_size": 60, "whole_words": True},
        )
    )
    assert len({plain, more, whole}) == 3


@pytest.mark.parametrize("name", ["top_k", "max_new_tokens"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "3", True, None])
def test_counts_that_are_none(fitted: dict[str, BertPretrainer], name: str, value: Any) -> None:
    ask = fitted["mlm"].predict_masked if name == "top_k" else fitted["clm"].generate
    with pytest.raises((InputError, InputTypeError), match=name):
        ask(["a [MASK]"], **{name: value})


def test_ids_that_no_token_has_are_never_predicted(make_tiny_model: Callable[..., Path]) -> None:
    model = make_tiny_model(vocab_size=1000, initializer_range=0.2)
    params = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    filled = BertPretrainer(model, **params).fit(["a good film"] * 4)
    lines = filled.predict_masked(["a [MASK] film"], top_k=1000)
    assert len(lines) == len(filled.tokenizer_) < 1000
    assert lines["token"].notna().all()
    assert lines["probability"].sum() == pytest.approx(1.0)
    writer = BertPretrainer(model, objective="clm", **params).fit(["a good film"] * 4)
    drawn = writer.generate(["a"] * 20, 10, temperature=100.0)
    assert min(len(writer.tokenizer_.tokenize(text)) for text in drawn) == 11


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "x", True, None])
def test_temperatures_that_are_none(fitted: dict[str, BertPretrainer], value: Any) -> None:
    with pytest.raises((InputError, InputTypeError), match="temperature"):
        fitted["clm"].generate(["a"], temperature=value)


def test_extreme_temperatures_are_the_limits(fitted: dict[str, BertPretrainer]) -> None:
    coldest = fitted["clm"].generate(["a"], temperature=1e-320).tolist()
    assert coldest == fitted["clm"].generate(["a"]).tolist()
    hottest = fitted["clm"].generate(["a"], temperature=1e300).tolist()
    assert hottest == fitted["clm"].generate(["a"], temperature=1e20).tolist() != ["a"]


def test_a_cased_chinese_vocabulary() -> None:
    texts = ["\u6211\u7231\u5317\u4eac Paris", "\u6211\u7231 Paris"] * 4
    tokenizer = BertPretrainer(None, lowercase=False, **SMALL).fit(texts).tokenizer_
    assert tokenizer.tokenize("Paris \u5317\u4eac paris")[:3] == ["Paris", "\u5317", "\u4eac"]
    assert tokenizer.tokenize("paris") != ["paris"]


# --- from another model --------------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_going_on_from_an_encoder(
    tiny_model: Path, stories: list[list[str]], objective: str
) -> None:
    pretrainer = BertPretrainer(tiny_model, objective=objective, epochs=1, random_state=0)
    pretrainer.fit(stories)
    want = AutoTokenizer.from_pretrained(tiny_model)
    assert pretrainer.tokenizer_.get_vocab() == want.get_vocab()
    assert pretrainer.model_.config.hidden_size == 32


def test_a_head_that_is_there_is_kept(
    tmp_path: Path, fitted: dict[str, BertPretrainer], stories: list[list[str]]
) -> None:
    old = fitted["mlm+nsp"]
    old.save_pretrained(tmp_path / "model")
    still = {"epochs": 1, "learning_rate": 1e-12, "head_learning_rate": None, "weight_decay": 0.0}
    for objective in ("mlm+nsp", "mlm", "nsp"):
        new = BertPretrainer(tmp_path / "model", objective=objective, **still).fit(stories)
        state = old.model_.state_dict()
        for name, tensor in new.model_.state_dict().items():
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=1e-6)


def test_the_real_encoder_goes_on(minilm: Path) -> None:
    from skbert.datasets import load_intents

    X, _ = load_intents(return_X_y=True)
    pretrainer = BertPretrainer(minilm, epochs=1, random_state=0).fit(X[:64])
    assert pretrainer.pooling_ == "mean"
    assert np.isfinite(pretrainer.score(X[:32]))
    assert pretrainer.history_[0]["loss"] > 0


# --- kept and opened again -----------------------------------------------------------------------


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_saving_gives_the_same_back(
    tmp_path: Path, fitted: dict[str, BertPretrainer], stories: list[list[str]], objective: str
) -> None:
    old = fitted[objective]
    old.save(tmp_path / "saved")
    new = BertPretrainer.load(tmp_path / "saved")
    assert new.get_params() == old.get_params()
    assert new.score(stories) == old.score(stories)
    assert (new.history_, new.pooling_) == (old.history_, old.pooling_)
    for name, tensor in new.model_.state_dict().items():
        assert torch.equal(tensor, old.model_.state_dict()[name])
    if objective != "nsp":
        assert (
            new.model_.get_output_embeddings().weight is new.model_.get_input_embeddings().weight
        )


@pytest.mark.parametrize("how", ["save", "save_pretrained"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_transformers_opens_the_folder(
    tmp_path: Path,
    fitted: dict[str, BertPretrainer],
    stories: list[list[str]],
    objective: str,
    how: str,
) -> None:
    getattr(fitted[objective], how)(tmp_path / "model")
    kind = getattr(transformers, CLASSES[objective])
    model, report = kind.from_pretrained(tmp_path / "model", output_loading_info=True)
    assert not report["missing_keys"]
    network = fitted[objective]._fitted.network
    items = drawn(network, objective, stories, 64)
    want = mean_loss(network, TASKS[objective](64), items, EXACT)
    model.eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        got = float(model(**padded(items, objective)).loss)
    assert got == pytest.approx(want, abs=1e-5)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer("the movie [MASK]").input_ids == list(
        fitted[objective].tokenizer_("the movie [MASK]").input_ids
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_from_pretrained_is_ready(
    tmp_path: Path, fitted: dict[str, BertPretrainer], stories: list[list[str]], objective: str
) -> None:
    fitted[objective].save_pretrained(tmp_path / "model")
    opened = BertPretrainer.from_pretrained(
        tmp_path / "model", objective=objective, precision="float32"
    )
    assert opened.score(stories) == fitted[objective].score(stories)


def test_from_pretrained_needs_the_head(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="has no head for BertForMaskedLM"):
        BertPretrainer.from_pretrained(tiny_model)


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.filterwarnings("ignore:.*is a decoder:skbert.exceptions.SkbertWarning")
def test_every_estimator_takes_the_folder(
    tmp_path: Path, fitted: dict[str, BertPretrainer], objective: str
) -> None:
    folder = tmp_path / "model"
    fitted[objective].save(folder)
    texts = ["the movie is good", "the room is here"] * 4
    short: dict[str, Any] = {"model": folder, "epochs": 1, "random_state": 0}
    classifier = BertClassifier(**short).fit(texts, ["a", "b"] * 4)
    assert classifier.predict(texts).shape == (8,)
    assert BertRegressor(**short).fit(texts, range(8)).predict(texts).shape == (8,)
    words = [text.split() for text in texts]
    tagger = BertTokenTagger(**short).fit(words, [["O", "O", "O", "B-X"]] * 8)
    assert len(tagger.predict(words)[0]) == 4
    asks = pd.DataFrame({"question": ["what is good"] * 8, "context": texts})
    spans = BertSpanExtractor(**short).fit(asks, [text.split()[1] for text in texts])
    assert len(spans.predict(asks)) == 8
    ranker = BertChoiceRanker(**short).fit([(text, ["a", "b"]) for text in texts], [0, 1] * 4)
    assert ranker.predict([("the", ["a", "b"])]).shape == (1,)
    assert BertTransformer(folder).fit_transform(texts).shape == (8, 16)
    again = BertPretrainer(**short, objective=objective).fit([[t, t] for t in texts])
    assert again.model_.config.is_decoder == (objective == "clm")


def test_a_decoder_is_read_both_ways_with_a_warning(
    tmp_path: Path, fitted: dict[str, BertPretrainer]
) -> None:
    fitted["clm"].save(tmp_path / "model")
    with pytest.warns(SkbertWarning, match="is a decoder: it has learned to read from left"):
        encoder = BertTransformer(tmp_path / "model").fit(["a"])
    assert not encoder.model_.config.is_decoder
    one, two = encoder.transform_tokens(["the movie is good", "the movie is bad"])
    assert abs(one[0] - two[0]).max() > 1e-6


# --- what it tells -------------------------------------------------------------------------------


def test_predicted_words_are_those_of_transformers(
    fitted: dict[str, BertPretrainer],
) -> None:
    texts = ["the [MASK] is here.", "no mask", "[MASK] this[MASK]!", "a"]
    for objective in ("mlm", "mlm+nsp"):
        pretrainer = fitted[objective]
        found = pretrainer.predict_masked(texts, top_k=3)
        assert found["row"].tolist() == [0] * 3 + [2] * 6
        assert found["mask"].tolist() == [0] * 6 + [1] * 3
        tokenizer, twin = pretrainer.tokenizer_, twin_of(pretrainer._fitted.network)
        for row in (0, 2):
            given = tokenizer(texts[row], return_tensors="pt")
            with torch.no_grad():
                out = twin(**given)
            logits = out[0] if objective == "mlm" else out.prediction_logits
            at = torch.nonzero(given.input_ids[0] == tokenizer.mask_token_id)[:, 0]
            best = logits[0, at].softmax(dim=1).topk(3)
            mine = found[found["row"] == row]
            np.testing.assert_allclose(mine["probability"], best.values.flatten(), atol=1e-5)
            assert mine["token"].tolist() == tokenizer.convert_ids_to_tokens(
                best.indices.flatten()
            )


def test_many_rows_of_masks_are_filled_in_turns(fitted: dict[str, BertPretrainer]) -> None:
    texts = [f"the {'[MASK] ' * (n % 3)}room" for n in range(150)]
    found = fitted["mlm"].predict_masked(texts, top_k=1)
    assert found["row"].tolist() == [n for n in range(150) for _ in range(n % 3)]


def test_more_words_than_there_are(fitted: dict[str, BertPretrainer]) -> None:
    size = fitted["mlm"].model_.config.vocab_size
    found = fitted["mlm"].predict_masked(["[MASK]"], top_k=10_000)
    assert len(found) == size
    assert found["probability"].sum() == pytest.approx(1, abs=1e-5)


def test_probabilities_of_pairs_are_those_of_transformers(
    fitted: dict[str, BertPretrainer],
) -> None:
    pairs = [("the movie is here.", "i love this movie!"), ("so nice.", "so nice."), ("a", "")]
    for objective in ("nsp", "mlm+nsp"):
        pretrainer = fitted[objective]
        given = pretrainer.tokenizer_(*map(list, zip(*pairs, strict=True)), padding=True,
                                      return_tensors="pt")  # fmt: skip
        with torch.no_grad():
            out = twin_of(pretrainer._fitted.network)(**given)
        logits = out.logits if objective == "nsp" else out.seq_relationship_logits
        got = pretrainer.next_sentence_proba(pairs)
        assert got.dtype == np.float32
        np.testing.assert_allclose(got, logits.softmax(dim=1)[:, 0], atol=1e-5)
        frame = pd.DataFrame(pairs, columns=["a", "b"])
        np.testing.assert_array_equal(pretrainer.next_sentence_proba(frame), got)


def test_perplexity_is_the_exponential_of_the_loss_of_words(
    fitted: dict[str, BertPretrainer], stories: list[list[str]]
) -> None:
    for objective in ("mlm", "clm"):
        pretrainer = fitted[objective]
        assert pretrainer.perplexity(stories) == np.exp(-pretrainer.score(stories))
    both = fitted["mlm+nsp"]
    assert 1 < both.perplexity(stories) < np.exp(-both.score(stories))


def test_the_perplexity_of_a_text_read_from_left_to_right(
    fitted: dict[str, BertPretrainer],
) -> None:
    pretrainer = fitted["clm"]
    given = pretrainer.tokenizer_("the movie is good.", return_tensors="pt")
    with torch.no_grad():
        loss = twin_of(pretrainer._fitted.network)(**given, labels=given.input_ids).loss
    assert pretrainer.perplexity(["the movie is good."]) == pytest.approx(
        float(loss.exp()), rel=1e-5
    )


@pytest.mark.filterwarnings("ignore:.*are empty or whitespace")
def test_writing_on_is_what_transformers_would_write(fitted: dict[str, BertPretrainer]) -> None:
    pretrainer, twin = fitted["clm"], twin_of(fitted["clm"]._fitted.network)
    tokenizer = pretrainer.tokenizer_
    never = [i for i in tokenizer.all_special_ids if i != tokenizer.sep_token_id]
    for text in ("the movie", "so nice", ""):
        ids = tokenizer(text, return_tensors="pt").input_ids[:, :-1]
        for _ in range(6):
            with torch.no_grad():
                logits = twin(input_ids=ids).logits[0, -1]
            logits[never] = -torch.inf
            if logits.argmax() == tokenizer.sep_token_id:
                break
            ids = torch.cat([ids, logits.argmax().reshape(1, 1)], dim=1)
        want = tokenizer.decode(ids[0], skip_special_tokens=True)
        assert pretrainer.generate([text], max_new_tokens=6).tolist() == [want]


def test_drawn_texts_follow_the_seed(fitted: dict[str, BertPretrainer]) -> None:
    texts = ["the movie"] * 4
    one, two = (fitted["clm"].generate(texts, temperature=2.0).tolist() for _ in range(2))
    assert one == two
    assert len(set(one)) > 1


def test_texts_end_where_the_row_is_full(fitted: dict[str, BertPretrainer]) -> None:
    pretrainer = fitted["clm"]
    pieces = pretrainer.tokenizer_.tokenize("movie " * 60)
    room = 62 // (len(pieces) // 60)
    text = " ".join(["movie"] * room)
    written = pretrainer.generate([text], max_new_tokens=50, temperature=50.0)[0]
    assert len(pretrainer.tokenizer_(written).input_ids) <= 66
    with pytest.raises(InputError, match=r"Row 1 of X has \d+ word pieces, but only 62"):
        pretrainer.generate(["a", "movie " * 70])


# --- the manners of scikit-learn -----------------------------------------------------------------


def test_it_can_be_searched_over(stories: list[list[str]]) -> None:
    texts = [" ".join(story) for story in stories]
    pretrainer = BertPretrainer(None, **SMALL)
    scores = cross_val_score(pretrainer, texts, cv=2)
    assert (scores < 0).all()
    search = GridSearchCV(pretrainer, {"mask_fraction": [0.15, 0.3]}, cv=2).fit(texts)
    assert search.best_estimator_.predict_masked(["[MASK]"], top_k=1).shape == (1, 4)


@pytest.mark.parametrize("name", DATA_FREE)
def test_checks_of_scikit_learn_without_data(name: str) -> None:
    estimator = BertPretrainer("no/such-model")  # whatever opens it has gone too far
    run(lambda checked: getattr(estimator_checks, name)("BertPretrainer", checked), estimator)


def test_a_fit_changes_no_parameter(stories: list[list[str]]) -> None:
    pretrainer = BertPretrainer(None, **SMALL)
    before = pretrainer.get_params()
    assert pretrainer.fit(stories, y=None) is pretrainer
    assert pretrainer.get_params() == before == clone(pretrainer).get_params()


def test_nothing_is_told_before_the_fit() -> None:
    with pytest.raises(NotFittedError):
        BertPretrainer(None).score(["a"])
    with pytest.raises(NotFittedError):
        BertPretrainer(None).predict_masked(["[MASK]"])


def test_texts_are_split_for_pairs() -> None:
    X = pd.DataFrame({"story": ["A cat. It runs. It eats.", "A dog. It barks.\nIt sleeps."] * 3})
    pretrainer = BertPretrainer(None, objective="mlm+nsp", **SMALL).fit(X)
    assert pretrainer.feature_names_in_.tolist() == ["story"]
    assert np.isfinite(pretrainer.score(X))


def test_what_is_read_while_fitted_to_another_objective(
    fitted: dict[str, BertPretrainer], stories: list[list[str]]
) -> None:
    pretrainer = copy.copy(fitted["mlm"]).set_params(objective="clm")
    assert pretrainer.score(stories) == fitted["mlm"].score(stories)
    with pytest.raises(InputError, match="objective='mlm' has no generate"):
        pretrainer.generate(["a"])


# --- what cannot be used -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "X", "message"),
    [
        ({}, ["", " ☂ "], "No row of X holds a word piece that could be masked"),
        ({"objective": "clm"}, ["", "☂"], "No row of X holds a word piece"),
        ({"model": None, "vocab_size": 5000}, ["a few words"] * 3, "vocab_size=5000, but X supp"),
        ({"model": None, "vocab_size": 6}, ["a few words"] * 3, "vocab_size=6 is too small"),
        ({"model": None, "hidden_size": 30}, ["a"], "num_attention_heads=4 does not divide"),
        ({"model": None, "vocab_size": 10**9}, ["a"], "vocab_size=1000000000, where a w"),
        ({"model": None, "num_hidden_layers": 10**6}, ["a"], "layers=1000000, .* from 1 to 256"),
        ({"model": None, "hidden_size": 10**7}, ["a"], "hidden_size=10000000, .* 1 to 16384"),
        ({"model": None, "max_position_embeddings": 1}, ["a"], "embeddings=1, .* from 2 to"),
        ({"model": None, "hidden_size": 16_000, "num_hidden_layers": 256,
          "intermediate_size": 131_072}, ["a"],
         r"is too large to learn here: [\d,]+ weights of 16 bytes take [\d,.]+ GB, and this"),
        ({"objective": "nsp"}, ["One. Two.", "One only."], "the first is row 1"),
        ({"objective": "mlm+nsp"}, [["one", "two"], ["one"]], "1 of 2 rows .* is row 1"),
        ({"objective": "nsp"}, [["one", "two"]], "X holds one document"),
        ({"max_length": 500}, ["a"], "max_length=500: this model reads between 4 and 128"),
        ({"patience": 1}, ["a"], "patience=1 needs a validation set"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:.*are empty or whitespace")
def test_what_cannot_be_learned(
    tiny_model: Path, params: dict[str, Any], X: Any, message: str
) -> None:
    pretrainer = BertPretrainer(**{"model": tiny_model, "epochs": 1, **params})
    with pytest.raises(InputError, match=message):
        pretrainer.fit(X)
    assert not pretrainer.__sklearn_is_fitted__()


@pytest.mark.parametrize(
    ("name", "value"),
    [("objective", "span"), ("mask_fraction", 1.0), ("mask_fraction", 0), ("vocab_size", 0),
     ("hidden_size", 0), ("lowercase", "yes"), ("whole_words", 3), ("model", 3)],
)  # fmt: skip
def test_parameters_are_checked(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"'{name}' parameter of BertPretrainer"):
        BertPretrainer(**{"model": None, name: value}).fit(["a"])


def test_documents_held_out_need_company(stories: list[list[str]]) -> None:
    pretrainer = BertPretrainer(None, objective="nsp", validation_fraction=0.05, **SMALL)
    with pytest.raises(InputError, match="set validation_fraction=None if one was held out alone"):
        pretrainer.fit(stories[:6])


def test_sentences_that_are_cut_are_counted(tiny_model: Path) -> None:
    X = [["good " * 60, "bad"], ["nice", "great"], ["so", "poor"]]
    pretrainer = BertPretrainer(tiny_model, objective="nsp", max_length=40, epochs=1)
    with pytest.warns(TruncationWarning, match="1 of 3 rows were too long for max_length"):
        pretrainer.fit(X)
    assert pretrainer.n_truncated_ == 1


@pytest.mark.parametrize(
    ("objective", "ask", "message"),
    [
        ("nsp", lambda p: p.perplexity(["A. B.", "C. D."]), "objective='nsp' has no perplexity"),
        ("clm", lambda p: p.predict_masked(["[MASK]"]), "has no predict_masked. Fit with obj"),
        ("mlm", lambda p: p.next_sentence_proba([("a", "b")]), "has no next_sentence_proba"),
        ("mlm", lambda p: p.generate(["a"]), "has no generate. Fit with objective='clm'"),
        ("mlm", lambda p: p.predict_masked(["no mask"]), r"No row of X holds \[MASK\]"),
        ("mlm", lambda p: p.predict_masked(["a", "movie " * 80 + "[MASK]"]), "Row 1 of X has a"),
        ("mlm", lambda p: p.predict_masked(["[MASK]"], top_k=0), "top_k is 0"),
        ("clm", lambda p: p.generate(["a"], temperature=-1.0), "temperature is -1"),
        ("clm", lambda p: p.generate(["a"], max_new_tokens=0), "max_new_tokens is 0"),
        ("nsp", lambda p: p.next_sentence_proba(["a", "b"]), "pairs holds one text per row"),
        ("nsp", lambda p: p.score([["one"], ["a", "b"]]), "the first is row 0"),
        ("mlm", lambda p: p.score([None]), "missing text"),
    ],
)  # fmt: skip
def test_what_cannot_be_told(
    fitted: dict[str, BertPretrainer], objective: str, ask: Callable[..., Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        ask(fitted[objective])
