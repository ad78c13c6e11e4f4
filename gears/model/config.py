"""The settings that make a network and its objective."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gears.messages import shorten, unknown_name
from gears.numbers import is_number, is_whole, plain_numbers

UNCERTAINTY_KINDS = ("nll", "gears")
DIRECTIONS = ("smooth", "sign")
LOSSES = ("gears", "evidence")

_POSITIVE_COUNTS = (
    "hidden_size",
    "num_go_gnn_layers",
    "num_gene_gnn_layers",
    "decoder_hidden_size",
)
_COUNTS = ("num_similar_genes_go_graph", "num_similar_genes_co_express_graph")


@dataclass(frozen=True)
class ModelConfig:
    """Settings of network, graphs and objective; names and defaults as published.

    Parameters
    ----------
    hidden_size
        Width H of embeddings and hidden layers, the per-gene decoder included.
    num_go_gnn_layers, num_gene_gnn_layers
        Graph layers on the GO graph and on the co-expression graph.
    decoder_hidden_size
        Kept from the published signature, without effect: the decoder is as wide as `hidden_size`.
    num_similar_genes_go_graph, num_similar_genes_co_express_graph
        Neighbours kept per gene in either graph; 0 is a graph without neighbours.
    coexpress_threshold
        Smallest absolute correlation of a co-expression edge, from 0 to 1.
    coexpress_cells
        With more training cells than this, a fixed draw of this many chooses the pairs of genes whose correlation is
        computed over the training cells (of more than 100,000, over evenly spaced ones). None: every pair is computed
        over every training cell.
    loss
        ``"gears"``: fourth powers of the errors and the direction term, as published; ``"evidence"``: squared
        errors, each gene of each condition weighted by how well its mean change is known
        (:func:`gears.training.evidence.evidence_weights`), without a direction term.
    uncertainty
        Whether a log-variance is predicted beside the change.
    uncertainty_reg
        Weight of the uncertainty term.
    uncertainty_kind
        ``"nll"``: Gaussian likelihood with a finite minimiser; ``"gears"``: the
        published term, which is smallest at infinite variance.
    direction_lambda
        Weight of the direction term.
    direction
        ``"smooth"``: tanh of the predicted change, which has a gradient;
        ``"sign"``: the published sign, which has none.
    tau
        Width of the tanh, in units of log expression.
    no_perturb
        A baseline that predicts no change. The whole network runs all the same
        and its result is multiplied by 0, so training, several workers and
        saving work as for any model; parameters get zero gradients from the change.
    mask_target
        Leave the perturbed genes' own expression out, in the loss and in metrics: what a knock-down does
        to its own gene is no prediction of a response.

    Raises
    ------
    ValueError
        If a value is out of its range or an option's name is unknown.
    """

    hidden_size: int = 64
    num_go_gnn_layers: int = 1
    num_gene_gnn_layers: int = 1
    decoder_hidden_size: int = 16
    num_similar_genes_go_graph: int = 20
    num_similar_genes_co_express_graph: int = 20
    coexpress_threshold: float = 0.4
    coexpress_cells: int | None = 5000
    loss: str = "gears"
    uncertainty: bool = False
    uncertainty_reg: float = 1.0
    uncertainty_kind: str = "nll"
    direction_lambda: float = 0.1
    direction: str = "smooth"
    tau: float = 0.1
    no_perturb: bool = False
    mask_target: bool = False

    def __post_init__(self) -> None:
        plain_numbers(self)
        for name in _POSITIVE_COUNTS:
            self._check(name, is_whole(getattr(self, name), 1), "an integer from 1 up")
        for name in _COUNTS:
            self._check(name, is_whole(getattr(self, name), 0), "an integer from 0 up")
        for name in ("uncertainty", "no_perturb", "mask_target"):
            self._check(name, isinstance(getattr(self, name), bool), "True or False")
        for name in ("uncertainty_reg", "direction_lambda"):
            self._check(name, is_number(value := getattr(self, name)) and value >= 0, "a number from 0 up")
        self._check("tau", is_number(self.tau) and self.tau > 0, "a number above 0")
        threshold = self.coexpress_threshold
        self._check(
            "coexpress_threshold", is_number(threshold) and 0 <= threshold <= 1, "a number from 0 to 1"
        )
        n_cells = self.coexpress_cells
        self._check(
            "coexpress_cells",
            n_cells is None or (_is_integer(n_cells) and n_cells >= 1),
            "an integer from 1 up, or None for all cells",
        )
        for name, valid in (
            ("loss", LOSSES),
            ("uncertainty_kind", UNCERTAINTY_KINDS),
            ("direction", DIRECTIONS),
        ):
            if getattr(self, name) not in valid:
                raise ValueError(unknown_name(name, str(getattr(self, name)), valid))

    def _check(self, name: str, good: bool, expected: str) -> None:
        if not good:
            msg = f"{name} is {getattr(self, name)!r}; expected {expected}"
            raise ValueError(msg)

    def to_dict(self) -> dict[str, Any]:
        """Settings as plain values, ready for JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelConfig:
        """Read settings written by this or another release.

        Missing settings take their defaults; unknown ones are named in a
        warning and left out.
        """
        known = {field.name for field in dataclasses.fields(cls)}
        unknown = sorted(str(key) for key in values if key not in known)
        if unknown:
            msg = (
                f"model settings not known to this release are ignored: {shorten(unknown)} "
                f"(known: {shorten(sorted(known), 20)})"
            )
            warnings.warn(msg, stacklevel=2)
        return cls(**{key: value for key, value in values.items() if key in known})
