"""Files that mean harm: nothing in them runs, nothing outside of them is read, nothing fills the memory."""

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from gears.data import open_screen, read_published_split
from gears.data.splits._registry import read_split_dict
from gears.evaluation._scoring import COLUMNS
from gears.files._untrusted import load_npy, load_plain, load_tensors
from gears.files.formats import read_json, read_npz, read_tensors
from gears.graphs import GeneAnnotation, GeneEmbedding
from gears.graphs._annotation import annotation_from
from gears.graphs._edge_tables import read_edge_table
from gears.graphs._nodes import read_gene_set
from gears.report import write_report
from gears.training._checkpoints import read

MARK = "guard-was-here"


class Harm:
    """A pickle of it runs a command when it is read freely."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


def harms() -> dict[str, Any]:
    harm = Harm(os.system, f"touch {MARK}")
    inner = pickle.dumps(harm)
    by_eval = Harm(eval, f"open({MARK!r}, 'w')")
    nested = Harm(torch.storage._load_from_bytes, inner)  # how a plain pickle holds a tensor
    objects = np.empty(1, dtype=object)
    objects[0] = harm
    return {
        "system": harm,
        "eval": by_eval,
        "in a list": [1, "a", harm],
        "as a key": {harm: 1},
        "in an array": objects,
        "in a tensor": nested,
        "two levels down": Harm(torch.storage._load_from_bytes, pickle.dumps(nested)),
        "saved by torch": Harm(torch.storage._load_from_bytes, saved(harm, new=True)),
        "saved by torch in its old form": Harm(torch.storage._load_from_bytes, saved(harm, new=False)),
        "unpickle again": Harm(pickle.loads, inner),
        "an open file": Harm(open, MARK, "w"),
        "getattr": Harm(getattr, os.system, "__call__"),
    }


def saved(value: Any, *, new: bool) -> bytes:
    """What torch.save writes."""
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=new)
    return out.getvalue()


def as_zip(name: str, body: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr(name, body)
    return out.getvalue()


def npy_of(body: bytes) -> bytes:
    """A .npy file of objects, whose data are a pickle."""
    out = io.BytesIO()
    header = {"descr": "|O", "fortran_order": False, "shape": (1,)}
    np.lib.format.write_array_header_1_0(out, header)
    return out.getvalue() + body


def torch_zip(body: bytes) -> bytes:
    """What torch.save writes, with another pickle in it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("archive/data.pkl", body)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return out.getvalue()


READS: dict[str, tuple[Callable[[Path], Any], Callable[[bytes], bytes]]] = {
    "gene set.pkl": (read_gene_set, bytes),
    "gene set.npy": (read_gene_set, npy_of),
    "names.npy": (load_npy, npy_of),
    "plain.pkl": (load_plain, bytes),
    "config.pkl": (load_tensors, bytes),
    "split.pkl": (read_split_dict, bytes),
    "published.pkl": (lambda path: read_published_split(path, ["ctrl"]), bytes),
    "gene2go.pkl": (annotation_from, bytes),
    "model.pt": (read_tensors, torch_zip),
    "old model.pt": (read_tensors, bytes),
    "checkpoint.pt": (read, torch_zip),
    "graphs.npz": (read_npz, lambda body: as_zip("x.npy", npy_of(body))),
    "plain in a zip.npz": (read_npz, lambda body: as_zip("x", body)),
    "annotation.npz": (GeneAnnotation.from_path, lambda body: as_zip("genes.npy", npy_of(body))),
    "annotation.json": (GeneAnnotation.from_path, bytes),
    "edges.csv": (read_edge_table, bytes),
    "edges.npz": (read_edge_table, lambda body: as_zip("source.npy", npy_of(body))),
    "vectors.npy": (lambda path: GeneEmbedding.of(path, names=["a"]), npy_of),
    "vectors.npz": (GeneEmbedding.of, lambda body: as_zip("values.npy", npy_of(body))),
    "screen.h5ad": (open_screen, bytes),
    "manifest.json": (read_json, bytes),
}


def outcome(read_file: Callable[[Path], Any], path: Path) -> tuple[str, Any]:
    """Words of a refusal, or what was read."""
    try:
        return "", read_file(path)
    except (ValueError, OSError) as error:
        return str(error), None


@pytest.mark.parametrize("protocol", [0, 2, 4], ids=["protocol 0", "protocol 2", "protocol 4"])
@pytest.mark.parametrize("name", READS)
def test_nothing_in_a_pickle_runs(name, protocol, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    read_file, wrap = READS[name]
    for kind, harm in harms().items():
        path = tmp_path / name
        path.write_bytes(wrap(pickle.dumps(harm, protocol)))
        refusal, found = outcome(read_file, path)
        # a pickle of protocol 0 is text, and may pass for a list of odd names
        is_text = protocol == 0 and all(isinstance(entry, str) for entry in np.ravel(found))
        assert name in refusal or (not refusal and is_text), kind
        assert not (tmp_path / MARK).exists(), kind


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Harm(eval, "1"), "builtins.eval"),
        ([Harm(os.mkdir, "here")], r"\w+\.mkdir"),
        ({"a": Path("here")}, r"pathlib\S*Path"),
        (slice(3), "builtins.slice"),
        (pickle.PickleBuffer, "pickle.PickleBuffer"),
    ],
)
def test_what_is_not_admitted_is_named(value, named, tmp_path):
    (tmp_path / "file.pkl").write_bytes(pickle.dumps(value, 4))
    for read_file in (load_plain, load_tensors):
        with pytest.raises(ValueError, match=rf"file\.pkl cannot be read as .*it refers to {named}\);"):
            read_file(tmp_path / "file.pkl")


