"""Every format that skbert reads: whole files of it, how they are damaged, how they are opened."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pandas as pd
import pyarrow as pa
import torch
from pyarrow import parquet
from safetensors.torch import load_file, save_file

import skbert
import skbert.runtime
from skbert._core.checkpoints.vet import vet
from skbert._core.families import FAMILIES
from skbert._core.items import Head
from skbert._core.models.opening import open_network
from skbert._core.models.sentence_folder import write_sentence_folder
from skbert._core.runtime.device import seeded
from skbert._core.training.stepper import Stepper
from skbert._streaming import commands
from skbert.datasets import load_squad
from support import DATA
from support.damage.bytes_and_json import OUTSIDE, change_bytes, change_json
from support.damage.containers import (
    change_database,
    change_header,
    change_index,
    change_numbers,
    change_pickle,
    is_small_file,
    seal_manifest,
)
from support.families import save_own

if TYPE_CHECKING:
    from random import Random

    from support.damage.bytes_and_json import Change

__all__ = ["FORMATS", "Format", "damage", "write_whole_files"]

SAVED = DATA / "saved_0_1"
TEXTS = ["the film is good", "a bad, bad room", "unaffable 123 [SEP] x", ""]
EVIL = b"open('imported', 'w').close()\nEvil = T = object\n"

Opener = Callable[[Path, Path], Any]  # given the damaged folder, and where the whole files are


@dataclass(frozen=True)
class Format:
    """Folders of a format by name, what of them is damaged, and how such a folder is opened.

    ``make`` writes the whole folders into one. ``changes`` are ways to change a file, by the end
    of its name; the first that fits counts. Unless ``is_named``, each file may also give way to
    links, pipes and other files. ``also_read`` are folders that its files may name.
    """

    make: Callable[[Path], None]
    changes: Mapping[str, tuple[Callable[[Random, bytes], Change], ...]]
    open: Opener
    is_named: bool = False  # the user names the file
    also_read: tuple[str, ...] = ()
    finish: Callable[[Random, Path], None] = lambda random, folder: None


# --- whole folders -------------------------------------------------------------------------------


def _save_model(name: str, folder: Path) -> Path:
    """A tiny model of a family with a head for two classes; as small as its tokenizer allows."""
    save_own(FAMILIES[name], folder, "sequence classification", num_hidden_layers=1)
    return folder


def _models(*names: str) -> Callable[[Path], None]:
    def make(home: Path) -> None:
        for name in names:
            _save_model(name, home / name)

    return make


def _make_tokenizers(home: Path) -> None:
    _models("bert", "roberta", "xlm-roberta", "deberta-v2", "modernbert", "albert")(home)
    for name, files in {"bert": ["vocab.txt"], "roberta": ["vocab.json", "merges.txt"]}.items():
        folder = Path(shutil.copytree(home / name, home / f"{name} without tokenizer.json"))
        model = json.loads((folder / "tokenizer.json").read_bytes())["model"]
        (folder / "tokenizer.json").unlink()
        words = sorted(model["vocab"], key=model["vocab"].get)
        texts = {
            "vocab.txt": "\n".join(words),
            "vocab.json": json.dumps(model["vocab"]),
            "merges.txt": "\n".join(" ".join(pair) for pair in model.get("merges", ())),
        }
        for file in files:
            (folder / file).write_text(texts[file], encoding="utf-8")
    for folder in home.iterdir():
        specials = {"mask_token": "[MASK]"} if folder.name.startswith("bert") else {}
        (folder / "special_tokens_map.json").write_text(json.dumps(specials))


def _make_sentence_encoder(home: Path) -> None:
    folder = _save_model("bert", home / "bert")
    chain = [("0", "", "Transformer"), ("1", "1_Pooling", "Pooling"), ("2", "2_Norm", "Normalize")]
    (folder / "1_Pooling").mkdir()
    for name, content in {
        "modules.json": [
            {
                "idx": int(at),
                "name": at,
                "path": path,
                "type": f"sentence_transformers.{kind}",
            }
            for at, path, kind in chain
        ],
        "1_Pooling/config.json": {
            "word_embedding_dimension": 16,
            "pooling_mode_mean_tokens": True,
        },
        "sentence_bert_config.json": {"max_seq_length": 32, "do_lower_case": False},
    }.items():
        (folder / name).write_text(json.dumps(content))


def _make_head_beside(home: Path) -> None:
    """A head over the mean of tokens, which transformers has no class for."""
    folder = _save_model("bert", home / "whole")
    with seeded(0, torch.device("cpu")):
        head = Head("sequence classification", 2)
        network = open_network(vet(folder), head, pooling="mean")
    write_sentence_folder(network, home / "bert", 32)
    shutil.rmtree(folder)


def _halves(folder: Path) -> list[dict[str, torch.Tensor]]:
    """The weights of a model in two parts, removed from its folder."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    return [{name: tensors[name] for name in names[at::2]} for at in range(2)]


