"""What answers are to the engine: the task that points at their first and last token.

Upstairs an answer is a stretch of characters of its context, here of tokens in windows over it.
Depends on ``_core`` and, to choose a threshold, on the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from skbert._arrays import Array, FloatArray, IntArray
from skbert._core.segments import log_softmax_within
from skbert._core.task import Batch, Head, Items
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable, assemble
from skbert._core.text.windows import Windows
from skbert._validation.tables import MAX_NAMES
from skbert._validation.texts import Texts
from skbert.exceptions import InputError
from skbert.metrics import squad_f1

__all__ = ["MOST", "Answers", "Found", "best_texts", "best_threshold"]

MOST = 20  # answers kept of each row, as in the scripts of the data set's authors
_OVERLAP = 128  # tokens that neighbouring windows share, if windows are twice as long
_LEAST = 64  # tokens of room that a question leaves to a long context


class Found(NamedTuple):
    """The best answers in one context, best first."""

    spans: IntArray  # (k, 2): start and end in characters of the context, each pair once
    scores: FloatArray  # (k,): start logit plus end logit
    null: float  # the same for "no answer"


@dataclass(frozen=True)
class Answers:
    """The first and the last token of an answer. Targets are 1 there and 0 elsewhere.

    ``y`` is ``(n_samples, 2)``, start and end of the answer in characters of the context, -1
    where there is none. A window that does not hold all of the answer points at its first token.
    """

    truncated: ClassVar[str] = "questions"  # what n_truncated counts; contexts are never cut

    max_length: int
    stride: int | None = None
    max_answer_length: int = 30

    def encode(self, X: Texts, y: Any, tokenizer: TextTokenizer) -> Items:
        """One item per window over a context; ``places`` are characters of the context."""
        assert X.second is not None
        asked, question = _distinct(X.first)
        told, context = _distinct(X.second)
        room = self.max_length - tokenizer.specials(pair=True)
        questions = tokenizer.pieces(asked, room)
        ids, spans, _ = tokenizer.located(told)
        n_asked, n_told = questions.lengths[question], ids.lengths[context]
        least = min(_LEAST, room - room // 2)
        keep = np.minimum(n_asked, np.maximum(room - least, room - n_told))
        space = room - keep
        overlap = _OVERLAP if self.stride is None else self.stride
        windows = Windows.overlapping(n_told, space, overlap)
        pointed = None
        if y is not None:
            pointed = _tokens_of(y, context, spans)
            windows = _with_lost_answers(windows, n_told, space, pointed)
        samples, begins, sizes = windows.samples, windows.begins, windows.lengths
        cut = ids.cut(context[samples], begins, sizes)
        asking = questions.cut(question[samples], np.zeros_like(samples), keep[samples])
        tokens = assemble(tokenizer, asking, cut)
        targets = None
        if pointed is not None:
            targets = _targets(tokens, pointed[samples] - begins[:, None], sizes)
        return Items(
            tokens,
            rows=np.arange(len(samples) + 1),
            samples=samples,
            weights=windows.weights,
            targets=targets,
            places=_places(tokens, spans.cut(context[samples], begins, sizes)),
            n_truncated=int((keep < n_asked).sum()),
        )

    def head(self) -> Head:
        """Two logits per token: the answer starts here, the answer ends here."""
        return Head("question answering", 2, reads="tokens")

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Cross-entropy over the tokens of a window, averaged over start and end."""
        assert batch.targets is not None
        counts = batch.tokens_per_item
        chances = log_softmax_within(logits, counts, batch.layout.max_seqlen)
        weights = torch.repeat_interleave(batch.weights, counts, output_size=len(logits))
        losses = -(chances * batch.targets).mean(dim=1)
        return (losses * weights).sum(), batch.weights.sum()

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """`Found` of each sample, over all of its windows; they are neighbours.

        "No answer" is a window's first token, and scores as in the window where it is least
        likely.
        """
        assert items.places is not None
        logits = outputs.values.astype(np.float64)
        _, firsts = np.unique(items.samples, return_index=True)
        nulls = np.minimum.reduceat(logits[outputs.starts[:-1]].sum(axis=1), firsts)
        edges = [*outputs.starts[firsts].tolist(), len(logits)]
        found = np.empty(len(firsts), dtype=object)
        for i, (begin, end) in enumerate(pairwise(edges)):
            places = items.places.values[begin:end]
            best = _best_spans(logits[begin:end], places, self.max_answer_length)
            found[i] = Found(*best, float(nulls[i]))
        return found


def _distinct(texts: list[str]) -> tuple[list[str], IntArray]:
    """Every text once, and which of them each row has."""
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(number), np.array([number[text] for text in texts])


def _tokens_of(y: IntArray, context: IntArray, spans: Ragged) -> IntArray:
    """First and last token that an answer's characters fall in, ``(n_samples, 2)``; -1: none."""
    owner = np.repeat(np.arange(len(spans)), spans.lengths)
    longest = 1 + max(int(spans.values.max(initial=0)), int(y.max()))
    begins, ends = (owner * longest + spans.values[:, side] for side in (0, 1))
    first = np.searchsorted(ends, context * longest + y[:, 0], side="right")
    last = np.searchsorted(begins, context * longest + y[:, 1], side="left") - 1
    wanted = y[:, 0] >= 0
    if rows := np.flatnonzero(wanted & (first > last)).tolist():
        raise InputError(
            f"y has {len(rows)} answer(s) of characters that the tokenizer drops, such as control "
            f"characters: rows {rows[:MAX_NAMES]}. Give answers with something to read in them, "
            "or '' where the context holds none."
        )
    pointed = np.stack([first, last], axis=1) - spans.starts[context][:, None]
    return np.where(wanted[:, None], pointed, -1)


