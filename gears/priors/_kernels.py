"""Covariances of conditions under additive effects of their genes, as matrices or as features.

With member (C, T) the genes of each condition, size (C,) their number, and S (T, T) the similarity of genes,

    covariance = offset 1 1' + shared size size' + member (own I + similar S) member'

where own and similar are variances of a gene's specific effect and of the part that similar genes share. Up to
:data:`MOST_EXACT` conditions each term is a (C, C) matrix. Beyond, C^2 memory and C^3 time are too much, and the sum is
kept as features F (C, M) with covariance = F F' + a diagonal: exact for up to :data:`MOST_FEATURES` genes, and
otherwise from the leading eigenvectors of the (T, T) matrix, whose remainder goes to the diagonal. Tests compare the
two forms (``tests/priors/test_prior_features.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Protocol

import numpy as np
from scipy import linalg, sparse

from gears.conditions import NodeSet, contexts_of, kinds_of

NAMES = ("offset", "shared", "own", "GO")
"""Parts of a condition's change: common to all conditions, common to all genes (once per gene of the
condition), specific to each gene, and shared by genes of similar GO annotation; further similarities follow."""

CORRELATED_GENES = 5.0  # how many genes carry the information of one: their residuals are correlated
_LEAST_SHARE = 1e-3

MOST_EXACT = 3000
"""Up to this many conditions the covariance of all pairs of conditions is computed and solved exactly."""
MOST_FEATURES = 2000
"""Number of features for more conditions; exact for as many perturbed genes or fewer."""
_ROWS = 2048  # nodes of a block of similarities
_MORE = 32  # extra directions in the search for the leading ones, whose accuracy they raise
_PASSES = 3  # products with the matrix in that search: each raises the ratio of large to small eigenvalues


@dataclass(frozen=True)
class GeneSimilarity:
    """Similarity of every gene that may be perturbed to those perturbed in training.

    Attributes
    ----------
    trained_T
        Nodes perturbed in training, ascending, (T,) int64.
    similar_PT
        Similarity of all P nodes to these, CSR (P, T); 1 for a node with itself.
    """

    trained_T: np.ndarray
    similar_PT: sparse.csr_matrix

    def among(self, sets: Sequence[Sequence[int]]) -> GeneSimilarity:
        """Similarity to the trained nodes that occur in some sets."""
        is_used_T = np.isin(self.trained_T, [node for nodes in sets for node in nodes])
        return GeneSimilarity(self.trained_T[is_used_T], self.similar_PT[:, np.flatnonzero(is_used_T)])

    def members(self, sets: Sequence[Sequence[int]]) -> sparse.csr_matrix:
        """Which trained nodes each set holds, ones in CSR (U, T) float64; other nodes are excluded."""
        column = {int(node): position for position, node in enumerate(self.trained_T)}
        positions = [sorted({column[node] for node in nodes if node in column}) for nodes in sets]
        bounds = np.concatenate(([0], np.cumsum([len(members) for members in positions], dtype=np.int64)))
        columns = np.fromiter(
            (position for members in positions for position in members), dtype=np.int64, count=int(bounds[-1])
        )
        shape = (len(sets), len(self.trained_T))
        return sparse.csr_matrix((np.ones(len(columns)), columns, bounds), shape=shape)

    def membership(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Which trained nodes each set holds, (U, T) float64; other nodes are excluded."""
        return np.asarray(self.members(sets).toarray())

    def similarity(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Sum over each set's nodes of their similarity to the trained nodes, (U, T) float64."""
        rows = np.repeat(np.arange(len(sets)), [len(nodes) for nodes in sets])
        nodes = np.fromiter((node for nodes in sets for node in nodes), dtype=np.int64, count=len(rows))
        ones = np.ones(len(rows))
        node_UP = sparse.csr_matrix((ones, (rows, nodes)), shape=(len(sets), self.similar_PT.shape[0]))
        return np.asarray((node_UP @ self.similar_PT).toarray(), dtype=np.float64)

    def between(self, pairs_E2: np.ndarray) -> np.ndarray:
        """Similarity of the two nodes of each pair, (E,).

        That of two nodes of which neither was perturbed in training is not known: it is taken over the trained node
        that is most like both, as the product of the two similarities.
        """
        one_E, other_E = pairs_E2.T
        path_ET = self.similar_PT[one_E].multiply(self.similar_PT[other_E])
        similar_E = np.asarray(path_ET.max(axis=1).toarray(), dtype=np.float64).ravel()
        for node_E, trained_E in ((one_E, other_E), (other_E, one_E)):
            known = np.flatnonzero(np.isin(trained_E, self.trained_T))
            column = np.searchsorted(self.trained_T, trained_E[known])
            similar_E[known] = np.asarray(self.similar_PT[node_E[known], column]).ravel()
        return similar_E


class Similarity(Protocol):
    """A similarity of genes: :class:`GeneSimilarity`, or :class:`ComputedSimilarity` where few may be needed."""

    @property
    def trained_T(self) -> np.ndarray:
        """Nodes perturbed in training, ascending, (T,) int64."""

    @property
    def similar_PT(self) -> sparse.csr_matrix:
        """Similarity of all P nodes to these, CSR (P, T)."""

    def among(self, sets: Sequence[Sequence[int]]) -> GeneSimilarity:
        """Similarity to the trained nodes that occur in some sets."""


@dataclass(frozen=True)
class ComputedSimilarity:
    """A similarity that is computed on demand: first among the conditions that decide its weight, then, if it has one,
    of all nodes. So a source without weight costs neither time nor memory for the whole graph.
    """

    between: Callable[[np.ndarray, np.ndarray], np.ndarray]
    """``between(nodes_A, nodes_T)`` is the similarity of two lists of nodes, (A, T); that of a node with itself is
    taken as 1."""
    trained_T: np.ndarray  # nodes perturbed in training, ascending, (T,) int64
    n_nodes: int  # number of all nodes, P

    @cached_property
    def similar_PT(self) -> sparse.csr_matrix:
        """Similarity of all nodes to the trained ones, CSR (P, T), computed block by block."""
        starts = range(0, self.n_nodes, _ROWS)
        blocks = (np.arange(start, min(start + _ROWS, self.n_nodes)) for start in starts)
        rows = [sparse.csr_matrix(self.rows(nodes, self.trained_T)) for nodes in blocks]
        return sparse.csr_matrix(sparse.vstack(rows, format="csr"))

    def among(self, sets: Sequence[Sequence[int]]) -> GeneSimilarity:
        """Similarity to the trained nodes that occur in some sets; rows of other nodes are empty."""
        used = self.trained_T[np.isin(self.trained_T, [node for nodes in sets for node in nodes])]
        rows = sparse.coo_matrix(self.rows(used, used))
        place = (used[rows.row], rows.col)
        return GeneSimilarity(used, sparse.csr_matrix((rows.data, place), shape=(self.n_nodes, len(used))))

    def is_informative(self, sets: Sequence[Sequence[int]]) -> bool:
        """Whether any two different nodes of the sets are similar."""
        similar = self.among(sets)
        return bool(similar.similar_PT.nnz > len(similar.trained_T))

    def rows(self, nodes_A: np.ndarray, nodes_T: np.ndarray) -> np.ndarray:
        """Similarity of two lists of nodes, (A, T), 1 for a node with itself."""
        similar_AT = np.asarray(self.between(nodes_A, nodes_T), dtype=np.float64)
        same_A, same_T = np.nonzero(nodes_A[:, None] == nodes_T[None, :])
        similar_AT[same_A, same_T] = 1.0
        return similar_AT


def mixed(parts: Sequence[Similarity], weights: Sequence[float]) -> GeneSimilarity:
    """Weighted mean of similarities to the same trained nodes; those of negligible weight are omitted."""
    total, kept = sum(weights), counted(weights)
    shares = [(parts[number], weights[number] / total) for number in kept] or [(parts[0], 1.0)]
    if len(shares) == 1:
        return GeneSimilarity(parts[0].trained_T, shares[0][0].similar_PT)
    mean_PT = sparse.csr_matrix(sum(share * part.similar_PT for part, share in shares))
    return GeneSimilarity(parts[0].trained_T, mean_PT)


def counted(weights: Sequence[float]) -> list[int]:
    """Places of the similarities whose weight is not negligible."""
    total = sum(weights)
    return [number for number, weight in enumerate(weights) if total > 0 and weight / total > _LEAST_SHARE]


def sizes_of(sets: Sequence[Sequence[int]]) -> np.ndarray:
    """Number of perturbed genes of each set, (U,) float64."""
    return np.array([len(nodes) for nodes in sets], dtype=np.float64)


def settings_of(sets: Sequence[Sequence[int]], n_kinds: int) -> np.ndarray:
    """Number of each set's setting, ``context x n_kinds + kind``, (U,) int64."""
    return contexts_of(sets) * n_kinds + kinds_of(sets)


def singles_in(setting: int, nodes: np.ndarray, n_kinds: int) -> list[NodeSet]:
    """Each of some nodes alone, in the setting of a number of :func:`settings_of`."""
    context, kind = divmod(setting, n_kinds)
    return [NodeSet((node,), context=context, kind=kind) for node in nodes.tolist()]


KINDS = ("one known gene", "one new gene", "known genes", "new genes", "known and new genes")
"""How far training knows the genes of a condition that it has not measured: known are those that other conditions of it
perturb."""
N_KINDS = len(KINDS)
NEW_ONE, NEW_SEVERAL = 1, 3
NEW_KINDS = (NEW_ONE, NEW_SEVERAL, 4)
"""Kinds with a gene that training does not perturb."""


def kinds_of_sets(n_known_U: np.ndarray, size_U: np.ndarray) -> np.ndarray:
    """Place in :data:`KINDS` of each condition, (U,) int64, by the number of its known genes and of all its genes."""
    return np.select(
        [size_U <= 1, n_known_U == size_U, n_known_U == 0],
        [(n_known_U < size_U).astype(np.int64), np.full(len(size_U), 2), np.full(len(size_U), 3)],
        4,
    )


def target_cells(sets: Sequence[Sequence[int]], column_P: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the sets and columns of the measured genes where a perturbed gene is measured itself."""
    rows = np.repeat(np.arange(len(sets)), [len(nodes) for nodes in sets])
    columns = column_P[np.fromiter((node for nodes in sets for node in nodes), dtype=np.int64, count=len(rows))]
    return rows[columns >= 0], columns[columns >= 0]


@dataclass(frozen=True)
class Omitted:
    """What features omit of each gene's effect: it counts as independent in every condition that holds the gene.

    So the n conditions of a gene would count it n times. :meth:`excess` is taken off the covariance with each of them.
    """

    variance_T: np.ndarray  # variance that is omitted of each gene
    count_T: np.ndarray  # number of conditions that hold it

    def excess(self, power: float) -> np.ndarray:
        """Covariance too much of each gene, (T,): all but 1 / n^power of what is omitted.

        With power 1 the conditions together predict as much as one with all of it, with power 1/2 they explain as much.
        """
        return self.variance_T * (1 - np.maximum(self.count_T, 1.0) ** -power)


@dataclass(frozen=True)
class Features:
    """A covariance of conditions as ``feature_CM feature_CM' + diag(rest_C)``, and what of genes is in the rest."""

    feature_CM: np.ndarray
    rest_C: np.ndarray
    omitted: Omitted | None = None


@dataclass(frozen=True)
class AdditiveCovariance:
    """A covariance of conditions that adds up over their genes."""

    genes: GeneSimilarity  # similarity of genes, several of them in the proportion of their weights
    # shared, own, similar: variance of what all genes have alike, of each gene's own part, and of what similar genes
    # share
    shared: float
    own: float
    similar: float
    omitted: Omitted | None = None  # what features of the training conditions omit, or None

    def members(self, sets: Sequence[Sequence[int]]) -> sparse.csr_matrix:
        """Which trained genes each set holds, and how many genes it has: CSR (C, T + 1)."""
        return sparse.hstack([self.genes.members(sets), sizes_of(sets)[:, None]], format="csr")

    def columns(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Covariance of sets with each column of :meth:`members`, (U, T + 1).

        ``columns(new) @ members(trained).T`` is the covariance of new and training conditions.
        """
        own = self.own if self.omitted is None else self.own - self.omitted.excess(0.5)
        column_UT = own * self.genes.membership(sets) + self.similar * self.genes.similarity(sets)
        return np.hstack([column_UT, self.shared * sizes_of(sets)[:, None]])

    def variance(self, sets: Sequence[Sequence[int]]) -> np.ndarray:
        """Variance of each set, (U,)."""
        size_U = sizes_of(sets)
        variance_U = self.shared * size_U**2 + (self.own + self.similar) * size_U
        rows, pairs = [], []
        for row, nodes in enumerate(sets):
            for pair in combinations(nodes, 2):
                rows.append(row)
                pairs.append(pair)
        if rows:
            np.add.at(variance_U, rows, 2 * self.similar * self.genes.between(np.array(pairs)))
        return variance_U


def training_kernels(
    sets: Sequence[Sequence[int]], genes: GeneSimilarity, further: Mapping[str, GeneSimilarity] | None = None
) -> dict[str, np.ndarray]:
    """The covariances of the training conditions by name, (C, C) each: :data:`NAMES`, and each further similarity."""
    size_C, member_CT = sizes_of(sets), genes.membership(sets)
    common = (np.ones((len(sets), len(sets))), np.outer(size_C, size_C), member_CT @ member_CT.T)
    similarities = {NAMES[-1]: genes, **(further or {})}
    return dict(zip(NAMES, common, strict=False)) | {
        name: _symmetric(similarity.similarity(sets) @ member_CT.T) for name, similarity in similarities.items()
    }


def specific_covariance(
    sets: Sequence[Sequence[int]], genes: GeneSimilarity, shared: float, own: float, similar: float
) -> np.ndarray:
    """Weighted sum of the training kernels without the offset, (C, C), without a matrix for each kernel."""
    size_C, member_CT = sizes_of(sets), genes.membership(sets)
    covariance_CC = (own * member_CT + similar * genes.similarity(sets)) @ member_CT.T
    covariance_CC += np.outer(shared * size_C, size_C)
    return _symmetric(covariance_CC)


def _symmetric(matrix: np.ndarray) -> np.ndarray:
    return np.asarray((matrix + matrix.T) / 2)


def gene_features(
    member_CT: sparse.csr_matrix,
    genes: GeneSimilarity,
    shared: float,
    own: float,
    similar: float,
    most: int | None = None,
) -> Features:
    """Features whose products are ``member (own I + similar S + shared) member'``.

    S is the similarity of the T genes perturbed in training. With at most `most` genes this is exact. With more, at
    least half of the features are the leading directions of the shared part, and the others the specific effects of
    the genes that occur in most conditions. The remaining variance of each condition goes to the diagonal, which is
    exact for the specific effect of a gene that occurs in a single condition. `shared`, `own` and `similar` are the
    variances of the three parts; `most` is :data:`MOST_FEATURES` by default.
    """
    limit = MOST_FEATURES if most is None else most
    similar_TT = genes.similar_PT[genes.trained_T]
    common_TT = np.asarray(similar_TT.toarray())
    common_TT = (0.5 * similar) * (common_TT + common_TT.T)
    common_TT += shared
    n_genes = len(common_TT)
    if n_genes <= limit:
        common_TT[np.diag_indices(n_genes)] += own
        values, vectors = eigh(common_TT)
        return Features(_scaled(member_CT, values, vectors), np.zeros(member_CT.shape[0]))
    repeated = _most_frequent(member_CT, limit // 2)
    values, vectors = _leading(common_TT, limit - len(repeated))
    left_T = np.maximum(np.diag(common_TT) - (vectors**2) @ np.maximum(values, 0.0), 0.0)
    alone_T = np.full(n_genes, own)
    alone_T[repeated] = 0.0
    feature_CM = _scaled(member_CT, values, vectors)
    if len(repeated):
        feature_CM = np.hstack([feature_CM, np.sqrt(own) * member_CT[:, repeated].toarray()])
    omitted = Omitted(left_T + alone_T, np.bincount(member_CT.indices, minlength=n_genes))
    return Features(feature_CM, np.asarray(member_CT.power(2) @ omitted.variance_T), omitted)


def _most_frequent(member_CT: sparse.csr_matrix, most: int) -> np.ndarray:
    """The genes that occur in most conditions, of those in more than one, ascending."""
    occurs_T = np.bincount(member_CT.indices, minlength=member_CT.shape[1])
    by_number = np.argsort(-occurs_T, kind="stable")
    return np.sort(by_number[: min(int((occurs_T > 1).sum()), most)])


def _scaled(member_CT: sparse.csr_matrix, values: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    return np.asarray(member_CT @ (vectors * np.sqrt(np.maximum(values, 0.0))))


def _leading(matrix_TT: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n largest eigenvalues of a symmetric matrix and their vectors, by iteration of a random subspace.

    Halko, Martinsson, Tropp, "Finding structure with randomness", SIAM Review 2011; the draw is fixed.
    """
    draw = np.random.Generator(np.random.Philox(key=len(matrix_TT)))
    basis = draw.standard_normal((len(matrix_TT), min(n + _MORE, len(matrix_TT))))
    for _ in range(_PASSES):
        basis = linalg.qr(matrix_TT @ basis, mode="economic", check_finite=False)[0]
    values, inner = eigh(basis.T @ (matrix_TT @ basis))
    return values[-n:], basis @ inner[:, -n:]


def eigh(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues and vectors; a slower method where the fastest one fails on very many equal eigenvalues."""
    try:
        return linalg.eigh(matrix)
    except linalg.LinAlgError:
        return linalg.eigh(matrix, driver="evd")
