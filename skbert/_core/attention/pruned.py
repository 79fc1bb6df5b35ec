"""Pruned attention heads: which they are, and how their weights are cut out of a model.

The entry ``pruned_heads`` of a model's configuration says which heads of which layer are pruned,
``{layer: [head, ...]}``, numbered as in the whole model. Depends on the record of the family only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import attrgetter
from typing import Any

from skbert._core.families import family_of
from skbert._core.families.record import Family

__all__ = ["are_pruned_heads", "prune", "remaining_heads"]


def are_pruned_heads(config: Mapping[str, Any]) -> bool:
    """Whether the pruned heads of a config.json exist, and leave each layer one at least."""
    entry, n_heads = config.get("pruned_heads", {}), config["num_attention_heads"]
    layers = {str(layer) for layer in range(config["num_hidden_layers"])}
    if not isinstance(entry, dict) or not entry.keys() <= layers:
        return False
    return all(
        isinstance(heads, list)
        and all(type(head) is int and 0 <= head < n_heads for head in heads)
        and len(heads) == len(set(heads)) < n_heads
        for heads in entry.values()
    )


def remaining_heads(config: Any) -> list[list[int]]:
    """The heads that each layer of a model still has."""
    pruned = _numbered(getattr(config, "pruned_heads", None) or {})
    heads = range(config.num_attention_heads)
    return [
        [head for head in heads if head not in pruned.get(layer, ())]
        for layer in range(config.num_hidden_layers)
    ]


def prune(model: Any, pruned: Mapping[Any, Collection[int]]) -> None:
    """Prune heads of a model, in addition to those pruned before, and note it in its config."""
    numbered, config, noted = _numbered(pruned), model.config, {}
    for number, heads in enumerate(remaining_heads(config)):
        kept = [head for head in heads if head not in numbered.get(number, ())]
        if len(kept) < len(heads):
            family = family_of(model)
            layer = family.layers(model)[number]
            _shrink(family, layer, [heads.index(head) for head in kept])
        if len(kept) < config.num_attention_heads:
            noted[number] = sorted({*range(config.num_attention_heads)} - {*kept})
    config.pruned_heads = noted


def _shrink(family: Family, layer: Any, kept: list[int]) -> None:
    """Keep only the weights of these heads, counted among those that the layer still has."""
    paths, names = family.layer_paths, family.attention
    attention, output = attrgetter(paths.attention, paths.attention_out)(layer)
    size = getattr(attention, names.head_size)
    rows = [head * size + i for head in kept for i in range(size)]
    for linear in attrgetter(*paths.qkv)(layer):
        linear.weight, linear.bias = _like(linear.weight, rows), _like(linear.bias, rows)
        linear.out_features = len(rows)
    output.weight = _like(output.weight, (slice(None), rows))
    output.in_features = len(rows)
    setattr(attention, names.n_heads, len(kept))
    setattr(attention, names.width, len(rows))


def _like(parameter: Any, part: Any) -> Any:
    """A part of a parameter, as a new parameter."""
    return type(parameter)(parameter.data[part].contiguous(), parameter.requires_grad)


def _numbered(pruned: Mapping[Any, Collection[int]]) -> dict[int, Collection[int]]:
    """The heads by the number of their layer, which JSON writes as str."""
    return {int(layer): heads for layer, heads in pruned.items()}
