"""Which path a processor takes, by the instructions it says it has."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pytest
import torch
from support.networks import CPU, sentences
from support.training import GENTLE, run

from skbert import BertTransformer
from skbert._core.attention.settings import AttentionSettings
from skbert._core.cpu import fused
from skbert._core.cpu.bindings import module
from skbert._core.cpu.inference import InferenceLinear
from skbert._core.runtime.device import Precision
from skbert._core.task import Layout

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(module.kernels is None, reason="built without a compiler")

SSE4: set[str] = set()
AVX2 = {"avx2"}
AVX512 = AVX2 | {"avx512_vl"}
BF16 = AVX512 | {"avx512_bf16"}
AMX = BF16 | {"amx_bf16"}
WITHOUT_ITS_TILES = BF16 | {"avx512_fp16"}  # as Intel's, where a system offers no AMX


class Choice(NamedTuple):
    """What computes what."""

    precision: torch.dtype
    float32_kernels: bool
    onednn_gelu: bool
    float32_products: bool  # of the kernels, for many tokens
    bf16_products: bool  # the same, and in training


CHOICES = {
    "SSE4": (SSE4, Choice(torch.float32, False, False, False, False)),
    "AVX2": (AVX2, Choice(torch.float32, True, False, True, False)),
    "AVX512": (AVX512, Choice(torch.float32, True, True, True, False)),
    "AVX512 bf16": (BF16, Choice(torch.bfloat16, True, True, True, True)),
    "no AMX": (WITHOUT_ITS_TILES, Choice(torch.float32, True, True, True, True)),
    "AMX": (AMX, Choice(torch.bfloat16, True, True, True, True)),
}


def pretend(monkeypatch: pytest.MonkeyPatch, instructions: set[str]) -> None:
    """Let the processor have these instructions."""
    capabilities: dict[str, object] = dict.fromkeys(instructions, True)
    capabilities["cpu_name"] = "Intel Xeon" if "avx512_fp16" in instructions else "AMD EPYC"
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    for name, needed in (("has_bf16_dot", "avx512_bf16"), ("has_amx", "amx_bf16")):
        monkeypatch.setattr(module.kernels, name, needed in instructions)


def choice() -> Choice:
    """What is chosen now."""
    x, weight = torch.zeros(4, 64), torch.zeros(64, 64)
    layout = Layout(np.array([4]), (), torch.tensor([0, 4]), torch.zeros(4))
    attention = AttentionSettings(32, 1.0, False, 0.0, None)
    norm = torch.ones(64)
    kernels = {
        fused.can_fuse_attention(torch.zeros(4, 192), layout, attention),
        fused.can_fuse_layernorm(x, x, norm, norm),
        fused.can_fuse_grad_norm([x]),
        fused.can_fuse_adamw([weight]),
    }
    products = {
        fused.can_fuse_linear([weight], torch.bfloat16),
        fused.max_packed_tokens(64, 64, torch.bfloat16) > 1000,
    }
    (float32_kernels,), (bf16_products,) = kernels, products  # all alike
    product = InferenceLinear([torch.nn.Linear(64, 64)], Gelu(), torch.float32)
    float32_products = fused.max_packed_tokens(64, 64, torch.float32) > 1000
    return Choice(
        Precision("auto", CPU).compute_dtype, float32_kernels, product.onednn_gelu,
        float32_products, bf16_products,
    )  # fmt: skip


class Gelu:
    """An activation as transformers' GELU."""

    act = staticmethod(torch.nn.functional.gelu)


@pytest.mark.parametrize("name", CHOICES)
def test_the_path_follows_the_instructions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    instructions, expected = CHOICES[name]
    pretend(monkeypatch, instructions)
    assert choice() == expected


def test_without_vectors_no_kernel_is_called(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = sentences([5, 3, 3, 40, 12, 1, 64])
    with_them = BertTransformer(tiny_model, precision="float32").fit(rows).transform(rows)
    pretend(monkeypatch, SSE4)
    called: list[str] = []
    for name in ("attention_forward", "attention_backward", "layernorm_forward", "adamw_step"):
        monkeypatch.setattr(module.kernels, name, lambda *_, name=name: called.append(name))
    found = BertTransformer(tiny_model, precision="float32").fit(rows).transform(rows)
    torch.testing.assert_close(torch.tensor(found), torch.tensor(with_them))
    run(tiny_model, GENTLE, precision="auto")
    assert called == []
