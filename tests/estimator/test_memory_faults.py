"""Memory that runs out, really, and memory that must not grow.

Each fit has a process of its own whose writable memory is limited, so that an allocation fails
somewhere in torch, oneDNN, numpy or Python itself.
"""

from __future__ import annotations

import errno
import gc
import resource
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import transformers
from support.children import in_a_child, limit_memory, resident_mb
from support.job import TEXTS, Job
from support.jobs import JOBS

from skbert import BertClassifier
from skbert._core.models.opening import _read_tokenizer
from skbert._core.runtime.device import Budget

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Sentiment

pytestmark = pytest.mark.long  # dozens of processes, or hundreds of fits

MB = (1, 48, 112, 144, 176)  # what is left for work that takes some 300 more
ENOUGH = 480  # for that work
ROWS = [f"{'good' if row % 2 else 'bad'} " * (100 + 4 * row) for row in range(40)]
SIDES = ["a", "b"] * 20
ADVICE = "Use gradient_checkpointing=True, a smaller max_length"


@pytest.fixture(scope="module")
def make_wide_model(make_tiny_model: Callable[..., Path]) -> Callable[..., Path]:
    """Give a function that makes models of which a batch takes far more memory than the weights.

    Dropout is off, as its numbers would be others in smaller batches.
    """
    return partial(
        make_tiny_model, max_position_embeddings=512, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip


class Outcome:
    """What became of some work within so much memory: arrays, or the error that ended it."""

    def __init__(self, work: Callable[..., dict[str, Any]], mb: float, *given: object) -> None:
        self.n_halvings = 0
        halve = Budget.halve

        def counted(*parts: Any) -> None:
            halve(*parts)
            self.n_halvings += 1

        Budget.halve = counted  # type: ignore[method-assign] - of this process alone
        self.error: MemoryError | None = None
        self.found: dict[str, Any] = {}
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        try:
            self.found = work(mb, *given)
        except MemoryError as error:
            self.error = MemoryError(str(error))
        finally:  # to send what was found takes memory, too
            resource.setrlimit(resource.RLIMIT_DATA, limits)


def outcomes(work: Callable[..., dict[str, Any]], *given: object) -> list[Outcome]:
    """Do the same in more or less memory; equal results, or an error that says what to do.

    If no step was halved, such memory is looked for, on whatever machine.
    """
    want = in_a_child(work, None, *given)
    done = [in_a_child(Outcome, work, mb, *given) for mb in MB]
    less, more = 1, ENOUGH  # MB between which steps begin to be halved
    while more - less > 4 and not any(each.n_halvings and each.error is None for each in done):
        middle = (less + more) // 2
        done.append(in_a_child(Outcome, work, middle, *given))
        less, more = (middle, more) if done[-1].n_halvings else (less, middle)
    for outcome in done:
        if outcome.error is not None:
            assert ADVICE in str(outcome.error)
            continue
        assert outcome.found.keys() == want.keys()
        for name, values in want.items():
            np.testing.assert_allclose(outcome.found[name], values, rtol=0, atol=1e-5)
    return done


def learned(estimator: Any) -> dict[str, Any]:
    weights = {name: w.numpy() for name, w in estimator.model_.state_dict().items()}
    return {**weights, "steps": [row["n_steps"] for row in estimator.history_]}


def fits(mb: float | None, model: Path, validation: dict[str, Any]) -> dict[str, Any]:
    """Train in steps that are far larger than what fits."""
    estimator = BertClassifier(
        model, device="cpu", precision="float32", random_state=0, epochs=1, batch_size=20,
        learning_rate=5e-5, head_learning_rate=1e-4,
    )  # fmt: skip
    X = TEXTS[:4] * 10 if validation else ROWS
    if mb is not None:
        limit_memory(mb)
    try:
        estimator.fit(X, SIDES, **validation)
    except MemoryError:
        assert not hasattr(estimator, "model_")
        raise
    losses = [row["validation_loss"] for row in estimator.history_] if validation else []
    return {**learned(estimator), "validation": losses}


def predicts(mb: float | None, fitted: Any) -> dict[str, Any]:
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if mb is not None:
        limit_memory(mb)
    try:
        return {"proba": fitted.predict_proba(ROWS)}
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
        assert np.isfinite(fitted.predict_proba(ROWS)).all()  # it is as it was
        raise


@pytest.fixture(autouse=True, scope="module")
def _imported(tiny_model: Path) -> None:
    """Import all that a fit needs: the imports of Python itself may fail in any way."""
    BertClassifier(tiny_model, device="cpu", epochs=1).fit(TEXTS, SIDES[:12]).predict(TEXTS)


def mb_to_be_had(size: int) -> float:
    """MB that a process with 300 free blocks of 1 MB gets within a limit of 8, block by block."""
    pairs = [(np.ones(2**20, np.uint8), np.ones(100, np.uint8)) for _ in range(300)]
    pairs = [pair[1:] for pair in pairs]  # what is left keeps the free blocks apart
    limit_memory(8)
    blocks: list[Any] = []
    try:
        while True:
            blocks.append(np.empty(size, np.uint8))
    except MemoryError:
        return len(blocks) * size / 2**20


@pytest.mark.parametrize("size", [2**16, 2**18, 2**20])
def test_memory_that_was_freed_does_not_add_to_a_limit(size: int) -> None:
    assert 4 < in_a_child(mb_to_be_had, size) < 12


def test_a_fit_in_too_little_memory(make_wide_model: Callable[..., Path]) -> None:
    done = outcomes(fits, make_wide_model(intermediate_size=2048), {})
    assert done[0].error is not None
    assert any(each.n_halvings for each in done if each.error is None)


def test_a_validation_in_too_little_memory(make_wide_model: Callable[..., Path]) -> None:
    """The rows that are trained on are short, those held out are long."""
    model = make_wide_model(intermediate_size=8192)
    done = outcomes(fits, model, {"X_val": ROWS, "y_val": SIDES})
    assert any(each.n_halvings for each in done if each.error is None)


def test_predictions_in_too_little_memory(make_wide_model: Callable[..., Path]) -> None:
    model = make_wide_model(intermediate_size=32768)
    fitted = BertClassifier(model, device="cpu", precision="float32", epochs=1)
    done = outcomes(predicts, fitted.fit(TEXTS, SIDES[:12]))
    assert done[0].error is not None
    assert any(each.n_halvings for each in done if each.error is None)


def opens(model: Path) -> str:
    limit_memory(32)
    with pytest.raises(MemoryError) as caught:
        BertClassifier(model, device="cpu").fit(TEXTS, SIDES[:12])
    return str(caught.value)


def test_a_model_that_is_too_large_for_the_memory(make_tiny_model: Callable[..., Path]) -> None:
    """Its folder is whole, so nobody is told to restore it."""
    model = make_tiny_model(hidden_size=256, intermediate_size=32768)
    message = in_a_child(opens, model)
    assert message.startswith("Out of memory")
    assert ADVICE in message


def test_memory_that_the_system_refuses_is_no_fault_of_a_folder(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_given: object, **_settings: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    _read_tokenizer.cache_clear()  # one that was opened before takes no memory
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", refuse)
    with pytest.raises(MemoryError, match=f"^Out of memory.*{ADVICE}"):
        BertClassifier(tiny_model, device="cpu").fit(TEXTS, SIDES[:12])


# --- memory stays flat ---------------------------------------------------------------------------


def growth(work: Callable[[], object], warm_up: int, times: int) -> float:
    """MB by which this process grew from the end of the warm-up on."""
    for _ in range(warm_up):
        work()
    gc.collect()
    before = resident_mb()
    for _ in range(times):
        work()
    gc.collect()
    return resident_mb() - before


def test_two_hundred_predictions_take_no_more_memory_than_one(
    tiny_model: Path, sentiment: Sentiment
) -> None:
    fitted = BertClassifier(tiny_model, device="cpu", epochs=1).fit(*sentiment)
    assert in_a_child(growth, lambda: fitted.predict_proba(sentiment.texts), 20, 200) < 4


@pytest.mark.slow
@pytest.mark.parametrize("job", JOBS.values(), ids=JOBS)
def test_two_hundred_fits_take_no_more_memory_than_one(job: Job, tiny_model: Path) -> None:
    X, y, params = job.usual

    def work() -> None:
        fitted = job.make(tiny_model, **params).fit(X, y)
        (fitted.score if "score" in job.methods else fitted.transform)(X, *([y] if y else []))

    assert in_a_child(growth, work, 30, 200, seconds=280) < 12
