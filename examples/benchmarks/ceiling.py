"""The processor's peak speed in matrix products, and how many operations an encoder needs.

Imports nothing of the other scripts.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from transformers import AutoConfig, AutoTokenizer

TOKENS = 4096  # rows of a product
SIZES = (384, 768)  # of hidden states: MiniLM's, and those of a BERT of the usual size
TRIES, SECONDS = 5, 0.1  # how often each product is timed, and for how long


def peak(dtype: torch.dtype) -> float:
    """Time the matrix products of BERT's layers alone, with weights packed beforehand.

    Parameters
    ----------
    dtype : torch.dtype
        Data type of both factors.

    Returns
    -------
    float
        Speed of the fastest product, in 10^12 floating-point operations per second.
    """
    speeds = []
    for size in SIZES:
        for n_in, n_out in ((size, 3 * size), (size, 4 * size), (4 * size, size)):
            x, bias = torch.randn(TOKENS, n_in, dtype=dtype), torch.randn(n_out, dtype=dtype)
            weight = torch.randn(n_out, n_in, dtype=dtype)
            blocks = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            seconds = min(_seconds_of(x, blocks, bias) for _ in range(TRIES))
            speeds.append(2e-12 * TOKENS * n_in * n_out / seconds)
    return max(speeds)


def operations(texts: list[str], folder: str) -> float:
    """Count the multiplications and additions of a forward pass over texts.

    Parameters
    ----------
    texts : list of str
        The texts, cut at 512 tokens each.
    folder : str
        Folder of the model.

    Returns
    -------
    float
        Operations of the layers' products and of attention within rows; others are not counted.
    """
    config = AutoConfig.from_pretrained(folder)
    encoded = AutoTokenizer.from_pretrained(folder)(texts, truncation=True, max_length=512)
    tokens = np.array([len(ids) for ids in encoded["input_ids"]], dtype=float)
    size, wide = config.hidden_size, getattr(config, "intermediate_size", 4 * config.hidden_size)
    mlp = 3 if config.model_type == "modernbert" else 2  # products: a gate is one more
    products = (8 * size**2 + 2 * mlp * size * wide) * tokens.sum()
    return float(config.num_hidden_layers * (products + 4 * size * (tokens**2).sum()))


def _seconds_of(x: torch.Tensor, blocks: torch.Tensor, bias: torch.Tensor) -> float:
    """Mean time of one product."""
    n_products, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "none")
        n_products += 1
    return (time.perf_counter() - start) / n_products
