"""Every warning points at the line of the user's code, whatever lies between."""

from __future__ import annotations

import ast
import copy
import shutil
import sys
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from support import ROOT

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
    BertTransformer,
)
from skbert.exceptions import SkbertWarning, TruncationWarning, warn
from skbert.inspection import attributions

PACKAGE = ROOT / "skbert"

TEXTS = ["good film", "bad film", "nice food", "poor food"]
EMPTY = ["good film", " ", "", "\t"]
LONG = ["good film " * 20] * 4
BROKEN = ["good \udc80", "bad film", "nice food", "poor food"]
LABELS = ["a", "b", "a", "b"]
WORDS = [["good", "film"], ["bad", "film"]]
TAGS = [["B-X", "O"], ["O", "B-X"]]
QUESTIONS = [("Who sings?", "Ann sings."), ("Who eats?", "Bob eats.")]
SWAPPED = [(context, question) for question, context in QUESTIONS]
OPTIONS = [("the film is", ["good", "bad"])] * 2


class Fitted(NamedTuple):
    """Folders of models, and estimators that were fitted without a warning."""

    model: Path
    causal: Path
    headless: Path
    pickled: Path
    folder: Path
    classifier: BertClassifier
    pipeline: Any
    tagger: BertTokenTagger
    ranker: BertChoiceRanker
    extractor: BertSpanExtractor
    transformer: BertTransformer


