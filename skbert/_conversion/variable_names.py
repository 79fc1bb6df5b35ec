"""The names that Google's code gives BERT's variables: their shapes, their names in transformers.

Depends on `bundle` and `skbert.exceptions`.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from skbert.exceptions import ModelError, warn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skbert._conversion.bundle import Bundle

__all__ = ["Shape", "plan", "renamed"]

Shape = tuple[int, ...]

_HEADS = {  # a variable of the head -> the class of transformers that has such a head
    "cls/squad/output_weights": "BertForQuestionAnswering",
    "output_weights": "BertForSequenceClassification",
    "cls/seq_relationship/output_weights": "BertForPreTraining",
    "cls/predictions/output_bias": "BertForMaskedLM",
}
_OF_TRAINING = re.compile(r"(.+/)?((adam|lamb)_[mv]|Adam(_1)?|beta[12]_power|global_step)")
_PLACES = {"": "classifier", "cls/squad": "qa_outputs"}
_LAST = {"kernel": "weight", "gamma": "weight", "beta": "bias", "bias": "bias",
         "output_weights": "weight", "output_bias": "bias"}  # fmt: skip


def plan(
    bundle: Bundle, config: dict[str, Any], config_path: Path
) -> tuple[str, dict[str, Shape]]:
    """Return the class to write, and its variables with their shapes, all checked."""
    heads = [head for variable, head in _HEADS.items() if variable in bundle.entries]
    head = heads[0] if heads else "BertModel"
    shapes: dict[str, Shape] = {}
    for name, shape in _variables(bundle, config, head):
        _check_shape(bundle, config_path, name, shape)
        shapes[name] = shape
    _check_rest(bundle, config, config_path, head, shapes)
    return head, shapes


def _check_rest(
    bundle: Bundle, config: dict[str, Any], config_path: Path, head: str, used: dict[str, Shape]
) -> None:
    """Raise for unused variables of the encoder; warn of others, but not of leftovers."""
    rest = [n for n in bundle.entries if n not in used and not _OF_TRAINING.fullmatch(n)]
    astray = [name for name in rest if name.startswith("bert/")]
    if astray:
        raise ModelError(
            f"{bundle.index} holds {astray[0]!r}, which has no place in the model of {config_path}"
            f" with its num_hidden_layers={config['num_hidden_layers']}. Give the bert_config.json"
            " that came with the checkpoint."
        )
    if rest:
        warn(
            f"{len(rest)} variables of {bundle.index} have no place in a {head} and were left out,"
            f" {rest[0]!r} first."
        )


def _check_shape(bundle: Bundle, config_path: Path, name: str, shape: Shape) -> None:
    entry = bundle.entries.get(name)
    if entry is None and not any(key.startswith("bert/") for key in bundle.entries):
        raise ModelError(
            f"{bundle.index} has no variable under 'bert/', so it does not use the names of"
            " Google's BERT. Checkpoints of Keras and of tf.train.Checkpoint use other names and"
            " are not read here."
        )
    if entry is None or entry.shape != shape:
        holds = f"has no {name!r}" if entry is None else f"holds {name!r} as {entry.shape}"
        raise ModelError(
            f"{bundle.index} {holds}, where {config_path} requires {shape}. Give a complete"
            " checkpoint and the bert_config.json that came with it."
        )


def _variables(bundle: Bundle, config: dict[str, Any], head: str) -> Iterator[tuple[str, Shape]]:
    """Yield names and shapes of all variables of the model, as in TensorFlow."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    at = "bert/embeddings"
    yield f"{at}/word_embeddings", (config["vocab_size"], hidden)
    yield f"{at}/position_embeddings", (config["max_position_embeddings"], hidden)
    yield f"{at}/token_type_embeddings", (config["type_vocab_size"], hidden)
    yield from _norm(at, hidden)
    for layer in range(config["num_hidden_layers"]):
        at = f"bert/encoder/layer_{layer}"
        for part in ("query", "key", "value"):
            yield from _dense(f"{at}/attention/self/{part}", hidden, hidden)
        yield from _dense(f"{at}/attention/output/dense", hidden, hidden)
        yield from _norm(f"{at}/attention/output", hidden)
        yield from _dense(f"{at}/intermediate/dense", hidden, inner)
        yield from _dense(f"{at}/output/dense", inner, hidden)
        yield from _norm(f"{at}/output", hidden)
    yield from _dense("bert/pooler/dense", hidden, hidden)
    match head:
        case "BertForQuestionAnswering":
            yield from _output("cls/squad/", 2, hidden)
        case "BertForSequenceClassification":
            n_labels = max((1, *bundle.entries["output_weights"].shape[:1]))
            yield from _output("", n_labels, hidden)
        case "BertForPreTraining" | "BertForMaskedLM":
            yield from _dense("cls/predictions/transform/dense", hidden, hidden)
            yield from _norm("cls/predictions/transform", hidden)
            yield "cls/predictions/output_bias", (config["vocab_size"],)
            if head == "BertForPreTraining":
                yield from _output("cls/seq_relationship/", 2, hidden)


def _dense(at: str, width: int, out: int) -> Iterator[tuple[str, Shape]]:
    yield f"{at}/kernel", (width, out)
    yield f"{at}/bias", (out,)


def _norm(at: str, width: int) -> Iterator[tuple[str, Shape]]:
    yield f"{at}/LayerNorm/gamma", (width,)
    yield f"{at}/LayerNorm/beta", (width,)


def _output(at: str, out: int, width: int) -> Iterator[tuple[str, Shape]]:
    """Yield the variables of a layer whose weights are stored as in torch."""
    yield f"{at}output_weights", (out, width)
    yield f"{at}output_bias", (out,)


def renamed(name: str, head: str) -> str:
    """Return the name of a variable in transformers."""
    place, _, last = name.rpartition("/")
    place = re.sub(r"layer_(\d+)", r"layer.\1", _PLACES.get(place, place)).replace("/", ".")
    place = place.removeprefix("bert.") if head == "BertModel" else place
    return f"{place}.{_LAST.get(last, f'{last}.weight')}"
