"""Published screens from a server that misbehaves in every way, and archives that mean harm."""

from __future__ import annotations

import io
import json
import stat
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gears.data.reading.download import (
    PUBLISHED_FILES,
    TransferError,
    TransferOptions,
    extract_file,
    fetch,
    file_hash,
    published_screen,
)
from gears.pertdata import PertData

if TYPE_CHECKING:
    from anndata import AnnData

FAST = TransferOptions(timeout=20, attempts=3, pause=0.0)
BODY = bytes(range(256)) * 40
Answer = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Answers with what the test has put into the server."""

    def do_GET(self) -> None:
        self.server.seen.append(dict(self.headers))  # type: ignore[attr-defined]
        answers: list[Answer] = self.server.answers  # type: ignore[attr-defined]
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer(self)

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def send(self, body: bytes, status: int = 200, *, announced: int | None = -1, **headers: str) -> None:
        self.send_response(status)
        if announced is not None:
            self.send_header("Content-Length", str(len(body) if announced == -1 else announced))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


class Server(ThreadingHTTPServer):
    daemon_threads = True
    answers: list[Answer]
    seen: list[dict[str, str]]

    def handle_error(self, *_: object) -> None:
        """A client that went away is no error here."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server(("127.0.0.1", 0), Handler)
    made.seen = []
    thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def whole(body: bytes = BODY, tag: str = '"one"') -> Answer:
    """A server that does everything right, ranges included."""

    def answer(request: Handler) -> None:
        asked = request.headers.get("Range")
        if asked and request.headers.get("If-Range") == tag:
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            span = f"bytes {start}-{len(body) - 1}/{len(body)}"
            request.send(body[start:], 206, ETag=tag, Content_Range=span)
        else:
            request.send(body, ETag=tag)

    return answer


def broken(body: bytes = BODY, sent: int = 4096, tag: str = '"one"') -> Answer:
    """The connection ends half-way."""
    return lambda request: request.send(body[:sent], announced=len(body), ETag=tag)


def status(code: int, text: str = "<html>no</html>") -> Answer:
    return lambda request: request.send(text.encode(), code, Content_Type="text/html")


def redirect(target: str) -> Answer:
    return lambda request: request.send(b"", 302, Location=target)


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_good_server(server: Server, tmp_path: Path) -> None:
    server.answers = [whole()]
    digest = fetch(server.url, tmp_path / "file", FAST)
    assert (tmp_path / "file").read_bytes() == BODY
    assert digest == file_hash(tmp_path / "file")
    assert left(tmp_path) == ["file"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (status(403), r"status 403 \(Forbidden\)"),
        (status(404), "status 404"),
        (status(500), r"status 500 .*after 3 attempts"),
        (lambda r: r.send(b"<html>log in</html>", Content_Type="text/html; charset=utf-8"), "a web page .*instead"),
        (lambda r: r.send(b""), "sent nothing"),
        (lambda r: r.send(BODY, announced=len(BODY) + 7), rf"ended after {len(BODY)} of {len(BODY) + 7} bytes"),
        (lambda r: r.wfile.write(b"gibberish\r\n\r\n"), "gibberish"),
        (redirect("file:///etc/passwd"), "not followed|not allowed"),
        (redirect("ftp://127.0.0.1/x"), "not followed"),
        (redirect("/"), "redirect"),
    ],
    ids=["403", "404", "500", "html", "empty", "too short", "no http", "to a file", "to ftp", "loop"],
)  # fmt: skip
def test_bad_answers_leave_no_file(server: Server, tmp_path: Path, answer: Answer, words: str) -> None:
    server.answers = [answer]
    with pytest.raises(TransferError, match=words) as caught:
        fetch(server.url, tmp_path / "file", FAST)
    assert server.url in str(caught.value)
    assert not (tmp_path / "file").exists()


def test_a_silent_server(server: Server, tmp_path: Path) -> None:
    server.answers = [lambda r: time.sleep(1.0)]
    with pytest.raises(TransferError, match="timed out"):
        fetch(server.url, tmp_path / "file", TransferOptions(timeout=0.2, attempts=2, pause=0))
    assert not left(tmp_path)


def test_no_server_and_no_http(tmp_path: Path) -> None:
    with pytest.raises(TransferError, match=r"refused .*after 2 attempts"):
        fetch("http://127.0.0.1:9", tmp_path / "file", TransferOptions(attempts=2, pause=0))
    with pytest.raises(TransferError, match="no http or https address"):
        fetch("file:///etc/passwd", tmp_path / "file")
    assert not left(tmp_path)


def test_a_passing_failure_is_tried_again(server: Server, tmp_path: Path) -> None:
    server.answers = [status(503), whole()]
    fetch(server.url, tmp_path / "file", FAST)
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_broken_transfer_is_continued(server: Server, tmp_path: Path) -> None:
    server.answers = [broken(), whole()]
    fetch(server.url, tmp_path / "file", FAST)
    assert (tmp_path / "file").read_bytes() == BODY
    assert server.seen[1]["Range"] == "bytes=4096-"
    assert server.seen[1]["If-Range"] == '"one"'


