"""Device, precision, seeds, and memory that runs out while training."""

from __future__ import annotations

import errno
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.networks import CPU, GPU, assert_all_close
from support.training import GENTLE, RECIPE, Failing, Overflow, both, run, sizes, weigh

from skbert._core.models.network import Network
from skbert._core.runtime.device import (
    Budget,
    Precision,
    generator_state,
    is_out_of_memory,
    pick_device,
    seeded,
    set_generator_state,
)
from skbert._core.training import loss_scale
from skbert._core.training import stepper as stepping
from skbert.exceptions import InputError, NonFiniteError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from skbert._core.batches import Batch
    from skbert._core.training.recipe import Recipe

__all__ = ["sizes"]  # a fixture of the loop's tests

# --- devices -------------------------------------------------------------------------------------


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Function: pretend that the machine has so many CUDA devices, and Apple's or not."""

    def pretend(*, cuda: int = 0, mps: bool = False) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)

    return pretend


@pytest.mark.parametrize(
    ("name", "cuda", "mps", "picked"),
    [
        ("auto", 0, False, "cpu"),
        ("auto", 0, True, "mps"),
        ("auto", 2, True, "cuda:0"),
        ("cpu", 2, True, "cpu"),
        ("cuda", 1, False, "cuda:0"),
        ("cuda:1", 2, False, "cuda:1"),
        ("mps", 0, True, "mps"),
    ],
)
def test_a_device_is_picked(machine: Any, name: str, cuda: int, mps: bool, picked: str) -> None:
    machine(cuda=cuda, mps=mps)
    assert pick_device(name) == torch.device(picked)


def test_each_process_of_torchrun_has_its_gpu(
    machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(cuda=2)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "some-run")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert [str(pick_device(name)) for name in ("auto", "cuda", "cuda:0")] == [
        "cuda:1", "cuda:1", "cuda:0",
    ]  # fmt: skip
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(InputError, match="2 CUDA devices"):
        pick_device("auto")


@pytest.mark.parametrize(
    ("name", "cuda", "message"),
    [
        ("gpu", 1, "device='gpu' is not a device: give 'auto', 'cpu', 'cuda', 'cuda:1' or 'mps'"),
        ("", 0, "device='' is not a device"),
        ("cuda:", 1, "device='cuda:' is not a device"),
        ("cpu:", 0, "device='cpu:' is not a device"),
        ("cuda:-1", 1, "device='cuda:-1' is not a device"),
        ("cuda:one", 1, "device='cuda:one' is not a device"),
        ("cuda:0 ", 1, "device='cuda:0 ' is not a device"),
        ("auto:1", 1, "device='auto:1' is not a device"),
        ("CUDA", 1, "device='CUDA' is not a device"),
        ("cuda", 0, "device='cuda': torch sees no CUDA device; use device='auto'"),
        ("cuda:0", 0, "device='cuda:0': torch sees no CUDA device; use device='auto'"),
        ("cuda:1", 1, "device='cuda:1': torch sees 1 CUDA device"),
        ("cuda:7", 2, "device='cuda:7': torch sees 2 CUDA devices"),
        ("mps", 0, "device='mps': torch sees no MPS device; use device='auto'"),
    ],
)
def test_a_device_that_is_none_is_refused(
    machine: Any, name: str, cuda: int, message: str
) -> None:
    machine(cuda=cuda)
    with pytest.raises(InputError) as caught:
        pick_device(name)
    assert str(caught.value).startswith(message)


# --- precision -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "weights", "compute_dtype", "scales"),
    [
        ("float32", torch.float32, torch.float32, False),
        ("float64", torch.float64, torch.float64, False),
        ("bfloat16", torch.float32, torch.bfloat16, False),
        ("float16", torch.float32, torch.float16, True),
    ],
)
def test_what_each_precision_computes_in(
    name: str, weights: torch.dtype, compute_dtype: torch.dtype, scales: bool
) -> None:
    precision = Precision(name, CPU)
    assert (precision.weight_dtype, precision.needs_loss_scale) == (weights, scales)
    ones = torch.ones(3, 3, dtype=weights)
    with precision.autocast():
        assert (ones @ ones).dtype == compute_dtype
    assert (ones @ ones).dtype == weights


