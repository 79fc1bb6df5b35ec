"""Attributions: what each word contributes to what an estimator predicts.

Depends on the base of the estimators and on ``_core``; knows no estimator by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, Literal, SupportsIndex, get_args, overload

import numpy as np
import pandas as pd

from skbert._arrays import FloatArray, IntArray
from skbert._core.attribution import (
    Contributions,
    Path,
    gradient_x_input,
    integrated_gradients,
    occlusion,
)
from skbert._core.batches import by_length
from skbert._core.infer import infer
from skbert._core.models.network import Network, twin_of
from skbert._core.text.numbered import NumberedPieces
from skbert._core.text.tokens import Ragged, TextTokenizer, TokenTable
from skbert._estimator.bar import ProgressBar
from skbert._estimator.base import TextEstimator, encode
from skbert._estimator.fitted import Fitted
from skbert._validation.numbers import check_count, is_number
from skbert._validation.texts import Texts
from skbert.exceptions import InputError, InputTypeError, warn
from skbert.inspection._columns import check_refitted
from skbert.inspection._heat import HEAT_STYLE, Heat, heat_html, heat_text
from skbert.inspection._html import View
from skbert.inspection._targets import Goals, Question, find_goals
from skbert.inspection._words import Grouped, Rows, grouped, located, texts_of

__all__ = ["Attribution", "Attributions", "attributions", "explained"]

Method = Literal["integrated_gradients", "occlusion", "gradient_x_input"]


@dataclass(frozen=True, repr=False, eq=False)
class Attribution:
    """What the words of one row of X contribute to one output.

    In a notebook it is shown as text with a colour behind each word: orange where a word raises
    the output, blue where it lowers it.

    Attributes
    ----------
    row : int
        The row of X.
    target : object
        What is explained: a class, the number of an output, ``(word, tag)``, an answer, an option,
        or what the row was compared with.
    output : float
        The output for the row.
    baseline_output : float
        The output for the baseline.
    residual : float
        ``output - baseline_output - values.sum()``.
    words : list of str
        The words, or pieces of words, as they stand in the texts.
    spans : ndarray of int of shape (n_words, 3)
        The text that each word is in, and its start and end there, in characters. Texts are
        counted from 0: of a pair the second is 1; an option is the last text of its row; in a row
        of words each word is a text.
    values : ndarray of shape (n_words,)
        The contribution of each word, in units of the output; float64.
    texts : list of str
        The texts of the row.
    """

    row: int
    target: Any
    output: float
    baseline_output: float
    residual: float
    words: list[str]
    spans: IntArray
    values: FloatArray
    texts: list[str]

    def to_frame(self) -> pd.DataFrame:
        """Return the words as a table.

        Returns
        -------
        frame : DataFrame
            One line for each word, with the columns ``row``, ``text`` (which text of the row),
            ``start``, ``end``, ``word`` and ``value``.
        """
        columns = dict(zip(("text", "start", "end"), self.spans.T, strict=True))
        words = pd.Series(self.words, dtype=str)
        return pd.DataFrame({"row": self.row, **columns, "word": words, "value": self.values})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows the words in colour.

        Parameters
        ----------
        path : str or path-like
            The file, such as ``"page.html"``; one that is there is replaced.
        """
        _view([self]).save(path)

    def __repr__(self) -> str:
        """The words and their contributions in plain text."""
        return repr(_view([self]))

    def _repr_html_(self) -> str:
        return _view([self])._repr_html_()

    def _heat(self) -> Heat:
        return Heat(
            f"Row {self.row}: {_short(self.target)}", self.output, self.baseline_output,
            self.residual, self.texts, self.words, self.spans, self.values,
        )  # fmt: skip


