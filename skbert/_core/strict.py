"""Strict readers for files that may be hostile: JSON, tensor headers, tokenizers.

Knows file formats only: no torch, no transformers, no tokenizer; of skbert it imports only
``skbert.exceptions``. Everything is checked by looking, nothing is loaded or run.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

from skbert.exceptions import ModelError, SkbertError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["INDEX", "SINGLE", "check_tokenizer", "is_plain", "load_json", "load_object", "member",
           "shards", "tensor_shapes"]  # fmt: skip

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"  # weights: a file, or shards


_JSON_LIMIT = 100_000_000  # bytes; the limit that safetensors sets to its header
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1,
               "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1, "C64": 8}  # fmt: skip

_TOKENIZERS = (None, "BertTokenizer", "BertTokenizerFast", "DistilBertTokenizer",
               "DistilBertTokenizerFast", "ElectraTokenizer", "ElectraTokenizerFast",
               "PreTrainedTokenizerFast", "TokenizersBackend")  # fmt: skip
# What a tokenizer.json may be made of: nothing that takes a regular expression, which could
# run for ever, and no null where all text would become unknown or lose its [CLS].
_PARTS: dict[str, tuple[str | None, ...]] = {
    "model": ("WordPiece",),
    "normalizer": (None, "BertNormalizer", "Lowercase", "NFC", "NFD", "NFKC", "NFKD", "Replace",
                   "Strip", "StripAccents"),
    "pre_tokenizer": ("BertPreTokenizer", "Digits", "Punctuation", "Whitespace",
                      "WhitespaceSplit"),
    "post_processor": ("BertProcessing", "TemplateProcessing"),
    "decoder": (None, "WordPiece"),
}  # fmt: skip
_NESTED = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers"}  # in a Sequence
# Settings of tokenizer_config.json that bring code, or lead around tokenizer.json.
_LEADING_AWAY = ("auto_map", "fast_tokenizer_files", "gguf_file", "merges", "tokenizer_file",
                 "tokenizer_object", "vocab", "vocab_file")  # fmt: skip
_SPECIALS = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]",
             "pad_token": "[PAD]"}  # fmt: skip


# --- files and JSON ----------------------------------------------------------------------------


def is_plain(name: object) -> bool:
    """Whether ``name`` is a file name that means the same in every folder: no path, no dots."""
    return isinstance(name, str) and bool(
        re.fullmatch(r"[A-Za-z0-9_][\w.-]{0,119}", name, re.ASCII)
    )


def member(folder: Path, name: str) -> Path | None:
    """Path of a file of the folder, None if absent; links may lead to the hub's blobs only."""
    path = folder / name
    if not os.path.lexists(path):
        return None
    root, real = folder.resolve(), path.resolve()
    homes = [root]
    if root.parent.name == "snapshots":  # cache/models--owner--name/snapshots/commit
        repository = root.parent.parent
        homes += [repository / "blobs", repository.parent / "blobs"]
    if not any(real.is_relative_to(home) for home in homes):
        raise ModelError(
            f"{path} is a link that leaves its folder, to {real}. A model is one folder: put a"
            " copy of the file in the place of the link."
        )
    if not real.is_file() or not os.access(real, os.R_OK):
        raise ModelError(f"{path} is no file that can be read: put a copy of the file there.")
    return path


def load_object(folder: Path, name: str) -> dict[str, Any]:
    """Contents of a JSON file of the folder that holds one object; empty if it is absent."""
    path = member(folder, name)
    table = load_json(path, ModelError) if path else {}
    if not isinstance(table, dict):
        raise ModelError(
            f"{path} should hold a JSON object, not a {type(table).__name__}."
            " Restore the file from a whole copy."
        )
    return table


