"""Opening a screen from h5ad, zarr, 10x h5, 10x mtx or a folder of several files."""

from __future__ import annotations

import gzip
import itertools
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.core._messages import count, shorten
from gears.data.reading._guides import SOURCE, read_table
from gears.data.reading._matrix import (
    StoredMatrix,
    as_csr,
    check_matrices,
    layers_of,
    other_features,
    read_screen,
    refuse_packed,
)
from gears.data.screen._cells import CellMatrix
from gears.data.screen._moments import CHUNK_VALUES
from gears.files._atomic import scratch_folder
from gears.files._mapped import check_compressed
from gears.files._paths import reading, user_path
from gears.files._untrusted import WholeLines, refuse_beyond, refuse_links

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

KINDS = "an h5ad file, a zarr store, a 10x h5 file, a 10x mtx folder, or a folder of several of these"
SUFFIXES = (".h5ad", ".zarr", ".h5", ".mtx.gz", ".mtx")
"""Of screens, by which files are looked for by name; what a file holds is detected from its content."""
EXPRESSION = "Gene Expression"

_ADDRESS = re.compile(r"([a-z][a-z0-9]+):/{1,2}(?=[^/])", re.IGNORECASE)
"""Of the web; one slash where the address was made a path."""

MOST_IN_MEMORY = 1 << 26
"""Stored values of a matrix that are read into memory; a larger one is mapped from a file."""
CELLS_OF_OTHERS = 400
"""Cells of each matrix that is not used, enough to recognise its scale."""


def open_screen(path: str | Path, *, backed: bool = False) -> AnnData:
    """Read a screen, whose format is detected from its content.

    Parameters
    ----------
    path
        An h5ad file, a zarr store, a 10x h5 file (versions 2 and 3), a folder with ``matrix.mtx`` beside
        ``features.tsv`` (or ``genes.tsv``) and ``barcodes.tsv`` (each may be gzipped), or a folder with several of
        these, whose cells are put together.
    backed
        Leave the values of an h5ad file on disk.

    Returns
    -------
    AnnData
        Of 10x files: counts in X, ``var.gene_name``, features that are no genes excluded.
        Of several files: ``obs.source_file``.

    Raises
    ------
    FileNotFoundError, ValueError
        If there is nothing, or nothing that can be read.
    """
    refuse_address(path)
    path = user_path(path)
    file_format = kind_of(path)
    if file_format == "h5ad":
        return read_screen(path, backed=backed)
    if file_format == "several":
        members = members_of(path)
        whole = put_together(members, [open_screen(member) for member in members])
        logger.info("%s: %s from %d files", path, count(whole.n_obs, "cell"), len(members))
        return whole
    return {"zarr": _read_zarr, "10x-h5": _read_10x_h5, "10x-mtx": _read_10x_mtx}[file_format](path)


def refuse_address(path: str | Path) -> None:
    """Raise ValueError for an address of the web or of a store ("https://...", "s3://...")."""
    match = _ADDRESS.match(str(path))
    if match:
        msg = (
            f"{path} is a web address ({match[1]}), and screens are read from files; download it first "
            "(curl -LO ADDRESS, or the store's own command) and give the file"
        )
        raise ValueError(msg)


def name_of(path: Path) -> str:
    """The name of a file or folder without the suffix of a screen."""
    return next((path.name.removesuffix(end) for end in SUFFIXES if path.name.endswith(end)), path.name)


def kind_of(path: Path) -> str:
    """ "h5ad", "zarr", "10x-h5", "10x-mtx" or "several"; FileNotFoundError or ValueError for anything else."""
    if not path.exists():
        msg = f"there is no file or folder {path}"
        raise FileNotFoundError(msg)
    if path.is_dir():
        return _kind_of_folder(path)
    if path.stat().st_size == 0:
        msg = f"{path} is empty (0 bytes): a download or copy that stopped? get it again"
        raise ValueError(msg)
    import h5py

    if h5py.is_hdf5(path):
        refuse_beyond(path)
        with h5py.File(path, "r") as file:
            names = set(file)
            _refuse_relatives(path, file)
            if {"obs", "var"} <= names:
                return "h5ad"
            groups = [file[name] for name in names if isinstance(file[name], h5py.Group)]
            if "matrix" in names or any("barcodes" in group for group in groups):
                return "10x-h5"
        msg = f"{path} is an HDF5 file without what AnnData or 10x write (it has {shorten(sorted(names)) or 'nothing'})"
        raise ValueError(msg)
    if ".mtx" in path.suffixes[-2:]:
        return "10x-mtx"
    refuse_packed(path)
    if path.suffix == ".h5ad":
        read_screen(path)  # says what is wrong with it
    msg = f"{path} is none of what can be read: {KINDS}"
    raise ValueError(msg)


