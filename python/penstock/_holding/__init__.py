"""Weights that one process holds for others: how a reader finds, maps and copies them."""