def load_json(path: Path, error: type[SkbertError]) -> Any:
    """Parse a JSON file; a key that stands twice, NaN and infinity are errors."""
    try:
        size = path.stat().st_size
        data = path.read_bytes() if size <= _JSON_LIMIT else b""
    except OSError as exc:
        raise error(f"{path} cannot be read: {exc}. Check that it is there and yours.") from exc
    if size > _JSON_LIMIT:
        raise error(
            f"{path} is {size} bytes long; a JSON file of a model has at most {_JSON_LIMIT}."
            " Restore the file from a whole copy."
        )
    return _parse_json(data, path, error)


def shards(folder: Path) -> dict[str, list[str]]:
    """Tensors of each file that the index of a folder lists, in its order."""
    files: dict[str, list[str]] = {}
    listed = load_object(folder, INDEX).get("weight_map")
    for tensor, name in listed.items() if isinstance(listed, dict) else ():
        if not is_plain(name) or not name.endswith(".safetensors"):
            raise ModelError(
                f"{folder / INDEX} puts the tensor {tensor!r} into {name!r}. It should be a"
                " .safetensors file in the same folder: do not use this model."
            )
        files.setdefault(name, []).append(tensor)
    if not files:
        raise ModelError(f"{folder / INDEX} lists no files: restore it from a whole copy.")
    return files


def _parse_json(data: bytes, origin: Path, error: type[SkbertError]) -> Any:
    try:
        return json.loads(
            data.decode("utf-8"),
            object_pairs_hook=_unique,
            parse_constant=_finite,
            parse_float=_finite,
        )
    except (ValueError, RecursionError) as exc:
        raise error(
            f"{origin} is not valid JSON: {exc}. Restore the file from a whole copy."
        ) from exc


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        twice, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"the key {twice!r} stands twice in one object")
    return table


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is not a finite number")
    return value


# --- tensor headers ----------------------------------------------------------------------------


def tensor_shapes(path: Path, error: type[SkbertError]) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor in a safetensors file, after checking that the file is whole.

    Reads the header only: every tensor must lie inside the file, right behind the one before.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        start = 8 + length  # where the data begins
        if start > size or length > _JSON_LIMIT:
            _damaged(path, 0, f"a header of {length} bytes does not fit {size} bytes", error)
        entries = _parse_json(file.read(length), path, error)
    if not isinstance(entries, dict):
        _damaged(path, 8, "the header is no object", error)
    entries.pop("__metadata__", None)
    tensors = [_tensor(path, name, entry, error) for name, entry in entries.items()]
    at = 0
    for begin, end, n_bytes, name in sorted(tensors):
        if (begin, end) != (at, at + n_bytes) or start + end > size:
            found = f"tensor {name!r} has {n_bytes} bytes, and is put at {begin} to {end}"
            _damaged(path, start + at, f"{found} of {size - start} bytes of data", error)
        at = end
    if start + at != size:
        _damaged(path, start + at, f"{size - start - at} bytes belong to no tensor", error)
    return {name: tuple(entry["shape"]) for name, entry in entries.items()}


def _tensor(
    path: Path, name: str, entry: object, error: type[SkbertError]
) -> tuple[int, int, int, str]:
    """Begin, end, expected bytes and name of one tensor of the header."""
    match entry:
        case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if (
            dtype in _ITEM_BYTES
            and len(shape) <= 8
            and all(type(n) is int and n >= 0 for n in (*shape, begin, end))
        ):
            return begin, end, math.prod(shape) * _ITEM_BYTES[dtype], name
    found = f"tensor {name!r} is described by {str(entry)[:120]}"
    return _damaged(path, 8, found, error)


def _damaged(path: Path, offset: int, found: str, error: type[SkbertError]) -> NoReturn:
    raise error(
        f"{path} is damaged or cut short, at byte {offset}: {found}. It should be a whole"
        " safetensors file: copy or download it again."
    )


# --- tokenizers --------------------------------------------------------------------------------


