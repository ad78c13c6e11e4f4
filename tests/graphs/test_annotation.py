"""GeneAnnotation: building, names, files and the packaged human annotation."""

import gzip
import json
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from gears.files.formats import write_npz
from gears.graphs import GeneAnnotation

TERMS_OF = {"B": ["t2", "t1", "t2"], "A": {"t3"}, "C": []}


def terms_of(annotation: GeneAnnotation) -> dict[str, set[str]]:
    dense = annotation.matrix.toarray()
    return {
        gene: {annotation.terms[j] for j in np.flatnonzero(row)}
        for gene, row in zip(annotation.genes, dense, strict=True)
    }


@given(st.dictionaries(st.text(min_size=1), st.sets(st.text("tuvwx", min_size=1, max_size=2)), max_size=8))
def test_from_dict_keeps_every_pair_in_any_order(mapping):
    annotation = GeneAnnotation.from_dict(mapping)
    assert terms_of(annotation) == mapping
    backwards = GeneAnnotation.from_dict(dict(reversed(mapping.items())))
    assert backwards.content_hash == annotation.content_hash
    if any(mapping.values()):
        assert GeneAnnotation.from_dict(dict.fromkeys(mapping, ())).content_hash != annotation.content_hash
        assert (
            GeneAnnotation.from_dict(mapping, aliases={"an alias": min(mapping)}).content_hash
            != annotation.content_hash
        )


def test_resolve_and_rows():
    annotation = GeneAnnotation.from_dict(TERMS_OF, aliases={"OLD": "B"})
    assert [annotation.resolve(name) for name in ("A", "OLD", "none")] == ["A", "B", None]
    rows = annotation.rows(["none", "OLD", "A", "B", "C"])
    assert rows.toarray().tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]]
    assert annotation.rows([]).shape == (0, 3)


def test_npz_and_json_round_trip(tmp_path):
    annotation = GeneAnnotation.from_dict(TERMS_OF, aliases={"OLD": "B"})
    write_npz(tmp_path / "a.npz", annotation.arrays())
    assert GeneAnnotation.from_path(tmp_path / "a.npz").content_hash == annotation.content_hash
    (tmp_path / "a.json").write_text(json.dumps({k: sorted(v) for k, v in TERMS_OF.items()}))
    assert terms_of(GeneAnnotation.from_path(tmp_path / "a.json")) == terms_of(annotation)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.tsv.gz"])
def test_tables(tmp_path, name):
    text = "symbol\tgo_id\tevidence\nA\tt1\tIDA\nB\tt1\tIDA\nA\tt2\tTAS\nA\tt1\tTAS\n"
    text = text.replace("\t", ",") if ".csv" in name else text
    data = gzip.compress(text.encode()) if name.endswith(".gz") else text.encode()
    (tmp_path / name).write_bytes(data)
    assert terms_of(GeneAnnotation.from_path(tmp_path / name)) == {"A": {"t1", "t2"}, "B": {"t1"}}


def of_file(name: str, content: str | bytes):
    def make(folder):
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        GeneAnnotation.from_path(folder / name)

    return make


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda _: GeneAnnotation.from_dict({"A": "t1"}), "iterable of term names"),
        (lambda _: GeneAnnotation.from_dict({"A": 3}), "iterable of term names"),
        (lambda _: GeneAnnotation.from_dict({1: ["t1"]}), "iterable of term names"),
        (lambda _: GeneAnnotation.from_dict(TERMS_OF, aliases={"A": "B"}), "aliases mean no annotated gene or are"),
        (lambda _: GeneAnnotation.from_dict(TERMS_OF, aliases={"OLD": "none"}), "aliases mean no annotated gene"),
        (lambda _: GeneAnnotation(["A"], ["t", "u"], sparse.csr_matrix((1, 1))), r"shape \(1, 1\); expected"),
        (lambda _: GeneAnnotation(["A", "A"], ["t"], sparse.csr_matrix((2, 1))), "more than once: A"),
        (of_file("a.pkl", pickle.dumps({"A": ["t1"]})), r"'a\.pkl'.*pickle"),
        (of_file("a.tsv", "A\tt1\nB\n"), "line 2: expected gene and term"),
        (of_file("a.json", "[1]"), "expected an object"),
        (lambda folder: GeneAnnotation.from_path(write_npz(folder / "a.npz", {"genes": np.zeros(1)})), "lack indices"),
    ],
)  # fmt: skip
def test_what_is_no_annotation_is_refused(make, words, tmp_path):
    with pytest.raises(ValueError, match=words):
        make(tmp_path)


def test_human_annotation():
    human = GeneAnnotation.human()
    assert human is GeneAnnotation.human()
    assert len(human) == 20692
    assert human.matrix.shape == (20692, 18930)
    assert human.matrix.nnz == 298749
    assert len(human.aliases) == 51061
    assert len(human.ambiguous) == 2679
    assert human.matrix.sum(axis=1).min() >= 1
    assert human.resolve("CARS") == "CARS1"
    assert human.resolve("TP53") == "TP53"
    # "A2M" is also listed as an alias of IGHA2; a current symbol keeps its own meaning.
    assert human.resolve("A2M") == "A2M"
    assert not human.ambiguous & (set(human.genes) | set(human.aliases))
    assert all(human.resolve(name) is None for name in sorted(human.ambiguous)[:50])
    assert {"GO:0005515"} <= set(human.terms)