def test_it_is_continued_in_the_next_run_too(server: Server, tmp_path: Path) -> None:
    server.answers = [broken(), *[status(503)] * 3]
    with pytest.raises(TransferError, match="4096 bytes are kept and will be continued"):
        fetch(server.url, tmp_path / "file", FAST)
    assert left(tmp_path) == ["file.part", "file.part.json"]
    server.answers = [whole()]
    fetch(server.url, tmp_path / "file", FAST)
    assert server.seen[-1]["Range"] == "bytes=4096-"
    assert (tmp_path / "file").read_bytes() == BODY
    assert left(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "answers",
    [
        [broken(), whole(BODY[::-1], '"two"')],  # another version is served now
        [broken(), lambda r: r.send(BODY[::-1])],  # ranges are ignored
        [broken(), lambda r: r.send(b"", 416), whole(BODY[::-1], '"two"')],
        [
            broken(),
            lambda r: r.send(BODY[9:], 206, Content_Range="bytes 9-10239/10240"),
            whole(BODY[::-1], '"two"'),
        ],
        [broken(tag='W/"weak"'), whole(BODY[::-1], '"two"')],  # a weak tag says nothing of bytes
    ],
    ids=["changed", "no ranges", "416", "elsewhere", "weak"],
)
def test_versions_are_never_mixed(server: Server, tmp_path: Path, answers: list[Answer]) -> None:
    server.answers = answers
    fetch(server.url, tmp_path / "file", FAST)
    assert (tmp_path / "file").read_bytes() == BODY[::-1]


def test_a_part_of_another_address_is_not_continued(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file.part").write_bytes(b"x" * 100)
    (tmp_path / "file.part.json").write_text(json.dumps({"url": "http://elsewhere", "version": '"one"'}))
    server.answers = [whole()]
    fetch(server.url, tmp_path / "file", FAST)
    assert "Range" not in server.seen[0]
    assert (tmp_path / "file").read_bytes() == BODY


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


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (zipped({"../evil.txt": b"1", "norman/a.h5ad": b"2"}), r"point outside.*evil"),
        (zipped({"/tmp/evil.txt": b"1", "norman/a.h5ad": b"2"}), "point outside"),
        (zipped({"C:\\evil.txt": b"1", "norman/a.h5ad": b"2"}), "point outside"),
        (zipped({"norman/a.h5ad": b"/etc/passwd"}, ("norman/a.h5ad",)), "are no files"),
        (zipped({"norman/b.h5ad": b"1"}), r"has no file 'a.h5ad' \(it has norman/b.h5ad\)"),
        (zipped({"x/a.h5ad": b"1", "y/a.h5ad": b"1"}), "has several files"),
        (tarred({"../a.h5ad": b"1"}), "point outside"),
        (tarred({"norman/a.h5ad": b"1"}, "norman/link"), "are no files"),
        (zipped({"norman/a.h5ad": b"1" * 5000})[:-300], "damaged"),
        (tarred({"norman/a.h5ad": bytes(range(256)) * 99})[:-300], "damaged"),
        (zipped({"norman/a.h5ad": b"1" * 5000}), "5000 bytes, more than the 4000 allowed"),
        (b"", "damaged"),
    ],
    ids=[
        "dots",
        "root",
        "drive",
        "zip link",
        "no such file",
        "two files",
        "tar dots",
        "tar link",
        "zip cut",
        "tar cut",
        "too large",
        "empty",
    ],
)
def test_archives_that_are_refused(tmp_path: Path, body: bytes, words: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "archive").write_bytes(body)
    with pytest.raises(ValueError, match=words):
        extract_file(tmp_path / "in" / "archive", "a.h5ad", tmp_path / "out" / "a.h5ad", largest=4000)
    assert not list(tmp_path.rglob("a.h5ad"))
    assert not list(tmp_path.rglob("evil*"))


def test_a_bit_that_turned_is_noticed(tmp_path: Path) -> None:
    body = bytearray(zipped({"norman/a.h5ad": bytes(range(256)) * 20}))
    body[60] ^= 1
    (tmp_path / "archive").write_bytes(body)
    with pytest.raises(ValueError, match="damaged"):
        extract_file(tmp_path / "archive", "a.h5ad", tmp_path / "a.h5ad")
    assert left(tmp_path) == ["archive"]


def test_the_file_is_taken_out_of_any_folder(tmp_path: Path) -> None:
    for make in (zipped, tarred):
        (tmp_path / "archive").write_bytes(
            make({"deep/er/a.h5ad": BODY, "__MACOSX/deep/a.h5ad": b"", "other": b"1"})
        )
        assert extract_file(tmp_path / "archive", "a.h5ad", tmp_path / "a.h5ad").read_bytes() == BODY
    assert left(tmp_path) == ["a.h5ad", "archive"]


# Published screens


