"""Parameter groups, schedules, the optimizer and the norm of the gradient.

Depends on torch and the kernels; knows of a model what its family's record says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import torch

from skbert._core.cpu.bindings.adamw import AdamWStates, adamw_step, grad_norm
from skbert._core.cpu.fused import can_fuse_adamw, can_fuse_grad_norm
from skbert._core.cpu.training_linear import Bf16State
from skbert._core.families import family_of
from skbert._core.families.record import optional_part
from skbert._core.gpu import operations
from skbert._core.runtime.autograd import AdamWTensor
from skbert.exceptions import InputError

__all__ = [
    "RANGE_TEST",
    "SCHEDULES",
    "AdamW",
    "ConvertingAdamW",
    "GpuAdamW",
    "adamw",
    "freeze",
    "frozen_parts",
    "gradient_norm",
    "is_encoder_frozen",
    "parameter_groups",
    "rate_factor",
    "take_step",
    "trainable_parameters",
    "warmup_steps",
]

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
_POLYNOMIAL_END = 1e-7  # learning rate where the polynomial schedule ends, as in transformers


def parameter_groups(
    model: torch.nn.Module,
    head: str | tuple[str, ...],
    *,
    learning_rate: float,
    head_learning_rate: float,
    weight_decay: float,
    layer_decay: float,
) -> list[dict[str, Any]]:
    """Trainable parameters by learning rate and weight decay.

    Biases and LayerNorm weights do not decay. The learning rate of a layer is that of the
    layer above it times ``layer_decay`` (Clark et al. 2020, ELECTRA); the embeddings come
    last. Parameters whose names begin with ``head`` have their own rate.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    family, depths = family_of(model), _depths(model)
    top = max(depths.values())
    groups: dict[tuple[float, float], list[torch.nn.Parameter]] = {}
    for name, parameter in named:
        rate = learning_rate * layer_decay ** (top - depths[name])
        if name.startswith(head):
            rate = head_learning_rate
        decay = weight_decay if family.has_weight_decay(name) else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [
        {"params": parameters, "lr": rate, "initial_lr": rate, "weight_decay": decay}
        for (rate, decay), parameters in groups.items()
    ]


def freeze(model: torch.nn.Module, head: tuple[str, ...], layers: int | str) -> None:
    """Freeze the embeddings and the first ``layers`` layers.

    0 freezes nothing; ``"all"`` freezes everything but the head.
    """
    trainable = set(map(id, trainable_parameters(model, head, layers)))
    for parameter in model.parameters():
        parameter.requires_grad_(id(parameter) in trainable)


def frozen_parts(model: torch.nn.Module, layers: int | str) -> list[torch.nn.Module]:
    """The embeddings and layers that `freeze` freezes, lowest first."""
    family, encoder = family_of(model), getattr(model, "base_model", model)
    if not layers:
        return []
    below = (optional_part(encoder, path) for path in family.below_layers)
    n_frozen = None if layers == "all" else int(layers)
    return [*(part for part in below if part is not None), *family.layers(model)[:n_frozen]]


def trainable_parameters(
    model: torch.nn.Module, head: tuple[str, ...], layers: int | str
) -> list[torch.nn.Parameter]:
    """The parameters that `freeze` leaves trainable."""
    depths = _depths(model)
    if layers != "all":
        _check_frozen(model, int(layers))
    highest = (
        math.inf if layers == "all" else int(layers) or -1
    )  # 0 does not freeze the embeddings either
    return [
        parameter
        for name, parameter in model.named_parameters()
        if name.startswith(head) or depths[name] > highest
    ]


def _check_frozen(model: torch.nn.Module, n_frozen: int) -> None:
    """Refuse to freeze more layers than there are, or one that is trained further up as well."""
    layers = family_of(model).layers(model)
    if n_frozen > len(layers):
        raise InputError(
            f"freeze={n_frozen}: the model has {len(layers)} layers. Use freeze='all' to train "
            "nothing but the head."
        )
    if {*layers[:n_frozen]} & {*layers[n_frozen:]}:
        raise InputError(
            f"freeze={n_frozen}: the model shares its layers, and layer {n_frozen} is one of those"
            " above it. Use freeze=0, or freeze='all' to train nothing but the head."
        )


