"""A vetted checkpoint folder opened, or a new BERT made: model, tokenizer, and what runs them.

The only module that imports transformers. Knows heads by the name of their class and by
what they read; knows no task.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from transformers import AttentionInterface, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging as library_logging

from skbert._core import packed
from skbert._core.blank import Blank
from skbert._core.interrupts import held
from skbert._core.layers import Layers
from skbert._core.modes import default_modes, single_precision
from skbert._core.pruned import prune
from skbert._core.relative import add_distances
from skbert._core.rows import RowGradients
from skbert._core.source import Checkpoint
from skbert._core.task import Batch, Head
from skbert._core.tokens import IntArray, TextTokenizer
from skbert._core.weights import check_finite, check_missing, read_weights, warn_of_odd_use
from skbert.exceptions import ModelError, SkbertError

__all__ = [
    "Network",
    "PreTrainedModel",
    "PreTrainedTokenizerBase",
    "copy_network",
    "open_network",
    "write_folder",
]

AttentionInterface.register(packed.NAME, packed.attention)


class Network:
    """A model with one head, run on packed batches.

    Attributes
    ----------
    model : transformers.PreTrainedModel
        The transformers model of the head's class, weights and all.
    tokenizer : transformers.PreTrainedTokenizerBase
        The tokenizer as transformers opens it.
    text : TextTokenizer
        The same tokenizer's raw backend, which skbert reads text with.
    head : Head
        What the head reads and how many outputs it has.
    pooling : str
        ``pooler``, ``cls``, ``mean``, ``max`` or ``mean_max``: how tokens become the vector of
        a row.
    layers : tuple of int or None
        Hidden states that are joined to one, 0 for the embeddings; None is the last layer's.
    layer_join : str
        ``mean`` averages these states, ``concat`` puts them side by side.
    packs : bool
        Whether the model's attention takes packed batches; else rows are padded inside.
    """

    def __init__(self, model: Any, tokenizer: Any, head: Head, pooling: str) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.text = TextTokenizer(tokenizer.backend_tokenizer)
        self.head = head
        self.pooling = pooling
        self.layers: tuple[int, ...] | None = None
        self.layer_join = "mean"
        self.packs = _takes_packed_batches(model)
        model.config.skbert_pooling = pooling  # goes into config.json, and comes back from there
        self.compiled: Any = None  # the encoder's layers, compiled on demand
        self.words: RowGradients | None = None  # while training on a CPU
        self.through = Layers()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        device: torch.device = self.model.device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the weights."""
        dtype: torch.dtype = self.model.dtype
        return dtype

    @property
    def max_length(self) -> int:
        """Positions that the model knows, 512 at most."""
        return min(512, int(self.model.config.max_position_embeddings))

    @property
    def output_layer(self) -> Any:
        """What gives the logits: a linear layer, or for word pieces a small network."""
        return self.model.get_submodule(self.head.layer)

    def logits(self, batch: Batch) -> Any:
        """Forward pass: one row of outputs for each row, token or chosen token.

        A tuple of two such tables where the head reads chosen tokens and rows.
        """
        features = self.features(batch)
        if not self.head.layer:
            return features.to(self.dtype)
        if isinstance(features, tuple):
            return tuple(x.to(self.dtype) for x in self.output_layer(*features))
        if hasattr(self.model, "dropout"):  # the model for spans has none before its head
            features = self.model.dropout(features)
        return self.output_layer(features).to(self.dtype)

    def features(self, batch: Batch) -> Any:
        """What the head reads, in the order of the items; a tuple where that is two things."""
        hidden = self.hidden(batch)
        match self.head.reads:
            case "tokens":
                return hidden if batch.token_order is None else hidden[batch.token_order]
            case "rows":
                return _pooled(self, hidden, batch)
            case "chosen":
                return hidden[batch.chosen]
        return hidden[batch.chosen], _pooled(self, hidden, batch)

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Hidden states of all tokens in packed order, ``(n_tokens, size)``."""
        states = self._packed(batch) if self.packs else self._padded(batch)
        if len(states) == 1:
            return states[0]
        if self.layer_join == "mean":
            return torch.stack(states).mean(dim=0)
        return torch.cat(states, dim=1)

    def _packed(self, batch: Batch) -> list[torch.Tensor]:
        body = self.model.base_model
        look_up = self.words or body.embeddings.word_embeddings
        states = body.embeddings(
            inputs_embeds=look_up(batch.ids),
            position_ids=batch.positions,
            token_type_ids=batch.segments,
        )
        if self.compiled is not None and self.layers is None:
            out = self.compiled(states, attention_mask=None, layout=batch.layout)
            return [out.last_hidden_state[0]]
        read = self.layers or (len(body.encoder.layer),)
        found = [states[0], *self.through(body.encoder.layer[: max(read)], states, batch.layout)]
        return [found[i] for i in read]

    def _padded(self, batch: Batch) -> list[torch.Tensor]:
        layout = batch.layout
        at = (layout.row_of_token, batch.positions[0])
        shape = (len(layout.lengths), layout.longest)
        ids, segments, mask = (batch.ids.new_zeros(shape) for _ in range(3))
        ids[at], segments[at], mask[at] = batch.ids[0], batch.segments[0], 1
        out = self.model.base_model(
            input_ids=ids, token_type_ids=segments, attention_mask=mask,
            output_hidden_states=self.layers is not None,
        )  # fmt: skip
        if self.layers is None:
            return [out.last_hidden_state[at]]
        return [out.hidden_states[i][at] for i in self.layers]

    def compile(self) -> None:
        """Compile the encoder's layers on their next use, for batches of any length."""
        self.compiled = torch.compile(self.model.base_model.encoder, dynamic=True)

    def to(self, device: torch.device, dtype: torch.dtype) -> None:
        """Have the weights on that device and of that type."""
        if (self.device, self.dtype) != (device, dtype):
            with held(), default_modes():
                self.model.to(device, dtype)

    def grow(self, n_outputs: int, kept: IntArray) -> None:
        """Give the output layer ``n_outputs`` outputs; output i of now becomes ``kept[i]``.

        The new ones start as in ``open_network``, from torch's global generator.
        """
        old = self.output_layer
        where = {"device": old.weight.device, "dtype": old.weight.dtype}
        setattr(self.model, self.head.layer, torch.nn.Linear(old.in_features, n_outputs, **where))
        _draw(self.model, self.head)
        with torch.no_grad():
            self.output_layer.weight[kept] = old.weight
            self.output_layer.bias[kept] = old.bias
        self.head = replace(self.head, n_outputs=n_outputs)
        self.model.num_labels = self.model.config.num_labels = n_outputs

    def scale_output(self, factor: Any, shift: Any = 0.0) -> None:
        """Have the output layer give ``factor * logits + shift``; both per output or numbers."""
        layer = self.output_layer
        factor, shift = (torch.as_tensor(x).to(layer.weight) for x in (factor, shift))
        with torch.no_grad():
            layer.weight *= factor.reshape(-1, 1)
            layer.bias.mul_(factor).add_(shift)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle with the weights on the CPU, so that any machine can open them."""
        state = {**self.__dict__, "compiled": None, "words": None}
        if self.device.type != "cpu":
            state["model"] = copy.deepcopy(self.model).cpu()
        return state


def copy_network(network: Network, shared: Iterable[torch.Tensor] = ()) -> Network:
    """A network of the same kind with weights of its own, but for those that are shared."""
    twin = object.__new__(Network)  # of a pickle, copy.copy would take the weights to the CPU
    model = copy.deepcopy(network.model, {id(tensor): tensor for tensor in shared})
    twin.__dict__.update(network.__dict__, model=model, compiled=None, words=None)
    twin.through = copy.copy(network.through)
    return twin


def _pooled(network: Network, hidden: torch.Tensor, batch: Batch) -> torch.Tensor:
    """One vector per row, in the order of the items."""
    if network.pooling == "pooler":
        first = packed.pool(hidden, batch.layout, "cls")
        pooled: torch.Tensor = network.model.base_model.pooler(first[:, None])
    else:
        ways = network.pooling.split("_")
        parts = [packed.pool(hidden.to(network.dtype), batch.layout, way) for way in ways]
        pooled = torch.cat(parts, dim=1)
    return pooled if batch.row_order is None else pooled[batch.row_order]


def _takes_packed_batches(model: Any) -> bool:
    """Whether attention goes through the interface."""
    taken = bool(getattr(model, "_supports_attention_backend", False))
    model.config._attn_implementation = packed.NAME if taken else "sdpa"
    return taken


@held()
@default_modes()
def open_network(
    checkpoint: Checkpoint | Blank,
    head: Head,
    *,
    pooling: str = "auto",
    dtype: torch.dtype = torch.float32,
    fresh_head: bool = True,
) -> Network:
    """Open a vetted checkpoint with the given head, or make a new model.

    All weights of a new model, a fresh head, and a pooler that the checkpoint lacks, are drawn
    from torch's global generator: seed it. With ``fresh_head=False`` the checkpoint must bring
    its own head.
    """
    if pooling == "auto":
        pooling = _own_pooling(checkpoint, head, fresh_head=fresh_head)
    if isinstance(checkpoint, Blank):
        return Network(*_make(checkpoint, head, dtype), head, pooling)
    with _refusing(checkpoint):
        model, missing = _quietly_load(checkpoint, head, dtype, keep_head=not fresh_head)
    check_missing(checkpoint, head, missing, fresh_head=fresh_head)
    warn_of_odd_use(checkpoint, head, missing, pooling)
    if fresh_head and head.fresh:
        _draw(model, head)
    check_finite(checkpoint, model, head.layer)
    with _refusing(checkpoint):
        tokenizer = _open_tokenizer(checkpoint)
    return Network(model.eval(), tokenizer, head, pooling)


@contextmanager
def _refusing(checkpoint: Checkpoint) -> Iterator[None]:
    """Whatever a library raises at a folder, the folder cannot be opened."""
    try:
        yield
    except (SkbertError, MemoryError):
        raise
    except BaseException as error:
        # A panic in compiled code is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(
            f"{checkpoint.folder} does not open: {type(error).__name__}: {str(error)[:500]}."
            " Restore config.json, the tokenizer and the weights from a whole copy of the model."
        ) from error


def _own_pooling(checkpoint: Checkpoint | Blank, head: Head, *, fresh_head: bool) -> str:
    """What the checkpoint declares, but BERT's own heads for rows have always read its pooler."""
    if not head.fresh and "rows" in head.reads:
        return "pooler"
    declared = checkpoint.pooling if fresh_head else checkpoint.head_pooling
    return declared or ("mean" if head.reads == "chosen" else "pooler")


