"""Every estimator over every family: fit, predict, save, load, and transformers' own opinion.

Tiny models with random weights, each with a tokenizer of the kind that its family usually has.
"""

from __future__ import annotations

import functools
import json
import pickle
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import transformers
from sklearn.exceptions import NotFittedError
from support.families import save_own, tiny_of
from support.job import LABELS, TEXTS
from support.jobs import JOBS
from support.tokenizers import make_tokenizer
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from skbert import BertClassifier, BertTransformer
from skbert._core.families import FAMILIES
from skbert._core.infer import infer
from skbert._core.runtime.device import Precision
from skbert._estimator.base import encode
from skbert.exceptions import InputError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from skbert._core.families.record import Job as HeadJob

CLASSES: HeadJob = "sequence classification"
LABEL_NAMES = dict(enumerate(["B-PER", "I-PER", "O"]))
HEADS: dict[str, HeadJob] = {
    "BertChoiceRanker": "multiple choice",
    "BertClassifier": "sequence classification",
    "BertRegressor": "sequence classification",
    "BertSpanExtractor": "question answering",
    "BertTokenTagger": "token classification",
    "BertTransformer": "embedding",
}
CASES = [
    (family, name)
    for family, record in FAMILIES.items()
    for name, job in HEADS.items()
    if job in record.heads
]
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
EVERY_CASE = pytest.mark.parametrize(("family", "name"), CASES)
TRAINED_CASES = pytest.mark.parametrize(
    ("family", "name"), [case for case in CASES if case[1] != "BertTransformer"]
)
FULL = {"precision": "float32", "head_init": "random", "head_learning_rate": 0.1}


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Give a function: a family, the job of a head and settings -> folder of a tiny model."""

    @functools.cache
    def make(family: str, job: HeadJob = "embedding", **changes: Any) -> Path:
        record, folder = FAMILIES[family], tmp_path_factory.mktemp(family)
        return save_own(record, folder, job, **changes)

    return make


@pytest.fixture(scope="module")
def fitted_of(folder_of: Callable[..., Path]) -> Callable[..., Any]:
    """Give a function: a family and the name of an estimator -> it, fitted; not to be changed."""

    @functools.cache
    def fit(family: str, name: str) -> Any:
        job, rows = JOBS[name], JOBS[name].usual
        params = {} if name == "BertTransformer" else FULL
        estimator = job.make(folder_of(family), **{**params, **rows.params})
        return estimator.fit(rows.X) if rows.y is None else estimator.fit(rows.X, rows.y)

    return fit


def outputs_of(estimator: Any, X: Any) -> list[np.ndarray[Any, Any]]:
    """What the network gives for each item of X: logits, or vectors."""
    fitted = estimator._state()
    network = estimator._exported(fitted)
    items = encode(fitted.task, estimator._rows(X, fitted.record), None, network)
    found = infer(network, items, Precision("float32", torch.device("cpu")))
    return [found[i] for i in range(len(items))]


def plain_outputs_of(estimator: Any, X: Any, model: Any) -> list[np.ndarray[Any, Any]]:
    """The same by a model of transformers, row by row."""
    fitted = estimator._state()
    network = fitted.network
    items = encode(fitted.task, estimator._rows(X, fitted.record), None, network)
    with torch.no_grad():
        return [
            np.concatenate([plain_row(network, items, row, model) for row in range(begin, end)])
            for begin, end in zip(items.rows[:-1], items.rows[1:], strict=True)
        ]


def plain_row(network: Any, items: Any, row: int, model: Any) -> np.ndarray[Any, Any]:
    ids = torch.from_numpy(items.tokens.ids[row].astype(np.int64))[None]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    types = network.tokenizer("a", "a", return_token_type_ids=True)["token_type_ids"]
    has_types = network.family.has_token_types and max(types) > 0
    if has_types and model.config.type_vocab_size > 1:
        second = torch.arange(ids.shape[1]) >= int(items.tokens.second[row])
        inputs["token_type_ids"] = second.long()[None]
    if network.head.job == "multiple choice":
        inputs = {name: values[None] for name, values in inputs.items()}
    out = model(**inputs)
    fields = [out[field][0] for field in network.head_class.logits]
    logits = torch.stack(fields, -1) if len(fields) == 2 else fields[0]
    return logits.reshape(-1, network.head.n_outputs).numpy()


def assert_same(found: list[Any], wanted: list[Any], tolerance: float = 2e-5) -> None:
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        scale = max(1.0, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * scale)


def results_of(estimator: Any, X: Any) -> Any:
    method = "transform" if hasattr(estimator, "transform") else "predict"
    return [np.asarray(row) for row in getattr(estimator, method)(X)]


@pytest.mark.parametrize("name", ["eurobert", "nomic_bert", "gte", "modernbert"])
def test_rotary_positions_of_earlier_versions_are_read(name: str, tmp_path: Path) -> None:
    """Beside each other in config.json, not in ``rope_parameters``."""
    folder = save_own(FAMILIES[name], tmp_path)
    config = json.loads((folder / "config.json").read_text())
    parameters = config.pop("rope_parameters")
    of_layers = name == "modernbert"
    config |= {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    config |= {} if of_layers else {"rope_theta": 77.0}
    (folder / "config.json").write_text(json.dumps(config))
    model = BertTransformer(folder, device="cpu").fit(TEXTS).model_
    assert model.config.rope_parameters != parameters
    found = model.config.rope_parameters
    found = found["full_attention"] if of_layers else found
    assert (found["rope_type"], found["factor"]) == ("linear", 2.0)
    assert of_layers or found["rope_theta"] == 77.0


@pytest.mark.parametrize(("kind", "has_types"), [("bert", True), ("xlm-roberta", False)])
def test_types_of_pairs_are_those_of_the_tokenizer(
    kind: str, has_types: bool, tmp_path: Path
) -> None:
    """Of a BERT with XLM-R's tokenizer, as multilingual E5 is, all tokens have one type."""
    tokenizer = make_tokenizer(kind)
    settings = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    tiny_of(FAMILIES["bert"], "sequence classification", num_labels=3, **settings).save_pretrained(
        tmp_path
    )
    tokenizer.save_pretrained(tmp_path)
    pairs = [("a good film", "we like it"), ("a bad film", "no")]
    theirs = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    inputs = AutoTokenizer.from_pretrained(tmp_path)(
        *map(list, zip(*pairs, strict=True)), padding=True, return_tensors="pt"
    )
    assert bool(inputs.get("token_type_ids", torch.zeros(1)).any()) == has_types
    with torch.no_grad():
        wanted = theirs(**inputs).logits
    settings = {"device": "cpu", "precision": "float32"}
    opened = BertClassifier.from_pretrained(tmp_path, **settings)
    np.testing.assert_allclose(opened.decision_function(pairs), wanted, atol=2e-5)


