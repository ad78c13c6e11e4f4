"""Evidence that a user gives the prior beside the screen: effects of other screens, edges of genes, vectors of genes.

Everything that reads it is here; what is read is in :class:`gears.graphs._similarities.PriorInputs`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import linalg, sparse
from scipy.sparse.linalg import eigsh

from gears.core._messages import brief, count, shorten
from gears.data.reading._matrix import as_csr
from gears.data.reading._open import open_lean
from gears.data.screen._files import is_prepared
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen.prepare import prepare_screen
from gears.files._paths import existing_file, named_sources, need_file, reading, user_path
from gears.files.formats import read_delimited, read_npz
from gears.graphs._annotation import GeneAnnotation, unpack
from gears.graphs._custom import GraphMaker
from gears.graphs._edge_tables import EdgeFile
from gears.graphs._effects import GeneEffects, NodeEffects, Resolve
from gears.graphs._embeddings import embedding_of
from gears.graphs._graph import Graph
from gears.graphs._similarities import EFFECTS, EMBEDDINGS, SIMILARITIES, PriorInputs

if TYPE_CHECKING:
    from gears.pertdata import PertData

MOST_NUMBERS = 256
"""Numbers of a gene's row."""
_TIME = 4.0  # of the diffusion: weights of paths fall from about two edges on
_ERRORS = ("se", "lfcse", "stderr", "standard_error")
_DENSE = 1500  # genes with edges, up to which every direction is computed


def with_sources(inputs: PriorInputs, pert_data: PertData, effects_of: Any, similarities: Any) -> PriorInputs:
    """Inputs with the same gene embeddings, those of other screens and further similarities (``docs/evidence.md``).

    ValueError for a source that has nothing to say here, or a name that is taken.
    """
    nodes, measured = tuple(map(str, pert_data.pert_names)), pert_data.screen.gene_names
    annotation, effects = pert_data.annotation, {}
    for name, source in named_sources(effects_of, "effects_of").items():
        with _about("effects_of", name):
            source = opened(source)
            if getattr(source, "content_hash", None) == pert_data.whole_screen.content_hash:
                msg = "that is the screen itself, whose held-out conditions would be known; give another screen"
                raise ValueError(msg)
            table = read_effects(source, annotation.resolve)
            effects[f"{EFFECTS}{name}"] = NodeEffects.of(table, nodes, measured, annotation.resolve)
            _check_perturbed(effects[f"{EFFECTS}{name}"], pert_data)
    tables = {name: table for name, table in inputs.tables.items() if name == EMBEDDINGS}
    if similarities is not None and not isinstance(similarities, Mapping):
        msg = f"similarities is {brief(similarities)}; expected names with sources, such as {{'string': 'links.txt'}}"
        raise TypeError(msg)
    for name, source in named_sources(similarities, "similarities").items():
        if name in SIMILARITIES or name in effects:
            msg = f"similarities has an entry {name!r}, as a part of the prior is named; choose another name"
            raise ValueError(msg)
        with _about("similarities", name):
            tables[name] = rows_of_source(source, nodes, annotation)
    return PriorInputs(tables, effects)


