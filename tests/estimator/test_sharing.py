"""What leaves for other people's tools: folders of sentence-transformers, cards, the hub."""

from __future__ import annotations

import json
import logging
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
from huggingface_hub import HfApi, ModelCard
from safetensors.torch import save_file
from sklearn.exceptions import NotFittedError
from transformers import AutoModel, AutoModelForSequenceClassification

import skbert
from skbert import (
    BertChoiceRanker,
    BertClassifier,
    BertRegressor,
    BertSpanExtractor,
    BertTransformer,
)
from skbert.exceptions import (
    InputError,
    InputTypeError,
    ModelError,
    SaveError,
    TruncationWarning,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Sentiment


def plain(model: Path, **params: Any) -> BertClassifier:
    usual = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    return BertClassifier(model, **{**usual, "learning_rate": 1e-3, "pooling": "mean", **params})


@pytest.fixture(scope="module")
def mean_pooled(tiny_model: Path, sentiment: Sentiment) -> BertClassifier:
    return plain(tiny_model).fit(*sentiment)


def test_transformers_own_class_says_that_it_finds_no_head(
    mean_pooled: BertClassifier, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mean_pooled.save_pretrained(tmp_path)
    logger = logging.getLogger("transformers")
    with caplog.at_level("WARNING"), mock.patch.object(logger, "propagate", new=True):
        AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert re.search(r"classifier\.weight.*MISSING", caplog.text)
    encoder = AutoModel.from_pretrained(tmp_path)
    for name, weight in mean_pooled.model_.base_model.state_dict().items():
        assert torch.equal(encoder.state_dict()[name], weight)


def test_the_encoder_of_a_sentence_folder_is_a_model(
    mean_pooled: BertClassifier, sentiment: Sentiment, tmp_path: Path
) -> None:
    mean_pooled.save_pretrained(tmp_path)
    made = BertTransformer(str(tmp_path), device="cpu").fit(sentiment.texts)
    wanted = BertTransformer(mean_pooled, device="cpu").fit(sentiment.texts)
    assert made.pooling_ == "mean"
    np.testing.assert_allclose(
        made.transform(sentiment.texts), wanted.transform(sentiment.texts), atol=1e-5
    )
    new = plain(tmp_path).fit(*sentiment)
    new.save_pretrained(tmp_path / "again")
    names = {path.name for path in (tmp_path / "again").iterdir()}
    assert {"modules.json", "1_Pooling", "2_Dense"} <= names


@pytest.mark.parametrize("pooling", ["mean", "pooler"])
def test_rows_are_as_long_as_in_the_fit(
    pooling: str, lively_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    """Of either kind of folder, unless another length is asked for."""
    with pytest.warns(TruncationWarning):
        model = plain(lively_model, pooling=pooling, max_length=6).fit(*sentiment)
    model.save_pretrained(tmp_path / "short")
    texts = [f"{text} and {text}" for text in sentiment.texts]
    opened = BertClassifier.from_pretrained(tmp_path / "short", device="cpu", precision="float32")
    with pytest.warns(TruncationWarning):
        want, found = model.predict_proba(texts), opened.predict_proba(texts)
    np.testing.assert_allclose(found, want, atol=1e-5)
    with pytest.warns(TruncationWarning):
        opened.partial_fit(*sentiment)
    assert opened._fitted.task.max_length == 6
    longer = BertClassifier.from_pretrained(
        tmp_path / "short", max_length=64, device="cpu", precision="float32"
    )
    assert np.abs(longer.predict_proba(texts) - want).max() > 1e-3
    plain(tmp_path / "short", pooling=pooling).fit(*sentiment).save_pretrained(tmp_path / "long")
    again = BertClassifier.from_pretrained(tmp_path / "long")
    assert again._fitted.task.max_length == again._fitted.network.max_length


def test_windows_are_as_long_as_in_the_fit(
    make_tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    folder = make_tiny_model(max_position_embeddings=512)
    rows = [("what", "a good film"), ("what", "a bad film")]
    settings = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    for length, expected in ((400, 400), (None, 384)):
        model = BertSpanExtractor(folder, max_length=length, **settings).fit(rows, ["good", "bad"])
        model.save_pretrained(tmp_path / "plain")
        opened = BertSpanExtractor.from_pretrained(tmp_path / "plain", epochs=1, warm_start=True)
        assert opened._fitted.task.max_length == expected
        assert opened.fit(rows, ["good", "bad"])._fitted.task.max_length == expected
    model.model_.save_pretrained(tmp_path / "bare")
    model.tokenizer_.save_pretrained(tmp_path / "bare")
    for path in ("bare", "plain"):
        config = json.loads((tmp_path / path / "config.json").read_text())
        config.pop("skbert_max_length", None)
        (tmp_path / path / "config.json").write_text(json.dumps(config))
        assert BertSpanExtractor.from_pretrained(tmp_path / path)._fitted.task.max_length == 384


@pytest.mark.parametrize("kind", [BertClassifier, BertRegressor])
def test_labels_are_those_of_the_fit_not_of_its_checkpoint(
    kind: Any, mean_pooled: BertClassifier, sentiment: Sentiment, tmp_path: Path
) -> None:
    mean_pooled.save_pretrained(tmp_path)
    own = mean_pooled.model_.config.id2label
    first = (np.array(sentiment.labels) == sentiment.labels[0]).astype(int)
    columns = np.stack([first, 1 - first], axis=1)
    settings = {"epochs": 1, "device": "cpu", "precision": "float32", "random_state": 0}
    for y, labels in (
        (pd.DataFrame(columns, columns=["refund", "delay"]), ["refund", "delay"]),
        (columns, ["LABEL_0", "LABEL_1"]),
    ):
        config = kind(tmp_path, **settings).fit(sentiment.texts, y).model_.config
        assert [*config.id2label.values()] == labels != [*own.values()]
        assert config.label2id == {label: i for i, label in enumerate(labels)}


@pytest.mark.parametrize("length", [0, 2, "6", 2.5, True])
def test_a_length_that_is_none(length: Any, mean_pooled: BertClassifier, tmp_path: Path) -> None:
    mean_pooled.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "skbert_max_length": length}))
    with pytest.raises(ModelError, match=r"skbert_max_length=.*a whole number from 3 on"):
        BertClassifier.from_pretrained(tmp_path)


def test_a_saved_estimator_is_not_overwritten(mean_pooled: BertClassifier, tmp_path: Path) -> None:
    mean_pooled.save(tmp_path / "saved")
    with pytest.raises(SaveError, match="holds what save or export wrote"):
        mean_pooled.save_pretrained(tmp_path / "saved")
    assert skbert.load(tmp_path / "saved").classes_.tolist() == mean_pooled.classes_.tolist()


def test_no_layer_of_an_earlier_head_stays(
    mean_pooled: BertClassifier, tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    mean_pooled.save_pretrained(tmp_path)
    fitted = plain(tiny_model, pooling="pooler").fit(*sentiment)
    fitted.save_pretrained(tmp_path)
    assert not (tmp_path / "modules.json").exists()
    again = BertClassifier.from_pretrained(tmp_path, device="cpu", precision="float32")
    np.testing.assert_allclose(
        again.predict_proba(sentiment.texts), fitted.predict_proba(sentiment.texts), atol=1e-5
    )


def test_a_sentence_folder_opens_with_its_own_estimator_only(
    mean_pooled: BertClassifier, tmp_path: Path
) -> None:
    mean_pooled.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"no head for BertForMultipleChoice.*BertClassifier"):
        BertChoiceRanker.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="BertClassifier"):
        BertRegressor.from_pretrained(tmp_path)


