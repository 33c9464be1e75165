"""Compiled files: what was saved runs again, and every kind of damage is one clear error."""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opfuse.errors import ArtifactError, InputError
from opfuse.ir.dims import symbol
from opfuse.ir.graph import Graph
from opfuse.ir.types import DType, TensorType
from opfuse.options import Options
from opfuse.runtime import archive, container
from opfuse.runtime.artifact import load, save
from opfuse.runtime.container import read_container, write_container
from opfuse.runtime.executable import Executable
from tests.runtime.chains import Chain, feeds_of, random_chain

ROOT = Path(__file__).resolve().parents[2]


def executable(chain: Chain, threads: int = 2) -> Executable:
    model = chain.compile(threads, graph=chain.graph)
    return Executable(chain.graph, Options(threads=threads), lambda graph: model)


@pytest.fixture
def chain() -> Chain:
    return random_chain(np.random.default_rng(5), 20, n=256)


@pytest.fixture
def saved(chain: Chain, tmp_path: Path) -> Path:
    path = tmp_path / "model.opf"
    save(path, executable(chain))
    return path


def test_a_saved_model_gives_the_same_answers_and_the_same_plan(chain: Chain, saved: Path) -> None:
    feeds = feeds_of(chain, np.random.default_rng(0))
    again = load(saved)
    for got, want in zip(again(feeds).values(), chain.expected(feeds), strict=True):
        np.testing.assert_array_equal(got, want)
    assert again.model.plan == executable(chain).model.plan
    assert again.inputs == executable(chain).inputs and again.graph is None


def test_weights_are_mapped_from_the_file(saved: Path) -> None:
    weights = load(saved).model.weights
    assert not weights.flags.writeable and weights.__array_interface__["data"][0] % 4096 == 0
    base = weights
    while isinstance(base.base, np.ndarray):
        base = base.base
    assert isinstance(base.base, memoryview) and isinstance(base.base.obj, mmap.mmap)


def test_a_loaded_model_can_be_saved_again(chain: Chain, saved: Path, tmp_path: Path) -> None:
    load(saved).save(tmp_path / "second.opf")
    assert (tmp_path / "second.opf").read_bytes() == saved.read_bytes()


