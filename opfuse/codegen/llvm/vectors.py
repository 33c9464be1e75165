"""Vector instructions for every element type: constants, arithmetic, comparison, conversion, lane shuffles.

The width is a parameter (`lanes`), the same for all types of one pass: a vector of 16 doubles is two registers, and
LLVM splits it. What differs between instruction sets stands here: a multiply-add is fused only where the CPU has one,
and rounding is spelled out where LLVM would call the C library.

    v.binary("add", x, y);  v.select(v.compare("lt", x, y), x, y);  v.convert(x, DType.I32)
"""

from __future__ import annotations

from collections.abc import Callable

from opfuse.codegen.llvm.emit import HELD, Value
from opfuse.codegen.llvm.lanes import Lanes
from opfuse.ir.types import DType

HALVES = (DType.F16, DType.BF16)
# Each rounds by itself, so that an operator gives the same bits in every kernel, and x*x - y*y is not negative where
# x = y. Sums of products that one operator makes call `fma`.
FLOAT_OPS = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
INT_OPS = {"add": "add", "sub": "sub", "mul": "mul"}
FLOAT_COMPARE = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}


class Vectors(Lanes):
    """Emits vector instructions into a function."""

    # ---- arithmetic ------------------------------------------------------------------------------------------------
    def op(self, instruction: str, a: Value, b: Value) -> Value:
        return self.e.value(f"{instruction} {a}, {b.text}", a.dtype, a.lanes)

    def intrinsic(self, name: str, *args: Value, dtype: DType | None = None) -> Value:
        """A call of an overloaded LLVM intrinsic, `llvm.NAME` of the type of the first argument."""
        result = Value("", dtype or args[0].dtype, args[0].lanes)
        suffix = f"v{args[0].lanes}{_SUFFIX[HELD[args[0].dtype]]}"
        call = f"call {result.type} @llvm.{name}.{suffix}({', '.join(map(str, args))})"
        return self.e.value(call, result.dtype, result.lanes)

    def binary(self, name: str, a: Value, b: Value) -> Value:
        return self.rounded(self.op((FLOAT_OPS if a.dtype.is_float else INT_OPS)[name], a, b))

    def add(self, a: Value, b: Value) -> Value:
        return self.op("fadd" if a.dtype.is_float else "add", a, b)

    def sub(self, a: Value, b: Value) -> Value:
        return self.op("fsub" if a.dtype.is_float else "sub", a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return self.op("fmul" if a.dtype.is_float else "mul", a, b)

    def div(self, a: Value, b: Value) -> Value:
        return self.op("fdiv", a, b)

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once where the CPU has the instruction."""
        if not a.dtype.is_float or self.isa == "plain":
            return self.add(self.mul(a, b), c)
        return self.intrinsic("fma", a, b, c)

    def product_error(self, a: Value, b: Value, product: Value) -> Value:
        """a * b - product, exactly, where product is a * b rounded (Dekker's product where there is no fused one)."""
        if self.isa != "plain":
            return self.intrinsic("fma", a, b, self.negative(product))
        (a1, a2), (b1, b2) = self._halves(a), self._halves(b)
        error = self.add(self.sub(self.mul(a1, b1), product), self.add(self.mul(a1, b2), self.mul(a2, b1)))
        return self.add(error, self.mul(a2, b2))

    def left_of(self, a: Value, q: Value, b: Value) -> Value:
        """a - q * b, exactly where q is a quotient a / b rounded to an integer of no more than its digits."""
        if self.isa != "plain":
            return self.intrinsic("fma", self.negative(q), b, a)
        product = self.mul(q, b)
        return self.sub(self.sub(a, product), self.product_error(q, b, product))

    def _halves(self, x: Value) -> tuple[Value, Value]:
        """x as a sum of two numbers with half of its digits each: the first rounded, so that the rest has a sign."""
        wide, low = (DType.I64, 27) if x.dtype is DType.F64 else (DType.I32, 12)
        n = self.bits(x, wide)
        n = self.add(n, self.like(1 << (low - 1), n))
        top = self.bits(self.logic("and", n, self.like(-(1 << low), n)), x.dtype)
        return top, self.sub(x, top)

    def horner(self, coefficients: tuple[float, ...], x: Value) -> Value:
        """c0 + x * (c1 + x * (c2 + ...))"""
        total = self.like(coefficients[-1], x)
        for c in coefficients[-2::-1]:
            total = self.fma(total, x, self.like(c, x))
        return total

    def negative(self, a: Value) -> Value:
        return self.e.value(f"fneg {a}", a.dtype, a.lanes) if a.dtype.is_float else self.sub(self.like(0, a), a)

    def absolute(self, a: Value) -> Value:
        if a.dtype.is_float:
            return self.intrinsic("fabs", a)
        return a if not a.dtype.is_signed else self.select(self.compare("lt", a, self.like(0, a)), self.negative(a), a)

    def logic(self, op: str, a: Value, b: Value) -> Value:
        """and, or, xor, shl, lshr, ashr on integers and masks."""
        return self.op(op, a, b)

    def complement(self, a: Value) -> Value:
        return self.op("xor", a, self.const(True if a.dtype is DType.BOOL else -1, a.dtype, a.lanes))

    def compare(self, name: str, a: Value, b: Value) -> Value:
        if a.dtype.is_float:
            test = f"fcmp {FLOAT_COMPARE[name]}"
        elif name in ("eq", "ne"):
            test = f"icmp {name}"
        else:
            test = f"icmp {'s' if a.dtype.is_signed else 'u'}{name}"
        return self.e.value(f"{test} {a}, {b.text}", DType.BOOL, a.lanes)

    def unordered(self, a: Value) -> Value:
        return self.e.value(f"fcmp uno {a}, {a.text}", DType.BOOL, a.lanes)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.e.value(f"select {condition}, {a}, {b}", a.dtype, a.lanes)

    def maximum(self, a: Value, b: Value, smaller: bool = False) -> Value:
        """NaN where either is NaN. The select of an ordered comparison is one instruction, and gives b then."""
        if a.dtype is DType.BOOL:
            return self.op("and" if smaller else "or", a, b)
        larger = self.select(self.compare("lt" if smaller else "gt", a, b), a, b)
        return self.select(self.unordered(a), a, larger) if a.dtype.is_float else larger

    def minimum(self, a: Value, b: Value) -> Value:
        return self.maximum(a, b, smaller=True)

    def clamp(self, x: Value, lo: float, hi: float) -> Value:
        """Into [lo, hi]; NaN stays NaN."""
        low, high = self.like(lo, x), self.like(hi, x)
        x = self.select(self.compare("lt", x, low), low, x)
        return self.select(self.compare("gt", x, high), high, x)

    def combine(self, how: str, a: Value, b: Value) -> Value:
        """One step of a reduction."""
        match how:
            case "sum":
                return self.rounded(self.add(a, b))
            case "prod":
                return self.rounded(self.mul(a, b))
            case "max":
                return self.maximum(a, b)
            case "min":
                return self.minimum(a, b)
            case _:
                return self.op(how, a, b)

    def across(self, v: Value, combine: Callable[[Value, Value], Value]) -> str:
        """All lanes combined into a scalar register, by halves."""
        while v.lanes > 1:
            half = v.lanes // 2
            parts = []
            for at in (0, half):
                lanes = ", ".join(f"i32 {at + k}" for k in range(half))
                parts.append(
                    self.e.value(f"shufflevector {v}, {v.type} poison, <{half} x i32> <{lanes}>", v.dtype, half)
                )
            v = combine(*parts)
        return self.first(v)

    def first(self, v: Value) -> str:
        return self.e.op(f"extractelement {v}, i64 0")

    # ---- conversion ------------------------------------------------------------------------------------------------
    def bits(self, a: Value, dtype: DType) -> Value:
        """The same bits as another type of the same size."""
        return self.e.value(f"bitcast {a} to {Value('', dtype, a.lanes).type}", dtype, a.lanes)

    def rounded(self, a: Value) -> Value:
        """A half-precision value, held as a float, rounded to what its type can hold."""
        return self.from_memory(self.to_memory(a), a.dtype) if a.dtype in HALVES else a

    def to_memory(self, a: Value) -> Value:
        """As it stands in memory: half precision in 2 bytes (as an i16), a boolean in 1."""
        match a.dtype:
            case DType.BOOL:
                return self.e.value(f"zext {a} to <{a.lanes} x i8>", DType.U8, a.lanes)
            case DType.F16:
                half = self.e.op(f"fptrunc {a} to <{a.lanes} x half>")
                return self.e.value(f"bitcast <{a.lanes} x half> {half} to <{a.lanes} x i16>", DType.I16, a.lanes)
            case DType.BF16:
                return self._to_bfloat(a)
            case _:
                return a

    def _to_bfloat(self, a: Value) -> Value:
        """To nearest even by integer arithmetic: the CPU's own instruction flushes denormals. NaN stays NaN."""
        n = self.bits(Value(a.text, DType.F32, a.lanes), DType.I32)
        odd = self.logic("and", self.logic("lshr", n, self.like(16, n)), self.like(1, n))
        near = self.logic("lshr", self.add(n, self.add(odd, self.like(0x7FFF, n))), self.like(16, n))
        quiet = self.logic("or", self.logic("lshr", n, self.like(16, n)), self.like(0x40, n))
        kept = self.select(self.unordered(a), quiet, near)
        return self.e.value(f"trunc {kept} to <{a.lanes} x i16>", DType.I16, a.lanes)

    def from_memory(self, a: Value, dtype: DType) -> Value:
        match dtype:
            case DType.BOOL:
                return self.compare("ne", a, self.like(0, a))
            case DType.F16:
                half = self.e.op(f"bitcast {a} to <{a.lanes} x half>")
                return self.e.value(f"fpext <{a.lanes} x half> {half} to <{a.lanes} x float>", dtype, a.lanes)
            case DType.BF16:
                wide = self.e.value(f"zext {a} to <{a.lanes} x i32>", DType.I32, a.lanes)
                high = self.logic("shl", wide, self.like(16, wide))
                return Value(self.bits(high, DType.F32).text, dtype, a.lanes)
            case _:
                return Value(a.text, dtype, a.lanes)

    def convert(self, a: Value, dtype: DType) -> Value:
        """A cast: float to integer truncates (out of range: any value), to bool is != 0, from bool is 0 or 1."""
        if a.dtype is dtype:
            return a
        if dtype is DType.BOOL:
            return self.compare("ne", a, self.like(0, a))
        to = Value("", dtype, a.lanes).type
        if dtype.is_float:
            return self.rounded(self._to_float(a, dtype, to))
        if a.dtype.is_float:
            return self._to_integer(a, dtype)
        have, want = (1 if a.dtype is DType.BOOL else a.dtype.bytes * 8), dtype.bytes * 8
        if have == want:
            return Value(a.text, dtype, a.lanes)
        how = "trunc" if have > want else "sext" if a.dtype.is_signed else "zext"
        return self.e.value(f"{how} {a} to {to}", dtype, a.lanes)

    def _to_float(self, a: Value, dtype: DType, to: str) -> Value:
        if a.dtype.is_float:
            have, want = HELD[a.dtype], HELD[dtype]
            if have == want:
                return Value(a.text, dtype, a.lanes)
            return self.e.value(f"{'fpext' if want == 'double' else 'fptrunc'} {a} to {to}", dtype, a.lanes)
        return self.e.value(f"{'sitofp' if a.dtype.is_signed else 'uitofp'} {a} to {to}", dtype, a.lanes)

    def _to_integer(self, a: Value, dtype: DType) -> Value:
        """Through a signed type that holds the range: what the CPU converts to. `freeze` pins the value chosen."""
        wide = DType.I64 if dtype in (DType.I64, DType.U64, DType.U32) else DType.I32
        if dtype is DType.U64:  # the upper half of the range, moved down and up again: AVX-512 has no negative ones
            half = self.like(2.0**63, a)
            upper = self.logic("and", self.compare("ge", a, half), self.compare("lt", a, self.like(2.0**64, a)))
            n = self._to_signed(self.select(upper, self.sub(a, half), a), wide)
            return self.convert(self.select(upper, self.logic("xor", n, self.like(-(2**63), n)), n), dtype)
        return self.convert(self._to_signed(a, wide), dtype)

    def _to_signed(self, a: Value, dtype: DType) -> Value:
        n = self.e.value(f"fptosi {a} to <{a.lanes} x {HELD[dtype]}>", dtype, a.lanes)
        return self.e.value(f"freeze {n}", dtype, a.lanes)

    # ---- rounding to an integer ------------------------------------------------------------------------------------
    def nearest(self, x: Value) -> Value:
        """To the nearest integer, half to even."""
        if self.isa != "plain":
            return self.intrinsic("rint", x)
        # Beside 2^p (p: the bits of the mantissa) there is no room for a fraction; larger numbers have none.
        big, size = self.like(2.0 ** (52 if x.dtype is DType.F64 else 23), x), self.absolute(x)
        rounded = self.sub(self.add(size, big), big)
        return self.select(self.compare("lt", size, big), self.intrinsic("copysign", rounded, x), x)

    def floor(self, x: Value, up: bool = False) -> Value:
        if self.isa != "plain":
            return self.intrinsic("ceil" if up else "floor", x)
        n = self.nearest(x)
        wrong = self.compare("lt" if up else "gt", n, x)
        moved = self.add(n, self.like(1.0 if up else -1.0, x))
        return self.intrinsic("copysign", self.select(wrong, moved, n), x)

    def truncate(self, x: Value) -> Value:
        if self.isa != "plain":
            return self.intrinsic("trunc", x)
        return self.intrinsic("copysign", self.floor(self.absolute(x)), x)


_SUFFIX = {"double": "f64", "float": "f32", "i64": "i64", "i32": "i32", "i16": "i16", "i8": "i8", "i1": "i1"}
