"""Where a tokenizer is opened, and checks that what was opened is the one that was vetted.

Its class may make its steps and tokens anew. Depends on the vetted files only.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from skbert._core.families.tokenizers import AS_DESCRIBED
from skbert.exceptions import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from skbert._core.checkpoints.tokenizer_files import TokenizerFiles

__all__ = ["check_opened", "temporary_folder"]

_UNASSIGNED = "\U000effff"  # a character that never will be one


def check_opened(folder: str, files: TokenizerFiles, size: int, backend: Any) -> None:
    """Refuse a tokenizer whose ids differ from the vetted ones, or that leaves no tokens.

    ``size`` is that of the vocabulary in config.json.
    """
    vetted = files.vocabulary
    opened = backend.get_vocab(with_added_tokens=True)
    for token, number in opened.items() if opened != vetted else ():
        if vetted.get(token, number) != number or number >= size:
            raise ModelError(
                f"the tokenizer in {folder} opens with the id {number} for {token!r},"
                f" but its files say {vetted.get(token, 'nothing of it')} and config.json says"
                f" vocab_size={size}. Put in the tokenizer that the model was trained with."
            )
    _check_unknown(folder, files, backend)
    if (token := _blank_token(backend)) is not None:
        raise ModelError(
            f"the tokenizer in {folder} adds the token {token!r}, of which its"
            " normalizer leaves nothing. Put in the tokenizer that the model was trained with."
        )
    if backend.encode("a", "a").special_tokens_mask.count(0) < 2:
        raise ModelError(
            f"the tokenizer in {folder} leaves nothing of the text 'a': its normalizer"
            " or pre_tokenizer removes letters. Put in the tokenizer that the model was trained"
            " with."
        )


def _check_unknown(folder: str, files: TokenizerFiles, backend: Any) -> None:
    """Refuse a tokenizer that opens with another unknown token than its files have."""
    wanted = files.unknown
    if wanted is None or backend.token_to_id(_UNASSIGNED) is not None:
        return
    (found,) = backend.model.tokenize(_UNASSIGNED)
    if found.id != wanted:
        raise ModelError(
            f"the tokenizer in {folder} opens with the id {found.id} for the unknown"
            f" token, but its tokenizer.json says {wanted}: its class is for another order of the"
            f" vocabulary. Write {AS_DESCRIBED[0]!r} for tokenizer_class in tokenizer_config.json."
        )


def _blank_token(backend: Any) -> str | None:
    """An added token of which the normalizer leaves nothing, so that reading text would panic.

    Of white space some may be left.
    """
    normalizer = backend.normalizer
    added = backend.get_added_tokens_decoder().values() if normalizer else ()
    for text in (str(token.content) for token in added if token.normalized):
        left = normalizer.normalize_str(text)
        if not left.strip() and (text.strip() or not left):
            return text
    return None


@contextmanager
def temporary_folder(members: Mapping[str, bytes]) -> Iterator[str]:
    """A folder with these files; it is removed at the end."""
    with ExitStack() as stack:
        try:
            scratch = stack.enter_context(TemporaryDirectory())
            for name, data in members.items():
                (Path(scratch) / name).write_bytes(data)
        except OSError as error:
            raise ModelError(
                f"A tokenizer cannot be opened, because this needs some temporary space: {error}."
                " Set TMPDIR to a writable folder with some MB of free space."
            ) from error
        yield scratch
