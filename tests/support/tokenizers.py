"""Small tokenizers of every kind, trained on a few sentences, as checkpoints bring them."""

from __future__ import annotations

import copy
import functools
import json
import math
import struct
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import (
    AlbertTokenizer,
    BertTokenizer,
    CamembertTokenizer,
    DebertaTokenizer,
    DebertaV2Tokenizer,
    MPNetTokenizer,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    XLMRobertaTokenizer,
)

from skbert._core.text.tokens import TextTokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ANGLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>",
          "mask_token": "<mask>"}  # fmt: skip
BRACKETS = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]",
            "unk_token": "[UNK]", "mask_token": "[MASK]"}  # fmt: skip
PIPES = {"cls_token": "<|begin_of_text|>", "sep_token": "<|end_of_text|>",
         "mask_token": "<|mask|>", "pad_token": "<|pad|>"}  # fmt: skip
LLAMA_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SENTENCES = (
    "the movie is good and the food is bad, i love it",
    "Where is my parcel? It was sent 12 days ago, and we're waiting!",
    "they don't know what you'll say about Berlin, Paris and New York",
    "great service; awful coffee (3.50 euros). never again...",
    "Les élèves français étaient très contents à l'école",
    "Die größte Straße führt über die Brücke nach Köln",
    "Привет, мир! Как дела сегодня?",
    "今天天气很好。我们去看电影吧",
    "مرحبا بالعالم كيف حالك",
    "नमस्ते दुनिया, आप कैसे हैं",
    "a  b   c\n\nnew line\tand tab    end 🙂🙂 👍🏽 é e\u0301",
    "the staff were nice but the phone was broken and the order came late",
) * 3  # fmt: skip


def charsmap(changes: Mapping[str, str]) -> bytes:
    """A compiled map of characters, as SentencePiece writes it: a trie, then what to write."""
    contents = b"".join(new.encode() + b"\0" for new in changes.values())
    ends, at = {}, 0
    for old, new in changes.items():
        ends[old.encode()] = at
        at += len(new.encode()) + 1
    children: dict[bytes, set[int]] = {}
    for key in ends:
        for n in range(len(key)):
            children.setdefault(key[:n], set()).add(key[n])
    units = [0] * 256
    place = {b"": 0}
    waiting = [b""]
    while waiting:
        prefix = waiting.pop(0)
        begin = len(units)  # every node has a block of its own: simple, and large
        units += [0] * 256
        here = place[prefix]
        offset = begin ^ here
        units[here] |= (offset << 10) if offset < 1 << 21 else (offset >> 8 << 10) | 1 << 9
        if prefix in ends:
            units[here] |= 1 << 8
            units[begin] = 1 << 31 | ends[prefix]
        for byte in sorted(children.get(prefix, ())):
            units[begin ^ byte] = byte
            place[prefix + bytes([byte])] = begin ^ byte
            waiting.append(prefix + bytes([byte]))
    trie = struct.pack(f"<{len(units)}I", *units)
    return struct.pack("<I", len(trie)) + trie + contents


CHARSMAP = charsmap(
    {"\u3000": " ", "\u00a0": " ", "\t": " ", "\n": " ", "ﬁ": "fi", "\uff21": "A", "½": "1/2",
     "e\u0301": "é", "\u200b": "", "㍿": "株式会社"}
)  # fmt: skip


def _bpe(specials: Mapping[str, str], words: Any, size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = words
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[*specials.values()], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return tokenizer


def _model(tokenizer: Tokenizer) -> dict[str, Any]:
    model: dict[str, Any] = json.loads(tokenizer.to_str())["model"]
    return model


def _byte_level(kind: Any, specials: Mapping[str, str], size: int) -> Any:
    model = _model(_bpe(specials, pre_tokenizers.ByteLevel(add_prefix_space=False), size))
    merges = [tuple(merge) for merge in model["merges"]]
    return kind(vocab=model["vocab"], merges=merges)


def _template(specials: Mapping[str, str], tokenizer: Tokenizer, *, double: bool = False) -> Any:
    first, last = specials["cls_token"], specials["sep_token"]
    middle = f"{last} {last}" if double else last
    return processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {middle} $B:1 {last}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (first, last)],
    )


def _modern(size: int) -> Any:
    """As the tokenizer of ModernBERT is: no class of its own."""
    tokenizer = _bpe(BRACKETS, pre_tokenizers.ByteLevel(add_prefix_space=False), size)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _template(BRACKETS, tokenizer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **BRACKETS)


