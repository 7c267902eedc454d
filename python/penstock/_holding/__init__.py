"""Weights that one process holds for others: how a reader finds them, and maps or copies them."""
