"""A fit that is stopped goes on from its checkpoint, and ends as if it had not been stopped."""

from __future__ import annotations

import copy
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from support.job import Job
from support.jobs import TRAINED

from skbert import BertClassifier
from skbert._core.checkpoints import archive, fit_folder
from skbert._core.runtime.interrupts import raise_deferred
from skbert._core.training.stepper import Stepper
from skbert._estimator import facts, fitting
from skbert._estimator.progress import Report
from skbert.exceptions import InputError, SaveError, SkbertWarning

if TYPE_CHECKING:
    from conftest import Sentiment

StopAt = Callable[[int], None]
OF_EACH = pytest.mark.parametrize("job", TRAINED.values(), ids=TRAINED)


class Stopped(BaseException):
    """What a killed process is to a fit: nothing that it does can hold it."""


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all steps that are taken from now on."""
    whole, sizes = Stepper.step, []

    def step(stepper: Any, chosen: Any) -> None:
        sizes.append(len(chosen))
        whole(stepper, chosen)

    monkeypatch.setattr(Stepper, "step", step)
    return sizes


@pytest.fixture
def stop_at(steps: list[int], monkeypatch: pytest.MonkeyPatch) -> StopAt:
    """Give a function: what follows is stopped before the step with this number; 0 for never."""
    counted, n_left = Stepper.step, 0

    def stop(number: int) -> None:
        nonlocal n_left
        n_left = number

    def step(stepper: Any, chosen: Any) -> None:
        nonlocal n_left
        n_left -= 1
        if n_left == 0:
            raise Stopped
        counted(stepper, chosen)

    monkeypatch.setattr(Stepper, "step", step)
    return stop


def classifier(model: Path, folder: Path | None = None, **params: Any) -> BertClassifier:
    """A classifier whose fit on 40 rows takes two passes of five steps."""
    usual = {"epochs": 2, "batch_size": 8, "random_state": 0, "precision": "float32"}
    return BertClassifier(model, **{**usual, "checkpoint_dir": folder, **params})


def history_of(estimator: Any) -> list[dict[str, float]]:
    return [{**record, "seconds": 0.0} for record in estimator.history_]


def assert_same(one: Any, other: Any) -> None:
    """The weights and the passes of two fitted estimators are equal, bit for bit."""
    weights = other.model_.state_dict()
    for name, weight in one.model_.state_dict().items():
        assert torch.equal(weight, weights[name]), name
    assert history_of(one) == history_of(other)


def stopped_fit(estimator: Any, *data: Any) -> None:
    with pytest.raises(Stopped):
        estimator.fit(*data)


@OF_EACH
@pytest.mark.parametrize("every", ["pass", 2])
def test_goes_on_as_if_it_had_not_been_stopped(
    job: Job, every: int | str, tiny_model: Path, tmp_path: Path, stop_at: StopAt,
    steps: list[int],
) -> None:  # fmt: skip
    X, y, params = job.usual
    params = {**params, "epochs": 3, "batch_size": 3, "validation_fraction": 0.25}
    expected = job.make(tiny_model, **params).fit(X, y)
    n_steps = len(steps)
    new = job.make(tiny_model, **params, checkpoint_dir=tmp_path, checkpoint_every=every)
    for number in (6, 2):  # steps that are begun: the last one is not taken
        stop_at(number)
        stopped_fit(new, X, y)
        assert not hasattr(new, "history_")
    steps.clear()
    stop_at(0)
    assert_same(new.fit(X, y), expected)
    assert 0 < len(steps) < n_steps
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("every", [1, "0.00001min"])
def test_each_step_can_be_the_last(
    precision: str, every: int | str, tiny_model: Path, tmp_path: Path, stop_at: StopAt,
    sentiment: Sentiment,
) -> None:  # fmt: skip
    params = {"epochs": 2, "batch_size": 16, "random_state": 3, "precision": precision}
    expected = BertClassifier(tiny_model, **params).fit(*sentiment)
    new = BertClassifier(
        tiny_model, **params, checkpoint_dir=tmp_path, checkpoint_every=every
    )  # fmt: skip
    for _ in range(sum(record["n_steps"] for record in expected.history_)):
        stop_at(2)  # each process takes one step
        with suppress(Stopped):
            new.fit(*sentiment)
    stop_at(0)
    assert_same(new.fit(*sentiment), expected)


@pytest.mark.parametrize("random_state", [None, np.random.RandomState(5)])
def test_the_seed_is_that_of_the_fit_that_was_stopped(
    random_state: Any, tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    new = classifier(tiny_model, tmp_path, random_state=copy.deepcopy(random_state))
    stop_at(6)
    stopped_fit(new, *sentiment)
    (folder,) = tmp_path.glob("fit-*")
    header = archive.header(max(folder.glob("step-*")))
    stop_at(0)
    resumed = classifier(tiny_model, tmp_path, random_state=random_state).fit(*sentiment)
    assert_same(resumed, classifier(tiny_model, random_state=seeded_as(header)).fit(*sentiment))


def seeded_as(header: dict[str, Any]) -> Any:
    """A random state of which a fit draws the seed that a checkpoint has."""

    class Fixed(np.random.RandomState):
        def randint(self, *_args: Any, **_kwargs: Any) -> int:  # type: ignore[override]
            return int(header["seed"])

    return Fixed()


# --- other parameters and data -------------------------------------------------------------------

CHANGES: dict[str, Callable[[Any, list[str], list[str]], tuple[Any, ...]]] = {
    "learning_rate was 0.0001 and is 0.002": lambda new, X, y: (
        new.set_params(learning_rate=0.002), X, y),
    "random_state was 0 and is 1": lambda new, X, y: (new.set_params(random_state=1), X, y),
    "precision was float32 and is float64": lambda new, X, y: (
        new.set_params(precision="float64"), X, y),
    "X differs": lambda new, X, y: (new, [*X[:-1], "good"], y),
    "y differs": lambda new, X, y: (new, X, [*y[:-1], y[0]]),
    "sample_weight differs": lambda new, X, y: (new, X, y, np.arange(1.0, len(X) + 1)),
}  # fmt: skip


@pytest.mark.parametrize("says", CHANGES)
def test_another_fit_is_refused(
    says: str, tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    X, y = sentiment
    stop_at(6)
    stopped_fit(classifier(tiny_model, tmp_path), X, y)
    stop_at(0)
    new, *data = CHANGES[says](classifier(tiny_model, tmp_path), X, y)
    with pytest.raises(InputError, match=re.escape(f"is not the same: {says}. Fit with the same")):
        new.fit(*data)
    expected = classifier(tiny_model).fit(X, y)
    assert_same(classifier(tiny_model, tmp_path).fit(X, y), expected)  # the first goes on
    new.fit(*data)  # and then there is nothing to refuse


def test_a_fit_does_not_go_on_in_another_version(
    tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    stop_at(6)
    with monkeypatch.context() as patch:
        patch.setattr(facts, "__version__", "0.0")
        stopped_fit(classifier(tiny_model, tmp_path), *sentiment)
    stop_at(0)
    with pytest.raises(InputError, match=r"the same: version of skbert was 0\.0 and is"):
        classifier(tiny_model, tmp_path).fit(*sentiment)


def test_what_is_only_said_may_differ(
    tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    stop_at(6)
    stopped_fit(classifier(tiny_model, tmp_path), *sentiment)
    stop_at(0)
    other = classifier(tiny_model, tmp_path, verbose=1, checkpoint_every=3, warm_start=True)
    assert_same(other.fit(*sentiment), classifier(tiny_model).fit(*sentiment))


def test_a_fit_that_goes_on_from_another_depends_on_it(
    tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    def warm(**params: Any) -> BertClassifier:
        first = classifier(tiny_model, warm_start=True).fit(*sentiment)
        return first.set_params(**params)

    expected = warm().fit(*sentiment)
    new = warm(checkpoint_dir=tmp_path)
    stop_at(6)
    stopped_fit(new, *sentiment)
    stop_at(0)
    cold = classifier(tiny_model, tmp_path)
    with pytest.raises(InputError, match="the fit to continue differs"):
        cold.fit(*sentiment)
    assert_same(warm(checkpoint_dir=tmp_path).fit(*sentiment), expected)


# --- damaged checkpoints -------------------------------------------------------------------------


def test_the_last_two_are_kept(
    tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    stop_at(8)
    stopped_fit(classifier(tiny_model, tmp_path, checkpoint_every=2), *sentiment)
    (folder,) = tmp_path.iterdir()
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["lock", "step-000000004", "step-000000006"]


@pytest.mark.parametrize("n_damaged", [1, 2])
def test_a_damaged_checkpoint_is_set_aside(
    n_damaged: int, tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    new = classifier(tiny_model, tmp_path, checkpoint_every=2)
    stop_at(8)
    stopped_fit(new, *sentiment)
    for path in sorted(tmp_path.glob("fit-*/step-*"))[-n_damaged:]:
        weights = path / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-7])
    stop_at(0)
    with pytest.warns(SkbertWarning, match="cannot be used: .* It was renamed to step-") as said:
        new.fit(*sentiment)
    assert len(said) == n_damaged
    assert_same(new, classifier(tiny_model).fit(*sentiment))
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_of_other_weights_is_set_aside(
    tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    new = classifier(tiny_model, tmp_path)
    stop_at(6)
    stopped_fit(new, *sentiment)
    (path,) = tmp_path.glob("fit-*/step-*")
    header, members, tensors = archive.read(path, ["state.json"])
    few = {name: x for name, x in tensors.items() if not name.endswith("classifier.bias")}
    kept = {name: header[name] for name in ("kind", "fit", "seed")}
    archive.write(path, members, kept, few)
    stop_at(0)
    with pytest.warns(SkbertWarning, match="its weights are not those of this model"):
        new.fit(*sentiment)
    assert_same(new, classifier(tiny_model).fit(*sentiment))


# --- signals -------------------------------------------------------------------------------------


def test_an_interrupt_writes_a_checkpoint(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch,
    steps: list[int],
) -> None:  # fmt: skip
    new = classifier(tiny_model, tmp_path, verbose=0)
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    on_step = Report.on_step

    def interrupt(report: Any, loss: float) -> None:
        on_step(report, loss)
        if report.n_steps == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patch:
        patch.setattr(Report, "on_step", interrupt)
        with pytest.raises(KeyboardInterrupt):
            new.fit(*sentiment)
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert [path.name for path in tmp_path.glob("fit-*/step-*")] == ["step-000000002"]
    steps.clear()
    new.fit(*sentiment)
    n_steps = sum(record["n_steps"] for record in new.history_)
    assert len(steps) == n_steps - 2
    assert_same(new, classifier(tiny_model).fit(*sentiment))


def test_an_interrupt_while_validating_loses_nothing(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch,
    steps: list[int],
) -> None:  # fmt: skip
    params = {"validation_fraction": 0.25, "checkpoint_dir": tmp_path, "patience": 1}
    new = classifier(tiny_model, **params)

    def interrupted(*_args: Any) -> dict[str, float]:
        signal.raise_signal(signal.SIGINT)
        raise_deferred()
        raise AssertionError

    with monkeypatch.context() as patch:
        patch.setattr(fitting, "validate", interrupted)
        with pytest.raises(KeyboardInterrupt):
            new.fit(*sentiment)
    steps.clear()
    new.fit(*sentiment)
    assert len(steps) == new.history_[1]["n_steps"]
    expected = classifier(tiny_model, **{**params, "checkpoint_dir": None}).fit(*sentiment)
    assert_same(new, expected)
    assert new.probe_score_ == expected.probe_score_


def test_sigterm_ends_the_process_after_a_checkpoint(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment
) -> None:
    script = f"""
