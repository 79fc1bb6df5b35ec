"""Attention heads of a fitted estimator: their importance, their weights, and pruning.

Depends on the base of the estimators and on ``_core``; knows no estimator by name.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from skbert._arrays import FloatArray
from skbert._core.attention.pruned import prune, remaining_heads
from skbert._core.attention_heads import attention_weights, gate_gradients
from skbert._core.families.record import check_own_heads
from skbert._core.models.network import Network
from skbert._core.models.shared import share_weights
from skbert._estimator.base import TextEstimator, encode
from skbert._estimator.fitted import Fitted, apart_from_weights
from skbert._estimator.fitting import TrainedEstimator
from skbert._validation.numbers import is_index, is_number
from skbert._validation.targets import as_sequence
from skbert.exceptions import InputError, InputTypeError

__all__ = ["Attention", "attentions", "head_importance", "prune_heads"]

_Trained = TypeVar("_Trained", bound=TrainedEstimator)


class Attention(NamedTuple):
    """Attention weights of all heads in one row of tokens.

    Attributes
    ----------
    row : int
        The row of X that the tokens come from.
    tokens : list of str
        The tokens, special ones included.
    weights : ndarray of shape (n_layers, n_heads, n_tokens, n_tokens)
        ``weights[layer, head, i, j]`` is the attention of token ``i`` to token ``j``. NaN for
        pruned heads.
    """

    row: int
    tokens: list[str]
    weights: FloatArray


def head_importance(
    estimator: TrainedEstimator, X: Any, y: Any = None, *, normalize: bool = True
) -> FloatArray:
    """Estimate how much the loss depends on each attention head.

    It is the mean over the rows of X of the absolute gradient of a row's loss with respect to a
    gate on the head's output; the gate is 1, so it changes nothing. The gradient is taken for
    each row by itself, not for a batch, so that rows cannot cancel each other out. The loss is
    that of ``fit``, without dropout.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of skbert that learns by training. It stays as it is.
    X : array-like
        Rows in the same form as in ``fit``. Rows that were not used in ``fit`` are more
        informative.
    y : array-like, default=None
        Targets of these rows in the same form as in ``fit``, without labels that ``fit`` has not
        seen. None for `BertPretrainer`, whose masks and pairs are the same in every call.
    normalize : bool, default=True
        Divide the importances of each layer by their L2 norm, as in the paper. If False, they are
        in units of the loss.

    Returns
    -------
    importance : ndarray of shape (n_layers, n_heads)
        float64, not negative; NaN for heads that are pruned.

    Raises
    ------
    InputError, InputTypeError
        If the estimator is of another kind, or X or y cannot be used.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    References
    ----------
    Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", section 4.1.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import head_importance
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> head_importance(classifier, X[:50], y[:50]).shape
    (6, 12)
    """
    fitted = _fitted_state(estimator, TrainedEstimator)
    rows, task = estimator._rows(X, fitted.record), fitted.task
    network = _opened(estimator, fitted)
    plan = estimator._prepare_targets(as_sequence(y), rows, task.max_length, fitted, None)
    if plan.task.head().n_outputs != fitted.network.head.n_outputs:
        raise InputError(
            f"y would need {plan.task.head().n_outputs} outputs, but the estimator has "
            f"{fitted.network.head.n_outputs}: some of its labels were not in fit. "
            "Leave out the rows with these labels."
        )
    items = encode(task, rows, plan.targets, network).weighted(plan.weights)
    if not len(items):
        raise InputError(
            "All rows of X have a weight of 0. Add rows of a class whose weight is not 0."
        )
    items = plan.draw(network.text_tokenizer, items, np.random.default_rng(0))
    importance = gate_gradients(network, plan.task, items)
    if normalize:
        norms = np.sqrt(np.nansum(importance**2, axis=1, keepdims=True))
        importance /= np.maximum(norms, np.finfo(float).tiny)
    return importance


def prune_heads(
    estimator: _Trained,
    heads: Mapping[int, Iterable[int]] | None = None,
    *,
    fraction: float | None = None,
    importance: Any = None,
) -> _Trained:
    """Copy a fitted estimator without some of its attention heads.

    Their query, key, value and output weights are removed, so that the copy is smaller and faster.
    It predicts what the estimator would predict if the outputs of these heads were zero. With
    ``warm_start=True`` its ``fit`` continues without them. A `sklearn.base.clone`, or a fit with
    ``warm_start=False``, has all heads again, unless ``model`` is a folder that a pruned estimator
    saved.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of skbert that learns by training. It stays as it is.
    heads : dict of int to list of int, default=None
        The heads to prune in each layer. Layers and heads are counted from 0 as in the whole
        model; heads that were pruned before may be included.
    fraction : float, default=None
        Fraction of the remaining heads to prune, in [0, 1), the least important first. Each layer
        keeps its most important head.
    importance : array-like of shape (n_layers, n_heads), default=None
        The result of `head_importance`; needed with ``fraction``.

    Returns
    -------
    pruned : estimator
        A fitted estimator, without what was measured with all heads, such as conformity scores.

    Raises
    ------
    InputError, InputTypeError
        If there are no such heads, if a layer would have no head left, or if not exactly one of
        ``heads`` and ``fraction`` is passed.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    References
    ----------
    Michel, Levy and Neubig 2019, "Are Sixteen Heads Really Better than One?", section 4.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import head_importance, prune_heads
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> importance = head_importance(classifier, X[:50], y[:50])
    >>> pruned = prune_heads(classifier, fraction=0.25, importance=importance)
    >>> sum(len(heads) for heads in pruned.model_.config.pruned_heads.values())
    18
    """
    fitted = _fitted_state(estimator, TrainedEstimator)
    if (heads is None) == (fraction is None) or (importance is None) != (fraction is None):
        raise InputError(
            "Say which heads to prune in one way: heads={0: [2, 5]}, or fraction=0.3 together "
            "with importance=head_importance(estimator, X, y)."
        )
    left = remaining_heads(fitted.network.model.config)
    n_heads = fitted.network.model.config.num_attention_heads
    if fraction is None:
        gone = _named(heads, len(left), n_heads)
    else:
        gone = _least(fraction, _table(importance, "importance", left, n_heads), left)
    for layer, own in enumerate(left):
        if set(own) <= set(gone.get(layer, ())):
            raise InputError(
                f"heads={heads!r:.80} leaves no head in layer {layer}, which has {own}. Keep at "
                "least one."
            )
    pruned = copy.deepcopy(estimator)
    attributes = apart_from_weights(type(pruned), pruned._fitted.attributes)
    pruned._fitted = replace(pruned._fitted, attributes=attributes)
    prune(pruned._fitted.network.model, gone)
    return pruned


def attentions(estimator: TextEstimator, X: Any, *, head_mask: Any = None) -> list[Attention]:
    """Compute the attention weights of each head.

    The weights are those that transformers returns with ``output_attentions=True`` and eager
    attention, in the precision of the weights. They take memory: all heads of a model like
    BERT-base need 151 MB for a row of 512 tokens.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of skbert that predicts or transforms. It stays as it is.
    X : array-like
        Rows in the same form as in ``predict`` or ``transform``.
    head_mask : array-like of shape (n_layers, n_heads), default=None
        Factors by which the outputs of the heads and the returned weights are multiplied; 0
        switches a head off. None leaves all heads as they are.

    Returns
    -------
    attentions : list of Attention
        One entry for each row of tokens, with the row of X, the tokens and the weights. A text
        that is read in windows has several rows of tokens, and so has a question with options.

    Raises
    ------
    InputError, InputTypeError
        If the estimator is of another kind, or X or the mask cannot be used.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    Examples
    --------
    >>> from skbert import BertTransformer
    >>> from skbert.inspection import attentions
    >>> transformer = BertTransformer().fit(["It rained."])
    >>> for row, tokens, weights in attentions(transformer, ["It rained."]):
    ...     print(row, tokens, weights.shape)
    0 ['[CLS]', 'it', 'rained', '.', '[SEP]'] (6, 12, 5, 5)
    """
    fitted = _fitted_state(estimator, TextEstimator)
    if not hasattr(estimator, "predict") and not hasattr(estimator, "transform"):
        raise InputTypeError(
            f"A {type(estimator).__name__} masks and pairs its rows at random. Look at the "
            "encoder: attentions(BertTransformer(model=estimator).fit(X), X)."
        )
    network = _opened(estimator, fitted)
    if head_mask is not None:
        left = remaining_heads(network.model.config)
        n_heads = network.model.config.num_attention_heads
        head_mask = _table(head_mask, "head_mask", left, n_heads)
    items = encode(fitted.task, estimator._rows(X, fitted.record), None, network)
    weights = attention_weights(network, items, head_mask)
    owner = np.repeat(items.samples, np.diff(items.rows)).tolist()
    spell, ids = network.tokenizer.convert_ids_to_tokens, items.tokens.ids
    return [Attention(owner[i], spell(ids[i].tolist()), each) for i, each in enumerate(weights)]


def _fitted_state(estimator: TextEstimator, kind: type[TextEstimator]) -> Fitted:
    """What an estimator of this kind has learned; InputTypeError for one of another kind."""
    if not isinstance(estimator, kind):
        what = "learns by training" if kind is TrainedEstimator else "reads texts"
        raise InputTypeError(
            f"estimator has the type {type(estimator).__name__}. Give a fitted estimator of "
            f"skbert that {what}; of a Pipeline, such a step; of a search, its best_estimator_."
        )
    fitted = estimator._state()
    check_own_heads(fitted.network.family)
    return fitted


def _opened(estimator: TextEstimator, fitted: Fitted) -> Network:
    """The estimator's weights on its device, in a network that may be changed."""
    estimator._move_to_device(fitted.network)
    return share_weights(fitted.network)


