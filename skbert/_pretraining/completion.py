"""Texts to complete: masks to fill, or an end to continue.

Depends on pandas, `masking` and ``_core``; knows no estimator.
"""

from __future__ import annotations

import math
import reprlib

import numpy as np
import pandas as pd

from skbert._arrays import Array, BoolArray, IntArray
from skbert._core.families import FAMILIES
from skbert._core.infer import OnSamples, infer
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision
from skbert._core.scores import softmax
from skbert._core.task import Task
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable, assemble
from skbert._pretraining.masking import Vocabulary
from skbert._validation.features import read_number
from skbert.exceptions import InputError, InputTypeError

__all__ = [
    "check_temperature",
    "continue_texts",
    "encode_masked",
    "encode_openings",
    "fill_masks",
]  # fmt: skip

_KINDS = [kind for family in FAMILIES.values() for kind in family.tokenizers]
_MASKS = {kind.specials["mask_token"] for kind in _KINDS}
_COLDEST, _HOTTEST = 1e-30, 1e30  # beyond these, float32 gives infinities and NaN
_SLICE = 64  # rows whose masks are filled together: each mask has a logit for every word piece


def check_temperature(value: object) -> None:
    """Raise unless a value is a finite number that is not negative."""
    is_number = isinstance(value, (int, float, np.integer, np.floating))
    if isinstance(value, bool) or not is_number:
        msg = (
            f"temperature is {reprlib.repr(value)}, of type {type(value).__name__}, but must be "
            "an int or a float; type temperature=0.0 for the most probable word pieces."
        )
        raise InputTypeError(msg)
    number = read_number(value)
    if number is None or not math.isfinite(number) or number < 0:
        msg = (
            f"temperature is {value!r}, but must be finite and not negative; type temperature=0.0 "
            "for the most probable word pieces, 1.0 for a draw from the model's probabilities."
        )
        raise InputError(msg)


def encode_masked(texts: list[str], tokenizer: TextTokenizer, max_length: int) -> Items:
    """Return one row per text, with each mask as the special token, and selected."""
    max_tokens = max_length - tokenizer.n_specials(pair=False)
    masked = Vocabulary.of(tokenizer).mask
    parts = [_split(tokenizer, text) for text in texts]
    pieces = tokenizer.pieces([part for of_text in parts for part in of_text])
    table = Ragged.of(
        np.append(pieces.values, masked).astype(np.int32), np.append(pieces.lengths, 1)
    )
    counts = np.array([len(of_text) for of_text in parts])
    order = np.full((len(pieces), 2), len(pieces))  # a mask after each part
    order[:, 0] = np.arange(len(pieces))
    ends = np.cumsum(counts)
    joined = table.take(np.delete(order.ravel(), 2 * ends - 1))  # except the last of a text
    inner = Ragged(joined.values, joined.starts[np.concatenate([[0], 2 * ends - np.arange(
        1, len(ends) + 1)])])  # fmt: skip
    where = np.flatnonzero(inner.values == masked)
    row = np.searchsorted(inner.starts, where, side="right") - 1
    position = where - inner.starts[row]
    _check_kind_of_masks(tokenizer.mask_token, texts)
    _check_masks(tokenizer.mask_token, row, position, max_tokens)
    selected = Ragged.of(position + len(tokenizer.prefix), counts - 1)
    n_cut = int((inner.lengths > max_tokens).sum())
    tokens = assemble(tokenizer, inner.truncate(np.minimum(inner.lengths, max_tokens)), None)
    return _one_each(tokens, selected, n_cut)


def _split(tokenizer: TextTokenizer, text: str) -> list[str]:
    """Return the parts of a text around its masks, without white space that belongs to a mask."""
    parts = text.split(tokenizer.mask_token)
    for token in tokenizer.backend.get_added_tokens_decoder().values():
        if token.content == tokenizer.mask_token and token.lstrip:
            parts[:-1] = [part.rstrip() for part in parts[:-1]]
        if token.content == tokenizer.mask_token and token.rstrip:
            parts[1:] = [part.lstrip() for part in parts[1:]]
    return parts


def _check_kind_of_masks(mask: str | None, texts: list[str]) -> None:
    """Raise where a text holds the mask of other tokenizers only."""
    for row, text in enumerate(texts):
        others = [other for other in sorted(_MASKS - {mask}) if other in text]
        if others and not (mask and mask in text):
            raise InputError(
                f"Row {row} of X holds {others[0]}, which is text to this model: its mask is "
                f"{mask}. Type {mask} in place of a word: 'The capital of France is {mask}.'"
            )


def _check_masks(mask: str | None, row: IntArray, position: IntArray, max_tokens: int) -> None:
    """Raise where there is no mask, or one that is cut off."""
    if not len(row):
        raise InputError(
            f"No row of X holds {mask}, so there is nothing to predict. Type it in place of a "
            f"word: 'The capital of France is {mask}.'"
        )
    late = np.flatnonzero(position >= max_tokens)
    if len(late):
        raise InputError(
            f"Row {row[late[0]]} of X has a {mask} after {position[late[0]]} word pieces, and "
            f"only the first {max_tokens} are read. Shorten the text, or use a larger max_length."
        )


