"""What a tokenizer.json is made of, which may be hostile: every part and field is checked.

Parts are of known types only. A regular expression could run for ever, so that only those are
taken that published tokenizers have. Knows file formats; nothing is loaded or run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from skbert._core.checkpoints.charsmap import is_charsmap
from skbert._core.checkpoints.strict import parse_json
from skbert._core.checkpoints.tokenizer_settings import FLAG, TOKEN_FLAGS, is_token
from skbert._core.families.tokenizers import FORMATS
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skbert._core.families.record import Family
    from skbert._core.families.tokenizers import TokenizerFormat

__all__ = ["are_merges", "check_described", "check_parts", "format_of", "is_uncased", "parsed"]

_NESTED = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers",
           "post_processor": "processors", "decoder": "decoders"}  # fmt: skip
_NEEDED = {"BPE": "ByteLevel", "Unigram": "Metaspace"}  # which pre_tokenizer a model works with
_MOST_PARTS = 64
_MOST_SPECIALS = 8  # special tokens around a text, or around two
_LARGEST_SCORE = 1e6

_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
# Of GPT-2; of GPT-4, Llama 3 and their like, which differ in how many digits make a word.
_WORDS = (
    rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+",
    *(
        rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"
        for digits in (r"\p{N}{1,3}", r"\p{N}")
    ),
)
_GAPS = (" {2,}", r"\s{2,}|[\n\r\t]")  # which become one blank
_BEHAVIORS = ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous")

_Check = tuple[Callable[[object], bool], str]


def _one_of(*known: object) -> _Check:
    names = ", ".join("null" if value is None else str(value) or "''" for value in known)
    right = f"one of {names}" if len(known) > 1 else names
    return lambda value: any(type(value) is type(k) and value == k for k in known), right


_TEXT: _Check = (lambda value: isinstance(value, str), "a string")
_NONE, _OFF, _EMPTY = _one_of(None), _one_of(False), _one_of(None, "")
_BLANK = _one_of("\u2581")
_SWITCH: _Check = FLAG
_BYTE_LEVEL = dict.fromkeys(("add_prefix_space", "trim_offsets", "use_regex"), _SWITCH)
_FIELDS: dict[str, dict[str, _Check]] = {
    "BertNormalizer": {
        **dict.fromkeys(("clean_text", "handle_chinese_chars", "lowercase"), _SWITCH),
        "strip_accents": (lambda value: value is None or isinstance(value, bool), "true or false"),
    },
    "Strip": dict.fromkeys(("strip_left", "strip_right"), _SWITCH),
    "Precompiled": {"precompiled_charsmap": (is_charsmap, "a whole map of characters")},
    "Punctuation": {"behavior": _one_of(*_BEHAVIORS)},
    "Digits": {"individual_digits": _SWITCH},
    "Split": {
        "pattern": (lambda value: value in [{"Regex": regex} for regex in _WORDS],
                    "the regular expression of GPT-2, Llama 3 or Qwen 2"),
        "behavior": _one_of("Isolated", "Removed"),
        "invert": _SWITCH,
    },
    "ByteLevel": _BYTE_LEVEL,
    "RobertaProcessing": _BYTE_LEVEL,
    "Metaspace": {
        "replacement": _BLANK, "str_rep": _BLANK,
        "prepend_scheme": _one_of("always", "first", "never"),
        **dict.fromkeys(("add_prefix_space", "split"), _SWITCH),
    },
    "WordPiece": {"cleanup": _SWITCH, "prefix": _TEXT, "continuing_subword_prefix": _TEXT},
    "BPE": {
        "dropout": _NONE, "continuing_subword_prefix": _EMPTY, "end_of_word_suffix": _EMPTY,
        "byte_fallback": _OFF, **dict.fromkeys(("fuse_unk", "ignore_merges"), _SWITCH),
    },
    "Unigram": {"byte_fallback": _OFF},
}  # fmt: skip


def parsed(data: bytes, path: Path) -> dict[str, Any]:
    """What a tokenizer.json describes."""
    described = parse_json(data, path, ModelError)
    if not isinstance(described, dict) or described.get("version") != "1.0":
        raise ModelError(
            f"{path} is no description of a tokenizer of version 1.0. Restore it from a whole"
            " copy, or save the tokenizer with this version of transformers."
        )
    return described


def format_of(path: Path, described: dict[str, Any], family: Family) -> TokenizerFormat:
    """The kind of a tokenizer, which must be one that models of the family have."""
    kind = _typed_model(described.get("model"))["type"]
    for known in family.tokenizers:
        if known.model == kind:
            return known
    names = " or ".join(known.name for known in family.tokenizers)
    raise ModelError(
        f"{path} holds a tokenizer of the type {kind!r}, but one of a model of the type"
        f" {family.model_type!r} is {names}. Put in the tokenizer that the model was trained with."
    )


def check_parts(
    path: Path, known: TokenizerFormat, described: dict[str, Any]
) -> tuple[dict[str, Any], list[tuple[str, Any]]]:
    """Check what a tokenizer.json is made of; return its vocabulary and added tokens."""
    model = _typed_model(described.get("model"))
    for role, parts in known.parts.items():
        _check_role(path, role, model if role == "model" else described.get(role), parts)
    _check_replacements(path, described.get("normalizer"))
    _check_order(path, known, described["pre_tokenizer"])
    words, entries = _VOCABULARIES[known.model](model), described.get("added_tokens") or []
    if words is None:
        raise ModelError(
            f"{path} has no vocabulary {_VOCABULARY[known.model]}. Restore it from a whole copy."
        )
    if not isinstance(entries, list) or not all(map(_is_added_token, entries)):
        raise ModelError(f"{path} has broken added_tokens. Restore it from a whole copy.")
    added = [(entry["content"], entry["id"]) for entry in entries]
    _check_template(path, described["post_processor"], {**dict(added), **words})
    return words, added


def check_described(data: bytes, path: Path) -> None:
    """Check a tokenizer.json that need not belong to the model of a known family."""
    described = parsed(data, path)
    kind = _typed_model(described.get("model"))["type"]
    known = [each for each in FORMATS if each.model == kind]
    if not known:
        names = " or ".join(each.name for each in FORMATS)
        raise ModelError(f"{path} holds a tokenizer of the type {kind!r}, and not {names}.")
    check_parts(path, known[0], described)


def is_uncased(described: dict[str, Any]) -> bool:
    """Whether a part of the normalizer makes text lower case."""
    return any(
        part.get("lowercase", part["type"] == "Lowercase")
        for part in _components("normalizer", described.get("normalizer"))
    )


# --- the vocabulary ----------------------------------------------------------------------------


# What the model of a type always has, in files that do not name the type.
_SIGNS = {"BPE": {"merges"}, "Unigram": {"unk_id"},
          "WordPiece": {"continuing_subword_prefix", "max_input_chars_per_word"}}  # fmt: skip


def _typed_model(model: object) -> dict[str, Any]:
    """The model with its type, which older files do not name."""
    fields: dict[str, Any] = model if isinstance(model, dict) else {}
    if isinstance(fields.get("type"), str):
        return fields
    types = [kind for kind, signs in _SIGNS.items() if signs <= fields.keys()]
    return {**fields, "type": types[0] if types else f"of no known shape: {str(model)[:80]}"}


def _word_pieces(model: dict[str, Any]) -> dict[str, Any] | None:
    match model:
        case {
            "vocab": dict(words), "unk_token": str(unknown), "max_input_chars_per_word": limit,
        } if (
            unknown in words and type(limit) is int and 1 <= limit <= 1000
        ):  # fmt: skip
            return words
    return None


def _byte_pieces(model: dict[str, Any]) -> dict[str, Any] | None:
    match model:
        case {"vocab": dict(words), "merges": list(merges), **rest} if are_merges(
            merges, words
        ) and rest.get("unk_token") in [None, *words]:
            return words
    return None


def are_merges(merges: list[Any], words: dict[str, Any]) -> bool:
    """Whether each merge makes a word of the vocabulary of two others."""
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in merges)
    return len(merges) <= len(words) and all(_is_merge(pair, words) for pair in pairs)


def _is_merge(pair: object, words: dict[str, Any]) -> bool:
    match pair:
        case [str(first), str(second)]:
            return first in words and second in words and first + second in words
    return False


def _scored_pieces(model: dict[str, Any]) -> dict[str, Any] | None:
    match model:
        case {"vocab": list(entries), "unk_id": unknown} if (
            type(unknown) is int and 0 <= unknown < len(entries) and all(map(_is_scored, entries))
        ):
            return {piece: row for row, (piece, _) in enumerate(entries)}
    return None


def _is_scored(entry: object) -> bool:
    match entry:
        case [str(piece), (float() | int()) as score]:
            return bool(piece) and abs(score) <= _LARGEST_SCORE
    return False


_VOCABULARIES: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
    "WordPiece": _word_pieces, "BPE": _byte_pieces, "Unigram": _scored_pieces,
}  # fmt: skip
_VOCABULARY = {
    "WordPiece": "with an unknown token, or max_input_chars_per_word outside 1 to 1000",
    "BPE": "with all that its merges make and are made of",
    "Unigram": "of pieces with scores and with an unk_id among them",
}


def _is_added_token(entry: object) -> bool:
    match entry:
        case {"content": str(), "id": int(), **rest} if is_token(entry):
            return rest.keys() <= {*TOKEN_FLAGS}
    return False


# --- parts and their fields --------------------------------------------------------------------


def _check_role(path: Path, role: str, whole: object, known: tuple[str | None, ...]) -> None:
    parts = list(_components(role, whole)) or [{"type": None}]
    for part in parts:
        if part["type"] not in known or len(parts) > _MOST_PARTS:
            raise ModelError(
                f"{path} has the {role} {part['type']!r}, which this version does not support. It"
                f" takes only: {', '.join(filter(None, known))}. Use a model with such a"
                " tokenizer."
            )
        for key, (is_right, right) in _FIELDS.get(part["type"], {}).items():
            if key in part and not is_right(part[key]):
                raise ModelError(
                    f"{path} has the {role} {part['type']} with {key}={str(part[key])[:80]}, where"
                    f" {right} is expected. Restore the file from a whole copy."
                )


def _components(role: str, whole: object) -> Iterator[dict[str, Any]]:
    """Every part of a tokenizer that is no sequence, in order.

    Not by recursion, as nesting may be deep.
    """
    stack: list[Any] = [] if whole is None else [whole]
    while stack:
        part = stack.pop()
        kind = part.get("type") if isinstance(part, dict) else None
        nested = part.get(_NESTED.get(role)) if kind == "Sequence" else None
        if isinstance(nested, list):
            stack += reversed(nested)
        elif isinstance(kind, str):
            yield part
        else:
            yield {"type": f"of no known shape: {str(part)[:80]}"}


def _check_order(path: Path, known: TokenizerFormat, pre_tokenizer: object) -> None:
    """Refuse words that do not go through what the model's vocabulary is written in."""
    kinds = [part["type"] for part in _components("pre_tokenizer", pre_tokenizer)]
    needed = _NEEDED.get(known.model)
    if needed is not None and (kinds[-1] != needed or kinds.count(needed) > 1):
        raise ModelError(
            f"{path} has the pre_tokenizer {', '.join(kinds)}, but {known.name} needs {needed}"
            " once and last. Restore the file from a whole copy."
        )


