"""Embeddings as one sum of tables: as the modules compute them, or left to these."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from support.families import tiny_of

from skbert._core.cpu.bindings import module
from skbert._core.cpu.bindings.checks import is_readable
from skbert._core.cpu.embedding import UsedRowsEmbedding
from skbert._core.cpu.layers import Layers
from skbert._core.cpu.tables import SummedEmbeddings, can_sum
from skbert._core.families import FAMILIES
from skbert._core.families.bert import BERT
from skbert._core.families.record import encoder_part
from skbert._core.models.embeddings import embeddings_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from skbert._core.families.record import Family

pytestmark = [
    pytest.mark.skipif(module.kernels is None, reason="built without a compiler"),
    pytest.mark.usefixtures("either_width"),
]

SUMMED = {name: family for name, family in FAMILIES.items() if family.encoder.embedding_norm}
WORDS, POSITIONS, TYPES = (
    torch.tensor(ids) for ids in ([3, 59, 1, 3, 17], [2, 3, 1, 2, 39], [0, 1, 1, 0, 1])
)


def model_of(family: Family) -> Any:
    sizes = {"embedding_size": 16} if "embedding_size" in family.sizes else {}
    return tiny_of(family, "embedding", **sizes)


def summed(
    family: Family, model: Any, kept: SummedEmbeddings | None = None, **ids: torch.Tensor
) -> torch.Tensor | None:
    """Embeddings of the words, in one pass; ``kept`` may know the model."""
    paths, embeddings = family.encoder, kept or SummedEmbeddings()
    known = {paths.word_table: WORDS, paths.position_table: POSITIONS} | ids
    return embeddings(paths, model, known) if can_sum(paths) else None


def by_module(family: Family, model: Any, **inputs: torch.Tensor) -> torch.Tensor:
    """The same by the model's own embeddings."""
    paths = family.encoder
    if paths.position_table:
        inputs["position_ids"] = POSITIONS[None]
    words = encoder_part(model, paths.word_table)(WORDS)[None]
    states: torch.Tensor = encoder_part(model, paths.embeddings)(
        None, inputs_embeds=words, **inputs
    )
    return states[0]


@pytest.mark.parametrize("name", SUMMED)
@torch.no_grad()
def test_they_are_the_norm_of_the_sum_of_all_tables(name: str) -> None:
    family = SUMMED[name]
    model = model_of(family)
    found = summed(family, model)
    assert found is not None
    torch.testing.assert_close(found, by_module(family, model), rtol=1e-5, atol=1e-5)
    if family.has_token_types:
        found = summed(family, model, **{family.encoder.type_table: TYPES})
        expected = by_module(family, model, token_type_ids=TYPES[None])
        assert found is not None
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def tables(model: Any) -> Any:
    return model.embeddings


class Doubled(torch.nn.Embedding):
    """A table whose rows are twice as large as they lie there."""

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(ids)


def limit(model: Any) -> None:
    tables(model).word_embeddings.max_norm = 0.5


def forbid_length(model: Any) -> None:
    tables(model).word_embeddings.max_norm = 0.0


def weigh_by_frequency(model: Any) -> None:
    tables(model).word_embeddings.scale_grad_by_freq = True


def replace_table(model: Any) -> None:
    tables(model).position_embeddings = Doubled(40, 16)


def narrow_table(model: Any) -> None:
    tables(model).token_type_embeddings = torch.nn.Embedding(2, 1)


def scatter_table(model: Any) -> None:
    weight = tables(model).word_embeddings.weight
    tables(model).word_embeddings.weight = torch.nn.Parameter(weight.t().contiguous().t())


def forget_factors(model: Any) -> None:
    tables(model).LayerNorm = torch.nn.LayerNorm(16, elementwise_affine=False)


class Own(torch.Tensor):
    """A tensor that may compute in its own way."""


