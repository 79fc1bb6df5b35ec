"""How large models are, and what memory says to that."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import BertConfig, BertModel

from skbert._core.attention.relative import add_distances
from skbert._core.checkpoints import sizes
from skbert._core.families import FAMILIES
from skbert._core.families.bert import BERT
from skbert._core.families.record import Family

SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4,
         "intermediate_size": 64, "max_position_embeddings": 20, "type_vocab_size": 2}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"position_embedding_type": "relative_key"}])
def test_weights_are_counted_but_for_biases_and_norms(changes: dict[str, Any]) -> None:
    model = BertModel(BertConfig(**SMALL, **changes), add_pooling_layer=False)
    add_distances(model)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    rounding = 3 * 8 if changes else 0  # one distance fewer than twice the positions
    assert BERT.count_weights({**SMALL, **changes}) == matrices + rounding


def test_lost_heads_count_less() -> None:
    lost = {**SMALL, "pruned_heads": {"0": [1], "2": [0, 3]}}
    assert BERT.count_weights(SMALL) - BERT.count_weights(lost) == 3 * 4 * 32 * 8


def test_what_is_left_out_is_as_berts() -> None:
    assert BERT.count_weights(BERT.default_sizes) == pytest.approx(110e6, rel=0.03)


@pytest.mark.parametrize(
    ("family", "key"), [(family, key) for family in FAMILIES.values() for key in family.sizes]
)
def test_sizes_out_of_their_bounds(family: Family, key: str) -> None:
    usual, least, most = family.sizes[key]
    assert not list(sizes.size_faults(family, {key: usual}))
    for wrong in (least - 1, most + 1, True, float(usual), str(usual)):
        assert [name for name, _ in sizes.size_faults(family, {key: wrong})] == [key]


def test_the_sum_is_told_where_memory_is_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "_machine_memory", lambda: 8_000_000_000)
    assert sizes.memory_fault(2_000_000_000, 4) is None
    assert sizes.memory_fault(2_000_000_001, 4) == (
        "2,000,000,001 weights of 4 bytes take 8.0 GB, and this machine has 8.0 GB"
    )
    monkeypatch.setattr(sizes, "_machine_memory", lambda: None)
    assert sizes.memory_fault(10**20, 4) is None


def test_this_machine_has_memory() -> None:
    memory = sizes._machine_memory()
    assert memory is not None
    assert memory > 100_000_000


def test_the_limit_of_a_control_group_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes.Path, "read_text", lambda path, encoding: "5000000\n")
    assert sizes._machine_memory() == 5_000_000
    monkeypatch.setattr(sizes.Path, "read_text", lambda path, encoding: "max\n")
    assert (sizes._machine_memory() or 0) > 5_000_000
