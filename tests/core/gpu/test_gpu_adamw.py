"""Steps of AdamW by the kernel for GPUs, which without a GPU Triton's interpreter runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.networks import CPU, GPU, without_waiting

from skbert._core.gpu import operations
from skbert._core.training.optim import (
    AdamW,
    ConvertingAdamW,
    GpuAdamW,
    adamw,
    gradient_norm,
    take_step,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

pytest.importorskip("triton", reason="kernels for GPUs are written in Triton: it is missing")

from skbert._core.gpu import adamw as gpu_adamw
from skbert._core.gpu.adamw import _CHUNK as CHUNK
from skbert._core.gpu.adamw import _programs

pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []

WHERE = GPU if torch.cuda.is_available() else CPU
SIZES = [(), (1,), (7,), (16,), (0, 3), (CHUNK - 1,), (64, CHUNK // 64), (CHUNK + 1,), (3, CHUNK)]


def drawn(shapes: Sequence[tuple[int, ...]], seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(WHERE) for shape in shapes]


def groups_of(weights: Sequence[torch.Tensor]) -> list[dict[str, Any]]:
    """Two groups of parameters with these values, which begin anew each time."""
    own = [torch.nn.Parameter(weight.clone()) for weight in weights]
    return [
        {"params": own[::2], "lr": 1e-2, "weight_decay": 0.1},
        {"params": own[1::2], "lr": 1e-3, "weight_decay": 0.0},
    ]


def steps(optimizer: AdamW, numbers: range, divisor: float = 1.0) -> None:
    """Steps with gradients of each number; a GPU's optimizer gets every third in bfloat16."""
    weights = optimizer.weights()
    for number in numbers:
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 1e-2 / (1 + number)
        given = drawn([tuple(weight.shape) for weight in weights], number)
        for place, (weight, gradient) in enumerate(zip(weights, given, strict=True)):
            wanted = (gradient * 10.0 ** (place % 5 - 3)).to(weight.device)
            wanted = wanted.bfloat16() if place % 3 else wanted
            if optimizer.bf16_state is None:
                weight.grad = wanted.float() / divisor
            else:
                optimizer.set_gradient(weight, wanted)
        if optimizer.bf16_state is None:
            optimizer.step()
        else:
            scale = torch.tensor(divisor, device=weights[0].device)
            take_step(optimizer, optimizer.gradients(), scale, torch.zeros_like(scale))


def assert_same_state(one: AdamW, other: AdamW) -> None:
    pairs = [*zip(one.weights(), other.weights(), strict=True)]
    kept, wanted = one.moments(), other.moments()
    assert kept.keys() == wanted.keys()
    pairs += [(kept[name], wanted[name]) for name in kept]
    for got, want in pairs:
        torch.testing.assert_close(
            got.detach().cpu().float(), want.detach().cpu().float(), rtol=1e-5, atol=1e-6
        )


def assert_rounded(copy: torch.Tensor, weight: torch.Tensor) -> None:
    if WHERE == GPU:
        assert torch.equal(copy, weight.bfloat16())
    else:  # the interpreter cuts digits off
        torch.testing.assert_close(copy.float(), weight.detach(), rtol=2**-7, atol=0)


