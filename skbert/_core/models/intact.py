"""Whether a model still has the modules it was opened with, run by the same functions.

A caller who holds a model may replace a module, wrap one in an adapter or register a hook. Layers
that are computed without calling their modules would miss that. Depends on torch only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from numbers import Number
from typing import Any

import torch

__all__ = [
    "Anatomy", "anatomy_of", "attributes_of", "has_global_hooks", "is_hooked",
    "without_recorders",
]  # fmt: skip

Anatomy = tuple[tuple[str, type, Callable[..., Any], tuple[tuple[str, object], ...]], ...]

_PLAIN = Number, str, tuple, torch.dtype
# What says where a model comes from or how it is run, or what weights say themselves.
_BESIDE = {
    "attn_implementation", "gradient_checkpointing", "in_features", "loss_type", "name_or_path",
    "out_features", "padding_idx", "training",
}  # fmt: skip


def anatomy_of(model: torch.nn.Module) -> Anatomy:
    """Name, class and forward function of each module, and functions that it holds itself."""
    return tuple(
        (name, type(m), type(m).forward, _functions_of(m)) for name, m in model.named_modules()
    )


def _functions_of(module: torch.nn.Module) -> tuple[tuple[str, object], ...]:
    return tuple(
        (name, getattr(value, "__func__", value))
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_")
    )


def attributes_of(model: torch.nn.Module) -> dict[str, dict[str, object]]:
    """Numbers, flags and texts that each module computes with in inference, by its name."""
    return {
        at: {name: value for name, value in sorted(vars(module).items()) if _counts(name, value)}
        for at, module in model.named_modules()
        if "Dropout" not in type(module).__name__
    }


def _counts(name: str, value: object) -> bool:
    is_beside = name.startswith("_") or "drop" in name or name in _BESIDE
    return isinstance(value, _PLAIN) and not is_beside


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules of torch."""
    has_any: Callable[[], bool] = torch.nn.modules.module._has_any_global_hook
    return bool(has_any())


def is_hooked(model: torch.nn.Module) -> bool:
    """Whether a module of the model has hooks."""
    return has_global_hooks() or any(
        module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or any(not _is_recorder(hook) for hook in module._forward_hooks.values())
        for module in model.modules()
    )


def _is_recorder(hook: Callable[..., Any]) -> bool:
    """Whether a hook is one that transformers registers for ``output_hidden_states=True``."""
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


def without_recorders(model: torch.nn.Module) -> torch.nn.Module:
    """The model without recorders, which cannot be pickled; a copy if it has any."""
    if not any(_is_recorder(hook) for m in model.modules() for hook in m._forward_hooks.values()):
        return model
    tensors = chain(model.parameters(), model.buffers())
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    for module in twin.modules():
        vars(module).pop("_output_capturing_hooks_installed", None)
        for key, hook in [*module._forward_hooks.items()]:
            if _is_recorder(hook):
                del module._forward_hooks[key]
    return twin
