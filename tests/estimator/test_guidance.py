"""Calls that cannot be right are answered with what was meant; HTML links to the documentation."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields
from email.message import Message
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import transformers
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.utils import estimator_html_repr
from support import ROOT

import skbert
from skbert import BertClassifier, BertTransformer
from skbert._estimator.guidance import _documentation
from skbert.exceptions import InputError, InputTypeError, ModelError

ESTIMATORS = [getattr(skbert, name) for name in skbert.__all__ if name.startswith("Bert")]
WITHOUT_Y = (skbert.BertPretrainer, BertTransformer)
NEED_Y = [each for each in ESTIMATORS if each not in WITHOUT_Y]
DOCS = ROOT / "docs"


class Mine(BertClassifier):
    """What a user derives, without a constructor of its own."""


# --- a parameter that was mistyped ---------------------------------------------------------------


def misspellings(cls: type) -> Iterator[tuple[str, str]]:
    """Each parameter of a class with a letter left out, and two that changed places."""
    for name in inspect.signature(cls).parameters:
        yield name[:-1], name
        yield name[0] + name[2] + name[1] + name[3:], name


@pytest.mark.parametrize("cls", [*ESTIMATORS, Mine])
def test_a_constructor_says_which_parameter_was_meant(cls: type) -> None:
    names = inspect.signature(cls).parameters
    for wrong, name in misspellings(cls):
        if wrong in names:
            continue
        with pytest.raises(InputTypeError, match=rf"{wrong!r} for estimator {cls.__name__}"):
            cls(**{wrong: 3})
        with pytest.raises(TypeError, match=rf"Did you mean '{name}'\? Type {name}=3\."):
            cls(**{wrong: 3})


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("epoch", "epochs"),
        ("n_epochs", "epochs"),
        ("Epochs", "epochs"),
        ("batchsize", "batch_size"),
        ("max_len", "max_length"),
        ("learning_rates", "learning_rate"),
    ],
)
def test_usual_mistakes(wrong: str, right: str) -> None:
    calls: list[Callable[..., Any]] = [
        BertClassifier,
        BertClassifier().set_params,
        lambda **params: BertClassifier.from_pretrained("nowhere", **params),
        lambda **params: make_pipeline(BertClassifier()).set_params(
            **{f"bertclassifier__{name}": value for name, value in params.items()}
        ),
        lambda **params: GridSearchCV(
            BertClassifier(), {name: [value] for name, value in params.items()}, cv=2
        ).fit(["a", "b"] * 2, [0, 1] * 2),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=f"Did you mean '{right}'"):
            call(**{wrong: 4})


def test_where_nothing_is_like_it_the_parameters_are_listed() -> None:
    with pytest.raises(InputTypeError, match=r"Choose from accumulate, .*, weight_decay\.$"):
        BertClassifier(optimizer="adam")
    with pytest.raises(InputError, match=r"Choose from device, layer_join, "):
        BertTransformer().set_params(optimizer="adam")


def test_set_params_sets_nothing_where_a_name_is_wrong() -> None:
    classifier = BertClassifier(epochs=2)
    with pytest.raises(InputError, match="'batch'"):
        classifier.set_params(epochs=5, batch=3)
    assert classifier.epochs == 2
    assert classifier.set_params(epochs=5) is classifier
    assert classifier.epochs == 5
    assert classifier.set_params() is classifier


def test_a_long_value_is_not_shown_whole() -> None:
    with pytest.raises(InputTypeError) as caught:
        BertClassifier(class_weights=dict.fromkeys(range(1000), 1.0))
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_the_constructor_is_what_it_was(cls: type) -> None:
    parameters = inspect.signature(cls).parameters
    assert list(parameters) == [field.name for field in fields(cls)]
    assert sorted(parameters) == cls._get_param_names()
    first, *others = parameters.values()
    assert (first.name, first.kind) == ("model", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    assert {each.kind for each in others} == {inspect.Parameter.KEYWORD_ONLY}
    for again in (clone, copy.copy, copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))):
        made = again(cls("somewhere", precision="float64"))
        assert type(made) is cls
        assert made.get_params() == cls("somewhere", precision="float64").get_params()


def test_a_constructor_of_a_user_takes_what_it_likes() -> None:
    class Wrapped(BertClassifier):
        def __init__(self, model: str = "x", *, extra: int = 1, **others: Any) -> None:
            super().__init__(model, **others)
            self.extra = extra

    assert (made := Wrapped(extra=2, epochs=7)).extra == 2
    assert made.epochs == 7


# --- y that was left out ------------------------------------------------------------------------


@pytest.mark.parametrize("cls", [*NEED_Y, Mine])
@pytest.mark.parametrize("method", ["fit", "partial_fit", "score"])
def test_a_missing_y_names_the_estimator_and_what_to_give(cls: type, method: str) -> None:
    if not hasattr(cls, method):
        pytest.skip("learns all rows at once")
    call = getattr(cls(), method)
    answer = (
        rf"^{cls.__name__}\.{method}\(\) missing .*'y', which holds "
        rf".* (row|question)\b.* Type {method}\(X, y\)\.$"
    )
    for wrong in (lambda: call(["a text"]), lambda: call(X=["a text"]), call):
        with pytest.raises(InputTypeError, match=answer):
            wrong()


@pytest.mark.parametrize("cls", NEED_Y)
def test_the_signature_of_fit_is_what_it_was(cls: type) -> None:
    beside = ["X_val", "y_val", "sample_weight_val", "groups"]
    beside += ["classes"] * (cls is BertClassifier)
    wanted = ["self", "X", "y", "sample_weight", *beside]
    assert [*inspect.signature(cls.fit).parameters] == wanted
    assert inspect.signature(cls.fit).parameters["y"].default is inspect.Parameter.empty
    assert cls.fit.__name__ == "fit"
    assert inspect.getdoc(cls.fit).startswith("Fine-tune on ")


# --- links to the documentation ------------------------------------------------------------------


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Give a function that has the installed package name some addresses."""

    def publish(*lines: str) -> None:
        message = Message()
        for line in lines:
            message["Project-URL"] = line
        monkeypatch.setattr(metadata, "metadata", lambda _: message)
        _documentation.cache_clear()

    yield publish
    _documentation.cache_clear()


