"""From a model's folder to a checkpoint that is safe to open.

Knows JSON and file headers. A checkpoint is hostile until `vet` has passed it: what can run code,
leave the folder, ask for absurd memory or turn all text into unknown tokens is refused, and
unknown settings are dropped.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from skbert._core.attention.pooling import POOLINGS
from skbert._core.attention.pruned import are_pruned_heads
from skbert._core.checkpoints import archive, strict
from skbert._core.checkpoints.adapters import ADAPTER, Adapter, adapted_settings, read_adapter
from skbert._core.checkpoints.find import PACKAGED, find
from skbert._core.checkpoints.head_layers import read_head
from skbert._core.checkpoints.pickled import PickledFile, pickled_file
from skbert._core.checkpoints.sentences import (
    CHAIN,
    HEAD,
    RowVector,
    check_place,
    read_modules,
    read_row_vector,
)
from skbert._core.checkpoints.sizes import MOST_LABELS, is_whole_number, memory_fault, size_faults
from skbert._core.checkpoints.strict import PICKLED, SINGLE, Members, TensorFile
from skbert._core.checkpoints.tokenizer_files import TokenizerFiles, check_tokenizer
from skbert._core.families import FAMILIES
from skbert._core.families.record import Family
from skbert.exceptions import ModelError, ModelNotFoundError, SaveError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Checkpoint", "WeightFile", "vet"]

WeightFile = TensorFile | PickledFile

_NOT_READ_FORMATS = (".bin", ".h5", ".msgpack", ".ckpt", ".pt", ".pth", ".onnx")

# Settings of every family; those of one are in its record.
_CHOICES = {"skbert_pooling": POOLINGS,
            "problem_type": ("regression", "single_label_classification",
                             "multi_label_classification"),
            "skbert_targets": ("several classes", "one class"),
            "skbert_scheme": ("IOB1",)}  # fmt: skip
_KEPT = (*_CHOICES, "architectures", "id2label", "label2id", "num_labels", "model_type",
         "pad_token_id", "tie_word_embeddings", "is_decoder", "pruned_heads",
         "skbert_max_length")  # fmt: skip
_SPECIALS = ("bos_token_id", "cls_token_id", "eos_token_id", "sep_token_id")  # kept for others
_NOT_READ = {"auto_map": "brings Python code of its own", "quantization_config": "is quantized",
             "add_cross_attention": "has cross-attention"}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """A folder that `vet` has checked, and what it declares."""

    folder: Path
    config: dict[str, Any]  # of config.json the settings known here, with every size filled in
    row_vector: RowVector  # of a sentence encoder
    max_length: int  # as positions allow; a sentence encoder's shorter setting is no limit
    tokenizer: TokenizerFiles
    weights: tuple[WeightFile, ...]  # one file, or the shards
    head_pooling: str | None  # what its own head reads, where skbert saved it
    sources: tuple[Members, ...]  # all that was read so far
    tensors: Mapping[str, Any] | None = None  # the weights, where they were read before
    adapter: Adapter | None = None  # what changes the weights

    @property
    def family(self) -> Family:
        """The record of the model's architecture."""
        return FAMILIES[self.config["model_type"]]

    @property
    def pooling(self) -> str | None:
        """The pooling that was saved, or that a sentence encoder declares; None without one."""
        return self.head_pooling or self.row_vector.pooling

    def check_row_vector(self) -> None:
        """Refuse a sentence encoder that makes the vector of a row in a way of its own."""
        if self.row_vector.lacking and not self.head_pooling:
            raise ModelError(
                f"{self.folder} is a sentence encoder with {self.row_vector.lacking}, which is not"
                f" computed here. Set pooling={self.pooling or 'mean'!r}, or another, to use the"
                " encoder without it."
            )

    @property
    def states(self) -> object:
        """What changes where a file is written to; None where weights were not read from files."""
        if self.tensors is not None:
            return None
        return tuple((str(members.folder), members.states) for members in self.sources)

    def digest(self) -> str:
        """A hash of all that was read."""
        return " ".join(members.digest() for members in self.sources)

    def check_unchanged(self) -> None:
        """Refuse a folder that somebody changed since it was vetted; parts of two are no model."""
        for members in self.sources:
            members.check_unchanged()

    @property
    def lowercase(self) -> bool | None:
        """Whether the tokenizer makes text lower case; None where nothing declares it."""
        return self.tokenizer.lowercase


