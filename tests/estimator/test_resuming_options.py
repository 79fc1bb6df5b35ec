"""Fits with each option that changes what is trained, stopped and resumed from a checkpoint."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import socket
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import tiny_vocabulary
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import VotingClassifier
from sklearn.metrics import make_scorer
from sklearn.pipeline import make_pipeline
from support.children import child
from support.families import save_tiny
from transformers import BertModel

from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertPretrainer,
    BertRegressor,
    BertSpanExtractor,
    BertTokenTagger,
)
from skbert._core.checkpoints import archive
from skbert._core.checkpoints.leftovers import hold_lock
from skbert._core.families import FAMILIES
from skbert._core.runtime.distributed import ProcessGroup, process_group
from skbert._core.training.stepper import Stepper
from skbert._estimator import fine_tuning, fitting
from skbert._estimator.resuming import FitCheckpoints
from skbert.exceptions import InputError, NonFiniteError
from skbert.testing._samples import outputs, sample_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

QUICK = {"epochs": 2, "batch_size": 4, "random_state": 0, "precision": "float32", "device": "cpu"}
TEXTS = [f"{text} {row}" for row, text in enumerate(2 * sample_of("classes", None, None).X)]
CLASSES = 2 * sample_of("classes", None, None).y  # type: ignore[operator]
FRAME = pd.DataFrame({"text": TEXTS, "price": np.linspace(0, 1, 16), "kind": list("abcd") * 4})
SEVERAL = pd.DataFrame({"tone": CLASSES, "kind": list("abcd") * 4})
SOFT = np.random.default_rng(0).dirichlet([1, 1, 1], 16)
HELD_OUT = {"validation_fraction": 0.25}


class Stopped(BaseException):
    """What a killed process is to a fit: nothing that it does can hold it."""


class Case(NamedTuple):
    estimator: type
    params: dict[str, Any]
    X: Any = TEXTS
    y: Any = CLASSES
    data: Mapping[str, Any] = MappingProxyType({})  # other arguments of fit

    def make(self, model: Any, **params: Any) -> Any:
        return self.estimator(model, **{**QUICK, **self.params, **params})

    def fit(self, estimator: Any) -> Any:
        return estimator.fit(self.X, **({} if self.y is None else {"y": self.y}), **self.data)


def of(estimator: type, kind: str, **params: Any) -> Case:
    rows = sample_of(kind, None, None)
    return Case(estimator, params, rows.X, rows.y)


CASE = Case(BertClassifier, {})
SENTENCES = [[TEXTS[row], TEXTS[row - 1], TEXTS[row - 2]] for row in range(16)]
CASES = {
    "soft labels": Case(BertClassifier, {}, y=SOFT, data={"classes": ["a", "b", "c"]}),
    "several columns": Case(BertClassifier, HELD_OUT, y=SEVERAL),
    "several labels": Case(BertClassifier, HELD_OUT, y=[[row % 2, row > 7] for row in range(16)]),
    "weights": Case(
        BertClassifier, {"class_weight": "balanced"}, data={"sample_weight": np.arange(1.0, 17.0)}
    ),
    "X_val": Case(BertClassifier, {}, data={"X_val": TEXTS[:5], "y_val": CLASSES[:5]}),
    "groups": Case(BertClassifier, HELD_OUT, data={"groups": [row // 2 for row in range(16)]}),
    "patience": Case(
        BertClassifier, {**HELD_OUT, "patience": 1, "epochs": 5, "learning_rate": 1e-2}
    ),
    "scoring": Case(BertClassifier, {**HELD_OUT, "scoring": "accuracy", "patience": 2}),
    "calibrate": Case(BertClassifier, {**HELD_OUT, "calibrate": True}),
    "accumulate": Case(BertClassifier, {"accumulate": 3, "batch_size": 2}),
    "cosine": Case(BertClassifier, {"schedule": "cosine", "warmup": 0.3}),
    "freeze": Case(BertClassifier, {"freeze": 1}),
    "freeze all": Case(BertClassifier, {"freeze": "all"}),
    "layer_decay": Case(BertClassifier, {"layer_decay": 0.8}),
    "gradient_checkpointing": Case(BertClassifier, {"gradient_checkpointing": True}),
    "float16": Case(BertClassifier, {"precision": "float16"}),
    "bfloat16": Case(BertClassifier, {"precision": "bfloat16"}),
    "head_init": Case(BertClassifier, {**HELD_OUT, "head_init": "random"}),
    "label_texts": Case(BertClassifier, {"label_texts": {"good": "nice", "bad": "poor"}}),
    "windows": Case(
        BertClassifier, {"max_length": 12, "long_text": "windows"}, [2 * text for text in TEXTS]
    ),
    "features": Case(
        BertClassifier, {"text_columns": "text", "feature_columns": ["price", "kind"]}, FRAME
    ),
    "fields": Case(BertClassifier, {"text_columns": ["text", "kind"]}, FRAME),
    "numbers": Case(BertRegressor, HELD_OUT, y=np.arange(32.0).reshape(16, 2)),
    "tags": of(BertTokenTagger, "tags", **HELD_OUT, batch_size=2),
    "spans": of(BertSpanExtractor, "spans", **HELD_OUT, batch_size=2),
    "choices": of(BertChoiceRanker, "choices", **HELD_OUT, batch_size=2),
    "masked words": Case(BertPretrainer, HELD_OUT, y=None),
    "next words": Case(BertPretrainer, {"objective": "clm"}, y=None),
    "next sentences": Case(BertPretrainer, {"objective": "nsp"}, SENTENCES, None),
    "words and sentences": Case(BertPretrainer, {"objective": "mlm+nsp"}, SENTENCES, None),
}


@contextmanager
def stopped(where: Any, name: str, number: int) -> Iterator[None]:
    """Stop what is in the ``with`` before the call with this number of a function of an object."""
    whole, n_left = getattr(where, name), number

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left == 0:
            raise Stopped
        return whole(*args, **kwargs)

    with mock.patch.object(where, name, counted), pytest.raises(Stopped):
        yield


def assert_same(one: Any, other: Any, X: Any) -> None:
    """Weights, passes, what was learned, and results are equal, bit for bit."""
    weights = other.model_.state_dict()
    for name, weight in one.model_.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    left, right = (dict(each._fitted.attributes) for each in (one, other))
    passes = zip(left.pop("history_"), right.pop("history_"), strict=True)
    assert all({**a, "seconds": 0} == {**b, "seconds": 0} for a, b in passes)
    assert repr(left) == repr(right)
    found, expected = outputs(one, X), outputs(other, X)
    assert found.keys() == expected.keys()
    assert all(repr(listed(found[name])) == repr(listed(expected[name])) for name in found)


def listed(result: Any) -> Any:
    return [*map(listed, result)] if isinstance(result, list) else np.asarray(result).tolist()


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_fit_with_options_goes_on(case: Case, tiny_model: Path, tmp_path: Path) -> None:
    own = {"checkpoint_dir": tmp_path, "checkpoint_every": 1}
    with stopped(Stepper, "step", 3):
        case.fit(case.make(tiny_model, **own))
    resumed = case.fit(case.make(tiny_model, **own))
    assert_same(resumed, case.fit(case.make(tiny_model)), case.X)
    assert not list(tmp_path.iterdir())


PLACES = {
    "the probe": (fine_tuning, "probe", 1),
    "validation of the probe": (fine_tuning, "validate", 1),
    "validation": (fitting, "validate", 2),
    "the end of a pass": (FitCheckpoints, "finish_pass", 1),
    "the end of training": (FitCheckpoints, "finish_training", 1),
    "tuning": (fitting, "tune", 1),
    "the removal of checkpoints": (FitCheckpoints, "end", 1),
}


@pytest.mark.parametrize("every", ["pass", 1])
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_fit_may_be_stopped_anywhere(
    place: tuple[Any, str, int], every: Any, tiny_model: Path, tmp_path: Path
) -> None:
    case = Case(BertClassifier, {**HELD_OUT, "calibrate": True, "patience": 2})
    own = {"checkpoint_dir": tmp_path, "checkpoint_every": every}
    with stopped(*place):
        case.fit(case.make(tiny_model, **own))
    resumed = case.fit(case.make(tiny_model, **own))
    assert_same(resumed, case.fit(case.make(tiny_model)), case.X)
    assert not list(tmp_path.iterdir())


@pytest.mark.long  # all families
@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "bert"])
def test_a_fit_of_another_family_goes_on(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    model = save_tiny(family, tmp_path / "model", tiny_vocabulary())
    case, fits = Case(BertClassifier, HELD_OUT), tmp_path / "fits"
    own = {"checkpoint_dir": fits, "checkpoint_every": 2}
    with stopped(Stepper, "step", 6):
        case.fit(case.make(model, **own))
    resumed = case.fit(case.make(model, **own))
    assert_same(resumed, case.fit(case.make(model)), case.X)
    assert not list(fits.iterdir())


def test_a_new_model_goes_on(tmp_path: Path) -> None:
    """Its first weights and its tokenizer are made again."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    params = {**sizes, "intermediate_size": 64, "vocab_size": 100, "random_state": None}
    case = Case(BertPretrainer, params, 3 * TEXTS, None)
    own = {"checkpoint_dir": tmp_path, "checkpoint_every": 1}
    with stopped(Stepper, "step", 4):
        case.fit(case.make(None, **own))
    (saved,) = tmp_path.glob("fit-*/step-000000003")
    seed = archive.header(saved)["seed"]
    resumed = case.fit(case.make(None, **own))
    drawn = mock.patch.object(fitting, "draw_seed", return_value=seed)
    with drawn:
        expected = case.fit(case.make(None))
    assert_same(resumed, expected, case.X)


