"""Layers that are computed again in the backward pass, to save memory. Depends on torch only."""

from __future__ import annotations

from collections.abc import Callable

import torch

__all__ = ["begin_recomputing", "end_recomputing"]


def begin_recomputing(model: torch.nn.Module) -> None:
    """Compute layers of a transformers model again in the backward pass.

    The hook that transformers adds is for reentrant checkpoints, and no pickle takes it.
    """
    _method("enable", model)({"use_reentrant": False})
    if hasattr(model, "_require_grads_hook"):
        model.disable_input_require_grads()  # type: ignore[operator, unused-ignore]


def end_recomputing(model: torch.nn.Module) -> None:
    """Keep what layers compute until the backward pass."""
    _method("disable", model)()


def _method(verb: str, model: torch.nn.Module) -> Callable[..., None]:
    """The model's method that turns it on or off; its name differs among versions of 5.x."""
    old = f"gradient_checkpointing_{verb}"
    new = f"activation_checkpointing_{verb}"
    method: Callable[..., None] = getattr(model, new if hasattr(model, new) else old)
    return method
