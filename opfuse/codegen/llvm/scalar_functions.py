"""The LLVM column of the table of scalar functions (opfuse.ir.scalar.FUNCTIONS): one emitter for each name.

An emitter takes vectors of one element type and gives the result. Half-precision operands are computed with as
floats; what comes back is rounded to the type. Integer division never traps: by 0 it gives 0, for remainders too.

    EMITTERS["max"](v, [x, y])
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from opfuse.codegen.llvm import powers, relative_math, vector_math
from opfuse.codegen.llvm.emit import Value
from opfuse.codegen.llvm.vectors import HALVES, Vectors
from opfuse.decision import Refusal
from opfuse.ir.scalar import FUNCTIONS, Apply, Scalar, walk
from opfuse.ir.types import DType

Emitter = Callable[[Vectors, Sequence[Value]], Value]


def _divide(v: Vectors, a: Value, b: Value, op: str = "div") -> Value:
    """Truncating integer division or remainder, without the two cases that trap: x / 0 and smallest / -1."""
    one = v.like(1, b)
    nothing = v.compare("eq", b, v.like(0, b))
    b_safe = v.select(nothing, one, b)
    if not a.dtype.is_signed:
        quotient = v.op("u" + op, a, b_safe)
        return v.select(nothing, v.like(0, a), quotient) if op == "div" else quotient
    minus = v.compare("eq", b, v.like(-1, b))
    quotient = v.op("s" + op, a, v.select(minus, one, b_safe))
    quotient = v.select(minus, v.negative(a) if op == "div" else v.like(0, a), quotient)
    return v.select(nothing, v.like(0, a), quotient) if op == "div" else quotient


def _div(v: Vectors, x: Sequence[Value]) -> Value:
    return v.div(x[0], x[1]) if x[0].dtype.is_float else _divide(v, x[0], x[1])


def _fmod(v: Vectors, x: Sequence[Value]) -> Value:
    return vector_math.fmod(v, x[0], x[1]) if x[0].dtype.is_float else _divide(v, x[0], x[1], "rem")


def _mod(v: Vectors, x: Sequence[Value]) -> Value:
    """Remainder with the sign of the divisor, a zero too."""
    a, b = x
    r = _fmod(v, x)
    if a.dtype.is_float:
        r = v.select(v.compare("eq", r, v.like(0.0, r)), v.intrinsic("copysign", v.like(0.0, r), b), r)
    if not a.dtype.is_signed:
        return r
    zero = v.like(0, r)
    apart = v.logic("xor", v.compare("lt", r, zero), v.compare("lt", b, zero))
    wrong = v.logic("and", v.compare("ne", r, zero), apart)
    return v.select(wrong, v.add(r, b), r)


def _floordiv(v: Vectors, x: Sequence[Value]) -> Value:
    a, b = x
    if a.dtype is DType.F32:  # a quotient of floats that is not whole is not rounded to a whole double
        wide = [v.convert(a, DType.F64), v.convert(b, DType.F64)]
        return v.convert(v.floor(v.div(*wide)), a.dtype)
    if a.dtype.is_float:
        q = v.floor(v.div(a, b))
        past = v.mul(v.left_of(a, q, b), v.intrinsic("copysign", v.like(1.0, b), b))
        return v.select(v.compare("lt", past, v.like(0.0, a)), v.sub(q, v.like(1.0, q)), q)
    q = _divide(v, a, b)
    if not a.dtype.is_signed:
        return q
    r, zero = v.sub(a, v.mul(q, b)), v.like(0, a)
    apart = v.logic("xor", v.compare("lt", r, zero), v.compare("lt", b, zero))
    wrong = v.logic("and", v.compare("ne", r, zero), apart)
    return v.select(wrong, v.sub(q, v.like(1, q)), q)


def _pow(v: Vectors, x: Sequence[Value]) -> Value:
    """Integers: by squaring; a negative exponent gives the truncated value (0, 1 or -1)."""
    a, b = x
    if a.dtype.is_float:
        return powers.raised(v, a, b)
    total, square, one, zero = v.like(1, a), a, v.like(1, a), v.like(0, a)
    for bit in range(8 * b.dtype.bytes - (1 if b.dtype.is_signed else 0)):
        taken = v.compare("ne", v.logic("and", b, v.like(1 << bit, b)), zero)
        total = v.select(taken, v.mul(total, square), total)
        square = v.mul(square, square)
    if not a.dtype.is_signed:
        return total
    unit = v.compare("eq", v.absolute(a), one)
    return v.select(v.logic("and", v.compare("lt", b, zero), v.complement(unit)), zero, total)


def _sign(v: Vectors, x: Sequence[Value]) -> Value:
    (a,) = x
    zero = v.like(0, a)
    still = v.select(v.unordered(a), a, zero) if a.dtype.is_float else zero
    up = v.select(v.compare("gt", a, zero), v.like(1, a), still)
    return v.select(v.compare("lt", a, zero), v.like(-1, a), up) if a.dtype.is_signed else up


def _rsqrt(v: Vectors, x: Sequence[Value]) -> Value:
    return v.div(v.like(1.0, x[0]), v.intrinsic("sqrt", x[0]))


def _isinf(v: Vectors, x: Sequence[Value]) -> Value:
    return v.compare("eq", v.absolute(x[0]), v.like(float("inf"), x[0]))


def _shift(left: bool) -> Emitter:
    """A count outside of [0, width) leaves nothing, or copies of the sign: the shift to the right by width - 1."""

    def emit(v: Vectors, x: Sequence[Value]) -> Value:
        a, count = x
        last = v.like(8 * a.dtype.bytes - 1, count)
        unsigned = Value(count.text, _UNSIGNED.get(count.dtype, count.dtype), count.lanes)
        inside = v.compare("le", unsigned, last)  # a negative count is a large one
        if not left and a.dtype.is_signed:
            return v.logic("ashr", a, v.select(inside, count, last))
        moved = v.logic("shl" if left else "lshr", a, v.select(inside, count, v.like(0, count)))
        return v.select(inside, moved, v.like(0, a))

    return emit


_UNSIGNED = {DType.I8: DType.U8, DType.I16: DType.U16, DType.I32: DType.U32, DType.I64: DType.U64}


def _unary(function: Callable[[Vectors, Value], Value]) -> Emitter:
    return lambda v, x: function(v, x[0])


def _binary(name: str) -> Emitter:
    return lambda v, x: v.binary(name, x[0], x[1])


def _compare(name: str) -> Emitter:
    return lambda v, x: v.compare(name, x[0], x[1])


def _logic(name: str) -> Emitter:
    return lambda v, x: v.logic(name, x[0], x[1])


EMITTERS: Mapping[str, Emitter] = {
    "add": _binary("add"), "sub": _binary("sub"), "mul": _binary("mul"), "div": _div, "floordiv": _floordiv,
    "mod": _mod, "fmod": _fmod, "pow": _pow,
    "max": lambda v, x: v.maximum(x[0], x[1]), "min": lambda v, x: v.minimum(x[0], x[1]),
    "neg": lambda v, x: v.negative(x[0]), "abs": lambda v, x: v.absolute(x[0]), "sign": _sign,
    "exp": _unary(vector_math.exp), "log": _unary(vector_math.log), "sqrt": lambda v, x: v.intrinsic("sqrt", x[0]),
    "rsqrt": _rsqrt, "erf": _unary(vector_math.erf), "tanh": _unary(vector_math.tanh),
    "sigmoid": _unary(relative_math.sigmoid), "expm1": _unary(relative_math.expm1),
    "log1p": _unary(relative_math.log1p), "normcdf": _unary(relative_math.normcdf),
    "sin": _unary(vector_math.sin), "cos": _unary(vector_math.cos),
    "floor": lambda v, x: v.floor(x[0]), "ceil": lambda v, x: v.floor(x[0], up=True),
    "rint": lambda v, x: v.nearest(x[0]),
    **{name: _compare(name) for name in ("lt", "le", "eq", "gt", "ge", "ne")},
    **{name: _logic(name) for name in ("and", "or", "xor")},
    "shl": _shift(left=True), "shr": _shift(left=False), "not": lambda v, x: v.complement(x[0]),
    "isnan": lambda v, x: v.unordered(x[0]), "isinf": _isinf,
    "select": lambda v, x: v.select(x[0], x[1], x[2]),
}  # fmt: skip
# "cast" and "bits" need the result's type: Vectors.convert and _reinterpreted.

# Functions whose price is that of tens of additions: worth computing once and keeping.
COSTLY = frozenset(f.name for f in FUNCTIONS.values() if f.cost > 8)


def apply_function(v: Vectors, x: Apply, args: Sequence[Value]) -> Value:
    """One application. Half-precision operands, held as floats, are computed with as floats; the result is rounded."""
    if x.function == "cast":
        return v.convert(args[0], x.dtype)
    if x.function == "bits":
        return _reinterpreted(v, args[0], x.dtype)
    wide = [Value(a.text, DType.F32, a.lanes) if a.dtype in HALVES else a for a in args]
    if x.function == "pow" and wide[0].dtype.is_float and (power := _small_power(x.args[1])):
        made = wide[0]
        for _ in range(power - 1):
            made = v.mul(made, wide[0])
    else:
        made = EMITTERS[x.function](v, wide)
    return v.rounded(Value(made.text, x.dtype, made.lanes)) if x.dtype in HALVES else made


def _reinterpreted(v: Vectors, a: Value, dtype: DType) -> Value:
    """The bits that stand in memory, as another type; half precision is held as a float."""
    stored = v.to_memory(a)
    if dtype in HALVES:
        return v.from_memory(Value(stored.text, DType.I16, a.lanes), dtype)
    if not stored.dtype.is_float and not dtype.is_float:
        return Value(stored.text, dtype, a.lanes)
    return stored if stored.dtype is dtype else v.bits(stored, dtype)


def _small_power(exponent: Scalar) -> int:
    """2 or 3 where the exponent is that constant: one or two multiplications; otherwise 0."""
    value = getattr(exponent, "value", None)
    return int(value) if value in (2, 3) and not isinstance(value, bool) else 0


def check_functions(value: Scalar) -> Refusal | None:
    """The refusal of an expression with a function on a type that it is not defined for; None where all is well."""
    for x in walk(value):
        if not isinstance(x, Apply):
            continue
        if x.function not in ("cast", "bits") and x.function not in EMITTERS:
            return Refusal("no-function", f"there is no code for the function {x.function}", {"function": x.function})
        kind = "f" if x.args[-1].dtype.is_float else "b" if x.args[-1].dtype is DType.BOOL else "i"
        if x.function == "abs" and kind == "b" or kind not in FUNCTIONS[x.function].kinds:
            return Refusal("function-type", f"{x.function} is not defined for {x.args[-1].dtype.value}",
                           {"function": x.function, "dtype": x.args[-1].dtype.value})  # fmt: skip
    return None


def is_costly(value: Scalar) -> bool:
    return any(isinstance(x, Apply) and x.function in COSTLY for x in walk(value))
