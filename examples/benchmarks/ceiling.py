"""The device's peak speed in matrix products, and how many operations an encoder needs.

Imports nothing of the other scripts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoTokenizer

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOKENS = 4096 if DEVICE == "cpu" else 65536  # rows of a product
SIZES = (384, 768)  # of hidden states: MiniLM's, and those of a BERT of the usual size
TRIES, SECONDS = 5, 0.1  # how often each product is timed, and for how long
IN_A_ROW = 1 if DEVICE == "cpu" else 10  # products between two looks at the clock


def peaks(precisions: Iterable[str]) -> dict[str, float]:
    """Time the matrix products of BERT's layers alone, with weights packed beforehand.

    Parameters
    ----------
    precisions : iterable of str
        Types of the factors, such as ``"bfloat16"``.

    Returns
    -------
    dict of str to float
        Speed of the fastest product in each, in 10^12 operations per second.
    """
    return {precision: max(_speeds(precision)) for precision in precisions}


def shares(result: dict[str, Any], seconds: Mapping[str, float]) -> dict[str, float]:
    """The share of the peak in its precision that each contender's operations reach."""
    peak = {name: result["peak_tflops"][result["products"][name]] for name in seconds}
    return {
        name: result["operations"] / (own * peak[name] * 1e12) for name, own in seconds.items()
    }


def _speeds(precision: str) -> Iterator[float]:
    for size in SIZES:
        for n_in, n_out in ((size, 3 * size), (size, 4 * size), (4 * size, size)):
            product = _product(precision, n_in, n_out)
            seconds = min(_seconds_of(product) for _ in range(TRIES))
            yield 2e-12 * TOKENS * n_in * n_out / seconds


def lengths(texts: list[str], folder: str, longest: int = 512) -> np.ndarray:
    """Count the tokens of each text.

    Parameters
    ----------
    texts : list of str
        The texts.
    folder : str
        Folder of the model, whose tokenizer reads them.
    longest : int, default=512
        Tokens after which a text is cut.

    Returns
    -------
    ndarray of shape (n_texts,)
        Tokens, special ones included.
    """
    encoded = AutoTokenizer.from_pretrained(folder)(texts, truncation=True, max_length=longest)
    return np.array([len(ids) for ids in encoded["input_ids"]], dtype=float)


def operations(tokens: np.ndarray, folder: str) -> float:
    """Count the multiplications and additions of a forward pass over texts.

    Parameters
    ----------
    tokens : ndarray of shape (n_texts,)
        Tokens of each text.
    folder : str
        Folder of the model.

    Returns
    -------
    float
        Operations of the layers' products and of attention within rows; others are not counted.
    """
    config = AutoConfig.from_pretrained(folder)
    size, wide = config.hidden_size, getattr(config, "intermediate_size", 4 * config.hidden_size)
    mlp = 3 if config.model_type == "modernbert" else 2  # products: a gate is one more
    products = (8 * size**2 + 2 * mlp * size * wide) * tokens.sum()
    return float(config.num_hidden_layers * (products + 4 * size * (tokens**2).sum()))


def _product(precision: str, n_in: int, n_out: int) -> Callable[[], object]:
    """A product of random factors."""
    if precision == "int8":
        x = torch.randint(0, 256, (TOKENS, n_in), dtype=torch.uint8)
        weight = torch.randint(-127, 128, (n_out, n_in), dtype=torch.int8)
        scales, zeros = torch.ones(n_out), torch.zeros(n_out, dtype=torch.int64)
        blocks = torch.ops.onednn.qlinear_prepack(weight, [TOKENS, n_in])
        factors, output = (x, 1.0, 128, blocks, scales, zeros), (None, 1.0, 0, torch.float32)
        return partial(torch.ops.onednn.qlinear_pointwise, *factors, *output, "none", [], "")
    like = {"dtype": getattr(torch, precision), "device": DEVICE}
    x, weight = torch.randn(TOKENS, n_in, **like), torch.randn(n_out, n_in, **like)
    bias = torch.randn(n_out, **like)
    if DEVICE == "cuda":
        return partial(F.linear, x, weight, bias)
    blocks = torch.ops.mkldnn._reorder_linear_weight(weight, None)
    return partial(torch.ops.mkldnn._linear_pointwise, x, blocks, bias, "none", [], "none")


def _seconds_of(product: Callable[[], object]) -> float:
    """Mean time of one product; a GPU is given some of them before it is waited for."""
    n_products, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        for _ in range(IN_A_ROW):
            product()
        n_products += IN_A_ROW
        if DEVICE == "cuda":
            torch.cuda.synchronize()
    return (time.perf_counter() - start) / n_products
