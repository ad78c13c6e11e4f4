"""Gene sets from files of any kind, and the nodes of the perturbation graph."""

import json
import pickle
from typing import Any

import numpy as np
import pytest

from gears.data.screen.prepare import folder_name
from gears.graphs.annotation import GeneAnnotation
from gears.graphs.nodes import graph_genes, read_gene_set

GENES = ["AHR", "FEV", "KLF1"]


@pytest.mark.parametrize(
    "content",
    [
        b"KLF1\nFEV\n\nAHR\nAHR\n",
        b"\xef\xbb\xbfAHR\r\nFEV\r\nKLF1\r\n",
        b"gene_name,score\nAHR,1\nFEV,2\nKLF1,3\n",
        b"score\tsymbol\n1\tAHR\n2\tFEV\n3\tKLF1\n",
        b"AHR,1\nFEV,2\nKLF1,3\n",
        json.dumps(GENES).encode(),
        json.dumps({gene: ["T1"] for gene in GENES}).encode(),
        pickle.dumps(GENES),
        pickle.dumps(set(GENES)),
        pickle.dumps(np.array(GENES, dtype=object)),
        pickle.dumps(dict.fromkeys(GENES, 1)),
    ],
    ids=range(11),  # the bytes of a pickled set differ from process to process
)
def test_the_kind_of_file_is_told_by_its_content(content, tmp_path):
    (tmp_path / "genes.pkl").write_bytes(content)
    assert read_gene_set(tmp_path / "genes.pkl") == GENES


@pytest.mark.parametrize("content", [b"", b"[]", b"[1, 2]", b"\xff\xfe\x00\x01", pickle.dumps(7)])
def test_files_without_genes_are_refused(content, tmp_path):
    (tmp_path / "genes").write_bytes(content)
    with pytest.raises(ValueError, match=r"one a line|one gene a line"):
        read_gene_set(tmp_path / "genes")
    with pytest.raises(FileNotFoundError, match="no gene set file"):
        read_gene_set(tmp_path / "absent")


def test_nodes_of_the_three_kinds():
    annotation = GeneAnnotation.from_dict({"B": ["t1"], "C": ["t2"]})
    options: dict[str, Any] = {"measured": ["M", "A"], "perturbed": ["Z", "A"]}
    nodes = graph_genes(annotation, **options, gene_set=None, default_pert_graph=True)
    assert nodes.tolist() == ["A", "B", "C", "Z"]
    nodes = graph_genes(annotation, **options, gene_set=None, default_pert_graph=False)
    assert nodes.tolist() == ["A", "M", "Z"]
    nodes = graph_genes(annotation, **options, gene_set=["Q"], default_pert_graph=False)
    assert nodes.tolist() == ["A", "Q", "Z"]


@pytest.mark.parametrize("name", ["", "  ", "a/b", "..", ".hidden", "a\\b", "a\0"])
def test_names_that_cannot_be_folders(name):
    with pytest.raises(ValueError, match="cannot name a folder"):
        folder_name(name)
