"""The commands predict, embed and fit.

Depends on the public interface of the package, and on its neighbours.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

import skbert
from skbert import runtime
from skbert._catalogue import ESTIMATORS
from skbert._core.checkpoints import archive
from skbert._core.checkpoints.find import find
from skbert._core.checkpoints.vet import vet
from skbert._estimator.bar import Bar
from skbert._estimator.base import TextEstimator
from skbert._streaming.results import Columns, Model, predicted, vectors
from skbert._streaming.sources import (
    Part,
    check_columns,
    digest,
    open_parquet,
    open_table,
    parts_of,
)
from skbert._streaming.unfinished import check_absent, unfinished
from skbert._validation.columns import FitRecord, TextColumns, field_names
from skbert._validation.parquet import FileRows
from skbert.exceptions import InputError, InputTypeError, SaveError

__all__ = ["embed", "fit", "predict"]

Names = Sequence[str] | None
_BY_CLASS = {"class_weight", "label_texts"}  # parameters whose keys are classes


def predict(
    model: str, source: Path, target: Path, *, text_columns: Names, keep: Names,
    probabilities: bool,
) -> Path:  # fmt: skip
    """Write a parquet file with what a saved or exported model predicts for the rows of one."""
    opened = _open(Path(model))
    if not hasattr(opened, "predict"):
        raise InputError(
            f"{model} holds a {type(opened).__name__}, which predicts nothing. Use embed for the "
            "vectors of a BertTransformer, or another model."
        )
    compute = partial(predicted, opened, with_probabilities=probabilities)
    facts = {"the model": digest(Path(model) / archive.MANIFEST)}
    return _stream(opened, compute, source, target, text_columns, keep, {
        **facts, "--probabilities": str(probabilities),
    })  # fmt: skip


def embed(model: str, source: Path, target: Path, *, text_columns: Names, keep: Names) -> Path:
    """Write a parquet file with the vectors of the rows of one."""
    manifest = Path(model) / archive.MANIFEST
    opened: Any = _open(Path(model)) if manifest.is_file() else None
    facts = {"the model": digest(manifest) if opened else vet(find(model)).digest()}
    if not hasattr(opened, "transform"):  # the encoder below another head
        if opened and _is_exported(Path(model)):
            raise InputError(
                f"{model} holds {opened!r:.80}, which gives no vectors. Use a folder that save "
                "wrote, or the export of a BertTransformer."
            )
        reads = {} if opened is None else _columns_below(opened)
        opened = skbert.BertTransformer.from_pretrained(model, **reads)
    return _stream(opened, partial(vectors, opened), source, target, text_columns, keep, facts)


def _columns_below(opened: TextEstimator) -> dict[str, Any]:
    """How the encoder below a saved head reads X: as the head does, but for its features."""
    columns, record = opened.text_columns, opened._state().record
    if columns is None and record is not None and record.names:
        others = {column if isinstance(column, str) else record.names[column]
                  for column, *_ in record.features}  # fmt: skip
        columns = [name for name in record.names if name not in others]
    return {"text_columns": columns, "missing": opened.missing}


def fit(
    data: Path, folder: Path, *, estimator: str, label_columns: Names, text_columns: Names,
    model: str | None, settings: Sequence[str],
) -> Path:  # fmt: skip
    """Fit an estimator on the rows of a CSV or parquet file, and save it."""
    _check_new(folder)
    if estimator not in ESTIMATORS:
        raise InputError(f"--estimator {estimator} is none of {', '.join(ESTIMATORS)}.")
    labels = [*(label_columns or ())]
    answers, classes = _kinds_of(labels, estimator)
    table = open_table(data, [*(text_columns or ()), *answers], classes)
    names = table.column_names
    check_columns(data, names, labels, "--label-columns")
    given = dict(map(_setting, settings))
    _check_not_twice(given, {"model": model, "text_columns": text_columns})
    others = [*labels, *_listed(given.get("feature_columns"))]
    texts = [*(text_columns or (name for name in names if name not in others))]
    check_columns(data, names, texts, "--text-columns")
    y = _targets(data, table, labels, estimator)
    params = {"text_columns": texts, "verbose": 1, **given}
    params |= {name: _by_class(params[name], y) for name in params.keys() & _BY_CLASS}
    made = getattr(skbert, estimator)(**({} if model is None else {"model": model}))
    try:
        made.set_params(**params)
        made._validate_params()
    except ValueError as error:  # of scikit-learn
        raise InputError(
            f"--set: {error} Values are JSON: numbers, true, false, null, or a text."
        ) from error
    _check_unread(made, names, labels)
    made.fit(table, *y).save(folder)
    return folder


def _check_not_twice(given: Mapping[str, object], options: Mapping[str, object]) -> None:
    """Refuse a parameter that has an option of its own beside that option."""
    for name, value in options.items():
        if name in given and value is not None:
            raise InputError(
                f"--{name.replace('_', '-')} and --set {name} both say what {name} is. Give one"
                " of them."
            )


def _check_unread(made: TextEstimator, names: list[str], labels: list[str]) -> None:
    """Refuse columns of labels that an estimator is to read, by their names or places."""
    texts = names if made.text_columns is None else made.text_columns
    read = {"text_columns": texts, "feature_columns": getattr(made, "feature_columns", None)}
    at = [names.index(name) for name in labels]
    answers: list[object] = [*labels, *at, *(place - len(names) for place in at)]
    for parameter, columns in read.items():
        if both := [column for column in _listed(columns) if column in answers]:
            raise InputError(
                f"{parameter} and --label-columns both name {both}: the answer would be read. "
                "Name each column in one of them."
            )


def _listed(columns: object) -> list[object]:
    """Chosen columns as a list; empty where there are none, or they are no columns."""
    if isinstance(columns, str | int):
        return [columns]
    return [*columns] if isinstance(columns, Iterable) else []


def _kinds_of(labels: list[str], estimator: str) -> tuple[list[str], list[str]]:
    """Which columns of labels hold texts, and which hold classes."""
    if estimator == "BertSpanExtractor":
        return labels, []
    return [], [] if estimator == "BertRegressor" else labels


def _check_new(folder: Path) -> None:
    """Refuse a folder that is there, or that cannot be made, before anything is learned."""
    check_absent(folder)
    above = next(path for path in folder.absolute().parents if path.exists())
    if not (above.is_dir() and os.access(above, os.W_OK | os.X_OK)):
        raise SaveError(
            f"{folder} cannot be made: {above} is no folder that you may write to. Give another "
            "path."
        )


def _targets(
    data: Path, table: pa.Table | FileRows, labels: list[str], estimator: str
) -> tuple[Any, ...]:
    """y: one column, a frame of several, or nothing; only a question may lack its answer."""
    columns = {name: table.column(table.column_names.index(name)).to_pylist() for name in labels}
    if estimator == "BertSpanExtractor" and len(labels) == 1:
        columns = {labels[0]: ["" if cell is None else cell for cell in columns[labels[0]]]}
    for name, cells in columns.items():
        if None in cells:
            row = cells.index(None)
            place = table.origin_of_row(row) if isinstance(table, FileRows) else ""
            raise InputError(
                f"{data} has no value in the label column {name!r} of row {row}{place}, and of "
                f"{cells.count(None)} rows in all. Fill in the labels, or leave out such rows."
            )
    if len(labels) > 1:
        return (pa.table(columns).to_pandas(),)
    return tuple(columns.values())


def _by_class(value: object, y: tuple[Any, ...]) -> object:
    """A mapping whose keys, which JSON has as str, are classes as one column has them."""
    is_one_column = len(y) == 1 and isinstance(y[0], list)
    if not isinstance(value, dict) or not is_one_column or any(isinstance(x, str) for x in y[0]):
        return value
    classes = {str(label): label for label in y[0]}
    return {classes.get(key, _value(key)): each for key, each in value.items()}


def _setting(text: str) -> tuple[str, Any]:
    """The name and value in ``name=value``, a value in JSON or else a str."""
    name, sign, value = text.partition("=")
    if not sign:
        raise InputError(f"--set {text}: give NAME=VALUE, such as --set epochs=5.")
    return name, _value(value)


def _value(text: str) -> Any:
    """A value in JSON, or else a str."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _open(folder: Path) -> Any:
    """The model that ``save`` or ``export`` has written to a folder."""
    return runtime.load(folder) if _is_exported(folder) else skbert.load(folder)