@pytest.mark.parametrize(
    ("able", "compute_dtype"),
    [
        ({}, torch.float32),
        ({"avx512_bf16": False, "amx_bf16": False, "avx2": True}, torch.float32),
        ({"avx512_bf16": True}, torch.bfloat16),
        ({"avx512_bf16": True, "avx512_fp16": True, "cpu_name": "AMD"}, torch.bfloat16),
        ({"avx512_bf16": True, "cpu_name": "Intel Xeon"}, torch.bfloat16),
        ({"avx512_bf16": True, "avx512_fp16": True, "cpu_name": "Intel Xeon"}, torch.float32),
        ({"amx_bf16": True}, torch.bfloat16),
    ],
)
def test_auto_is_bfloat16_where_the_cpu_is_fast_at_it(
    monkeypatch: pytest.MonkeyPatch, able: dict[str, bool], compute_dtype: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: able, raising=False)
    assert Precision("auto", CPU).compute_dtype == compute_dtype
    monkeypatch.delattr(torch.cpu, "get_capabilities")  # as in older versions of torch
    assert Precision("auto", CPU).compute_dtype == torch.float32


@pytest.mark.parametrize(
    ("bound", "compute_dtype"),
    [
        ("avx2", torch.float32),
        ("AVX2_VNNI_2", torch.float32),
        ("AVX512_CORE", torch.float32),
        ("AVX512_CORE_VNNI", torch.float32),
        ("AVX512_CORE_BF16", torch.bfloat16),
        ("AVX10_1_512_AMX", torch.bfloat16),
        ("ALL", torch.bfloat16),
        ("", torch.bfloat16),
    ],
)
def test_auto_is_float32_where_onednn_may_not_use_such_instructions(
    bound: str, compute_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", bound)
    assert Precision("auto", CPU).compute_dtype == compute_dtype


def test_auto_on_other_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True}, raising=False)
    assert Precision("auto", torch.device("mps")).compute_dtype == torch.float32
    asked: list[torch.device] = []

    @contextmanager
    def current(device: torch.device) -> Iterator[None]:
        asked.append(device)
        yield
        asked.pop()

    fast, slow = torch.device("cuda", 1), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: asked == [fast])
    assert Precision("auto", fast).compute_dtype == torch.bfloat16
    assert Precision("auto", slow).compute_dtype == torch.float32


