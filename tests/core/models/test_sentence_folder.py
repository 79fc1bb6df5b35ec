"""Heads of each family over each pooling, as sentence-transformers runs the folder."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.families import save_own
from support.networks import CPU, Labels

from skbert._core.checkpoints.vet import vet
from skbert._core.families import FAMILIES
from skbert._core.infer import infer
from skbert._core.items import Head
from skbert._core.models.opening import open_network
from skbert._core.models.sentence_folder import has_class, write_sentence_folder
from skbert._core.runtime.device import Precision, seeded
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.families.record import Job
    from skbert._core.models.network import Network

JOBS: tuple[Job, ...] = ("sequence classification", "multiple choice")
TEXTS = ["good", "the movie is not bad!", "", "i love it and hate the phone. " * 9, "éа 日本 🙂"]
KINDS = ("bert", "convbert", "deberta", "distilbert", "electra", "nomic_bert", "roberta")
# A norm among the head's layers, which no module of the library reads as they do here.
REFUSED = {("modernbert", "max")}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    @functools.cache
    def make(family: str) -> Path:
        return save_own(FAMILIES[family], tmp_path_factory.mktemp(family))

    return make


def opened(folder: Path, job: Job, pooling: str, *, fresh: bool) -> Network:
    head = Head(job, 3 if job == "sequence classification" else 1)
    with seeded(0, CPU):
        network = open_network(vet(folder), head, pooling=pooling, fresh_head=fresh)
    if fresh:
        with torch.no_grad():
            network.output_layer.weight.mul_(20)
            network.output_layer.bias.add_(1)
    return network


def logits_of(network: Network) -> np.ndarray[Any, Any]:
    items = Labels(max_length=32).encode((TEXTS, None), None, network.text_tokenizer)
    return infer(network, items, Precision("float32", CPU)).values


def cases() -> list[Any]:
    """Classes over the mean by heads of each kind; the rest is slow."""
    named = [
        (family, job, pooling)
        for family, record in FAMILIES.items()
        for job in JOBS
        if job in record.heads
        for pooling in ("cls", "mean", "max")
        if record.heads[job].pooling != pooling and pooling not in record.heads[job].poolings
    ]
    usual = {(family, JOBS[0], "mean") for family in KINDS}
    return [pytest.param(*case, marks=[] if case in usual else pytest.mark.slow) for case in named]


@pytest.mark.parametrize(("family", "job", "pooling"), cases())
def test_the_library_computes_the_logits(
    family: str, job: Job, pooling: str, folder_of: Callable[[str], Path], tmp_path: Path
) -> None:
    library = pytest.importorskip("sentence_transformers")
    network = opened(folder_of(family), job, pooling, fresh=True)
    assert not has_class(network)
    if (family, pooling) in REFUSED:
        with pytest.raises(ModelError, match=rf"pooling='{pooling}'.*save\(path\).*pooling='cls'"):
            write_sentence_folder(network, tmp_path, 32)
        return
    write_sentence_folder(network, tmp_path, 32)
    wanted = logits_of(network)
    model = library.SentenceTransformer(str(tmp_path), device="cpu")
    found = model.encode(TEXTS, batch_size=1)  # with padding ConvBERT computes something else
    assert np.ptp(wanted, axis=0).max() > 1e-3
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
    again = opened(tmp_path, job, "auto", fresh=False)
    assert again.pooling == pooling
    np.testing.assert_array_equal(logits_of(again), wanted)
