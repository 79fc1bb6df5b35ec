"""Save and load fitted estimators: JSON, safetensors and hashes, never pickle.

Depends on ``_core`` and ``state``; is handed estimators, never imports one.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from skbert._core.checkpoints import archive
from skbert._core.checkpoints.leftovers import resolve_folder
from skbert._core.checkpoints.sentences import CHAIN
from skbert._core.checkpoints.vet import vet
from skbert._core.checkpoints.weights import check_finite
from skbert._core.items import Head
from skbert._core.models.network import Network
from skbert._core.models.opening import drop_pooler, open_network
from skbert._core.models.sentence_folder import has_class, write_sentence_folder
from skbert._core.models.writing import write_folder
from skbert._core.runtime.device import pick_device, seeded
from skbert._core.runtime.interrupts import deferred_interrupts
from skbert._core.runtime.modes import default_modes
from skbert._estimator.card import CARD, Card, check_card, model_card
from skbert._estimator.fitted import Fitted, FittedEstimator, check_attributes, known_attributes
from skbert._estimator.state import describing, dumps, loads, not_written_here, record_of, task_of
from skbert._validation.columns import FitRecord
from skbert.exceptions import ModelError, SaveError, SkbertError

__all__ = ["export", "is_packed", "load", "pack", "save", "state_of", "unpack"]

_STATE = "state.json"
_REQUIRED = ("config.json", "tokenizer.json", "tokenizer_config.json", _STATE)
_OPTIONAL = ("special_tokens_map.json", "vocab.txt")
_USAGE = "from skbert import {kind}\n\nestimator = {kind}.from_pretrained(folder)"
_CONTAINERS = ("default", "pandas", "polars")  # that set_output takes
_REFUSED = (
    "The estimator cannot be saved, because load would refuse it",
    "Put back what was changed since fit, fit again, or pickle the estimator.",
)


def save(estimator: FittedEstimator, folder: Path, card: Card = None) -> None:
    """Write parameters, attributes, weights and tokenizer, and a card where one is asked for."""
    given, beside = check_card(card), {}
    if given is not None:
        usage = "import skbert\n\nestimator = skbert.load(folder)"
        beside[CARD] = model_card(estimator, given, "skbert", usage)
    archive.write(folder, *_parts(estimator, resolve_folder(folder)), beside)


def pack(estimator: FittedEstimator) -> dict[str, Any]:
    """What `save` writes, as dicts of str and arrays."""
    members, header, tensors = _parts(estimator, resolve_folder("state"))
    return {
        "header": header,
        "members": {name: data.decode() for name, data in members.items()},
        "tensors": {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()},
    }


def is_packed(state: Mapping[str, Any]) -> bool:
    """Whether `pack` made a state; those of pickles hold attributes."""
    return state.keys() == {"header", "members", "tensors"}


def unpack(cls: type[Any], state: Mapping[str, Any]) -> Any:
    """The estimator of a state that `pack` made, checked like a saved folder."""
    with describing(*not_written_here(Path("state"), cls)):
        members = {str(name): text.encode() for name, text in state["members"].items()}
        tensors = {n: torch.from_numpy(np.array(array)) for n, array in state["tensors"].items()}
        absent = sorted({*_REQUIRED} - members.keys())
        if absent or not {*members} <= {*_REQUIRED, *_OPTIONAL}:
            raise KeyError(*absent, *members)
    return _build(cls, state["header"], members, tensors, None)


def _parts(
    estimator: FittedEstimator, target: Path
) -> tuple[dict[str, bytes], dict[str, Any], Any]:
    """Members, header and tensors of what is to be saved in ``target``."""
    estimator._validate_params()  # as what is loaded has to be valid
    network = estimator._fitted.network
    header = {
        "class": type(estimator).__name__,
        "dtype": str(network.dtype).removeprefix("torch."),
    }
    written = dumps(state_of(estimator))
    with describing(*_REFUSED):
        _complete(_read_state(type(estimator), header, written), network, target)
    members = {**_files(network, target), _STATE: written}
    return members, header, network.model.state_dict()


def state_of(estimator: FittedEstimator) -> dict[str, Any]:
    """What a fitted estimator keeps beside its weights."""
    fitted = estimator._fitted
    return {
        "params": _parameters(estimator),
        "attributes": fitted.attributes,
        "task": [type(fitted.task).__name__, asdict(fitted.task)],
        "seen": fitted.record,
        "set_output": getattr(estimator, "_sklearn_output_config", {}),
    }


def _files(network: Network, target: Path) -> dict[str, bytes]:
    """What transformers writes beside the weights, to be saved in ``target``."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            write_folder(network, Path(scratch), weights=False)
            _check_loadable(network, Path(scratch), target)
            names = [n for n in (*_REQUIRED, *_OPTIONAL) if (Path(scratch) / n).is_file()]
            return {name: (Path(scratch) / name).read_bytes() for name in names}
    except SkbertError:
        raise
    except Exception as error:  # tokenizers has no class of its own for a full disk
        raise archive.save_error(target, error) from error


