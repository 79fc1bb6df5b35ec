"""Convert Google's TensorFlow checkpoints of BERT to folders that every estimator opens.

Depends on `bundle`, which reads the checkpoint, on `variable_names`, which knows what is in it, on
`_core.checkpoints`, which checks what is read and written, and on tokenizers. Loads neither
TensorFlow nor torch nor transformers.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import BertWordPieceTokenizer

from skbert._conversion.bundle import Bundle
from skbert._conversion.variable_names import Shape, plan, renamed
from skbert._core.checkpoints.strict import Members, parse_json
from skbert._core.checkpoints.vet import vet
from skbert.exceptions import (
    InputTypeError,
    ModelError,
    SaveError,
    SkbertError,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["convert_tf_checkpoint"]

_SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
          "intermediate_size", "max_position_embeddings", "type_vocab_size")  # fmt: skip
_KEPT = (*_SIZES, "hidden_act", "hidden_dropout_prob", "attention_probs_dropout_prob",
         "initializer_range", "layer_norm_eps")  # fmt: skip
_SPECIALS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def convert_tf_checkpoint(
    ckpt_prefix: str | os.PathLike[str],
    config_json: str | os.PathLike[str],
    vocab_txt: str | os.PathLike[str],
    out_dir: str | os.PathLike[str],
    *,
    do_lower_case: bool | None = None,
) -> Path:
    """Turn a TensorFlow checkpoint of BERT into a folder that every estimator opens.

    It reads the V2 format with the variable names of Google's BERT, which its releases and the
    checkpoints written by its scripts have. TensorFlow is not needed. Variables that only training
    needs (slots of Adam, the step counter) are skipped.

    Parameters
    ----------
    ckpt_prefix : str or path-like
        The common beginning of the paths of the checkpoint's files: ``bert_model.ckpt`` for
        ``bert_model.ckpt.index`` and ``bert_model.ckpt.data-00000-of-00001``.
    config_json : str or path-like
        The ``bert_config.json`` that came with it.
    vocab_txt : str or path-like
        The ``vocab.txt`` that came with it, with one word piece per line.
    out_dir : str or path-like
        Folder to write to: a new one, or an empty one.
    do_lower_case : bool or None, default=None
        Whether the tokenizer lower-cases texts and strips accents. None uses ``do_lower_case`` of
        ``config_json``. If that is missing too, the tokenizer lower-cases texts unless more than
        1 % of the pieces in the vocabulary have an upper-case letter.

    Returns
    -------
    folder : pathlib.Path
        ``out_dir`` as an absolute path. It holds ``model.safetensors``, ``config.json``,
        ``tokenizer.json``, ``tokenizer_config.json`` and ``vocab.txt``. The class named in
        ``config.json`` is ``BertForQuestionAnswering``, ``BertForSequenceClassification``,
        ``BertForPreTraining`` or ``BertForMaskedLM`` if the checkpoint has such a head, else
        ``BertModel``.

    Raises
    ------
    ModelError
        If a file is missing, damaged, cut short or of the V1 format, or if the checkpoint, the
        configuration and the vocabulary do not belong together. In this case nothing is written.
    SaveError
        If ``out_dir`` is not empty or cannot be written.
    InputTypeError
        If an argument has the wrong type.

    Warns
    -----
    SkbertWarning
        If the checkpoint has variables that the model does not have, or if the vocabulary has
        fewer pieces than the model.

    Examples
    --------
    >>> from skbert import BertClassifier, convert_tf_checkpoint
    >>> folder = convert_tf_checkpoint(
    ...     "uncased_L-12_H-768_A-12/bert_model.ckpt",
    ...     "uncased_L-12_H-768_A-12/bert_config.json",
    ...     "uncased_L-12_H-768_A-12/vocab.txt",
    ...     "bert-base-uncased",
    ... )
    >>> classifier = BertClassifier(model=folder)
    """
    prefix, config_path = _path(ckpt_prefix, "ckpt_prefix"), _path(config_json, "config_json")
    vocab_path, target = _path(vocab_txt, "vocab_txt"), _path(out_dir, "out_dir")
    if not isinstance(do_lower_case, bool | None):
        raise InputTypeError(f"do_lower_case={do_lower_case!r} must be True, False or None.")
    target = Path(os.path.realpath(target))
    with _all_or_nothing(target) as part:
        beside = Members(config_path.parent), Members(vocab_path.parent)
        config = _read_config(beside[0], config_path)
        pieces = _read_pieces(beside[1], vocab_path, config["vocab_size"])
        bundle = Bundle(str(prefix))
        head, shapes = plan(bundle, config, config_path)
        part.mkdir(parents=True)
        _write_weights(part / "model.safetensors", bundle, head, shapes)
        _write_json(part / "config.json", _described(config, head, shapes, pieces))
        lowercase = _lowers_case(do_lower_case, config, pieces)
        _write_tokenizer(part, pieces, config, lowercase=lowercase)
        _check_written(part, config_path, target)
        for members in (*beside, bundle.members):
            members.check_unchanged()
    return target


@contextmanager
def _all_or_nothing(target: Path) -> Iterator[Path]:
    """Yield a folder to write to, which becomes ``target`` on success and is deleted otherwise."""
    part = target.parent / f".{target.name}.{secrets.token_hex(4)}.part"
    try:
        _check_target(target)
        yield part
        if target.exists():
            target.rmdir()
        part.rename(target)
    except BaseException as exc:
        shutil.rmtree(part, ignore_errors=True)
        if not isinstance(exc, OSError) or isinstance(exc, SkbertError):
            raise
        raise SaveError(
            f"{target} could not be written: {exc}. Nothing of it was kept. Convert again into a"
            " folder that you may write, on a disk with free space."
        ) from exc


# --- reading -----------------------------------------------------------------------------------


def _path(value: object, name: str) -> Path:
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InputTypeError(f"{name}={value!r} is not a path. Give a str or a pathlib.Path.")
    return Path(os.path.expanduser(text))  # noqa: PTH111 - never raises


def _check_target(target: Path) -> None:
    if not os.path.lexists(target):
        return
    if not target.is_dir():
        raise SaveError(f"out_dir={str(target)!r} is a file: give the path of a new folder.")
    if target == Path.cwd() or any(target.iterdir()):
        raise SaveError(
            f"out_dir={str(target)!r} is not empty, or is the current folder. Nothing there is"
            " replaced: give the path of a new folder."
        )


def _read_config(members: Members, path: Path) -> dict[str, Any]:
    config = parse_json(_read(members, path), path, ModelError)
    if not isinstance(config, dict):
        raise ModelError(
            f"{path} should hold a JSON object, not a {type(config).__name__}. Give the"
            " bert_config.json that came with the checkpoint."
        )
    for key in _SIZES:
        if type(config.get(key)) is not int or config[key] < 1:
            raise ModelError(
                f"{path} has {key}={str(config.get(key))[:80]}, where a whole number of 1 or more"
                " is expected. Give the bert_config.json that came with the checkpoint."
            )
    return config


def _read(members: Members, path: Path) -> bytes:
    data = members.read(path.name)
    if data is None:
        raise ModelError(
            f"{path} cannot be read: there is no such file. Give the one that came with the"
            " checkpoint."
        )
    return data


def _read_pieces(members: Members, path: Path, vocab_size: int) -> list[str]:
    """Return the word pieces in the order of their ids."""
    try:
        text = _read(members, path).decode()
    except UnicodeDecodeError as exc:
        raise ModelError(
            f"{path} cannot be read as UTF-8: {exc}. Give the vocab.txt that came with the"
            " checkpoint."
        ) from exc
    pieces = [line.removesuffix("\r") for line in text.rstrip("\r\n").split("\n")]
    lacks = [special for special in _SPECIALS if special not in pieces]
    if lacks or len(pieces) > vocab_size:
        wrong = f"no piece {lacks[0]}" if lacks else f"{len(pieces)} pieces for {vocab_size} rows"
        raise ModelError(
            f"{path} does not fit the model: it has {wrong}. Give the vocab.txt that came with the"
            " checkpoint, with one word piece per line."
        )
    if len(pieces) < vocab_size:
        warn(
            f"{path} has {len(pieces)} pieces, but the model knows {vocab_size}. Make sure that it"
            " is the vocab.txt that came with the checkpoint."
        )
    return pieces


def _lowers_case(asked: bool | None, config: dict[str, Any], pieces: list[str]) -> bool:
    declared = config.get("do_lower_case") if asked is None else asked
    if isinstance(declared, bool):
        return declared
    plain = [piece for piece in pieces if not piece.startswith("[")]
    return sum(piece != piece.lower() for piece in plain) <= len(plain) / 100


# --- writing -----------------------------------------------------------------------------------


def _write_weights(path: Path, bundle: Bundle, head: str, shapes: dict[str, Shape]) -> None:
    """Write a safetensors file with no more than one tensor in memory."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, shape in shapes.items():
        end = at + 4 * math.prod(shape)
        turned = shape[::-1] if name.endswith("/kernel") else shape
        entry = {"dtype": "F32", "shape": turned, "data_offsets": [at, end]}
        entries[renamed(name, head)] = entry
        at = end
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)  # so that the tensors lie at multiples of 8
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for name in shapes:
            values = bundle.read(name)
            values = values.T if name.endswith("/kernel") else values
            file.write(np.ascontiguousarray(values).data)


