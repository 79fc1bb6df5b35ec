"""The recipe of a fit, from the parameters of its estimator. Depends on ``_core`` only."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from skbert._core.items import Items
from skbert._core.training.recipe import Recipe
from skbert.exceptions import InputError

__all__ = ["recipe_of"]

_HEAD_RATE = 1e-3  # ten times what the encoder gets by default


def recipe_of(
    estimator: object, items: Items, epochs: int | None, *, use_encoder_rate: bool
) -> Recipe:
    """How an estimator trains; with ``epochs``, at constant rates, as for a part of a stream.

    ``use_encoder_rate`` says what ``head_learning_rate="auto"`` is: the rate of the encoder.
    """
    settings = {field.name: getattr(estimator, field.name) for field in fields(Recipe)}
    if epochs is None:  # a part of a stream may be small
        sizes = settings["accumulate"], settings["batch_size"]
        _check_accumulate(len(np.unique(items.units)), *sizes)
    rate = settings["head_learning_rate"]
    if rate == "auto":
        rate = None if use_encoder_rate else _HEAD_RATE
    settings["head_learning_rate"] = rate or settings["learning_rate"]
    if epochs is not None:
        settings |= {"epochs": epochs, "schedule": "constant"}
    return Recipe(**settings)


def _check_accumulate(n_rows: int, n_parts: int, size: int) -> None:
    if n_parts > n_rows:
        raise InputError(
            f"accumulate={n_parts} batches of batch_size={size} make steps of {n_parts * size} "
            f"rows, but there are only {n_rows} training rows, fewer than one per batch. Use "
            f"accumulate={-(-n_rows // size)} to use all of them in one step."
        )