def check_tokenizer(folder: Path, vocab_size: int) -> bool | None:
    """Check the tokenizer of a folder; return whether it lowers case, None if not declared.

    As in transformers, ``do_lower_case`` in tokenizer_config.json comes before tokenizer.json.
    """
    settings = load_object(folder, "tokenizer_config.json")
    _check_settings(folder, settings)
    path = member(folder, "tokenizer.json")
    described = load_object(folder, "tokenizer.json")
    vocabulary = _described(path, described) if path else _listed(folder)
    vocabulary = {**_added_tokens(folder, settings), **vocabulary}
    _check_ids(folder, vocabulary, vocab_size)
    named = {**load_object(folder, "special_tokens_map.json"), **settings}
    _check_specials(folder, named, vocabulary)
    lowers = [
        part.get("lowercase", part["type"] == "Lowercase")
        for part in _components("normalizer", described.get("normalizer"))
    ]
    declared = settings.get("do_lower_case", any(lowers) if path else None)
    return declared if isinstance(declared, bool) else None


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Refuse a class that is not BERT's, and settings that lead to another file."""
    config = load_object(folder, "config.json")
    kind = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if kind not in _TOKENIZERS:
        raise ModelError(
            f"the tokenizer in {folder} has the class {kind!r}, which this version does not"
            " support. Use a model with a plain BERT tokenizer."
        )
    astray = [key for key in _LEADING_AWAY if settings.get(key) is not None]
    if astray:
        raise ModelError(
            f"{folder / 'tokenizer_config.json'} sets {astray[0]}, which leads to code or a"
            " vocabulary outside tokenizer.json. Remove that setting if you trust the rest."
        )


def _described(path: Path, described: dict[str, Any]) -> dict[str, Any]:
    """Check what a tokenizer.json is made of; return its vocabulary and added tokens."""
    model = _typed_model(described.get("model"))
    for role, known in _PARTS.items():
        _check_parts(path, role, model if role == "model" else described.get(role), known)
    _check_replacements(path, described.get("normalizer"))
    match model, described.get("added_tokens") or []:
        case {
            "vocab": dict(words), "unk_token": str(unknown), "max_input_chars_per_word": limit,
        }, [*entries] if (
            unknown in words and _is_word_limit(limit) and all(map(_is_added_token, entries))
        ):  # fmt: skip
            vocabulary = {**{entry["content"]: entry["id"] for entry in entries}, **words}
        case _:
            raise ModelError(
                f"{path} has no vocabulary with an unknown token, broken added_tokens, or"
                " max_input_chars_per_word outside 1 to 1000. Restore it from a whole copy."
            )
    _check_template(path, described["post_processor"], vocabulary)
    return vocabulary


def _typed_model(model: Any) -> Any:
    """Name the type of a model that comes from the days before files said it."""
    match model:
        case {"type": _} | {"merges": _}:
            return model
        case {"continuing_subword_prefix": _, "max_input_chars_per_word": _}:
            return {**model, "type": "WordPiece"}
    return model


def _is_word_limit(value: object) -> bool:
    return type(value) is int and 1 <= value <= 1000


def _is_added_token(entry: object) -> bool:
    match entry:
        case {"content": str(), "id": int()}:
            return True
    return False


def _check_parts(path: Path, role: str, part: object, known: tuple[str | None, ...]) -> None:
    parts = list(_components(role, part)) or [{"type": None}]
    for kind in (part["type"] for part in parts):
        if kind not in known or len(parts) > 64:
            raise ModelError(
                f"{path} has the {role} {kind!r}, which this version does not support. It takes"
                f" only: {', '.join(filter(None, known))}. Use a model with a plain BERT"
                " tokenizer."
            )


def _components(role: str, whole: object) -> Iterator[dict[str, Any]]:
    """Every part of a tokenizer that is no sequence, by a stack: nesting may be deep."""
    stack: list[Any] = [] if whole is None else [whole]
    while stack:
        part = stack.pop()
        kind = part.get("type") if isinstance(part, dict) else None
        nested = part.get(_NESTED.get(role)) if kind == "Sequence" else None
        if isinstance(nested, list):
            stack += nested
        elif isinstance(kind, str):
            yield part
        else:
            yield {"type": f"of no known shape: {str(part)[:80]}"}


