"""Saving and opening: every kind of fitted estimator, transformers folders both ways, damage."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import os
import pickle
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import textwrap
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit, softmax
from support import DATA, ROOT
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
)

import skbert
from skbert import BertClassifier, BertRegressor, BertTransformer
from skbert._core.checkpoints import archive
from skbert.exceptions import ModelError, SaveError

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Sentiment

SAVED_BY_0_1 = DATA / "saved_0_1"
EXPECTED = json.loads((SAVED_BY_0_1 / "expected.json").read_text(encoding="utf-8"))
METHODS = ("predict", "predict_proba", "decision_function")
HELD = {"validation_fraction": 0.25, "epochs": 2}


def plain(kind: type, model: Path, **params: Any) -> Any:
    usual = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return kind(model, **{**usual, "learning_rate": 1e-3, **params})


def outputs(estimator: Any, X: Any) -> dict[str, np.ndarray]:
    return {name: getattr(estimator, name)(X) for name in METHODS if hasattr(estimator, name)}


def assert_same(first: Any, second: Any, X: Any) -> None:
    """Bit for bit the same estimator, seen from outside."""
    assert type(first) is type(second)
    names, others = (it._fitted.attributes.keys() for it in (first, second))
    assert names == others
    for name in names:
        value, other = getattr(first, name), getattr(second, name)
        assert type(value) is type(other), name
        np.testing.assert_array_equal(value, other, err_msg=name)
        assert getattr(value, "dtype", None) == getattr(other, "dtype", None), name
    assert_same_outputs(first, second, X)


def assert_same_outputs(first: Any, second: Any, X: Any) -> None:
    for name, expected in outputs(first, X).items():
        got = outputs(second, X)[name]
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected, err_msg=name)
    weights, others = first.model_.state_dict(), second.model_.state_dict()
    assert weights.keys() == others.keys()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def ones_and_zeros(n_rows: int) -> np.ndarray:
    return np.array([[row % 2, row % 4 < 2, row % 3 == 0] for row in range(n_rows)], dtype=int)


# name: estimator, what to make of texts and labels -> X and y, parameters
CASES: dict[str, tuple[type, Callable[[list[str], list[str]], tuple[Any, Any]], dict]] = {
    "str": (BertClassifier, lambda X, y: (X, y), {}),
    "object": (BertClassifier, lambda X, y: (pd.Series(X), pd.Series(y)), {"freeze": "all"}),
    "int": (BertClassifier, lambda X, y: (X, [len(label) for label in y]),
            {"class_weight": {3: 0.5}}),
    "bool": (BertClassifier, lambda X, y: (X, np.array(y) == "bad"), {"precision": "float64"}),
    "float": (BertClassifier, lambda X, y: (X, (np.array(y) == "bad") - 0.0), {}),
    "three": (BertClassifier, lambda X, y: (X, ["ä b", "", *["c\x00\n\ud800\U0001f600"] * 38]),
              {"pooling": "max", "long_text": "windows"}),
    "calibrated": (BertClassifier, lambda X, y: (X, y), {"calibrate": True, **HELD}),
    "multi-label": (BertClassifier, lambda X, y: (X, ones_and_zeros(len(X))),
                    {"tune_thresholds": True, "class_weight": "balanced", **HELD}),
    "pairs": (BertClassifier, lambda X, y: (list(zip(X, X, strict=True)), y), {"max_length": 20}),
    "frame": (BertRegressor,
              lambda X, y: (pd.DataFrame({"a": X, "b": X}), [len(text) for text in X]),
              {"text_columns": ["b"], "pooling": "mean", **HELD}),
    "number": (BertRegressor, lambda X, y: (X, [len(text) / 3 for text in X]), {}),
    "numbers": (BertRegressor, lambda X, y: (X, ones_and_zeros(len(X)) * 7.5),
                {"precision": "float64", "pooling": "cls"}),
}  # fmt: skip


@pytest.fixture(params=CASES, scope="module")
def case(request: pytest.FixtureRequest, tiny_model: Path, sentiment: Sentiment) -> Any:
    """Give a fitted estimator, to be left as it is, and the X and y it learned from."""
    kind, make, params = CASES[request.param]
    X, y = make(*sentiment)
    return plain(kind, tiny_model, **params).fit(X, y), X, y


@pytest.fixture(scope="module")
def fitted(tiny_model: Path, sentiment: Sentiment) -> BertClassifier:
    return plain(BertClassifier, tiny_model).fit(*sentiment)


# --- save and load -------------------------------------------------------------------------------


def test_round_trip(case: Any, tmp_path: Path) -> None:
    fitted, X, y = case
    fitted.save(tmp_path / "saved")
    loaded = type(fitted).load(str(tmp_path / "saved"))
    assert_same(fitted, loaded, X)
    assert loaded.get_params() == {**fitted.get_params(), "model": str(fitted.model)}
    assert loaded.score(X, y) == fitted.score(X, y)
    # What was loaded learns on as the original does.
    learning = copy.deepcopy(fitted)
    for estimator in (learning, loaded):
        estimator.set_params(warm_start=True).fit(X, y)
    assert_same_outputs(learning, loaded, X)
    loaded.save(tmp_path / "saved")  # in the place of the first
    assert_same(loaded, type(fitted).load(tmp_path / "saved"), X)


def test_the_kind_of_output_stays(tiny_model: Path, tmp_path: Path) -> None:
    fitted = BertTransformer(tiny_model).set_output(transform="pandas").fit(["good"])
    fitted.save(tmp_path)
    unpacked = object.__new__(BertTransformer)
    unpacked.__setstate__(fitted.__getstate__())
    for loaded in (BertTransformer.load(tmp_path), unpacked):
        assert isinstance(loaded.transform(["good"]), pd.DataFrame)
        assert isinstance(loaded.set_output(transform="default").transform(["good"]), np.ndarray)


@pytest.mark.parametrize("through", ["pickle", "joblib", "deepcopy"])
def test_pickle_joblib_and_deepcopy(through: str, case: Any, tmp_path: Path) -> None:
    fitted, X, _ = case
    if through == "pickle":
        copied = pickle.loads(pickle.dumps(fitted))
    elif through == "joblib":
        joblib.dump(fitted, tmp_path / "file")
        copied = joblib.load(tmp_path / "file")
    else:
        copied = copy.deepcopy(fitted)
    assert_same(fitted, copied, X)
    assert copied.get_params() == fitted.get_params()
    copied.model_.classifier.weight.data += 1
    assert not torch.equal(copied.model_.classifier.weight, fitted.model_.classifier.weight)


def test_nothing_is_pickled(case: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any, **named: Any) -> Any:
        raise AssertionError("unpickled")

    fitted, X, _ = case
    fitted.save(tmp_path / "saved")
    expected = outputs(fitted, X)
    for module, name in ((pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"),
                         (torch, "load"), (joblib, "load"), (np, "load")):  # fmt: skip
        monkeypatch.setattr(module, name, refuse)
    loaded = type(fitted).load(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.predict(X), expected["predict"])
    for path in (tmp_path / "saved").iterdir():
        if path.suffix == ".json":
            json.loads(path.read_text(encoding="utf-8"))
        else:
            assert path.name in {"model.safetensors", "vocab.txt"}


def test_folder_is_a_model_for_others(case: Any, tmp_path: Path) -> None:
    fitted, X, _ = case
    fitted.save(tmp_path / "saved")
    body = fitted.model_.bert.state_dict()
    opened = BertModel.from_pretrained(tmp_path / "saved", dtype=fitted.model_.dtype).state_dict()
    assert all(torch.equal(body[name], opened[name]) for name in body)
    other = plain(BertRegressor, tmp_path / "saved", freeze="all").fit(X, range(len(X)))
    learned_on = other.model_.bert.state_dict()
    assert all(torch.equal(body[name].float(), learned_on[name]) for name in body)
    assert other.pooling_ == fitted.pooling_
    again = type(fitted).from_pretrained(tmp_path / "saved", device="cpu", max_length=20)
    if isinstance(fitted, BertClassifier) and not hasattr(fitted, "thresholds_"):
        names = [str(label) for label in fitted.classes_]
        order = [again.classes_.tolist().index(name) for name in names]
        got = again.set_params(precision=fitted.precision).predict_proba(X)[:, order]
        np.testing.assert_allclose(got, fitted.predict_proba(X), rtol=1e-6)


def test_places(fitted: BertClassifier, tmp_path: Path, sentiment: Sentiment) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(SaveError, match="not empty"):
        fitted.save(foreign)
    assert [path.name for path in foreign.iterdir()] == ["notes.txt"]
    assert (foreign / "notes.txt").read_text(encoding="utf-8") == "mine"
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "a" / "b", tmp_path / "empty"):
        fitted.save(folder)
        assert_same(fitted, BertClassifier.load(folder), sentiment.texts)


PLACES = ["/", "a\0b", "~nobody-of-that-name/model", "/dev/null", "/dev/null/model",
          "x" * 300]  # fmt: skip


@pytest.mark.parametrize("method", ["save", "save_pretrained"])
@pytest.mark.parametrize("place", PLACES)
def test_places_that_cannot_be_written(fitted: BertClassifier, place: str, method: str) -> None:
    with pytest.raises(SaveError, match=r"(?i)\bgive|writ"):
        getattr(fitted, method)(place)
    with pytest.raises(SaveError):
        BertClassifier.load(place)


@pytest.mark.parametrize("method", ["save", "save_pretrained"])
@pytest.mark.parametrize("room", [0, 300, 3000])
def test_a_full_disk(fitted: BertClassifier, tmp_path: Path, method: str, room: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # for each file, the scratch's too
    try:
        with pytest.raises(SaveError, match=r"(?s)File too large.*with free space"):
            getattr(fitted, method)(tmp_path / "saved")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert method == "save_pretrained" or not list(tmp_path.iterdir())


def test_no_room_to_load_in(
    fitted: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted.save(tmp_path / "saved")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(SaveError, match=r"gone.*TMPDIR"):
        BertClassifier.load(tmp_path / "saved")
    with pytest.raises(SaveError, match="gone"):
        fitted.save(tmp_path / "saved")


def test_a_tilde_is_the_home_folder(
    fitted: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    fitted.save("~/saved")
    fitted.save_pretrained("~/plain")
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "plain"}
    assert BertClassifier.load("~/saved").classes_.tolist() == fitted.classes_.tolist()


def test_generators_are_not_saved(tiny_model: Path, sentiment: Sentiment, tmp_path: Path) -> None:
    drawn = plain(BertClassifier, tiny_model, random_state=np.random.RandomState(3))
    drawn.fit(*sentiment).save(tmp_path / "saved")
    loaded = BertClassifier.load(tmp_path / "saved")
    assert loaded.random_state is None
    assert_same(drawn, loaded, sentiment.texts)


# --- version 0.1 ---------------------------------------------------------------------------------


def assert_like(found: Any, expected: Any) -> None:
    """Equal words, and numbers as near as two processors bring them."""
    if isinstance(expected, list):
        assert len(found) == len(expected)
        for part, other in zip(found, expected, strict=True):
            assert_like(part, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-5)
    else:
        assert found == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_what_version_0_1_saved_opens_and_predicts_the_same(name: str, tmp_path: Path) -> None:
    expected = EXPECTED[name]
    loaded = getattr(skbert, expected["class"]).load(SAVED_BY_0_1 / name)
    X = expected["X"]
    if hasattr(loaded, "feature_names_in_"):
        X = pd.DataFrame(X, columns=loaded.feature_names_in_)
    for method, outputs_then in expected["outputs"].items():
        found = getattr(loaded, method)(X)
        assert_like(found.to_numpy() if isinstance(found, pd.DataFrame) else found, outputs_then)
    loaded.save(tmp_path / "again")
    again = type(loaded).load(tmp_path / "again")
    for key, value in loaded.model_.state_dict().items():
        assert torch.equal(value, again.model_.state_dict()[key]), key


def test_each_estimator_of_version_0_1_is_among_what_it_saved() -> None:
    assert {case["class"] for case in EXPECTED.values()} == {
        "BertChoiceRanker", "BertClassifier", "BertPretrainer", "BertRegressor",
        "BertSpanExtractor", "BertTokenTagger", "BertTransformer",
    }  # fmt: skip


def test_a_saved_folder_does_not_choose_where_vectors_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state = json.loads((SAVED_BY_0_1 / "transformer" / "state.json").read_text(encoding="utf-8"))
    assert ["memory", "kept"] in state["params"]["dict"]  # as version 0.1 saved it
    loaded = BertTransformer.load(SAVED_BY_0_1 / "transformer")
    loaded.transform(["the film is good"])
    assert loaded.memory is None
    assert not list(tmp_path.iterdir())
    loaded.set_params(memory="mine").save("saved")
    assert loaded.memory == "mine"
    assert "mine" not in (tmp_path / "saved" / "state.json").read_text(encoding="utf-8")


# --- other processes -----------------------------------------------------------------------------


def two_alike() -> tuple[BertClassifier, BertClassifier]:
    """Two classifiers whose classes and weights say which of them it is."""
    both = [BertClassifier.load(SAVED_BY_0_1 / "classifier") for _ in range(2)]
    for number, one in enumerate(both):
        one.classes_ = np.array([f"bad {number}", f"good {number}"])
        for weight in one.model_.parameters():
            weight.detach().fill_(number)
    return both[0], both[1]


def is_one_of_them(loaded: BertClassifier) -> bool:
    number = int(loaded.classes_[0][-1])
    return all(bool((weight == number).all()) for weight in loaded.model_.parameters())


def test_a_load_is_built_from_what_was_hashed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = two_alike()
    first.save(tmp_path / "model")
    read = archive.read

    def read_before_another_save(*given: Any) -> Any:
        parts = read(*given)
        second.save(tmp_path / "model")
        return parts

    monkeypatch.setattr(archive, "read", read_before_another_save)
    loaded = BertClassifier.load(tmp_path / "model")
    assert loaded.classes_.tolist() == first.classes_.tolist()
    assert is_one_of_them(loaded)


@pytest.mark.long
def test_loads_beside_a_process_that_saves(tmp_path: Path) -> None:
    first, second = two_alike()
    first.save(tmp_path / "model")
    first.save(tmp_path / "0")
    second.save(tmp_path / "1")
    code = """
        import sys, torch
        from pathlib import Path
        from skbert import BertClassifier
        torch.set_num_threads(1)
        folder = Path(sys.argv[1])
        both = [BertClassifier.load(folder / name) for name in "01"]
        print("ready", flush=True)
        while True:
            both[1].save(folder / "model")
            both[0].save(folder / "model")
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        loaded = [BertClassifier.load(tmp_path / "model") for _ in range(60)]
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert {one.classes_[0][-1] for one in loaded} == {"0", "1"}
    assert all(map(is_one_of_them, loaded))


