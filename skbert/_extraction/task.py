"""The task of the span extractor: which tokens of a context are the first and last of an answer.

The estimator sees an answer as characters of its context; here it is tokens in windows over it.
Depends on ``_core``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from skbert._arrays import Array, FloatArray, IntArray
from skbert._core.items import Head, Items
from skbert._core.scores import softmax
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable, assemble
from skbert._core.text.windows import Windows, most_overlap
from skbert._validation.tables import MAX_NAMES
from skbert._validation.texts import Texts
from skbert.exceptions import InputError

if TYPE_CHECKING:
    import torch

    from skbert._core.task import Batch

__all__ = [
    "MAX_ANSWERS", "OUT_OF_REACH", "Answers", "RankedAnswers", "answer_set", "best_texts",
    "candidates", "probabilities",
]  # fmt: skip

MAX_ANSWERS = 20  # answers kept of each row, as in the scripts of the data set's authors
OUT_OF_REACH = 2.0  # 1 minus the probability of an answer that is not among those kept
_OVERLAP = 128  # tokens that neighbouring windows share, if windows are twice as long
_MIN_CONTEXT = 64  # tokens that a question leaves to a long context
_IN_TRAINING = -2  # place of the first token of a window that only training reads


class RankedAnswers(NamedTuple):
    """The best answers in one context, best first."""

    spans: IntArray  # (k, 2): start and end in characters of the context, each pair once
    scores: FloatArray  # (k,): start logit plus end logit
    null: float  # the same for "no answer"


@dataclass(frozen=True)
class Answers:
    """Predict the first and the last token of an answer. Targets are 1 there and 0 elsewhere.

    ``y`` is ``(n_samples, 2)``, start and end of the answer in characters of the context, -1
    where there is none. In a window without
    the whole answer the targets are at the first token.
    """

    truncated: ClassVar[str] = "questions"  # what n_truncated counts; contexts are never cut

    max_length: int
    stride: int | None = None
    max_answer_length: int = 30

    def __post_init__(self) -> None:
        if self.stride is not None and not 0 <= self.stride <= most_overlap(self.max_length):
            raise ValueError(f"stride={self.stride} is not within half a row.")
        if self.max_answer_length < 1:
            raise ValueError(f"max_answer_length={self.max_answer_length} tokens are no answer.")

    def encode(self, X: Texts, y: Any, tokenizer: TextTokenizer) -> Items:
        """Return one item per window over a context, ``places`` being characters of it.

        An answer that lies in no window gets one more, which `decode` does not read: rows to
        predict have none such.
        """
        assert X.second is not None
        questions, question = _distinct(X.first)
        contexts, context = _distinct(X.second)
        max_tokens = self.max_length - tokenizer.n_specials(pair=True)
        question_ids = tokenizer.pieces(questions, max_tokens)
        ids, spans, _ = tokenizer.pieces_with_offsets(contexts)
        n_question, n_context = question_ids.lengths[question], ids.lengths[context]
        least = min(_MIN_CONTEXT, max_tokens - max_tokens // 2)
        keep = np.minimum(n_question, np.maximum(max_tokens - least, max_tokens - n_context))
        space = max_tokens - keep
        overlap = _OVERLAP if self.stride is None else self.stride
        windows = Windows.overlapping(n_context, space, overlap)
        answers = None
        if y is not None:
            answers = _tokens_of(y, context, spans)
            windows, answers, is_more = windows.holding(answers, n_context, space)
        samples, begins, sizes = windows.samples, windows.begins, windows.lengths
        second = ids.cut(context[samples], begins, sizes)
        first = question_ids.cut(question[samples], np.zeros_like(samples), keep[samples])
        tokens = assemble(tokenizer, first, second)
        places, targets = _places(tokens, spans.cut(context[samples], begins, sizes)), None
        if answers is not None:
            targets = _targets(tokens, answers[samples] - begins[:, None], sizes)
            places.values[tokens.ids.starts[:-1][is_more]] = _IN_TRAINING
        return Items(
            tokens,
            rows=np.arange(len(samples) + 1),
            samples=samples,
            weights=windows.weights,
            targets=targets,
            places=places,
            n_truncated=int((keep < n_question).sum()),
        )

    def head(self) -> Head:
        """Return a head with two logits per token, for the start and the end of the answer."""
        return Head("question answering", 2, reads="tokens")

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the cross-entropy over the tokens of a window, averaged over start and end."""
        import torch

        from skbert._core.segments import log_softmax_within

        assert batch.targets is not None
        counts = batch.tokens_per_item
        log_probabilities = log_softmax_within(logits, counts, batch.layout.max_seqlen)
        weights = torch.repeat_interleave(batch.weights, counts, output_size=len(logits))
        losses = -(log_probabilities * batch.targets).mean(dim=1)
        return (losses * weights).sum(), batch.weights.sum()

    def decode(self, outputs: Ragged, items: Items) -> Array:
        """Return the `RankedAnswers` of each sample over all of its windows.

        "No answer" is the first token of a window; its score is the lowest of all windows. The
        windows of a sample follow one another.
        """
        assert items.places is not None
        logits = outputs.values.astype(np.float64)
        _, firsts = np.unique(items.samples, return_index=True)
        heads = outputs.starts[:-1]
        is_read = items.places.values[heads, 0] != _IN_TRAINING
        nulls = np.where(is_read, logits[heads].sum(axis=1), np.inf)
        nulls = np.minimum.reduceat(nulls, firsts)
        all_places = np.where(
            np.repeat(is_read, outputs.lengths)[:, None], items.places.values, -1
        )
        edges = [*outputs.starts[firsts].tolist(), len(logits)]
        ranked = np.empty(len(firsts), dtype=object)
        for i, (begin, end) in enumerate(pairwise(edges)):
            best = _best_spans(logits[begin:end], all_places[begin:end], self.max_answer_length)
            ranked[i] = RankedAnswers(*best, float(nulls[i]))
        return ranked