def misplaced(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A copy at an address that no vector can be read from."""
    copy = torch.empty(x.numel() + 1, dtype=dtype, device=x.device)[1:].view(x.shape)
    assert copy.data_ptr() % 16
    return copy.copy_(x.detach())


# --- steps ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("divisor", [1.0, 3.0])
def test_steps_are_those_of_torch(divisor: float) -> None:
    starts = drawn(SIZES, 100)
    optimizer, plain = GpuAdamW(groups_of(starts)), AdamW(groups_of(starts), fused=False)
    copies = optimizer.bf16_state.weights
    assert copies is not None
    copies |= {weight: weight.detach().bfloat16() for weight in optimizer.weights()[::2]}
    steps(optimizer, range(3), divisor)
    steps(plain, range(3), divisor)
    assert_same_state(optimizer, plain)
    for weight, copy in copies.items():
        assert_rounded(copy, weight)


def test_tensors_may_lie_anywhere() -> None:
    """As gradients do that were sent side by side, and copies of stacked weights."""
    start = drawn([(CHUNK + 600,)], 0)[0]
    weights = [torch.nn.Parameter(start.clone()) for _ in range(3)]
    optimizer = GpuAdamW([{"params": weights, "lr": 0.1, "weight_decay": 0.1}])
    gradients, copies = optimizer.bf16_state
    assert copies is not None
    for weight in weights:
        copies[weight], gradients[weight] = start.bfloat16(), start.bfloat16()
    copies[weights[1]] = misplaced(start, torch.bfloat16)
    gradients[weights[1]] = misplaced(start, torch.bfloat16)
    weights[2].data = misplaced(start, torch.float32)
    optimizer.step()
    assert not torch.equal(weights[0], start)
    for weight in weights:
        torch.testing.assert_close(weight, weights[0], rtol=1e-6, atol=1e-6)
        assert_rounded(copies[weight], weight)


def test_a_step_that_failed_changes_nothing() -> None:
    optimizer = GpuAdamW(groups_of(drawn([(7,), (CHUNK + 1,)], 0)))
    weights, copies = optimizer.weights(), optimizer.bf16_state.weights
    assert copies is not None
    copies |= {weight: torch.zeros_like(weight, dtype=torch.bfloat16) for weight in weights}
    steps(optimizer, range(1))
    written = [*weights, *copies.values()]
    for state in optimizer.state.values():
        written += [state["exp_avg"], state["exp_avg_sq"]]
    assert len(written) == 8
    before = [x.detach().clone() for x in written]
    for failed, changes in ((1.0, False), (0.0, True)):
        optimizer.found_inf = torch.tensor(failed, device=WHERE)
        optimizer.step()
        assert all(not torch.equal(*pair) for pair in zip(written, before, strict=True)) is changes
        if not changes:
            assert all(torch.equal(*pair) for pair in zip(written, before, strict=True))


def test_a_weight_without_a_gradient_is_left_alone() -> None:
    starts = drawn([(5,), (6,), (7,)], 0)
    optimizer, plain = GpuAdamW(groups_of(starts)), AdamW(groups_of(starts), fused=False)
    for number in range(3):
        for each in (optimizer, plain):
            for place, weight in enumerate(each.weights()):
                weight.grad = torch.ones_like(weight) if place != number else None
            each.step()
    assert_same_state(optimizer, plain)
    weights = [weight.detach().clone() for weight in optimizer.weights()]
    optimizer.zero_grad()
    optimizer.step()  # of nothing
    assert all(map(torch.equal, optimizer.weights(), weights))


def test_a_weight_that_was_replaced_is_not_changed_any_longer() -> None:
    old, new = (torch.nn.Parameter(x) for x in drawn([(5,), (9,)], 0))
    optimizer = GpuAdamW([{"params": [old], "lr": 0.1, "weight_decay": 0.0}])
    optimizer.replace(old, new)
    before = [x.detach().clone() for x in (old, new)]
    old.grad, new.grad = torch.ones_like(old), torch.ones_like(new)
    optimizer.step()
    assert torch.equal(old, before[0])
    torch.testing.assert_close(new.detach(), before[1] - 0.1)


def test_few_tables_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest, and each of them is sent once."""
    monkeypatch.setattr(gpu_adamw, "_MOST_TABLES", 3)
    monkeypatch.setattr(gpu_adamw, "_tables", {})
    checked: list[int] = []
    tables = [
        gpu_adamw._table([[16 * n], [0], [8]], 1, WHERE, lambda n=n: checked.append(n))
        for n in (1, 2, 3, 1, 4, 2, 4, 1)
    ]
    assert checked == [1, 2, 3, 4, 1]
    assert len(gpu_adamw._tables) == 3
    assert tables[0] is tables[3]
    assert [table.tolist() for table in tables[:1]] == [[[16, 0, 8, 1]]]


@pytest.mark.parametrize("what", ["strided", "turned", "in float64", "of another size"])
def test_weights_that_became_something_else_are_refused(what: str) -> None:
    start = drawn([(6, 16)], 0)[0]
    weight = torch.nn.Parameter(start)
    optimizer = GpuAdamW([{"params": [weight], "lr": 0.1, "weight_decay": 0.0}])
    optimizer.bf16_state.grads[weight] = start.bfloat16()
    optimizer.step()
    weight.data = {
        "strided": torch.stack([start, start], -1)[..., 0], "turned": weight.data.t(),
        "in float64": start.double(), "of another size": start[:3],
    }[what]  # fmt: skip
    with pytest.raises(ValueError, match=r"a kernel was given \(\d+, \d+\) of torch.*float32, "):
        optimizer.step()


def test_each_program_has_a_chunk_of_its_own() -> None:
    programs = _programs((1, 0, CHUNK, 2 * CHUNK + 1), WHERE)
    assert programs.dtype == torch.int32
    assert programs.tolist() == [[0, 0], [2, 0], [3, 0], [3, 1], [3, 2]]


# --- which optimizer takes them ------------------------------------------------------------------


def test_the_kernel_is_used_where_it_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "is_on_gpu", lambda _: True)

    def made_for(*weights: torch.Tensor) -> type[AdamW]:
        params = [torch.nn.Parameter(weight) for weight in weights]
        return type(adamw([{"params": params, "lr": 0.1, "weight_decay": 0.0}], GPU))

    x, y = drawn([(6, 16), (16,)], 0)
    assert made_for(x, y) is GpuAdamW
    assert made_for(x, y.double()) is ConvertingAdamW
    assert made_for(x.half()) is ConvertingAdamW
    assert made_for(x.t()) is ConvertingAdamW
    assert made_for(x, x[1]) is ConvertingAdamW
    monkeypatch.setattr(operations, "kernels", lambda _: None)
    assert made_for(x, y) is ConvertingAdamW


