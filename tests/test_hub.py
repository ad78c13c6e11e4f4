"""Models on a hub: written and read through a small server on this machine."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import shutil
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from driving import serving

from gears import GEARS
from gears.hub import from_hub, push_to_hub

is_there = importlib.util.find_spec("huggingface_hub") is not None


class Hub(BaseHTTPRequestHandler):
    """What the client asks of a hub, for one repository whose commits are kept in memory."""

    commits: ClassVar[list[dict[str, bytes]]] = []

    def answer(self, value: Any = None, body: bytes = b"", code: int = 200, **headers: str) -> None:
        body = body if value is None else json.dumps(value).encode()
        self.send_response(code)
        for name, text in ({"Content-Length": str(len(body))} | headers).items():
            self.send_header(name.replace("_", "-"), text)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    @property
    def here(self) -> str:
        return f"http://{self.headers['Host']}/me/model"

    def do_POST(self) -> None:
        text = self.rfile.read(int(self.headers["Content-Length"]))
        if "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(text)["files"]]
            self.answer({"files": [file | {"shouldIgnore": False, "oid": None} for file in files]})
        elif "/commit/" in self.path:
            entries = [json.loads(line) for line in text.splitlines()]
            files = [entry["value"] for entry in entries if entry["key"] == "file"]
            self.commits.append({file["path"]: base64.b64decode(file["content"]) for file in files})
            oid = oid_of(len(self.commits) - 1)
            self.answer({"commitUrl": f"{self.here}/commit/{oid}", "commitOid": oid, "success": True})
        else:
            self.answer({"url": self.here, "name": "me/model", "id": "me/model"})

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if "/resolve/" in path:
            revision, _, name = path.partition("/resolve/")[2].partition("/")
            body = self.commits[number_of(revision)].get(name)
            if body is None:
                self.answer({}, code=404, X_Error_Code="EntryNotFound")
                return
            tag = f'"{hashlib.sha1(body).hexdigest()}"'
            self.answer(body=body, ETag=tag, X_Repo_Commit=revision, Content_Length=str(len(body)))
            return
        number = number_of(path.rpartition("/")[2])
        names = self.commits[number] if self.commits else {}
        if "/tree/" in path:
            sizes = [(name, len(body), hashlib.sha1(body).hexdigest()) for name, body in names.items()]
            self.answer([{"type": "file", "path": name, "size": size, "oid": oid} for name, size, oid in sizes])
            return
        siblings = [{"rfilename": name} for name in names]
        self.answer({"id": "me/model", "modelId": "me/model", "sha": oid_of(number), "siblings": siblings})

    do_HEAD = do_GET


def oid_of(number: int) -> str:
    return f"{number:040x}"


def number_of(revision: str) -> int:
    return int(revision, 16) if len(revision) == 40 else max(0, len(Hub.commits) - 1)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    Hub.commits.clear()
    with serving(Hub) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", "hf_invented")
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
        yield


@pytest.mark.skipif(not is_there, reason="the package huggingface-hub is not installed")
def test_a_model_comes_back_at_its_revision(hub, small_model, tmp_path) -> None:
    folder = shutil.copytree(small_model, tmp_path / "model")
    (folder / "metrics.jsonl").write_text("{}")  # of its run
    revision = push_to_hub(folder, "me/model")
    assert "metrics.jsonl" not in Hub.commits[0]
    (tmp_path / "pack.h5ad").write_bytes(b"pack")
    later = push_to_hub(tmp_path / "pack.h5ad", "me/model")
    assert later != revision
    found, model = (GEARS.from_pretrained(path, device="cpu") for path in (from_hub("me/model", revision), folder))
    genes = model.pert_list[:3]
    np.testing.assert_array_equal(found.predict(genes).expression_UG, model.predict(genes).expression_UG)
    assert (from_hub("me/model", later) / "pack.h5ad").read_bytes() == b"pack"
    with pytest.raises(ValueError, match=f"'main' of me/model may change; give a fixed one, now revision='{later}'"):
        from_hub("me/model", "main")
    with pytest.raises(ValueError, match="is no saved model"):
        push_to_hub(tmp_path, "me/model")
    assert len(Hub.commits) == 2


@pytest.mark.skipif(is_there, reason="the package huggingface-hub is installed")
def test_without_the_package_one_sentence_names_it() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"install gears-perturb\[hub\]"):
        from_hub("me/model", "main")
