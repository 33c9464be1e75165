"""The documentation is true: its Python examples run, its links lead somewhere, its commands exist.

Blocks marked ```python of one page run in order, in one namespace, in an empty folder that holds `model.onnx` (with one
input `x`). Blocks marked ```text are not run. In the pages of PRINTED, one right behind a ```python block is what that
block prints; OPFUSE_UPDATE_GOLDEN=1 renews it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
PRINTED = (ROOT / "docs" / "tour.md",)
_LINES = r"(?:(?!```).*\n)*"
SHOWN = re.compile(rf"^```python\n(?P<code>{_LINES})```\n(?:\n```text\n(?P<text>{_LINES})```$)?", re.MULTILINE)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")) if kind == language]


def write_model(path: Path) -> None:
    from onnx import TensorProto, helper, numpy_helper, save

    weight = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="fc"),
        helper.make_node("Relu", ["h"], ["y"], name="relu"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 4])
    graph = helper.make_graph(nodes, "small", [x], [y], [numpy_helper.from_array(weight, "w")])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=name_of)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_model(tmp_path / "model.onnx")
    monkeypatch.chdir(tmp_path)
    array = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    namespace: dict[str, Any] = {"array": array, "__name__": "documentation"}
    for k, text in enumerate(blocks(page, "python")):
        exec(compile(text, f"{name_of(page)}, example {k + 1}", "exec"), namespace)


@pytest.mark.parametrize("page", PRINTED, ids=name_of)
def test_examples_print_what_the_page_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {"__name__": "documentation"}

    def renewed(block: re.Match[str]) -> str:
        made = io.StringIO()
        with contextlib.redirect_stdout(made):
            exec(compile(block["code"], name_of(page), "exec"), namespace)
        lines = [line.rstrip() for line in made.getvalue().strip("\n").splitlines()]
        if block["text"] is None:
            assert not lines, f"{name_of(page)} prints what it does not show: {lines[:3]}"
            return block[0]
        return f"```python\n{block['code']}```\n\n```text\n" + "".join(f"{line}\n" for line in lines) + "```"

    shown = page.read_text(encoding="utf-8")
    right = SHOWN.sub(renewed, shown)
    assert len(SHOWN.findall(shown)) == len(blocks(page, "python")) >= 1
    if os.environ.get("OPFUSE_UPDATE_GOLDEN"):
        page.write_text(right, encoding="utf-8")
        return
    assert shown == right, f"{name_of(page)} has changed; OPFUSE_UPDATE_GOLDEN=1 renews it"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{name_of(page)} links to {target}"


@pytest.mark.parametrize("page", [p for p in PAGES if p.parent.name != "decisions"], ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    """Decisions are left out: they may tell of files that were given up."""
    named = re.findall(r"`((?:opfuse|tests|benchmarks|examples|docs)/[\w/.-]+)`", page.read_text(encoding="utf-8"))
    for path in named:
        assert (ROOT / path).exists(), f"{name_of(page)} names {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for target in re.findall(r"(?:^|`)make ([a-z]+)", page.read_text(encoding="utf-8"), re.MULTILINE):
        assert target in targets, f"{name_of(page)} says make {target}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_that_are_named_exist(page: Path) -> None:
    """Sub-commands and options of the command line, wherever a page names them."""
    cli = pytest.importorskip("opfuse.cli")
    import typer

    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    spoken = [line for text in blocks(page, "text") for line in text.splitlines()]
    spoken += re.findall(r"`([^`\n]+)`", page.read_text(encoding="utf-8"))
    for line in spoken:
        if (said := re.match(r"opfuse ([a-z]+)(.*)", line)) is None:
            continue
        command, rest = said.groups()
        assert command in commands, f"{name_of(page)} says opfuse {command}"
        known = {o for p in commands[command].params for o in (*p.opts, *p.secondary_opts)}
        for option in re.findall(r"(?<!\S)--[a-z-]+", rest.partition("#")[0]):
            assert option in known, f"{name_of(page)} says opfuse {command} {option}"