def change_head(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["skbert_head"] = {**config["skbert_head"], **changes}
    path.write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: change_head(f, layers=["bert.pooler.dense"]), r"'bert\.pooler\.dense'"),
        (lambda f: change_head(f, layers=[]), r"0 layers.* lists 1"),
        (lambda f: change_head(f, layers=["classifier"] * 2), r"2 layers.* lists 1"),
        (lambda f: change_head(f, layers=7), "'layers': 7"),
        (lambda f: change_head(f, more=1), "'more': 1"),
        (lambda f: change_head(f, **{"class": "os.system"}), r"os\.system"),
        (lambda f: (f / "modules.json").unlink(), "1 layers.* lists 0"),
        (lambda f: (f / "2_Dense/model.safetensors").unlink(), "is missing"),
        (lambda f: save_file({"linear.a": torch.ones(2)}, f / "2_Dense/model.safetensors"),
         r"holds \['linear\.a'\]"),
        (lambda f: save_file({"linear.weight": torch.ones(2, 3)}, f / "2_Dense/model.safetensors"),
         "no head for BertForSequenceClassification"),
        (lambda f: (f / "2_Dense/model.safetensors").write_bytes(b"ab"), "cut short"),
    ],
)  # fmt: skip
def test_damaged_heads_are_refused(
    spoil: Any, message: str, mean_pooled: BertClassifier, tmp_path: Path
) -> None:
    mean_pooled.save_pretrained(tmp_path)
    spoil(tmp_path)
    with pytest.raises(ModelError, match=message):
        BertClassifier.from_pretrained(tmp_path)


