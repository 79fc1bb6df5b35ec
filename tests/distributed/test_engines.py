"""Searches and predictions on real Dask, Ray and Spark: what one process gives, and no row less.

Ray and Spark are not installed with the tests: ``pip install -c constraints.txt ".[engines]"``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.model_selection import GridSearchCV
from support import ROOT
from support.job import LABELS, TEXTS

from skbert import BertClassifier, BertTransformer
from skbert.distributed import Predictor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.filterwarnings("ignore")  # of the engines

FRAME = pd.DataFrame({"text": 4 * TEXTS, "id": range(4 * len(TEXTS))})
GRID = {"learning_rate": [1e-4, 1e-2]}


def needs(package: str) -> pytest.MarkDecorator:
    is_there = importlib.util.find_spec(package) is not None
    return pytest.mark.skipif(not is_there, reason=f"{package} is missing: the extra engines")


@pytest.fixture(scope="module")
def folder(lively_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a classifier and a transformer, in folders of their own."""
    path: Path = tmp_path_factory.mktemp("saved")
    params: dict[str, Any] = {"epochs": 1, "device": "cpu", "random_state": 0}
    BertClassifier(lively_model, **params).fit(TEXTS, LABELS).save(path / "classifier")
    BertTransformer(lively_model, device="cpu").fit(TEXTS).save(path / "transformer")
    return path


@pytest.fixture(scope="module")
def expected(folder: Path) -> pd.DataFrame:
    """The frame with what one process predicts."""
    labels = BertClassifier.load(folder / "classifier").predict(FRAME["text"])
    assert {*labels} == {*LABELS}
    vectors = BertTransformer.load(folder / "transformer").transform(FRAME["text"])
    return FRAME.assign(label=labels, vector=[*vectors])


def assert_same(found: pd.DataFrame, expected: pd.DataFrame) -> None:
    assert len(found) == len(expected)
    found = found.sort_values("id")
    assert found["label"].tolist() == expected["label"].tolist()
    vectors = np.stack([np.asarray(each) for each in found["vector"]])
    np.testing.assert_allclose(vectors, np.stack([*expected["vector"]]), atol=1e-6)


def search_with(lively_model: Path, scoring: Any = None, **params: Any) -> GridSearchCV:
    own: dict[str, Any] = {"epochs": 1, "device": "cpu", "random_state": 0, **params}
    estimator = BertClassifier(lively_model, **own)
    return GridSearchCV(estimator, GRID, cv=2, scoring=scoring, n_jobs=2, error_score="raise")


def scores(search: GridSearchCV, backend: str | None = None) -> list[float]:
    if backend is None:
        search.set_params(n_jobs=None).fit(TEXTS, LABELS)
    else:
        with joblib.parallel_backend(backend):
            search.fit(TEXTS, LABELS)
    rows: list[float] = search.cv_results_["mean_test_score"].tolist()
    return [*rows, *search.best_estimator_.predict_proba(TEXTS).ravel().tolist()]


def killed_once(flag: Path) -> Callable[[], None]:
    """A function that kills the process of an engine that calls it, if none was killed before."""
    own = os.getpid()

    def die() -> None:
        assert os.getpid() != own, "no worker was asked"
        try:
            os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    return die


def scorer_of(die: Callable[[], None]) -> Any:
    """The accuracy of a search in one of whose workers the power goes out."""

    def score(estimator: Any, X: Any, y: Any) -> float:
        die()
        return float(estimator.score(X, y))

    return score


# --- Dask ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dask_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from dask.distributed import Client, LocalCluster

    local = tmp_path_factory.mktemp("dask")
    with (
        LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=str(local)
        ) as cluster,
        Client(cluster) as client,
    ):
        yield client


@needs("distributed")
@pytest.mark.long  # processes of workers
def test_a_search_on_dask_has_the_scores_of_one_process(
    dask_client: Any, lively_model: Path
) -> None:
    assert scores(search_with(lively_model), "dask") == scores(search_with(lively_model))


@needs("distributed")
@pytest.mark.long
def test_partitions_of_dask(dask_client: Any, folder: Path, expected: pd.DataFrame) -> None:
    import dask.dataframe as dd

    label = Predictor(folder / "classifier")
    embed = Predictor(folder / "transformer", "transform")

    def predicted(part: pd.DataFrame) -> pd.DataFrame:
        return part.assign(label=label(part["text"]), vector=[*embed(part["text"])])

    frame = dd.from_pandas(FRAME, npartitions=5)
    meta = {**FRAME.dtypes, "label": object, "vector": object}
    assert_same(frame.map_partitions(predicted, meta=meta).compute(), expected)
    # Partitions of which nothing is left.
    few = frame[frame["id"] < 12].map_partitions(predicted, meta=meta)
    assert_same(few.compute(), expected[:12])


