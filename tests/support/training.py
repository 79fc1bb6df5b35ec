"""A short training of a tiny network, and what can go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from skbert._core.batches import Batch
from skbert._core.models.network import Network
from skbert._core.runtime.device import Precision, seeded
from skbert._core.training.loop import Epoch, TrainingLoop
from skbert._core.training.recipe import Recipe
from support.networks import CPU, Labels, open_model, sentences, watch

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.items import Items
    from skbert._core.task import Task

N = 20
ROWS = sentences(np.random.default_rng(0).integers(1, 14, N).tolist())
TARGETS = np.random.default_rng(1).integers(0, 2, N)
WEIGHTS = np.random.default_rng(2).uniform(0.2, 3.0, N)
RECIPE = Recipe(
    epochs=2, batch_size=8, learning_rate=1e-3, head_learning_rate=1e-2, max_grad_norm=0.5
)

GENTLE = replace(RECIPE, learning_rate=5e-5, head_learning_rate=1e-4)  # for float32: see `both`

# Adam makes a step of nothing but noise where a gradient should be zero, as that of a key's bias:
# in float32 only a gentle learning rate keeps such weights within 1e-5.
both = pytest.mark.parametrize(
    ("precision", "recipe", "tolerance"),
    [("float32", GENTLE, 1e-5), ("float64", RECIPE, 1e-9)],
    ids=["float32", "float64"],
)


def make_items(network: Network, rows: list[str] = ROWS) -> Items:
    return Labels().encode((rows, None), TARGETS[: len(rows)], network.text_tokenizer)


def weights_of(network: Network) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in network.model.named_parameters()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def run(
    folder: Path,
    recipe: Recipe,
    *,
    precision: str = "float64",
    task: Task | None = None,
    change: Callable[[Items], Items] = lambda items: items,
    seed: int = 0,
    on_step: Callable[[float], object] = lambda loss: None,
    device: torch.device = CPU,
    pooling: str = "pooler",
) -> tuple[dict[str, torch.Tensor], list[Epoch]]:
    """Train a fresh network; its weights and the passes."""
    exact = Precision(precision, device)
    network = open_model(folder, dtype=exact.weight_dtype, pooling=pooling)
    network.to(device, exact.weight_dtype)
    items = change(make_items(network))
    with seeded(seed, device):
        loop = TrainingLoop(network, task or Labels(), items, recipe, exact, seed)
        loop.on_step = on_step
        epochs = list(loop)
    return weights_of(network), epochs


def weigh(items: Items) -> Items:
    return items.weighted(WEIGHTS)


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of every batch that goes through a network from now on."""
    return watch(monkeypatch, "logits", lambda batch: batch.input_ids.shape[1])


class Overflow(torch.autograd.Function):
    """Passes on; its gradient is infinite from a limit on, as float16's is."""

    limit = 0.0

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        return logits.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        (gradient,) = gradients
        return gradient / 0.0 if gradient.abs().sum() > Overflow.limit else gradient


@dataclass(frozen=True)
class Failing(Labels):
    """Goes wrong in one way, in the batch with a certain text of the training data."""

    how: str = ""
    weight: float = 0.0  # of the item on which it fails; 0: on all

    def loss(self, logits: torch.Tensor, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        if self.weight and self.weight not in batch.weights.tolist():
            return super().loss(logits, batch)
        if self.how == "gradient":
            logits = Overflow.apply(logits)
        loss, weight = super().loss(logits, batch)
        return loss * {"nan": torch.nan, "inf": torch.inf}.get(self.how, 1.0), weight
