"""Simulated screens with negative-binomial counts, in memory or written chunk by chunk, and their truth."""

from __future__ import annotations

import dataclasses
import functools
import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse, stats
from scipy.interpolate import CubicSpline

from gears.conditions import Condition
from gears.core._messages import shorten, unknown_name
from gears.files._atomic import write_atomically
from gears.files._paths import check_output
from gears.files.formats import plain_adata, read_npz, write_npz
from gears.graphs._annotation import GeneAnnotation
from gears.simulate._design import make_design, stage_generator
from gears.simulate._effects import Modules, Network, make_effects
from gears.simulate._options import SimulationOptions

if TYPE_CHECKING:
    import pandas as pd
    from anndata import AnnData

logger = logging.getLogger(__name__)

# Cells that share a random generator. Constant, so that counts do not depend on the size of chunks.
BLOCK = 256
_GRID_POINTS, _NODES, _EXACT_COUNTS = 128, 9, 128
_CHUNK = 256
# Draws, and as many of opposite sign, from which the truth takes how log expression varies over cells.
_DRAWS = 1024
_ARRAYS = ("control_mean_G", "delta_CG", "effect_CG", "gene_effect_PG", "go_similarity_PP")


def draw_block(options: SimulationOptions, share_BG: np.ndarray, block: int) -> np.ndarray:
    """Counts of one block of cells, (cells, G) int64, from expected shares of genes; drawn by seed and number."""
    rng = stage_generator(options.seed, "cells", block)
    sd = options.library_sd
    library_B = options.mean_library * np.exp(sd * rng.standard_normal(len(share_BG)) - sd**2 / 2)
    mean_BG = share_BG * library_B[:, None]
    if options.dispersion > 0:
        mean_BG *= rng.standard_gamma(1 / options.dispersion, size=mean_BG.shape) * options.dispersion
    return rng.poisson(mean_BG)


def softmax(log_share: np.ndarray) -> np.ndarray:
    """Shares along the last axis."""
    share = np.exp(log_share - log_share.max(axis=-1, keepdims=True))
    return share / share.sum(axis=-1, keepdims=True)


def expected_expression(options: SimulationOptions, share: np.ndarray) -> np.ndarray:
    """E[log1p(mean library x count / total)] of genes with the given expected shares, positive, of any shape.

    The expectation runs over library size (Gauss-Hermite) and count (sum over its distribution; bins beyond 128). The
    cell's total is the count itself plus the *expected* counts of the other genes, which is exact up to the relative
    variance of that sum: below 1 % from some hundred genes on.
    """
    log_share = np.log(share)
    low, high = float(log_share.min()), float(log_share.max())
    if high - low < 1e-9:
        return np.full(share.shape, _expectation(options, np.array([math.exp(low)]))[0])
    grid = np.linspace(low, high, _GRID_POINTS)
    return CubicSpline(grid, _expectation(options, np.exp(grid)))(log_share)


def expected_over_cells(options: SimulationOptions, log_share_CG: np.ndarray, change_DG: np.ndarray) -> np.ndarray:
    """Mean of :func:`expected_expression`, (C, G), over cells whose log shares vary about those of their condition.

    Each row of `change_DG` is a cell, whose shares are the softmax of ``log_share + change``; the rows are symmetric
    about 0. The log of a share, change minus log of the sum, is taken to be normal over cells, with the mean and
    variance that the rows give, so that the expectation is by Gauss-Hermite and not over D x C x G values. The
    difference to the mean over the rows is below 0.003 (root mean square over genes) where the s.d. of the changes is
    at most 0.5.
    """
    node_N, weight_N = np.polynomial.hermite.hermgauss(_NODES)
    factor_DG, variance_G = np.exp(change_DG), change_DG.var(axis=0)
    result_CG = np.empty(log_share_CG.shape)
    for start in range(0, len(log_share_CG), _CHUNK):
        chunk_BG = np.log(softmax(log_share_CG[start : start + _CHUNK]))
        total_DB = np.log(factor_DG @ np.exp(chunk_BG).T)
        mean_B1 = total_DB.mean(axis=0)[:, None]
        centred_DB = total_DB - mean_B1.T
        covariance_BG = centred_DB.T @ change_DG / len(change_DG)
        variance_BG = variance_G - 2 * covariance_BG + (centred_DB**2).mean(axis=0)[:, None]
        sd_BG = np.sqrt(np.maximum(variance_BG, 0))
        log_BGN = (chunk_BG - mean_B1)[..., None] + math.sqrt(2) * sd_BG[..., None] * node_N
        value_BGN = expected_expression(options, np.exp(np.minimum(log_BGN, 0)))
        result_CG[start : start + _CHUNK] = value_BGN @ weight_N / math.sqrt(math.pi)
    return result_CG


