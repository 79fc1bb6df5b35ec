"""What a task makes of rows: the items, and the head that reads them.

Depends on numpy and the token table; knows no model, and needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np

from skbert._arrays import Array, FloatArray, IntArray, arange_within, differences, is_arange
from skbert._core.text.spill import GrowingArray
from skbert._core.text.tokens import EncodedTexts, Ragged, TokenTable
from skbert.exceptions import NonFiniteError

if TYPE_CHECKING:
    from skbert._core.families.record import Job

__all__ = ["Head", "Items", "gathered", "joined", "name_outputs", "one_item_each"]


@dataclass(frozen=True)
class Head:
    """The head that a task needs.

    ``reads`` says what the head reads: one pooled vector a row, every token, the tokens that the
    items select, or these and the rows.
    """

    job: Job
    n_outputs: int  # 0: as many as there are word pieces
    reads: Literal["rows", "tokens", "selected tokens", "selected tokens and rows"] = "rows"
    fresh: bool = True  # whether all of it is drawn anew; else only what the checkpoint lacks
    ridge: float = 0.0  # L2 penalty of the probe per squared total weight; 1 in all at least
    has_standard_targets: bool = False  # numbers of variance 1; the probe's penalty fits them
    n_features: int = 0  # numbers that the output layer reads beside the vector of a row
    is_raw: bool = False  # whether outputs are far from 0, so that autocast would round them away

    @property
    def has_output_layer(self) -> bool:
        """Whether there are logits; else the features themselves are the outputs."""
        return self.job != "embedding"

    @property
    def is_causal(self) -> bool:
        """Whether a token attends only to itself and those before it."""
        return self.job == "causal language modelling"


class _Names(Protocol):
    """The configuration of a model, as far as it names outputs."""

    id2label: dict[int, str] | None
    label2id: dict[str, int] | None


def name_outputs(config: _Names, names: Iterable[object]) -> None:
    """Name a model's outputs in its configuration, unless two of them have one name."""
    labels = [str(name) for name in names]
    if labels and len({*labels}) == len(labels):
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: at for at, label in enumerate(labels)}


@dataclass(frozen=True)
class Items:
    """Everything to learn from or to predict, tokenised.

    An item owns one row or several (a question owns one row per option), and belongs to one
    sample (a long text is several items of one sample).
    """

    tokens: TokenTable
    rows: IntArray  # (n_items + 1,): item i owns rows rows[i] to rows[i + 1]
    samples: IntArray  # (n_items,)
    weights: FloatArray  # (n_items,)
    targets: Array | Ragged | None = None  # (n_items, ...) or a row per item
    places: Ragged | None = None  # what each token stands for; no model reads it
    n_truncated: int = 0
    selected_tokens: Ragged | None = None  # for a head that reads them: positions in each row
    is_counted_alone: bool = False  # whether a step counts items, not samples
    features: FloatArray | None = None  # (n_items, n_features), beside the vectors of rows
    states: Ragged | None = None  # of frozen layers: what the head reads of each row, or
    states_after: int | None = None  # the hidden states of its tokens after so many layers
    # (n_items,): the weights without those of samples, where samples have weights.
    unweighted: FloatArray | None = None

    @classmethod
    def one_row_each(
        cls, encoded: EncodedTexts, targets: Array | None, features: FloatArray | None = None
    ) -> Items:
        """Items of one row each; windows share their sample's target, weight and features."""
        tokens, windows, n_truncated, places = encoded
        samples, rows = windows.samples, np.arange(len(tokens) + 1)
        targets = None if targets is None else targets[samples]
        features = None if features is None else features[samples]
        return cls(
            tokens, rows, samples, windows.weights, targets, places, n_truncated,
            features=features,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.samples)

    @property
    def sizes(self) -> IntArray:
        """Tokens in each item, ``(n_items,)``."""
        return differences(self.tokens.ids.starts[self.rows])

    @property
    def most_rows(self) -> int:
        """The most rows of an item."""
        return 1 if len(self.tokens) == len(self) else int(differences(self.rows).max())

    @property
    def units(self) -> IntArray:
        """The unit that each item belongs to, ``(n_items,)``; a step covers a number of units."""
        return np.arange(len(self)) if self.is_counted_alone else self.samples

    @property
    def of_units(self) -> Ragged:
        """The items of each unit, unit by unit in ascending order."""
        _, owner = np.unique(self.units, return_inverse=True)
        return Ragged.of(np.argsort(owner, kind="stable"), np.bincount(owner))

    @property
    def base_weights(self) -> FloatArray:
        """The weights that items would have without those of samples, ``(n_items,)``."""
        return self.weights if self.unweighted is None else self.unweighted

    @property
    def arrays_read(self) -> list[Array | None]:
        """All that a network reads of the rows, and of the items beside them."""
        tokens = self.tokens
        return [tokens.ids.values, tokens.ids.starts, tokens.second, self.features]

    @property
    def arrays_learned_from(self) -> list[Array | None]:
        """All that a head learns from: what a network reads of items, and what is right."""
        return [
            *self.arrays_read, self.rows, self.samples, self.weights,
            *_arrays_of(self.targets), *_arrays_of(self.selected_tokens),
        ]  # fmt: skip

    def outputs_per_row(self, head: Head) -> IntArray:
        """Number of outputs that the head gives for each row, ``(n_rows,)``."""
        if head.reads == "selected tokens":
            assert self.selected_tokens is not None
            return self.selected_tokens.lengths
        return np.ones(len(self.tokens), np.int64) if head.reads == "rows" else self.tokens.lengths

    def weighted(self, sample_weight: FloatArray | None) -> Items:
        """The items with the weights of their samples, without those of weight 0."""
        if sample_weight is None:
            return self
        weights = self.weights * sample_weight[self.samples]
        weighted = replace(self, weights=weights, unweighted=self.base_weights)
        return weighted.take(np.flatnonzero(weights))

    def by_row(self) -> Items:
        """Every row as an item of its own, without targets, which is enough for a forward pass."""
        if self.targets is None and is_arange(self.rows, len(self) + 1):
            return self if self.places is None else replace(self, places=None)
        owner = np.repeat(np.arange(len(self)), np.diff(self.rows))
        return Items(
            self.tokens, np.arange(len(owner) + 1), self.samples[owner], self.weights[owner],
            selected_tokens=self.selected_tokens,
            features=None if self.features is None else self.features[owner],
            states=self.states,
            states_after=self.states_after,
        )  # fmt: skip

    def of_samples(self, samples: IntArray) -> Items:
        """The items of these samples, in their order here."""
        return self.take(np.flatnonzero(np.isin(self.samples, samples)))

    def take(self, item_indices: IntArray) -> Items:
        """The items with these indices, in that order."""
        if is_arange(item_indices, len(self)):
            return self
        counts = np.diff(self.rows)[item_indices]
        rows = np.repeat(self.rows[item_indices], counts) + arange_within(counts)
        return Items(
            self.tokens.take(rows),
            np.concatenate([[0], np.cumsum(counts)]),
            self.samples[item_indices],
            self.weights[item_indices],
            _at(item_indices, self.targets),
            _at(rows, self.places),
            self.n_truncated,
            _at(rows, self.selected_tokens),
            self.is_counted_alone,
            _at(item_indices, self.features),
            _at(rows, self.states),
            self.states_after,
            _at(item_indices, self.unweighted),
        )


