"""Open an exported folder, after checking names, sizes, hashes and every part of it.

Depends on the archive, which is plain files, and on the models beside.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from tokenizers import Tokenizer

from skbert._core.checkpoints import archive
from skbert._core.checkpoints.tokenizer_parts import check_described
from skbert._core.export.engines import ENGINES, Graph, Precision
from skbert._core.text.tokens import TextTokenizer
from skbert._estimator.fitted import check_attributes, known_attributes
from skbert._estimator.state import describing, loads, not_written_here, record_of, task_of
from skbert._validation.numbers import check_count
from skbert.exceptions import ModelError, SaveError
from skbert.runtime._exported import Exported
from skbert.runtime._models import MODELS

__all__ = ["load"]

_STATE, _TOKENIZER = "state.json", "tokenizer.json"


def load(path: str | os.PathLike[str], *, threads: int | None = None) -> Any:
    """Open a folder that ``export`` wrote, after checking names, sizes and hashes.

    Parameters
    ----------
    path : str or path-like
        The folder.
    threads : int or None, default=None
        Threads that the engine computes with; None leaves it to the engine, which takes all
        processor cores.

    Returns
    -------
    model : object
        Has the methods of the exported estimator that predict, such as ``predict`` and
        ``predict_proba``, and the attributes that these depend on, such as ``classes_``. Several
        threads may use it at once.

    Raises
    ------
    SaveError
        If a file is missing, damaged or not written by ``export``, or if this version of skbert
        knows no such engine or estimator.
    ModelError
        If the library of the engine is not installed.

    See Also
    --------
    skbert.BertClassifier.export : Write such a folder.

    Examples
    --------
    >>> import skbert.runtime
    >>> from skbert import BertClassifier
    >>> from skbert.datasets import load_intents
    >>> X, y = load_intents(return_X_y=True)
    >>> settings = {"epochs": 1, "freeze": "all", "random_state": 0}
    >>> BertClassifier(**settings).fit(X, y).export("intents")
    >>> model = skbert.runtime.load("intents")
    >>> model.predict(["I forgot my password"]).tolist()
    ['login']
    """
    folder = Path(path)
    if threads is not None:
        check_count(threads, "threads", 2)
    kind, engine = _kind_of(archive.header(folder), folder)
    files = ENGINES[engine].files
    header, members = archive.read_members(folder, {_STATE, _TOKENIZER, *files})
    graph = _opened(engine, members, threads, folder)
    cls = MODELS[kind]
    with describing(*not_written_here(folder / _STATE, cls)):
        state = loads(members[_STATE])
        task = task_of(cls._tasks, state["task"])
        record = record_of(state["seen"])
        attributes = known_attributes(cls, state["attributes"])
        check_attributes(cls, attributes, task, {"n_outputs": task.head().n_outputs})
        tokenizer = _tokenizer(members[_TOKENIZER], state["tokenizer"], folder)
        equal_lengths = state["head"]["equal_lengths"]
        exported = Exported(graph, tokenizer, task, record, attributes, equal_lengths)
        exported.check_graph()
        return cls(exported, state["params"], f"{kind}, {engine} {header['precision']}")


def _kind_of(header: Mapping[str, Any], folder: Path) -> tuple[str, str]:
    """The names of the estimator and of the engine of a folder."""
    kind, engine = header.get("class"), header.get("engine")
    if engine is None:
        raise SaveError(
            f"{folder} was not written by export, but by save: open it with skbert.load, and "
            "export the estimator to another folder."
        )
    precision = header.get("precision")
    if kind not in MODELS or engine not in ENGINES or precision not in get_args(Precision):
        raise SaveError(
            f"{folder} holds a {kind!r:.80} for {engine!r:.80} in {precision!r:.80}. This version "
            f"of skbert opens {', '.join(MODELS)}, for {' and '.join(ENGINES)} in "
            f"{' and '.join(get_args(Precision))}: upgrade it, or export again."
        )
    return kind, engine


def _opened(engine: str, members: Mapping[str, bytes], threads: int | None, folder: Path) -> Graph:
    """The graph, opened by its engine."""
    try:
        return ENGINES[engine](members, threads)
    except ModelError:
        raise
    except Exception as error:  # each engine has errors of its own
        raise SaveError(
            f"{folder / ENGINES[engine].files[0]} cannot be opened for {engine}: {error}. It was "
            "not written by this version of skbert; export again with it."
        ) from error


def _tokenizer(data: bytes, named: Mapping[str, str | None], folder: Path) -> TextTokenizer:
    """The tokenizer of the bytes of its file, which is checked first."""
    check_described(data, folder / _TOKENIZER)
    return TextTokenizer(
        Tokenizer.from_str(data.decode()), named["mask_token"], named["unk_token"]
    )