# --- damage --------------------------------------------------------------------------------------


def test_damage_is_found(fitted: BertClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "whole")
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert {"MANIFEST.json", "model.safetensors", "config.json", "tokenizer.json",
            "state.json"} <= set(names)  # fmt: skip
    for name in names:
        for damage in ("gone", "cut", "flipped", "longer"):
            folder = tmp_path / f"{name} {damage}"
            shutil.copytree(tmp_path / "whole", folder)
            data = (folder / name).read_bytes()
            middle = len(data) // 2
            flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            other = {"cut": data[:-2], "flipped": flipped, "longer": data + b" "}
            (folder / name).unlink()
            if damage != "gone":
                (folder / name).write_bytes(other[damage])
            if (name, damage) == ("MANIFEST.json", "longer"):
                continue  # white space at the end of JSON says nothing
            with pytest.raises(SaveError):
                pytest.fail(f"{name} {damage}: {BertClassifier.load(folder)}")
    with pytest.raises(SaveError, match="no folder"):
        BertClassifier.load(tmp_path / "nowhere")
    with pytest.raises(SaveError, match=r"BertRegressor.*skbert\.BertClassifier\.load"):
        BertRegressor.load(tmp_path / "whole")


def test_a_whole_folder_with_a_wrong_state(fitted: BertClassifier, tmp_path: Path) -> None:
    fitted.save(tmp_path / "whole")
    names = [path.name for path in (tmp_path / "whole").iterdir()
             if path.name not in {"MANIFEST.json", "model.safetensors"}]  # fmt: skip
    header, members, tensors = archive.read(tmp_path / "whole", names)
    del header["versions"]
    state = json.loads(members["state.json"])
    wrong: dict[str, Any] = {
        "a list": [],
        "no task": {**state, "task": None},
        "unknown task": {**state, "task": ["Popen", {}]},
        "unknown parameter": {**state, "params": {"dict": [["shell", 1]]}},
        "unknown type": {**state, "seen": {"array": 0, "dtype": "x"}},
        "kind of output": {**state, "set_output": {"dict": [["transform", "shell"]]}},
        "output of a classifier": {**state, "set_output": {"dict": [["transform", "pandas"]]}},
        "object fields": {**state, "seen": {"array": [], "dtype": "O,O"}},
    }
    for number, (name, data) in enumerate(wrong.items()):
        folder = tmp_path / str(number)
        archive.write(
            folder, {**members, "state.json": json.dumps(data).encode()}, header, tensors
        )
        with pytest.raises(SaveError, match=r"state\.json"):
            pytest.fail(f"{name}: {BertClassifier.load(folder)}")
    archive.write(tmp_path / "pickle", {**members, "state.json": b"\x80\x04."}, header, tensors)
    with pytest.raises(SaveError, match=r"state\.json"):
        BertClassifier.load(tmp_path / "pickle")
    for number, change_ in enumerate(({"class": "Popen"}, {"dtype": "int8"})):
        archive.write(tmp_path / f"h{number}", members, {**header, **change_}, tensors)
        with pytest.raises(SaveError):
            BertClassifier.load(tmp_path / f"h{number}")


