"""Whether a network's layers can be computed in int8. Depends on a network and on ``cpu``."""

from __future__ import annotations

from skbert._core.cpu.bindings.module import has_int8_products
from skbert._core.models.network import Network, runs_layers
from skbert.exceptions import InputError

__all__ = ["check_int8"]


def check_int8(network: Network) -> None:
    """Raise InputError unless the layers can be computed in int8, by the kernels."""
    if not has_int8_products():
        raise InputError(
            "precision='int8' needs a processor with AVX512-VNNI and the compiled kernels, and"
            " here one of them is missing: use precision='auto'."
        )
    family, is_computed = network.family, network.is_packed and runs_layers(network)
    if not is_computed or family.mixes_neighbours:
        raise InputError(
            f"precision='int8' computes layers as BERT's or ModernBERT's by kernels, and"
            f" {type(network.model).__name__} runs by its own modules here: it has other layers,"
            " or its modules were changed, hooked or compiled. Use precision='auto'."
        )
    if not network.layer_runner.can_quantize(family, network.model):
        raise InputError(
            "precision='int8' needs layers whose sizes are multiples of 32, and this model has"
            " others: use precision='auto'."
        )
