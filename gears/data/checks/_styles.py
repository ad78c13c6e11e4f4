r"""How published collections name conditions, controls and cell types, and how a screen's own way is found.

=========  =============================  =====================  ===  ==========================================
style      column of obs                  control                sep  source
=========  =============================  =====================  ===  ==========================================
gears      condition                      ctrl                   \\+   cell-gears 0.1.2
scperturb  perturbation                   control                _    scPerturb collection (Peidli et al. 2024)
pertpy     perturbation_name,             control, NT            \\+   pertpy's data sets (Heumos et al. 2024)
           gene_target
cell-load  target_gene                    non-targeting          \\+   cell-load, Virtual Cell Challenge 2025
replogle   gene                           non-targeting          -    Replogle et al. 2022
=========  =============================  =====================  ===  ==========================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_CONTROL_WORDS = (
    r"ctrl|ctrls|control|controls|nt|ntc|nt[-_ ]?control|non[-_ ]?target(ing|s)?",
    r"neg|negative|neg(ative)?[-_ ]?(ctrl|control)s?|un[-_ ]?perturbed|untreated|unmodified",
    r"safe([-_ ]?(targeting|harbou?r|cutter))?|scramb?(le|led)?|mock|vehicle|dmso|lacz|egfp",
    r"wt|wild[-_ ]?type|empty([-_ ]?vector)?|intergenic|no[-_ ]?(target|perturbation|pert)",
)
_NUMBERED = r"(?:[-_ ]?(?:sg|g|guide|ctrl|control)?[-_ ]?\d+)?"
_BETWEEN = r"[-_ |;,/:&~.]+"
"""What joins the names of the two guides of a cell."""
JOINING = re.compile(r"\s+(?:and|plus|with|x)\s+|[^0-9A-Za-z]+")
"""What may join names in a label: a word, or a run of signs."""
CONTROLS_JOINED = ("|", ";", "_", ",", "/", ":", "&", "~", "-", " ")
_ONE_CONTROL = rf"(?:{'|'.join(_CONTROL_WORDS)}){_NUMBERED}"
_CONTROL_LIKE = re.compile(rf"{_ONE_CONTROL}(?:{_BETWEEN}{_ONE_CONTROL})*", re.IGNORECASE)
_ONE_MAYBE = (
    r"(?:(?:human|mouse|hs|mm)[-_ ]?|[hm][-_ ])?(?:sg|si|sh|cr|grna|guide)?[-_ ]?"
    rf"(?:{'|'.join(_CONTROL_WORDS)}|e?gfp|mcherry|bfp|yfp|rfp|td[-_ ]?tomato|tag[-_ ]?[br]fp|luc(?:iferase)?|fluc"
    r"|aavs1?|rosa(?:26)?|(?:no|one)[-_ ](?:(?:non[-_ ]?gene|intergenic)[-_ ])?(?:site|gene)|ignored?|scr(?![a-z0-9])"
    r"|parental|uninfected|unedited|d?cas9|pbs|plasmid|blank|background|backbone|dummy|random|filler)"
    r"(?:[-_ ]?(?:ctrl|control))?(?:[-_ ]?(?:guide|sgrna|grna))?(?:[-_ ]?(?:for)?[-_ ]?(?:human|mouse)|[-_ ][hm])?"
    rf"{_NUMBERED}(?:[-_ ][a-z0-9])?"
)
_MAYBE_CONTROL = re.compile(rf"{_ONE_MAYBE}(?:{_BETWEEN}{_ONE_MAYBE})*", re.IGNORECASE)
_WORD = re.compile(
    r"k[od]s?|ki|oe|wt|wild[-_ ]?type|knock[-_ ]?(?:out|down|in)|over[-_ ]?expression"
    r"|crispr(?:[-_ ]?(?:i|a|ko|off|on))?"
    r"|mut(?:ant|ated|ation)?s?|del(?:etion|eted)?|het|hom|act(?:ivation|ivated)?|inh(?:ibition|ibited)?|repression"
    r"|(?:si|sh|sg)(?:rna)?|rnai|orf|cdna|lps|pma|dex|dox|drug|ifn"
    r"|(?:un[-_ ]?)?stim(?:ulated|ulation)?|rest(?:ing)?|treated|hypoxia|normoxia|high|low|hi|lo"
    r"|g[012]|g1s|g2m|s|[sm][-_ ]?phase|\d+[-_ ]?(?:hrs?|hours?|h|days?|d|min|weeks?)|(?:day|d|t)[-_ ]?\d{1,2}"
    r"|(?:s|r|rep|repl|replicate|sample|batch|lane|plate|well|donor|pool|lib|library|exp|experiment|gem)[-_ ]?\d{1,2}",
    re.IGNORECASE,
)
_NO_GENE = re.compile(
    r"nan|na|n/a|null|none|no[-_ ]?(guide|call|s?grna)s?|unknown|unassigned|unmapped|ambiguous"
    r"|multiple|multiplet|multi|doublet|other|perturbed|\*|\?|-+|",
    re.IGNORECASE,
)
_POSITIONS = frozenset({*"1234abcd", "first", "second", "third", "fourth"})
"""Of the guides of a cell, in names of columns."""
_SYMBOLS = frozenset({"WT1"})
"""Gene symbols that look like a control."""


def is_control_like(token: str) -> bool:
    """Whether a token means "not perturbed" in some screen ("NT", "NegCtrl0", "non-targeting_3").

    Examples
    --------
    >>> [name for name in ("NegCtrl0", "NT", "NT5E", "WT1", "safe-targeting") if is_control_like(name)]
    ['NegCtrl0', 'NT', 'safe-targeting']
    """
    token = token.strip()
    return token not in _SYMBOLS and _CONTROL_LIKE.fullmatch(token) is not None


def may_be_control(token: str) -> bool:
    """Whether a token is often a control, but could name a gene or a guide of interest ("GFP", "AAVS1", "sgNTC").

    Examples
    --------
    >>> [name for name in ("GFP", "Human_NT_12", "NO_SITE_1", "NTS", "GFPT1", "KLF1") if may_be_control(name)]
    ['GFP', 'Human_NT_12', 'NO_SITE_1']
    """
    token = token.strip()
    return token not in _SYMBOLS and _MAYBE_CONTROL.fullmatch(token) is not None


def is_word(token: str) -> bool:
    """Whether a token says how, where or when a cell was perturbed ("KO", "LPS", "G1", "24h", "rep2"), not which gene.

    Some are symbols ("TNF", "REST") or old names of genes as well.
    """
    return _WORD.fullmatch(token.strip()) is not None


def is_no_gene(token: str) -> bool:
    """Whether a token says that it is not known what a cell got ("unassigned", "multiple", "nan")."""
    return _NO_GENE.fullmatch(token.strip()) is not None


def stem_of(column: str) -> str:
    """Name of a column without the position of a guide in it, in small letters and without signs.

    Examples
    --------
    >>> [stem_of(name) for name in ("guide", "guide2", "sgRNA_A", "target_gene_2", "second_guide")]
    ['guide', 'guide', 'sgrna', 'targetgene', 'guide']
    """
    parts = [part.lower() for part in re.findall(r"\d+|[A-Z]+(?![a-z])|[A-Z]?[a-z]+", column)]
    return "".join(part for part in parts if part not in _POSITIONS)


@dataclass(frozen=True)
class Style:
    """One way of naming things."""

    name: str
    condition_keys: tuple[str, ...]  # columns of obs that may hold the label, the most telling first
    controls: tuple[str, ...]  # what the control is called
    sep: str | None  # what joins the genes of a combination; None: there are no combinations
    count_keys: tuple[str, ...] = ()  # columns of obs with the number of perturbations of a cell


STYLES: dict[str, Style] = {
    style.name: style
    for style in (
        Style("gears", ("condition",), ("ctrl",), "+"),
        Style("cell-load", ("target_gene",), ("non-targeting",), "+"),
        Style("pertpy", ("perturbation_name", "gene_target"), ("control", "NT"), "+"),
        Style("scperturb", ("perturbation",), ("control",), "_", ("nperts",)),
        Style("replogle", ("gene",), ("non-targeting",), None),
    )
}
CELL_TYPE_KEYS = ("cell_type", "celltype", "cell_line", "cellline", "cell_types", "Cell_type", "CellType")
GENE_KEYS = ("gene_name", "gene_names", "gene_symbol", "gene_symbols", "symbol", "feature_name", "gene")
