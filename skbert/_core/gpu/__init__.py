"""Kernels for GPUs, written in Triton, with the interfaces of those for processors."""
