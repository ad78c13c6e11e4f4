"""Effects of single genes in another screen, brought to the genes of this one.

A table has a row for each gene that was perturbed there and a column for each gene that was measured. Its values may
have any scale: they are used minus their mean over the rows, divided by the s.d. of a cell in that screen; where the
table does not say it, by the column's root mean squared standard error, or else by its s.d. over the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.core._messages import check_unique, count, shorten
from gears.core._numbers import unit_rows
from gears.data.screen._contexts import type_signs
from gears.data.screen._statistics import variance_within
from gears.files._paths import user_path
from gears.files.formats import content_hash, write_npz
from gears.graphs._annotation import pack
from gears.graphs._embeddings import rows_of

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen

Resolve = Callable[[str], str | None]
_MOST_VALUES, _RANK = 4_000_000, 256  # a larger table is saved as its leading directions
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
        broken = [self.genes[row] for row in np.flatnonzero(~np.isfinite(values).all(axis=1)).tolist()]
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
    def of_screen(cls, screen: PreparedScreen, context: str | None = None) -> GeneEffects:
        """Of a prepared screen: changes of its single-gene conditions against their control.

        Of several contexts and types of perturbation the mean over those that perturbed a gene, each less the mean of
        its genes (and with the sign of its type), or `context` alone.

        Raises
        ------
        ValueError
            Fewer than two genes were perturbed alone, or there is no such context.
        """
        if screen.is_measured_KG is not None or len(screen.unmeasured):
            msg = "contexts of this screen measure different genes; take the effects of each line's own screen"
            raise ValueError(msg)
        views = [view for view in screen.settings if context in (None, view.context)]
        if not views:
            msg = f"the screen has no context {context!r}; it has {shorten(screen.contexts) or 'one without a name'}"
            raise ValueError(msg)
        signs = dict(zip(screen.kinds or ("",), type_signs(screen.kinds), strict=True))
        by_gene: dict[str, list[np.ndarray]] = {}
        means, squares_G, cells = [], np.zeros(len(screen.gene_names)), 0.0
        for view in views:
            singles = [condition for condition in view.conditions if len(condition) == 1]
            if not singles:
                continue
            ids = np.array([view.id_of(condition) for condition in singles], dtype=np.int64)
            change_TG = signs.get(view.kind, 1.0) * view.statistics.delta(ids)
            means.append(change_TG.mean(axis=0))
            for condition, change_G in zip(singles, change_TG - means[-1], strict=True):
                by_gene.setdefault(condition.genes[0], []).append(change_G)
            n_cells = float(np.sum(view.statistics.n[ids]))
            squares_G += n_cells * variance_within(view.statistics, ids)
            cells += n_cells
        if len(by_gene) < 2:
            msg = (
                f"{screen.folder.name} perturbs {count(len(by_gene), 'gene')} alone; effects of single genes are needed"
            )
            raise ValueError(msg)
        values_TG = np.mean(means, axis=0) + np.array([np.mean(changes, axis=0) for changes in by_gene.values()])
        return cls(tuple(by_gene), tuple(screen.gene_names), values_TG, np.sqrt(squares_G / cells))

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
        """Arrays for an npz file: half precision, and of very many values 256 directions."""
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
        suffix = next((one for one in _SUFFIXES if output.name.endswith(one)), None)
        if suffix is None:
            msg = f"{output.name}: effects are written as {', '.join(_SUFFIXES)}; choose one of these"
            raise ValueError(msg)
        if suffix == ".npz":
            return write_npz(output, self.arrays())
        frame = pd.DataFrame(self.values, index=pd.Index(self.genes, name="gene"), columns=list(self.measured))
        frame.to_csv(output, sep="," if ".csv" in suffix else "\t", float_format="%.5g")
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


def leading(values_NM: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Factors (N, n) and (n, M) of the best approximation of that rank, by a random subspace with a fixed draw."""
    draw = np.random.Generator(np.random.Philox(key=n))
    basis_MW = draw.standard_normal((values_NM.shape[1], min(n + 32, *values_NM.shape)))
    for _ in range(2):
        basis_MW = np.linalg.qr(values_NM.T @ (values_NM @ basis_MW))[0]
    left, size, turn = np.linalg.svd(values_NM @ basis_MW, full_matrices=False)
    root = np.sqrt(size[:n])
    return left[:, :n] * root, root[:, None] * (turn[:n] @ basis_MW.T)


def _no_common(genes: Sequence[str], nodes: Sequence[str]) -> str:
    by_upper = {node.upper() for node in nodes}
    alike = [gene for gene in genes if gene.upper() in by_upper]
    why = "expected the same kind of gene names in both"
    if alike:
        why = (
            f"{alike[0]!r} there is {alike[0].upper()!r} here: names of another species? translate them to orthologues"
        )
    return (
        f"no perturbed gene of it can be perturbed here (there: {shorten(genes, 3)}; here: {shorten(nodes, 3)}); {why}"
    )
