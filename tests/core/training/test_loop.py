"""The training loop: what a step is worth, whatever it is cut into and whatever goes wrong."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.networks import CPU, Labels, assert_all_close, open_model
from support.training import (
    GENTLE,
    RECIPE,
    ROWS,
    TARGETS,
    WEIGHTS,
    Failing,
    N,
    Overflow,
    both,
    make_items,
    run,
    same,
    sizes,
    weigh,
    weights_of,
)
from torch.nn import functional as F

from skbert._core.batches import collate, steps_of_a_pass
from skbert._core.cpu import postnorm
from skbert._core.infer import infer
from skbert._core.runtime.device import Precision, seeded
from skbert._core.text.tokens import encode_texts
from skbert._core.training import stepper
from skbert._core.training.loop import TrainingLoop
from skbert._core.training.recipe import Recipe
from skbert.exceptions import NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.items import Items

__all__ = ["sizes"]  # a fixture

# --- a step is worth the same, whatever it is cut into ------------------------------------------


@both
@pytest.mark.parametrize(("batch_size", "accumulate"), [(2, 4), (4, 2), (1, 8)])
def test_accumulating_is_a_larger_batch(
    tiny_model_no_dropout: Path,
    sizes: list[int],
    precision: str,
    recipe: Recipe,
    tolerance: float,
    batch_size: int,
    accumulate: int,
) -> None:
    want, passes = run(tiny_model_no_dropout, recipe, precision=precision, change=weigh)
    assert len(sizes) == 6
    cut = replace(recipe, batch_size=batch_size, accumulate=accumulate)
    got, other = run(tiny_model_no_dropout, cut, precision=precision, change=weigh)
    assert len(sizes) >= 6 + 4 * accumulate + 2
    assert_all_close(got, want, tolerance)
    assert [epoch.n_steps for epoch in other] == [epoch.n_steps for epoch in passes] == [3, 3]
    assert other[-1].loss == pytest.approx(passes[-1].loss, rel=1e-4)


@both
@pytest.mark.parametrize("budget", [1, 16, 40])
def test_a_small_token_budget_changes_nothing(
    tiny_model_no_dropout: Path,
    monkeypatch: pytest.MonkeyPatch,
    sizes: list[int],
    precision: str,
    recipe: Recipe,
    tolerance: float,
    budget: int,
) -> None:
    want, _ = run(tiny_model_no_dropout, recipe, precision=precision, change=weigh)
    longest = max(map(len, (row.split() for row in ROWS))) + 2
    del sizes[:]
    monkeypatch.setitem(stepper.TRAINING_TOKENS, "cpu", budget)
    got, _ = run(tiny_model_no_dropout, recipe, precision=precision, change=weigh)
    assert max(sizes) <= max(budget, longest)
    assert len(sizes) > 6
    assert_all_close(got, want, tolerance)


# --- weights of samples --------------------------------------------------------------------------


def test_a_pass_reports_the_weighted_mean_loss(tiny_model_no_dropout: Path) -> None:
    still = replace(RECIPE, epochs=1, learning_rate=0.0, head_learning_rate=0.0, accumulate=1)
    ticks: list[float] = []
    _, (epoch,) = run(tiny_model_no_dropout, still, change=weigh, on_step=ticks.append)
    network = open_model(tiny_model_no_dropout, dtype=torch.float64)
    items = make_items(network)
    with torch.no_grad():
        batch = collate(items, np.arange(N), CPU, torch.float64)
        losses = F.cross_entropy(network.logits(batch), batch.targets, reduction="none").numpy()
    assert epoch.loss == pytest.approx(np.average(losses, weights=WEIGHTS), rel=1e-9)
    steps = steps_of_a_pass(items, 8, np.random.default_rng([0, 1]))
    assert [len(step) for step in steps] == [8, 8, 4]
    want = [np.average(losses[step], weights=WEIGHTS[step]) for step in steps]
    assert ticks == pytest.approx(want, rel=1e-9)


def test_only_the_ratio_of_weights_counts(tiny_model_no_dropout: Path) -> None:
    one, _ = run(tiny_model_no_dropout, RECIPE, change=weigh)
    ten, _ = run(tiny_model_no_dropout, RECIPE, change=lambda items: items.weighted(10 * WEIGHTS))
    assert_all_close(ten, one, 1e-9)
    plain, _ = run(tiny_model_no_dropout, RECIPE)
    assert max(float((plain[name] - one[name]).abs().max()) for name in one) > 1e-4


def test_rows_that_weigh_nothing_are_as_if_not_there(tiny_model_no_dropout: Path) -> None:
    weights = np.where(np.arange(N) % 3 == 1, 0.0, WEIGHTS)
    kept = np.flatnonzero(weights)
    got, passes = run(tiny_model_no_dropout, RECIPE, change=lambda items: items.weighted(weights))

    def chosen(items: Items) -> Items:
        part = items.take(kept)
        return replace(part, samples=np.arange(len(kept))).weighted(WEIGHTS[kept])

    want, _ = run(tiny_model_no_dropout, RECIPE, change=chosen)
    assert same(got, want)
    assert passes[0].n_steps == 2


def test_the_windows_of_a_text_weigh_as_much_as_one_text(tiny_model_no_dropout: Path) -> None:
    network = open_model(tiny_model_no_dropout, dtype=torch.float64)
    rows = encode_texts(network.text_tokenizer, ROWS, None, 8, "windows")
    table, samples = rows.tokens, rows.windows.samples
    assert len(table) > N
    items = loop_items = Labels().encode((ROWS, None), TARGETS, network.text_tokenizer)
    items = type(items).one_row_each(rows, TARGETS)
    exact = Precision("float64", CPU)
    still = Recipe(epochs=1, batch_size=6, learning_rate=0.0, head_learning_rate=0.0)
    (epoch,) = TrainingLoop(network, Labels(), items, still, exact, 0)
    assert epoch.n_steps == still.steps_per_pass(items) == still.steps_per_pass(loop_items) == 4
    losses = F.cross_entropy(
        torch.from_numpy(infer(network, items, exact).values),
        torch.from_numpy(TARGETS[samples]), reduction="none",
    ).numpy()  # fmt: skip
    by_text = [losses[samples == text].mean() for text in range(N)]
    assert epoch.loss == pytest.approx(np.mean(by_text), rel=1e-9)


# --- numbers that are none -----------------------------------------------------------------------


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("how", ["nan", "inf", "gradient"])
def test_a_number_that_is_none_stops_at_its_step(
    tiny_model_no_dropout: Path, how: str, accumulate: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Overflow, "limit", 0.0)
    recipe = replace(RECIPE, batch_size=4 // accumulate, accumulate=accumulate, warmup=0.0)
    network = open_model(tiny_model_no_dropout, dtype=torch.float64)
    items = weigh(make_items(network))
    third = steps_of_a_pass(items, 4, np.random.default_rng([0, 1]))[2]
    task = Failing(how=how, weight=float(items.weights[third[1]]))
    after: list[dict[str, torch.Tensor]] = []

    def on_step(_loss: float) -> None:
        assert network.word_embedding is not None
        network.word_embedding.write_back()
        after.append(weights_of(network))

    loop = TrainingLoop(network, task, items, recipe, Precision("float64", CPU), 0)
    loop.on_step = on_step
    with pytest.raises(NonFiniteError) as caught:
        list(loop)
    assert len(after) == 2
    assert same(weights_of(network), after[-1])
    message = str(caught.value)
    assert message.startswith("At step 3 of 10 ")
    assert f"rows {sorted(third.tolist())} of the training data (4 rows in the step)" in message
    rate = re.search(r"learning rate ([\d.e-]+)\.", message)
    assert rate is not None
    assert float(rate[1]) == pytest.approx(1e-3 * 0.8)  # two of ten steps down
    assert "Use a lower learning_rate" in message
    assert not network.model.training


# --- passes --------------------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_bits(tiny_model: Path) -> None:
    one, passes = run(tiny_model, RECIPE, precision="float32", seed=3)
    again, same_passes = run(tiny_model, RECIPE, precision="float32", seed=3)
    assert same(one, again)
    assert [p._replace(seconds=0.0) for p in passes] == [
        p._replace(seconds=0.0) for p in same_passes
    ]
    other, _ = run(tiny_model, RECIPE, precision="float32", seed=4)
    assert not same(one, other)


def test_each_pass_yields_what_it_came_to(tiny_model: Path) -> None:
    ticks: list[float] = []
    recipe = replace(RECIPE, epochs=3, warmup=0.0)
    _, passes = run(tiny_model, recipe, on_step=ticks.append)
    n_tokens = sum(len(row.split()) + 2 for row in ROWS)
    assert [epoch.epoch for epoch in passes] == [1, 2, 3]
    assert [(epoch.n_steps, epoch.n_tokens) for epoch in passes] == [(3, n_tokens)] * 3
    assert [epoch.learning_rate for epoch in passes] == pytest.approx(
        [1e-3 * 7 / 9, 1e-3 * 4 / 9, 1e-3 * 1 / 9]
    )
    assert all(epoch.seconds > 0 for epoch in passes)
    assert len(ticks) == 9
    sums = np.array(ticks).reshape(3, 3) @ [8, 8, 4]
    assert [epoch.loss for epoch in passes] == pytest.approx((sums / N).tolist())


def test_it_does_learn(tiny_model: Path, sentiment: Any) -> None:
    network = open_model(tiny_model)
    good = np.array([label == "good" for label in sentiment.labels], np.int64)
    items = Labels().encode((sentiment.texts, None), good, network.text_tokenizer)
    exact = Precision("float32", CPU)
    recipe = replace(RECIPE, epochs=12, learning_rate=3e-3)
    with seeded(0, CPU):
        passes = list(TrainingLoop(network, Labels(), items, recipe, exact, 0))
    assert passes[-1].loss < 0.1 * passes[0].loss
    found = Labels().decode(infer(network, items, exact), items)
    assert (found == good).mean() == 1.0


def test_the_caller_may_stop_and_look_in_between(tiny_model: Path) -> None:
    want, _ = run(tiny_model, RECIPE, precision="float32")
    exact = Precision("float32", CPU)
    network = open_model(tiny_model)
    items = make_items(network)
    seen = []
    with seeded(0, CPU):
        for _ in TrainingLoop(network, Labels(), items, RECIPE, exact, 0):
            assert not network.model.training
            infer(network, items, exact)
            seen.append(weights_of(network))
    assert same(seen[1], want)  # looking at it changed nothing
    again = open_model(tiny_model)
    with seeded(0, CPU):
        for epoch in TrainingLoop(again, Labels(), items, RECIPE, exact, 0):
            assert epoch.epoch == 1
            break
    assert same(weights_of(again), seen[0])
    assert not again.model.training
    assert all(p.grad is None and p.requires_grad for p in again.model.parameters())


def in_place(weight: torch.Tensor) -> None:
    with torch.no_grad():
        weight.mul_(3.0)


def by_data(weight: torch.Tensor) -> None:
    weight.data.mul_(3.0)


def test_a_holder_of_the_model_may_change_it_between_passes(tiny_model: Path) -> None:
    """Also by ``.data``, of which torch keeps no count."""

    def trained(change: Callable[[torch.Tensor], None]) -> dict[str, torch.Tensor]:
        network = open_model(tiny_model)
        weight = network.hand_out().bert.encoder.layer[0].attention.output.dense.weight
        with seeded(0, CPU):
            exact = Precision("bfloat16", CPU)
            for epoch in TrainingLoop(network, Labels(), make_items(network), RECIPE, exact, 0):
                if epoch.epoch == 1:
                    change(weight)
        return weights_of(network)

    want, still = trained(in_place), trained(lambda _: None)
    assert same(trained(by_data), want)
    name = "bert.encoder.layer.1.output.dense.weight"  # of another layer, so only by training
    assert not torch.equal(want[name], still[name])


@pytest.mark.parametrize(("freeze", "still"), [(0, 0), (1, 21), ("all", 39)])
def test_what_is_frozen_stays_as_it_was(
    make_tiny_model: Callable[..., Path], freeze: int | str, still: int
) -> None:
    folder = make_tiny_model()
    before = weights_of(open_model(folder, dtype=torch.float64))
    after, _ = run(folder, replace(RECIPE, freeze=freeze))
    unchanged = {name for name in before if torch.equal(before[name], after[name])}
    assert len(unchanged) == still
    assert not any("classifier" in name for name in unchanged)


def test_gradient_checkpointing_computes_twice_and_learns_the_same(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[None] = []
    compute = postnorm._run_layer

    def counted(*given: Any) -> Any:
        calls.append(None)
        return compute(*given)

    monkeypatch.setattr(postnorm, "_run_layer", counted)

    def trained(recipe: Recipe) -> dict[str, torch.Tensor]:
        network = open_model(tiny_model)
        layer = network.model.bert.encoder.layer[0]
        with seeded(0, CPU):
            list(
                TrainingLoop(
                    network, Labels(), make_items(network), recipe, Precision("float32", CPU), 0
                )
            )
        assert not layer.gradient_checkpointing
        return weights_of(network)

    want = trained(GENTLE)
    assert len(calls) == 6 * 2  # six steps, two layers
    got = trained(replace(GENTLE, gradient_checkpointing=True))
    assert len(calls) == 6 * 2 + 2 * 6 * 2
    assert_all_close(got, want, 1e-7)


# --- gradients of words --------------------------------------------------------------------------


def test_training_does_not_depend_on_how_words_are_looked_up(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words that are not in use decay like the others, and those drawn later join in."""
    recipe = replace(RECIPE, weight_decay=0.1, epochs=3)
    want, _ = run(tiny_model_no_dropout, recipe)
    monkeypatch.setattr(stepper, "_can_train_used_rows", lambda network: False)
    got, _ = run(tiny_model_no_dropout, recipe)
    assert_all_close(got, want, 1e-9)
