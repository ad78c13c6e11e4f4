"""Helper functions of cell-gears' ``gears.utils``; new code uses :class:`gears.conditions.Condition`.

``docs/cell_gears.md`` lists those that do not exist any more and their replacements.
"""

from gears.cell_gears.helpers import (
    filter_pert_in_go,
    get_genes_from_perts,
    get_GI_genes_idx,
    get_GI_params,
    get_mean_control,
    np_pearson_cor,
    parse_any_pert,
    parse_combo_pert,
    parse_single_pert,
    pert_flags,
    print_sys,
)
from gears.cell_gears.networks import GeneSimNetwork, get_similarity_network
from gears.data.published import create_cell_graph_dataset_for_prediction

__all__ = [
    "GeneSimNetwork",
    "create_cell_graph_dataset_for_prediction",
    "filter_pert_in_go",
    "get_GI_genes_idx",
    "get_GI_params",
    "get_genes_from_perts",
    "get_mean_control",
    "get_similarity_network",
    "np_pearson_cor",
    "parse_any_pert",
    "parse_combo_pert",
    "parse_single_pert",
    "pert_flags",
    "print_sys",
]
