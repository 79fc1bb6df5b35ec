"""The weights of a BERT in the layouts of other families, with its own tokenizer."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import torch
import transformers
from safetensors.torch import load_file

from skbert._core.families import FAMILIES
from skbert._core.families.bert import BERT

if TYPE_CHECKING:
    from pathlib import Path

    from skbert._core.families.record import Family


def move(source: Path, model_type: str, target: Path) -> Path:
    """Write the BERT in a folder as a model of another type with the same layers; return it."""
    family, config = FAMILIES[model_type], json.loads((source / "config.json").read_text("utf-8"))
    old = load_file(source / "model.safetensors")
    first = family.first_position(config["pad_token_id"])
    settings = {
        key: config[key]
        for key in (*BERT.sizes, *BERT.rates, *BERT.choices, "pad_token_id")
        if key in config
    }
    settings["max_position_embeddings"] += first
    model = getattr(transformers, family.heads["embedding"].name)(
        getattr(transformers, family.config_class)(**family.own_settings(settings))
    )
    new = model.state_dict()
    for name in new:
        new[name].copy_(_weight(family, name, old, first))
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt",
                 "modules.json"):  # fmt: skip
        if (source / name).exists():
            shutil.copy(source / name, target)
    shutil.copytree(source / "1_Pooling", target / "1_Pooling", dirs_exist_ok=True)
    return target


def _weight(family: Family, name: str, old: dict[str, torch.Tensor], first: int) -> torch.Tensor:
    """The weight of that name, from those of BERT."""
    weight = old[_name_in_bert(family, name)]
    if not name.startswith(family.encoder.position_table):
        return weight
    if "type_vocab_size" not in family.sizes:
        weight = weight + old["embeddings.token_type_embeddings.weight"][0]  # there is no other
    return torch.cat([weight.new_zeros(first, weight.shape[1]), weight])


def _name_in_bert(family: Family, name: str) -> str:
    layers = f"{family.encoder.layers}."
    if not name.startswith(layers):
        return name
    number, _, rest = name.removeprefix(layers).partition(".")
    path, _, kind = rest.rpartition(".")
    assert family.layer is not None
    assert BERT.layer is not None
    paths = dict(zip(family.layer, BERT.layer, strict=True))
    return f"{BERT.encoder.layers}.{number}.{paths[path]}.{kind}"
