"""Options of the network, its graphs and its objective."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import KW_ONLY
from typing import Any

from gears.core._messages import shorten
from gears.core._options import Options, anything, number, one_of, option, options, switch, whole
from gears.files._paths import need_files
from gears.graphs._graph import BUILT_IN

# entries of a published config that are no options: sizes, graphs and devices
RUNTIME_KEYS = frozenset(
    {"device", "num_genes", "num_perts", "G_go", "G_go_weight", "G_coexpress", "G_coexpress_weight"}
)
# the published objective, which published configs do not name
PUBLISHED_OBJECTIVE = {"direction": "sign", "uncertainty_kind": "gears"}


@options
class ModelConfig(Options):
    """Options of network, graphs and objective; names and defaults as published."""

    kind = "model option"

    # fmt: off
    hidden_size: int = option(64, whole(1),
        help="width H of embeddings and hidden layers, the per-gene decoder included")
    num_go_gnn_layers: int = option(1, whole(1), help="graph layers on the GO graph")
    num_gene_gnn_layers: int = option(1, whole(1), help="graph layers on the co-expression graph")
    decoder_hidden_size: int = option(16, whole(1),
        help="kept from the published signature, without effect: the decoder is as wide as hidden_size")
    num_similar_genes_go_graph: int = option(20, whole(0),
        help="neighbours kept per gene in the GO graph; 0 is a graph without neighbours")
    num_similar_genes_co_express_graph: int = option(20, whole(0),
        help="neighbours kept per gene in the co-expression graph; 0 is a graph without neighbours")
    coexpress_threshold: float = option(0.4, number(least=0, most=1),
        help="smallest absolute correlation of a co-expression edge")
    uncertainty: bool = option(False, switch(), help="predict a log-variance beside the change")
    uncertainty_reg: float = option(1.0, number(least=0), help="weight of the uncertainty term")
    direction_lambda: float = option(0.1, number(least=0), help="weight of the direction term")
    no_perturb: bool = option(False, switch(),
        help="""a baseline that predicts no change: the network runs, and its change is multiplied by 0, so that
        training, several workers and saving work as for any model""")
    _: KW_ONLY
    coexpress_cells: int | None = option(5000, whole(1).or_none("None for all cells"),
        help="""with more training cells than this, a fixed draw of this many chooses the pairs of genes whose
        correlation is computed over the training cells (of more than 100,000, over evenly spaced ones); None: every
        pair is computed over every training cell""")
    loss: str = option("gears", one_of(["gears", "evidence"]),
        help="""gears: fourth powers of the errors and the direction term, as published; evidence: squared errors, each
        gene of each condition weighted by how well its mean change is known, without a direction term""")
    uncertainty_kind: str = option("nll", one_of(["nll", "gears"]),
        help="""nll: Gaussian likelihood with a finite minimiser; gears: the published term, which is smallest at
        infinite variance""")
    direction: str = option("smooth", one_of(["smooth", "sign"]),
        help="smooth: tanh of the predicted change, which has a gradient; sign: the published sign, which has none")
    tau: float = option(0.1, number(above=0), help="width of the tanh, in units of log expression")
    mask_target: bool = option(False, switch(),
        help="""exclude the expression of the perturbed genes from the loss and from metrics, because the knock-down of
        the target itself is no predicted response""")
    # fmt: on

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Read options written by this or another release.

        Missing options take their defaults; unknown ones are named in a warning and ignored.
        """
        unknown = sorted(str(key) for key in values if key not in cls.names())
        if unknown:
            msg = (
                f"model options not known to this release are ignored: {shorten(unknown)} "
                f"(known: {shorten(sorted(cls.names()), 20)})"
            )
            warnings.warn(msg, stacklevel=2)
        return cls(**{key: value for key, value in values.items() if key in cls.names()})


@options
class CustomGraphs(Options):
    """Graphs and embeddings that a user gives with a model."""

    kind = "model option"

    # fmt: off
    G_go: Any = option(None, anything(), command="go_graph",
        help="edge table (TSV or CSV: source, target, weight) instead of the GO graph of the perturbed genes")
    G_go_weight: Any = option(None, anything(), command="",
        help="weights (E,) where `G_go` is a tensor of edges (2, E), as published")
    G_coexpress: Any = option(None, anything(), command="coexpress_graph",
        help="edge table (TSV or CSV: source, target, weight) instead of the co-expression graph of the measured genes")
    G_coexpress_weight: Any = option(None, anything(), command="",
        help="weights (E,) where `G_coexpress` is a tensor of edges (2, E), as published")
    _: KW_ONLY
    pert_embedding: Any = option(None, anything(),
        help="gene embeddings (npz, parquet or h5ad) that the perturbation embedding starts from")
    # fmt: on

    def check_together(self) -> None:
        """Raise for files that are missing."""
        need_files(self, CustomGraphs.names(), BUILT_IN)

    @property
    def go(self) -> Any:
        """A graph for :meth:`gears.graphs._custom.GraphMaker.make`."""
        return self.G_go if self.G_go_weight is None else (self.G_go, self.G_go_weight)

    @property
    def coexpress(self) -> Any:
        """A graph for :meth:`gears.graphs._custom.GraphMaker.make`."""
        return self.G_coexpress if self.G_coexpress_weight is None else (self.G_coexpress, self.G_coexpress_weight)


@options
class ModelOptions(CustomGraphs, ModelConfig):
    """Arguments of :meth:`gears.GEARS.model_initialize`: options of the network, custom graphs, and a seed."""

    # fmt: off
    _: KW_ONLY
    seed: int | None = option(None, anything(), command="",
        help="seed of the initial weights; by default the split's seed")
    # fmt: on


def published_config(values: Mapping[str, Any]) -> ModelConfig:
    """Options from a published ``config`` dictionary, with the published objective unless it names another."""
    options = {key: value for key, value in values.items() if key not in RUNTIME_KEYS}
    return ModelConfig.from_dict({**PUBLISHED_OBJECTIVE, **options})