def _named(heads: Any, n_layers: int, n_heads: int) -> dict[int, list[int]]:
    """The heads that the user names, all of which there are."""
    if not isinstance(heads, Mapping) or not all(
        isinstance(numbers, Iterable) for numbers in heads.values()
    ):
        raise InputTypeError(
            f"heads={heads!r:.80} is not a dict of lists. Give a list of heads for each layer, "
            "both counted from 0: heads={0: [2, 5], 3: [1]}."
        )
    named = {layer: list(numbers) for layer, numbers in heads.items()}
    for layer, numbers in named.items():
        if not is_index(layer, n_layers):
            raise InputError(
                f"heads has the key {layer!r}, but the layers are 0 to {n_layers - 1}."
            )
        for head in numbers:
            if not is_index(head, n_heads):
                raise InputError(
                    f"heads[{layer}] has {head!r}, but the heads are 0 to {n_heads - 1}."
                )
    return named


def _least(fraction: Any, importance: FloatArray, left: list[list[int]]) -> dict[int, list[int]]:
    """The least important heads of those left, but of each layer the most important one."""
    if not is_number(fraction) or not 0 <= fraction < 1:
        raise InputError(f"fraction={fraction!r} must be a number from 0 to below 1, such as 0.3.")
    n_left = sum(map(len, left))
    wanted, most = round(float(fraction) * n_left), n_left - len(left)
    if wanted > most:
        raise InputError(
            f"fraction={fraction!r} is {wanted} of {n_left} heads, but each of {len(left)} layers "
            f"keeps one. Use at most fraction={most}/{n_left}."
        )
    spare = [
        each
        for layer, heads in enumerate(left)
        for each in sorted((importance[layer, head], layer, head) for head in heads)[:-1]
    ]
    gone: dict[int, list[int]] = {}
    for _, layer, head in sorted(spare)[:wanted]:
        gone.setdefault(layer, []).append(head)
    return gone


def _table(values: Any, name: str, left: list[list[int]], n_heads: int) -> FloatArray:
    """A number for each head that is left, in ``(n_layers, n_heads)``."""
    wanted = f"one number for each head, an array of shape ({len(left)}, {n_heads})"
    try:
        table = np.asarray(values, float)
    except (TypeError, ValueError) as error:
        raise InputTypeError(f"{name} does not hold numbers: {error}. Give {wanted}.") from error
    if table.shape != (len(left), n_heads):
        raise InputError(f"{name} has the shape {table.shape}. Give {wanted}.")
    for layer, heads in enumerate(left):
        if bad := [head for head in heads if not np.isfinite(table[layer, head])]:
            raise InputError(
                f"{name}[{layer}, {bad[0]}] is {table[layer, bad[0]]}. Give {wanted}."
            )
    return table