def _expectation(options: SimulationOptions, share_S: np.ndarray) -> np.ndarray:
    sd = options.library_sd
    node_L, weight_L = np.polynomial.hermite.hermgauss(_NODES if sd > 0 else 1)
    library_L = options.mean_library * np.exp(math.sqrt(2) * sd * node_L - sd**2 / 2)
    mean_SL = share_S[:, None] * library_L
    edges = _count_edges(_count_distribution(options, mean_SL.max()).isf(1e-10))
    below = _count_distribution(options, mean_SL[..., None]).cdf(edges - 1)
    probability_SLK = np.diff(below, axis=-1)
    count_K = (edges[:-1] + edges[1:] - 1) / 2
    others_SL1 = ((1 - share_S)[:, None] * library_L)[..., None]
    value_SLK = np.log1p(options.mean_library * count_K / np.maximum(count_K + others_SL1, 1e-12))
    return (probability_SLK * value_SLK).sum(axis=-1) @ weight_L / math.sqrt(math.pi)


def _count_distribution(options: SimulationOptions, mean: np.ndarray | float) -> stats.rv_frozen:
    if options.dispersion == 0:
        return stats.poisson(mean)
    size = 1 / options.dispersion
    return stats.nbinom(size, size / (size + mean))


def _count_edges(largest: float) -> np.ndarray:
    """Edges of bins of counts: single counts first, then bins that grow by 2 %."""
    steps = math.ceil(math.log(max(largest + 2, _EXACT_COUNTS) / _EXACT_COUNTS) / math.log(1.02)) + 1
    wide = np.ceil(_EXACT_COUNTS * 1.02 ** np.arange(steps + 1))
    return np.unique(np.concatenate([np.arange(_EXACT_COUNTS), wide]))


