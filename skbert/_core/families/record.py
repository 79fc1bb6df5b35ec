"""What a record says of an architecture: its classes, where its modules lie, what its files hold.

Depends on `tokenizers` beside it, and on the errors of skbert.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

from skbert._core.families.tokenizers import TokenizerFormat
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    import torch

__all__ = [
    "AttentionNames",
    "Check",
    "EncoderPaths",
    "Family",
    "HeadClass",
    "Job",
    "LayerParts",
    "PreNorm",
    "PreNormParts",
    "Size",
    "Step",
    "check_own_heads",
    "encoder_part",
    "optional_part",
]

Part = TypeVar("Part")
Step = str | Callable[["torch.Tensor"], "torch.Tensor"]  # the path of a module, or a function
Check = tuple[Callable[[object], bool], str]  # of a setting: is it right, and what would be

Job = Literal[
    "embedding",
    "sequence classification",
    "token classification",
    "question answering",
    "multiple choice",
    "masked language modelling",
    "causal language modelling",
    "next sentence prediction",
    "pre-training",
]


class EncoderPaths(NamedTuple):
    """Where the modules of an encoder lie in ``model.base_model``."""

    embeddings: str  # of words, and of positions and token types where there are such tables
    word_table: str
    layers: str
    position_table: str = ""  # "" where there is none, or nobody reads it, as for the paths below
    type_table: str = ""
    embedding_norm: str = ""  # named where embeddings are the norm of the tables' sum, no more
    embedding_dropout: str = ""  # after that norm
    projection: str = ""  # from embeddings to hidden states; some models have none
    pooler: str = ""
    pooler_activation: str = ""  # where the pooler is a mere linear layer


class LayerParts(NamedTuple, Generic[Part]):
    """The modules of one layer, or where they lie in it."""

    attention: Part  # knows what AttentionNames names
    query: Part
    key: Part
    value: Part
    attention_out: Part
    attention_dropout: Part  # after attention_out; "", and None for a module, where there is none
    attention_norm: Part
    mlp_in: Part
    activation: Part
    mlp_out: Part
    mlp_dropout: Part
    mlp_norm: Part

    @property
    def qkv(self) -> tuple[Part, Part, Part]:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def norms(self) -> tuple[Part, Part]:
        """After attention, and at the end of the layer."""
        return self.attention_norm, self.mlp_norm


class PreNormParts(NamedTuple, Generic[Part]):
    """The modules of one layer that normalises what it reads, or where they lie in it."""

    attention: Part  # knows what AttentionNames names
    attention_norm: Part  # before qkv; may be an identity
    query_key_value: Part  # side by side
    attention_out: Part
    attention_dropout: Part  # after attention_out; may be an identity
    mlp_norm: Part  # before mlp_in
    mlp_in: Part  # the input of the activation, and a gate beside it
    activation: Part
    gate_dropout: Part  # before mlp_out
    mlp_out: Part

    @property
    def qkv(self) -> tuple[Part]:
        """Query, key and value."""
        return (self.query_key_value,)


class PreNorm(NamedTuple):
    """Layers that normalise what they read, with gates and rotary positions."""

    parts: PreNormParts[str]
    final_norm: str  # path in ``model.base_model``, as the next
    rotary: str  # from states, positions and the kind of a layer to cosines and sines
    kind: str  # attribute of a layer, which says how far it sees
    sliding_window: str  # attribute of its attention module


class AttentionNames(NamedTuple):
    """Names of attributes of a layer's attention module, which differ among families."""

    n_heads: str
    head_size: str
    width: str  # of all heads side by side
    scaling: str  # of scores; where a module lacks it, they are divided by the usual root
    dropout: str  # for the attention weights, a module or a rate


