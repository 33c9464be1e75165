"""ONNX files and models to a `Graph`."""
