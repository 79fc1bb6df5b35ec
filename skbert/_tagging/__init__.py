"""A tag for each word, and the entities that tags mark: `BertTokenTagger`."""
