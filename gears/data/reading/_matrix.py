"""Expression matrices of any kind as one: CSR, float32, canonical."""

from __future__ import annotations

import re
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.files._mapped import PIECE, check_bounds, check_compressed, check_numbers, pieces, release
from gears.files._paths import existing_file
from gears.files._untrusted import refuse_beyond

if TYPE_CHECKING:
    from anndata import AnnData

DENSE_ROWS = 1024
FILTERS = {32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32026: "blosc2"}
"""Registered numbers of HDF5's compression filters that h5py does not come with."""
FEATURE_KEYS = ("featuretypes", "featuretype", "modality")
"""Columns of var, without signs, that tell genes from other features; the first is 10x's."""
EXPRESSION = ("geneexpression", "gex", "rna", "gene")
"""What they call genes, without signs: "Gene Expression"."""
BESIDE_OTHERS = ("mrna", "transcriptome")
"""What they call genes beside features of another kind ("mRNA" beside "lncRNA" is a biotype)."""
OTHER_KINDS = re.compile(
    r"capture|antibody|crispr|guide|hashtag|multiplexing|peaks|^(?:s?grna|abseq|adt|hto|protein)s?$"
)
"""Parts of what they call features that are certainly no genes."""
PACKED = {
    b"\x1f\x8b": "gzip -dk",
    b"PK\x03\x04": "unzip",
    b"BZh": "bzip2 -dk",
    b"\xfd7zXZ": "xz -dk",
    b"\x28\xb5\x2f\xfd": "unzstd",
}
"""First bytes of compressed files, and what unpacks them."""
RAW = "raw"
"""Layer that means ``adata.raw``, where no layer has that name."""


@dataclass(frozen=True)
class Annotations:
    """What :class:`anndata.AnnData` says about N cells and G genes, without values and without names of cells.

    Names would take some 70 bytes a cell, more than all else that is kept of it.
    """

    obs: pd.DataFrame  # cells are numbered; columns of numbers that no option names may be missing
    var: pd.DataFrame
    layers: dict[str, sparse.csr_matrix]
    raw: None = None

    @property
    def X(self) -> sparse.csr_matrix:
        """No values, (0, G)."""
        return sparse.csr_matrix((0, self.n_vars), dtype=np.float32)

    n_obs = property(lambda self: len(self.obs))
    n_vars = property(lambda self: len(self.var))
    var_names = property(lambda self: self.var.index)

    def __getitem__(self, key: tuple[slice, np.ndarray]) -> Annotations:
        """The annotations of some genes."""
        return replace(self, var=self.var[key[1]])


def read_screen(path: str | Path, *, backed: bool = False) -> AnnData:
    """Read an h5ad file into memory, or all but its values; FileNotFoundError or ValueError."""
    import anndata

    path = existing_file(path)
    refuse_beyond(path)
    try:
        adata = anndata.read_h5ad(path, backed="r" if backed else None)
    except Exception as error:
        refuse_packed(path)
        msg = f"{path} cannot be read as an h5ad file ({type(error).__name__}: {error})"
        if missing := missing_filters(path):
            msg = (
                f"{path} is compressed with {missing}, which h5py lacks; install hdf5plugin and import it before gears "
                "(import hdf5plugin), or write the file again with compression='gzip'"
            )
        raise ValueError(msg) from error
    check_matrices(path, adata)
    return adata


def refuse_packed(path: Path) -> None:
    """Raise ValueError for a compressed file or an archive, with the command that unpacks it."""
    with open(path, "rb") as file:
        start = file.read(8)
    command = next((command for magic, command in PACKED.items() if start.startswith(magic)), None)
    if tarfile.is_tarfile(path):  # compressed or not
        command = "tar -xf"
    if command is not None:
        msg = f"{path} is compressed or an archive; unpack it ({command} {path.name}) and give what comes out"
        raise ValueError(msg)


def missing_filters(path: Path) -> str:
    """Compression filters of an HDF5 file that are not installed ("zstd"), "" where all are."""
    import h5py

    missing: dict[int, str] = {}

    def look(_: str, entry: Any) -> None:
        if not isinstance(entry, h5py.Dataset):
            return
        created = entry.id.get_create_plist()
        for i in range(created.get_nfilters()):
            code, _, _, name = created.get_filter(i)
            if not h5py.h5z.filter_avail(code):
                missing[code] = FILTERS.get(code, name.decode() or f"filter {code}")

    if h5py.is_hdf5(path):
        with h5py.File(path, "r") as file:
            file.visititems(look)
    return " and ".join(missing.values())


