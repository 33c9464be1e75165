"""Compiled models on hand-written kernels: numbers, threads, contexts, host steps, outputs that alias something."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from opfuse.errors import InputError, OpfuseError
from opfuse.runtime.model import CompiledModel
from opfuse.runtime.pool import native_runtime
from tests.runtime.chains import Chain, feeds_of, mixed, random_chain, run_in_order

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_give_the_same_bits_on_any_number_of_threads(seed: int, threads: int) -> None:
    rng = np.random.default_rng(seed)
    chain = random_chain(rng, 24)
    feeds = feeds_of(chain, rng)
    wanted = chain.expected(feeds)
    model = chain.compile(threads, debug=seed % 2 == 1)
    for _ in range(20):
        for got, want in zip(run_in_order(model, feeds), wanted, strict=True):
            np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("seed", range(4))
def test_host_steps_between_native_segments(seed: int, threads: int) -> None:
    rng = np.random.default_rng(100 + seed)
    chain = random_chain(rng, 24, host=True)
    feeds = feeds_of(chain, rng)
    model = chain.compile(threads, debug=True)
    assert any(k.name == "host_add" for k in model.plan.kernels)
    for got, want in zip(run_in_order(model, feeds), chain.expected(feeds), strict=True):
        np.testing.assert_array_equal(got, want)


def test_outputs_that_are_an_input_a_constant_a_view_or_shown_twice() -> None:
    chain = Chain()
    x = chain.input("x", 64)
    c = chain.constant(np.arange(64))
    y = chain.mix(x, c)
    chain.show(x, c, chain.view(x, (8, 8)), y, y, chain.view(y, (4, 16)), chain.view(c, (2, 32)))
    model = chain.compile()
    feed = np.linspace(0, 1, 64, dtype=np.float32)
    first = model.run([feed])
    for got, want in zip(first, chain.expected({"x": feed}), strict=True):
        np.testing.assert_array_equal(got, want)
    for k, a in enumerate(first):
        assert a.flags.writeable and not np.shares_memory(a, feed) and not np.shares_memory(a, model.weights)
        assert not any(np.shares_memory(a, b) for b in first[k + 1 :])
    kept = [a.copy() for a in first]
    model.run([feed + 1])
    for a, b in zip(first, kept, strict=True):
        np.testing.assert_array_equal(a, b)


def test_a_host_step_may_return_its_own_input_or_a_view_of_it() -> None:
    chain = Chain()
    x = chain.input("x", 64)
    a = chain.mix(x, x)
    h = chain.on_host(a, a)
    z = chain.mix(chain.mix(h, h), h)
    chain.show(z, h)
    for k, kernel in list(chain.host_kernels.items()):
        chain.kernels[k] = chain.host_kernels[k] = replace(kernel, function=lambda arrays: [arrays[0][::-1]])
    model = chain.compile(2, debug=True)
    feed = np.linspace(-1, 1, 64, dtype=np.float32)
    reverse = mixed(feed, feed)[::-1]
    np.testing.assert_array_equal(model.run([feed])[1], reverse)
    np.testing.assert_array_equal(model.run([feed])[0], mixed(mixed(reverse, reverse), reverse))


def test_a_host_step_with_a_wrong_result_is_named() -> None:
    chain = Chain()
    x = chain.input("x", 64)
    chain.show(chain.mix(chain.on_host(x, x), x))
    good = chain.host_kernels[0]
    wrong_type = lambda arrays: [arrays[0].astype(np.float64)]  # noqa: E731
    for function, text in ((lambda arrays: [], "made 0 values"), (wrong_type, "float64")):
        chain.kernels[0] = chain.host_kernels[0] = replace(good, function=function)
        with pytest.raises(OpfuseError, match=text):
            chain.compile().run([np.zeros(64, np.float32)])


# ---- threads ---------------------------------------------------------------------------------------------------------
def test_python_threads_share_one_model() -> None:
    rng = np.random.default_rng(7)
    chain = random_chain(rng, 20, n=4096)
    model = chain.compile(2)
    failures: list[str] = []

    def work(seed: int) -> None:
        feeds = feeds_of(chain, np.random.default_rng(seed))
        wanted = chain.expected(feeds)
        for _ in range(100):
            for got, want in zip(run_in_order(model, feeds), wanted, strict=True):
                if not np.array_equal(got, want):
                    failures.append(f"thread {seed}")
                    return

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert len(model._contexts) <= 4


def test_the_pool_grows_to_the_largest_count_asked_for() -> None:
    chain = random_chain(np.random.default_rng(3), 6)
    feeds = feeds_of(chain, np.random.default_rng(3))
    for threads in (2, 5, 3):
        run_in_order(chain.compile(threads), feeds)
    before = native_runtime().workers()
    assert before >= 4
    run_in_order(chain.compile(2), feeds)
    assert native_runtime().workers() == before


PRELUDE = """
import os, sys, time, threading
import numpy as np
from tests.runtime.chains import feeds_of, random_chain, run_in_order
rng = np.random.default_rng(1)
chain = random_chain(rng, 16, n=2048)
feeds = feeds_of(chain, rng)
wanted = chain.expected(feeds)
model = chain.compile(3)
def check():
    for got, want in zip(run_in_order(model, feeds), wanted, strict=True):
        assert np.array_equal(got, want)
