"""The encoder in other runtimes, ONNX Runtime and OpenVINO, as a careful user would set them up.

Texts are sorted by length and go in batches, padded to the longest; the vector of a text is the
mean of its tokens, scaled to length 1.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import torch
from onnxruntime import InferenceSession, SessionOptions
from transformers import AutoModel, AutoTokenizer

import skbert.runtime
from skbert import BertTransformer

BATCH_SIZE = 32

Embed = Callable[[list[str]], np.ndarray]
States = Callable[[np.ndarray, np.ndarray], np.ndarray]


class _LastStates(torch.nn.Module):
    """The last hidden states alone, from ids and a mask."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Hidden states ``(n_rows, length, size)`` of ids and a mask ``(n_rows, length)``."""
        states: torch.Tensor = self.model(ids, mask).last_hidden_state
        return states


def onnx_runtime(folder: str) -> Embed:
    """Embed with ONNX Runtime, in float32."""
    dynamic = {0: torch.export.Dim("rows", min=2), 1: torch.export.Dim("length", min=2)}
    with tempfile.TemporaryDirectory() as made:
        path = Path(made) / "model.onnx"
        with warnings.catch_warnings(action="ignore"):
            torch.onnx.export(
                _LastStates(folder),
                _example(),
                path,
                input_names=["ids", "mask"],
                dynamic_shapes=(dynamic, dynamic),
                verbose=False,
            )
        settings = SessionOptions()
        settings.intra_op_num_threads = torch.get_num_threads()
        session = InferenceSession(path, settings)
    return _embed(folder, lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0])


def open_vino(folder: str, precision: str) -> Embed:
    """Embed with OpenVINO, its products in ``"float32"`` or ``"bfloat16"``."""
    with warnings.catch_warnings(action="ignore"):
        converted = openvino.convert_model(_LastStates(folder), example_input=_example())
    settings = {
        "INFERENCE_PRECISION_HINT": {"float32": "f32", "bfloat16": "bf16"}[precision],
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "PERFORMANCE_HINT": "LATENCY",  # one batch at a time on all threads
    }
    compiled = openvino.compile_model(converted, "CPU", settings)
    return _embed(folder, lambda ids, mask: compiled((ids, mask))[0])


def exported(fitted: BertTransformer, export_format: str, rows: list[str]) -> Embed:
    """Embed with ONNX Runtime or OpenVINO in int8, its scales chosen by these rows."""
    with tempfile.TemporaryDirectory() as made, warnings.catch_warnings(action="ignore"):
        folder = Path(made) / export_format
        fitted.export(folder, format=export_format, precision="int8", X=rows)
        return skbert.runtime.load(folder, threads=torch.get_num_threads()).transform


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(1000, 2000, (3, 7))
    return ids, torch.ones_like(ids)


def _embed(folder: str, states: States) -> Embed:
    tokenizer = AutoTokenizer.from_pretrained(folder)

    def embed(texts: list[str]) -> np.ndarray:
        encoded: Any = tokenizer(texts, truncation=True, max_length=512)["input_ids"]
        order = np.argsort([len(ids) for ids in encoded], kind="stable")
        vectors_of_texts: list[np.ndarray] = [np.empty(0)] * len(texts)
        for begin in range(0, len(order), BATCH_SIZE):
            rows = order[begin : begin + BATCH_SIZE]
            ids = np.zeros((len(rows), len(encoded[rows[-1]])), dtype=np.int64)
            for i, row in enumerate(rows):
                ids[i, : len(encoded[row])] = encoded[row]
            mask = (np.arange(ids.shape[1]) < [[len(encoded[row])] for row in rows]).astype(int)
            vectors = (states(ids, mask) * mask[:, :, None]).sum(axis=1)
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            for row, vector in zip(rows, vectors, strict=True):
                vectors_of_texts[row] = vector
        return np.stack(vectors_of_texts)

    return embed