def check_matrices(path: Path, adata: AnnData) -> None:
    """Raise ValueError for a screen from a file with a sparse matrix whose arrays do not fit together."""
    matrices = {"X": None if adata.isbacked else adata.X}
    matrices |= {f"layers/{name}": matrix for name, matrix in layers_of(adata).items()}
    if adata.raw is not None and not adata.isbacked:
        matrices["raw/X"] = adata.raw.X
    for name, matrix in matrices.items():
        check_compressed(f"{path}: {name}", matrix)


def layers_of(adata: AnnData) -> dict[str, Any]:
    """The layers by name, without X, which anndata lists among them from 0.13 on."""
    return {name: adata.layers[name] for name in adata.layers if name is not None}


def values_of(adata: AnnData, layer: str | None = None) -> Any:
    """X, a layer or ``adata.raw`` (its genes of `adata`), in whatever form it is held; None where X is empty.

    A view whose rows run backwards cannot be taken by scipy from a matrix with
    index arrays of two types: then the rows are taken here.
    """
    if layer == RAW and RAW not in adata.layers:
        return adata.raw[:, adata.var_names].X
    try:
        return adata.X if layer is None else adata.layers[layer]
    except ValueError:
        parent, rows, columns = (getattr(adata, name, None) for name in ("_adata_ref", "_oidx", "_vidx"))
        if not adata.is_view or parent is None:
            raise
        whole = as_csr(parent.X if layer is None else parent.layers[layer])
        numbers = np.arange(whole.shape[0])[rows]
        parts = whole.data, whole.indices.astype(np.int64), whole.indptr
        wide = sparse.csr_matrix(parts, shape=whole.shape)
        return as_csr(wide[numbers][:, columns])


def other_features(var: pd.DataFrame) -> tuple[str, np.ndarray]:
    """The column that calls features something else than gene expression, and the kind of each such feature, (G,).

    "" for genes, and for all features where no column tells them apart ("protein_coding" and "lncRNA" are genes).
    A column like ``feature_types`` tells them apart, and any other one that calls some features genes and gives others
    a name of :data:`OTHER_KINDS`.
    """
    for i, name in enumerate(map(str, var.columns)):
        column, is_known = var.iloc[:, i], re.sub(r"[^a-z]", "", name.lower()) in FEATURE_KEYS
        kinds_G = column.astype(object).where(column.notna(), "not named").astype(str).str.strip()
        plain = {kind: re.sub(r"[^a-z0-9]", "", kind.lower()) for kind in kinds_G.unique()}
        others = {kind for kind, word in plain.items() if OTHER_KINDS.search(word)}
        words = (*EXPRESSION, *BESIDE_OTHERS) if others else EXPRESSION
        genes = {kind for kind, word in plain.items() if word in words}
        if not (is_known or (genes and others)):
            continue
        is_gene_G = kinds_G.isin(genes) if genes else ~kinds_G.isin(others)
        if not is_gene_G.all():
            return name, kinds_G.where(~is_gene_G, "").to_numpy(dtype=object)
    return "", np.full(len(var), "", dtype=object)


class StoredMatrix:
    """A CSR group or dense array of an h5ad file, read by ranges of rows; ValueError if it is stored by columns."""

    def __init__(self, stored: Any) -> None:
        self._stored, self._name = stored, f"{stored.file.filename}: {stored.name.strip('/')}"
        self._indptr: np.ndarray | None = None
        if hasattr(stored, "shape"):
            self.shape = tuple(map(int, stored.shape))
            return
        encoding = stored.attrs.get("encoding-type")
        if encoding != "csr_matrix":
            msg = f"{self._name} is stored as {encoding}; rows are read from a csr_matrix or a dense array"
            raise ValueError(msg)
        self.shape = tuple(map(int, stored.attrs["shape"]))
        indptr = stored["indptr"][:]
        n_values = min(stored[name].shape[0] for name in ("data", "indices"))
        check_bounds(self._name, indptr, self.shape[0], n_values)
        self._indptr = indptr.astype(np.int64)

    @property
    def row_lengths(self) -> np.ndarray:
        """Stored values of each row, (N,)."""
        return np.full(self.shape[0], self.shape[1]) if self._indptr is None else np.diff(self._indptr)

    def csr(self, first: int, last: int) -> sparse.csr_matrix:
        """The rows from `first` to before `last`, in one read."""
        if self._indptr is None:
            return as_csr(np.asarray(self._stored[first:last]))
        start, stop = int(self._indptr[first]), int(self._indptr[last])
        values, genes = (self._stored[name][start:stop] for name in ("data", "indices"))
        check_numbers(self._name, genes, self.shape[1])
        bounds = self._indptr[first : last + 1] - start
        return as_csr(sparse.csr_matrix((values, genes, bounds), shape=(last - first, self.shape[1])))