def one_item_each(items: Items) -> Items:
    """The first item of each sample, with the weight of all of them."""
    _, first, owner = np.unique(items.samples, return_index=True, return_inverse=True)
    weights: FloatArray = np.bincount(owner, items.weights).astype(items.weights.dtype)
    return replace(items.take(first), weights=weights)


def gathered(
    rows: Items, head: Head, batches: Iterable[tuple[IntArray, Array]], problem: str
) -> Ragged:
    """The outputs of rows, which come in batches in any order, each with its rows' indices.

    The rows are items of one row each. ``problem`` is the message of an error, with ``{row}``.

    Raises
    ------
    NonFiniteError
        If an output is NaN or infinite.
    """
    counts = rows.outputs_per_row(head)
    where = Ragged.of(np.arange(int(counts.sum())), counts)
    out: Array | None = None
    for batch, values in batches:
        if out is None:
            out = np.empty((len(where.values), values.shape[1]), values.dtype)
        if not np.isfinite(values).all():
            raise NonFiniteError(problem.format(row=rows.samples[batch].min()))
        out[batch if head.reads == "rows" else where.take(batch).values] = values
    assert out is not None, "items are never empty: X is checked first"
    return Ragged(out, where.starts)


def _at(indices: IntArray, values: Any) -> Any:
    """The values with these indices; None where there are none at all."""
    if values is None:
        return None
    return values.take(indices) if isinstance(values, Ragged) else values[indices]


def _arrays_of(values: Array | Ragged | None) -> list[Array | None]:
    return [values.values, values.starts] if isinstance(values, Ragged) else [values]


class _Column:
    """What one field of items holds, part by part: arrays, ragged tables, or nothing."""

    def __init__(self) -> None:
        self._values, self._lengths = GrowingArray(), GrowingArray()
        self._kind: type | None = None

    def append(self, part: Array | Ragged | None) -> None:
        """Append what the field holds in one more part."""
        self._kind = type(part)
        if isinstance(part, Ragged):
            self._lengths.append(part.lengths)
            part = part.values
        if part is not None:
            self._values.append(part)

    def whole(self) -> Any:
        """What the field holds in all parts."""
        if self._kind is type(None):
            return None
        values = self._values.array()
        return Ragged.of(values, self._lengths.array()) if self._kind is Ragged else values


def joined(parts: Iterable[tuple[Items, int]]) -> Items:
    """The items of all parts, each given with its number of samples, one part after another.

    The parts are asked for one by one, and only what `GrowingArray` keeps of them stays in memory.
    """
    columns = [_Column() for _ in range(9)]
    n_samples = n_truncated = 0
    for part, n_own in parts:
        fields = (
            part.tokens.ids, part.tokens.second, np.diff(part.rows), part.samples + n_samples,
            part.weights, part.targets, part.places, part.selected_tokens, part.features,
        )  # fmt: skip
        for column, field in zip(columns, fields, strict=True):
            column.append(field)
        n_samples += n_own
        n_truncated += part.n_truncated
        is_counted_alone = part.is_counted_alone
    ids, second, counts, samples, weights, targets, places, selected, features = (
        column.whole() for column in columns
    )
    rows = np.concatenate([[0], np.cumsum(counts)])
    return Items(
        TokenTable(ids, second), rows, samples, weights, targets, places, n_truncated, selected,
        is_counted_alone, features,
    )  # fmt: skip