@pytest.mark.parametrize("cls", ESTIMATORS)
def test_html_links_to_the_page_of_the_class(cls: type, published: Callable[..., None]) -> None:
    published("Changelog, https://c.example/log", "Documentation, https://docs.example/skbert/")
    page = f"https://docs.example/skbert/generated/skbert.{cls.__name__}.html"
    assert f'href="{page}"' in estimator_html_repr(cls())
    assert page in estimator_html_repr(make_pipeline(cls()))


def test_the_documentation_has_such_pages() -> None:
    api = (DOCS / "api.md").read_text(encoding="utf-8")
    tables = re.findall(r":toctree: generated/\n(.*?)\n```", api, flags=re.DOTALL)
    listed = set(re.findall(r"^ {4}(\w+)$", "\n".join(tables), flags=re.MULTILINE))
    assert ".. currentmodule:: skbert\n" in api
    assert {cls.__name__ for cls in ESTIMATORS} <= listed


def test_a_class_of_a_user_has_no_page_here(published: Callable[..., None]) -> None:
    published("Documentation, https://docs.example/skbert")
    assert "docs.example" not in estimator_html_repr(Mine())


def test_there_is_no_link_where_no_documentation_is_published(
    published: Callable[..., None],
) -> None:
    published("Changelog, https://c.example/log")
    assert BertClassifier()._get_doc_link() == ""
    assert "href" not in estimator_html_repr(BertClassifier())


def test_there_is_no_link_where_the_package_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, published: Callable[..., None]
) -> None:
    def missing(name: str) -> Message:
        raise metadata.PackageNotFoundError(name)

    published()
    monkeypatch.setattr(metadata, "metadata", missing)
    assert BertClassifier()._get_doc_link() == ""


@pytest.mark.parametrize(
    ("head", "job", "estimator"),
    [
        ("BertForTokenClassification", "token classification", skbert.BertClassifier),
        ("BertForTokenClassification", "token classification", skbert.BertRegressor),
        ("BertForSequenceClassification", "sequence classification", skbert.BertTokenTagger),
        ("BertForQuestionAnswering", "question answering", skbert.BertChoiceRanker),
        ("BertForMaskedLM", "masked language modelling", skbert.BertClassifier),
    ],
)
def test_a_head_of_another_job_is_refused_and_the_fitting_estimator_named(
    tiny_model: Path, tmp_path: Path, head: str, job: str, estimator: Any
) -> None:
    fitting = " or ".join(cls.__name__ for cls in ESTIMATORS if job in cls._opens)
    assert fitting
    config = transformers.BertConfig.from_pretrained(tiny_model)
    getattr(transformers, head)(config).save_pretrained(tmp_path)
    shutil.copy(tiny_model / "tokenizer.json", tmp_path)
    with pytest.raises(ModelError, match=f"config.json names {head}. Open it with {fitting}"):
        estimator.from_pretrained(tmp_path)
    assert skbert.BertTransformer.from_pretrained(tmp_path).transform(["a"]).shape == (1, 32)
