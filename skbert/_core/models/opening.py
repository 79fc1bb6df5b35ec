"""Opens a vetted checkpoint folder, or makes a new model: a network of model and tokenizer.

The only module that imports transformers. Asks the record of a model's family for its classes;
knows no task.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from typing import Any

import torch
import transformers
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as library_logging

from skbert._core.attention import packed
from skbert._core.attention.pooling import POOLER
from skbert._core.attention.pruned import prune
from skbert._core.attention.relative import add_distances
from skbert._core.checkpoints.merging import merge_adapter
from skbert._core.checkpoints.tokenizer_files import TokenizerFiles
from skbert._core.checkpoints.vet import Checkpoint
from skbert._core.checkpoints.weights import (
    check_finite,
    check_missing,
    read_weights,
    warn_of_decoder,
    warn_of_odd_use,
)
from skbert._core.families import FAMILIES, family_of
from skbert._core.families.record import Family
from skbert._core.families.tokenizers import AS_DESCRIBED, TokenizerFormat
from skbert._core.items import Head
from skbert._core.models.intact import anatomy_of
from skbert._core.models.network import (
    Network,
    can_pack,
    has_own_modules,
    has_pooler,
)
from skbert._core.models.new_model import Lowercase, NewModel, special_ids
from skbert._core.models.opened_tokenizer import check_opened, temporary_folder
from skbert._core.models.output import draw_head_layers, draw_output, widen_output
from skbert._core.models.pooled import TokenPooled
from skbert._core.models.vocabulary import Pieces, described
from skbert._core.runtime.device import is_out_of_memory
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert._core.runtime.modes import default_modes, single_precision
from skbert.exceptions import InputError, ModelError, SkbertError

__all__ = ["PreTrainedModel", "PreTrainedTokenizerBase", "as_configured", "copy_encoder",
           "drop_pooler", "network_of", "new_tokenizer", "open_network", "quiet"]  # fmt: skip

# Settings that a new head does not take on.
_OF_A_HEAD = ("id2label", "label2id", "skbert_targets", "skbert_scheme", "skbert_max_length")

_ATTENTIONS: Any = AttentionInterface()  # type: ignore[no-untyped-call]
_MASKS: Any = AttentionMaskInterface()  # type: ignore[no-untyped-call]
_ATTENTIONS.register(packed.NAME, partial(packed.packed_or_padded, sdpa=_ATTENTIONS["sdpa"]))
_MASKS.register(packed.NAME, partial(packed.padding_mask, sdpa=_MASKS["sdpa"]))


@cache
def _pooled_class(encoder_class: type, config_class: str) -> type:
    """The class of an encoder with a pooled output of its own, such as ``PooledBertModel``."""
    name = f"Pooled{encoder_class.__name__}"
    pooled = type(name, (TokenPooled, encoder_class), {"__module__": __name__})
    # transformers knows what a class can record (output_attentions) once a model of it was made.
    with torch.device("meta"):
        pooled(getattr(transformers, config_class)(num_hidden_layers=1, vocab_size=200_000))
    return pooled


def __getattr__(name: str) -> type:
    """The class of a pooled encoder, which pickle looks up by its name."""
    for family in FAMILIES.values():
        if name == f"Pooled{family.head_class('embedding').name}":
            return _pooled_class(_encoder_class(family), family.config_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _encoder_class(family: Family) -> type:
    encoder_class: type = getattr(transformers, family.head_class("embedding").name)
    return encoder_class


def _turn_pooling(encoder: PreTrainedModel | TokenPooled) -> None:
    """Give an encoder a pooled output of its own, or that of its class back."""
    family = family_of(encoder)
    own = _encoder_class(family)
    is_pooled = isinstance(encoder, TokenPooled)
    encoder.__class__ = own if is_pooled else _pooled_class(own, family.config_class)


def has_other_class(model: PreTrainedModel, head: Head, pooling: str) -> bool:
    """Whether a head reads rows of an encoder whose class is not one for this pooling."""
    if not (head.has_output_layer and head.reads == "rows"):
        return False
    own = family_of(model).head_class(head.job).own_pooling(vars(model.config))
    return isinstance(model.base_model, TokenPooled) != (pooling != own)


def network_of(model: Any, tokenizer: Any, head: Head, pooling: str) -> Network:
    """The network of a model whose modules are those of its class."""
    if has_other_class(model, head, pooling):
        _turn_pooling(model.base_model)
    network = Network(model, tokenizer, head, pooling)
    if head.reads == "rows" and pooling == POOLER and not has_pooler(network):
        raise ModelError(
            f"pooling={POOLER!r}, but a {type(model).__name__} has no pooler. Use pooling='cls' or"
            " 'mean'."
        )
    return network


def copy_encoder(network: Network, head: Head, pooling: str, dtype: torch.dtype) -> Network:
    """A network of a copy of another network's encoder, changes by a caller included."""
    body = copy.deepcopy(network.model.base_model).eval().to(dtype)
    if isinstance(body, TokenPooled):
        _turn_pooling(body)
    if network.head.is_causal:
        warn_of_decoder("The fitted model")
        _read_both_ways(body)
    twin = Network(body, network.tokenizer, head, pooling)
    if not has_own_modules(network):
        twin.anatomy = ()
    twin.is_handed_out = not can_pack(network)
    return twin