check()
"""


def run_program(text: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + text], capture_output=True, text=True, timeout=60, env=environment, cwd=ROOT
    )
    assert done.returncode == 0, f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_a_forked_child_gets_a_pool_of_its_own() -> None:
    out = run_program("""
from opfuse.runtime.model import CompiledModel
from opfuse.runtime.pool import native_runtime
for k in range(5):
    child = os.fork()
    if child == 0:
        assert native_runtime().workers() == 0
        for _ in range(50): check()
        assert native_runtime().workers() == 2
        os._exit(0)
    for _ in range(50): check()
    assert os.waitpid(child, 0)[1] == 0
print("fine")
""")
    assert out.split() == ["fine"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
def test_fork_while_another_thread_is_inside_a_call() -> None:
    run_program("""
stop = []
def busy():
    while not stop: check()
t = threading.Thread(target=busy); t.start()
for k in range(10):
    child = os.fork()
    if child == 0:
        for _ in range(20): check()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
stop.append(1); t.join()
""")


@pytest.mark.parametrize(
    "ending",
    ["", "del model", "time.sleep(0.3)", "sys.exit(0)", "import atexit; atexit.register(check)",
     "t = threading.Thread(target=lambda: [check() for _ in range(100000)], daemon=True); t.start(); time.sleep(0.05)"],
)  # fmt: skip
def test_the_process_ends_cleanly(ending: str) -> None:
    """With workers spinning, with workers asleep, with a call under way in another thread."""
    run_program(ending)


def test_workers_that_fell_asleep_come_back() -> None:
    run_program("""
for pause in (0.0, 0.001, 0.01, 0.1):
    for _ in range(10):
        check(); time.sleep(pause)
