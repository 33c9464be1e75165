"""Inputs to run a model on: random ones that its integer inputs allow, adversarial ones, and the user's own files.

    specs = feed_specs(graph)            # name, dtype, shape, and which integers are allowed
    random_feed(specs, seed=0)            # {"ids": token numbers below the embedding's rows, "mask": zeros and ones}
    adversarial_feeds(specs)              # large, tiny, zeros, constant rows, NaN, infinity, extreme integers
    folder_feeds(names, Path("data"))     # every .npz is a feed; .npy files are named after the inputs

What an integer input may hold is read off the graph: the rows of the tensors that it indexes, the constants that it is
compared with, whether it is only ever turned into a number (a mask). The graph's shapes must be numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from zipfile import BadZipFile

import numpy as np

from opfuse.errors import OptionError
from opfuse.ir.graph import Graph, Node
from opfuse.ir.types import DType

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Feed:
    """Arrays for every input of the model, and what to call them in a report. `kind` says where they come from."""

    name: str
    arrays: Mapping[str, np.ndarray]
    kind: Literal["random", "adversarial", "user"] = "user"


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
    uses = list(_uses(graph, name))
    hard = [s for s, binding in uses if binding]
    if hard:
        low, high = max(s.low for s in hard), min(s.high for s in hard)
        if low <= high:
            return Span(low, high, min(hard, key=lambda s: s.high).why)
    soft = [s for s, binding in uses if not binding]
    if soft:
        return max(soft, key=lambda s: s.high - s.low)
    return _PLAIN


def _uses(graph: Graph, name: str) -> Iterator[tuple[Span, bool]]:
    """Spans that the readers of an input ask for, however far it is moved before; True: leaving one is an error."""
    seen: set[tuple[str, int]] = set()
    todo = [(name, 0)]
    while todo:
        value, shift = todo.pop()
        if (value, shift) in seen:
            continue
        seen.add((value, shift))
        for node in graph.consumers(value):
            yield from _asked(graph, node, value, shift)
            todo += _carried(graph, node, value, shift)


def _asked(graph: Graph, node: Node, value: str, shift: int) -> Iterator[tuple[Span, bool]]:
    """What one reader of `value` (= the input + shift) asks for."""
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


def _carried(graph: Graph, node: Node, value: str, shift: int) -> list[tuple[str, int]]:
    """The reader's results that are the value again: (result, shift)."""
    if node.op in ("gather", "gather_elements") and node.inputs[1] == value:
        return []
    if node.op in ("add", "sub"):
        offset = _offset(graph, node, value)
        return [] if offset is None else [(node.output, shift + offset)]
    same = node.op in _SAME_VALUES or node.op in ("gather", "gather_elements")
    if same or (node.op == "cast" and node.attrs["to"].is_integer):
        return [(output, shift) for output in node.outputs]
    return []


def _extent(graph: Graph, value: str | None, axis: int) -> int:
    assert value is not None
    return int(graph.types[value].static_shape[axis])


def _compared(graph: Graph, node: Node, value: str, shift: int, label: str) -> Iterator[tuple[Span, bool]]:
    other = node.inputs[1] if node.inputs[0] == value else node.inputs[0]
    constant = _constant(graph, other)
    if constant is not None and constant.size and np.isfinite(constant.astype(np.float64)).all():
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
    if not np.isfinite(float(constant.reshape(()))):
        return None
    number = int(constant.reshape(()))
    return number if node.op == "add" else -number


# ---- inputs, described -----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class FeedSpec:
    """An input of a model whose shapes are numbers; `span` is what an integer input may hold."""

    name: str
    dtype: DType
    shape: tuple[int, ...]
    span: Span = _PLAIN
    optional: bool = False  # the model holds a value of its own for it


def feed_specs(graph: Graph) -> tuple[FeedSpec, ...]:
    """ValueError where a shape is still symbolic."""
    return tuple(
        FeedSpec(i, graph.types[i].dtype, graph.types[i].static_shape,
                  _within_type(integer_span(graph, i), graph.types[i].dtype), i in graph.defaults)
        for i in graph.inputs
    )  # fmt: skip


def _within_type(span: Span, dtype: DType) -> Span:
    if not dtype.is_integer:
        return span
    info = np.iinfo(dtype.numpy)
    return Span(max(span.low, int(info.min)), min(span.high, int(info.max)), span.why)


# ---- random inputs ---------------------------------------------------------------------------------------------------
def random_feed(specs: Sequence[FeedSpec], seed: int = 0) -> Arrays:
    """Standard normal floats; integers within their spans; masks and booleans mostly on. One seed, one feed.

    Inputs that the model holds values for are left out.
    """
    return {
        spec.name: _random_array(spec, np.random.default_rng((seed, number)))
        for number, spec in enumerate(specs) if not spec.optional
    }  # fmt: skip


