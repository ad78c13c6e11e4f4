"""Helper functions of cell-gears' ``gears.utils``; new code uses :class:`gears.conditions.Condition`.

Those that do not exist any more raise an ImportError with their replacement.
"""

from gears.cell_gears._helpers import (
    GeneSimNetwork,
    dataverse_download,
    filter_pert_in_go,
    get_genes_from_perts,
    get_GI_genes_idx,
    get_GI_params,
    get_mean_control,
    get_similarity_network,
    loss_fct,
    np_pearson_cor,
    parse_any_pert,
    parse_combo_pert,
    parse_single_pert,
    pert_flags,
    print_sys,
    uncertainty_loss_fct,
)
from gears.cell_gears._moved import GONE
from gears.core._lazy import lazy_names
from gears.data._published import create_cell_graph_dataset_for_prediction

__all__ = [
    "GeneSimNetwork", "create_cell_graph_dataset_for_prediction", "dataverse_download", "filter_pert_in_go",
    "get_GI_genes_idx", "get_GI_params", "get_genes_from_perts", "get_mean_control", "get_similarity_network",
    "loss_fct", "np_pearson_cor", "parse_any_pert", "parse_combo_pert", "parse_single_pert", "pert_flags", "print_sys",
    "uncertainty_loss_fct",
]  # fmt: skip

__getattr__, __dir__ = lazy_names(__name__, {}, GONE[__name__])