import os, signal
from skbert import BertClassifier
from skbert._estimator.progress import Report
on_step = Report.on_step
def terminate(report, loss):
    on_step(report, loss)
    if report.n_steps == 2:
        os.kill(os.getpid(), signal.SIGTERM)
Report.on_step = terminate
{SCRIPT}
print("not reached")
"""
    ended = run(script, tiny_model, tmp_path, sentiment)
    assert ended.returncode == -signal.SIGTERM, ended.stderr
    assert "not reached" not in ended.stdout
    assert [path.name for path in tmp_path.glob("fit-*/step-*")] == ["step-000000002"]
    assert_same(
        classifier(tiny_model, tmp_path).fit(*sentiment), classifier(tiny_model).fit(*sentiment)
    )


SCRIPT = """
import json, sys, torch
from skbert import BertClassifier
torch.set_num_threads(1)  # as the tests
model, folder, data = sys.argv[1:]
BertClassifier(
    model, epochs=2, batch_size=8, random_state=0, precision="float32", checkpoint_dir=folder
).fit(*json.loads(data))
"""


def run(script: str, model: Path, folder: Path, data: Sentiment) -> Any:
    arguments = [str(model), str(folder), json.dumps([data.texts, data.labels])]
    return subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=False
    )


def test_a_handler_of_sigterm_is_called_after_a_checkpoint(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in servers whose handler ends the process with a code."""

    def leave(number: int, _frame: Any) -> None:
        assert list(tmp_path.glob("fit-*/step-*"))
        raise SystemExit(128 + number)

    def terminate(_report: Any, _loss: float) -> None:
        signal.raise_signal(signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        monkeypatch.setattr(Report, "on_step", terminate)
        with pytest.raises(SystemExit, match="143"):
            classifier(tiny_model, tmp_path).fit(*sentiment)
        assert signal.getsignal(signal.SIGTERM) is leave
        with pytest.raises(SystemExit, match="143"):  # also where no checkpoint is asked for
            classifier(tiny_model).fit(*sentiment)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_leave_signals_alone(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    seen = []
    on_step = Report.on_step

    def look(report: Any, loss: float) -> None:
        on_step(report, loss)
        seen.append([signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)])

    monkeypatch.setattr(Report, "on_step", look)
    new = classifier(tiny_model, tmp_path)
    thread = threading.Thread(target=new.fit, args=sentiment)
    thread.start()
    thread.join()
    assert_same(new, classifier(tiny_model).fit(*sentiment))
    assert seen[:10] == [handlers] * 10


# --- searches ------------------------------------------------------------------------------------


def search(model: Path, folder: Path | None) -> GridSearchCV:
    grid = {"learning_rate": [1e-4, 1e-3]}
    return GridSearchCV(classifier(model, folder), grid, cv=2)


@pytest.mark.parametrize("stop", [9, 23, 30])  # in the second of four fits, the last, the refit
def test_a_search_goes_on_where_it_was(
    stop: int, tiny_model: Path, tmp_path: Path, stop_at: StopAt, steps: list[int],
    sentiment: Sentiment,
) -> None:  # fmt: skip
    expected = search(tiny_model, None).fit(*sentiment)
    n_steps = len(steps)
    stop_at(stop)
    stopped_fit(search(tiny_model, tmp_path), *sentiment)
    stop_at(0)
    steps.clear()
    again = search(tiny_model, tmp_path).fit(*sentiment)
    assert len(steps) < n_steps - stop + 6  # what was done is not done again
    for name in ("mean_test_score", "split0_test_score"):
        np.testing.assert_array_equal(again.cv_results_[name], expected.cv_results_[name])
    assert_same(again.best_estimator_, expected.best_estimator_)


def test_a_clone_keeps_what_it_learned(
    tiny_model: Path, tmp_path: Path, steps: list[int], sentiment: Sentiment
) -> None:
    first = clone(classifier(tiny_model, tmp_path)).fit(*sentiment)
    n_steps = len(steps)
    second = clone(classifier(tiny_model, tmp_path)).fit(*sentiment)
    assert len(steps) == n_steps
    assert_same(first, second)
    (folder,) = tmp_path.iterdir()
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "step-999999999"]
    third = clone(classifier(tiny_model, tmp_path, learning_rate=1e-3)).fit(*sentiment)
    assert len(steps) == 2 * n_steps
    assert_same(third, classifier(tiny_model, learning_rate=1e-3).fit(*sentiment))