def _llama(size: int) -> Any:
    """As that of EuroBERT is: words by a regular expression, no unknown token."""
    words = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA_WORDS), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer = _bpe(PIPES, words, size)
    tokenizer.model.ignore_merges = True
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.Sequence(
        [processors.ByteLevel(trim_offsets=False), _template(PIPES, tokenizer)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **PIPES)


def _scores(specials: list[str], normalizer: Any, size: int) -> list[tuple[str, float]]:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
    )
    unknown = next(token for token in specials if "unk" in token.lower())
    trainer = trainers.UnigramTrainer(
        vocab_size=size, special_tokens=specials, unk_token=unknown, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    read = "".join(
        f"\u2581{word}" for word in normalizer.normalize_str(" ".join(SENTENCES)).split()
    )
    counts = {piece: max(read.count(piece), 1) for piece in {*tokenizer.get_vocab()} - {*specials}}
    learned = sorted(counts, key=lambda piece: (-counts[piece], piece))
    scores = [math.log(counts[piece] / len(read)) for piece in learned]  # the trainer's own vary
    return [*((name, 0.0) for name in specials), *zip(learned, scores, strict=True)]


def _xlm_roberta(size: int) -> Any:
    scores = _scores(["<s>", "<pad>", "</s>", "<unk>"], normalizers.Precompiled(CHARSMAP), size)
    mask = AddedToken("<mask>", lstrip=True, special=True)
    return XLMRobertaTokenizer(
        vocab=[*scores, ("<mask>", 0.0)], mask_token=mask, _spm_precompiled_charsmap=CHARSMAP
    )


def _camembert(size: int) -> Any:
    own = ["<s>NOTUSED", "<pad>", "</s>NOTUSED", "<unk>", "<unk>NOTUSED", "<s>", "</s>"]
    scores = _scores(own, normalizers.Precompiled(CHARSMAP), size)
    return CamembertTokenizer(vocab=[*scores, ("<mask>", 0.0)], _spm_precompiled_charsmap=CHARSMAP)


def _albert(size: int) -> Any:
    steps = [normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
    own = ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    scores = _scores(own, normalizers.Sequence(steps), size)
    return AlbertTokenizer(vocab=scores, _spm_precompiled_charsmap=CHARSMAP)


def _deberta_v2(size: int) -> Any:
    own = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    return DebertaV2Tokenizer(vocab=_scores(own, normalizers.NFC(), size))


def _word_piece(kind: Any, specials: Mapping[str, str], size: int) -> Any:
    tokenizer = Tokenizer(models.WordPiece(unk_token=specials["unk_token"]))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    letters = sorted({*tokenizer.normalizer.normalize_str("".join(SENTENCES))} - {" "})
    known = [*specials.values(), *letters, *(f"##{letter}" for letter in letters)]
    trainer = trainers.WordPieceTrainer(  # it orders by chance what it is not told
        vocab_size=size, special_tokens=known, show_progress=False
    )
    tokenizer.train_from_iterator(SENTENCES, trainer)
    return kind(vocab=tokenizer.get_vocab())


MAKERS: dict[str, Callable[[int], Any]] = {
    "bert": lambda size: _word_piece(BertTokenizer, BRACKETS, size),
    "mpnet": lambda size: _word_piece(MPNetTokenizer, {**ANGLES, "unk_token": "[UNK]"}, size),
    "roberta": lambda size: _byte_level(RobertaTokenizer, ANGLES, size),
    "deberta": lambda size: _byte_level(DebertaTokenizer, BRACKETS, size),
    "modernbert": _modern,
    "eurobert": _llama,
    "xlm-roberta": _xlm_roberta,
    "camembert": _camembert,
    "albert": _albert,
    "deberta-v2": _deberta_v2,
}
WORD_PIECE = ("bert", "mpnet")
BYTE_LEVEL = ("roberta", "deberta", "modernbert", "eurobert")
UNIGRAM = ("xlm-roberta", "camembert", "albert", "deberta-v2")


@functools.cache
def _made(name: str, size: int) -> Any:
    return MAKERS[name](size)


def make_tokenizer(name: str, size: int = 500) -> Any:
    """A tokenizer as the usual checkpoint of that model type has it, of at most so many tokens."""
    return copy.deepcopy(_made(name, size))


def text_tokenizer(name: str, size: int = 500) -> TextTokenizer:
    """The same as skbert reads text with it."""
    made = make_tokenizer(name, size)
    named = made.special_tokens_map
    return TextTokenizer(made.backend_tokenizer, named.get("mask_token"), named.get("unk_token"))


class Spy:
    """A tokenizer backend that counts its calls and the characters it is given."""

    def __init__(self, backend: Any) -> None:
        self.backend, self.seen = backend, 0
        self.calls: Counter[str] = Counter()

    def _call(self, name: str, given: Any, n_characters: int, options: Mapping[str, bool]) -> Any:
        self.calls[name] += 1
        self.seen += n_characters
        return getattr(self.backend, name)(given, **options)

    def encode(self, text: str, **options: bool) -> Any:
        return self._call("encode", text, len(text), options)

    def encode_batch(self, texts: list[str], **options: bool) -> Any:
        return self._call("encode_batch", texts, sum(map(len, texts)), options)

    def encode_batch_fast(self, texts: list[str], **options: bool) -> Any:
        return self._call("encode_batch_fast", texts, sum(map(len, texts)), options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)


def watched(tokenizer: TextTokenizer) -> tuple[TextTokenizer, Spy]:
    """The same over a spy, and the spy."""
    twin, spy = copy.copy(tokenizer), Spy(tokenizer.backend)
    object.__setattr__(twin, "backend", spy)
    object.__setattr__(twin, "reader", replace(tokenizer.reader, backend=spy))
    return twin, spy
