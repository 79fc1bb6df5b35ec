"""Texts to vectors: `BertTransformer`."""
