"""What settings of a config.json may be, beyond sizes and rates; and how many weights they make.

Depends on the record only.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from skbert._core.families.record import Check

if TYPE_CHECKING:
    import torch

__all__ = [
    "ACTIVATIONS",
    "FLAG",
    "NAME",
    "NAMES",
    "ROPE",
    "ROTARY",
    "as_row",
    "number",
    "relu",
    "tanh",
    "weights_of_layers",
]

ACTIVATIONS = ("gelu", "gelu_10", "gelu_fast", "gelu_new", "gelu_python", "quick_gelu",
               "gelu_pytorch_tanh", "relu", "relu6", "silu", "swish", "mish", "tanh")  # fmt: skip

_ROPE_KEYS = {"rope_type", "rope_theta", "factor", "partial_rotary_factor"}


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, bool)


def _are_names(value: object) -> bool:
    return value is None or (
        isinstance(value, list) and all(isinstance(name, str) for name in value)
    )


def _is_rope(value: object) -> bool:
    """Whether a value describes rotary positions, or those of several types of layers."""
    match value:
        case None:
            return True
        case {"rope_type": str(kind), **rest} | {"type": str(kind), **rest}:
            numbers = [number for key, number in rest.items() if key in _ROPE_KEYS]
            return kind in ("default", "linear", "dynamic") and all(map(_is_number, numbers))
        case dict(of_layers):
            return all(isinstance(each, dict) and _is_rope(each) for each in of_layers.values())
    return False


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and 0 < value <= 1e9  # type: ignore[operator]


FLAG: Check = (_is_flag, "true or false")
NAMES: Check = (_are_names, "a list of names")
NAME: Check = (lambda value: value is None or isinstance(value, str), "a name")
ROPE: Check = (_is_rope, "rotary positions of the type default, linear or dynamic")


def number(least: float, most: float) -> Check:
    """A number within these bounds."""

    def is_right(value: object) -> bool:
        return value is None or (
            type(value) in (int, float) and least <= value <= most  # type: ignore[operator]
        )

    return is_right, f"a number from {least:g} to {most:g}"


# Earlier versions of transformers wrote their parts beside each other.
ROTARY: dict[str, Check] = {
    "rope_parameters": ROPE, "rope_scaling": ROPE, "rope_theta": number(1, 1e9),
    "partial_rotary_factor": number(0, 1),
}  # fmt: skip


def weights_of_layers(
    *, mlp: int = 2, layers: str = "num_hidden_layers", embedding: str = "hidden_size"
) -> Callable[[Mapping[str, Any]], int]:
    """A rough count of weights: the tables of embeddings, and layers with ``mlp`` products."""

    def count(config: Mapping[str, Any]) -> int:
        hidden = config["hidden_size"]
        layer = 4 * hidden**2 + mlp * hidden * config["intermediate_size"]
        n_weights: int = config["vocab_size"] * config[embedding] + config[layers] * layer
        return n_weights

    return count


# --- steps of heads ------------------------------------------------------------------------------


def as_row(features: torch.Tensor) -> torch.Tensor:
    """Vectors as rows of one token, for a module that takes the first of them."""
    return features[:, None]


def relu(features: torch.Tensor) -> torch.Tensor:
    """The positive part."""
    return features.relu()


def tanh(features: torch.Tensor) -> torch.Tensor:
    """The hyperbolic tangent."""
    return features.tanh()
