"""Whether a model still is what was opened: the same modules, run by the same functions.

Somebody who was handed a model may replace a module, wrap one in an adapter or hang a hook on it.
What computes layers without calling their modules has to know. Depends on torch only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

__all__ = ["Anatomy", "anatomy_of", "has_global_hooks", "is_hooked"]

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