def test_what_runs_here_would_run(tmp_path, monkeypatch):
    """The pickles above are real: read freely they leave a mark."""
    monkeypatch.chdir(tmp_path)
    for kind in ("system", "in a list", "in an array", "an open file"):
        held = pickle.loads(pickle.dumps(harms()[kind]))
        if hasattr(held, "close"):
            held.close()
        assert (tmp_path / MARK).exists()
        (tmp_path / MARK).unlink()


# Pickles that are damaged


class Raw:
    """Pickles as a call with a state."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __reduce__(self) -> Any:
        return self.parts


def with_state(array: np.ndarray, **changes: Any) -> Raw:
    function, arguments, state = array.__reduce__()
    names = ("version", "shape", "dtype", "fortran", "raw")
    return Raw(function, arguments, tuple(changes.get(name, value) for name, value in zip(names, state, strict=True)))


def breaking() -> dict[str, bytes]:
    numbers = np.arange(4.0)
    return {
        "too few bytes": pickle.dumps([with_state(numbers, raw=b"1234")], 4),
        "a huge shape": pickle.dumps([with_state(numbers, shape=(1 << 40,))], 4),
        "a shape below zero": pickle.dumps([with_state(numbers, shape=(-4,))], 4),
        "more dimensions than there are": pickle.dumps([with_state(numbers, shape=(1,) * 70)], 4),
        "no end": pickle.dumps(list(range(50)), 4)[:-3],
        "an empty stack": b"\x80\x04.",
        "state for a set": b"\x80\x04\x8f}\x8c\x01a\x8c\x01bsb.",
    }


@pytest.mark.parametrize("kind", breaking())
def test_damaged_arrays_in_a_pickle_are_refused(kind, tmp_path):
    path = tmp_path / "file.pkl"
    path.write_bytes(breaking()[kind])
    for read_file in (load_plain, load_tensors, read_gene_set):
        with pytest.raises(ValueError, match=r"file\.pkl"):
            read_file(path)


def test_a_tensor_beyond_its_storage_is_refused(tmp_path):
    rebuild, storage = torch._utils._rebuild_tensor_v2, torch.arange(4.0)._typed_storage()
    path = tmp_path / "values.pkl"
    for size, stride in (((5,), (1,)), ((2, 2), (3, 1)), ((2,), (1, 1)), ((-1,), (1,))):
        path.write_bytes(pickle.dumps(Raw(rebuild, (storage, 0, size, stride, False, OrderedDict()))))
        with pytest.raises(ValueError, match=r"values\.pkl cannot be read as .*(bounds|strides|negative)"):
            load_tensors(path)


def test_arrays_of_every_kind_come_back(tmp_path):
    whole = {
        "numbers": np.arange(6.0).reshape(2, 3),
        "turned": np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        "text": np.array(["a", "bcd"]),
        "objects": np.array(["a", None, "c"], dtype=object),
        "none": np.empty((0, 3)),
        "flags": np.array([True, False]),
        "number": np.float32(1.5),
        "twice": [np.arange(3)] * 2,
        "deep": ({"a": (np.arange(2),)}, {frozenset("a"): np.array([{"b"}, np.arange(2)], dtype=object)}),
    }
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(whole, 4))
    for read_file in (load_plain, load_tensors):
        found = read_file(tmp_path / "a.pkl")
        assert list(found) == list(whole)
        for name in ("numbers", "turned", "text", "objects", "none", "flags"):
            assert type(found[name]) is np.ndarray
            assert found[name].dtype == whole[name].dtype.newbyteorder("=")  # as numpy restores it
            np.testing.assert_array_equal(found[name], whole[name])
        assert found["number"] == whole["number"]
        assert type(found["number"]) is np.float32
        assert found["twice"][0] is found["twice"][1]
        assert repr(found["deep"]) == repr(whole["deep"])


def test_names_in_a_report_are_text(tmp_path):
    """In every place of the page: conditions, methods, subgroups, the title."""
    page = hostile_page(tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert" not in text
    assert "<img src=x" not in text
    assert 'href="javascript' not in text


def hostile_page(folder: Path) -> Path:
    names = ["<script>alert(1)</script>+ctrl", '"><img src=x onerror=alert(1)>+ctrl', "javascript:alert(2)+ctrl"]
    rows = []
    for method in ("model <b>bold</b>", "no_change"):
        for number, name in enumerate(names):
            for metric in ("mse", "pearson_delta"):
                row = dict.fromkeys(COLUMNS, "") | {"condition": name, "method": method, "metric": metric}
                rows.append(row | {"value": 0.1 * (number + 1), "subgroup": "<i>unseen</i>", "n_cells": 5})
    table = pd.DataFrame(rows)
    return write_report(table, folder / "page", title="<script>alert(1)</script>", models=["model <b>bold</b>"])["page"]