def without_pooler(model: Path, folder: Path) -> Path:
    """A copy of a model that lacks BERT's pooler."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "pooler" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def with_pickle(model: Path, folder: Path) -> Path:
    """A copy of a model whose weights are in a .bin file."""
    shutil.copytree(model, folder, dirs_exist_ok=True)
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture(scope="module")
def fitted(
    tiny_model: Path, make_tiny_model: Callable[..., Path], tmp_path_factory: Any
) -> Fitted:
    once = {"model": tiny_model, "epochs": 1, "max_length": 16, "random_state": 0}
    vivid = make_tiny_model(initializer_range=0.3)  # so that few steps miss a narrow tolerance
    classifier = BertClassifier(**{**once, "model": vivid}).fit(TEXTS, LABELS)
    return Fitted(
        tiny_model,
        make_tiny_model(is_decoder=True),
        without_pooler(tiny_model, tmp_path_factory.mktemp("headless")),
        with_pickle(tiny_model, tmp_path_factory.mktemp("pickled")),
        tmp_path_factory.mktemp("warnings"),
        classifier,
        make_pipeline(FunctionTransformer(), BertClassifier(**once)).fit(TEXTS, LABELS),
        BertTokenTagger(**once).fit(WORDS, TAGS),
        BertChoiceRanker(**once).fit(OPTIONS, [0, 1]),
        BertSpanExtractor(**{**once, "max_length": 64}).fit(QUESTIONS, ["Ann", "Bob"]),
        BertTransformer(tiny_model, max_length=16).fit(TEXTS),
    )


def new(fitted: Fitted, kind: Any = BertClassifier, **changes: Any) -> Any:
    """An estimator that is quick to fit."""
    quick = {"model": fitted.model, "epochs": 1, "max_length": 16, "random_state": 0}
    return kind(**{**quick, **changes})


def cached(fitted: Fitted, name: str, content: bytes | None) -> BertTransformer:
    """A transformer whose cache holds something else, or cannot be opened."""
    memory = fitted.folder / name
    fresh = BertTransformer(fitted.model, memory=memory).fit(TEXTS)
    fresh.transform(TEXTS)
    (file,) = memory.rglob("*.sqlite*")
    if content is None:
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(content)
    return fresh


def hooked(fitted: Fitted) -> BertTransformer:
    """A transformer whose model has a hook."""
    own = copy.deepcopy(fitted.transformer)
    own.model_.register_forward_hook(lambda *_: None)
    return own


Call = Callable[[Fitted], Any]
# What is checked, and the function that warns -> calls of a user, each a lambda on one line.
CALLS: dict[str, list[Call]] = {
    "texts.warn_of_surrogates": [
        lambda f: new(f).fit(BROKEN, LABELS),
        lambda f: f.classifier.predict(BROKEN),
        lambda f: f.classifier.score(BROKEN, LABELS),
        lambda f: f.transformer.transform(BROKEN),
    ],
    "texts.warn_if_mostly_empty": [
        lambda f: new(f).fit(EMPTY, LABELS),
        lambda f: new(f).partial_fit(EMPTY, LABELS),
        lambda f: f.classifier.predict(EMPTY),
        lambda f: f.classifier.predict_proba(EMPTY),
        lambda f: f.classifier.score(EMPTY, LABELS),
        lambda f: f.pipeline.fit(EMPTY, LABELS),
        lambda f: f.pipeline.predict(EMPTY),
        lambda f: f.pipeline.score(EMPTY, LABELS),
        lambda f: cross_val_score(new(f), EMPTY, LABELS, cv=2),
        lambda f: GridSearchCV(new(f), {"freeze": [0]}, cv=2).fit(EMPTY, LABELS),
    ],
    "targets.warn_if_column_vector": [
        lambda f: new(f).fit(TEXTS, np.array(LABELS)[:, None]),
        lambda f: f.classifier.score(TEXTS, np.array(LABELS)[:, None]),
        lambda f: new(f, BertRegressor).fit(TEXTS, np.ones((4, 1))),
        lambda f: f.pipeline.fit(TEXTS, np.array(LABELS)[:, None]),
    ],
    "soft_labels.warn_of_order": [
        lambda f: new(f).fit(TEXTS, np.full((4, 2), 0.5), classes=["b", "a"]),
        lambda f: new(f).partial_fit(TEXTS, np.full((4, 2), 0.5), classes=["b", "a"]),
    ],
    "answers.warn_if_swapped": [
        lambda f: new(f, BertSpanExtractor, max_length=64).fit(SWAPPED, ["?", "?"]),
        lambda f: f.extractor.predict(SWAPPED),
        lambda f: f.extractor.predict_answers(SWAPPED),
        lambda f: f.extractor.score(SWAPPED, ["Ann", "Bob"]),
        lambda f: make_pipeline(f.extractor).predict(SWAPPED),
    ],
    "predicting.warn_if_cut": [
        lambda f: new(f).fit(LONG, LABELS),
        lambda f: f.classifier.predict(LONG),
        lambda f: f.classifier.score(LONG, LABELS),
        lambda f: f.transformer.transform(LONG),
        lambda f: f.transformer.fit_transform(LONG),
        lambda f: f.pipeline.predict(LONG),
        lambda f: cross_val_score(new(f), LONG, LABELS, cv=2),
    ],
    "choices.warn_of_surrogates": [
        lambda f: new(f, BertChoiceRanker).fit([("the", ["good \udc80", "bad"])], [0]),
        lambda f: f.ranker.predict([("the", ["good \udc80", "bad"])]),
        lambda f: f.ranker.score([("the", ["good \udc80", "bad"])], [0]),
    ],
    "choices.warn_if_column_vector": [
        lambda f: new(f, BertChoiceRanker).fit(OPTIONS, [[0], [1]]),
        lambda f: f.ranker.score(OPTIONS, [[0], [1]]),
    ],
    "weights.warn_of_odd_use": [
        lambda f: new(f, model=f.headless, pooling="pooler").fit(TEXTS, LABELS),
    ],
    "weights.warn_of_decoder": [
        lambda f: new(f, model=f.causal).fit(TEXTS, LABELS),
        lambda f: BertTransformer.from_pretrained(f.causal),
    ],
    "weights._warn_of_pickle": [
        lambda f: new(f, model=f.pickled).fit(TEXTS, LABELS),
        lambda f: BertTransformer(f.pickled, device="cpu").fit(TEXTS),
    ],
    "cache._rename_if_damaged": [
        lambda f: cached(f, "damaged", b"no database" * 1000).transform(TEXTS),
        lambda f: cached(f, "folder", None).transform(TEXTS),
    ],
    "words._warn_if_single_words": [
        lambda f: f.tagger.predict(["good", "film"]),
    ],
    "words.warn_of_surrogates": [
        lambda f: new(f, BertTokenTagger).fit([["good", "\udc80"]], [["O", "B-X"]]),
        lambda f: f.tagger.predict([["good", "\udc80"]]),
    ],
    "words.warn_if_mostly_empty": [
        lambda f: new(f, BertTokenTagger).fit([["good"], [], []], [["B-X"], [], []]),
        lambda f: f.tagger.predict([["good"], [], []]),
        lambda f: f.tagger.score([["good"], [], []], [["B-X"], [], []]),
    ],
    "schemes.follow": [
        lambda f: new(f, BertTokenTagger, scheme="IOB2").fit(WORDS, [["I-X", "O"], ["O", "B-X"]]),
    ],
    "schemes.warn_if_prefixed": [
        lambda f: new(f, BertTokenTagger).fit(WORDS, [["B-X", "odd"], ["O", "B-X"]]),
    ],
    "attributions._warn_of_residuals": [
        lambda f: attributions(f.classifier, TEXTS[:1], tolerance=1e-9, max_steps=12),
    ],
    "writing.write_folder": [
        lambda f: hooked(f).save(f.folder / "saved"),
        lambda f: hooked(f).save_pretrained(f.folder / "plain"),
    ],
    "schemes.codes": [
        lambda f: new(f, BertTokenTagger).fit(["good film", "bad film"], [[(0, 3, "X")], []]),
    ],
}

ELSEWHERE = {  # provoked where rates, kernels and checkpoints of all kinds are tested
    "find._complete",
    "fit_folder._set_aside",
    "graphs._record",
    "learning_rate._warn_if_flat",
    "module._warn_of_old_kernels",
    "operations._runs",
    "resuming._owned",
    "resuming._put",
    "tensorflow._read_pieces",
    "variable_names._check_rest",
}


@pytest.mark.parametrize(
    ("place", "call"),
    [
        pytest.param(place, call, id=f"{place}-{number}")
        for place, calls in CALLS.items()
        for number, call in enumerate(calls)
    ],
)
def test_a_warning_points_at_the_line_of_the_user(
    fitted: Fitted, place: str, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = record_places(monkeypatch)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(fitted)
    ours = [each for each in caught if issubclass(each.category, UserWarning)]
    assert function_of(place) in map(function_of, places)
    assert len(ours) >= len(places)
    line = call.__code__.co_firstlineno
    assert {(each.filename, each.lineno) for each in ours} == {(__file__, line)}


def function_of(place: str) -> str:
    """The function's name, in whatever module it is."""
    return place.rpartition(".")[2].lstrip("_")


