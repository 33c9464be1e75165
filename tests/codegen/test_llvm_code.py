"""The machine code itself: no spilled accumulators, no call of a library, the same object each time; hoisting."""

from __future__ import annotations

import re

import pytest

from opfuse.codegen.llvm.emit import Emit, Int
from opfuse.codegen.llvm.jit import CompileError, assemble, assembly, compile_object, load_object
from opfuse.codegen.llvm.printer import print_program
from opfuse.target import Target, host
from opfuse.tile.program import Program
from opfuse.tile.schedule import Packing, Schedule
from tests.codegen.native import target_of
from tests.tile.case import Case
from tests.tile.regions import CASES, FUNCTION_CASES
from tests.tile.regions_matrix import linear_gelu
from tests.tile.regions_windows import conv


def module(program: Program, schedule: Schedule, target: Target) -> str:
    printed = print_program(program, schedule, target, "kernel")
    assert isinstance(printed, tuple), printed
    return assemble([p.text for p in printed], target)


def inner_loops(text: str, products: int) -> list[str]:
    """From a label to the first jump, where that holds at least so many multiply-adds."""
    blocks = [block.split("\tj")[0] for block in re.split(r"^\.L\w+:", text, flags=re.MULTILINE)]
    return [block for block in blocks if block.count("vfmadd231") >= products]


@pytest.mark.parametrize("register", [(6, 4), (14, 2)])
def test_the_microkernels_keep_their_accumulators_in_registers(register: tuple[int, int]) -> None:
    target, panel = target_of("avx512"), 16 * register[1]
    product = Schedule({"m": 192, "n": panel, "k": 4}, register=register, pack={"W": Packing(1, panel)})
    window = Schedule(
        {"b": 1, "oh": 1, "ow": 56, "c": 4, "oc": panel}, register=register, pack={"Wt": Packing(3, panel)}
    )
    for program, schedule in ((linear_gelu(768, 768), product), (conv(56, 56, 64, 64), window)):
        text = assembly(module(program, schedule, target), target)
        loops = inner_loops(text, 4 * register[0] * register[1])
        assert loops
        # A row pointer of a padded window may be read back from the stack; a vector may not.
        assert not [line for loop in loops for line in loop.splitlines() if "%rsp" in line and "%zmm" in line]


@pytest.mark.parametrize("isa", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("case", (*CASES[::6], *FUNCTION_CASES[::4]), ids=str)
def test_no_library_is_called(case: Case, isa: str) -> None:
    target = target_of(isa)
    printed = print_program(case.program, case.cpu[0], target, "kernel")
    if not isinstance(printed, tuple):
        pytest.skip(printed.text)
    text = assembly(assemble([p.text for p in printed], target), target)
    assert re.findall(r"^\s+(?:call|jmp)q?\s+[^.\s*%].*$", text, re.MULTILINE) == []


def test_an_object_is_the_same_each_time() -> None:
    target = host()
    text = module(linear_gelu(64, 64), Schedule({"m": 24, "n": 64, "k": 4}), target)
    assert compile_object(text, target) == compile_object(text, target)


def test_errors_of_the_generator_are_named() -> None:
    with pytest.raises(CompileError, match="expected"):
        compile_object("define void @f( {", host())
    with pytest.raises(ValueError, match="object"):
        load_object(b"nothing")
    library = load_object(compile_object(assemble(["define void @f() { ret void }"], host()), host()))
    assert library.address("f")
    with pytest.raises(KeyError):
        library.address("g")


def test_what_functions_declare_in_common_is_declared_once() -> None:
    one = "declare i32 @getpid()\ndefine i32 @a() { %x = call i32 @getpid()\n ret i32 %x }"
    text = assemble([one, one.replace("@a", "@b")], host())
    assert text.count("declare i32 @getpid()") == 1
    assert load_object(compile_object(text, host())).address("b")


def test_index_arithmetic_stands_in_the_outermost_scope() -> None:
    e = Emit()
    n = Int("%n", 0)
    seen: list[Int | int] = []

    def outer(i: Int | int, carried: list[object]) -> list[object]:
        def inner(j: Int | int, again: list[object]) -> list[object]:
            seen.extend((e.mul(n, 12), e.mul(i, 8), e.add(e.mul(i, 8), j)))
            return again

        e.loop(0, n, 1, [], inner)  # type: ignore[arg-type]
        return carried

    e.loop(0, n, 1, [], outer)  # type: ignore[arg-type]
    assert [x.depth for x in seen if isinstance(x, Int)] == [0, 1, 2]
    assert [x.multiple for x in seen if isinstance(x, Int)] == [12, 8, 1]
    assert e.mul(n, 12) == seen[0]  # made once
    assert e.function("f", ["i64 %n"]).index("mul nsw i64 %n, 12") < e.function("f", ["i64 %n"]).index("phi")


def test_known_numbers_are_folded() -> None:
    e = Emit()
    n = Int("%n", 0, 64)
    assert e.add(3, 4) == 7 and e.mul(n, 0) == 0 and e.rem(n, 16) == 0 and e.div(7, 0) == 7
    assert e.add(n, 0) is n and e.mul(n, 1) is n and e.least(3, 5) == 3
    assert e.loop(0, 0, 4, [], lambda i, c: pytest.fail("a loop of no trips has no body")) == []