KINDS = [
    GpuAdamW,
    ConvertingAdamW,
    lambda groups: AdamW(groups, fused=False),
    lambda groups: adamw(groups, CPU),
]


@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("then", range(4))
def test_one_optimizer_goes_on_from_another(first: int, then: int) -> None:
    starts = drawn([(5, 6), (3,), (7,)], 0)

    def made(kind: int, weights: Sequence[torch.Tensor]) -> AdamW:
        where = CPU if kind == len(KINDS) - 1 else WHERE
        return KINDS[kind](groups_of([weight.detach().to(where) for weight in weights]))

    plain = AdamW(groups_of(starts), fused=False)
    steps(plain, range(4))
    before = made(first, starts)
    steps(before, range(2))
    order = [before.weights()[at] for at in (0, 2, 1)]  # as they were before groups
    after = made(then, order)
    after.load_moments(before.moments())
    steps(after, range(2, 4))
    assert_same_state(after, plain)


# --- the norm ------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_kernel", [True, False])
def test_the_norm_is_over_gradients_of_all_types(
    has_kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skbert._core.training.optim.can_fuse_grad_norm", lambda _: False)
    monkeypatch.setattr(operations, "is_on_gpu", lambda _: has_kernel)
    first, second, third, fourth = drawn([(17,), (200, 30), (), (CHUNK + 600,)], 0)
    gradients = [first, second.bfloat16(), third, third.bfloat16(), fourth[:0]]
    gradients += [misplaced(fourth, torch.float32), misplaced(fourth, torch.bfloat16)]
    exact = torch.cat([gradient.flatten().double() for gradient in gradients]).norm()
    assert operations.can_fuse_grad_norm(gradients) is has_kernel
    norm = gradient_norm(gradients)
    assert (norm.dtype, norm.shape) == (torch.float32, ())
    torch.testing.assert_close(norm.double(), exact, rtol=1e-6, atol=0)
    torch.testing.assert_close(gradient_norm([second.double()]), second.double().norm())
    torch.testing.assert_close(gradient_norm([fourth[:0]]), torch.zeros_like(third))
    for place, value in ((0, torch.inf), (1, torch.nan), (6, torch.inf)):
        kept = gradients[place].clone()
        gradients[place].view(-1)[3] = value
        assert not gradient_norm(gradients).isfinite()
        gradients[place] = kept


# --- on a GPU ------------------------------------------------------------------------------------


@pytest.mark.gpu
def test_a_step_does_not_wait_for_the_gpu() -> None:
    optimizer = GpuAdamW(groups_of(drawn([(5,), (6, 7), (CHUNK + 1,), (8,)], 0)))
    scale, fine = torch.ones((), device=GPU), torch.zeros((), device=GPU)
    for number in range(4):
        optimizer.zero_grad()
        for place, weight in enumerate(optimizer.weights()):
            if place != number:  # so that there are other tensors each time
                optimizer.set_gradient(weight, torch.ones_like(weight, dtype=torch.bfloat16))
        if number == 0:  # which finds its kernel
            take_step(optimizer, optimizer.gradients(), scale, fine)
            continue
        with without_waiting():
            gradients = optimizer.gradients()
            take_step(optimizer, gradients, scale * gradient_norm(gradients), fine)
    assert all(weight.isfinite().all() for weight in optimizer.weights())
