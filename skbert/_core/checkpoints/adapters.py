"""The folder of a LoRA adapter, as peft saves one: its settings and the header of its weights.

Knows JSON and file headers: no torch, and not the model that the adapter changes. An adapter that
does more than add a product of two matrices to a weight, or replace one, is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from skbert._core.checkpoints.sizes import MOST_LABELS
from skbert._core.checkpoints.strict import WEIGHT_TYPES, Members, TensorFile, tensor_file
from skbert._core.families.record import Family, HeadClass, Job
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["ADAPTER", "ADAPTER_WEIGHTS", "Adapter", "Update", "adapted_settings", "read_adapter"]

ADAPTER, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"

_MERGE = "Merge it into its base model with peft (merge_and_unload), and save the whole model."
_PREFIX = "base_model.model."  # peft's, before the names of the model's weights
# Settings that change nothing of what is merged, beside those that are read.
_NO_EFFECT = frozenset(
    {"auto_mapping", "bias", "corda_config", "ensure_weight_tying", "eva_config",
     "exclude_modules", "fan_in_fan_out", "inference_mode", "layers_pattern",
     "layers_to_transform", "lora_dropout", "lora_ga_config", "megatron_core", "modules_to_save",
     "peft_type", "peft_version", "qalora_group_size", "runtime_config", "target_modules"}
)  # fmt: skip
_KEEPS_BASE = (
    None,
    True,
    False,
    "gaussian",
    "eva",
    "orthogonal",
    "mica",
)  # other starts change it
_JOBS: Mapping[str, Job] = {
    "SEQ_CLS": "sequence classification",
    "TOKEN_CLS": "token classification",
    "QUESTION_ANS": "question answering",
    "FEATURE_EXTRACTION": "embedding",
}
_PAIRS = (("A", "B"), ("embedding_A", "embedding_B"))
_PART = re.compile(r"(.+)\.lora_(embedding_)?([AB])(?(2)|\.weight)")


class Update(NamedTuple):
    """A product of two matrices that is added to a weight."""

    down: str  # the names of the matrices in the file
    up: str
    factor: float
    is_transposed: bool  # as the weights of embeddings are


@dataclass(frozen=True)
class Adapter:
    """A folder of an adapter that has been checked."""

    file: TensorFile
    base: str  # what the adapter calls the model that it changes
    job: Job | None  # that it was trained for, where it says so
    updates: Mapping[str, Update]  # by the weight of the model that is changed
    replaced: Mapping[str, str]  # weights of the model, and what replaces them in the file


def read_adapter(members: Members) -> Adapter:
    """Check the settings of an adapter and the header of its weights."""
    settings = _checked(members.folder / ADAPTER, members.load_object(ADAPTER))
    if not members.has(ADAPTER_WEIGHTS):
        raise ModelError(
            f"{members.folder} has no {ADAPTER_WEIGHTS}, and adapters are read from no other file."
            " Load the adapter with peft, and save it with save_pretrained."
        )
    file = tensor_file(members, ADAPTER_WEIGHTS)
    pairs, replaced = _sort(file)
    updates = {
        f"{module}.weight": _update(file, module, pair, settings) for module, pair in pairs.items()
    }
    job = _JOBS.get(settings["task_type"])
    return Adapter(file, settings["base_model_name_or_path"], job, updates, replaced)


def adapted_settings(adapter: Adapter, family: Family, config: dict[str, Any]) -> dict[str, Any]:
    """The settings of the base model's config.json, with the head that the adapter brings."""
    job = adapter.job if adapter.job in family.heads else None
    heads = [family.heads[job]] if job else [*family.heads.values()]
    changed = config | ({"architectures": [heads[0].name]} if job else {})
    n_labels = _count_outputs(adapter, heads)
    if n_labels is None:
        return changed
    if not 1 <= n_labels <= MOST_LABELS:
        raise ModelError(
            f"{adapter.file.path} has a head of {n_labels} outputs. Restore the file from a whole"
            " copy of the adapter."
        )
    stale = {"problem_type"} | ({"architectures"} if job is None else set())
    if n_labels != len(config.get("id2label", ())):
        stale |= {"id2label", "label2id"}
    return {key: changed[key] for key in changed.keys() - stale} | {"num_labels": n_labels}


def _count_outputs(adapter: Adapter, heads: Iterable[HeadClass]) -> int | None:
    """The number of outputs of the head that the adapter brings; None if it brings none."""
    names = (adapter.replaced.get(f"{head.output_layer}.weight") for head in heads)
    output = next((name for name in names if name), None)
    return None if output is None else (*adapter.file.tensors[output][1], 0)[0]


# --- settings ------------------------------------------------------------------------------------


