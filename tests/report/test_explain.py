"""Explanations from hand-made plans: schema, neighbours, reasons, and texts that fit a terminal."""

from __future__ import annotations

import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from opfuse.decision import Decision, Ledger
from opfuse.ir.types import DType
from opfuse.plan.plan import Place, Value
from opfuse.report.explain import explain, neighbours

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "golden" / "report"


def _made_plans():  # type: ignore[no-untyped-def]
    spec = importlib.util.spec_from_file_location("made_plans", HERE / "made_plans.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["made_plans"] = module
    spec.loader.exec_module(module)
    return module


made = _made_plans()


def test_the_json_holds_what_the_schema_promises() -> None:
    data = json.loads(json.dumps(explain(made.small(host=True)).to_json()))
    assert data["schema"] == 1
    assert {"kernels", "boundaries", "bytes_moved", "peak_memory", "decisions"} <= set(data)
    for k in data["kernels"]:
        assert {"id", "name", "nodes", "provider", "predicted_s", "measured_s", "bytes", "flops"} <= set(k)
        assert k["measured_s"] is None
    for b in data["boundaries"]:
        assert {"between", "code", "reason", "facts"} <= set(b)
    assert data["bytes_moved"] == {"fused": 1_234_567, "unfused": 3_456_789}
    assert data["rewrites"] == {"fold_batch_norm": 2, "canonical_gelu": 1}, "refused rules do not count"
    assert data["host_steps"][0]["code"] == "no-structure"


def test_rewrites_that_did_not_happen_are_told_with_what_stood_in_the_way() -> None:
    model = made.small()
    undone = Decision("rewrite", "gelu", ("a", "b"), "undone", "ValueError: odd", "raised")
    near = Decision("near-miss", "rms_norm", ("n",), "refused", "eps is 1, not 2", "other-number")
    explanation = explain(made.Compiled(model.plan, Ledger([*model.ledger, undone, near, near])))
    assert [d.rule for d in explanation.not_rewritten] == ["fold_pad", "gelu", "rms_norm", "rms_norm"]
    text = explanation.text(100)
    assert "Near misses: 4 rewrites that did not happen" in text
    for rule, why in (("fold_pad", "the pad is reflecting"), ("gelu", "undone: ValueError: odd")):
        assert any(rule in line and why in line for line in text.splitlines())
    assert text.count("eps is 1, not 2") == 1, "equal reasons share a row"
    assert "Near misses" not in explain(made.Compiled(model.plan, Ledger())).text()


def test_kernel_ids_are_those_that_no_fuse_takes() -> None:
    model = made.small()
    kernels = explain(model).kernels
    assert [k.id for k in kernels] == [Decision("fusion", "kernel", k.nodes, "taken").id for k in model.plan.kernels]
    assert len({k.id for k in kernels}) == 3


def test_kernels_of_the_same_nodes_get_ids_of_their_own() -> None:
    model = made.small()
    first, second, third = model.plan.kernels
    plan = replace(model.plan, kernels=(first, replace(second, nodes=first.nodes), third))
    entries = explain(made.Compiled(plan, model.ledger)).kernels
    assert len({k.id for k in entries}) == 3
    assert entries[1].id.startswith(entries[0].id)


def test_every_pair_of_neighbours_has_one_boundary_and_its_own_reason() -> None:
    explanation = explain(made.small())
    ids = [k.id for k in explanation.kernels]
    pairs = {b.between: b for b in explanation.boundaries}
    assert set(pairs) == {(ids[0], ids[1]), (ids[0], ids[2]), (ids[1], ids[2])}
    assert pairs[ids[0], ids[1]].code == "row-not-in-tile"
    assert "between" not in pairs[ids[0], ids[1]].facts
    assert pairs[ids[0], ids[2]].code == "unrecorded", "a missing reason is said, not hidden"


def test_neighbours_are_found_through_views_and_despite_reused_memory() -> None:
    """k1 reads a reshape of what k0 makes; k2 writes over the same bytes; k3 reads those and, joined with d, b."""
    model = made.small()
    k = [made.kernel(n, f"k{n}", (f"n{n}",), reads, makes) for n, (reads, makes) in enumerate([
        (("x",), ("a",)), (("a_view",), ("b",)), (("b",), ("c",)), (("c",), ("d",)), (("b_and_d",), ("e",)),
    ])]  # fmt: skip
    values = tuple(Value(v, DType.F32, (8,), Place("arena", offset, 0, 32), (), holds) for v, offset, holds in [
        ("a", 0, ()), ("a_view", 0, ("a",)), ("b", 64, ()), ("c", 0, ()), ("d", 96, ()), ("b_and_d", 64, ("b", "d")),
    ])  # fmt: skip
    plan = replace(model.plan, kernels=tuple(k), values=values)
    pairs = [("k0", "k1"), ("k1", "k2"), ("k2", "k3"), ("k1", "k4"), ("k3", "k4")]
    assert [(a.name, b.name) for a, b in neighbours(plan)] == pairs


def test_what_is_joined_in_place_is_told_and_what_needs_a_copy() -> None:
    model = made.small()
    ledger = Ledger([
        *model.ledger,
        Decision("fusion", "in-place", ("cat_1",), "taken", "each part is written where it lies",
                 facts={"bytes_not_copied": 24576}),
        Decision("fusion", "in-place", ("cat_2",), "refused", "x is an input or a constant of the model", "part-given"),
    ])  # fmt: skip
    text = explain(made.Compiled(model.plan, ledger)).text(100)
    assert "Joined in place: 1 of 2 concatenations" in text
    (first,) = [line for line in text.splitlines() if "cat_1" in line]
    (second,) = [line for line in text.splitlines() if "cat_2" in line]
    assert "24.6 kB" in first and "x is an input" not in first
    assert "x is an input or a constant" in second
    assert "Joined in place" not in explain(model).text(100)


def test_measured_times_are_shown_once_they_are_there() -> None:
    assert "measured" not in explain(made.small()).text()
    assert explain(made.small(measured=True)).kernels[0].measured_s == 2e-5
    assert "20.0 µs" in explain(made.small(measured=True)).text()


def test_a_ledger_that_was_stored_explains_in_the_same_words() -> None:
    model = made.small(host=True)
    warm = made.Compiled(model.plan, Ledger.from_json(json.loads(json.dumps(model.ledger.to_json()))))
    assert explain(warm).text() == explain(model).text()
    assert explain(warm).to_json() == explain(model).to_json()


@pytest.mark.parametrize("width", [60, 80, 100, 120])
@pytest.mark.parametrize("kind", ["plain", "host", "measured"])
def test_no_line_is_wider_than_asked(width: int, kind: str) -> None:
    text = explain(made.small(host=kind == "host", measured=kind == "measured")).text(width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert not any(line != line.rstrip() for line in text.splitlines())


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_is_the_golden_one(width: int) -> None:
    golden = GOLDEN / f"explain_{width}.txt"
    assert explain(made.small(host=True)).text(width) == golden.read_text(encoding="utf-8")
