"""Whether a model still has the modules it was opened with, run by the same functions.

A caller who holds a model may replace a module, wrap one in an adapter or register a hook. Layers
that are computed without calling their modules would miss that. Depends on torch only.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from itertools import chain
from typing import Any

import torch

__all__ = ["Anatomy", "anatomy_of", "has_global_hooks", "is_hooked", "without_recorders"]

Anatomy = tuple[tuple[str, type, Callable[..., Any]], ...]


def anatomy_of(model: torch.nn.Module) -> Anatomy:
    """Name, class and forward function of each module."""
    return tuple((name, type(m), type(m).forward) for name, m in model.named_modules())


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules of torch."""
    has_any: Callable[[], bool] = torch.nn.modules.module._has_any_global_hook
    return bool(has_any())


def is_hooked(model: torch.nn.Module) -> bool:
    """Whether a module of the model has hooks, or a forward function of its own."""
    return has_global_hooks() or any(
        module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
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
