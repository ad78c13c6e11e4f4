"""Several screens as the contexts of one: what they must have in common, and their cells over the same genes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from scipy import sparse

from gears.conditions import AT
from gears.core._findings import Finding
from gears.core._messages import count, shorten
from gears.data.checks._names import KnownGene, one_spelling
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._scale import LOG1P, library_size
from gears.files.formats import plain_adata

if TYPE_CHECKING:
    from anndata import AnnData

    from gears.data.checks._survey import ScreenDraft
    from gears.data.screen._prepared import PreparedScreen

logger = logging.getLogger(__name__)

CONTEXT = "cell_type"
"""Column of the whole with the name of each cell's screen: its contexts."""
SAME_SIZE = 0.01  # relative difference of library sizes within which screens are normalised alike


def check_sources(sources: Any) -> dict[str, Any]:
    """Screens by name; ValueError for names that no context can have, and for fewer than two."""
    if not isinstance(sources, Mapping) or len(sources) < 2:
        msg = f"screens are two or more by name, as {{'K562': 'k562.h5ad', 'RPE1': 'rpe1.h5ad'}}; found {sources!r}"
        raise ValueError(msg)
    names = [str(name).strip() for name in sources]
    for name in names:
        if not name or AT.strip() in name or "[" in name or "]" in name or names.count(name) > 1:
            msg = f"{name!r} cannot name a screen: names differ, are not empty, and have no {AT.strip()!r} or brackets"
            raise ValueError(msg)
    return dict(zip(names, sources.values(), strict=True))


def several_contexts(contexts: Sequence[str]) -> str:
    """What is wrong with a screen of several contexts as one of several screens."""
    return (
        f"it has {count(len(contexts), 'context')} ({shorten(contexts)}), and each screen becomes one; give each line "
        "as a separate screen"
    )


def options_of_prepared(screen: PreparedScreen, options: ProcessingOptions) -> ProcessingOptions:
    """How the file of a prepared screen is read, where others have `options`.

    ValueError for one with several contexts, or divided in another way than the whole is.
    """
    if len(screen.contexts) > 1:
        raise ValueError(several_contexts(screen.contexts))
    made = ProcessingOptions.from_mapping(screen.manifest["parameters"])
    type_key, batches = made.perturbation_type_key, sorted({*(made.batch_key or ())} - {made.context_key, CONTEXT})
    for name, theirs, ours in (
        ("perturbation_type_key", type_key, options.perturbation_type_key),
        ("batch_key", batches or None, options.batch_key),
    ):
        if theirs is not None and theirs != ours:
            msg = f"it was prepared with {name}={theirs!r}; pass the same here, a column that every screen has"
            raise ValueError(msg)
    return ProcessingOptions(
        style="gears", scale=screen.scale, as_genes=options.as_genes, skip_calc_de=options.skip_calc_de
    )


def differences(screens: Mapping[str, tuple[str | None, sparse.csr_matrix]]) -> list[Finding]:
    """What keeps screens (scale, and cells) that are right alone from being one: other scales, or sums of a cell."""
    scales = {name: scale for name, (scale, _) in screens.items() if scale is not None}
    if len(set(scales.values())) > 1:
        shown = ", ".join(f"{name} {scale}" for name, scale in scales.items())
        return [Finding("other-scale", f"the screens have different scales ({shown})", "bring them to one scale first")]
    sizes = {name: library_size(cells) for name, (scale, cells) in screens.items() if scale == LOG1P}
    known = {name: size for name, size in sizes.items() if size is not None}
    if known and max(known.values()) > (1 + SAME_SIZE) * min(known.values()):
        shown = ", ".join(f"{name} {size:,.0f}" for name, size in known.items())
        remedy = "normalise all to one sum, or give counts with normalize=True"
        return [Finding("other-sum", f"the cells are normalised to different sums ({shown})", remedy)]
    return []


@dataclass(frozen=True)
class Alignment:
    """The genes of the whole, and where each screen has them."""

    var: pd.DataFrame  # "gene_name"; where screens differ, "measured_<screen>"
    columns: Mapping[str, np.ndarray]  # of each screen: column of every gene of the whole, -1 for none, (G,) int64
    renamed: Mapping[str, Mapping[str, str]]  # of each screen: gene names that became others

    @property
    def is_measured(self) -> dict[str, np.ndarray] | None:
        """Which genes each screen measures, (G,) bool; None where all measure all."""
        is_measured = {screen: columns >= 0 for screen, columns in self.columns.items()}
        return None if all(map(np.all, is_measured.values())) else is_measured


