"""Tile programs printed as Triton kernels."""
