"""Attributions: contributions add up, equal captum's, and mean what they should.

captum computes the reference, through transformers' own model and the same baseline.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
import torch
from captum.attr import LayerIntegratedGradients
from hypothesis import given, settings
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from support.odd_texts import odd_texts

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert._core.models.network import Network
from skbert.datasets import load_intents
from skbert.exceptions import InputError, InputTypeError, SkbertWarning, TruncationWarning
from skbert.inspection import Attribution, Attributions, attributions
from skbert.testing._samples import sample_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

USUAL = {"epochs": 2, "learning_rate": 1e-3, "device": "cpu", "random_state": 0}
CASES: dict[str, tuple[type, str, dict[str, Any], Any]] = {
    "classes": (BertClassifier, "classes", {}, None),
    "pairs": (BertClassifier, "pairs", {"pooling": "mean"}, "good"),
    "labels": (BertClassifier, "labels", {}, None),
    "windows": (BertClassifier, "classes", {"max_length": 6, "long_text": "windows"}, None),
    "labels in windows": (BertClassifier, "labels", {"max_length": 6, "long_text": "windows"}, 1),
    "numbers": (BertRegressor, "numbers", {}, None),
    "tags": (BertTokenTagger, "tags", {"max_length": 8, "label_pieces": "all"}, None),
    "spans": (BertSpanExtractor, "spans", {"max_length": 32, "on_ambiguous": "first"}, None),
    "choices": (BertChoiceRanker, "choices", {"head_learning_rate": 1e-2}, None),
    "features": (BertTransformer, "features", {"n_components": 3}, "a good film"),
}


class Case(NamedTuple):
    """A fitted estimator, to be left as it is, and what it is asked."""

    fitted: Any
    X: list[Any]
    target: Any


def fitted_on(model: Path, name: str, precision: str) -> Case:
    kind, sample, params, target = CASES[name]
    rows = sample_of(sample, None, None)
    usual = USUAL if rows.is_supervised else {"device": "cpu"}
    estimator = kind(model, **usual, **params, precision=precision)
    return Case(estimator.fit(rows.X, rows.y) if rows.is_supervised else estimator.fit(rows.X),
                rows.X, target)  # fmt: skip


@pytest.fixture(scope="module")
def vivid(make_tiny_model: Callable[..., Path]) -> Path:
    """A model whose outputs differ much from text to text."""
    return make_tiny_model(initializer_range=0.3)


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, vivid: Path) -> Case:
    return fitted_on(vivid, request.param, "float64")


@pytest.fixture(scope="module")
def classes(vivid: Path) -> Case:
    return fitted_on(vivid, "classes", "float64")


def difference(found: Attribution) -> float:
    return found.output - found.baseline_output


def text_of(row: Any, field: int, target: Any) -> str:
    """A text of a row of X, an option by its text."""
    if isinstance(row, str):
        return row
    return target if isinstance(row[field], list) and isinstance(row, tuple) else row[field]


# --- completeness --------------------------------------------------------------------------------


def test_contributions_add_up(case: Case) -> None:
    found = attributions(case.fitted, case.X, case.target)
    assert [each.row for each in found] == list(range(len(case.X)))
    for each in found:
        assert each.values.dtype == np.float64
        assert each.values.shape == (len(each.words),)
        total = each.values.sum() + each.residual
        np.testing.assert_allclose(total, difference(each), rtol=0, atol=1e-12)
        assert abs(each.residual) <= 1e-6 * abs(difference(each))
        assert difference(each) != 0


@pytest.mark.parametrize("name", CASES)
def test_contributions_add_up_in_single_precision(name: str, vivid: Path) -> None:
    case = fitted_on(vivid, name, "float32")
    for each in attributions(case.fitted, case.X, case.target):
        assert abs(each.residual) <= 1e-3 * abs(difference(each))


def test_rounding_does_not_hide_small_differences(tiny_model: Path) -> None:
    case = fitted_on(tiny_model, "classes", "float32")
    found = attributions(case.fitted, case.X, "good")
    assert min(abs(difference(each)) for each in found) < 1e-5
    assert all(abs(each.residual) <= 1e-3 * abs(difference(each)) for each in found)


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion", "gradient_x_input"])
def test_together_equals_one_by_one(case: Case, method: Any) -> None:
    whole = attributions(case.fitted, case.X, case.target, method=method)
    for row, each in enumerate(case.X):
        (alone,) = attributions(case.fitted, [each], case.target, method=method)
        assert alone.words == whole[row].words
        assert alone.target == whole[row].target
        np.testing.assert_array_equal(alone.spans, whole[row].spans)
        np.testing.assert_allclose(alone.values, whole[row].values, rtol=0, atol=1e-9)


def test_words_stand_in_their_texts(case: Case) -> None:
    for pieces in (False, True):
        found = attributions(
            case.fitted, case.X, case.target, method="gradient_x_input", pieces=pieces
        )
        for each, row in zip(found, case.X, strict=True):
            assert each.words
            for word, (field, start, end) in zip(each.words, each.spans.tolist(), strict=True):
                assert word == text_of(row, field, each.target)[start:end]
                assert word.strip() == word != ""


def test_pieces_add_up_to_words(case: Case) -> None:
    how: Any = {"method": "gradient_x_input"}
    words = attributions(case.fitted, case.X, case.target, **how)
    pieces = attributions(case.fitted, case.X, case.target, **how, pieces=True)
    for by_word, by_piece in zip(words, pieces, strict=True):
        assert len(by_piece.words) >= len(by_word.words)
        for (field, start, end), value in zip(by_word.spans.tolist(), by_word.values, strict=True):
            inside = (by_piece.spans[:, 0] == field) & (by_piece.spans[:, 1] >= start)
            inside &= by_piece.spans[:, 2] <= end
            np.testing.assert_allclose(by_piece.values[inside].sum(), value, atol=1e-12)


def test_all_methods_share_the_ends(case: Case) -> None:
    how: tuple[Any, ...] = ("integrated_gradients", "occlusion", "gradient_x_input")
    ends = [
        [(each.output, each.baseline_output) for each in
         attributions(case.fitted, case.X, case.target, method=method)]
        for method in how
    ]  # fmt: skip
    np.testing.assert_allclose(ends[0], ends[1], rtol=0, atol=1e-12)
    np.testing.assert_allclose(ends[0], ends[2], rtol=0, atol=1e-12)


# --- what is explained ---------------------------------------------------------------------------


def outputs_of(case: Case) -> list[float]:
    return [each.output for each in
            attributions(case.fitted, case.X, case.target, method="gradient_x_input")]  # fmt: skip


@pytest.mark.parametrize("name", ["classes", "pairs", "windows", "labels", "labels in windows"])
def test_the_output_is_the_score_of_a_class(name: str, vivid: Path) -> None:
    case = fitted_on(vivid, name, "float64")
    probability = case.fitted.predict_proba(case.X)
    found = attributions(case.fitted, case.X, case.target, method="gradient_x_input")
    column = [case.fitted.classes_.tolist().index(each.target) for each in found]
    if case.target is None:
        assert column == probability.argmax(axis=1).tolist()
    outputs = np.array([each.output for each in found])
    chosen = probability[np.arange(len(column)), column]
    if name.startswith("labels"):
        np.testing.assert_allclose(1 / (1 + np.exp(-outputs)), chosen, rtol=1e-9)
    elif name == "windows":
        single = np.array([len(each.words) < 5 for each in found])
        np.testing.assert_allclose(np.exp(outputs[~single]), chosen[~single], rtol=1e-9)
    else:
        others = attributions(
            case.fitted, case.X, [case.fitted.classes_[1 - at] for at in column],
            method="gradient_x_input",
        )  # fmt: skip
        odds = outputs - [each.output for each in others]
        np.testing.assert_allclose(1 / (1 + np.exp(-odds)), chosen, rtol=1e-9)


def test_the_output_is_the_predicted_number(vivid: Path) -> None:
    X, y = sample_of("numbers", None, None).X, np.arange(8.0)
    case = Case(BertRegressor(vivid, **USUAL, precision="float32").fit(X, 1000 + 10 * y), X, None)
    np.testing.assert_allclose(outputs_of(case), case.fitted.predict(X), rtol=1e-6)
    both = BertRegressor(vivid, **USUAL, precision="float64").fit(X, np.stack([y, -y], 1))
    np.testing.assert_allclose(outputs_of(Case(both, X, 1)), both.predict(X)[:, 1], atol=1e-9)


def test_the_output_is_that_of_a_word_and_its_tag(vivid: Path) -> None:
    case = fitted_on(vivid, "tags", "float64")
    probability = case.fitted.predict_proba(case.X)
    tags = case.fitted.classes_.tolist()
    by_tag = np.array([outputs_of(case._replace(target=(1, tag))) for tag in tags]).T
    softmax = np.exp(by_tag) / np.exp(by_tag).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(softmax, [row[1] for row in probability], rtol=1e-9)
    for each, row in zip(attributions(case.fitted, case.X, 1), probability, strict=True):
        assert each.target == (1, tags[row[1].argmax()])
    for each, row in zip(attributions(case.fitted, case.X), probability, strict=True):
        word, tag = each.target
        inside = row.argmax(axis=1) != tags.index("O")
        assert row[word].argmax() == tags.index(tag)
        if inside.any():
            assert row[word].max() == row[inside].max()


def test_a_tagger_explains_texts(vivid: Path) -> None:
    case = fitted_on(vivid, "tags", "float64")
    text = "good food and staff"
    (by_text,) = attributions(case.fitted, [text], (1, "O"))
    (by_words,) = attributions(case.fitted, [text.split()], (1, "O"))
    assert by_text.words == by_words.words
    np.testing.assert_allclose(by_text.values, by_words.values, atol=1e-9)
    assert by_words.spans[:, 0].tolist() == [0, 1, 2, 3]
    assert by_text.spans[1].tolist() == [0, 5, 9]


def test_the_output_is_that_of_an_answer(vivid: Path) -> None:
    case = fitted_on(vivid, "spans", "float64")
    rows = case.fitted._rows(case.X, None)
    ranked = case.fitted._outputs(case.fitted._fitted, rows)
    found = attributions(case.fitted, case.X, method="gradient_x_input")
    assert [each.target for each in found] == case.fitted.predict(case.X).tolist()
    np.testing.assert_allclose(
        [each.output for each in found], [each.scores[0] for each in ranked], atol=1e-9
    )
    none = attributions(case.fitted, case.X, "", method="gradient_x_input")
    np.testing.assert_allclose(
        [each.output for each in none], [each.null for each in ranked], atol=1e-9
    )
    second = [
        (context[start:end], int(start))
        for (_, context), (start, end) in zip(
            case.X, [each.spans[1] for each in ranked], strict=True
        )
    ]
    named = attributions(case.fitted, case.X, second, method="gradient_x_input")
    np.testing.assert_allclose(
        [each.output for each in named], [each.scores[1] for each in ranked], atol=1e-9
    )


def test_the_output_is_that_of_an_option(vivid: Path) -> None:
    case = fitted_on(vivid, "choices", "float64")
    probability = case.fitted.predict_proba(case.X)
    found = attributions(case.fitted, case.X)
    assert [each.target for each in found] == case.fitted.predict_text(case.X).tolist()
    first, second = (np.array(outputs_of(case._replace(target=option))) for option in (0, 1))
    odds = np.log(probability[:, 0] / probability[:, 1])
    np.testing.assert_allclose(first - second, odds, atol=1e-9)
    (by_text,) = attributions(case.fitted, case.X[:1], ["bad"])
    assert by_text.target == "bad"
    assert {tuple(span[:1]) for span in by_text.spans.tolist()} == {(0,), (1,)}


def test_an_option_after_a_second_text(vivid: Path) -> None:
    X = [("the staff", "was", ["very good", "bad"]), ("the room", "is", ["bad", "not good"])] * 4
    ranker = BertChoiceRanker(vivid, **USUAL).fit(X, [0, 1] * 4)
    (found,) = attributions(ranker, X[:1], 0)
    assert found.words == ["the", "staff", "was", "very", "good"]
    assert found.spans.tolist() == [[0, 0, 3], [0, 4, 9], [1, 0, 3], [2, 0, 4], [2, 5, 9]]


@pytest.mark.parametrize(
    "params", [{}, {"n_components": 2, "normalize": True}, {"layers": [0, 1]}]
)
def test_the_output_is_a_cosine_similarity(vivid: Path, params: dict[str, Any]) -> None:
    X = sample_of("features", None, None).X
    transformer = BertTransformer(vivid, device="cpu", precision="float64", **params).fit(X)
    vectors, others = transformer.transform(X), X[::-1]
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    wanted = (unit * unit[::-1]).sum(axis=1)
    for target in (others, vectors[::-1], transformer.transform(others).tolist()):
        np.testing.assert_allclose(outputs_of(Case(transformer, X, target)), wanted, atol=1e-9)
    for target in (X[3], vectors[3], vectors[3].tolist()):
        found = outputs_of(Case(transformer, X, target))
        np.testing.assert_allclose(found, unit @ unit[3], atol=1e-9)
    framed = transformer.set_output(transform="pandas")
    np.testing.assert_allclose(outputs_of(Case(framed, X, others)), wanted, atol=1e-9)


# --- references ----------------------------------------------------------------------------------


def captum_values(estimator: Any, text: str, column: int) -> tuple[np.ndarray, float]:
    """captum's contributions of the pieces of a text, and what they miss."""
    model, tokenizer = copy.deepcopy(estimator.model_), estimator.tokenizer_
    model.set_attn_implementation("eager")
    told = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    special = told.pop("special_tokens_mask").bool()
    ids = told["input_ids"]
    baseline = torch.where(special, ids, tokenizer.mask_token_id)
    explained = LayerIntegratedGradients(
        lambda ids, mask: model(input_ids=ids, attention_mask=mask).logits[:, column],
        model.base_model.get_input_embeddings(),
    )
    values, miss = explained.attribute(
        ids, baseline, additional_forward_args=(told["attention_mask"],), n_steps=300,
        method="gausslegendre", return_convergence_delta=True,
    )  # fmt: skip
    return values.sum(dim=-1)[0][~special[0]].detach().numpy(), float(miss.abs().max())


