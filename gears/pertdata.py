"""PertData: a screen, its split and its loaders, under the published names."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import CONTROL_LABEL, Condition, split_label
from gears.data import gene_sets
from gears.data.divided import DividedScreen
from gears.data.manifest import H5AD, is_prepared
from gears.data.places import find_screen, folder_name, h5ad_behind, warn_if_older
from gears.data.processing import ProcessingOptions, check_same_options, prepare_screen
from gears.data.reading import read_screen
from gears.data.screen import PreparedScreen
from gears.messages import nearest, shorten

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.graphs.annotation import GeneAnnotation

logger = logging.getLogger(__name__)


class PertData(DividedScreen):
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
        Another annotation: gene -> terms, a GeneAnnotation, or a file. The
        human one of the package by default.

    Attributes
    ----------
    screen : PreparedScreen
        The data; everything below is derived from it.
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
    ) -> None:
        self.data_path = Path(data_path)
        self.data_path.mkdir(parents=True, exist_ok=True)
        self.gene_set_path = None if gene_set_path is None else Path(gene_set_path)
        self.default_pert_graph = default_pert_graph and gene_set_path is None
        self._gene_set = None if gene_set_path is None else gene_sets.read_gene_set(gene_set_path)
        self._gene2go = gene2go
        self._annotation: GeneAnnotation | None = None
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
    def annotation(self) -> GeneAnnotation:
        """Gene annotation behind the perturbation graph."""
        if self._annotation is None:
            self._annotation = _annotation_from(self._gene2go)
        return self._annotation

    @property
    def screen(self) -> PreparedScreen:
        """The prepared screen.

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

            self.screen.check_unchanged()
            adata = read_screen(self.screen.folder / H5AD)
            if self.screen.cell_ids is not None:
                adata = adata[self.screen.cell_ids].copy()
                for name in ("condition", "condition_name"):
                    adata.obs[name] = adata.obs[name].cat.remove_unused_categories()
                adata.obs["condition_id"] = self.screen.cell_condition
            adata.uns.update(published_uns(self.screen))
            self._adata = adata
        return self._adata

    @property
    def ctrl_adata(self) -> AnnData:
        """Control cells of :attr:`adata`."""
        if self._ctrl_adata is None:
            self._ctrl_adata = self.adata[self.screen.control_cells].copy()
        return self._ctrl_adata

    def condition_nodes(self, condition: Condition | str) -> list[int]:
        """Nodes of the perturbation graph that a condition perturbs; [] for the control.

        Raises
        ------
        KeyError
            If a gene is no node; near matches are named.
        """
        genes = Condition.of(condition).genes
        for gene in genes:
            if gene not in self.node_map_pert:
                near = nearest(gene, list(self.node_map_pert))
                hint = f"; did you mean {' or '.join(near)}?" if near else ""
                msg = f"gene {gene!r} is not in the perturbation graph{hint}"
                raise KeyError(msg)
        return [self.node_map_pert[gene] for gene in genes]

    # Preparing and loading

    def new_data_process(
        self,
        dataset_name: str,
        adata: AnnData,
        skip_calc_de: bool = False,
        *,
        normalize: bool = False,
        layer: str | None = None,
        min_cells: int | None = None,
        pool_cell_types: bool = False,
        ctrl_label: str = CONTROL_LABEL,
        drop_unmapped: bool = False,
    ) -> None:
        """Check a screen and prepare it as ``<data_path>/<dataset_name in lower case>/``.

        Parameters
        ----------
        dataset_name
            Name of the folder.
        adata
            X (N, G) log-normalised; ``obs.condition`` ("A+B", "A+ctrl", "ctrl"),
            ``obs.cell_type``, ``var.gene_name``. It is not modified.
        skip_calc_de
            Leave differential expression out.
        normalize, layer, min_cells, pool_cell_types, ctrl_label
            See :class:`gears.data.processing.ProcessingOptions`.
        drop_unmapped
            Leave out conditions with a gene that the annotation lacks, as the
            published loader does; by default such genes become isolated nodes.

        Raises
        ------
        ValueError
            If the screen cannot be used; the message lists every problem found.
        """
        name = folder_name(dataset_name)
        screen = prepare_screen(
            adata,
            self.data_path / name,
            skip_calc_de=skip_calc_de,
            normalize=normalize,
            layer=layer,
            min_cells=min_cells,
            pool_cell_types=pool_cell_types,
            ctrl_label=ctrl_label,
        )
        self._take(screen, drop_unmapped)

    def load(
        self,
        data_name: str | None = None,
        data_path: str | Path | None = None,
        *,
        drop_unmapped: bool = False,
        **processing: Any,
    ) -> None:
        """Take a prepared screen, or prepare one from an h5ad file.

        Parameters
        ----------
        data_name
            Name of a prepared folder, or of an ``<name>.h5ad`` file, in this
            object's `data_path`.
        data_path
            A prepared folder, a folder with a ``perturb_processed.h5ad``, or an
            h5ad file. What is not prepared yet is prepared into this object's
            `data_path`, never beside the file.
        drop_unmapped
            As in :meth:`new_data_process`.
        **processing
            Options of :class:`gears.data.processing.ProcessingOptions` for a
            file; for a prepared folder they must agree with it.

        Raises
        ------
        FileNotFoundError, ValueError
            If nothing is there, or it cannot be used.
        """
        ProcessingOptions.of(**processing)  # an unknown name is an error before anything is read
        if (data_name is None) == (data_path is None):
            msg = "load takes either data_name (something in this data_path) or data_path (a folder or an h5ad file)"
            raise ValueError(msg)
        place = Path(data_path) if data_path is not None else find_screen(self.data_path, str(data_name))
        if place.is_dir() and is_prepared(place):
            screen = PreparedScreen.open(place)
            warn_if_older(place, self.data_path / f"{data_name or place.name}.h5ad")
            check_same_options(screen, processing)
        else:
            file, name = h5ad_behind(place, self.data_path)
            screen = prepare_screen(read_screen(file), self.data_path / name, **processing)
        self._take(screen, drop_unmapped)

    def _take(self, screen: PreparedScreen, drop_unmapped: bool) -> None:
        """Set every attribute from a screen; the same for all ways in."""
        annotation = self.annotation
        missing = gene_sets.unannotated(annotation, screen.perturbed_genes)
        if missing and drop_unmapped:
            dropped = gene_sets.conditions_with(screen.conditions, missing)
            n_cells = sum(len(screen.cells_of(screen.id_of(condition))) for condition in dropped)
            logger.warning(
                "dropped %d conditions (%d cells) with %d genes that the annotation lacks: %s",
                len(dropped),
                n_cells,
                len(missing),
                shorten(missing, 50),
            )
            screen = screen.without(dropped)
        elif missing:
            logger.warning(
                "%d perturbed genes are not in the annotation and become isolated nodes of the perturbation graph "
                "(their conditions stay; drop_unmapped=True drops them): %s",
                len(missing),
                shorten(missing, 50),
            )
        self._forget_screen()
        self._screen = screen
        self.dataset_path = screen.folder
        self.dataset_name = screen.folder.resolve().name
        self.gene_names = pd.Series(screen.gene_names, index=screen.gene_ids, name="gene_name", dtype=object)
        self.node_map = {gene: i for i, gene in enumerate(screen.gene_names)}
        self._set_nodes(annotation)

    def _set_nodes(self, annotation: GeneAnnotation) -> None:
        screen = self.screen
        perturbed = screen.perturbed_genes
        if self._gene_set is not None:
            added = sorted(set(perturbed) - set(self._gene_set))
            if added:
                logger.warning(
                    "%d perturbed genes were added to the gene set: %s", len(added), shorten(added, 50)
                )
        self.pert_names = gene_sets.graph_genes(
            annotation,
            screen.gene_names,
            perturbed,
            gene_set=self._gene_set,
            default_pert_graph=self.default_pert_graph,
        )
        self.node_map_pert = {gene: i for i, gene in enumerate(self.pert_names.tolist())}
        self._label_nodes = [
            list(
                dict.fromkeys(
                    self.node_map_pert[gene] for gene in split_label(label) if gene != CONTROL_LABEL
                )
            )
            or [-1]
            for label in screen.labels
        ]


def _annotation_from(gene2go: Mapping[str, Any] | GeneAnnotation | str | Path | None) -> GeneAnnotation:
    from gears.graphs.annotation import GeneAnnotation

    if gene2go is None:
        return GeneAnnotation.human()
    if isinstance(gene2go, GeneAnnotation):
        return gene2go
    if isinstance(gene2go, (str, Path)):
        return GeneAnnotation.from_path(gene2go)
    if isinstance(gene2go, Mapping):
        return GeneAnnotation.from_dict(gene2go)
    msg = f"gene2go is a dict of gene -> terms, a GeneAnnotation or a path; found {type(gene2go).__name__}"
    raise TypeError(msg)
