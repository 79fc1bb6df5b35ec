"""Networks to train: copied, moved to their device, compiled. Depends on torch and ``_core``."""

from __future__ import annotations

from dataclasses import replace

import torch

from skbert._core.items import Items
from skbert._core.models.int8 import check_int8
from skbert._core.models.network import Network, copy_network, inference_network
from skbert._core.models.output import scale_output
from skbert._core.runtime.device import Precision
from skbert._core.training.optim import is_encoder_frozen, trainable_parameters
from skbert._estimator.plan import TrainingPlan
from skbert.exceptions import InputError

__all__ = [
    "copy_to_train", "get_ready", "is_own_pooling_trained_on_pairs", "standardize_output",
]  # fmt: skip


def get_ready(
    network: Network, precision: Precision, *, compiled: bool, recomputing: bool
) -> None:
    """Move a network to the device of computation, and compile it if asked to.

    ``recomputing`` says whether the model must be able to recompute its activations.
    """
    if recomputing:
        _check_recomputing(network.model)
    network.to(precision.device, precision.weight_dtype)
    if compiled:
        _check_compiling(network)
        network.compile()
    if precision.is_int8:  # now, not after training, and as predictions will see the model
        check_int8(inference_network(network))


def is_own_pooling_trained_on_pairs(network: Network, items: Items, layers: int | str) -> bool:
    """Whether a head over pairs reads what its class does, and layers below are trained as well.

    BERT's pooler says little of a pair without that, and a random head learns as much beside it.
    """
    tokens = items.tokens
    head = network.head
    pooled = head.reads == "rows" and network.pooling == network.head_class.pooling
    single = len(tokens) == len(items)  # options are compared with each other
    has_pairs = single and bool((tokens.second < tokens.lengths).any())
    draws_pairs = head.job == "next sentence prediction"  # which are made in each pass
    pairs = pooled and (has_pairs or draws_pairs) and not head.n_features
    return pairs and not is_encoder_frozen(network.model, layers)


def copy_to_train(
    network: Network, pooling: str, freeze: int | str, precision: Precision
) -> Network:
    """A copy of a network to train further, if this is its pooling.

    Weights that are not trained are shared, unless somebody holds the model and may change them.
    """
    if pooling not in ("auto", network.pooling):
        raise InputError(
            f"pooling={pooling!r}, but the fit to go on from has pooling={network.pooling!r}. Use "
            "pooling='auto', or fit anew with warm_start=False."
        )
    is_moved = (network.device, network.dtype) != (precision.device, precision.weight_dtype)
    if is_moved or network.is_handed_out:
        return copy_network(network)
    trainable = trainable_parameters(network.model, network.head_class.prefixes, freeze)
    trainable_ids = set(map(id, trainable))
    frozen = [p for p in network.model.parameters() if id(p) not in trainable_ids]
    return copy_network(network, frozen)


def standardize_output(network: Network, plan: TrainingPlan) -> None:
    """Let raw outputs that a fit goes on from be those that its plan trains."""
    if plan.output_scale is not None:
        scale_output(network, *plan.output_scale)
        network.head = replace(network.head, is_raw=False)


def _check_recomputing(model: torch.nn.Module) -> None:
    """Refuse to recompute the activations of a model whose modules cannot."""
    if not getattr(model, "supports_gradient_checkpointing", True):
        raise InputError(
            f"gradient_checkpointing=True, but a {type(model).__name__} cannot recompute its"
            " activations. Use gradient_checkpointing=False; a smaller max_length or batch_size,"
            " or freeze, saves memory as well."
        )


def _check_compiling(network: Network) -> None:
    """Refuse to compile an encoder whose forward pass is not what packed batches run."""
    if not network.is_packed or network.family.mixes_neighbours:
        raise InputError(
            f"compile=True, but the encoder of this {type(network.model).__name__} is not run as"
            " one whole on packed batches. Use compile=False, or a model of another type."
        )
