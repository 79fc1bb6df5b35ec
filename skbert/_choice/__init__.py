"""The best of several options: `BertChoiceRanker`."""