def _refuse_relatives(path: Path, file: Any) -> None:
    """Raise ValueError for a MuData or a loom file, with what makes an h5ad file of it."""
    if "mod" in file:
        names = sorted(file["mod"])
        rna = _rna_among(names) or "rna"
        msg = (
            f"{path} is a MuData file (h5mu) with the modalities {shorten(names)}; write the expression to an h5ad "
            f"file: mudata.read_h5mu({path.name!r}).mod[{rna!r}].write_h5ad('screen.h5ad')"
        )
        raise ValueError(msg)
    if {"row_attrs", "col_attrs"} <= set(file):
        msg = (
            f"{path} is a loom file; write it to an h5ad file: "
            f"anndata.io.read_loom({path.name!r}).write_h5ad('screen.h5ad')"
        )
        raise ValueError(msg)


def _kind_of_folder(folder: Path) -> str:
    if _is_zarr(folder):
        return "zarr"
    if _matrices(folder):
        return "10x-mtx"
    if members_of(folder):
        return "several"
    there = sorted(place.name for place in folder.iterdir() if not place.name.startswith("."))
    for name in there:
        if (folder / name).is_file():
            refuse_packed(folder / name)
    msg = f"the folder {folder} holds no screen ({shorten(there) or 'it is empty'}); expected {KINDS}"
    raise ValueError(msg)


def _is_zarr(folder: Path) -> bool:
    return any((folder / name).exists() for name in (".zgroup", "zarr.json"))


