"""skorch: transformers' classifier, wrapped as in skorch's documentation.

Every text is padded to the longest of all, as skorch's tokenizer offers no other way; AdamW with
one constant learning rate, float32, and no rows held out.
"""

from __future__ import annotations

import numpy as np
import plain
import torch
from skorch import NeuralNetClassifier
from skorch.hf import HuggingfacePretrainedTokenizer
from tasks import Rows
from transformers import AutoModelForSequenceClassification, AutoTokenizer


class _Logits(torch.nn.Module):
    """The logits alone, from a batch of skorch's tokenizer."""

    def __init__(self, folder: str, n_classes: int) -> None:
        super().__init__()
        self.model = AutoModelForSequenceClassification.from_pretrained(
            folder, num_labels=n_classes, dtype=torch.float32
        )

    def forward(self, **batch: torch.Tensor) -> torch.Tensor:
        """Logits ``(n_rows, n_classes)``."""
        logits: torch.Tensor = self.model(**batch).logits
        return logits


def fit(train: Rows, *, passes: int, batch_size: int, folder: str) -> float:
    """Fine-tune a classifier.

    Parameters
    ----------
    train : Rows
        The training rows, with one class each.
    passes, batch_size : int
        As for the others.
    folder : str
        Folder of the model.

    Returns
    -------
    float
        Seconds of the steps.
    """
    torch.manual_seed(0)
    lengths = map(len, AutoTokenizer.from_pretrained(folder)(train.first)["input_ids"])
    max_length = min(max(lengths), plain.LONGEST)
    classes, codes = np.unique(train.y, return_inverse=True)
    net = NeuralNetClassifier(
        _Logits,
        module__folder=folder,
        module__n_classes=len(classes),
        criterion=torch.nn.CrossEntropyLoss,
        optimizer=torch.optim.AdamW,
        lr=5e-5,
        max_epochs=passes,
        batch_size=batch_size,
        iterator_train__shuffle=True,
        train_split=None,
        device=plain.DEVICE,
        verbose=0,
    )
    tokenized = HuggingfacePretrainedTokenizer(folder, max_length=max_length).fit_transform(
        train.first
    )
    net.fit(tokenized, codes)
    return float(sum(net.history[:, "dur"]))
