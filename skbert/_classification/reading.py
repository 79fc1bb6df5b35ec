"""y read as what it says of each row: the kind of target it is, in the form that it had in fit.

Depends on the kinds of targets and on the checks of y; knows no estimator.
"""

from __future__ import annotations

from collections.abc import Sequence

from skbert._arrays import Array
from skbert._classification.several import SeveralTargets, several_form
from skbert._classification.targets import (
    ONE_LABEL,
    IndicatorTargets,
    SingleTargets,
    SoftTargets,
    Targets,
    indicator_form,
    is_one_hot,
)
from skbert._classification.task import MultiLabel, SeveralLabels
from skbert._estimator.fitted import Fitted
from skbert._validation.soft_labels import (
    check_names,
    check_probabilities,
    names_by_place,
    warn_of_order,
)
from skbert._validation.tables import Table
from skbert._validation.targets import (
    LabelTable,
    as_labels,
    check_classes,
    check_target_names,
    read_label_table,
)
from skbert.exceptions import InputError

__all__ = ["read_targets"]


def read_targets(
    y: object, n: int, classes: object, fitted: Fitted | None, estimator_name: str
) -> Targets:
    """What y says of ``n`` rows; it has the form that a fitted estimator predicts."""
    table = read_label_table(y, n, are_named=classes is not None, estimator_name=estimator_name)
    expected = None if fitted is None else _form_of(fitted.task)
    if fitted is not None and expected == several_form(len(table.columns)):
        table = _in_classes(table, fitted.attributes["classes_"])
    targets = _targets_of(table, classes, _known_classes(fitted, expected))
    if expected not in {None, targets.form}:
        raise InputError(
            f"y holds {targets.form}, but the estimator predicts {expected}. Give y in the form "
            "that it had in fit, or fit anew with warm_start=False."
        )
    if fitted is not None:
        check_target_names(table.table.names, fitted.attributes)
    return targets


def _known_classes(fitted: Fitted | None, expected: str | None) -> Array | None:
    """The classes of a fitted estimator that predicts one label."""
    if fitted is None or expected != ONE_LABEL:
        return None
    known: Array = fitted.attributes["classes_"]
    return known


def _in_classes(table: LabelTable, classes: Sequence[Array]) -> LabelTable:
    """Several columns of classes, of which some rows may hold only the numbers 0 and 1."""
    are_numbers = all(column.dtype.kind in "biuf" for column in classes)
    is_indicator = table.kind == "indicator" and are_numbers
    return table._replace(kind="several") if is_indicator else table


def _targets_of(table: LabelTable, classes: object, known: Array | None) -> Targets:
    """What the columns of y are; ``known`` are the classes where one label is predicted."""
    match table.kind:
        case "labels":
            return SingleTargets(table.columns[0], check_classes(classes))
        case "several":
            return SeveralTargets(table.columns, table.table.names)
        case "indicator" if known is None or not is_one_hot(as_labels(table.columns)):
            return IndicatorTargets(as_labels(table.columns), table.table.names)
    return SoftTargets(
        check_probabilities(table.columns, table.table), _names_of(table.table, classes, known)
    )


def _names_of(table: Table, classes: object, known: Array | None) -> Array:
    """The class of each column: named by ``classes`` or by the frame, else by its place."""
    if classes is None and table.labels is None:
        return names_by_place(table.width, known)
    names = check_classes([*(table.labels or ())] if classes is None else classes)
    check_names(names, table)
    if table.labels is None and known is None:
        warn_of_order(names)
    return names


def _form_of(task: object) -> str:
    """What a row of y holds that a task learns, in words."""
    match task:
        case SeveralLabels():
            return several_form(len(task.sizes))
        case MultiLabel():
            return indicator_form(task.n_classes)
    return ONE_LABEL
