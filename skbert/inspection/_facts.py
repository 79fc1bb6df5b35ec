"""Facts about the rows of X and y: lengths, labels, repeated and empty texts.

Depends on the base of the estimators, on the checks of X and y, and on `_outcomes`.
"""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import _num_samples

from skbert._arrays import Array, FloatArray, IntArray
from skbert._core.text.fields import encode_rows
from skbert._core.text.tokens import TextTokenizer
from skbert._estimator.base import TextEstimator
from skbert._validation.choices import Choices
from skbert._validation.targets import as_sequence, check_labels
from skbert._validation.texts import Texts
from skbert._validation.words import WordRows
from skbert.exceptions import InputError
from skbert.inspection._columns import Predicts, checked_rows, open_columns
from skbert.inspection._outcomes import Outcomes
from skbert.inspection._page import Bar, Block, Cell, Section, Sentence, Table

__all__ = ["about_lengths", "about_rows", "about_truth"]

_N_BINS = 8
_ANY_LENGTH = 1 << 40  # in tokens, which no row has
_MOST_LABELS = 30
_MOST_ROWS = 8  # that are named


def about_rows(estimator: Predicts, X: object, X_train: object) -> Section:
    """How many rows there are, and which are empty or repeated."""
    keys = _keys(estimator, X)
    firsts: dict[Hashable, int] = {}
    for row, key in enumerate(keys):
        firsts.setdefault(key, row)
    problems = {
        "empty": [row for row, key in enumerate(keys) if _is_blank(key)],
        "the same as an earlier row": [row for row, key in enumerate(keys) if firsts[key] != row],
    }
    if X_train is not None:
        known = {*_keys(estimator, X_train)}
        problems["also in X_train"] = [row for row, key in enumerate(keys) if key in known]
    n_rows = len(keys)
    lines = [["rows", f"{n_rows:,}", ""]]
    lines += [
        [name, f"{len(rows):,}", _share(len(rows), n_rows)] for name, rows in problems.items()
    ]
    warnings = [_named(name, rows) for name, rows in problems.items() if rows]
    return Section("Rows", [Table(["", "rows", "share"], lines), *warnings])


def about_lengths(estimator: TextEstimator, X: object) -> Section:
    """How long the rows are in tokens, and how many are longer than ``max_length``."""
    fitted = estimator._state()
    rows, task = checked_rows(estimator, X), fitted.task
    tokenizer, most = fitted.network.text_tokenizer, int(task.max_length)
    lengths = _lengths(tokenizer, rows)
    n_rows, n_long = len(lengths), int((lengths > most).sum())
    summary = (
        f"The median row has {np.median(lengths):.0f} tokens and the longest {lengths.max():,}, "
        f"special tokens included; max_length is {most:,}."
    )
    blocks: list[Block] = [Sentence(summary), _histogram(lengths, most)]
    if n_long:
        n_cut = int(task.encode(rows, None, tokenizer).n_truncated)
        what = getattr(task, "truncated", "")
        cut = f"1 {what} is cut" if n_cut == 1 else f"{n_cut:,} {what} are cut"
        rest = " ".join(cut.split()) if n_cut else "all of them are read, in windows"
        blocks.append(Sentence(
            f"{n_long:,} of {n_rows:,} rows ({_share(n_long, n_rows)}) are longer than "
            f"max_length; {rest}.", is_warning=n_cut > 0,
        ))  # fmt: skip
    return Section("Lengths", blocks)