def is_encoder_frozen(model: torch.nn.Module, layers: int | str) -> bool:
    """Whether `freeze` freezes all layers of the encoder."""
    return layers == "all" or int(layers) >= _n_layers(model)


def _n_layers(model: torch.nn.Module) -> int:
    return len(family_of(model).layers(model))


def _depths(model: torch.nn.Module) -> dict[str, int]:
    """The layer of each parameter, from 1; 0 for the embeddings, n_layers + 1 for the rest."""
    family, encoder = family_of(model), getattr(model, "base_model", model)
    layers = family.layers(model)
    below = (optional_part(encoder, path) for path in family.below_layers)
    placed = [*((0, part) for part in below if part is not None), *enumerate(layers, 1)]
    depths = {id(p): at for at, part in placed[::-1] for p in part.parameters()}
    return {name: depths.get(id(p), len(layers) + 1) for name, p in model.named_parameters()}


def warmup_steps(warmup: float, n_steps: int) -> int:
    """Warm-up in steps: a share of all steps below 1, else the number itself.

    A share leaves the last step out: it would have a rate of zero where there is only one.
    """
    return min(math.ceil(warmup * n_steps), n_steps - 1) if warmup < 1 else int(warmup)


def _cosine(progress: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * progress))


# Factor of the learning rate by the progress, from 0 after the warm-up to 1 at the last step.
SCHEDULES: dict[str, Callable[[float], float]] = {
    "linear": lambda progress: 1.0 - progress,
    "cosine": _cosine,
    "cosine_with_restarts": lambda progress: _cosine(progress) if progress < 1 else 0.0,
    "polynomial": lambda progress: 1.0 - progress,  # down to its own end, not to zero
    "constant": lambda _: 1.0,
    "constant_with_warmup": lambda _: 1.0,
}


def _exponential(progress: float) -> float:
    return math.exp(math.log(_LOWEST_FACTOR) * (1.0 - progress))


# A range test (Smith 2017) is no schedule of a fit: the rate rises to the end.
RANGE_TEST = "range test"
_LOWEST_FACTOR = 1e-6
_CURVES = {**SCHEDULES, RANGE_TEST: _exponential}


def rate_factor(schedule: str, step: int, n_steps: int, n_warmup: int, rate: float) -> float:
    """The factor of the learning rate at ``step``, counted from 0.

    ``rate`` is the rate that is multiplied: the polynomial schedule ends at a fixed one.
    ``constant`` has no warm-up.
    """
    if schedule != "constant" and step < n_warmup:
        return step / max(1, n_warmup)
    progress = min(1.0, (step - n_warmup) / max(1, n_steps - n_warmup))
    left = _CURVES[schedule](progress)
    if schedule == "polynomial":
        return left + (1.0 - left) * _POLYNOMIAL_END / rate
    return left


