"""Readers of model formats: each makes a `Graph` of IR operators."""
