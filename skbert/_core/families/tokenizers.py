"""The kinds of tokenizers: how each cuts words into pieces, and the classes that open it.

Depends on nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["BYTE_LEVEL_BPE", "UNIGRAM", "WORD_PIECE", "TokenizerFormat"]

_BRACKETS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]",
             "pad_token": "[PAD]", "mask_token": "[MASK]"}  # fmt: skip
_ANGLES = {"cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>",
           "mask_token": "<mask>"}  # fmt: skip
_MPNET = {**_ANGLES, "unk_token": "[UNK]"}
_ALBERT = {**_BRACKETS, "unk_token": "<unk>", "pad_token": "<pad>"}


@dataclass(frozen=True)
class TokenizerFormat:
    """What the tokenizer of a checkpoint may be."""

    name: str
    model: str  # what tokenizer.json calls it
    new_class: str  # of a new model, and where a vocabulary is all that there is
    # That a checkpoint may name, and the special tokens by role where it does not name them.
    classes: Mapping[str, Mapping[str, str]]
    # What a tokenizer.json may be made of, by role: nothing that takes a regular expression, which
    # could run for ever, and no null where all text would become unknown or lose its specials.
    parts: Mapping[str, tuple[str | None, ...]]

    @property
    def specials(self) -> Mapping[str, str]:
        """The special tokens of a new model, by role."""
        return self.classes[self.new_class]


WORD_PIECE = TokenizerFormat(
    name="WordPiece",
    model="WordPiece",
    new_class="BertTokenizer",
    classes={
        **dict.fromkeys(
            ("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer",
             "DistilBertTokenizerFast", "ElectraTokenizer", "ElectraTokenizerFast",
             "MobileBertTokenizer", "MobileBertTokenizerFast", "SqueezeBertTokenizer",
             "SqueezeBertTokenizerFast", "ConvBertTokenizer"),
            _BRACKETS,
        ),
        **dict.fromkeys(("MPNetTokenizer", "MPNetTokenizerFast"), _MPNET),
    },
    parts={
        "model": ("WordPiece",),
        "normalizer": (None, "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD",
                       "Replace", "Strip", "StripAccents"),
        "pre_tokenizer": ("BertPreTokenizer", "Digits", "Punctuation", "Whitespace",
                          "WhitespaceSplit"),
        "post_processor": ("BertProcessing", "TemplateProcessing"),
        "decoder": (None, "WordPiece"),
    },
)  # fmt: skip

BYTE_LEVEL_BPE = TokenizerFormat(
    name="byte-level BPE",
    model="BPE",
    new_class="RobertaTokenizer",
    classes={
        **dict.fromkeys(("RobertaTokenizer", "RobertaTokenizerFast"), _ANGLES),
        **dict.fromkeys(("DebertaTokenizer", "DebertaTokenizerFast"), _BRACKETS),
    },
    parts={
        "model": ("BPE",),
        "normalizer": (None, "NFC"),
        "pre_tokenizer": ("ByteLevel", "Split"),
        "post_processor": ("ByteLevel", "RobertaProcessing", "TemplateProcessing"),
        "decoder": (None, "ByteLevel"),
    },
)

UNIGRAM = TokenizerFormat(
    name="Unigram",
    model="Unigram",
    new_class="XLMRobertaTokenizer",
    classes={
        **dict.fromkeys(
            ("CamembertTokenizer", "CamembertTokenizerFast", "XLMRobertaTokenizer",
             "XLMRobertaTokenizerFast"),
            _ANGLES,
        ),
        **dict.fromkeys(("AlbertTokenizer", "AlbertTokenizerFast"), _ALBERT),
        **dict.fromkeys(("DebertaV2Tokenizer", "DebertaV2TokenizerFast"), _BRACKETS),
    },
    parts={
        "model": ("Unigram",),
        "normalizer": (None, "Lowercase", "NFC", "NFKC", "NFKD", "Precompiled", "Replace", "Strip",
                       "StripAccents"),
        "pre_tokenizer": ("Metaspace", "Punctuation", "WhitespaceSplit"),
        "post_processor": ("RobertaProcessing", "TemplateProcessing"),
        "decoder": (None, "Metaspace"),
    },
)  # fmt: skip
