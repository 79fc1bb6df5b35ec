"""A model with one head, run on packed batches: layer by layer, or by the model's own forward.

A model that somebody changed is run by its own forward pass. Depends on torch, and on the modules
that compute layers, attention and pooling; of a head it knows only what it reads.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from skbert._core.attention import packed
from skbert._core.attention.pooling import LayerJoin, parts_of
from skbert._core.cpu.embedding import UsedRowsEmbedding
from skbert._core.cpu.layers import Layers, can_compute
from skbert._core.families import family_of
from skbert._core.families.record import Family, HeadClass, encoder_part, optional_part
from skbert._core.items import Head
from skbert._core.models.embeddings import (
    counts_positions,
    embedded_apart,
    embeddings_of,
    packed_inputs,
    reads_token_types,
    token_types,
)
from skbert._core.models.intact import (
    Anatomy,
    anatomy_of,
    has_global_hooks,
    is_hooked,
    without_recorders,
)
from skbert._core.models.padded import Padded, padded_parts
from skbert._core.models.pooled import TokenPooled
from skbert._core.models.tokenizers import text_tokenizer_of
from skbert._core.models.vectors import above_states, encoder_states, in_order, pooled
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert._core.runtime.modes import default_modes
from skbert._core.task import Batch, Layout
from skbert.exceptions import ModelError

__all__ = [
    "Network",
    "can_pack",
    "check_outputs",
    "copy_network",
    "has_own_modules",
    "has_pooler",
    "has_states",
    "inference_network",
    "is_as_opened",
    "joined",
    "reads_token_types",
    "runs_layers",
    "states_of",
    "twin_of",
]


class Network:
    """A model with one head, run on packed batches.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        The transformers model of the head's class, weights and all.
    tokenizer : transformers.PreTrainedTokenizerBase
        The tokenizer as transformers opens it, which other networks may have, too.
    text_tokenizer : TextTokenizer
        The same tokenizer's backend, which skbert reads text with.
    head : Head
        What the head reads and how many outputs it has.
    pooling : str
        ``pooler``, ``cls``, ``mean``, ``max`` or ``mean_max``: how tokens become the vector of
        a row.
    layers : tuple of int or None
        Layers whose hidden states are combined, 0 for the embeddings; None for the last alone.
    layer_join : LayerJoin
        ``mean`` averages these states, ``concat`` puts them side by side.
    anatomy : tuple
        Name, class and forward function of each module of the model as it was opened.
    is_packed : bool
        Whether packed batches are run, by kernels or by the encoder's own forward pass; else the
        model's own forward pass runs over padded ones.
    is_handed_out : bool
        Whether somebody else holds the model, and may change it at any time.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        head: Head,
        pooling: str,
        anatomy: Anatomy | None = None,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.tokenizer_copy: Any = None  # that a caller has
        self.text_tokenizer = text_tokenizer_of(tokenizer)
        self.head = head
        self.pooling = pooling
        self.layers: tuple[int, ...] | None = None
        self.layer_join: LayerJoin = "mean"
        if _supports_packing(model):
            model.config._attn_implementation = packed.NAME
        model.config.skbert_pooling = parts_of(pooling)[0]  # goes into config.json and comes back
        self.anatomy = anatomy_of(model) if anatomy is None else anatomy
        self.is_packed = _supports_packing(model)
        self.is_handed_out = False
        self.compiled: Any = None  # the encoder, compiled on demand
        self.word_embedding: UsedRowsEmbedding | None = None  # while training on a CPU
        self.layer_runner = Layers()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return _word_table(self.model).device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        return _word_table(self.model).dtype

    @property
    def max_length(self) -> int:
        """Tokens in the longest row that the model reads."""
        config = self.model.config
        return self.family.max_length(config.max_position_embeddings, config.pad_token_id)

    @property
    def family(self) -> Family:
        """The record of the model's architecture."""
        return family_of(self.model)

    @property
    def head_class(self) -> HeadClass:
        """What the record of the architecture says of the head."""
        return self.family.head_class(self.head.job)

    @property
    def output_layer(self) -> Any:
        """The layer that computes the logits: a linear one, or for word pieces a small network."""
        return self.model.get_submodule(self.head_class.output_layer)

    def hand_out(self) -> Any:
        """The model, for a caller who may change it; each use from now on checks for changes."""
        self.is_handed_out = True
        self.layer_runner.graphs = None
        return self.model

    def logits(self, batch: Batch) -> Any:
        """The outputs of a forward pass, one row for each row, token or selected token.

        A tuple of two such tables where the head reads selected tokens and rows.
        """
        if self.head.has_output_layer and not self.is_packed and batch.features is None:
            return _logits_of_model(self, batch)
        features, dtype = self.features(batch), batch.weights.dtype
        if not self.head.has_output_layer:
            return features.to(dtype)
        if self.head.is_raw:
            with torch.autocast(self.device.type, enabled=False):
                return self.output_layer(features.to(dtype))
        if isinstance(features, tuple):
            return tuple(x.to(dtype) for x in self.output_layer(*features))
        return self.output_layer(features).to(dtype)

    def features(self, batch: Batch) -> Any:
        """The output layer's inputs in the order of the items; a tuple of two where it has two."""
        features = _features_of_texts(self, batch)
        return features if batch.features is None else torch.cat([features, batch.features], dim=1)

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Hidden states of all tokens in packed order, ``(n_tokens, size)``."""
        states = _packed_states(self, batch) if self.is_packed else _padded_states(self, batch)
        return joined(states, self.layer_join)

    def compile(self) -> None:
        """Compile the encoder on its next use, for batches of any length."""
        self.compiled = torch.compile(self.model.base_model, dynamic=True)

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Move the weights to a device and a type."""
        table = _word_table(self.model)
        if (table.device, table.dtype) != (device, dtype):
            with deferred_interrupts(), default_modes():
                self.model.to(device, dtype)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle with the weights on the CPU, so that any machine can open them."""
        state = {**vars(self), "compiled": None, "word_embedding": None, "tokenizer_copy": None}
        state["anatomy"] = has_own_modules(self)
        state["is_handed_out"] = not can_pack(self)  # nobody holds the copy's model
        model = without_recorders(self.model)
        state["model"] = model if self.device.type == "cpu" else copy.deepcopy(model).cpu()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a network; its modules count as unchanged unless they were changed before."""
        _set_all(self, state)
        self.anatomy = anatomy_of(self.model.eval()) if state["anatomy"] else ()


