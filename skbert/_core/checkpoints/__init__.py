"""Model folders and saved estimators on disk: found, vetted, read and written."""
