"""The engines that run an exported graph: ONNX Runtime and OpenVINO, on the CPU.

Depends on the library of the engine, which is imported when a graph is opened.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Literal, Protocol

import numpy as np

from skbert._arrays import Array
from skbert.exceptions import ModelError

__all__ = ["ENGINES", "Graph", "Precision"]

Precision = Literal["float32", "int8"]  # of the products of a graph


class Graph(Protocol):
    """An opened graph; several threads may run it."""

    files: ClassVar[tuple[str, ...]]

    def __init__(self, files: Mapping[str, bytes], threads: int | None) -> None:
        """Open the graph of the bytes of its files."""

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """The outputs for inputs by name, of which the graph takes those that it knows."""


class OnnxGraph:
    """A graph in ONNX Runtime."""

    files: ClassVar[tuple[str, ...]] = ("model.onnx",)

    def __init__(self, files: Mapping[str, bytes], threads: int | None) -> None:
        onnxruntime = _imported("onnxruntime", "onnxruntime")
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or 0
        options.log_severity_level = 3  # errors
        self._session = onnxruntime.InferenceSession(
            files["model.onnx"], options, providers=["CPUExecutionProvider"]
        )
        self._names = [each.name for each in self._session.get_inputs()]

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """The outputs for inputs by name."""
        (outputs,) = self._session.run(["outputs"], {name: inputs[name] for name in self._names})
        return np.asarray(outputs)


class OpenvinoGraph:
    """A graph in OpenVINO, with a request for each thread that runs it."""

    files: ClassVar[tuple[str, ...]] = ("model.xml", "model.bin")

    def __init__(self, files: Mapping[str, bytes], threads: int | None) -> None:
        openvino = _imported("openvino", "openvino")
        settings = {
            "PERFORMANCE_HINT": "LATENCY",
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": threads or 0,
        }
        core = openvino.Core()
        model = core.read_model(files["model.xml"], files["model.bin"])
        self._compiled = core.compile_model(model, "CPU", settings)
        self._names = [each.any_name for each in self._compiled.inputs]
        self._requests = threading.local()

    def run(self, inputs: Mapping[str, Array]) -> Array:
        """The outputs for inputs by name."""
        if not hasattr(self._requests, "own"):
            self._requests.own = self._compiled.create_infer_request()
        request = self._requests.own
        request.infer({name: inputs[name] for name in self._names})
        return np.array(request.get_output_tensor(0).data)  # the next run reuses its memory


ENGINES: dict[str, type[Graph]] = {"onnx": OnnxGraph, "openvino": OpenvinoGraph}


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ModelError(
            f"The folder was exported for {package}, which cannot be imported: {error}. Type "
            f"pip install {package}."
        ) from error