def forged(name: str, folder: Path, change_: Callable[[dict[str, Any]], None]) -> type:
    """A folder of version 0.1 with a changed state and right hashes; its class."""
    kind: type = getattr(skbert, EXPECTED[name]["class"])
    source = SAVED_BY_0_1 / name
    files = [path.name for path in source.iterdir()
             if path.name not in {"MANIFEST.json", "model.safetensors"}]  # fmt: skip
    header, members, tensors = archive.read(source, files)
    del header["versions"]
    state = json.loads(members["state.json"])
    parts = {**state, "attributes": dict(state["attributes"]["dict"]), "task": [
        state["task"][0], dict(state["task"][1]["dict"])
    ]}  # fmt: skip
    change_(parts)
    parts["attributes"] = {"dict": [*map(list, parts["attributes"].items())]}
    parts["task"][1] = {"dict": [*map(list, parts["task"][1].items())]}
    archive.write(folder, {**members, "state.json": json.dumps(parts).encode()}, header, tensors)
    return kind


ARRAY = {"array": [0.5, 0.5], "dtype": "<f8"}
WRONG_ATTRIBUTES: list[tuple[str, str, Any]] = [
    ("classifier", "classes_", {"array": ["a"], "dtype": "<U1"}),
    ("classifier", "classes_", {"array": ["a", "b", "c"], "dtype": "<U1"}),
    ("classifier", "classes_", {"array": [["a", "b"]], "dtype": "<U1"}),
    ("classifier", "classes_", {"array": ["a", ["b"]], "dtype": "|O"}),
    ("classifier", "classes_", ["a", "b"]),
    ("classifier", "classes_", None),
    ("classifier", "temperature_", "warm"),
    ("classifier", "temperature_", math.nan),
    ("classifier", "temperature_", 0.0),
    ("classifier", "classes_", {"array": ["a", "a"], "dtype": "|O"}),
    ("classifier", "classes_", {"array": [1.0, math.nan], "dtype": "<f8"}),
    ("classifier", "history_", [1]),
    ("classifier", "n_iter_", -1),
    ("classifier", "n_iter_", 1.5),
    ("classifier_of_pairs", "feature_names_in_", {"array": ["a"], "dtype": "|O"}),
    ("classifier_of_pairs", "feature_names_in_", {"array": [None, None], "dtype": "|O"}),
    ("classifier_of_labels", "thresholds_", ARRAY),
    ("classifier_of_labels", "thresholds_", {"array": ["a"] * 3, "dtype": "<U1"}),
    ("regressor", "mean_", ARRAY),
    ("regressor", "scale_", 1.0),
    ("regressor", "n_outputs_", 2),
    ("tagger", "classes_", {"array": ["O"], "dtype": "|O"}),
    ("tagger", "scheme_", "IOB9"),
    ("extractor", "no_answer_threshold_", "never"),
    ("transformer", "mean_", ARRAY),
    ("transformer", "explained_variance_ratio_", ARRAY),
    ("transformer", "components_", ARRAY),
    ("transformer", "explained_variance_ratio_", None),
]


