"""GEARS: the public model, from initialisation and training to prediction."""

from __future__ import annotations

import copy
import dataclasses
import logging
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import pandas as pd
import torch

from gears.cell_gears._folders import is_published, read_published_of
from gears.cell_gears._moved import ELSEWHERE, GONE, OfGraph, OfScreen, Stated
from gears.conditions import Condition
from gears.core._lazy import Gone, lazy_names
from gears.core._messages import Shown
from gears.core._options import takes
from gears.core._progress import in_notebook
from gears.distributed._devices import DeviceLike, model_device
from gears.distributed._gpus import GpuIds
from gears.distributed._group import joined
from gears.distributed._log import shown
from gears.distributed._world import Ranks, World, current_world, is_running
from gears.evaluation.interactions import predict_interaction
from gears.evaluation.verdict import closing_sentence, short_table, verdict_table
from gears.model._card import write_card
from gears.model._folder import (
    ModelParts,
    build_parts,
    check_names,
    check_scale,
    is_model,
    load_parts,
    load_weights,
    save_model,
)
from gears.model.config import CustomGraphs, ModelConfig, ModelOptions
from gears.model.network import GEARSNetwork
from gears.prediction import _many as many
from gears.prediction import _stream as stream
from gears.prediction._blocks import Workers
from gears.prediction._controls import with_controls
from gears.prediction.explain import Explanation, explain
from gears.prediction.predictions import Predictions
from gears.report.of_model import EvaluateCall, evaluate_model
from gears.training._fitting import Fit, Seconds, TrainResult, cross_validated
from gears.training._loggers import check_loggers, tracked
from gears.training._run_folder import reserved
from gears.training._workers import plain_state, unwrap
from gears.training.options import TrainCall, TrainOptions

if TYPE_CHECKING:
    from anndata import AnnData
    from matplotlib.axes import Axes

    from gears.data.splits._split import Split
    from gears.evaluation.compare import Comparison
    from gears.pertdata import PertData

logger = logging.getLogger(__name__)
__getattr__, __dir__ = lazy_names(__name__, ELSEWHERE[__name__], GONE[__name__])
_NOT_STORED = "predictions are not stored; keep the result of predict"


