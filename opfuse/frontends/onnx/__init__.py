"""ONNX models into the IR: `load` reads a model, `supported` lists the operators that it understands."""

from opfuse.frontends.onnx.imports import SupportedOperator, supported
from opfuse.frontends.onnx.load import load

__all__ = ["SupportedOperator", "load", "supported"]
