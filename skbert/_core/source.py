"""From a model's folder to a checkpoint that is safe to open.

Knows JSON and file headers. A
checkpoint is hostile until `vet` has passed it: what can run code, leave the folder, ask for
absurd memory or turn all text into unknown tokens is refused, and unknown settings are dropped.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skbert._core import strict
from skbert._core.find import PACKAGED
from skbert._core.pruned import are_pruned_heads
from skbert._core.strict import INDEX, SINGLE
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["FAMILIES", "POSITIONS", "Checkpoint", "vet"]

FAMILIES = ("bert",)

_NOT_SAFE = (".bin", ".h5", ".msgpack", ".ckpt", ".pt", ".pth", ".onnx")

_SIZES = {  # key: (BERT's own default, least, most)
    "vocab_size": (30522, 1, 5_000_000),
    "hidden_size": (768, 1, 16_384),
    "num_hidden_layers": (12, 1, 256),
    "num_attention_heads": (12, 1, 1024),
    "intermediate_size": (3072, 1, 131_072),
    "max_position_embeddings": (512, 2, 1_000_000),
    "type_vocab_size": (2, 1, 1024),
    "chunk_size_feed_forward": (0, 0, 1_000_000),
}
_RATES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout",
          "initializer_range", "layer_norm_eps")  # fmt: skip
_ACTIVATIONS = ("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "quick_gelu",
                "gelu_pytorch_tanh", "relu", "relu6", "silu", "swish", "mish", "tanh")  # fmt: skip
POSITIONS = ("absolute", "relative_key", "relative_key_query")
_ONE_OF = {"hidden_act": _ACTIVATIONS, "position_embedding_type": POSITIONS,
           "skbert_pooling": ("pooler", "cls", "mean", "max"),
           "problem_type": ("regression", "single_label_classification",
                            "multi_label_classification")}  # fmt: skip
_KEPT = (*_SIZES, *_RATES, *_ONE_OF, "architectures", "id2label", "label2id", "num_labels",
         "model_type", "pad_token_id", "tie_word_embeddings", "is_decoder",
         "pruned_heads")  # fmt: skip
_NOT_READ = {"auto_map": "brings Python code of its own", "quantization_config": "is quantized",
             "add_cross_attention": "has cross-attention"}  # fmt: skip
_MOST_LABELS = 1_000_000
_POOLINGS = {"mean": "mean", "cls": "cls", "max": "max", "pooling_mode_mean_tokens": "mean",
             "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max"}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A folder that `vet` has passed, and what it declares."""

    folder: Path
    config: dict[str, Any]  # of config.json the settings known here, with every size filled in
    pooling: str | None  # "mean", "cls" or "max" where a sentence encoder declares one
    max_length: int  # positions, 512 at most; a sentence encoder's shorter habit is no limit
    lowercase: bool | None  # None: not declared
    weights: tuple[Path, ...]  # one safetensors file, or the shards
    head_pooling: str | None  # what its own head reads, where skbert saved it
    tensors: Mapping[str, Any] | None = None  # the weights, where they were read before


def vet(folder: Path, tensors: Mapping[str, Any] | None = None) -> Checkpoint:
    """Check a checkpoint folder without loading it; return what it declares.

    With ``tensors``, which somebody has read from it before, its files of weights play no part.
    """
    folder = Path(folder)
    if os.path.lexists(folder / "adapter_config.json"):
        raise ModelError(
            f"{folder / 'adapter_config.json'} makes the folder an adapter to another model. Merge"
            " the two first (merge_and_unload in peft), and save the whole model."
        )
    config = _config(folder)
    if tensors is not None:
        _check_memory(folder, config, sum(math.prod(tensor.shape) for tensor in tensors.values()))
    return Checkpoint(
        folder=folder,
        config=config,
        pooling=config.get("skbert_pooling") or _pooling(folder),
        max_length=min(config["max_position_embeddings"], 512),
        lowercase=strict.check_tokenizer(folder, config["vocab_size"]),
        weights=_weights(folder, config) if tensors is None else (),
        head_pooling=config.get("skbert_pooling"),
        tensors=tensors,
    )


def _config(folder: Path) -> dict[str, Any]:
    """Take the settings known here from config.json, all checked."""
    path = folder / "config.json"
    raw = strict.load_object(folder, "config.json")
    if not raw:
        raise ModelError(
            f"{folder} is no model: it has no config.json, or an empty one. Give the folder that"
            f" holds config.json, {SINGLE} and tokenizer.json."
        )
    if raw.get("model_type") not in FAMILIES:
        raise ModelError(
            f"{path} has model_type={raw.get('model_type')!r}. This version supports"
            f" {', '.join(FAMILIES)}: choose a BERT model, such as {PACKAGED!r}."
        )
    unread = [what for key, what in _NOT_READ.items() if raw.get(key)]
    if unread:
        raise ModelError(
            f"{path} says that the model {' and '.join(unread)}, which is not supported by this"
            f" version. Choose a plain BERT model, such as {PACKAGED!r}."
        )
    config = {key: default for key, (default, _, _) in _SIZES.items()}
    config |= {key: raw[key] for key in _KEPT if raw.get(key) is not None}
    for key, right in _faults(config):
        raise ModelError(
            f"{path} has {key}={str(config.get(key))[:80]}, where {right} is expected. Restore the"
            " file from a whole copy of the model."
        )
    return config