def test_the_same_as_captum(classes: Case) -> None:
    found = attributions(classes.fitted, classes.X, "good", pieces=True)
    column = classes.fitted.classes_.tolist().index("good")
    for text, each in zip(classes.X, found, strict=True):
        values, miss = captum_values(classes.fitted, text, column)
        assert miss < 1e-6 * abs(difference(each))
        np.testing.assert_allclose(each.values, values, rtol=0, atol=1e-6 * abs(difference(each)))


def test_occlusion_masks_one_word(classes: Case) -> None:
    mask = classes.fitted.tokenizer_.mask_token
    model, tokenizer = classes.fitted.model_, classes.fitted.tokenizer_
    column = classes.fitted.classes_.tolist().index("good")

    def logit(text: str) -> float:
        with torch.no_grad():
            return float(model(**tokenizer(text, return_tensors="pt")).logits[0, column])

    text = "good food and bad staff"
    (found,) = attributions(classes.fitted, [text], "good", method="occlusion")
    words = text.split()
    wanted = [
        logit(text) - logit(" ".join([*words[:i], mask, *words[i + 1 :]]))
        for i in range(len(words))
    ]
    np.testing.assert_allclose(found.values, wanted, atol=1e-9)
    np.testing.assert_allclose(found.output, logit(text), atol=1e-9)
    np.testing.assert_allclose(found.baseline_output, logit(" ".join([mask] * 5)), atol=1e-9)


