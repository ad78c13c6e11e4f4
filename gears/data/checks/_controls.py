"""Control cells that are given to a model: checked as a screen is, with the model's genes by name."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from scipy import sparse

from gears.core._findings import Finding, check, refusal
from gears.core._messages import agreeing, count, shorten
from gears.data.checks._labels import FEW_CONTROLS
from gears.data.checks._layout import recognised
from gears.data.checks._scale import COUNTS, LOG1P, WRONG, detect_scale, size_findings, value_findings
from gears.data.checks._styles import GENE_KEYS
from gears.data.reading._matrix import as_csr, values_of

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

REFUSED = "these control cells cannot be used"


def control_cells(
    adata: AnnData, gene_names: Sequence[str], gene_ids: Sequence[str], scale: str | None
) -> tuple[sparse.csr_matrix, np.ndarray]:
    """Values of control cells at a model's genes, (N, G) CSR, and which of these genes they have, (G,) bool.

    Genes are found by name, else by id, and those that are missing are named in a warning. ValueError, which lists
    every problem, for cells of perturbations, values of another `scale` than the model's, repeated genes, or none.
    """
    matrix = as_csr(values_of(adata)) if adata.X is not None else sparse.csr_matrix(adata.shape)
    findings = size_findings(*adata.shape) or value_findings(matrix, layer=None, layers=list(adata.layers))
    names, column_G, of_genes = _columns(adata.var, gene_names, gene_ids)
    findings += of_genes + _label_findings(adata.obs)
    if not findings:
        findings += _scale_findings(detect_scale(matrix), scale)
    if message := refusal(REFUSED, findings):
        raise ValueError(message)
    few, missing = adata.n_obs, [names[gene] for gene in np.flatnonzero(column_G < 0).tolist()]
    if few < FEW_CONTROLS:
        logger.warning(
            "%s given as controls: their mean is hardly known, and sd_change says how far", count(few, "cell")
        )
    if missing:
        logger.warning(
            "%s of the model %s not among those of the control cells and %s the mean of the training contexts: %s",
            count(len(missing), "gene"), agreeing(len(missing), "is", "are"), agreeing(len(missing), "takes", "take"),
            shorten(missing),
        )  # fmt: skip
    return sparse.csr_matrix(matrix[:, np.maximum(column_G, 0)]), column_G >= 0


def _columns(
    var: pd.DataFrame, gene_names: Sequence[str], gene_ids: Sequence[str]
) -> tuple[list[str], np.ndarray, list[Finding]]:
    """The model's genes, the column of each, (G,), -1 for none, and what is wrong with them."""
    wanted, n = list(map(str, gene_names)), len(gene_names)
    places = {"the index of var": var.index} | {f"var[{key!r}]": var[key] for key in GENE_KEYS if key in var}
    best: tuple[str, pd.Index, list[str]] = ("the index of var", pd.Index([]), wanted)
    hits = 0
    for place, values in places.items():
        names = pd.Index(values.astype(str))
        for own in (wanted, list(map(str, gene_ids))):
            if (found := int(np.isin(own, names).sum())) > hits:
                hits, best = found, (place, names, own)
    place, names, own = best
    if not hits:
        what = f"none of the {n} genes of the model is in {shorten(places)}"
        return wanted, np.full(n, -1), [Finding("no-known-gene", what, f"the model's genes are {shorten(wanted)}")]
    again = sorted(set(own) & set(names[names.duplicated()]))
    what = (
        f"{count(len(again), 'gene')} of the model {agreeing(len(again), 'occurs', 'occur')} more than once in {place}"
    )
    findings = check("repeated-gene-name", again, f"{what} ({shorten(again)})", "keep one column each")
    column_of = dict(zip(names, range(len(names)), strict=True))
    return wanted, np.array([column_of.get(name, -1) for name in own]), findings


def _label_findings(obs: pd.DataFrame) -> list[Finding]:
    """Cells that a column of labels calls perturbed."""
    for style, key in recognised(obs):
        labels = obs[key].astype(str).str.strip()
        others = sorted(set(labels) - set(style.controls))
        n = int((~labels.isin(style.controls)).sum())
        what = f"obs[{key!r}] says that {count(n, 'cell')} {agreeing(n, 'is', 'are')} no control ({shorten(others)})"
        return check("no-control", others, what, f"give adata[adata.obs[{key!r}] == {style.controls[0]!r}]", n=n)
    return []


def _scale_findings(scale: str | None, of_model: str | None) -> list[Finding]:
    """Values of another scale than those that the model was trained on."""
    if None in (scale, of_model) or scale == of_model:
        return []
    what = f"X holds values of the scale {scale!r}, and the model was trained on {of_model!r}"
    remedy = f"bring them to {of_model!r} as the screen was"
    if of_model == LOG1P and scale == COUNTS:
        remedy = "apply scanpy.pp.normalize_total(target_sum=1e4) and scanpy.pp.log1p on a copy, as for the screen"
    elif of_model == LOG1P and scale in WRONG:
        remedy = WRONG[str(scale)][1]
    return [Finding("other-scale", what, remedy)]