@dataclass(frozen=True)
class HeadClass:
    """The transformers class for a job: where its last layers lie, and what it returns."""

    name: str
    pooling: str  # of the rows that the class reads; where it reads none, that a saved model names
    output_layer: str = "classifier"  # path in the model; "" where there is none
    steps: tuple[Step, ...] = ()  # from what the head reads to what its output layer reads
    logits: tuple[str, ...] = ("logits",)  # fields of its output; of two, tokens first
    # Where config.json says what the class reads: the setting, and its value for each pooling.
    pooling_setting: str = ""
    poolings: Mapping[str, str] = field(default_factory=dict)
    pooled_last: str = ""  # a further value: tokens take the steps, and their mean is read

    @property
    def prefixes(self) -> tuple[str, ...]:
        """What the names of the head's weights begin with, and no others."""
        paths = (self.output_layer, *(step for step in self.steps if isinstance(step, str)))
        return tuple(f"{path}." for path in paths if path)

    def transform(self, model: torch.nn.Module, features: torch.Tensor) -> torch.Tensor:
        """What the output layer reads, from what the head reads."""
        for step in self.steps:
            run = model.get_submodule(step) if isinstance(step, str) else step
            features = run(features)
        return features

    def pooled_settings(self, pooling: str, config: Mapping[str, Any]) -> dict[str, str]:
        """What config.json has to say so that the class reads that pooling, or the first token."""
        is_set = self.pooling_setting and self.output_layer
        if not is_set or self.is_pooled_last(config, pooling):
            return {}
        return {self.pooling_setting: self.poolings.get(pooling, self.poolings["cls"])}

    def own_pooling(self, config: Mapping[str, Any]) -> str:
        """The pooling of the rows that the class reads in a model of this configuration."""
        said = config.get(self.pooling_setting)
        return next((name for name, value in self.poolings.items() if value == said), self.pooling)

    def is_pooled_last(self, config: Mapping[str, Any], pooling: str) -> bool:
        """Whether the head takes its steps for each token, and pools what they give."""
        said = config.get(self.pooling_setting)
        return bool(self.pooled_last) and said == self.pooled_last and pooling == self.pooling


class Size(NamedTuple):
    """A whole number in config.json."""

    default: int  # where config.json says nothing
    least: int
    most: int