def _check_replacements(path: Path, normalizer: object) -> None:
    """No regular expression, and no chain of replacements that blows a text up."""
    growth = 1.0
    for part in _components("normalizer", normalizer):
        if part["type"] != "Replace":
            continue
        match part:
            case {"pattern": {"String": str(pattern), **rest}, "content": str(content)} if (
                pattern and not rest
            ):
                growth *= max(1.0, len(content) / len(pattern))
            case _:
                growth = math.inf
        if growth > 100:
            raise ModelError(
                f"{path} has the normalizer Replace with {str(part.get('pattern'))[:80]}. This"
                " version replaces plain strings only, by few characters. Use a model with a"
                " plain BERT tokenizer."
            )


def _check_template(path: Path, processor: dict[str, Any], vocabulary: dict[str, Any]) -> None:
    """The special tokens put around a text must be those of the vocabulary, the texts in order."""
    texts = [["A"], ["A", "B"]]
    try:
        if processor["type"] == "BertProcessing":
            specials = [processor["cls"], processor["sep"]]
        else:
            entries = processor["special_tokens"].values()
            specials = [s for e in entries for s in zip(e["tokens"], e["ids"], strict=True)]
            texts = [_texts(processor["single"]), _texts(processor["pair"])]
        good = all(vocabulary[token] == number for token, number in specials)
    except (AttributeError, KeyError, TypeError, ValueError):
        good = False
    if not good or texts != [["A"], ["A", "B"]]:
        raise ModelError(
            f"{path} has a post_processor {processor['type']} whose special tokens are not those"
            " of the vocabulary, or whose texts are out of order. Restore the file from a whole"
            " copy."
        )


def _texts(template: list[dict[str, Any]]) -> list[str]:
    """Which texts a template names, in its order."""
    if len(template) > 16:
        raise ValueError
    return [piece["Sequence"]["id"] for piece in template if "Sequence" in piece]


def _listed(folder: Path) -> dict[str, Any]:
    path = member(folder, "vocab.txt")
    if path is None:
        raise ModelError(
            f"{folder} holds no tokenizer, so every text would be unknown. Add the tokenizer.json"
            " or vocab.txt of the model: AutoTokenizer.from_pretrained(...).save_pretrained(...)."
        )
    try:
        with path.open(encoding="utf-8") as file:
            lines = file.read(_JSON_LIMIT).removesuffix("\n").split("\n")
            return {line: row for row, line in enumerate(lines)}
    except UnicodeDecodeError as exc:
        raise ModelError(f"{path} is not UTF-8: {exc}. Restore it from a whole copy.") from exc


def _added_tokens(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Tokens that the files beside tokenizer.json add to the vocabulary, with their ids."""
    added = load_object(folder, "added_tokens.json")
    decoder = settings.get("added_tokens_decoder") or {}
    if isinstance(decoder, dict):
        for number, entry in decoder.items():
            content = entry.get("content") if isinstance(entry, dict) else entry
            added[str(content)] = int(number) if re.fullmatch("[0-9]{1,9}", number) else number
    return added


def _check_ids(folder: Path, vocabulary: dict[str, Any], vocab_size: int) -> None:
    for token, number in vocabulary.items():
        if type(number) is not int or not 0 <= number < vocab_size:
            raise ModelError(
                f"the tokenizer in {folder} gives {token!r} the id {number!r}, but the model has"
                f" vocab_size={vocab_size} in config.json. Put in the tokenizer that the model was"
                " trained with."
            )


def _check_specials(folder: Path, named: dict[str, Any], vocabulary: dict[str, Any]) -> None:
    for role, usual in _SPECIALS.items():
        token = named.get(role) or usual
        token = token.get("content") if isinstance(token, dict) else token
        if not isinstance(token, str) or token not in vocabulary:
            raise ModelError(
                f"the vocabulary of the tokenizer in {folder} has no {role} {token!r}. Put in the"
                " tokenizer that the model was trained with, or name the token in"
                " tokenizer_config.json."
            )