def about_truth(outcomes: Outcomes, n_rows: int, y_train: object) -> Section:
    """How often each label is true; for numbers, how they are distributed."""
    truths = [outcomes.truth(row) for row in range(n_rows)]
    train = None if y_train is None else _train_counts(outcomes, y_train)
    if outcomes.is_right(0) is None:
        return Section("Numbers", _about_numbers(np.array(truths, np.float64)))
    if isinstance(outcomes.prediction(0), str) and isinstance(truths[0], list):
        kinds = Counter("an answer" if truth else "no answer" for truth in truths)
        return Section("Answers", [_counted("", kinds, None)])
    counts = Counter(label for truth in truths for label in _labels_of(truth))
    if hasattr(outcomes, "ranking"):
        return Section("Right options, by position", [_counted("position", counts, None)])
    known = getattr(outcomes, "classes", getattr(outcomes, "known_labels", ()))
    notes = _about_rare_and_new(counts, known)
    return Section("Labels", [_counted("label", counts, train), *notes])


def _about_rare_and_new(counts: Counter[Any], known: Sequence[Any]) -> list[Sentence]:
    """Labels that the table leaves out, and labels that fit has not seen."""
    notes, new = [], [str(label) for label in counts if label not in known]
    if len(counts) > _MOST_LABELS:
        notes.append(Sentence(f"{len(counts) - _MOST_LABELS:,} rarer labels are left out."))
    if new:
        notes.append(Sentence(
            f"Labels unseen in fit: {', '.join(new[:_MOST_ROWS])}. Rows that have them are always "
            "wrong.", is_warning=True,
        ))  # fmt: skip
    return notes


def _keys(estimator: Predicts, X: object) -> list[tuple[Hashable, ...]]:
    """What each row says, so that equal rows are equal."""
    if not isinstance(estimator, TextEstimator):
        return [*zip(*open_columns(estimator, X).cells, strict=True)]
    rows = checked_rows(estimator, X)
    if isinstance(rows, WordRows):
        return [*map(tuple, rows.words)]
    parts: list[Any] = rows.columns
    if isinstance(rows, Texts) and rows.features is not None:
        parts = [*parts, map(tuple, rows.features.tolist())]
    if isinstance(rows, Choices):
        parts = [*parts, [tuple(options) for options in rows.options]]
    return [*zip(*parts, strict=True)]


def _is_blank(key: Iterable[object]) -> bool:
    """Whether a row holds nothing to read, apart from its options."""
    return not any(part.strip() for part in key if isinstance(part, str))


def _lengths(tokenizer: TextTokenizer, rows: Texts | WordRows | Choices) -> IntArray:
    """Tokens of each row if it were not cut; with options, of the longest one."""
    if isinstance(rows, WordRows):
        words = tokenizer.pieces_of_words([word for row in rows.words for word in row]).lengths
        ends = np.cumsum([0, *map(len, rows.words)])
        sums = np.concatenate([[0], np.cumsum(words)])[ends]
        return np.asarray(np.diff(sums) + tokenizer.n_specials(pair=False))
    if isinstance(rows, Texts) and rows.fields:
        return encode_rows(tokenizer, rows, _ANY_LENGTH, "truncate").tokens.lengths
    lengths = tokenizer.pieces(rows.first).lengths
    if rows.second is not None:
        lengths = lengths + tokenizer.pieces(rows.second).lengths
    if isinstance(rows, Choices):
        options = tokenizer.pieces([each for places in rows.places for each in places]).lengths
        starts = np.cumsum([0, *map(len, rows.places)])[:-1]
        lengths = lengths + np.maximum.reduceat(options, starts)
    is_pair = rows.second is not None or isinstance(rows, Choices)
    return np.asarray(lengths + tokenizer.n_specials(pair=is_pair))


