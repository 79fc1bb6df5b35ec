"""Vocabularies of new models: of every kind, and the same in every process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

from skbert._core.families import FAMILIES, NEW
from skbert._core.models import vocabulary
from skbert._core.models.new_model import Lowercase, NewModel
from skbert._core.models.opening import new_tokenizer
from skbert._core.models.vocabulary import Pieces, learn_pieces
from skbert.exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

SAMPLE = ["Lower lowest newer newest Wider widest", "the cat sat on the mat, caf\u00e9",
          "\u6211\u7231\u5317\u4eac \u6211\u7231"] * 3  # fmt: skip
WORDS = [f"{a}{b}{c}" for a in "abcd" for b in "efgh" for c in "ijkl"]
ROWS = [" ".join(WORDS[i::7]) for i in range(7)] * 2
ANGLES = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
BRACKETS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def learn(
    texts: Sequence[str],
    size: int | None = None,
    *,
    family: str = "bert",
    lowercase: Lowercase = "auto",
) -> Pieces:
    kind = FAMILIES[family].tokenizers[0]
    untrained = new_tokenizer(kind, Pieces.untrained(kind), lowercase).backend_tokenizer
    return learn_pieces(kind, untrained, texts, size, 30_522)


# --- word pieces ---------------------------------------------------------------------------------


def test_a_vocabulary_from_texts() -> None:
    vocabulary = learn(SAMPLE).ids
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    assert pieces[:5] == BRACKETS
    assert {"the", "lowest", "newest", "##est", "cafe", ","} <= vocabulary.keys() | {"##est"}
    chinese = [piece for piece in pieces if piece > "\u3000"]
    assert sorted(chinese) == sorted("\u6211\u7231\u5317\u4eac")  # each a word of its own


def test_a_cased_vocabulary_keeps_capitals_and_accents() -> None:
    vocabulary = learn(SAMPLE, lowercase=False).ids
    assert {"Lower", "Wider", "caf\u00e9"} <= vocabulary.keys()


@pytest.mark.parametrize("letters", ["abcdefgh", "한글음절", "क्षि"])
def test_words_too_long_to_be_read_are_not_learned_from(letters: str) -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*letters], 100 + n)) for n in (1, 60_000)]
    beginning = f"good movie good movie {words[1][:101]}"
    got = learn([f"good movie good movie {words[1]}"], lowercase=False)
    assert got == learn([beginning], lowercase=False)
    usual = "".join(rng.choice([*letters], 100))
    assert usual in learn([f"{usual} {usual}"], lowercase=False).ids


# --- every kind ----------------------------------------------------------------------------------

KINDS = {"bert": BRACKETS, "mpnet": ["<s>", "<pad>", "</s>", "[UNK]", "<mask>"],
         "roberta": ANGLES, "deberta": BRACKETS, "modernbert": BRACKETS, "xlm-roberta": ANGLES,
         "albert": ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"],
         "deberta-v2": BRACKETS}  # fmt: skip


@pytest.mark.parametrize("family", KINDS)
def test_special_tokens_come_first_in_the_order_of_their_kind(family: str) -> None:
    pieces = learn(ROWS, family=family)
    assert sorted(pieces.ids.values()) == list(range(len(pieces)))
    assert sorted(pieces.ids, key=pieces.ids.__getitem__)[:5] == KINDS[family]
    kind = FAMILIES[family].tokenizers[0]
    tokenizer = new_tokenizer(kind, pieces, "auto")
    assert tokenizer.get_vocab() == pieces.ids
    for role, token in kind.specials.items():
        assert getattr(tokenizer, role) == token
        assert getattr(tokenizer, f"{role}_id") == pieces.ids[token]
    ids = tokenizer("aei never seen")["input_ids"]
    assert (ids[0], ids[-1]) == (tokenizer.cls_token_id, tokenizer.sep_token_id)


@pytest.mark.parametrize("family", KINDS)
def test_a_vocabulary_has_the_size_asked_for_or_says_why_not(family: str) -> None:
    pieces = learn(ROWS, family=family)
    n = len(pieces)
    assert len(learn(ROWS, n - 3, family=family)) == n - 3
    with pytest.raises(InputError, match=rf"X supports {n} word pieces only.*vocab_size={n} or"):
        learn(ROWS, n + 1, family=family)
    with pytest.raises(InputError, match=r"vocab_size=9 is too small: the (characters|bytes)"):
        learn(ROWS, 9, family=family)


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_a_learned_tokenizer_gives_texts_back_in_few_pieces(family: str) -> None:
    kind, texts = (
        FAMILIES[family].tokenizers[0],
        [*SAMPLE, "cats mats newer then they new the"] * 3,
    )
    text = "the cat sat on the newest mat"
    tokenizer = new_tokenizer(kind, learn(texts, family=family), "auto")
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert len(ids) < len(text) * 0.7


IN_ANOTHER_PROCESS = """
import json, sys
from tokenizers import Tokenizer
from skbert._core.families import FAMILIES
from skbert._core.models.vocabulary import learn_pieces
texts, untrained = json.load(sys.stdin)
for family, described in untrained.items():
    kind = FAMILIES[family].tokenizers[0]
    pieces = learn_pieces(kind, Tokenizer.from_str(described), texts, 300, 30_522)
    print(json.dumps([pieces.ids, pieces.merges, pieces.scores]))