def _read_both_ways(encoder: PreTrainedModel) -> None:
    """Let tokens attend to those after them, as they do where a decoder's files are opened."""
    encoder.config.is_decoder = False
    for module in encoder.modules():
        for name in {"is_decoder", "is_causal"} & vars(module).keys():
            setattr(module, name, False)


@deferred_interrupts()
@default_modes()
def open_network(
    checkpoint: Checkpoint | NewModel,
    head: Head,
    *,
    pooling: str = "auto",
    dtype: torch.dtype = torch.float32,
    fresh_head: bool = True,
) -> Network:
    """Open a vetted checkpoint with a head, or make a new model.

    All weights of a new model, a fresh head, and a pooler that the checkpoint lacks, are drawn
    from torch's global generator: seed it. With ``fresh_head=False`` the checkpoint must bring
    its head.
    """
    if pooling == "auto":
        pooling = _own_pooling(checkpoint, head, fresh_head=fresh_head)
    if isinstance(checkpoint, NewModel):
        return network_of(*_make(checkpoint, head, dtype, pooling), head, pooling)
    head_class = checkpoint.family.head_class(head.job)
    with _model_errors(checkpoint):
        model, missing = _quietly_load(checkpoint, head, dtype, pooling, keep_head=not fresh_head)
        if checkpoint.adapter is not None:
            missing -= merge_adapter(model, checkpoint.adapter, checkpoint.family)
        checkpoint.check_unchanged()
    check_missing(checkpoint, head, missing, fresh_head=fresh_head)
    warn_of_odd_use(checkpoint, head, missing, pooling)
    if fresh_head and head.fresh:
        draw_output(model, head_class.output_layer)
        draw_head_layers(model, head_class, missing)
    check_finite(checkpoint, model, head_class.output_layer)
    with _model_errors(checkpoint):
        tokenizer = _open_tokenizer(checkpoint)
    return network_of(model.eval(), tokenizer, head, pooling)


@contextmanager
def _model_errors(checkpoint: Checkpoint) -> Iterator[None]:
    """Turn whatever a library raises about a folder into a ModelError."""
    try:
        yield
    except (SkbertError, MemoryError):
        raise
    except BaseException as error:
        # A panic in compiled code is no Exception.
        is_panic = type(error).__name__ == "PanicException"
        if is_out_of_memory(error) or not (isinstance(error, Exception) or is_panic):
            raise
        raise ModelError(
            f"{checkpoint.folder} does not open: {type(error).__name__}: {str(error)[:500]}."
            " Restore config.json, the tokenizer and the weights from a whole copy of the model."
        ) from error


