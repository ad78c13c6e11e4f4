"""Effects of single genes in another screen: read from whatever holds them, and brought to the genes of this one.

A table has a row for each gene that was perturbed there and a column for each gene that was measured. Its values may
have any scale: they are used minus their mean over the rows, divided by the s.d. of a cell in that screen; where the
table does not say it, by the column's root mean squared standard error, or else by its s.d. over the rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gears.core._messages import brief, check_unique, count, shorten
from gears.core._numbers import unit_rows
from gears.data.reading._matrix import as_csr
from gears.data.reading._open import name_of, open_lean
from gears.data.screen._contexts import type_signs
from gears.data.screen._files import is_prepared
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen._statistics import variance_within
from gears.data.screen.prepare import prepare_screen
from gears.files._paths import need_file, reading, user_path
from gears.files.formats import content_hash, read_delimited, read_npz, write_npz
from gears.graphs._annotation import GeneAnnotation, pack, unpack
from gears.graphs._embeddings import rows_of

Resolve = Callable[[str], str | None]
_MOST_VALUES, _RANK = 4_000_000, 256  # a larger table is saved as its leading directions
_ERRORS = ("se", "lfcse", "stderr", "standard_error")
_SUFFIXES = (".npz", ".csv", ".tsv", ".csv.gz", ".tsv.gz")


@dataclass(frozen=True, eq=False)
class GeneEffects:
    """Effects of perturbing single genes, as one screen measured them.

    Parameters
    ----------
    genes
        The T perturbed genes.
    measured
        The G measured genes.
    values
        Change of every measured gene, (T, G), on any scale.
    sd
        Standard deviation of a cell, (G,), up to a common factor; None where it is not known.
    """

    genes: tuple[str, ...]
    measured: tuple[str, ...]
    values: np.ndarray
    sd: np.ndarray | None = None

    def __post_init__(self) -> None:
        values = np.asarray(self.values, dtype=np.float64)
        for name, what in (("genes", "perturbed"), ("measured", "measured")):
            object.__setattr__(self, name, tuple(map(str, getattr(self, name))))
            check_unique(getattr(self, name), f"{what} genes of a table of effects")
        if values.shape != (len(self.genes), len(self.measured)) or min(values.shape) < 2:
            shape = f"{len(self.genes)} perturbed and {len(self.measured)} measured genes"
            msg = f"a table of effects of shape {values.shape} has {shape}; expected two or more of each"
            raise ValueError(msg)
        broken = [name for name, row in zip(self.genes, np.isfinite(values).all(axis=1), strict=True) if not row]
        if broken:
            msg = f"effects of {count(len(broken), 'gene')} are NaN or infinite ({shorten(broken, 3)}); leave them out"
            raise ValueError(msg)
        if self.sd is not None and not (np.isfinite(self.sd).all() and (np.asarray(self.sd) >= 0).all()):
            msg = "standard deviations of a table of effects must be finite and not below 0"
            raise ValueError(msg)
        object.__setattr__(self, "values", values)

    def __repr__(self) -> str:
        return f"GeneEffects({len(self.genes)} perturbed genes x {len(self.measured)} measured)"

    @cached_property
    def content_hash(self) -> str:
        """SHA-256 of names and values."""
        return content_hash(list(self.genes), list(self.measured), self.values, *([] if self.sd is None else [self.sd]))

    @classmethod
    def of(cls, source: Any, resolve: Resolve | None = None) -> GeneEffects:
        """Take effects in any of their forms.

        Parameters
        ----------
        source
            A GeneEffects; a screen (PertData, PreparedScreen, AnnData, a prepared folder or a file of cells); a table:
            DataFrame (index: perturbed genes, columns: measured ones), or a file: ``.npz`` of :meth:`save`,
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

        if isinstance(source, cls):
            return source
        if isinstance(source, pd.DataFrame):
            return _from_frame(source, "the table of effects")
        if isinstance(source, AnnData):
            return _from_adata(source, "the AnnData", resolve)
        source = opened(source)
        if isinstance(source, PreparedScreen):
            return cls.of_screen(source)
        if isinstance(source, str | Path):
            return _from_path(need_file(source, "effects_of"), resolve)
        msg = f"effects_of takes screens, files and tables; found {brief(source)}"
        raise TypeError(msg)

    @classmethod
    def of_screen(cls, screen: PreparedScreen, context: str | None = None) -> GeneEffects:
        """Of a prepared screen: changes of its single-gene conditions against their control.

        Of several contexts and types of perturbation the mean over those that perturbed a gene, each less the mean of
        its genes (and with the sign of its type), or `context` alone.

        Raises
        ------
        ValueError
            Fewer than two genes were perturbed alone, or there is no such context.
        """
        views = [view for view in screen.settings if context in (None, view.context)]
        if not views:
            msg = f"the screen has no context {context!r}; it has {shorten(screen.contexts) or 'one without a name'}"
            raise ValueError(msg)
        signs = dict(zip(screen.kinds or ("",), type_signs(screen.kinds), strict=True))
        found: dict[str, list[np.ndarray]] = {}
        means, squares, cells = [], 0.0, 0.0
        for view in views:
            singles = [condition for condition in view.conditions if len(condition) == 1]
            if not singles:
                continue
            ids = np.array([view.id_of(condition) for condition in singles], dtype=np.int64)
            change_TG = signs.get(view.kind, 1.0) * view.statistics.delta(ids)
            means.append(change_TG.mean(axis=0))
            for condition, change_G in zip(singles, change_TG - means[-1], strict=True):
                found.setdefault(condition.genes[0], []).append(change_G)
            n_cells = float(np.sum(view.statistics.n[ids]))
            squares, cells = squares + n_cells * variance_within(view.statistics, ids), cells + n_cells
        if len(found) < 2:
            msg = f"{screen.folder.name} perturbs {count(len(found), 'gene')} alone; effects of single genes are needed"
            raise ValueError(msg)
        values_TG = np.mean(means, axis=0) + np.array([np.mean(changes, axis=0) for changes in found.values()])
        return cls(tuple(found), tuple(screen.gene_names), values_TG, np.sqrt(np.asarray(squares) / cells))

    def scaled(self) -> np.ndarray:
        """Effects minus their mean over genes, by the s.d. of a cell, (T, G) float32.

        The change of a perturbed gene itself says how well it was hit: it is 0.
        """
        column = {gene: number for number, gene in enumerate(self.measured)}
        own = [(row, column[gene]) for row, gene in enumerate(self.genes) if gene in column]
        at = tuple(np.array(own, dtype=np.int64).reshape(-1, 2).T)
        rest_TG = self.values.copy()
        rest_TG[at] = np.nan
        rest_TG -= np.nanmean(rest_TG, axis=0)
        rest_TG[at] = 0.0
        sd_G = rest_TG.std(axis=0) if self.sd is None else np.asarray(self.sd, dtype=np.float64)
        return np.divide(rest_TG, sd_G, out=np.zeros_like(rest_TG), where=sd_G > 0).astype(np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """Arrays for an npz file that :meth:`of` reads: half precision, and of very many values 256 directions."""
        scale = float(np.abs(self.values).max()) or 1.0
        arrays = {"genes": pack(self.genes), "measured": pack(self.measured), "scale": np.array(scale)}
        if self.values.size <= _MOST_VALUES:
            arrays["effect"] = (self.values / scale).astype(np.float16)
        else:
            mean_G = self.values.mean(axis=0)
            left_TK, right_KG = leading(self.values - mean_G, _RANK)
            arrays |= {"mean": mean_G, "left": left_TK.astype(np.float16), "right": right_KG.astype(np.float16)}
        return arrays if self.sd is None else arrays | {"cell_sd": np.asarray(self.sd, dtype=np.float32)}

    def exact(self) -> dict[str, np.ndarray]:
        """The same without loss."""
        arrays = {"genes": pack(self.genes), "measured": pack(self.measured), "effect": self.values}
        return arrays if self.sd is None else arrays | {"cell_sd": self.sd}

    def save(self, path: str | Path) -> Path:
        """Write the table: ``.npz``, some megabytes (see :meth:`arrays`), or ``.csv``/``.tsv`` without the s.d."""
        output = user_path(path)
        kind = next((suffix for suffix in _SUFFIXES if output.name.endswith(suffix)), None)
        if kind is None:
            msg = f"{output.name}: effects are written as {', '.join(_SUFFIXES)}; choose one of these"
            raise ValueError(msg)
        if kind == ".npz":
            return write_npz(output, self.arrays())
        frame = pd.DataFrame(self.values, index=pd.Index(self.genes, name="gene"), columns=list(self.measured))
        frame.to_csv(output, sep="," if ".csv" in kind else "\t", float_format="%.5g")
        return output


@dataclass(frozen=True, eq=False)
class NodeEffects:
    """Effects of another screen for the genes that can be perturbed here."""

    # nodes_N, scaled_NM: nodes with effects, ascending, and their effects on the M genes measured there
    nodes_N: np.ndarray
    scaled_NM: np.ndarray
    column_G: np.ndarray  # column of each gene that is measured here, -1 where it is not measured there
    table: GeneEffects  # what they are of

    @classmethod
    def of(cls, effects: GeneEffects, nodes: Sequence[str], measured: Sequence[str], resolve: Resolve) -> NodeEffects:
        """The rows of these nodes and the columns of these measured genes, also under other names of the genes."""
        row_P = rows_of(effects.genes, nodes, resolve)
        nodes_N = np.flatnonzero(row_P >= 0)
        column_G = rows_of(effects.measured, measured, resolve)
        if not len(nodes_N):
            raise ValueError(_no_common(effects.genes, nodes))
        scaled_NM = effects.scaled()[row_P[nodes_N]]
        if not scaled_NM.any():
            msg = "every gene has the same effects there, so that they compare no genes"
            raise ValueError(msg)
        return cls(nodes_N, scaled_NM, column_G, effects)

    @cached_property
    def unit_NM(self) -> np.ndarray:
        """Effects scaled to length 1; 0 where a gene has none."""
        return unit_rows(self.scaled_NM)

    def here(self) -> np.ndarray:
        """Effects on the genes measured here, (N, G) float32; 0 where they were not measured there."""
        return np.where(self.column_G >= 0, self.scaled_NM[:, self.column_G], np.float32(0))


def opened(source: Any) -> Any:
    """The prepared screen of a PertData or a prepared folder; anything else as it is."""
    if isinstance(source, str | Path) and is_prepared(user_path(source)):
        return PreparedScreen.open(source)
    return getattr(source, "whole_screen", source)


def leading(values_NM: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors (N, n) and (n, M) of the best approximation of that rank, by a random subspace with a fixed draw."""
    draw = np.random.Generator(np.random.Philox(key=n))
    basis_MW = draw.standard_normal((values_NM.shape[1], min(n + 32, *values_NM.shape)))
    for _ in range(2):
        basis_MW = np.linalg.qr(values_NM.T @ (values_NM @ basis_MW))[0]
    left, size, turn = np.linalg.svd(values_NM @ basis_MW, full_matrices=False)
    root = np.sqrt(size[:n])
    return left[:, :n] * root, root[:, None] * (turn[:n] @ basis_MW.T)


def named_sources(given: Any, what: str) -> dict[str, Any]:
    """Sources by name, from one, a list or a mapping of names; a path must exist."""
    if given is None:
        return {}
    if isinstance(given, Mapping):
        sources = {str(name): source for name, source in given.items()}
    else:
        sources = {}
        for source in given if isinstance(given, list | tuple) else [given]:
            name = _name_of(source)
            sources[name if name not in sources else f"{name} {len(sources) + 1}"] = source
    for name, source in sources.items():
        if not name.strip():
            msg = f"{what} has an entry without a name; give each a name"
            raise ValueError(msg)
        if isinstance(source, str | Path):
            need_file(source, what)
    return sources


def _name_of(source: Any) -> str:
    if isinstance(source, str | Path):
        name = name_of(user_path(source))
        return name.partition(".")[0] or name
    folder = getattr(source, "dataset_path", None) or getattr(source, "folder", None)
    return "another screen" if folder is None else Path(folder).name


def _no_common(genes: Sequence[str], nodes: Sequence[str]) -> str:
    by_upper = {node.upper() for node in nodes}
    alike = [gene for gene in genes if gene.upper() in by_upper]
    why = "expected the same kind of gene names in both"
    if alike:
        why = f"{alike[0]!r} there is {alike[0].upper()!r} here: names of another species? translate them to orthologues"
    return f"no perturbed gene of it can be perturbed here (there: {shorten(genes, 3)}; here: {shorten(nodes, 3)}); {why}"


def _from_path(path: Path, resolve: Resolve | None) -> GeneEffects:
    kind = "".join(path.suffixes[-2:]) if path.suffix == ".gz" else path.suffix
    if kind == ".npz":
        return _from_arrays(path, read_npz(path))
    if kind in (".csv", ".tsv", ".txt", ".csv.gz", ".tsv.gz", ".txt.gz"):
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
        names = [unpack(part) if part.dtype.kind == "u" else part.tolist() for part in (arrays["genes"], arrays["measured"])]
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
        names = adata.var["gene_name"] if "gene_name" in adata.var else adata.var_names
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
            msg = f"{where} cannot be used ({first}); write a table with `gears effects`, which takes options of a screen"
            raise ValueError(msg) from error
        return GeneEffects.of_screen(screen)