def test_gradient_x_input_is_the_start_of_occlusion(classes: Case) -> None:
    """Along a line the change is the gradient's: a few steps of the integral would refine it."""
    (once,) = attributions(classes.fitted, classes.X[:1], "good", method="gradient_x_input")
    assert abs(once.residual) > 1e-6 * abs(difference(once))


# --- sanity --------------------------------------------------------------------------------------


def ranks(values: np.ndarray) -> np.ndarray:
    return np.abs(values).argsort().argsort().astype(float)


@pytest.fixture(scope="module")
def frozen(minilm: Path) -> BertClassifier:
    """A head over the real encoder, which learns within seconds; to be left as it is."""
    estimator = BertClassifier(minilm, freeze="all", random_state=0, precision="float32")
    return estimator.fit(*load_intents(return_X_y=True))


def test_random_weights_change_the_picture(frozen: BertClassifier) -> None:
    """Adebayo et al. 2018: what does not depend on the weights explains nothing."""
    random = copy.deepcopy(frozen)
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in random.model_.named_parameters():
            if weight.ndim == 2 and "embeddings" not in name:
                weight.copy_(torch.randn_like(weight) * weight.std())
    X, _ = load_intents(return_X_y=True)
    texts = [text for text in X if len(text.split()) > 12][:6]
    told, drawn = (
        attributions(each, texts, frozen.predict(texts), method="gradient_x_input")
        for each in (frozen, random)
    )
    alike = [
        np.corrcoef(ranks(one.values), ranks(other.values))[0, 1]
        for one, other in zip(told, drawn, strict=True)
    ]
    assert np.mean(alike) < 0.5


