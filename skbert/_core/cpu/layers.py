"""Encoder layers over packed batches on a CPU, with few passes over memory.

Depends on torch, ``attention``, ``postnorm``, ``prenorm``, ``linear``, ``tables``, ``whole``, a
GPU's graphs and the record of a family; knows no task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F

from skbert._core.attention.relative import has_distances
from skbert._core.cpu import postnorm, prenorm
from skbert._core.cpu.attention import Rows, settings_of
from skbert._core.cpu.fused import can_fuse_linear, max_packed_tokens
from skbert._core.cpu.linear import ComputedLayer, ProductCache, Result
from skbert._core.cpu.tables import SummedEmbeddings
from skbert._core.cpu.training_linear import Bf16State
from skbert._core.cpu.whole import WholeEncoder
from skbert._core.families.record import Family, LayerParts, encoder_part
from skbert._core.gpu import operations
from skbert._core.gpu.graphs import LayerGraphs
from skbert._core.runtime.device import uses_int8
from skbert._core.task import Batch, Layout

__all__ = ["Layers", "can_compute"]

# oneDNN, unlike the kernels, prepares a product anew for each number of tokens, and keeps 2 MB for
# those of a layer.
_TOKENS_STEP = 16  # in training
_TOKENS_BITS = 5  # in inference: a number has no more, but for zeros behind them


class _Work(NamedTuple):
    """Layers of a model to be computed, and which states are wanted.

    With products in a type, and what caches know the layers by.
    """

    family: Family
    model: Any
    numbers: range
    dtype: torch.dtype
    made_for: object
    read: Sequence[int]

    def wanted(self, states: torch.Tensor, every: Iterable[torch.Tensor]) -> list[torch.Tensor]:
        """Of the states below the layers and those after each, those that are read."""
        numbered = enumerate(chain([states], every), self.numbers.start)
        kept = {i: each for i, each in numbered if i in self.read}
        return [kept[i] for i in self.read]

    @property
    def wanted_layers(self) -> set[int]:
        """The layers whose states are read, with numbers from 0."""
        return {i - self.numbers.start - 1 for i in self.read}

    @property
    def modules(self) -> Sequence[Any]:
        """The modules of the layers."""
        modules: Sequence[Any] = self.family.layers(self.model)
        return modules[self.numbers.start : self.numbers.stop]

    @property
    def with_norms(self) -> Sequence[Any]:
        """The same, and the norms between and after them, wherever these are."""
        if self.family.prenorm is None:
            return self.modules
        norms = _prenorm_run(self.family, self.model, self.numbers).norms
        return [*self.modules, *(norm for norm in norms if norm is not None)]


class Layers:
    """Computes encoder layers, and caches what it makes of their weights.

    Attributes
    ----------
    is_enabled : bool
        Whether layers on a CPU are computed here. Otherwise, and on other devices, their modules
        run, with any hooks that they have.
    embed : SummedEmbeddings
        What computes the states below the layers where these are a sum of tables.
    """

    def __init__(self, *, is_enabled: bool = True) -> None:
        self.is_enabled = is_enabled
        self.products: dict[Any, ProductCache] = {}  # by the layer's module
        self.bf16_state: Bf16State | None = None
        self.whole_encoder = WholeEncoder()
        self.embed = SummedEmbeddings()
        self.graphs: LayerGraphs | None = None  # of training on a GPU
        self.recorded: dict[Any, list[torch.Tensor]] = {}  # weights, by what they are made for
        self.versions: list[int] = []  # of these weights, when copies were made
        self.has_int8_sizes: bool | None = None  # once somebody asked

    def reset(
        self, bf16_state: Bf16State | None = None, graphs: LayerGraphs | None = None
    ) -> None:
        """Clear the caches, and share what is in bfloat16 in ``bf16_state`` from now on."""
        self.products, self.bf16_state, self.graphs = {}, bf16_state, graphs
        self.recorded, self.versions, self.has_int8_sizes = {}, [], None
        self.whole_encoder, self.embed = WholeEncoder(), SummedEmbeddings()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the caches."""
        return vars(Layers(is_enabled=self.is_enabled))

    def __call__(
        self,
        family: Family,
        model: Any,
        numbers: range,
        states: torch.Tensor,
        layout: Layout,
        read: Sequence[int],
    ) -> list[torch.Tensor]:
        """Hidden states ``(n_tokens, size)`` after so many layers of a model as ``read`` says.

        These layers are run, with numbers from 0, on the states that the first of them reads.
        """
        if not numbers:
            return [states for _ in read]
        dtype = states.dtype
        device = states.device.type
        if torch.is_autocast_enabled(device):
            dtype = torch.get_autocast_dtype(device)
        made_for = model, numbers, dtype, uses_int8()
        work = _Work(family, model, numbers, dtype, made_for, read)
        run = self.whole_encoder.repeat(made_for, states, layout, work.wanted_layers)
        if run is not None:
            return work.wanted(states, run)
        if self.graphs is None or not torch.is_grad_enabled():
            return self._compute(work, states, layout)
        for cache in self.products.values():
            cache.for_inference = None  # steps by graphs ask for no products, and change weights
        weights = self._recorded_weights(work, states, layout)
        compute = partial(self._compute, work)
        return self.graphs((made_for, *read), compute, weights, states, layout)

    def _compute(self, work: _Work, states: torch.Tensor, layout: Layout) -> list[torch.Tensor]:
        """The hidden states that are wanted."""
        family, dtype, modules = work.family, work.dtype, work.modules
        n_tokens, device = len(states), states.device.type
        training = torch.is_grad_enabled() or any(module.training for module in modules[:1])
        caches = [self._cache_of(family, module) for module in modules]
        rows = Rows(layout, training=training)
        int8 = uses_int8() and not training
        if not int8:
            states = _pad_tokens(states, caches, dtype, training=training)
        layers = _computed(modules, caches, dtype, training=training, int8=int8)
        with torch.autocast(device, enabled=False), operations.on_device_of(states):
            if family.prenorm is None:
                run = self._run_postnorm(layers, work, states, rows)
            else:
                plan = _prenorm_run(family, work.model, work.numbers)
                run = prenorm.run_layers(plan, layers, states, dtype, rows)
            return [each[:n_tokens] for each in work.wanted(states, run)]

    def _recorded_weights(
        self, work: _Work, states: torch.Tensor, layout: Layout
    ) -> list[torch.Tensor]:
        """The trained weights of layers that can be recorded; none where a kernel is missing."""
        key = work.made_for, operations.has_short_rows(layout)
        if key not in self.recorded:
            can = self._has_kernels(work, states.new_empty(0, dtype=work.dtype), layout)
            every = (weight for module in work.with_norms for weight in module.parameters())
            self.recorded[key] = [*dict.fromkeys(x for x in every if x.requires_grad and can)]
        weights = self.recorded[key]
        if not weights:
            return weights
        versions = [weight._version for weight in weights]
        if versions != self.versions:  # a graph reads copies
            for module in work.modules:
                self._cache_of(work.family, module)(work.dtype, training=True)
            self.versions = versions
        return weights

    def without_graphs(self, compute: Callable[[Batch], Result], batch: Batch) -> Result:
        """What a function computes of a batch whose layers are not recorded.

        torch's checkpoint has to see each tensor that is saved, in both of its runs.
        """
        graphs, self.graphs = self.graphs, None
        try:
            return compute(batch)
        finally:
            self.graphs = graphs

    def _has_kernels(self, work: _Work, like: torch.Tensor, layout: Layout) -> bool:
        """Whether kernels compute attention, with no numbers but those on the device."""
        paths = work.family.prenorm
        if paths is not None and prenorm.reads_lengths(encoder_part(work.model, paths.rotary)):
            return False
        for module in work.modules:
            attention = self._cache_of(work.family, module).parts.attention
            settings = settings_of(attention, work.family.attention)
            if has_distances(attention):
                return False
            if not operations.can_fuse_attention(like, layout, settings):
                return False
        return True

    def _run_postnorm(
        self,
        layers: Iterator[ComputedLayer],
        work: _Work,
        states: torch.Tensor,
        rows: Rows,
    ) -> Iterable[torch.Tensor]:
        """Hidden states after each layer, of all layers in one call where that is possible."""
        names, dtype, wanted = work.family.attention, work.dtype, work.wanted_layers
        if rows.training:
            self.whole_encoder.plan = None  # a step changes weights, but not their versions
            return postnorm.run_layers(layers, names, states, dtype, rows, wanted)
        read = [*layers]
        run = self.whole_encoder(work.made_for, read, names, states, dtype, rows.layout)
        return run or postnorm.run_layers(read, names, states, dtype, rows, wanted)

    def can_quantize(self, family: Family, model: Any) -> bool:
        """Whether the products of all layers, which can be computed, have sizes for int8."""
        if self.has_int8_sizes is None:
            caches = [self._cache_of(family, module) for module in family.layers(model)]
            self.has_int8_sizes = all(cache.has_int8_sizes for cache in caches)
        return self.has_int8_sizes

    def _cache_of(self, family: Family, module: Any) -> ProductCache:
        if module not in self.products:
            self.products[module] = ProductCache(family.layer_parts(module), self.bf16_state)
        return self.products[module]


