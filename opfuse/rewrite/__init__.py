"""Declared rewrites of a graph: canonical forms, folding, layout."""
