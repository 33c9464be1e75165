"""Measurements of the machine, from which costs are predicted."""
