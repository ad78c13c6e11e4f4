"""Simulate screens as AnnData in memory, or as an h5ad file written chunk by chunk."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse

from gears.files._atomic import write_atomically
from gears.files._paths import check_output
from gears.files.formats import plain_adata
from gears.graphs._annotation import GeneAnnotation
from gears.simulate._counts import BLOCK, draw_block, expected_expression, expected_over_cells, softmax
from gears.simulate._design import make_design, stage_generator
from gears.simulate._effects import make_effects
from gears.simulate._modules import Modules
from gears.simulate._network import Network
from gears.simulate._options import SimulationOptions
from gears.simulate._truth import SimulatedTruth

if TYPE_CHECKING:
    import h5py
    import pandas as pd
    from anndata import AnnData

logger = logging.getLogger(__name__)
# Draws, and as many of opposite sign, from which the truth takes how log expression varies over cells.
_DRAWS = 1024


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
        change_DG = self._changes_in_cells()
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

    def _changes_in_cells(self) -> np.ndarray | None:
        """Log changes of genes over cells of one condition, as many up as down, (D, G); None: there are none."""
        if self._source is None:
            return None
        change_DG = self._source.cells(stage_generator(self.options.seed, "expectation"), _DRAWS)
        return np.concatenate([change_DG, -change_DG])


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
        for name in ("X", "layers/counts"):
            _narrow_bounds(file[name])


def _narrow_bounds(matrix: h5py.Group) -> None:
    """Write row bounds in the type of the indices where they fit: scipy cannot reverse rows with mixed ones."""
    if len(matrix["data"]) <= np.iinfo(np.int32).max:
        bounds = matrix["indptr"][:].astype(np.int32)
        del matrix["indptr"]
        matrix["indptr"] = bounds
