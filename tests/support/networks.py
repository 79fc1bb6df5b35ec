"""The smallest task, tiny networks for it, and the same networks as transformers runs them."""

from __future__ import annotations

import copy
import warnings
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F
from transformers import BertForSequenceClassification

from skbert._core.batches import Batch, Layout, collate
from skbert._core.checkpoints.vet import vet
from skbert._core.cpu.bindings import module
from skbert._core.families.record import Job
from skbert._core.items import Head, Items
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.runtime.device import seeded
from skbert._core.text.tokens import Ragged, TextTokenizer, encode_texts
from support.items import make_items

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    import pytest

CPU = torch.device("cpu")
HEAD: Job = "sequence classification"
WORDS = (
    "the movie is good bad great awful food service phone i love hate it and not very !".split()
)


@dataclass(frozen=True)
class Labels:
    """The smallest task there is: one of ``n_classes`` per text, as numbers."""

    n_classes: int = 2
    max_length: int = 128

    def encode(self, X: Any, y: Any, tokenizer: TextTokenizer) -> Items:
        first, second = X
        rows = encode_texts(tokenizer, first, second, self.max_length, "truncate")
        return Items.one_row_each(rows, y)

    def head(self) -> Head:
        return Head(HEAD, self.n_classes)

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        losses = F.cross_entropy(logits, batch.targets, reduction="none")
        return (losses * batch.weights).sum(), batch.weights.sum()

    def decode(self, outputs: Ragged, items: Items) -> np.ndarray[Any, Any]:
        return outputs.values.argmax(axis=1)


def open_model(
    folder: Path,
    *,
    n_outputs: int = 2,
    pooling: str = "pooler",
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Network:
    with seeded(seed, CPU):
        head = Head(HEAD, n_outputs)
        return open_network(vet(folder), head, pooling=pooling, dtype=dtype)


def chunk(network: Network) -> None:
    """Let feed-forward layers be computed in chunks of tokens."""
    network.model.config.chunk_size_feed_forward = 2


def with_relu(network: Network) -> None:
    """Let ReLU be the activation of BERT's layers."""
    for layer in network.model.bert.encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.ReLU()


def record_kernels(monkeypatch: pytest.MonkeyPatch, names: Iterable[str]) -> list[str]:
    """The names of those of these kernels that are called from now on, one after another."""
    called: list[str] = []
    for name in names:
        kernel = getattr(module.kernels, name, None)
        if kernel is None:  # the compiler knew no such instructions
            continue

        def record(*arguments: Any, name: str = name, kernel: Any = kernel) -> Any:
            called.append(name)
            return kernel(*arguments)

        monkeypatch.setattr(module.kernels, name, record)
    return called


def sentences(lengths: Sequence[int], seed: int = 0) -> list[str]:
    """Texts of so many words, one piece each."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, n)) for n in lengths]


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    by_name = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return by_name


def assert_all_close(got: dict[str, Any], want: dict[str, Any], tolerance: float) -> None:
    assert got.keys() == want.keys()
    assert got
    for name, tensor in want.items():
        torch.testing.assert_close(
            got[name], tensor, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
        )


def plain_twin(network: Network, attention: str = "eager") -> Any:
    """The same weights in a model of transformers that knows nothing of packing."""
    config = copy.deepcopy(network.model.config)
    with torch.random.fork_rng(devices=[]):
        twin = BertForSequenceClassification._from_config(config, attn_implementation=attention)
    twin.load_state_dict(network.model.state_dict())
    return twin.to(network.device, network.dtype).eval()


def padded(network: Network, first: Sequence[str], second: Sequence[str] | None, size: int) -> Any:
    pairs = () if second is None else (list(second),)
    tokenized = network.tokenizer(
        list(first), *pairs, padding=True, truncation=True, max_length=size, return_tensors="pt"
    )  # fmt: skip
    return tokenized.to(network.device)


GPU = torch.device("cuda", 0)


class Case(NamedTuple):
    """Texts to run through a model both ways."""

    first: list[str]
    second: list[str] | None = None


def layout_of(lengths: Sequence[int], device: torch.device = CPU) -> Layout:
    return collate(
        make_items(list(lengths)), np.arange(len(lengths)), device, torch.float32
    ).layout


@contextmanager
def without_waiting() -> Iterator[None]:
    """What waits for the GPU raises an error inside the ``with``."""

    def react(mode: str) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a prototype, torch says
            torch.cuda.set_sync_debug_mode(mode)

    react("error")
    try:
        yield
    finally:
        react("default")


def watch(monkeypatch: pytest.MonkeyPatch, method: str, note: Callable[[Batch], Any]) -> list[Any]:
    """What is noted of every batch that goes through a method of networks from now on."""
    seen: list[Any] = []
    forward = getattr(Network, method)

    def watched(network: Network, batch: Batch) -> Any:
        seen.append(note(batch))
        return forward(network, batch)

    monkeypatch.setattr(Network, method, watched)
    return seen
