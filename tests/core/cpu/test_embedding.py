"""Words trained by row learn what the whole table would, and leave nothing behind."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from skbert._core.cpu.embedding import UsedRowsEmbedding, distinct_ids


@pytest.fixture
def table() -> torch.nn.Parameter:
    """An embedding table of 50 rows."""
    generator = torch.Generator().manual_seed(0)
    return torch.nn.Parameter(torch.randn(50, 8, generator=generator))


def draw_ids(seed: int, n: int = 30, most: int = 50) -> torch.Tensor:
    """Ids as a packed batch has them, with repetitions."""
    return torch.randint(most, (1, n), generator=torch.Generator().manual_seed(seed))


def embedding_of(table: torch.nn.Parameter, *ids: torch.Tensor) -> UsedRowsEmbedding:
    embedding = UsedRowsEmbedding(table)
    embedding.add_ids(torch.cat([each.flatten() for each in ids]))
    return embedding


def test_forward_equals_embedding(table: torch.nn.Parameter) -> None:
    ids = draw_ids(0)
    assert torch.equal(embedding_of(table, ids)(ids), F.embedding(ids, table))
    with torch.no_grad():  # all words there are
        everything = torch.arange(50)
        assert torch.equal(embedding_of(table, ids)(everything), F.embedding(everything, table))


def test_gradients_over_several_steps_and_batches_equal_autograd(
    table: torch.nn.Parameter,
) -> None:
    twin = torch.nn.Parameter(table.detach().clone())
    embedding = embedding_of(table, torch.arange(3, 50))
    for step in range(3):
        embedding.zero_grad()
        assert embedding.rows.grad is None
        twin.grad = None
        for part in range(2):  # gradients of two micro-batches add up
            ids = draw_ids(10 * step + part).clamp(min=3)
            embedding(ids).square().sum().backward()
            F.embedding(ids, twin).square().sum().backward()
        assert embedding.rows.grad is not None
        assert twin.grad is not None
        torch.testing.assert_close(embedding.rows.grad, twin.grad[3:], rtol=1e-6, atol=1e-6)


def test_gradient_works_in_double_precision(table: torch.nn.Parameter) -> None:
    double = torch.nn.Parameter(table.detach().double())
    ids = draw_ids(3)
    embedding = embedding_of(double, torch.arange(50))
    embedding(ids).sum().backward()
    counts = torch.bincount(ids.flatten(), minlength=50).double()
    assert embedding.rows.grad is not None
    assert torch.equal(embedding.rows.grad, counts[:, None].expand(50, 8))


def test_zero_grad_leaves_zeros_and_the_same_memory(table: torch.nn.Parameter) -> None:
    embedding = embedding_of(table, draw_ids(1), draw_ids(2))
    embedding(draw_ids(1)).sum().backward()
    assert embedding.rows.grad is not None
    address = embedding.rows.grad.data_ptr()
    embedding.zero_grad()
    assert not embedding.grad_buffer.any()
    embedding(draw_ids(2)).sum().backward()
    assert embedding.rows.grad.data_ptr() == address


def test_words_join_in(table: torch.nn.Parameter) -> None:
    embedding = UsedRowsEmbedding(table)
    assert embedding.add_ids(torch.tensor([7, 3, 7])) == 2
    assert embedding.add_ids(torch.tensor([3])) == 0
    with torch.no_grad():
        embedding.rows.mul_(2)
    embedding.write_back()
    assert embedding.add_ids(torch.tensor([3, 40])) == 1
    assert torch.equal(embedding.rows, table[embedding.used_ids])
    assert embedding.used_ids.tolist() == [3, 7, 40]
    assert torch.equal(embedding(torch.tensor([[40, 3]])), table[None, [40, 3]])


def test_adamw_by_row_is_adamw(table: torch.nn.Parameter) -> None:
    """Over changing rates; words that are not in use shrink as they would."""
    table = torch.nn.Parameter(table.detach().double())
    twin = torch.nn.Parameter(table.detach().clone())
    ids = [draw_ids(seed, most=20) for seed in range(6)]
    embedding = embedding_of(table, *ids)
    ours = torch.optim.AdamW([embedding.rows], lr=0.1, weight_decay=0.3)
    theirs = torch.optim.AdamW([twin], lr=0.1, weight_decay=0.3)
    for step, batch in enumerate(ids):
        for optimizer in (ours, theirs):
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
        twin.grad = None
        embedding.zero_grad()
        F.embedding(batch, twin).square().sum().backward()
        embedding(batch).square().sum().backward()
        ours.step()
        embedding.note_decay(ours.param_groups)
        theirs.step()
        if step % 2:
            embedding.write_back()
    torch.testing.assert_close(table, twin, rtol=1e-12, atol=1e-12)
    assert embedding.unused_factor == 1.0


def test_the_ids_of_a_long_corpus_are_found_in_little_memory() -> None:
    ids = np.random.default_rng(0).integers(3, 997, 10_000_000, dtype=np.int32)
    tracemalloc.start()
    found = distinct_ids(ids, 1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found.dtype == torch.long
    assert found.tolist() == [*range(3, 997)]
    assert peak < ids.nbytes / 3
