"""ONNX models into the IR: `load` reads a model; `supported` lists the operators that it has rows for, `definitions`
those that it takes apart as ONNX defines them."""

from opfuse.frontends.onnx.functions import definitions
from opfuse.frontends.onnx.imports import SupportedOperator, supported
from opfuse.frontends.onnx.load import load

__all__ = ["SupportedOperator", "definitions", "load", "supported"]