def align(own: Mapping[str, tuple[list[str], list[str]]], is_gene: KnownGene | None, genes: str) -> Alignment:
    """Bring names and ids of each screen's genes to one spelling; `genes` of all screens ("shared"), or of any."""
    renamed = one_spelling(own, is_gene)
    changed = [f"{name}: {old} is {new}" for name, names in renamed.items() for old, new in names.items()]
    if changed:
        logger.warning("%s under one name of several: %s", count(len(changed), "gene name"), shorten(changed))
    names_of = {screen: [renamed[screen].get(name, name) for name in names] for screen, (names, _) in own.items()}
    id_of: dict[str, str] = {}
    for screen, (_, ids) in own.items():
        for name, gene_id in zip(names_of[screen], ids, strict=True):
            id_of.setdefault(name, gene_id)
    everywhere = set.intersection(*map(set, names_of.values()))
    kept = [name for name in id_of if genes == "all" or name in everywhere]
    numbers = ", ".join(f"{screen} {len(names)}" for screen, names in names_of.items())
    logger.info("%s in all screens, %d in any (%s)", count(len(everywhere), "gene"), len(id_of), numbers)
    if not everywhere:
        examples = "; ".join(f"{screen} {shorten(names, 3)}" for screen, names in names_of.items())
        msg = f"no gene is measured by all screens ({examples}); gene_key= names the column of var to compare"
        raise ValueError(msg)
    columns = {}
    for screen, names in names_of.items():
        column_of = {name: column for column, name in enumerate(names)}
        columns[screen] = np.array([column_of.get(name, -1) for name in kept])
    ids = [id_of[name] for name in kept]
    var = pd.DataFrame({"gene_name": kept}, index=ids if len(set(ids)) == len(ids) else kept)
    alignment = Alignment(var, columns, renamed)
    if (is_measured := alignment.is_measured) is not None:
        var = var.assign(**{f"measured_{screen}": known for screen, known in is_measured.items()})
    return replace(alignment, var=var)


def together(
    drafts: Mapping[str, ScreenDraft], options: ProcessingOptions, is_gene: KnownGene | None, genes: str
) -> tuple[AnnData, ProcessingOptions, Mapping[str, np.ndarray] | None]:
    """Cells of all screens over the shared genes, or over all; how to prepare them; which genes each context measures.

    The last, (G,) bool by context, is None where all measure all.
    """
    own = {name: (draft.var["gene_name"].tolist(), draft.var.index.tolist()) for name, draft in drafts.items()}
    alignment = align(own, is_gene, genes)
    matrices = [columns_of(draft.matrix, alignment.columns[screen]) for screen, draft in drafts.items()]
    divisions = [name for name in (*(options.batch_key or ()), options.perturbation_type_key) if name]
    obs = pd.concat([_obs(name, draft, divisions) for name, draft in drafts.items()])
    adata = plain_adata(obs, alignment.var, X=sparse.vstack(matrices, format="csr"))
    scale = next((draft.scale for draft in drafts.values() if draft.scale is not None), None)
    return adata, options_of_whole(options, scale), alignment.is_measured


def options_of_whole(options: ProcessingOptions, scale: str | None) -> ProcessingOptions:
    """How the whole is prepared, where its screens have `options`: each is a context and a batch."""
    return ProcessingOptions(
        style="gears",
        context_key=CONTEXT,
        batch_key=[CONTEXT, *(options.batch_key or ())],
        perturbation_type_key=options.perturbation_type_key,
        skip_calc_de=options.skip_calc_de,
        as_genes=options.as_genes,
        scale=scale,
    )


def columns_of(matrix: sparse.csr_matrix, columns: np.ndarray) -> sparse.csr_matrix:
    """Columns of a matrix in another order, with empty ones for -1, (N, len(columns)) CSR."""
    to = np.full(matrix.shape[1], -1, dtype=np.int64)
    to[columns[columns >= 0]] = np.flatnonzero(columns >= 0)
    column = to[matrix.indices]
    is_kept = column >= 0
    bounds = np.concatenate([[0], np.cumsum(is_kept)])[matrix.indptr]
    kept = sparse.csr_matrix((matrix.data[is_kept], column[is_kept], bounds), shape=(matrix.shape[0], len(columns)))
    kept.sort_indices()
    return kept


def _obs(name: str, draft: ScreenDraft, divisions: Sequence[str]) -> pd.DataFrame:
    """Labels of a screen's cells, with its name as their context."""
    obs = draft.obs[["condition", *divisions]].astype(str)
    return obs.assign(**{CONTEXT: name}).set_axis([f"{cell}-{name}" for cell in obs.index])
