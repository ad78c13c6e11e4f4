"""benchmarks/published.py on a stand-in for a published screen, served on loopback."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pandas as pd
import pytest

from gears.simulate import simulated_screen

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "published.py"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    adata, _ = simulated_screen(
        n_genes=60, n_singles=16, n_pairs=8, cells_per_condition=8, n_control=40, seed=1
    )
    adata.write_h5ad(tmp_path / "screen.h5ad")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.write(tmp_path / "screen.h5ad", "norman/perturb_processed.h5ad")
    body = packed.getvalue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_published_screen_from_download_to_table(address: str, tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--data-path", str(tmp_path / "screens"), "--screens", "norman"]
    command += [
        "--seeds",
        "1",
        "--device",
        "cpu",
        "--n-gpus",
        "1",
        "--epochs",
        "2",
        "--output",
        str(tmp_path),
    ]
    environment = os.environ | {"GEARS_DOWNLOAD_URL": address}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    table = pd.read_csv(tmp_path / "published.csv")
    assert {"gears", "published objective", "additive", "train_mean"} <= set(table["method"])
    page = (tmp_path / "published.md").read_text()
    assert page in ended.stdout
    shown = table[(table["method"] == "gears") & (table["metric"] == "pearson_delta")]["value"].mean()
    assert f"{shown:.3f}" in page
