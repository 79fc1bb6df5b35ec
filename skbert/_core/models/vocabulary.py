"""Learns the vocabulary of a new tokenizer from texts: word pieces, byte-level BPE or Unigram.

How texts are normalised and cut into words is up to the tokenizer, which is handed over without
a vocabulary. The same texts give the same vocabulary in every process. Depends on ``tokenizers``,
`skim` and the kinds of tokenizers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from skbert._arrays import IntArray
from skbert._core.families.tokenizers import TokenizerFormat
from skbert._core.text.skim import Skimmer
from skbert.exceptions import InputError

__all__ = ["Pieces", "described", "learn_pieces"]

_ROUNDS = 3  # in which the frequencies of Unigram's pieces settle
_BATCH = 1000  # texts whose pieces are counted together
_LONGEST = 1000  # characters that a word may have before it counts as several
_MOST = 100_000  # of its characters that count
_ENDLESS = re.compile(rf"\S{{{_LONGEST}}}|\s{{{_LONGEST}}}")


@dataclass(frozen=True)
class Pieces:
    """The vocabulary of a new tokenizer, and what else its model has learned."""

    ids: dict[str, int]
    merges: tuple[tuple[str, str], ...] = ()  # of BPE, in the order in which they are made
    scores: tuple[float, ...] = ()  # of Unigram, by id

    def __len__(self) -> int:
        return len(self.ids)

    def settings(self, kind: TokenizerFormat) -> dict[str, Any]:
        """What the class of a tokenizer of this kind takes."""
        match kind.model:
            case "Unigram":
                scores = self.scores or (0.0,) * len(self)
                return {"vocab": list(zip(self.ids, scores, strict=True))}
            case "BPE":
                return {"vocab": self.ids, "merges": list(self.merges)}
            case _:
                return {"vocab": self.ids}

    @classmethod
    def untrained(cls, kind: TokenizerFormat) -> Pieces:
        """The special tokens alone."""
        return cls(_numbered(kind.specials.values()))


def described(kind: TokenizerFormat, pieces: Pieces) -> Tokenizer:
    """A whole byte-level tokenizer, for classes that make none themselves."""
    tokenizer = Tokenizer(models.BPE(**pieces.settings(kind)))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    first, last = (kind.specials[role] for role in ("cls_token", "sep_token"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} $B:1 {last}:1",
        special_tokens=[(token, pieces.ids[token]) for token in (first, last)],
    )
    return tokenizer


def learn_pieces(
    kind: TokenizerFormat,
    untrained: Tokenizer,
    texts: Sequence[str],
    size: int | None,
    most: int,
) -> Pieces:
    """The special tokens, every character there is, and pieces that occur at least twice.

    Words longer than a model reads as pieces count with their beginning only. Without a ``size``
    there are as many pieces as the texts support, ``most`` at most.

    Raises
    ------
    InputError
        If the texts support fewer pieces than ``size``, or hold more characters.
    """
    learn = {"WordPiece": _word_pieces, "BPE": _byte_level_bpe, "Unigram": _unigram}[kind.model]
    pieces = learn(kind, untrained, texts, size or most)
    count = len(pieces)
    if size is not None and count < size:
        raise InputError(
            f"vocab_size={size}, but X supports {count} word pieces only: no more of them occur "
            f"twice. Use vocab_size={count} or less, or vocab_size=None for as many as there are."
        )
    if size is not None and count > size:
        alone = "bytes" if kind.model == "BPE" else "characters of X"
        raise InputError(
            f"vocab_size={size} is too small: the {alone} alone make {count} word pieces. "
            f"Use vocab_size={count} or more, or vocab_size=None for as many as there are."
        )
    return pieces


def _word_pieces(
    kind: TokenizerFormat, untrained: Tokenizer, texts: Sequence[str], size: int
) -> Pieces:
    """Word pieces, with every character of the texts.

    The trainer adds characters in an order that differs from run to run, and breaks ties by that
    order: knowing them beforehand makes it repeat itself.
    """
    specials = tuple(kind.specials.values())

    def trained(size: int, known: Iterable[str]) -> dict[str, int]:
        tokenizer = Tokenizer(models.WordPiece(unk_token=kind.specials["unk_token"]))
        trainer = trainers.WordPieceTrainer(
            vocab_size=size, min_frequency=2, special_tokens=list(known), show_progress=False
        )
        _train(tokenizer, untrained, trainer, texts, _skimming(untrained))
        vocabulary: dict[str, int] = tokenizer.get_vocab()
        return vocabulary

    characters = trained(1, specials).keys() - {*specials}
    ordered = sorted(characters, key=lambda piece: (piece.startswith("##"), piece))
    return Pieces(trained(size, (*specials, *ordered)))


def _byte_level_bpe(
    kind: TokenizerFormat, untrained: Tokenizer, texts: Sequence[str], size: int
) -> Pieces:
    """Pieces of bytes, with all 256 of them."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=size, min_frequency=2, special_tokens=list(kind.specials.values()),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False,
    )  # fmt: skip
    _train(tokenizer, untrained, trainer, texts, _without_endless_words)
    learned = json.loads(tokenizer.to_str())["model"]
    return Pieces(learned["vocab"], tuple((first, second) for first, second in learned["merges"]))


