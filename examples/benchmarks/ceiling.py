"""What the processor can do in its fastest matrix products, and what an encoder must compute.

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
    """Time the products of BERT's layers alone, their weights laid out beforehand.

    Parameters
    ----------
    dtype : torch.dtype
        Of both factors.

    Returns
    -------
    float
        10^12 floating-point operations a second, of the fastest of them.
    """
    found = []
    for size in SIZES:
        for n_in, n_out in ((size, 3 * size), (size, 4 * size), (4 * size, size)):
            x, bias = torch.randn(TOKENS, n_in, dtype=dtype), torch.randn(n_out, dtype=dtype)
            weight = torch.randn(n_out, n_in, dtype=dtype)
            blocks = torch.ops.mkldnn._reorder_linear_weight(weight, None)
            took = min(_seconds_of(x, blocks, bias) for _ in range(TRIES))
            found.append(2e-12 * TOKENS * n_in * n_out / took)
    return max(found)


def operations(texts: list[str], folder: str) -> float:
    """Count the multiplications and additions of a forward pass over texts.

    Parameters
    ----------
    texts : list of str
        What is read, 512 tokens of each at most.
    folder : str
        Of the model.

    Returns
    -------
    float
        Those of the layers' products and of attention within rows, nothing else.
    """
    config = AutoConfig.from_pretrained(folder)
    encoded = AutoTokenizer.from_pretrained(folder)(texts, truncation=True, max_length=512)
    tokens = np.array([len(ids) for ids in encoded["input_ids"]], dtype=float)
    size, wide = config.hidden_size, config.intermediate_size
    products = (8 * size**2 + 4 * size * wide) * tokens.sum()
    return float(config.num_hidden_layers * (products + 4 * size * (tokens**2).sum()))


def _seconds_of(x: torch.Tensor, blocks: torch.Tensor, bias: torch.Tensor) -> float:
    """Mean time of one product."""
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < SECONDS:
        torch.ops.mkldnn._linear_pointwise(x, blocks, bias, "none", [], "none")
        done += 1
    return (time.perf_counter() - began) / done