def _make_shards(home: Path) -> None:
    folder = _save_model("bert", home / "bert")
    where = {}
    for at, part in enumerate(_halves(folder)):
        name = f"model-{at + 1:05d}-of-00002.safetensors"
        save_file(part, folder / name, metadata={"format": "pt"})
        where |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def _make_pickled(home: Path) -> None:
    folder = _save_model("bert", home / "one file")
    first, second = _halves(folder)
    torch.save({**first, **second}, folder / "pytorch_model.bin")
    shards = Path(shutil.copytree(folder, home / "two files"))
    (shards / "pytorch_model.bin").unlink()
    where = {}
    for at, part in enumerate((first, second)):
        name = f"pytorch_model-{at + 1:05d}-of-00002.bin"
        torch.save(part, shards / name)
        where |= dict.fromkeys(part, name)
    (shards / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": where}))


def _make_saved(home: Path) -> None:
    for folder in SAVED.iterdir():
        if folder.is_dir():
            shutil.copytree(folder, home / folder.name)


def _make_adapter(home: Path) -> None:
    folder, at = home / "adapter", "base_model.model.bert.encoder.layer.0.attention.self.query"
    drawn = torch.Generator().manual_seed(0)
    folder.mkdir()
    save_file(
        {f"{at}.lora_A.weight": torch.rand(4, 16, generator=drawn),
         f"{at}.lora_B.weight": torch.rand(16, 4, generator=drawn),
         "base_model.model.classifier.weight": torch.rand(3, 16, generator=drawn),
         "base_model.model.classifier.bias": torch.rand(3, generator=drawn)},
        folder / "adapter_model.safetensors",
    )  # fmt: skip
    settings = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 6, "lora_dropout": 0.1, "bias": "none",
        "task_type": "SEQ_CLS", "target_modules": ["query"], "use_rslora": False,
        "rank_pattern": {}, "alpha_pattern": {}, "modules_to_save": ["classifier"],
        "base_model_name_or_path": "../base",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(settings))


def _make_bundles(home: Path) -> None:
    for name in ("classifier", "encoder", "pretraining", "squad", "objects", "sliced"):
        folder = Path(shutil.copytree(DATA / "tf" / name, home / name))
        for file in ("bert_config.json", "vocab.txt"):
            shutil.copy(DATA / "tf" / file, folder)


def _make_squad(home: Path) -> None:
    content: dict[str, Any] = {"version": "v2.0", "data": []}
    for title in ("Lunch", "Dinner"):
        answers = [{"text": "at noon", "answer_start": 8}, {"text": "noon", "answer_start": 11}]
        asked = [
            {"id": "1", "question": "When do we eat?", "answers": answers, "is_impossible": False},
            {"id": "2", "question": "What?", "answers": [], "is_impossible": True},
        ]
        paragraphs = [{"context": f"{title} is at noon.", "qas": asked}]
        content["data"].append({"title": title, "paragraphs": paragraphs})
    (home / "two articles").mkdir()
    (home / "two articles" / "squad.json").write_text(json.dumps(content))


def _make_cache(home: Path) -> None:
    (home / "vectors").mkdir()
    _encoder(home.parent, home / "vectors").fit_transform(TEXTS)


class _Stopped(BaseException):
    """What a killed process is to a fit."""


