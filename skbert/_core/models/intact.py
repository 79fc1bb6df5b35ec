"""Whether a model still is what was opened: the same modules, run by the same functions.

Somebody who was handed a model may replace a module, wrap one in an adapter or hang a hook on it.
What computes layers without calling their modules has to know. Depends on torch only.
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
    """Whether hooks hang on all modules there are."""
    has_any: Callable[[], bool] = torch.nn.modules.module._has_any_global_hook
    return bool(has_any())


def is_hooked(model: torch.nn.Module) -> bool:
    """Whether calling a module of the model does more than its class says."""
    return has_global_hooks() or any(
        module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in vars(module)
        or any(not _records(hook) for hook in module._forward_hooks.values())
        for module in model.modules()
    )


def _records(hook: Callable[..., Any]) -> bool:
    """Whether it is a hook that transformers left after ``output_hidden_states=True``."""
    return getattr(hook, "__module__", None) == "transformers.utils.output_capturing"


def without_recorders(model: torch.nn.Module) -> torch.nn.Module:
    """The model, or one with the same weights that can be pickled: hooks that record cannot."""
    if not any(_records(hook) for m in model.modules() for hook in m._forward_hooks.values()):
        return model
    tensors = chain(model.parameters(), model.buffers())
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    for module in twin.modules():
        vars(module).pop("_output_capturing_hooks_installed", None)
        for key, hook in [*module._forward_hooks.items()]:
            if _records(hook):
                del module._forward_hooks[key]
    return twin