def vet(folder: Path, tensors: Mapping[str, Any] | None = None) -> Checkpoint:
    """Check a checkpoint folder without loading it; return what it declares.

    Where `archive` has saved the folder, all that is read must have the hash in the manifest.
    With ``tensors``, which were read from it before, its files of weights are not looked at.
    """
    folder = Path(folder)
    members = _members(folder)
    if members.has(ADAPTER):
        return _adapted(members)
    modules = read_modules(members)
    check_place(folder, modules)
    raw = members.load_object("config.json")
    config = _config(folder, raw)
    family = FAMILIES[config["model_type"]]
    weights = _weights(members) if tensors is None else ()
    head_class, layers = read_head(members, modules, family, raw.get(HEAD))
    if head_class:
        config, weights = {**config, "architectures": head_class}, (*weights, *layers)
    held = sum(file.n_weights for file in weights)
    if tensors is not None:
        held = sum(math.prod(tensor.shape) for tensor in tensors.values())
    _check_memory(folder / "config.json", config, held)
    tokenizer = check_tokenizer(members, family, config, raw.get("tokenizer_class"))
    return Checkpoint(
        folder=folder,
        config=config,
        row_vector=read_row_vector(members, modules, is_lowercase=bool(tokenizer.lowercase)),
        max_length=family.max_length(
            config["max_position_embeddings"], config.get("pad_token_id")
        ),
        tokenizer=tokenizer,
        weights=weights,
        head_pooling=config.get("skbert_pooling"),
        sources=(members,),
        tensors=tensors,
    )


def _adapted(members: Members) -> Checkpoint:
    """The checkpoint of an adapter's base model, with the adapter."""
    adapter = read_adapter(members)
    try:
        folder = find(adapter.base)
    except ModelNotFoundError as exc:
        raise ModelNotFoundError(
            f"{members.folder} is an adapter, and its base model is missing: {exc} The name is"
            f" base_model_name_or_path in {ADAPTER}; it may be changed to another folder."
        ) from exc
    if os.path.lexists(folder / ADAPTER):
        raise ModelError(
            f"{members.folder / ADAPTER} names {adapter.base!r}, which is an adapter as well."
            " Merge that one into its own base model first (merge_and_unload in peft)."
        )
    base = vet(folder)
    config = adapted_settings(adapter, base.family, base.config)
    tokenizer, row_vector = base.tokenizer, base.row_vector
    if any(map(members.has, ("tokenizer.json", "vocab.txt", "vocab.json"))):
        tokenizer = check_tokenizer(members, base.family, config, None)
    if members.has(CHAIN) or members.has("1_Pooling"):
        row_vector = read_row_vector(
            members, read_modules(members), is_lowercase=bool(tokenizer.lowercase)
        )
    return replace(
        base, folder=members.folder, config=config, row_vector=row_vector, tokenizer=tokenizer,
        adapter=adapter, sources=(*base.sources, members),
    )  # fmt: skip


def _members(folder: Path) -> Members:
    """The files of the folder; with a manifest, those that it lists, with the hashes there."""
    if not os.path.lexists(folder / archive.MANIFEST):
        return Members(folder)
    try:
        return Members(folder, archive.hashes(folder))
    except SaveError as exc:
        raise ModelError(
            f"{exc} Or remove {archive.MANIFEST}, if you changed the model yourself."
        ) from exc


def _config(folder: Path, raw: dict[str, Any]) -> dict[str, Any]:
    """The settings of config.json that are known here, all checked."""
    path = folder / "config.json"
    if not raw:
        raise ModelError(
            f"{folder} is no model: it has no config.json, or an empty one. Give the folder that"
            f" holds config.json, {SINGLE} and tokenizer.json."
        )
    if raw.get("model_type") not in [*FAMILIES]:  # it may be of any type
        raise ModelError(
            f"{path} has model_type={raw.get('model_type')!r:.80}. This version knows"
            f" {', '.join(FAMILIES)}: choose a model of one of these families, such as"
            f" {PACKAGED!r}. Another needs a record in skbert, as docs/house.md says."
        )
    unread = [what for key, what in _NOT_READ.items() if raw.get(key)]
    if unread:
        raise ModelError(
            f"{path} says that the model {' and '.join(unread)}, which is not supported by this"
            f" version. Choose a model of which that is not so, such as {PACKAGED!r}."
        )
    family = FAMILIES[raw["model_type"]]
    known = (*family.sizes, *family.rates, *family.choices, *family.checks, *_KEPT)
    named = {key: raw.get(family.settings.get(key, key)) for key in known}
    config = family.default_sizes | {k: value for k, value in named.items() if value is not None}
    for key, right in _faults(family, config):
        name, value = family.settings.get(key, key), str(config.get(key))[:80]
        raise ModelError(
            f"{path} has {name}={value}, where {right} is expected. Restore the file from a whole"
            " copy of the model."
        )
    rates = {key: float(config[key]) for key in family.rates if key in config}
    return config | rates | _special_ids(raw, config["vocab_size"])