def _faults(config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each setting that has a wrong value, and what would be right."""
    for key, (_, least, most) in _SIZES.items():
        if not _is_whole(config[key], least, most):
            yield key, f"a whole number from {least} to {most}"
    for key in _RATES:
        if not _is_rate(config.get(key, 0.0)):
            yield key, "a number from 0 to 1"
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    checks = {
        "num_attention_heads": (hidden % heads == 0, f"a divisor of hidden_size={hidden}"),
        "pad_token_id": (_is_whole(config.get("pad_token_id", 0), 0, config["vocab_size"] - 1),
                         "an id of the vocabulary"),
        "id2label": (_are_labels(config.get("id2label", {})), 'names under "0", "1" and so on'),
        "label2id": (isinstance(config.get("label2id", {}), dict), "an object"),
        "num_labels": (_is_whole(config.get("num_labels", 1), 1, _MOST_LABELS),
                       f"a whole number from 1 to {_MOST_LABELS}"),
        **{key: (config.get(key) in (None, *known), f"one of {', '.join(known)}")
           for key, known in _ONE_OF.items()},
        "tie_word_embeddings": (isinstance(config.get("tie_word_embeddings", True), bool),
                                "true or false"),
        "is_decoder": (isinstance(config.get("is_decoder", False), bool), "true or false"),
        "pruned_heads": (are_pruned_heads(config), '{"layer": [head, ...]}, not all of a layer,'),
        "architectures": (_are_names(config.get("architectures", [])), "a list of class names"),
    }  # fmt: skip
    yield from ((key, right) for key, (good, right) in checks.items() if not good)


def _is_whole(value: object, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def _is_rate(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1  # type: ignore[operator]


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _are_labels(labels: object) -> bool:
    if not isinstance(labels, dict) or len(labels) > _MOST_LABELS:
        return False
    rows = {str(row) for row in range(len(labels))}
    return labels.keys() == rows and _are_names([*labels.values()])


def _weights(folder: Path, config: dict[str, Any]) -> tuple[Path, ...]:
    """Check the safetensors files by their headers: whole, complete, and as large as promised."""
    if os.path.lexists(folder / SINGLE):
        files: dict[str, list[str]] = {SINGLE: []}
    elif os.path.lexists(folder / INDEX):
        files = strict.shards(folder)
    else:
        raise _no_safetensors(folder)
    paths: list[Path] = []
    shapes: dict[str, tuple[int, ...]] = {}
    for name, promised in files.items():
        path = strict.member(folder, name)
        if path is None:
            raise ModelError(f"{folder / name} is missing, but {INDEX} lists it: download it.")
        held = strict.tensor_shapes(path, ModelError)
        astray = sorted((set(promised) - held.keys()) | (shapes.keys() & held.keys()))
        if astray:
            raise ModelError(
                f"{path} and {INDEX} disagree on the tensor {astray[0]!r}: each must be in the"
                " one file that the index names. Download the model again."
            )
        shapes.update(held)
        paths.append(path)
    _check_memory(folder, config, sum(map(math.prod, shapes.values())))
    return tuple(paths)


def _no_safetensors(folder: Path) -> ModelError:
    others = sorted(path.name for path in folder.iterdir() if path.suffix in _NOT_SAFE)
    return ModelError(
        f"{folder} has no {SINGLE}{f', only {others[0]}' if others else ''}. This version reads"
        " safetensors only, because other formats can run code. If you trust the model, open it"
        " once with transformers and save it: AutoModel.from_pretrained(...).save_pretrained(...)."
    )


def _check_memory(folder: Path, config: dict[str, Any], held: int) -> None:
    """A small file must not make a large model; missing layers are for the loader to name."""
    hidden = config["hidden_size"]
    rows = config["vocab_size"] + config["max_position_embeddings"] + config["type_vocab_size"]
    layer = 4 * hidden**2 + 2 * hidden * config["intermediate_size"]
    lost = sum(map(len, config.get("pruned_heads", {}).values()))
    needed = rows * hidden + config["num_hidden_layers"] * layer
    needed -= lost * 4 * hidden**2 // config["num_attention_heads"]
    if needed > 2 * held + 10_000_000:
        raise ModelError(
            f"{folder / 'config.json'} describes a model of {needed} weights, but the safetensors"
            f" files hold {held}. Put in the config.json that belongs to them."
        )


def _pooling(folder: Path) -> str | None:
    """How a sentence encoder pools its tokens, where it says so and does it one way."""
    path = strict.member(folder, "modules.json")
    place = _pooling_place(strict.load_json(path, ModelError)) if path else "1_Pooling"
    if place is None:
        return None
    if not strict.is_plain(place):
        raise ModelError(
            f"{path} puts a module into {place!r}. It should be a folder in the same folder: do"
            " not use this model."
        )
    table = strict.load_object(folder, f"{place}/config.json")
    modes = [key for key, on in table.items() if key.startswith("pooling_mode_") and on is True]
    match table.get("pooling_mode", modes):
        case str(mode) | [str(mode)]:
            return _POOLINGS.get(mode)
    return None


def _pooling_place(chain: object) -> object:
    """Sub-folder of the first pooling module in the chain of a sentence encoder."""
    for part in chain if isinstance(chain, list) else ():
        match part:
            case {"type": str(kind), "path": place} if kind.endswith(".Pooling"):
                return place
    return None