@pytest.mark.parametrize(("name", "attribute", "value"), WRONG_ATTRIBUTES)
def test_an_attribute_that_no_fit_sets(
    name: str, attribute: str, value: Any, tmp_path: Path
) -> None:
    kind: Any = forged(
        name, tmp_path / "f", lambda state: state["attributes"].update({attribute: value})
    )
    with pytest.raises(SaveError, match=rf"state\.json.*{attribute}"):
        kind.load(tmp_path / "f")


@pytest.mark.parametrize(
    ("name", "attribute"),
    [("classifier", "classes_"), ("classifier", "temperature_"), ("regressor", "mean_"),
     ("regressor", "n_outputs_"), ("tagger", "scheme_"), ("transformer", "mean_"),
     ("transformer", "components_"), ("tagger", "learned_scheme_"),
     ("extractor", "no_answer_threshold_"), ("classifier_of_labels", "thresholds_"),
     ("classifier_of_pairs", "n_features_in_")],
)  # fmt: skip
def test_an_attribute_that_is_missing(name: str, attribute: str, tmp_path: Path) -> None:
    kind: Any = forged(name, tmp_path / "f", lambda state: state["attributes"].pop(attribute))
    with pytest.raises(SaveError, match=rf"state\.json.*{attribute}"):
        kind.load(tmp_path / "f")


