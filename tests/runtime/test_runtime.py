"""Exported folders opened without torch: the same predictions for every form of X, and odd X."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from support.jobs import FORMS
from support.odd_texts import PARTS

import skbert
from skbert import BertClassifier, BertTokenTagger, BertTransformer, runtime
from skbert._core.checkpoints import archive
from skbert._core.export.engines import ENGINES
from skbert._core.export.rows import _batches
from skbert._estimator.state import dumps, loads
from skbert.exceptions import InputError, NonFiniteError, SaveError, TruncationWarning

METHODS = (
    "predict", "predict_proba", "decision_function", "predict_spans", "predict_answers",
    "predict_text", "rank", "transform", "get_feature_names_out",
)  # fmt: skip
HEAVY = ("torch", "transformers", "sklearn", "scipy", "pandas", "joblib", "safetensors", "tqdm")
SETTINGS = {"device": "cpu", "precision": "float32", "random_state": 0}
EXPORTED = {key: rows for key, rows in FORMS.items() if key[0] != "BertPretrainer"}
FIRST = dict(reversed(EXPORTED))  # of each estimator


class Pair(NamedTuple):
    """A fitted estimator and the folder that it was exported to."""

    estimator: Any
    folder: Path


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(key, id="-".join(key), marks=() if key in FIRST.items() else pytest.mark.slow)
        for key in EXPORTED
    ],
)
def pair(
    request: pytest.FixtureRequest, lively_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Pair, Any]:
    job, form = EXPORTED[request.param]
    held_out = {"validation_fraction": 0.5} if job.is_trained else {}
    estimator = job.make(lively_model, precision="float32", **held_out, **form.params)
    estimator.fit(form.X, form.y)
    if held_out:  # no row lies on the edge of its set
        estimator.conformity_scores_ = estimator.conformity_scores_ + 1e-3
    folder = tmp_path_factory.mktemp("exported") / "model"
    estimator.export(folder)
    return Pair(estimator, folder), form.X


@pytest.fixture(scope="module")
def classifier(lively_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    job, form = FORMS["BertClassifier", "classes"]
    estimator = job.make(lively_model, precision="float32").fit(form.X, form.y)
    assert differ(estimator.predict_proba(form.X))
    folder = tmp_path_factory.mktemp("classifier") / "model"
    estimator.export(folder)
    return Pair(estimator, folder)


def differ(values: Any) -> bool:
    """Whether values of different rows do, by far more than `assert_close` allows."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "f":
        return bool(np.abs(values - np.roll(values, 1, axis=0)).max() > 0.01)
    return len({*map(str, values)}) > 1


def assert_close(actual: Any, expected: Any) -> None:
    """The same values, those that are floats within 1e-4."""
    if isinstance(expected, pd.DataFrame):
        assert [*actual.columns] == [*expected.columns]
        for name in expected:
            assert_close(actual[name].to_numpy(), expected[name].to_numpy())
        return
    expected = np.asarray(expected)
    assert len(actual) == len(expected)
    if expected.dtype == object and any(isinstance(row, np.ndarray) for row in expected):
        for one, other in zip(actual, expected, strict=True):
            assert_close(one, other)
    elif expected.dtype.kind == "f":
        np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-4)
        assert np.asarray(actual).dtype == expected.dtype
    else:
        assert np.asarray(actual).tolist() == expected.tolist()


def test_it_predicts_what_the_estimator_does(pair: tuple[Pair, Any]) -> None:
    (estimator, folder), X = pair
    model = runtime.load(folder)
    compared = [name for name in METHODS if hasattr(estimator, name)]
    assert any(differ(getattr(estimator, name)(X)) for name in compared if name[0] != "g")
    for name in compared:
        rows = () if name == "get_feature_names_out" else (X,)
        assert_close(getattr(model, name)(*rows), getattr(estimator, name)(*rows))
    if hasattr(estimator, "predict_set"):
        assert_close(model.predict_set(X, 0.6), estimator.predict_set(X, 0.6))


def test_it_has_every_method_that_predicts(pair: tuple[Pair, Any]) -> None:
    (estimator, folder), _ = pair
    model = runtime.load(folder)
    for name in (*METHODS, "predict_set"):
        assert hasattr(model, name) == hasattr(estimator, name), name


