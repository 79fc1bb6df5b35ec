"""Folders of models, made by hand: whole and honest ones, for tests to spoil."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##c"]
CONFIG = {
    "model_type": "bert", "architectures": ["BertModel"], "vocab_size": len(PIECES),
    "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8,
    "max_position_embeddings": 16, "type_vocab_size": 2, "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1, "layer_norm_eps": 1e-12, "pad_token_id": 0,
    "position_embedding_type": "absolute", "chunk_size_feed_forward": 0,
    "transformers_version": "4.8.2",
}  # fmt: skip
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": row, "content": PIECES[row], "special": True} for row in range(5)],
    "normalizer": {"type": "BertNormalizer", "clean_text": True, "lowercase": True},
    "pre_tokenizer": {"type": "BertPreTokenizer"},
    "post_processor": {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                   {"Sequence": {"id": "A", "type_id": 0}},
                   {"SpecialToken": {"id": "[SEP]", "type_id": 0}}],
        "pair": [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
                 {"Sequence": {"id": "B", "type_id": 1}},
                 {"SpecialToken": {"id": "[SEP]", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]},
                           "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}},
    },
    "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
    "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
              "max_input_chars_per_word": 100,
              "vocab": {piece: row for row, piece in enumerate(PIECES)}},
}  # fmt: skip
SHAPES = {"embeddings.word_embeddings.weight": (len(PIECES), 4), "pooler.dense.bias": (4,)}


def header_entries(shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    entries, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * math.prod(shape)
        entries[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    return entries


def tensor_file(header: object, data: bytes) -> bytes:
    head = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(head).to_bytes(8, "little") + head + data


def tensors(shapes: dict[str, tuple[int, ...]]) -> bytes:
    return tensor_file(header_entries(shapes), bytes(4 * sum(map(math.prod, shapes.values()))))


def put(folder: Path, name: str, content: object) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())


def make(folder: Path) -> Path:
    put(folder, "config.json", CONFIG)
    put(folder, "tokenizer.json", TOKENIZER)
    put(folder, "tokenizer_config.json", {"tokenizer_class": "BertTokenizer"})
    put(folder, "model.safetensors", tensors(SHAPES))
    return folder


def edit(folder: Path, name: str, change: Callable[[Any], Any]) -> None:
    """Change a JSON file in place."""
    content = json.loads((folder / name).read_text())
    change(content)
    put(folder, name, content)


def shard(folder: Path, files: dict[str, str] | None = None) -> None:
    """Replace the one file of tensors by two and an index."""
    (folder / "model.safetensors").unlink()
    for row, (name, shape) in enumerate(SHAPES.items()):
        put(folder, f"part-{row}.safetensors", tensors({name: shape}))
    listed = {name: f"part-{row}.safetensors" for row, name in enumerate(SHAPES)}
    put(folder, "model.safetensors.index.json", {"weight_map": {**listed, **(files or {})}})


def to_hub_cache(folder: Path, cache: Path, *, shared: bool = False, name: str = "o--m") -> Path:
    """Lay a checkpoint out as the hub's cache does: links to blobs named by their hash."""
    repository = cache / f"models--{name}"
    snapshot = repository / "snapshots" / "0123abc"
    blobs = repository / "blobs"
    for path in (snapshot, blobs, repository / "refs"):
        path.mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123abc")
    if not (folder / "modules.json").exists():  # which the cache notes if somebody asked for it
        (repository / ".no_exist" / "0123abc").mkdir(parents=True)
        (repository / ".no_exist" / "0123abc" / "modules.json").touch()
    for path in folder.iterdir():
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if shared:
            (cache / "blobs" / digest[:2]).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, cache / "blobs" / digest[:2] / digest)
            (blobs / digest).symlink_to(f"../../blobs/{digest[:2]}/{digest}")
        else:
            shutil.copy(path, blobs / digest)
        (snapshot / path.name).symlink_to(f"../../blobs/{digest}")
    return snapshot
