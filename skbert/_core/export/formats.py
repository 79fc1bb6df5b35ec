"""A network as the files of a graph, for ONNX Runtime or OpenVINO, in float32 or int8.

Depends on the graph and on how it is quantised; onnx and the engines are imported when files are
written.
"""

from __future__ import annotations

import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from skbert._core.export.engines import ENGINES, Precision
from skbert._core.export.graph import write_onnx
from skbert._core.items import Items
from skbert._core.models.network import Network
from skbert.exceptions import ModelError

__all__ = ["Format", "check_installed", "graph_files"]

Format = Literal["onnx", "openvino"]

_NEEDED = ("onnx", "onnxruntime", "onnxscript")  # to write a graph, and to quantise it
_PROTOBUF_BYTES = 2**31 - 1  # in a file of ONNX


def check_installed(format: Format) -> None:  # noqa: A002 - as users name it
    """Refuse to export without the libraries that write and run a graph."""
    needed = {*_NEEDED, format}
    absent = sorted(name for name in needed if find_spec(name) is None)
    if absent:
        raise ModelError(
            f"Exporting for format={format!r} needs {', '.join(absent)}, not installed here. Type "
            f"pip install 'skbert[{format}]'."
        )


def graph_files(
    network: Network, format: Format, precision: Precision, items: Items | None  # noqa: A002
) -> dict[str, bytes]:  # fmt: skip
    """The files of a network's graph, which is quantised by what it computes for items."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "model.onnx"
        write_onnx(network, path)
        if precision == "int8":
            from skbert._core.export.int8 import quantize

            assert items is not None, "int8 is never asked for without rows"
            quantize(path, items, equal_lengths=network.family.mixes_neighbours)
        if format == "openvino":
            _convert(path)
        else:
            _put_together(path)
        return {name: (Path(scratch) / name).read_bytes() for name in ENGINES[format].files}


def _put_together(path: Path) -> None:
    """Write a graph whose weights lie in a file beside it as one file."""
    import onnx

    beside = path.with_name(f"{path.name}.data")
    if not beside.exists():
        return
    if beside.stat().st_size + path.stat().st_size > _PROTOBUF_BYTES:
        raise ModelError(
            f"The weights take more than the {_PROTOBUF_BYTES} bytes that a file of ONNX may"
            " hold. Use format='openvino', or a smaller model."
        )
    onnx.save(onnx.load(path), path)


def _convert(path: Path) -> None:
    """Write a graph of ONNX as one of OpenVINO beside it, with weights of the same type."""
    import openvino

    model = openvino.Core().read_model(path)
    openvino.save_model(model, path.with_suffix(".xml"), compress_to_fp16=False)