def area_under_deletion(fitted: Any, text: str, found: Attribution, order: Any) -> float:
    """Mean probability of the predicted class while words are masked in an order."""
    mask, column = fitted.tokenizer_.mask_token, list(fitted.classes_).index(found.target)
    versions = [text]
    gone: list[tuple[int, int]] = []
    for word in order[: len(order) // 2]:
        gone.append(tuple(found.spans[word, 1:].tolist()))
        version = text
        for start, end in sorted(gone, reverse=True):
            version = version[:start] + mask + version[end:]
        versions.append(version)
    return float(masked_probability(fitted, versions)[:, column].mean())


def masked_probability(fitted: Any, texts: list[str]) -> np.ndarray:
    """Probabilities of texts in which the mask token stands for words."""
    told = fitted.tokenizer_(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return fitted.model_(**told).logits.softmax(dim=1).numpy()


def areas_under_deletion(fitted: Any, texts: list[str]) -> dict[str, float]:
    """The means over some texts, of each method and of five orders by chance."""
    rng = np.random.default_rng(0)
    means: dict[str, list[float]] = defaultdict(list)
    for method in ("integrated_gradients", "occlusion", "gradient_x_input"):
        for text, each in zip(texts, attributions(fitted, texts, method=method), strict=True):
            order = np.argsort(-each.values)
            means[method].append(area_under_deletion(fitted, text, each, order))
            orders = [rng.permutation(len(order)) for _ in range(5)]
            areas = [area_under_deletion(fitted, text, each, order) for order in orders]
            means["chance"].append(float(np.mean(areas)))
    return {name: float(np.mean(values)) for name, values in means.items()}


def test_deleting_what_counts_harms_more_than_chance(frozen: Any) -> None:
    found = areas_under_deletion(frozen, load_intents(return_X_y=True)[0][::45])
    assert max(found["integrated_gradients"], found["occlusion"]) < found["chance"] - 0.1


@pytest.mark.slow  # a fit of the real encoder for four figures
def test_the_areas_under_deletion_are_those_of_the_page(minilm: Path) -> None:
    """docs/inspection.md has them."""
    X, y = load_intents(return_X_y=True)
    fitted = BertClassifier(minilm, epochs=2, random_state=0, precision="float32").fit(X, y)
    expected = {
        "integrated_gradients": 0.46, "occlusion": 0.44, "gradient_x_input": 0.75, "chance": 0.80,
    }  # fmt: skip
    assert areas_under_deletion(fitted, X[::45]) == pytest.approx(expected, abs=0.04)


# --- texts ---------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(text=odd_texts)
def test_odd_texts(text: str, classes: Case) -> None:
    text = f"{text} a"
    for pieces in (False, True):
        (found,) = attributions(
            classes.fitted, [text], "good", method="gradient_x_input", pieces=pieces
        )
        total = found.values.sum() + found.residual
        np.testing.assert_allclose(total, difference(found), rtol=0, atol=1e-12)
        clean = text.encode(errors="surrogatepass").decode(errors="replace")
        for word, (field, start, end) in zip(found.words, found.spans.tolist(), strict=True):
            assert field == 0
            assert 0 <= start <= end <= len(text)
            assert len(clean) != len(text) or word == text[start:end]
        if not pieces:
            assert (np.diff(found.spans[:, 1]) >= 0).all()
        repr(found)
        found._repr_html_()


def test_what_was_cut_is_left_out(vivid: Path) -> None:
    rows = sample_of("classes", None, None)
    with pytest.warns(TruncationWarning):
        fitted = BertClassifier(vivid, **USUAL, max_length=5).fit(rows.X, rows.y)
    with pytest.warns(TruncationWarning):
        (found,) = attributions(fitted, ["good food and friendly staff"], "good")
    assert found.words == ["good", "food", "and"]


def test_a_text_without_words(classes: Case) -> None:
    with pytest.warns(SkbertWarning, match="empty or whitespace"):
        (found,) = attributions(classes.fitted, [""], "good")
    assert (found.words, found.values.tolist()) == ([], [])
    assert found.residual == pytest.approx(0, abs=1e-12)
    assert found.output == pytest.approx(found.baseline_output, abs=1e-12)


# --- results -------------------------------------------------------------------------------------


def test_what_is_seen(classes: Case, tmp_path: Path) -> None:
    X = ["good <script>alert(1)</script> food", "bad room"]
    found = attributions(classes.fitted, X, ["good", "bad"])
    page = found._repr_html_()
    assert "<script" not in page
    assert page.count("<mark ") == sum(len(each.words) for each in found)
    assert "Row 0: good" in repr(found)
    assert "residual" in repr(found[1])
    found.save(tmp_path / "all.html")
    found[0].save(tmp_path / "one.html")
    assert "Row 1" in (tmp_path / "all.html").read_text("utf-8")
    assert "Row 1" not in (tmp_path / "one.html").read_text("utf-8")
    frame = found.to_frame()
    assert frame.columns.tolist() == ["row", "text", "start", "end", "word", "value"]
    assert frame["row"].tolist() == [each.row for each in found for _ in each.words]
    np.testing.assert_array_equal(frame["value"][: len(found[0].words)], found[0].values)


def test_slices_are_seen_too(classes: Case) -> None:
    found = attributions(classes.fitted, ["good food", "bad room"], method="occlusion")
    last = found[1:]
    assert isinstance(last, Attributions)
    assert repr(last) == repr(found[1])
    assert last._repr_html_() == found[-1]._repr_html_()


def test_no_rows_are_an_empty_table(classes: Case) -> None:
    found = attributions(classes.fitted, ["good food"], method="occlusion")
    table, empty = found.to_frame(), found[1:].to_frame()
    assert len(empty) == 0
    pd.testing.assert_series_equal(empty.dtypes, table.dtypes)


def test_of_many_words_the_strongest_are_listed(classes: Case) -> None:
    (found,) = attributions(classes.fitted, ["good food and " * 9], method="gradient_x_input")
    lines = repr(found).splitlines()
    assert len(lines) == 1 + 20 + 1 + 1
    assert lines[-2] == "7 more words, each of which contributes less"


def test_a_progress_bar_if_verbose(
    classes: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skbert._estimator.bar._DELAY", 0.0)
    attributions(classes.fitted, classes.X, method="occlusion")
    assert capsys.readouterr().err == ""
    loud = copy.deepcopy(classes.fitted).set_params(verbose=1)
    attributions(loud, classes.X, method="occlusion")
    assert "BertClassifier: 100%" in capsys.readouterr().err


def test_the_estimator_stays_as_it_is(case: Case) -> None:
    before = {name: each.clone() for name, each in case.fitted.model_.state_dict().items()}
    wanted = [*attributions(case.fitted, case.X, case.target)]
    for name, each in case.fitted.model_.state_dict().items():
        assert torch.equal(each, before[name])
    again = attributions(case.fitted, case.X, case.target)
    for one, other in zip(wanted, again, strict=True):
        np.testing.assert_array_equal(one.values, other.values)


def test_a_changed_model_is_explained_as_it_is(classes: Case) -> None:
    changed = copy.deepcopy(classes.fitted)
    with torch.no_grad():
        changed.model_.get_input_embeddings().weight.mul_(1.5)
    changed.model_.classifier.register_forward_hook(lambda _module, _args, logits: 2 * logits)
    found = attributions(changed, classes.X, "good", method="gradient_x_input")
    wanted = changed.decision_function(classes.X)
    others = attributions(changed, classes.X, "bad", method="gradient_x_input")
    odds = [one.output - other.output for one, other in zip(found, others, strict=True)]
    np.testing.assert_allclose(odds, wanted, atol=1e-9)


def test_memory_that_runs_out(classes: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = attributions(classes.fitted, classes.X, "good")
    logits: Callable[..., Any] = Network.logits
    sizes: list[int] = []

    def limited(network: Any, batch: Any) -> Any:
        if batch.input_ids.shape[1] > 200:
            raise torch.OutOfMemoryError("CUDA out of memory")
        sizes.append(batch.input_ids.shape[1])
        return logits(network, batch)

    monkeypatch.setattr(Network, "logits", limited)
    found = attributions(classes.fitted, classes.X, "good")
    assert max(sizes) <= 200
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one.values, other.values, atol=1e-9)


def test_steps_that_do_not_suffice(classes: Case) -> None:
    with pytest.warns(SkbertWarning, match="1 of 1 rows miss tolerance=1e-14"):
        (found,) = attributions(classes.fitted, classes.X[:1], tolerance=1e-14, max_steps=12)
    total = found.values.sum() + found.residual
    np.testing.assert_allclose(total, difference(found), rtol=0, atol=1e-12)


def test_on_each_device(classes: Case, device: str) -> None:
    there = copy.deepcopy(classes.fitted).set_params(device=device)
    for got, want in zip(
        attributions(there, classes.X), attributions(classes.fitted, classes.X), strict=True
    ):
        np.testing.assert_allclose(got.values, want.values, atol=1e-6)


# --- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "target", "error", "message"),
    [
        ("classes", "awful", InputError, "names 'awful' for row 0, but classes_ holds"),
        ("classes", ["good"], InputError, "target has 1 entries, but X has 8 rows"),
        ("classes", [["good"]] * 8, InputError, r"names \['good'\] for row 0"),
        ("labels", 2, InputError, "names 2 for row 0"),
        ("numbers", 1, InputError, "target=1 is none of the outputs, which are 0 to 0"),
        ("numbers", "x", InputError, "target='x' is none of the outputs"),
        ("tags", 99, InputError, "names no word of row 0, which has the words 0 to 4"),
        ("tags", (0, "B-C"), InputError, "names 'B-C' for row 0"),
        ("tags", (0, "O", 1), InputError, "names no word of row 0"),
        ("spans", "nowhere", InputError, "nowhere"),
        ("choices", 7, InputError, "7"),
        ("choices", "nothing", InputError, "nothing"),
        ("features", None, InputError, "has no prediction to explain. Give target"),
        ("features", [[1.0, 2.0]] * 8, InputError, r"target has the shape \(8, 2\)"),
        ("features", [0.0, 0.0, 0.0], InputError, "for row 0 is zero or not finite"),
        ("features", [[1.0, 0.0, 0.0]] * 7 + [[np.nan] * 3], InputError, "row 7 is zero or not"),
        ("features", [{}] * 8, InputTypeError, "neither texts nor vectors"),
    ],
)
def test_targets_that_cannot_be(
    vivid: Path, name: str, target: Any, error: type[Exception], message: str
) -> None:
    case = fitted_on(vivid, name, "float32")
    with pytest.raises(error, match=message):
        attributions(case.fitted, case.X, target)


def test_several_numbers_need_a_choice(vivid: Path) -> None:
    X = sample_of("numbers", None, None).X
    fitted = BertRegressor(vivid, **USUAL).fit(X, np.arange(16.0).reshape(8, 2))
    with pytest.raises(InputError, match=r"which are 0 to 1\. Say which to explain"):
        attributions(fitted, X)


def test_a_row_without_a_word_has_no_tag(vivid: Path) -> None:
    case = fitted_on(vivid, "tags", "float32")
    with pytest.raises(InputError, match="Row 1 of X holds no word"):
        attributions(case.fitted, [["good"], [], ["bad"]])


@pytest.mark.parametrize("method", ["shap", None, ["occlusion"]])
def test_methods_that_are_not_known(classes: Case, method: Any) -> None:
    with pytest.raises(InputError, match=r"^method=.* is unknown. Give one of 'integrated_grad"):
        attributions(classes.fitted, classes.X, method=method)


def test_estimators_that_cannot_be_explained(classes: Case, vivid: Path) -> None:
    with pytest.raises(NotFittedError):
        attributions(BertClassifier(vivid), classes.X)
    pipeline: Any = make_pipeline(classes.fitted)
    with pytest.raises(InputTypeError, match="of a Pipeline, such a step"):
        attributions(pipeline, classes.X)
    pretrainer = BertPretrainer(vivid, **USUAL).fit(classes.X)
    with pytest.raises(InputTypeError, match=r"BertTransformer\(model=estimator\)"):
        attributions(pretrainer, classes.X)
