"""Matrix products of a graph in int8, with scales chosen by what the graph computes for rows.

Each output of a product has a scale of its weights, and each product one of its inputs. Some of
these inputs have a few numbers far larger than the others, for which one scale is too coarse: each
is divided by a number of its own first, and its weights are multiplied by it (SmoothQuant, Xiao et
al. 2022). Depends on onnx and onnxruntime; needs no torch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from skbert._arrays import FloatArray, IntArray
from skbert._core.export.rows import padded_batches
from skbert._core.items import Items

if TYPE_CHECKING:
    from onnx import GraphProto, ModelProto, NodeProto, TensorProto

__all__ = ["calibration_rows", "quantize"]

_ROWS = 512  # by which scales are chosen
_SHARE = 0.8  # of the differences in size among inputs that go over to their weights
_LARGEST = 127  # of int8
_TINY = np.finfo(np.float32).tiny


class _Range(NamedTuple):
    """The least and the most of each number of an input, ``(n_inputs,)``."""

    least: FloatArray
    most: FloatArray


def calibration_rows(n_rows: int) -> IntArray:
    """The rows by which scales are chosen: all, or some that are spread over them."""
    return np.unique(np.linspace(0, n_rows - 1, _ROWS).astype(np.int64))


def quantize(path: Path, items: Items, *, equal_lengths: bool) -> None:
    """Quantise the products of a graph in a file of ONNX with weights."""
    import onnx

    model = onnx.load(path)
    graph = model.graph
    weights = {w.name: w for w in graph.initializer if len(w.dims) == 2}
    products = [node for node in graph.node if _is_product(node, weights)]
    read_by: dict[str, list[NodeProto]] = {}
    for node in products:
        read_by.setdefault(node.input[0], []).append(node)
    ranges = _ranges(model, list(read_by), items, equal_lengths=equal_lengths)
    before = {
        nodes[0].output[0]: list(_quantized(graph, weights, nodes, ranges[name]))
        for name, nodes in read_by.items()
    }
    ordered = [part for node in graph.node for part in (*before.get(node.output[0], ()), node)]
    del graph.node[:]
    graph.node.extend(ordered)
    read = {name for node in ordered for name in node.input}
    for name in weights.keys() - read:
        graph.initializer.remove(weights[name])
    beside = path.with_name(f"{path.name}.data")  # as a message of protobuf holds 2 GiB at most
    beside.unlink(missing_ok=True)  # which onnx would add to
    onnx.save(model, path, save_as_external_data=True, location=beside.name)


def _is_product(node: NodeProto, weights: Mapping[str, TensorProto]) -> bool:
    return node.op_type == "MatMul" and node.input[1] in weights


def _ranges(
    model: ModelProto, names: list[str], items: Items, *, equal_lengths: bool
) -> dict[str, _Range]:
    """The range of each input by name, over the tokens of at most so many rows."""
    import onnx
    import onnxruntime

    watched = onnx.ModelProto()
    watched.CopyFrom(model)
    del watched.graph.output[:]
    watched.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "watched.onnx"
        onnx.save(watched, path, save_as_external_data=True, location="weights")
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    taken = [each.name for each in session.get_inputs()]
    rows = items.by_row()
    some = rows.take(calibration_rows(len(rows)))
    ranges: dict[str, _Range] = {}
    for _, inputs in padded_batches(some, equal_lengths=equal_lengths):
        is_token = inputs["attention_mask"] == 1
        computed = session.run(names, {name: inputs[name] for name in taken})
        for name, values in zip(names, computed, strict=True):
            tokens = values[is_token] if values.shape[:2] == is_token.shape else values
            flat = tokens.reshape(-1, values.shape[-1])
            known = ranges.get(name, _Range(flat[0], flat[0]))
            ranges[name] = _Range(
                np.minimum(known.least, flat.min(axis=0)), np.maximum(known.most, flat.max(axis=0))
            )
    return ranges


def _quantized(
    graph: GraphProto, weights: Mapping[str, TensorProto], nodes: list[NodeProto], span: _Range
) -> Iterator[NodeProto]:
    """The nodes to run before these, which read the same input; they read int8 from now on."""
    from onnx import numpy_helper

    def add(name: str, value: object) -> str:
        graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    name = nodes[0].input[0]
    matrices = [numpy_helper.to_array(weights[node.input[1]]) for node in nodes]
    factors = _factors(span, matrices)
    least, most = (min(0.0, (span.least / factors).min()), max(0.0, (span.most / factors).max()))
    scale = max((most - least) / 255, _TINY)
    yield _node("Mul", [name, add(f"{name}/factors", 1 / factors)], f"{name}/even")
    scales = [add(f"{name}/scale", np.float32(scale)),
              add(f"{name}/zero", np.uint8(np.round(-least / scale)))]  # fmt: skip
    yield _node("QuantizeLinear", [f"{name}/even", *scales], f"{name}/uint8")
    yield _node("DequantizeLinear", [f"{name}/uint8", *scales], f"{name}/rounded")
    for node, matrix in zip(nodes, matrices, strict=True):
        own, scaled = f"{node.output[0]}/weight", matrix * factors[:, None]
        sizes = np.maximum(_largest(scaled) / _LARGEST, _TINY)
        rounded = [add(f"{own}/int8", np.round(scaled / sizes).astype(np.int8)),
                   add(f"{own}/scale", sizes)]  # fmt: skip
        yield _node("DequantizeLinear", rounded, own, axis=1)
        node.input[:] = [f"{name}/rounded", own]


def _largest(weights: FloatArray) -> FloatArray:
    """The largest sum of two neighbouring weights of one sign, of each output.

    Processors without VNNI add up two products of 8 bits in 16: 255 times the sum of two weights,
    which therefore stays below 129 after rounding.
    """
    pairs = np.arange(0, len(weights), 2)
    signs = (np.maximum(weights, 0), np.maximum(-weights, 0))
    sums = [np.add.reduceat(each, pairs, axis=0).max(axis=0) for each in signs]
    return np.asarray(np.maximum(*sums))


def _factors(span: _Range, matrices: list[FloatArray]) -> FloatArray:
    """What each number of an input is divided by, and its weights are multiplied by."""
    of_inputs: FloatArray = np.maximum(np.abs(span.least), np.abs(span.most))
    of_weights = np.max([np.abs(matrix).max(axis=1) for matrix in matrices], axis=0)
    is_read = (of_inputs > 0) & (of_weights > 0)
    factors = np.ones_like(of_inputs)
    np.divide(of_inputs**_SHARE, of_weights ** (1 - _SHARE), out=factors, where=is_read)
    return np.asarray(np.maximum(factors, factors.max() * 1e-4))


def _node(kind: str, inputs: list[str], output: str, axis: int | None = None) -> NodeProto:
    from onnx import helper

    node = helper.make_node(kind, inputs, [output])
    if axis is not None:
        node.attribute.append(helper.make_attribute("axis", axis))
    return node