def test_openvino_predicts_the_same(classifier: Pair, tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    X = FORMS["BertClassifier", "classes"][1].X
    classifier.estimator.export(tmp_path / "model", format="openvino")
    model = runtime.load(tmp_path / "model", threads=1)
    assert_close(model.predict_proba(X), classifier.estimator.predict_proba(X))
    assert "openvino" in repr(model)


def test_odd_and_long_texts(classifier: Pair) -> None:
    model, odd = runtime.load(classifier.folder), [*PARTS, "", "a\ud800b"]
    with pytest.warns(skbert.exceptions.SkbertWarning, match="surrogate"):
        actual = model.predict_proba(odd)
    with pytest.warns(skbert.exceptions.SkbertWarning, match="surrogate"):
        assert_close(actual, classifier.estimator.predict_proba(odd))
    long = ["the book " * 400, "short"]
    with pytest.warns(TruncationWarning, match="1 of 2 rows were too long"):
        actual = model.predict_proba(long)
    with pytest.warns(TruncationWarning):
        assert_close(actual, classifier.estimator.predict_proba(long))


@pytest.mark.parametrize(
    "long_text", ["windows", pytest.param("head_tail", marks=pytest.mark.slow)]
)
def test_long_texts_in_windows(long_text: str, lively_model: Path, tmp_path: Path) -> None:
    texts = ["the book is good " * 60, "bad", "a film " * 90]
    classifier = BertClassifier(
        lively_model, epochs=1, long_text=long_text, max_length=32, **SETTINGS
    )
    with pytest.warns(TruncationWarning) if long_text != "windows" else does_not_warn():
        classifier.fit(texts, ["x", "y", "x"])
        classifier.export(tmp_path / "model")
        model = runtime.load(tmp_path / "model")
        assert_close(model.predict_proba(texts), classifier.predict_proba(texts))


def does_not_warn() -> Any:
    import contextlib

    return contextlib.nullcontext()


def test_frames_with_features_beside_the_text(lively_model: Path, tmp_path: Path) -> None:
    frame = pd.DataFrame(
        {"text": ["good", "bad", "nice", "poor"] * 3, "price": [1.0, 9.0, None, 8.0] * 3,
         "shop": ["a", "b"] * 6}
    )  # fmt: skip
    classifier = BertClassifier(
        lively_model, epochs=1, feature_columns=["price", "shop"], **SETTINGS
    ).fit(frame, ["yes", "no"] * 6)
    classifier.export(tmp_path / "model")
    model = runtime.load(tmp_path / "model")
    assert_close(model.predict_proba(frame), classifier.predict_proba(frame))
    assert model.feature_names_in_.tolist() == ["text", "price", "shop"]
    with pytest.raises(InputError, match="price"):
        model.predict(frame[["text", "shop"]])


def test_columns_of_classes_keep_their_frame(lively_model: Path, tmp_path: Path) -> None:
    X = FORMS["BertClassifier", "classes"][1].X
    y = pd.DataFrame({"tone": ["good", "bad"] * 6, "urgent": [True, False, True] * 4})
    classifier = BertClassifier(lively_model, epochs=1, **SETTINGS).fit(X, y)
    classifier.export(tmp_path / "model")
    rows = pd.Series(X, index=range(100, 112))
    predicted = runtime.load(tmp_path / "model").predict(rows)
    pd.testing.assert_frame_equal(predicted, classifier.predict(rows))


def test_a_changed_threshold_has_an_effect(lively_model: Path, tmp_path: Path) -> None:
    _, form = FORMS["BertClassifier", "labels"]
    BertClassifier(lively_model, epochs=1, **SETTINGS).fit(form.X, form.y).export(
        tmp_path / "model"
    )
    model = runtime.load(tmp_path / "model")
    model.thresholds_ = np.array([0.0, 1.1])
    assert model.predict(form.X).tolist() == [[1, 0]] * 12


@pytest.mark.slow  # two exports more, as below
def test_poolings_layers_and_components(lively_model: Path, tmp_path: Path) -> None:
    X = FORMS["BertTransformer", "texts"][1].X
    for number, params in enumerate((
        {"pooling": "mean_max", "normalize": True},
        {"layers": [-1, 0], "layer_join": "concat", "n_components": 3},
    )):  # fmt: skip
        transformer = BertTransformer(lively_model, precision="float32", **params).fit(X)
        transformer.export(tmp_path / str(number))
        model = runtime.load(tmp_path / str(number))
        assert_close(model.transform(X), transformer.transform(X))
        assert model.get_feature_names_out().tolist() == (
            transformer.get_feature_names_out().tolist()
        )


@pytest.mark.slow
def test_tags_decode_as_the_estimator_does(lively_model: Path, tmp_path: Path) -> None:
    _, form = FORMS["BertTokenTagger", "words"]
    for decoding in ("viterbi", "argmax"):
        tagger = BertTokenTagger(lively_model, epochs=1, decoding=decoding, **SETTINGS)
        tagger.fit(form.X, form.y).export(tmp_path / decoding)
        assert_close(runtime.load(tmp_path / decoding).predict(form.X), tagger.predict(form.X))


@pytest.mark.parametrize("engine", ["onnx", pytest.param("openvino", marks=pytest.mark.slow)])
def test_many_threads_predict_at_once(engine: str, classifier: Pair, tmp_path: Path) -> None:
    pytest.importorskip({"onnx": "onnxruntime"}.get(engine, engine))
    classifier.estimator.export(tmp_path / "model", format=engine)
    model = runtime.load(tmp_path / "model", threads=1)
    texts = [f"{word} {n}" for n in range(40) for word in ("good", "bad", "the nice film is")]
    expected = classifier.estimator.predict_proba(texts)
    start = threading.Barrier(8)

    def predict(worker: int) -> float:
        start.wait()
        own = slice(worker, None, 8)
        found = [model.predict_proba(texts[own]) for _ in range(5)]
        return max(np.abs(each - expected[own]).max() for each in found)

    with ThreadPoolExecutor(8) as threads:
        assert max(threads.map(predict, range(8))) < 1e-4


def test_batches_hold_every_row_once_and_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 500, 300)
    batches = [*_batches(lengths, equal_lengths=False)]
    assert sorted(np.concatenate(batches).tolist()) == [*range(300)]
    for batch in batches:
        assert len(batch) == 1 or lengths[batch].max() * len(batch) <= 4096


