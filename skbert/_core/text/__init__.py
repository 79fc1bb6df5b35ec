"""Texts to token ids: tokenising, truncation, windows."""