def encode_openings(texts: list[str], tokenizer: TextTokenizer, max_length: int) -> Items:
    """Return one row per text without the special token at its end; its last token is selected."""
    max_tokens = max_length - len(tokenizer.prefix) - 1
    pieces = tokenizer.pieces(texts)
    if len(long := np.flatnonzero(pieces.lengths > max_tokens)):
        raise InputError(
            f"Row {long[0]} of X has {pieces.lengths[long[0]]} word pieces, but only "
            f"{max_tokens} can be continued. Give the end of the text, or use a larger max_length."
        )
    whole = assemble(tokenizer, pieces, None).ids
    table = whole.truncate(whole.lengths - len(tokenizer.suffix))
    return _last_of([table[row] for row in range(len(table))])


def _one_each(tokens: TokenTable, selected: Ragged, n_truncated: int = 0) -> Items:
    """Return one item per row, each a sample."""
    n = len(tokens)
    return Items(
        tokens, np.arange(n + 1), np.arange(n), np.ones(n), None, None, n_truncated, selected
    )


def fill_masks(
    network: Network,
    task: Task,
    precision: Precision,
    items: Items,
    top_k: int,
    on_rows: OnSamples | None,
) -> pd.DataFrame:
    """Return the ``top_k`` most probable word pieces for each mask, one line each."""
    frames, are_tokens = [], _are_tokens(network)
    top_k = min(top_k, int(are_tokens.sum()))
    for at in range(0, len(items), _SLICE):
        part = items.take(np.arange(at, min(at + _SLICE, len(items))))
        assert part.selected_tokens is not None
        if not len(part.selected_tokens.values):
            continue
        logits = task.decode(infer(network, part, precision, on_samples=on_rows), part)
        by_mask = np.concatenate(list(logits))
        by_mask[:, ~are_tokens] = -np.inf
        probabilities = softmax(by_mask, axis=1)
        best = _largest(probabilities, top_k)
        counts = part.selected_tokens.lengths
        row = np.repeat(np.arange(at, at + len(counts)), counts)
        number = part.selected_tokens.index_in_row
        frame = {
            "row": np.repeat(row, best.shape[1]),
            "mask": np.repeat(number, best.shape[1]),
            "token": network.tokenizer.convert_ids_to_tokens(best.ravel().tolist()),
            "probability": np.take_along_axis(probabilities, best, axis=1).ravel(),
        }
        frames.append(pd.DataFrame(frame))
    return pd.concat(frames, ignore_index=True)


def continue_texts(
    network: Network,
    precision: Precision,
    items: Items,
    max_length: int,
    n_pieces: int,
    temperature: float,
    rng: np.random.Generator,
    on_pieces: OnSamples | None,
) -> Array:
    """Return the texts of `encode_openings` with up to ``n_pieces`` more word pieces each.

    A text is complete when its end is predicted. At temperature 0 the most probable piece comes
    next, else one is drawn.
    """
    vocabulary = Vocabulary.of(network.text_tokenizer)
    is_excluded = np.ones(network.model.config.vocab_size, bool)  # also where no token has an id
    is_excluded[: len(vocabulary.special)] = vocabulary.special[: len(is_excluded)]
    is_excluded[vocabulary.end] = False
    rows = [items.tokens.ids[row] for row in range(len(items))]
    waiting = list(range(len(rows)))
    for _ in range(n_pieces):
        waiting = [row for row in waiting if len(rows[row]) < max_length]
        if not waiting:
            break
        items = _last_of([rows[row] for row in waiting])
        logits = infer(network, items, precision, on_samples=on_pieces).values
        logits[:, is_excluded] = -np.inf
        pieces = _next(logits, temperature, rng)
        waiting = [row for row, ends in zip(waiting, pieces == vocabulary.end, strict=True)
                   if not ends]  # fmt: skip
        for row, piece in zip(waiting, pieces[pieces != vocabulary.end], strict=True):
            rows[row] = np.append(rows[row], piece).astype(np.int32)
    texts = np.empty(len(rows), object)
    texts[:] = [network.tokenizer.decode(row, skip_special_tokens=True) for row in rows]
    return texts


def _largest(values: Array, k: int) -> IntArray:
    """The places of the ``k`` largest values of each row, the largest first, of equal ones too."""
    least = np.partition(values, -k, axis=1)[:, -k, None]
    above, equal = values > least, values == least
    missing = k - above.sum(axis=1, keepdims=True)
    some = np.nonzero(above | (equal & (equal.cumsum(axis=1) <= missing)))[1].reshape(-1, k)
    order = np.argsort(-np.take_along_axis(values, some, axis=1), axis=1, kind="stable")
    return np.take_along_axis(some, order, axis=1)


def _are_tokens(network: Network) -> BoolArray:
    """Whether a token has each id that the model predicts, which may be more than there are."""
    vocabulary = network.text_tokenizer.backend.get_vocab(with_added_tokens=True)
    return np.isin(np.arange(network.model.config.vocab_size), [*vocabulary.values()])


def _last_of(rows: list[IntArray]) -> Items:
    """Return rows of ids as items, with the last token of each selected."""
    table = Ragged.of(np.concatenate(rows), np.array([len(row) for row in rows]))
    selected = Ragged.of(table.lengths - 1, np.ones(len(table), np.int64))
    return _one_each(TokenTable(table, table.lengths), selected)


def _next(logits: Array, temperature: float, rng: np.random.Generator) -> IntArray:
    """Return the most probable pieces, or draw them: with Gumbel noise the largest is a draw."""
    scores = logits
    if temperature:
        clipped = min(max(float(temperature), _COLDEST), _HOTTEST)
        scores = logits / clipped + rng.gumbel(size=logits.shape)
    pieces: IntArray = scores.argmax(axis=1)
    return pieces
