"""A network as an ONNX graph over padded rows, with its head and its pooling.

Depends on torch's exporter, and on the network and its poolings; onnx and onnxscript are imported
when a graph is written.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from skbert._core.attention.pooling import POOLER, parts_of, pool_padded
from skbert._core.attention.relative import has_distances
from skbert._core.items import Head
from skbert._core.models.network import (
    Network,
    copy_network,
    inference_network,
    joined,
    reads_token_types,
    states_of,
)
from skbert._core.models.vectors import run_pooler
from skbert.exceptions import ModelError

__all__ = ["OUTPUTS", "check_head", "input_names", "write_onnx"]

OUTPUTS = "outputs"  # name of the one output of a graph


def input_names(network: Network) -> tuple[str, ...]:
    """The inputs of a network's graph, in their order."""
    has_types = reads_token_types(network) and network.text_tokenizer.has_types
    types = ("token_type_ids",) if has_types else ()
    features = ("features",) if network.head.n_features else ()
    return ("input_ids", "attention_mask", *types, *features)


def write_onnx(network: Network, path: Path) -> None:
    """Write a network as a float32 graph, whose rows and their length are free.

    Raises
    ------
    ModelError
        If the head reads selected tokens, or torch cannot export the modules of the model.
    """
    check_head(network.head)
    graph = _PaddedNetwork(_float32_copy(network))
    names = input_names(network)
    axes = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    free = {"features": {0: torch.export.Dim.DYNAMIC}}
    try:
        with _quiet(), torch.no_grad():
            program: Any = torch.onnx.export(
                graph,
                _example(network),
                input_names=names,
                output_names=[OUTPUTS],
                dynamic_shapes={"values": tuple(free.get(name, axes) for name in names)},
                dynamo=True,
                verbose=False,
            )
            program.save(path)
    except Exception as error:  # torch's exporter raises whatever the modules of a model meet
        raise ModelError(
            f"The model cannot be exported: torch makes no graph of this"
            f" {type(network.model).__name__}: {_first_line(error)}. Put back modules of model_"
            " that were replaced or hooked, or merge an adapter (merge_and_unload in peft), and"
            " export again; or use save(path)."
        ) from error


class _PaddedNetwork(torch.nn.Module):
    """The outputs of a network for padded rows."""

    def __init__(self, network: Network) -> None:
        super().__init__()
        self.network = network
        self.model = network.model

    def forward(self, *values: torch.Tensor) -> Any:
        """Outputs ``(n_rows, n)``, or ``(n_rows, length, n)`` where the head reads tokens."""
        network = self.network
        inputs = dict(zip(input_names(network), values, strict=True))
        features = inputs.pop("features", None)
        mask = inputs["attention_mask"]
        if network.family.counts_from_padding:
            inputs["position_ids"] = _positions(network, mask)
        if network.head.has_output_layer and not network.is_packed and features is None:
            return _logits_of_model(network, inputs)
        read = _features(network, joined(states_of(network, inputs), network.layer_join), mask)
        if features is not None:
            read = torch.cat([read, features], dim=1)
        return network.output_layer(read) if network.head.has_output_layer else read


def _features(network: Network, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """What the output layer reads, as ``Network.features`` computes it for packed rows."""
    model, head_class = network.model, network.head_class
    if network.head.reads == "tokens":
        return head_class.transform(model, hidden)
    if head_class.is_pooled_last(vars(model.config), network.pooling):
        return _pooled(network, head_class.transform(model, hidden), mask)
    return head_class.transform(model, _pooled(network, hidden, mask))


def _pooled(network: Network, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    if network.pooling == POOLER:
        return run_pooler(network, hidden[:, 0])
    parts = [pool_padded(hidden, mask, part) for part in parts_of(network.pooling)]
    return torch.cat(parts, dim=1)


def _logits_of_model(network: Network, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The result of the model's own forward pass."""
    if network.head.job == "multiple choice":
        inputs = {name: rows[:, None] for name, rows in inputs.items()}
    out = network.model(**inputs)
    fields = [out[name] for name in network.family.head_of(network.model).logits]
    return fields[0] if len(fields) == 1 else torch.stack(fields, dim=-1)


def _positions(network: Network, mask: torch.Tensor) -> torch.Tensor:
    """Positions as the kernels count them, so that an id of padding within a text counts."""
    pad = network.model.config.pad_token_id
    at = torch.arange(mask.shape[1], device=mask.device) + network.family.first_position(pad)
    return torch.where(mask != 0, at, pad)


def _float32_copy(network: Network) -> Network:
    """The network with weights of its own, and attention that becomes plain products."""
    network = inference_network(network)
    twin = copy_network(network)
    twin.model.eval()
    twin.to(torch.device("cpu"), torch.float32)
    twin.layer_runner.is_enabled = False
    if not any(map(has_distances, network.model.modules())):
        with contextlib.suppress(ValueError):  # a family that knows no other attention
            twin.model.set_attn_implementation("eager")
    return twin


def _example(network: Network) -> tuple[torch.Tensor, ...]:
    """Inputs to trace with: two rows, one of them padded."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0, 0]])
    example = {
        "input_ids": torch.zeros_like(mask),
        "attention_mask": mask,
        "token_type_ids": torch.zeros_like(mask),
        "features": torch.zeros(2, network.head.n_features),
    }
    return tuple(example[name] for name in input_names(network))


def check_head(head: Head) -> None:
    """Refuse a head that no graph has; ModelError says which."""
    if head.reads not in ("rows", "tokens"):
        raise ModelError(
            f"The head for {head.job} reads tokens that each text selects, and an exported folder"
            " has no such head. Use save or save_pretrained, or pass the estimator as model= to a"
            " BertTransformer or BertClassifier and export that."
        )


def _first_line(error: Exception) -> str:
    cause = error.__cause__ or error
    return f"{type(cause).__name__}: {str(cause).strip().splitlines()[0]:.200}"


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the exporter says of its own steps to itself."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        level = logging.root.manager.disable
        logging.disable(logging.ERROR)
        try:
            yield
        finally:
            logging.disable(level)
