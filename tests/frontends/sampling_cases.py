"""Small models of what samples, transforms and selects, for `import_cases`: each mode, padding, odd and even length."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.frontends.small_models import Arrays

RNG = np.random.default_rng(13)


@dataclass(frozen=True)
class SamplingCase:
    op: str
    opsets: tuple[int, ...]
    feeds: Arrays
    body: str
    constants: Arrays = field(default_factory=dict)
    outputs: tuple[str, ...] = ("y",)
    terms: int = 16


def _normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def _ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def _grids() -> list[SamplingCase]:
    x, grid = _normal(2, 3, 5, 4), (_normal(2, 3, 2, 2) * np.float32(0.9))
    out = []
    for mode, name in (("bilinear", "linear"), ("nearest", "nearest"), ("bicubic", "cubic")):
        for padding in ("zeros", "border", "reflection"):
            for corners in (0, 1):
                rest = f'padding_mode = "{padding}", align_corners = {corners}'
                out.append(SamplingCase("GridSample", (16,), {"x": x, "g": grid},
                                        f'y = GridSample <mode = "{mode}", {rest}> (x, g)', terms=64))  # fmt: skip
        out.append(SamplingCase("GridSample", (20, 22), {"x": x, "g": grid}, f'y = GridSample <mode = "{name}"> (x, g)',
                                terms=64))  # fmt: skip
    volume, places = _normal(1, 2, 3, 4, 5), _normal(1, 2, 2, 2, 3) * np.float32(0.8)
    return [*out, SamplingCase("GridSample", (20,), {"x": volume, "g": places}, "y = GridSample (x, g)", terms=64)]


def _deformed() -> list[SamplingCase]:
    x, w = _normal(1, 4, 5, 6), _normal(2, 2, 2, 3)
    offset, mask = _normal(1, 2 * 2 * 6, 6, 6), _normal(1, 2 * 6, 6, 6)
    attrs = "group = 2, offset_group = 2, pads = [1, 1, 1, 1]"
    return [
        SamplingCase("DeformConv", (19, 22), {"x": x, "w": w, "o": offset, "b": _normal(2), "m": mask},
                     f"y = DeformConv <{attrs}> (x, w, o, b, m)", terms=256),
        SamplingCase("DeformConv", (19,), {"x": x, "w": _normal(2, 4, 2, 2), "o": _normal(1, 8, 2, 2)},
                     "y = DeformConv <strides = [3, 2], dilations = [1, 3]> (x, w, o)", terms=256),
    ]  # fmt: skip


def _signals() -> list[SamplingCase]:
    real, complex_ = _normal(2, 7, 1), _normal(2, 6, 3, 2)
    half = _normal(2, 4, 2)
    half[:, 0, 1] = 0  # the imaginary part of a constant is nothing
    window = np.hanning(8).astype(np.float32)
    wave = {"x": _normal(2, 37, 1)}
    out = [
        SamplingCase("DFT", (17,), {"x": real}, "y = DFT (x)", terms=32),
        SamplingCase("DFT", (17,), {"x": real}, "y = DFT <onesided = 1> (x)", terms=32),
        SamplingCase("DFT", (17,), {"x": complex_}, "y = DFT <axis = 2, inverse = 1> (x)", terms=32),
        SamplingCase("DFT", (17,), {"x": complex_}, "y = DFT <axis = 1> (x, n)", {"n": np.int64(4)}, terms=32),
        SamplingCase("DFT", (17,), {"x": complex_}, "y = DFT <axis = 1> (x, n)", {"n": np.int64(9)}, terms=32),
        SamplingCase("DFT", (20,), {"x": complex_}, 'y = DFT (x, "", a)', {"a": np.int64(1)}, terms=32),
        SamplingCase("DFT", (20,), {"x": real}, "y = DFT (x)", terms=32),
        SamplingCase("STFT", (17,), wave, "y = STFT (x, s, w)", {"s": np.int64(3), "w": window}, terms=64),
        SamplingCase("STFT", (17,), wave, 'y = STFT <onesided = 0> (x, s, "", l)',
                     {"s": np.int64(4), "l": np.int64(7)}, terms=64),
        SamplingCase("MelWeightMatrix", (17,), {}, "y = MelWeightMatrix (b, n, r, l, h)",
                     {"b": np.int64(8), "n": np.int64(64), "r": np.int64(8192), "l": np.float32(20),
                      "h": np.float32(4000)}),
        SamplingCase("Col2Im", (18,), {"x": _normal(2, 12, 20)}, "y = Col2Im (x, i, b)",
                     {"i": _ints(5, 7), "b": _ints(2, 3)}),
        SamplingCase("Col2Im", (18,), {"x": _normal(1, 8, 6)},
                     "y = Col2Im <strides = [2, 3], pads = [1, 0, 0, 1], dilations = [1, 2]> (x, i, b)",
                     {"i": _ints(5, 6), "b": _ints(2, 2)}),
    ]  # fmt: skip
    return out


def _pools() -> list[SamplingCase]:
    x = {"x": RNG.permutation(2 * 3 * 7 * 6).reshape(2, 3, 7, 6).astype(np.float32)}
    return [
        SamplingCase("MaxPool", (8, 10, 11, 12, 22), x, "y, i = MaxPool <kernel_shape = [3, 2]> (x)", {}, ("y", "i")),
        SamplingCase("MaxPool", (11, 12), x, "y, i = MaxPool <kernel_shape = [3, 3], strides = [2, 2], "
                     "pads = [1, 1, 1, 1], storage_order = 1> (x)", {}, ("y", "i")),
        SamplingCase("MaxPool", (12,), x, "y, i = MaxPool <kernel_shape = [2, 2], dilations = [2, 1], ceil_mode = 1, "
                     "strides = [2, 2]> (x)", {}, ("y", "i")),
    ]  # fmt: skip


def _selections() -> list[SamplingCase]:
    x = _normal(3, 4)
    repeated = {"c": np.float32([[2, 1], [1, 1], [2, 1], [3, 4]])}
    boxes = {"b": np.float32([[[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, -0.1, 1, 0.9], [0, 10, 1, 11], [1, 11.1, 0, 10.1]]]),
             "s": np.float32([[[0.9, 0.75, 0.6, 0.95, 0.5], [0.3, 0.2, 0.8, 0.7, 0.1]]]), "m": np.int64(3),
             "o": np.float32(0.5), "t": np.float32(0.25)}  # fmt: skip
    every = ("y", "i", "v", "n")
    return [
        SamplingCase("NonZero", (9, 13), {}, "y = NonZero (c)", {"c": np.array([[0, 2], [3, 0]])}),
        SamplingCase("Compress", (9, 11), {"x": x}, "y = Compress <axis = 0> (x, c)",
                     {"c": np.array([False, True, True])}),
        SamplingCase("Compress", (11,), {"x": x}, "y = Compress <axis = -1> (x, c)", {"c": np.array([False, True])}),
        SamplingCase("Compress", (11,), {"x": x}, "y = Compress (x, c)", {"c": np.arange(11) % 3 == 1}),
        SamplingCase("Unique", (11,), {}, "y, i, v, n = Unique (c)", repeated, every),
        SamplingCase("Unique", (11,), {}, "y, i, v, n = Unique <axis = 0, sorted = 1> (c)", repeated, every),
        SamplingCase("Unique", (11,), {}, "y, i, v, n = Unique <sorted = 0> (c)", repeated, every),
        SamplingCase("NonMaxSuppression", (10, 11), {}, "y = NonMaxSuppression (b, s, m, o, t)", boxes),
        SamplingCase("NonMaxSuppression", (11,), {}, "y = NonMaxSuppression <center_point_box = 1> (b, s, m, o)",
                     {k: np.abs(v) if k == "b" else v for k, v in boxes.items() if k != "t"}),
        SamplingCase("OptionalHasElement", (18,), {"x": x}, "y = OptionalHasElement (x)"),
        SamplingCase("OptionalGetElement", (18,), {"x": x}, "y = OptionalGetElement (x)"),
    ]  # fmt: skip


def _regions() -> list[SamplingCase]:
    x = {"x": _normal(2, 3, 6, 7), "b": _ints(0, 1, 1),
         "r": np.float32([[0, 0, 5, 4], [-2.5, 1.5, 3.3, 9.5], [2, 2, 2.5, 2.25]])}  # fmt: skip
    size = "output_height = 3, output_width = 2, sampling_ratio = 2"
    return [
        SamplingCase("RoiAlign", (10, 16, 22), x, f"y = RoiAlign <{size}> (x, r, b)", terms=64),
        SamplingCase("RoiAlign", (16,), x, f"y = RoiAlign <{size}, spatial_scale = 0.5, "
                     'coordinate_transformation_mode = "output_half_pixel"> (x, r, b)', terms=64),
        SamplingCase("RoiAlign", (16,), x, f'y = RoiAlign <{size}, mode = "max"> (x, r, b)', terms=64),
    ]  # fmt: skip


def _counts() -> list[SamplingCase]:
    words = {"x": np.array([[1, 1, 3, 3, 3, 7, 8], [5, 6, 7, 8, 6, 7, 5]], np.int32)}
    pool = ("ngram_counts = [0, 4], ngram_indexes = [0, 1, 2, 3, 4, 5, 6], "
            "pool_int64s = [2, 3, 5, 4, 5, 6, 7, 8, 6, 7], weights = [1.5, 2.0, 0.5, 1.0, 3.0, 0.25, 2.5]")  # fmt: skip
    shapes = (("TF", 1, 2, 0), ("TFIDF", 1, 2, 5), ("IDF", 2, 2, 5))
    return [
        *(SamplingCase("TfIdfVectorizer", (9,), words,
                       f'y = TfIdfVectorizer <mode = "{mode}", min_gram_length = {low}, '
                       f"max_gram_length = {high}, max_skip_count = {skip}, {pool}> (x)")
          for mode, low, high, skip in shapes),
        SamplingCase("Binarizer", (14,), {"x": _normal(3, 4)}, "y = ai.onnx.ml.Binarizer <threshold = 0.3> (x)"),
        SamplingCase("ArrayFeatureExtractor", (14,), {"x": _normal(3, 4), "p": _ints(2, 0)},
                     "y = ai.onnx.ml.ArrayFeatureExtractor (x, p)"),
    ]  # fmt: skip


def _optimisers() -> list[SamplingCase]:
    """ONNX Runtime without its training has none of them; answers for these stand in onnx.backend.test."""
    x, state = {"r": np.float32(0.1), "t": np.int64(3), "x": _normal(2, 3), "g": _normal(2, 3)}, np.abs(_normal(2, 3))
    domain = "ai.onnx.preview.training"
    return [
        SamplingCase("Adagrad", (14,), {**x, "a": state}, f"y, b = {domain}.Adagrad (r, t, x, g, a)", {}, ("y", "b")),
        SamplingCase("Adam", (14,), {**x, "a": state, "b": state}, f"y, c, d = {domain}.Adam (r, t, x, g, a, b)", {},
                     ("y", "c", "d")),
        SamplingCase("Momentum", (14,), {**x, "a": state},
                     f'y, b = {domain}.Momentum <alpha = 0.9, beta = 0.5, mode = "standard", norm_coefficient = 0.01> '
                     "(r, t, x, g, a)", {}, ("y", "b")),
    ]  # fmt: skip


SAMPLING: tuple[SamplingCase, ...] = (
    *_grids(), *_deformed(), *_signals(), *_pools(), *_selections(), *_regions(), *_counts(), *_optimisers(),
)  # fmt: skip
