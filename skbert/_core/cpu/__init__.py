"""The encoder's layers on a CPU, and the compiled kernels that they use."""
