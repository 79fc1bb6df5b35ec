"""Gradients summed over processes while others are computed; the other process is a twin.

A twin computes the same items, so that all sums double and the mean stays. Nothing is sent.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.families import save_own
from support.job import LABELS, TEXTS
from support.networks import CPU, assert_all_close
from support.training import GENTLE, RECIPE, Failing, both, run

from skbert import BertClassifier
from skbert._core.families import FAMILIES
from skbert._core.runtime.distributed import ProcessGroup
from skbert._core.training import reducing, stepper
from skbert._core.training.optim import adamw

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from skbert._arrays import IntArray


class Twins(ProcessGroup):
    """Two processes that compute the same."""

    sent: list[torch.Tensor]
    n_waiting: list[int]  # messages on their way whenever one was waited for

    def share(self, item_indices: IntArray) -> tuple[IntArray, float]:
        return item_indices, 1.0

    def all_reduce(self, tensors: Sequence[torch.Tensor]) -> None:
        for tensor in tensors:
            tensor.mul_(2)

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        pass

    def begin_all_reduce(self, tensor: torch.Tensor) -> Callable[[], None]:
        self.sent.append(tensor)
        return lambda: self.all_reduce([tensor])


@pytest.fixture
def twins(monkeypatch: pytest.MonkeyPatch) -> Twins:
    group = Twins(0, 2)
    group.sent = []
    monkeypatch.setattr(stepper, "process_group", lambda: group)
    monkeypatch.setattr(reducing, "BUCKET_SIZE", 1000)
    return group


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """For each step: buckets that were sent before the end of the backward pass, and all."""
    counts: list[tuple[int, int]] = []
    finish = reducing.GradientReducer.finish

    def noted(reducer: Any, sums: torch.Tensor) -> None:
        n_early = len(reducer._waits)
        finish(reducer, sums)
        counts.append((n_early, len(reducer._waits)))

    monkeypatch.setattr(reducing.GradientReducer, "finish", noted)
    return counts


@both
@pytest.mark.parametrize("accumulate", [1, 3])
def test_twins_learn_what_one_learns(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, twins: Twins,
    early: list[tuple[int, int]], precision: str, recipe: Any, tolerance: float, accumulate: int,
) -> None:  # fmt: skip
    recipe = replace(recipe, accumulate=accumulate)
    got, _ = run(tiny_model_no_dropout, recipe, precision=precision)
    assert early[0][0] == 0  # the first step finds out which weights there are
    assert all(n_early == n_all > 5 for n_early, n_all in early[1:])
    assert {tensor.dtype for tensor in twins.sent} == {getattr(torch, precision)}
    monkeypatch.setattr(stepper, "process_group", ProcessGroup)
    want, _ = run(tiny_model_no_dropout, recipe, precision=precision)
    assert_all_close(got, want, tolerance)


def test_bfloat16_is_sent_as_bfloat16(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, twins: Twins
) -> None:
    got, _ = run(tiny_model_no_dropout, GENTLE, precision="bfloat16")
    assert {tensor.dtype for tensor in twins.sent} == {torch.bfloat16}
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}
    monkeypatch.setattr(stepper, "process_group", ProcessGroup)
    want, _ = run(tiny_model_no_dropout, GENTLE, precision="bfloat16")
    # Adam moves a weight by the learning rate at most.
    limits = {name: 1e-4 if "classifier" in name else 5e-5 for name in want}
    assert all((got[n] - want[n]).abs().max() <= 12 * limits[n] for n in want)


def test_float16_is_sent_as_float32_and_lowers_its_scale(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, twins: Twins
) -> None:
    task = Failing(how="gradient")
    monkeypatch.setattr("support.training.Overflow.limit", 2.0**11)
    got, _ = run(tiny_model_no_dropout, GENTLE, precision="float16", task=task)
    assert {tensor.dtype for tensor in twins.sent} == {torch.float32}
    monkeypatch.setattr(stepper, "process_group", ProcessGroup)
    want, _ = run(tiny_model_no_dropout, GENTLE, precision="float16")
    assert_all_close(got, want, 5e-5)


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_all_families_send_during_the_backward_pass(
    name: str, tmp_path: Path, twins: Twins, early: list[tuple[int, int]]
) -> None:
    folder = str(save_own(FAMILIES[name], tmp_path))
    how: dict[str, Any] = {"head_init": "random", "pooling": "mean", "precision": "float32"}
    BertClassifier(folder, device="cpu", epochs=2, **how).fit(TEXTS, LABELS)
    assert len(early) == 2
    assert all(n_early == n_all > 0 for n_early, n_all in early[1:])


@pytest.mark.parametrize("how", [{"gradient_checkpointing": True}, {"freeze": 1}])
def test_settings_that_change_the_backward_pass(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, twins: Twins,
    early: list[tuple[int, int]], how: dict[str, Any],
) -> None:  # fmt: skip
    recipe = replace(RECIPE, **how)
    got, _ = run(tiny_model_no_dropout, recipe)
    assert all(n_early == n_all > 0 for n_early, n_all in early[1:])
    monkeypatch.setattr(stepper, "process_group", ProcessGroup)
    want, _ = run(tiny_model_no_dropout, recipe)
    assert_all_close(got, want, 1e-9)


def test_memory_that_runs_out_midway_sends_nothing_twice(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, twins: Twins,
    early: list[tuple[int, int]],
) -> None:  # fmt: skip
    """The other process has sent its part of what was sent, and waits for the rest."""
    want, _ = run(tiny_model_no_dropout, RECIPE)
    n_sent, n_per_step = len(twins.sent), len(twins.sent) // len(early)
    failures = []
    note_ready = reducing.GradientReducer._note_ready

    def scarce(reducer: Any, weight: torch.Tensor) -> None:
        note_ready(reducer, weight)
        if len(reducer._waits) == 3 and len(failures) < 2:
            failures.append(len(twins.sent))
            raise torch.OutOfMemoryError

    monkeypatch.setattr(reducing.GradientReducer, "_note_ready", scarce)
    got, _ = run(tiny_model_no_dropout, RECIPE)
    assert failures == [n_sent + n_per_step + 3] * 2  # in the second step, and again
    assert len(twins.sent) == 2 * n_sent
    assert_all_close(got, want, 1e-9)


# --- what one process lacks ----------------------------------------------------------------------


def reducer_of(group: ProcessGroup, n_weights: int = 3) -> tuple[Any, Any, list[torch.Tensor]]:
    weights = [torch.nn.Parameter(torch.ones(2)) for _ in range(n_weights)]
    groups = [{"params": weights, "lr": 1e-3, "initial_lr": 1e-3, "weight_decay": 0.0}]
    optimizer = adamw(groups, CPU)
    return reducing.GradientReducer(group, optimizer, weights, torch.float32), optimizer, weights


def step_of(reducer: Any, *losses: torch.Tensor) -> torch.Tensor:
    sums = torch.ones(2)
    reducer.begin()
    for number, loss in enumerate(losses, 1):
        reducer.begin_micro_batch(is_last=number == len(losses))
        loss.backward()
    reducer.finish(sums)
    return sums


def test_a_weight_without_a_gradient_has_none_afterwards(twins: Twins) -> None:
    reducer, optimizer, (first, second, third) = reducer_of(twins)
    assert step_of(reducer, (first * third).sum()).tolist() == [2.0, 2.0]
    assert optimizer.gradient(second) is None
    assert [x.grad.tolist() for x in (first, third)] == [[2.0, 2.0]] * 2
    # In a later step another weight has one, and one has it no more.
    optimizer.zero_grad()
    step_of(reducer, (first * second).sum())
    assert optimizer.gradient(third) is None
    assert [x.grad.tolist() for x in (first, second)] == [[2.0, 2.0]] * 2
    reducer.close()
    twins.sent.clear()
    first.sum().backward()
    assert twins.sent == []


def test_a_gradient_that_only_another_process_has(
    twins: Twins, monkeypatch: pytest.MonkeyPatch
) -> None:
    reducer, _, (first, second, _) = reducer_of(twins)

    def with_another(tensors: Sequence[torch.Tensor]) -> None:
        """That process has gradients of ones for the first two weights."""
        for tensor in tensors:
            tensor.add_(torch.tensor([0, 1, 1]) if tensor.dtype == torch.int32 else 1)

    monkeypatch.setattr(twins.__class__, "all_reduce", lambda _, tensors: with_another(tensors))
    step_of(reducer, first.sum())
    assert first.grad.tolist() == [2.0, 2.0]
    assert second.grad.tolist() == [1.0, 1.0]


def test_a_weight_in_several_micro_batches_is_sent_in_the_last(twins: Twins) -> None:
    reducer, _, (first, second, third) = reducer_of(twins)
    losses = [(first * second * third).sum() for _ in range(3)]
    step_of(reducer, *losses)
    reducer._optimizer.zero_grad()
    twins.sent.clear()
    losses = [(first * second * third).sum() for _ in range(3)]
    step_of(reducer, *losses)
    assert [tensor.tolist() for tensor in twins.sent] == [[6.0] * 6]


def test_one_process_watches_nothing() -> None:
    reducer, _, _ = reducer_of(ProcessGroup())
    reducer.begin()
    assert reducer._hooks == []