def _make(blank: Blank, head: Head, dtype: torch.dtype) -> tuple[Any, Any]:
    """A model with random weights, and its tokenizer."""
    config = transformers.BertConfig(**blank.config, is_decoder=head.causal)
    with _quiet(), single_precision():  # whose numbers are drawn, whatever they become then
        model = _altered(getattr(transformers, head.model))(config).to(dtype).eval()
    tokenizer = transformers.BertTokenizer(
        vocab=blank.vocabulary, do_lower_case=blank.lowercase, model_max_length=blank.max_length
    )
    return model, tokenizer


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar and no report of the library inside; its settings as they were after."""
    verbosity, bar = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    library_logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    library_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        library_logging.set_verbosity(verbosity)
        if bar:
            library_logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _quietly_load(
    checkpoint: Checkpoint, head: Head, dtype: torch.dtype, *, keep_head: bool
) -> tuple[Any, set[str]]:
    """The model, and the weights it lacks; without the library's bar and report of them."""
    settings = dict(checkpoint.config)
    kind = _altered(getattr(transformers, head.model), settings.pop("pruned_heads", None))
    config = transformers.AutoConfig.for_model(**settings)
    config.is_decoder = head.causal
    if not keep_head:
        config.num_labels = head.n_outputs or 2
        config.problem_type = None
    with _quiet():
        model, loaded = kind.from_pretrained(
            None,  # nothing of the folder is read but what was vetted
            state_dict=read_weights(checkpoint),
            config=config,
            dtype=dtype,
            attn_implementation="sdpa",
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they count as missing here
            output_loading_info=True,
        )
    for parameter in model.parameters():  # aligned alike however the file was laid out
        parameter.data = parameter.data.clone()
    model.config.name_or_path = model.name_or_path = str(checkpoint.folder)
    return model, {*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])}


