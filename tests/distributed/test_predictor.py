"""`Predictor`: methods of saved estimators as functions for other processes."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
import subprocess
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from support.job import TEXTS
from support.jobs import JOBS

import skbert
from skbert import BertChoiceRanker, BertClassifier, BertRegressor, distributed
from skbert.distributed import Predictor
from skbert.exceptions import InputError, SaveError

if TYPE_CHECKING:
    from pathlib import Path

    from support.job import Job

NOT_CALLED = {"conformalize", "fit", "fit_transform", "partial_fit", "perplexity", "score"}
NOT_CALLED |= {"predict_masked"}  # whose rows hold a mask
JOBS_AND_METHODS = [
    pytest.param(job, method, id=f"{job.estimator.__name__}-{method}")
    for job in JOBS.values()
    for method in sorted(job.methods - NOT_CALLED - {"predict_set"})
]


@pytest.fixture(scope="module")
def saved(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Function: a job -> a fitted estimator of it and the folder that it is saved in."""
    folder, fitted = tmp_path_factory.mktemp("saved"), {}

    def save(job: Job) -> tuple[Any, Path]:
        name = job.estimator.__name__
        if name not in fitted:
            fitted[name] = job.make(tiny_model).fit(job.usual.X, job.usual.y)
            fitted[name].save(folder / name)
        return fitted[name], folder / name

    return save


def plain(results: Any) -> Any:
    if isinstance(results, pd.DataFrame):
        return results.to_dict("records")
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in results]


@pytest.mark.parametrize(("job", "method"), JOBS_AND_METHODS)
def test_it_predicts_as_the_estimator(saved: Any, job: Job, method: str) -> None:
    estimator, folder = saved(job)
    predict = pickle.loads(pickle.dumps(Predictor(folder, method)))
    X = job.usual.X
    assert plain(predict(X)) == plain(getattr(estimator, method)(X))


@pytest.mark.parametrize(("job", "method"), JOBS_AND_METHODS)
def test_of_no_rows_the_result_is_empty_and_as_wide(saved: Any, job: Job, method: str) -> None:
    _, folder = saved(job)
    X = job.usual.X
    predict = Predictor(folder, method)
    some, none = predict(X), predict(X[:0])
    assert type(none) is type(some)
    assert len(none) == 0
    assert none.ndim == some.ndim
    if job.estimator is not BertChoiceRanker:  # as wide as the longest list of options
        assert none.shape[1:] == some.shape[1:]
    assert none.dtype == some.dtype if isinstance(some, np.ndarray) else True


