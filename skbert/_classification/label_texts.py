"""Texts that say what labels mean: read, checked, and made into rows to train on.

Depends on numpy, the targets and the plan of a fit; knows no estimator.
"""

from __future__ import annotations

import re
import reprlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from skbert._arrays import Array
from skbert._classification.classes import codes_of, union_of
from skbert._classification.targets import SingleTargets, Targets
from skbert._classification.task import MultiLabel, mean_factors
from skbert._estimator.label_rows import LabelRows
from skbert._estimator.plan import TrainingPlan
from skbert._validation.targets import check_classes
from skbert._validation.texts import Texts, without_surrogates
from skbert._validation.weights import hint_of_class
from skbert.exceptions import InputError, InputTypeError

__all__ = [
    "LabelTexts", "LabelTextsLike", "check_label_texts", "label_rows", "read_label_texts",
    "with_labels",
]  # fmt: skip

LabelTextsLike = Mapping[Any, str | Sequence[str]] | Sequence[str]

_SEPARATORS = re.compile(r"[_./-]+")
_EXAMPLE = "{'refund': 'the customer wants money back'}"


class LabelTexts(NamedTuple):
    """Texts, and the label that each of them describes."""

    labels: Array  # (n_texts,)
    texts: list[str]


def check_label_texts(head_init: str, rows: Texts) -> None:
    """Refuse texts of labels where they have no effect, or none that makes sense."""
    if head_init == "random":
        raise InputError(
            "label_texts starts the head from the texts of labels, and head_init='random' from "
            "random weights. Leave one of them out: set head_init='auto' or label_texts=None."
        )
    if rows.second is not None:
        raise InputError(
            "label_texts needs one text per row, or fields of one, but X holds pairs of texts, "
            "and a label cannot be described by a pair. Join both texts, or set label_texts=None."
        )
    if rows.features is not None:
        raise InputError(
            "label_texts describes labels by texts alone, but with feature_columns each row has "
            "numbers and categories, too. Leave one of them out: set label_texts=None or "
            "feature_columns=None."
        )


def read_label_texts(given: object) -> LabelTexts:
    """The texts of a mapping, or the words of a list of labels."""
    if isinstance(given, Mapping):
        pairs = [(key, text) for key, value in given.items() for text in _texts_of(key, value)]
    elif isinstance(given, list | tuple) or (isinstance(given, np.ndarray) and given.ndim == 1):
        _refuse_twice(given)
        pairs = [(label, _words_of(label)) for label in given]
    else:
        raise InputTypeError(
            f"label_texts is {reprlib.repr(given)}, of type {type(given).__name__}, but must be a "
            f"dict of texts or a list of labels. Type label_texts={_EXAMPLE}."
        )
    if not pairs:
        raise InputError(
            "label_texts is empty. Give a text for each label, such as "
            f"label_texts={_EXAMPLE}, or set label_texts=None."
        )
    labels, texts = zip(*pairs, strict=True)
    _check_labels(labels)
    return LabelTexts(check_classes(list(labels)), list(texts))


def with_labels(targets: Targets, texts: LabelTexts | None) -> Targets:
    """The targets; those of one label per row also know the labels that y lacks."""
    if texts is None or not isinstance(targets, SingleTargets):
        return targets
    label, other = texts.labels.tolist()[0], targets.truth.tolist()[0]
    if isinstance(label, str) != isinstance(other, str):
        kind = type(other).__name__
        raise InputTypeError(
            f"label_texts has the label {label!r}, of type {type(label).__name__}, but row 0 of y "
            f"is {other!r}, of type {kind}. Name labels as they are in y; type label_texts="
            f"{{{kind}(label): text for label, text in label_texts.items()}}."
        )
    return replace(targets, more=union_of(texts.labels, targets.more))


def label_rows(
    texts: LabelTexts | None, plan: TrainingPlan, class_weight: object, *, are_all: bool
) -> LabelRows:
    """The rows to train on beside those of X; without texts, the words of all labels.

    With ``are_all`` they are X already, and there is nothing beside.

    A text counts as much as a row of its class does on average. The texts of a class without rows
    together count as much as the rows of another class do on average, times its class weight: the
    more rows others have, the less often such a class would be predicted otherwise.
    """
    classes = plan.attributes["classes_"]
    if not isinstance(classes, np.ndarray):
        raise InputError(
            f"label_texts is for one column of labels, and y has {len(classes)}. Fit an estimator "
            "for each column, or set label_texts=None."
        )
    if texts is None:
        texts = LabelTexts(classes, [_words_of(label) for label in classes.tolist()])
    _check_known(texts.labels, classes)
    codes, targets = codes_of(texts.labels, classes), plan.targets
    weights, own = _weights_of_classes(plan, codes, classes, class_weight)[codes], codes
    if targets.ndim > 1:
        own = np.eye(len(classes), dtype=targets.dtype)[codes]
    if isinstance(plan.task, MultiLabel):
        weights = weights * mean_factors(plan.task, own)
    rows = None if are_all else Texts(texts.texts, None, None, 1)
    return LabelRows(rows, own, weights)


