"""Errors that a user can meet. Each names the user's own file, node, input or option, and the way out.

    raise ModelError("model.onnx", "the file is empty", "export the model again", code="empty-file")
    -> "model.onnx: the file is empty. Export the model again. [empty-file]"

The command line prints `str(error)` and nothing else; `error.code` is a short stable slug for programs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar


class OpfuseError(Exception):
    """The base of all: a message for people and a code for programs."""

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, code: str = "") -> None:
        self.message = message
        self.code = code or self.default_code
        super().__init__(message)

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"

    def __reduce__(self) -> tuple[Any, ...]:
        """From process to process as it is, whatever its constructor takes."""
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[OpfuseError], args: tuple[Any, ...], facts: dict[str, Any]) -> OpfuseError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


class ModelError(OpfuseError):
    """A model that cannot be read or is not a valid graph: "MODEL, node NODE: PROBLEM. WAY OUT."."""

    default_code = "bad-model"

    def __init__(self, model: str, problem: str, way_out: str = "", *, node: str = "", code: str = "") -> None:
        self.model, self.problem, self.way_out, self.node = model, problem, way_out, node
        place = f"{model}, node {node!r}" if node else model
        super().__init__(f"{place}: {_sentences(problem, way_out)}", code)


@dataclass(frozen=True)
class UnsupportedOperator:
    """One entry of `UnsupportedOperators`: the user's node, its operator as "domain::Name-opset", and why not.

    `needs` names inputs of the model whose numbers shapes depend on: with them as constants the node may be supported.
    `by_shapes`: with numbers for the open dimensions of the inputs it may be.
    """

    node: str
    op: str
    reason: str
    needs: tuple[str, ...] = ()
    by_shapes: bool = False

    def __str__(self) -> str:
        return f"{self.node}: {self.op}: {self.reason}"


class UnsupportedOperators(OpfuseError):
    """All nodes of a model that cannot be imported, in one error, before any work is done."""

    default_code = "unsupported-operators"
    way_out: ClassVar[str] = "`opfuse ops` lists what is supported."

    def __init__(self, model: str, entries: Sequence[UnsupportedOperator], *, code: str = "") -> None:
        self.model, self.entries = model, tuple(entries)
        count = f"{len(entries)} node{'s' if len(entries) != 1 else ''}"
        lines = "".join(f"\n  {entry}" for entry in entries)
        super().__init__(f"{model}: {count} cannot be imported:{lines}\n{self.way_out}", code)

    @property
    def by_shapes(self) -> bool:
        """Whether nothing but open dimensions stands in the way."""
        return all(e.by_shapes for e in self.entries)


class InputError(OpfuseError):
    """A feed that does not fit the model: "input 'x': PROBLEM. WAY OUT."."""

    default_code = "bad-input"

    def __init__(self, input: str, problem: str, way_out: str = "", *, code: str = "") -> None:
        self.input, self.problem, self.way_out = input, problem, way_out
        super().__init__(f"input {input!r}: {_sentences(problem, way_out)}", code)


class ArtifactError(OpfuseError):
    """A compiled file that is corrupt, foreign, too new, or made for another machine."""

    default_code = "bad-artifact"

    def __init__(self, path: str, problem: str, way_out: str = "", *, code: str = "") -> None:
        self.path, self.problem, self.way_out = path, problem, way_out
        super().__init__(f"{path}: {_sentences(problem, way_out or 'compile the model again')}", code)


class OptionError(OpfuseError):
    """An option that does not exist or has a value that makes no sense: "--shape: PROBLEM. WAY OUT."."""

    default_code = "bad-option"

    def __init__(self, option: str, problem: str, way_out: str = "", *, code: str = "") -> None:
        self.option, self.problem, self.way_out = option, problem, way_out
        super().__init__(f"{option}: {_sentences(problem, way_out)}", code)


def _sentences(problem: str, way_out: str) -> str:
    """The problem and, as a sentence of its own, the way out."""
    problem = problem.rstrip().rstrip(".") + "."
    way_out = way_out.strip().rstrip(".")
    end = "" if way_out.endswith("?") else "."
    return f"{problem} {way_out[0].upper()}{way_out[1:]}{end}" if way_out else problem