def _altered(kind: Any, lost: dict[str, list[int]] | None = None) -> Any:
    """Makes a model of that class, which before weights are loaded is what its settings say."""

    def make(self: Any, config: Any) -> None:
        kind.__init__(self, config)
        self.__class__ = kind
        add_distances(self)
        for layer in self.base_model.encoder.layer:
            layer.chunk_size_feed_forward = 0  # its chunks must all be full; ours need not
        if lost:
            prune(self, lost)

    same_name = {"__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), {**same_name, "__init__": make})


def _open_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer, from a folder of its own that holds nothing but what was vetted.

    The library takes it for a lower-casing one unless told what it is.
    """
    files = checkpoint.tokenizer
    declared = {"do_lower_case": files.lowercase, "vocab": files.words}
    with TemporaryDirectory() as scratch, _quiet():
        for name, data in files.members.items():
            (Path(scratch) / name).write_bytes(data)
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            scratch,
            local_files_only=True,
            trust_remote_code=False,
            **{key: value for key, value in declared.items() if value is not None},
        )
    _check_opened(checkpoint, tokenizer.backend_tokenizer)
    tokenizer.name_or_path = tokenizer.init_kwargs["name_or_path"] = str(checkpoint.folder)
    return tokenizer


def _check_opened(checkpoint: Checkpoint, backend: Any) -> None:
    """What was opened must be what was vetted: each token with its id, and text left as tokens."""
    vetted, size = checkpoint.tokenizer.vocabulary, checkpoint.config["vocab_size"]
    opened = backend.get_vocab(with_added_tokens=True)
    for token, number in opened.items() if opened != vetted else ():
        if vetted.get(token, number) != number or number >= size:
            raise ModelError(
                f"the tokenizer in {checkpoint.folder} opens with the id {number} for {token!r},"
                f" but its files say {vetted.get(token, 'nothing of it')} and config.json says"
                f" vocab_size={size}. Put in the tokenizer that the model was trained with."
            )
    if backend.encode("a", "a").special_tokens_mask.count(0) < 2:
        raise ModelError(
            f"the tokenizer in {checkpoint.folder} leaves nothing of the text 'a': its normalizer"
            " or pre_tokenizer removes letters. Put in the tokenizer that the model was trained"
            " with."
        )


def _draw(model: Any, head: Head) -> None:
    """New weights for the output layer, if there is one, as BERT's authors start one."""
    if not head.layer:
        return
    layer = model.get_submodule(head.layer)
    torch.nn.init.normal_(layer.weight, std=model.config.initializer_range)
    torch.nn.init.zeros_(layer.bias)


@held()
def write_folder(network: Network, folder: Path, *, weights: bool = True) -> None:
    """Write a plain transformers folder: configuration, safetensors and tokenizer files."""
    config = network.model.config
    lost = getattr(config, "pruned_heads", None)
    positions = getattr(config, "position_embedding_type", "absolute")
    if weights and (lost or positions != "absolute"):
        why = f"has lost the heads {lost}" if lost else f"has {positions!r} positions"
        raise ModelError(
            f"The model {why}, and transformers cannot open such a model. Use save(path): every "
            "estimator takes that folder as model=."
        )
    with _quiet():
        (network.model if weights else config).save_pretrained(folder)
        network.tokenizer.save_pretrained(folder)
