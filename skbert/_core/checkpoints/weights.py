"""Reads the weights of a vetted checkpoint; refuses missing or useless ones, warns of odd use.

Depends on torch; what a file holds was read from its header in `strict`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from skbert._arrays import Array
from skbert._core.attention.pooling import POOLER
from skbert._core.checkpoints.pickled import PickledFile
from skbert._core.checkpoints.strict import TensorFile
from skbert.exceptions import ModelError, NonFiniteError, warn

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from skbert._core.checkpoints.vet import Checkpoint
    from skbert._core.items import Head

__all__ = ["check_finite", "check_learned", "check_missing", "read_tensors", "read_weights",
           "warn_of_decoder", "warn_of_odd_use"]  # fmt: skip

_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16,
          "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16,
          "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}  # fmt: skip
_ALIGNMENT = 64  # of a tensor's memory, in bytes, as torch allocates it
_MOST = 1e9  # no model learns a larger weight, and products of such weights overflow


def read_weights(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint, each in memory of its own, so that all are equally aligned."""
    if checkpoint.tensors is not None:
        return {name: tensor.clone() for name, tensor in checkpoint.tensors.items()}
    tensors: dict[str, torch.Tensor] = {}
    for file in checkpoint.weights:
        tensors |= read_tensors(file) if isinstance(file, TensorFile) else _unpickled(file)
    if any(isinstance(file, PickledFile) for file in checkpoint.weights):
        _warn_of_pickle(checkpoint)
    return tensors


def read_tensors(file: TensorFile) -> dict[str, torch.Tensor]:
    """All tensors of a safetensors file, each in memory of its own."""
    bare = {name: _memory(n_bytes) for name, (_, _, _, n_bytes) in file.tensors.items()}
    file.read_into({name: array.data for name, array in bare.items()})
    return {
        name: torch.from_numpy(bare[name]).view(_TYPES[kind]).reshape(shape)
        for name, (kind, shape, _, _) in file.tensors.items()
        if kind in _TYPES  # of other types are no weights: see strict
    }


def _memory(n_bytes: int) -> Array:
    """New memory, aligned as torch's, and for much of it in large pages if Linux has them.

    numpy asks for these, and torch does not; they are faster to touch first.
    """
    memory: Array = np.empty(n_bytes + _ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % _ALIGNMENT
    return memory[begin : begin + n_bytes]


def _unpickled(file: PickledFile) -> dict[str, torch.Tensor]:
    """The tensors of a .bin file, which must be those that its pickle describes."""
    with file.opened() as stream:
        held = torch.load(stream, map_location="cpu", weights_only=True)
    opened = {name: (tensor.layout, tensor.dtype, tensor.shape) for name, tensor in held.items()}
    if opened != {
        name: (torch.strided, _TYPES[tensor.storage.dtype], tensor.shape)
        for name, tensor in file.tensors.items()
    }:
        raise ModelError(
            f"{file.path} opens with other tensors than its pickle describes. Do not use it."
        )
    whole = torch.contiguous_format
    return {name: held.pop(name).detach().clone(memory_format=whole) for name in file.tensors}


def _warn_of_pickle(checkpoint: Checkpoint) -> None:
    """Warn of weights in .bin files, and say how to convert them."""
    names = checkpoint.config.get("architectures", ())
    known = (name for name in names if checkpoint.family.jobs_of(name))
    warn(
        f"The weights in {checkpoint.folder} are in the format of torch.save, a pickle. It was"
        " checked before it was opened, but other programs may run such a file. Convert the model"
        f" to safetensors once: transformers.{next(known, 'AutoModel')}"
        ".from_pretrained(folder).save_pretrained(folder)."
    )


def check_finite(checkpoint: Checkpoint, model: torch.nn.Module, output: str) -> None:
    """Refuse weights that are not finite, or so large that their products are not."""
    for name, low, high in _useless_weights(model.named_parameters(), output):
        raise ModelError(
            f"The checkpoint {checkpoint.folder} holds the weight {name!r} with values from"
            f" {low} to {high}, which nothing can be computed with. Restore its weights from a"
            " whole copy, or train the model again with a smaller learning rate."
        )


def check_learned(
    model: torch.nn.Module, output: str, trained: Iterable[torch.nn.Parameter]
) -> None:
    """Refuse a model of which the last training step made a trained weight useless."""
    ids = {*map(id, trained)}
    changed = (named for named in model.named_parameters() if id(named[1]) in ids)
    for name, low, high in _useless_weights(changed, output):
        raise NonFiniteError(
            f"After the last step the weight {name!r} has values from {low:g} to {high:g}, which "
            "nothing can be computed with. Use a lower learning_rate or more warmup."
        )


def _useless_weights(
    weights: Iterable[tuple[str, torch.nn.Parameter]], output: str
) -> Iterator[tuple[str, float, float]]:
    """Names and ranges of weights that are not finite, or too large to compute with.

    Those of the layer ``output`` may be large, because the targets were.
    """
    for name, weight in weights:
        if not weight.numel():
            continue
        most = torch.finfo(weight.dtype).max if output and name.startswith(output) else _MOST
        low, high = (float(end) for end in torch.aminmax(weight.detach()))
        if not -most <= low <= high <= most:
            yield name, low, high


def warn_of_odd_use(checkpoint: Checkpoint, head: Head, missing: set[str], pooling: str) -> None:
    """Warn where weights are random, or were trained for another use."""
    family = checkpoint.family
    is_trained = family.head_class("embedding").pooling == POOLER  # else it is drawn with a head
    lacks_pooler = is_trained and any(map(family.is_of_pooler, missing))
    if head.fresh and head.reads == "rows" and pooling == POOLER and lacks_pooler:
        warn(
            f"The checkpoint {checkpoint.folder} has no pooler: it starts from random "
            "weights. pooling='mean' or 'cls' needs none."
        )
    if checkpoint.config.get("is_decoder") and not head.is_causal:
        warn_of_decoder(f"The checkpoint {checkpoint.folder}")


def warn_of_decoder(name: str) -> None:
    """Warn that a model is to read in another way than it has learned to."""
    warn(
        f"{name} is a decoder: it has learned to read from left to right, and will read both ways "
        "here. Fine-tune it before you use its vectors."
    )


def check_missing(
    checkpoint: Checkpoint, head: Head, missing: set[str], *, fresh_head: bool
) -> None:
    """Refuse a checkpoint that lacks weights other than those of a head and a pooler."""
    family = checkpoint.family
    wanted = family.head_class(head.job)
    of_head = {name for name in missing if name.startswith(wanted.prefixes)}
    absent = sorted(name for name in missing - of_head if not family.is_of_pooler(name))
    if absent:
        raise ModelError(
            f"The checkpoint {checkpoint.folder} lacks {len(absent)} of the model's weights, or "
            f"holds them in another shape, {absent[0]!r} first. Give a complete checkpoint; "
            "nothing was filled in."
        )
    if of_head and not fresh_head:
        raise ModelError(
            f"The checkpoint {checkpoint.folder} has no head for {wanted.name}: it is not "
            "fine-tuned for this job. Give it as model= and call fit."
        )