def _own_pooling(checkpoint: Checkpoint | NewModel, head: Head, *, fresh_head: bool) -> str:
    """The pooling that a checkpoint declares; else, and for pre-training, that of the class."""
    own = checkpoint.family.head_class(head.job).own_pooling(checkpoint.config)
    if not head.fresh and "rows" in head.reads:
        return own
    declared = _declared_pooling(checkpoint, head) if fresh_head else checkpoint.head_pooling
    if head.reads == "tokens":  # for others, who may read vectors of rows
        own = checkpoint.family.head_class("embedding").own_pooling(checkpoint.config)
    return declared or ("mean" if head.reads == "selected tokens" else own)


def _declared_pooling(checkpoint: Checkpoint | NewModel, head: Head) -> str | None:
    """The pooling that a checkpoint declares, which must be all that a head over rows needs."""
    if head.reads == "rows" and isinstance(checkpoint, Checkpoint):
        checkpoint.check_row_vector()
    return checkpoint.pooling


def _make(new_model: NewModel, head: Head, dtype: torch.dtype, pooling: str) -> tuple[Any, Any]:
    """A new model with random weights, and its tokenizer."""
    family, head_class = new_model.family, new_model.family.head_class(head.job)
    tokenizer = new_tokenizer(new_model.tokenizer, new_model.pieces, new_model.lowercase)
    config_class = getattr(transformers, family.config_class)
    defaults, ids = config_class(), special_ids(family)
    config = config_class(
        **family.own_settings(new_model.config),
        **head_class.pooled_settings(pooling, new_model.config),
        **{key: ids[key] for key in ids if getattr(defaults, key, None) is not None},
        is_decoder=head.is_causal,
    )
    config.vocab_size = max(config.vocab_size, len(tokenizer))  # some classes add tokens
    positions, padding = config.max_position_embeddings, config.pad_token_id
    tokenizer.model_max_length = family.max_length(positions, padding)
    with quiet(), single_precision():  # weights are drawn in float32 and converted afterwards
        model = as_configured(getattr(transformers, head_class.name))(config).to(dtype).eval()
    return model, tokenizer


def new_tokenizer(kind: TokenizerFormat, pieces: Pieces, lowercase: Lowercase) -> Any:
    """A tokenizer of the usual class of a kind.

    Raises
    ------
    InputError
        If the class cannot read texts in lower case, but is asked to.
    """
    tokenizer_class, settings = getattr(transformers, kind.new_class), pieces.settings(kind)
    if kind.new_class in AS_DESCRIBED:
        settings = {**kind.specials, "tokenizer_object": described(kind, pieces)}
    if kind.model != "WordPiece":  # as in all their checkpoints: "a <mask>" has one blank
        mask = kind.specials["mask_token"]
        settings["mask_token"] = transformers.AddedToken(mask, lstrip=True, special=True)
    if "do_lower_case" in inspect.signature(tokenizer_class).parameters:
        settings |= {} if lowercase == "auto" else {"do_lower_case": lowercase}
    elif lowercase is True:
        raise InputError(
            f"lowercase=True, but a new model of this family has a {kind.name} tokenizer that"
            " reads texts as they are written. Use lowercase='auto', or make the texts lower case."
        )
    return tokenizer_class(**settings)


