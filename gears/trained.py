"""A model that predicts: its parts and weights, whether trained here or read from its folder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import pandas as pd
import torch

from gears import streaming
from gears.assembly import check_names
from gears.conditions import Condition
from gears.distributed import current_world, find_device, is_running
from gears.interactions import predict_interaction
from gears.model.network import GEARSNetwork
from gears.numbers import whole_number
from gears.prediction_adata import Origin
from gears.predictions import Predictions, asked_conditions, placed
from gears.published_names import PublishedNames
from gears.training.model_folder import ModelParts, load_parts, load_weights, save_model
from gears.training.published_folder import is_published, read_published
from gears.training.tables import predict_changes
from gears.training.wrapping import unwrap

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from gears.pertdata import PertData


class TrainedModel(PublishedNames):
    """The half of :class:`gears.GEARS` that needs no screen: prediction and the model's folder.

    Parameters
    ----------
    pert_data
        The screen, or None for a model that is read from its folder.
    device
        Where the network lives.
    """

    def __init__(self, pert_data: PertData | None, device: str | torch.device | None = None) -> None:
        self.pert_data = pert_data
        self.device = _own_device(device)
        self.parts: ModelParts | None = None
        self.joined_as: tuple[int, int] | None = None
        self.model: Any = None
        self.best_model: GEARSNetwork | None = None

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
            Of a model with contexts or types: where, and how, the genes are perturbed. All of them when left out;
            a label such as "A+ctrl [CRISPRi] @ K562" says both itself.

        Raises
        ------
        ValueError
            No or an empty condition, or a gene outside the perturbation graph (near matches named).
        """
        parts, network = self._need_model(), self.best_model
        conditions, nodes, control_mean = placed(
            asked_conditions(pert_list), parts, context, perturbation_type
        )
        assert network is not None
        delta_UG, logvar_UG = predict_changes(
            network, nodes, prior=parts.prior, chunk=whole_number("chunk", chunk)
        )
        expression_UG = control_mean + delta_UG
        if clip:
            expression_UG = np.maximum(expression_UG, 0.0)
        genes, origin = parts.gene_names, Origin.of(parts)
        return Predictions(conditions, genes, expression_UG, control_mean, logvar_UG, clip, origin)

    def GI_predict(
        self,
        combo: str | Sequence[str] | Condition,
        GI_genes_file: str | Path | Iterable[str] | None = None,
    ) -> dict[str, float]:
        """Scores of the genetic interaction of two genes (:func:`gears.interactions.interaction_scores`).

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
        from gears.plotting import plot_perturbation

        return plot_perturbation(self, query, save_file, n_genes=n_genes, ax=ax)

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

    def predict_to_file(
        self,
        pert_list: Iterable[str | Sequence[str] | Condition],
        output: str | Path,
        *,
        clip: bool = True,
        chunk: int | None = None,
    ) -> Path:
        """Predict any conditions, as :meth:`predict` takes them, into ``.h5ad`` or ``.zarr``, chunk by chunk."""
        parts = self._need_model()
        assert self.best_model is not None
        return streaming.predict_to_file(self.best_model, parts, pert_list, output, clip=clip, chunk=chunk)

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
        """Load a saved model for this screen; also one of cell-gears (:func:`gears.published.load_cell_gears_model`).

        Raises
        ------
        ValueError
            The model's genes or perturbation nodes are not those of the PertData, in its
            order; both sides are named.
        """
        if is_published(path):
            from gears.published import screen_names

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
