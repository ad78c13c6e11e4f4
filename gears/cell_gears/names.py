"""Attributes of a model that scripts for cell-gears use."""

from __future__ import annotations

import abc
import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from gears.pertdata import PertData


class _OfScreen:
    """The PertData's attribute of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.__doc__ = f"``pert_data.{name}``."

    def __get__(self, model: PublishedNames | None, owner: type) -> Any:
        return self if model is None else getattr(model._need_data(self.name), self.name)


class PublishedNames(abc.ABC):
    """The published attributes of ``GEARS``; new code uses ``model.pert_data``."""

    device: torch.device
    gene_list: Any
    pert_list: Any

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

    @abc.abstractmethod
    def _need_data(self, what: str) -> PertData: ...

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

    @property
    def saved_pred(self) -> dict[str, np.ndarray]:
        """Raises: predictions are not stored."""
        msg = "saved_pred does not exist any more: predictions are not stored; keep the result of predict"
        raise AttributeError(msg)

    def tunable_parameters(self) -> dict[str, str]:
        """Options of :meth:`model_initialize`, each with its meaning and default."""
        from gears.model.config import ModelConfig

        texts = ModelConfig.help()
        return {
            field.name: f"{texts[field.name]} Default {field.default}."
            for field in dataclasses.fields(ModelConfig)
        }
