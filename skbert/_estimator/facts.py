"""Facts of a fit: the values of its parameters, and hashes of its data, all as str.

Two fits of the same facts learn the same. Depends on what a fit is made of.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral

import joblib
import numpy as np

from skbert import __version__
from skbert._arrays import Array
from skbert._core.checkpoints.vet import Checkpoint
from skbert._core.models.network import Network
from skbert._core.models.new_model import NewModel
from skbert._core.runtime.device import Precision
from skbert._core.runtime.distributed import process_group
from skbert._estimator.base import TextEstimator
from skbert._estimator.fit_data import FitData
from skbert._estimator.fitted import Fitted
from skbert._estimator.plan import TrainingPlan

__all__ = ["Source", "differences", "facts_of", "origin_of"]

# What a fit starts from: a folder, sizes of a new model, or the network of the fit before.
Source = Checkpoint | NewModel | Network

# Parameters that change nothing of what is learned, and those that are facts in another form.
_LEFT_OUT = {
    "checkpoint_dir", "checkpoint_every", "device", "memory", "precision", "random_state",
    "verbose", "warm_start",
}  # fmt: skip
_MAX_LENGTH = 60  # of what is shown of a value, in characters
_HASHED = "hash "
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def facts_of(
    estimator: TextEstimator, data: FitData, plan: TrainingPlan, precision: Precision,
    seed: int, source: Source,
) -> dict[str, str] | None:  # fmt: skip
    """The facts of a fit of an estimator; ``source`` is what it starts from.

    None where no checkpoints are asked for.
    """
    # A subclass may have parameters of its own, or take fewer of them.
    own = {each.name: getattr(estimator, each.name) for each in fields(estimator)}
    params = {**own, **estimator.get_params(deep=False)}
    if params["checkpoint_dir"] is None:
        return None
    random_state = params["random_state"]
    is_int = isinstance(random_state, Integral)
    contents = {
        **_data(data, plan),
        "the fit to continue": _weights(source) if isinstance(source, Network) else None,
        "what the folder of the model holds": (
            source.digest() if isinstance(source, Checkpoint) else None
        ),
    }
    return {
        "estimator": type(estimator).__name__,
        **{name: _shown(value) for name, value in params.items() if name not in _LEFT_OUT},
        "random_state": repr(random_state if random_state is None or is_int else seed),
        "precision": precision.products.removeprefix("torch."),
        "device": precision.device.type,
        "number of processes": str(process_group().size),
        "version of skbert": __version__,
        **{name: _hash(value) for name, value in contents.items()},
    }


def origin_of(
    estimator: TextEstimator, fitted: Fitted, source: Source, seed: int
) -> tuple[object, ...] | None:
    """What decided the network of a fit, with weights that were drawn, and what it learns by.

    None where the network was not opened from files.
    """
    states = source.states if isinstance(source, Checkpoint) else None
    if states is None:
        return None
    network = fitted.network
    settings = network.head, network.pooling, network.dtype, estimator.compile
    return states, seed, settings, _hash(fitted.task)


def _data(data: FitData, plan: TrainingPlan) -> dict[str, object]:
    beside = data.validation
    parts = () if beside is None else (beside.rows, beside.y, beside.weight)
    return {
        "X": data.rows,
        "y": (plan.targets, plan.attributes),
        "sample_weight": data.weight,
        "groups": data.groups,
        "the validation set": [*map(_hash, parts)] or None,
    }


def differences(old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """What differs between the facts of two fits, in words."""
    found = [name for name in {**new, **old} if old.get(name) != new.get(name)]
    return ", ".join(
        f"{name} differs"
        if any(each.get(name, "").startswith(_HASHED) for each in (old, new))
        else f"{name} was {old.get(name)} and is {new.get(name)}"
        for name in found
    )


def _weights(network: Network) -> dict[str, Array]:
    weights = network.model.state_dict()
    return {name: tensor.cpu().numpy() for name, tensor in weights.items()}


def _shown(value: object) -> str:
    """A value in a few words, or its hash where it takes many."""
    text = repr(os.fspath(value) if isinstance(value, os.PathLike) else value)
    is_short = len(text) <= _MAX_LENGTH and _ADDRESS.search(text) is None
    return text if is_short else _hash(value)


def _hash(value: object) -> str:
    """A hash of a value, the same in every process."""
    if value is None:
        return "None"
    if hasattr(value, "__array__"):
        value = np.asarray(value)
    try:
        return f"{_HASHED}{joblib.hash(value)}"
    except Exception:  # noqa: BLE001 - what joblib raises is what the objects in it raise
        return _ADDRESS.sub("", repr(value))
