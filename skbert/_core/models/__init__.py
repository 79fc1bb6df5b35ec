"""Models and their tokenizers, opened and run. The only package that imports transformers."""
