"""Any input: read with the promised meaning, or a ValueError that says why. GEARS_FUZZ multiplies the examples."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from readers import GENES
from scipy import sparse

from gears.conditions import Condition
from gears.data import PreparedScreen
from gears.data.screen.prepare import prepare_screen
from gears.data.splits import Split, make_split
from gears.files._untrusted import load_plain
from gears.graphs import EdgeFile, GeneAnnotation
from gears.graphs._nodes import read_gene_set

TIMES = int(os.environ.get("GEARS_FUZZ", "1"))


def fuzz(examples: int) -> Any:
    return settings(
        max_examples=examples * TIMES, deadline=None, derandomize=TIMES == 1, database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )  # fmt: skip


SPELT = [*GENES[:6], "ctrl", "ctrl+GX00", "GX00+GX01", "+", " GX00 ", "a_b", "x/y"]
NAMES = st.one_of(st.text(max_size=12), st.sampled_from(SPELT))
HEADS = ["", "source\ttarget\tweight\n", "source,target,weight\n", "gene\tterm\n", "!gaf-version: 2.2\n"]
SPLITS = [
    "simulation", "simulation_single", "combo_seen0", "combo_seen1", "combo_seen2", "single", "no_test", "no_split",
    "single_only", "custom", "nonsense",
]  # fmt: skip
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def read_or_refused(read: Callable[[], Any], *, name: str = "") -> Any:
    """What is read, or None after an error that names the file."""
    words = f"nothing about {name}"
    try:
        return read()
    except (ValueError, OSError) as error:
        words = str(error)
    assert words, "a refusal without words"
    assert name in words
    return None


# Labels


@fuzz(150)
@given(st.text(max_size=30))
def test_labels(label):
    condition = read_or_refused(lambda: Condition.parse(label))
    if condition is not None:
        assert Condition.parse(condition.name) == condition
        assert Condition.parse("+".join(reversed(condition.name.split("+")))) == condition
        assert condition.is_control == (not condition.genes)


# AnnData of any shape, type and content


@st.composite
def screens(draw: Any) -> AnnData:
    n_genes, n_cells = draw(st.integers(0, 6)), draw(st.integers(0, 24))
    kind = draw(st.sampled_from(["f4", "f8", "i4", "u1", "bool"]))
    values = draw(
        st.lists(
            st.sampled_from([0.0, 0.0, 0.5, 1.25, 2.0, 300.0, -1.0, np.nan, np.inf, 1e30]),
            min_size=n_cells * n_genes, max_size=n_cells * n_genes,
        )
    )  # fmt: skip
    if draw(st.booleans()):
        values = [value if np.isfinite(value) and 0 <= value < 10 else 0.7 for value in values]
    with np.errstate(all="ignore"):
        values_NG = np.array(values, dtype=float).reshape(n_cells, n_genes).astype(kind)
    labels = draw(st.lists(st.one_of(st.sampled_from(["ctrl", "ctrl", "GX00+ctrl", "GX01+ctrl", "GX00+GX01"]), NAMES),
                           min_size=n_cells, max_size=n_cells))  # fmt: skip
    form = draw(st.sampled_from([np.asarray, sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array]))
    genes = draw(st.lists(NAMES, min_size=n_genes, max_size=n_genes)) if draw(st.booleans()) else GENES[:n_genes]
    obs = pd.DataFrame({"condition": pd.Series(labels, dtype=object), "cell_type": "A"})
    obs.index = [f"c{i}" for i in range(n_cells)]
    var = pd.DataFrame({"gene_name": pd.Series(genes, dtype=object)})
    var.index = [f"E{i}" for i in range(n_genes)]
    return AnnData(form(values_NG), obs=obs, var=var)


@pytest.mark.filterwarnings("default")
@fuzz(30)
@given(screens(), st.booleans(), st.integers(1, 3))
def test_screens(adata, skip_de, min_cells):
    """Prepared, and then whole and the same when opened; or refused, and nothing is written."""
    before = None if adata.X is None else sparse.csr_matrix(adata.X).toarray()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "fuzzed"
        screen = read_or_refused(
            lambda: prepare_screen(adata, place, skip_calc_de=skip_de, min_cells=min_cells, normalize=False)
        )
        if screen is None:
            assert not place.exists()
        else:
            opened = PreparedScreen.open(place)
            opened.verify()
            assert np.isfinite(opened.cells.csr().data).all()
            assert opened.content_hash == screen.content_hash
            assert all(condition.genes for condition in opened.conditions if condition != Condition())
            assert np.isfinite(opened.statistics.mean).all()
    if before is not None:
        np.testing.assert_array_equal(sparse.csr_matrix(adata.X).toarray(), before)


# Splits


@fuzz(60)
@given(
    st.lists(NAMES, min_size=1, max_size=25, unique=True),
    st.sampled_from(SPLITS),
    st.integers(0, 3),
    st.sampled_from(["published", "strict"]),
    st.floats(-0.5, 1.5),
    PLAIN,
)
@pytest.mark.filterwarnings("default")
def test_splits(labels, name, seed, mode, share, given_parts):
    """No condition is in two parts and none is lost, whatever is asked for."""

    def draw() -> Split:
        more = {"split_dict": given_parts} if name == "custom" else {"train_gene_set_size": share}
        return make_split(["ctrl", *labels], name, seed=seed, mode=mode, **more)

    split = read_or_refused(draw)
    if split is not None:
        homes: dict[Condition, str] = {}
        for part, names in split.parts.items():
            for label in names:
                condition = Condition.parse(label)
                if condition.genes:
                    assert homes.setdefault(condition, part) == part
        placed = {label for names in split.parts.values() for label in names}
        assert placed | set(split.excluded) == {"ctrl", *labels}
        assert Split.from_dict(json.loads(json.dumps(split.to_dict()))).hash == split.hash


# Files of text and bytes


def written(content: bytes, name: str, read: Callable[[Path], Any]) -> Any:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return read_or_refused(lambda: read(path), name=name)


LINES = st.lists(st.lists(NAMES | st.floats().map(str), max_size=17).map("\t".join), max_size=8).map("\n".join)
TEXTS = {
    "a.gmt": GeneAnnotation.from_path,
    "a.gaf": GeneAnnotation.from_path,
    "a.tsv": GeneAnnotation.from_path,
    "a.csv": GeneAnnotation.from_path,
    "genes.txt": read_gene_set,
    "e.tsv": lambda path: EdgeFile(path).graph(GENES, k=20, resolve=lambda name: None),
    "e.csv": lambda path: EdgeFile(path).graph(GENES, k=20, resolve=lambda name: None),
}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", TEXTS)
def test_tables_of_text(name):
    @fuzz(25)
    @given(st.sampled_from(HEADS), LINES, st.binary(max_size=6))
    def check(head: str, lines: str, tail: bytes) -> None:
        body = head + (lines.replace("\t", ",") if name.endswith(".csv") else lines)
        written(body.encode("utf-8", "surrogatepass") + tail, name, TEXTS[name])

    check()


@fuzz(200)
@given(st.binary(max_size=200))
def test_pickles_of_any_bytes(content):
    for head in (b"", b"\x80\x04", b"\x80\x02"):
        written(head + content, "a.pkl", load_plain)
