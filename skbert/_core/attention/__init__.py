"""Attention over packed batches: within rows, relative positions, pruned heads."""
