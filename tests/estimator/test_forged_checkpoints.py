"""Checkpoints of a fit with right hashes that no fit has written: refused, whatever is in them."""

from __future__ import annotations

import math
import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.damage.containers import seal_manifest

from skbert import BertClassifier
from skbert._core.training.stepper import Stepper
from skbert._estimator.state import dumps, loads
from skbert.exceptions import SaveError, SkbertWarning

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment


class Stopped(BaseException):
    """What a killed process is to a fit."""


def estimator(model: Path, folder: Path) -> BertClassifier:
    return BertClassifier(
        model, epochs=2, batch_size=8, random_state=0, precision="float32", device="cpu",
        checkpoint_dir=folder, checkpoint_every=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def stopped(
    tiny_model: Path, tmp_path_factory: pytest.TempPathFactory, sentiment: Sentiment
) -> Path:
    """What a fit leaves that was stopped before its eighth step, in the second pass."""
    folder, take_step, left = tmp_path_factory.mktemp("stopped"), Stepper.step, iter(range(7))

    def step(stepper: Stepper, chosen: Any) -> None:
        if next(left, None) is None:
            raise Stopped
        take_step(stepper, chosen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stepper, "step", step)
        with pytest.raises(Stopped):
            estimator(tiny_model, folder).fit(*sentiment)
    return folder


@pytest.fixture
def checkpoint(stopped: Path, tmp_path: Path) -> Path:
    """Its newest checkpoint alone, to be forged."""
    shutil.copytree(stopped, tmp_path / "fits")
    older, newest = sorted((tmp_path / "fits").glob("fit-*/step-*"))
    shutil.rmtree(older)
    return newest


def loop(name: str, value: Any) -> Callable[[Any, Any], None]:
    return lambda state, tensors: state["loop"].update({name: value})


def change(name: str, how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Any], None]:
    return lambda state, tensors: tensors.update({name: how(tensors[name]).contiguous()})


REFUSED: dict[str, Callable[[Any, Any], Any]] = {
    "a pass before the first": loop("pass", [-(10**9), 0, 0.0, 1.0, 0.0]),
    "a pass after the last": loop("pass", [3, 0, 0.0, 1.0, 0.0]),
    "a step before the first": loop("pass", [2, -1, 0.0, 1.0, 0.0]),
    "a loss that is not finite": loop("pass", [2, 2, math.nan, 1.0, 0.0]),
    "no time": loop("pass", [2, 2, 1.0, 1.0, None]),
    "half a pass": loop("pass", [2, 2]),
    "a pass of another type": loop("pass", {"epoch": 2}),
    "steps that nobody took": loop("n_steps", 10**6),
    "no steps": loop("n_steps", None),
    "no tokens": loop("tokens", [0]),
    "of no process": loop("tokens", []),
    "an endless scale": loop("loss_scale", [math.inf, 0]),
    "a rate in words": loop("learning_rate", "much"),
    "a word that there is not": change("words.used_ids", lambda ids: ids + 10**6),
    "a word below the first": change("words.used_ids", lambda ids: ids - 10**6),
    "one word many times": change("words.used_ids", torch.zeros_like),
    "words between words": change("words.used_ids", torch.Tensor.double),
    "fewer rows": change("words.rows", lambda rows: rows[:1]),
    "no shrinking": change("words.unused_factor", lambda factor: factor.repeat(2)),
    "fewer moments": change("moments.exp_avg.0", lambda moments: moments[:1]),
    "a step that is none": change("moments.step.0", torch.zeros_like),
    "a generator of one byte": change("generators", lambda states: states[:, :1]),
    "a generator of other bytes": change("generators", lambda states: states.fill_(255)),
    "another part": lambda state, tensors: tensors.update(evil=torch.zeros(1)),
    "no generator": lambda state, tensors: tensors.pop("generators"),
    "no words": lambda state, tensors: tensors.pop("words.rows"),
    "no second moment": lambda state, tensors: tensors.pop("moments.exp_avg_sq.0"),
}
SET_ASIDE: dict[str, Callable[[Any, Any], Any]] = {
    "a history without steps": lambda state, tensors: state["history"].append({"loss": 1.0}),
    "no history": lambda state, tensors: state.update(history=None),
    "steps in words": lambda state, tensors: state.update(n_steps="many"),
    "attributes of another type": lambda state, tensors: state.update(attributes=5),
    "another key": lambda state, tensors: state.update(evil=1),
    "no loop": lambda state, tensors: state.pop("loop"),
    "an attribute that is not learned": lambda state, tensors: state["attributes"].update(a=1),
    "fewer weights": lambda state, tensors: tensors.pop("model.classifier.bias"),
    "other weights": change("model.classifier.weight", lambda weight: weight[:, :3]),
}


def forge(checkpoint: Path, how: Callable[[Any, Any], Any]) -> None:
    """Change what a checkpoint says, as somebody would who knows how it is sealed."""
    state = loads((checkpoint / "state.json").read_bytes())
    tensors = load_file(checkpoint / "model.safetensors")
    how(state, tensors)
    (checkpoint / "state.json").write_bytes(dumps(state))
    save_file(tensors, checkpoint / "model.safetensors")
    seal_manifest(checkpoint)


def fit(model: Path, checkpoint: Path, sentiment: Sentiment) -> Any:
    return estimator(model, checkpoint.parents[1]).fit(*sentiment)


def test_one_that_is_only_sealed_again_is_used(
    checkpoint: Path, tiny_model: Path, sentiment: Sentiment
) -> None:
    forge(checkpoint, lambda state, tensors: None)
    assert fit(tiny_model, checkpoint, sentiment).history_[0]["n_steps"] == 5


@pytest.mark.parametrize("how", REFUSED.values(), ids=REFUSED)
def test_what_no_fit_has_written_is_refused(
    checkpoint: Path, tiny_model: Path, sentiment: Sentiment, how: Callable[[Any, Any], Any]
) -> None:
    forge(checkpoint, how)
    with pytest.raises(SaveError, match=r"no fit has written it: .*Delete it, and fit again"):
        fit(tiny_model, checkpoint, sentiment)


@pytest.mark.parametrize("data", [b"[" * 100_000, b"", b"[]", b"{}", b"\xff"])
def test_a_state_that_is_none_is_set_aside(
    checkpoint: Path, tiny_model: Path, sentiment: Sentiment, data: bytes
) -> None:
    (checkpoint / "state.json").write_bytes(data)
    seal_manifest(checkpoint)
    with pytest.warns(SkbertWarning, match="cannot be used"):
        fit(tiny_model, checkpoint, sentiment)


@pytest.mark.parametrize("how", SET_ASIDE.values(), ids=SET_ASIDE)
def test_what_shows_when_it_is_read_is_set_aside(
    checkpoint: Path, tiny_model: Path, sentiment: Sentiment, how: Callable[[Any, Any], Any]
) -> None:
    forge(checkpoint, how)
    with pytest.warns(SkbertWarning, match="cannot be used"):
        fit(tiny_model, checkpoint, sentiment)
