"""GEARS: the model of a screen, from set-up over training to prediction."""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pandas as pd
import torch

from gears.cell_gears.folders import is_published, read_published
from gears.cell_gears.names import PublishedNames
from gears.conditions import Condition
from gears.distributed.devices import find_device
from gears.distributed.log import shown
from gears.distributed.torchrun import joined
from gears.distributed.world import current_world, is_running
from gears.evaluation.interactions import predict_interaction
from gears.evaluation.scaled import HALVINGS
from gears.evaluation.verdict import short_table
from gears.model.config import ModelConfig
from gears.model.folder import (
    ModelParts,
    build_parts,
    check_names,
    is_model,
    load_parts,
    load_weights,
    save_model,
)
from gears.model.network import GEARSNetwork
from gears.prediction import stream
from gears.prediction.predictions import Predictions
from gears.report.of_model import evaluate_model
from gears.training.fitting import Fit, Seconds, Worker
from gears.training.loggers.registry import check_loggers, tracked
from gears.training.options import TrainOptions
from gears.training.results import TrainResult
from gears.training.run_folder import reserved
from gears.training.wrapping import unwrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gears.pertdata import PertData

logger = logging.getLogger(__name__)


class GEARS(PublishedNames):
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
        self.pert_data = pert_data
        self.device = _own_device(device)
        self.parts: ModelParts | None = None
        self.joined_as: tuple[int, int] | None = None
        self.model: Any = None
        self.best_model: GEARSNetwork | None = None
        self.weight_bias_track, self.proj_name, self.exp_name = weight_bias_track, proj_name, exp_name
        if weight_bias_track:
            check_loggers(["wandb"])

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
        """This process's place among the workers, also after a training that joined them."""
        return self.joined_as[0] if self.joined_as and not is_running() else current_world().rank

    @property
    def world_size(self) -> int:
        """Number of workers, also after a training that joined them."""
        return self.joined_as[1] if self.joined_as and not is_running() else current_world().world_size

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
        hidden_size, ..., direction_lambda, no_perturb
            Options of the network and its graphs: see :class:`gears.model.ModelConfig`.
        G_go, G_coexpress
            Custom graphs: an edge table (source, target, weight), a networkx graph, a file
            (STRING, OmniPath, DoRothEA, ...), gene embeddings, several of these in a list (see
            ``docs/graphs.md``), or published edge tensors (2, E) with `G_go_weight`, `G_coexpress_weight` (E,).
        pert_embedding
            Gene embeddings that the perturbation embedding starts from: a file, DataFrame, dict, or
            :class:`gears.graphs.GeneEmbedding`. Genes without one start as always.
        seed
            Seed of the initial weights; by default the split's seed.
        **more
            Further :class:`gears.model.ModelConfig` options (direction, tau, uncertainty_kind, ...).
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

    # -- training and evaluation -----------------------------------------------------------

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
            runs already is joined anyway); see :func:`gears.distributed.torchrun.joined`.
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
        writing: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if given.save_path is not None and self.rank == 0:
            writing = reserved(given.save_path, None if given.resume else parts)
        with shown(given.verbose), writing:
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
            (:func:`gears.report.write_report`).
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

    # -- prediction ------------------------------------------------------------------------

    def predict(
        self,
        pert_list: Iterable[str | Sequence[str] | Condition],
        *,
        clip: bool = True,
        chunk: int = 32,
        context: str | Sequence[str] | None = None,
        perturbation_type: str | None = None,
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
        context, perturbation_type
            Of a model with contexts or types: where, and how, the genes are perturbed. All of them when omitted;
            a label such as "A+ctrl [CRISPRi] @ K562" says both itself.

        Raises
        ------
        ValueError
            No or an empty condition, or a gene outside the perturbation graph (near matches named).
        """
        parts = self._need_model()
        assert self.best_model is not None
        return stream.predict(
            self.best_model,
            parts,
            pert_list,
            clip=clip,
            chunk=chunk,
            context=context,
            perturbation_type=perturbation_type,
        )

    def GI_predict(
        self,
        combo: str | Sequence[str] | Condition,
        GI_genes_file: str | Path | Iterable[str] | None = None,
    ) -> dict[str, float]:
        """Scores of the genetic interaction of two genes (:func:`gears.evaluation.interactions.interaction_scores`).

        Parameters
        ----------
        combo
            The two genes.
        GI_genes_file
            Genes that count: names, or a file of names (text, or ``.npy`` of strings); all by default.

        Returns
        -------
        dict
            Plain floats: c1, c2, mag, dominance, corr_fit, dcor, dcor_singles, dcor_first, dcor_second, eq_contr.
        """
        return predict_interaction(self, combo, GI_genes_file)

    def plot_perturbation(
        self,
        query: str | Sequence[str] | Condition,
        save_file: str | Path | None = None,
        *,
        n_genes: int = 20,
        ax: Axes | None = None,
    ) -> Axes:
        """The cells of a condition over its top genes, and what the model predicts (:mod:`gears.plotting`).

        Parameters
        ----------
        query
            A condition of the screen.
        save_file, n_genes, ax
            File to write, number of genes, and Axes to draw on (by default of a new figure).
        """
        from gears.plotting.genes import plot_perturbation

        return plot_perturbation(self, query, save_file, n_genes=n_genes, ax=ax)

    def predict_all_pairs(
        self,
        genes: Iterable[str] | None = None,
        output: str | Path | None = None,
        *,
        values: str = "expression",
        clip: bool = True,
        chunk: int | None = None,
        overwrite: bool = False,
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
        overwrite
            Replace an `output` that is there.

        Returns
        -------
        iterator of pd.DataFrame, or Path
            Frames of `chunk` conditions x genes, or the path that was written.
        """
        parts = self._need_model()
        assert self.best_model is not None
        return stream.predict_all_pairs(
            self.best_model, parts, genes, output, values=values, clip=clip, chunk=chunk, overwrite=overwrite
        )

    def predict_to_file(
        self,
        pert_list: Iterable[str | Sequence[str] | Condition],
        output: str | Path,
        *,
        clip: bool = True,
        chunk: int | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Predict any conditions, as :meth:`predict` takes them, into ``.h5ad`` or ``.zarr``, chunk by chunk."""
        parts = self._need_model()
        assert self.best_model is not None
        return stream.predict_to_file(
            self.best_model, parts, pert_list, output, clip=clip, chunk=chunk, overwrite=overwrite
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
        >>> best = model.screen(lambda p: p.delta_UG[:, p.gene_names.index("KLF1")], top=3)
        >>> best["rank"].tolist()
        [1, 2, 3]
        """
        parts = self._need_model()
        assert self.best_model is not None
        return stream.screen(
            self.best_model, parts, score, genes, top=top, largest=largest, clip=clip, chunk=chunk
        )

    # -- files -----------------------------------------------------------------------------

    def save_model(self, path: str | Path) -> None:
        """Write the best model as a folder that needs nothing else to be loaded.

        A model of the same screen is replaced, and a line is logged.

        Raises
        ------
        FileExistsError
            The folder holds a model of another screen, or something else.
        """
        parts = self._need_model()
        assert self.best_model is not None
        if self.rank == 0:
            if is_model(path):
                logger.info("replacing the model in %s", path)
            state = {key: value.detach().cpu() for key, value in unwrap(self.best_model).state_dict().items()}
            save_model(path, parts, state)

    def load_pretrained(self, path: str | Path) -> None:
        """Load a saved model for this screen; also one of cell-gears (:func:`gears.published.load_cell_gears_model`).

        Raises
        ------
        ValueError
            The model's genes or perturbation nodes are not those of the PertData, in its
            order; both sides are named.
        """
        if is_published(path):
            from gears.cell_gears.folders import screen_names

            if self.pert_data is None:
                msg = (
                    f"{path} is a model of cell-gears, which holds no names: load it with GEARS(pert_data) and "
                    "load_pretrained(path), or with gears.published.load_cell_gears_model(path, ...)"
                )
                raise ValueError(msg)
            self._take(read_published(path, *screen_names(self.pert_data)), path)
            return
        parts = load_parts(path)
        if self.pert_data is not None:
            check_names("genes", parts.gene_names, tuple(self.pert_data.screen.gene_names), path)
            check_names("perturbation nodes", parts.pert_names, tuple(self.pert_data.pert_names), path)
        self._take(parts, path)

    def _take(self, parts: ModelParts, path: str | Path) -> None:
        """Become the model of these parts, with the weights in a folder."""
        network = parts.network()
        load_weights(path, network)
        network.prior = parts.prior
        self.parts = parts
        self.model = network.to(self.device)
        self.best_model = copy.deepcopy(self.model)

    @classmethod
    def from_pretrained(cls, path: str | Path, device: str | torch.device | None = None) -> Self:
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


def _own_device(device: str | int | torch.device | None) -> torch.device:
    if device is not None:
        return find_device(device)
    if is_running():
        return current_world().device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