def _is_exported(folder: Path) -> bool:
    return archive.header(folder).get("engine") is not None


def _stream(
    model: Model, compute: Callable[[Part], Columns], source: Path, target: Path,
    text_columns: Names, keep: Names, facts: dict[str, str],
) -> Path:  # fmt: skip
    """Compute columns for all rows of a file, part by part, beside those to keep."""
    rows = open_parquet(source)
    kept = rows.column_names if keep is None else [*dict.fromkeys(keep)]
    check_columns(source, rows.column_names, kept, "--keep")
    if text_columns is not None:
        check_columns(source, rows.column_names, text_columns, "--text-columns")
        model.text_columns = _renamed(model, text_columns, rows.column_names)
    inputs = _inputs(model, rows.column_names, source, text_columns)
    columns = [name for name in rows.column_names if name in {*inputs, *kept}]
    facts = {
        **facts, "the input": digest(source), "--text-columns": str(text_columns),
        "--keep": str(kept), "the version of skbert": skbert.__version__,
    }  # fmt: skip

    def check() -> None:
        with warnings.catch_warnings(action="ignore"):  # they come again with the results
            for part in parts_of(rows, columns):
                with _naming(part, source):
                    model._rows(part.only(inputs), model._state().record)

    with unfinished(target, facts, check) as parts, _bar(len(rows)) as bar:
        n_parts = 0
        for part in parts_of(rows, columns):
            n_parts += 1
            if parts.has(part.number):
                bar.initial += len(part)
            else:
                parts.add(part.number, _with(part.only(kept), compute(part.only(inputs))))
            bar.update(len(part))
        parts.finish(n_parts)
    return target