class GEARS(Shown):
    """Predicts the expression of every gene after perturbing one or more genes.

    Parameters
    ----------
    pert_data
        A screen with a prepared split (:meth:`PertData.prepare_split`).
    device
        Device of the network; by default the worker's device in a distributed run, else the first GPU or the CPU.
    weight_bias_track, proj_name, exp_name
        Log trainings to Weights & Biases; the same as ``train(loggers=["wandb"], project=..., name=...)``.

    Attributes
    ----------
    model, best_model
        The network as last trained, and with the weights of the best epoch (used by `predict`).
    pert_list, gene_list
        Genes that can be perturbed (nodes of the perturbation graph), genes that are predicted.
    result
        :class:`gears.training.TrainResult` of the last :meth:`train`; None before, and after loading.

    Examples
    --------
    >>> model = GEARS(pert_data)
    >>> model.model_initialize(hidden_size=16)
    >>> result = model.train(epochs=1, lr=1e-3, verbose=False)
    >>> model.predict([["AHR", "KLF1"]]).top(2)["condition"].tolist()
    ['AHR+KLF1', 'AHR+KLF1']
    """

    # attributes of cell-gears
    adata = OfScreen()
    ctrl_adata = OfScreen()
    dataloader = OfScreen()
    node_map = OfScreen()
    node_map_pert = OfScreen()
    data_path = OfScreen()
    dataset_name = OfScreen()
    split = OfScreen()
    seed = OfScreen()
    train_gene_set_size = OfScreen()
    set2conditions = OfScreen()
    subgroup = OfScreen()
    default_pert_graph = OfScreen()
    G_go, G_go_weight = OfGraph("go", "edge_index"), OfGraph("go", "weight")
    G_coexpress, G_coexpress_weight = OfGraph("coexpress", "edge_index"), OfGraph("coexpress", "weight")

    saved_pred = Gone(_NOT_STORED)
    saved_logvar_sum = Gone(_NOT_STORED)
    wandb = Gone("train(loggers=['wandb']) logs to Weights & Biases")

    def __init__(
        self,
        pert_data: PertData | None,
        device: str | torch.device | None = None,
        weight_bias_track: bool = False,
        proj_name: str = "GEARS",
        exp_name: str = "GEARS",
    ) -> None:
        if pert_data is not None and not hasattr(pert_data, "prepare_split"):
            msg = (
                f"GEARS takes a PertData, found {type(pert_data).__name__}; PerturbationModel(adata) takes an AnnData, "
                "and PertData.from_adata(adata) makes a PertData of one"
            )
            raise TypeError(msg)
        if pert_data is not None and pert_data.split is None:
            msg = "the PertData has no split yet; call pert_data.prepare_split(split='simulation', seed=1) first"
            raise ValueError(msg)
        self.pert_data = pert_data
        self.device = model_device(device)
        self.parts: ModelParts | None = None
        self.joined_as: tuple[int, int] | None = None
        self._network: Any = None
        self._best_network: GEARSNetwork | None = None
        self._network_seed, self._options = 0, ModelOptions()
        self.result: TrainResult | None = None
        self.weight_bias_track, self.proj_name, self.exp_name = weight_bias_track, proj_name, exp_name
        if weight_bias_track:
            check_loggers(["wandb"])

    def __repr__(self) -> str:
        return f"GEARS({'not initialised' if self.parts is None else self.parts}, on {self.device})"

    @property
    def model(self) -> Any:
        """The network as last trained; None before `model_initialize`. It is made when it is first used."""
        # a model whose prior predicts alone never needs the network, nor its graphs
        if self._network is None and self.parts is not None:
            self.model = self.parts.network(seed=self._network_seed).to(self.device)
            self._best_network = copy.deepcopy(self._network)
        return self._network

    @model.setter
    def model(self, network: Any) -> None:
        self._network = network

    @property
    def best_model(self) -> GEARSNetwork | None:
        """The network with the weights of the best epoch; None before `model_initialize`."""
        return self._best_network if self.model is not None else None

    @best_model.setter
    def best_model(self, network: GEARSNetwork | None) -> None:
        self._best_network = network

    @property
    def is_trained(self) -> bool:
        """Whether the model was trained or loaded."""
        return self.parts is not None and bool(self.parts.fitted_parts)

    @property
    def config(self) -> dict[str, Any]:
        """Options of the network."""
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

    is_distributed = Stated(lambda model: is_running(), "Whether this process trains together with others.")
    rank = Stated(
        lambda model: model._joined(0, current_world().rank),
        "Rank of this process among the workers, also after a training with torchrun's workers.",
    )
    world_size = Stated(
        lambda model: model._joined(1, current_world().world_size),
        "Number of workers, also after a training with torchrun's workers.",
    )

    def _joined(self, place: int, now: int) -> int:
        """Rank (0) or number of workers (1): of the running group, else of torchrun's after a training."""
        return self.joined_as[place] if self.joined_as and not is_running() else now

    @takes(ModelOptions, last="no_perturb")
    def model_initialize(self, options: ModelOptions) -> None:
        """Build graphs and network.

        Parameters
        ----------
        hidden_size, ..., mask_target
            Options of the network and its graphs: see :class:`gears.model.ModelConfig`.
        G_go, G_coexpress
            Custom graphs: an edge table (source, target, weight), a networkx graph, a file
            (STRING, OmniPath, DoRothEA, ...), gene embeddings, several of these in a list (see
            ``docs/evidence.md``), or published edge tensors (2, E) with `G_go_weight`, `G_coexpress_weight` (E,).
        pert_embedding
            Gene embeddings that the perturbation embedding starts from: a file, DataFrame, dict, or
            :class:`gears.graphs.GeneEmbedding`. Genes without one start at random.
        seed
            Seed of the initial weights; by default the split's seed.
        """
        pert_data = self._need_data("model_initialize")
        self.parts = build_parts(pert_data, options.only(ModelConfig), options.only(CustomGraphs))
        self._options = options
        self._network_seed = (pert_data.seed or 0) if options.seed is None else options.seed
        self.model = self.best_model = None

    @takes(TrainCall)
    def train(self, options: TrainCall) -> TrainResult:
        """Train on the split's training part; keep the best epoch's weights.

        A Gaussian-process prior is fitted to the training conditions, in seconds. The network is trained on the
        residuals, over each condition's moments or over cells (``objective="cells"``, in the batches of
        :meth:`PertData.get_dataloader`). At the end the network's weight beside the prior is chosen on the validation
        conditions; it is above 0 only if the gain is significant. With weight 0 predictions are those of the prior,
        fitted again to training and validation conditions. ``prior=None`` trains the network alone.

        Workers of a process group train one model: the result depends on the global batch, not on their number.

        Parameters
        ----------
        epochs, ..., verbose, evaluate_test, distributed
            See :class:`gears.training.options.TrainCall`.

        Returns
        -------
        TrainResult
            History, devices and test table; printed, it compares the model with the baselines.
        """
        pert_data, parts = self._need_data("train"), self._need_model()
        train_options = options.only(TrainOptions)
        if self.weight_bias_track:
            wandb = tracked(options.loggers, options.project or self.proj_name, options.name or self.exp_name)
            train_options = dataclasses.replace(train_options, **wandb)
        ranks = Ranks.current() if options.distributed else None  # before this process joins the others
        with shown(train_options.verbose), reserved(train_options, parts, ranks.rank if ranks else self.rank):
            seconds = Seconds()
            with joined(pert_data, self.device, options.distributed) as worker:
                if options.distributed:
                    self._move_to(worker)
                fit = Fit(pert_data, parts, train_options, worker, seconds)
                fit.train(lambda: unwrap(self.model))
            fit.conclude()
            self._use(fit)
            table = None
            if options.evaluate_test and self.rank == 0 and not fit.run.stopped:
                with seconds.of("evaluation"):
                    table = self.report_test(verbose=train_options.verbose, saved_in=fit.saved_in)
        self.result = fit.result(table)
        return self.result

    def _move_to(self, worker: World) -> None:
        """Take rank and device of a launcher's worker."""
        self.joined_as, self.device = (worker.rank, worker.world_size), worker.device
        for network in (self._network, self._best_network):
            if network is not None:
                network.to(worker.device)

    def _use(self, fit: Fit) -> None:
        """Use the fitted prior and the best weights for predictions."""
        self.parts = fit.parts
        if self._network is None:
            return
        network = unwrap(self._network)
        self._best_network = copy.deepcopy(network)
        if fit.run.best_state:
            self._best_network.load_state_dict(fit.run.best_state)
        network.prior = self._best_network.prior = fit.parts.prior

    @takes(EvaluateCall)
    def evaluate(self, options: EvaluateCall) -> pd.DataFrame | None:
        """Score the best model beside the baselines on a part of the split.

        Where the test part has fewer than ten conditions, which tell little, priors that are fitted in five folds
        predict every condition of the split instead, beside baselines fitted to the same folds; ``part="test"`` scores
        the part itself.

        Parameters
        ----------
        part, metrics, baselines, ..., report, shown
            See :class:`gears.report.of_model.EvaluateCall`.

        Returns
        -------
        pd.DataFrame or None
            Tidy: condition, subgroup, n_cells, method, metric, value, and with split-half repeats the scaled
            value and its terms; None if the part has no perturbed condition. Methods are the model, its variants
            ("prior alone", "prior + network x W") and the baselines, all fitted to the same conditions.

        Raises
        ------
        ValueError
            The split has no such part.
        """
        return evaluate_model(self._need_data("evaluate"), *self._predictor(), options)

    def report_test(self, *, verbose: bool = True, saved_in: str | Path | None = None) -> pd.DataFrame | None:
        """Evaluate (see :meth:`evaluate`) and log a short table; None where the split has no test part.

        The table also goes into the card of the model that is saved in a folder. In a notebook only the verdict is
        logged: the result of :meth:`train` shows the table.
        """
        split = self._need_data("report_test").split
        if split is None or "test" not in split.parts:
            return None
        table = self.evaluate(n_split_half=0)
        if table is not None and saved_in is not None:
            write_card(saved_in, self._need_model(), short_table(table))
        if table is not None and verbose:
            logger.info("%s", closing_sentence(verdict_table(table), table) if in_notebook() else short_table(table))
        return table

    def cross_validate(
        self, folds: int = 5, gpu_ids: GpuIds = None, *, n_at_once: int | None = None, **options: Any
    ) -> Comparison:
        """Score the model over all conditions of the screen, each predicted by a model that did not see it.

        For each fold a new model with the options of this one is trained on the other conditions, a tenth of which
        validates, and baselines are fitted to the same. This model and its PertData stay unchanged. A fold holds out
        what the split does: genes, with every condition that perturbs them (``simulation``, ``simulation_single``,
        ``combo_seen0``, ``combo_seen1``, ``single``, ``gene_held_out``), contexts (``context_held_out``), or conditions
        whose genes others may perturb (other splits).

        Parameters
        ----------
        folds
            Number of folds; as many as conditions (genes) leave one out each.
        gpu_ids
            Folds side by side, one at a time per GPU: indices into the visible GPUs, or ``"free:2"``. By default one
            after the other on the model's device.
        n_at_once
            Number of folds at the same time: of CPU processes where the model is on the CPU.
        **options
            Options of :meth:`train` (epochs, prior, ...; nothing is saved) and of
            :class:`gears.evaluation.CompareOptions` (metrics, baselines, n_split_half, ...).

        Returns
        -------
        Comparison
            Printed, it is the closing table over all conditions, with 95 % intervals; ``.table`` has the scores of each
            condition, ``.summary()`` the means of all methods. A fold computes in one thread of the CPU, so that
            numbers do not depend on how many run at once (on GPUs: up to the order of additions there).

        Raises
        ------
        ValueError, WorkerError
            Unknown options, or fewer conditions (genes) than folds; a fold that failed in another process.
        """
        pert_data, parts = self._need_data("cross_validate"), self._need_model()
        network = self._options
        if network.only(ModelConfig) != parts.config:  # of a model that was loaded
            network = ModelOptions(**parts.config.to_dict())
        make = partial(on_split, pert_data.without_cells(), {**network.given(), "seed": self._network_seed})
        return cross_validated(make, pert_data, parts, self.device, folds, gpu_ids, n_at_once, options)

    def predict(
        self,
        pert_list: Iterable[str | Sequence[str] | Condition],
        *,
        clip: bool | None = None,
        chunk: int = 32,
        context: str | Sequence[str] | None = None,
        perturbation_type: str | None = None,
        controls: AnnData | None = None,
    ) -> Predictions:
        """Mean expression after each perturbation: control mean plus predicted change, deterministic.

        A model with a prior says how far each mean change is known: :attr:`Predictions.sd`.

        Parameters
        ----------
        pert_list
            Conditions, each a list of genes (``["A", "B"]``), a label (``"A+B"``, ``"A+ctrl"``) or a single gene
            (``"A"``), or a label as the screen has it (``"A+NT"``, ``"A_g2"``). Another name of a gene (of human
            genes: MLL) means the gene that the model has (KMT2A).
        clip
            Set negative predictions to zero; by default where the training screen has no negative values.
        chunk
            Conditions computed at once; bounds memory, not the result.
        context, perturbation_type
            Context and perturbation type, in a model that has several; all of them by default. A label such as
            "A+ctrl [CRISPRi] @ K562" contains both.
        controls
            Control cells of a line that no training saw, in the units of the screen; genes are found by name. The
            conditions are then predicted for it, as for a context whose conditions were held out; `context` is its
            name, "controls" by default.

        Raises
        ------
        ValueError
            An empty list or condition, a gene outside of the perturbation graph, a name of two of its genes, or
            controls that cannot be used.
        """
        network, parts = self._predictor()
        if controls is not None:
            parts, context = with_controls(parts, controls, context)  # type: ignore[arg-type]
        where: Any = {"context": context, "perturbation_type": perturbation_type}
        return stream.predict(network, parts, pert_list, clip=clip, chunk=chunk, **where)

    def explain(
        self, condition: str | Sequence[str] | Condition, genes: str | Iterable[str] | None = None, n: int = 10
    ) -> Explanation:
        """Which training conditions a prediction rests on (``docs/explain.md``), for some genes or all.

        `n` parts of single conditions are listed, the others are summed. ValueError for a model without a prior, or
        one fitted to more than 3,000 conditions, which does not keep them.
        """
        return explain(*self._predictor(), condition, genes, n)

    def pairs(self, genes: Iterable[str] | None = None) -> list[Condition]:
        """Every pair of some genes once, for :meth:`predict_to_file`; by default of those perturbed in training."""
        return list(stream.all_pairs(stream.candidate_genes(self._need_model(), genes)))

    def predict_to_file(
        self, pert_list: Iterable[str | Sequence[str] | Condition], output: str | Path, *, clip: bool | None = None,
        chunk: int | None = None, overwrite: bool = False, device: DeviceLike = None, gpu_ids: GpuIds = None,
        n_at_once: int | None = None, dask: Any = None, controls: AnnData | None = None,
    ) -> Path:  # fmt: skip
        """Predict any conditions into a file, chunk by chunk: memory does not grow with their number.

        Parameters
        ----------
        pert_list, clip, controls
            As for :meth:`predict`; ``model.pairs()`` gives every pair.
        output
            An ``.h5ad`` or ``.zarr`` path for the content of :meth:`Predictions.to_adata`, in float32; it is returned.
        chunk
            Conditions at a time; by default as many as fit into 256 MiB.
        overwrite
            Replace an existing `output`.
        device, gpu_ids
            Where the network computes, on several GPUs chunks in turn; by default where it is.
        n_at_once, dask
            Worker processes side by side, on the CPU or on each of `gpu_ids`; or a dask scheduler ("tcp://HOST:8786")
            or client whose workers predict. As under torchrun, the result has the same bits for any number of workers,
            and a call that was interrupted goes on when it is made again.
        """
        options: Any = {"clip": clip, "chunk": chunk, "overwrite": overwrite}
        options["workers"] = Workers(device, gpu_ids, n_at_once, dask)
        network, parts = self._predictor()
        if controls is not None:
            parts, options["context"] = with_controls(parts, controls)
        return many.predict_to_file(network, parts, pert_list, output, **options)

    def predict_all_pairs(
        self, genes: Iterable[str] | None = None, output: str | Path | None = None, *, values: str = "expression",
        clip: bool | None = None, chunk: int | None = None, overwrite: bool = False, device: DeviceLike = None,
        gpu_ids: GpuIds = None,
    ) -> Iterator[pd.DataFrame] | Path:  # fmt: skip
        """Predict every pair of genes, frame by frame of `chunk` conditions x genes.

        Parameters
        ----------
        genes
            Genes whose pairs are predicted; those perturbed in training when None.
        output, overwrite
            Deprecated: :meth:`predict_to_file` writes predictions.
        values
            ``"expression"``, ``"delta"``, ``"sd"`` or ``"cell_sd"``.
        clip, chunk, device, gpu_ids
            As for :meth:`predict_to_file`.
        """
        where: Any = {"clip": clip, "chunk": chunk, "device": device, "gpu_ids": gpu_ids}
        if output is None:
            return stream.predict_all_pairs(*self._predictor(), genes, values=values, **where)
        msg = "predict_all_pairs(output=...) will be removed; write predict_to_file(model.pairs(genes), output)"
        warnings.warn(msg, DeprecationWarning, stacklevel=2)
        return self.predict_to_file(self.pairs(genes), output, overwrite=overwrite, **where)

    def rank_pairs(
        self, score: Callable[[Predictions], Any], genes: Iterable[str] | None = None, *, top: int = 100,
        largest: bool = True, clip: bool | None = None, chunk: int | None = None, device: DeviceLike = None,
        gpu_ids: GpuIds = None, n_at_once: int | None = None, dask: Any = None,
    ) -> pd.DataFrame:  # fmt: skip
        """Rank every pair of genes by a function of its prediction; only the best are kept.

        Parameters
        ----------
        score
            Called with the :class:`Predictions` of a chunk (``conditions``, ``expression_UG``,
            ``delta_UG``), such as ``lambda p: p.delta_UG[:, 0]``; returns a number per condition. NaN is excluded.
        genes, clip, chunk, device, gpu_ids, n_at_once, dask
            As for :meth:`predict_all_pairs` and :meth:`predict_to_file`. Under torchrun rank 0 has the table, other
            ranks an empty one.
        top, largest
            Number of pairs to keep, and whether the largest scores are best.

        Returns
        -------
        pd.DataFrame
            Columns rank, condition, gene_1, gene_2, score, best first; equal scores in the pairs' order.
        """
        how: Any = {"clip": clip, "chunk": chunk, "workers": Workers(device, gpu_ids, n_at_once, dask)}
        return many.rank_pairs(*self._predictor(), score, genes, top=top, largest=largest, **how)

    def save_model(self, path: str | Path) -> None:
        """Write the best model as a complete folder: a new one, or one with a model of the same screen."""
        _, parts = self._predictor()
        if self.rank == 0:
            if is_model(path):
                logger.info("replacing the model in %s", path)
            save_model(path, parts, plain_state(self.best_model or self.model))
            table = None if self.result is None else self.result.table
            write_card(path, parts, "" if table is None else short_table(table))
            logger.info("the model was saved in %s", path)

    def load_pretrained(self, path: str | Path) -> None:
        """Load a saved model for this screen; also one of cell-gears (:func:`gears.published.load_cell_gears_model`).

        Raises ValueError unless genes and perturbation nodes are those of the PertData, in the same order.
        """
        if is_published(path):
            self._take(read_published_of(path, self.pert_data), path)
            return
        parts = load_parts(path)
        if self.pert_data is not None:
            check_names("genes", parts.gene_names, tuple(self.pert_data.screen.gene_names), path)
            check_names("perturbation nodes", parts.pert_names, tuple(self.pert_data.pert_names), path)
            check_scale(parts, self.pert_data.screen.scale, path)
        self._take(parts, path)

    def _take(self, parts: ModelParts, path: str | Path) -> None:
        """Use these parts, and the weights in a folder."""
        network = parts.network()
        load_weights(path, network)
        self.parts, self.model = parts, network.to(self.device)
        self.best_model = copy.deepcopy(self._network)

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

    def _predictor(self, *, warn: bool = True) -> tuple[GEARSNetwork | None, ModelParts]:
        """The network of the best epoch, where it is used or made, and the other parts; warns if none is trained."""
        parts = self._need_model()
        if warn and not parts.fitted_parts:
            logger.warning(
                "this model is not trained: unless you trained its network yourself, predictions come from random "
                "weights; call train() first"
            )
        return self.best_model if parts.uses_network else self._best_network, parts

    def _condition(self, query: str | Sequence[str] | Condition) -> Condition:
        """A requested condition, by the names of this model; with the context and type where it has one of each."""
        parts = self._need_model()
        requested = stream.requested_conditions([query], parts)
        placed = requested if parts.contexts is None else parts.contexts.placed(requested, None, None)
        return placed[0] if len(placed) == 1 else requested[0]

    def _need_model(self) -> ModelParts:
        if self.parts is None:
            msg = "there is no network yet; call model_initialize() or load_pretrained(path) first"
            raise ValueError(msg)
        return self.parts

    # -- methods of cell-gears --------------------------------------------------------------

    @property
    def num_genes(self) -> int:
        """Number of measured genes, G."""
        return len(self.gene_list)

    @property
    def num_perts(self) -> int:
        """Number of nodes of the perturbation graph, P."""
        return len(self.pert_list)

    @property
    def ctrl_expression(self) -> torch.Tensor:
        """Mean of the control cells, (G,) float32, on the model's device."""
        screen = self._need_data("ctrl_expression").screen
        mean_G = np.asarray(screen.statistics.mean[screen.control_id], dtype=np.float32)
        return torch.from_numpy(mean_G).to(self.device)

    @property
    def dict_filter(self) -> dict[str, np.ndarray]:
        """Label -> indices of the genes in its loss (those with non-zero mean)."""
        lists = self.adata.uns.get("non_zeros_gene_idx", {})
        names = self.adata.obs[["condition_name", "condition"]].drop_duplicates()
        return {label: lists[name] for name, label in names.itertuples(index=False) if name in lists}

    @property
    def pert2gene(self) -> dict[int, int]:
        """Node of the perturbation graph -> column of the expression, where the gene is measured."""
        column = {gene: i for i, gene in enumerate(self.gene_list)}
        return {node: column[gene] for node, gene in enumerate(self.pert_list) if gene in column}

    def GI_predict(
        self, combo: str | Sequence[str] | Condition, GI_genes_file: str | Path | Iterable[str] | None = None
    ) -> dict[str, float]:
        """Scores of the genetic interaction of two genes (:func:`gears.evaluation.interactions.interaction_scores`).

        Returns plain floats: c1, c2, mag, dominance, corr_fit, dcor, dcor_singles, dcor_first, dcor_second, eq_contr.

        Parameters
        ----------
        combo
            The two genes.
        GI_genes_file
            Genes to use: names, or a file of names (text, or ``.npy`` of strings); all by default.
        """
        return predict_interaction(self, combo, GI_genes_file)

    def plot_perturbation(
        self,
        query: str | Sequence[str] | Condition,
        save_file: str | Path | None = None,
        *,
        n_genes: int = 20,
        ax: Axes | None = None,
        show: bool | None = None,
    ) -> Axes:
        """Draw a condition's cells and prediction over its top genes: :func:`gears.plotting.plot_perturbation`."""
        from gears.plotting._changes import plot_perturbation

        return plot_perturbation(self, query, save_file, n_genes=n_genes, ax=ax, show=show)

    def screen(self, *args: Any, **options: Any) -> pd.DataFrame:
        """Name of :meth:`gears.GEARS.rank_pairs` in earlier releases."""
        warnings.warn("GEARS.screen is called rank_pairs now", DeprecationWarning, stacklevel=2)
        return self.rank_pairs(*args, **options)

    def tunable_parameters(self) -> dict[str, str]:
        """Options of :meth:`model_initialize`, each with its meaning and default."""
        fields = dataclasses.fields(ModelConfig)
        return {field.name: f"{field.metadata['help']}. Default {field.default}." for field in fields}


class HasGears(Protocol):
    """What holds a GEARS model, such as :class:`gears.PerturbationModel`."""

    @property
    def gears(self) -> GEARS:
        """The model."""


AnyModel = GEARS | HasGears


def gears_of(model: AnyModel, *, trained: bool = True) -> GEARS:
    """The GEARS model of a :class:`gears.PerturbationModel`; a GEARS model unchanged.

    TypeError for anything else, ValueError for a model that is not trained, unless it need not be.
    """
    gears = getattr(model, "gears", model)
    if not isinstance(gears, GEARS):
        msg = f"expected a GEARS or a PerturbationModel; found {type(model).__name__}"
        raise TypeError(msg)
    if trained and not gears.is_trained:
        msg = "this model is not trained yet; call its train() first"
        raise ValueError(msg)
    return gears


def on_split(pert_data: PertData, network: Mapping[str, Any], split: Split, device: str | torch.device | None) -> GEARS:
    """A new model of the screen on another split; the PertData keeps its own."""
    pert_data = copy.copy(pert_data)
    pert_data.use_split(split)
    model = GEARS(pert_data, device=device)
    model.model_initialize(**network)
    return model