@EVERY_CASE
def test_fit_predict_save_and_load(
    family: str, name: str, fitted_of: Callable[..., Any], tmp_path: Path
) -> None:
    fitted, rows = fitted_of(family, name), JOBS[name].usual
    results, wanted = results_of(fitted, rows.X), outputs_of(fitted, rows.X)
    assert len(results) == len(rows.X)
    if hasattr(fitted, "score"):
        assert np.isfinite(fitted.score(rows.X, rows.y))
    fitted.save(tmp_path / "saved")
    for copy in (type(fitted).load(tmp_path / "saved"), pickle.loads(pickle.dumps(fitted))):
        for one, other in zip(results_of(copy, rows.X), results, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(outputs_of(copy, rows.X), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.long
@TRAINED_CASES
def test_what_is_exported_is_an_ordinary_model(
    family: str, name: str, fitted_of: Callable[..., Any], tmp_path: Path
) -> None:
    fitted, X = fitted_of(family, name), JOBS[name].usual.X
    fitted.save_pretrained(tmp_path / "plain")
    model = auto_class(HEADS[name]).from_pretrained(tmp_path / "plain").eval()
    assert type(model).__name__ == FAMILIES[family].heads[HEADS[name]].name
    outputs = outputs_of(fitted, X)
    assert np.concatenate(outputs).std() > 1e-4
    assert_same(outputs, plain_outputs_of(fitted, X, model))
    again = type(fitted).from_pretrained(tmp_path / "plain", device="cpu", precision="float32")
    assert_same(outputs_of(again, X), outputs)


def auto_class(job: HeadJob) -> Any:
    return {
        "sequence classification": transformers.AutoModelForSequenceClassification,
        "token classification": transformers.AutoModelForTokenClassification,
        "question answering": transformers.AutoModelForQuestionAnswering,
        "multiple choice": transformers.AutoModelForMultipleChoice,
    }[job]


@TRAINED_CASES
def test_checkpoints_fine_tuned_elsewhere(
    family: str, name: str, folder_of: Callable[..., Path]
) -> None:
    job, X = HEADS[name], JOBS[name].usual.X
    names = {"BertClassifier": ("anger", "joy"), "BertTokenTagger": (*LABEL_NAMES.values(),)}
    labels = dict(enumerate(names.get(name, ("LABEL_0",))))
    head = {} if job in ("question answering", "multiple choice") else {"id2label": labels}
    folder = folder_of(family, job, **{key: Labels(value) for key, value in head.items()})
    opened = JOBS[name].estimator.from_pretrained(folder, device="cpu", precision="float32")
    model = auto_class(job).from_pretrained(folder).eval()
    outputs = outputs_of(opened, X)
    assert np.concatenate(outputs).std() > 1e-4
    assert_same(outputs, plain_outputs_of(opened, X, model))
    if name in names:
        assert [*opened.classes_] == [*labels.values()]
    assert len(opened.predict(X)) == len(X)


@pytest.mark.parametrize(
    ("family", "setting"),
    [("modernbert", "cls"), ("modernbert", "mean"), ("eurobert", "bos"), ("eurobert", "mean"),
     ("eurobert", "late")],
)  # fmt: skip
def test_each_pooling_that_a_classifier_may_have(
    family: str, setting: str, folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    folder, X = folder_of(family, CLASSES, classifier_pooling=setting), TEXTS
    opened = BertClassifier.from_pretrained(folder, device="cpu", precision="float32")
    assert opened.pooling_ == {"cls": "cls", "bos": "cls"}.get(setting, "mean")
    model = auto_class(CLASSES).from_pretrained(folder).eval()
    wanted = plain_outputs_of(opened, X, model)
    assert_same(outputs_of(opened, X), wanted)
    assert_same(plain_outputs_of(opened, X, opened.model_), wanted)
    opened.save(tmp_path / "saved")
    assert_same(outputs_of(BertClassifier.load(tmp_path / "saved"), X), wanted)
    opened.save_pretrained(tmp_path / "plain")
    again = auto_class(CLASSES).from_pretrained(tmp_path / "plain").eval()
    assert_same(plain_outputs_of(opened, X, again), wanted)
    fitted = JOBS["BertClassifier"].make(folder, **FULL).fit(X, LABELS)
    assert fitted.model_.config.classifier_pooling == setting
    assert_same(outputs_of(fitted, X), plain_outputs_of(fitted, X, fitted.model_))


# --- what a family cannot do --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "name"),
    [(f, n) for f in FAMILIES for n in HEADS if (f, n) not in CASES],
)
def test_a_job_without_a_head_is_refused(
    family: str, name: str, folder_of: Callable[..., Path]
) -> None:
    rows, kind = JOBS[name].usual, JOBS[name].estimator
    estimator = JOBS[name].make(folder_of(family), **rows.params)
    message = f"of the type '{family}' has no head for {HEADS[name]}"
    with pytest.raises(ModelError, match=message):
        estimator.fit(rows.X, rows.y)
    with pytest.raises(NotFittedError):
        estimator.predict(rows.X)
    with pytest.raises(ModelError, match=message):
        kind.from_pretrained(folder_of(family, CLASSES))


@pytest.mark.parametrize("family", ["albert", "mpnet", "squeezebert"])
def test_activations_that_cannot_be_recomputed(
    family: str, folder_of: Callable[..., Path]
) -> None:
    estimator = JOBS["BertClassifier"].make(folder_of(family), gradient_checkpointing=True)
    with pytest.raises(InputError, match=r"gradient_checkpointing=True, but a \w+ cannot"):
        estimator.fit(TEXTS, LABELS)
    assert not hasattr(estimator, "classes_")


@pytest.mark.parametrize("said", [None, "fr_XX"])
def test_xmod_needs_a_language_to_read(
    said: str | None, folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    change_config(folder_of("xmod"), tmp_path, default_language=said)
    with pytest.raises(ModelError, match=r"default_language.*languages"):
        BertTransformer(tmp_path, device="cpu").fit(TEXTS)


@pytest.mark.parametrize("listed", [7, "de_DE", {"de_DE": 0}, True])
def test_languages_of_xmod_are_a_list(
    listed: object, folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    change_config(folder_of("xmod"), tmp_path, languages=listed)
    with pytest.raises(ModelError, match=r"config\.json has (default_)?language"):
        BertTransformer(tmp_path, device="cpu").fit(TEXTS)


@pytest.mark.parametrize(
    "family", [name for name, record in FAMILIES.items() if not record.has_own_heads]
)
def test_heads_that_cannot_be_pruned_are_not_said_to_be(
    family: str, folder_of: Callable[..., Path], tmp_path: Path
) -> None:
    change_config(folder_of(family), tmp_path, pruned_heads={"0": [1]})
    with pytest.raises(ModelError, match=r"pruned_heads=.*no heads of a model of the type"):
        BertTransformer(tmp_path, device="cpu").fit(TEXTS)


def change_config(source: Path, folder: Path, **settings: Any) -> None:
    """Copy a model, and change its config.json."""
    shutil.copytree(source, folder, dirs_exist_ok=True)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


# --- the vector of a text -----------------------------------------------------------------------

BY_FAMILY = {"bert": "pooler", "ernie": "pooler", "gte": "cls", "megatron-bert": "pooler",
             "mobilebert": "pooler", "squeezebert": "pooler",
             "modernbert": "cls"}  # fmt: skip


@EVERY_FAMILY
def test_the_pooling_of_an_encoder_that_declares_none(
    family: str, folder_of: Callable[..., Path], fitted_of: Callable[..., Any]
) -> None:
    """What the record says, though there may be a pooler, which nobody trained."""
    usual = BY_FAMILY.get(family, "mean")
    assert BertTransformer(folder_of(family), device="cpu").fit(TEXTS).pooling_ == usual
    tagger = fitted_of(family, "BertTokenTagger")
    without = BertTransformer(tagger, device="cpu").fit(TEXTS)
    is_dropped = usual == "pooler" and family != "squeezebert"  # whose classes all have one
    assert without.pooling_ == ("mean" if is_dropped else usual)
    classifier = fitted_of(family, "BertClassifier")
    assert BertTransformer(classifier, device="cpu").fit(TEXTS).pooling_ == classifier.pooling_


@pytest.mark.parametrize(
    ("family", "name"),
    [("nomic_bert", "BertClassifier"), ("gte", "BertClassifier"), ("albert", "BertClassifier"),
     ("roberta", "BertChoiceRanker")],
)  # fmt: skip
def test_a_pooler_that_nothing_trains_starts_as_other_layers_of_a_head(
    family: str, name: str, folder_of: Callable[..., Path]
) -> None:
    record = FAMILIES[family]
    rows = JOBS[name].usual
    folder = folder_of(family, "token classification", id2label=Labels(LABEL_NAMES))
    fitted = JOBS[name].make(folder, learning_rate=1e-9, precision="float64")
    fitted.fit(rows.X, rows.y)  # a warning would be an error
    assert fitted.pooling_ == "pooler"
    pooler = getattr(fitted.model_.base_model, record.encoder.pooler)
    weight = next(each for each in pooler.parameters() if each.ndim == 2).detach()
    torch.testing.assert_close(
        weight @ weight.T, torch.eye(len(weight), dtype=weight.dtype), rtol=0, atol=1e-5
    )


class Labels(dict):  # type: ignore[type-arg]
    """The names of labels, which can be remembered by their ids."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))
