"""Adds the weights of a vetted adapter to those of the model that it was trained on.

Depends on torch; what the adapter is was read from its headers in `adapters`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from skbert._core.checkpoints.weights import read_tensors
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from skbert._core.checkpoints.adapters import Adapter
    from skbert._core.families.record import Family

__all__ = ["merge_adapter"]


@torch.no_grad()
def merge_adapter(model: torch.nn.Module, adapter: Adapter, family: Family) -> set[str]:
    """Change the weights of a model as an adapter says; the names of those that it replaced.

    What it holds for a pooler, or for the head of another job, is left out.
    """
    tensors = read_tensors(adapter.file)
    base = _Base(model, adapter, family)
    replaced = set()
    for name, place in adapter.replaced.items():
        own = base.own_name(name, tensors[place].shape)
        if own is not None:
            base.weights[own].copy_(tensors[place])
            replaced.add(own)
    for name, update in adapter.updates.items():
        up, down = tensors[update.up].double(), tensors[update.down].double()
        up, down = (down.T, up.T) if update.is_transposed else (up, down)
        own = base.own_name(name, torch.Size((len(up), down.shape[1])))
        if own is not None:
            base.check_unshared(own)
            base.weights[own] += update.factor * (up @ down)
    return replaced


@dataclass
class _Base:
    """The model that an adapter changes."""

    model: torch.nn.Module
    adapter: Adapter
    family: Family

    def __post_init__(self) -> None:
        self.weights: Mapping[str, torch.Tensor] = dict(
            self.model.named_parameters(remove_duplicate=False)
        )
        self.n_names = Counter(map(id, self.weights.values()))

    def own_name(self, name: str, shape: torch.Size) -> str | None:
        """What the model calls a weight of the adapter; None for one that it does not need.

        That may be of a pooler or of another head; a head that is made anew has its own shape.
        """
        prefix = f"{self.model.base_model_prefix}."
        names = (name, prefix + name, name.removeprefix(prefix))
        own = next((each for each in names if each in self.weights), None)
        of_head = tuple(part for head in self.family.heads.values() for part in head.prefixes)
        is_optional = name.startswith(of_head) or (own is None and self.family.is_of_pooler(name))
        if own is not None and self.weights[own].shape == shape:
            return own
        if is_optional:
            return None
        if own is None:
            raise self.misfit(name, "which the model does not have")
        there, here = ("x".join(map(str, sizes)) for sizes in (self.weights[own].shape, shape))
        raise self.misfit(name, f"of {there} numbers, by {here}")

    def check_unshared(self, own: str) -> None:
        """Refuse to change a weight that has two names."""
        if self.n_names[id(self.weights[own])] > 1:
            raise self.misfit(own, "which two layers of the model share")

    def misfit(self, name: str, fault: str) -> ModelError:
        """What is wrong between the adapter and the model."""
        return ModelError(
            f"{self.adapter.file.path} changes the weight {name[:120]!r}, {fault}. Its base model"
            f" is {self.adapter.base!r}: give the one that the adapter was trained on, or merge"
            " the two with peft (merge_and_unload) and save the whole model."
        )