def _make_checkpoints(home: Path) -> None:
    """What a fit leaves that is stopped before its fourth step, its last one."""
    folder, take_step, n_steps = home / "fit", Stepper.step, iter(range(3))

    def step(stepper: Stepper, chosen: Any) -> None:
        if next(n_steps, None) is None:
            raise _Stopped
        take_step(stepper, chosen)

    with (
        contextlib.chdir(home),
        mock.patch.object(Stepper, "step", step),
        contextlib.suppress(_Stopped),
    ):
        _fit(folder)


def _make_exported(home: Path) -> None:
    with contextlib.chdir(home):
        fitted = _fit(None)
    for engine in ("onnx", "openvino"):
        fitted.export(home / engine, format=engine)


def _make_rows(home: Path) -> None:
    rows = pa.table({"id": range(2 * len(TEXTS)), "text": TEXTS * 2})
    bare = {"compression": "none", "use_dictionary": False, "write_statistics": False}
    for name, settings in {"bare": bare, "sums": {"write_page_checksum": True}}.items():
        (home / name).mkdir()
        parquet.write_table(rows, home / name / "rows.parquet", row_group_size=5, **settings)


# --- opening -------------------------------------------------------------------------------------


def _fit(checkpoint_dir: Path | None) -> Any:
    """A fit on the model beside the current folder."""
    asked = {"checkpoint_dir": checkpoint_dir, "checkpoint_every": 1} if checkpoint_dir else {}
    return skbert.BertClassifier(
        "../base", epochs=2, batch_size=2, random_state=0, device="cpu", precision="float32",
        **asked,
    ).fit(TEXTS, ["a", "b", "a", "b"])  # fmt: skip


@functools.cache
def _fitted() -> Any:
    return _fit(None).predict_proba(TEXTS)


def _go_on(folder: Path, home: Path) -> Any:
    """The fit ends as if it had not been stopped, whichever checkpoints it could not use."""
    found = _fit(folder).predict_proba(TEXTS)
    np.testing.assert_array_equal(found, _fitted())
    return found


def _go_on_from_other_numbers(folder: Path, home: Path) -> Any:
    return _fit(folder).predict_proba(TEXTS)


def _encoder(home: Path, memory: Path | None = None) -> Any:
    return skbert.BertTransformer(home / "base", device="cpu", precision="float32", memory=memory)


def _open_model(folder: Path, home: Path) -> Any:
    """As a classifier where there is one, else as features."""
    if (folder / "modules.json").is_file():
        return skbert.BertTransformer(folder, device="cpu").fit_transform(TEXTS)
    return skbert.BertClassifier.from_pretrained(folder).predict_proba(TEXTS)


def _open_head_beside(folder: Path, home: Path) -> Any:
    return skbert.BertClassifier.from_pretrained(folder).predict_proba(TEXTS)


@functools.cache
def _expected() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((SAVED / "expected.json").read_bytes())
    return table


def _open_saved(folder: Path, home: Path) -> Any:
    loaded = skbert.load(folder)
    case = next(c for c in _expected().values() if c["class"] == type(loaded).__name__)
    X = case["X"]
    if hasattr(loaded, "feature_names_in_"):
        X = pd.DataFrame(dict.fromkeys(loaded.feature_names_in_, TEXTS))
    return [getattr(loaded, method)(X) for method in case["outputs"] if hasattr(loaded, method)]


def _open_bundle(folder: Path, home: Path) -> Any:
    out = Path(os.environ["TMPDIR"]) / "converted"
    files = (folder / "bert_model.ckpt", folder / "bert_config.json", folder / "vocab.txt")
    return skbert.BertTransformer(
        skbert.convert_tf_checkpoint(*files, out), device="cpu"
    ).fit_transform(TEXTS)


def _open_exported(folder: Path, home: Path) -> Any:
    return skbert.runtime.load(folder, threads=1).predict_proba(TEXTS)


def _open_rows(folder: Path, home: Path) -> Any:
    """The vectors of the texts; whatever is refused leaves nothing beside the file."""
    out = folder / "vectors.parquet"
    try:
        commands.embed(
            str(home / "base"), folder / "rows.parquet", out, text_columns=["text"], keep=[]
        )
    except Exception:
        assert [path.name for path in folder.iterdir()] == ["rows.parquet"]
        raise
    return parquet.read_table(out)["embedding"].combine_chunks().values


