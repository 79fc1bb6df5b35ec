"""A pass of training on a GPU waits for nothing: told on the CPU, in the way of a GPU."""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.job import Form, Job
from support.jobs import FORMS, JOBS
from support.networks import CPU, Labels, assert_all_close, open_model, without_waiting
from support.training import GENTLE, make_items, run, weigh, weights_of
from torch.utils._python_dispatch import TorchDispatchMode

import skbert
from skbert._core.runtime.device import Precision
from skbert._core.training import loop, stepper
from skbert._core.training.optim import AdamW
from skbert._core.training.stepper import Stepper
from skbert.exceptions import NonFiniteError

if TYPE_CHECKING:
    from pathlib import Path


class Waits(TorchDispatchMode):
    """Notes the operations of torch whose results have to reach the host."""

    NAMES = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "is_nonzero", "equal")

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name in {"index", "index_put", "index_put_", "_unsafe_index"} and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        sized = "repeat_interleave" in name and "output_size" not in (kwargs or {})
        if name in self.NAMES or by_mask or (sized and len(args) < 2):
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def test_what_waits_is_noticed() -> None:
    x = torch.arange(4)
    with Waits() as waits:
        float(x[0])
        x[x > 1]
        x.repeat_interleave(x)
    assert waits.found == ["_local_scalar_dense", "index", "repeat_interleave"]


class NotYet(stepper.AsyncCopy):
    """Numbers of a device that is slow: known when somebody waits for them."""

    def is_ready(self) -> bool:
        return False


@pytest.fixture
def as_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on the CPU in the way of a GPU: nothing is known, and the model's own layers run."""

    def step(optimizer: Any, _: Any, divisor: torch.Tensor, failed: torch.Tensor) -> None:
        optimizer.grad_scale, optimizer.found_inf = divisor.float(), failed
        optimizer.step()

    monkeypatch.setattr(stepper, "AsyncCopy", NotYet)
    monkeypatch.setattr(stepper, "take_step", step)
    monkeypatch.setattr(stepper, "adamw", lambda groups, _: AdamW(groups, fused=True))
    monkeypatch.setattr(stepper, "_can_train_used_rows", lambda network: False)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What each step of training waits for."""
    found: list[list[str]] = []
    take = Stepper.step

    def watched(taking: Any, chosen: Any) -> None:
        taking._network.layer_runner.is_enabled = False
        with Waits() as waits:
            take(taking, chosen)
        found.append(waits.found)

    monkeypatch.setattr(Stepper, "step", watched)
    return found


@pytest.mark.usefixtures("as_on_a_device")
@pytest.mark.parametrize(
    ("job", "form"),
    [pytest.param(*each, id=" ".join(key)) for key, each in FORMS.items() if each[0].is_trained],
)
def test_a_pass_waits_for_nothing(
    job: Job, form: Form, tiny_model: Path, found: list[list[str]]
) -> None:
    estimator = job.make(tiny_model, batch_size=4, **form.params)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        estimator.fit(form.X, form.y)
    assert len(found) >= 2
    assert not any(found)


@pytest.mark.usefixtures("as_on_a_device")
def test_a_step_that_fails_and_those_after_it_change_nothing(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, after = Stepper.step, []

    def step(taking: Any, chosen: Any) -> None:
        take(taking, chosen)
        after.append(weights_of(taking._network))

    class Spoiled(Labels):
        def loss(self, logits: torch.Tensor, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
            loss, weight = super().loss(logits, batch)
            return loss * (torch.nan if len(after) == 1 else 1.0), weight

    monkeypatch.setattr(Stepper, "step", step)
    network = open_model(tiny_model_no_dropout, dtype=torch.float64)
    passes = loop.TrainingLoop(
        network, Spoiled(), weigh(make_items(network)), GENTLE, Precision("float64", CPU), 0
    )
    with pytest.raises(NonFiniteError, match="At step 2 of 6 "):
        next(iter(passes))
    assert len(after) == 3  # told at the end of the pass
    for name, weight in weights_of(network).items():
        assert torch.equal(weight, after[0][name])


@pytest.mark.usefixtures("as_on_a_device")
def test_training_is_the_same_where_losses_are_known_later(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses: list[float] = []
    got, passes = run(tiny_model, GENTLE, on_step=losses.append)
    monkeypatch.undo()
    want, others = run(tiny_model, GENTLE)
    assert_all_close(got, want, 1e-6)
    assert [each.loss for each in passes] == pytest.approx([each.loss for each in others])
    assert len(losses) == 6


@pytest.mark.gpu
def test_a_gpu_is_not_waited_for(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take, n_steps = Stepper.step, []

    def watched(taking: Any, chosen: Any) -> None:
        n_steps.append(1)
        is_first = len(n_steps) <= 2  # these find their kernels
        with nullcontext() if is_first else without_waiting():
            take(taking, chosen)

    monkeypatch.setattr(Stepper, "step", watched)
    X, y, _ = JOBS["BertClassifier"].usual
    skbert.BertClassifier(tiny_model, epochs=4, batch_size=6, device="cuda").fit(X, y)
    assert len(n_steps) == 8
