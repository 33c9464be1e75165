"""The order in which axes are resized: gathered rows come when there are few of them."""

from __future__ import annotations

import onnx.parser
import pytest

from opfuse.frontends.onnx.load import load


@pytest.mark.parametrize(
    ("sizes", "order"),
    [("1, 2, 8, 10", [3, 2]), ("1, 2, 2, 3", [2, 3]), ("1, 2, 2, 10", [2, 3]), ("1, 2, 8, 3", [3, 2]),
     ("1, 4, 2, 10", [2, 3, 1]), ("1, 2, 4, 10", [3])],
)  # fmt: skip
def test_order_of_axes(sizes: str, order: list[int]) -> None:
    text = f"""<ir_version: 8, opset_import: ["": 13]>
    g (float[1, 2, 4, 5] x) => (float[a, b, c, d] y) <int64[4] z = {{{sizes}}}>
    {{ y = Resize <mode = "linear"> (x, "", "", z) }}"""
    graph = load(onnx.parser.parse_model(text).SerializeToString())
    assert [n.attrs["axes"] for n in graph.nodes.values() if n.op == "resample"] == [(axis,) for axis in order]
