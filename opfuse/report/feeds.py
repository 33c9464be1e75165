"""Inputs to run a model on: random ones that its integer inputs allow, adversarial ones, and the user's own files.

    random_feed(graph, seed=0)            # {"ids": token numbers below the embedding's rows, "mask": zeros and ones}
    adversarial_feeds(graph)              # large, tiny, zero, -0.0, constant rows, NaN, infinity, extreme integers
    folder_feeds(graph, Path("data"))     # every .npz is a feed; .npy files are named after the inputs

What an integer input may hold is read off the graph: the rows of the tensors that it indexes, the constants that it is
compared with, whether it is only ever turned into a number (a mask). The graph's shapes must be numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from opfuse.errors import OptionError
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType, TensorType

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Feed:
    """Arrays for every input of the model, and what to call them in a report."""

    name: str
    arrays: Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Span:
    """The integers low..high (both included) that an input may hold, and why."""

    low: int
    high: int
    why: str


# ---- what integer inputs may hold ------------------------------------------------------------------------------------
_SAME_VALUES = {"reshape", "expand", "transpose", "slice", "concat", "identity", "tile", "where", "pad"}
_COMPARISONS = {"equal", "not_equal", "less", "less_equal", "greater", "greater_equal"}
_PLAIN = Span(0, 1, "turned into a number")


def integer_span(graph: Graph, name: str) -> Span:
    """What the integer input `name` may hold without leaving what the graph's gathers and comparisons allow.

    Rows of a gathered tensor bind (the smallest of them); constants that the value is compared with come next; then
    0..1, the usual mask. Shifts by constants on the way to a gather are taken into account.
    """
    uses = list(_uses(graph, name, 0, set()))
    hard = [s for s, binding in uses if binding]
    if hard:
        low, high = max(s.low for s in hard), min(s.high for s in hard)
        if low <= high:
            return Span(low, high, min(hard, key=lambda s: s.high).why)
    soft = [s for s, binding in uses if not binding]
    if soft:
        return max(soft, key=lambda s: s.high - s.low)
    return _PLAIN


def _uses(graph: Graph, value: str, shift: int, seen: set[tuple[str, int]]) -> Iterator[tuple[Span, bool]]:
    """Spans that the readers of `value` (= the input + shift) ask for; True: leaving the span is an error."""
    if (value, shift) in seen:
        return
    seen.add((value, shift))
    for node in graph.consumers(value):
        label = (node.origin or (node.name,))[0]
        if node.op in ("gather", "gather_elements") and node.inputs[1] == value:
            rows = _extent(graph, node.inputs[0], node.attrs.get("axis", 0))
            yield Span(-shift, rows - 1 - shift, f"{label} gathers from {rows} rows"), True
        elif node.op == "one_hot" and node.inputs[0] == value:
            depth = node.attrs.get("depth")
            if isinstance(depth, int):
                yield Span(-shift, depth - 1 - shift, f"{label} has depth {depth}"), False
        elif node.op in _COMPARISONS:
            yield from _compared(graph, node, value, shift, label)
        elif node.op == "cast":
            if node.attrs["to"].is_integer:
                yield from _uses(graph, node.output, shift, seen)
        elif node.op in ("add", "sub") and (offset := _offset(graph, node, value)) is not None:
            yield from _uses(graph, node.output, shift + offset, seen)
        elif node.op in _SAME_VALUES or (node.op in ("gather", "gather_elements") and node.inputs[0] == value):
            for output in node.outputs:
                yield from _uses(graph, output, shift, seen)


def _extent(graph: Graph, value: str | None, axis: int) -> int:
    assert value is not None
    return int(graph.types[value].static_shape[axis])


def _compared(graph: Graph, node: Node, value: str, shift: int, label: str) -> Iterator[tuple[Span, bool]]:
    other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    constant = _constant(graph, other)
    if constant is not None and constant.size:
        low, high = int(constant.min()), int(constant.max())
        if low == high:
            low, high = min(0, low), max(1, high + 1)
        yield Span(low - shift, high - shift, f"{label} compares with constants"), False


def _constant(graph: Graph, value: str | None) -> np.ndarray | None:
    """The array behind a value; for an iota or a moved constant something with the same least and greatest element."""
    while value is not None:
        if value in graph.constants:
            return graph.constants[value]
        node = graph.producer(value)
        if node is None:
            return None
        if node.op == "iota":
            extent = graph.types[value].static_shape[0]
            return np.asarray([0, max(0, extent - 1)])
        if node.op not in ("reshape", "expand", "transpose", "cast"):
            return None
        value = node.inputs[0]
    return None


def _offset(graph: Graph, node: Node, value: str) -> int | None:
    """The constant integer that an add or sub puts onto `value`; None where it is not one number."""
    other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    constant = _constant(graph, other)
    if constant is None or constant.size != 1 or (node.op == "sub" and node.inputs[0] != value):
        return None
    number = int(constant.reshape(()))
    return number if node.op == "add" else -number


def _limits(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


def _allowed(graph: Graph, name: str) -> Span:
    span, (least, most) = integer_span(graph, name), _limits(graph.types[name].dtype)
    return Span(max(span.low, least), min(span.high, most), span.why)


# ---- random inputs ---------------------------------------------------------------------------------------------------
def random_feed(graph: Graph, seed: int = 0) -> Arrays:
    """Standard normal floats; integers within what the graph allows; booleans mostly true. One seed, one feed."""
    out: Arrays = {}
    for number, name in enumerate(graph.inputs):
        generator = np.random.default_rng((seed, number))
        out[name] = _random_array(graph, name, graph.types[name], generator)
    return out


def _random_array(graph: Graph, name: str, type_: TensorType, generator: np.random.Generator) -> np.ndarray:
    shape, dtype = type_.static_shape, type_.dtype
    if dtype.is_float:
        return np.asarray(generator.standard_normal(shape)).astype(dtype.numpy)
    if dtype is DType.BOOL:
        return np.asarray(generator.random(shape) < 0.8)
    span = _allowed(graph, name)
    if (span.low, span.high) == (0, 1):  # a mask: most of it on
        return np.asarray(generator.random(shape) < 0.8).astype(dtype.numpy)
    return np.asarray(generator.integers(span.low, span.high, shape, endpoint=True)).astype(dtype.numpy)


# ---- adversarial inputs ----------------------------------------------------------------------------------------------
def adversarial_feeds(graph: Graph) -> Iterator[Feed]:
    """Feeds at the edges of what the inputs may hold. Those that change floats are left out where there are none."""
    base = random_feed(graph, seed=1)
    floats = [i for i in graph.inputs if graph.types[i].dtype.is_float]
    if floats:
        yield _changed("large", base, floats, lambda x: x * 1e3)
        yield _changed("tiny", base, floats, lambda x: x * 1e-30)
        yield _changed("zeros", base, floats, np.zeros_like)
        yield _changed("negative-zeros", base, floats, lambda x: np.full_like(x, -0.0))
        yield _changed("constant-rows", base, floats, _constant_rows)
        yield _changed("nan", base, floats, lambda x: _planted(x, np.nan))
        yield _changed("infinity", base, floats, lambda x: _planted(x, np.inf))
    integers = [i for i in graph.inputs if not graph.types[i].dtype.is_float]
    if integers:
        for name, high in (("least-integers", False), ("greatest-integers", True)):
            arrays = dict(base)
            for i in integers:
                arrays[i] = np.full_like(base[i], _edge(graph, i, high))
            yield Feed(name, arrays)


def _changed(name: str, base: Arrays, floats: list[str], change: object) -> Feed:
    assert callable(change)
    return Feed(name, {k: np.asarray(change(v)).astype(v.dtype) if k in floats else v for k, v in base.items()})


def _constant_rows(x: np.ndarray) -> np.ndarray:
    """Every row of the last axis holds one number: variances are zero, softmax is even."""
    return np.broadcast_to(x[..., :1], x.shape).copy() if x.ndim else x


def _planted(x: np.ndarray, value: float) -> np.ndarray:
    """One element (at about a third of the array) is replaced, so that what must not be touched can be seen too."""
    out = x.copy()
    if out.size:
        out.reshape(-1)[out.size // 3] = value
    return out


def _edge(graph: Graph, name: str, high: bool) -> int | bool:
    if graph.types[name].dtype is DType.BOOL:
        return high
    span = _allowed(graph, name)
    return span.high if high else span.low


# ---- the user's own inputs -------------------------------------------------------------------------------------------
def folder_feeds(graph: Graph, folder: Path) -> list[Feed]:
    """Every .npz of the folder as a feed; .npy files named after the inputs as one feed; for a model with one input
    every .npy as a feed. OptionError names the file where something is missing or cannot be read.
    """
    if not folder.is_dir():
        raise OptionError(str(folder), "it is not a folder")
    feeds = [Feed(path.name, load_npz(graph, path)) for path in sorted(folder.glob("*.npz"))]
    arrays = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    needed = [i for i in graph.inputs if i not in graph.defaults]
    if arrays and all(file_stem(i) in arrays for i in needed):
        names = [i for i in graph.inputs if file_stem(i) in arrays]
        feeds.append(Feed(f"{folder.name}/*.npy", {i: load_npy(arrays[file_stem(i)]) for i in names}))
    elif arrays and len(needed) == 1:
        feeds += [Feed(path.name, {needed[0]: load_npy(path)}) for path in arrays.values()]
    elif arrays:
        wanted = ", ".join(f"{file_stem(i)}.npy" for i in needed)
        raise OptionError(str(folder), f"it holds .npy files, but not one for every input: {wanted}")
    if not feeds:
        raise OptionError(str(folder), "it holds no .npz or .npy file")
    return feeds


def file_stem(name: str) -> str:
    """A file name for an input or output: characters that file systems dislike become underscores."""
    cleaned = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).strip(".")
    return cleaned or "_"


def load_npy(path: Path) -> np.ndarray:
    """One array; OptionError where the file is not one (pickles are refused)."""
    try:
        loaded = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise OptionError(str(path), "there is no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise OptionError(str(path), f"it is not a readable .npy file: {error}") from None
    if not isinstance(loaded, np.ndarray):
        raise OptionError(str(path), "it is an archive of arrays (.npz), where one array is wanted")
    return loaded


def load_npz(graph: Graph, path: Path) -> Arrays:
    """A feed from an archive; OptionError names inputs that it lacks and arrays that the model does not take."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            if isinstance(archive, np.ndarray):
                raise OptionError(str(path), "it holds one array, where an archive of named arrays (.npz) is wanted")
            arrays = {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        raise OptionError(str(path), "there is no such file") from None
    except OptionError:
        raise
    except Exception as error:  # zipfile and NumPy raise half a dozen kinds for broken archives
        raise OptionError(str(path), f"it is not a readable .npz file: {error}") from None
    missing = [i for i in graph.inputs if i not in arrays and i not in graph.defaults]
    unknown = [name for name in arrays if name not in graph.inputs]
    if missing or unknown:
        said = [f"it lacks {', '.join(missing)}"] if missing else []
        said += [f"it holds {', '.join(unknown)}, which the model does not take"] if unknown else []
        raise OptionError(str(path), " and ".join(said), f"the model's inputs are {', '.join(graph.inputs)}")
    return arrays
