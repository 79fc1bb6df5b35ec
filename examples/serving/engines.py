"""What the server can serve: an exported folder, a saved estimator, and the contender."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class Classifier(Protocol):
    """What a server needs of a classifier."""

    classes_: Sequence[Any]

    def predict_proba(self, X: list[str]) -> Any:
        """A row of probabilities for each text."""


def runtime(folder: str) -> Classifier:
    """Open what ``export`` wrote, without torch."""
    import skbert.runtime

    return skbert.runtime.load(folder)


def estimator(folder: str) -> Classifier:
    """Open what ``save`` wrote, with torch."""
    import skbert

    return skbert.load(folder)


class SentenceTransformers:
    """What ``save_pretrained`` wrote, as sentence-transformers runs it: encoder, mean and head."""

    def __init__(self, folder: str) -> None:
        from sentence_transformers import SentenceTransformer

        self.model = SentenceTransformer(folder, device="cpu")
        first: Any = self.model[0]
        self.classes_: Sequence[Any] = [*first.auto_model.config.id2label.values()]

    def predict_proba(self, X: list[str]) -> Any:
        """A row of probabilities for each text."""
        logits = self.model.encode(
            X, batch_size=64, convert_to_tensor=True, show_progress_bar=False
        )
        return logits.softmax(dim=1).cpu().numpy()


ENGINES: dict[str, Callable[[str], Classifier]] = {
    "runtime": runtime,
    "estimator": estimator,
    "sentence-transformers": SentenceTransformers,
}
