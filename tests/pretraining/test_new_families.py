"""New models of every family with a head for masked words."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer

import skbert
from skbert import BertClassifier, BertPretrainer
from skbert._core.families import FAMILIES
from skbert._core.models import new_model
from skbert._pretraining import objectives
from skbert._pretraining.completion import encode_masked
from skbert._pretraining.masking import Vocabulary, mask
from skbert._pretraining.objectives import NEW_FAMILIES
from skbert._pretraining.tasks import MaskedWords
from skbert._validation.documents import Documents
from skbert.exceptions import InputError, ModelError

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 24, "max_position_embeddings": 40, "learning_rate": 1e-2, "epochs": 2,
    "precision": "float32", "random_state": 0,
}  # fmt: skip
THINGS = "card account transfer payment balance refund phone password address statement".split()
TEXTS = [
    f"{start} my {thing}{end}"
    for thing in THINGS
    for start in ("Where is", "I've lost", "Please block", "How do I change")
    for end in (", please?", " today!", " - and why.")
]
KINDS = ["bert", "roberta", "modernbert", "xlm-roberta", "camembert", "mpnet", "albert",
         "deberta-v2"]  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def fitted(request: pytest.FixtureRequest) -> BertPretrainer:
    return BertPretrainer(None, family=request.param, **SMALL).fit(TEXTS)


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in KINDS else pytest.mark.long)
               for name in NEW_FAMILIES],
)  # fmt: skip
def test_a_new_model_opens_in_transformers_with_the_same_predictions(
    family: str, tmp_path: Path
) -> None:
    fitted = BertPretrainer(None, family=family, **SMALL).fit(TEXTS)
    mask_token = fitted.tokenizer_.mask_token
    assert fitted.model_.config.model_type == family
    texts = [f"Where is my {mask_token}, please?", f"{mask_token} lost my {mask_token} today!"]
    got = fitted.predict_masked(texts, top_k=400)
    fitted.save_pretrained(tmp_path / "plain")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "plain").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "plain")
    assert tokenizer.model_max_length == fitted._fitted.network.max_length == 40
    for row, text in enumerate(texts):
        tokenized = tokenizer(text, return_tensors="pt")
        with torch.no_grad():
            logits = model(**tokenized).logits[0]
        places = (tokenized.input_ids[0] == tokenizer.mask_token_id).nonzero().flatten()
        for number, place in enumerate(places):
            of_mask = got[(got["row"] == row) & (got["mask"] == number)]
            ids = tokenizer.convert_tokens_to_ids(of_mask["token"].tolist())
            want = logits[place].softmax(-1)[ids]
            np.testing.assert_allclose(of_mask["probability"], want, rtol=1e-4, atol=1e-7)


def test_saved_models_open_again_and_serve_other_estimators(
    fitted: BertPretrainer, tmp_path: Path
) -> None:
    texts = [f"I've lost my {fitted.tokenizer_.mask_token} today!"]
    fitted.save(tmp_path / "saved")
    again = skbert.load(tmp_path / "saved")
    assert again.predict_masked(texts).equals(fitted.predict_masked(texts))
    assert again.family == fitted.family
    classifier = BertClassifier(
        tmp_path / "saved", epochs=1, precision="float32", random_state=0
    ).fit(TEXTS[:24], ["a", "b"] * 12)
    assert classifier.predict(TEXTS[:3]).shape == (3,)
    on = BertPretrainer(tmp_path / "saved", epochs=1, precision="float32", random_state=0)
    assert on.fit(TEXTS).tokenizer_.get_vocab() == fitted.tokenizer_.get_vocab()


@pytest.mark.long
@pytest.mark.parametrize("family", ["roberta", "modernbert", "xlm-roberta"])
def test_it_learns_more_than_how_often_a_piece_occurs(family: str) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 64}
    passes = {"epochs": 60, "batch_size": 8, "learning_rate": 3e-3}
    new = BertPretrainer(None, family=family, **{**SMALL, **sizes, **passes}).fit(TEXTS)
    ids = new.tokenizer_(TEXTS, add_special_tokens=False)["input_ids"]
    counts = np.bincount([piece for row in ids for piece in row])
    shares = counts[counts > 0] / counts.sum()
    assert -new.score(TEXTS) < -(shares * np.log(shares)).sum() / 2


@pytest.mark.parametrize("family", ["deberta", "xmod", "roberta", "deberta-v2"])
def test_a_new_model_learns_and_predicts_in_bfloat16(family: str) -> None:
    new = BertPretrainer(None, family=family, **{**SMALL, "precision": "bfloat16"}).fit(TEXTS)
    exact = copy.deepcopy(new).set_params(precision="float32")
    assert new.score(TEXTS[:9]) == pytest.approx(exact.score(TEXTS[:9]), abs=3e-2)
    rounded = new.predict_masked([f"my {new.tokenizer_.mask_token}"], top_k=3)["probability"]
    assert np.isfinite(rounded).all()


# --- masks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("whole_words", [False, True])
def test_masks_are_the_tokenizers_own(fitted: BertPretrainer, whole_words: bool) -> None:
    tokenizer = fitted._fitted.network.text_tokenizer
    vocabulary = Vocabulary.of(tokenizer)
    items = MaskedWords(40).encode(
        Documents([[text] for text in TEXTS], True, None), True, tokenizer
    )
    rng = np.random.default_rng(0)
    masked = mask(tokenizer, items, rng, fraction=0.3, whole_words=whole_words)
    before, after = items.tokens.ids.values, masked.tokens.ids.values
    assert set(after[before != after]) - {fitted.tokenizer_.mask_token_id} <= {
        *np.flatnonzero(~vocabulary.special)
    }
    assert (after == fitted.tokenizer_.mask_token_id).sum() > 100
    selected = np.zeros(len(before), bool)
    starts = np.repeat(items.tokens.ids.starts[:-1], masked.selected_tokens.lengths)
    selected[starts + masked.selected_tokens.values] = True
    special = {*fitted.tokenizer_.all_special_ids}
    assert not special & {*before[selected].tolist()}
    if whole_words:
        pieces = fitted.tokenizer_.convert_ids_to_tokens(before.tolist())
        for at in range(1, len(before)):
            inside = pieces[at].startswith("##") or (
                not pieces[at].startswith(("Ġ", "▁")) and pieces[at].isalpha()
                and fitted.tokenizer_.backend_tokenizer.model.__class__.__name__ != "WordPiece"
            )  # fmt: skip
            if inside and before[at - 1] not in special:
                assert selected[at] == selected[at - 1]


@pytest.mark.parametrize(
    "text", ["a {} b", "{} b", "a {}", "a{}b", "a  {}  b.", "{}{}", "a {} {}, b {}!", "\n{}\n"]
)
def test_masks_in_texts_are_read_as_by_transformers(fitted: BertPretrainer, text: str) -> None:
    text = text.replace("{}", fitted.tokenizer_.mask_token)
    items = encode_masked([text, text], fitted._fitted.network.text_tokenizer, 40)
    want = fitted.tokenizer_(text)["input_ids"]
    assert items.tokens.ids[0].tolist() == want
    places = np.flatnonzero(np.array(want) == fitted.tokenizer_.mask_token_id)
    assert items.selected_tokens[1].tolist() == places.tolist()


def test_the_mask_of_another_tokenizer_is_pointed_out(fitted: BertPretrainer) -> None:
    own = fitted.tokenizer_.mask_token
    (other,) = {"[MASK]", "<mask>"} - {own}
    message = f"Row 1 of X holds {other}, which is text to this model: its mask is {own}"
    with pytest.raises(InputError) as caught:
        fitted.predict_masked([f"my {own}", f"my {other}"])
    assert message in str(caught.value)
    assert len(fitted.predict_masked([f"my {own} is no {other}"], top_k=2)) == 2
    with pytest.raises(InputError, match="No row of X holds"):
        fitted.predict_masked(["my card"])


# --- what cannot be made -------------------------------------------------------------------------


def test_an_objective_without_a_head_is_refused_before_anything_is_learned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(objectives, "learn_pieces", None)
    documents = [["It rained.", "We got wet."], ["It is late.", "We sleep."]]
    for family, objective in (("roberta", "mlm+nsp"), ("roberta", "nsp"), ("modernbert", "clm")):
        with pytest.raises(ModelError, match=f"'{family}' has no head for"):
            BertPretrainer(None, family=family, objective=objective, **SMALL).fit(documents)


def test_a_causal_model_of_another_family_goes_on_with_a_text() -> None:
    causal = BertPretrainer(None, family="roberta", objective="clm", **SMALL).fit(TEXTS)
    (text,) = causal.generate(["Where is my"], max_new_tokens=3)
    assert text.startswith("Where is my")


def test_a_family_that_nobody_knows() -> None:
    with pytest.raises(ValueError, match="The 'family' parameter of BertPretrainer must be a str"):
        BertPretrainer(None, family="gpt2", **SMALL).fit(TEXTS)


def test_a_model_of_another_family_than_the_one_named(tiny_model: Path) -> None:
    with pytest.raises(InputError, match="family='roberta', but model is of the family 'bert'"):
        BertPretrainer(tiny_model, family="roberta", epochs=1).fit(TEXTS)


def test_positions_that_a_family_does_not_know() -> None:
    with pytest.raises(InputError, match=r"a new model of the family 'modernbert' can have"):
        BertPretrainer(
            None, family="modernbert", position_embedding_type="relative_key", **SMALL
        ).fit(TEXTS)


def test_lower_case_that_a_tokenizer_does_not_make() -> None:
    with pytest.raises(InputError, match="lowercase=True, but a new model of this family"):
        BertPretrainer(None, family="roberta", lowercase=True, **SMALL).fit(TEXTS)


@pytest.mark.parametrize("family", ["roberta", "mpnet", "bert", "modernbert"])
def test_rows_are_as_long_as_asked_for(family: str) -> None:
    sizes = {key: SMALL[key] for key in ("hidden_size", "max_position_embeddings")}
    settings = new_model.new_settings(
        FAMILIES[family], {**sizes, "position_embedding_type": "absolute"}
    )
    first = 2 if family in {"roberta", "mpnet"} else 0
    assert settings["max_position_embeddings"] == 40 + first
