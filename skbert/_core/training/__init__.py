"""The training loop, the optimizer, and what is held out."""
