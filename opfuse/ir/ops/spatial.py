"""Windows over spatial axes: what convolutions and pools share. Their layout, output extents, and index maps.

    window = Window.of(kernel=(3, 3), strides=(2, 2), dilations=(1, 1), pads=(1, 1, 1, 1), extents=(H, W))
    window.output        -> ((H - 1) // 2 + 1, (W - 1) // 2 + 1)
    window.index(0)      -> 2*y + ky - 1

Spatial axes are called x (the last), y and z; those of the kernel kx, ky and kz; the batch n and the channel c.
"""

from __future__ import annotations

from dataclasses import dataclass

from opfuse.ir.dims import Dim
from opfuse.ir.index import Index
from opfuse.ir.ops.definition import Call, OperatorError
from opfuse.ir.structure import Axis
from opfuse.ir.types import TensorType

LAYOUTS = ("NCHW", "NHWC")


def spatial_names(count: int) -> tuple[str, ...]:
    return ("z", "y", "x")[3 - count :] if count <= 3 else tuple(f"s{k}" for k in range(count))


def channel_dimension(layout: str, rank: int) -> int:
    """Where the channels stand: second, or last. "NCHW" and "NHWC" stand for any number of spatial axes."""
    if layout not in LAYOUTS:
        raise OperatorError(f"layout {layout!r} is none of {', '.join(LAYOUTS)}")
    if rank < 2:
        raise OperatorError(f"a tensor of rank {rank} has no channels")
    return 1 if layout == "NCHW" else rank - 1


def spatial_shape(t: TensorType, layout: str) -> tuple[Dim, ...]:
    channel = channel_dimension(layout, t.rank)
    return tuple(d for k, d in enumerate(t.shape) if k not in (0, channel))


def arrange(layout: str, batch: Dim, channels: Dim, spatial: tuple[Dim, ...]) -> tuple[Dim, ...]:
    return (batch, channels, *spatial) if layout == "NCHW" else (batch, *spatial, channels)


@dataclass(frozen=True)
class Window:
    """Windows that slide over spatial extents; `before` and `after` are the pads."""

    kernel: tuple[Dim, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    extents: tuple[Dim, ...]
    ceil_mode: bool = False

    @staticmethod
    def of(kernel: tuple[Dim, ...], call: Call, extents: tuple[Dim, ...]) -> Window:
        """From the attributes strides, dilations, pads, ceil_mode; OperatorError where their lengths do not fit."""
        rank = len(extents)
        if rank == 0:
            raise OperatorError("there are no spatial axes")
        for name, value, count in (
            ("kernel", kernel, rank),
            ("strides", call["strides"], rank),
            ("dilations", call["dilations"], rank),
            ("pads", call["pads"], 2 * rank),
        ):
            if len(value) != count:
                raise OperatorError(f"{name} has {len(value)} numbers for {rank} spatial axes, must have {count}")
        if any(s < 1 for s in (*call["strides"], *call["dilations"])):
            raise OperatorError("strides and dilations must be positive")
        pads = tuple(call["pads"])
        ceil_mode = bool(call.attrs.get("ceil_mode", False))
        window = Window(
            tuple(kernel),
            tuple(call["strides"]),
            tuple(call["dilations"]),
            pads[:rank],
            pads[rank:],
            extents,
            ceil_mode,
        )
        for k, d in enumerate(window.output):
            if isinstance(d, int) and d < 0:
                raise OperatorError(
                    f"the window of {window.span(k)} is larger than the padded extent of spatial axis {k}"
                )
        return window

    @property
    def axes(self) -> tuple[Axis, ...]:
        return tuple(Axis(n, d) for n, d in zip(spatial_names(len(self.extents)), self.output, strict=True))

    @property
    def taps(self) -> tuple[Axis, ...]:
        return tuple(Axis(f"k{n}", d) for n, d in zip(spatial_names(len(self.extents)), self.kernel, strict=True))

    def span(self, k: int) -> Dim:
        return (self.kernel[k] - 1) * self.dilations[k] + 1

    @property
    def output(self) -> tuple[Dim, ...]:
        return tuple(self._output(k) for k in range(len(self.extents)))

    def _output(self, k: int) -> Dim:
        room = self.extents[k] + self.before[k] + self.after[k] - self.span(k)
        if not self.ceil_mode:
            return room // self.strides[k] + 1
        steps = -((-room) // self.strides[k]) + 1
        # A window must start inside the extent or its left border (ONNX, PyTorch): the last one may have to go.
        extent = self.extents[k]
        if isinstance(steps, int) and isinstance(extent, int):
            starts_outside = (steps - 1) * self.strides[k] >= extent + self.before[k]
            return steps - 1 if starts_outside else steps
        return steps

    def index(self, k: int) -> Index:
        """Where the input is read along spatial axis k: stride * position + dilation * tap - before."""
        return self.axes[k].index * self.strides[k] + self.taps[k].index * self.dilations[k] - self.before[k]

    def last_read(self, k: int) -> Dim:
        return (self.output[k] - 1) * self.strides[k] + self.span(k) - 1 - self.before[k]

    @property
    def leaves(self) -> bool:
        """Some window may reach outside the extents."""
        return any(self._leaves(k) for k in range(len(self.extents)))

    def _leaves(self, k: int) -> bool:
        if self.before[k] > 0:
            return True
        if self.after[k] <= 0 and not (self.ceil_mode and self.strides[k] > 1):
            return False
        over = self.last_read(k) - self.extents[k]
        return not (isinstance(over, int) and over < 0)