@pytest.mark.skipif(not hasattr(BertClassifier, "set_callbacks"), reason="needs scikit-learn 1.9")
@pytest.mark.parametrize("n_begun", [0, 1])  # passes that begin after the fit was stopped
def test_callbacks_hear_of_what_is_left(
    n_begun: int, tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment
) -> None:
    heard = []

    class Listener:
        def setup(self, estimator: Any, context: Any) -> None: ...
        def teardown(self, estimator: Any, context: Any) -> None: ...
        def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
            heard.append(("begin", context.task_name))

        def on_fit_task_end(self, estimator: Any, context: Any) -> None:
            heard.append(("end", context.task_name))

        def on_step(self, estimator: Any, context: Any, *, step: int, loss: float) -> None:
            heard.append(("step", str(step)))

    first = clone(classifier(tiny_model, tmp_path))
    stop_at(8 if n_begun else 0)
    with suppress(Stopped):
        first.fit(*sentiment)
    stop_at(0)
    second = clone(first)
    second.set_callbacks(Listener()).fit(*sentiment)
    passes = [("begin", "pass"), *[("step", str(i)) for i in range(6, 11)], ("end", "pass")]
    assert heard[1:-1] == passes * n_begun
    assert heard[0][0] == "begin"
    assert heard[-1][0] == "end"


