"""Layers in int8: the same in tiles and vectors, near the layers in float32, or refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
import torch
from support.networks import CPU, Labels, open_model, sentences
from support.training import GENTLE, run, same
from torch.nn import functional as F

from skbert import BertClassifier, BertTransformer
from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.gemm_int8 import Int8Weights, int8_linears
from skbert._core.cpu.linear import ProductCache
from skbert._core.cpu.quantized import Int8Linear, Int8MLP
from skbert._core.infer import infer
from skbert._core.runtime.device import Precision, uses_int8
from skbert._core.training.stepper import Stepper
from skbert.exceptions import InputError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment

    from skbert._core.models.network import Network

needs_int8 = pytest.mark.skipif(
    not module.has_int8_products(), reason="needs a processor that multiplies int8"
)
ROWS = sentences([5, 3, 3, 40, 12, 1, 64])


def two_layers(n_in: int, n_between: int, n_out: int) -> list[Int8Weights]:
    generator = torch.Generator().manual_seed(n_in)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator) / shape[-1] ** 0.5

    first = Int8Weights(
        weight=draw(n_between, n_in), bias=draw(n_between), gelu=True, outliers=True
    )
    return [first, Int8Weights(weight=draw(n_out, n_between), bias=None)]


@needs_int8
@pytest.mark.parametrize("n_tokens", [0, 1, 15, 16, 17, 32, 33, 129, 300, 513])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [(48, 64, 32), (384, 160, 384)])
def test_two_layers_are_one_after_another(
    n_tokens: int, dtype: torch.dtype, sizes: tuple[int, int, int]
) -> None:
    x, layers = torch.randn(n_tokens, sizes[0]), two_layers(*sizes)
    x[::3, 5] = 30  # an outlier
    x = x.to(dtype)
    found = []
    for in_tiles in {0, module.kernels.has_amx}:
        for n_threads in (1, 3):
            with (
                mock.patch.object(module.kernels, "has_amx", in_tiles),
                mock.patch.object(torch, "get_num_threads", return_value=n_threads),
            ):
                between = int8_linears(x=x, layers=layers[:1])
                found.append(int8_linears(x=between, layers=layers[1:]))
                found.append(int8_linears(x=x, layers=layers))
    assert found[0].shape == (n_tokens, sizes[2])
    assert all(torch.equal(each, found[0]) for each in found)


@needs_int8
@pytest.mark.parametrize("n_in", [16, 48, 64, 80, 384])
@pytest.mark.parametrize("in_tiles", [False, True])
def test_numbers_of_bfloat16_are_rounded_as_those_of_float32(n_in: int, in_tiles: bool) -> None:
    """Of any sign, the same everywhere, zeros, and some that are none."""
    x = torch.randn(40, n_in).bfloat16()
    x[0], x[1], x[2], x[3], x[4] = x[0].abs(), -x[1].abs(), 0, -0.0, -1.5
    x[5, n_in - 1], x[6, 0], x[7, n_in // 2] = 1000, -1000, 1e-20
    x[8, n_in - 1], x[9, 0], x[10, n_in // 2] = torch.inf, -torch.inf, torch.nan
    x[11, n_in - 1] = 60
    layers = [Int8Weights(weight=torch.randn(64, n_in), bias=torch.randn(64), outliers=True)]
    with mock.patch.object(module.kernels, "has_amx", in_tiles and module.kernels.has_amx):
        found = int8_linears(x=x, layers=layers)
        exact = int8_linears(x=x.float(), layers=layers)
    np.testing.assert_array_equal(found.float(), exact.bfloat16().float())
    assert found[8:11].isnan().all()
    assert found[11:].isfinite().all()


def with_outliers(n_in: int, outliers: dict[int, float]) -> torch.Tensor:
    """Tokens of whole numbers from 0 to 255, and for every other one some far from these."""
    x = torch.randint(0, 256, (40, n_in), generator=torch.Generator().manual_seed(n_in))
    x[:, 1], x[:, 2] = 0, 255
    for at, value in outliers.items():
        x[::2, at] = int(value)
    return x


@needs_int8
@pytest.mark.parametrize("n_in", [208, 240, 384])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("in_tiles", [False, True])
@pytest.mark.parametrize(
    "outliers",
    [{0: 4000}, {-1: -4000}, {3: 2000, -1: -2000}, {5: -2000, 6: -1984}, {33: 4096}],
)
def test_products_of_outliers_are_exact(
    n_in: int, dtype: torch.dtype, in_tiles: bool, outliers: dict[int, float]
) -> None:
    """Beside them the others, from 0 to 255, are not rounded."""
    x = with_outliers(n_in, outliers)
    weight = torch.randint(-127, 128, (64, n_in), generator=torch.Generator().manual_seed(1))
    weight[:, 1] = -127
    layers = [Int8Weights(weight=weight.float(), bias=None, outliers=True)]
    with mock.patch.object(module.kernels, "has_amx", in_tiles and module.kernels.has_amx):
        found = int8_linears(x=x.to(dtype), layers=layers)
        few = int8_linears(x=x[:3].to(dtype), layers=layers)
    exact = F.linear(x.float(), weight.float())
    np.testing.assert_array_equal(found.float(), exact.to(dtype).float())
    np.testing.assert_array_equal(few.float(), found[:3].float())


@needs_int8
def test_outliers_are_looked_for_in_what_norms_give(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    module = network.model.bert.encoder.layer[0]
    cache = ProductCache(network.family.layer_parts(module))
    weights = cache(torch.bfloat16, training=False, int8=True).packed(1)
    assert weights is not None
    assert [getattr(each, "outliers", None) for each in weights] == [True, False, True, False]


@needs_int8
def test_outliers_are_found_only_where_they_are_looked_for() -> None:
    x = torch.randn(40, 384, generator=torch.Generator().manual_seed(0))
    x[:, 7] = 30
    linear = torch.nn.Linear(384, 64)
    with torch.inference_mode():
        exact = F.linear(x.double(), linear.weight.double(), linear.bias.double())
        found = [Int8Linear([linear], outliers=outliers)(x) for outliers in (False, True)]
    without, with_them = (float((each - exact).norm()) for each in found)
    assert with_them < 0.5 * without


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "outliers",
    [{0: 4416}, {-1: -4416}, {3: 2500, -1: -2500}, dict.fromkeys(range(5), 1500), {5: 1e30}],
)
def test_too_many_pieces_of_outliers_make_the_range_wider(
    dtype: torch.dtype, outliers: dict[int, float]
) -> None:
    x = with_outliers(384, {}).to(dtype)
    for at, value in outliers.items():
        x[:, at] = value
    weight = torch.randn(64, 384, generator=torch.Generator().manual_seed(1))
    found = int8_linears(x=x, layers=[Int8Weights(weight=weight, bias=None, outliers=True)])
    step = (x.double().amax(1) - x.double().amin(1)) / 255
    scale = weight.abs().amax(1) / 127
    off = 0.5 * step[:, None] * weight.abs().sum(1)
    off = off + 0.5 * scale * (x.double().abs() + step[:, None]).sum(1)[:, None]
    exact = F.linear(x.double(), weight.double())
    assert ((found.double() - exact).abs() <= 1.01 * off + 0.01 * exact.abs()).all()


@needs_int8
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("size", "most"), [(1e-35, 0.05), (1e-15, 0.01), (1, 0.01), (1e15, 0.01), (1e30, 0.05)]
)
def test_outliers_of_any_size(dtype: torch.dtype, size: float, most: float) -> None:
    """Where squares are zeros, or infinite, there are no outliers, and errors are larger."""
    x = torch.randn(20, 384, generator=torch.Generator().manual_seed(0))
    x[:, 7], x[:5, 8] = 30, -30
    x = (x.double() * size).to(dtype)
    x[-1], x[-1, 7] = 0, 30 * size
    weight = torch.randn(64, 384, generator=torch.Generator().manual_seed(1))
    found = int8_linears(x=x, layers=[Int8Weights(weight=weight, bias=None, outliers=True)])
    exact = F.linear(x.double(), weight.double())
    off = (found.double() - exact).norm(dim=1) / exact.norm(dim=1)
    assert (off < most).all()


@needs_int8
def test_tiles_leave_those_of_onednn_alone() -> None:
    x, layers = torch.randn(300, 384).bfloat16(), two_layers(384, 1536, 384)
    weight = torch.randn(384, 384).bfloat16()
    expected = F.linear(x, weight)
    for _ in range(3):
        int8_linears(x=x, layers=layers)
        assert torch.equal(F.linear(x, weight), expected)


@needs_int8
@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_weights_that_are_no_numbers_are_seen(value: float) -> None:
    weight = torch.randn(32, 48)
    weight[3, 5] = value
    x = torch.randn(7, 48)
    found = int8_linears(x=x, layers=[Int8Weights(weight=weight, bias=None)])
    assert not found[:, 3].isfinite().any()
    assert found[:, :3].isfinite().all()


@needs_int8
def test_an_activation_that_is_no_gelu() -> None:
    torch.manual_seed(0)
    first, second = torch.nn.Linear(48, 64), torch.nn.Linear(64, 32)
    x = torch.randn(9, 48)
    with torch.inference_mode():
        found = Int8MLP([first], [second], torch.relu)(x)
        exact = second(torch.relu(first(x)))
    assert float((found - exact).norm() / exact.norm()) < 0.02


# --- networks ------------------------------------------------------------------------------------


def logits(network: Network, precision: str, rows: list[str] = ROWS) -> np.ndarray[Any, Any]:
    items = Labels().encode((rows, None), None, network.text_tokenizer)
    return infer(network, items, Precision(precision, CPU)).values


@needs_int8
def test_logits_are_near_those_in_float32(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    exact, found = logits(network, "float32"), logits(network, "int8")
    assert not np.array_equal(exact, found)
    assert np.abs(found - exact).max() < 0.05 * np.abs(exact).max()


@needs_int8
def test_a_text_s_logits_do_not_depend_on_the_others(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    alone = np.concatenate([logits(network, "int8", [row]) for row in ROWS])
    np.testing.assert_allclose(logits(network, "int8"), alone, atol=1e-2)


@needs_int8
def test_changed_weights_have_an_effect(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    before = logits(network, "int8")
    weight = network.model.bert.encoder.layer[0].intermediate.dense.weight
    with torch.no_grad():
        weight.mul_(3)
    changed = logits(network, "int8")
    assert not np.array_equal(changed, before)
    network.hand_out()
    weight.data.div_(3)  # torch does not count it
    np.testing.assert_array_equal(logits(network, "int8"), before)


@needs_int8
def test_training_is_as_with_auto(tiny_model: Path) -> None:
    learned = [run(tiny_model, GENTLE, precision=name)[0] for name in ("auto", "int8")]
    assert same(*learned)
    assert not uses_int8()


@needs_int8
def test_precision_may_be_set_after_a_fit(tiny_model: Path) -> None:
    later = BertTransformer(tiny_model, precision="auto").fit(ROWS)
    before = later.transform(ROWS)
    found = later.set_params(precision="int8").transform(ROWS)
    assert not np.array_equal(found, before)
    fitted = BertTransformer(tiny_model, precision="int8").fit(ROWS)
    np.testing.assert_array_equal(found, fitted.transform(ROWS))


# --- refused -------------------------------------------------------------------------------------


def test_another_device_is_refused() -> None:
    with pytest.raises(InputError, match=r"precision='int8' is for predictions on a CPU"):
        Precision("int8", torch.device("cuda"))


def test_a_processor_without_int8_is_refused(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "kernels", None)
    with pytest.raises(InputError, match="needs a processor with AVX512-VNNI"):
        BertTransformer(tiny_model, precision="int8").fit(ROWS)
    with pytest.raises(InputError, match="needs a processor with AVX512-VNNI"):
        BertClassifier(tiny_model, precision="int8").fit(ROWS, [0, 1, 0, 1, 0, 1, 1])


@needs_int8
def test_a_model_that_runs_by_its_modules_is_refused(tiny_model: Path) -> None:
    network = open_model(tiny_model)
    network.hand_out().bert.encoder.layer[0].register_forward_hook(lambda *_: None)
    with pytest.raises(InputError, match="BertForSequenceClassification runs by its own modules"):
        logits(network, "int8")
    compiled = open_model(tiny_model)
    compiled.compiled = compiled.model.base_model
    with pytest.raises(InputError, match="runs by its own modules"):
        logits(compiled, "int8")


@needs_int8
def test_a_hook_is_seen_before_training(tiny_model: Path) -> None:
    how = {"precision": "int8", "warm_start": True, "epochs": 1}
    classifier = BertClassifier(tiny_model, **how).fit(ROWS, [0, 1, 0, 1, 0, 1, 1])
    hook = classifier.model_.bert.encoder.layer[0].register_forward_hook(lambda *_: None)
    with (
        mock.patch.object(Stepper, "step", side_effect=AssertionError("trained")),
        pytest.raises(InputError, match="runs by its own modules"),
    ):
        classifier.fit(ROWS, [0, 1, 0, 1, 0, 1, 1])
    hook.remove()
    classifier.fit(ROWS, [0, 1, 0, 1, 0, 1, 1])


@needs_int8
def test_layers_of_other_sizes_are_refused(make_tiny_model: Callable[..., Path]) -> None:
    folder = make_tiny_model(intermediate_size=72)
    with pytest.raises(InputError, match="sizes are multiples of 32"):
        BertTransformer(folder, precision="int8").fit(ROWS)


@pytest.mark.parametrize("head_init", ["probe", "random"])
@pytest.mark.parametrize("freeze", [0, 1, "all"])
def test_training_knows_nothing_of_it(
    tiny_model: Path, sentiment: Sentiment, freeze: int | str, head_init: str
) -> None:
    def trained(precision: str) -> dict[str, torch.Tensor]:
        how = {"epochs": 1, "random_state": 0, "device": "cpu", "pooling": "mean"}
        how |= {"freeze": freeze, "head_init": head_init, "precision": precision}
        weights: dict[str, torch.Tensor] = (
            BertClassifier(tiny_model, **how).fit(*sentiment).model_.state_dict()
        )
        return weights

    torch.testing.assert_close(trained("int8"), trained("auto"), rtol=0, atol=0)


@needs_int8
@pytest.mark.parametrize("freeze", [0, 1, "all"])
def test_rows_held_out_are_measured_as_rows_are_predicted(
    freeze: int | str, lively_model: Path, sentiment: Sentiment
) -> None:
    """Rows to train on are computed without int8, and what frozen layers give of them is kept."""
    X, y = sentiment
    classifier = BertClassifier(lively_model, freeze=freeze, epochs=1, precision="int8")
    classifier.fit(X[:20], y[:20], X_val=X[20:], y_val=y[20:])
    found = classifier.conformity_scores_
    expected = classifier.conformalize(X[20:], y[20:]).conformity_scores_
    np.testing.assert_allclose(found, expected, atol=1e-5)