@needs("distributed")
@pytest.mark.slow  # Dask takes half a minute to notice
def test_a_worker_of_dask_that_is_killed_loses_no_row(
    dask_client: Any, folder: Path, expected: pd.DataFrame, tmp_path: Path
) -> None:
    import dask.dataframe as dd

    label, die = Predictor(folder / "classifier"), killed_once(tmp_path / "died")

    def predicted(texts: pd.Series) -> pd.Series:
        if texts.index[0] > 0:
            die()
        return pd.Series(label(texts), texts.index)

    texts = dd.from_pandas(FRAME["text"], npartitions=4)
    found = texts.map_partitions(predicted, meta=("label", object)).compute()
    assert (tmp_path / "died").exists()
    assert found.tolist() == expected["label"].tolist()


@needs("distributed")
@pytest.mark.slow
def test_a_search_on_dask_survives_a_worker(
    dask_client: Any, lively_model: Path, tmp_path: Path
) -> None:
    dask_client.wait_for_workers(2)  # with fewer the search runs in this process
    score = scorer_of(killed_once(tmp_path / "died"))
    found = scores(search_with(lively_model, score, checkpoint_dir=tmp_path / "fits"), "dask")
    assert (tmp_path / "died").exists()
    assert found == scores(search_with(lively_model))


# --- recipes -------------------------------------------------------------------------------------

RECIPES = """
import test_documents
page = "docs/engines.md"
found = test_documents.differences(page, test_documents.PAGES[page])
open("differences", "w").write(repr(found))
"""


@needs("ray")
@needs("pyspark")
@needs("distributed")
@pytest.mark.engine
@pytest.mark.timeout(600)
def test_code_of_the_page_prints_what_it_says(minilm: Path, tmp_path: Path) -> None:
    places = os.pathsep.join([str(ROOT / "tests" / "house"), *sys.path])
    with (tmp_path / "log").open("w") as log:
        subprocess.run(
            [sys.executable, "-c", RECIPES], stdout=log, stderr=log, check=False, timeout=580,
            cwd=tmp_path, env={**os.environ, "PYTHONPATH": places},
        )  # fmt: skip
    assert (tmp_path / "differences").read_text() == "[]", (tmp_path / "log").read_text()


# --- Ray -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    import ray
    from ray.util.joblib import register_ray

    ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100_000_000)
    register_ray()
    yield ray
    ray.shutdown()


@needs("ray")
@pytest.mark.engine
def test_a_search_on_ray_has_the_scores_of_one_process(ray: Any, lively_model: Path) -> None:
    assert scores(search_with(lively_model), "ray") == scores(search_with(lively_model))


@needs("ray")
@pytest.mark.engine
@pytest.mark.parametrize("is_killed", [False, True])
def test_batches_of_ray(
    ray: Any, folder: Path, expected: pd.DataFrame, tmp_path: Path, is_killed: bool
) -> None:
    label, die = Predictor(folder / "classifier"), killed_once(tmp_path / "died")
    embed = Predictor(folder / "transformer", "transform")

    def predicted(batch: dict[str, Any]) -> dict[str, Any]:
        if is_killed and batch["id"][0] > 0:
            die()
        texts = batch["text"]
        return {**batch, "label": label(texts).astype(str), "vector": embed(texts)}

    rows = ray.data.from_pandas(FRAME)
    found = rows.repartition(4).map_batches(predicted, batch_size=7).to_pandas()
    assert (tmp_path / "died").exists() == is_killed
    assert_same(found, expected)


# --- Spark ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from pyspark.sql import SparkSession

    if shutil.which("java") is None:
        pytest.skip("there is no java, which Spark runs on")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2, 3]").config("spark.ui.enabled", "false")
    session = builder.config("spark.driver.host", "localhost").getOrCreate()
    yield session
    session.stop()


@needs("pyspark")
@pytest.mark.engine
def test_columns_of_spark(spark: Any, folder: Path, expected: pd.DataFrame) -> None:
    from pyspark.sql.functions import pandas_udf

    label = Predictor(folder / "classifier")
    embed = Predictor(folder / "transformer", "transform")

    def labels(texts):
        return pd.Series(label(texts))

    def vectors(texts):
        return pd.Series([*embed(texts)])

    label_of = pandas_udf(labels, "string", 200)
    vector_of = pandas_udf(vectors, "array<float>", 200)
    rows = spark.createDataFrame(FRAME).repartition(4)
    found = rows.withColumn("label", label_of("text")).withColumn("vector", vector_of("text"))
    assert_same(found.toPandas(), expected)


@needs("pyspark")
@pytest.mark.engine
@pytest.mark.parametrize("is_killed", [False, True])
def test_partitions_of_spark(
    spark: Any, folder: Path, expected: pd.DataFrame, tmp_path: Path, is_killed: bool
) -> None:
    label, die = Predictor(folder / "classifier"), killed_once(tmp_path / "died")
    embed = Predictor(folder / "transformer", "transform")

    def predicted(parts: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for part in parts:
            if is_killed and part["id"].iloc[0] > 0:
                die()
            yield part.assign(label=label(part["text"]), vector=[*embed(part["text"])])

    rows = spark.createDataFrame(FRAME).repartition(4)
    schema = "text string, id long, label string, vector array<float>"
    found = rows.mapInPandas(predicted, schema).toPandas()
    assert (tmp_path / "died").exists() == is_killed
    assert_same(found, expected)