def _special_ids(raw: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    """The ids of special tokens in a config.json, where they are ids: nothing here reads them."""
    named = {key: raw.get(key) for key in _SPECIALS}
    return {key: at for key, at in named.items() if is_whole_number(at, 0, vocab_size - 1)}


def _faults(family: Family, config: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each setting that has a wrong value, and what would be right."""
    yield from size_faults(family, config)
    for key, least in family.rates.items():
        if not _is_rate(config.get(key, 1), least):
            yield key, f"a number from {least} to 1"
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    checks = {
        "num_attention_heads": (hidden % heads == 0, f"a divisor of hidden_size={hidden}"),
        "pad_token_id": (
            is_whole_number(config.get("pad_token_id", 0), 0, config["vocab_size"] - 1),
            "an id of the vocabulary"),
        "id2label": (_are_labels(config.get("id2label", {})),
                     'different names under "0", "1" and so on'),
        "label2id": (_are_numbered(config.get("label2id", {})), "an object of numbers"),
        "num_labels": (is_whole_number(config.get("num_labels", 1), 1, MOST_LABELS),
                       f"a whole number from 1 to {MOST_LABELS}"),
        **{key: (config.get(key) in (None, *known), f"one of {', '.join(known)}")
           for key, known in (*_CHOICES.items(), *family.choices.items())},
        "tie_word_embeddings": (isinstance(config.get("tie_word_embeddings", True), bool),
                                "true or false"),
        "is_decoder": (isinstance(config.get("is_decoder", False), bool), "true or false"),
        "skbert_max_length": (is_whole_number(config.get("skbert_max_length", 3), 3, 10**9),
                              "a whole number from 3 on"),
        "pruned_heads": _pruned_heads(family, config),
        **{key: (key not in config or is_right(config[key]), right)
           for key, (is_right, right) in family.checks.items()},
        **{key: (_is_in(config.get(key), config.get(listed)), f"the one of its {listed} to read")
           for key, listed in family.listed.items()},
        "architectures": (_are_names(config.get("architectures", [])), "a list of class names"),
    }  # fmt: skip
    yield from ((key, right) for key, (good, right) in checks.items() if not good)


def _pruned_heads(family: Family, config: dict[str, Any]) -> tuple[bool, str]:
    """Whether heads that config.json calls pruned can be; and what would be right."""
    if config.get("pruned_heads") and not family.has_own_heads:
        return False, f"none, as no heads of a model of the type {family.model_type!r} are pruned,"
    return are_pruned_heads(config), '{"layer": [head, ...]}, not all of a layer,'


def _is_rate(value: object, least: float) -> bool:
    return type(value) in (int, float) and least <= value <= 1  # type: ignore[operator]


def _is_in(value: object, values: object) -> bool:
    return isinstance(values, list) and value in values


def _are_names(names: object) -> bool:
    return isinstance(names, list) and all(isinstance(name, str) for name in names)


def _are_labels(labels: object) -> bool:
    if not isinstance(labels, dict) or len(labels) > MOST_LABELS:
        return False
    rows = {str(row) for row in range(len(labels))}
    names = [*labels.values()]
    return labels.keys() == rows and _are_names(names) and len({*names}) == len(names)


def _are_numbered(labels: object) -> bool:
    return isinstance(labels, dict) and all(type(number) is int for number in labels.values())


def _weights(members: Members) -> tuple[WeightFile, ...]:
    """Check the files of weights by their headers: whole, and as the index says."""
    promised = strict.weight_files(members)
    if not promised:
        raise _no_weights(members.folder)
    files: list[WeightFile] = []
    seen: set[str] = set()
    for name, tensors in promised.items():
        path = members.folder / name
        if not members.has(name):
            raise ModelError(f"{path} is missing, but the index lists it: download it.")
        read = pickled_file if name.endswith(".bin") else strict.tensor_file
        file: WeightFile = read(members, name)
        astray = sorted((set(tensors) - file.tensors.keys()) | (seen & file.tensors.keys()))
        if astray:
            raise ModelError(
                f"{path} and the index of the weights disagree on the tensor {astray[0]!r}: each"
                " must be in the one file that the index names. Download the model again."
            )
        seen |= file.tensors.keys()
        files.append(file)
    return tuple(files)


def _no_weights(folder: Path) -> ModelError:
    others = sorted(path.name for path in folder.iterdir() if path.suffix in _NOT_READ_FORMATS)
    return ModelError(
        f"{folder} has no {SINGLE} and no {PICKLED}{f', only {others[0]}' if others else ''}."
        " Weights of TensorFlow, Flax and ONNX are not read, nor are other files that can run"
        " code. If you trust the model, open it once with the library that wrote it, and save it"
        " as safetensors."
    )


def _check_memory(path: Path, config: dict[str, Any], held: int) -> None:
    """Refuse a config.json that asks for far more weights than the files hold, or for too many."""
    labels = config.get("num_labels", len(config.get("id2label", ())))
    needed = FAMILIES[config["model_type"]].count_weights(config) + labels * config["hidden_size"]
    if needed > 2 * held + 10_000_000:
        raise ModelError(
            f"{path} describes a model of {needed} weights, but its files hold {held}."
            " Put in the config.json that belongs to them."
        )
    fault = memory_fault(max(needed, held), 4)
    if fault:
        raise ModelError(f"{path} describes a model too large: {fault}. Use a smaller model.")
