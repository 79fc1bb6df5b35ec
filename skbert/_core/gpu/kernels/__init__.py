"""The kernels themselves, in Triton's language, which looks like Python."""