# --- without torch -------------------------------------------------------------------------------


def test_a_process_that_predicts_loads_nothing_heavy(classifier: Pair) -> None:
    code = f"""
        import json, sys
        for name in {HEAVY}:
            sys.modules[name] = None  # an import of it fails
        import skbert.runtime
        model = skbert.runtime.load({str(classifier.folder)!r})
        labels = model.predict(["the good book", "the bad room"]).tolist()
        print(json.dumps([labels, sorted(sys.modules)]))
    """
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code)],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    labels, names = json.loads(done.stdout)
    assert labels == classifier.estimator.predict(["the good book", "the bad room"]).tolist()
    roots = {name.partition(".")[0] for name in names} - {*HEAVY}
    assert {"onnxruntime", "tokenizers", "numpy", "skbert"} <= roots
    assert not roots & {"huggingface_hub", "openvino", "matplotlib"}


# --- folders that are refused --------------------------------------------------------------------


def members_of(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The header and the files of a folder."""
    known = {*ENGINES["onnx"].files, "state.json", "tokenizer.json"}
    header, members = archive.read_members(folder, known)
    header.pop("versions")
    return header, dict(members)


def rewrite(folder: Path, target: Path, header: dict[str, Any], **state: Any) -> Path:
    """The same folder with other entries, and hashes that are right."""
    old, members = members_of(folder)
    members["state.json"] = dumps({**loads(members["state.json"]), **state})
    archive.write(target, members, {**old, **header}, None)
    return target


def test_a_folder_that_save_wrote(classifier: Pair, tmp_path: Path) -> None:
    classifier.estimator.save(tmp_path / "saved")
    with pytest.raises(SaveError, match=r"was not written by export, .*skbert\.load"):
        runtime.load(tmp_path / "saved")


def test_estimators_refuse_an_exported_folder(classifier: Pair) -> None:
    for load in (skbert.load, BertClassifier.load):
        with pytest.raises(SaveError, match=r"skbert\.runtime\.load"):
            load(classifier.folder)


@pytest.mark.parametrize("header", [{"engine": "abacus"}, {"class": "BertOracle"}], ids=str)
def test_what_a_later_version_may_write(
    header: dict[str, Any], classifier: Pair, tmp_path: Path
) -> None:
    folder = rewrite(classifier.folder, tmp_path / "model", header)
    with pytest.raises(SaveError, match="upgrade it, or export again"):
        runtime.load(folder)


@pytest.mark.parametrize("name", ["model.onnx", "state.json", "tokenizer.json", "MANIFEST.json"])
def test_a_damaged_or_missing_file(name: str, classifier: Pair, tmp_path: Path) -> None:
    folder = rewrite(classifier.folder, tmp_path / "model", {})
    data = bytearray((folder / name).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / name).write_bytes(data)
    with pytest.raises(SaveError, match=name.replace(".", r"\.")):
        runtime.load(folder)
    (folder / name).unlink()
    with pytest.raises(SaveError, match=name.replace(".", r"\.")):
        runtime.load(folder)


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SaveError, match="there is no folder"):
        runtime.load(tmp_path / "nowhere")


@pytest.mark.parametrize(
    "state",
    [
        {"task": ["SingleLabel", {"n_classes": 3, "max_length": 16}]},
        {"task": ["Answers", {"max_length": 16}]},
        {"attributes": {"classes_": np.array(["a", "a"]), "temperature_": 1.0}},
        {"attributes": {}},
        {"params": {"missing": "ignore"}},
        {"tokenizer": {}},
        {"seen": 3},
    ],
    ids=str,
)
def test_a_forged_state(state: dict[str, Any], classifier: Pair, tmp_path: Path) -> None:
    folder = rewrite(classifier.folder, tmp_path / "model", {}, **state)
    with pytest.raises(SaveError, match=r"state\.json does not describe"):
        runtime.load(folder)


def test_a_forged_graph(classifier: Pair, tmp_path: Path) -> None:
    header, members = members_of(classifier.folder)
    members["model.onnx"] = b"no graph"
    archive.write(tmp_path / "model", members, header, None)
    with pytest.raises(SaveError, match=r"model\.onnx cannot be opened for onnx"):
        runtime.load(tmp_path / "model")


def test_the_graph_of_another_estimator(
    classifier: Pair, lively_model: Path, tmp_path: Path
) -> None:
    other = BertClassifier(lively_model, epochs=1, **SETTINGS)
    other.fit(["a", "b", "c"], ["a", "b", "c"])
    other.export(tmp_path / "other")
    graph = (tmp_path / "other" / "model.onnx").read_bytes()
    header, members = members_of(classifier.folder)
    archive.write(tmp_path / "model", {**members, "model.onnx": graph}, header, None)
    with pytest.raises(SaveError, match="the graph has 3 outputs, where 2 are read"):
        runtime.load(tmp_path / "model")


def test_a_precision_that_is_unknown(classifier: Pair, tmp_path: Path) -> None:
    header, members = members_of(classifier.folder)
    archive.write(tmp_path / "model", members, {**header, "precision": "int3"}, None)
    with pytest.raises(SaveError, match=r"in 'int3'\. This version of skbert opens"):
        runtime.load(tmp_path / "model")


def test_outputs_that_are_no_numbers(classifier: Pair) -> None:
    model = runtime.load(classifier.folder)

    class Broken:
        def run(self, inputs: dict[str, np.ndarray]) -> np.ndarray:
            return np.full((len(inputs["input_ids"]), 2), np.nan, np.float32)

    object.__setattr__(model._fitted, "graph", Broken())
    with pytest.raises(NonFiniteError, match="of row 0"):
        model.predict(["the book"])


def test_wrong_input_is_named(classifier: Pair) -> None:
    model = runtime.load(classifier.folder)
    with pytest.raises(InputError, match="row 1"):
        model.predict(["the book", None])
    with pytest.raises(InputError, match="threads"):
        runtime.load(classifier.folder, threads=0)
