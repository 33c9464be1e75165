"""Units, shortened names, and tables."""

from __future__ import annotations

import pytest

from opfuse.report.render import common_prefix, count, names_in, plain, ratio, seconds, shorten, size, table


@pytest.mark.parametrize(("value", "text"), [
    (None, "-"), (0.0, "0 s"), (1.0, "1.00 s"), (12.34, "12.3 s"), (0.00123, "1.23 ms"), (1.25e-5, "12.5 µs"),
    (9.999e-4, "1.00 ms"), (999.4e-6, "999 µs"), (3.2e-9, "3.20 ns"), (1e-12, "0.00 ns"), (125.0, "125 s"),
])  # fmt: skip
def test_seconds(value: float | None, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(("value", "text"), [
    (0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (24576, "24.6 kB"), (999_949, "1.00 MB"), (4_800_000, "4.80 MB"),
    (2_500_000_000, "2.50 GB"),
])  # fmt: skip
def test_sizes(value: int, text: str) -> None:
    assert size(value) == text


def test_counts_and_ratios() -> None:
    assert [count(n) for n in (0, 999, 2_000_000, 4_100_000_000)] == ["0", "999", "2.00 M", "4.10 G"]
    assert ratio(3.0, 1.5) == "2.00x" and ratio(3.0, 0) == "-"


@pytest.mark.parametrize("width", range(0, 20))
def test_shortened_names_fit_and_keep_their_ends(width: int) -> None:
    name = "/model/layer.0/MatMul"
    short = shorten(name, width)
    assert len(short) <= max(width, 0)
    if width > 6:
        assert short.startswith("/") and short.endswith("Mul") and "…" in short
    assert shorten(name, 21) == name


def test_common_prefixes_end_at_separators() -> None:
    assert common_prefix(["/model/encoder/a", "/model/encoder/ab"]) == "/model/encoder/"
    assert common_prefix(["conv1", "conv2"]) == ""
    assert common_prefix(["/model/encoder/a"]) == ""
    assert common_prefix(["/model/encoder/a", "other"]) == ""


@pytest.mark.parametrize(("width", "text"), [
    (40, "conv1, relu1, add1"), (17, "conv1, relu1 +1"), (15, "conv1, relu1 +1"), (14, "conv1 +2"), (8, "conv1 +2"),
    (7, "c…v1 +2"),
])  # fmt: skip
def test_as_many_names_as_fit(width: int, text: str) -> None:
    assert names_in(["conv1", "relu1", "add1"], width) == text


def test_a_table_wraps_only_where_it_may() -> None:
    made = table(("id", "why"), [("k0 | k1", "word " * 30)], wrap=("why",))
    lines = plain([made], 60).splitlines()
    assert max(map(len, lines)) <= 60 and lines[2].startswith("k0 | k1  word")
    assert all(line.startswith("         word") for line in lines[3:])