@contextmanager
def _naming(part: Part, source: Path) -> Iterator[None]:
    """Have errors say which rows of a file were X."""
    try:
        yield
    except (InputError, InputTypeError) as error:
        end = part.first_row + len(part)
        said = f"In rows {part.first_row} to {end - 1} of {source}, read as X: {error}"
        raise type(error)(said) from error


def _bar(n_rows: int) -> Bar:
    return Bar(total=n_rows, unit="row", smoothing=0.0, mininterval=1.0)


def _with(part: Part, columns: Columns) -> Any:
    """The columns that are kept, and those that were computed."""
    table = part.table
    for name, values in columns.items():
        if name in part.column_names:
            raise InputError(
                f"The input has a column {name!r}, as the output is to have. Choose the columns "
                "to keep without it: --keep NAME ..."
            )
        table = table.append_column(name, values)
    return table


def _renamed(model: Model, chosen: Sequence[str], names: Sequence[str]) -> TextColumns:
    """Columns of a file in place of those of fit; fields keep the names that they had there.

    Fields without names are columns by position: of a file with the columns of fit where these had
    names or features beside them, and otherwise of a table of the chosen columns.
    """
    fields, record = field_names(model.text_columns), model._state().record
    if not fields:
        return [*chosen]
    if len(chosen) != len(fields):
        raise InputError(
            f"--text-columns names {len(chosen)} columns, and the model reads {len(fields)} "
            f"fields: {fields}. Name a column for each, in this order."
        )
    named = [name for name in fields if name is not None]
    if len(named) == len(fields):
        return dict(zip(chosen, named, strict=True))
    if named:
        raise InputError(
            f"The model reads the fields {fields}, some without a name: --text-columns cannot "
            "choose others. Give the columns of the file the names and the order of fit."
        )
    has_all = _reads_whole_table(record)
    return [*map(names.index, chosen)] if has_all else [*range(len(chosen))]


def _inputs(model: Model, names: list[str], source: Path, given: Names) -> list[str]:
    """The columns of a file that a model is given: all where it reads some by position."""
    record, chosen = model._state().record, model.text_columns
    if chosen is None:
        wanted: Sequence[str | int] = _columns_of_fit(record, names, source)
    else:
        features = () if record is None else record.features
        wanted = [*_texts_of(model, given), *(column for column, *_ in features)]
    far = [name for name in wanted if not isinstance(name, str)
           and not -len(names) <= name < len(names)]  # fmt: skip
    if far:
        raise InputError(
            f"The model reads column {far[0]}, and {source} has {len(names)}: {names}. Give a"
            " file with the columns of fit."
        )
    inputs = [name if isinstance(name, str) else names[name] for name in wanted]
    check_columns(source, names, inputs, "--text-columns")
    return inputs if all(isinstance(name, str) for name in wanted) else names


def _texts_of(model: Model, given: Names) -> Sequence[str | int]:
    """The columns that hold texts, of the table that `_renamed` means."""
    record, chosen = model._state().record, model.text_columns
    if isinstance(chosen, str | int):
        return [chosen]
    return [*(chosen or ())] if given is None or _reads_whole_table(record) else [*given]


def _reads_whole_table(record: FitRecord | None) -> bool:
    """Whether columns by position are those of all that fit had."""
    return record is not None and bool(record.names or record.features)


def _columns_of_fit(record: FitRecord | None, names: list[str], source: Path) -> Sequence[str]:
    """The columns of a file that a model was fitted on, where nobody has chosen any."""
    if record is not None and record.names:
        return record.names
    if len(names) > (1 if record is None else record.n_columns):
        raise InputError(
            f"{source} has the columns {names}, and the model was fitted without names. Say "
            "which hold the texts: --text-columns NAME ..."
        )
    return names
