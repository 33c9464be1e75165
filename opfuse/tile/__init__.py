"""Tile programs (what one kernel does) and schedules (how it is cut), and the way from a region to them."""
