"""PertData: a screen with its split, perturbation nodes and loaders, with the names of cell-gears."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import CONTROL_LABEL, Condition, split_label
from gears.core._lazy import Gone
from gears.core._messages import Shown, count
from gears.core._options import Options, anything, option, options, switch, takes
from gears.data.checks._options import ProcessingOptions
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen.prepare import LoadCall, folder_name, make_data_path, obtain_screen, prepare_screen
from gears.data.splits._make import prepare_split
from gears.data.splits._registry import SplitOptions
from gears.data.splits._split import Split, part_screens
from gears.distributed._log import shown
from gears.files._paths import FolderPath, check_output, named, need_files, user_path
from gears.graphs._annotation import annotation_from
from gears.graphs._nodes import PerturbationNodes, graph_genes, read_gene_set, with_annotated_genes

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.data._loaders import CellLoader
    from gears.data._published import CellGraphs
    from gears.data.checks._report import ScreenReport
    from gears.graphs._annotation import GeneAnnotation
    from gears.graphs._effects import GeneEffects

logger = logging.getLogger(__name__)


@options
class PertDataOptions(Options):
    """Which genes can be perturbed, and what is known about them: options of :class:`PertData`."""

    kind = "option of PertData"

    # fmt: off
    gene_set_path: str | Path | None = option(None, anything(),
        help="file with the genes of the graph, instead of all annotated ones")
    default_pert_graph: bool = option(True, switch(),
        help="all annotated genes are nodes of the perturbation graph, not only measured and perturbed ones")
    _: KW_ONLY
    gene2go: Any = option(None, anything(),
        help="file with another annotation: JSON, npz, GAF, GMT, or a table of genes and terms")
    obo: str | Path | None = option(None, anything(),
        help="ontology file (OBO): adds the ancestors of the genes' terms")
    # fmt: on

    def check_together(self) -> None:
        """Raise for files that are missing."""
        need_files(self, self.names())


class PertData(Shown):
    """A Perturb-seq screen ready for training.

    Parameters
    ----------
    data_path
        Folder of prepared screens; created if missing.
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
        The data, with the control cells of training if a split divides the control cells (`screen_of`
        returns those of each part, `whole_screen` all).
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
        Part -> labels as written in the screen.
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
        self.data_path = FolderPath(make_data_path(data_path))
        options = PertDataOptions(gene_set_path, default_pert_graph, gene2go=gene2go, obo=obo)
        self.gene_set_path = None if gene_set_path is None else user_path(gene_set_path)
        self.default_pert_graph = options.default_pert_graph and gene_set_path is None
        self._gene_set = None if options.gene_set_path is None else read_gene_set(options.gene_set_path)
        self._gene2go, self._obo = options.gene2go, options.obo
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
        self._label_nodes: list[Any] = []
        self._forget_split()

    def _forget_split(self) -> None:
        self._part_screens: dict[str, PreparedScreen] = {}
        self._split: Split | None = None
        self._set2conditions: dict[str, list[str]] | None = None
        self.subgroup: dict[str, dict[str, list[str]]] | None = None
        self.seed: int | None = None
        self.train_gene_set_size: float | None = None
        self.dataloader: dict[str, CellLoader] | None = None

    def __repr__(self) -> str:
        return f"PertData({self._screen or f'{str(self.data_path)!r}, no screen yet'})"

    @property
    def whole_screen(self) -> PreparedScreen:
        """The prepared screen with all of its control cells; raises ValueError if none was prepared or loaded."""
        if self._screen is None:
            msg = "this PertData holds no screen yet; call new_data_process(name, adata) or load(...) first"
            raise ValueError(msg)
        return self._screen

    @property
    def screen(self) -> PreparedScreen:
        """The prepared screen, with the control cells of training if the split divides the control cells."""
        return self._part_screens.get("train", self.whole_screen)

    def screen_of(self, part: str) -> PreparedScreen:
        """The screen for a part of the split, with the part's control cells if the split divides them."""
        return self._part_screens.get(part, self.screen)

    @property
    def adata(self) -> AnnData:
        """Cells and annotations in the published layout, ``uns`` lists included."""
        if self._adata is None:
            from gears.data._published import published_adata

            self._adata = published_adata(self.whole_screen)
        return self._adata

    @property
    def ctrl_adata(self) -> AnnData:
        """Control cells of :attr:`adata`."""
        if self._ctrl_adata is None:
            self._ctrl_adata = self.adata[self.whole_screen.control_cells].copy()
        return self._ctrl_adata

    @property
    def dataset_processed(self) -> CellGraphs:
        """Label -> its cells, each paired with a control cell, as torch-geometric objects, created on access."""
        from gears.data._loaders import CellDataset
        from gears.data._published import CellGraphs

        rows = np.arange(len(self.screen.cells))
        return CellGraphs(CellDataset(self.screen, rows, self._label_nodes, self.seed or 0))

    def create_dataset_file(self) -> None:
        """Do nothing: :attr:`dataset_processed` makes its objects when they are read."""

    create_cell_graph_dataset = Gone("pert_data.dataset_processed[label] holds the cells of a label as graphs")
    create_cell_graph = Gone("pert_data.dataset_processed[label][0] is the graph of a cell")
    set_pert_genes = Gone("PertData(path, gene_set_path=..., gene2go=..., default_pert_graph=...) sets the nodes")

    @property
    def gene2go(self) -> dict[str, set[str]]:
        """Terms of the nodes of the perturbation graph that have any."""
        return self.annotation.terms_of(self.pert_names)

    def log_screen(self) -> None:
        """Log one line about the screen."""
        screen = self.whole_screen
        n_perturbed = sum(not condition.is_control for condition in screen.conditions)
        cells = f"{count(screen.n_cells, 'cell')} ({int(screen.statistics.n[screen.control_ids].sum())} control)"
        size = f"{count(len(screen.gene_names), 'gene')}, {count(n_perturbed, 'condition')}"
        logger.info("loaded %s: %s x %s", self.dataset_name, cells, size)

    def summary(self) -> ScreenReport:
        """Report on the screen: its content, how it was read, and what was excluded and why."""
        from gears.data.checks._report import summarise

        parts = None if self.split is None else self.split.parts
        return summarise(self.screen, is_gene=self.annotation.resolve, parts=parts)

    def new_data_process(
        self,
        dataset_name: str,
        adata: AnnData,
        skip_calc_de: bool = False,
        *,
        drop_unmapped: bool = False,
        **processing: Any,
    ) -> None:
        """Check a screen and prepare it as ``<data_path>/<dataset_name>/``.

        Parameters
        ----------
        dataset_name
            Name of the folder.
        adata
            X (N, G) log-normalised; ``obs.condition`` ("A+B", "A+ctrl", "ctrl"), ``obs.cell_type``, ``var.gene_name``,
            the columns of another style, or those that the options name. It is not modified.
        skip_calc_de
            Skip differential expression.
        drop_unmapped
            Exclude conditions with a gene that the annotation lacks, as cell-gears does; by default such genes
            become isolated nodes.
        **processing
            Options of :class:`gears.data.ProcessingOptions`: normalize, layer, min_cells, style, ...; and
            `workers`, the number of processes that read the cells, and `moments`, a moment pack to write instead of
            the cells (:meth:`write_moments`).

        Raises
        ------
        ValueError
            If the screen cannot be used; the message lists every problem found.
        """
        folder = self.data_path / folder_name(dataset_name)
        is_gene = self.annotation.resolve
        screen = prepare_screen(adata, folder, skip_calc_de=skip_calc_de, is_gene=is_gene, **processing)
        self._take(screen, drop_unmapped)

    def effects(self, context: str | None = None) -> GeneEffects:
        """Effects of perturbing single genes, of all of the screen's cells: evidence for other screens.

        ``pert_data.effects().save("k562.npz")`` writes a file of some megabytes that
        ``train(effects_of="k562.npz")`` of another model reads.

        Parameters
        ----------
        context
            One of several contexts; by default their mean (:meth:`gears.graphs.GeneEffects.of_screen`).
        """
        from gears.graphs._effects import GeneEffects

        return GeneEffects.of_screen(self.whole_screen, context)

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

        The columns that are read are logged, and each can be overridden (condition_key, cell_type_key, gene_key,
        ctrl_label, sep). Labels that name no measured or annotated gene are an error.

        Parameters
        ----------
        adata
            The screen; not modified.
        style
            "auto", or a style of :mod:`gears.data.checks._styles`.
        data_path, dataset_name
            Folder of prepared screens, and name of this one.
        gene2go, obo, default_pert_graph, drop_unmapped
            As for :class:`PertData` and :meth:`new_data_process`.
        verbose
            Log to stderr how the screen is read.
        **processing
            See :class:`gears.data.ProcessingOptions`.

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

    @classmethod
    def from_screens(
        cls,
        screens: Mapping[str, AnnData | PertData | PreparedScreen | str | Path],
        *,
        data_path: str | Path = "gears_data",
        dataset_name: str = "screens",
        genes: str = "shared",
        gene2go: Mapping[str, Any] | GeneAnnotation | str | Path | None = None,
        obo: str | Path | None = None,
        default_pert_graph: bool = True,
        verbose: bool = True,
        **options: Any,
    ) -> PertData:
        """Put several screens together: each becomes a context (cell line, donor) of one, with its own controls.

        Gene names are brought to one spelling (aliases, Ensembl identifiers and their versions); what changed is
        logged. Scale, sum of a cell, controls and labels of every screen are checked before anything is written.

        Parameters
        ----------
        screens
            Name of each context, and its screen: AnnData, the path of a file, moment pack or prepared folder, or
            PertData. With a pack among them the whole has no cells (:meth:`write_moments`).
        genes
            "shared": the genes that all of them measure; "all": those that any of them does.
        data_path, dataset_name, gene2go, obo, default_pert_graph, verbose
            As for :meth:`from_adata`; the name is that of the whole.
        **options
            Options of :meth:`load`, for all screens that are not prepared yet. Screens that need different ones are
            prepared first, one by one.

        Raises
        ------
        ValueError
            If a screen cannot be used, or does not fit the others; every problem is listed with the screen's name.
        """
        with shown(verbose):
            data = cls(data_path, default_pert_graph=default_pert_graph, gene2go=gene2go, obo=obo)
            data.load(data_name=dataset_name, screens=screens, genes=genes, **options)
            data.log_screen()
        return data

    @takes(LoadCall, none_is_omitted=ProcessingOptions)
    def load(self, options: LoadCall) -> None:
        """Load a prepared screen, or prepare one from a file.

        Parameters
        ----------
        data_name, data_path, guides, guide_targets, workers, dask, moments, drop_unmapped, screens, genes
            See :class:`gears.data.screen.prepare.LoadCall`.
        normalize, ..., skip_calc_de
            Options of :class:`gears.data.ProcessingOptions`; None is that class's default, or the value that a prepared
            folder was prepared with. Other values must be those of the prepared folder.

        Raises
        ------
        FileNotFoundError, ValueError
            If there is no such screen, or it cannot be used.
        """
        if not isinstance(self, PertData):  # called on the class
            msg = f"load is called on an object: PertData('data').load(data_path={str(self)!r})"
            raise TypeError(msg)
        screen = obtain_screen(self.data_path, options, lambda: self.annotation.resolve)
        self._take(screen, options.drop_unmapped)

    def _take(self, screen: PreparedScreen, drop_unmapped: bool) -> None:
        """Set every attribute from a screen."""
        annotation = self.annotation
        screen = with_annotated_genes(screen, annotation, drop=drop_unmapped)
        self._forget_screen()
        self._screen = screen
        self.dataset_path = screen.folder
        self.dataset_name = named(screen.folder).name
        self.gene_names = pd.Series(screen.gene_names, index=screen.gene_ids, name="gene_name", dtype=object)
        self.node_map = {gene: i for i, gene in enumerate(screen.gene_names)}
        options: Any = {"gene_set": self._gene_set, "default_pert_graph": self.default_pert_graph}
        self.pert_names = graph_genes(annotation, screen.gene_names, screen.perturbed_genes, **options)
        self._nodes = PerturbationNodes(self.pert_names, screen)
        self.node_map_pert = self._nodes.number
        self._label_nodes = [self._nodes.of_label(*label) for label in screen.condition_of_label.items()]

    @property
    def split(self) -> Split | None:
        """The split; it compares equal to its name (``pert_data.split == "simulation"``)."""
        return self._split

    @split.setter
    def split(self, split: Split | str) -> None:
        if isinstance(split, Split):
            self.use_split(split)
        elif self._split is not None and split not in ("custom", self._split.name):
            msg = f"split={split!r} cannot be assigned; draw it with prepare_split"
            raise ValueError(msg)

    @property
    def set2conditions(self) -> dict[str, list[str]] | None:
        """Part -> labels as written in the screen. Assigning other parts prepares a custom split."""
        return self._set2conditions

    @set2conditions.setter
    def set2conditions(self, parts: Mapping[str, Sequence[str]]) -> None:
        self.prepare_split("custom", seed=1 if self.seed is None else self.seed, split_dict=parts)

    @takes(SplitOptions)
    def prepare_split(self, options: SplitOptions) -> pd.DataFrame:
        """Divide the conditions into training, validation and test.

        Parameters
        ----------
        split
            Type of split; :func:`gears.data.splits.describe_splits` describes each.
        seed, ..., test_contexts
            See :class:`gears.data.splits.SplitOptions`.

        Returns
        -------
        pd.DataFrame
            One row per label: condition, part, subgroup, n_cells, reason.

        Raises
        ------
        ValueError
            If an argument is invalid or a part would stay empty.
        """
        arguments = options.changed()
        name = arguments.pop("split", options.split)
        summary = self.use_split(prepare_split(self.whole_screen, name, **arguments))
        self.train_gene_set_size = options.train_gene_set_size
        return summary

    def use_split(self, split: Split) -> pd.DataFrame:
        """Use an existing split, such as one of :func:`gears.data.splits.folds` or of :meth:`Split.load`.

        Returns the summary of :meth:`prepare_split`; raises ValueError if the split names labels that the screen lacks.
        """
        split.check_labels(self.whole_screen.labels)
        summary = split.summary(self.whole_screen)
        parts = part_screens(self.whole_screen, split)
        self._forget_split()
        self._part_screens.update(parts)
        self._split = split
        self._set2conditions = {part: list(labels) for part, labels in split.parts.items()}
        self.subgroup = split.subgroup
        self.seed = split.seed
        logger.info("split %s, seed %s: %s", split.name, split.seed, split.sizes())
        return summary

    def write_moments(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the screen as a moment pack: a small file for everything but cells, that ``load(data_path=...)`` opens.

        :func:`anndata.read_h5ad` opens it, too: a row for each condition, context, type and experimental batch, ``X``
        the mean, layers the central moments. ``load(..., moments=path)`` writes one without preparing the cells.

        Parameters
        ----------
        path
            An h5ad file, or a zarr store (``.zarr``).
        overwrite
            Replace an existing file.
        """
        from gears.data.screen._packs import pack_of

        check_output(path, overwrite)
        return pack_of(self.whole_screen).write(path, overwrite=overwrite)

    @staticmethod
    def merge_moments(paths: Sequence[str | Path], out: str | Path, *, overwrite: bool = False) -> Path:
        """Write the moment pack of several packs of one screen (:func:`gears.data.screen._merging.merge_moments`)."""
        from gears.data.screen._merging import merge_moments

        return merge_moments(paths, out, overwrite=overwrite)

    def without_cells(self) -> PertData:
        """The same without what it has read into memory: light to send to another process, which opens the folder."""
        light = copy.copy(self)
        light._adata = light._ctrl_adata = light.dataloader = None
        return light

    def get_dataloader(
        self, batch_size: int, test_batch_size: int | None = None, *, num_workers: int = 0
    ) -> dict[str, CellLoader]:
        """Loaders for one worker; see :meth:`get_dataloader_distributed`."""
        return self.get_dataloader_distributed(batch_size, test_batch_size, num_workers=num_workers)

    def get_dataloader_distributed(
        self,
        batch_size: int,
        test_batch_size: int | None = None,
        world_size: int = 1,
        rank: int = 0,
        num_workers: int = 4,
    ) -> dict[str, CellLoader]:
        """Loaders of one worker's share of the cells.

        Parameters
        ----------
        batch_size
            Cells per step of one worker.
        test_batch_size
            The same for validation and test; `batch_size` by default.
        world_size, rank
            Number of workers, and rank of this one.
        num_workers
            Processes of each loader that read cells.

        Returns
        -------
        dict
            "train_loader", "val_loader", "test_loader" (for the parts of the split); also set as
            :attr:`dataloader`. Batches are :class:`gears.data.CellBatch`. ``set_epoch`` of a loader selects the
            order and pairing of an epoch; without it each iteration advances to the next epoch.

        Raises
        ------
        ValueError
            If no split was prepared, or the training cells do not fill one batch of all workers.
        """
        from gears.data._loaders import LoaderSettings, make_loaders

        if self.split is None or self.set2conditions is None:
            msg = "no split yet; call prepare_split(...) before the loaders are made"
            raise ValueError(msg)
        if {part: tuple(labels) for part, labels in self.set2conditions.items()} != self.split.parts:
            # its lists were changed in place, as scripts for cell-gears do
            self.prepare_split("custom", seed=self.split.seed, split_dict=self.set2conditions)
        settings = LoaderSettings(batch_size, test_batch_size, world_size, rank, num_workers)
        self.dataloader = make_loaders(self.screen, self.split, self._label_nodes, settings, screens=self._part_screens)
        return self.dataloader

    @property
    def annotation(self) -> GeneAnnotation:
        """Gene annotation behind the perturbation graph."""
        if self._annotation is None:
            annotation = annotation_from(self._gene2go)
            self._annotation = annotation if self._obo is None else annotation.with_ancestors(self._obo)
        return self._annotation

    def condition_nodes(self, condition: Condition | str) -> Sequence[int]:
        """Nodes of the perturbation graph that a condition perturbs; empty for the control.

        In a screen with contexts they also hold context and type (:class:`gears.conditions.NodeSet`). Raises KeyError
        for a gene that is no node, with similar names.
        """
        return self._nodes.of_condition(Condition.of(condition))

    def get_pert_idx(self, pert_category: str) -> list[int]:
        """Nodes that a label perturbs in its own order, [-1] for the control: ``pert_idx`` of its cells."""
        genes = [gene for gene in split_label(pert_category) if gene != CONTROL_LABEL]
        return [node for gene in genes for node in self.condition_nodes(gene)] or [-1]