class Attributions(list[Attribution]):
    """A list with one `Attribution` for each row of X, which a notebook shows in colour.

    So is a slice of it.
    """

    @overload
    def __getitem__(self, row: SupportsIndex, /) -> Attribution: ...

    @overload
    def __getitem__(self, row: slice, /) -> Attributions: ...

    def __getitem__(self, row: SupportsIndex | slice, /) -> Attribution | Attributions:
        """Return one row, or several of them."""
        if isinstance(row, slice):
            return Attributions(super().__getitem__(row))
        return super().__getitem__(row)

    def to_frame(self) -> pd.DataFrame:
        """Return the words of all rows as a table.

        Returns
        -------
        frame : DataFrame
            The tables of all rows, one after another.
        """
        nothing = Attribution(0, None, 0.0, 0.0, 0.0, [], np.zeros((0, 3), int), np.zeros(0), [])
        return pd.concat([each.to_frame() for each in self or [nothing]], ignore_index=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a page that shows the words of all rows in colour.

        Parameters
        ----------
        path : str or path-like
            The file, such as ``"page.html"``; one that is there is replaced.
        """
        _view(self).save(path)

    def __repr__(self) -> str:
        """The words of all rows and their contributions in plain text."""
        return repr(_view(self))

    def _repr_html_(self) -> str:
        return _view(self)._repr_html_()


def _view(shown: Iterable[Attribution]) -> View:
    heats = [each._heat() for each in shown]
    body, text = "".join(map(heat_html, heats)), "\n\n".join(map(heat_text, heats))
    return View("Attributions", body, text, HEAT_STYLE)


def _short(target: object) -> str:
    text = str(target)
    return text if len(text) <= 80 else f"{text[:79]}\u2026"


def attributions(
    estimator: TextEstimator,
    X: object,
    target: object = None,
    *,
    method: Method = "integrated_gradients",
    pieces: bool = False,
    tolerance: float | None = None,
    max_steps: int = 1000,
) -> Attributions:
    """Explain outputs by what each word contributes to them.

    The contributions of a row and its residual add up to the difference between its output and the
    output for its baseline: the same row with all of its words masked. There the embedding of each
    word piece is that of the mask token (of the padding token if there is no mask token). Special
    tokens, positions and the number of pieces stay the same.

    Parameters
    ----------
    estimator : estimator
        A fitted estimator of skbert that predicts or transforms. It stays as it is.
    X : array-like
        Rows in the same form as in ``predict`` or ``transform``.
    target : object, default=None
        What to explain, in each row or as a list with one entry per row:

        - classifier: a label, whose logit is explained; None for the predicted label, or for
          the one with the highest score of several. The logit of a text in windows is computed
          from its mean probability.
        - regressor: the number of an output, counted from 0, in the units of y. None if there is
          only one.
        - tagger: ``(word, tag)``, with words counted from 0 as in ``predict_proba``; the logit is
          explained. Or ``word``, for its most probable tag. None for the surest word of those
          whose most probable tag is not ``"O"``.
        - span extractor: an answer, as in y; its start logit plus its end logit is explained. None
          for the predicted answer, which may be ``""``.
        - choice ranker: an option, its position or its text; its logit is explained, to which the
          other options do not contribute. None for the predicted option.
        - transformer: a text or a vector, whose cosine similarity with what ``transform`` returns
          is explained. The target is held fixed.
    method : {"integrated_gradients", "occlusion", "gradient_x_input"}, \
            default="integrated_gradients"
        Integrated gradients follow the straight line from the baseline to the row in the space of
        word embeddings [1]_. Their residual is an error of the numerical integration only.
        Occlusion is the difference that masking one word makes. Gradient times input is the
        gradient at the row times the difference of its embeddings from the baseline. The last two
        are no exact decomposition, so their residual can be large.
    pieces : bool, default=False
        Whether to return contributions of word pieces instead of words.
    tolerance : float, default=None
        For integrated gradients: the largest residual, as a fraction of the difference between
        output and baseline output. None is 1e-3, or 1e-6 with ``precision="float64"``.
    max_steps : int, default=1000
        For integrated gradients: the most gradients to compute for one row, where the first 12 do
        not suffice. The integral is refined where its error is largest; a warning tells which rows
        miss the tolerance.

    Returns
    -------
    attributions : Attributions
        A list with an `Attribution` for each row of X, in order.

    Raises
    ------
    InputError, InputTypeError
        If the estimator is of another kind, or X, the target or a parameter cannot be used.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.

    Notes
    -----
    Outputs are computed in the precision of the weights, float32 or float64, whatever lower
    precision predictions are computed in. A row whose residual would be due to rounding in float32
    is computed in float64; what the layer norms of DeBERTa round in float32 stays. Models with
    ReLU, such as MobileBERT, need more steps than others.

    Windows of a long text share its words. A word that was cut from a long row contributes nothing
    and is left out, and so is a word in another window than the one in which the tag, or the
    answer, is read.

    References
    ----------
    .. [1] M. Sundararajan, A. Taly and Q. Yan, "Axiomatic Attribution for Deep Networks",
           ICML 2017, https://arxiv.org/abs/1703.01365

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import attributions
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(epochs=1, freeze="all", random_state=0).fit(X, y)
    >>> (found,) = attributions(classifier, ["I forgot my password"])
    >>> found.target
    'login'
    >>> found.words[found.values.argmax()], found.spans[found.values.argmax()].tolist()
    ('password', [0, 12, 20])
    >>> difference = found.output - found.baseline_output
    >>> bool(abs(found.residual) < 1e-3 * abs(difference))
    True
    """
    fitted = _fitted_state(estimator)
    _check_settings(method, tolerance, max_steps)
    rows = estimator._rows(X, fitted.record)
    return explained(estimator, rows, target, method, tolerance, max_steps, pieces=pieces)


def explained(
    estimator: TextEstimator, rows: Texts, target: object = None,
    method: Method = "integrated_gradients", tolerance: float | None = None,
    max_steps: int = 1000, *, pieces: bool = False,
) -> Attributions:  # fmt: skip
    """What each word of rows that are checked contributes to outputs."""
    fitted = estimator._state()
    precision = estimator._move_to_device(fitted.network)
    numbers = NumberedPieces(fitted.network.text_tokenizer)
    numbered = encode(fitted.task, rows, None, _reading(fitted.network, numbers))
    ids = replace(numbered.tokens.ids, values=numbers.ids_of(numbered.tokens.ids.values))
    items = replace(numbered, tokens=TokenTable(ids, numbered.tokens.second))
    outputs = cache(partial(infer, fitted.network, items, precision))
    goals = find_goals(Question(estimator, fitted, rows, items, outputs), target)
    places = Ragged(located(numbered, numbers, rows), ids.starts)
    read = items.by_row().take(goals.token_rows)
    groups = grouped(read, places.take(goals.token_rows).values, pieces=pieces)
    path = Path(fitted.network, read, groups.groups, goals.scores, _baseline_id(fitted.network))
    if tolerance is None:
        tolerance = 1e-6 if fitted.network.dtype.itemsize == 8 else 1e-3
    steps = partial(integrated_gradients, tolerance=tolerance, max_steps=max_steps)
    compute = {"occlusion": occlusion, "gradient_x_input": gradient_x_input}.get(method, steps)
    found = _with_progress(estimator, path, compute)
    if compute is steps:
        _warn_of_residuals(found, tolerance)
    return Attributions(
        _attribution(rows, row, goals, groups, contributions)
        for row, contributions in enumerate(found)
    )


def _fitted_state(estimator: TextEstimator) -> Fitted:
    """What an estimator has learned; InputTypeError for one that cannot be explained."""
    check_refitted(estimator)
    if not isinstance(estimator, TextEstimator):
        raise InputTypeError(
            f"estimator has the type {type(estimator).__name__}. Give a fitted estimator of skbert"
            " that predicts or transforms: of a Pipeline, such a step; of a search, its "
            "best_estimator_."
        )
    if not hasattr(estimator, "predict") and not hasattr(estimator, "transform"):
        raise InputTypeError(
            f"A {type(estimator).__name__} masks and pairs its rows at random, so it has no output"
            " to explain. Explain BertTransformer(model=estimator).fit(X)."
        )
    return estimator._state()


def _check_settings(method: str, tolerance: object, max_steps: object) -> None:
    """Refuse settings that cannot be."""
    if method not in get_args(Method):
        raise InputError(
            f"method={method!r:.80} is unknown. Give one of "
            f"{', '.join(map(repr, get_args(Method)))}."
        )
    if tolerance is not None and not (is_number(tolerance) and tolerance > 0):
        raise InputError(f"tolerance={tolerance!r:.80} must be a number above 0, such as 1e-3.")
    check_count(max_steps, "max_steps", 1000)


def _reading(network: Network, tokenizer: TextTokenizer) -> Network:
    """The network with another tokenizer."""
    twin = twin_of(network)
    twin.text_tokenizer = tokenizer
    return twin


def _baseline_id(network: Network) -> int:
    """The token that stands for every word in the baseline."""
    tokenizer = network.text_tokenizer
    known = tokenizer.mask_id, network.model.config.pad_token_id, tokenizer.unk_id
    return next(code for code in known if code is not None)


def _with_progress(
    estimator: TextEstimator, path: Path, compute: Callable[..., list[Contributions]]
) -> list[Contributions]:
    """What is computed for all samples, with a progress bar if the estimator is verbose."""
    found: dict[int, Contributions] = {}
    with ProgressBar(estimator, len(path.scores)) as bar:
        for samples in by_length(path.groups.lengths, path.budget):
            found.update(zip(samples.tolist(), compute(path, samples.tolist()), strict=True))
            if bar.on_rows is not None:
                bar.on_rows(len(samples))
    return [found[row] for row in range(len(found))]


def _warn_of_residuals(found: list[Contributions], tolerance: float) -> None:
    """Warn of rows whose integrals miss the tolerance."""
    missed = [row for row, each in enumerate(found) if each.misses(tolerance)]
    if missed:
        first = found[missed[0]]
        warn(
            f"The contributions of {len(missed)} of {len(found)} rows miss "
            f"tolerance={tolerance:g}. The first is row {missed[0]}, with a residual of "
            f"{first.residual:.2g} where the output differs from that of the baseline by "
            f"{first.score - first.baseline_score:.3g}. Use a larger max_steps, or a larger "
            "tolerance."
        )


def _attribution(
    rows: Rows, row: int, goals: Goals, groups: Grouped, found: Contributions
) -> Attribution:
    """The result for one row of X, in the units of the estimator's output."""
    texts = texts_of(rows, row, goals.options[row] if goals.options else 0)
    spans = groups.spans[row]
    return Attribution(
        row=row,
        target=goals.targets[row],
        output=goals.scale * found.score + goals.shift,
        baseline_output=goals.scale * found.baseline_score + goals.shift,
        residual=goals.scale * found.residual,
        words=[texts[field][start:end] for field, start, end in spans.tolist()],
        spans=spans,
        values=goals.scale * found.values,
        texts=texts,
    )