@dataclass(frozen=True, eq=False)
class Family:
    """The record of an architecture, of which there is one."""

    model_type: str  # in config.json
    config_class: str
    settings: Mapping[str, str]  # what config.json calls a common setting, where it does otherwise
    sizes: Mapping[str, Size]  # by common name, as the next two
    rates: Mapping[str, float]  # numbers up to 1, and the least that each may be
    choices: Mapping[str, tuple[str, ...]]  # what a setting may be
    checks: Mapping[str, Check]  # of all other settings, and by the names in config.json
    count_weights: Callable[[Mapping[str, Any]], int]  # roughly, from all settings; no head
    tokenizers: tuple[TokenizerFormat, ...]  # that checkpoints may have, the usual one first
    heads: Mapping[Job, HeadClass]
    encoder: EncoderPaths
    layer: LayerParts[str] | None  # None where layers compute otherwise than BERT's
    attention: AttentionNames
    norms: tuple[str, ...]  # last parts of the names of modules that normalise
    has_token_types: bool
    counts_from_padding: bool = False  # whether positions begin after the padding id, or at 0
    fixed_padding_id: int | None = None  # which they begin after whatever config.json says
    supports_autocast: bool = True  # whether its modules run where products are in half precision
    mixes_neighbours: bool = False  # whether padding, or another row, beside a token changes it
    layers_of: Callable[[Any], Sequence[Any]] | None = None  # of an encoder that shares layers
    read_by_all_layers: tuple[str, ...] = ()  # paths in the encoder of what lies beside layers
    new_settings: Mapping[str, Any] = field(default_factory=dict)  # that a new model needs
    prenorm: PreNorm | None = None  # layers without BERT's arithmetic that are computed, too
    listed: Mapping[str, str] = field(default_factory=dict)  # settings that name one of a list

    @property
    def default_sizes(self) -> dict[str, int]:
        """What each size is where config.json says nothing."""
        return {key: size.default for key, size in self.sizes.items()}

    def own_settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Settings by their names in config.json, from settings by their common names."""
        return {self.settings.get(key, key): value for key, value in settings.items()}

    def first_position(self, pad_token_id: int | None) -> int:
        """The position of the first token of a row."""
        if self.fixed_padding_id is not None:
            pad_token_id = self.fixed_padding_id
        return (pad_token_id or 0) + 1 if self.counts_from_padding else 0

    def max_length(self, n_positions: int, pad_token_id: int | None) -> int:
        """Tokens in the longest row that a model with so many positions reads."""
        return n_positions - self.first_position(pad_token_id)

    @property
    def has_own_heads(self) -> bool:
        """Whether each layer has attention heads of its own, built as BERT's."""
        return self.layer is not None and self.layers_of is None

    @property
    def layer_paths(self) -> LayerParts[str]:
        """Where the modules of a layer lie in it, where it is built as BERT's and not shared."""
        check_own_heads(self)
        assert self.layer is not None
        return self.layer

    @property
    def has_kernels(self) -> bool:
        """Whether layers can be computed without their modules."""
        return self.layer is not None or self.prenorm is not None

    def layer_parts(self, layer: Any) -> LayerParts[Any] | PreNormParts[Any]:
        """The modules of one layer."""
        if self.prenorm is not None:
            return PreNormParts._make(attrgetter(path)(layer) for path in self.prenorm.parts)
        assert self.layer is not None
        return LayerParts._make(attrgetter(path)(layer) if path else None for path in self.layer)

    def layers(self, model: Any) -> Sequence[Any]:
        """The layers of a model's encoder, lowest first, each as often as it is run."""
        if self.layers_of is not None:
            return self.layers_of(model.base_model)
        layers: Sequence[Any] = encoder_part(model, self.encoder.layers)
        return layers

    @property
    def below_layers(self) -> tuple[str, ...]:
        """Where the modules of an encoder lie that its first layer needs; some have not all."""
        paths = self.encoder.embeddings, self.encoder.projection, *self.read_by_all_layers
        return tuple(filter(None, paths))

    def is_of_pooler(self, name: str) -> bool:
        """Whether a weight of that name belongs to the pooler."""
        return bool(self.encoder.pooler) and f".{self.encoder.pooler}." in f".{name}"

    def has_weight_decay(self, name: str) -> bool:
        """Whether weight decay applies to a weight: not to biases, nor to the weights of norms."""
        *_, module, kind = ("", *name.split("."))
        return not (kind.endswith("bias") or (module in self.norms and kind == "weight"))

    def head_class(self, job: Job) -> HeadClass:
        """The class for a job.

        Raises
        ------
        ModelError
            If there is none.
        """
        if job not in self.heads:
            raise ModelError(
                f"A model of the type {self.model_type!r} has no head for {job}. Choose a model of"
                " another type."
            )
        return self.heads[job]

    def head_of(self, model: Any) -> HeadClass:
        """The head that a model was opened with."""
        names = [kind.__name__ for kind in type(model).__mro__]
        return next(head for head in self.heads.values() if head.name in names)

    def jobs_of(self, class_name: str) -> list[Job]:
        """The jobs that a model of a class, as config.json names it, has the head for."""
        return [job for job, head in self.heads.items() if head.name == class_name]


def encoder_part(model: Any, path: str) -> Any:
    """The module that lies at a path in the encoder of a model."""
    # As `base_model`, which takes long to find that a model is the encoder itself.
    return _getter_of(path)(model._modules.get(model.base_model_prefix, model))


_getter_of = cache(attrgetter)  # reads a path once


def optional_part(encoder: torch.nn.Module, path: str) -> Any:
    """The module that lies at a path in an encoder; None where there is none."""
    home, _, name = path.rpartition(".")
    return getattr(encoder.get_submodule(home), name, None) if path else None


def check_own_heads(family: Family) -> None:
    """Refuse to look at attention heads, or prune them, where layers have none of their own.

    Raises
    ------
    ModelError
        If layers compute otherwise than BERT's, or are shared.
    """
    if not family.has_own_heads:
        raise ModelError(
            f"The layers of a model of the type {family.model_type!r} are built or shared"
            " otherwise than BERT's: their attention heads can be neither looked at nor"
            " pruned. Choose a model of another type."
        )