def _unigram(
    kind: TokenizerFormat, untrained: Tokenizer, texts: Sequence[str], size: int
) -> Pieces:
    """Pieces with a score each, with every character of the texts; the most frequent first.

    The trainer's own scores differ from run to run, and it may end a little below the size. Here
    it chooses some more pieces, and what decides is how often the texts need each.
    """
    specials = list(kind.specials.values())
    pieces = sorted({*_chosen(kind, untrained, texts, size)} - {*specials})
    is_letter = np.array([len(piece) == 1 for piece in pieces], bool)
    counts: IntArray = np.ones(len(pieces), np.int64)
    for last in (*[False] * _ROUNDS, True):
        if last:  # only as many as asked for; all characters stay
            order = np.lexsort((-counts, ~is_letter))
            kept = np.sort(order[: max(size - len(specials), int(is_letter.sum()))])
            pieces, counts = [pieces[i] for i in kept], counts[kept]
        counts = _counts(kind, untrained, texts, [*zip(pieces, _scores(counts), strict=True)])
    order = np.argsort(-counts, kind="stable")
    ids = _numbered([*specials, *(pieces[i] for i in order)])
    return Pieces(ids, scores=(*(0.0 for _ in specials), *_scores(counts[order])))


def _scores(counts: IntArray) -> list[float]:
    """Logarithms of frequencies; what never occurs counts half."""
    shares = np.maximum(counts, 0.5) / max(int(counts.sum()), 1)
    scores: list[float] = np.log(shares).tolist()
    return scores


def _chosen(
    kind: TokenizerFormat, untrained: Tokenizer, texts: Sequence[str], size: int
) -> list[str]:
    """What the library's trainer chooses: some more pieces than asked for, where there are."""
    while True:
        size += size // 10 + 16
        tokenizer = Tokenizer(models.Unigram())
        trainer = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=list(kind.specials.values()),
            unk_token=kind.specials["unk_token"], show_progress=False,
        )  # fmt: skip
        try:
            _train(tokenizer, untrained, trainer, texts, _without_endless_words)
        except Exception as error:  # no class of its own
            if "not large enough" not in str(error):
                raise
            continue
        return [*tokenizer.get_vocab()]


def _counts(
    kind: TokenizerFormat,
    untrained: Tokenizer,
    texts: Sequence[str],
    scored: list[tuple[str, float]],
) -> IntArray:
    """How often each piece is in the most likely pieces of the texts."""
    unknown = (kind.specials["unk_token"], 0.0)
    tokenizer = Tokenizer(models.Unigram([*scored, unknown], unk_id=len(scored)))
    _read_as(untrained, tokenizer)
    counts = np.zeros(len(scored) + 1, np.int64)
    for at in range(0, len(texts), _BATCH):
        part = [_without_endless_words(text) for text in texts[at : at + _BATCH]]
        encodings = tokenizer.encode_batch(part, add_special_tokens=False)
        ids = np.fromiter(chain.from_iterable(e.ids for e in encodings), np.int64)
        counts += np.bincount(ids, minlength=len(counts))
    return counts[:-1]


def _numbered(pieces: Iterable[str]) -> dict[str, int]:
    return {piece: number for number, piece in enumerate(pieces)}


def _train(
    tokenizer: Tokenizer,
    untrained: Tokenizer,
    trainer: trainers.Trainer,
    texts: Sequence[str],
    shortened: Callable[[str], str],
) -> None:
    """Train a tokenizer that reads texts as another does."""
    _read_as(untrained, tokenizer)
    tokenizer.train_from_iterator((shortened(text) for text in texts), trainer)


def _read_as(untrained: Tokenizer, tokenizer: Tokenizer) -> None:
    """Have a tokenizer normalise texts and cut them into words as another does."""
    if untrained.normalizer is not None:
        tokenizer.normalizer = untrained.normalizer
    tokenizer.pre_tokenizer = untrained.pre_tokenizer


def _skimming(untrained: Tokenizer) -> Callable[[str], str]:
    """What leaves out of a text the words that are beyond the model's limit."""
    skimmer = Skimmer(
        Tokenizer.from_str(untrained.to_str())
    )  # a copy, as training locks the other
    longest = skimmer.longest_word

    def skimmed(text: str) -> str:
        if len(text) <= longest or max(map(len, text.split()), default=0) <= longest:
            return text
        return "".join(skimmer.chunks(text))

    return skimmed


def _without_endless_words(text: str) -> str:
    """The text, with long words cut in parts, of which endless words keep the first ones."""
    if not _ENDLESS.search(text):
        return text
    return " ".join(_parts(text))


def _parts(text: str) -> Iterator[str]:
    for word in text.split():
        for at in range(0, min(len(word), _MOST), _LONGEST):
            yield word[at : at + _LONGEST]