@dataclass(frozen=True, eq=False)
class SimulatedTruth:
    """Expected expression and effects of a simulated screen.

    Parameters
    ----------
    genes
        Measured genes (G), columns of the screen.
    perturbed
        Perturbed genes (P).
    conditions
        Conditions (C), the control first.
    control_mean_G
        Expected log-expression of control cells (mean over batches and cell types).
    delta_CG
        Expected log-expression of each condition minus that of the control; row 0 is zero. Both are means over batches
        and cell types, each counted once, whatever batches the condition's cells come from.
    effect_CG
        Log-fold changes of expected counts in each condition, before normalisation to the cell's total.
    gene_effect_PG
        The same for each single perturbed gene.
    interactions
        Kind of each condition with two or more genes: "additive", "synergy", "suppression", "masking", "saturating" or
        "products".
        In a regulatory network "additive" if the effect on genes that are not perturbed departs from the sum of the
        single effects by at most 0.2 of the norm of that sum; else "synergy" if the effect has the larger norm, and
        "suppression" if it has the smaller one.
    go_similarity_PP
        GO Jaccard similarity of the perturbed genes.
    options
        Options of the simulation.
    """

    genes: tuple[str, ...]
    perturbed: tuple[str, ...]
    conditions: tuple[Condition, ...]
    control_mean_G: np.ndarray
    delta_CG: np.ndarray
    effect_CG: np.ndarray
    gene_effect_PG: np.ndarray
    interactions: Mapping[Condition, str]
    go_similarity_PP: np.ndarray
    options: SimulationOptions

    def index(self, condition: Condition | str | Iterable[str]) -> int:
        """Row of a condition: a Condition, a label, or genes in any order."""
        requested = Condition.of(condition)
        try:
            return self.conditions.index(requested)
        except ValueError:
            names = [own_condition.name for own_condition in self.conditions]
            raise KeyError(unknown_name("condition", requested.name, names)) from None

    def delta(self, condition: Condition | str | Iterable[str]) -> np.ndarray:
        """(G,) expected log-expression of a condition minus that of the control."""
        return self.delta_CG[self.index(condition)]

    def mean(self, condition: Condition | str | Iterable[str]) -> np.ndarray:
        """(G,) expected log-expression of a condition."""
        return self.control_mean_G + self.delta(condition)

    def to_frame(self) -> pd.DataFrame:
        """`delta_CG` with condition names as rows and genes as columns."""
        import pandas as pd

        names = pd.Index([condition.name for condition in self.conditions], name="condition")
        return pd.DataFrame(self.delta_CG, index=names, columns=list(self.genes))

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write to an npz file (plain arrays); a file that is there is replaced only with `overwrite`."""
        check_output(path, overwrite)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        for name in ("genes", "perturbed"):
            arrays[name] = np.array(getattr(self, name), dtype=str)
        arrays["conditions"] = np.array([condition.name for condition in self.conditions], dtype=str)
        arrays["kinds"] = np.array([self.interactions.get(c, "") for c in self.conditions], dtype=str)
        arrays["options"] = np.array(json.dumps(dataclasses.asdict(self.options)))
        return write_npz(path, arrays)

    @classmethod
    def load(cls, path: str | Path) -> SimulatedTruth:
        """Read a file of :meth:`save`."""
        arrays = read_npz(path)
        missing = {*_ARRAYS, "genes", "perturbed", "conditions", "kinds", "options"} - set(arrays)
        if missing:
            msg = f"{path} holds no truth of a simulated screen: {shorten(sorted(missing))} missing"
            raise ValueError(msg)
        conditions = tuple(Condition.parse(name) for name in arrays["conditions"].tolist())
        kinds = zip(conditions, arrays["kinds"].tolist(), strict=True)
        return cls(
            genes=tuple(arrays["genes"].tolist()),
            perturbed=tuple(arrays["perturbed"].tolist()),
            conditions=conditions,
            interactions={condition: kind for condition, kind in kinds if kind},
            options=SimulationOptions(**json.loads(str(arrays["options"]))),
            **{name: arrays[name] for name in _ARRAYS},
        )


class Simulation:
    """A screen that is simulated in blocks of cells, on demand.

    Any part of the cells can be drawn at any time; the result does not depend on what was drawn before or on the size
    of chunks. `annotation` is the GO annotation that effects follow; None: the packaged human one.
    """

    def __init__(self, options: SimulationOptions, *, annotation: GeneAnnotation | None = None) -> None:
        self.options = options
        for sentence in options.without_effect():
            logger.warning("%s", sentence)
        annotation = GeneAnnotation.human() if annotation is None else annotation
        self._design = make_design(options, annotation)
        self._source: Modules | Network | None = None
        if options.n_modules > 0:
            self._source = Modules.draw(options)
        elif options.network_degree > 0:
            self._source = Network.draw(options, self._design)
        self._effects = make_effects(options, self._design, annotation, self._source)
        rng = stage_generator(options.seed, "baseline")
        n_genes = options.genes
        self._baseline_G = options.baseline_sd * rng.standard_normal(n_genes)
        self._type_TG = options.cell_type_effect * rng.standard_normal((options.cell_types, n_genes))
        self._type_TG[0] = 0
        self._batch_KG = options.batch_size_effect * rng.standard_normal((options.n_batches, n_genes))
        layout = stage_generator(options.seed, "layout")
        n_cells = self._design.n_cells
        self._condition_N = layout.permutation(np.repeat(np.arange(len(n_cells)), n_cells))
        self._type_N = layout.integers(options.cell_types, size=self.n_cells)
        self._batch_N = self._batches(layout)

    def _batches(self, layout: np.random.Generator) -> np.ndarray:
        """(N,) batch of each cell: that of its condition for a share of the perturbed cells, else any."""
        batch_N = layout.integers(self.options.n_batches, size=self.n_cells)
        rng = stage_generator(self.options.seed, "confounding")
        of_condition_C = rng.permutation(len(self._design.conditions)) % self.options.n_batches
        is_confounded_N = rng.random(self.n_cells) < self.options.batch_confounding
        is_confounded_N &= self._condition_N > 0
        return np.where(is_confounded_N, of_condition_C[self._condition_N], batch_N)

    @property
    def n_cells(self) -> int:
        """Number of cells of the screen."""
        return int(self._design.n_cells.sum())

    def counts(self, start: int, stop: int) -> sparse.csr_matrix:
        """Counts of cells ``start`` to ``stop`` (CSR float32, (cells, G))."""
        blocks = []
        for block in range(start // BLOCK, -(-stop // BLOCK)):
            first, last = block * BLOCK, min((block + 1) * BLOCK, self.n_cells)
            rows = draw_block(self.options, self._shares(first, last), block)
            blocks.append(sparse.csr_matrix(rows[max(start - first, 0) : stop - first].astype(np.float32)))
        if not blocks:
            return sparse.csr_matrix((0, self.options.genes), dtype=np.float32)
        return sparse.csr_matrix(sparse.vstack(blocks, format="csr"))

    def _shares(self, start: int, stop: int) -> np.ndarray:
        """Expected shares of the cells of one block, (B, G)."""
        cells = slice(start, stop)
        log_share_BG = self._effects.condition_CG[self._condition_N[cells]] + self._baseline_G
        log_share_BG += self._type_TG[self._type_N[cells]] + self._batch_KG[self._batch_N[cells]]
        if self._source is not None:
            rng = stage_generator(self.options.seed, "activity", start // BLOCK)
            log_share_BG += self._source.cells(rng, stop - start)
        return softmax(log_share_BG)

    def chunks(self, chunk_cells: int = 4096) -> Iterator[sparse.csr_matrix]:
        """Counts of all cells in order, `chunk_cells` at a time."""
        for start in range(0, self.n_cells, chunk_cells):
            yield self.counts(start, min(start + chunk_cells, self.n_cells))

    def expression(self, counts: sparse.csr_matrix) -> sparse.csr_matrix:
        """``log1p(count / total x mean library)`` (CSR float32)."""
        total = np.asarray(counts.sum(axis=1, dtype=np.float64)).ravel()
        scale = self.options.mean_library / np.where(total > 0, total, 1)
        data = np.log1p(counts.data * np.repeat(scale, np.diff(counts.indptr))).astype(np.float32)
        return sparse.csr_matrix((data, counts.indices, counts.indptr), shape=counts.shape)

    @property
    def obs(self) -> pd.DataFrame:
        """Cells: condition, cell_type, batch (categories)."""
        import pandas as pd

        labels = [condition.name for condition in self._design.conditions]
        types = [f"cell{chr(ord('A') + i)}" for i in range(self.options.cell_types)]
        batches = [f"batch{i + 1}" for i in range(self.options.n_batches)]
        return pd.DataFrame(
            {
                "condition": pd.Categorical.from_codes(self._condition_N.tolist(), pd.Index(labels)),
                "cell_type": pd.Categorical.from_codes(self._type_N.tolist(), pd.Index(types)),
                "batch": pd.Categorical.from_codes(self._batch_N.tolist(), pd.Index(batches)),
            },
            index=[f"cell{i:07d}" for i in range(self.n_cells)],
        )

    @property
    def var(self) -> pd.DataFrame:
        """Genes: ``gene_name``, the symbols, which are the index as well."""
        import pandas as pd

        names = list(self._design.genes)
        return pd.DataFrame({"gene_name": names}, index=pd.Index(names, name="gene_symbol"))

    @functools.cached_property
    def truth(self) -> SimulatedTruth:
        """The parameters that the cells are drawn from."""
        design, effects = self._design, self._effects
        mean_CG = np.zeros_like(effects.condition_CG)
        change_DG = None
        if self._source is not None:  # over cells of one condition, as many up as down
            change_DG = self._source.cells(stage_generator(self.options.seed, "expectation"), _DRAWS)
            change_DG = np.concatenate([change_DG, -change_DG])
        contexts = [(k, t) for k in self._batch_KG for t in self._type_TG]
        for batch_G, type_G in contexts:
            log_share_CG = effects.condition_CG + (self._baseline_G + batch_G + type_G)
            if change_DG is None:
                expected_CG = expected_expression(self.options, softmax(log_share_CG))
            else:
                expected_CG = expected_over_cells(self.options, log_share_CG, change_DG)
            mean_CG += expected_CG / len(contexts)
        kinds = zip(design.conditions, effects.kinds, strict=True)
        return SimulatedTruth(
            genes=design.genes,
            perturbed=design.perturbed,
            conditions=design.conditions,
            control_mean_G=mean_CG[0],
            delta_CG=mean_CG - mean_CG[0],
            effect_CG=effects.condition_CG,
            gene_effect_PG=effects.gene_PG,
            interactions={condition: kind for condition, kind in kinds if kind},
            go_similarity_PP=effects.similarity_PP,
            options=self.options,
        )


def simulated_screen(
    options: SimulationOptions | None = None, *, annotation: GeneAnnotation | None = None, **changes: Any
) -> tuple[AnnData, SimulatedTruth]:
    """Simulate a screen in memory.

    Parameters
    ----------
    options
        Options of the simulation; None: the defaults.
    annotation
        GO annotation that effects follow; None: the packaged human one.
    **changes
        Single options by name, see :class:`SimulationOptions`.

    Returns
    -------
    AnnData
        ``X`` log1p-normalised (CSR float32), ``layers["counts"]``, ``obs.condition`` ("ctrl",
        "A+ctrl", "A+B"), ``obs.cell_type``, ``obs.batch`` (the experimental batch), ``var.gene_name``. Cells in random
        order.
    SimulatedTruth
        The parameters that it was drawn from.

    Examples
    --------
    >>> adata, truth = simulated_screen(n_genes=50, n_singles=4, n_pairs=2, cells_per_condition=5, n_control=10)
    >>> adata.shape, len(truth.conditions)
    ((40, 50), 7)
    """
    from anndata import AnnData

    simulation = Simulation(SimulationOptions.of(options, changes), annotation=annotation)
    counts = simulation.counts(0, simulation.n_cells)
    adata = AnnData(X=simulation.expression(counts), obs=simulation.obs, var=simulation.var)
    adata.layers["counts"] = counts
    return adata, simulation.truth


def simulate_to_h5ad(
    path: str | Path,
    options: SimulationOptions | None = None,
    *,
    chunk_cells: int = 4096,
    annotation: GeneAnnotation | None = None,
    overwrite: bool = False,
    **changes: Any,
) -> SimulatedTruth:
    """Write the screen of :func:`simulated_screen` to an h5ad file, holding `chunk_cells` cells at a time.

    Parameters
    ----------
    path
        File to write (temporary name, then renamed).
    chunk_cells
        Cells in memory at once; the file's content does not depend on it.
    overwrite
        Replace a file that is there.

    Returns
    -------
    SimulatedTruth
        The parameters that the screen was drawn from.

    Raises
    ------
    FileExistsError
        A file is there, and `overwrite` is False.
    """
    check_output(path, overwrite)
    if chunk_cells < 1:
        msg = f"chunk_cells={chunk_cells}: expected a positive whole number"
        raise ValueError(msg)
    simulation = Simulation(SimulationOptions.of(options, changes), annotation=annotation)
    # Whole blocks: a chunk that ends inside a block would draw that block twice.
    chunk_cells = -(-chunk_cells // BLOCK) * BLOCK
    write_atomically(path, lambda temporary: _write_h5ad(temporary, simulation, chunk_cells))
    return simulation.truth


def _write_h5ad(path: Path, simulation: Simulation, chunk_cells: int) -> None:
    import h5py
    from anndata.io import sparse_dataset, write_elem

    plain_adata(simulation.obs, simulation.var).write_h5ad(path)
    with h5py.File(path, "r+") as file:
        for number, counts in enumerate(simulation.chunks(chunk_cells)):
            for name, rows in (("X", simulation.expression(counts)), ("layers/counts", counts)):
                if number:
                    sparse_dataset(file[name]).append(rows)
                else:
                    rows.indptr = rows.indptr.astype(np.int64)  # for more than 2^31 values
                    write_elem(file, name, rows)
        for matrix in (file["X"], file["layers/counts"]):
            # row bounds in the type of the indices, where they fit: scipy cannot reverse rows with mixed ones
            if len(matrix["data"]) <= np.iinfo(np.int32).max:
                bounds = matrix["indptr"][:].astype(np.int32)
                del matrix["indptr"]
                matrix["indptr"] = bounds