@contextlib.contextmanager
def _about(what: str, name: str) -> Iterator[None]:
    """Errors of a source name it."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (ValueError, TypeError) as error:
        raise type(error)(f"{what}, {name}: {error}") from error


def _check_perturbed(effects: NodeEffects, pert_data: PertData) -> None:
    """Raise ValueError where no gene that is perturbed here has effects there."""
    names = [str(pert_data.pert_names[node]) for node in effects.nodes_N.tolist()]
    if not set(names) & set(pert_data.screen.perturbed_genes):
        here = shorten(pert_data.screen.perturbed_genes, 3)
        msg = f"none of its genes is perturbed here, so that nothing tells what its effects mean (here: {here})"
        raise ValueError(msg)


def read_effects(source: Any, resolve: Resolve | None = None) -> GeneEffects:
    """Effects of single genes in another screen, from any of their forms.

    Parameters
    ----------
    source
        A GeneEffects; a screen (PertData, PreparedScreen, AnnData, a prepared folder or a file of cells); a table:
        DataFrame (index: perturbed genes, columns: measured ones), or a file: ``.npz`` of :meth:`GeneEffects.save`,
        ``.csv``/``.tsv`` (first column: perturbed genes; or columns of two names and a number, with ``se`` beside
        it), ``.h5ad`` with a row for each gene (``layers["se"]`` or ``var["cell_sd"]`` where they are known).
    resolve
        Symbol of a gene that the annotation knows, for the labels of cells; of human genes by default.

    Raises
    ------
    FileNotFoundError, ValueError
        There is nothing, or it holds something else; one line says what.
    """
    from anndata import AnnData

    if isinstance(source, GeneEffects):
        return source
    if isinstance(source, pd.DataFrame):
        return _from_frame(source, "the table of effects")
    if isinstance(source, AnnData):
        return _from_adata(source, "the AnnData", resolve)
    source = opened(source)
    if isinstance(source, PreparedScreen):
        return GeneEffects.of_screen(source)
    if isinstance(source, str | Path):
        return _from_path(need_file(source, "effects_of"), resolve)
    msg = f"effects_of takes screens, files and tables; found {brief(source)}"
    raise TypeError(msg)


def opened(source: Any) -> Any:
    """The prepared screen of a PertData or a prepared folder; anything else unchanged."""
    if isinstance(source, str | Path) and is_prepared(user_path(source)):
        return PreparedScreen.open(source)
    return getattr(source, "whole_screen", source)


def _from_path(path: Path, resolve: Resolve | None) -> GeneEffects:
    suffix = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if suffix == ".npz":
        return _from_arrays(path, read_npz(path))
    if suffix in (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"):
        with reading(path, "a table of effects", "expected a row for each perturbed gene"):
            return _from_frame(read_delimited(path), str(path))
    with tempfile.TemporaryDirectory(prefix="gears-") as folder:
        return _from_adata(open_lean(path, None, Path(folder)), str(path), resolve)


def _from_arrays(path: Path, arrays: Mapping[str, np.ndarray]) -> GeneEffects:
    if not {"genes", "measured"} <= set(arrays) or not {"effect", "right"} & set(arrays):
        msg = f"{path} holds {shorten(sorted(arrays))}; expected a table of effects as `gears effects` writes it"
        raise ValueError(msg)
    with reading(path, "a table of effects"):
        if "effect" in arrays:
            values = arrays["effect"].astype(np.float64) * float(arrays.get("scale", 1.0))
        else:
            values = arrays["mean"] + arrays["left"].astype(np.float64) @ arrays["right"].astype(np.float64)
        names = [
            unpack(part) if part.dtype.kind == "u" else part.tolist() for part in (arrays["genes"], arrays["measured"])
        ]
        sd = arrays.get("cell_sd")
        if sd is None and "se" in arrays:
            sd = _of_errors(arrays["se"])
        return GeneEffects(tuple(names[0]), tuple(names[1]), values, None if sd is None else np.asarray(sd, np.float64))


def _of_errors(error_TG: np.ndarray) -> np.ndarray:
    return np.asarray(np.sqrt((np.asarray(error_TG, dtype=np.float64) ** 2).mean(axis=0)))


def _from_frame(table: pd.DataFrame, where: str) -> GeneEffects:
    """A row for each perturbed gene; or, with two columns of text, a row for each pair of genes."""
    text = [column for column in table.columns if not pd.api.types.is_numeric_dtype(table[column])]
    if len(text) == 2 and table.shape[1] <= 4:
        return _from_pairs(table, text, where)
    if len(text) > 1:
        msg = f"{where} has text in {count(len(text), 'column')} ({shorten(text, 3)}); expected the gene and numbers"
        raise ValueError(msg)
    if text:
        table = table.set_index(text[0])
    return GeneEffects(tuple(map(str, table.index)), tuple(map(str, table.columns)), table.to_numpy(dtype=np.float64))


def _from_pairs(table: pd.DataFrame, names: Sequence[str], where: str) -> GeneEffects:
    numbers = [column for column in table.columns if column not in names]
    errors = [column for column in numbers if str(column).lower() in _ERRORS]
    values = [column for column in numbers if column not in errors]
    if len(values) != 1:
        msg = f"{where} has {count(len(values), 'column')} of effects; expected one, and its errors as 'se'"
        raise ValueError(msg)
    if table.duplicated(list(names)).any():
        msg = f"{where} has pairs of genes more than once; keep one row for each"
        raise ValueError(msg)
    wide, *error = (table.pivot(index=names[0], columns=names[1], values=column) for column in [*values, *errors])
    sd = _of_errors(error[0].to_numpy()) if error else None
    return GeneEffects(tuple(map(str, wide.index)), tuple(map(str, wide.columns)), wide.to_numpy(), sd)


def _from_adata(adata: Any, where: str, resolve: Resolve | None) -> GeneEffects:
    """A table where no column of ``obs`` puts rows together, as labels of cells do; else a screen, prepared aside."""
    labels = adata.obs.select_dtypes(exclude="number")
    if adata.n_obs and all(column.nunique() in (1, adata.n_obs) for _, column in labels.items()):
        names = adata.var.get("gene_name", adata.var_names)
        sd = adata.var["cell_sd"].to_numpy(dtype=np.float64) if "cell_sd" in adata.var else None
        if sd is None and "se" in adata.layers:
            sd = _of_errors(as_csr(adata.layers["se"]).toarray())
        return GeneEffects(tuple(adata.obs_names), tuple(names), as_csr(adata.X).toarray(), sd)
    is_gene = GeneAnnotation.human().resolve if resolve is None else resolve
    with tempfile.TemporaryDirectory(prefix="gears-") as folder:
        try:
            screen = prepare_screen(adata, Path(folder) / "screen", is_gene=is_gene, skip_calc_de=True)
        except ValueError as error:
            first = " ".join(str(error).split())
            msg = (
                f"{where} cannot be used ({first}); write a table with `gears effects`, which takes options of a screen"
            )
            raise ValueError(msg) from error
        return GeneEffects.of_screen(screen)


def rows_of_source(source: Any, nodes: Sequence[str], annotation: GeneAnnotation) -> np.ndarray:
    """Rows of numbers whose cosines are the similarity that a source says, (P, H); NaN for a node that it lacks.

    Parameters
    ----------
    source
        Vectors in any form of :class:`gears.graphs.GeneEmbedding`; or edges in any form that a custom graph takes: a
        file with two columns of names, an :class:`gears.graphs.EdgeFile`, a networkx graph, a table.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        It cannot be read, or knows none of the nodes.
    """
    if isinstance(source, str | Path) and Path(source).suffix == ".npz":
        arrays = read_npz(existing_file(source, "file of gene knowledge"))
        if "rows" in arrays:  # of another process
            return arrays["rows"]
    if not _is_edges(source):
        rows_PH = embedding_of(source).start(nodes, MOST_NUMBERS, annotation.resolve)
        if np.isnan(rows_PH).all():
            msg = "no gene that can be perturbed here has a vector; expected the same kind of gene names in both"
            raise ValueError(msg)
        return rows_PH
    graph = GraphMaker(nodes, 0, annotation, lambda: Graph(tuple(nodes), np.empty((2, 0), np.int64), np.empty(0)))
    return diffusion_rows(graph.make(source))


def diffusion_rows(graph: Graph) -> np.ndarray:
    """Rows whose inner products are the diffusion kernel of a graph, (P, H); NaN for a node without an edge.

    With W the weights of the edges, both ways, and D their sums, the kernel is exp(-t (1 - D^-1/2 W D^-1/2)). Of a
    large graph the leading 256 directions are kept.
    """
    source, target = graph.edge_index
    is_other = source != target
    n = len(graph.nodes)
    edges = sparse.coo_matrix((graph.weight[is_other], (source[is_other], target[is_other])), shape=(n, n)).tocsr()
    edges = edges.maximum(edges.T)
    inside = np.flatnonzero(edges.getnnz(axis=1))
    edges = edges[inside][:, inside]
    scale = sparse.diags(1 / np.sqrt(np.asarray(edges.sum(axis=1)).ravel()))
    normal = scale @ edges @ scale
    if len(inside) <= _DENSE:
        values, vectors = linalg.eigh(normal.toarray())
    else:
        values, vectors = eigsh(normal, k=MOST_NUMBERS, which="LA", v0=np.ones(len(inside)), tol=1e-4)
    rows_PH = np.full((n, min(MOST_NUMBERS, len(inside))), np.nan)
    kept = np.argsort(-values)[: rows_PH.shape[1]]
    rows_PH[inside] = vectors[:, kept] * np.exp(-_TIME / 2 * (1 - values[kept]))
    return rows_PH


def _is_edges(source: Any) -> bool:
    """Whether a source names pairs of genes, and not a vector of each."""
    if isinstance(source, EdgeFile | Graph) or hasattr(source, "is_multigraph"):
        return True
    if isinstance(source, pd.DataFrame):
        return sum(not pd.api.types.is_numeric_dtype(source[column]) for column in source.columns) > 1
    if isinstance(source, Mapping):
        return "path" in source
    if not isinstance(source, str | Path):
        return False
    path = existing_file(source, "file of gene knowledge")
    if path.suffix == ".npz":
        return bool({"source", "edge_index"} & set(read_npz(path)))
    if user_path(path).suffix in (".npy", ".h5ad", ".parquet"):
        return False
    return _is_edges(read_delimited(path, sep=None, nrows=20))