def _histogram(lengths: IntArray, most: int) -> Table:
    """Rows by length, those beyond ``max_length`` in bins of their own."""
    longest = int(lengths.max())
    width = -(-min(longest, most) // _N_BINS)
    edges = [*range(0, min(longest, most), width), min(longest, most)]
    if longest > most:
        edges.append(longest)
    counts = np.histogram(lengths, np.array(edges) + 0.5)[0]
    lines: list[list[Cell]] = [
        [
            f"{low + 1:,}\u2013{high:,}" if high > low + 1 else f"{high:,}",
            f"{count:,}",
            Bar(count / counts.max(), low >= most),
        ]
        for low, high, count in zip(edges, edges[1:], counts.tolist(), strict=False)
    ]
    return Table(["tokens", "rows", ""], lines)


def _about_numbers(truths: FloatArray) -> list[Block]:
    """The distribution of each output."""
    blocks: list[Block] = []
    for values in truths.reshape(len(truths), -1).T:
        counts, edges = np.histogram(values, _N_BINS)
        summary = (
            f"The mean is {values.mean():.4g} and the standard deviation {values.std():.4g}; "
            f"from {values.min():.4g} to {values.max():.4g}."
        )
        lines: list[list[Cell]] = [
            [f"{low:.4g} to {high:.4g}", f"{count:,}", Bar(count / counts.max())]
            for low, high, count in zip(edges, edges[1:], counts.tolist(), strict=False)
        ]
        blocks += [Sentence(summary), Table(["number", "rows", ""], lines)]
    return blocks


def _counted(name: str, counts: Counter[Any], train: Counter[Any] | None) -> Table:
    """Labels from the most frequent on, beside those of y_train."""
    lines: list[list[Cell]] = []
    most = max(counts.values(), default=1)
    for label, count in counts.most_common(_MOST_LABELS):
        in_train = [] if train is None else [f"{train[label]:,}"]
        bar = Bar(count / most)
        lines.append([str(label), f"{count:,}", *in_train, bar])
    head = [name, "in y", *([] if train is None else ["in y_train"]), ""]
    return Table(head, lines)


def _train_counts(outcomes: Outcomes, y_train: object) -> Counter[Any]:
    """How often each label is true in y_train."""
    classes = getattr(outcomes, "classes", None)
    if classes is None:
        raise InputError(
            "y_train is compared with y for classes and labels only, and this estimator predicts "
            "something else. Leave y_train out; X_train can stay."
        )
    labels = as_sequence(y_train)
    table, is_indicator = check_labels(labels, int(_num_samples(labels)), estimator_name="report")
    _check_form(table, outcomes, classes)
    if is_indicator:
        return Counter(dict(zip(classes, table.sum(axis=0).tolist(), strict=True)))
    return Counter(table.tolist())


def _check_form(y_train: Array, outcomes: Outcomes, classes: list[Any]) -> None:
    """Refuse labels of training rows in another form than those of y."""
    if isinstance(outcomes.prediction(0), list):
        is_alike = y_train.shape[1:] == (len(classes),)
    else:
        is_str = isinstance(classes[0], str)
        is_alike = y_train.ndim == 1 and all(
            isinstance(x, str) == is_str for x in y_train.tolist()
        )
    if not is_alike:
        raise InputError(
            f"y_train has the shape {y_train.shape} and begins with {y_train.tolist()[:1]!s:.80}, "
            f"but the labels of fit are {reprlib.repr(classes)}. Give y_train as in fit."
        )


def _labels_of(truth: object) -> list[Any]:
    """The labels of a row: one, any number, or those of its entities."""
    several = truth if isinstance(truth, list) else [truth]
    return [each[2] if isinstance(each, tuple) else each for each in several]


def _named(name: str, rows: Sequence[int]) -> Sentence:
    """Which rows have a problem."""
    some = ", ".join(map(str, rows[:_MOST_ROWS])) + ", \u2026" * (len(rows) > _MOST_ROWS)
    advice = {
        "empty": "nothing can be predicted from an empty text",
        "the same as an earlier row": "a repeated text counts more than once in the scores",
        "also in X_train": "what was learned by heart says nothing about new texts",
    }[name]
    what = "Row" if len(rows) == 1 else "Rows"
    verb = "is" if len(rows) == 1 else "are"
    return Sentence(f"{what} {some} {verb} {name}: {advice}.", is_warning=True)


def _share(count: int, n_rows: int) -> str:
    return f"{100 * count / n_rows:.1f} %"