def record_places(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note from now on which functions of the package warn."""
    places: list[str] = []
    original = warnings.warn

    def noted(*args: Any, stacklevel: int, **kwargs: Any) -> None:
        caller = sys._getframe(2)
        module = caller.f_globals["__name__"].removeprefix("skbert.")
        places.append(f"{module}.{caller.f_code.co_name}")
        original(*args, stacklevel=stacklevel + 1, **kwargs)

    monkeypatch.setattr("skbert.exceptions.warnings.warn", noted)
    return places


def test_every_warning_of_the_package_is_among_these() -> None:
    places = {
        ".".join([*path.relative_to(PACKAGE).with_suffix("").parts, function.name])
        for path in PACKAGE.rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "warn"
    }
    known = set(map(function_of, CALLS.keys() | ELSEWHERE))
    assert set(map(function_of, places)) == known, "give a new warning its calls above"


def test_nothing_else_gives_warnings_or_counts_frames() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py")}
    assert [name for name, text in texts.items() if "warnings.warn" in text] == ["exceptions.py"]


def test_a_warning_without_a_user_points_at_the_outermost_frame() -> None:
    code = compile("warn('look')", "inner", "exec")
    with pytest.warns(SkbertWarning, match="look") as caught, ThreadPoolExecutor(1) as pool:
        pool.submit(exec, code, {"__name__": "skbert.inner", "warn": warn}).result()
    assert caught[0].filename.endswith("thread.py")


def test_a_warning_can_be_of_another_kind() -> None:
    with pytest.warns(TruncationWarning, match="look") as caught:
        warn("look", TruncationWarning)
    assert caught[0].filename == __file__
