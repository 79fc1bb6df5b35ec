"""Model cards: README.md with what an estimator knows of its fit, and what its user adds.

Depends on huggingface_hub, which writes the header as YAML; is handed estimators, imports none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any

from skbert._core.checkpoints.archive import versions
from skbert._core.checkpoints.find import is_model_id
from skbert.exceptions import InputError, InputTypeError

if TYPE_CHECKING:
    from skbert._core.families.record import Job
    from skbert._estimator.fitted import FittedEstimator

__all__ = ["CARD", "Card", "check_card", "model_card"]

CARD = "README.md"
Card = Mapping[str, Any] | bool | None

_TEXTS = ("title", "description", "data", "license")
_LISTS = ("language", "tags")
_KEYS = (*_TEXTS, "figures", *_LISTS)
_TAGS: dict[Job, str] = {
    "embedding": "feature-extraction",
    "sequence classification": "text-classification",
    "token classification": "token-classification",
    "question answering": "question-answering",
    "multiple choice": "multiple-choice",
    "masked language modelling": "fill-mask",
    "pre-training": "fill-mask",
    "causal language modelling": "text-generation",
}
_METRIC = re.compile("[a-z][a-z0-9_]*")  # how the hub names metrics, such as f1
_OF_THIS_MACHINE = ("model", "memory", "checkpoint_dir")  # parameters that may be paths
_MOST_LABELS = 50  # that are listed
_TRAINING = {"loss": "loss", "validation_loss": "loss of held-out rows",
             "validation_score": "score of held-out rows"}  # fmt: skip


def check_card(card: Card) -> dict[str, Any] | None:
    """What a user adds to the card, as a dict; None where no card is asked for.

    Raises
    ------
    InputTypeError
        If it is none of None, a bool and a dict, or an entry has another type than it must.
    InputError
        If it has an entry that no card has.
    """
    if card is None or isinstance(card, bool):
        return {} if card else None
    if not isinstance(card, Mapping):
        raise InputTypeError(
            f"card={card!r:.80} has the type {type(card).__name__}. Pass True, or a dict with some"
            f" of the entries {', '.join(_KEYS)}."
        )
    for key, value in card.items():
        _check_entry(key, value)
    return dict(card)


def _check_entry(key: object, value: object) -> None:
    is_list = isinstance(value, list | tuple) and all(isinstance(each, str) for each in value)
    if key not in _KEYS:
        raise InputError(
            f"card has the entry {key!r:.80}, which no card has. It may have {', '.join(_KEYS)}:"
            " put what else there is to say into description."
        )
    if key == "figures":
        right, wanted = _are_figures(value), "a dict of numbers, such as {'accuracy': 0.9}"
    elif key in _LISTS:
        right, wanted = is_list or isinstance(value, str), "a str or a list of them"
    else:
        right, wanted = isinstance(value, str), "a str"
    if not right:
        raise InputTypeError(f"card[{key!r}] is {value!r:.80}. It must be {wanted}.")


def _are_figures(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and isinstance(figure, Real) for name, figure in value.items()
    )


def model_card(
    estimator: FittedEstimator, given: Mapping[str, Any], library: str, usage: str
) -> bytes:
    """The text of a card; ``usage`` is code that opens the folder with ``library``."""
    from huggingface_hub import ModelCardData

    job, title = estimator._fitted.network.head.job, _line(given.get("title", ""))
    base, figures = estimator.get_params(deep=False)["model"], given.get("figures", {})
    data = ModelCardData(
        language=_listed(given.get("language")),
        license=given.get("license"),
        library_name=library,
        tags=["skbert", *(_listed(given.get("tags")) or ())],
        base_model=base if is_model_id(base) else None,
        pipeline_tag=_TAGS.get(job),
        metrics=[name for name in figures if _METRIC.fullmatch(name)] or None,
    )
    parts = {
        "## Use": f"```python\n{usage}\n```",
        "## Data": given.get("data", ""),
        "## Figures": _table("figure", "number", figures.items()),
        "## Labels": _labels(estimator),
        "## Training": "\n".join(f"    {line}" for line in _training(estimator)),
        "## Versions": _table("package", "version", versions().items()),
    }
    intro = f"# {title or type(estimator).__name__}\n\n{given.get('description', '')}"
    sections = [f"{head}\n\n{text}" for head, text in parts.items() if text]
    body = "\n\n".join(text.strip("\n") for text in (intro, *sections))
    return f"---\n{data.to_yaml()}\n---\n\n{body}\n".encode(errors="backslashreplace")


def _line(text: str) -> str:
    return " ".join(text.split())


def _listed(value: str | list[str] | None) -> list[str] | None:
    return [value] if isinstance(value, str) else list(value) if value else None


def _table(first: str, second: str, rows: Iterable[tuple[str, object]]) -> str:
    lines = [f"| {_cell(name)} | {_cell(value)} |" for name, value in rows]
    return "\n".join([f"| {first} | {second} |", "|---|---|", *lines]) if lines else ""


def _cell(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, Real) else str(value)
    return _line(text).replace("|", r"\|")


def _labels(estimator: FittedEstimator) -> str:
    """The classes or tags, one a line of a block of code: they may be any text."""
    classes = getattr(estimator, "classes_", ())
    if isinstance(classes, list):  # of several columns of y
        names = getattr(estimator, "target_names_", range(len(classes)))
        columns = zip(names, classes, strict=True)
        labels = [f"{_repr(name)}: {_repr(label)}" for name, own in columns for label in own]
    else:
        labels = [*map(_repr, classes)]
    more = [f"    ... and {len(labels) - _MOST_LABELS} more"] * (len(labels) > _MOST_LABELS)
    return "\n".join([f"    {label}" for label in labels[:_MOST_LABELS]] + more)


def _repr(value: object) -> str:
    return repr(value.item() if hasattr(value, "item") else value)[:200]


def _training(estimator: FittedEstimator) -> Iterator[str]:
    """The estimator with the parameters that somebody set, and the course of its fit."""
    defaults = type(estimator)().get_params(deep=False)
    changed = [
        f"{name}={_repr(value)}"
        for name, value in estimator.get_params(deep=False).items()
        if name not in _OF_THIS_MACHINE
        and isinstance(value, str | int | float)
        and value != defaults[name]
    ]
    yield f"{type(estimator).__name__}({', '.join(changed)})"
    history = getattr(estimator, "history_", None)
    if history:
        steps, tokens, seconds = (
            sum(each.get(key, 0) for each in history) for key in ("n_steps", "n_tokens", "seconds")
        )
        yield f"{len(history)} passes, {steps} steps, {tokens} tokens, {seconds:.0f} seconds"
        yield from (
            f"{words} of the last pass: {history[-1][key]:.4g}"
            for key, words in _TRAINING.items()
            if history[-1].get(key) is not None
        )