def _described(
    config: dict[str, Any], head: str, shapes: dict[str, Shape], pieces: list[str]
) -> dict[str, Any]:
    """Return the settings of config.json."""
    settings = {key: config[key] for key in _KEPT if key in config}
    settings |= {"architectures": [head], "model_type": "bert"}
    settings["pad_token_id"] = pieces.index("[PAD]")
    if head == "BertForSequenceClassification":
        names = [f"LABEL_{row}" for row in range(shapes["output_bias"][0])]
        settings["id2label"] = {str(row): name for row, name in enumerate(names)}
        settings["label2id"] = {name: row for row, name in enumerate(names)}
    return settings


def _write_tokenizer(
    folder: Path, pieces: list[str], config: dict[str, Any], *, lowercase: bool
) -> None:
    vocabulary = {piece: row for row, piece in enumerate(pieces)}
    tokenizer = BertWordPieceTokenizer(vocabulary, lowercase=lowercase)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": lowercase,
        "strip_accents": None,
        "tokenize_chinese_chars": True,
        "model_max_length": config["max_position_embeddings"],
    }
    names = {f"{special[1:-1].lower()}_token": special for special in _SPECIALS}
    _write_json(folder / "tokenizer_config.json", {**settings, **names})
    (folder / "vocab.txt").write_bytes("".join(f"{piece}\n" for piece in pieces).encode())


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _check_written(part: Path, config_path: Path, target: Path) -> None:
    """Open the folder's files as every estimator will."""
    try:
        vet(part)
    except ModelError as exc:
        what = str(exc).replace(str(part), str(target))
        raise ModelError(f"{config_path} makes no model that opens here: {what}") from exc
