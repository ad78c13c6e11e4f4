"""How a screen is read and prepared: one frozen set of options."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import KW_ONLY
from typing import Any

from gears.conditions import CONTROL_LABEL
from gears.core._messages import brief
from gears.core._options import Check, Options, anything, number, one_of, option, options, switch, whole
from gears.data.checks._scale import SCALES
from gears.data.checks._styles import STYLES
from gears.data.reading._guides import target_table

_SHARE = Check("a share of the control's expression above 0, such as 0.3", number(above=0).valid).or_none()
_SIGN = Check(
    "the sign between the genes of a combination, such as '+' or '_'",
    lambda value: isinstance(value, str) and bool(value.strip()),
)
_PATTERN = Check(
    "a regular expression with one group, the gene, such as '(.+)_g[0-9]+'", lambda value: _n_groups(value) == 1
).or_none()
_COLUMN = Check("the name of a column", lambda value: isinstance(value, str)).or_none()


@options
class ProcessingOptions(Options):
    """How a screen is prepared: options of :meth:`gears.PertData.load` and :meth:`gears.PertData.new_data_process`."""

    kind = "processing option"

    # fmt: off
    _: KW_ONLY
    skip_calc_de: bool = option(False, switch(),
        help="omit differential expression (metrics over DE genes are then absent)")
    normalize: bool = option(False, switch(),
        help="the values are counts: bring each cell to 1e4 and take log1p, on a copy")
    layer: str | None = option(None, Check("the name of a layer", lambda value: isinstance(value, str)).or_none(),
        help="take the values from this layer instead of X; raw takes adata.raw, where no layer has that name")
    scale: str | None = option(None, one_of(SCALES).or_none(),
        help=f"scale of the values where its detection is wrong: {', '.join(SCALES)}; they are used unchanged")
    min_cells: int | None = option(None, whole(1).or_none(),
        help="""drop conditions (never the control) with fewer cells, with a warning; by default nothing is dropped, and
        conditions too small for DE are an error""")
    pool_cell_types: bool = option(False, switch(), help="treat several cell types as one")
    ctrl_label: str | list[str] = option(CONTROL_LABEL, anything(),
        help="""the screen's own control token, or several; written ctrl in the prepared screen, and the original labels
        are kept in obs.condition_source""")
    as_genes: list[str] | None = option(None, anything(),
        help="tokens of labels that are genes although they look like a control (CTRL, GFP) or are not known")
    style: str = option("auto", one_of(["auto", *STYLES]),
        help=f"how the screen names things: {', '.join(STYLES)}, or auto, which looks (see gears.data.checks._styles)")
    condition_key: str | None = option(None, _COLUMN,
        help="column of obs with the condition labels, instead of the style's")
    guide_key: str | None = option(None, _COLUMN,
        help="""column of obs with the guides of each cell (STAT1_g2, sgSTAT1-2, NTC_3; several joined as in labels),
        which are read as the genes that they target""")
    guide_targets: Any = option(None, anything(),
        help="""target gene of each guide: a dict, or a table with the columns id (or name, guide) and target_gene_name;
        for the guides in obs, and for those of a table of guides""")
    guide_pattern: str | None = option(None, _PATTERN,
        help="""regular expression with one group, the gene in the name of a guide, such as '(.+)_g[0-9]+'""")
    cell_type_key: str | None = option(None, _COLUMN,
        help="column of obs with the cell types, instead of the style's")
    gene_key: str | None = option(None, _COLUMN,
        help="column of var with the gene names, instead of the style's; index takes the index of var")
    sep: str | None = option(None, _SIGN.or_none(),
        help="what joins the genes of a combination, instead of the style's")
    drop_labels: list[str] | None = option(None, anything(),
        help="labels whose cells are excluded (nan also means cells without a label)")
    unknown_labels: str = option("auto", one_of(["auto", "refuse", "keep", "drop"]),
        help="""what becomes of labels with a token that is neither a measured nor an annotated gene, outside the style
        gears: refuse, keep, drop, or auto, which keeps them where nine of ten tokens are known genes""")
    unique_genes: bool = option(False, switch(),
        help="add the gene ids to repeated gene names; by default they are an error")
    doublet_key: str | None = option(None, _COLUMN,
        help="column of obs that is true where a cell is excluded (doublets)")
    guide_count_key: str | None = option(None, _COLUMN,
        help="""column of obs with each cell's number of perturbations or guides; cells where it differs from the number
        of genes in the label are excluded""")
    max_residual: float | None = option(None, _SHARE,
        help="""exclude conditions whose mean (normalised counts) of a perturbed, measured gene is more than this share
        of the control's, such as 0.3; off by default""")
    max_cell_residual: float | None = option(None, _SHARE, help="the same for each cell")
    batch_key: list[str] | None = option(None, anything(), formerly="match_controls_by",
        help="""column of obs with the experimental batch, or several (batch, donor, cell type): the cells of a
        condition are compared with the control cells that agree in all of them; cell_type is the column of cell
        types""")
    context_key: str | None = option(None, _COLUMN,
        help="""column of obs whose values are contexts: each condition in each context has its own statistics, and that
        context's control; it is matched by as well""")
    perturbation_type_key: str | None = option(None, _COLUMN,
        help="""column of obs with the type of perturbation (CRISPRi, CRISPRa, knock-out) of perturbed cells: conditions
        of the same genes but another type have their own statistics""")
    # fmt: on

    def check_together(self) -> None:
        """Bring labels and columns into one form: sorted lists, the context's column among those matched by."""
        controls = _names("ctrl_label", self.ctrl_label)
        object.__setattr__(self, "ctrl_label", controls[0] if len(controls) == 1 else controls)
        for name in ("drop_labels", "as_genes", "batch_key"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _names(name, getattr(self, name)))
        if self.guide_targets is not None:
            object.__setattr__(self, "guide_targets", target_table(self.guide_targets))
        if self.guide_key is not None and self.condition_key not in (None, self.guide_key):
            msg = (
                f"guide_key={self.guide_key!r} and condition_key={self.condition_key!r} both name the column of "
                "labels; give one of them"
            )
            raise ValueError(msg)
        if self.context_key is not None:
            columns = sorted({*(self.batch_key or ()), self.context_key})
            object.__setattr__(self, "batch_key", columns)

    @property
    def controls(self) -> tuple[str, ...]:
        """The control tokens, one or several."""
        return (self.ctrl_label,) if isinstance(self.ctrl_label, str) else tuple(self.ctrl_label)


def _n_groups(pattern: Any) -> int:
    """Groups of a regular expression; -1 for what is none."""
    try:
        return re.compile(pattern).groups if isinstance(pattern, str) else -1
    except re.error:
        return -1


def _names(option_name: str, value: Any) -> list[str]:
    """A label or several as a sorted list."""
    values = [value] if isinstance(value, str) else value
    names = sorted({str(name) for name in values}) if isinstance(values, Iterable) else []
    if not names or not all(name.strip() for name in names):
        msg = f"{option_name} is {brief(value)}; expected a label or a list of labels"
        raise ValueError(msg)
    return names