def _weights_of_classes(
    plan: TrainingPlan, codes: Array, classes: Array, class_weight: object
) -> Array:
    """The weight of a text of each class; the texts are of the classes with these codes."""
    counts, totals = _rows_of_classes(plan, len(classes))
    factors = np.ones(len(classes))  # which the totals of classes with rows hold already
    if isinstance(class_weight, Mapping) and not isinstance(plan.task, MultiLabel):
        factors = np.array([class_weight.get(label, 1.0) for label in classes.tolist()])
    has_rows = counts > 0
    usual = (totals[has_rows] / factors[has_rows]).mean() if has_rows.any() else 1.0
    n_texts = np.maximum(np.bincount(codes, minlength=len(classes)), 1)
    weights: Array = np.where(
        has_rows, totals / np.maximum(counts, 1e-12), usual * factors / n_texts
    )
    return weights


def _rows_of_classes(plan: TrainingPlan, n_classes: int) -> tuple[Array, Array]:
    """How many rows of each class have a weight above 0, and their total weight."""
    targets = plan.targets
    weights = np.ones(len(targets)) if plan.weights is None else plan.weights
    if isinstance(plan.task, MultiLabel):  # without the factors that weights of rows hold
        means = mean_factors(plan.task, targets)
        weights = weights / np.where(means == 0, 1.0, means)
    if targets.ndim == 1:
        counts, totals = (np.bincount(targets, x, n_classes) for x in (weights > 0, weights))
        return counts, totals
    return (weights > 0) @ targets, weights @ targets


def _texts_of(label: object, value: object) -> Iterable[str]:
    """The texts of one label, exact str."""
    texts = value if isinstance(value, list | tuple) else [value]
    if not texts:
        raise InputError(
            f"label_texts[{label!r}] is an empty list. Give at least one text, or leave the label "
            "out: it then starts from its rows."
        )
    return [_text_of(label, text) for text in texts]


def _text_of(label: object, text: object) -> str:
    if not isinstance(text, str):
        raise InputTypeError(
            f"label_texts[{label!r}] holds {reprlib.repr(text)}, of type {type(text).__name__}, "
            "but must be a text (str), or a list of texts. Type "
            f"label_texts={{{label!r}: 'what it means'}}."
        )
    if not text or text.isspace() or without_surrogates(text) != text:
        what = "holds half a character" if text.strip() else "is empty"
        raise InputError(
            f"label_texts[{label!r}] {what}: {text!r:.80}. Say in words what the label means, or "
            "leave it out: it then starts from its rows."
        )
    return str.__str__(text)


def _words_of(label: object) -> str:
    """A label as words."""
    if not isinstance(label, str):
        raise InputTypeError(
            f"The label {label!r}, of type {type(label).__name__}, says nothing in words. Give a "
            f"text for each label: type label_texts={{{label!r}: 'what it means'}}."
        )
    words = _SEPARATORS.sub(" ", label).strip()
    return _text_of(label, words)


def _refuse_twice(labels: Sequence[object] | Array) -> None:
    """Raise where a list names a label more than once."""
    label, count = max(Counter(map(str, labels)).items(), key=itemgetter(1), default=("", 0))
    if count > 1:
        raise InputError(
            f"label_texts names the label {label!r} {count} times. Name each once, or give a dict "
            "with several texts for a label."
        )


def _check_labels(labels: tuple[object, ...]) -> None:
    """Refuse labels that can be none of y, or are of two kinds."""
    for label in labels:
        is_whole = isinstance(label, float) and label.is_integer()
        if not (is_whole or isinstance(label, str | int | np.integer | np.bool_)):
            raise InputTypeError(
                f"label_texts has the label {label!r}, of type {type(label).__name__}. Labels "
                f"must be str, bool or whole numbers; type label_texts={_EXAMPLE}."
            )
    other = next((x for x in labels if isinstance(x, str) != isinstance(labels[0], str)), None)
    if other is not None:
        raise InputTypeError(
            f"label_texts mixes str and numbers: it has the labels {labels[0]!r} and {other!r}. "
            "Labels must be of one kind, that of y."
        )


def _check_known(labels: Array, classes: Array) -> None:
    """Raise where texts are given for labels that y cannot hold."""
    known = classes.tolist()
    unknown = [label for label in dict.fromkeys(labels.tolist()) if label not in known]
    if unknown:
        raise InputError(
            f"label_texts has labels that are no column of y: {unknown!r:.80}. The columns are "
            f"{reprlib.repr(known)}.{hint_of_class(unknown[0], known)} Name a column, or leave "
            "these labels out."
        )