def _open_squad(folder: Path, home: Path) -> Any:
    X, y = load_squad(folder / "squad.json")
    assert len(X) == len(y) > 0


@functools.cache
def _vectors(home: Path) -> Any:
    return _encoder(home).fit_transform(TEXTS)


def _open_cache(folder: Path, home: Path) -> Any:
    """Whatever is in the cache, vectors must be the right ones."""
    found = _encoder(home, folder).fit_transform(TEXTS)
    np.testing.assert_allclose(found, _vectors(home), rtol=0, atol=1e-5)
    return found


# --- damage --------------------------------------------------------------------------------------

_JSON = (change_json, change_json, change_json, change_bytes)
_TENSORS = (change_header, change_header, change_numbers, change_bytes)


def _seal(random: Random, folder: Path) -> None:
    for manifest in sorted(folder.rglob("MANIFEST.json")):
        seal_manifest(manifest.parent)


def _change_database(random: Random, folder: Path) -> None:
    for path in folder.glob("skbert/*.sqlite"):
        if random.random() < 0.4 and is_small_file(path) and path.stat().st_size:
            change_database(random, path)


REFUSED_WHOLE = ("objects", "sliced")  # kinds of TensorFlow checkpoints that are not read
FORMATS: dict[str, Format] = {
    "config": Format(
        _models("bert", "deberta-v2", "modernbert", "xmod", "nomic_bert", "albert"),
        {"/config.json": (change_json,) * 5 + (change_bytes,)},
        _open_model,
    ),
    "tokenizer": Format(
        _make_tokenizers,
        {"/config.json": (), ".json": _JSON, ".txt": (change_bytes,)},
        _open_model,
    ),
    "sentence encoder": Format(
        _make_sentence_encoder,
        {"modules.json": _JSON, "1_Pooling/config.json": _JSON, "bert_config.json": _JSON},
        _open_model,
    ),
    "head beside its encoder": Format(
        _make_head_beside,
        {
            "_Dense/config.json": (), "_Pooling/config.json": (), "modules.json": _JSON,
            "/config.json": (change_json,), "_Dense/model.safetensors": _TENSORS,
        },
        _open_head_beside,
    ),
    "safetensors": Format(_models("bert"), {"model.safetensors": _TENSORS}, _open_model),
    "shards": Format(
        _make_shards, {".index.json": _JSON, ".safetensors": _TENSORS}, _open_model
    ),
    "pickled weights": Format(
        _make_pickled,
        {".bin": (change_pickle, change_pickle, change_bytes), ".index.json": _JSON},
        _open_model,
    ),
    "adapter": Format(  # it names its base model
        _make_adapter, {".json": _JSON, ".safetensors": _TENSORS}, _open_model,
        also_read=("base", "outside"),
    ),
    "saved": Format(
        _make_saved, {".json": _JSON, ".safetensors": _TENSORS}, _open_saved
    ),
    "saved, sealed again": Format(
        _make_saved, {".json": _JSON, ".safetensors": _TENSORS}, _open_saved, finish=_seal
    ),
    "exported": Format(
        _make_exported, {".json": _JSON, "": (change_bytes,)}, _open_exported
    ),
    "parquet": Format(
        _make_rows, {".parquet": (change_bytes,)}, _open_rows, is_named=True, also_read=("base",)
    ),
    "TensorFlow": Format(
        _make_bundles,
        {".index": (change_index, change_bytes), ".json": _JSON, "": (change_bytes,)},
        _open_bundle,
    ),
    "SQuAD": Format(_make_squad, {".json": _JSON}, _open_squad, is_named=True),
    "checkpoint of a fit": Format(
        _make_checkpoints, {".json": _JSON, ".safetensors": _TENSORS}, _go_on,
        also_read=("base",),
    ),
    "checkpoint of a fit, sealed again": Format(
        _make_checkpoints, {".json": _JSON, ".safetensors": _TENSORS},
        _go_on_from_other_numbers, also_read=("base",), finish=_seal,
    ),
    "cache": Format(
        _make_cache, {".sqlite": (change_bytes,)}, _open_cache, also_read=("base",),
        finish=_change_database,
    ),
}  # fmt: skip