# --- cards ---------------------------------------------------------------------------------------

GIVEN: dict[str, Any] = {
    "title": "Help desk\n---\nlicense: gpl",
    "description": "What a message is about.",
    "data": "---\nlicense: gpl\n---\n40 messages, ä 🙂 \ud800",
    "figures": {"accuracy": 0.91234, "macro|F1": np.float32(0.5)},
    "license": "mit\n---\nbase_model: other",
    "language": "en",
    "tags": ["help: desk", "--- #"],
}


@pytest.mark.parametrize("named", [True, False])
def test_a_card_names_the_classes_of_each_column(
    named: bool, tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    y = pd.DataFrame({"tone": sentiment.labels, "urgent": ["yes", "no", "soon", "no"] * 10})
    fitted = plain(tiny_model).fit(sentiment.texts, y if named else y.to_numpy())
    fitted.save(tmp_path / "m", card=True)
    text = ModelCard.load(tmp_path / "m" / "README.md").text
    assert f"    {'tone' if named else 0!r}: {fitted.classes_[0][0]!r}\n" in text
    assert f"    {'urgent' if named else 1!r}: 'soon'\n" in text


@pytest.mark.parametrize("method", ["save", "save_pretrained"])
def test_a_card_says_what_the_user_says(
    method: str, mean_pooled: BertClassifier, tmp_path: Path
) -> None:
    getattr(mean_pooled, method)(tmp_path / "m", card=GIVEN)
    card = ModelCard.load(tmp_path / "m" / "README.md")
    header = card.data.to_dict()
    assert header == {
        "language": ["en"],
        "library_name": "skbert" if method == "save" else "sentence-transformers",
        "license": GIVEN["license"],
        "metrics": ["accuracy"],
        "pipeline_tag": "text-classification",
        "tags": ["skbert", "help: desk", "--- #"],
    }
    assert card.text.strip().startswith("# Help desk --- license: gpl\n\nWhat a message is ab")
    assert "40 messages, ä 🙂 \\ud800" in card.text
    assert "| accuracy | 0.9123 |\n| macro\\|F1 | 0.5 |" in card.text
    assert "    'bad'\n    'good'\n" in card.text
    assert "BertClassifier(" in card.text
    assert "learning_rate=0.001" in card.text
    assert "1 passes, 3 steps" in card.text
    assert f"| skbert | {skbert.__version__} |" in card.text
    assert str(tmp_path) not in card.text
    assert str(mean_pooled.model) not in card.text


@pytest.mark.parametrize("card", [None, False, True])
def test_a_card_is_written_where_one_is_asked_for(
    card: Any, mean_pooled: BertClassifier, tmp_path: Path
) -> None:
    mean_pooled.save(tmp_path / "saved", card=card)
    mean_pooled.save_pretrained(tmp_path / "plain", card=card)
    for name in ("saved", "plain"):
        assert (tmp_path / name / "README.md").exists() == (card is True)


def test_labels_and_long_lists_of_them_stay_in_their_block(
    tiny_model: Path, sentiment: Sentiment, tmp_path: Path
) -> None:
    labels = [f"```\n# {i}" for i in range(20)] + [f"{i}" for i in range(40)]
    fitted = plain(tiny_model).fit(sentiment.texts * 3, labels * 2)
    fitted.save_pretrained(tmp_path, card=True)
    text = (tmp_path / "README.md").read_text(encoding="utf-8")
    assert re.search(r"^    '```\\n# 0'$", text, re.MULTILINE)
    assert "    ... and 10 more\n" in text
    assert text.count("\n```") == 2
    assert not re.search(r"^# \d", text, re.MULTILINE)


def test_a_card_may_be_changed_and_is_then_kept(
    mean_pooled: BertClassifier, sentiment: Sentiment, tmp_path: Path
) -> None:
    folder = tmp_path / "saved"
    mean_pooled.save(folder, card={"title": "first"})
    mean_pooled.save(folder, card={"title": "second"})  # its own is replaced
    assert "# second" in (folder / "README.md").read_text()
    (folder / "README.md").write_text("mine")
    again = BertClassifier.load(folder)
    np.testing.assert_array_equal(
        again.predict(sentiment.texts), mean_pooled.predict(sentiment.texts)
    )
    BertTransformer(str(folder), device="cpu").fit(sentiment.texts)
    with pytest.raises(SaveError, match=r"also holds 'README\.md'"):
        mean_pooled.save(folder)
    assert (folder / "README.md").read_text() == "mine"
    (folder / "README.md").unlink()
    assert BertClassifier.load(folder).get_params()
    mean_pooled.save(folder)
    assert not (folder / "README.md").exists()


@pytest.mark.parametrize(
    ("card", "error", "message"),
    [
        ("title", InputTypeError, "card='title' has the type str.*title, description"),
        ({"licence": "mit"}, InputError, "'licence', which no card has.*license"),
        ({"figures": [0.9]}, InputTypeError, r"card\['figures'\].*such as"),
        ({"figures": {"accuracy": "0.9"}}, InputTypeError, "dict of numbers"),
        ({"license": 3}, InputTypeError, "must be a str"),
        ({"tags": [3]}, InputTypeError, "a str or a list"),
    ],
)
@pytest.mark.parametrize("method", ["save", "save_pretrained", "push_to_hub"])
def test_what_no_card_has_is_refused(
    method: str, card: Any, error: type, message: str, mean_pooled: BertClassifier, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        getattr(mean_pooled, method)(str(tmp_path / "m"), card=card)
    assert not [*tmp_path.iterdir()]


# --- the hub -------------------------------------------------------------------------------------


class Hub:
    """Stands in for the calls of HfApi, whose parameters it checks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.folder, self.tokens = folder, []
        self.created = mock.create_autospec(HfApi.create_repo)
        self.created.return_value = mock.Mock(repo_id="owner/desk")
        self.uploaded = mock.create_autospec(HfApi.upload_folder, side_effect=self.keep)
        monkeypatch.setattr(HfApi, "create_repo", self.created)
        monkeypatch.setattr(HfApi, "upload_folder", self.uploaded)

    def keep(self, api: HfApi, *, folder_path: str, **settings: Any) -> Any:
        self.tokens.append(api.token)
        shutil.copytree(folder_path, self.folder)
        return mock.Mock(commit_url="https://huggingface.co/owner/desk/commit/1")


def test_push_to_hub_uploads_what_save_pretrained_writes(
    mean_pooled: BertClassifier, sentiment: Sentiment, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub = Hub(monkeypatch, tmp_path / "hub")
    with caplog.at_level("DEBUG"):
        url = mean_pooled.push_to_hub("desk", private=True, token="hf_secret")
    assert url == "https://huggingface.co/owner/desk/commit/1"
    assert hub.created.call_args.args[1:] == ("desk",)
    assert hub.created.call_args.kwargs == {"private": True, "exist_ok": True}
    settings = hub.uploaded.call_args.kwargs
    assert settings["repo_id"] == "owner/desk"
    assert "modules.json" in settings["delete_patterns"]
    assert not Path(settings["folder_path"]).exists()
    assert hub.tokens == ["hf_secret"]
    assert "hf_secret" not in caplog.text + "".join(capsys.readouterr())
    assert (hub.folder / "README.md").exists()
    again = BertClassifier.from_pretrained(hub.folder, device="cpu", precision="float32")
    np.testing.assert_array_equal(
        again.predict_proba(sentiment.texts), mean_pooled.predict_proba(sentiment.texts)
    )


def test_what_the_hub_refuses_is_an_error_without_the_token(
    mean_pooled: BertClassifier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/b/c", "with blank", "owner/desk"):  # the last is refused offline
        with pytest.raises(SaveError, match=f"'{name}' could not be pushed.*hf auth login") as e:
            mean_pooled.push_to_hub(name, token="hf_secret")
        assert "hf_secret" not in str(e.value)
    Hub(monkeypatch, tmp_path / "hub").created.side_effect = ConnectionError("no answer\nat all")
    with pytest.raises(SaveError, match=r"ConnectionError: no answer\. Give"):
        mean_pooled.push_to_hub("owner/desk")


def test_only_what_is_fitted_is_pushed() -> None:
    with pytest.raises(NotFittedError):
        BertClassifier().push_to_hub("owner/desk")
