"""Schedules, parameter groups, and a training that a plain torch loop repeats."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from support.families import tiny_of
from support.networks import (
    CPU,
    Labels,
    assert_all_close,
    gradients,
    open_model,
    padded,
    plain_twin,
    sentences,
)
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

from skbert._core.batches import steps_of_a_pass
from skbert._core.families import FAMILIES
from skbert._core.runtime.device import Precision
from skbert._core.training.loop import TrainingLoop
from skbert._core.training.optim import (
    SCHEDULES,
    freeze,
    gradient_norm,
    parameter_groups,
    rate_factor,
    take_step,
    warmup_steps,
)
from skbert._core.training.recipe import Recipe
from skbert.exceptions import InputError

if TYPE_CHECKING:
    from pathlib import Path

# --- schedules -----------------------------------------------------------------------------------


def rates_of_transformers(name: str, rate: float, n_steps: int, n_warmup: int) -> list[float]:
    optimizer = torch.optim.AdamW([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = get_scheduler(
        name, optimizer, num_warmup_steps=n_warmup, num_training_steps=n_steps
    )
    rates = scheduler.get_last_lr()
    for _ in range(n_steps - 1):
        optimizer.step()
        scheduler.step()
        rates += scheduler.get_last_lr()
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
@given(
    n_steps=st.integers(1, 60),
    warmup=st.integers(0, 70),
    rate=st.sampled_from([1e-6, 5e-5, 1e-3, 0.1]),
)
@example(n_steps=10, warmup=10, rate=5e-5)
@example(n_steps=10, warmup=0, rate=5e-5)
@example(n_steps=1, warmup=1, rate=5e-5)
def test_schedules_follow_transformers_step_by_step(
    name: str, n_steps: int, warmup: int, rate: float
) -> None:
    ours = [rate * rate_factor(name, step, n_steps, warmup, rate) for step in range(n_steps)]
    theirs = rates_of_transformers(name, rate, n_steps, warmup)
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-18)


def test_the_schedules_are_those_that_are_promised() -> None:
    with_options = "cosine_with_restarts", "constant_with_warmup"
    assert set(SCHEDULES) == {"linear", "cosine", "polynomial", "constant", *with_options}


def test_a_worked_schedule() -> None:
    made = [rate_factor("linear", step, 10, 4, 1.0) for step in range(10)]
    assert made == pytest.approx([0, 1 / 4, 2 / 4, 3 / 4, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize(
    ("warmup", "n_steps", "steps"),
    [(0.0, 100, 0), (0.1, 100, 10), (0.1, 101, 11), (0.999, 10, 9), (1, 100, 1), (25, 100, 25)],
)
def test_warmup_is_a_share_below_one_else_a_number(
    warmup: float, n_steps: int, steps: int
) -> None:
    assert warmup_steps(warmup, n_steps) == steps


# --- parameter groups ----------------------------------------------------------------------------

N_LAYERS = 3


@pytest.fixture
def model() -> Any:
    with torch.random.fork_rng(devices=[]):
        config = BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=N_LAYERS, num_attention_heads=2,
            intermediate_size=8, max_position_embeddings=16,
        )  # fmt: skip
        return BertForSequenceClassification(config)


def settings_by_name(model: Any, **changes: float) -> dict[str, tuple[float, float]]:
    """Learning rate and weight decay of each parameter that is in a group."""
    options: dict[str, float] = {
        "learning_rate": 1.0, "head_learning_rate": 9.0, "weight_decay": 0.01, "layer_decay": 1.0,
    }  # fmt: skip
    groups = parameter_groups(model, "classifier.", **{**options, **changes})
    names = {id(p): name for name, p in model.named_parameters()}
    found = [
        (names[id(p)], (group["lr"], group["weight_decay"]))
        for group in groups
        for p in group["params"]
    ]
    assert len(found) == len(dict(found))  # none twice
    assert all(group["lr"] == group["initial_lr"] for group in groups)
    return dict(found)


def test_biases_and_layer_norms_do_not_decay(model: Any) -> None:
    found = settings_by_name(model)
    assert found.keys() == dict(model.named_parameters()).keys()
    still = {name for name, (_, decay) in found.items() if decay == 0.0}
    want = {n for n in found if n.endswith(".bias") or "LayerNorm" in n}
    assert still == want
    assert len(want) > 20
    assert {found[name][1] for name in found.keys() - still} == {0.01}


def test_the_head_has_its_own_rate(model: Any) -> None:
    found = settings_by_name(model)
    assert {name for name, (rate, _) in found.items() if rate == 9.0} == {
        "classifier.weight",
        "classifier.bias",
    }


def test_rates_fall_layer_by_layer(model: Any) -> None:
    found = settings_by_name(model, layer_decay=0.5)
    for name, (rate, _) in found.items():
        if name.startswith("classifier"):
            want = 9.0
        elif name.startswith("bert.pooler"):
            want = 1.0
        elif name.startswith("bert.embeddings"):
            want = 0.5 ** (N_LAYERS + 1)
        else:
            layer = int(name.split("encoder.layer.")[1].split(".")[0])
            want = 0.5 ** (N_LAYERS - layer)
        assert rate == want, name


def test_a_frozen_parameter_is_in_no_group(model: Any) -> None:
    freeze(model, ("classifier.",), 1)
    assert settings_by_name(model).keys() == {
        name for name, p in model.named_parameters() if p.requires_grad
    }


FROZEN_PREFIXES = {
    0: (),
    1: ("bert.embeddings.", "bert.encoder.layer.0."),
    2: ("bert.embeddings.", "bert.encoder.layer.0.", "bert.encoder.layer.1."),
    3: ("bert.embeddings.", "bert.encoder."),
    "all": ("bert.",),
}


@pytest.mark.parametrize("layers", FROZEN_PREFIXES)
def test_freezing(model: Any, layers: int | str) -> None:
    freeze(model, ("classifier.",), "all")  # whatever was frozen before
    freeze(model, ("classifier.",), layers)
    for name, parameter in model.named_parameters():
        frozen = bool(FROZEN_PREFIXES[layers]) and name.startswith(FROZEN_PREFIXES[layers])
        assert parameter.requires_grad is not frozen, name


def test_more_layers_than_there_are_cannot_be_frozen(model: Any) -> None:
    with pytest.raises(InputError, match=r"freeze=4: the model has 3 layers\. Use freeze='all'"):
        freeze(model, ("classifier.",), 4)


def test_layers_that_are_shared_are_frozen_together() -> None:
    model = tiny_of(FAMILIES["albert"], "sequence classification")  # layers 1, 1 again, and 2
    freeze(model, ("classifier.",), 2)
    learning = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert any("albert_layer_groups.1." in name for name in learning)
    assert not any("albert_layer_groups.0." in name for name in learning)
    assert not any("embedding" in name for name in learning)  # nor their projection
    with pytest.raises(InputError, match=r"freeze=1: the model shares its layers, and layer 1 is"):
        freeze(model, ("classifier.",), 1)


@pytest.mark.parametrize("model_type", ["electra", "mpnet", "deberta-v2", "roformer"])
def test_what_lies_below_the_first_layer_is_frozen_with_it(model_type: str) -> None:
    model = tiny_of(FAMILIES[model_type], "sequence classification")
    freeze(model, ("classifier.",), 1)
    learning = [name for name, weight in model.named_parameters() if weight.requires_grad]
    above = ("encoder.layer.1.", "encoder.layer.2.", "classifier.", "pooler.")
    assert [name for name in learning if not any(part in name for part in above)] == []


def test_the_norm_is_over_all_gradients_together() -> None:
    parts = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]]), torch.tensor([12.0])]
    assert gradient_norm(parts).item() == 13.0


# --- a training by hand --------------------------------------------------------------------------

ROWS = sentences(np.random.default_rng(3).integers(1, 12, 18).tolist())
TARGETS = np.random.default_rng(4).integers(0, 2, 18)


def train_by_hand(network: Any, recipe: Recipe, seed: int) -> tuple[Any, list[float]]:
    """What `train` promises, written with padding and torch's and transformers' own parts."""
    model = plain_twin(network).train()
    task = Labels()
    items = task.encode((ROWS, None), TARGETS, network.text_tokenizer)
    decaying, still = [], []
    for name, p in model.named_parameters():
        (still if name.endswith("bias") or "LayerNorm" in name else decaying).append(p)
    head = {id(p) for p in model.classifier.parameters()}
    groups = [
        {
            "params": [p for p in part if (id(p) in head) == is_head],
            "weight_decay": decay,
            "lr": rate,
        }
        for part, decay in ((decaying, recipe.weight_decay), (still, 0.0))
        for is_head, rate in ((False, recipe.learning_rate), (True, recipe.head_learning_rate))
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.learning_rate)
    n_steps = recipe.epochs * math.ceil(len(ROWS) / recipe.batch_size)
    scheduler = get_scheduler(
        recipe.schedule, optimizer,
        num_warmup_steps=math.ceil(recipe.warmup * n_steps), num_training_steps=n_steps,
    )  # fmt: skip
    norms = []
    for number in range(1, recipe.epochs + 1):
        rng = np.random.default_rng([seed, number])
        for chosen in steps_of_a_pass(items, recipe.batch_size, rng):
            inputs = padded(network, [ROWS[i] for i in chosen], None, task.max_length)
            optimizer.zero_grad()
            model(**inputs, labels=torch.from_numpy(TARGETS[chosen])).loss.backward()
            assert recipe.max_grad_norm is not None
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.max_grad_norm)
            norms.append(norm.item())
            optimizer.step()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                scheduler.step()
    return model, norms


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize(
    ("precision", "rate", "tolerance"), [("float32", 5e-5, 1e-5), ("float64", 1e-3, 1e-9)]
)
def test_five_steps_equal_a_plain_loop(
    tiny_model_no_dropout: Path, precision: str, rate: float, tolerance: float, schedule: str
) -> None:
    exact = Precision(precision, CPU)
    network = open_model(tiny_model_no_dropout, dtype=exact.weight_dtype)
    before = {name: tensor.clone() for name, tensor in network.model.state_dict().items()}
    recipe = Recipe(
        epochs=1, batch_size=4, learning_rate=rate, head_learning_rate=10 * rate,
        weight_decay=0.1, warmup=0.2, schedule=schedule, max_grad_norm=0.4,
    )  # fmt: skip
    want, norms = train_by_hand(network, recipe, seed=5)
    assert len(norms) == 5  # the last one on two rows
    assert max(norms) > 0.4  # clipping has something to do
    items = Labels().encode((ROWS, None), TARGETS, network.text_tokenizer)
    (epoch,) = TrainingLoop(network, Labels(), items, recipe, exact, 5)
    assert epoch.n_steps == 5
    weights = dict(network.model.named_parameters())
    assert_all_close(weights, dict(want.named_parameters()), tolerance)
    moved = [float((weights[name].detach() - before[name]).abs().max()) for name in weights]
    assert min(moved) > 0
    assert np.median(moved) > 5 * tolerance
    assert not gradients(network.model)  # none left over


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("divisor", [1.0, 4.0])
def test_a_step_divides_gradients(dtype: torch.dtype, fused: bool, divisor: float) -> None:
    weights = [torch.ones(3, 4, dtype=dtype), torch.ones(7, dtype=dtype)]
    gradients = [torch.randn_like(weight) for weight in weights]
    results = []
    for parts in (divisor, 1.0):
        own = [torch.nn.Parameter(weight.clone()) for weight in weights]
        for weight, gradient in zip(own, gradients, strict=True):
            weight.grad = gradient * parts
        optimizer = torch.optim.AdamW(own, eps=1.0, fused=fused)  # else it sees signs only
        given = [p.grad for p in own if p.grad is not None]
        take_step(optimizer, given, torch.tensor(parts, dtype=dtype), torch.tensor(0.0))
        results.append([p.detach().clone() for p in own])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)
