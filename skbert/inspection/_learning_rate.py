"""A learning rate for a fit, from one short run in which the rate rises (Smith 2017).

Depends on the course of a fit and the training loop; matplotlib is imported where it draws.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from sklearn.base import clone

from skbert._arrays import FloatArray
from skbert._core.items import Items
from skbert._core.runtime.device import Precision, pick_device, seeded
from skbert._core.training.optim import RANGE_TEST, rate_factor
from skbert._estimator.bar import ProgressBar
from skbert._estimator.fitting import TrainedEstimator, draw_seed
from skbert._estimator.run import Run
from skbert._estimator.validation_set import ValidationInput
from skbert._validation.numbers import check_count
from skbert.exceptions import InputError, InputTypeError, NonFiniteError, warn
from skbert.inspection._displays.drawing import COLOURS, Display

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["LearningRateDisplay", "suggest_learning_rate"]

_HIGHEST = 1.0
_SMOOTHING = 0.9  # weight of the past in the moving average of the loss
_DIVERGED = 4.0  # times the lowest smoothed loss
_FEWEST_STEPS = 20
_WARM = 10.0  # times the lowest rate, below which nothing is learned that could be seen


class LearningRateDisplay(Display):
    """The loss of a run in which the learning rate rises, and the rate that it suggests.

    Made by `suggest_learning_rate`.

    Parameters
    ----------
    rates : ndarray of shape (n_steps,)
        Learning rate of each optimizer step.
    losses : ndarray of shape (n_steps,)
        Loss of each step, on rows that differ from step to step.
    smoothed_losses : ndarray of shape (n_steps,)
        Exponential moving average of the losses.

    Attributes
    ----------
    learning_rate : float
        The suggestion: a third of the rate at which the moving average is lowest.
    figure_ : matplotlib.figure.Figure
        The figure, after ``plot``.
    ax_ : matplotlib.axes.Axes
        The axes, after ``plot``.

    See Also
    --------
    suggest_learning_rate : Makes the run.

    Examples
    --------
    >>> import numpy as np
    >>> from skbert.inspection import LearningRateDisplay
    >>> rates, losses = np.array([1e-5, 1e-4, 3e-4, 1e-3]), np.array([0.7, 0.5, 0.2, 0.9])
    >>> LearningRateDisplay(rates, losses, losses)
    LearningRateDisplay(learning_rate=0.0001, 4 steps from 1e-05 to 0.001)
    """

    def __init__(self, rates: FloatArray, losses: FloatArray, smoothed_losses: FloatArray) -> None:
        self.rates = rates
        self.losses = losses
        self.smoothed_losses = smoothed_losses
        self.learning_rate = float(rates[smoothed_losses.argmin()]) / 3.0

    def __repr__(self) -> str:
        """The suggestion, and the run that it comes from."""
        return (
            f"LearningRateDisplay(learning_rate={self.learning_rate:.2g}, {len(self.rates)} steps "
            f"from {self.rates[0]:.2g} to {self.rates[-1]:.2g})"
        )

    def _draw(self, ax: Axes) -> None:
        ax.plot(self.rates, self.losses, color="0.6", linewidth=0.8, label="loss of a step")
        ax.plot(self.rates, self.smoothed_losses, color=COLOURS[0], label="moving average")
        ax.axvline(
            self.learning_rate, color=COLOURS[3], linestyle="--",
            label=f"suggestion: {self.learning_rate:.2g}",
        )  # fmt: skip
        ax.set(
            xscale="log",
            xlabel="learning rate",
            ylabel="loss",
            title="Loss at rising rates",
        )
        ax.legend()


def suggest_learning_rate(
    estimator: TrainedEstimator, X: object, y: object = None, *, n_steps: int = 100
) -> LearningRateDisplay:
    """Suggest a ``learning_rate`` from one short run in which the rate rises.

    A clone of the estimator takes ``n_steps`` optimizer steps, whose learning rate rises
    exponentially from 1e-6 towards 1, and stops when the loss diverges. The rate of the output
    layer keeps its ratio to that of the encoder. The suggestion is a third of the rate at which
    the moving average of the loss is lowest.

    Parameters
    ----------
    estimator : estimator
        An estimator of skbert that learns by training, fitted or not. It stays as it is, and so
        does its ``random_state``.
    X : array-like
        Rows in the same form as in ``fit``. The run uses a random choice of them if there are more
        than it needs, and several passes if there are fewer.
    y : array-like, default=None
        Their targets, as in ``fit``; None for `BertPretrainer`.
    n_steps : int, default=100
        Number of steps, at least 20; it is rounded up to whole passes over X.

    Returns
    -------
    display : LearningRateDisplay
        ``learning_rate`` is the suggestion; ``rates`` and ``losses`` are the run, and ``plot``
        draws it.

    Raises
    ------
    InputError, InputTypeError
        If the estimator is of another kind, its ``learning_rate`` is not used, or X, y or
        ``n_steps`` cannot be used.
    ModelError
        If ``model`` is not found or not safe to open.

    Warns
    -----
    SkbertWarning
        If the loss does not fall after the first decade of rates: the suggestion then says
        nothing.

    Notes
    -----
    Smith reads the rate off the curve, where the loss still falls well. The place of its steepest
    descent would be a poor rule here: the output layer starts from a linear model, so the loss is
    low from the first step, and that place is a matter of chance. The place of the lowest loss is
    not, but training at that rate diverges easily, and with a tenth of it three epochs learn less
    than they could. A third of it is no more than a good place to begin: take it as the middle of
    a grid.

    References
    ----------
    Smith 2017, "Cyclical learning rates for training neural networks", section 3.3.

    Examples
    --------
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> from skbert.inspection import suggest_learning_rate
    >>> X, y = load_intents(return_X_y=True)
    >>> classifier = BertClassifier(random_state=0)
    >>> display = suggest_learning_rate(classifier, X, y)
    >>> bool(1e-6 < display.learning_rate < 1e-3)
    True
    >>> classifier = classifier.set_params(learning_rate=display.learning_rate)
    """
    _check(estimator, n_steps)
    display = _range_test(clone(estimator), X, y, int(n_steps))
    _warn_if_flat(display)
    return display


def _warn_if_flat(display: LearningRateDisplay) -> None:
    best = display.rates[display.smoothed_losses.argmin()]
    if best < _WARM * display.rates[0]:
        warn(
            f"The loss is lowest at the start of the run, at a learning rate of {best:.2g}, and "
            "does not fall below that, so the suggestion says nothing. Keep the default; or check "
            "that y belongs to X, give more rows or a larger n_steps, or try head_init='random'."
        )


class _DivergedError(Exception):
    """The loss has risen far above its lowest value, which ends the run."""


class _Losses:
    """Collects the losses of steps and their moving average, until it diverges."""

    def __init__(self, bar: ProgressBar) -> None:
        self.values: list[float] = []
        self.smoothed: list[float] = []
        self._sum, self._weight, self._bar = 0.0, 0.0, bar

    def note(self, loss: float) -> None:
        """Note the loss of one more step."""
        self._sum = _SMOOTHING * self._sum + loss
        self._weight = _SMOOTHING * self._weight + 1.0  # the first losses count in full
        self.values.append(loss)
        self.smoothed.append(self._sum / self._weight)
        if self._bar.on_rows is not None:
            self._bar.on_rows(1)
        if self.smoothed[-1] > _DIVERGED * min(self.smoothed):
            raise _DivergedError


def _check(estimator: object, n_steps: object) -> None:
    """Raise unless the estimator learns with ``learning_rate`` and the number can be used."""
    if not isinstance(estimator, TrainedEstimator):
        raise InputTypeError(
            f"estimator has the type {type(estimator).__name__}. Give an estimator of skbert that "
            "learns by training; of a Pipeline, such a step; of a search, its estimator."
        )
    check_count(n_steps, "n_steps", 100, least=_FEWEST_STEPS)
    if estimator.freeze == "all" and estimator.head_learning_rate is not None:
        raise InputError(
            "freeze='all' trains the output layer only, at the rate head_learning_rate="
            f"{estimator.head_learning_rate!r}: learning_rate is not used. Set "
            "head_learning_rate=None, so that learning_rate is the rate of the output layer."
        )


def _range_test(
    settings: TrainedEstimator, X: object, y: object, n_steps: int
) -> LearningRateDisplay:
    """Learning rates and losses of the run of an estimator of its own."""
    settings._validate_params()
    precision = Precision(settings.precision, pick_device(settings.device))
    data = settings._check_data(X, y, None, None, ValidationInput())
    seed = draw_seed(settings.random_state)
    with seeded(seed, precision.device):
        _, whole = settings._prepare(data, None, precision, None, {}, seed)
        run = _shortened(whole, n_steps)
        settings._start(run)
        recipe = run.recipe
        n_steps = recipe.epochs * recipe.steps_per_pass(run.train_items)
        with ProgressBar(settings, n_steps, unit="step") as bar:
            losses = _losses_of(run, bar)
    rates = [
        _HIGHEST * rate_factor(RANGE_TEST, step, n_steps, 0, _HIGHEST)
        for step in range(len(losses.values))
    ]
    return LearningRateDisplay(np.array(rates), np.array(losses.values), np.array(losses.smoothed))


def _shortened(run: Run, n_steps: int) -> Run:
    """The run with as many rows and passes as the steps need, at rates that rise."""
    recipe = run.recipe
    items = _some(run, n_steps * recipe.samples_per_step)
    rising = replace(
        recipe,
        epochs=-(-n_steps // recipe.steps_per_pass(items)),
        learning_rate=_HIGHEST,
        head_learning_rate=_HIGHEST * recipe.head_learning_rate / recipe.learning_rate,
        schedule=RANGE_TEST,
        warmup=0,
    )
    return run._replace(train_items=items, held_out=None, recipe=rising)


def _some(run: Run, n_units: int) -> Items:
    """The items of samples drawn at random, of this number of units or a few more.

    Texts of labels are among them, whatever is drawn.
    """
    items = run.train_items
    drawn, of_labels = np.split(items.samples, [len(items) - run.n_label_items])
    samples = np.random.default_rng(run.seed).permutation(np.unique(drawn))
    counts = np.bincount(drawn)[samples] if items.is_counted_alone else 1
    n_before = np.cumsum(np.broadcast_to(counts, samples.shape)) - counts
    return items.of_samples(np.concatenate([samples[n_before < n_units], of_labels]))


def _losses_of(run: Run, bar: ProgressBar) -> _Losses:
    """The losses of the run's steps until they diverge."""
    losses = _Losses(bar)
    loop = run.loop()
    loop.on_step = losses.note
    try:
        for _ in loop:
            pass
    except (_DivergedError, NonFiniteError):
        if not losses.values:
            raise
    return losses
