"""The four products of an encoder layer on a CPU: its weights as the arithmetic wants them.

Query, key and value are one product. For inference weights are converted to the lower precision
and laid out as the kernel or oneDNN reads them, once for as long as they stay the same. While
learning the kernel reads them as they are; for oneDNN they are converted at each step. Depends on
torch and ``bindings``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from skbert._core.cpu.bindings import Rounding, across, most_tokens, multiply, rounds

__all__ = ["Gradients", "Products", "ProductsOf"]

Map = Callable[[torch.Tensor], torch.Tensor]
Gradients = dict[torch.Tensor, torch.Tensor]  # by weight


class Products(NamedTuple):
    """The products of one layer.

    Each is from ``(n_tokens, n_in)`` to ``(n_tokens, n_out)`` in the precision of products.
    """

    join: Map  # query, key and value side by side
    mix: Map
    feed: Map  # two, with the activation between them


class ProductsOf:
    """Makes the products of a layer's module, and keeps them until its weights are others.

    That is seen where other memory holds them or torch counted a change. Who hands the model out
    must not keep this object: a change by ``.data`` or a fused optimizer is counted nowhere.

    After a backward pass the gradients of the weights are in ``grad`` like any others, but
    ``torch.autograd.grad`` does not see them. Those in a lower precision than their weights are
    in ``low`` where that is given, by weight.
    """

    def __init__(self, module: Any, low: Gradients | None = None) -> None:
        self.low = low
        own, wide = module.attention.self, module.intermediate
        self.activation: Map = wide.intermediate_act_fn
        # What is multiplied side by side.
        self.parts: list[list[torch.nn.Linear]] = [
            [own.query, own.key, own.value],
            [module.attention.output.dense],
            [wide.dense],
            [module.output.dense],
        ]
        self.to_learn: tuple[object, list[_Learning]] = (None, [])
        self.to_infer: tuple[object, list[_Inferring]] = (None, [])

    def __call__(self, dtype: torch.dtype, *, learning: bool) -> Products:
        """The products in ``dtype``, to learn with or for inference."""
        linears = [linear for part in self.parts for linear in part]
        weights = [weight for linear in linears for weight in (linear.weight, linear.bias)]
        home = (dtype, [(id(weight), weight.data_ptr()) for weight in weights])
        return self._learning(home) if learning else self._inferring(home, weights)

    def _learning(self, home: tuple[torch.dtype, Any]) -> Products:
        known, made = self.to_learn
        self.to_infer = (None, [])  # a step will change the weights, and count no version up
        if known != home:
            made = [_Learning(part, home[0], self.low) for part in self.parts]
            self.to_learn = (home, made)
        for product in made:
            product.read()
        join, mix, widen, narrow = made
        return Products(join, mix, _Feeding(widen, narrow, self.activation))

    def _inferring(self, home: tuple[torch.dtype, Any], weights: list[torch.Tensor]) -> Products:
        state = home, [weight._version for weight in weights]
        known, made = self.to_infer
        if known != state:
            then = None, None, self.activation, None
            both = zip(self.parts, then, strict=True)
            made = [_Inferring(part, own, home[0]) for part, own in both]
            self.to_infer = state, made
        join, mix, widen, narrow = made
        return Products(join, mix, lambda x: narrow(widen(x)))


class _Inferring:
    """For inference: weights in the order of what multiplies, and GELU in the same pass."""

    def __init__(
        self, parts: list[torch.nn.Linear], activation: Map | None, dtype: torch.dtype
    ) -> None:
        self.parts, self.activation, self.dtype = parts, activation, dtype
        self.blocks = _onednn_computes(dtype)
        self.fused = self.blocks and _is_gelu(activation)
        self.bias = torch.cat([part.bias.detach() for part in parts])
        self.most = most_tokens(parts[0].weight.shape[1], len(self.bias), dtype)

    def _weight(self) -> torch.Tensor:
        return torch.cat([part.weight.detach().to(self.dtype) for part in self.parts])

    @cached_property
    def _across(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and biases as the kernel reads them."""
        return across(self._weight()), self.bias.float()

    @cached_property
    def _other(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weights and biases as oneDNN, or torch, reads them."""
        weight = self._weight()
        if self.blocks:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        return weight, self.bias.to(self.dtype)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.dtype)
        if x.shape[0] <= self.most:
            found = multiply(x, *self._across, gelu=self.fused)
        elif self.blocks:
            product, then = torch.ops.mkldnn._linear_pointwise, "gelu" if self.fused else "none"
            found = torch.as_tensor(product(x, *self._other, then, [], "none"))
        else:
            found = F.linear(x, *self._other)
        return found if self.fused or self.activation is None else self.activation(found)


def _is_gelu(activation: Map | None) -> bool:
    """Whether it is GELU itself, and none of its approximations."""
    return getattr(activation, "act", None) is F.gelu


def _onednn_computes(dtype: torch.dtype) -> bool:
    onednn: Any = torch.ops.mkldnn
    if not (torch.backends.mkldnn.enabled and hasattr(onednn, "_linear_pointwise")):
        return False
    low = dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported()
    return bool(low) or dtype == torch.float32


class _Rounded:
    """Linear layers side by side, with copies of their weights in another precision."""

    def __init__(self, parts: list[torch.nn.Linear], dtype: torch.dtype) -> None:
        sizes = [len(part.bias) for part in parts]
        self.weight = torch.empty(sum(sizes), parts[0].weight.shape[1], dtype=dtype)
        self.bias = torch.empty(sum(sizes), dtype=dtype)
        self.copies = [*torch.split(self.weight, sizes), *torch.split(self.bias, sizes)]
        self.learned = [part.weight for part in parts] + [part.bias for part in parts]

    def read(self) -> None:
        """Have the weights as they are now."""
        with torch.no_grad():
            torch._foreach_copy_(self.copies, self.learned)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """From ``(n_tokens, n_in)`` to ``(n_tokens, n_out)``."""
        return F.linear(x, self.weight, self.bias)

    def back(self, outer: torch.Tensor) -> torch.Tensor:
        """The gradient of what is multiplied, from that of the product."""
        return outer @ self.weight

    @staticmethod
    def gradients(
        outer: torch.Tensor, x: torch.Tensor, of_weight: torch.Tensor, of_bias: torch.Tensor
    ) -> None:
        """Write the gradients of weights and biases from that of the product."""
        torch.mm(outer.t(), x, out=of_weight)
        torch.sum(outer, 0, out=of_bias)


class _Learning:
    """To learn with."""

    def __init__(
        self, parts: list[torch.nn.Linear], dtype: torch.dtype, low: Gradients | None
    ) -> None:
        self.dtype, self.low = dtype, low if dtype == torch.bfloat16 else None
        self.learned = [part.weight for part in parts] + [part.bias for part in parts]
        self.rounds = rounds(self.learned, dtype)
        self.linear: Any = Rounding(parts) if self.rounds else _Rounded(parts, dtype)
        self.read = self.linear.read
        self.sizes = [len(part.bias) for part in parts]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _learn(self, x)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The product."""
        return [self.linear.forward(x)]

    def back(self, outer: torch.Tensor, x: torch.Tensor, *, wanted: bool) -> torch.Tensor | None:
        """Add to the gradients of what learns; that of ``x``, if wanted."""
        self.add(outer, x)
        return self.linear.back(outer) if wanted else None

    def add(self, outer: torch.Tensor, x: torch.Tensor, **how: bool) -> None:
        """Add to the gradients of the weights and of the biases where these learn."""
        if not any(own.requires_grad for own in self.learned):
            return
        room = self._room()
        self.linear.gradients(outer, x, *room, **how)
        found = [gradient for whole in room for gradient in torch.split(whole, self.sizes)]
        for own, gradient in zip(self.learned, found, strict=True):
            if own.requires_grad:
                self._add_one(own, gradient)

    def _room(self) -> tuple[torch.Tensor, torch.Tensor]:
        """For gradients: the same memory at each step, since fresh memory costs time.

        But those that stay in lower precision are small enough to take that of activations.
        """
        if self.low is None and all(own.grad is None for own in self.learned):
            return self._kept
        return self._fresh()

    def _fresh(self) -> tuple[torch.Tensor, torch.Tensor]:
        shape = sum(self.sizes), self.learned[0].shape[1]
        return torch.empty(shape, dtype=self.dtype), torch.empty(shape[0], dtype=self.dtype)

    @cached_property
    def _kept(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self._fresh()

    def _add_one(self, own: torch.Tensor, gradient: torch.Tensor) -> None:
        """Add to the gradient of one; the first stays in lower precision until another comes."""
        earlier = own.grad if self.low is None else self.low.pop(own, own.grad)
        if earlier is not None:
            own.grad = earlier.to(own.dtype).add_(gradient)
        elif self.low is None:
            own.grad = gradient.to(own.dtype)
        else:
            self.low[own] = gradient


class _Feeding:
    """To learn with: two products and the activation between them.

    Only what the activation reads is kept. It is computed again on the way back, which takes less
    than to keep its result.
    """

    def __init__(self, widen: _Learning, narrow: _Learning, activation: Map) -> None:
        self.widen, self.narrow, self.activation = widen, narrow, activation
        self.dtype, self.learned = widen.dtype, widen.learned + narrow.learned
        self.fused = _is_gelu(activation) and widen.rounds and narrow.rounds

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _learn(self, x)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """The result, and what the activation reads."""
        if self.fused:
            active = x.new_empty(len(x), self.narrow.linear.n_in)
            wide = self.widen.linear.forward(x, gelu=active)
        else:
            wide = self.widen.linear.forward(x)
            active = self.activation(wide)
        return [self.narrow.linear.forward(active), wide]

    def back(
        self, outer: torch.Tensor, x: torch.Tensor, wide: torch.Tensor, *, wanted: bool
    ) -> torch.Tensor | None:
        """As for one product."""
        return self.widen.back(self._middle(outer, wide), x, wanted=wanted)

    def _middle(self, outer: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
        """The gradient of what the activation reads; the second product learns in passing."""
        if self.fused:
            self.narrow.add(outer, wide, gelu=True)
            found: torch.Tensor = self.narrow.linear.back(outer, before=wide)
            return found
        with torch.enable_grad():
            wide = wide.detach().requires_grad_()
            active = self.activation(wide)
        inner = self.narrow.back(outer, active.detach(), wanted=True)
        return torch.autograd.grad(active, wide, inner)[0]


def _learn(keeper: _Learning | _Feeding, x: torch.Tensor) -> torch.Tensor:
    given = x.to(keeper.dtype), keeper, *keeper.learned
    found: torch.Tensor = _Kept.apply(*given)  # type: ignore[no-untyped-call]
    return found


class _Kept(torch.autograd.Function):
    """Products whose backward pass hands the gradients of their weights to their keeper."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, keeper: _Learning | _Feeding, *learned: torch.Tensor
    ) -> torch.Tensor:
        found, *kept = keeper.forward(x)
        ctx.keeper, ctx.n_learned = keeper, len(learned)
        ctx.save_for_backward(x, *kept)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inner = ctx.keeper.back(*gradients, *ctx.saved_tensors, wanted=ctx.needs_input_grad[0])
        return inner, None, *[None] * ctx.n_learned
