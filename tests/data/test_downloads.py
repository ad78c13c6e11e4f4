"""Published screens from servers that fail in several ways, and archives with malicious content."""

import hashlib
import io
import json
import stat
import tarfile
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from driving import serving

from gears.data.reading._download import PUBLISHED_FILES, extract_file, published_screen
from gears.pertdata import PertData

BODY = bytes(range(256)) * 40
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers with what the test has put into the server."""

    def do_GET(self) -> None:
        self.server.seen.append(dict(self.headers))
        answers: list[Answer] = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer(self)

    def send(self, body: bytes, status: int = 200, *, announced: int | None = -1, **headers: str) -> None:
        self.send_response(status)
        if announced is not None:
            self.send_header("Content-Length", str(len(body) if announced == -1 else announced))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def server():
    with serving(Handler) as made:
        made.seen = []
        yield made


def whole(body: bytes) -> Answer:
    return lambda request: request.send(body)


def broken(body: bytes) -> Answer:
    """The connection ends half-way."""
    return lambda request: request.send(body[: len(body) // 2], announced=len(body))


def status(code: int) -> Answer:
    return lambda request: request.send(b"<html>no</html>", code, Content_Type="text/html")


def redirect(target: str) -> Answer:
    return lambda request: request.send(b"", 302, Location=target)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))


BAD_ANSWERS: dict[str, tuple[Answer, type[Exception], str]] = {
    "403": (status(403), OSError, "403 .*Forbidden"),
    "html": (whole(b"<html>log in</html>"), ValueError, "sent a web page instead of the file"),
    "doctype": (whole(b"\n<!DOCTYPE html><html>log in"), ValueError, "sent a web page instead"),
    "empty": (whole(b""), ValueError, "sent an empty file"),
    "too short": (broken(BODY), OSError, "IncompleteRead"),
    "no http": (lambda r: r.wfile.write(b"gibberish\r\n\r\n"), OSError, "gibberish"),
    "silent": (lambda r: time.sleep(2.0), OSError, "timed out"),
    "to a file": (redirect("file:///etc/passwd"), OSError, "file:///etc/passwd"),
    "loop": (redirect("/"), OSError, "redirects"),
    "no screen": (whole(BODY), ValueError, "is none of what can be read"),
}


@pytest.mark.parametrize("case", BAD_ANSWERS)
def test_a_bad_answer_leaves_no_file_and_says_what_to_do(server, tmp_path, case):
    answer, error, words = BAD_ANSWERS[case]
    server.answers = [answer]
    timeout = 0.5 if case == "silent" else 60.0
    with pytest.raises(error, match=words) as caught:
        published_screen(tmp_path, "norman", base_url=server.url, retries=0, timeout=timeout)
    assert "'norman' could not be fetched" in str(caught.value)
    assert f"download {server.url}/6154020 in a browser" in str(caught.value)
    assert left(tmp_path / "downloads") == []
    assert not list((tmp_path / "downloads").glob(".*.incoming"))


# Archives


def zipped(entries: dict[str, bytes], links: tuple[str, ...] = ()) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, body in entries.items():
            info = zipfile.ZipInfo(name)
            if name in links:
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
            archive.writestr(info, body)
    return buffer.getvalue()


def tarred(entries: dict[str, bytes], link: str | None = None) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, body in entries.items():
            info = tarfile.TarInfo(name)
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            archive.addfile(info)
    return buffer.getvalue()


BAD_ARCHIVES = {
    "no such file": (zipped({"norman/b.h5ad": b"1"}), r"has no file 'a.h5ad' \(it has norman/b.h5ad\)"),
    "two files": (zipped({"x/a.h5ad": b"1", "y/a.h5ad": b"1"}), "has several files"),
    "tar link": (tarred({"norman/b.h5ad": b"1"}, "norman/a.h5ad"), "has no file"),
    "zip cut": (zipped({"norman/a.h5ad": b"1" * 5000})[:-300], "damaged"),
    "tar cut": (tarred({"norman/a.h5ad": bytes(range(256)) * 99})[:-300], "damaged"),
    "empty": (b"", "damaged"),
}


@pytest.mark.parametrize("case", BAD_ARCHIVES)
def test_archives_without_the_one_file_are_errors(tmp_path, case):
    body, words = BAD_ARCHIVES[case]
    (tmp_path / "archive").write_bytes(body)
    with pytest.raises(ValueError, match=words):
        extract_file(tmp_path / "archive", "a.h5ad", tmp_path / "in" / "out")
    assert not list(tmp_path.rglob("a.h5ad"))


@pytest.mark.parametrize("name", ["../a.h5ad", "/tmp/a.h5ad", "C:\\a.h5ad", "norman/a.h5ad"])
@pytest.mark.parametrize("make", [zipped, tarred])
def test_an_archive_writes_into_its_folder_and_the_one_file_only(make, name, tmp_path):
    (tmp_path / "archive").write_bytes(make({"../evil.txt": b"1", "/evil.txt": b"1", name: BODY}))
    wanted = name.rpartition("/")[2]
    file = extract_file(tmp_path / "archive", wanted, tmp_path / "in" / "out")
    assert file == tmp_path / "in" / "out" / wanted
    assert file.read_bytes() == BODY
    outside = [path for path in tmp_path.rglob("*") if not path.is_relative_to(tmp_path / "in")]
    assert outside == [tmp_path / "archive"]
    assert not list(tmp_path.rglob("evil*"))


def test_a_link_in_a_zip_is_not_followed(tmp_path):
    (tmp_path / "archive").write_bytes(zipped({"norman/a.h5ad": b"/etc/passwd"}, ("norman/a.h5ad",)))
    file = extract_file(tmp_path / "archive", "a.h5ad", tmp_path / "out")
    assert not file.is_symlink()
    assert file.read_bytes() == b"/etc/passwd"


# Published screens


@pytest.fixture
def norman_zip(toy_adata, tmp_path):
    toy_adata.write_h5ad(tmp_path / "made.h5ad")
    body = (tmp_path / "made.h5ad").read_bytes()
    (tmp_path / "made.h5ad").unlink()
    return zipped({"norman/perturb_processed.h5ad": body, "norman/data_pyg/cell_graphs.pkl": b"cos\nsystem\n"})


def test_load_by_name_fetches_once(server, norman_zip, toy_go, tmp_path, monkeypatch):
    server.answers = [whole(norman_zip)]
    monkeypatch.setenv("GEARS_DOWNLOAD_URL", server.url + "/files/")
    data = PertData(tmp_path / "data", gene2go=toy_go)
    assert not server.seen  # nothing is fetched before it is asked for
    data.load("norman")
    assert len(data.screen.conditions) == 14
    assert data.dataset_path == tmp_path / "data" / "norman"
    assert left(tmp_path / "data") == ["downloads", "norman"]
    assert left(tmp_path / "data" / "downloads") == ["hashes.json", "norman.h5ad"]
    PertData(tmp_path / "data", gene2go=toy_go).load("Norman")
    assert len(server.seen) == 1
    assert data.screen.manifest["parameters"]["min_cells"] == 2


def test_the_hash_of_the_first_download_holds(server, norman_zip, toy_adata, tmp_path):
    server.answers = [whole(norman_zip)]
    file = published_screen(tmp_path, "norman", base_url=server.url)
    records = json.loads((tmp_path / "downloads" / "hashes.json").read_text())
    assert records["norman.h5ad"]["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert records["norman.download"]["bytes"] == len(norman_zip)
    before = file.read_bytes()
    file.write_bytes(before[:-1] + b"!")
    with pytest.raises(ValueError, match=r"norman.h5ad is not the file of the first .*remove its entry from"):
        published_screen(tmp_path, "norman", base_url=server.url)
    file.unlink()
    server.answers = [whole(zipped({"perturb_processed.h5ad": before, "more": b"1"}))]
    with pytest.raises(ValueError, match=r"norman.download is not the file of the first download"):
        published_screen(tmp_path, "norman", base_url=server.url)
    assert not file.exists()
    server.answers = [whole(norman_zip)]
    assert published_screen(tmp_path, "norman", base_url=server.url).read_bytes() == before


def test_by_hand(server, norman_zip, toy_go, tmp_path):
    server.answers = [status(403)]
    with pytest.raises(OSError, match="403") as caught:
        published_screen(tmp_path, "dixit", base_url=server.url, retries=0)
    where = tmp_path / "dixit.zip"
    advice = f"download {server.url}/6154416 in a browser and put the file, unchanged, at {where}"
    assert advice in str(caught.value)
    where.write_bytes(norman_zip)
    assert published_screen(tmp_path, "dixit", base_url=server.url).name == "dixit.h5ad"
    assert where.exists()
    where.unlink()
    PertData(tmp_path, gene2go=toy_go).load("dixit")
    assert len(server.seen) == 1


def test_a_failure_that_passes_is_tried_again_from_the_start(server, norman_zip, tmp_path):
    server.answers = [broken(norman_zip), whole(norman_zip)]
    assert published_screen(tmp_path, "norman", base_url=server.url).name == "norman.h5ad"
    assert len(server.seen) == 2
    assert "Range" not in server.seen[1]


def test_several_at_once_fetch_once(server, norman_zip, tmp_path):
    server.answers = [whole(norman_zip)]
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: published_screen(tmp_path, "norman", base_url=server.url), range(12)))
    assert len({str(path) for path in found}) == 1
    assert len(server.seen) == 1


def test_names_and_numbers(tmp_path):
    replogle = {"replogle_k562_essential": 7458695, "replogle_rpe1_essential": 7458694}
    assert {"norman": 6154020, "adamson": 6154417, "dixit": 6154416, **replogle} == PUBLISHED_FILES
    with pytest.raises(ValueError, match="unknown published screen 'normann'; did you mean 'norman'"):
        published_screen(tmp_path, "normann")
    with pytest.raises(FileNotFoundError, match=r"no published screen.*; did you mean 'adamson'"):
        PertData(tmp_path).load("adamsen")
