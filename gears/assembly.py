"""Putting a model together from a prepared screen: graphs, names, control mean, condition tables."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from gears.conditions import Condition
from gears.contexts.evaluation import unit_truths
from gears.contexts.means import model_contexts, overall_control_mean
from gears.data.statistics import variance_within
from gears.data.unit_screen import UnitScreen
from gears.evaluation.metrics import get_metric
from gears.evaluation.truth import Truth
from gears.graphs import Graph, cached_graph, coexpression_graph, go_graph
from gears.graphs.own import GO_THRESHOLD, GraphMaker, embedding_of
from gears.model.config import ModelConfig
from gears.training.conditions import ConditionLoader, PairTables
from gears.training.evidence import evidence_weights
from gears.training.model_folder import ModelParts, difference
from gears.training.options import STEPS_PER_EPOCH, TrainOptions
from gears.training.tables import ConditionTables
from gears.training.units import UnitPairTables
from gears.training.validation import DEFAULT_METRICS, Validation

if TYPE_CHECKING:
    from gears.data.screen import PreparedScreen
    from gears.data.splits import Split
    from gears.pertdata import PertData
    from gears.priors import Prior

COEXPRESSION_CELLS = 100_000
"""Training cells that the co-expression graph is computed from, at most: a correlation is then known to 0.003.

Without effect where ``coexpress_cells=None`` asks for all cells."""


def build_parts(
    pert_data: PertData,
    config: ModelConfig,
    *,
    go: Any = None,
    coexpress: Any = None,
    pert_embedding: Any = None,
) -> ModelParts:
    """The model without weights for a prepared screen and its split.

    Parameters
    ----------
    pert_data
        With a split prepared.
    config
        Network settings.
    go, coexpress
        Own graphs instead of those built, in any form of :meth:`gears.graphs.own.GraphMaker.make`.
    pert_embedding
        Vectors of genes that the perturbation embedding starts from
        (:meth:`gears.graphs.embeddings.GeneEmbedding.of`).
    """
    screen = pert_data.screen
    genes, nodes = tuple(map(str, screen.gene_names)), tuple(map(str, pert_data.pert_names))
    annotation = pert_data.annotation
    go_maker = GraphMaker(
        nodes, config.num_similar_genes_go_graph, annotation, lambda: _go_graph(pert_data, config, nodes)
    )
    coexpress_maker = GraphMaker(
        genes, config.num_similar_genes_co_express_graph, annotation, lambda: _coexpression(pert_data, config)
    )
    start_PH = None
    if pert_embedding is not None:
        start_PH = embedding_of(pert_embedding).start(nodes, config.hidden_size, annotation.resolve)
    return ModelParts(
        config=config,
        gene_names=genes,
        gene_ids=tuple(map(str, screen.gene_ids)),
        pert_names=nodes,
        go=go_maker.make(go),
        coexpress=coexpress_maker.make(coexpress),
        control_mean_G=_control_mean(screen),
        contexts=model_contexts(screen) if isinstance(screen, UnitScreen) else None,
        split=pert_data.split,
        start_PH=start_PH,
        provenance={"dataset": pert_data.dataset_name, "screen_hash": screen.content_hash},
    )


def _go_graph(pert_data: PertData, config: ModelConfig, nodes: tuple[str, ...]) -> Graph:
    annotation, k = pert_data.annotation, config.num_similar_genes_go_graph
    key = {
        "graph": "go",
        "annotation": annotation.content_hash,
        "nodes": nodes,
        "k": k,
        "threshold": GO_THRESHOLD,
    }
    folder = pert_data.screen.folder / "graphs"
    return cached_graph(folder, key, lambda: go_graph(annotation, nodes, threshold=GO_THRESHOLD, k=k))


def _coexpression(pert_data: PertData, config: ModelConfig) -> Graph:
    """Over the training cells (all cells where the split holds nothing out); of very many, evenly spaced ones."""
    screen, split, n_drawn = pert_data.screen, pert_data.split, config.coexpress_cells
    k, threshold = config.num_similar_genes_co_express_graph, config.coexpress_threshold
    train = (
        split.conditions("train") if split is not None and "train" in split.parts else list(screen.conditions)
    )
    ids = np.sort([screen.id_of(condition) for condition in train])
    key = {
        "graph": "coexpression",
        "screen": screen.content_hash,
        "conditions": [int(index) for index in ids],
        "k": k,
        "threshold": threshold,
        "n_drawn": n_drawn,
        "most_cells": None if n_drawn is None else COEXPRESSION_CELLS,
    }

    def build() -> Graph:
        rows = np.flatnonzero(np.isin(screen.cell_condition, ids))
        if n_drawn is not None and len(rows) > COEXPRESSION_CELLS:
            rows = rows[np.linspace(0, len(rows) - 1, COEXPRESSION_CELLS).astype(np.int64)]
        return coexpression_graph(
            screen.cells, screen.gene_names, rows=rows, threshold=threshold, k=k, n_drawn=n_drawn
        )

    return cached_graph(screen.folder / "graphs", key, build)


def _control_mean(screen: PreparedScreen) -> np.ndarray:
    """Mean of all control cells, (G,) float64."""
    if isinstance(screen, UnitScreen):
        return overall_control_mean(screen)
    return np.array(screen.statistics.mean[screen.control_id], dtype=np.float64)


def condition_tables(
    pert_data: PertData,
    device: torch.device,
    dtype: torch.dtype,
    *,
    config: ModelConfig | None = None,
    prior_CG: np.ndarray | None = None,
) -> ConditionTables:
    """Nodes, weights in the loss, control mean and known changes of all conditions on the training device."""
    screen, config = pert_data.screen, config or ModelConfig()
    nodes = [pert_data.condition_nodes(condition) for condition in screen.conditions]
    mask_CG = screen.statistics.loss_mask()
    if config.mask_target:
        column = {gene: place for place, gene in enumerate(screen.gene_names)}
        for row, condition in enumerate(screen.conditions):
            mask_CG[row, [column[gene] for gene in condition.genes if gene in column]] = False
    if config.loss == "evidence":
        mask_CG = mask_CG * _evidence_weights(pert_data)
    tables = ConditionTables.build(
        nodes,
        mask_CG,
        _control_mean(screen),
        prior_CG,
        device=device,
        dtype=dtype,
        names=[condition.name for condition in screen.conditions],
    )
    if isinstance(screen, UnitScreen):
        return tables.matched(screen.control_mean_SG, screen.cell_stratum)
    return tables


def _evidence_weights(pert_data: PertData) -> np.ndarray:
    """Weights of every gene of every condition, from the training conditions' cells; 1 for the control."""
    screen, statistics = pert_data.screen, pert_data.screen.statistics
    train = np.sort([screen.id_of(condition) for condition in perturbed_in(pert_data.split, "train")])
    perturbed = np.array([not condition.is_control for condition in screen.conditions])
    weight_CG = np.ones((len(screen.conditions), len(screen.gene_names)), dtype=np.float32)
    if len(train):
        n_C, delta_TG = np.asarray(statistics.n, dtype=np.float64), statistics.delta(train)
        variance_G = variance_within(statistics, train)
        weight_CG[perturbed] = evidence_weights(delta_TG, variance_G, n_C[train], n_C[perturbed])
    return weight_CG


