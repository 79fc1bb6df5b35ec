"""Models and their tokenizers, opened and run. The only room that imports transformers."""
