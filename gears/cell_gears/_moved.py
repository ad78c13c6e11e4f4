"""Public names of cell-gears 0.1.2 by module: where they are, and what replaces those that do not exist here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NETWORK = "model.model is the network (gears.model.network.GEARSNetwork), made by model_initialize(...)"
DOWNLOAD = "PertData(path).load(data_name=...) downloads and unpacks a published screen"
GO = "get_similarity_network('go', pert_list=...) gives the edges, PertData(path, gene2go=...) takes another annotation"
SPLIT = "pert_data.prepare_split(...) draws the split, gears.data.splits its types"
RANKED = "new_data_process(name, adata) ranks the genes; pert_data.adata.uns holds the published lists"
PREDICT = "model.predict(...) predicts conditions, gears.inference.evaluate(...) the cells of a loader"
INTERACTIONS = "model.GI_predict([A, B]) scores a pair, gears.evaluation.interactions.interaction_table many"

ELSEWHERE = {
    "gears.gears": {
        **dict.fromkeys(
            ("compute_metrics", "deeper_analysis", "evaluate", "non_dropout_analysis"), "gears.inference"
        ),
        **dict.fromkeys(
            (
                "GeneSimNetwork", "create_cell_graph_dataset_for_prediction", "get_GI_genes_idx", "get_GI_params",
                "get_mean_control", "get_similarity_network", "loss_fct", "parse_any_pert", "print_sys",
                "uncertainty_loss_fct",
            ),
            "gears.utils",
        ),
    },
    "gears.data_utils": dict.fromkeys(
        ("parse_any_pert", "parse_combo_pert", "parse_single_pert", "print_sys"), "gears.utils"
    ),
}  # fmt: skip
"""Module of cell-gears -> names that it imported, or that users import from it -> module here."""

GONE = {
    "gears.gears": {"GEARS_Model": NETWORK},
    "gears.data_utils": {
        "DataSplitter": SPLIT,
        "get_DE_genes": RANKED,
        "get_dropout_non_zero_genes": RANKED,
        "rank_genes_groups_by_cov": RANKED,
    },
    "gears.utils": {
        "combine_res": "join the keyword results of gears.inference.evaluate with numpy.concatenate",
        "create_cell_graph_for_prediction": "create_cell_graph_dataset_for_prediction makes the graphs of cells",
        "get_GO_edge_list": GO,
        "get_coeffs": "get_GI_params gives c1 and c2",
        "get_coexpression_network_from_train": "get_similarity_network('co-express', ...) gives the edges",
        "get_go_auto": GO,
        "make_GO": GO,
        "tar_data_download_wrapper": DOWNLOAD,
        "zip_data_download_wrapper": DOWNLOAD,
    },
    "gears.inference": {
        "GI_subgroup": INTERACTIONS,
        "batch_predict": PREDICT,
        "get_all_vectors": INTERACTIONS,
        "get_high_umi_idx": "gears.utils.get_GI_genes_idx(adata, file) gives positions of genes that a file names",
        "get_mean_ctrl": "gears.utils.get_mean_control(adata) gives the mean of the control cells",
        "get_single_name": "labels A+ctrl and ctrl+A are one condition, gears.Condition.parse(label)",
        "get_test_set_results_seen2": "pert_data.subgroup['test_subgroup'] holds the labels of each subgroup",
        "node_specific_batch_out": PREDICT,
    },
}
"""Module of cell-gears -> name -> what replaces it."""


class OfScreen:
    """The PertData's attribute of the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name
        self.__doc__ = f"``pert_data.{name}``."

    def __get__(self, model: Any, owner: type) -> Any:
        return self if model is None else getattr(model._need_data(self.name), self.name)


class OfGraph:
    """Edges of a graph of the model, (2, E) int64, or their weights, (E,) float32."""

    def __init__(self, graph: str, array: str) -> None:
        self.graph, self.array = graph, array
        self.__doc__ = f"``{array}`` of the model's {graph} graph, a tensor on its device."

    def __get__(self, model: Any, owner: type) -> Any:
        if model is None:
            return self

        import torch

        array = getattr(getattr(model._need_model(), self.graph), self.array)
        return torch.tensor(array, dtype=None if array.ndim == 2 else torch.float32, device=model.device)


class Stated:
    """A fact about the workers, which guides set to what it is; it cannot be changed."""

    def __init__(self, read: Callable[[Any], Any], text: str) -> None:
        self._read, self.__doc__ = read, text

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, model: Any, owner: type) -> Any:
        return self if model is None else self._read(model)

    def __set__(self, model: Any, value: Any) -> None:
        stated = self._read(model)
        if value != stated:
            msg = (
                f"{self.name} cannot be set to {value!r}: it is {stated!r}, as the running process group says (there "
                "is none before setup_ddp(rank, world_size))"
            )
            raise AttributeError(msg)
