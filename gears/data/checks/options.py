"""How a screen is read and prepared: one frozen set of options."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from gears.conditions import CONTROL_LABEL
from gears.core.messages import unknown_name
from gears.core.numbers import is_number, is_whole, plain_numbers

UNKNOWN_LABELS = ("refuse", "keep", "drop")


@dataclass(frozen=True)
class ProcessingOptions:
    """How a screen is prepared.

    Parameters
    ----------
    skip_calc_de
        Leave differential expression out (metrics over DE genes are then absent).
    normalize
        The values are counts: bring each cell to 1e4 and take log1p, on a copy.
    layer
        Take the values from this layer instead of X.
    min_cells
        Drop conditions (never the control) with fewer cells, with a warning;
        None drops nothing and refuses conditions too small for DE.
    pool_cell_types
        Treat several cell types as one.
    ctrl_label
        The screen's own control token, or several; written ``ctrl`` in the prepared
        screen, and the original labels are kept in ``obs.condition_source``.
    style
        How the screen names things: "gears", "scperturb", "pertpy", "cell-load",
        "replogle", or "auto", which looks (see :mod:`gears.data.checks.styles`).
    condition_key, cell_type_key, gene_key
        Columns of obs, obs and var, instead of those of the style; gene_key="index"
        takes the index of var.
    sep
        What joins the genes of a combination, instead of the style's.
    drop_labels
        Labels whose cells are excluded ("nan" also means cells without a label).
    unknown_labels
        What becomes of labels with a token that is neither a measured nor an
        annotated gene, outside the style "gears": "refuse", "keep" or "drop".
    unique_genes
        Keep repeated gene names apart by their ids instead of refusing them.
    doublet_key
        Column of obs that is true where a cell is excluded (doublets).
    guide_count_key
        Column of obs with each cell's number of perturbations or guides; cells where it
        differs from the number of genes in the label are excluded.
    max_residual
        Leave conditions out whose mean (normalised counts) of a perturbed, measured gene
        is more than this share of the control's; None: off.
    max_cell_residual
        The same for single cells; None: off.
    match_controls_by
        Columns of obs (cell type, batch, donor): the cells of a condition are compared with the
        control cells that agree in all of them. "cell_type" is the column of cell types.
    context_key
        Column of obs whose values are contexts: each condition in each context is a separate condition,
        with that context's control. It is matched by as well.
    perturbation_type_key
        Column of obs with the type of perturbation (CRISPRi, CRISPRa, knock-out) of perturbed cells:
        conditions of the same genes but another type are separate.
    """

    skip_calc_de: bool = False
    normalize: bool = False
    layer: str | None = None
    min_cells: int | None = None
    pool_cell_types: bool = False
    ctrl_label: str | list[str] = CONTROL_LABEL
    style: str = "gears"
    condition_key: str | None = None
    cell_type_key: str | None = None
    gene_key: str | None = None
    sep: str | None = None
    drop_labels: list[str] | None = None
    unknown_labels: str = "refuse"
    unique_genes: bool = False
    doublet_key: str | None = None
    guide_count_key: str | None = None
    max_residual: float | None = None
    max_cell_residual: float | None = None
    match_controls_by: list[str] | None = None
    context_key: str | None = None
    perturbation_type_key: str | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        if self.min_cells is not None and not is_whole(self.min_cells, 1):
            msg = f"min_cells must be a whole number of at least 1, or None; found {self.min_cells!r}"
            raise ValueError(msg)
        object.__setattr__(self, "ctrl_label", _one_or_list(self.ctrl_label, "ctrl_label"))
        if self.drop_labels is not None:
            dropped = _one_or_list(self.drop_labels, "drop_labels")
            object.__setattr__(self, "drop_labels", [dropped] if isinstance(dropped, str) else dropped)
        self._match_by_context()
        from gears.data.checks.styles import STYLES

        if self.style != "auto" and self.style not in STYLES:
            raise ValueError(unknown_name("style", str(self.style), ["auto", *STYLES]))
        if self.unknown_labels not in UNKNOWN_LABELS:
            raise ValueError(unknown_name("unknown_labels", str(self.unknown_labels), UNKNOWN_LABELS))
        if self.sep is not None and not (isinstance(self.sep, str) and self.sep.strip()):
            msg = (
                f"sep is the sign between the genes of a combination, such as '+' or '_'; found {self.sep!r}"
            )
            raise ValueError(msg)
        for name in ("max_residual", "max_cell_residual"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                msg = f"{name} is a share of the control's expression above 0, such as 0.3, or None; found {value!r}"
                raise ValueError(msg)

    def _match_by_context(self) -> None:
        """Columns to match by as a list, the context's among them."""
        given = self.match_controls_by
        if given is None and self.context_key is None:
            return
        columns = [] if given is None else _one_or_list(given, "match_controls_by")
        columns = [columns] if isinstance(columns, str) else list(columns)
        if self.context_key is not None:
            columns = sorted({*columns, self.context_key})
        object.__setattr__(self, "match_controls_by", columns)

    @classmethod
    def of(cls, **options: Any) -> ProcessingOptions:
        """Options by name; an unknown name is an error with the nearest valid one."""
        valid = [field.name for field in fields(cls)]
        for name in options:
            if name not in valid:
                raise TypeError(unknown_name("processing option", name, valid))
        return cls(**options)

    @property
    def controls(self) -> tuple[str, ...]:
        """The control tokens, one or several."""
        return (self.ctrl_label,) if isinstance(self.ctrl_label, str) else tuple(self.ctrl_label)

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)


def _one_or_list(value: Any, name: str) -> str | list[str]:
    """A label, or a sorted list of several."""
    if isinstance(value, str) and value.strip():
        return value
    if not isinstance(value, str) and isinstance(value, Iterable):
        labels = sorted({str(label) for label in value})
        if labels and all(label.strip() for label in labels):
            return labels[0] if len(labels) == 1 else labels
    msg = f"{name} is a label or a list of labels; found {value!r}"
    raise ValueError(msg)