def _distinct(texts: Sequence[str]) -> tuple[list[str], IntArray]:
    """Return the different texts, and for each row the position of its text among them."""
    number = {text: i for i, text in enumerate(dict.fromkeys(texts))}
    return list(number), np.array([number[text] for text in texts])


def _tokens_of(y: IntArray, context: IntArray, spans: Ragged) -> IntArray:
    """Return the first and last token of each answer, ``(n_samples, 2)``; -1 for no answer."""
    owner = np.repeat(np.arange(len(spans)), spans.lengths)
    longest = 1 + max(int(spans.values.max(initial=0)), int(y.max()))
    filled = np.flatnonzero(spans.values[:, 0] < spans.values[:, 1])  # white space is no answer
    begins, ends = ((owner * longest + spans.values[:, side])[filled] for side in (0, 1))
    first = np.searchsorted(ends, context * longest + y[:, 0], side="right")
    last = np.searchsorted(begins, context * longest + y[:, 1], side="left") - 1
    wanted = y[:, 0] >= 0
    if rows := np.flatnonzero(wanted & (first > last)).tolist():
        raise InputError(
            f"y has {len(rows)} answer(s) of characters that the tokenizer drops, such as control "
            f"characters: rows {rows[:MAX_NAMES]}. Give answers with something to read in them, "
            "or '' where the context holds none."
        )
    wanted_tokens = np.append(filled, -1)[np.stack([first, last], axis=1)]
    answers = wanted_tokens - spans.starts[context][:, None]
    return np.where(wanted[:, None], answers, -1)


def _targets(tokens: TokenTable, answers: IntArray, sizes: IntArray) -> Ragged:
    """Return 1 at the first and last token of the answer, or at the first of the window."""
    held = (answers[:, 0] >= 0) & (answers[:, 1] < sizes)
    where = np.where(held[:, None], tokens.second[:, None] + answers, 0)
    targets = np.zeros((len(tokens.ids.values), 2), np.float32)
    targets[tokens.ids.starts[:-1, None] + where, [0, 1]] = 1
    return Ragged(targets, tokens.ids.starts)