# --- folders -------------------------------------------------------------------------------------


def test_a_fit_with_one_folder_in_two_processes_has_one_owner(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = classifier(tiny_model, tmp_path)
    on_step = Report.on_step

    def second(report: Any, loss: float) -> None:
        monkeypatch.setattr(Report, "on_step", on_step)
        with pytest.warns(SkbertWarning, match="Another process trains the same fit in"):
            other.fit(*sentiment)

    monkeypatch.setattr(Report, "on_step", second)
    new = classifier(tiny_model, tmp_path).fit(*sentiment)
    assert_same(new, other)


def test_a_full_disk_ends_no_fit(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, calls = archive.write, []

    def write(*args: Any) -> None:
        calls.append(args)
        if len(calls) > 1:
            raise archive.save_error(Path("here"), OSError(28, "No space left on device"))
        whole(*args)

    monkeypatch.setattr(fit_folder.archive, "write", write)
    new = classifier(tiny_model, tmp_path, checkpoint_every=2)
    with pytest.warns(SkbertWarning, match="No checkpoint is written.*No space left") as said:
        new.fit(*sentiment)
    assert len(said) == 1
    assert len(calls) > 3
    assert_same(new, classifier(tiny_model).fit(*sentiment))


def test_a_folder_that_cannot_be_made_is_refused_at_once(
    tiny_model: Path, tmp_path: Path, steps: list[int], sentiment: Sentiment
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SaveError, match=r"checkpoint_dir=.*file/fits': the folder cannot be made"):
        classifier(tiny_model, tmp_path / "file" / "fits").fit(*sentiment)
    assert not steps


def test_a_folder_that_is_removed_is_made_again(
    tiny_model: Path, tmp_path: Path, stop_at: StopAt, sentiment: Sentiment,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    on_step, n_left = Report.on_step, iter(range(9, -1, -1))

    def remove(report: Any, loss: float) -> None:
        on_step(report, loss)
        if next(n_left) == 6:
            shutil.rmtree(tmp_path)

    monkeypatch.setattr(Report, "on_step", remove)
    stop_at(8)
    stopped_fit(classifier(tiny_model, tmp_path, checkpoint_every=1), *sentiment)
    monkeypatch.setattr(Report, "on_step", on_step)
    stop_at(0)
    new = classifier(tiny_model, tmp_path, checkpoint_every=1).fit(*sentiment)
    assert_same(new, classifier(tiny_model).fit(*sentiment))


def test_partial_fit_writes_none(
    tiny_model: Path, tmp_path: Path, sentiment: Sentiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive, "write", None)
    classifier(tiny_model, tmp_path).partial_fit(*sentiment, classes=["good", "bad"])
    assert not list(tmp_path.iterdir())


def test_the_folder_is_not_saved(tiny_model: Path, tmp_path: Path, sentiment: Sentiment) -> None:
    new = classifier(tiny_model, tmp_path / "fits", checkpoint_every="0.5min").fit(*sentiment)
    new.save(tmp_path / "saved")
    loaded = BertClassifier.load(tmp_path / "saved")
    assert loaded.checkpoint_dir is None
    assert loaded.checkpoint_every == "pass"  # for without a folder it would say nothing


@pytest.mark.parametrize("every", ["passes", "min", "-1min", 0, 2.5, "10 hours"])
def test_checkpoint_every_that_says_nothing_is_refused(every: Any, tiny_model: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpoint_every.*or minutes such as '10min'"):
        classifier(tiny_model, checkpoint_every=every).fit(["a", "b"], ["c", "d"])