def write_whole_files(home: Path) -> Path:
    """Write whole folders of every format; ``base`` is the model that some of them need."""
    _save_model("bert", home / "base")
    for name, each in FORMATS.items():
        (home / name).mkdir()
        each.make(home / name)
    return home


def damage(random: Random, name: str, home: Path, place: Path) -> list[str]:
    """Put a damaged folder of a format at a place; say what was done to it."""
    each = FORMATS[name]
    variants = sorted((home / name).iterdir())
    source = random.choice(variants)
    shutil.copytree(source, place)
    done = [source.name]
    for _ in range(random.choice((1, 1, 1, 1, 2, 4))):
        paths = sorted(filter(is_small_file, place.rglob("*")))
        paths = [path for path in paths if _ways(each, path)]
        if not paths:
            break
        path = random.choice(paths)
        if each.is_named or random.random() < 0.8:
            how, data = random.choice(_ways(each, path))(random, path.read_bytes())
            path.unlink()
            path.write_bytes(data)
        else:
            how = _replace(random, path, home / name)
        done.append(f"{path.name}: {how}")
    each.finish(random, place)
    return done


def _ways(each: Format, path: Path) -> tuple[Callable[[Random, bytes], Change], ...]:
    """The ways in which a file of a format is changed."""
    name = path.as_posix()
    return next((ways for ending, ways in each.changes.items() if name.endswith(ending)), ())


def _replace(random: Random, path: Path, home: Path) -> str:
    """Put something else in the place of a file, or something hostile beside it."""
    how = random.choice((
        _remove, _link_outside, _link_outside, _link_to_itself, _link_to_device, _make_folder,
        _make_pipe, _swap, _take_another, _make_hole, _add_files,
    ))  # fmt: skip
    how(random, path, home)
    return how.__name__[1:]


def _remove(random: Random, path: Path, home: Path) -> None:
    path.unlink()


def _link_outside(random: Random, path: Path, home: Path) -> None:
    path.unlink()
    other = home.parent / "base" / path.name
    targets = (f"{OUTSIDE}/{path.name}", str(other), "/etc/passwd", OUTSIDE)
    path.symlink_to(random.choice(targets))


def _link_to_itself(random: Random, path: Path, home: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _link_to_device(random: Random, path: Path, home: Path) -> None:
    path.unlink()
    path.symlink_to(random.choice(("/dev/zero", "/dev/stdin", "/dev/null", "/proc/self/mem")))


def _make_folder(random: Random, path: Path, home: Path) -> None:
    path.unlink()
    path.mkdir()


def _make_pipe(random: Random, path: Path, home: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _swap(random: Random, path: Path, home: Path) -> None:
    """Exchange two files of the folder."""
    other = random.choice(sorted(filter(is_small_file, path.parent.iterdir())))
    mine, its = path.read_bytes(), other.read_bytes()
    path.write_bytes(its)
    other.write_bytes(mine)


def _take_another(random: Random, path: Path, home: Path) -> None:
    """Take a file of the same name, or any, from another folder."""
    files = sorted(p for top in (home, home.parent / "base") for p in top.rglob("*"))
    files = [p for p in files if p.is_file()]
    alike = [p for p in files if p.name == path.name]
    path.write_bytes(random.choice(random.choice((files, alike or files))).read_bytes())


def _make_hole(random: Random, path: Path, home: Path) -> None:
    """Make a file much longer, which costs no disk."""
    with path.open("r+b") as file:
        file.truncate(random.choice((9_000_000, 95_000_000, 10**9, 10**12)))


def _add_files(random: Random, path: Path, home: Path) -> None:
    for name in ("evil.py", "modeling_evil.py", "__init__.py", "sitecustomize.py"):
        (path.parent / name).write_bytes(EVIL)
    name = random.choice(("adapter_config.json", "MANIFEST.json", "tokenizer.model", "x.gguf"))
    (path.parent / name).write_bytes(random.choice((b"", b"{}", random.randbytes(99))))