def _places(tokens: TokenTable, spans: Ragged) -> Ragged:
    """Return the start and end of each token in the context, -1 for tokens outside of it."""
    places = np.full((len(tokens.ids.values), 2), -1)
    shift = np.repeat(tokens.ids.starts[:-1] + tokens.second - spans.starts[:-1], spans.lengths)
    places[shift + np.arange(len(shift))] = spans.values
    return Ragged(places, tokens.ids.starts)


def _best_spans(logits: FloatArray, places: IntArray, longest: int) -> tuple[IntArray, FloatArray]:
    """Return the best spans of up to ``longest`` tokens, each in one window, and their scores."""
    inside = places[:, 0] >= 0
    window = np.cumsum(~inside)[inside]
    places = places[inside]
    is_gap = places[:, :1] == places[:, 1:]  # white space: no answer begins or ends there
    begins, ends = np.where(is_gap, -np.inf, logits[inside]).T
    if not len(begins):
        return np.empty((0, 2), np.int64), np.empty(0)
    width = min(longest, np.bincount(window).max())
    ends = np.pad(ends, (0, width - 1), constant_values=-np.inf)
    same = np.pad(window, (0, width - 1), constant_values=-1)
    band = sliding_window_view(same, width) == window[:, None]  # (n_tokens, width)
    scores = np.where(band, begins[:, None] + sliding_window_view(ends, width), -np.inf).ravel()
    size = 4 * MAX_ANSWERS
    while True:
        best = _largest(scores, size)
        best = best[scores[best] > -np.inf]
        first, more = np.divmod(best, width)
        spans = np.stack([places[first, 0], places[first + more, 1]], axis=1)
        _, kept = np.unique(spans, axis=0, return_index=True)
        if len(kept) >= MAX_ANSWERS or len(best) < size:
            kept = np.sort(kept)[:MAX_ANSWERS]
            return spans[kept], scores[best[kept]]
        size *= 4


def _largest(scores: FloatArray, size: int) -> IntArray:
    """Return the positions of the largest scores, the largest first."""
    size = min(size, len(scores))
    top = np.sort(np.argpartition(-scores, size - 1)[:size])
    order: IntArray = top[np.argsort(-scores[top], kind="stable")]
    return order


def best_texts(ranked: Array, contexts: Sequence[str], threshold: float) -> Array:
    """Return the best answer of each row, ``""`` where "no answer" leads by more than that."""
    answers = np.empty(len(ranked), dtype=object)
    for i, (spans, scores, null) in enumerate(ranked):
        answers[i] = ""
        if len(scores) and null - scores[0] <= threshold:
            begin, end = spans[0].tolist()
            answers[i] = contexts[i][begin:end]
    return answers


def probabilities(ranked: RankedAnswers, *, with_none: bool) -> FloatArray:
    """Probabilities of the answers kept of a row, and at the end that of "no answer"."""
    if not len(ranked.scores):
        return np.ones(1)
    return np.asarray(softmax(np.array([*ranked.scores, ranked.null if with_none else -np.inf])))


def candidates(ranked: RankedAnswers, context: str) -> list[tuple[str, float]]:
    """The answers kept of a row and "no answer" with their probabilities, best first."""
    texts = [*(context[begin:end] for begin, end in ranked.spans.tolist()), ""]
    chances = probabilities(ranked, with_none=True)
    return [(texts[at], float(chances[at])) for at in np.argsort(-chances, kind="stable")]


def answer_set(ranked: RankedAnswers, context: str, level: FloatArray) -> list[str]:
    """The answers of a row whose probability is at least ``1 - level``, best first."""
    pairs = candidates(ranked, context)
    return [*dict.fromkeys(text for text, chance in pairs if 1 - chance <= level)]
