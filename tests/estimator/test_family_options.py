"""The parameters of estimators over every family: what is trained, pooled, read and cached."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from support.families import save_own
from support.job import LABELS, TEXTS

from skbert import BertClassifier, BertTransformer
from skbert._core.families import FAMILIES
from skbert._core.training import frozen
from skbert.exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EXACT = {"precision": "float64", "device": "cpu"}
RECOMPUTING = [name for name in FAMILIES if name not in ("albert", "mpnet", "squeezebert")]
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Give a function: the name of a family -> folder of a tiny model."""

    @functools.cache
    def make(family: str) -> Path:
        return save_own(FAMILIES[family], tmp_path_factory.mktemp(family))

    return make


def classifier(folder: Path, **params: Any) -> BertClassifier:
    usual = {"epochs": 1, "random_state": 0, "learning_rate": 1e-3, **EXACT}
    return BertClassifier(folder, **{**usual, **params})


def weights_of(estimator: Any) -> dict[str, torch.Tensor]:
    named = estimator.model_.base_model.named_parameters()
    return {name: weight.detach().clone() for name, weight in named if "pooler" not in name}


def moved(fitted: Any, start: dict[str, torch.Tensor]) -> dict[str, float]:
    """How far each weight of the encoder is from where it was."""
    return {
        name: float((weight - start[name]).abs().max())
        for name, weight in weights_of(fitted).items()
    }


def called_by_a_user(estimator: Any, *, one_by_one: bool) -> np.ndarray[Any, Any]:
    """The logits of ``model_`` for padded texts, as transformers' documentation calls it."""
    model, tokenizer = estimator.model_, estimator.tokenizer_
    parts = [[text] for text in TEXTS] if one_by_one else [TEXTS]
    with torch.no_grad():
        tokens = (tokenizer(part, padding=True, return_tensors="pt") for part in parts)
        return torch.cat([model(**each).logits for each in tokens]).numpy()