"""


def test_a_vocabulary_is_the_same_in_every_process() -> None:
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice([*"abcdefgh"], 6)) for _ in range(400)]
    texts = [" ".join(rng.choice(words, 20)) for _ in range(60)]
    want, untrained = [], {}
    for family in KINDS:
        kind = FAMILIES[family].tokenizers[0]
        tokenizer = new_tokenizer(kind, Pieces.untrained(kind), "auto").backend_tokenizer
        untrained[family] = tokenizer.to_str()
        pieces = learn(texts, 300, family=family)
        want.append(json.loads(json.dumps([pieces.ids, pieces.merges, pieces.scores])))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", IN_ANOTHER_PROCESS], input=json.dumps([texts, untrained]),
            capture_output=True, check=True, text=True,
        )  # fmt: skip
        assert [json.loads(line) for line in done.stdout.splitlines()] == want


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_endless_words_and_gaps_are_learned_from_no_further_than_a_limit(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vocabulary, "_MOST", 10_000)  # as learning takes its time
    letters = "".join(np.random.default_rng(0).choice([*"abcdef"], 11_000))
    word, gap = learn([f"good {letters} movie"], family=family), " \n" * 6000
    assert word == learn([f"good {letters[:10_000]} movie"], family=family)
    assert word != learn([f"good {letters[:9000]} movie"], family=family)
    assert learn([f"good {gap} movie"] * 2, family=family) == learn(
        ["good movie"] * 2, family=family
    )


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta"])
def test_texts_without_blanks_are_learned_from(family: str) -> None:
    rng = np.random.default_rng(0)
    words = ["我爱", "北京", "天安门", "电影", "今天"]
    pieces = learn(["".join(rng.choice(words, 3000))], family=family)
    tokenizer = new_tokenizer(FAMILIES[family].tokenizers[0], pieces, "auto")
    assert len(tokenizer.tokenize("".join(words))) <= len(words) + 2


@pytest.mark.parametrize("family", ["roberta", "xlm-roberta", "modernbert"])
def test_a_kind_without_lower_case_says_so(family: str) -> None:
    with pytest.raises(InputError, match="reads texts as they are written"):
        learn(ROWS, family=family, lowercase=True)


@pytest.mark.parametrize(("family", "lowers"), [("albert", True), ("deberta-v2", False)])
def test_lower_case_is_what_the_class_does_unless_asked(family: str, lowers: bool) -> None:
    texts = ["Great GREAT great Food FOOD food"] * 5
    assert any(piece.isupper() for piece in {*learn(texts, family=family).ids} - {*BRACKETS}) != (
        lowers
    )
    asked = learn(texts, family=family, lowercase=not lowers)
    assert any(piece.isupper() for piece in {*asked.ids} - {*BRACKETS}) == lowers


# --- how long rows may be ------------------------------------------------------------------------


def test_a_new_model_knows_how_long_rows_may_be() -> None:
    pieces = Pieces({})
    assert NewModel(NEW, {"max_position_embeddings": 40}, pieces, True).max_length == 40
    assert NewModel(NEW, {"max_position_embeddings": 4000}, pieces, True).max_length == 4000
    assert (
        NewModel(FAMILIES["roberta"], {"max_position_embeddings": 42}, pieces, False).max_length
        == 40
    )
