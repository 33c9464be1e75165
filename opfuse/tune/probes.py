"""Small native kernels whose speed says what a machine can do, as LLVM IR text.

    text = "\\n".join(functions(Shape(lanes=16, registers=32, fused=True)))

Every function returns an i64 that is 0 (the barrier: 1 where it gave up) and repeats its work as often as its last
argument says, so that the clock stands outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

STREAM_VECTORS = 4  # vectors of one step of probe_scale and probe_chain
CHAIN_OPERATIONS = 10  # element operations of probe_chain
HALF, QUARTER = "splat (float 0.5)", "splat (float 0.25)"
AHEAD = 4096  # bytes of probe_scale_ahead's prefetch
SPINS = 20_000_000  # of a barrier that waits: about half a second


@dataclass(frozen=True)
class Shape:
    """A target as the probes see it: fp32 lanes of a vector, vector registers, fused multiply-add or not."""

    lanes: int
    registers: int
    fused: bool

    @property
    def vectors(self) -> int:
        return 4 if self.registers >= 32 else 2

    @property
    def rows(self) -> int:
        return 6 if self.fused else 4

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    @property
    def vector(self) -> str:
        return f"<{self.lanes} x float>"

    def multiply_add(self, a: str, b: str, c: str) -> str:
        vector = self.vector
        return f"call {vector} @{self.intrinsic}({vector} {a}, {vector} {b}, {vector} {c})"

    @property
    def intrinsic(self) -> str:
        """Where there is no fused instruction, one that may be split into two."""
        return f"llvm.{'fma' if self.fused else 'fmuladd'}.v{self.lanes}f32"


def functions(shape: Shape) -> list[str]:
    return [declarations(shape), scale(shape), scale(shape, AHEAD), chain(shape), gemm(shape), STEPS, CALL, BARRIER]


def declarations(shape: Shape) -> str:
    vector = shape.vector
    return f"""declare {vector} @{shape.intrinsic}({vector}, {vector}, {vector})
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"""


def scale(shape: Shape, ahead: int = 0) -> str:
    """x[i] = x[i] * c over `count` steps: one read and one write of every byte; prefetched `ahead` bytes if any."""

    def body(v: int) -> tuple[list[str], str]:
        lines = [f"%s{v} = fmul {shape.vector} %x{v}, {HALF}"]
        if ahead:
            lines.append(f"%f{v} = getelementptr i8, ptr %p{v}, i64 {ahead}")
            lines.append(f"call void @llvm.prefetch.p0(ptr %f{v}, i32 0, i32 3, i32 1)")
        return lines, f"%s{v}"

    return stream(shape, "probe_scale_ahead" if ahead else "probe_scale", body)


def chain(shape: Shape) -> str:
    """Ten simple operations on every element, each on the result of the one before: multiply and add by turns."""

    def body(v: int) -> tuple[list[str], str]:
        lines, value = [], f"%x{v}"
        for k in range(CHAIN_OPERATIONS // 2):
            lines += [
                f"%m{v}_{k} = fmul {shape.vector} {value}, {HALF}",
                f"%a{v}_{k} = fadd {shape.vector} %m{v}_{k}, {QUARTER}",
            ]
            value = f"%a{v}_{k}"
        return lines, value

    return stream(shape, "probe_chain", body)


def stream(shape: Shape, name: str, body: Callable[[int], tuple[list[str], str]]) -> str:
    """`passes` times over `count` steps of STREAM_VECTORS vectors, each loaded, changed and stored in place.

    `body(v)` makes the lines for vector v, loaded as %x{v}, and says what is stored.
    """
    vector, size = shape.vector, shape.lanes * 4
    lines: list[str] = []
    for v in range(STREAM_VECTORS):
        lines.append(f"%p{v} = getelementptr i8, ptr %p, i64 {v * size}")
        lines.append(f"%x{v} = load {vector}, ptr %p{v}, align {size}")
    stores = []
    for v in range(STREAM_VECTORS):
        inner, result = body(v)
        lines += inner
        stores.append(f"store {vector} {result}, ptr %p{v}, align {size}")
    text = "\n  ".join([*lines, *stores])
    return f"""define i64 @{name}(ptr %x, i64 %count, i64 %passes) {{
entry:
  br label %pass
pass:
  %n = phi i64 [0, %entry], [%n1, %next]
  br label %step
step:
  %i = phi i64 [0, %pass], [%i1, %step]
  %o = mul i64 %i, {STREAM_VECTORS * size}
  %p = getelementptr i8, ptr %x, i64 %o
  {text}
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %step, label %next
next:
  %n1 = add i64 %n, 1
  %again = icmp slt i64 %n1, %passes
  br i1 %again, label %pass, label %end
end:
  ret i64 0
}}"""


def gemm(shape: Shape) -> str:
    """C = A B, A [k][rows], B [k][columns], C in registers: what a matrix kernel's inner loop does."""
    vector, size, cells = shape.vector, shape.lanes * 4, list(accumulators(shape))
    zeros = "\n  ".join(f"%c{r}_{v} = phi {vector} [zeroinitializer, %pass], [%d{r}_{v}, %step]" for r, v in cells)
    lines = [f"%bp{v} = getelementptr i8, ptr %b1, i64 {v * size}\n  %bv{v} = load {vector}, ptr %bp{v}, align {size}"
             for v in range(shape.vectors)]  # fmt: skip
    for r in range(shape.rows):
        lines += [
            f"%ap{r} = getelementptr i8, ptr %a1, i64 {4 * r}", f"%as{r} = load float, ptr %ap{r}, align 4",
            f"%ai{r} = insertelement {vector} poison, float %as{r}, i32 0",
            f"%av{r} = shufflevector {vector} %ai{r}, {vector} poison, <{shape.lanes} x i32> zeroinitializer",
        ]  # fmt: skip
        lines += [f"%d{r}_{v} = {shape.multiply_add(f'%av{r}', f'%bv{v}', f'%c{r}_{v}')}" for v in range(shape.vectors)]
    stores = "\n  ".join(
        f"%q{r}_{v} = getelementptr i8, ptr %c, i64 {(r * shape.vectors + v) * size}\n"
        f"  store {vector} %d{r}_{v}, ptr %q{r}_{v}, align {size}"
        for r, v in cells
    )
    body = "\n  ".join(lines)
    return f"""define i64 @probe_gemm(ptr noalias %a, ptr noalias %b, ptr noalias %c, i64 %k, i64 %repeats) {{
entry:
  br label %pass
pass:
  %n = phi i64 [0, %entry], [%n1, %next]
  br label %step
step:
  %i = phi i64 [0, %pass], [%i1, %step]
  {zeros}
  %ao = mul i64 %i, {4 * shape.rows}
  %a1 = getelementptr i8, ptr %a, i64 %ao
  %bo = mul i64 %i, {4 * shape.columns}
  %b1 = getelementptr i8, ptr %b, i64 %bo
  {body}
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %k
  br i1 %more, label %step, label %next
next:
  {stores}
  %n1 = add i64 %n, 1
  %again = icmp slt i64 %n1, %repeats
  br i1 %again, label %pass, label %end
end:
  ret i64 0
}}"""