def test_components_of_another_width(tmp_path: Path) -> None:
    narrow = {"array": [[1.0] * 4] * 3, "dtype": "<f8"}
    mean = {"array": [1.0] * 4, "dtype": "<f8"}
    kind: Any = forged(
        "transformer", tmp_path / "f",
        lambda state: state["attributes"].update(components_=narrow, mean_=mean),
    )  # fmt: skip
    with pytest.raises(SaveError, match="mean_ of 4 numbers, where a vector has 8"):
        kind.load(tmp_path / "f")


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("classifier", "n_classes", 3), ("classifier", "n_classes", True),
        ("classifier", "max_length", 10**9), ("classifier", "max_length", -1),
        ("classifier", "max_length", "32"), ("classifier", "long_text", "all"),
        ("classifier", "long_text", []), ("classifier", "label_smoothing", 7.0),
        ("classifier", "label_smoothing", math.nan), ("classifier", "shell", 1),
        ("classifier_of_labels", "positive_weights", {"tuple": ["a"]}),
        ("extractor", "stride", -1), ("extractor", "stride", 10**6),
        ("extractor", "max_answer_length", 0), ("tagger", "n_tags", 5),
        ("tagger", "all_pieces", 1), ("regressor", "n_outputs", 0.5),
        ("transformer", "layers", {"tuple": [0, 99]}), ("transformer", "layers", {"tuple": []}),
        ("transformer", "layers", [0]), ("transformer", "layer_join", "sum"),
        ("transformer", "layers", {"tuple": [1, 1]}), ("transformer", "layers", {"tuple": [-1]}),
        ("transformer", "pooling", "mean_max_mean"),
    ],
)  # fmt: skip
def test_a_setting_that_no_fit_makes(name: str, setting: str, value: Any, tmp_path: Path) -> None:
    kind: Any = forged(
        name, tmp_path / "f", lambda state: state["task"][1].update({setting: value})
    )
    with pytest.raises(SaveError, match=rf"state\.json.*{setting}|outputs, where"):
        kind.load(tmp_path / "f")


