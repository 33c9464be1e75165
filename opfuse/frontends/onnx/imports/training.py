"""Steps of the optimisers of ai.onnx.preview.training: formulas of each tensor with its gradient and its states.

Momentum(r, t, x, g, v)  -> v' = alpha v + beta g,  x' = x - r v'        one or more tensors of each kind, in groups

All of them add the gradient of the squared norm first: g + norm_coefficient x.
"""

from __future__ import annotations

from collections.abc import Callable

from opfuse.frontends.onnx.call import Call, InvalidNode
from opfuse.frontends.onnx.imports.definition import Import

DOMAIN = "ai.onnx.preview.training"


class _Step:
    """The values of one tensor's step, by names; numbers become constants of their type."""

    def __init__(self, call: Call, rate: str, count: str, x: str, gradient: str) -> None:
        self.call, self.x = call, x
        self.rate, self.count = call.cast(rate, call.dtype(x)), call.cast(count, call.dtype(x))
        self.gradient = self.of("add", self.of("mul", x, self.attribute("norm_coefficient", 0.0)), gradient)

    def attribute(self, name: str, default: float) -> float:
        return self.call.float_attribute(name, default)

    def of(self, op: str, *operands: str | float) -> str:
        values = [self.call.scalar(o, self.x) if isinstance(o, float) else o for o in operands]
        return self.call.emit(op, values)

    def mixed(self, state: str, keep: float, new: str) -> str:
        """keep * state + (1 - keep) * new"""
        return self.of("add", self.of("mul", state, keep), self.of("mul", new, 1 - keep))


def _grouped(call: Call, states: int, step: Callable[[_Step, list[str]], list[str]]) -> tuple[str | None, ...]:
    """Inputs are the rate, the number of the step, all tensors, all gradients, all first states, ...; outputs alike."""
    values = [call.input(k) for k in range(len(call.inputs))]
    count, rest = divmod(len(values) - 2, 2 + states)
    if rest or not count:
        raise InvalidNode(f"its {len(values) - 2} tensors are no groups of {2 + states}")
    made = []
    for k in range(count):
        x, gradient, *own = (values[2 + part * count + k] for part in range(2 + states))
        made.append(step(_Step(call, values[0], values[1], x, gradient), own))
    return tuple(results[part] for part in range(1 + states) for results in made)


def _adagrad(s: _Step, states: list[str]) -> list[str]:
    rate = s.of("div", s.rate, s.of("add", s.of("mul", s.count, s.attribute("decay_factor", 0.0)), 1.0))
    total = s.of("add", states[0], s.of("mul", s.gradient, s.gradient))
    size = s.of("add", s.of("sqrt", total), s.attribute("epsilon", 1e-6))
    return [s.of("sub", s.x, s.of("div", s.of("mul", rate, s.gradient), size)), total]


def _adam(s: _Step, states: list[str]) -> list[str]:
    """Kingma and Ba, algorithm 1; from the second step on the rate makes up for states that began at zero."""
    alpha, beta = s.attribute("alpha", 0.9), s.attribute("beta", 0.999)
    mean = s.mixed(states[0], alpha, s.gradient)
    square = s.mixed(states[1], beta, s.of("mul", s.gradient, s.gradient))
    lacks = [s.of("sub", s.call.scalar(1.0, s.x), s.of("pow", s.call.scalar(b, s.x), s.count)) for b in (alpha, beta)]
    corrected = s.of("div", s.of("mul", s.rate, s.of("sqrt", lacks[1])), lacks[0])
    begun = s.call.emit("greater", [s.count, s.call.scalar(0.0, s.x)])
    rate = s.call.emit("where", [begun, corrected, s.rate])
    size = s.of("add", s.of("sqrt", square), s.attribute("epsilon", 1e-6))
    x = s.of("sub", s.x, s.of("div", s.of("mul", rate, mean), size))
    return [s.of("mul", x, 1 - s.attribute("norm_coefficient_post", 0.0)), mean, square]


def _momentum(s: _Step, states: list[str]) -> list[str]:
    """At the first step the gradient counts whole. Nesterov's form looks one step ahead."""
    mode = s.call.string_attribute("mode")
    if mode not in ("standard", "nesterov"):
        raise InvalidNode(f"its mode {mode!r} is neither standard nor nesterov")
    alpha = s.attribute("alpha", 0.0)
    begun = s.call.emit("greater", [s.count, s.call.scalar(0.0, s.x)])
    share = s.call.emit("where", [begun, s.call.scalar(s.attribute("beta", 0.0), s.x), s.call.scalar(1.0, s.x)])
    speed = s.of("add", s.of("mul", states[0], alpha), s.of("mul", share, s.gradient))
    way = speed if mode == "standard" else s.of("add", s.gradient, s.of("mul", speed, alpha))
    return [s.of("sub", s.x, s.of("mul", s.rate, way)), speed]


_EMITS = ("add", "sub", "mul", "div", "pow", "sqrt", "where", "greater", "cast")
IMPORTS: tuple[Import, ...] = (
    Import("Adagrad", (1,), lambda call: _grouped(call, 1, _adagrad), _EMITS, DOMAIN),
    Import("Adam", (1,), lambda call: _grouped(call, 2, _adam), _EMITS, DOMAIN),
    Import("Momentum", (1,), lambda call: _grouped(call, 1, _momentum), _EMITS, DOMAIN),
)
