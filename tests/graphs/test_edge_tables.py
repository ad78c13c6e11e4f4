"""Edge tables of databases: columns, scores, signs, directions, names."""

import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from gears.graphs import EdgeFile, GeneAnnotation, Graph
from gears.graphs._custom import GraphMaker, combined

NODES = ["A", "B", "C", "D"]
STRING = "protein1 protein2 combined_score\n9606.P1 9606.P2 900\n9606.P2 9606.P1 900\n9606.P1 9606.P3 400\n"
OMNIPATH = (
    "source\ttarget\tsource_genesymbol\ttarget_genesymbol\tis_directed\tis_stimulation\tis_inhibition\n"
    "Q1\tQ2\tA\tB\t1\t1\t0\nQ1\tQ3\tA\tC\t1\t0\t1\nQ1\tQ9\tA\tZ\t1\t1\t0\n"
)
DOROTHEA = "tf\tconfidence\ttarget\tmor\nA\tA\tB\t1\nA\tC\tC\t-1\nD\tE\tC\t1\n"


def maker(**more) -> GraphMaker:
    annotation = GeneAnnotation.from_dict({"A": ["t1"], "B": ["t1"], "C": ["t1"]}, aliases={"OLDB": "B"})
    return GraphMaker(**{"nodes": NODES, "k": 20, "annotation": annotation, "built": lambda: EMPTY} | more)


EMPTY = Graph(tuple(NODES), np.zeros((2, 0), dtype=np.int64), np.zeros(0))


def edges(graph: Graph) -> dict[str, float]:
    frame = graph.to_frame()
    return {f"{row.source}{row.target}": round(row.weight, 6) for row in frame.itertuples()}


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    if name.endswith(".gz"):
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def test_string_scores_names_and_least(tmp_path):
    path = written(tmp_path, "9606.protein.links.txt.gz", STRING)
    names = {"9606.P1": "A", "9606.P2": "B", "9606.P3": "C"}
    graph = maker().make(EdgeFile(path, names=names))
    assert edges(graph) == {"AB": 0.9, "BA": 0.9, "AC": 0.4, "CA": 0.4}
    info = written(tmp_path, "info.tsv", "#id\tname\n9606.P1\tA\n9606.P2\tB\n9606.P3\tC\n")
    assert edges(maker().make({"path": path, "names": info, "least": 700})) == {"AB": 0.9, "BA": 0.9}
    with pytest.raises(ValueError, match="same kind of gene names"):
        maker().make(path)


@pytest.mark.parametrize(
    ("signs", "expected"),
    [("ignore", {"AB", "BA", "AC", "CA"}), ("positive", {"AB", "BA"}), ("negative", {"AC", "CA"})],
)
def test_omnipath_symbols_and_signs(tmp_path, signs, expected):
    path = written(tmp_path, "omnipath.tsv", OMNIPATH)
    assert set(edges(maker().make({"path": str(path), "signs": signs}))) == expected


def test_dorothea_confidence_direction_and_sign(tmp_path):
    path = written(tmp_path, "dorothea.tsv", DOROTHEA)
    assert edges(maker().make(EdgeFile(path, directed=True))) == {"AB": 1.0, "AC": 0.6, "DC": 0.2}
    down = EdgeFile(path, directed=True, signs="negative")
    assert edges(maker().make(down)) == {"AC": 0.6}


def test_strongest_sources_are_kept_and_aliases_are_known(tmp_path):
    path = written(tmp_path, "own.csv", "gene1,gene2,score\nOLDB,A,3\nC,A,2\nD,A,1\nA,A,5\n")
    graph = maker().make({"path": path, "k": 2, "directed": True})
    assert edges(graph) == {"BA": 0.6, "CA": 0.4}
    assert edges(maker(k=1).make(EdgeFile(path, directed=True))) == {"BA": 0.6}


def test_columns_that_are_not_there(tmp_path):
    path = written(tmp_path, "odd.tsv", "one\ttwo\tvalue\nA\tB\t0.5\n")
    with pytest.raises(ValueError, match="give source= and target="):
        maker().make(path)
    named = {"path": path, "source": "one", "target": "two", "score": "value"}
    assert edges(maker().make(named)) == {"AB": 0.5, "BA": 0.5}
    with pytest.raises(ValueError, match="did you mean 'value'"):
        maker().make({"path": path, "source": "one", "target": "two", "score": "valu"})
    with pytest.raises(ValueError, match="did you mean 'signs'"):
        maker().make({"path": path, "sign": "positive"})
    with pytest.raises(ValueError, match=r"list\.tsv has one column \(source\); expected source, target and a score"):
        maker().make(written(tmp_path, "list.tsv", "source\nA\nB\n"))
    with pytest.raises(FileNotFoundError, match="no edge file"):
        maker().make(tmp_path / "none.tsv")
    with pytest.raises(TypeError, match="cannot make a graph of int"):
        maker().make(3)


def test_several_graphs_add_their_shares(tmp_path):
    one = Graph(tuple(NODES), np.array([[0, 2, 1], [1, 1, 1]]), np.array([4.0, 2.0, 1.0]))
    two = Graph(tuple(NODES), np.array([[0, 3], [1, 2]]), np.array([0.5, 0.5]))
    assert edges(combined([one, two], 20)) == {"AB": 1.0, "CB": 0.25, "DC": 0.5, "BB": 1.0}
    assert edges(combined([one, two], 1)) == {"AB": 1.0, "DC": 0.5, "BB": 1.0}
    assert edges(maker(built=lambda: two).make([one, "go"])) == edges(combined([one, two], 20))
    assert maker().make([one]).hash == one.hash
    with pytest.raises(ValueError, match="empty list"):
        maker().make([])


@pytest.mark.parametrize("name", ["pearson", "p_value"])
def test_scores_of_an_unknown_name_are_named_and_chosen(name, tmp_path):
    path = written(tmp_path, "e.csv", f"gene1;gene2;{name}\nA;B;0,8\nA;C;0,4\n")
    for given in (path, pd.DataFrame({"source": ["A", "A"], "target": ["B", "C"], name: [0.8, 0.4]})):
        with pytest.raises(ValueError, match=f"no score of a known name .* numbers {name};"):
            maker().make(given)
    assert edges(maker().make({"path": path, "score": name, "directed": True})) == {"AB": 0.8, "AC": 0.4}


def test_whole_numbers_that_are_not_used_are_reported(tmp_path, caplog):
    path = written(tmp_path, "e.tsv", "# made by hand\ngene1\tgene2\treferences\nA\tB\t3\nA\tC\t5\n")
    assert set(edges(maker().make(path)).values()) == {1.0}
    assert "every edge weighs 1; the numbers references are not used" in caplog.text


@pytest.mark.parametrize(("name", "number"), [("weight", "0,634"), ("weight", "1.634,5"), ("pearson", "-0,5")])
def test_decimal_commas_are_named(name, number, tmp_path):
    path = written(tmp_path, "e.csv", f'gene1,gene2,{name}\nA,B,"{number}"\nA,C,"1"\n')
    with pytest.raises(ValueError, match=f"column {name!r} of .* use decimal commas .'{number}'.; write them with a"):
        maker().make(path)
