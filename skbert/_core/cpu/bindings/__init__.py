"""The compiled kernels as functions of tensors: only here are addresses taken and C called."""