""")


# ---- inputs ----------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def model() -> CompiledModel:
    chain = Chain()
    chain.show(chain.mix(chain.input("x", 64), chain.input("y", 64)))
    return chain.compile()


class TestInputs:
    def test_arrays_with_gaps_are_copied(self, model: CompiledModel) -> None:
        x = np.arange(128, dtype=np.float32)[::2]
        y = np.arange(64, dtype=np.float32)[::-1]
        np.testing.assert_array_equal(model.run([x, y])[0], mixed(x.copy(), y.copy()))

    def test_unaligned_arrays_are_copied(self, model: CompiledModel) -> None:
        x = np.frombuffer(b"\0" + np.arange(64, dtype=np.float32).tobytes(), np.float32, 64, 1)
        assert x.__array_interface__["data"][0] % 4
        y = np.ones(64, np.float32)
        np.testing.assert_array_equal(model.run([x, y])[0], mixed(np.arange(64, dtype=np.float32), y))

    def test_read_only_and_mapped_arrays_are_read(self, model: CompiledModel, tmp_path: Path) -> None:
        x = np.arange(64, dtype=np.float32)
        np.save(tmp_path / "x.npy", x)
        mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
        x.flags.writeable = False
        np.testing.assert_array_equal(model.run([mapped, x])[0], mixed(x, x))

    @pytest.mark.parametrize(
        ("value", "code", "says"),
        [
            ([1.0] * 64, "input-type", "numpy.asarray(y, numpy.float32)"),
            (None, "input-type", "NoneType"),
            (np.zeros(64), "input-dtype", "y.astype(numpy.float32)"),
            (np.zeros(64, ">f4"), "input-dtype", ">f4"),
            (np.zeros(63, np.float32), "input-shape", "[63], the model wants [64]"),
            (np.zeros((1, 64), np.float32), "input-shape", "[1, 64], the model wants [64]"),
            (np.float32(3), "input-shape", "[], the model wants [64]"),
        ],
    )
    def test_a_bad_input_is_named_with_what_is_wanted(
        self, model: CompiledModel, value: object, code: str, says: str
    ) -> None:
        with pytest.raises(InputError) as caught:
            model.run([np.zeros(64, np.float32), value])
        assert caught.value.input == "y" and caught.value.code == code and says in str(caught.value)

    def test_a_wrong_count(self, model: CompiledModel) -> None:
        with pytest.raises(InputError, match="1 arrays were given, the model takes 2: x, y"):
            model.run([np.zeros(64, np.float32)])

    def test_a_failed_call_gives_its_context_back(self, model: CompiledModel) -> None:
        for _ in range(3):
            with pytest.raises(InputError):
                model.run([])
        assert len(model._contexts) == 1  # calls of the other tests share it too

    def test_dlpack(self, model: CompiledModel) -> None:
        class Tensor:
            def __init__(self, array: np.ndarray) -> None:
                self.array = array

            def __dlpack__(self, **options: object) -> object:
                return self.array.__dlpack__(**options)

            def __dlpack_device__(self) -> tuple[int, int]:
                return self.array.__dlpack_device__()

        x = np.arange(64, dtype=np.float32)
        np.testing.assert_array_equal(model.run([Tensor(x), x])[0], mixed(x, x))

    def test_a_tensor_that_refuses(self, model: CompiledModel) -> None:
        class Tensor:
            def __dlpack__(self, **options: object) -> object:
                raise BufferError("it requires a gradient")

            def __dlpack_device__(self) -> tuple[int, int]:
                return (1, 0)

        with pytest.raises(InputError, match="it requires a gradient.*detached") as caught:
            model.run([Tensor(), np.zeros(64, np.float32)])
        assert caught.value.input == "x"

    def test_torch(self, model: CompiledModel) -> None:
        torch = pytest.importorskip("torch")
        x = torch.arange(64, dtype=torch.float32)
        np.testing.assert_array_equal(model.run([x, x])[0], mixed(x.numpy(), x.numpy()))


def test_profile_gives_a_time_for_each_kernel() -> None:
    chain = random_chain(np.random.default_rng(11), 12, n=1 << 14, host=True)
    feeds = feeds_of(chain, np.random.default_rng(0))
    for threads in (1, 2):
        model = chain.compile(threads)
        times = model.profile([feeds[p.name] for p in model.plan.inputs], seconds=0.05)
        assert len(times) == len(model.plan.kernels)
        assert all(0 < t < 0.05 for t in times)


def test_a_model_without_kernels_has_an_empty_profile() -> None:
    """Its outputs are its inputs."""
    chain = Chain()
    chain.show(chain.input("x", 64))
    assert chain.compile().profile([np.zeros(64, np.float32)]) == ()