# --- several processes ---------------------------------------------------------------------------


def fit_with_another(rank: int, port: int, model: Path, folder: Path, number: int) -> None:
    """What each of two processes does, as torchrun starts them: the second may kill itself."""
    multiprocessing.current_process().name = "MainProcess"
    os.environ.update(
        MASTER_ADDR="localhost", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
        WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", TORCHELASTIC_RUN_ID="run",
    )  # fmt: skip
    assert process_group() == ProcessGroup(rank, 2)
    case, n_left, whole = CASES["groups"], number, Stepper.step

    def step(*args: Any) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        whole(*args)

    def fit(name: str, **params: Any) -> None:
        weights = case.fit(case.make(model, **params)).model_.state_dict()
        torch.save(weights, folder / f"{name}{rank}")

    if number == 0:
        fit("whole")
    with mock.patch.object(Stepper, "step", step):
        fit("resumed", checkpoint_dir=folder / "fits", checkpoint_every=1)
    torch.distributed.destroy_process_group()


@pytest.mark.long  # processes
def test_processes_go_on_together(tiny_model: Path, tmp_path: Path) -> None:
    def run(number: int) -> list[int | None]:
        with socket.socket() as found:
            found.bind(("localhost", 0))
            port = found.getsockname()[1]
        with ExitStack() as stack:
            given = port, tiny_model, tmp_path, number
            processes = [
                stack.enter_context(child(fit_with_another, rank, *given)) for rank in (0, 1)
            ]
            for process in processes:
                process.join(120)
            return [process.exitcode for process in processes]

    assert run(4) == [1, -signal.SIGKILL]
    assert max(path.name for path in tmp_path.glob("fits/*/step-*")) == "step-000000003"
    assert not list(tmp_path.glob("resumed*"))
    assert run(0) == [0, 0]
    expected = torch.load(tmp_path / "whole0")
    for rank in (0, 1):
        weights = torch.load(tmp_path / f"resumed{rank}")
        assert all(torch.equal(weight, weights[name]) for name, weight in expected.items())
    assert not list((tmp_path / "fits").iterdir())


