"""Vectors of genes from any model: as a graph of nearest neighbours, or as where a network starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gears.core._messages import check_unique, shorten, unknown_name
from gears.core._numbers import unit_rows
from gears.files._paths import existing_file, reading
from gears.files._untrusted import listed_names
from gears.files.formats import content_hash, read_delimited, read_npz
from gears.graphs._annotation import pack, unpack
from gears.graphs._graph import Graph, candidates, check_selection, name_order, strongest

_CHUNK_BYTES = 32 * 2**20
_NAMES = ("names", "genes", "gene_names", "symbols")
_VALUES = ("values", "embedding", "embeddings", "X", "vectors")


@dataclass(frozen=True, eq=False)
class GeneEmbedding:
    """A vector for each of some genes.

    Parameters
    ----------
    names
        Gene names, unique.
    values
        (genes, D) finite numbers.

    Raises
    ------
    ValueError
        Names repeat, shapes disagree, or a value is not finite.
    """

    names: tuple[str, ...]
    values: np.ndarray

    def __post_init__(self) -> None:
        names = tuple(map(str, self.names))
        values = np.ascontiguousarray(np.asarray(self.values, dtype=np.float64))
        if values.ndim != 2 or len(values) != len(names) or not values.size:
            msg = f"{len(names)} gene names come with values of shape {values.shape}; expected one row per gene"
            raise ValueError(msg)
        check_unique(names, "genes of an embedding")
        if not np.isfinite(values).all():
            bad = [names[row] for row in np.flatnonzero(~np.isfinite(values).all(axis=1))]
            msg = f"{len(bad)} genes have a vector with NaN or infinity ({shorten(bad)}); leave them out or fill them"
            raise ValueError(msg)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "values", values)

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of names and values."""
        return content_hash(list(self.names), self.values)

    def __repr__(self) -> str:
        return f"GeneEmbedding({len(self.names)} genes, {self.values.shape[1]} dimensions)"

    @classmethod
    def of(cls, source: Any, *, names: Any = None, key: str | None = None) -> GeneEmbedding:
        """Take vectors in any of the usual forms.

        Parameters
        ----------
        source
            A GeneEmbedding, a DataFrame (index: genes), gene -> vector, an array with `names`, or a
            file: ``.npz`` (``names`` and ``values``), ``.npy`` with `names`, ``.csv``/``.tsv``/
            ``.parquet`` (first column or index: genes), ``.h5ad`` (genes are obs, vectors X, or `key`).
        names
            Gene names of an array's rows: a list, or a text file with one a line.
        key
            Of an h5ad file: ``"obsm/<name>"``, ``"varm/<name>"`` (genes are var) or ``"layers/<name>"``.

        Raises
        ------
        FileNotFoundError, ImportError, ValueError
            There is no such file, parquet cannot be read here, or it holds something else.
        """
        if isinstance(source, GeneEmbedding):
            return source
        if isinstance(source, pd.DataFrame):
            return cls(tuple(map(str, source.index)), source.to_numpy())
        if isinstance(source, Mapping):
            return cls(tuple(map(str, source)), np.array([np.asarray(vector) for vector in source.values()]))
        if isinstance(source, str | Path):
            path = existing_file(source, "embedding file")
            with reading(path, "an embedding", "expected a name and a vector of finite numbers for each gene"):
                return _from_file(path, names, key)
        if names is None:
            msg = f"an array of shape {np.shape(source)} does not say which genes its rows are; give names="
            raise ValueError(msg)
        listed = tuple(listed_names(names) if isinstance(names, str | Path) else map(str, names))
        try:
            return cls(listed, np.asarray(source))
        except ValueError as error:
            if isinstance(names, str | Path):
                msg = f"with the names of {names}: {error}"
                raise ValueError(msg) from error
            raise

    def arrays(self) -> dict[str, np.ndarray]:
        """Plain arrays for an npz file that :meth:`of` reads."""
        return {"names": pack(self.names), "values": self.values}

    def graph(
        self,
        nodes: Sequence[str],
        *,
        k: int,
        threshold: float = 0.0,
        resolve: Callable[[str], str | None] = lambda name: None,
    ) -> Graph:
        """Each node's `k` nearest by cosine similarity (of vectors minus their mean), and a self edge of weight 1.

        A node without a vector is isolated. Equally similar ones are chosen by name.

        Raises
        ------
        ValueError
            No node has a vector.
        """
        check_selection(threshold, k)
        order = name_order(tuple(nodes))
        row = rows_of(self.names, [nodes[i] for i in order], resolve)
        at = np.flatnonzero(row >= 0)
        if not len(at):
            msg = (
                f"no gene of the graph has a vector (graph: {shorten(nodes, 3)}; embedding: {shorten(self.names, 3)}); "
                "expected the same kind of gene names in both"
            )
            raise ValueError(msg)
        values_ND = self.values[row[at]]
        # what all vectors have in common would make every cosine large
        unit_ND = unit_rows(values_ND - values_ND.mean(axis=0))
        edges = [(at, at, np.ones(len(at)))]
        step = max(1, _CHUNK_BYTES // (8 * len(at)))
        for start in range(0, len(at), step):
            stop = min(start + step, len(at))
            # rounded: ties must not hang on the order of sums
            cosine_TS = np.round(unit_ND[start:stop] @ unit_ND.T, 10)
            cosine_TS[np.arange(stop - start), np.arange(start, stop)] = -np.inf
            target, source = candidates(cosine_TS, threshold, k)
            kept = strongest(target, source, cosine_TS[target, source], threshold, k)
            edges.append((at[kept[0] + start], at[kept[1]], kept[2]))
        target, source, weight = map(np.concatenate, zip(*edges, strict=True))
        return Graph(tuple(nodes), np.stack([order[source], order[target]]), weight)

    def start(
        self, nodes: Sequence[str], size: int, resolve: Callable[[str], str | None] = lambda name: None
    ) -> np.ndarray:
        """Vectors to start an embedding table from, (P, size); NaN rows for nodes without a vector.

        The leading principal components over the nodes (zeros beyond them), scaled to a mean squared length of
        1, which is the longest that the network's tables keep.
        """
        row = rows_of(self.names, nodes, resolve)
        at = np.flatnonzero(row >= 0)
        start_PH = np.full((len(nodes), size), np.nan)
        if not len(at):
            return start_PH
        values_ND = self.values[row[at]] - self.values[row[at]].mean(axis=0)
        left, length, right = np.linalg.svd(values_ND, full_matrices=False)
        # the largest loading of a component is positive: its sign is otherwise arbitrary
        flip = np.sign(right[np.arange(len(right)), np.abs(right).argmax(axis=1)])
        scores_NK = (left * (length * np.where(flip == 0, 1, flip)))[:, :size]
        scale = np.sqrt((scores_NK**2).sum(axis=1).mean())
        start_PH[at] = 0.0
        start_PH[at, : scores_NK.shape[1]] = scores_NK / scale if scale > 0 else 0.0
        return start_PH


def rows_of(
    names: Sequence[str], nodes: Sequence[str], resolve: Callable[[str], str | None] = lambda name: None
) -> np.ndarray:
    """Row of each node among some names, also under another name of the gene, -1 where it has none, (P,) int64."""
    index = {name: row for row, name in enumerate(names)}
    by_symbol = {resolve(name): row for row, name in enumerate(names)}
    by_symbol.pop(None, None)
    rows = [index.get(node, by_symbol.get(resolve(node) or node, -1)) for node in nodes]
    return np.array(rows, dtype=np.int64)


def _from_file(path: Path, names: Any, key: str | None) -> GeneEmbedding:
    suffixes = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if suffixes == ".npz":
        return _from_npz(path, read_npz(path), names)
    if suffixes == ".npy":
        return GeneEmbedding.of(np.load(path, allow_pickle=False), names=names)
    if suffixes == ".parquet":
        try:
            return _from_frame(pd.read_parquet(path))
        except ImportError as error:
            msg = f"reading {path.name} needs pyarrow: pip install 'gears-perturb[parquet]'"
            raise ImportError(msg) from error
    if suffixes in (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt", ".txt.gz"):
        return _from_frame(read_delimited(path))
    if suffixes == ".h5ad":
        return _from_h5ad(path, key)
    msg = f"cannot read an embedding from {path.name!r}; expected .npz, .npy, .csv, .tsv, .parquet or .h5ad"
    raise ValueError(msg)


def _from_npz(path: Path, arrays: Mapping[str, np.ndarray], names: Any) -> GeneEmbedding:
    values = next((arrays[name] for name in _VALUES if name in arrays), None)
    own = next((arrays[name] for name in _NAMES if name in arrays), None)
    if values is None or (own is None and names is None):
        msg = f"{path} holds {shorten(sorted(arrays))}; expected names and values"
        raise ValueError(msg)
    if own is None:
        return GeneEmbedding.of(values, names=names)
    listed = unpack(own) if own.dtype.kind == "u" else own.tolist()
    return GeneEmbedding(tuple(map(str, listed)), values)


def _from_frame(table: pd.DataFrame) -> GeneEmbedding:
    """Genes are the first column of text, else the index."""
    text = [column for column in table.columns if not pd.api.types.is_numeric_dtype(table[column])]
    if text:
        table = table.set_index(text[0]).drop(columns=text[1:])
    return GeneEmbedding(tuple(map(str, table.index)), table.to_numpy(dtype=np.float64))


def _from_h5ad(path: Path, key: str | None) -> GeneEmbedding:
    from gears.data.reading._matrix import as_csr, read_screen

    adata = read_screen(path)
    where, _, name = (key or "X").partition("/")
    if where == "X" or where == "layers":
        values = as_csr(adata.X if where == "X" else adata.layers[name]).toarray()
        return GeneEmbedding(tuple(map(str, adata.obs_names)), values)
    tables = {"obsm": (adata.obsm, adata.obs_names), "varm": (adata.varm, adata.var_names)}
    if where not in tables or name not in tables[where][0]:
        held = [f"{axis}/{entry}" for axis, (table, _) in tables.items() for entry in table]
        msg = f"{path} has no {key!r}; expected X, layers/<name> or one of: {shorten(held) or 'none'}"
        raise ValueError(msg)
    table, genes = tables[where]
    return GeneEmbedding(tuple(map(str, genes)), np.asarray(table[name]))


def embedding_of(given: Any) -> GeneEmbedding:
    """A GeneEmbedding from any of its forms, or from options as a dict with ``embedding`` among them."""
    if isinstance(given, Mapping) and "embedding" in given:
        options = dict(given)
        source = options.pop("embedding")
        for name in options:
            if name not in ("names", "key"):
                valid = ["embedding", "names", "key", "threshold", "k"]
                raise ValueError(unknown_name("option of an embedding", str(name), valid))
        return GeneEmbedding.of(source, **options)
    return GeneEmbedding.of(given)