class AdamW(torch.optim.AdamW):
    """AdamW (Loshchilov and Hutter 2019), fused where torch can.

    Attributes
    ----------
    bf16_state : Bf16State or None
        Gradients in bfloat16 beside those in ``grad``, and copies of weights that a step writes as
        well; None where it knows neither.
    """

    bf16_state: Bf16State | None = None

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget all gradients."""
        super().zero_grad(set_to_none)
        if self.bf16_state is not None:
            self.bf16_state.grads.clear()

    def gradient(self, weight: torch.Tensor) -> torch.Tensor | None:
        """The gradient of one weight, None if it has none."""
        state = self.bf16_state
        return weight.grad if state is None else state.grads.get(weight, weight.grad)

    def set_gradient(self, weight: torch.Tensor, gradient: torch.Tensor) -> None:
        """Replace the gradient of one weight, by one that may be in bfloat16."""
        if gradient.dtype == weight.dtype or self.bf16_state is None:
            weight.grad = gradient.to(weight.dtype)
        else:
            self.bf16_state.grads[weight] = gradient

    def gradients(self) -> list[torch.Tensor]:
        """The gradients of all weights that have one."""
        gradients = map(self.gradient, self.weights())
        return [gradient for gradient in gradients if gradient is not None]

    def replace(self, old: torch.nn.Parameter, new: torch.nn.Parameter) -> None:
        """Train another parameter in place of an old one."""
        for group in self.param_groups:
            group["params"] = [new if p is old else p for p in group["params"]]

    def moments(self) -> dict[str, torch.Tensor]:
        """The moments of all weights that have taken a step, and how many, by name."""
        kept: dict[str, torch.Tensor] = {}
        for i, weight in enumerate(self.weights()):
            if state := self.state.get(weight):
                kept |= {f"{name}.{i}": torch.as_tensor(state[name]) for name in _MOMENTS}
        return kept

    def load_moments(self, kept: dict[str, torch.Tensor]) -> None:
        """Go on from `moments` of an optimizer of the same weights; ValueError for others."""
        for i, weight in enumerate(self.weights()):
            if f"step.{i}" in kept:
                first, second = (kept[f"{name}.{i}"].to(weight) for name in _MOMENTS[1:])
                if not first.shape == second.shape == weight.shape or kept[f"step.{i}"] < 1:
                    raise ValueError(f"moments of the shape {tuple(first.shape)}")
                self.state[weight] = {
                    "step": self._count(kept[f"step.{i}"], weight),
                    "exp_avg": first.clone(),
                    "exp_avg_sq": second.clone(),
                }

    def weights(self) -> list[torch.Tensor]:
        """All weights, group by group."""
        return [weight for group in self.param_groups for weight in group["params"]]

    def _count(self, step: torch.Tensor, weight: torch.Tensor) -> torch.Tensor | int:
        """A number of steps, in the form in which ``step`` counts it."""
        return step.to(weight.device if self.defaults["fused"] else "cpu", torch.float32)


def adamw(groups: list[dict[str, Any]], device: torch.device) -> AdamW:
    """AdamW for these parameters, in the fastest form that can be used."""
    weights = [weight for group in groups for weight in group["params"]]
    if can_fuse_adamw(weights):
        is_on_gpu = any(map(operations.is_on_gpu, weights))
        return GpuAdamW(groups) if is_on_gpu else _CompiledAdamW(groups)
    if device.type == "cuda":
        return ConvertingAdamW(groups)
    return AdamW(groups, fused=device.type != "mps")


class ConvertingAdamW(AdamW):
    """torch's AdamW, which converts gradients from bfloat16, and weights to it, all at once."""

    bf16_state: Bf16State

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, fused=True)
        self.bf16_state = Bf16State({}, {})
        self._buffers: dict[torch.Tensor, torch.Tensor] = {}

    def gradients(self) -> list[torch.Tensor]:
        """The gradients of all weights that have one, in the type of the weights from now on."""
        rounded = self.bf16_state.grads
        for weight in rounded:
            if weight not in self._buffers:
                self._buffers[weight] = torch.empty_like(weight)
            weight.grad = self._buffers[weight]
        if rounded:
            torch._foreach_copy_(
                [self._buffers[weight] for weight in rounded], [*rounded.values()]
            )
        rounded.clear()
        return super().gradients()

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step."""
        super().step(closure)
        copies = self.bf16_state.weights
        if copies:
            with torch.no_grad():
                torch._foreach_copy_([*copies.values()], [*copies])


class _CompiledAdamW(AdamW):
    """AdamW in a compiled kernel, which reads gradients and writes weights in bfloat16, too."""

    bf16_state: Bf16State
    grad_scale: torch.Tensor | None = None  # what gradients are divided by
    found_inf: torch.Tensor | None = None  # 1 where a step on a GPU is to change nothing

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, fused=True)
        self.bf16_state = Bf16State({}, {})
        self._states = AdamWStates()

    def _count(self, step: torch.Tensor, weight: torch.Tensor) -> int:
        del weight
        return int(step)

    def step(self, closure: Any = None) -> Any:  # noqa: ARG002 - as in torch
        """Take a step."""
        tensors = [tensor for group in self.param_groups for tensor in self._prepared(group)]
        if tensors:
            self._run_kernel(tensors, self.defaults["eps"], self.defaults["betas"])

    def _run_kernel(
        self, tensors: list[AdamWTensor], epsilon: float, betas: tuple[float, float]
    ) -> None:
        divisor = 1.0 if self.grad_scale is None else float(self.grad_scale)
        adamw_step(
            tensors=tensors, divisor=divisor, epsilon=epsilon, betas=betas, states=self._states
        )

    def _prepared(self, group: dict[str, Any]) -> Iterator[AdamWTensor]:
        """The weights of a group with all that their next step needs; the step is counted."""
        rate, betas, copies = group["lr"], self.defaults["betas"], self.bf16_state.weights or {}
        decay = 1.0 - rate * group["weight_decay"]
        for weight in group["params"]:
            gradient = self.gradient(weight)
            if gradient is None:
                continue
            state = self.state[weight]
            if not state:
                state["step"] = 0
                state["exp_avg"], state["exp_avg_sq"] = weight.new_zeros(2, *weight.shape)
            state["step"] += 1
            first, second = _corrections(state["step"], *betas)
            moments, copy = (state["exp_avg"], state["exp_avg_sq"]), copies.get(weight)
            yield AdamWTensor(
                weight, gradient.contiguous(), *moments, decay, rate / first, second, copy
            )


@lru_cache(8)  # most weights have taken as many steps
def _corrections(n_steps: int, beta1: float, beta2: float) -> tuple[float, float]:
    """What the first moment is divided by, and the root of the second, after so many steps."""
    return 1.0 - beta1**n_steps, math.sqrt(1.0 - beta2**n_steps)


class GpuAdamW(_CompiledAdamW):
    """The same in a kernel for GPUs, which waits for nothing."""

    def _run_kernel(
        self, tensors: list[AdamWTensor], epsilon: float, betas: tuple[float, float]
    ) -> None:
        operations.adamw_step(tensors, self.grad_scale, self.found_inf, epsilon, betas)


def gradient_norm(gradients: Iterable[torch.Tensor]) -> torch.Tensor:
    """Euclidean norm of all gradients together, a tensor on their device."""
    gradients = [gradient.contiguous() for gradient in gradients]
    if operations.can_fuse_grad_norm(gradients):
        return operations.grad_norm(gradients)
    if can_fuse_grad_norm(gradients):
        return grad_norm(gradients=gradients)
    norms: list[torch.Tensor] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):  # one at a time
        own = [gradient for gradient in gradients if gradient.dtype == dtype]
        norms += torch._foreach_norm(own, dtype=torch.promote_types(dtype, torch.float32))
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return norm


def take_step(
    optimizer: torch.optim.Optimizer,
    gradients: list[torch.Tensor],
    divisor: torch.Tensor,
    failed: torch.Tensor,
) -> None:
    """Take a step with the gradients divided by ``divisor``; on a GPU none if ``failed`` is 1.

    Both are tensors of one number on the device of the weights. A GPU is not waited for, and
    torch's fused optimizers divide in the pass that they make anyway.
    """
    fused = optimizer.defaults["fused"] and divisor.dtype == torch.float32
    scaled: Any = optimizer  # as torch's own GradScaler hands them over
    scaled.grad_scale = divisor if fused and (divisor.is_cuda or divisor != 1) else None
    scaled.found_inf = failed if divisor.is_cuda else None
    if not fused and divisor != 1:
        torch._foreach_mul_(gradients, 1.0 / float(divisor))
    optimizer.step()