def _with_lost_answers(
    windows: Windows, lengths: IntArray, space: IntArray, pointed: IntArray
) -> Windows:
    """The windows, and one more for each answer that none of them holds all of.

    Of an answer longer than that the part that fits is kept; ``pointed`` is changed to it.
    """
    first, last = pointed[windows.samples].T
    holds = (windows.begins <= first) & (last < windows.begins + windows.lengths)
    lost = np.setdiff1d(np.flatnonzero(pointed[:, 0] >= 0), windows.samples[holds])
    sizes = np.minimum(lengths, space)[lost]
    begins = np.minimum(pointed[lost, 0], lengths[lost] - sizes)
    pointed[lost, 1] = np.minimum(pointed[lost, 1], begins + sizes - 1)
    return windows.merged(Windows(lost, begins, sizes))


def _targets(tokens: TokenTable, pointed: IntArray, sizes: IntArray) -> Ragged:
    """1 at the first and the last token of the answer, else at the first of the window."""
    held = (pointed[:, 0] >= 0) & (pointed[:, 1] < sizes)
    where = np.where(held[:, None], tokens.second[:, None] + pointed, 0)
    targets = np.zeros((len(tokens.ids.values), 2), np.float32)
    targets[tokens.ids.starts[:-1, None] + where, [0, 1]] = 1
    return Ragged(targets, tokens.ids.starts)


def _places(tokens: TokenTable, spans: Ragged) -> Ragged:
    """Start and end of each token in the context, -1 for tokens that are not of it."""
    places = np.full((len(tokens.ids.values), 2), -1)
    shift = np.repeat(tokens.ids.starts[:-1] + tokens.second - spans.starts[:-1], spans.lengths)
    places[shift + np.arange(len(shift))] = spans.values
    return Ragged(places, tokens.ids.starts)


def _best_spans(logits: FloatArray, places: IntArray, longest: int) -> tuple[IntArray, FloatArray]:
    """The best spans of at most ``longest`` tokens, each within one window, and their scores."""
    inside = places[:, 0] >= 0
    window = np.cumsum(~inside)[inside]
    (begins, ends), places = logits[inside].T, places[inside]
    if not len(begins):
        return np.empty((0, 2), np.int64), np.empty(0)
    width = min(longest, np.bincount(window).max())
    ends = np.pad(ends, (0, width - 1), constant_values=-np.inf)
    same = np.pad(window, (0, width - 1), constant_values=-1)
    band = sliding_window_view(same, width) == window[:, None]  # (n_tokens, width)
    scores = np.where(band, begins[:, None] + sliding_window_view(ends, width), -np.inf).ravel()
    size = 4 * MOST
    while True:
        best = _largest(scores, size)
        best = best[scores[best] > -np.inf]
        first, more = np.divmod(best, width)
        spans = np.stack([places[first, 0], places[first + more, 1]], axis=1)
        _, kept = np.unique(spans, axis=0, return_index=True)
        if len(kept) >= MOST or len(best) < size:
            kept = np.sort(kept)[:MOST]
            return spans[kept], scores[best[kept]]
        size *= 4


def _largest(scores: FloatArray, size: int) -> IntArray:
    """Where the largest scores are, the largest first."""
    size = min(size, len(scores))
    top = np.sort(np.argpartition(-scores, size - 1)[:size])
    order: IntArray = top[np.argsort(-scores[top], kind="stable")]
    return order


def best_texts(found: Array, contexts: Sequence[str], threshold: float) -> Array:
    """The best answer of each row; ``""`` where "no answer" is ahead by more than that."""
    answers = np.empty(len(found), dtype=object)
    for i, (spans, scores, null) in enumerate(found):
        answers[i] = ""
        if len(scores) and null - scores[0] <= threshold:
            begin, end = spans[0].tolist()
            answers[i] = contexts[i][begin:end]
    return answers


def best_threshold(found: Array, contexts: Sequence[str], golds: Sequence[list[str]]) -> float:
    """The threshold for ``best_texts`` with the best mean F1; of several, the nearest to 0."""
    told = best_texts(found, contexts, np.inf)
    rows = [row for row, each in enumerate(found) if len(each.scores)]
    if not rows:
        return 0.0
    ahead = np.array([found[row].null - found[row].scores[0] for row in rows])
    gains = [squad_f1([golds[row]], [told[row]]) - squad_f1([golds[row]], [""]) for row in rows]
    order = np.argsort(ahead)
    ahead = np.concatenate([ahead[order[:1]] - 2, ahead[order], ahead[order[-1:]] + 2])
    totals = np.cumsum([0.0, *np.array(gains)[order]])
    thresholds = (ahead[:-1] + ahead[1:]) / 2
    parts = ahead[:-1] < ahead[1:]
    totals, thresholds = totals[parts].round(9), thresholds[parts]
    best = np.lexsort((np.abs(thresholds), -totals))[0]
    return float(thresholds[best])