@pytest.mark.parametrize(("parameter", "value"), [("precision", "float12"), ("max_length", -1)])
def test_a_parameter_that_no_fit_takes(parameter: str, value: Any, tmp_path: Path) -> None:
    kind: Any = forged(
        "classifier", tmp_path / "f",
        lambda state: state["params"]["dict"].append([parameter, value]),
    )  # fmt: skip
    with pytest.raises(SaveError, match=rf"state\.json.*{parameter}"):
        kind.load(tmp_path / "f")


def test_a_parameter_that_no_fit_takes_is_not_saved(
    fitted: BertClassifier, tmp_path: Path
) -> None:
    odd = copy.copy(fitted).set_params(precision="float12")
    with pytest.raises(ValueError, match="'precision' parameter of BertClassifier must be"):
        odd.save(tmp_path / "saved")
    assert not list(tmp_path.iterdir())


CHANGES: dict[str, Callable[[Any], object]] = {
    "classes_=": lambda fitted: setattr(fitted, "classes_", ["bad", "good"]),
    "'classes_'": lambda fitted: delattr(fitted, "classes_"),
    "n_iter_=": lambda fitted: setattr(fitted, "n_iter_", -1),
    "float16": lambda fitted: fitted.model_.half(),
    "classifier.weight": lambda fitted: fitted.model_.classifier.weight.data.fill_(math.nan),
    "pad_token_id=-5": lambda fitted: setattr(fitted.model_.config, "pad_token_id", -5),
}


@pytest.mark.parametrize("named", CHANGES)
def test_what_load_would_refuse_is_not_saved(
    named: str, fitted: BertClassifier, tmp_path: Path
) -> None:
    fitted.save(tmp_path / "saved")
    changed = copy.deepcopy(fitted)
    CHANGES[named](changed)
    with pytest.raises(SaveError, match=f"cannot be saved, .*{re.escape(named)}"):
        changed.save(tmp_path / "saved")
    assert_same(BertClassifier.load(tmp_path / "saved"), fitted, ["good"])


def test_a_score_of_too_few_rows_is_saved(tiny_model: Path, tmp_path: Path) -> None:
    X = ["a good book", "a bad book", "a nice room", "a poor room"]
    held = {
        "validation_fraction": 0.25,
        "pooling": "mean",
        "head_init": "probe",
    }  # of one row there is no R²
    fitted = plain(BertRegressor, tiny_model, **held).fit(X, [1.0, 2.0, 3.0, 4.0])
    assert math.isnan(fitted.probe_score_)
    fitted.save(tmp_path / "saved")
    assert math.isnan(BertRegressor.load(tmp_path / "saved").probe_score_)


@pytest.mark.parametrize("seen", [1, [], {"tuple": [None, 0]}, {"tuple": [{"tuple": [1]}, 1]},
                                  {"tuple": ["ab", 1]}, {"tuple": [None]}])  # fmt: skip
def test_a_record_of_x_that_no_fit_makes(seen: Any, tmp_path: Path) -> None:
    kind: Any = forged("classifier", tmp_path / "f", lambda state: state.update(seen=seen))
    with pytest.raises(SaveError, match=r"state\.json.*seen"):
        kind.load(tmp_path / "f")