def _random_array(spec: FeedSpec, generator: np.random.Generator) -> np.ndarray:
    if spec.dtype.is_float:
        return np.asarray(generator.standard_normal(spec.shape)).astype(spec.dtype.numpy)
    if spec.dtype is DType.BOOL or (spec.span.low, spec.span.high) == (0, 1):
        return np.asarray(generator.random(spec.shape) < 0.8).astype(spec.dtype.numpy)
    drawn = generator.integers(spec.span.low, spec.span.high, spec.shape, endpoint=True)
    return np.asarray(drawn).astype(spec.dtype.numpy)


# ---- adversarial inputs ----------------------------------------------------------------------------------------------
def adversarial_feeds(specs: Sequence[FeedSpec]) -> Iterator[Feed]:
    """Feeds at the edges of what the inputs may hold. Those that change floats are left out where there are none."""
    base = random_feed(specs, seed=1)
    floats = {s.name for s in specs if s.dtype.is_float and s.name in base}
    for name, change in _CHANGES.items():
        if floats:
            arrays = {k: np.asarray(change(v)).astype(v.dtype) if k in floats else v for k, v in base.items()}
            yield Feed(name, arrays, kind="adversarial")
    integers = [s for s in specs if not s.dtype.is_float and s.name in base]
    if integers:
        for name, high in (("least integers", False), ("greatest integers", True)):
            edges = {s.name: np.full_like(base[s.name], s.span.high if high else s.span.low) for s in integers}
            yield Feed(name, base | edges, kind="adversarial")


def _constant_rows(x: np.ndarray) -> np.ndarray:
    """Every row of the last axis holds one number: variances are zero, softmax is even."""
    return np.broadcast_to(x[..., :1], x.shape).copy() if x.ndim else x


def _planted(x: np.ndarray, value: float) -> np.ndarray:
    """One element, a third of the way in, is replaced, so that what must not be touched can be seen too."""
    out = x.copy()
    if out.size:
        out.reshape(-1)[out.size // 3] = value
    return out


_CHANGES: Mapping[str, Callable[[np.ndarray], np.ndarray]] = {
    "large": lambda x: x * 1e3,
    "tiny": lambda x: x * 1e-30,
    "zeros": lambda x: np.resize(np.asarray([0.0, -0.0], x.dtype), x.shape),  # of both signs
    "constant rows": _constant_rows,
    "NaN": lambda x: _planted(x, np.nan),
    "infinity": lambda x: _planted(x, np.inf),
}


# ---- the user's own inputs -------------------------------------------------------------------------------------------
def folder_feeds(names: Sequence[str], folder: Path, optional: Collection[str] = ()) -> list[Feed]:
    """Every .npz of the folder as a feed; .npy files named after the inputs as one feed; for a model with one input
    every .npy as a feed. Inputs in `optional` may be missing. OptionError names the file where something is wrong.
    """
    if not folder.is_dir():
        raise OptionError(str(folder), "it is not a folder")
    feeds = [Feed(path.name, load_npz(names, path, optional)) for path in sorted(folder.glob("*.npz"))]
    arrays = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    needed = [i for i in names if i not in optional]
    if arrays and all(file_stem(i) in arrays for i in needed):
        present = [i for i in names if file_stem(i) in arrays]
        feeds.append(Feed(f"{folder.name}/*.npy", {i: load_npy(arrays[file_stem(i)]) for i in present}))
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
    except ValueError as error:
        pickled = "pickle" in str(error)  # what NumPy says of any file that is no array
        said = "it is no .npy file of numbers" if pickled else f"it is not a readable .npy file: {error}"
        raise OptionError(str(path), said, "write it with numpy.save") from None
    except (OSError, EOFError, BadZipFile) as error:
        raise OptionError(str(path), f"it is not a readable .npy file: {error}") from None
    if not isinstance(loaded, np.ndarray):
        raise OptionError(str(path), "it is an archive of arrays (.npz), where one array is wanted")
    return loaded


def load_npz(names: Sequence[str], path: Path, optional: Collection[str] = ()) -> Arrays:
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
    missing = [i for i in names if i not in arrays and i not in optional]
    unknown = [name for name in arrays if name not in names]
    if missing or unknown:
        said = [f"it lacks {', '.join(missing)}"] if missing else []
        said += [f"it holds {', '.join(unknown)}, which the model does not take"] if unknown else []
        raise OptionError(str(path), " and ".join(said), f"the model's inputs are {', '.join(names)}")
    return arrays