def accumulators(shape: Shape) -> Iterator[tuple[int, int]]:
    for r in range(shape.rows):
        for v in range(shape.vectors):
            yield r, v


# A step of a plan on one thread: an indirect call of a function that has nothing to do.
STEPS = """define internal void @probe_nothing(ptr %x) noinline {
  store volatile i64 0, ptr %x
  ret void
}
define i64 @probe_steps(i64 %count) {
entry:
  %cell = alloca ptr
  %spare = alloca i64
  store volatile ptr @probe_nothing, ptr %cell
  br label %step
step:
  %i = phi i64 [0, %entry], [%i1, %step]
  %f = load volatile ptr, ptr %cell
  call void %f(ptr %spare)
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %count
  br i1 %more, label %step, label %end
end:
  ret i64 0
}"""

CALL = """define i64 @probe_call(ptr %x) {
  ret i64 0
}"""

# A barrier as workers meet it: the last to come resets the count and moves the generation on, the others spin.
BARRIER = f"""define i64 @probe_barrier(ptr %counter, i64 %threads, i64 %rounds) {{
entry:
  %generation = getelementptr i8, ptr %counter, i64 64
  br label %round
round:
  %i = phi i64 [0, %entry], [%i1, %passed]
  %g = load atomic i64, ptr %generation acquire, align 8
  %before = atomicrmw add ptr %counter, i64 1 acq_rel
  %arrived = add i64 %before, 1
  %last = icmp eq i64 %arrived, %threads
  br i1 %last, label %open, label %spin
open:
  store atomic i64 0, ptr %counter monotonic, align 8
  %0 = atomicrmw add ptr %generation, i64 1 release
  br label %passed
spin:
  %s = phi i64 [0, %round], [%s1, %wait]
  %now = load atomic i64, ptr %generation acquire, align 8
  %moved = icmp ne i64 %now, %g
  br i1 %moved, label %passed, label %wait
wait:
  %s1 = add i64 %s, 1
  %patient = icmp slt i64 %s1, {SPINS}
  br i1 %patient, label %spin, label %lost
passed:
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, %rounds
  br i1 %more, label %round, label %end
lost:
  ret i64 1
end:
  ret i64 0
}}"""