def test_an_exported_folder_predicts_without_torch(saved: Any, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    estimator, _ = saved(JOBS["BertClassifier"])
    estimator.export(tmp_path / "exported")
    code = f"""
import sys
from skbert.distributed import Predictor
predict = Predictor({str(tmp_path / "exported")!r}, "predict_proba")
print(predict({TEXTS!r}).tolist(), predict([]).shape, "torch" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    proba, *rest = done.stdout.strip().rpartition("]]")[0] + "]]", *done.stdout.split()[-3:]
    np.testing.assert_allclose(ast.literal_eval(proba), estimator.predict_proba(TEXTS), atol=1e-4)
    assert rest == ["(0,", "2)", "False"]
    with pytest.raises(InputError, match="no such method"):
        Predictor(tmp_path / "exported", "fit")


@pytest.mark.parametrize("container", [list, np.array, pd.Series, pd.Index])
def test_no_rows_of_each_container(saved: Any, container: Any) -> None:
    _, folder = saved(JOBS["BertClassifier"])
    assert Predictor(folder)(container(TEXTS)[:0]).shape == (0,)


def test_no_rows_of_an_arrow_table(saved: Any) -> None:
    _, folder = saved(JOBS["BertClassifier"])
    assert Predictor(folder)(pa.table({"text": TEXTS})[:0]).shape == (0,)


def test_no_rows_of_pairs_and_of_columns_of_numbers(tiny_model: Path, tmp_path: Path) -> None:
    rows = pd.DataFrame({"text": TEXTS, "price": [1.0, 2.0, 3.0] * 4, "about": TEXTS})
    y = [1.0, 2.0] * 6
    own: dict[str, Any] = {"text_columns": ["text", "about"], "feature_columns": ["price"]}
    BertRegressor(tiny_model, epochs=1, device="cpu", **own).fit(rows, y).save(tmp_path / "mixed")
    assert Predictor(tmp_path / "mixed")(rows[:0]).shape == (0,)
    pairs = np.array([TEXTS, TEXTS]).T
    BertRegressor(tiny_model, epochs=1, device="cpu").fit(pairs, y).save(tmp_path / "pairs")
    assert Predictor(tmp_path / "pairs")(pairs[:0]).shape == (0,)


def test_no_rows_of_several_columns_of_classes(tiny_model: Path, tmp_path: Path) -> None:
    y = np.array([["a", "x"], ["b", "y"], ["a", "y"]])
    settings = {"epochs": 1, "random_state": 0}
    BertClassifier(tiny_model, **settings).fit(["one", "two", "three"], y).save(tmp_path / "m")
    first, second = Predictor(tmp_path / "m", "predict_proba")([])
    assert first.shape == second.shape == (0, 2)


def test_a_folder_at_home(saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted, folder = saved(JOBS["BertRegressor"])
    monkeypatch.setenv("HOME", str(folder.parent))
    assert plain(Predictor("~/BertRegressor")(["a"])) == plain(fitted.predict(["a"]))


def test_what_cannot_be_read_is_refused_without_rows_too(saved: Any) -> None:
    _, folder = saved(JOBS["BertClassifier"])
    with pytest.raises(InputError, match="0 sample"):
        Predictor(folder)(pd.DataFrame({name: [] for name in "abc"}))


def test_options_are_passed_on(saved: Any) -> None:
    estimator, folder = saved(JOBS["BertClassifier"])
    rejected = Predictor(folder)(TEXTS, reject_below=0.999)
    assert plain(rejected) == plain(estimator.predict(TEXTS, reject_below=0.999))
    assert plain(rejected) != plain(estimator.predict(TEXTS))


def test_a_process_opens_a_folder_once(saved: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = saved(JOBS["BertClassifier"])
    opened: list[Path] = []

    def load(path: Path) -> Any:
        opened.append(path)
        return skbert.load(path)

    monkeypatch.setattr(distributed, "load", load)
    monkeypatch.setattr(distributed, "_estimators", {})
    data = pickle.dumps(Predictor(folder))
    calls = [threading.Thread(target=pickle.loads(data), args=(TEXTS,)) for _ in range(4)]
    for call in calls:
        call.start()
    for call in calls:
        call.join()
    Predictor(folder, "predict_proba")(TEXTS)
    assert opened == [folder]


def test_it_is_small_and_names_its_folder(saved: Any) -> None:
    _, folder = saved(JOBS["BertClassifier"])
    predict = Predictor(folder, "predict_proba")
    assert len(pickle.dumps(predict)) < 2000
    assert repr(predict) == f"Predictor({str(folder)!r}, 'predict_proba')"


@pytest.mark.parametrize("method", ["predict_spans", "classes_", "nothing", ""])
def test_a_method_that_is_none_is_refused(saved: Any, method: str) -> None:
    _, folder = saved(JOBS["BertClassifier"])
    with pytest.raises(InputError, match=f"method='{method}', but .* holds a BertClassifier"):
        Predictor(folder, method)


def test_another_estimator_in_the_folder_is_refused(
    saved: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = saved(JOBS["BertClassifier"])
    monkeypatch.setattr(distributed, "_estimators", {})
    shutil.copytree(folder, tmp_path / "model")
    predict = Predictor(tmp_path / "model")
    predict(TEXTS)
    estimator = BertClassifier.load(folder).set_params(epochs=2)
    estimator.save(tmp_path / "model")
    newer = Predictor(tmp_path / "model")
    assert plain(newer(TEXTS)) == plain(estimator.predict(TEXTS))
    with pytest.raises(SaveError, match="holds another estimator than when"):
        predict(TEXTS)
    shutil.rmtree(tmp_path / "model")
    assert plain(newer(TEXTS)) == plain(estimator.predict(TEXTS))  # it is open
    monkeypatch.setattr(distributed, "_estimators", {})
    with pytest.raises(SaveError, match="there is no folder"):
        newer(TEXTS)


def test_errors_travel_where_tracebacks_do() -> None:
    """Dask teaches pickle to keep tracebacks, which makes exceptions in another way."""
    code = """
        import pickle
        import distributed
        from skbert import exceptions
        kinds = [getattr(exceptions, name) for name in exceptions.__all__]
        for kind in kinds:
            if isinstance(kind, type):
                again = pickle.loads(pickle.dumps(kind("what is wrong")))
                assert (type(again), again.args) == (kind, ("what is wrong",))
    """
    pytest.importorskip("distributed")
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