def can_compute(family: Family, module: Any) -> bool:
    """Whether the weights of a layer are plain tensors of sizes that belong together."""
    if not all(type(weight.data) is torch.Tensor for weight in module.parameters()):
        return False
    parts = family.layer_parts(module)
    if isinstance(parts, LayerParts):
        return postnorm.can_compute(parts, family.attention)
    assert family.prenorm is not None
    return prenorm.can_compute(parts, family.attention, family.prenorm)


def _computed(
    modules: Sequence[Any], caches: Sequence[ProductCache], dtype: torch.dtype, **how: bool
) -> Iterator[ComputedLayer]:
    """The layers, of which each makes what it needs of its weights when it is asked for."""
    for module, cache in zip(modules, caches, strict=True):
        yield ComputedLayer(module, cache.parts, cache(dtype, **how))


def _prenorm_run(family: Family, model: Any, numbers: range) -> prenorm.PreNormRun:
    """The norms around these layers of a model, and what else they need."""
    assert family.prenorm is not None
    paths, layers = family.prenorm, family.layers(model)
    norms = [getattr(layers[number], paths.parts.attention_norm) for number in numbers]
    has_last = numbers.stop == len(layers)
    norms.append(encoder_part(model, paths.final_norm) if has_last else None)
    rotary = encoder_part(model, paths.rotary)
    return prenorm.PreNormRun(paths, family.attention, norms, rotary, has_last)


def _pad_tokens(
    states: torch.Tensor, caches: Sequence[ProductCache], dtype: torch.dtype, *, training: bool
) -> torch.Tensor:
    """States with padding tokens at the end where that saves oneDNN numbers to prepare for."""
    if operations.is_on_gpu(states) or dtype == torch.float64:  # which oneDNN lacks
        return states
    n_tokens, weights = len(states), [cache.parts.mlp_out.weight for cache in caches[:1]]
    if training:
        uses_kernel, step = can_fuse_linear(weights, dtype), _TOKENS_STEP
    else:
        n_out, n_in = weights[0].shape
        is_alone = caches[0].is_alone
        uses_kernel = n_tokens <= max_packed_tokens(n_in, n_out, dtype, is_alone=is_alone)
        step = 1 << max(0, n_tokens.bit_length() - _TOKENS_BITS)
    n_more = 0 if uses_kernel else -n_tokens % step
    return F.pad(states, (0, 0, 0, n_more)) if n_more else states
