"""Checks of X, y and weights, made before anything heavy is loaded.

Nothing here imports torch, a tokenizer or an estimator. The first six modules build on those
before them, and every other module on these six alone, but for `probabilities`, which builds on
`targets`:

- `parquet`: rows of parquet files and of Arrow's data sets
- `tables`: any container as a table; its columns as lists; lengths, missing y
- `features`: columns as numbers; those of numbers and categories beside the texts
- `columns`: which columns hold the texts, and whether they are those of fit
- `stored`: texts that are read when they are needed
- `texts`: X of texts or pairs of texts
- `words`: X of a tagger, rows of words
- `documents`: X of pre-training, texts or lists of sentences
- `choices`: X and y of a choice ranker, prompts with options
- `answers`: y of a span extractor
- `entities`: y of a tagger, tags or spans, and the entities that tags mean
- `targets`: y of a classifier or a regressor
- `soft_labels`: y of a classifier as probabilities
- `weights`: weights of rows and of classes
- `groups`: groups of rows that are held out together
- `probabilities`: labels beside the probabilities that were predicted of them
- `numbers`: counts and positions that are given as arguments
"""