# --- within other estimators ---------------------------------------------------------------------


def test_a_pipeline_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    def pipeline(**params: Any) -> Any:
        return make_pipeline(Case(BertClassifier, {}).make(tiny_model, **params))

    with stopped(Stepper, "step", 6):
        pipeline(checkpoint_dir=tmp_path).fit(TEXTS, CLASSES)
    with mock.patch.object(Stepper, "step", autospec=True, side_effect=Stepper.step) as step:
        resumed = pipeline(checkpoint_dir=tmp_path).fit(TEXTS, CLASSES)
    assert step.call_count == 4
    expected = pipeline().fit(TEXTS, CLASSES)
    assert_same(resumed[-1], expected[-1], TEXTS)
    assert not list(tmp_path.iterdir())


def test_fits_of_a_calibrated_classifier_go_on(tiny_model: Path, tmp_path: Path) -> None:
    def calibrated(**params: Any) -> Any:
        own = Case(BertClassifier, {}).make(tiny_model, **params)
        return CalibratedClassifierCV(own, cv=2).fit(TEXTS, CLASSES)

    with stopped(Stepper, "step", 7):  # in the second of two fits
        calibrated(checkpoint_dir=tmp_path)
    with mock.patch.object(Stepper, "step", autospec=True, side_effect=Stepper.step) as step:
        resumed = calibrated(checkpoint_dir=tmp_path)
    assert step.call_count == 2
    np.testing.assert_array_equal(
        resumed.predict_proba(TEXTS), calibrated().predict_proba(TEXTS)
    )  # fmt: skip