def joined(states: list[torch.Tensor], layer_join: LayerJoin) -> torch.Tensor:
    """The hidden states of several layers as one tensor."""
    if len(states) == 1:
        return states[0]
    if layer_join == "mean":
        return torch.stack(states).mean(dim=0)
    return torch.cat(states, dim=-1)


def twin_of(network: Network) -> Network:
    """Another network over the same model."""
    twin = object.__new__(type(network))
    _set_all(twin, vars(network))
    return twin


def _set_all(network: Network, attributes: Mapping[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(network, name, value)


def copy_network(network: Network, shared: Iterable[torch.Tensor] = ()) -> Network:
    """A copy of a network, with weights of its own except for those that are shared."""
    twin = twin_of(network)  # copy.copy pickles, which would move the weights to the CPU
    twin.model = copy.deepcopy(network.model, {id(tensor): tensor for tensor in shared})
    twin.compiled, twin.word_embedding = None, None
    twin.layer_runner = copy.copy(network.layer_runner)
    return twin


def has_pooler(network: Network) -> bool:
    """Whether the model has a pooler."""
    return optional_part(network.model.base_model, network.family.encoder.pooler) is not None


def has_states(network: Network) -> bool:
    """Whether the head reads of the encoder one vector a row, or a token, and nothing else."""
    reads, settings = network.head.reads, vars(network.model.config)
    is_last = reads == "rows" and network.head_class.is_pooled_last(settings, network.pooling)
    return reads in ("rows", "tokens") and not is_last


def inference_network(network: Network) -> Network:
    """The network to infer with; a twin with fresh caches where the model may have changed."""
    if not (network.is_handed_out or has_global_hooks()):
        return network
    network.model.eval()
    check_outputs(network)
    twin = twin_of(network)
    twin.layer_runner = Layers(is_enabled=network.layer_runner.is_enabled)
    twin.compiled = None  # which would run the modules that it was made of
    twin.is_packed = can_pack(twin)
    return twin


def check_outputs(network: Network) -> None:
    """Refuse an output layer of another size, which nothing knows how to read."""
    needed = network.head.n_outputs
    if not (network.head.has_output_layer and needed):
        return
    found = getattr(network.output_layer, "out_features", needed)
    if found != needed:
        raise ModelError(
            f"The output layer of model_ has {found} outputs, but {needed} are needed. Put back"
            " one with as many, or fit again."
        )


def has_own_modules(network: Network) -> bool:
    """Whether the model has the modules that it was opened with."""
    return anatomy_of(network.model) == network.anatomy


def is_as_opened(network: Network) -> bool:
    """Whether nobody changed the modules of the model, or hooked one."""
    return has_own_modules(network) and not is_hooked(network.model)


def runs_layers(network: Network) -> bool:
    """Whether layers of packed batches are computed one by one, not by the encoder as a whole."""
    return _has_layers(network) and network.compiled is None


def _has_layers(network: Network) -> bool:
    """Whether the layers of such a model can be computed on its device."""
    is_here = network.layer_runner.is_enabled and network.device.type in ("cpu", "cuda")
    return is_here and network.family.has_kernels


def can_pack(network: Network) -> bool:
    """Whether packed batches can be run, which needs a model that nobody changed."""
    model, family = network.model, network.family
    return (
        _supports_packing(model)
        and (_has_layers(network) or model.config._attn_implementation == packed.NAME)
        and is_as_opened(network)
        and counts_positions(network)
        and (not family.has_kernels or all(can_compute(family, x) for x in family.layers(model)))
    )


# --- forward -------------------------------------------------------------------------------------


def _features_of_texts(network: Network, batch: Batch) -> Any:
    """The result of ``Network.features``, without the numbers that come beside texts."""
    head_class = network.head_class
    if has_states(network):
        states = None if batch.states_after is not None else batch.states
        states = encoder_states(network, batch) if states is None else states
        return head_class.transform(network.model, above_states(network, states))
    hidden = network.hidden(batch)
    match network.head.reads:
        case "rows":  # are pooled after the head's own layers
            return pooled(network, head_class.transform(network.model, hidden), batch)
        case "selected tokens":
            return head_class.transform(network.model, hidden[batch.selected_tokens])
        case _:
            return hidden[batch.selected_tokens], pooled(network, hidden, batch)


def _packed_states(network: Network, batch: Batch) -> list[torch.Tensor]:
    """The hidden states that the network reads, of a packed batch."""
    family, layout = network.family, batch.layout
    layers = family.layers(network.model)
    read = network.layers or (len(layers),)
    if runs_layers(network):
        first, below = _below(network, batch)
        numbers = range(first, max(read))
        return network.layer_runner(family, network.model, numbers, below, layout, read)
    inputs = packed_inputs(network, batch)
    if not family.mixes_neighbours:
        return [states[0] for states in states_of(network, inputs, layout)]
    states = [embedded_apart(network, inputs, layout)]
    for layer in layers[: max(read)]:
        states.append(layer(states[-1], None, layout=layout))
    return [states[i][0] for i in read]


def _below(network: Network, batch: Batch) -> tuple[int, torch.Tensor]:
    """The number of the first layer to be run, from 0, and the states that it reads."""
    if batch.states is not None and batch.states_after is not None:
        return batch.states_after, batch.states
    return 0, embeddings_of(network, batch)


def _padded_parts(network: Network, batch: Batch) -> list[Padded]:
    """A packed batch as padded rows."""
    types = token_types(network, batch) if reads_token_types(network) else None
    return padded_parts(network.family, batch, network.model.config.pad_token_id or 0, types)


def states_of(
    network: Network, inputs: dict[str, torch.Tensor], layout: Layout | None = None
) -> list[torch.Tensor]:
    """The hidden states that the network reads, by the encoder's own forward pass.

    A packed batch has a layout.
    """
    layers, encoder = network.layers, network.model.base_model
    settings: dict[str, Any] = {"output_hidden_states": layers is not None}
    if layout is not None:
        settings["layout"] = layout
        encoder = encoder if network.compiled is None else network.compiled
    if getattr(network.model.config, "is_decoder", False):
        settings["use_cache"] = False
    if isinstance(network.model.base_model, TokenPooled):
        settings["is_pooled"] = False
    with _own_precision(network):
        out = encoder(**inputs, **settings)
    if layers is None:
        return [out.last_hidden_state]
    if max(layers) >= len(out.hidden_states):
        raise ModelError(
            f"model_ has {len(out.hidden_states) - 1} layers, but layer {max(layers)} is read. Put"
            " the others back, or fit anew with other layers."
        )
    return [out.hidden_states[i] for i in layers]


def _own_precision(network: Network) -> AbstractContextManager[object]:
    """Where the model's modules run: in the precision of its weights if they support no other."""
    if network.family.supports_autocast:
        return nullcontext()
    return torch.autocast(network.device.type, enabled=False)


def _padded_states(network: Network, batch: Batch) -> list[torch.Tensor]:
    """The hidden states that the network reads, of padded rows, in packed order."""
    parts = [
        [states[part.at] for states in states_of(network, part.inputs)]
        for part in _padded_parts(network, batch)
    ]
    return [torch.cat(states) for states in zip(*parts, strict=True)]


def _word_table(model: Any) -> torch.Tensor:
    """The weights of the word embeddings."""
    family = family_of(model)
    weight: torch.Tensor = encoder_part(model, family.encoder.word_table).weight
    return weight


def _supports_packing(model: Any) -> bool:
    """Whether the model's attention goes through transformers' attention interface."""
    return bool(getattr(model, "_supports_attention_backend", False))


def _logits_of_model(network: Network, batch: Batch) -> Any:
    """The result of ``Network.logits``, by the model's own forward pass over padded rows."""
    head = network.head
    outputs = [_fields_of_output(network, part) for part in _padded_parts(network, batch)]
    logits = [torch.cat(parts) for parts in zip(*outputs, strict=True)]
    if head.reads == "tokens":
        tokens = logits[0] if len(logits) == 1 else torch.stack(logits, -1)
        return in_order(tokens, batch.token_order).to(network.dtype)
    rows = in_order(logits[-1], batch.row_order).to(network.dtype)
    if head.reads == "rows":
        return rows
    words = logits[0][batch.selected_tokens].to(network.dtype)
    return words if head.reads == "selected tokens" else (words, rows)


# Which fields of an output a head reads, of two the words' first, and how many are by token.
_FIELDS = {
    "rows": (slice(-1, None), 0),
    "tokens": (slice(None), 2),
    "selected tokens": (slice(1), 1),
    "selected tokens and rows": (slice(None), 1),
}


def _fields_of_output(network: Network, part: Padded) -> list[torch.Tensor]:
    """What the model returns for padded rows: for tokens in packed order, else by row."""
    inputs, (which, n_by_token) = part.inputs, _FIELDS[network.head.reads]
    if network.head.job == "multiple choice":
        inputs = {name: rows[:, None] for name, rows in inputs.items()}
    raw = network.head.is_raw and torch.autocast(network.device.type, enabled=False)
    with raw or _own_precision(network):
        out = network.model(**inputs)
    fields = [out[name] for name in network.family.head_of(network.model).logits[which]]
    return [field[part.at] if i < n_by_token else field for i, field in enumerate(fields)]
