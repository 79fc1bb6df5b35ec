"""Layers that normalise what they read, with gates and rotary positions, as ModernBERT's.

The sum of what all layers computed is kept, and each layer reads its normalisation: sum and norm
are one pass over memory. The arithmetic is that of transformers' modules, whose parameters are
read where they are. Depends on torch, ``attention``, ``postnorm``, ``fused``, ``linear`` and the
record of a family; knows no task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from skbert._core.cpu.attention import Rows, attend, dropout_mask, dropout_rate
from skbert._core.cpu.bindings.rotary import RotaryTable
from skbert._core.cpu.fused import (
    can_fuse_layernorm,
    can_fuse_rotary,
    fused_add_norm,
    fused_rotary,
    rotary_table,
)
from skbert._core.cpu.linear import ComputedLayer, LayerProducts, has_sizes
from skbert._core.cpu.postnorm import add_and_norm
from skbert._core.families.record import AttentionNames, PreNorm, PreNormParts

__all__ = ["can_compute", "reads_lengths", "run_layers"]

Norm = torch.nn.LayerNorm | torch.nn.Identity


def can_compute(parts: PreNormParts[Any], names: AttentionNames, paths: PreNorm) -> bool:
    """Whether the weights of a layer are of sizes that belong together.

    It must see as far as config.json says, which the masks of transformers follow.
    """
    linears = *parts.qkv, parts.attention_out, parts.mlp_in, parts.mlp_out
    size, width = parts.attention_out.weight.shape
    mlp_size = parts.mlp_out.weight.shape[1]
    shapes = [(3 * width, size), (size, width), (2 * mlp_size, size), (size, mlp_size)]
    head_size = getattr(parts.attention, names.head_size)
    norms = parts.attention_norm, parts.mlp_norm
    window = getattr(parts.attention, paths.sliding_window)
    reach = getattr(parts.attention.config, paths.sliding_window)  # to either side
    return (
        has_sizes(linears, shapes)
        and width % head_size == 0
        and all(isinstance(norm, Norm) for norm in norms)
        and window in {None, reach + 1}
    )


def reads_lengths(rotary: torch.nn.Module) -> bool:
    """Whether the angles of rotary positions depend on the longest row of a batch."""
    return "dynamic" in getattr(rotary, "rope_type", {}).values()


class PreNormRun(NamedTuple):
    """What is run over a batch."""

    paths: PreNorm
    names: AttentionNames
    norms: Sequence[Norm | None]  # before the first layer and after each; None: its sum is read
    rotary: torch.nn.Module
    has_final_norm: bool  # whether the last of the norms comes after the last layer of all


def run_layers(
    run: PreNormRun,
    layers: Iterable[ComputedLayer],
    states: torch.Tensor,
    dtype: torch.dtype,
    rows: Rows,
) -> Iterator[torch.Tensor]:
    """Yield hidden states after each layer: the sum, or after the last layer its normalisation."""
    first, *norms = run.norms
    assert first is not None
    rounded = first(states).to(dtype)
    angles: dict[str, _Angles] = {}
    for number, (layer, norm) in enumerate(zip(layers, norms, strict=True), start=2):
        kind = getattr(layer.module, run.paths.kind)
        if kind not in angles:
            angles[kind] = _Angles(run.rotary, kind, states, rows)
        is_final = run.has_final_norm and number == len(run.norms)
        window = getattr(layer.parts.attention, run.paths.sliding_window)
        plan = _Plan(run.names, angles[kind], rows, window, norm, is_final)
        states, rounded = layer.run(_run_layer, layer.parts, layer.products, plan, states, rounded)
        yield states


class _Angles:
    """The angles of rotary positions for layers of one kind."""

    def __init__(
        self, rotary: torch.nn.Module, kind: str, states: torch.Tensor, rows: Rows
    ) -> None:
        places = torch.arange(rows.layout.max_seqlen, device=states.device)[None]
        self.cosines, self.sines = (x[0] for x in rotary(states[None], places, kind))
        self.positions = rows.positions(len(states))
        self.table: RotaryTable | None = None  # for the kernel

    def turn(self, qkv: torch.Tensor, head_size: int) -> torch.Tensor:
        """Query and key turned, perhaps in place."""
        if can_fuse_rotary(qkv, head_size):
            if self.table is None:  # the second half of angles is as the first
                half = head_size // 2
                self.table = rotary_table(
                    qkv, cosines=self.cosines[:, :half], sines=self.sines[:, :half],
                    positions=self.positions,
                )  # fmt: skip
            return fused_rotary(qkv, self.table)
        parts = qkv.view(len(qkv), 3, -1, head_size)
        cosines, sines = (x[self.positions][:, None, None] for x in (self.cosines, self.sines))
        # As in transformers, whatever the type of states; converted twice, so is the gradient.
        x, y = parts[:, :2].float().chunk(2, dim=-1)
        turned = parts[:, :2].float() * cosines + torch.cat((-y, x), dim=-1) * sines
        return torch.cat((turned.to(qkv.dtype), parts[:, 2:]), dim=1).flatten(1)


class _Plan(NamedTuple):
    """What a layer is to do beside its products."""

    names: AttentionNames
    angles: _Angles
    rows: Rows
    sliding_window: int | None
    norm: Norm | None  # after it
    is_final: bool


def _run_layer(
    parts: PreNormParts[Any],
    products: LayerProducts,
    plan: _Plan,
    states: torch.Tensor,
    rounded: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum after a layer, and its normalisation rounded for the products of the next."""
    head_size = getattr(parts.attention, plan.names.head_size)
    qkv = plan.angles.turn(products.qkv(rounded), head_size)
    context = attend(parts.attention, plan.names, qkv, plan.rows, plan.sliding_window)
    states, rounded = _add_then_norm(
        products.attention_out(context), states, parts.attention_dropout, parts.mlp_norm
    )
    output = products.mlp(rounded)
    if plan.is_final:
        assert isinstance(plan.norm, torch.nn.LayerNorm)
        return add_and_norm(output, states, None, plan.norm)
    return _add_then_norm(output, states, None, plan.norm)


def _add_then_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    dropout: torch.nn.Module | None,
    norm: Norm | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The sum of ``x`` after dropout and the residual, and its normalisation, like ``x``."""
    rate = dropout_rate(dropout)
    if isinstance(norm, torch.nn.LayerNorm):
        weight, bias = norm.weight, norm.bias  # looking them up takes a while
        if can_fuse_layernorm(x, residual, weight, bias):
            return fused_add_norm(x, residual, weight, bias, norm.eps, rate)
    states = residual + (x * dropout_mask(x, rate) if rate else x)
    return states, (states if norm is None else norm(states)).to(x.dtype)