def _check_loadable(network: Network, scratch: Path, target: Path) -> None:
    """Refuse files and weights that ``load`` would refuse; they are to be saved in ``target``."""
    model, output_path = network.model, network.family.head_class(network.head.job).output_layer
    try:
        check_finite(vet(scratch, model.state_dict()), model, output_path)
    except ModelError as error:
        reason = str(error).replace(str(scratch), str(target))
        raise SaveError(f"{_REFUSED[0]}: {reason} {_REFUSED[1]}") from error


def export(
    estimator: FittedEstimator, network: Network, folder: str | os.PathLike[str], card: Card = None
) -> None:
    """Write a plain transformers folder, or one of sentence-transformers, with a card if asked.

    The network may be another than the estimator's own.
    """
    given, text = check_card(card), b""
    if given is not None:
        library, opened = _opened_elsewhere(network)
        usage = f"{_USAGE.format(kind=type(estimator).__name__)}\n\n{opened}"
        text = model_card(estimator, given, library, usage)
    target = resolve_folder(folder)
    _check_replaceable(target)
    max_length = estimator._fitted.task.max_length
    network.model.config.skbert_max_length = max_length
    try:
        if has_class(network):
            write_folder(network, target)
            (target / CHAIN).unlink(missing_ok=True)  # of a head that was there before
        else:
            write_sentence_folder(network, target, max_length)
        if text:
            (target / CARD).write_bytes(text)
    except SkbertError:
        raise
    except Exception as error:  # safetensors and tokenizers have none of their own for a full disk
        raise SaveError(
            f"{target} could not be written: {error}. The folder is incomplete: remove it, and "
            "write again to a writable folder on a disk with free space."
        ) from error


def _check_replaceable(target: Path) -> None:
    """Refuse a file, and a folder that would no longer load."""
    if target.exists() and not target.is_dir():
        raise SaveError(f"{target} is a file, not a folder: give another path, or remove it.")
    if (target / archive.MANIFEST).exists():
        raise SaveError(
            f"{target} holds what save or export wrote, which would no longer load: give another "
            "path, or remove it."
        )


def _opened_elsewhere(network: Network) -> tuple[str, str]:
    """The library that a folder is for, and the code that opens it there."""
    if has_class(network):
        name = network.head_class.name
        opened = f"from transformers import {name}\n\nmodel = {name}.from_pretrained(folder)"
        return "transformers", opened
    return "sentence-transformers", (
        "from sentence_transformers import SentenceTransformer\n\n"
        "model = SentenceTransformer(folder)  # model.encode(texts) gives the logits"
    )


@deferred_interrupts()
@default_modes()
def load(cls: type[Any], folder: Path) -> Any:
    """Check everything that was written, then build the estimator from it."""
    if "engine" in archive.header(folder):
        raise SaveError(
            f"{folder} was written by export, and holds no estimator: open it with "
            "skbert.runtime.load, or load a folder that save wrote."
        )
    return _build(cls, *archive.read(folder, _REQUIRED, _OPTIONAL), folder)


