"""Every family, with every head: as transformers computes it, row by row.

Random weights, rows of mixed lengths, pairs among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from support.families import tiny_of

from skbert._core.batches import Batch, collate
from skbert._core.families import FAMILIES
from skbert._core.items import Head, Items
from skbert._core.models.opening import network_of
from skbert._core.text.tokens import Ragged, TokenTable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from skbert._core.families.record import Family, Job
    from skbert._core.models.network import Network

LENGTHS = np.array([5, 11, 3, 11, 8])
SECOND = np.array([2, 6, 3, 4, 8])  # where the second text begins; two rows have none
SELECTED = Ragged.of(np.array([1, 2, 3, 0, 4, 2]), np.array([1, 2, 1, 1, 1]))
IDS = Ragged.of(np.random.default_rng(0).integers(5, 60, LENGTHS.sum()).astype(np.int32), LENGTHS)
READS: dict[str, Any] = {
    "token classification": "tokens",
    "question answering": "tokens",
    "masked language modelling": "selected tokens",
    "causal language modelling": "selected tokens",
    "pre-training": "selected tokens and rows",
}
EVERY_HEAD = pytest.mark.parametrize(
    ("family", "job"),
    [
        pytest.param(family, job, id=f"{name}-{job}")
        for name, family in FAMILIES.items()
        for job in family.heads
    ],
)
EVERY_TYPE = pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float64, 1e-9), (torch.float32, 1e-5)], ids=["64", "32"]
)


def network_for(family: Family, job: Job, dtype: torch.dtype) -> Network:
    model = tiny_of(family, job).to(dtype)
    tokenizer = transformers.BertTokenizer(
        vocab={name: i for i, name in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])}
    )
    head = Head(job, 0 if job == "embedding" else 2, reads=READS.get(job, "rows"))
    return network_of(model, tokenizer, head, family.heads[job].own_pooling(vars(model.config)))


def batch_for(network: Network) -> Batch:
    selected = SELECTED if "selected" in network.head.reads else None
    every = np.arange(len(IDS))
    items = Items(
        TokenTable(IDS, SECOND), np.arange(len(IDS) + 1), every, np.ones(len(IDS)),
        selected_tokens=selected,
    )  # fmt: skip
    return collate(items, np.arange(len(IDS)), torch.device("cpu"), network.dtype)


def ways_of(network: Network) -> Iterator[str]:
    """Set the network to each way in which it can be run."""
    if network.is_packed:
        if network.family.has_kernels:
            yield "kernels"
            network.layer_runner.is_enabled = False
        yield "packed"
        network.is_packed = False
    yield "padded"


def outputs_of(network: Network, batch: Batch) -> list[torch.Tensor]:
    """Hidden states in packed order, then the logits."""
    if network.head.job == "embedding":
        return [network.hidden(batch)]
    logits = network.logits(batch)
    return [network.hidden(batch), *(logits if isinstance(logits, tuple) else [logits])]


def expected_outputs(network: Network) -> list[torch.Tensor]:
    """The same by transformers, a row at a time."""
    model, head = network.model, network.head
    states: list[torch.Tensor] = []
    logits: list[list[torch.Tensor]] = []
    for row in range(len(IDS)):
        ids = torch.from_numpy(IDS[row].astype(np.int64))[None]
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if network.family.has_token_types and model.config.type_vocab_size > 1:
            inputs["token_type_ids"] = (torch.arange(ids.shape[1]) >= SECOND[row]).long()[None]
        states.append(model.base_model(**inputs).last_hidden_state[0])
        if head.job == "embedding":
            continue
        if head.job == "multiple choice":
            inputs = {name: values[None] for name, values in inputs.items()}
        out = model(**inputs)
        logits.append([out[name][0] for name in network.head_class.logits])
    hidden = torch.cat([states[row] for row in np.argsort(LENGTHS, kind="stable")])
    return [hidden, *_joined(head, logits)]


def _joined(head: Head, logits: list[list[torch.Tensor]]) -> list[torch.Tensor]:
    if not logits:
        return []
    if head.reads == "rows":
        return [torch.stack([fields[-1] for fields in logits])]
    if head.reads == "tokens":
        parts = [f[0] if len(f) == 1 else torch.stack(f, -1) for f in logits]
        return [torch.cat(parts)]
    words = torch.cat([f[0][torch.from_numpy(SELECTED[row])] for row, f in enumerate(logits)])
    rows = [torch.stack([f[1] for f in logits])] if len(logits[0]) == 2 else []
    return [words, *rows]


def loss_of(outputs: list[torch.Tensor]) -> torch.Tensor:
    """A number that depends on every output, each with another weight."""
    total = outputs[0].new_zeros(())
    for values in outputs:
        weights = torch.arange(values.numel(), dtype=values.dtype).sin().view_as(values)
        total = total + (values * weights).sum()
    return total


def gradients_of(network: Network, outputs: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    network.model.zero_grad()
    loss_of(outputs).backward()  # type: ignore[no-untyped-call]
    named = network.model.named_parameters()
    return {name: weight.grad for name, weight in named if weight.grad is not None}


@EVERY_HEAD
@EVERY_TYPE
def test_every_head_of_every_family(
    family: Family, job: Job, dtype: torch.dtype, tolerance: float
) -> None:
    network = network_for(family, job, dtype)
    batch, own = batch_for(network), network.model.config._attn_implementation
    network.model.config._attn_implementation = "sdpa" if network.model._supports_sdpa else "eager"
    expected = expected_outputs(network)
    gradients = gradients_of(network, expected)
    network.model.config._attn_implementation = own
    assert min(values.std() for values in expected) > 0.01
    for way in ways_of(network):
        outputs = outputs_of(network, batch)
        for values, right in zip(outputs, expected, strict=True):
            scale = float(right.detach().abs().max())
            torch.testing.assert_close(
                values, right.view_as(values), rtol=0, atol=tolerance * scale, msg=way
            )
        found = gradients_of(network, outputs)
        assert found.keys() == gradients.keys()
        for name, right in gradients.items():
            scale = 10 * max(1.0, float(right.abs().max()))
            message = f"{way}: {name}"
            torch.testing.assert_close(
                found[name], right, rtol=0, atol=tolerance * scale, msg=message
            )


@EVERY_HEAD
def test_what_an_output_layer_reads(family: Family, job: Job) -> None:
    """The steps that the record lists end where the output layer begins."""
    network = network_for(family, job, torch.float64)
    if job == "embedding":
        pytest.skip("no output layer")
    batch = batch_for(network)
    with torch.no_grad():
        features = network.features(batch)
        parts = features if isinstance(features, tuple) else (features,)
        logits, right = network.output_layer(*parts), network.logits(batch)
    for one, other in zip(
        *(x if isinstance(x, tuple) else (x,) for x in (logits, right)), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-9)
