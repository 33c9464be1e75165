"""What runs in which order on which bytes, as plain data."""
