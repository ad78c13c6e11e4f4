"""Which cell got which guide: a table beside the counts becomes the cells' labels."""

from __future__ import annotations

import csv
import logging
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core.messages import count, nearest, shorten
from gears.data.checks.styles import is_control_like, is_no_gene
from gears.files.paths import existing_file

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

BARCODE_KEYS = ("cell_barcode", "barcode", "barcodes", "cell", "cell_id", "cb")
TARGET_KEYS = ("condition", "perturbation", "target_gene", "target_gene_name", "gene", "target")
GUIDE_KEYS = ("feature_call", "guide", "guide_id", "guide_identity", "sgrna", "grna", "guides")
BETWEEN = (SEPARATOR, "|", ";", ",")


def add_guides(
    adata: AnnData,
    guides: str | Path | pd.DataFrame,
    targets: str | Path | Mapping[str, str] | None = None,
    *,
    ctrl_label: str | Sequence[str] | None = None,
) -> AnnData:
    """Label cells by a table of their guides.

    Parameters
    ----------
    adata
        Cells by barcode; not modified.
    guides
        A table (CSV or TSV, may be gzipped) with a column of barcodes (``cell_barcode``, ``barcode``, ...) and one of
        targets (``target_gene``, ``gene``, ``condition``, ...) or of guides (``feature_call``, ``guide``, ...), one
        row per cell, several joined by ``|``, ``;``, ``,`` or ``+``, or one row per cell and guide. 10x's
        ``protospacer_calls_per_cell.csv`` is such a table.
    targets
        Target of each guide: a dict, or a table with the columns ``id`` (or ``guide``) and ``target_gene_name`` (or
        ``target_gene``), such as 10x's feature reference. Needed where the table names guides.
    ctrl_label
        The target, or several, that means control; by default those that look like one
        ("Non-Targeting", "NTC", ...), which are logged.

    Returns
    -------
    AnnData
        The cells that have a guide, with ``obs.condition`` ("A+B", "A+ctrl", "ctrl") and ``obs.n_guides``. Cells
        without one are excluded and counted, never taken for controls.

    Raises
    ------
    ValueError
        If the table cannot be understood or no barcode fits.
    """
    table = guides if isinstance(guides, pd.DataFrame) else read_table(guides)
    barcode_key = _find(table, BARCODE_KEYS, "barcodes")
    names = {str(column).lower(): str(column) for column in table.columns}
    target_key = next((names[key] for key in TARGET_KEYS if key in names), None)
    guide_key = None if target_key else _find(table, (*TARGET_KEYS, *GUIDE_KEYS), "targets or guides")
    if guide_key is not None and targets is None:
        msg = (
            f"the guide table names guides (column {guide_key!r}), not genes; say which gene each guide targets: "
            "guide_targets={'guide': 'GENE', ...} or a table with the columns id and target_gene_name"
        )
        raise ValueError(msg)
    per_cell = _tokens(table, barcode_key, target_key or str(guide_key))
    if guide_key is not None:
        per_cell["token"] = _targets_of(per_cell["token"], targets)
    known = per_cell[per_cell["barcode"].isin(adata.obs_names)]
    if known.empty:
        barcodes = per_cell["barcode"].unique(), adata.obs_names
        theirs, own = (shorten(map(repr, names), 2) for names in barcodes)
        msg = f"no barcode of the guide table is a cell: it has {theirs}, cells are {own}; bring them to one form"
        raise ValueError(msg)
    named = [ctrl_label] if isinstance(ctrl_label, str) else ctrl_label
    is_control = [token in named if named else is_control_like(token) for token in known["token"]]
    controls = sorted(set(known["token"][is_control]))
    logger.info("control guides: %s", shorten(controls) or "none found; name them with ctrl_label=")
    n_guides = known.groupby("barcode").size()
    perturbed = known[[not control for control in is_control]]
    genes = perturbed.groupby("barcode")["token"].agg(lambda t: list(dict.fromkeys(t)))
    labels = pd.Series(CONTROL_LABEL, index=n_guides.index)
    labels.update(genes.map(lambda own: SEPARATOR.join(own if len(own) > 1 else [*own, CONTROL_LABEL])))
    has = adata.obs_names.isin(labels.index)
    if not has.all():
        logger.warning("%s of %d without a guide excluded", count(int((~has).sum()), "cell"), adata.n_obs)
    found = adata[has].copy()
    found.obs["condition"] = pd.Categorical(labels.loc[found.obs_names].to_numpy())
    found.obs["n_guides"] = n_guides.loc[found.obs_names].to_numpy()
    return found


def read_table(path: str | Path, *, header: bool = True) -> pd.DataFrame:
    """A CSV or TSV file (may be gzipped) as text, with a line of column names unless `header` is False.

    FileNotFoundError if there is none, ValueError if it cannot be read.
    """
    path = existing_file(path)
    try:
        sep = "\t" if ".tsv" in path.name or ".txt" in path.name else ","
        return pd.read_csv(path, sep=sep, header=0 if header else None, dtype=str, keep_default_na=False)
    except (ValueError, OSError, EOFError, zlib.error, csv.Error) as error:
        expected = "CSV or TSV with a line of column names" if header else "CSV or TSV"
        msg = f"{path} cannot be read as a table ({type(error).__name__}: {error}); expected {expected}"
        raise ValueError(msg) from error


def _find(table: pd.DataFrame, keys: tuple[str, ...], what: str) -> str:
    names = {str(column).lower(): str(column) for column in table.columns}
    for key in keys:
        if key in names:
            return names[key]
    near = [name for key in keys for name in nearest(key, list(names.values()), 1)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    msg = f"the guide table has no column of {what} ({', '.join(keys)}){hint} (columns: {shorten(table.columns)})"
    raise ValueError(msg)


def _tokens(table: pd.DataFrame, barcode_key: str, key: str) -> pd.DataFrame:
    """One row per cell and guide; entries that say that there is none are excluded."""
    texts = table[key].astype(str)
    between = next((sign for sign in BETWEEN if texts.str.contains(sign, regex=False).any()), None)
    tokens = texts.str.split(between, regex=False) if between else texts.map(lambda text: [text])
    cells = pd.DataFrame({"barcode": table[barcode_key].astype(str), "token": tokens})
    rows = cells.explode("token", ignore_index=True)
    rows["token"] = rows["token"].str.strip()
    return rows[~rows["token"].map(is_no_gene)].reset_index(drop=True)


def _targets_of(guides: pd.Series, targets: str | Path | Mapping[str, str] | None) -> pd.Series:
    if not isinstance(targets, Mapping):
        assert targets is not None
        table = read_table(targets)
        id_key = _find(table, ("id", *GUIDE_KEYS), "guides")
        target_key = _find(table, ("target_gene_name", *TARGET_KEYS), "targets")
        targets = dict(zip(table[id_key], table[target_key], strict=True))
    missing = sorted(set(guides) - set(targets))
    if missing:
        n = count(len(missing), "guide")
        msg = f"the targets of {n} are not given: {shorten(missing)}; add them to guide_targets"
        raise ValueError(msg)
    return guides.map(lambda guide: str(targets[guide]).strip())