def test_members_of_an_ensemble_need_seeds_of_their_own(tiny_model: Path, tmp_path: Path) -> None:
    def members(seeds: list[int | None]) -> list[Any]:
        own = [CASE.make(tiny_model, checkpoint_dir=tmp_path, random_state=seed) for seed in seeds]
        ensemble = VotingClassifier([(str(row), each) for row, each in enumerate(own)])
        return ensemble.fit(TEXTS, CLASSES).estimators_

    one, other = members([None, None])
    assert_same(one, other, TEXTS)
    one, other = members([1, 2])
    assert one.history_[0]["loss"] != other.history_[0]["loss"]


# --- what is refused -----------------------------------------------------------------------------


def shifted(model: Path) -> None:
    found = BertModel.from_pretrained(model)
    with torch.no_grad():
        for weight in found.parameters():
            weight.add_(0.1)
    found.save_pretrained(model)


def without_lower_case(model: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        described = json.loads((model / name).read_text())
        part = described.get("normalizer", described)
        part.update({key: False for key in ("lowercase", "do_lower_case") if key in part})
        (model / name).write_text(json.dumps(described))


@pytest.mark.parametrize("change", [shifted, without_lower_case])
def test_another_model_under_the_same_path_is_refused(
    change: Callable[[Path], None], tiny_model: Path, tmp_path: Path
) -> None:
    model, own = tmp_path / "model", {"checkpoint_dir": tmp_path / "fits"}
    shutil.copytree(tiny_model, model)
    with stopped(Stepper, "step", 6):
        CASE.fit(CASE.make(model, **own))
    shutil.copytree(model, tmp_path / "copy")
    change(model)
    with pytest.raises(InputError, match="not the same: what the folder of the model holds diff"):
        CASE.fit(CASE.make(model, **own))
    shutil.rmtree(model)
    (tmp_path / "copy").rename(model)  # the same again, in files with other dates
    assert_same(CASE.fit(CASE.make(model, **own)), CASE.fit(CASE.make(model)), TEXTS)


def test_a_fit_that_would_fail_again_leaves_nothing(tiny_model: Path, tmp_path: Path) -> None:
    own = {"checkpoint_dir": tmp_path, "checkpoint_every": 1}
    with pytest.raises(NonFiniteError, match="Use a lower learning_rate"):
        CASE.fit(CASE.make(tiny_model, **own, learning_rate=1e30))
    assert not list(tmp_path.iterdir())
    CASE.fit(CASE.make(tiny_model, **own))  # as the error says


def test_a_candidate_that_fails_again_and_again_leaves_nothing(
    tiny_model: Path, tmp_path: Path
) -> None:
    candidate = CASE.make(
        tiny_model, checkpoint_dir=tmp_path, checkpoint_every=1, learning_rate=1e30
    )
    with pytest.raises(NonFiniteError):
        CASE.fit(clone(candidate))
    assert not list(tmp_path.iterdir())


def test_checkpoint_dir_names_a_folder(tiny_model: Path) -> None:
    with pytest.raises(InputError, match="checkpoint_dir='' is not a folder"):
        CASE.fit(CASE.make(tiny_model, checkpoint_dir=""))


def test_checkpoint_every_needs_a_folder(tiny_model: Path) -> None:
    with pytest.raises(InputError, match=r"checkpoint_every=5 says when .* Set checkpoint_dir"):
        CASE.fit(CASE.make(tiny_model, checkpoint_every=5))


@pytest.mark.parametrize(
    "scoring", [lambda e, X, y: e.score(X, y), make_scorer(lambda y, p: (y == p).mean())]
)
def test_a_scorer_without_a_name_is_refused(
    tiny_model: Path, tmp_path: Path, scoring: Any
) -> None:
    how = {**HELD_OUT, "scoring": scoring}
    with pytest.raises(InputError, match="scoring is a lambda, and checkpoint_dir knows"):
        CASE.fit(CASE.make(tiny_model, **how, checkpoint_dir=tmp_path))
    CASE.fit(CASE.make(tiny_model, **how))


def test_a_fit_beside_one_that_goes_on_is_not_refused(tiny_model: Path, tmp_path: Path) -> None:
    """Only one that was stopped is in the way: the error names its folder as one to delete."""
    own = {"checkpoint_dir": tmp_path, "checkpoint_every": 1}
    with stopped(Stepper, "step", 3):
        CASE.fit(CASE.make(tiny_model, **own))
    (folder,) = tmp_path.iterdir()
    other = CASE.make(tiny_model, **own, learning_rate=1e-3)
    with hold_lock(folder / "lock"):  # as another process that trains this fit
        CASE.fit(other)
    with pytest.raises(InputError, match="holds a fit that was stopped"):
        CASE.fit(other)