@contextmanager
def quiet() -> Iterator[None]:
    """Show no progress bar and no report of the library; restore its settings at the end."""
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
    checkpoint: Checkpoint, head: Head, dtype: torch.dtype, pooling: str, *, keep_head: bool
) -> tuple[Any, set[str]]:
    """The model, and the names of the weights that the checkpoint lacks."""
    head_class = checkpoint.family.head_class(head.job)
    settings = checkpoint.config | head_class.pooled_settings(pooling, checkpoint.config)
    model_class = getattr(transformers, head_class.name)
    loader = as_configured(model_class, settings.pop("pruned_heads", None), head)
    if not keep_head:
        settings = {k: v for k, v in settings.items() if k not in _OF_A_HEAD}
    with quiet():
        config = transformers.AutoConfig.for_model(**checkpoint.family.own_settings(settings))
        config.is_decoder = head.is_causal
        if not keep_head:
            config.num_labels = head.n_outputs or 2
            config.problem_type = None
        model, loaded = loader.from_pretrained(
            None,  # nothing of the folder is read but what was vetted
            state_dict=read_weights(checkpoint),
            config=config,
            dtype=dtype,
            attn_implementation="sdpa" if model_class._supports_sdpa else "eager",
            local_files_only=True,
            ignore_mismatched_sizes=True,  # they count as missing here
            output_loading_info=True,
        )
    model.config.name_or_path = model.name_or_path = str(checkpoint.folder)
    return model, {*loaded["missing_keys"], *(name for name, *_ in loaded["mismatched_keys"])}


def as_configured(
    model_class: Any, pruned: dict[str, list[int]] | None = None, head: Head | None = None
) -> Any:
    """A class that makes models of ``model_class``, with relative positions and pruned heads.

    These modules, and the inputs of the output layer, are there before weights are loaded.
    """

    def make(self: Any, config: Any) -> None:
        model_class.__init__(self, config)
        self.__class__ = model_class
        add_distances(self)
        for module in self.modules():
            if "chunk_size_feed_forward" in vars(module):
                # transformers needs chunks of equal size; the layers here do not.
                module.chunk_size_feed_forward = 0
        if pruned:
            prune(self, pruned)
        if head:
            widen_output(self, head)

    name = {"__module__": model_class.__module__, "__qualname__": model_class.__qualname__}
    return type(model_class.__name__, (model_class,), {**name, "__init__": make})


def _open_tokenizer(checkpoint: Checkpoint) -> Any:
    """The tokenizer; the one that was opened last, if that was from the same files."""
    files = checkpoint.tokenizer
    words = None if files.words is None else (*files.words.items(),)
    tokenizer = _read_tokenizer(
        str(checkpoint.folder), checkpoint.max_length, (*files.members.items(),), files.lowercase,
        words,
    )  # fmt: skip
    _check_opened(str(checkpoint.folder), files, checkpoint.config["vocab_size"], tokenizer)
    return tokenizer


@lru_cache(maxsize=1)
def _check_opened(
    name: str, files: TokenizerFiles, vocab_size: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    """Check a tokenizer that was opened, once for the same files."""
    check_opened(name, files, vocab_size, tokenizer.backend_tokenizer)


@lru_cache(maxsize=1)
def _read_tokenizer(
    name: str, max_length: int, members: tuple[tuple[str, bytes], ...], lowercase: bool | None,
    words: tuple[tuple[str, int], ...] | None,
) -> Any:  # fmt: skip
    """The tokenizer of files, opened from a temporary folder that holds nothing else.

    Whether it makes text lower case is passed on, as the library would assume that it does.
    """
    declared = {"do_lower_case": lowercase, "vocab": None if words is None else dict(words)}
    with temporary_folder(dict(members)) as scratch, quiet():
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            scratch,
            local_files_only=True,
            trust_remote_code=False,
            **{key: value for key, value in declared.items() if value is not None},
        )
    backend = tokenizer.backend_tokenizer
    backend.no_padding()  # a file may pad to any length
    backend.no_truncation()
    tokenizer.name_or_path = tokenizer.init_kwargs["name_or_path"] = name
    tokenizer.model_max_length = max_length
    return tokenizer


def drop_pooler(network: Network) -> None:
    """Remove the pooler, which nothing reads."""
    if has_pooler(network):
        home, _, name = network.family.encoder.pooler.rpartition(".")
        setattr(network.model.base_model.get_submodule(home), name, None)
    network.anatomy = anatomy_of(network.model)