def test_it_loads_in_a_fresh_process_after_it_was_replaced(chain: Chain, saved: Path) -> None:
    held = load(saved)
    save(saved, executable(chain))  # the running model keeps its own bytes
    feeds = feeds_of(chain, np.random.default_rng(0))
    np.testing.assert_array_equal(next(iter(held(feeds).values())), chain.expected(feeds)[0])
    inputs = saved.with_suffix(".npz")
    np.savez(inputs, **feeds)
    code = (
        f"import numpy as np; from opfuse.runtime.artifact import load; feeds = dict(np.load({str(inputs)!r})); "
        f"outputs = load({str(saved)!r})(feeds); print(next(iter(outputs.values())).tobytes().hex())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == chain.expected(feeds)[0].tobytes().hex()


def test_host_steps_are_rebuilt(tmp_path: Path) -> None:
    chain = random_chain(np.random.default_rng(2), 20, n=64, host=True)
    path = tmp_path / "model.opf"
    exe = executable(chain)
    assert exe.model.host_kernels
    exe.save(path)
    feeds = feeds_of(chain, np.random.default_rng(0))
    for got, want in zip(load(path)(feeds).values(), chain.expected(feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_a_host_step_that_cannot_be_stored_is_named(tmp_path: Path) -> None:
    chain = Chain()
    x = chain.input("x", 64)
    chain.show(chain.mix(chain.on_host(x, x, provider="mine"), x))
    with pytest.raises(ArtifactError, match="add_1.*run in Python \\(mine\\)"):
        executable(chain).save(tmp_path / "model.opf")
    assert list(tmp_path.iterdir()) == []


def test_variants_and_what_was_not_compiled(tmp_path: Path) -> None:
    graph = Graph("free")
    graph.add_input("x", TensorType(DType.F32, (symbol("S"),)))
    graph.set_outputs({"y": graph.emit("add", ["x", "x"])})

    def build(bound: Graph) -> object:
        chain = Chain()
        x = chain.input("x", bound.types["x"].static_shape[0])
        chain.graph.set_outputs({"y": chain.mix(x, x)})
        return chain.compile()

    exe = Executable(graph, Options(), build)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="not bound"):
        exe.save(tmp_path / "model.opf")
    wanted = {n: exe(x=np.ones(n, np.float32))["y"] for n in (32, 64)}
    exe.save(tmp_path / "model.opf")
    again = load(tmp_path / "model.opf")
    for n, want in wanted.items():
        np.testing.assert_array_equal(again(x=np.ones(n, np.float32))["y"], want)
    with pytest.raises(InputError, match="compiled for S = 32; S = 64, not for S = 16"):
        again(x=np.ones(16, np.float32))


# ---- damage ----------------------------------------------------------------------------------------------------------
def test_a_bit_turned_anywhere_is_found(saved: Path, tmp_path: Path) -> None:
    """One byte in each part, in the index and in the header; padding between parts is nobody's."""
    data = saved.read_bytes()
    opened = read_container(saved)
    places = [0, 9, 13, 20, 60, *(offset + size // 2 for offset, size in opened._places.values() if size)]
    for at in places:
        bad = tmp_path / "bad.opf"
        bad.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ArtifactError) as caught:
            load(bad)
        assert str(bad) in str(caught.value) and "compil" in str(caught.value).lower()


def test_a_file_cut_anywhere_is_found(saved: Path, tmp_path: Path) -> None:
    data = saved.read_bytes()
    last = max(offset + size for offset, size in read_container(saved)._places.values())
    for size in (0, 1, 8, 47, 48, 60, 3000, 4096, 5000, len(data) // 2, last - 1):
        bad = tmp_path / "bad.opf"
        bad.write_bytes(data[:size])
        with pytest.raises(ArtifactError) as caught:
            load(bad)
        assert caught.value.code in ("artifact-truncated", "artifact-foreign"), size


FOREIGN = (b"PK\x03\x04" + b"\0" * 100, b"\x08\x07onnx" * 50, b"hello", b"\x80\x04pickle" * 20)


@pytest.mark.parametrize("content", FOREIGN)
def test_a_foreign_file(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model.opf"
    path.write_bytes(content)
    with pytest.raises(ArtifactError, match="is not a compiled model.*opfuse compile"):
        load(path)


def test_a_missing_file_and_a_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.opf", tmp_path):
        with pytest.raises(ArtifactError, match="cannot be read"):
            load(path)


def test_a_newer_format(saved: Path) -> None:
    data = bytearray(saved.read_bytes())
    struct.pack_into("<I", data, 8, container.FORMAT + 1)
    saved.write_bytes(data)
    says = f"has the format {container.FORMAT + 1}, this opfuse reads {container.FORMAT}"
    with pytest.raises(ArtifactError, match=says):
        load(saved)


def rewritten(path: Path, change: Callable[[dict[str, object]], None]) -> Path:
    """The file with its content changed and all digests right: what a faulty writer could make."""
    opened = read_container(path)
    content = opened.json("content")
    change(content)
    parts = {name: opened.part(name).copy() for name in opened._places}
    write_container(path, {**parts, "content": json.dumps(content).encode()}, opened.facts)
    return path


def test_another_cpu(chain: Chain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exe = executable(chain)
    model = exe.model
    assert model.target is not None
    model.target = replace(model.target, isa="avx2", features=(*model.target.features, "avx1024"))
    exe.save(tmp_path / "model.opf")
    with pytest.raises(ArtifactError, match="compiled for a CPU with avx1024, which this one lacks.*on this machine"):
        load(tmp_path / "model.opf")
    monkeypatch.setattr(archive.platform, "machine", lambda: "riscv64")
    with pytest.raises(ArtifactError, match="this is riscv64"):
        load(tmp_path / "model.opf")


@pytest.mark.parametrize("key", ["interface", "options", "variants", "runtime"])
def test_missing_content(key: str, saved: Path) -> None:
    with pytest.raises(ArtifactError, match="does not fit this opfuse"):
        load(rewritten(saved, lambda content: content.pop(key)))  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["plan", "object", "weights", "target", "ledger", "bindings"])
def test_a_variant_without_a_part(key: str, saved: Path) -> None:
    with pytest.raises(ArtifactError):
        load(rewritten(saved, lambda content: content["variants"][0].pop(key)))  # type: ignore[index, attr-defined]


def test_object_code_that_is_none(saved: Path) -> None:
    opened = read_container(saved)
    name = opened.json("content")["variants"][0]["object"]
    parts = {n: opened.part(n).copy() for n in opened._places}
    parts[name] = np.frombuffer(b"not machine code", np.uint8)
    write_container(saved, parts, opened.facts)
    with pytest.raises(ArtifactError, match="object code is of another kind"):
        load(saved)


# ---- writing ---------------------------------------------------------------------------------------------------------
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    chain: Chain, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = hashlib.sha256(saved.read_bytes()).digest()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("opfuse.runtime.atomic_file.os.fsync", full)
    with pytest.raises(ArtifactError, match="No space left"):
        executable(chain).save(saved)
    assert hashlib.sha256(saved.read_bytes()).digest() == before
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_place_that_cannot_be_written(chain: Chain, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="cannot be written"):
        executable(chain).save(tmp_path / "no" / "such" / "folder.opf")
