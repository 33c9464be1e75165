"""Kernel providers: each claims regions, with a cost, or refuses them, with a reason."""
