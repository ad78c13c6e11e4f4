"""GEARS: the model of a screen, from set-up over training to prediction."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from gears import streaming
from gears.assembly import (
    build_parts,
    check_names,
    condition_tables,
    config_from,
    pair_tables,
    perturbed_in,
    run_plan,
    subgroups_of,
    training_batches,
    validation_of,
)
from gears.conditions import Condition
from gears.distributed import current_world, is_running
from gears.evaluation.metrics import get_metric
from gears.evaluation.table import comparison_table, render_table
from gears.model.network import GEARSNetwork
from gears.predictions import Predictions, asked_condition, nodes_of
from gears.reporting import show_progress
from gears.results import TrainResult
from gears.training.model_folder import (
    ModelParts,
    load_parts,
    load_weights,
    save_model,
)
from gears.training.options import TrainOptions
from gears.training.run import run_training
from gears.training.tables import predict_changes
from gears.training.wrapping import unwrap

if TYPE_CHECKING:
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)


class GEARS:
    """Predicts the expression of every gene after perturbing one or more genes.

    Parameters
    ----------
    pert_data
        A screen with a split prepared (:meth:`PertData.prepare_split`).
    device
        Where the network lives; the worker's own device in a distributed run, else the
        first GPU, else the CPU.
    weight_bias_track, proj_name, exp_name
        Kept from the published signature, without effect (tracking warns): a run is followed
        through its history and ``metrics.jsonl``.

    Attributes
    ----------
    model, best_model
        The network as last trained, and with the weights of the best epoch (used by `predict`).
    config
        Settings of the network as a dict.
    pert_list, gene_list
        Genes that can be perturbed (nodes of the perturbation graph), genes that are predicted.

    Examples
    --------
    >>> model = GEARS(pert_data)                           # doctest: +SKIP
    >>> model.model_initialize(hidden_size=64)             # doctest: +SKIP
    >>> model.train(epochs=20, lr=1e-3)                    # doctest: +SKIP
    >>> model.predict([["AHR", "KLF1"]]).top(10)           # doctest: +SKIP
    """

    def __init__(
        self,
        pert_data: PertData | None,
        device: str | torch.device | None = None,
        weight_bias_track: bool = False,
        proj_name: str = "GEARS",
        exp_name: str = "GEARS",
    ) -> None:
        if pert_data is not None and pert_data.split is None:
            msg = "the PertData has no split yet; call pert_data.prepare_split(split='simulation', seed=1) first"
            raise ValueError(msg)
        self.pert_data = pert_data
        self.device = _own_device(device)
        self.weight_bias_track, self.proj_name, self.exp_name = weight_bias_track, proj_name, exp_name
        if weight_bias_track:
            logger.warning(
                "weight_bias_track has no effect in this release: follow a run by the history that train returns "
                "and by metrics.jsonl in save_path"
            )
        self.parts: ModelParts | None = None
        self.model: Any = None
        self.best_model: GEARSNetwork | None = None

    # -- set-up ----------------------------------------------------------------------------

    def model_initialize(
        self,
        hidden_size: int = 64,
        num_go_gnn_layers: int = 1,
        num_gene_gnn_layers: int = 1,
        decoder_hidden_size: int = 16,
        num_similar_genes_go_graph: int = 20,
        num_similar_genes_co_express_graph: int = 20,
        coexpress_threshold: float = 0.4,
        uncertainty: bool = False,
        uncertainty_reg: float = 1.0,
        direction_lambda: float = 0.1,
        G_go: Any = None,
        G_go_weight: Any = None,
        G_coexpress: Any = None,
        G_coexpress_weight: Any = None,
        no_perturb: bool = False,
        *,
        seed: int | None = None,
        **more: Any,
    ) -> None:
        """Build graphs and network.

        Parameters
        ----------
        hidden_size, num_go_gnn_layers, num_gene_gnn_layers
            Width and depths of the network.
        decoder_hidden_size
            Kept from the published signature; the decoder's width follows `hidden_size`.
        num_similar_genes_go_graph, num_similar_genes_co_express_graph, coexpress_threshold
            Neighbours per gene in the two graphs, lowest absolute correlation of an edge.
        uncertainty, uncertainty_reg
            Predict a log-variance per gene, weight of its loss.
        direction_lambda
            Weight of the direction term of the loss.
        G_go, G_coexpress
            Own graphs: an edge table (source, target, weight), a networkx graph, or
            published edge tensors (2, E) with `G_go_weight`, `G_coexpress_weight` (E,).
        no_perturb
            A baseline that predicts no change.
        seed
            Seed of the initial weights; the split's seed when left out.
        **more
            Further fields of :class:`gears.model.config.ModelConfig` (direction, tau,
            uncertainty_kind).
        """
        pert_data = self._need_data("model_initialize")
        config = config_from(
            {
                "hidden_size": hidden_size,
                "num_go_gnn_layers": num_go_gnn_layers,
                "num_gene_gnn_layers": num_gene_gnn_layers,
                "decoder_hidden_size": decoder_hidden_size,
                "num_similar_genes_go_graph": num_similar_genes_go_graph,
                "num_similar_genes_co_express_graph": num_similar_genes_co_express_graph,
                "coexpress_threshold": coexpress_threshold,
                "uncertainty": uncertainty,
                "uncertainty_reg": uncertainty_reg,
                "direction_lambda": direction_lambda,
                "no_perturb": no_perturb,
                **more,
            }
        )
        go = (G_go, G_go_weight) if G_go_weight is not None else G_go
        coexpress = (G_coexpress, G_coexpress_weight) if G_coexpress_weight is not None else G_coexpress
        self.parts = build_parts(pert_data, config, go=go, coexpress=coexpress)
        self.model = self.parts.network(seed=(pert_data.seed or 0) if seed is None else seed).to(self.device)
        self.best_model = copy.deepcopy(self.model)

    @property
    def config(self) -> dict[str, Any]:
        """Settings of the network."""
        return self._need_model().config.to_dict()

    @property
    def pert_list(self) -> list[str]:
        """Genes that can be perturbed: the nodes of the perturbation graph, P."""
        names = self.parts.pert_names if self.parts is not None else self._need_data("pert_list").pert_names
        return [str(name) for name in names]

    @property
    def gene_list(self) -> list[str]:
        """Genes whose expression is predicted, G."""
        parts = self.parts
        return list(parts.gene_names if parts is not None else self._need_data("gene_list").screen.gene_names)

    @property
    def is_distributed(self) -> bool:
        """Whether this process trains together with others."""
        return is_running()

    @property
    def rank(self) -> int:
        """This process's place among the workers."""
        return current_world().rank

    @property
    def world_size(self) -> int:
        """Number of workers."""
        return current_world().world_size

    # -- training --------------------------------------------------------------------------

    def train(
        self,
        epochs: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        *,
        evaluate_test: bool = True,
        **options: Any,
    ) -> TrainResult:
        """Train on the split's training part; keep the best epoch's weights.

        By default the cells are trained on, as published, in the batches of
        :meth:`PertData.get_dataloader`. ``objective="moments"`` trains on each condition's
        moments over all pairs of its cells with control cells instead: no cell is read, and an
        epoch is every training condition once.

        In a worker of a process group this joins the others: the result is the same for
        any number of workers at the same global batch.

        Parameters
        ----------
        epochs, lr, weight_decay
            Passes over the training conditions or cells, Adam's learning rate and weight
            decay; filled per objective when left out. With ``objective="auto"`` (moments
            where possible) numbers are read as meant for cells: `epochs` times
            :func:`gears.training.defaults.passes_per_epoch`, `lr` times 10 (the
            ratio of the two objectives' defaults), and steps of 32 conditions whatever the
            loader's batch size; one log line says what became of them.
            ``objective="moments"`` takes them as they are.
        evaluate_test
            Score the test part beside the baselines at the end (rank 0).
        **options
            Further fields of :class:`gears.training.options.TrainOptions`.

        Returns
        -------
        TrainResult
            History, best epoch, and the test table.
        """
        pert_data, parts = self._need_data("train"), self._need_model()
        choices = TrainOptions.from_mapping(
            {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, **options}
        )
        if choices.verbose:
            show_progress()
        plan = run_plan(pert_data, choices, world_size=self.world_size)
        if plan.note and self.rank == 0:
            logger.info("%s", plan.note)
        loader = training_batches(pert_data, plan, rank=self.rank, world_size=self.world_size)
        validation, monitor = validation_of(pert_data, choices.monitor)
        network = unwrap(self.model)
        run = run_training(
            network,
            partial(condition_tables, pert_data),
            partial(pair_tables, pert_data),
            loader,
            parts,
            dataclasses.replace(plan.options, monitor=monitor),
            validation,
            device=self.device,
            distributed=self.is_distributed,
            lower_is_better=not get_metric(monitor).higher_is_better,
        )
        best = copy.deepcopy(network)
        best.load_state_dict(run.best_state)
        self.best_model = best
        wanted = evaluate_test and self.rank == 0 and not run.stopped
        table = self.report_test(verbose=choices.verbose) if wanted else None
        return TrainResult(run.history, run.best_epoch, table, run.stopped)

    def evaluate(self, part: str = "test", *, clip: bool = True) -> pd.DataFrame | None:
        """Score the best model beside the baselines on a part of the split.

        Returns
        -------
        pd.DataFrame or None
            Tidy table (see :class:`TrainResult`); None where the part has no perturbed condition.
        """
        pert_data = self._need_data("evaluate")
        split = pert_data.split
        chosen = perturbed_in(split, part)
        if split is None or not chosen or not perturbed_in(split, "train"):
            return None
        predicted = self.predict(chosen, clip=clip).expression_UG
        return comparison_table(
            predicted,
            chosen,
            pert_data.screen,
            split,
            subgroups=subgroups_of(split, part, chosen),
            clip=clip,
            method="gears",
        )

    def report_test(self, *, verbose: bool = True) -> pd.DataFrame | None:
        """Score the test part (see :meth:`evaluate`) and log the table."""
        table = self.evaluate("test")
        if table is not None and verbose:
            logger.info("%s", render_table(table))
        return table

    # -- prediction ------------------------------------------------------------------------

    def predict(
        self, pert_list: Iterable[str | Sequence[str] | Condition], *, clip: bool = True, chunk: int = 32
    ) -> Predictions:
        """Mean expression after each perturbation: control mean plus predicted change, deterministic.

        Parameters
        ----------
        pert_list
            Conditions, each a list of genes (``["A", "B"]``), a label (``"A+B"``, ``"A+ctrl"``)
            or a single gene (``"A"``).
        clip
            Set negative predictions to zero (log-normalised expression has none).
        chunk
            Conditions computed at once; bounds memory, not the result.

        Raises
        ------
        ValueError
            An empty condition, or a gene outside the perturbation graph (near matches named).
        """
        parts, network = self._need_model(), self.best_model
        if isinstance(pert_list, str | Condition):
            pert_list = [pert_list]
        conditions = tuple(dict.fromkeys(asked_condition(entry) for entry in pert_list))
        nodes = nodes_of(conditions, parts.pert_names)
        assert network is not None
        delta_UG, logvar_UG = predict_changes(network, nodes, chunk=chunk)
        expression_UG = parts.control_mean_G + delta_UG
        if clip:
            expression_UG = np.maximum(expression_UG, 0.0)
        return Predictions(conditions, parts.gene_names, expression_UG, parts.control_mean_G, logvar_UG, clip)

    def predict_all_pairs(
        self,
        genes: Iterable[str] | None = None,
        output: str | Path | None = None,
        *,
        values: str = "expression",
        clip: bool = True,
        chunk: int | None = None,
    ) -> Iterator[pd.DataFrame] | Path:
        """Predict every pair of genes, chunk by chunk: memory does not grow with their number.

        Parameters
        ----------
        genes
            Genes whose pairs are predicted; those perturbed in training when None.
        output
            An ``.h5ad`` or ``.zarr`` path that gets what :meth:`Predictions.to_adata` holds, in
            float32; it is put in place when complete.
        values
            What the frames hold without `output`: ``"expression"``, ``"delta"``, ``"logvar"``.
        clip
            Set negative predictions to zero.
        chunk
            Conditions at a time; as many as fit into 256 MiB when None.

        Returns
        -------
        iterator of pd.DataFrame, or Path
            Frames of `chunk` conditions x genes, or the path that was written.
        """
        parts = self._need_model()
        assert self.best_model is not None
        return streaming.predict_all_pairs(
            self.best_model, parts, genes, output, values=values, clip=clip, chunk=chunk
        )

    def screen(
        self,
        score: Callable[[Predictions], Any],
        genes: Iterable[str] | None = None,
        *,
        top: int = 100,
        largest: bool = True,
        clip: bool = True,
        chunk: int | None = None,
    ) -> pd.DataFrame:
        """Rank every pair of genes by a function of its prediction; only the best are kept.

        Parameters
        ----------
        score
            Called with the :class:`Predictions` of a chunk (``conditions``, ``expression_UG``,
            ``delta_UG``); returns a number per condition. NaN leaves a condition out.
        genes, clip, chunk
            As for :meth:`predict_all_pairs`.
        top
            Pairs to keep.
        largest
            Whether the largest scores are best.

        Returns
        -------
        pd.DataFrame
            Columns rank, condition, gene_1, gene_2, score, best first; equal scores in the pairs' order.

        Examples
        --------
        >>> model.screen(lambda p: p.delta_UG[:, p.gene_names.index("KLF1")], top=20)  # doctest: +SKIP
        """
        parts = self._need_model()
        assert self.best_model is not None
        return streaming.screen(
            self.best_model, parts, score, genes, top=top, largest=largest, clip=clip, chunk=chunk
        )

    # -- files -----------------------------------------------------------------------------

    def save_model(self, path: str | Path) -> None:
        """Write the best model as a folder that needs nothing else to be loaded; an existing model is replaced."""
        parts = self._need_model()
        assert self.best_model is not None
        if self.rank == 0:
            state = {key: value.detach().cpu() for key, value in unwrap(self.best_model).state_dict().items()}
            save_model(path, parts, state)

    def load_pretrained(self, path: str | Path) -> None:
        """Load a saved model for this screen.

        Raises
        ------
        ValueError
            The model's genes or perturbation nodes are not those of the PertData, in its
            order; both sides are named.
        """
        parts = load_parts(path)
        if self.pert_data is not None:
            check_names("genes", parts.gene_names, tuple(self.pert_data.screen.gene_names), path)
            check_names("perturbation nodes", parts.pert_names, tuple(self.pert_data.pert_names), path)
        network = parts.network()
        load_weights(path, network)
        self.parts = parts
        self.model = network.to(self.device)
        self.best_model = copy.deepcopy(self.model)

    @classmethod
    def from_pretrained(cls, path: str | Path, device: str | torch.device | None = None) -> GEARS:
        """A model ready to predict, from its folder alone: no training data, one device."""
        model = cls(None, device=device)
        model.load_pretrained(path)
        return model

    def _need_data(self, what: str) -> PertData:
        if self.pert_data is None:
            msg = f"{what} needs the screen; this model was loaded without it: use GEARS(pert_data), load_pretrained"
            raise ValueError(msg)
        return self.pert_data

    def _need_model(self) -> ModelParts:
        if self.parts is None:
            msg = "there is no network yet; call model_initialize() or load_pretrained(path) first"
            raise ValueError(msg)
        return self.parts


def _own_device(device: str | torch.device | None) -> torch.device:
    if device is not None:
        return torch.device(device)
    if is_running():
        return current_world().device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
