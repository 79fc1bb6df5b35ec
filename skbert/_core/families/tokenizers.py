"""The kinds of tokenizers: how each cuts words into pieces, and the classes that open it.

Depends on nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

__all__ = ["AS_DESCRIBED", "BRACKETS", "BYTE_LEVEL_BPE", "FORMATS", "UNIGRAM", "WORD_PIECE",
           "TokenizerFormat"]  # fmt: skip

# Classes that take a tokenizer.json as it is, of any kind, and name no token themselves.
AS_DESCRIBED = ("TokenizersBackend", "PreTrainedTokenizerFast")

BRACKETS = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]",
            "sep_token": "[SEP]", "mask_token": "[MASK]"}  # fmt: skip
_ANGLES = {"cls_token": "<s>", "pad_token": "<pad>", "sep_token": "</s>", "unk_token": "<unk>",
           "mask_token": "<mask>"}  # fmt: skip
_MPNET = {**_ANGLES, "unk_token": "[UNK]"}
_ALBERT = {**BRACKETS, "unk_token": "<unk>", "pad_token": "<pad>"}


@dataclass(frozen=True)
class TokenizerFormat:
    """What the tokenizer of a checkpoint may be."""

    name: str
    model: str  # what tokenizer.json calls it
    new_class: str  # of a new model, and of a checkpoint that names none
    specials: Mapping[str, str]  # of a new model, by role, in the order of their ids
    # That a checkpoint may name, and the special tokens where it does not name them.
    classes: Mapping[str, Mapping[str, str]]
    # What a tokenizer.json may be made of, by role, and no null where all text would become
    # unknown or lose its specials.
    parts: Mapping[str, tuple[str | None, ...]]
    files: tuple[str, ...]  # that hold a vocabulary without a tokenizer.json; () for none

    def made_by(
        self, new_class: str, specials: Mapping[str, str] | None = None
    ) -> TokenizerFormat:
        """The same kind with another usual class, and the tokens of that."""
        specials = self.classes[new_class] if specials is None else specials
        return replace(self, new_class=new_class, specials=specials)


WORD_PIECE = TokenizerFormat(
    name="WordPiece",
    model="WordPiece",
    new_class="BertTokenizer",
    specials=BRACKETS,
    classes={
        **dict.fromkeys(
            ("BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer",
             "DistilBertTokenizerFast", "ElectraTokenizer", "ElectraTokenizerFast",
             "MobileBertTokenizer", "MobileBertTokenizerFast", "SqueezeBertTokenizer",
             "SqueezeBertTokenizerFast", "ConvBertTokenizer"),
            BRACKETS,
        ),
        **dict.fromkeys(("MPNetTokenizer", "MPNetTokenizerFast"), _MPNET),
    },
    parts={
        "model": ("WordPiece",),
        "normalizer": (None, "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD",
                       "Replace", "Strip", "StripAccents"),
        "pre_tokenizer": ("BertPreTokenizer", "Digits", "Punctuation", "Whitespace",
                          "WhitespaceSplit"),
        "post_processor": ("BertProcessing", "RobertaProcessing", "TemplateProcessing"),
        "decoder": (None, "WordPiece"),
    },
    files=("vocab.txt",),
)  # fmt: skip

BYTE_LEVEL_BPE = TokenizerFormat(
    name="byte-level BPE",
    model="BPE",
    new_class="RobertaTokenizer",
    specials=_ANGLES,
    classes={
        **dict.fromkeys(("RobertaTokenizer", "RobertaTokenizerFast"), _ANGLES),
        **dict.fromkeys(("DebertaTokenizer", "DebertaTokenizerFast"), BRACKETS),
    },
    parts={
        "model": ("BPE",),
        "normalizer": (None, "NFC"),
        "pre_tokenizer": ("ByteLevel", "Digits", "Split"),
        "post_processor": ("ByteLevel", "RobertaProcessing", "TemplateProcessing"),
        "decoder": (None, "ByteLevel"),
    },
    files=("vocab.json", "merges.txt"),
)

UNIGRAM = TokenizerFormat(
    name="Unigram",
    model="Unigram",
    new_class="XLMRobertaTokenizer",
    specials=_ANGLES,
    classes={
        **dict.fromkeys(
            ("CamembertTokenizer", "CamembertTokenizerFast", "XLMRobertaTokenizer",
             "XLMRobertaTokenizerFast"),
            _ANGLES,
        ),
        **dict.fromkeys(("AlbertTokenizer", "AlbertTokenizerFast"), _ALBERT),
        **dict.fromkeys(("DebertaV2Tokenizer", "DebertaV2TokenizerFast"), BRACKETS),
    },
    parts={
        "model": ("Unigram",),
        "normalizer": (None, "Lowercase", "NFC", "NFKC", "NFKD", "Precompiled", "Replace", "Strip",
                       "StripAccents"),
        "pre_tokenizer": ("Metaspace", "Punctuation", "WhitespaceSplit"),
        "post_processor": ("RobertaProcessing", "TemplateProcessing"),
        "decoder": (None, "Metaspace"),
    },
    files=(),
)  # fmt: skip

FORMATS = (WORD_PIECE, BYTE_LEVEL_BPE, UNIGRAM)