def _check_replacements(path: Path, normalizer: object) -> None:
    """Refuse unknown regular expressions, and replacements that make a text very much longer."""
    growth = 1.0
    for part in _components("normalizer", normalizer):
        if part["type"] == "Replace":
            growth *= _growth(part)
        if growth > 100:
            raise ModelError(
                f"{path} has the normalizer Replace with {str(part.get('pattern'))[:80]}. This"
                " version replaces plain strings only, by few characters, and gaps by one blank."
                " Use a model with such a tokenizer."
            )


def _growth(part: dict[str, Any]) -> float:
    match part:
        case {"pattern": {"String": str(pattern), **rest}, "content": str(content)} if (
            pattern and not rest
        ):
            return max(1.0, len(content) / len(pattern))
        case {"pattern": {"Regex": str(pattern), **rest}, "content": " " | "\u2581"} if (
            pattern in _GAPS and not rest
        ):
            return 1.0
    return float("inf")


# --- special tokens around a text --------------------------------------------------------------


def _check_template(path: Path, whole: object, vocabulary: dict[str, Any]) -> None:
    """Refuse special tokens around a text that the vocabulary lacks, and texts out of order."""
    processors = [p for p in _components("post_processor", whole) if p["type"] != "ByteLevel"]
    kinds = ", ".join(part["type"] for part in processors) or "ByteLevel"
    if len(processors) != 1 or not _is_template(processors[0], vocabulary):
        raise ModelError(
            f"{path} has a post_processor {kinds} whose special tokens are not those"
            f" of the vocabulary or more than {_MOST_SPECIALS}, or whose texts are out of order."
            " Restore the file from a whole copy."
        )


def _is_template(processor: dict[str, Any], vocabulary: dict[str, Any]) -> bool:
    texts = [["A"], ["A", "B"]]
    try:
        if processor["type"] == "TemplateProcessing":
            texts = [_texts(processor, name) for name in ("single", "pair")]
            entries = processor["special_tokens"].values()
            specials = [s for e in entries for s in zip(e["tokens"], e["ids"], strict=True)]
        else:
            specials = [processor["cls"], processor["sep"]]
        good = all(vocabulary[token] == number for token, number in specials)
    except (AttributeError, KeyError, TypeError, ValueError):
        good = False
    return good and texts == [["A"], ["A", "B"]]


def _texts(processor: dict[str, Any], name: str) -> list[str]:
    """The texts that a template names, in its order; ValueError if it holds much else."""
    texts, n_specials = [], 0
    for piece in processor[name]:
        ((kind, entry),) = piece.items()
        if entry["type_id"] not in (0, 1) or kind not in ("Sequence", "SpecialToken"):
            raise ValueError
        if kind == "Sequence":
            texts.append(entry["id"])
        else:
            n_specials += len(processor["special_tokens"][entry["id"]]["ids"])
        if n_specials > _MOST_SPECIALS or len(texts) > 2:
            raise ValueError
    return texts
