"""Nodes of the perturbation graph: which genes they are, and those that a condition perturbs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import CONTROL_LABEL, Condition, split_label
from gears.contexts.names import ModelContexts
from gears.data import gene_sets
from gears.data.divided import DividedScreen
from gears.data.pickles import is_pickle, load_plain
from gears.data.unit_screen import UnitScreen
from gears.files import need_file
from gears.messages import count, nearest, shorten

if TYPE_CHECKING:
    from gears.graphs.annotation import GeneAnnotation

logger = logging.getLogger(__name__)


class PerturbationNodes(DividedScreen):
    """The part of :class:`gears.PertData` that knows the perturbation graph's genes."""

    _gene2go: Mapping[str, Any] | GeneAnnotation | str | Path | None
    _obo: str | Path | None
    _annotation: GeneAnnotation | None
    _gene_set: list[str] | None
    default_pert_graph: bool
    pert_names: np.ndarray
    node_map_pert: dict[str, int]

    @property
    def annotation(self) -> GeneAnnotation:
        """Gene annotation behind the perturbation graph."""
        if self._annotation is None:
            own = annotation_from(self._gene2go)
            self._annotation = own if self._obo is None else own.with_ancestors(self._obo)
        return self._annotation

    def condition_nodes(self, condition: Condition | str) -> Sequence[int]:
        """Nodes of the perturbation graph that a condition perturbs; empty for the control.

        In a screen with contexts they say where and how, too (:class:`gears.node_sets.NodeSet`).

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
        nodes = [self.node_map_pert[gene] for gene in genes]
        screen = self.whole_screen
        if isinstance(screen, UnitScreen):
            known = ModelContexts(screen.contexts, screen.kinds, np.empty((max(1, len(screen.contexts)), 0)))
            return known.node_sets([Condition.of(condition)], [nodes])[0]
        return nodes

    def get_pert_idx(self, pert_category: str) -> list[int]:
        """Nodes that a label perturbs in its own order, [-1] for the control: ``pert_idx`` of its cells."""
        genes = [gene for gene in split_label(pert_category) if gene != CONTROL_LABEL]
        return [node for gene in genes for node in self.condition_nodes(gene)] or [-1]

    def _is_gene(self) -> Callable[[str], bool]:
        annotation = self.annotation
        return lambda symbol: annotation.resolve(symbol) is not None

    def _set_nodes(self, annotation: GeneAnnotation) -> None:
        screen = self.screen
        perturbed = screen.perturbed_genes
        if self._gene_set is not None:
            added = sorted(set(perturbed) - set(self._gene_set))
            if added:
                logger.warning(
                    "added to the gene set: %s (%s)", count(len(added), "perturbed gene"), shorten(added, 50)
                )
        self.pert_names = gene_sets.graph_genes(
            annotation,
            screen.gene_names,
            perturbed,
            gene_set=self._gene_set,
            default_pert_graph=self.default_pert_graph,
        )
        self.node_map_pert = {gene: i for i, gene in enumerate(self.pert_names.tolist())}
        self._label_nodes = [self._nodes_of(label) for label in screen.labels]

    def _nodes_of(self, label: str) -> Any:
        """Nodes of a label's genes in its own order, [-1] for a control; with context and type where there are any."""
        unit = Condition.parse(label)
        genes = split_label(label.removesuffix(unit.suffix) if unit.suffix else label)
        own = [self.node_map_pert[gene] for gene in genes if gene != CONTROL_LABEL]
        nodes = list(dict.fromkeys(own)) or [-1]
        screen = self.whole_screen
        if not isinstance(screen, UnitScreen):
            return nodes
        known = ModelContexts(screen.contexts, screen.kinds, np.empty((max(1, len(screen.contexts)), 0)))
        return known.node_sets([unit], [nodes])[0]


def annotation_from(gene2go: Mapping[str, Any] | GeneAnnotation | str | Path | None) -> GeneAnnotation:
    """The annotation that a user means: None for the human one of the package."""
    from gears.graphs.annotation import GeneAnnotation

    if gene2go is None:
        return GeneAnnotation.human()
    if isinstance(gene2go, GeneAnnotation):
        return gene2go
    if isinstance(gene2go, (str, Path)):
        gene2go = need_file(gene2go, "gene2go")
        if is_pickle(gene2go):  # gene2go_all.pkl of the published package
            gene2go = load_plain(gene2go)
            return annotation_from(gene2go)
        return GeneAnnotation.from_path(gene2go)
    if isinstance(gene2go, Mapping):
        return GeneAnnotation.from_dict(gene2go)
    msg = f"gene2go is a dict of gene -> terms, a GeneAnnotation or a path; found {type(gene2go).__name__}"
    raise TypeError(msg)
