"""Gene sets from files of any kind, and the nodes of the perturbation graph."""

import json
import pickle

import numpy as np
import pytest

from gears.graphs._nodes import read_gene_set

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
