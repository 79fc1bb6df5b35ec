"""Uploads a folder to the Hugging Face hub; depends on huggingface_hub alone, and only on use."""

from __future__ import annotations

from skbert.exceptions import SaveError

__all__ = ["upload"]

_STALE = ["modules.json", "*_Pooling/*", "*_Dense/*"]  # of an earlier version, unless it has them


def upload(
    folder: str,
    repo_id: str,
    *,
    private: bool | None,
    token: str | bool | None,
    commit_message: str | None,
) -> str:
    """Upload the files of a folder as one commit; return its address."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    try:
        made = api.create_repo(repo_id, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=made.repo_id,
            folder_path=folder,
            commit_message=commit_message,
            delete_patterns=_STALE,
        )
    except Exception as error:  # its errors have no base of their own
        reason = str(error).strip().partition("\n")[0]
        raise SaveError(
            f"{repo_id!r} could not be pushed to {api.endpoint}: {type(error).__name__}: {reason}."
            " Give a name such as 'owner/name', and log in with a token that may write there: hf"
            " auth login."
        ) from error
    return commit.commit_url