def test_float16_lowers_its_scale_and_learns_the_same(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    want, _ = run(tiny_model_no_dropout, GENTLE, precision="float16")
    assert len(sizes) == 6
    # The gradient of a mean loss is at most 2: with scale 2 ** 10 or less it passes.
    monkeypatch.setattr(Overflow, "limit", 2.0**11)
    got, passes = run(
        tiny_model_no_dropout, GENTLE, precision="float16", task=Failing(how="gradient")
    )
    assert 6 + 6 < len(sizes) <= 6 + 6 + 6  # some tries more, and not at every step
    assert [epoch.n_steps for epoch in passes] == [3, 3]
    assert_all_close(got, want, 5e-5)


def test_float16_raises_its_scale_again_after_calm_steps(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steppers: list[Any] = []
    take_step = stepping.Stepper.step

    def step(stepper: Any, item_indices: Any) -> Any:
        steppers.append(stepper)
        return take_step(stepper, item_indices)

    monkeypatch.setattr(stepping.Stepper, "step", step)
    monkeypatch.setattr(loss_scale, "_STEPS_TO_GROW", 2)
    run(tiny_model_no_dropout, GENTLE, precision="float16")
    assert steppers[-1]._loss_scale.value == 2.0 ** (16 + 3)  # six steps, none of which overflowed


def test_float16_gives_up_where_no_scale_helps(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch, sizes: list[int]
) -> None:
    monkeypatch.setattr(Overflow, "limit", 0.0)
    with pytest.raises(NonFiniteError, match="At step 1 of 6"):
        run(tiny_model_no_dropout, GENTLE, precision="float16", task=Failing(how="gradient"))
    assert len(sizes) == 17  # 2 ** 16 down to 1


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_low_precision_learns_about_the_same(tiny_model_no_dropout: Path, precision: str) -> None:
    want, _ = run(tiny_model_no_dropout, GENTLE, precision="float32")
    got, passes = run(tiny_model_no_dropout, GENTLE, precision=precision)
    assert {tensor.dtype for tensor in got.values()} == {torch.float32}
    assert np.isfinite(passes[-1].loss)
    # Adam moves a weight by the learning rate at most: six steps one way, six the other.
    limits = {name: 1e-4 if "classifier" in name else 5e-5 for name in want}
    assert all((got[n] - want[n]).abs().max() <= 12 * limits[n] for n in want)


# --- seeds ---------------------------------------------------------------------------------------


def test_seeds_leave_every_generator_as_it_was() -> None:
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    with seeded(0, CPU):
        one = torch.rand(3)
    with pytest.raises(KeyError), seeded(0, CPU):  # noqa: PT012
        assert torch.equal(torch.rand(3), one)
        raise KeyError
    with seeded(1, CPU):
        assert not torch.equal(torch.rand(3), one)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_a_seed_inside_another_takes_nothing_from_it() -> None:
    with seeded(7, CPU):
        want = torch.rand(6)
    with seeded(7, CPU):
        first = torch.rand(3)
        with seeded(8, CPU):
            torch.rand(100)
        assert torch.equal(torch.cat([first, torch.rand(3)]), want)


def test_threads_do_not_take_each_others_numbers() -> None:
    together = threading.Barrier(4)

    def draw(seed: int) -> list[float]:
        together.wait(timeout=60)
        drawn = []
        with seeded(seed, CPU):
            for _ in range(5):
                drawn.append(torch.rand(()).item())
                time.sleep(0.002)  # time for another to come between
        return drawn

    before = torch.get_rng_state()
    with ThreadPoolExecutor(4) as pool:
        first = list(pool.map(draw, [0, 1, 2, 0]))
        again = list(pool.map(draw, [2, 1, 0, 0]))
    assert first[0] == first[3] == again[2] == again[3]
    assert (first[1], first[2]) == (again[1], again[0])
    assert first[0] != first[1]
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.gpu
def test_seeds_on_a_gpu() -> None:
    before = torch.cuda.get_rng_state(GPU)
    drawn = []
    for seed in (0, 0, 1):
        with seeded(seed, GPU):
            drawn.append((torch.rand(3, device=GPU), torch.rand(3)))
    assert all(torch.equal(*pair) for pair in zip(drawn[0], drawn[1], strict=True))
    assert not any(torch.equal(*pair) for pair in zip(drawn[0], drawn[2], strict=True))
    assert torch.equal(torch.cuda.get_rng_state(GPU), before)


# --- memory --------------------------------------------------------------------------------------


def test_a_budget_is_halved_until_it_is_next_to_nothing() -> None:
    budget, error = Budget(256), MemoryError("full")
    for tokens in (128, 64, 32):
        budget.halve(error, CPU, 3)
        assert budget.tokens == tokens
    with pytest.raises(MemoryError, match="Out of memory on cpu with only 32 tokens") as caught:
        budget.halve(error, CPU, 3)
    assert caught.value.__cause__ is error
    for advice in ("gradient_checkpointing=True", "max_length", "freeze", "smaller model"):
        assert advice in str(caught.value)


def test_a_budget_below_the_shortest_row_is_not_halved() -> None:
    budget, error = Budget(4096), MemoryError("full")
    budget.halve(error, CPU, 2048)
    assert budget.tokens == 2048
    budget.halve(error, CPU, 2048)
    with pytest.raises(MemoryError, match="with only 2048 tokens at a time"):
        budget.halve(error, CPU, 2048)


ERRORS = [
    torch.OutOfMemoryError("CUDA out of memory"),
    MemoryError(),
    RuntimeError("[enforce fail at alloc_cpu.cpp] . DefaultCPUAllocator: can't allocate memory"),
]


@both
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_out_of_memory_makes_smaller_batches_of_the_same_steps(
    tiny_model_no_dropout: Path,
    monkeypatch: pytest.MonkeyPatch,
    precision: str,
    recipe: Recipe,
    tolerance: float,
    error: Exception,
) -> None:
    want, passes = run(tiny_model_no_dropout, recipe, precision=precision, change=weigh)
    forward, refused, done = Network.logits, [], []

    def cramped(network: Network, batch: Batch) -> torch.Tensor:
        if batch.input_ids.shape[1] > 40:
            refused.append(batch.input_ids.shape[1])
            raise error
        done.append(batch.input_ids.shape[1])
        return forward(network, batch)

    monkeypatch.setattr(Network, "logits", cramped)
    got, other = run(tiny_model_no_dropout, recipe, precision=precision, change=weigh)
    assert 0 < len(refused) <= 9  # 8192 is halved to 32 once, not at every step
    assert len(done) > 6
    assert_all_close(got, want, tolerance)
    assert [epoch.n_steps for epoch in other] == [epoch.n_steps for epoch in passes]
    assert other[-1].loss == pytest.approx(passes[-1].loss, rel=1e-4)


def test_what_was_learned_before_memory_ran_out_in_a_step_is_forgotten(
    tiny_model_no_dropout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = replace(RECIPE, batch_size=4, accumulate=2)
    want, _ = run(tiny_model_no_dropout, recipe)
    forward, calls = Network.logits, []

    def failing(network: Network, batch: Batch) -> torch.Tensor:
        calls.append(batch)
        if len(calls) == 2:
            assert network.word_embedding is not None
            assert network.word_embedding.rows.grad is not None
            raise torch.OutOfMemoryError
        return forward(network, batch)

    monkeypatch.setattr(Network, "logits", failing)
    got, _ = run(tiny_model_no_dropout, recipe)
    assert len(calls) > 2
    assert_all_close(got, want, 1e-9)


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        *((error, True) for error in ERRORS),
        (RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate"), True),
        (RuntimeError("could not create a primitive"), True),
        (RuntimeError("could not create a primitive descriptor for the matmul primitive"), False),
        (SystemError("error return without exception set"), True),
        (SystemError("bad argument to internal function"), False),
        (RuntimeError("shapes do not match"), False),
        (ValueError("memory"), False),
        (OSError(errno.ENOMEM, "Cannot allocate memory", "folder"), True),
        (OSError(errno.ENOENT, "No such file or directory", "out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_says_that_memory_ran_out(error: BaseException, answer: bool) -> None:
    assert is_out_of_memory(error) is answer


def test_when_next_to_nothing_fits_it_says_what_to_do(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(network: Network, batch: Batch) -> torch.Tensor:
        raise torch.OutOfMemoryError("not a byte left")

    monkeypatch.setattr(Network, "logits", full)
    with pytest.raises(MemoryError, match="gradient_checkpointing=True") as caught:
        run(tiny_model, RECIPE)
    assert isinstance(caught.value.__cause__, torch.OutOfMemoryError)


def test_other_errors_go_through(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(network: Network, batch: Batch) -> torch.Tensor:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Network, "logits", broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        run(tiny_model, RECIPE)


@pytest.mark.parametrize("offset", range(16))
def test_a_state_of_generators_may_lie_anywhere_in_memory(offset: int) -> None:
    """As in a file with others; torch's own function ends the process there."""
    with seeded(3, CPU):
        state = generator_state(CPU)
        expected = torch.rand(5)
        moved = torch.zeros(offset + len(state), dtype=torch.uint8)[offset:].copy_(state)
        set_generator_state(moved, CPU)
        assert torch.equal(torch.rand(5), expected)