def _build(
    cls: type[Any],
    header: Mapping[str, Any],
    members: dict[str, bytes],
    tensors: dict[str, torch.Tensor],
    folder: Path | None,
) -> Any:
    """The estimator of a header, members and tensors, checked; ``folder`` is None without one."""
    where = Path("state") if folder is None else folder
    if header.get("class") != cls.__name__:
        raise SaveError(
            f"{where} holds a {header.get('class')}, not a {cls.__name__}. Load it with "
            f"skbert.{header.get('class')}.load, or with skbert.load."
        )
    description = not_written_here(where / _STATE, cls)
    with describing(*description):
        state = _read_state(cls, header, members.pop(_STATE))
    with seeded(0, pick_device("cpu")):  # draws a pooler where none was saved
        network = _opened(members, tensors, state.head, state.dtype, where)
    with describing(*description):
        return _complete(state, network, folder)


class _State(NamedTuple):
    """What was saved beside the network."""

    estimator: Any  # not fitted yet
    task: Any
    record: FitRecord | None
    attributes: dict[str, Any]
    dtype: torch.dtype

    @property
    def head(self) -> Head:
        """The head that was saved."""
        head: Head = self.task.head()
        return head if self.record is None else replace(head, n_features=self.record.n_features)


def _read_state(cls: type[Any], header: Mapping[str, Any], data: bytes) -> _State:
    """What `dumps` wrote, checked as far as it can be without the network."""
    state = loads(data)
    task = task_of(cls._tasks, state["task"])
    estimator = cls(**state["params"])
    estimator._validate_params()
    for transform in state.get("set_output", {}).values():
        if transform not in _CONTAINERS:
            raise ValueError(f"an output as {transform!r:.80}")
        estimator.set_output(transform=transform)
    attributes = known_attributes(cls, state["attributes"])
    dtype = {"float32": torch.float32, "float64": torch.float64}[header["dtype"]]
    return _State(estimator, task, record_of(state["seen"]), attributes, dtype)


def _complete(state: _State, network: Network, folder: Path | None) -> Any:
    """The fitted estimator, its attributes checked."""
    estimator, sizes = state.estimator, {"n_outputs": _count_outputs(network)}
    check_attributes(type(estimator), state.attributes, state.task, sizes)
    estimator._fitted = Fitted(network, state.task, state.record, state.attributes)
    estimator._after_load(folder)
    return estimator


def _opened(
    files: dict[str, bytes],
    tensors: dict[str, torch.Tensor],
    head: Head,
    dtype: torch.dtype,
    folder: Path,
) -> Network:
    """The network of the very bytes and weights that were hashed in ``folder``."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            for name, data in files.items():
                (Path(scratch) / name).write_bytes(data)
            checkpoint = replace(vet(Path(scratch), tensors), folder=folder)
            network = open_network(checkpoint, head, dtype=dtype, fresh_head=False)
            if not head.has_output_layer and not any(map(checkpoint.family.is_of_pooler, tensors)):
                drop_pooler(network)  # which was drawn at random
    except ModelError as error:
        raise SaveError(
            str(error).replace(scratch, str(folder)) + " It was not written by skbert."
        ) from error
    except OSError as error:
        raise SaveError(
            f"{folder} cannot be opened, because this needs some temporary space: {error}. Set "
            "TMPDIR to a writable folder with some MB of free space."
        ) from error
    return network


def _count_outputs(network: Network) -> int:
    """The number of outputs of the head; ValueError if the task needs another number."""
    promised = network.head.n_outputs
    there = (
        getattr(network.output_layer, "out_features", promised)
        if network.head.has_output_layer
        else 0
    )
    if promised not in {0, there}:
        raise ValueError(f"{promised} outputs, where the weights give {there}")
    return promised


def _parameters(estimator: FittedEstimator) -> dict[str, Any]:
    """Parameters with paths as str; no generator, whose state was never learned, no estimator."""
    params: dict[str, Any] = estimator.get_params(deep=False)
    if isinstance(params["model"], str | os.PathLike):
        params["model"] = os.fspath(params["model"])
    elif params["model"] is not None:
        params["model"] = ""
    if isinstance(params.get("random_state"), np.random.RandomState):
        params["random_state"] = None
    if callable(params.get("scoring")):
        raise SaveError(
            f"scoring is {params['scoring']!r:.80}, and a folder holds no functions. Only fit "
            "reads it, so type estimator.set_params(scoring='loss') before you save."
        )
    here = {"memory": None, "checkpoint_dir": None, "checkpoint_every": "pass"}
    # A folder of this machine means nothing elsewhere.
    params |= {name: value for name, value in here.items() if name in params}
    return params