@pytest.mark.parametrize(
    "bomb",
    [
        {"array": ["a", "b"], "dtype": "<U250000000"},
        {"array": [], "dtype": "<U250000000"},
        [{"array": ["a"], "dtype": "<U1000000"}] * 100,
        {"array": [["a"] * 100] * 100, "dtype": "<U100000"},
        {"array": [1, 2], "dtype": "(1000000000,)i4"},
        {"array": [1, 2], "dtype": "V1000000000"},
        {"array": [10**400, 1], "dtype": "<i8"},
        {"array": [[1], [1, 2]], "dtype": "<i8"},
        {"array": {"dict": 1}, "dtype": "<i8"},
    ],
)
def test_an_array_larger_than_its_file_is_refused_before_it_is_made(
    bomb: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind: Any = forged(
        "classifier", tmp_path / "f", lambda state: state["attributes"].update(history_=bomb)
    )
    tracemalloc.start()
    try:
        with pytest.raises(SaveError, match=r"state\.json"):
            kind.load(tmp_path / "f")
        assert tracemalloc.get_traced_memory()[1] < 150e6  # of numpy, too
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("depth", [50, 400, 900, 3000, 100_000])
@pytest.mark.parametrize("kind", ["list", "dict", "tuple", "array"])
def test_no_depth_of_nesting_in_a_state_escapes(kind: str, depth: int, tmp_path: Path) -> None:
    begin, end = {"list": ("[", "]"), "dict": ('{"a":', "}"), "tuple": ('{"tuple":[', "]}"),
                  "array": ('{"dtype":"|O","array":[', "]}")}[kind]  # fmt: skip
    forged("classifier", tmp_path / "f", lambda state: state["attributes"].update(deep="HERE"))
    names = [path.name for path in (tmp_path / "f").iterdir()
             if path.name not in {"MANIFEST.json", "model.safetensors"}]  # fmt: skip
    header, members, tensors = archive.read(tmp_path / "f", names)
    del header["versions"]
    nested = (begin * depth + "1" + end * depth).encode()
    members["state.json"] = members["state.json"].replace(b'"HERE"', nested)
    archive.write(tmp_path / "f", members, header, tensors)
    if depth <= 50 and kind != "array":
        BertClassifier.load(tmp_path / "f")  # an attribute of no known name is left out
    elif depth > 900:
        with pytest.raises(SaveError, match=r"state\.json"):
            BertClassifier.load(tmp_path / "f")
    else:
        with contextlib.suppress(SaveError):
            BertClassifier.load(tmp_path / "f")


def test_labels_too_large_for_a_saved_folder(fitted: BertClassifier, tmp_path: Path) -> None:
    long = copy.copy(fitted)
    long.classes_ = np.array(["bad", "good"], "<U10000000")
    with pytest.raises(SaveError, match=r"too large for a saved folder.*shorter labels"):
        long.save(tmp_path / "saved")


# --- skbert.load ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPECTED)
def test_load_finds_the_class(name: str) -> None:
    loaded = skbert.load(SAVED_BY_0_1 / name)
    assert type(loaded).__name__ == EXPECTED[name]["class"]
    assert type(skbert.load(str(SAVED_BY_0_1 / name))) is type(loaded)


@pytest.mark.parametrize(
    "name", ["Popen", "load", "datasets", "BertNothing", "__version__", 3, None]
)
def test_load_opens_nothing_but_estimators(name: Any, tmp_path: Path) -> None:
    source = SAVED_BY_0_1 / "classifier"
    files = [path.name for path in source.iterdir()
             if path.name not in {"MANIFEST.json", "model.safetensors"}]  # fmt: skip
    header, members, tensors = archive.read(source, files)
    del header["versions"]
    archive.write(tmp_path / "f", members, {**header, "class": name}, tensors)
    with pytest.raises(
        SaveError, match=r"does not have; it has BertChoiceRanker, .*BertTransformer"
    ):
        skbert.load(tmp_path / "f")


def test_load_says_what_is_wrong_with_a_folder(tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="there is no folder"):
        skbert.load(tmp_path / "nowhere")
    with pytest.raises(SaveError, match=r"holds no MANIFEST\.json.*from_pretrained"):
        skbert.load(tiny_model)


# --- transformers folders ------------------------------------------------------------------------


def fine_tuned(tiny_model: Path, folder: Path, **settings: Any) -> Path:
    """Write what transformers writes after fine-tuning; texts differ in random, large weights."""
    config = BertConfig.from_pretrained(tiny_model, initializer_range=0.5, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        BertForSequenceClassification(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_model).save_pretrained(folder)
    return folder


def reference(folder: Path, X: list[str]) -> np.ndarray:
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)(X, padding=True, return_tensors="pt")
    with torch.inference_mode():
        return model(**tokens).logits.double().numpy()


NAMES = ["very good", "bad", "Zero", "awful"]


@pytest.mark.parametrize("names", [NAMES, None], ids=["unsorted names", "LABEL_i"])
def test_classifier_from_pretrained(
    names: Any, tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X = sentiment.texts
    names = names or [f"LABEL_{row}" for row in range(12)]
    folder = fine_tuned(tiny_model, tmp_path / "model", id2label=dict(enumerate(names)))
    logits = reference(folder, X)
    opened = BertClassifier.from_pretrained(folder, device="cpu", precision="float32")
    assert opened.classes_.tolist() == sorted(names)
    assert opened.pooling_ == "pooler"
    order = np.argsort(names)
    proba = softmax(logits, axis=1)[:, order]
    np.testing.assert_allclose(opened.decision_function(X), logits[:, order], atol=1e-4)
    np.testing.assert_allclose(opened.predict_proba(X), proba, atol=1e-5)
    assert opened.predict(X).tolist() == [names[best] for best in logits.argmax(axis=1)]
    assert len(set(opened.predict(X))) > 1
    opened.save(tmp_path / "saved")
    assert_same(opened, BertClassifier.load(tmp_path / "saved"), X)
    opened.save_pretrained(tmp_path / "plain")
    np.testing.assert_allclose(reference(tmp_path / "plain", X), logits[:, order], atol=1e-4)
    more = opened.set_params(random_state=0).partial_fit(X[:4], ["new", *names[:3]])
    assert more.classes_.tolist() == sorted([*names, "new"])


def test_multi_label_from_pretrained(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X = sentiment.texts
    folder = fine_tuned(
        tiny_model, tmp_path / "model", id2label=dict(enumerate(NAMES)),
        problem_type="multi_label_classification",
    )  # fmt: skip
    logits = reference(folder, X)
    opened = BertClassifier.from_pretrained(folder, device="cpu", precision="float32")
    np.testing.assert_allclose(opened.predict_proba(X), expit(logits), atol=1e-5)
    np.testing.assert_array_equal(opened.predict(X), logits > 0)
    assert opened.classes_.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("n_outputs", [1, 2])
def test_regressor_from_pretrained(
    n_outputs: int, tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    X = sentiment.texts
    folder = fine_tuned(
        tiny_model, tmp_path / "model", num_labels=n_outputs, problem_type="regression"
    )
    opened = BertRegressor.from_pretrained(folder, device="cpu", precision="float32")
    expected = reference(folder, X)
    np.testing.assert_allclose(opened.predict(X), expected.squeeze(), atol=1e-4)
    opened.save_pretrained(tmp_path / "again")
    np.testing.assert_allclose(reference(tmp_path / "again", X), expected, atol=1e-4)
    opened.save(tmp_path / "saved")
    assert_same(opened, BertRegressor.load(tmp_path / "saved"), X)
    with pytest.raises(ModelError, match="BertRegressor"):
        BertClassifier.from_pretrained(folder)
    with pytest.raises(ModelError, match="BertClassifier"):
        BertRegressor.from_pretrained(fine_tuned(tiny_model, tmp_path / "two", num_labels=2))


@pytest.mark.parametrize("kind", [BertClassifier, BertRegressor])
def test_no_head_to_open(kind: type, tiny_model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no head.*fit"):
        kind.from_pretrained(tiny_model)
    with pytest.raises(ModelError, match="not found"):
        kind.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(TypeError, match="no_such_parameter"):
        kind.from_pretrained(tiny_model, no_such_parameter=1)


def logits_elsewhere(folder: Path, X: list[Any]) -> np.ndarray:
    """The logits of a folder, by the library that it is for."""
    if not (folder / "modules.json").exists():
        return reference(folder, X)
    library = pytest.importorskip("sentence_transformers")
    model = library.SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    return model.encode(X, show_progress_bar=False).astype(float)


def test_save_pretrained(case: Any, tmp_path: Path) -> None:
    fitted, X, _ = case
    before = outputs(fitted, X)
    fitted.save_pretrained(tmp_path / "plain")
    for name, value in outputs(fitted, X).items():
        np.testing.assert_array_equal(value, before[name])
    assert not [path for path in (tmp_path / "plain").iterdir() if path.suffix == ".bin"]
    assert (tmp_path / "plain" / "modules.json").exists() == (fitted.pooling_ != "pooler")
    again = type(fitted).from_pretrained(tmp_path / "plain", device="cpu", precision="float32")
    texts = X["b"] if isinstance(X, pd.DataFrame) else X
    logits = logits_elsewhere(tmp_path / "plain", list(texts))
    config = AutoConfig.from_pretrained(tmp_path / "plain")
    if isinstance(fitted, BertRegressor):
        assert config.problem_type == "regression"
        np.testing.assert_allclose(logits.squeeze(), fitted.predict(X), atol=1e-4)
        np.testing.assert_allclose(again.predict(texts), fitted.predict(X), atol=1e-4)
        return
    multi_label = hasattr(fitted, "thresholds_")
    kind = "multi_label" if multi_label else "single_label"
    assert config.problem_type == f"{kind}_classification"
    proba = expit(logits) if multi_label else softmax(logits, axis=1)
    np.testing.assert_allclose(proba, fitted.predict_proba(X), atol=1e-5)
    np.testing.assert_allclose(again.predict_proba(texts).sum(), proba.sum(), rtol=1e-5)
    if not multi_label:
        names = [str(label) for label in fitted.classes_]
        assert list(config.id2label.values()) == names
        assert config.label2id == {name: row for row, name in enumerate(names)}


def test_save_pretrained_says_nothing(
    fitted: BertClassifier, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    fitted.save(tmp_path / "saved")
    BertClassifier.load(tmp_path / "saved")
    fitted.save_pretrained(tmp_path / "plain")
    BertClassifier.from_pretrained(tmp_path / "plain")
    assert capsys.readouterr() == ("", "")
