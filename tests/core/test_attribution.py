"""The path of attributions, against sums in closed form: a network whose score is a polynomial."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.job import TEXTS

from skbert import BertTransformer
from skbert._core.attribution import (
    Contributions,
    Path,
    Point,
    gradient_x_input,
    integrated_gradients,
    occlusion,
)
from skbert._core.text.tokens import Ragged
from skbert._estimator.base import encode

if TYPE_CHECKING:
    from pathlib import Path as Folder

    from skbert._core.items import Items
    from skbert._core.models.network import Network


@pytest.fixture(scope="module")
def encoder(tiny_model: Folder) -> tuple[Network, Items]:
    """The sum of the embeddings below the first layer, and the items of some texts."""
    how: dict[str, Any] = {"layers": 0, "pooling": "mean", "device": "cpu"}
    fitted = BertTransformer(tiny_model, **how, precision="float64").fit(TEXTS)
    state = fitted._fitted
    network = fitted._fitted.network
    network.model.embeddings.LayerNorm = torch.nn.Identity()
    return network, encode(state.task, fitted._rows(TEXTS, None), None, network)


def path_of(encoder: tuple[Network, Items], power: int) -> Path:
    """A path on which the score is a power of the sum over all embeddings."""
    network, items = encoder
    lengths = items.tokens.lengths
    groups = [np.array([-1, *range(length - 2), -1]) for length in lengths.tolist()]
    scores = [
        lambda rows, n=length: (rows.sum() * float(n)) ** power for length in lengths.tolist()
    ]
    mask = network.text_tokenizer.mask_id
    assert mask is not None
    return Path(network, items, Ragged.of(np.concatenate(groups), lengths), scores, mask)


def shifts(encoder: tuple[Network, Items], sample: int) -> tuple[np.ndarray, float]:
    """How each piece moves the sum away from its baseline, and the sum at the text."""
    network, items = encoder
    words = network.model.get_input_embeddings().weight.detach().numpy().sum(axis=1)
    whole = path_of(encoder, 1).scores_at([Point(sample, 1.0)])[0]
    return words[items.tokens.ids[sample][1:-1]] - words[network.text_tokenizer.mask_id], whole


@pytest.mark.parametrize("power", [1, 2, 5])
def test_integrals_of_powers(encoder: tuple[Network, Items], power: int) -> None:
    """Along the path the sum is linear, so each piece has its share of the whole difference."""
    path = path_of(encoder, power)
    for sample, found in enumerate(integrated_gradients(path, range(3), 1e-9, 1000)):
        shift, whole = shifts(encoder, sample)
        start = whole - shift.sum()
        difference = whole**power - start**power
        np.testing.assert_allclose(found.score, whole**power, rtol=1e-12)
        np.testing.assert_allclose(found.baseline_score, start**power, rtol=1e-9)
        np.testing.assert_allclose(
            found.values, difference * shift / shift.sum(), rtol=1e-7, atol=1e-12
        )
        assert not found.misses(1e-9)


def test_gradients_and_occlusion_of_a_square(encoder: tuple[Network, Items]) -> None:
    path = path_of(encoder, 2)
    pairs = zip(gradient_x_input(path, [0, 1]), occlusion(path, [0, 1]), strict=True)
    for sample, (gradient, occluded) in enumerate(pairs):
        shift, whole = shifts(encoder, sample)
        np.testing.assert_allclose(gradient.values, 2 * whole * shift, rtol=1e-9, atol=1e-12)
        without = whole**2 - (whole - shift) ** 2
        np.testing.assert_allclose(occluded.values, without, rtol=1e-9, atol=1e-12)


def test_a_kink_is_closed_in_on(encoder: tuple[Network, Items]) -> None:
    shift, whole = shifts(encoder, 0)
    middle = whole - 0.3 * shift.sum()
    path = path_of(encoder, 1)
    length = int(path.items.tokens.lengths[0])
    path.scores = [lambda rows: torch.relu(rows.sum() * length - middle)] * len(path.items)
    (found,) = integrated_gradients(path, [0], 1e-6, 1000)
    assert not found.misses(1e-6)
    (coarse,) = integrated_gradients(path, [0], 1e-6, 12)
    assert coarse.misses(1e-6)


def test_a_residual_is_what_is_missing() -> None:
    found = Contributions(np.array([1.0, 2.0]), 4.0, 0.5)
    assert found.residual == 0.5
    assert found.misses(0.1)
    assert not found.misses(0.2)