@pytest.fixture
def norman_zip(toy_adata: AnnData, tmp_path: Path) -> bytes:
    toy_adata.write_h5ad(tmp_path / "made.h5ad")
    body = (tmp_path / "made.h5ad").read_bytes()
    (tmp_path / "made.h5ad").unlink()
    return zipped(
        {"norman/perturb_processed.h5ad": body, "norman/data_pyg/cell_graphs.pkl": b"cos\nsystem\n"}
    )


def test_load_by_name_fetches_once(
    server: Server,
    norman_zip: bytes,
    toy_go: dict[str, set[str]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server.answers = [whole(norman_zip)]
    monkeypatch.setenv("GEARS_DOWNLOAD_URL", server.url + "/files/")
    data = PertData(tmp_path / "data", gene2go=toy_go)
    assert not server.seen  # nothing is fetched before it is asked for
    data.load("norman")
    assert len(data.screen.conditions) == 14
    assert data.dataset_path == tmp_path / "data" / "norman"
    assert left(tmp_path / "data") == [".norman.lock", "downloads", "norman"]
    kept = [name for name in left(tmp_path / "data" / "downloads") if not name.startswith(".")]
    assert kept == ["hashes.json", "norman.h5ad"]
    PertData(tmp_path / "data", gene2go=toy_go).load("Norman")
    assert len(server.seen) == 1
    assert data.screen.manifest["parameters"]["min_cells"] == 2


def test_the_hash_of_the_first_download_holds(
    server: Server, norman_zip: bytes, toy_adata: AnnData, tmp_path: Path
) -> None:
    server.answers = [whole(norman_zip)]
    file = published_screen(tmp_path, "norman", base_url=server.url, options=FAST)
    records = json.loads((tmp_path / "downloads" / "hashes.json").read_text())
    assert records["norman.h5ad"]["sha256"] == file_hash(file)
    assert records["norman.download"]["bytes"] == len(norman_zip)
    before = file.read_bytes()
    file.write_bytes(before[:-1] + b"!")
    with pytest.raises(
        ValueError, match=r"norman.h5ad is not the file of the first download .*remove its entry from"
    ):
        published_screen(tmp_path, "norman", base_url=server.url, options=FAST)
    file.unlink()
    server.answers = [whole(zipped({"perturb_processed.h5ad": before, "more": b"1"}))]
    with pytest.raises(ValueError, match=r"norman.download is not the file of the first download"):
        published_screen(tmp_path, "norman", base_url=server.url, options=FAST)
    assert not file.exists()
    server.answers = [whole(norman_zip)]
    assert published_screen(tmp_path, "norman", base_url=server.url, options=FAST).read_bytes() == before


def test_by_hand(server: Server, norman_zip: bytes, toy_go: dict[str, set[str]], tmp_path: Path) -> None:
    server.answers = [status(403)]
    with pytest.raises(TransferError, match="status 403") as caught:
        published_screen(tmp_path, "dixit", base_url=server.url, options=FAST)
    where = tmp_path / "dixit.zip"
    assert f"fetch {server.url}/6154416 in a browser and put it, as it is, at {where}" in str(caught.value)
    where.write_bytes(norman_zip)
    assert published_screen(tmp_path, "dixit", base_url=server.url, options=FAST).name == "dixit.h5ad"
    assert where.exists()
    where.unlink()
    PertData(tmp_path, gene2go=toy_go).load("dixit")
    assert len(server.seen) == 1


def test_a_page_in_place_of_the_archive_says_what_to_do(server: Server, tmp_path: Path) -> None:
    server.answers = [lambda r: r.send(b"<html>please log in</html>" * 9, Content_Type="application/zip")]
    with pytest.raises(ValueError, match=r"is none of what can be read.*To do it by hand"):
        published_screen(tmp_path, "adamson", base_url=server.url, options=FAST)
    assert [n for n in left(tmp_path / "downloads") if not n.startswith(".")] == ["hashes.json"]


def test_several_at_once_fetch_once(server: Server, norman_zip: bytes, tmp_path: Path) -> None:
    server.answers = [whole(norman_zip)]
    with ThreadPoolExecutor(6) as pool:
        found = list(
            pool.map(
                lambda _: published_screen(tmp_path, "norman", base_url=server.url, options=FAST), range(12)
            )
        )
    assert len({str(path) for path in found}) == 1
    assert len(server.seen) == 1


def test_names_and_numbers(tmp_path: Path) -> None:
    assert PUBLISHED_FILES == {
        "norman": 6154020,
        "adamson": 6154417,
        "dixit": 6154416,
        "replogle_k562_essential": 7458695,
        "replogle_rpe1_essential": 7458694,
    }
    with pytest.raises(ValueError, match="unknown published screen 'normann'; did you mean 'norman'"):
        published_screen(tmp_path, "normann")
    with pytest.raises(
        FileNotFoundError, match=r"no published screen has that name .*; did you mean 'adamson'"
    ):
        PertData(tmp_path).load("adamsen")
