"""Recurrent operators beside the samples: shapes with symbols, refusals, and the form of a scan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from opfuse.ir.dims import Dim, symbol
from opfuse.ir.ops import Call, Operator, OperatorError, get, operators
from opfuse.ir.ops.gates import GATES, SIGMOID, TANH, activated
from opfuse.ir.scalar import Operand
from opfuse.ir.scan import Carried, Product, Scan
from opfuse.ir.structure import Access, Axis, Structure
from opfuse.ir.types import DType, TensorType
from tests.ir.structure_interpreter import interpret

T, B = symbol("T"), symbol("B")
STEPS = [o for o in operators().values() if o.scan is not None]


def f32(*shape: Dim) -> TensorType:
    return TensorType(DType.F32, shape)


def call(op: str, *types: TensorType | None, **attrs: object) -> Call:
    return Call(get(op).complete(attrs), types)


def test_shapes_with_symbols() -> None:
    lstm = call("lstm", f32(T, B, 5), f32(2, 28, 5), f32(2, 28, 7), activations=(SIGMOID, TANH, TANH) * 2,
                direction="bidirectional")  # fmt: skip
    assert get("lstm").infer(lstm) == (f32(T, 2, B, 7), f32(2, B, 7), f32(2, B, 7))
    gru = call("gru", f32(T, B, 5), f32(1, 21, 5), f32(1, 21, 7), activations=(SIGMOID, TANH))
    assert get("gru").infer(gru) == (f32(T, 1, B, 7), f32(1, B, 7))
    steps = call("lstm_steps", f32(T, B, 28), f32(4, 7, 7))
    assert get("lstm_steps").infer(steps) == (f32(T, B, 7), f32(B, 7), f32(B, 7))


@pytest.mark.parametrize(("types", "attrs", "text"), [
    ((f32(T, B, 5), f32(1, 28, 6), f32(1, 28, 7)), {}, "input 1"),
    ((f32(T, B, 5), f32(1, 28, 5), f32(1, 28, 7), f32(1, 28)), {}, "input 3"),
    ((f32(T, B, 5), f32(1, 28, 5), f32(1, 28, 7), None, None, f32(1, T, 7)), {}, "input 5"),
    ((f32(T, B, 5), f32(1, 28, 5), f32(1, 28, 7), None, f32(B)), {}, "lengths"),
    ((f32(T, B, 5), f32(1, 28, 5), f32(1, 28, 7)), {"direction": "both"}, "direction"),
    ((f32(T, B, 5), f32(1, 28, 5), f32(1, 28, 7)), {"activations": (TANH,)}, "3 activations"),
    ((f32(T, B, 5), f32(1, 28, 5), f32(1, 28, 7)), {"activations": (("swish", 0, 0),) * 3}, "swish"),
])  # fmt: skip
def test_refusals(types: tuple[TensorType | None, ...], attrs: dict[str, object], text: str) -> None:
    with pytest.raises(OperatorError, match=text):
        get("lstm").infer(call("lstm", *types, **{"activations": (SIGMOID, TANH, TANH), **attrs}))


def scan(op: str = "lstm_steps", **attrs: object) -> Scan:
    found = get(op).scan
    assert found is not None
    return found(call(op, f32(5, 3, 28), f32(4, 7, 7), None, f32(3, 7), f32(3, 7), **attrs))


@pytest.mark.parametrize("operator", STEPS, ids=lambda o: o.name)
def test_every_scan_is_well_formed_and_readable(operator: Operator) -> None:
    for sample in operator.samples:
        types = tuple(
            None if i is None else TensorType(DType.of(i.dtype), i.shape) if isinstance(i, np.ndarray) else f32(*i)
            for i in sample.inputs
        )
        assert operator.scan is not None
        found = operator.scan(Call(operator.complete(sample.attrs), types))
        found.check()
        assert len(found.results) == operator.output_count(sample.attrs)
        assert str(found).startswith("scan t<")


def test_a_scan_that_reads_what_is_not_made_yet_is_refused() -> None:
    s = scan()
    last = len(s.values) - 1
    with pytest.raises(ValueError, match="made later"):
        replace(s, values=(*s.values[:2], Operand(last, DType.F32), *s.values[3:])).check()
    (first, *_) = (k for k, v in enumerate(s.values) if isinstance(v, Product))
    wrong = replace(s.values[first], value=last)
    with pytest.raises(ValueError, match="earlier value"):
        replace(s, values=(*s.values[:first], wrong, *s.values[first + 1 :])).check()
    with pytest.raises(ValueError, match="not carried"):
        replace(s, results=(replace(s.results[0], last=True),)).check()


def test_reverse_reads_and_writes_from_the_last_step_on() -> None:
    s = scan(reverse=True)
    assert str(s.results[0].index[0]) == "-t+4"
    assert sum(isinstance(v, Carried) for v in s.values) == 2


@pytest.mark.parametrize("name", GATES)
def test_formula_and_array_of_each_activation_agree(name: str) -> None:
    x = np.array([-30, -2, -0.7, -0.2, 0, 0.2, 0.7, 2, 30, np.inf, -np.inf, np.nan])
    i = Axis("i", x.size)
    formula = activated((name, 0.7, 0.2), Operand(0, DType.F64), None)
    with np.errstate(all="ignore"):
        found = interpret(Structure((i,), (Access(0, (i.index,)),), formula), [x])
        np.testing.assert_allclose(found, GATES[name].array(x, 0.7, 0.2), rtol=1e-12, atol=1e-14)
