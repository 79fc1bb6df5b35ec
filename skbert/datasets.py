"""Small labelled data sets that come with the package, and a reader of SQuAD files.

Each loader reads one file from ``skbert/data`` and returns it in the form that
scikit-learn's own ``load_*`` functions use. The datasheet that lies next to the
file becomes ``DESCR``. Nothing is downloaded.

This module may depend on the standard library, pandas, scikit-learn's ``Bunch``
and `skbert.exceptions`, and on nothing else. It must not import torch, directly
or through another module of this package.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import as_file, files
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import pandas as pd
from sklearn.utils import Bunch  # type: ignore[import-untyped, unused-ignore]

from skbert.exceptions import InputError

if TYPE_CHECKING:
    from typing import TypeAlias

    Texts: TypeAlias = pd.Series[str]
    Numbers: TypeAlias = pd.Series[float]
    Positions: TypeAlias = pd.Series[int]
    Cells: TypeAlias = pd.Series[Any]

__all__ = [
    "load_choices",
    "load_entities",
    "load_intents",
    "load_questions",
    "load_ratings",
    "load_squad",
]

_DATA = files("skbert") / "data"


def _table(name: str, columns: Mapping[str, type]) -> pd.DataFrame:
    """Read ``data/<name>.csv``.

    Parameters
    ----------
    name : str
        File name without its ending.
    columns : mapping of str to type
        The columns to read, in their order, and their types. An empty cell in a
        text column is the empty string, in any other column it is an error.
    """
    with (_DATA / f"{name}.csv").open("r", encoding="utf-8") as file:
        return pd.read_csv(file, dtype=dict(columns), na_filter=False)[list(columns)]


def _give(
    name: str, frame: pd.DataFrame, *, return_X_y: bool, **fields: Any
) -> Bunch | tuple[Any, Any]:
    """Return a frame, whose last column is the target, in the form of a loader's result.

    Parameters
    ----------
    name : str
        The datasheet is ``data/<name>.md``.
    frame : DataFrame
        All columns. Without the last they are ``data``, a Series if it is one.
    return_X_y : bool
        Whether to return ``(data, target)`` instead of the Bunch.
    **fields : Any
        Further fields of the Bunch.
    """
    *inputs, target = frame.columns
    data = frame[inputs] if len(inputs) > 1 else frame[inputs[0]]
    if return_X_y:
        return data, frame[target]
    descr = (_DATA / f"{name}.md").read_text(encoding="utf-8")
    return Bunch(data=data, target=frame[target], frame=frame, DESCR=descr, **fields)


@overload
def load_choices(*, return_X_y: Literal[False] = False) -> Bunch: ...
@overload
def load_choices(*, return_X_y: Literal[True]) -> tuple[pd.DataFrame, Positions]: ...
def load_choices(*, return_X_y: bool = False) -> Bunch | tuple[pd.DataFrame, Positions]:
    """Load the sentences to finish (multiple choice, 2 to 5 options).

    Each row is the start of a short text, and the options are ways to continue it.

    Parameters
    ----------
    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of the Bunch.

    Returns
    -------
    Bunch or tuple of (DataFrame, Series)
        The Bunch has ``data`` (DataFrame with the columns "prompt", str, and
        "choices", lists of str), ``target`` (Series of int named "answer", the
        position of the right option), ``frame`` (DataFrame with all columns)
        and ``DESCR`` (the datasheet, Markdown text).

    Examples
    --------
    >>> from skbert.datasets import load_choices
    >>> X, y = load_choices(return_X_y=True)
    >>> X.shape
    (120, 2)
    >>> X.prompt[6]
    'The glass fell on the stone floor and'
    >>> X.choices[6]
    ['bounced back into his hand', 'grew', 'broke', 'sang']
    >>> X.choices[6][y[6]]
    'broke'
    """
    frame = _table("choices", {"prompt": str, "choices": str, "answer": int})
    frame["choices"] = frame["choices"].str.split(" | ", regex=False)
    return _give("choices", frame, return_X_y=return_X_y)


@overload
def load_entities(*, return_X_y: Literal[False] = False) -> Bunch: ...
@overload
def load_entities(*, return_X_y: Literal[True]) -> tuple[Cells, Cells]: ...
def load_entities(*, return_X_y: bool = False) -> Bunch | tuple[Cells, Cells]:
    """Load the messages with names (tagging, 3 types of entities in IOB2).

    Each row is a message from an office, a trip or a shop as a list of words,
    and a tag for each word says whether it belongs to the name of a person
    (PER), the name of a place (LOC) or a date (DATE).

    Parameters
    ----------
    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of the Bunch.

    Returns
    -------
    Bunch or tuple of (Series, Series)
        The Bunch has ``data`` (Series of lists of str named "words"),
        ``target`` (Series of lists of str named "tags", as long as the lists of
        words), ``frame`` (DataFrame with both columns), ``target_names``
        (sorted list of the types) and ``DESCR`` (the datasheet, Markdown text).

    Examples
    --------
    >>> from skbert.datasets import load_entities
    >>> entities = load_entities()
    >>> entities.target_names
    ['DATE', 'LOC', 'PER']
    >>> X, y = load_entities(return_X_y=True)
    >>> X[13]
    ['Is', 'Hedda', 'in', 'on', 'Mondays', '?']
    >>> y[13]
    ['O', 'B-PER', 'O', 'O', 'B-DATE', 'O']
    """
    frame = _table("entities", {"words": str, "tags": str})
    for name in frame:
        frame[name] = frame[name].str.split(" ")
    names = sorted({tag[2:] for tags in frame["tags"] for tag in tags if tag != "O"})
    return _give("entities", frame, return_X_y=return_X_y, target_names=names)


@overload
def load_intents(*, return_X_y: Literal[False] = False) -> Bunch: ...
@overload
def load_intents(*, return_X_y: Literal[True]) -> tuple[Texts, Texts]: ...
def load_intents(*, return_X_y: bool = False) -> Bunch | tuple[Texts, Texts]:
    """Load the support desk messages (classification, 8 classes).

    Each row is one message to the support desk of an online shop with an app,
    and the label says what the sender wants.

    Parameters
    ----------
    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of the Bunch.

    Returns
    -------
    Bunch or tuple of (Series, Series)
        The Bunch has ``data`` (Series of str named "text"), ``target`` (Series
        of str named "label"), ``frame`` (DataFrame with both columns),
        ``target_names`` (sorted list of the labels) and ``DESCR`` (the
        datasheet, Markdown text).

    Examples
    --------
    >>> from skbert.datasets import load_intents
    >>> intents = load_intents()
    >>> intents.frame.shape
    (449, 2)
    >>> intents.target_names[:3]
    ['bug_report', 'cancel_subscription', 'delivery']
    >>> X, y = load_intents(return_X_y=True)
    >>> X[0], y[0]
    ('Which cards do you take?', 'payment')
    """
    frame = _table("intents", {"text": str, "label": str})
    names = sorted(frame["label"].unique())
    return _give("intents", frame, return_X_y=return_X_y, target_names=names)


@overload
def load_questions(*, return_X_y: Literal[False] = False) -> Bunch: ...
@overload
def load_questions(*, return_X_y: Literal[True]) -> tuple[pd.DataFrame, Cells]: ...
def load_questions(*, return_X_y: bool = False) -> Bunch | tuple[pd.DataFrame, Cells]:
    """Load the questions about short texts (answers are spans of the text).

    Each row is a question and a paragraph, and the answer is a piece of the
    paragraph; some questions have no answer there. Four rows share a paragraph.

    Parameters
    ----------
    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of the Bunch.

    Returns
    -------
    Bunch or tuple of (DataFrame, Series)
        The Bunch has ``data`` (DataFrame of str with the columns "question" and "context"),
        ``target`` (Series named "answer" of ``(answer, start)`` where ``start`` is the position of
        its first character in the context, ``""`` if there is no answer), ``frame`` (DataFrame
        with all columns) and ``DESCR`` (the datasheet, Markdown text).

    Examples
    --------
    >>> from skbert.datasets import load_questions
    >>> X, y = load_questions(return_X_y=True)
    >>> X.shape
    (120, 2)
    >>> X.question[0], y[0]
    ('How high above the sea was the lamp?', ('42 metres', 123))
    """
    with as_file(_DATA / "questions.json") as path:
        X, y = load_squad(path)
    frame = X.assign(answer=[gold[0] if gold else "" for gold in y])
    return _give("questions", frame, return_X_y=return_X_y)


@overload
def load_ratings(*, return_X_y: Literal[False] = False) -> Bunch: ...
@overload
def load_ratings(*, return_X_y: Literal[True]) -> tuple[Texts, Numbers]: ...
def load_ratings(*, return_X_y: bool = False) -> Bunch | tuple[Texts, Numbers]:
    """Load the product reviews (regression, 1.0 to 5.0 in half steps).

    Each row is one short review of a product, with its rating.

    Parameters
    ----------
    return_X_y : bool, default=False
        If True, return ``(data, target)`` instead of the Bunch.

    Returns
    -------
    Bunch or tuple of (Series, Series)
        The Bunch has ``data`` (Series of str named "text"), ``target`` (Series
        of float named "rating"), ``frame`` (DataFrame with both columns) and
        ``DESCR`` (the datasheet, Markdown text).

    Examples
    --------
    >>> from skbert.datasets import load_ratings
    >>> ratings = load_ratings()
    >>> ratings.frame.shape
    (252, 2)
    >>> float(ratings.target.min()), float(ratings.target.max())
    (1.0, 5.0)
    >>> X, y = load_ratings(return_X_y=True)
    >>> X[0], float(y[0])
    ('A gripping read with one chapter too many.', 4.0)
    """
    frame = _table("ratings", {"text": str, "rating": float})
    return _give("ratings", frame, return_X_y=return_X_y)


def load_squad(path: str | PathLike[str]) -> tuple[pd.DataFrame, Cells]:
    """Read a file in the format of SQuAD, version 1.1 or 2.0.

    Parameters
    ----------
    path : str or path-like
        A JSON file.

    Returns
    -------
    X : DataFrame of shape (n, 2)
        One row per question, with the columns "question" and "context" (str).
    y : Series of length n named "answers"
        The right answers of each question, a list of ``(answer, start)`` without repetitions,
        where ``start`` is the position of the first character in the context; ``""`` if there is
        no answer.

    Raises
    ------
    InputError
        If the file does not have this format; the message names the wrong part.
    OSError
        If the file cannot be read.

    References
    ----------
    .. [1] P. Rajpurkar, R. Jia and P. Liang, "Know What You Don't Know:
           Unanswerable Questions for SQuAD", ACL 2018,
           https://aclanthology.org/P18-2124

    Examples
    --------
    >>> import json, pathlib, tempfile
    >>> from skbert.datasets import load_squad
    >>> answer = {"text": "at noon", "answer_start": 8}
    >>> asked = {"question": "When do we eat?", "answers": [answer]}
    >>> article = {"paragraphs": [{"context": "Lunch is at noon.", "qas": [asked]}]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = pathlib.Path(folder) / "squad.json"
    ...     _ = path.write_text(json.dumps({"data": [article]}))
    ...     X, y = load_squad(path)
    >>> X.question[0], y[0]
    ('When do we eat?', [('at noon', 8)])
    """
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        msg = f"{path} is not JSON in UTF-8: {error}. Give the path of a SQuAD file."
        raise InputError(msg) from None
    try:
        rows = list(_questions(content))
    except InputError as error:
        msg = f"{path} is not in the format of SQuAD: {error}."
        raise InputError(msg) from None
    if not rows:
        msg = f"{path} holds no questions. Give the path of a SQuAD file."
        raise InputError(msg)
    frame = pd.DataFrame(rows, columns=["question", "context", "answers"])
    return frame[["question", "context"]], frame["answers"]


def _part(node: Any, key: str, kind: type, place: str) -> Any:
    """Return one value of a JSON object, of the type that it must have."""
    if not isinstance(node, dict):
        msg = f"{place} is of type {type(node).__name__}, not an object"
        raise InputError(msg)
    if key not in node:
        msg = f"{place} has no key {key!r}; its keys are {list(node)[:8]}"
        raise InputError(msg)
    if not isinstance(node[key], kind):
        kind_name = type(node[key]).__name__
        msg = f"{key!r} of {place} is of type {kind_name}, not {kind.__name__}"
        raise InputError(msg)
    if kind is str and not node[key].isascii():
        _check_characters(node[key], f"{key!r} of {place}")
    return node[key]


def _check_characters(text: str, what: str) -> None:
    """Refuse a text with half a surrogate pair, which pandas cannot hold."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        msg = f"{what} has half a character at position {error.start}, {text[error.start]!a}"
        raise InputError(msg) from None


def _parts(node: Any, key: str, place: str) -> Iterator[tuple[Any, str]]:
    """Yield the entries of a list in a JSON object, each with its place."""
    for i, entry in enumerate(_part(node, key, list, place)):
        yield entry, f"{place}.{key}[{i}]".removeprefix("the file.")


def _questions(content: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield question, context and answers of each row of a SQuAD file."""
    for article, where in _parts(content, "data", "the file"):
        for paragraph, there in _parts(article, "paragraphs", where):
            context = _part(paragraph, "context", str, there)
            for asked, here in _parts(paragraph, "qas", there):
                yield _part(asked, "question", str, here), context, _gold(asked, here)


def _gold(asked: Any, place: str) -> Any:
    """Return the right answers to one question, ``""`` if there are none."""
    if asked.get("is_impossible", False):
        return ""
    answers = [
        (_part(answer, "text", str, here), _part(answer, "answer_start", int, here))
        for answer, here in _parts(asked, "answers", place)
    ]
    return list(dict.fromkeys(answers)) or ""
