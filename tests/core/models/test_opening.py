"""Opening checkpoints: what is refused, what is drawn, and that a network survives its copies."""

from __future__ import annotations

import copy
import pickle
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support.networks import (
    CPU,
    GPU,
    HEAD,
    Labels,
    assert_all_close,
    gradients,
    open_model,
    sentences,
)
from transformers import AutoTokenizer, BertForSequenceClassification
from transformers.utils import logging as library_logging

from skbert._core.attention import packed
from skbert._core.batches import Batch, collate
from skbert._core.checkpoints.vet import vet
from skbert._core.items import Head
from skbert._core.models.network import Network
from skbert._core.models.opening import open_network
from skbert._core.models.output import grow_output, scale_output
from skbert._core.models.shared import hand_out_tokenizer
from skbert._core.models.writing import write_folder
from skbert._core.runtime.device import seeded
from skbert.exceptions import ModelError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WEIGHTS = "model.safetensors"


def batch_for(network: Network, n: int = 4) -> Batch:
    first = sentences([3, 7, 2, 5, 4, 1][:n])
    items = Labels().encode((first, None), np.zeros(n, np.int64), network.text_tokenizer)
    return collate(items, np.arange(n), network.device, network.dtype)


def logits_of(network: Network) -> torch.Tensor:
    with torch.no_grad():
        return network.logits(batch_for(network))


def changed(
    folder: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]
) -> Path:
    """A copy of a model's folder with other tensors in it."""
    shutil.copytree(folder, to)
    save_file(change(load_file(folder / WEIGHTS)), to / WEIGHTS, metadata={"format": "pt"})
    return to


def without(folder: Path, to: Path, part: str) -> Path:
    return changed(folder, to, lambda held: {k: v for k, v in held.items() if part not in k})