@np.errstate(over="ignore")
def as_csr(matrix: Any) -> sparse.csr_matrix:
    """A matrix as CSR float32, sorted, without duplicates and explicit zeros.

    Dense arrays, CSR, CSC and the newer sparse arrays give equal results. The input is never changed; where it is
    canonical float32 CSR already its memory is shared, so the result must not be written to. TypeError for anything
    that is neither a numeric array nor a sparse matrix, ValueError for a sparse matrix whose arrays do not fit
    together.
    """
    if sparse.issparse(matrix):
        check_compressed("a sparse matrix", matrix)
        return _canonical(matrix)
    if isinstance(matrix, np.ndarray) and matrix.ndim == 2 and matrix.dtype.kind in "fiub":
        chunks = [
            sparse.csr_matrix(np.asarray(matrix[start : start + DENSE_ROWS], dtype=np.float32))
            for start in range(0, len(matrix), DENSE_ROWS)
        ]
        empty = sparse.csr_matrix((0, matrix.shape[1]), dtype=np.float32)
        return _plain_types(sparse.vstack(chunks or [empty], format="csr"))
    if hasattr(matrix, "compute"):
        msg = f"expression is a dask array ({type(matrix).__name__}), which is not computed yet; give adata.to_memory()"
        raise TypeError(msg)
    held = f" of {matrix.dtype}" if hasattr(matrix, "dtype") else ""
    msg = f"expression must be a dense array or a sparse matrix of numbers; found {type(matrix).__name__}{held}"
    raise TypeError(msg)


def _canonical(matrix: Any) -> sparse.csr_matrix:
    csr = matrix.tocsr()
    # A new object around the same arrays: flags and in-place repairs must not reach the caller's.
    # (scipy's checks of order and duplicates store flags on the object.)
    values = csr.data.astype(np.float32, copy=False)
    plain = sparse.csr_matrix((values, csr.indices, csr.indptr), shape=csr.shape, copy=False)
    if not is_canonical(plain):
        plain = sparse.csr_matrix((csr.data, csr.indices, csr.indptr), shape=csr.shape, copy=True)
        plain.sum_duplicates()
        plain.data = plain.data.astype(np.float32)
        plain.eliminate_zeros()
    return _plain_types(plain)


def is_canonical(csr: sparse.csr_matrix) -> bool:
    """Whether every row is sorted, without duplicates and explicit zeros; looked at in pieces."""
    step = max(1, PIECE * len(csr.indptr) // max(1, csr.nnz))
    for start in range(0, csr.shape[0], step):
        bounds = csr.indptr[start : start + step + 1].astype(np.int64)
        own = slice(int(bounds[0]), int(bounds[-1]))
        parts = csr.data[own], csr.indices[own], (bounds - bounds[0]).astype(csr.indices.dtype)
        rows = sparse.csr_matrix(parts, shape=(len(bounds) - 1, csr.shape[1]), copy=False)
        if not (rows.has_canonical_format and np.all(rows.data)):
            return False
        release(csr.data, csr.indices)
    return True


def _plain_types(csr: sparse.csr_matrix) -> sparse.csr_matrix:
    csr.indices = csr.indices.astype(np.int32, copy=False)
    csr.indptr = csr.indptr.astype(np.int64, copy=False)
    return csr


def log_normalize(counts: sparse.csr_matrix) -> sparse.csr_matrix:
    """Counts, (N, G) CSR, canonical, to log(1 + counts per 10,000), as scanpy does to the bit; a new matrix.

    Computed in float64 and stored as float32, some cells at a time: the values do not depend on how many. Cells
    without any count stay zero. Not by scanpy itself, whose threads would stay torch's threads.
    """
    values, total_N = np.empty(counts.nnz, dtype=np.float32), np.asarray(counts.sum(axis=1, dtype=np.float64)).ravel()
    for start in range(0, counts.shape[0], DENSE_ROWS):
        bounds = counts.indptr[start : start + DENSE_ROWS + 1]
        stored = slice(bounds[0], bounds[-1])
        of_cell = np.repeat(total_N[start : start + DENSE_ROWS] / 1e4, np.diff(bounds))
        values[stored] = np.log1p(counts.data[stored].astype(np.float64) / of_cell)
    return sparse.csr_matrix((values, counts.indices, counts.indptr), shape=counts.shape)


def share_of_integers(values: np.ndarray) -> float:
    """Share of whole numbers among the values, looked at in pieces; 0 for no values."""
    n = sum(int(np.count_nonzero(piece == np.rint(piece))) for piece in pieces(values))
    return n / len(values) if len(values) else 0.0