def pair_tables(pert_data: PertData) -> PairTables:
    """Moments of all conditions of a screen; its control mean is that of all control cells."""
    screen = pert_data.screen
    return (
        UnitPairTables(screen.statistics) if isinstance(screen, UnitScreen) else PairTables(screen.statistics)
    )


def validation_of(
    pert_data: PertData, monitor: str, prior: Prior | None = None, *, mask_target: bool = False
) -> Validation:
    """Scorer of the validation part; its `monitor` is the metric that chooses the best epoch.

    A metric over differential genes falls back to ``mse`` where the screen has no ranking.
    """
    split, screen = pert_data.split, pert_data.screen_of("val")
    check_monitor(monitor)
    metrics: tuple[str, ...] = DEFAULT_METRICS
    if screen.de is None:
        metrics = tuple(name for name in DEFAULT_METRICS if not name.endswith("_de"))
        monitor = "mse" if monitor.endswith("_de") else monitor
    chosen = perturbed_in(split, "val")
    if isinstance(screen, UnitScreen):
        truths, chosen = unit_truths(pert_data, chosen)
    else:
        truths = [Truth.of(screen, chosen, perturbed_in(split, "train"))] if chosen else []
    nodes = [pert_data.condition_nodes(condition) for condition in chosen]
    return Validation(truths, nodes, metrics=metrics, monitor=monitor, prior=prior, mask_target=mask_target)


def check_monitor(monitor: str) -> None:
    """Refuse a monitor that is no metric, or none of single conditions."""
    if get_metric(monitor).scope != "condition":
        msg = f"monitor={monitor!r} is no metric of single conditions; choose one of {', '.join(DEFAULT_METRICS)}"
        raise ValueError(msg)


def perturbed_in(split: Split | None, part: str) -> list[Condition]:
    """Perturbed conditions of a part of a split; none where it has no such part."""
    if split is None or part not in split.parts:
        return []
    return [condition for condition in split.conditions(part) if not condition.is_control]


def filled_options(pert_data: PertData, options: TrainOptions) -> TrainOptions:
    """Options with every omitted one filled in for this PertData's loader of cells, if it has one."""
    loader = (pert_data.dataloader or {}).get("train_loader")
    return options.with_defaults(None if loader is None else loader.batch_size)


def training_batches(
    pert_data: PertData, options: TrainOptions, *, rank: int = 0, world_size: int = 1
) -> Any:
    """This worker's training batches: conditions of the training part, or the cell batches of the PertData.

    Parameters
    ----------
    options
        With every omitted option filled in.

    Raises
    ------
    ValueError
        The split trains nothing, or batches of cells were not made or have another size.
    """
    split = pert_data.split
    if split is None or "train" not in split.parts:
        msg = "there are no training batches: the split has no training part; prepare one that has"
        raise ValueError(msg)
    if options.objective == "moments":
        ids = np.sort([pert_data.screen.id_of(condition) for condition in split.conditions("train")])
        per_batch = options.conditions_per_step(len(ids), world_size)
        least = STEPS_PER_EPOCH * options.accumulation_steps
        return ConditionLoader(ids, per_batch, least=least, seed=split.seed, rank=rank, world_size=world_size)
    size = options.batch_size
    assert size is not None
    loader = (pert_data.dataloader or {}).get("train_loader")
    if loader is None:
        loader = pert_data.get_dataloader_distributed(size, None, world_size, rank, 0)["train_loader"]
    if loader.batch_size != size:
        msg = f"batch_size={size} but get_dataloader made batches of {loader.batch_size} cells; omit one of them"
        raise ValueError(msg)
    return loader


def check_names(kind: str, model: tuple[str, ...], data: tuple[str, ...], path: str | Path) -> None:
    """Refuse a model whose names are not those of the data, in its order; both sides are named."""
    if tuple(map(str, model)) != tuple(map(str, data)):
        msg = f"the model {path} has other {kind} than this PertData: {difference(model, data)} ('here': the PertData)"
        raise ValueError(msg)
