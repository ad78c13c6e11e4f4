"""Attributes and methods of a model under their names in cell-gears."""

from __future__ import annotations

import abc
import dataclasses
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gears.conditions import Condition
from gears.core._lazy import Gone
from gears.evaluation.interactions import predict_interaction

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from matplotlib.axes import Axes

    from gears.model._folder import ModelParts
    from gears.pertdata import PertData

NOT_STORED = "predictions are not stored; keep the result of predict"


class _OfScreen:
    """The PertData's attribute of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.__doc__ = f"``pert_data.{name}``."

    def __get__(self, model: PublishedNames | None, owner: type) -> Any:
        return self if model is None else getattr(model._need_data(self.name), self.name)


class _OfGraph:
    """Edges of a graph of the model, (2, E) int64, or their weights, (E,) float32."""

    def __init__(self, graph: str, array: str) -> None:
        self.graph, self.array = graph, array
        self.__doc__ = f"``{array}`` of the model's {graph} graph, a tensor on its device."

    def __get__(self, model: PublishedNames | None, owner: type) -> Any:
        if model is None:
            return self
        import torch

        array = getattr(getattr(model._need_model(), self.graph), self.array)
        return torch.tensor(array, dtype=None if array.ndim == 2 else torch.float32, device=model.device)


class PublishedNames(abc.ABC):
    """Published names of ``GEARS``: attributes of its screen and graphs, and functions of other rooms as methods."""

    device: torch.device
    gene_list: Any
    pert_list: Any
    rank_pairs: Any

    adata = _OfScreen()
    ctrl_adata = _OfScreen()
    dataloader = _OfScreen()
    node_map = _OfScreen()
    node_map_pert = _OfScreen()
    data_path = _OfScreen()
    dataset_name = _OfScreen()
    split = _OfScreen()
    seed = _OfScreen()
    train_gene_set_size = _OfScreen()
    set2conditions = _OfScreen()
    subgroup = _OfScreen()
    default_pert_graph = _OfScreen()
    G_go, G_go_weight = _OfGraph("go", "edge_index"), _OfGraph("go", "weight")
    G_coexpress, G_coexpress_weight = _OfGraph("coexpress", "edge_index"), _OfGraph("coexpress", "weight")

    saved_pred = Gone(NOT_STORED)
    saved_logvar_sum = Gone(NOT_STORED)
    wandb = Gone("train(loggers=['wandb']) logs to Weights & Biases")

    @abc.abstractmethod
    def _need_data(self, what: str) -> PertData: ...

    @abc.abstractmethod
    def _need_model(self) -> ModelParts: ...

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
        import torch

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
        from gears.model.config import ModelConfig

        return {
            field.name: f"{field.metadata['help']} Default {field.default}."
            for field in dataclasses.fields(ModelConfig)
        }
