"""GEARS: the model of a screen, from set-up over training to prediction."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from gears.assembly import build_parts
from gears.evaluation.halving import HALVINGS
from gears.evaluation.verdict import short_table
from gears.joining import joined
from gears.judging import evaluate_model
from gears.model.config import ModelConfig
from gears.reporting import shown
from gears.results import TrainResult
from gears.trained import TrainedModel
from gears.training.fitting import Fit, Seconds, Worker
from gears.training.loggers import check_loggers, tracked
from gears.training.model_folder import check_save_path
from gears.training.options import TrainOptions
from gears.training.wrapping import unwrap

if TYPE_CHECKING:
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)


class GEARS(TrainedModel):
    """Predicts the expression of every gene after perturbing one or more genes.

    Parameters
    ----------
    pert_data
        A screen with a split prepared (:meth:`PertData.prepare_split`).
    device
        Where the network lives; the worker's own device in a distributed run, else the
        first GPU, else the CPU.
    weight_bias_track, proj_name, exp_name
        Follow trainings with Weights & Biases, in this project and under this name; the same
        as ``train(loggers=["wandb"], project=..., name=...)``.

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
    >>> model = GEARS(pert_data)
    >>> model.model_initialize(hidden_size=16)
    >>> result = model.train(epochs=1, lr=1e-3, verbose=False)
    >>> model.predict([["AHR", "KLF1"]]).top(2)["condition"].tolist()
    ['AHR+KLF1', 'AHR+KLF1']
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
        super().__init__(pert_data, device)
        self.weight_bias_track, self.proj_name, self.exp_name = weight_bias_track, proj_name, exp_name
        if weight_bias_track:
            check_loggers(["wandb"])

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
        pert_embedding: Any = None,
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
            Own graphs: an edge table (source, target, weight), a networkx graph, a file
            (STRING, OmniPath, DoRothEA, ...), gene vectors, several of these in a list (see
            ``docs/graphs.md``), or published edge tensors (2, E) with `G_go_weight`, `G_coexpress_weight` (E,).
        no_perturb
            A baseline that predicts no change.
        pert_embedding
            Gene vectors that the perturbation embedding starts from: a file, DataFrame, dict, or
            :class:`gears.graphs.GeneEmbedding`. Genes without one start as always.
        seed
            Seed of the initial weights; the split's seed when left out.
        **more
            Further fields of :class:`gears.model.config.ModelConfig` (direction, tau,
            uncertainty_kind).
        """
        pert_data = self._need_data("model_initialize")
        config = ModelConfig.from_mapping(
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
        self.parts = build_parts(pert_data, config, go=go, coexpress=coexpress, pert_embedding=pert_embedding)
        self.model = self.parts.network(seed=(pert_data.seed or 0) if seed is None else seed).to(self.device)
        self.best_model = copy.deepcopy(self.model)

    # -- training --------------------------------------------------------------------------

    def train(
        self,
        epochs: int | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        *,
        evaluate_test: bool = True,
        distributed: bool = False,
        **options: Any,
    ) -> TrainResult:
        """Train on the split's training part; keep the best epoch's weights.

        First the Gaussian-process prior is fitted to the training conditions, in seconds. The network is then
        trained on what the prior leaves, and at the end its weight beside the prior is chosen on the validation
        conditions: above 0 only where its gain is beyond chance. With weight 0 predictions are those of the
        prior alone, fitted again to training and validation conditions. ``prior=None`` trains the network alone.

        By default each condition's moments over all pairs of its cells with control cells are
        trained on (``objective="moments"``): no cell is read. ``objective="cells"`` trains on cells, as
        published, in the batches of :meth:`PertData.get_dataloader`.

        In a worker of a process group all workers train one model together: the result is the same for
        any number of workers at the same global batch.

        Parameters
        ----------
        epochs, lr, weight_decay
            As in :class:`gears.training.options.TrainOptions`.
        evaluate_test
            Score the test part beside the baselines at the end (rank 0).
        distributed
            Join the workers that torchrun started, for this training (a process group that
            runs already is joined anyway); see :func:`gears.joining.joined`.
        **options
            Further fields of :class:`gears.training.options.TrainOptions`.

        Returns
        -------
        TrainResult
            How good the model is beside simple baselines, what was used, history and test table.
        """
        pert_data, parts = self._need_data("train"), self._need_model()
        if self.weight_bias_track:
            options = tracked(options, self.proj_name, self.exp_name)
        given = TrainOptions.from_mapping(
            {"epochs": epochs, "lr": lr, "weight_decay": weight_decay, **options}
        )
        if given.save_path is not None and self.rank == 0:
            check_save_path(given.save_path)
        with shown(given.verbose):
            seconds = Seconds()
            with joined(self, distributed):
                worker = Worker(self.device, self.rank, self.world_size, self.is_distributed)
                fit = Fit(pert_data, parts, given, worker, seconds)
                fit.train(unwrap(self.model))
            fit.conclude()
            self._use(fit)
            table = None
            if evaluate_test and self.rank == 0 and not fit.run.stopped:
                with seconds.of("evaluation"):
                    table = self.report_test(verbose=given.verbose)
        return TrainResult.of(fit, table)

    def _use(self, fit: Fit) -> None:
        """Predict with what was fitted."""
        network = unwrap(self.model)
        best = copy.deepcopy(network)
        best.load_state_dict(fit.run.best_state)
        self.parts = fit.parts
        network.prior = best.prior = fit.parts.prior
        self.best_model = best

    def evaluate(
        self,
        split: str = "test",
        *,
        clip: bool = True,
        halvings: int = HALVINGS,
        report: str | Path | None = None,
        **options: Any,
    ) -> pd.DataFrame | None:
        """Score the best model beside the baselines on a part of the split.

        Parameters
        ----------
        split
            The part: ``"test"``, ``"val"`` or ``"train"``.
        clip
            Set negative predictions to zero, the baselines' as well.
        halvings
            How often the cells are halved for scaled scores; 0 for none.
        report
            A folder for the HTML page, CSV, JSON and figures
            (:func:`gears.evaluation.write_report`).
        **options
            Fields of :class:`gears.evaluation.ScoreOptions`, such as `metrics`; `baselines`; ``name`` (of the model in
            the table) and ``shown`` (conditions in the report's figures).

        Returns
        -------
        pd.DataFrame or None
            Tidy: condition, subgroup, n_cells, method, metric, value, and with halvings scaled and
            what it is made of; None where the part has no perturbed condition. Methods are the model, its
            variants ("prior alone", "prior + network x W") and the baselines, all fitted to the same conditions.

        Raises
        ------
        ValueError
            The split has no such part.
        """
        return evaluate_model(self, split, clip=clip, halvings=halvings, report=report, **options)

    def report_test(self, *, verbose: bool = True) -> pd.DataFrame | None:
        """Score the test part (see :meth:`evaluate`) and log a short table; None where the split has no test part."""
        split = self._need_data("report_test").split
        if split is None or "test" not in split.parts:
            return None
        table = self.evaluate("test", halvings=0)
        if table is not None and verbose:
            logger.info("%s", short_table(table))
        return table
