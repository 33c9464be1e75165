"""The command line: `opfuse compile | run | explain | verify | profile | bench | ops | doctor`.

    opfuse compile model.onnx -o model.opf --threads 2 --shape input=1x3x224x224
    opfuse run model.opf --input input=image.npy --output results/

Results go to standard output (with --json as pure JSON), progress and errors to standard error. An error of the user's
is one line and exit code 2; `verify` exits with 1 where an answer is wrong. --debug shows the traceback of an error.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console, RenderableType

from opfuse.errors import OpfuseError, OptionError
from opfuse.target import physical_cores

USER_ERROR, INTERNAL_ERROR, WRONG_ANSWER, INTERRUPTED, BROKEN_PIPE = 2, 3, 1, 130, 141

app = typer.Typer(
    name="opfuse", help="Fuses the operators of ONNX models into native kernels, and says why.",
    add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Model = Annotated[Path, typer.Argument(help="an ONNX model", metavar="MODEL", show_default=False)]
ModelOrArtifact = Annotated[
    Path, typer.Argument(help="an ONNX model, or a compiled .opf file", metavar="MODEL", show_default=False)
]
Threads = Annotated[int | None, typer.Option("--threads", min=1, help="threads of a call [default: physical cores]")]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=1x3x224x224", help="shape of an input; may be given several times"),
]
NoRules = Annotated[list[str] | None, typer.Option("--no-rule", metavar="NAME", help="switch a rewrite rule off")]
NoFusions = Annotated[
    list[str] | None, typer.Option("--no-fuse", metavar="ID", help='leave a fusion out, by its id; "all" fuses nothing')
]
Strict = Annotated[bool, typer.Option("--strict", help="exact rewrites only: no change of rounding")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=FILE.npy", help="an input; or FILE.npz with several, by name"),
]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="of random inputs")]


# ---- commands --------------------------------------------------------------------------------------------------------
def _print_version(wanted: bool) -> None:
    if wanted:
        from opfuse import __version__

        write(f"opfuse {__version__}\n")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="print the version and exit")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="show the traceback of an error")] = False,
) -> None:
    """Options of all commands; --debug is taken off the line by `main`, wherever it stands."""


@app.command("compile", help="Compile a model into an .opf file.")
def compile_command(
    model: Model,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="[default: MODEL with .opf]")] = None,
    threads: Threads = None, shape: Shapes = None, no_rule: NoRules = None, no_fuse: NoFusions = None,
    strict: Strict = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    refuse_compiled(model, "it is compiled already", "compile the ONNX file")
    target = output or Path(model.with_suffix(".opf").name)
    check_target(target)
    executable = open_model(model, threads, shape, no_rule, no_fuse, strict)
    need_shapes(executable)
    explanation = executable.explain()
    with progress(f"writing {target}"):
        executable.save(target)
    if as_json:
        print_json(explanation.to_json() | {"output": str(target), "output_bytes": target.stat().st_size})
        return
    from opfuse.report.explain_text import head
    from opfuse.report.render import size

    print_parts(lambda width: [head(explanation), f"\n{target}  {size(target.stat().st_size)}"])


@app.command("run", help="Run a model on files, or on random inputs where none are given.")
def run_command(
    model: ModelOrArtifact,
    input_: Inputs = None,
    output: Annotated[Path | None, typer.Option("--output", help="folder to write NAME.npy of every output to")] = None,
    threads: Threads = None, shape: Shapes = None, no_rule: NoRules = None, no_fuse: NoFusions = None,
    strict: Strict = False, seed: Seed = 0, as_json: AsJson = False,
) -> None:  # fmt: skip
    executable = open_model(model, threads, shape, no_rule, no_fuse, strict)
    feeds = read_inputs(executable, input_) if input_ else random_inputs(executable, seed)
    with progress("running"):
        results = {name: np.asarray(value) for name, value in executable(feeds).items()}
    files = write_outputs(results, output) if output is not None else {}
    summary = [describe(name, value, files.get(name)) for name, value in results.items()]
    if as_json:
        print_json({"schema": 1, "inputs": "given" if input_ else f"random, seed {seed}", "outputs": summary})
        return
    from opfuse.report.run_text import outputs_table

    given = "" if input_ else f"Inputs were random (seed {seed}); give yours with --input NAME=FILE.npy."
    print_parts(lambda width: [outputs_table(summary, width), *([given] if given else [])])


@app.command("explain", help="What was fused, what was not, and why.")
def explain_command(
    model: ModelOrArtifact, threads: Threads = None, shape: Shapes = None, no_rule: NoRules = None,
    no_fuse: NoFusions = None, strict: Strict = False, as_json: AsJson = False,
    measure: Annotated[bool, typer.Option("--measure", help="time every kernel on random inputs")] = False,
) -> None:  # fmt: skip
    executable = open_model(model, threads, shape, no_rule, no_fuse, strict)
    need_shapes(executable)
    if measure:
        executable.measure()
    explanation = executable.explain()
    if as_json:
        print_json(explanation.to_json())
        return
    from opfuse.report.explain_text import parts

    print_parts(lambda width: parts(explanation, width))


@app.command("verify", help="Check every fused region and the whole model against float64.")
def verify_command(
    model: ModelOrArtifact,
    inputs: Annotated[int | None, typer.Option("--inputs", min=1, help="how many random inputs [default: 2]")] = None,
    data: Annotated[Path | None, typer.Option("--data", help="a folder of .npz or .npy files")] = None,
    threads: Threads = None, shape: Shapes = None, no_rule: NoRules = None, no_fuse: NoFusions = None,
    strict: Strict = False, as_json: AsJson = False,
) -> None:  # fmt: skip
    executable = open_model(model, threads, shape, no_rule, no_fuse, strict)
    if data is None:
        need_shapes(executable)
    with progress(f"verifying {model.name}") as say:
        report = executable.verify(inputs=inputs, data=data, progress=say)
    if as_json:
        print_json(report.to_json())
    else:
        print_parts(lambda width: report.parts(width))
    if not report.passed:
        raise typer.Exit(WRONG_ANSWER)


@app.command("bench", help="Compare the time of a call with other runtimes.")
def bench_command(
    model: Model,
    against: Annotated[str, typer.Option("--against", metavar="NAME,NAME", help="runtimes")] = "onnxruntime",
    threads: Threads = None, shape: Shapes = None,
    seconds: Annotated[float, typer.Option("--seconds", min=0.5, help="for each runtime")] = 3.0,
    seed: Seed = 0, as_json: AsJson = False,
) -> None:  # fmt: skip
    from opfuse.report.bench import bench

    refuse_compiled(model, "other runtimes cannot read a compiled file", "measure the ONNX file")
    rivals = [name.strip() for name in against.split(",") if name.strip()]
    count = threads or physical_cores()
    feeds = random_inputs(open_model(model, count, shape), seed)
    with progress(f"measuring {model.name}") as say:
        try:
            report = bench(model, feeds, ("opfuse", *rivals), threads=count, seconds=seconds, progress=say)
        except ValueError as error:
            raise OptionError("--against", str(error)) from None
    if as_json:
        print_json(report.to_json())
    else:
        print_parts(lambda width: [report.text(width)])


@app.command("profile", help="Where the time of a call goes, kernel by kernel, and what the machine would allow.")
def profile_command(
    model: ModelOrArtifact, input_: Inputs = None, threads: Threads = None, shape: Shapes = None,
    no_rule: NoRules = None, no_fuse: NoFusions = None, strict: Strict = False,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, help="of measuring, fused and unfused each")] = 1.0,
    seed: Seed = 0, as_json: AsJson = False,
) -> None:  # fmt: skip
    executable = open_model(model, threads, shape, no_rule, no_fuse, strict)
    feeds = read_inputs(executable, input_) if input_ else random_inputs(executable, seed)
    with progress(f"measuring {model.name}"):
        report = executable.profile(feeds=feeds, seconds=seconds)
    if as_json:
        print_json(report.to_json())
        return
    from opfuse.report.profile_text import parts

    print_parts(lambda width: parts(report, width))


@app.command("ops", help="Which operators and opsets are supported.")
def ops_command(as_json: AsJson = False) -> None:
    from opfuse.frontends.onnx import definitions, supported
    from opfuse.report.run_text import operators_table

    operators = sorted([*supported(), *definitions()], key=lambda o: (o.domain, o.op))
    if as_json:
        print_json({"schema": 1, "operators": [asdict(o) for o in operators]})
    else:
        print_parts(lambda width: [operators_table(operators)])


@app.command("doctor", help="The machine as the engine sees it, and its measured rates.")
def doctor_command(
    calibrate: Annotated[bool, typer.Option("--calibrate", help="measure the rates anew and keep them")] = False,
    threads: Threads = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    from opfuse.report.machine import machine_json, machine_parts
    from opfuse.runtime.cache import default_directory
    from opfuse.target import host
    from opfuse.tune.calibrate import load_rates, measure_and_store

    target, cache = host(threads or physical_cores()), default_directory()
    rates = None if calibrate else load_rates(target, cache)
    if calibrate:
        with progress("measuring the machine") as say:
            rates = measure_and_store(target, cache, lambda what, share: say(f"{what} ({share:.0%})"))
    target = target.with_rates(rates) if rates is not None else target
    if as_json:
        print_json(machine_json(target))
    else:
        print_parts(lambda width: machine_parts(target))


# ---- models and options ----------------------------------------------------------------------------------------------
def open_model(
    model: Path, threads: int | None, shape: Sequence[str] | None = None, no_rule: Sequence[str] | None = None,
    no_fuse: Sequence[str] | None = None, strict: bool = False,
) -> Any:  # fmt: skip
    """The executable: compiled from an ONNX file, or loaded from an .opf file."""
    import opfuse
    from opfuse.rewrite.engine import check_names

    if not model.is_file():
        raise OptionError(str(model), "there is no such file" if not model.is_dir() else "it is a folder, not a file")
    if model.suffix == ".opf":
        given = {"--shape": shape, "--no-rule": no_rule, "--no-fuse": no_fuse, "--strict": strict, "--threads": threads}
        for option, value in given.items():
            if value:
                raise OptionError(option, f"{model} is compiled already", "give the option to `opfuse compile`")
        with progress(f"loading {model.name}"):
            return opfuse.load(model)
    shapes = parse_shapes(shape or ())
    check_names(no_rule or ())
    with progress(f"compiling {model.name}"):
        executable = opfuse.compile(
            model, threads=threads or physical_cores(), shapes=shapes, disable_rules=no_rule or (),
            disable_fusions=no_fuse or (), strict=strict,
        )  # fmt: skip
    check_fusions(executable, no_fuse or ())
    return executable


def refuse_compiled(model: Path, problem: str, way_out: str) -> None:
    if model.suffix == ".opf" and model.is_file():
        raise OptionError(str(model), problem, way_out)


def check_target(target: Path) -> None:
    """Before the work, what would fail or do harm after it."""
    if target.suffix == ".onnx":
        raise OptionError("--output", f"{target} looks like a model, and would be overwritten", "name it with .opf")
    if target.is_dir():
        raise OptionError("--output", f"{target} is a folder", f"name a file, as in {target / 'model.opf'}")
    if not target.parent.is_dir():
        raise OptionError("--output", f"there is no folder {target.parent}", "make it, or choose another place")


def need_shapes(executable: Any) -> None:
    """Where nothing is compiled yet because dimensions are open, say which --shape options close them."""
    if executable.variants:
        return
    open_inputs = [i for i in executable.inputs if not i.optional and not all(isinstance(d, int) for d in i.shape)]
    declared = " and ".join(f"of {i.name} [{', '.join(map(str, i.shape))}]" for i in open_inputs)
    blanks = {i.name: "x".join(str(d) if isinstance(d, int) else "?" for d in i.shape) for i in open_inputs}
    wanted = " ".join(f"--shape {name}={blank}" for name, blank in blanks.items())
    way_out = f"give it with a number in place of each \"?\": {wanted}"
    raise OptionError("--shape", f"the model leaves the shape {declared} open", way_out)


def parse_shapes(given: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """{"input": (1, 3, 224, 224)} from ["input=1x3x224x224"]; commas and spaces separate too; "x=" is a scalar."""
    shapes: dict[str, tuple[int, ...]] = {}
    for text in given:
        name, sign, numbers = text.rpartition("=")
        parts = numbers.replace(",", "x").replace("X", "x").replace("*", "x").split("x") if numbers.strip() else []
        if not sign or not name:
            raise OptionError("--shape", f"{text!r} names no input", "write --shape NAME=1x3x224x224")
        wrong = [p for p in parts if not p.strip().isdecimal()]
        if wrong:
            raise OptionError("--shape", f"{wrong[0].strip()!r} in {text!r} is no whole number from 0",
                              "write --shape NAME=1x3x224x224")  # fmt: skip
        if name in shapes:
            raise OptionError("--shape", f"the shape of {name!r} is given twice")
        shapes[name] = tuple(int(p) for p in parts)
    return shapes


def check_fusions(executable: Any, ids: Sequence[str]) -> None:
    """Ids can be checked only once there are decisions; what is compiled later, with other shapes, is left alone."""
    known = [d.id for model in executable.variants.values() for d in model.ledger.of("fusion") if d.rule == "kernel"]
    for given in ids:
        if given != "all" and known and given not in known:
            raise OptionError("--no-fuse", f"there is no fusion {given!r}", closest(given, known))


def closest(name: str, known: Sequence[str]) -> str:
    """A way out that names what was probably meant."""
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=3, cutoff=0.5)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there are {', '.join(known)}" if len(known) <= 12 else f"there are {len(known)}; `explain` shows them"


# ---- inputs and outputs ----------------------------------------------------------------------------------------------
def read_inputs(executable: Any, given: Sequence[str]) -> dict[str, np.ndarray]:
    """Arrays from NAME=FILE.npy and FILE.npz options. Types and shapes are checked by the call."""
    from opfuse.report.feeds import load_npy, load_npz

    names = [i.name for i in executable.inputs]
    arrays: dict[str, np.ndarray] = {}
    for text in given:
        name, sign, file = text.partition("=")
        while sign and name not in names and "=" in file:  # a name that holds "=" itself
            more, _, file = file.partition("=")
            name = f"{name}={more}"
        if sign:
            if name not in names:
                raise OptionError("--input", f"the model has no input {name!r}", closest(name, names))
            arrays[name] = load_npy(Path(file))
        elif text.endswith(".npz"):
            arrays |= load_npz(names, Path(text), optional=names)
        elif text.endswith(".npy") and len(names) == 1:
            arrays[names[0]] = load_npy(Path(text))
        else:
            raise OptionError("--input", f"{text!r} names no input", f"write {names[0]}={text}")
    return arrays


def random_inputs(executable: Any, seed: int) -> dict[str, np.ndarray]:
    from opfuse.report.feeds import random_feed
    from opfuse.report.reports import specs_of

    need_shapes(executable)
    return random_feed(specs_of(executable), seed)


def write_outputs(results: Mapping[str, np.ndarray], folder: Path) -> dict[str, Path]:
    """One .npy a result. Names that differ only in characters that files dislike get numbers."""
    from opfuse.report.feeds import file_stem

    if folder.exists() and not folder.is_dir():
        raise OptionError("--output", f"{folder} is a file, where a folder is wanted")
    folder.mkdir(parents=True, exist_ok=True)
    files: dict[str, Path] = {}
    for name, value in results.items():
        stem, number = file_stem(name), 1
        while (path := folder / f"{stem}{'' if number == 1 else f'_{number}'}.npy") in files.values():
            number += 1
        np.save(path, value, allow_pickle=False)
        files[name] = path
    return files


def describe(name: str, value: np.ndarray, file: Path | None) -> dict[str, Any]:
    """Name, type, shape and a few numbers of a result."""
    out: dict[str, Any] = {"name": name, "dtype": str(value.dtype), "shape": list(value.shape)}
    if value.size and value.dtype != np.bool_:
        numbers = value.astype(np.float64)
        out |= {"min": float(numbers.min()), "mean": float(numbers.mean()), "max": float(numbers.max())}
    return out | ({"file": str(file)} if file is not None else {})


# ---- printing --------------------------------------------------------------------------------------------------------
def print_parts(parts: Callable[[int], Sequence[RenderableType]]) -> None:
    """To a terminal with colours and in its width; into a pipe as plain text of a fixed width."""
    from opfuse.report.render import WIDTH, clamp_width, plain

    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False)
        width = clamp_width(console.width)
        console = Console(highlight=False, markup=False, emoji=False, width=width)
        for part in parts(width):
            console.print(part)
        return
    columns = os.environ.get("COLUMNS", "")
    width = clamp_width(int(columns)) if columns.isdecimal() else WIDTH
    write(plain(parts(width), width))


def print_json(data: Any) -> None:
    """Strict JSON: NaN and infinity become strings."""
    write(json.dumps(_strict(data), indent=2) + "\n")


class PipeClosed(Exception):
    """Whoever read standard output is gone (`| head`)."""


def write(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the flush at exit is quiet too
        raise PipeClosed from None


def _strict(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {str(k): _strict(v) for k, v in data.items()}
    if isinstance(data, (list, tuple)):
        return [_strict(v) for v in data]
    if isinstance(data, (np.generic, np.ndarray)):
        return _strict(data.tolist())
    if isinstance(data, float) and not np.isfinite(data):
        return str(data)
    return data if isinstance(data, (str, int, float, bool, type(None))) else str(data)


@contextmanager
def progress(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner on standard error, where that is a terminal. Gives a way to change its text."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda text: None
        return
    with console.status(what) as status:
        yield lambda text: status.update(text)


# ---- the program -----------------------------------------------------------------------------------------------------
def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code. Errors are printed in one line, with --debug after their traceback."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in given
    given = [a for a in given if a != "--debug"]
    try:
        code = app(args=given, prog_name="opfuse", standalone_mode=False)
        if code == INTERRUPTED:  # the command-line library turns an interrupt into this code
            return _say_error("interrupted", INTERRUPTED, debug)
        return code if isinstance(code, int) else 0
    except PipeClosed:
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return _say_error("interrupted", INTERRUPTED, debug)
    except (OpfuseError, OSError) as error:
        return _say_error(str(error), USER_ERROR, debug)
    except Exception as error:
        usage = getattr(error, "format_message", None)  # the command-line library's own errors, by what they can do
        if usage is not None:
            return _say_error(str(usage()), int(getattr(error, "exit_code", USER_ERROR)), debug)
        if type(error).__name__ == "Abort":
            return _say_error("interrupted", INTERRUPTED, debug)
        text = f"internal error: {type(error).__name__}: {error}"
        return _say_error(text if debug else f"{text} (--debug shows where)", INTERNAL_ERROR, debug)


def _say_error(text: str, code: int, debug: bool) -> int:
    if debug:
        traceback.print_exc()
    print(f"opfuse: {text}", file=sys.stderr)
    return code
