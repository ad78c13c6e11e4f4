"""PertData: a screen, its split and its loaders, under the published names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.data import gene_sets
from gears.data.manifest import H5AD
from gears.data.obtaining import obtain_screen
from gears.data.places import folder_name, make_data_path
from gears.data.processing import prepare_screen
from gears.data.reading import read_screen
from gears.data.screen import PreparedScreen
from gears.files import need_file, user_path
from gears.messages import count, shorten
from gears.nodes import PerturbationNodes
from gears.reporting import shown

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.data.inspection import ScreenReport
    from gears.graphs.annotation import GeneAnnotation

logger = logging.getLogger(__name__)


class PertData(PerturbationNodes):
    """A Perturb-seq screen ready for training.

    Parameters
    ----------
    data_path
        Folder that holds prepared screens; made when it is missing.
    gene_set_path
        File with the genes of the perturbation graph (text, CSV, JSON or a
        pickle of a plain list). Genes perturbed in the screen are added.
    default_pert_graph
        True: the nodes are every annotated gene plus every perturbed one;
        False: measured plus perturbed genes. Ignored with `gene_set_path`.
    gene2go
        Another annotation: gene -> terms, a GeneAnnotation, or a file (GAF, GMT, gene2go,
        TSV, JSON; any species). The human one of the package by default.
    obo
        Ontology file (OBO): every ancestor of a gene's terms is added to the annotation.

    Attributes
    ----------
    screen : PreparedScreen
        The data; everything below is derived from it. Where a split divides the control
        cells, those of training (`screen_of` gives each part's, `whole_screen` all).
    adata, ctrl_adata : AnnData
        Published layout with the published ``uns`` lists; read when first used.
    gene_names : pd.Series
        Measured genes, indexed by gene id.
    pert_names : np.ndarray (P,)
        Nodes of the perturbation graph, sorted.
    node_map, node_map_pert : dict
        Gene -> position among the measured genes, among the nodes.
    split : Split
    set2conditions : dict
        Part -> labels as the screen spells them.
    subgroup : dict or None
    dataloader : dict
    """

    def __init__(
        self,
        data_path: str | Path,
        gene_set_path: str | Path | None = None,
        default_pert_graph: bool = True,
        *,
        gene2go: Mapping[str, Any] | GeneAnnotation | str | Path | None = None,
        obo: str | Path | None = None,
    ) -> None:
        self.data_path = make_data_path(data_path)
        self.gene_set_path = None if gene_set_path is None else user_path(gene_set_path)
        self.default_pert_graph = default_pert_graph and gene_set_path is None
        self._gene_set = None if gene_set_path is None else gene_sets.read_gene_set(gene_set_path)
        self._gene2go = need_file(gene2go, "gene2go") if isinstance(gene2go, str | Path) else gene2go
        self._obo = None if obo is None else need_file(obo, "obo")
        self._annotation = None
        self._screen: PreparedScreen | None = None
        self.dataset_name: str | None = None
        self.dataset_path: Path | None = None
        self._forget_screen()

    def _forget_screen(self) -> None:
        """Drop everything that belongs to a screen, so that no state outlives it."""
        self._screen = None
        self._adata: AnnData | None = None
        self._ctrl_adata: AnnData | None = None
        self.gene_names = pd.Series([], dtype=object, name="gene_name")
        self.pert_names = np.empty(0, dtype="U1")
        self.node_map: dict[str, int] = {}
        self.node_map_pert: dict[str, int] = {}
        self._label_nodes: list[list[int]] = []
        self._forget_split()

    def __repr__(self) -> str:
        return (
            f"PertData({self._screen!r})"
            if self._screen
            else f"PertData({str(self.data_path)!r}, no screen yet)"
        )

    # What is known of the screen

    @property
    def whole_screen(self) -> PreparedScreen:
        """The prepared screen, whatever a split makes of its control cells.

        Raises
        ------
        ValueError
            If none was prepared or loaded yet.
        """
        if self._screen is None:
            msg = "this PertData holds no screen yet; call new_data_process(name, adata) or load(...) first"
            raise ValueError(msg)
        return self._screen

    @property
    def adata(self) -> AnnData:
        """Cells and annotations in the published layout, ``uns`` lists included."""
        if self._adata is None:
            from gears.data.uns import published_uns

            adata = read_screen(self.whole_screen.checked_file(H5AD))
            if self.whole_screen.cell_ids is not None:
                adata = adata[self.whole_screen.cell_ids].copy()
                for name in ("condition", "condition_name"):
                    adata.obs[name] = adata.obs[name].cat.remove_unused_categories()
                adata.obs["condition_id"] = self.whole_screen.cell_condition
            adata.uns.update(published_uns(getattr(self.whole_screen, "pooled", self.whole_screen)))
            self._adata = adata
        return self._adata

    @property
    def ctrl_adata(self) -> AnnData:
        """Control cells of :attr:`adata`."""
        if self._ctrl_adata is None:
            self._ctrl_adata = self.adata[self.whole_screen.control_cells].copy()
        return self._ctrl_adata

    # Preparing and loading

    def new_data_process(
        self,
        dataset_name: str,
        adata: AnnData,
        skip_calc_de: bool = False,
        *,
        drop_unmapped: bool = False,
        **processing: Any,
    ) -> None:
        """Check a screen and prepare it as ``<data_path>/<dataset_name in lower case>/``.

        Parameters
        ----------
        dataset_name
            Name of the folder.
        adata
            X (N, G) log-normalised; ``obs.condition`` ("A+B", "A+ctrl", "ctrl"),
            ``obs.cell_type``, ``var.gene_name``, or as the options say. It is
            not modified.
        skip_calc_de
            Leave differential expression out.
        drop_unmapped
            Leave out conditions with a gene that the annotation lacks, as the
            published loader does; by default such genes become isolated nodes.
        **processing
            Options of :class:`gears.data.options.ProcessingOptions`: normalize, layer,
            min_cells, ctrl_label, style, condition_key, ...; and `workers`, processes that
            share the pass over the cells.

        Raises
        ------
        ValueError
            If the screen cannot be used; the message lists every problem found.
        """
        folder = self.data_path / folder_name(dataset_name)
        known = self._is_gene() if processing.get("style", "gears") != "gears" else None
        screen = prepare_screen(adata, folder, skip_calc_de=skip_calc_de, is_gene=known, **processing)
        self._take(screen, drop_unmapped)

    @classmethod
    def from_adata(
        cls,
        adata: AnnData,
        style: str = "auto",
        *,
        data_path: str | Path = "gears_data",
        dataset_name: str = "screen",
        gene2go: Mapping[str, Any] | GeneAnnotation | str | Path | None = None,
        obo: str | Path | None = None,
        default_pert_graph: bool = True,
        drop_unmapped: bool = False,
        verbose: bool = True,
        **processing: Any,
    ) -> PertData:
        """Prepare a screen whose labels are in the style of a published collection.

        What is read from where is logged, and every choice can be overridden
        (condition_key, cell_type_key, gene_key, ctrl_label, sep). Labels that
        name no measured or annotated gene are refused, not guessed.

        Parameters
        ----------
        adata
            The screen; not modified.
        style
            "auto", "gears", "scperturb", "pertpy", "cell-load" or "replogle"
            (:mod:`gears.data.styles`).
        data_path, dataset_name
            Where the prepared screen goes.
        gene2go, obo, default_pert_graph, drop_unmapped
            As for :class:`PertData` and :meth:`new_data_process`.
        verbose
            Show on stderr how the screen is read.
        **processing
            See :class:`gears.data.options.ProcessingOptions`.

        Raises
        ------
        ValueError
            If no style fits or the screen cannot be used; every problem is listed.
        """
        with shown(verbose):
            data = cls(data_path, default_pert_graph=default_pert_graph, gene2go=gene2go, obo=obo)
            data.new_data_process(dataset_name, adata, drop_unmapped=drop_unmapped, style=style, **processing)
            data.log_screen()
        return data

    def load(
        self,
        data_name: str | None = None,
        data_path: str | Path | None = None,
        *,
        drop_unmapped: bool = False,
        **processing: Any,
    ) -> None:
        """Take a prepared screen, or prepare one from a file.

        Parameters
        ----------
        data_name
            Name of a prepared folder or of a file such as ``<name>.h5ad`` in this
            object's `data_path`, or a published screen
            (:data:`gears.data.places.PUBLISHED_SCREENS`).
        data_path
            A prepared folder; a folder of the published package
            (``perturb_processed.h5ad``); or an h5ad file, zarr store, 10x h5 file, 10x mtx
            folder, or folder of several. What is not prepared yet is
            prepared into this object's `data_path`, never beside the file.
        drop_unmapped
            As in :meth:`new_data_process`.
        **processing
            Options of :class:`gears.data.options.ProcessingOptions` for a file, and
            `guides`, `guide_targets` (:func:`gears.data.guides.add_guides`), `workers`
            (processes that share the pass over the cells); for a prepared folder the
            processing options must agree with it.

        Raises
        ------
        FileNotFoundError, ValueError
            If nothing is there, or it cannot be used.
        """
        screen = obtain_screen(self.data_path, data_name, data_path, processing, self._is_gene)
        self._take(screen, drop_unmapped)

    def log_screen(self) -> None:
        """One line on the screen in the log."""
        screen = self.whole_screen
        n_perturbed = sum(not condition.is_control for condition in screen.conditions)
        logger.info(
            "screen %s: %s (%d of them control) x %s, %s",
            self.dataset_name,
            count(len(screen.cells), "cell"),
            len(screen.control_cells),
            count(len(screen.gene_names), "gene"),
            count(n_perturbed, "perturbed condition"),
        )

    def summary(self) -> ScreenReport:
        """What the screen holds, how it was read, and what was left out and why (``print`` it)."""
        from gears.data.inspection import summarise

        parts = None if self.split is None else self.split.parts
        return summarise(self.screen, is_gene=self._is_gene(), parts=parts)

    def _take(self, screen: PreparedScreen, drop_unmapped: bool) -> None:
        """Set every attribute from a screen; the same for all ways in."""
        annotation = self.annotation
        missing = gene_sets.unannotated(annotation, screen.perturbed_genes)
        if missing and drop_unmapped:
            dropped = gene_sets.conditions_with(screen.conditions, missing)
            n_cells = sum(len(screen.cells_of(screen.id_of(condition))) for condition in dropped)
            logger.warning(
                "dropped %s (%s) with %s that the annotation lacks: %s",
                count(len(dropped), "condition"),
                count(n_cells, "cell"),
                count(len(missing), "gene"),
                shorten(missing, 50),
            )
            screen = screen.without(dropped)
        elif missing:
            logger.warning(
                "%s not in the annotation: isolated nodes of the perturbation graph "
                "(their conditions stay; drop_unmapped=True drops them): %s",
                count(len(missing), "perturbed gene"),
                shorten(missing, 50),
            )
        self._forget_screen()
        self._screen = screen
        self.dataset_path = screen.folder
        self.dataset_name = screen.folder.resolve().name
        self.gene_names = pd.Series(screen.gene_names, index=screen.gene_ids, name="gene_name", dtype=object)
        self.node_map = {gene: i for i, gene in enumerate(screen.gene_names)}
        self._set_nodes(annotation)
