"""Products in int8 whose sums are the largest there are, on this processor and on any other."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.items import make_items

from skbert._core.export.engines import ENGINES
from skbert._core.export.formats import _convert, _put_together
from skbert._core.export.int8 import quantize
from skbert._core.export.rows import padded_batches

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")


def write_product(path: Path, table: np.ndarray, weights: np.ndarray) -> None:
    """A graph of one product: the rows of a table by their ids, times weights."""
    from onnx import TensorProto, helper, numpy_helper

    ids, mask = (
        helper.make_tensor_value_info(name, TensorProto.INT64, ["rows", "length"])
        for name in ("input_ids", "attention_mask")
    )
    outputs = helper.make_tensor_value_info("outputs", TensorProto.FLOAT, ["rows", "length", None])
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["table", "input_ids"], ["read"]),
            helper.make_node("MatMul", ["read", "weights"], ["outputs"]),
        ],
        "product", [ids, mask], [outputs],
        [numpy_helper.from_array(table, "table"), numpy_helper.from_array(weights, "weights")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("engine", ["onnx", "openvino"])
def test_the_largest_sums_are_exact(engine: str, sign: int, tmp_path: Path) -> None:
    pytest.importorskip("openvino" if engine == "openvino" else "onnxruntime")
    rng = np.random.default_rng(0)
    table = np.concatenate([rng.random((7, 65)), np.ones((1, 65))]).astype(np.float32)
    weights = (sign * rng.uniform(0.9, 1, (65, 32))).astype(np.float32)
    path = tmp_path / "model.onnx"
    write_product(path, table, weights)
    items = make_items([8])
    quantize(path, items, equal_lengths=False)
    (_convert if engine == "openvino" else _put_together)(path)
    files = {name: (tmp_path / name).read_bytes() for name in ENGINES[engine].files}
    graph = ENGINES[engine](files, 1)
    for _, inputs in padded_batches(items):
        expected = table[inputs["input_ids"]] @ weights
        np.testing.assert_allclose(graph.run(inputs), expected, rtol=0.02)


def test_no_two_products_leave_sixteen_bits(tmp_path: Path) -> None:
    from onnx import numpy_helper

    rng = np.random.default_rng(1)
    table, weights = rng.normal(size=(8, 33)), rng.normal(size=(33, 200))
    path = tmp_path / "model.onnx"
    write_product(path, table.astype(np.float32), weights.astype(np.float32))
    quantize(path, make_items([8]), equal_lengths=False)
    (rounded,) = (
        numpy_helper.to_array(each).astype(np.int64)
        for each in onnx.load(path).graph.initializer
        if each.data_type == onnx.TensorProto.INT8
    )
    pairs = np.pad(rounded, [(0, 1), (0, 0)]).reshape(-1, 2, 200)
    sums = [np.maximum(sign * pairs, 0).sum(axis=1).max(axis=0) for sign in (1, -1)]
    assert np.max(sums) * 255 < 2**15
    assert np.max(sums, axis=0).min() >= 126  # no bit is given away