def own(weight: torch.Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(weight.detach().as_subclass(Own))


def own_words(model: Any) -> None:
    tables(model).word_embeddings.weight = own(tables(model).word_embeddings.weight)


def own_factors(model: Any) -> None:
    tables(model).LayerNorm.weight = own(tables(model).LayerNorm.weight)


def own_bias(model: Any) -> None:
    tables(model).LayerNorm.bias = own(tables(model).LayerNorm.bias)


@pytest.mark.parametrize("change", [replace_table, narrow_table, forget_factors])
@torch.no_grad()
def test_other_modules_are_run(change: Callable[[Any], object]) -> None:
    model = model_of(BERT)
    assert summed(BERT, model) is not None
    change(model)
    assert summed(BERT, model) is None


@pytest.mark.parametrize(
    "change",
    [limit, forbid_length, weigh_by_frequency, scatter_table, own_words, own_factors, own_bias,
     torch.nn.Module.double, torch.nn.Module.bfloat16, lambda model: model.to("meta")],
)  # fmt: skip
@torch.no_grad()
def test_modules_that_come_to_do_more_are_run(change: Callable[[Any], object]) -> None:
    model, kept = model_of(BERT), SummedEmbeddings()
    for _ in range(2):
        assert summed(BERT, model, kept) is not None
    change(model)
    assert summed(BERT, model, kept) is None


def add_to_words(model: Any) -> None:
    tables(model).word_embeddings.weight += 1


def move_positions(model: Any) -> None:
    weight = tables(model).position_embeddings.weight
    weight.data = weight.data + torch.arange(16)


def replace_factors(model: Any) -> None:
    tables(model).LayerNorm.weight = torch.nn.Parameter(torch.full((16,), 3.0))


def widen_epsilon(model: Any) -> None:
    tables(model).LayerNorm.eps = 0.5


@pytest.mark.parametrize("change", [add_to_words, move_positions, replace_factors, widen_epsilon])
@torch.no_grad()
def test_weights_and_settings_are_read_as_they_are(change: Callable[[Any], object]) -> None:
    model, kept = model_of(BERT), SummedEmbeddings()
    before = summed(BERT, model, kept)
    change(model)
    found = summed(BERT, model, kept)
    assert before is not None
    assert found is not None
    assert not torch.equal(found, before)
    torch.testing.assert_close(found, by_module(BERT, model), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_another_model_is_looked_at() -> None:
    model, other, kept = model_of(BERT), model_of(BERT), SummedEmbeddings()
    add_to_words(other)
    for each in (model, other, model):
        found = summed(BERT, each, kept)
        torch.testing.assert_close(found, by_module(BERT, each), rtol=1e-5, atol=1e-5)


def parameters_of(family: Family, model: Any) -> dict[str, torch.nn.Parameter]:
    return dict(encoder_part(model, family.encoder.embeddings).named_parameters())


def gradients_of(parameters: dict[str, torch.nn.Parameter]) -> dict[str, torch.Tensor | None]:
    """The gradients as they are now."""
    return {
        name: None if weight.grad is None else weight.grad.clone()
        for name, weight in parameters.items()
    }


GRAD = torch.randn(5, 16, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("name", SUMMED)
def test_gradients_are_those_of_the_modules(name: str) -> None:
    family = SUMMED[name]
    model = model_of(family)
    weights = parameters_of(family, model)
    for fixed in ([], ["word"], ["position", "LayerNorm.weight"], ["word", "token_type", "bias"]):
        for key, weight in weights.items():
            weight.requires_grad_(not any(part in key for part in fixed))
        by_module(family, model).backward(GRAD)
        expected = gradients_of(weights)
        model.zero_grad()
        found = []
        for _ in range(2):  # of which the second adds to the first
            output = summed(family, model)
            assert output is not None
            output.backward(GRAD.t().contiguous().t())
            found.append(gradients_of(weights))
        model.zero_grad()
        torch.testing.assert_close(found[0], expected, rtol=1e-4, atol=1e-5)
        twice = {key: None if x is None else 2 * x for key, x in expected.items()}
        torch.testing.assert_close(found[1], twice, rtol=1e-4, atol=2e-5)


def test_words_in_use_are_trained_instead_of_their_table() -> None:
    model = model_of(BERT)
    tables(model).word_embeddings.padding_idx = None
    by_module(BERT, model).backward(GRAD)
    expected = tables(model).word_embeddings.weight.grad
    model.zero_grad()
    words = UsedRowsEmbedding(tables(model).word_embeddings.weight)
    words.add_ids(torch.tensor([59, 3, 1, 17, 40]))
    ids = {BERT.encoder.word_table: WORDS, BERT.encoder.position_table: POSITIONS}
    for _ in range(2):
        words.zero_grad()
        found = SummedEmbeddings()(BERT.encoder, model, ids, words)
        assert found is not None
        found.backward(GRAD)
    found = words.rows.grad
    torch.testing.assert_close(found, expected[words.used_ids], rtol=1e-4, atol=1e-5)
    assert tables(model).word_embeddings.weight.grad is None
    words.zero_grad()
    assert not words.grad_buffer.any()


def test_dropout_is_that_of_the_module_and_the_same_on_the_way_back() -> None:
    model = model_of(BERT).train()
    tables(model).dropout.p = 0.25
    torch.nn.init.constant_(tables(model).LayerNorm.bias, 100.0)  # no output is zero otherwise
    ids = {BERT.encoder.word_table: WORDS.repeat(200) % 40}
    ids[BERT.encoder.position_table] = POSITIONS.repeat(200)
    torch.manual_seed(0)
    found = SummedEmbeddings()(BERT.encoder, model, ids)
    assert found is not None
    model.eval()
    whole = SummedEmbeddings()(BERT.encoder, model, ids)
    assert whole is not None
    kept = found != 0
    assert 0.22 < 1 - kept.float().mean() < 0.28
    torch.testing.assert_close(found[kept], whole[kept] / 0.75)
    bias = tables(model).LayerNorm.bias
    (grad,) = torch.autograd.grad(found.sum(), bias)
    torch.testing.assert_close(grad, kept.sum(0) / 0.75, rtol=1e-4, atol=0.0)
    (grad,) = torch.autograd.grad(whole.sum(), bias)
    torch.testing.assert_close(grad, torch.full((16,), 1000.0))


@pytest.mark.parametrize("name", SUMMED)
def test_what_is_dropped_is_normalised_before(name: str) -> None:
    family = SUMMED[name]
    model = model_of(family).train()
    encoder_part(model, family.encoder.embedding_dropout).p = 1.0
    bias = encoder_part(model, family.encoder.embedding_norm).bias
    if bias is not None:  # it would be left of dropout before the norm
        torch.nn.init.ones_(bias)
    assert not by_module(family, model).any()
    found = summed(family, model)
    assert found is not None
    assert not found.any()


def test_where_nothing_is_trained_nothing_is_saved() -> None:
    model = model_of(BERT).requires_grad_(False)
    found = summed(BERT, model)
    assert found is not None
    assert found.grad_fn is None


def test_sizes_that_do_not_fit_vectors_are_left_to_modules() -> None:
    with torch.no_grad():
        assert summed(BERT, tiny_of(BERT, "embedding", hidden_size=24)) is None


@pytest.mark.parametrize("table", ["word_table", "position_table", "type_table"])
@pytest.mark.parametrize("wrong", [-1, 60, 2**62])
@torch.no_grad()
def test_an_id_outside_its_table_is_an_error(table: str, wrong: int) -> None:
    ids = {getattr(BERT.encoder, table): torch.tensor([0, 1, 1, wrong, 0])}
    with pytest.raises(IndexError, match="an id outside its table"):
        summed(BERT, model_of(BERT), **ids)


class Wrapper(torch.Tensor):
    """A tensor whose numbers lie in others."""

    @classmethod
    def __torch_dispatch__(cls, function: Any, *_: object) -> Any:
        raise NotImplementedError(function)


def test_a_tensor_without_memory_is_not_readable() -> None:
    assert not is_readable(torch.Tensor._make_wrapper_subclass(Wrapper, (32,)))
    assert is_readable(torch.zeros(0))


@torch.no_grad()
def test_types_of_tokens_that_a_model_sets_by_position_show() -> None:
    family = FAMILIES["roberta"]
    model = tiny_of(family, "embedding", type_vocab_size=2)
    runner = Layers()
    network: Any = SimpleNamespace(
        family=family, model=model, word_embedding=None, layer_runner=runner
    )
    positions = POSITIONS - family.first_position(model.config.pad_token_id)
    batch: Any = SimpleNamespace(input_ids=WORDS[None], position_ids=positions[None])
    model.embeddings.token_type_ids[0, 3:] = 1
    torch.testing.assert_close(
        embeddings_of(network, batch), by_module(family, model), rtol=1e-5, atol=1e-5
    )


@torch.no_grad()
def test_a_change_of_a_table_or_the_norm_shows() -> None:
    model = model_of(BERT)
    for change in (tables(model).word_embeddings.weight, tables(model).LayerNorm.bias):
        change.data.add_(1)
        found = summed(BERT, model)
        assert found is not None
        torch.testing.assert_close(found, by_module(BERT, model), rtol=1e-5, atol=1e-5)
    tables(model).LayerNorm.eps = np.float32(0.5)
    found = summed(BERT, model)
    assert found is not None
    torch.testing.assert_close(found, by_module(BERT, model), rtol=1e-5, atol=1e-5)