def _matrices(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*matrix.mtx"), *folder.glob("*matrix.mtx.gz")])


def members_of(folder: Path) -> list[Path]:
    """Files and folders below a folder that are screens themselves."""

    def is_screen(place: Path) -> bool:
        if place.is_dir():
            return _is_zarr(place) or bool(_matrices(place))
        return place.is_file() and place.name.endswith(SUFFIXES)

    return [place for place in sorted(folder.iterdir()) if not place.name.startswith(".") and is_screen(place)]


def _read_zarr(path: Path) -> AnnData:
    import anndata

    refuse_links(path)
    with reading(path, "a zarr store of an AnnData"):
        adata = anndata.read_zarr(path)
    check_matrices(path, adata)
    return adata


def put_together(members: Sequence[Path], screens: Sequence[AnnData]) -> AnnData:
    """The cells of several files one after another; all must measure the same genes."""
    import anndata

    genes = screens[0].var_names
    for member, screen in zip(members, screens, strict=True):
        if not screen.var_names.is_unique:
            msg = f"{member} has repeated gene ids; make them unique (var_names_make_unique) in each file"
            raise ValueError(msg)
        missing = genes.difference(screen.var_names)
        more = screen.var_names.difference(genes)
        if len(missing) or len(more):
            msg = (
                f"{member.name} does not measure the genes of {members[0].name}: {count(len(missing), 'gene')} missing "
                f"({shorten(missing, 3) or 'none'}), {len(more)} more ({shorten(more, 3) or 'none'}); bring the files "
                "to the same genes first (anndata.concat(..., join='inner'))"
            )
            raise ValueError(msg)
    names = [name_of(member) for member in members]
    screens = [screen[:, genes] for screen in screens]
    return anndata.concat(screens, label=SOURCE, keys=names, index_unique="-", join="outer", merge="same")


def _read_10x_h5(path: Path) -> AnnData:
    try:
        import scanpy
    except ImportError:
        msg = f"reading {path.name}, a 10x h5 file, needs scanpy: pip install 'gears-perturb[10x]'"
        raise ImportError(msg) from None
    refuse_beyond(path)
    with reading(path, "a 10x h5 file"):
        with warnings.catch_warnings():
            # scanpy's index are the symbols; here it is the ids
            warnings.filterwarnings("ignore", "Variable names are not unique", UserWarning)
            adata = scanpy.read_10x_h5(path, gex_only=False)
        check_compressed("its matrix", adata.X)
    ids, names = adata.var["gene_ids"].tolist(), adata.var_names.tolist()
    types = adata.var["feature_types"].tolist() if "feature_types" in adata.var else [EXPRESSION] * len(ids)
    return _ten_x(path, adata.X, adata.obs_names.tolist(), ids, names, types)


def _read_10x_mtx(path: Path) -> AnnData:
    from scipy.io import mmread

    matrices = _matrices(path) if path.is_dir() else [path]
    if len(matrices) > 1:
        several = shorten(file.name for file in matrices)
        msg = f"{path} has {len(matrices)} matrices ({several}); name one, or put each in a separate folder"
        raise ValueError(msg)
    file = matrices[0]
    prefix = file.name.removesuffix(".gz").removesuffix("matrix.mtx")
    features = _table(file.parent, prefix, ("features.tsv", "genes.tsv"))
    barcodes = _table(file.parent, prefix, ("barcodes.tsv",))[0].astype(str).tolist()
    opener: Any = gzip.open if file.suffix == ".gz" else open
    with reading(file, "a MatrixMarket file"), opener(file, "rb") as opened:
        matrix = sparse.csr_matrix(mmread(WholeLines(opened))).T.tocsr()
    if matrix.shape != (len(barcodes), len(features)):
        msg = (
            f"{file} has {matrix.shape[1]} features x {matrix.shape[0]} cells, but there are {len(features)} features "
            f"and {len(barcodes)} barcodes beside it; the files do not belong together"
        )
        raise ValueError(msg)
    ids = features[0].astype(str).tolist()
    names = features[1].astype(str).tolist() if 1 in features else ids
    types = features[2].astype(str).tolist() if 2 in features else [EXPRESSION] * len(ids)
    return _ten_x(file, matrix, barcodes, ids, names, types)


def _table(folder: Path, prefix: str, names: Sequence[str]) -> pd.DataFrame:
    for name in names:
        for place in (folder / f"{prefix}{name}", folder / f"{prefix}{name}.gz"):
            if place.is_file():
                return read_table(place, header=False)
    msg = f"{folder} has no {' or '.join(prefix + name for name in names)} (plain or .gz) beside the matrix"
    raise FileNotFoundError(msg)


def _ten_x(path: Path, matrix: Any, barcodes: list[str], ids: list[str], names: list[str], types: list[str]) -> AnnData:
    from anndata import AnnData

    var = pd.DataFrame({"gene_name": names, "feature_types": types}, index=pd.Index(ids, name=None))
    _, others_G = other_features(var)
    is_gene_G = others_G == ""
    if not is_gene_G.all():
        kinds = shorten(f"{kind}: {n}" for kind, n in Counter(others_G[~is_gene_G]).items())
        logger.warning("%s: features other than gene expression are excluded (%s)", path, kinds)
        matrix = sparse.csr_matrix(matrix)[:, np.flatnonzero(is_gene_G)]
    var = var.loc[is_gene_G, ["gene_name"]]
    return AnnData(as_csr(matrix), obs=pd.DataFrame(index=pd.Index(barcodes)), var=var)


def open_lean(path: Path, layer: str | None, near: Path) -> AnnData:
    """A screen's file with its annotations and the values of `layer` (None: of X).

    Of an h5ad file embeddings and ``uns`` are not read, and of other layers and ``raw`` some cells alone, whose values
    tell their scale: all others are empty. A matrix of more than :data:`MOST_IN_MEMORY` values is brought chunk by
    chunk into a file in the folder `near` that is mapped into memory (and has no name any more), so that preparing it
    holds no second copy and the system can let go of its pages. Other kinds of files are read whole. Errors are those
    of :func:`open_screen`.
    """
    path = user_path(path)
    if kind_of(path) != "h5ad":
        return open_screen(path)
    import h5py
    from anndata import AnnData
    from anndata.io import read_elem

    try:
        with h5py.File(path, "r") as file:
            obs, var = read_elem(file["obs"]), read_elem(file["var"])
            names = sorted(file["layers"]) if "layers" in file else []
            stored = StoredMatrix(file["X" if layer is None else f"layers/{layer}"])
            if stored.shape != (len(obs), len(var)):
                msg = f"its values have shape {stored.shape}"
                raise ValueError(msg)
            matrix = _brought(stored, near)
            layers = {name: matrix if name == layer else _begun(file[f"layers/{name}"]) for name in names}
            raw = {"X": _begun(file["raw/X"]), "var": read_elem(file["raw/var"])} if "raw" in file else None
        nothing = sparse.csr_matrix(matrix.shape, dtype=np.float32)
        return AnnData(X=matrix if layer is None else nothing, obs=obs, var=var, layers=layers, raw=raw)
    except (KeyError, ValueError, OSError, TypeError) as error:  # an older layout, or stored by columns
        logger.debug("%s is read whole (%s)", path, error)
        return open_screen(path)


def in_reach(adata: AnnData, near: Path) -> AnnData:
    """An AnnData whose values can be used like those in memory; one that is backed by a file is treated as the file.

    Of a MuData the RNA modality is taken, with the annotation of its cells that the whole has beside it. TypeError if
    it is neither.
    """
    from anndata import AnnData

    if isinstance(getattr(adata, "mod", None), Mapping):
        adata = _rna_of(adata)
    if not isinstance(adata, AnnData):
        remedy = "anndata.AnnData(X, obs, var) makes one: cells x genes, obs with the label of each cell"
        if isinstance(adata, str | Path):
            remedy = f"PertData('data').load(data_path={str(adata)!r}) or anndata.read_h5ad reads a file"
        msg = f"expected an AnnData object, found {type(adata).__name__}; {remedy}"
        raise TypeError(msg)
    if isinstance(adata.uns.get("gears"), Mapping) and "controls_condition" in adata.uns["gears"]:
        msg = "this AnnData is a moment pack, whose rows are no cells; give its path: PertData(...).load(data_path=...)"
        raise ValueError(msg)
    if not adata.isbacked:
        return adata
    if adata.is_view:
        return adata.to_memory()
    held = {"X": adata.X} | ({} if adata.raw is None else {"raw": adata.raw.X})
    try:
        stored = {name: StoredMatrix(getattr(matrix, "group", matrix)) for name, matrix in held.items()}
    except ValueError:  # stored by columns
        return adata.to_memory()
    values = {name: _brought(matrix, near) for name, matrix in stored.items()}
    raw = None if adata.raw is None else {"X": values["raw"], "var": adata.raw.var}
    return AnnData(X=values["X"], obs=adata.obs, var=adata.var, layers=layers_of(adata), raw=raw)


def _rna_among(names: Iterable[str]) -> str | None:
    """The modality of a MuData that holds RNA, by its name."""
    return next((name for name in names if "rna" in name.lower() or "gex" in name.lower()), None)


def _rna_of(mdata: Any) -> AnnData:
    """The RNA modality of a MuData, with the columns of ``mdata.obs`` that belong to no modality and that it lacks."""
    from anndata import AnnData

    name = _rna_among(mdata.mod)
    if name is None:
        msg = (
            f"none of the modalities {shorten(list(mdata.mod))} of the MuData is called rna or gex; pass the AnnData "
            "with the expression: mdata.mod[NAME]"
        )
        raise ValueError(msg)
    rna = mdata.mod[name]
    others = [key for key in mdata.obs if ":" not in str(key) and key not in rna.obs]
    obs = rna.obs.join(mdata.obs.loc[rna.obs_names, others])
    raw = None if rna.raw is None else {"X": rna.raw.X, "var": rna.raw.var}
    return AnnData(X=rna.X, obs=obs, var=rna.var, layers=layers_of(rna), raw=raw)


def _begun(matrix: Any) -> sparse.csr_matrix:
    """A stored matrix with the first :data:`CELLS_OF_OTHERS` cells, all others empty; none if stored by columns."""
    import h5py

    try:
        stored = StoredMatrix(matrix)
    except ValueError:
        shape = matrix.attrs["shape"] if isinstance(matrix, h5py.Group) else matrix.shape
        return sparse.csr_matrix(tuple(shape), dtype=np.float32)
    n_cells = stored.shape[0]
    rows = stored.csr(0, min(CELLS_OF_OTHERS, n_cells))
    indptr = np.pad(rows.indptr, (0, n_cells - rows.shape[0]), mode="edge")
    return sparse.csr_matrix((rows.data, rows.indices, indptr), shape=stored.shape)


def _brought(stored: StoredMatrix, near: Path) -> sparse.csr_matrix:
    """The whole matrix as CSR: in memory, or mapped from a file that loses its name at once."""
    lengths = stored.row_lengths
    if int(lengths.sum()) <= MOST_IN_MEMORY:
        return stored.csr(0, len(lengths))
    ends = np.flatnonzero(np.diff(np.cumsum(np.maximum(lengths, 1)) // CHUNK_VALUES)) + 1
    with scratch_folder(near) as folder:
        ranges = itertools.pairwise([0, *ends.tolist(), len(lengths)])
        CellMatrix.write(folder, itertools.starmap(stored.csr, ranges))
        return CellMatrix(folder, stored.shape[1]).mapped()