def _checked(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that are read, all filled in; an adapter that is no plain LoRA is refused."""
    if settings.get("peft_type") != "LORA":
        raise ModelError(
            f"{path} has peft_type={str(settings.get('peft_type'))[:80]!r}. Only adapters of the"
            f" type 'LORA' are opened. {_MERGE}"
        )
    for key in _odd_settings(settings):
        raise ModelError(
            f"{path} sets {key[:80]}={str(settings[key])[:80]}, so it is more than a plain LoRA of"
            f" the model that it names. {_MERGE}"
        )
    checked = {}
    for key, (usual, is_right, right) in _CHECKS.items():
        value = settings.get(key)
        checked[key] = usual if value is None else value
        if not is_right(checked[key]):
            raise ModelError(
                f"{path} has {key}={str(value)[:80]}, where {right} is expected. Restore the file"
                " from a whole copy of the adapter."
            )
    return checked


def _odd_settings(settings: Mapping[str, Any]) -> list[str]:
    """The settings that change the result in a way that is not computed here."""
    odd = [key for key, value in settings.items() if value and key not in {*_NO_EFFECT, *_CHECKS}]
    if settings.get("revision") == "main":
        odd.remove("revision")
    if settings.get("init_lora_weights") in _KEEPS_BASE:
        odd = [key for key in odd if key != "init_lora_weights"]
    return odd


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < 1e9  # type: ignore[operator]


def _is_pattern(value: object) -> bool:
    """Whether numbers are given by names; a regular expression could run for ever."""
    return isinstance(value, dict) and all(
        re.fullmatch(r"[\w.]{1,200}", key, re.ASCII) and _is_number(number)
        for key, number in value.items()
    )


_NUMBERS = (_is_pattern, "an object of numbers by names of modules, without wildcards,")
_CHECKS: Mapping[str, tuple[object, Callable[[object], bool], str]] = {
    "base_model_name_or_path": (None, _is_text, "the name or the folder of a model"),
    "lora_alpha": (8, _is_number, "a number above 0"),
    "r": (8, _is_number, "a number above 0"),
    "use_rslora": (False, lambda value: isinstance(value, bool), "true or false"),
    "alpha_pattern": ({}, *_NUMBERS),
    "rank_pattern": ({}, *_NUMBERS),
    "task_type": ("", lambda value: isinstance(value, str), "the name of a task"),
}


def _of_module(pattern: Mapping[str, Any], module: str) -> Any:
    """The number of a module in a pattern: of the first name that is, or ends, the module's."""
    return next((n for name, n in pattern.items() if f".{module}".endswith(f".{name}")), None)


# --- weights -------------------------------------------------------------------------------------


def _sort(file: TensorFile) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """The tensors for each module that is changed, and those that replace others."""
    pairs: dict[str, dict[str, str]] = {}
    replaced: dict[str, str] = {}
    for tensor, (dtype, *_) in file.tensors.items():
        name, part = tensor.removeprefix(_PREFIX), _PART.fullmatch(tensor.removeprefix(_PREFIX))
        odd = "lora_" in name and part is None
        if odd or not tensor.startswith(_PREFIX) or dtype not in WEIGHT_TYPES:
            raise ModelError(
                f"{file.path} holds {tensor[:120]!r} as {dtype}, which is no part of a plain"
                f" LoRA. {_MERGE}"
            )
        if part is None:
            replaced[name.replace(".base_layer.", ".").replace(".modules_to_save.", ".")] = tensor
        else:
            pairs.setdefault(part[1], {})[f"{part[2] or ''}{part[3]}"] = tensor
    return pairs, replaced


def _update(
    file: TensorFile, module: str, pair: Mapping[str, str], settings: Mapping[str, Any]
) -> Update:
    """What is added to the weight of a module."""
    kinds, names = zip(*sorted(pair.items()), strict=True)
    shapes = [file.tensors[name][1] for name in names]
    ranks = (settings["r"], *settings["rank_pattern"].values())
    rank = (*shapes[0], 0)[0]
    if kinds not in _PAIRS or [*map(len, shapes)] != [2, 2] or not shapes[1][1] == rank in ranks:
        raise ModelError(
            f"{file.path} holds matrices of the shapes {shapes} for {module[:120]!r}, where two"
            f" that share a side of {' or '.join(map(str, ranks[:9]))} are expected. Use the whole"
            " files of the adapter."
        )
    alpha = _of_module(settings["alpha_pattern"], module) or settings["lora_alpha"]
    factor = alpha / (math.sqrt(rank) if settings["use_rslora"] else rank)
    return Update(names[0], names[1], factor, is_transposed=kinds != _PAIRS[0])
