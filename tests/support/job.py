"""What the tests that run on every estimator need to know of one, and rows that they share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

__all__ = ["LABELS", "NUMBERS", "PAIRS", "TEXTS", "WORDS", "Form", "Job"]

TEXTS = [
    f"the {word} {thing} is {word}"
    for word in ("good", "bad", "nice", "poor")
    for thing in ("book", "room", "film")
]
WORDS = [text.split() for text in TEXTS]
PAIRS = [(f"what is {text[4:8]}", text) for text in TEXTS]
LABELS = ["yes", "no"] * 6
NUMBERS = [float(row) for row in range(12)]


class Form(NamedTuple):
    """Twelve rows of X in a form that an estimator takes, y for them, and parameters."""

    X: list[Any]
    y: list[Any] | None
    params: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class Job:
    """An estimator with its samples.

    ``methods`` are the public ones that take X. ``kinds`` are those of `skbert.testing` that it
    passes, the usual one first, each with a scorer for searches.
    """

    estimator: Any
    forms: dict[str, Form]  # by name, the usual one first
    methods: set[str]
    kinds: dict[str, Any]
    quick: dict[str, Any] = field(default_factory=lambda: {"epochs": 1, "random_state": 0})

    @property
    def usual(self) -> Form:
        """The form that comes first."""
        return next(iter(self.forms.values()))

    @property
    def is_trained(self) -> bool:
        """Whether a fit goes through the loop of training."""
        return "epochs" in self.quick

    def make(self, model: Any, **params: Any) -> Any:
        """The estimator, on the CPU, with parameters for a quick fit."""
        return self.estimator(model, device="cpu", **{**self.quick, **params})
