"""Tile programs printed as LLVM IR, and the native entry function of a model."""
