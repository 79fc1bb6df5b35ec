"""The four products of an encoder layer on a CPU: its weights as the arithmetic wants them.

Query, key and value are one product, and a weight is converted to the lower precision once for
as long as it stays the same. For inference weights are laid out in blocks as oneDNN reads them;
while learning, memory for converted weights and for gradients is used again at each step, since
fresh memory costs more than the numbers that are written to it. Depends on torch and ``compiled``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch.nn import functional as F

from skbert._core.compiled import across, most_tokens, multiply

__all__ = ["Gradients", "Products", "ProductsOf"]

Map = Callable[[torch.Tensor], torch.Tensor]
Gradients = dict[torch.Tensor, torch.Tensor]  # by weight


class _Product(Protocol):
    """A linear layer, and what follows it."""

    def read(self) -> None:
        """Have the weights as they are now."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """From ``(n_tokens, n_in)`` to ``(n_tokens, n_out)`` in the precision of products."""


class Products(NamedTuple):
    """The products of one layer."""

    join: _Product  # query, key and value side by side
    mix: _Product
    widen: _Product  # with the activation
    narrow: _Product


class ProductsOf:
    """Makes the products of a layer's module, and keeps them until its weights are others.

    After a backward pass the gradients of the weights are in ``grad`` like any others, but
    ``torch.autograd.grad`` does not see them. Those in a lower precision than their weights are
    in ``low`` where that is given, by weight.
    """

    def __init__(self, module: Any, low: Gradients | None = None) -> None:
        self.low = low
        own, wide = module.attention.self, module.intermediate
        activation = wide.intermediate_act_fn
        # What is multiplied side by side, and the activations before and behind it.
        self.parts: list[tuple[list[torch.nn.Linear], Map | None, Map | None]] = [
            ([own.query, own.key, own.value], None, None),
            ([module.attention.output.dense], None, None),
            ([wide.dense], None, activation),
            ([module.output.dense], activation, None),
        ]
        self.home: object = None
        self.some: list[torch.Tensor] = []
        self.to_learn: tuple[object, Products | None] = (None, None)
        self.to_infer: tuple[object, Products | None] = (None, None)

    def __call__(self, dtype: torch.dtype, *, learning: bool) -> Products:
        """The products in ``dtype``, to learn with or for inference."""
        linears = [linear for part, _, _ in self.parts for linear in part]
        weights = [weight for linear in linears for weight in (linear.weight, linear.bias)]
        home = (dtype, [(id(weight), weight.data_ptr()) for weight in weights])
        if not learning:
            if self.home != home:
                self.home, self.some = home, [_some_of(weight) for weight in weights]
            # Fused optimizers count no version up: some numbers tell.
            state = home, [weight._version for weight in weights], torch.cat(self.some).tolist()
            known, made = self.to_infer
            if made is None or known != state:
                made = Products(*(_Blocked(own, then, dtype) for own, _, then in self.parts))
                self.to_infer = state, _read(made)
            return made
        known, made = self.to_learn
        if made is None or known != home:
            given = dtype, self.low
            made = Products(*(_Learning(own, before, *given) for own, before, _ in self.parts))
            self.to_learn, self.to_infer = (home, made), (None, None)
        return _read(made)


def _read(products: Products) -> Products:
    for product in products:
        product.read()
    return products


def _some_of(weight: torch.Tensor) -> torch.Tensor:
    """A few numbers of it, in the same memory."""
    return weight.detach().flatten()[:: weight.numel() // 8 + 1]


class _Blocked:
    """For inference; GELU in the same pass as the product, and few tokens in a kernel."""

    few: torch.Tensor | None  # the weights as that reads them, from the first time on

    def __init__(
        self, parts: list[torch.nn.Linear], activation: Map | None, dtype: torch.dtype
    ) -> None:
        self.parts, self.activation, self.dtype = parts, activation, dtype
        self.blocks = _onednn_computes(dtype)
        self.fused = self.blocks and getattr(activation, "act", None) is F.gelu

    def read(self) -> None:
        """Have the weights as they are now."""
        weight, self.few = self._weight(), None
        self.bias = torch.cat([part.bias.detach().to(self.dtype) for part in self.parts])
        self.n_few = most_tokens(weight) if self.fused or self.activation is None else 0
        if self.blocks:
            weight = torch.ops.mkldnn._reorder_linear_weight(weight, None)
        self.weight = weight

    def _weight(self) -> torch.Tensor:
        return torch.cat([part.weight.detach().to(self.dtype) for part in self.parts])

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.dtype)
        if len(x) <= self.n_few:
            if self.few is None:
                self.few = across(self._weight())
            return multiply(x, self.few, self.bias, gelu=self.fused)
        if not self.blocks:
            found = F.linear(x, self.weight, self.bias)
        else:
            product, then = torch.ops.mkldnn._linear_pointwise, "gelu" if self.fused else "none"
            found = torch.as_tensor(product(x, self.weight, self.bias, then, [], "none"))
        return found if self.fused or self.activation is None else self.activation(found)


def _onednn_computes(dtype: torch.dtype) -> bool:
    onednn: Any = torch.ops.mkldnn
    if not (torch.backends.mkldnn.enabled and hasattr(onednn, "_linear_pointwise")):
        return False
    low = dtype == torch.bfloat16 and onednn._is_mkldnn_bf16_supported()
    return bool(low) or dtype == torch.float32


class _Learning:
    """To learn with.

    An activation is that of the product before: what this one reads is computed again on the
    way back, which takes less than to keep it.
    """

    def __init__(
        self,
        parts: list[torch.nn.Linear],
        activation: Map | None,
        dtype: torch.dtype,
        low: Gradients | None,
    ) -> None:
        self.activation, self.low = activation, low
        self.sizes = [part.out_features for part in parts]
        self.weight = torch.empty(sum(self.sizes), parts[0].in_features, dtype=dtype)
        self.bias = torch.empty(sum(self.sizes), dtype=dtype)
        self.learned = [part.weight for part in parts] + [part.bias for part in parts]
        self.converted = self._apart(self.weight, self.bias)
        self.found = torch.empty_like(self.weight), torch.empty_like(self.bias)
        self.gradients = self._apart(*self.found)
        self.totals: list[torch.Tensor | None] = [None] * len(self.learned)

    def _apart(self, of_weight: torch.Tensor, of_bias: torch.Tensor) -> list[torch.Tensor]:
        return [*torch.split(of_weight, self.sizes), *torch.split(of_bias, self.sizes)]

    def read(self) -> None:
        """Have the weights as they are now."""
        with torch.no_grad():
            torch._foreach_copy_(self.converted, self.learned)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(self.bias.dtype)
        found: torch.Tensor = _Linear.apply(x, self, *self.learned)  # type: ignore[no-untyped-call]
        return found

    def add(self, outer: torch.Tensor, read: torch.Tensor) -> None:
        """Add to the gradients of the weights and of the biases."""
        for number, own in enumerate(self.learned):
            earlier = own.grad if self.low is None else self.low.pop(own, own.grad)
            if earlier is not None and earlier is not self.totals[number]:
                own.grad = self._total(number, earlier)  # its memory may be wanted
        torch.mm(outer.t(), read, out=self.found[0])
        torch.sum(outer, 0, out=self.found[1])
        for number, own in enumerate(self.learned):
            if own.grad is not None:
                own.grad.add_(self.gradients[number])
            elif own.requires_grad:
                self._begin(number)

    def _begin(self, number: int) -> None:
        """Have the gradient that was found for the only one until another comes."""
        own, found = self.learned[number], self.gradients[number]
        if found.dtype == own.dtype:
            own.grad = found
        elif self.low is not None and found.dtype == torch.bfloat16:
            self.low[own] = found
        else:
            own.grad = self._total(number, found)

    def _total(self, number: int, found: torch.Tensor) -> torch.Tensor:
        """What was found in the precision of its weight, where others may be added."""
        total = self.totals[number]
        if total is None:
            total = self.totals[number] = torch.empty_like(self.learned[number])
        return total.copy_(found)


class _Linear(torch.autograd.Function):
    """A linear layer whose backward pass hands the gradients of its weights to their keeper."""

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, keeper: _Learning, *learned: torch.Tensor
    ) -> torch.Tensor:
        ctx.keeper, ctx.n_learned = keeper, len(learned)
        ctx.save_for_backward(x)
        read = x if keeper.activation is None else keeper.activation(x)
        return F.linear(read, keeper.weight, keeper.bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (outer,), (x,), activation = gradients, ctx.saved_tensors, ctx.keeper.activation
        with torch.enable_grad():
            x = x.detach().requires_grad_(activation is not None)
            read = x if activation is None else activation(x)
        if any(ctx.needs_input_grad[2:]):
            ctx.keeper.add(outer, read.detach())
        inner = outer @ ctx.keeper.weight if ctx.needs_input_grad[0] else None
        if activation is not None and inner is not None:
            (inner,) = torch.autograd.grad(read, x, inner)
        return inner, None, *[None] * ctx.n_learned
