"""The command line, with a compiler that is a stub: options, errors, exit codes, output formats."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import opfuse
from opfuse import cli
from opfuse.decision import Decision, Ledger
from opfuse.errors import InputError, OptionError
from opfuse.plan.plan import KernelInfo, Native, Plan
from opfuse.report.explain import explain
from opfuse.report.verify_report import Distribution, OutputCheck, Report

ROOT = Path(__file__).resolve().parent.parent
FUSION = Decision("fusion", "kernel", ("conv1", "relu1"), "taken")


class Stub:
    """What `opfuse.compile` gives, as far as the command line uses it."""

    def __init__(self, asked: dict[str, Any]) -> None:
        kernel = KernelInfo("0", "conv+relu", ("conv1", "relu1"), "cpu", 1e-5, 4096, 1000, 0)
        plan = Plan((), (), (), (Native(()),), (kernel,), (), 0, 0, 0, asked.get("threads", 1),
                    {"fused": 10, "unfused": 20}, {"fused": 5, "unfused": 9})  # fmt: skip
        self.asked, self.model = asked, SimpleNamespace(plan=plan, ledger=Ledger([FUSION]))
        self.inputs = (SimpleNamespace(name="x", optional=False), SimpleNamespace(name="a=b", optional=False))
        self.variants = {"all": self.model}
        self.right = True

    def explain(self) -> Any:
        return explain(self.model)

    def save(self, path: Path) -> None:
        Path(path).write_bytes(b"compiled")

    def __call__(self, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        self.fed = feeds
        if "x" not in feeds:
            raise InputError("x", "is missing", "pass it")
        return {"out/1": feeds["x"] * 2, "flag": np.array(True), "none": np.zeros((0, 3), np.float32)}

    def verify(self, **options: Any) -> Report:
        self.options = options
        share = 0.5 if self.right else 2.0
        check = OutputCheck("y", "random 0", Distribution(1e-6, 0.0, 1e-6, share, 4, 0), 1e-7, 2e-6)
        return Report("m", ("random 0",), (check,), (), True)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> list[Stub]:
    made: list[Stub] = []

    def compile_(model: Path, **asked: Any) -> Stub:
        made.append(Stub(asked | {"model": model}))
        return made[-1]

    monkeypatch.setitem(vars(opfuse), "compile", compile_)
    monkeypatch.setitem(vars(opfuse), "load", lambda path: made.append(Stub({"loaded": path})) or made[-1])
    return made


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"stub")
    return path


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str | Path, code: int = cli.USER_ERROR) -> str:
    """The one line that a failing command prints; nothing goes to standard output."""
    assert cli.main([str(a) for a in arguments]) == code
    captured = capsys.readouterr()
    assert captured.out == "" and "Traceback" not in captured.err
    assert captured.err.count("\n") == 1, captured.err
    return captured.err


# ---- options ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("text", "name", "shape"), [
    ("input=1x3x224x224", "input", (1, 3, 224, 224)), ("x=7", "x", (7,)), ("x=", "x", ()),
    ("a/b:0=2,3", "a/b:0", (2, 3)),
    ("a=b=1x2", "a=b", (1, 2)),
    ("x=1 x 2", "x", (1, 2)), ("x=0x3", "x", (0, 3)),
])  # fmt: skip
def test_shapes(text: str, name: str, shape: tuple[int, ...]) -> None:
    assert cli.parse_shapes([text]) == {name: shape}


@pytest.mark.parametrize(("given", "words"), [
    (["1x3"], "names no input"), (["=1x3"], "names no input"), (["x=1xN"], "'N' in 'x=1xN' is no whole number"),
    (["x=1x-3"], "'-3'"), (["x=1xx3"], "''"), (["x=1.5"], "'1.5'"), (["x=1", "x=2"], "given twice"),
])  # fmt: skip
def test_wrong_shapes_say_what_is_wrong(given: list[str], words: str) -> None:
    with pytest.raises(OptionError, match="--shape") as raised:
        cli.parse_shapes(given)
    assert words in str(raised.value)


def test_options_reach_the_compiler(stub: list[Stub], model: Path) -> None:
    line = ["explain", str(model), "--threads", "3", "--shape", "x=1x2", "--shape", "m=4", "--strict"]
    line += ["--no-fuse", FUSION.id]
    assert cli.main(line) == 0
    asked = stub[0].asked
    assert asked["threads"] == 3 and asked["shapes"] == {"x": (1, 2), "m": (4,)} and asked["strict"] is True
    assert list(asked["disable_fusions"]) == [FUSION.id]


def test_threads_are_the_physical_cores_where_not_given(stub: list[Stub], model: Path) -> None:
    assert cli.main(["explain", str(model)]) == 0
    assert stub[0].asked["threads"] == cli.physical_cores() >= 1


def test_unknown_rules_and_fusions_get_suggestions(
    stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from opfuse.rewrite.engine import rule_names

    known = rule_names()[0]
    assert known in error_of(capsys, "explain", model, "--no-rule", known + "x")
    said = error_of(capsys, "explain", model, "--no-fuse", FUSION.id[:-1] + "?")
    assert "Did you mean" in said and FUSION.id in said


def test_options_of_compiling_are_refused_for_compiled_files(
    stub: list[Stub], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.opf"
    path.write_bytes(b"x")
    assert cli.main(["explain", str(path)]) == 0 and stub[0].asked == {"loaded": path}
    capsys.readouterr()
    assert "--shape" in error_of(capsys, "explain", path, "--shape", "x=1")


# ---- commands --------------------------------------------------------------------------------------------------------
def test_compile_writes_beside_and_says_so(
    stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model.parent)
    assert cli.main(["compile", str(model)]) == 0
    assert (model.parent / "model.opf").read_bytes() == b"compiled"
    assert "model.opf" in capsys.readouterr().out


def test_compile_never_writes_over_a_model(stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "--output" in error_of(capsys, "compile", model, "-o", model)
    assert model.read_bytes() == b"stub"


def test_compile_says_before_the_work_where_it_cannot_write(
    stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "is a folder" in error_of(capsys, "compile", model, "-o", model.parent)
    assert "there is no folder" in error_of(capsys, "compile", model, "-o", model.parent / "none" / "m.opf")
    assert not stub


@pytest.mark.parametrize("command", ["compile", "bench"])
def test_commands_for_models_refuse_compiled_files(
    stub: list[Stub], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    path = tmp_path / "m.opf"
    path.write_bytes(b"x")
    said = error_of(capsys, command, path)
    assert "m.opf: " in said and "the ONNX file" in said and not stub


def test_json_is_pure(stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = model.with_suffix(".opf")
    for line in (["compile", str(model), "-o", str(out)], ["explain", str(model)], ["verify", str(model)]):
        assert cli.main([*line, "--json"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["schema"] == 1 and captured.err == ""


def test_not_finite_numbers_are_strings_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    cli.print_json({"a": float("nan"), "b": [float("inf"), np.float32(1.5)], "c": np.int64(3), 4: (Path("p"),)})
    assert json.loads(capsys.readouterr().out) == {"a": "nan", "b": ["inf", 1.5], "c": 3, "4": ["p"]}


def test_run_reads_and_writes_arrays(stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model.parent
    np.save(folder / "x.npy", np.float32([1, 2]))
    np.save(folder / "b.npy", np.int64([3]))
    line = ["run", str(model), "--input", f"x={folder / 'x.npy'}", "--input", f"a=b={folder / 'b.npy'}",
            "--output", str(folder / "out" / "deep"), "--json"]  # fmt: skip
    assert cli.main(line) == 0
    assert set(stub[0].fed) == {"x", "a=b"}, "an input's name may hold an equals sign"
    data = json.loads(capsys.readouterr().out)
    assert [o["shape"] for o in data["outputs"]] == [[2], [], [0, 3]]
    assert np.array_equal(np.load(folder / "out" / "deep" / "out_1.npy"), [2, 4])
    assert data["outputs"][0]["max"] == 4.0 and "max" not in data["outputs"][2]


def test_run_reads_archives(stub: list[Stub], model: Path) -> None:
    np.savez(model.parent / "all.npz", x=np.float32([1]))
    assert cli.main(["run", str(model), "--input", str(model.parent / "all.npz")]) == 0
    assert set(stub[0].fed) == {"x"}


@pytest.mark.parametrize(("given", "words"), [
    (["y=x.npy"], "no input 'y'"), (["x=none.npy"], "no such file"), (["x.npy"], "names no input"),
])  # fmt: skip
def test_wrong_inputs(
    stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str], given: list[str], words: str
) -> None:
    assert words in error_of(capsys, "run", model, *(a for g in given for a in ("--input", g)))


def test_outputs_with_names_that_clash_are_kept_apart(tmp_path: Path) -> None:
    files = cli.write_outputs({"a/1": np.zeros(1), "a:1": np.ones(1), "a_1": np.full(1, 2)}, tmp_path)
    assert len(set(files.values())) == 3
    assert [np.load(f)[0] for f in files.values()] == [0, 1, 2]


def test_verify_tells_by_its_exit_code(
    stub: list[Stub], model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", str(model), "--inputs", "5"]) == 0
    assert stub[0].options["inputs"] == 5 and stub[0].options["data"] is None
    monkeypatch.setattr(Stub, "verify", lambda self, **o: Report("m", ("f",), (OutputCheck(
        "y", "f", Distribution(1.0, 1.0, 1.0, 9.0, 1, 0), 0.0, 0.1),), (), True))  # fmt: skip
    assert cli.main(["verify", str(model)]) == cli.WRONG_ANSWER
    assert "WRONG" in capsys.readouterr().out


# ---- errors ----------------------------------------------------------------------------------------------------------
def test_user_errors_are_one_line(stub: list[Stub], model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file" in error_of(capsys, "explain", "none.onnx")
    assert "a folder" in error_of(capsys, "explain", model.parent)
    assert "No such command" in error_of(capsys, "frobnicate")
    assert "MODEL" in error_of(capsys, "explain")
    assert "--threads" in error_of(capsys, "explain", model, "--threads", "0")
    assert "No such option" in error_of(capsys, "explain", model, "--frob")


def test_an_internal_error_is_no_user_error(
    stub: list[Stub], model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: Stub) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(Stub, "explain", broken)
    assert "ZeroDivisionError: oops" in error_of(capsys, "explain", model, code=cli.INTERNAL_ERROR)
    assert cli.main(["explain", str(model), "--debug"]) == cli.INTERNAL_ERROR
    assert "Traceback" in capsys.readouterr().err


def test_an_interrupt_is_quiet(
    stub: list[Stub], model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(self: Stub) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Stub, "explain", interrupted)
    assert "interrupted" in error_of(capsys, "explain", model, code=cli.INTERRUPTED)


# ---- the program -----------------------------------------------------------------------------------------------------
def run(*arguments: str, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "opfuse", *arguments], cwd=ROOT, text=True, stdout=stdout,
                          stderr=subprocess.PIPE, timeout=60)  # fmt: skip


def test_the_module_is_the_program() -> None:
    done = run("--version")
    assert done.returncode == 0 and done.stdout == f"opfuse {opfuse.__version__}\n" and done.stderr == ""


def test_help_names_every_command() -> None:
    out = run("--help").stdout
    assert all(f"  {name}" in out for name in ("compile", "run", "explain", "verify", "bench", "ops"))


def test_ops_lists_operators_with_opsets() -> None:
    done = run("ops", "--json")
    rows = {r["op"]: r for r in json.loads(done.stdout)["operators"]}
    assert {"Conv", "MatMul", "Softmax", "LayerNormalization"} <= set(rows)
    assert rows["Relu"]["opsets"][0][0] == 7


def test_a_closed_pipe_is_quiet() -> None:
    command = f"{sys.executable} -m opfuse ops | true; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stderr == "" and done.stdout.strip() in (str(cli.BROKEN_PIPE), "0")


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    code = "import sys, opfuse.cli; print('llvmlite' in sys.modules, 'onnx' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
