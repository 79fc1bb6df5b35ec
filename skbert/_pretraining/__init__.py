"""Pre-training on texts without labels: `BertPretrainer`."""