@EVERY_FAMILY
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_each_pooling_is_what_model_computes(
    family: str, pooling: str, folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    fitted = classifier(folder_of(family), pooling=pooling).fit(TEXTS, LABELS)
    before = fitted.predict_proba(TEXTS)
    logits = called_by_a_user(fitted, one_by_one=FAMILIES[family].mixes_neighbours)
    wanted = torch.softmax(torch.from_numpy(logits), 1).numpy()
    np.testing.assert_allclose(before, wanted, rtol=0, atol=1e-8)
    np.testing.assert_allclose(fitted.predict_proba(TEXTS), wanted, rtol=0, atol=1e-8)
    fitted.save(tmp_path / "saved")
    loaded = BertClassifier.load(tmp_path / "saved")
    assert loaded.pooling_ == pooling
    np.testing.assert_array_equal(loaded.predict_proba(TEXTS), before)


@EVERY_FAMILY
def test_frozen_weights_stay(family: str, folder_of: Callable[..., Path]) -> None:
    start = weights_of(BertTransformer(folder_of(family), **EXACT).fit(TEXTS))
    record = FAMILIES[family]
    whole = moved(classifier(folder_of(family), freeze="all").fit(TEXTS, LABELS), start)
    assert set(whole.values()) == {0.0}
    if record.layers_of is not None:
        return  # layers that are shared cannot be told apart
    path = record.encoder.layers
    some = moved(classifier(folder_of(family), freeze=1).fit(TEXTS, LABELS), start)
    frozen = (f"{record.encoder.embeddings}.", f"{path}.0.")
    assert not any(far for name, far in some.items() if name.startswith(frozen))
    assert any(far for name, far in some.items() if name.startswith(f"{path}.1."))


@EVERY_FAMILY
@pytest.mark.parametrize("freeze", [1, 2, "all"])  # each has two layers
def test_what_frozen_layers_give_once_is_what_they_give_in_every_pass(
    family: str, freeze: int | str, folder_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    if freeze != "all" and FAMILIES[family].layers_of is not None:
        return  # layers that are shared cannot be told apart
    how = {"freeze": freeze, "epochs": 2, "gradient_checkpointing": family in RECOMPUTING}
    once = classifier(folder_of(family), **how).fit(TEXTS, LABELS)
    monkeypatch.setattr(frozen, "_MOST_BYTES", 0)
    in_every_pass = classifier(folder_of(family), **how).fit(TEXTS, LABELS)
    np.testing.assert_allclose(
        once.predict_proba(TEXTS), in_every_pass.predict_proba(TEXTS), rtol=0, atol=1e-8
    )


@EVERY_FAMILY
def test_lower_layers_learn_less(family: str, folder_of: Callable[..., Path]) -> None:
    record = FAMILIES[family]
    start = weights_of(BertTransformer(folder_of(family), **EXACT).fit(TEXTS))
    fitted = classifier(folder_of(family), layer_decay=0.01).fit(TEXTS, LABELS)
    if record.layers_of is not None:
        return
    far = moved(fitted, start)
    most = [
        max(
            value
            for name, value in far.items()
            if name.startswith(f"{record.encoder.layers}.{i}.")
        )
        for i in range(3)
    ]
    assert 0 < 50 * most[0] < most[1] < most[2] / 50


@EVERY_FAMILY
def test_training_goes_on(family: str, folder_of: Callable[..., Path]) -> None:
    fitted = classifier(folder_of(family), warm_start=True, validation_fraction=0.25, patience=2)
    fitted.fit(TEXTS, LABELS)
    first = fitted.predict_proba(TEXTS)
    assert np.isfinite(fitted.history_[0]["validation_loss"])
    again = clone(fitted).fit(TEXTS, LABELS)
    np.testing.assert_array_equal(again.predict_proba(TEXTS), first)
    fitted.fit(TEXTS, LABELS)
    assert not np.array_equal(fitted.predict_proba(TEXTS), first)
    fitted.partial_fit(TEXTS[:3], ["new", "no", "yes"])
    assert fitted.predict_proba(TEXTS).shape == (len(TEXTS), 3)


@pytest.mark.parametrize("family", RECOMPUTING)
def test_recomputing_changes_nothing(family: str, folder_of: Callable[..., Path]) -> None:
    plain, recomputed = (
        classifier(folder_of(family), gradient_checkpointing=flag).fit(TEXTS, LABELS)
        for flag in (False, True)
    )
    np.testing.assert_allclose(
        recomputed.predict_proba(TEXTS), plain.predict_proba(TEXTS), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("family", ["mobilebert", "deberta"])
def test_an_encoder_that_packed_batches_do_not_run_as_one_is_not_compiled(
    family: str, folder_of: Callable[..., Path]
) -> None:
    with pytest.raises(InputError, match="compile=True, but the encoder of this"):
        classifier(folder_of(family), compile=True).fit(TEXTS, LABELS)


@EVERY_FAMILY
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_lower_precision_is_close(
    family: str, precision: str, folder_of: Callable[..., Path]
) -> None:
    exact = BertTransformer(folder_of(family), **EXACT).fit_transform(TEXTS)
    half = BertTransformer(folder_of(family), precision=precision, device="cpu")
    found = half.fit_transform(TEXTS)
    assert found.dtype == np.float32
    assert np.abs(found - exact).max() < 0.1 * max(1.0, np.abs(exact).max())
    fitted = classifier(folder_of(family), precision=precision).fit(TEXTS, LABELS)
    assert np.isfinite(fitted.predict_proba(TEXTS)).all()


@EVERY_FAMILY
@pytest.mark.parametrize("join", ["mean", "concat"])
def test_hidden_states_of_several_layers(
    family: str, join: str, folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    settings = {"layers": (0, 2, -1), "layer_join": join, **EXACT}
    folder = folder_of(family)
    states = []
    whole = BertTransformer(folder, **EXACT).fit(TEXTS)
    model = whole.model_
    for text in TEXTS:
        tokens = whole.tokenizer_(text, return_tensors="pt")
        with torch.no_grad():
            found = model(**tokens, output_hidden_states=True).hidden_states
        states.append([found[i][0] for i in (0, 2, 3)])
    for pooling, pool in (("cls", lambda x: x[0]), ("mean", lambda x: x.mean(0)),
                          ("max", lambda x: x.amax(0))):  # fmt: skip
        joined = [
            torch.stack(row).mean(0) if join == "mean" else torch.cat(row, 1) for row in states
        ]
        wanted = torch.stack([pool(row) for row in joined]).numpy()
        vectors = BertTransformer(folder, pooling=pooling, memory=tmp_path, **settings).fit(TEXTS)
        found = vectors.transform(TEXTS)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-8)
        other = BertTransformer(folder, pooling=pooling, memory=tmp_path, **settings)
        np.testing.assert_array_equal(other.fit_transform(TEXTS), found)
