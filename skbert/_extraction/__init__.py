"""A question to its answer in a context: `BertSpanExtractor`."""