@pytest.fixture(scope="module")
def fine_tuned(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint that brings a head of five classes."""
    folder = tmp_path_factory.mktemp("fine_tuned") / "model"
    write_folder(open_model(tiny_model, n_outputs=5, seed=7), folder)
    return folder


# --- what a checkpoint may lack ------------------------------------------------------------------


def test_a_missing_pooler_is_drawn_by_the_seed_and_said_once(
    tiny_model: Path, tmp_path: Path
) -> None:
    folder = without(tiny_model, tmp_path / "model", "pooler")
    poolers = []
    for seed in (0, 0, 1):
        with pytest.warns(SkbertWarning, match="no pooler") as caught:
            network = open_model(folder, seed=seed)
        assert len(caught) == 1
        poolers.append(network.model.bert.pooler.dense.weight)
    assert torch.equal(poolers[0], poolers[1])
    assert not torch.equal(poolers[0], poolers[2])


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_a_missing_pooler_that_nobody_reads_is_no_news(
    tiny_model: Path, tmp_path: Path, pooling: str
) -> None:
    folder = without(tiny_model, tmp_path / "model", "pooler")
    network = open_model(folder, pooling=pooling)  # a warning would be an error here
    assert torch.equal(logits_of(network), logits_of(open_model(folder, pooling=pooling)))


@pytest.mark.parametrize(
    "part", ["encoder.layer.1.", "layer.0.attention.self.query.bias", "word_embeddings"]
)
def test_a_missing_weight_is_refused(tiny_model: Path, tmp_path: Path, part: str) -> None:
    folder = without(tiny_model, tmp_path / "model", part)
    with pytest.raises(ModelError, match="lacks") as caught:
        open_network(vet(folder), Head(HEAD, 2))
    assert str(folder) in str(caught.value)
    assert part.strip(".") in str(caught.value)


def test_an_encoder_weight_of_another_shape_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    name = "encoder.layer.1.intermediate.dense.weight"

    def cut(held: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return {k: v[:-1].clone() if k.endswith(name) else v for k, v in held.items()}

    folder = changed(tiny_model, tmp_path / "model", cut)
    with pytest.raises(ModelError, match="in another shape") as caught:
        open_model(folder)
    assert name in str(caught.value)


def test_a_head_of_another_size_is_not_the_checkpoints_own(
    fine_tuned: Path, tmp_path: Path
) -> None:
    folder = changed(
        fine_tuned,
        tmp_path / "model",
        lambda held: {k: v[:4].clone() if "classifier" in k else v for k, v in held.items()},
    )
    with pytest.raises(ModelError, match="has no head"):
        open_network(vet(folder), Head(HEAD, 5), fresh_head=False)


def test_a_checkpoint_without_a_head_cannot_predict(tiny_model: Path) -> None:
    with pytest.raises(ModelError, match="has no head for BertForSequenceClassification"):
        open_network(vet(tiny_model), Head(HEAD, 2), fresh_head=False)


def test_a_checkpoint_with_its_own_head_keeps_it(fine_tuned: Path) -> None:
    held = load_file(fine_tuned / WEIGHTS)
    network = open_network(vet(fine_tuned), Head(HEAD, 5), fresh_head=False)
    assert torch.equal(network.output_layer.weight, held["classifier.weight"])
    assert torch.equal(network.output_layer.bias, held["classifier.bias"])


@pytest.mark.parametrize("n_outputs", [3, 5])
def test_a_fresh_head_is_drawn_whatever_the_checkpoint_brings(
    fine_tuned: Path, n_outputs: int
) -> None:
    held = load_file(fine_tuned / WEIGHTS)
    one, same, other = (open_model(fine_tuned, n_outputs=n_outputs, seed=s) for s in (0, 0, 1))
    head = one.output_layer.weight
    assert head.shape == (n_outputs, 32)
    assert torch.equal(head, same.output_layer.weight)
    assert not torch.equal(head, other.output_layer.weight)
    assert not torch.equal(head[:3], held["classifier.weight"][:3])
    assert 0.01 < head.std().item() < 0.03
    assert not one.output_layer.bias.any()
    body = {k: v for k, v in one.model.state_dict().items() if not k.startswith("classifier")}
    assert all(torch.equal(tensor, held[name]) for name, tensor in body.items())
    assert one.model.config.num_labels == n_outputs


# --- quietly -------------------------------------------------------------------------------------


@pytest.fixture
def library_logs() -> Iterator[None]:
    verbosity, bar = library_logging.get_verbosity(), library_logging.is_progress_bar_enabled()
    yield
    library_logging.set_verbosity(verbosity)
    (library_logging.enable_progress_bar if bar else library_logging.disable_progress_bar)()


@pytest.mark.parametrize("bar", [True, False])
@pytest.mark.parametrize("verbosity", [library_logging.INFO, library_logging.CRITICAL])
def test_the_library_talks_as_before(
    tiny_model: Path, tmp_path: Path, library_logs: None, verbosity: int, bar: bool
) -> None:
    library_logging.set_verbosity(verbosity)
    (library_logging.enable_progress_bar if bar else library_logging.disable_progress_bar)()
    open_model(tiny_model)
    assert library_logging.get_verbosity() == verbosity
    assert library_logging.is_progress_bar_enabled() is bar
    folder = changed(tiny_model, tmp_path / "model", lambda held: held)
    checkpoint = vet(folder)
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"model\.safetensors is no file that can be read"):
        open_network(checkpoint, Head(HEAD, 2))
    assert library_logging.get_verbosity() == verbosity
    assert library_logging.is_progress_bar_enabled() is bar


def test_opening_prints_nothing(tiny_model: Path, capfd: pytest.CaptureFixture[str]) -> None:
    open_model(tiny_model)
    assert capfd.readouterr() == ("", "")


# --- what a network is ---------------------------------------------------------------------------


def test_a_tokenizer_is_opened_once_and_copies_are_handed_out(
    make_tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[object] = []
    read = AutoTokenizer.from_pretrained

    def counting(*args: Any, **settings: Any) -> Any:
        opened.append(args)
        return read(*args, **settings)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", counting)
    folder = make_tiny_model()
    one, other = open_model(folder), open_model(folder)
    assert one.tokenizer is other.tokenizer
    assert one.text_tokenizer is other.text_tokenizer
    copied = hand_out_tokenizer(one)
    assert copied is hand_out_tokenizer(one) is not hand_out_tokenizer(other)
    before = len(one.tokenizer)
    copied.add_tokens(["quux"])
    assert len(one.tokenizer) == len(hand_out_tokenizer(other)) == before
    assert len(hand_out_tokenizer(pickle.loads(pickle.dumps(one)))) == before
    assert len(opened) == 1
    open_model(make_tiny_model())
    assert len(opened) == 2
    copied.save_pretrained(folder)
    with pytest.raises(ModelError, match="'quux'"):  # other files now
        open_model(folder)


def test_a_network_reports_what_it_is(make_tiny_model: Callable[..., Path], minilm: Path) -> None:
    network = open_model(make_tiny_model(max_position_embeddings=600), n_outputs=3)
    assert (network.device, network.dtype, network.max_length) == (CPU, torch.float32, 600)
    assert (network.output_layer.in_features, network.output_layer.out_features) == (32, 3)
    assert not network.model.training
    assert open_model(minilm, dtype=torch.float64).dtype == torch.float64
    assert isinstance(network.model, BertForSequenceClassification)


def test_pooling_auto_is_what_the_checkpoint_declares(tiny_model: Path, minilm: Path) -> None:
    assert open_model(minilm, pooling="auto").pooling == "mean"
    assert open_model(tiny_model, pooling="auto").pooling == "pooler"
    assert open_model(minilm, pooling="cls").pooling == "cls"


def test_a_model_without_the_attention_interface_is_padded(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packing = open_model(tiny_model)
    assert packing.is_packed
    assert packing.model.config._attn_implementation == packed.NAME
    monkeypatch.setattr(BertForSequenceClassification, "_supports_attention_backend", False)
    padding = open_model(tiny_model)
    assert not padding.is_packed
    torch.testing.assert_close(logits_of(padding), logits_of(packing), rtol=1e-5, atol=1e-5)


def test_moving_to_another_type(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    before = logits_of(network)
    network.to(CPU, torch.float64)
    assert logits_of(network).dtype == torch.float64
    torch.testing.assert_close(logits_of(network).float(), before, rtol=1e-5, atol=1e-5)


# --- changing the output layer -------------------------------------------------------------------


@pytest.mark.parametrize("kept", [[0, 1, 2], [4, 0, 2]])
def test_growing_keeps_the_old_outputs(tiny_model: Path, kept: list[int]) -> None:
    network = open_model(tiny_model, n_outputs=3)
    with torch.no_grad():
        network.output_layer.bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
    before = logits_of(network)
    with seeded(0, CPU):
        grow_output(network, 5, np.array(kept))
    after = logits_of(network)
    assert after.shape == (4, 5)
    torch.testing.assert_close(after[:, kept], before)
    new = sorted(set(range(5)) - set(kept))
    assert not network.output_layer.bias[new].any()
    assert network.output_layer.weight[new].std().item() == pytest.approx(0.02, rel=0.5)
    assert network.head.n_outputs == network.model.config.num_labels == 5


def test_growing_to_the_same_size_only_reorders(tiny_model: Path) -> None:
    network = open_model(tiny_model, n_outputs=3, dtype=torch.float64)
    before = logits_of(network)
    grow_output(network, 3, np.array([2, 0, 1]))
    assert torch.equal(logits_of(network)[:, [2, 0, 1]], before)
    assert network.output_layer.weight.dtype == torch.float64


def test_scaling_the_output(tiny_model: Path) -> None:
    network = open_model(tiny_model, n_outputs=3, dtype=torch.float64)
    with torch.no_grad():
        network.output_layer.bias.copy_(torch.tensor([0.5, -1.0, 2.0]))
    before = logits_of(network)
    scale_output(network, 0.25)
    torch.testing.assert_close(logits_of(network), before * 0.25)
    factor, shift = np.array([2.0, 4.0, -8.0]), np.array([1.0, 0.0, 100.0])
    scale_output(network, factor, shift)
    want = before * 0.25 * torch.from_numpy(factor) + torch.from_numpy(shift)
    torch.testing.assert_close(logits_of(network), want)


# --- copies --------------------------------------------------------------------------------------


def pickled(network: Network) -> Network:
    twin: Network = pickle.loads(pickle.dumps(network))
    return twin


@pytest.mark.parametrize("duplicate", [pickled, copy.deepcopy])
@pytest.mark.parametrize("pooling", ["pooler", "mean"])
def test_copies_give_the_same_outputs_and_share_nothing(
    tiny_model: Path, duplicate: Callable[[Network], Network], pooling: str
) -> None:
    network = open_model(tiny_model, n_outputs=3, pooling=pooling)
    before = logits_of(network)
    twin = duplicate(network)
    assert torch.equal(logits_of(twin), before)
    assert (twin.pooling, twin.head, twin.is_packed) == (pooling, network.head, True)
    scale_output(twin, 2.0)
    assert torch.equal(logits_of(network), before)


def test_a_pickle_leaves_the_compiled_layers_behind(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    network.compiled = lambda: None  # which no pickle could take along
    assert pickled(network).compiled is None
    assert network.compiled is not None


@pytest.mark.gpu
def test_a_pickle_from_a_gpu_opens_on_the_cpu(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    before = logits_of(network)
    network.to(GPU, torch.float32)
    twin = pickled(network)
    assert (twin.device, network.device) == (CPU, GPU)
    assert torch.equal(logits_of(twin), before)


def test_a_written_folder_is_an_ordinary_one(tiny_model: Path, tmp_path: Path) -> None:
    network = open_model(tiny_model, n_outputs=3)
    write_folder(network, tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs: Any = BertForSequenceClassification.from_pretrained(tmp_path)
    inputs = AutoTokenizer.from_pretrained(tmp_path)(
        sentences([3, 7, 2, 5]), padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        want = theirs.eval()(**inputs).logits
    torch.testing.assert_close(logits_of(network), want, rtol=1e-5, atol=1e-5)
    again = open_network(vet(tmp_path), Head(HEAD, 3), fresh_head=False)
    assert torch.equal(logits_of(again), logits_of(network))


def test_a_folder_may_be_written_without_weights(tiny_model: Path, tmp_path: Path) -> None:
    write_folder(open_model(tiny_model), tmp_path, weights=False)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"config.json", "tokenizer.json"} <= names
    assert WEIGHTS not in names


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of its own doings
def test_compiled_layers_give_the_same(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # torch sets it: put it back
    network = open_model(tiny_model_no_dropout)
    before = logits_of(network)
    network.logits(batch_for(network)).square().sum().backward()
    want = gradients(network.model)
    network.compile()
    torch.testing.assert_close(logits_of(network), before, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        fewer = network.logits(batch_for(network, 2))
    torch.testing.assert_close(fewer, before[:2], rtol=1e-5, atol=1e-5)
    network.logits(batch_for(network)).square().sum().backward()
    assert_all_close(gradients(network.model), want, 1e-5)
