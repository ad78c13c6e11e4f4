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
from gears.graphs._annotation import GeneAnnotation

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


@pytest.mark.parametrize("wrong", [{"A": "t1"}, {"A": 3}, {1: ["t1"]}])
def test_from_dict_refuses_other_shapes(wrong):
    with pytest.raises(ValueError, match="iterable of term names"):
        GeneAnnotation.from_dict(wrong)


def test_resolve_and_rows():
    annotation = GeneAnnotation.from_dict(TERMS_OF, aliases={"OLD": "B"})
    assert [annotation.resolve(name) for name in ("A", "OLD", "none")] == ["A", "B", None]
    rows = annotation.rows(["none", "OLD", "A", "B", "C"])
    assert rows.toarray().tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 1], [1, 1, 0], [0, 0, 0]]
    assert annotation.rows([]).shape == (0, 3)


@pytest.mark.parametrize("aliases", [{"A": "B"}, {"OLD": "none"}])
def test_wrong_aliases_are_refused(aliases):
    with pytest.raises(ValueError, match="aliases mean no annotated gene or are symbols"):
        GeneAnnotation.from_dict(TERMS_OF, aliases=aliases)


def test_construction_checks():
    with pytest.raises(ValueError, match=r"shape \(1, 1\); expected"):
        GeneAnnotation(["A"], ["t", "u"], sparse.csr_matrix((1, 1)))
    with pytest.raises(ValueError, match="more than once: A"):
        GeneAnnotation(["A", "A"], ["t"], sparse.csr_matrix((2, 1)))


def test_hash_sees_terms_and_aliases():
    base = GeneAnnotation.from_dict({"A": ["t1"], "B": ["t2"]})
    swapped = GeneAnnotation.from_dict({"A": ["t2"], "B": ["t1"]})
    named = GeneAnnotation.from_dict({"A": ["t1"], "B": ["t2"]}, aliases={"OLD": "A"})
    assert len({base.content_hash, swapped.content_hash, named.content_hash}) == 3


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


def test_unreadable_files_are_named(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps({"A": ["t1"]}))
    with pytest.raises(ValueError, match=r"'a\.pkl'.*pickle"):
        GeneAnnotation.from_path(tmp_path / "a.pkl")
    (tmp_path / "a.tsv").write_text("A\tt1\nB\n")
    with pytest.raises(ValueError, match="line 2: expected gene and term"):
        GeneAnnotation.from_path(tmp_path / "a.tsv")
    (tmp_path / "a.json").write_text("[1]")
    with pytest.raises(ValueError, match="expected an object"):
        GeneAnnotation.from_path(tmp_path / "a.json")
    write_npz(tmp_path / "a.npz", {"genes": np.zeros(1)})
    with pytest.raises(ValueError, match="lack indices, indptr, terms"):
        GeneAnnotation.from_path(tmp_path / "a.npz")


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
