"""Co-expression graph against numpy and pandas; dense, sparse and chunked forms agree."""

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from gears.graphs import Graph, coexpression_graph
from gears.graphs import _coexpression as coexpression

NAMES = [f"g{i:02d}" for i in range(25)]


def expression(seed: int = 0, n_cells: int = 80, share: float = 0.5) -> np.ndarray:
    """Factors make genes correlate; some genes constant, some identical, one the negative of another."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_cells, 3)) @ rng.normal(size=(3, 25)) + rng.normal(size=(n_cells, 25))
    x[rng.random(x.shape) > share] = 0
    x[:, 5] = 2.5
    x[:, 6] = 0
    x[:, 7] = x[:, 8] = x[:, 20]
    x[:, 9] = -x[:, 10]
    return x


def edges_of(graph: Graph) -> dict[tuple[str, str], float]:
    return {(s, t): w for s, t, w in graph.to_frame().itertuples(index=False, name=None)}


def brute_force(x: np.ndarray, names: list[str], threshold: float, k: int) -> dict[tuple[str, str], float]:
    table = pd.DataFrame(x, columns=names)
    varies = [name for name in names if table[name].nunique() > 1]
    correlation = table[varies].corr().abs().round(10)
    edges = {}
    for target in varies:
        row = [(-correlation.loc[target, s], s) for s in varies if s != target]
        edges.update({(s, target): -w for w, s in sorted(row)[:k] if -w > threshold})
    return edges


def assert_same(one: dict, two: dict) -> None:
    assert set(one) == set(two)
    assert all(abs(one[edge] - two[edge]) < 1e-9 for edge in one)


@pytest.mark.parametrize(("share", "threshold", "k"), [(0.05, 0.2, 3), (0.5, 0.4, 20), (1.0, 0.0, 5)])
def test_equals_pandas(share, threshold, k):
    x = expression(share=share)
    expected = brute_force(x, NAMES, threshold, k)
    assert expected
    assert_same(edges_of(coexpression_graph(x, NAMES, threshold=threshold, k=k)), expected)
    for form in (sparse.csr_matrix, sparse.csc_matrix, sparse.csr_array, np.asfortranarray):
        order = np.random.default_rng(1).permutation(25)  # of the genes
        found = coexpression_graph(form(x[:, order]), [NAMES[i] for i in order], threshold=threshold, k=k)
        assert found.nodes == tuple(NAMES[i] for i in order)
        assert_same(edges_of(found), expected)


class OnDisk:
    """Cells that give rows on demand, as those of a prepared screen do."""

    def __init__(self, x: np.ndarray) -> None:
        self.shape, self.asked = x.shape, []
        self._x = sparse.csr_matrix(x)

    def csr(self, ids: np.ndarray) -> sparse.csr_matrix:
        self.asked.append(len(ids))
        return self._x[ids]


@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_chosen_cells_of_a_file_are_read_in_chunks(monkeypatch, density):
    x = expression()
    x[40:] *= np.random.default_rng(1).random((40, 25)) < 0.3  # chunks of either kind
    rows = np.flatnonzero(np.arange(80) % 3)
    expected = edges_of(coexpression_graph(x[rows], NAMES, k=4))
    monkeypatch.setattr(coexpression, "_SPARSE_DENSITY", density)
    monkeypatch.setattr(coexpression, "_CHUNK_BYTES", 8 * 25 * 2)
    stored = OnDisk(x)
    assert_same(edges_of(coexpression_graph(stored, NAMES, rows=rows, k=4)), expected)
    assert max(stored.asked) == 2 * coexpression._SPARSE_CHUNKS < len(rows)
    assert_same(edges_of(coexpression_graph(x, NAMES, rows=rows, k=4)), expected)


@pytest.mark.parametrize("seed", range(2))
def test_ties_at_the_last_place_do_not_hang_on_rounding_or_chunk(monkeypatch, seed):
    rng = np.random.default_rng(seed)
    base, scales = rng.normal(size=57), rng.uniform(0.01, 100, 23)  # the same correlations but for rounding
    x = np.outer(base + 0.3 * rng.normal(size=57), [1.0, *scales]) + np.outer(np.ones(57), rng.normal(size=24))
    x[:, 0] = base
    names = [f"g{i:02d}" for i in rng.permutation(24)]
    for chunk in (None, 8 * 24, 8 * 24 * 7):
        if chunk is not None:
            monkeypatch.setattr(coexpression, "_CHUNK_BYTES", chunk)
            monkeypatch.setattr(coexpression, "_BLOCK_BYTES", 2 * chunk)
        for form in (np.asarray, sparse.csr_matrix):
            edges = edges_of(coexpression_graph(form(x), names, k=3))
            assert {source for source, target in edges if target == names[0]} == set(sorted(names[1:])[:3])


class TestDrawn:
    """Pairs chosen on a draw of cells: the graph of all cells."""

    @staticmethod
    def cells(seed: int, n_cells: int = 2000, n_genes: int = 150) -> np.ndarray:
        """Groups of genes that go together, and genes that few cells express: some alike, one in a single cell."""
        rng = np.random.default_rng(seed)
        x = 1.3 * np.repeat(rng.normal(size=(n_cells, n_genes // 3)), 3, axis=1)
        x += rng.normal(size=x.shape)
        x[x < 0] = 0
        rare = rng.random((n_cells, 20)) < 0.004
        x[:, :40] = np.hstack([rare, rare]) * rng.uniform(1, 2, (n_cells, 40))
        x[:, 40], x[:, 41], x[:, 42:44] = 0.1, 0, 0
        x[7, 42:44] = 2.0
        return x

    @pytest.mark.parametrize(
        ("seed", "form", "threshold", "k"),
        [(0, np.asarray, 0.4, 20), (1, sparse.csr_matrix, 0.25, 1), (2, OnDisk, 0.4, 20)],
    )
    def test_equals_the_graph_of_all_pairs(self, monkeypatch, seed, form, threshold, k):
        monkeypatch.setattr(coexpression, "_FEW_PAIRS", 1.0)
        x = self.cells(seed)
        names = [f"g{i:03d}" for i in np.random.default_rng(seed).permutation(x.shape[1])]
        how = {"rows": np.flatnonzero(np.arange(len(x)) % 5), "threshold": threshold, "k": k}
        whole = edges_of(coexpression_graph(x, names, **how))
        assert (names[42], names[43]) in whole
        assert len(whole) > 100
        assert_same(edges_of(coexpression_graph(form(x), names, n_drawn=600, **how)), whole)

    def test_nan_in_a_cell_that_is_not_drawn(self):
        x = self.cells(0)
        x[:, 50] = x[:, 51]  # an edge, so that all cells are read
        x[500, 149] = np.nan
        with pytest.raises(ValueError, match="NaN or infinity"):
            coexpression_graph(x, [f"g{i:03d}" for i in range(150)], n_drawn=100)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_too_few_cells_give_no_edges_and_nan_is_refused(form):
    for n_cells in (0, 1):
        assert coexpression_graph(form(np.ones((n_cells, 25))), NAMES).n_edges == 0
    x = expression(share=0.05)
    x[3, 4] = np.nan
    with pytest.raises(ValueError, match="NaN or infinity in 1 genes"):
        coexpression_graph(form(x), NAMES)
    with pytest.raises(ValueError, match=r"expected \(cells, 24\)"):
        coexpression_graph(form(expression()), NAMES[:24])
    with pytest.raises(ValueError, match="more than once: g00"):
        coexpression_graph(form(expression()), [*NAMES[:24], "g00"])
