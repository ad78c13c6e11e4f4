"""Saved models and prepared files on the Hugging Face hub (extra ``hub``): written, and read at a fixed revision.

The hub's own variables apply: ``HF_ENDPOINT`` another server, ``HF_TOKEN`` who writes, ``HF_HOME`` the cache. Without a
hub, a model folder or an archive of it does the same.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from gears.files._paths import need_file
from gears.model._folder import MODEL_FILES, is_model


def push_to_hub(path: str | Path, repo_id: str, *, private: bool = True, message: str = "Upload") -> str:
    """Write a saved model (without the files of its run) or a single file into a repository of the hub.

    Parameters
    ----------
    path
        Folder that ``save_model`` wrote, or a file such as a screen's moments.
    repo_id
        ``OWNER/NAME``; made where there is none.
    private
        Whether a new repository is private.
    message
        Message of the commit.

    Returns
    -------
    str
        The revision, which :func:`from_hub` needs.

    Raises
    ------
    ValueError
        `path` is a folder without a saved model.
    """
    path, api = need_file(path, "path"), _api()
    if path.is_dir() and not is_model(path):
        msg = f"{path} is no saved model; give the folder that save_model wrote, or a file"
        raise ValueError(msg)
    api.create_repo(repo_id, private=private, exist_ok=True)
    if path.is_dir():
        what = {"folder_path": path, "allow_patterns": sorted(MODEL_FILES)}
        return str(api.upload_folder(repo_id=repo_id, commit_message=message, **what).oid)
    done = api.upload_file(path_or_fileobj=path, path_in_repo=path.name, repo_id=repo_id, commit_message=message)
    return str(done.oid)


def from_hub(repo_id: str, revision: str) -> Path:
    """The folder of a repository at a fixed revision, for ``GEARS.from_pretrained``; a single file is in it.

    Raises
    ------
    ValueError
        The revision is a name, such as "main", whose content may change; the message has the revision that it is now.
    """
    api = _api()
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
        now = api.repo_info(repo_id, revision=revision).sha
        msg = f"revision {revision!r} of {repo_id} may change; give a fixed one, now revision={now!r}"
        raise ValueError(msg)
    return Path(api.snapshot_download(repo_id, revision=revision))


def _api() -> Any:
    try:
        from huggingface_hub import HfApi
    except ModuleNotFoundError as error:
        msg = "the hub needs the package huggingface-hub; install gears-perturb[hub]"
        raise ModuleNotFoundError(msg) from error
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT"))
