"""Writes a model as a plain folder of transformers, if what is opened again computes the same.

Depends on torch, and on how a network is opened.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from skbert._core.attention.relative import kind_of_positions
from skbert._core.families import family_of
from skbert._core.items import Head
from skbert._core.models.embeddings import counts_positions
from skbert._core.models.intact import attributes_of, is_hooked
from skbert._core.models.network import Network, has_own_modules
from skbert._core.models.opening import as_configured, quiet
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert.exceptions import ModelError, warn

__all__ = ["is_as_configured", "write_folder"]


def is_as_configured(model: Any, head: Head) -> bool:
    """Whether a model made from its configuration has such weights and computes as this one.

    This one may lack the pooler.
    """
    config = copy.deepcopy(model.config)
    pruned, config.pruned_heads = getattr(config, "pruned_heads", None), {}
    with torch.device("meta"):
        remade = as_configured(type(model), pruned, head)(config)
    is_of_pooler = family_of(model).is_of_pooler
    needed, found = (dict(each.named_parameters()) for each in (remade, model))
    said, own = attributes_of(remade), attributes_of(model)
    return (
        all(name in needed and needed[name].shape == each.shape for name, each in found.items())
        and all(name in found or is_of_pooler(name) for name in needed)
        and all(said[name] == each for name, each in own.items() if name in said)
    )


@deferred_interrupts()
def write_folder(network: Network, folder: Path, *, weights: bool = True) -> None:
    """Write a plain transformers folder: configuration, safetensors and tokenizer files."""
    _check_can_be_opened(network, weights=weights)
    model = network.model
    if is_hooked(model):
        warn(
            "Hooks of model_ are not saved: what is opened again computes without them. Pickle the"
            " estimator to keep them, or remove them first."
        )
    with quiet():
        (model if weights else model.config).save_pretrained(folder)
        network.tokenizer.save_pretrained(folder)


def _check_can_be_opened(network: Network, *, weights: bool) -> None:
    """Refuse a model that would be opened as another, ``weights`` and all, or not at all."""
    is_own = has_own_modules(network) and counts_positions(network)
    if not (is_own and is_as_configured(network.model, network.head)):
        raise ModelError(
            "Modules of model_ were replaced, added or set to compute otherwise than config.json "
            "says, and such a model cannot be opened again. Put back those it had, merge the "
            "adapter (merge_and_unload in peft), or pickle the estimator."
        )
    config = network.model.config
    pruned, positions = getattr(config, "pruned_heads", None), kind_of_positions(config)
    if weights and (pruned or positions != "absolute"):
        why = f"has lost the heads {pruned}" if pruned else f"has {positions!r} positions"
        raise ModelError(
            f"The model {why}, and transformers cannot open such a model. Use save(path): every "
            "estimator takes that folder as model=. To predict without torch, use export(path)."
        )
