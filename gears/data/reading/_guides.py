"""Which cell got which guide: a table beside the counts becomes the cells' labels."""

from __future__ import annotations

import logging
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from gears.conditions import CONTROL_LABEL, SEPARATOR
from gears.core._messages import check_unique, count, nearest, shorten
from gears.data.checks._styles import is_control_like, is_no_gene, may_be_control, stem_of
from gears.files._paths import existing_file, reading, user_path
from gears.files.formats import read_delimited

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

BARCODE_KEYS = ("cell_barcode", "barcode", "barcodes", "cell", "cell_id", "cb")
TARGET_KEYS = ("condition", "perturbation", "target_gene", "target_gene_name", "gene", "target")
GUIDE_KEYS = (
    "feature_call", "guide", "guide_id", "guide_identity", "sgrna", "grna", "guides", "guide_name", "protospacer",
    "protospacer_name", "sgid", "sgrna_id",
)  # fmt: skip
ID_KEYS = ("id", "name", *GUIDE_KEYS)
MISSING = ("", "nan", "na", "n/a", "none", "null", "<na>", "-", ".")
"""What tables write, in any case, where a guide has no target."""
BETWEEN = (SEPARATOR, "|", ";", ",")
CALLS = "protospacer_calls_per_cell.csv"
"""10x's file of the guides of each cell."""
SOURCE = "source_file"
"""Column of obs with the file that a cell came from, where there are several."""


def add_guides(
    adata: AnnData,
    guides: str | Path | pd.DataFrame | Sequence[str | Path],
    targets: str | Path | pd.DataFrame | Mapping[str, str] | None = None,
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
        row per cell, several joined by ``|``, ``;``, ``,`` or ``+`` or in several columns (``guide_A``,
        ``guide_B``), or one row per cell and guide. 10x's ``protospacer_calls_per_cell.csv`` is such a table. Of
        several lanes a table each: a list in the order of the lanes, or the folder that holds them; a table belongs to
        the lane whose name is in its path.
    targets
        Target of each guide: a dict, or a table with the columns ``id`` (or ``name``, ``guide``) and
        ``target_gene_name`` (or ``target_gene``), such as 10x's feature reference. Needed where the table names guides;
        a guide may have any sign in its name. One without a target means control where its own name, or the target of
        guides with that name and another number, looks like one.
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
    table = _table_of(guides, adata)
    barcode_key = _find(table, BARCODE_KEYS, "barcodes")
    named = [ctrl_label] if isinstance(ctrl_label, str) else ctrl_label
    per_cell = _targets_per_cell(table, barcode_key, targets, named)
    known = per_cell[per_cell["barcode"].isin(adata.obs_names)]
    if known.empty:
        barcodes = per_cell["barcode"].unique(), adata.obs_names
        theirs, own = (shorten(map(repr, names), 2) for names in barcodes)
        msg = f"no barcode of the guide table is a cell: it has {theirs}, cells are {own}; bring them to one form"
        raise ValueError(msg)
    is_control = [token in (CONTROL_LABEL, *named) if named else is_control_like(token) for token in known["token"]]
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
    labelled = adata[has].copy()
    labelled.obs["condition"] = pd.Categorical(labels.loc[labelled.obs_names].to_numpy())
    labelled.obs["n_guides"] = n_guides.loc[labelled.obs_names].to_numpy()
    return labelled


def read_table(path: str | Path, *, header: bool = True) -> pd.DataFrame:
    """A CSV or TSV file (may be gzipped) as text; FileNotFoundError, or ValueError if it cannot be read."""
    path = existing_file(path)
    sep = "\t" if ".tsv" in path.name or ".txt" in path.name else ","
    with reading(path, "a table", f"expected CSV or TSV{' with a line of column names' * header}"):
        return read_delimited(path, sep=sep, header=header, dtype=str, keep_default_na=False)


def _targets_per_cell(
    table: pd.DataFrame,
    barcode_key: str,
    targets: str | Path | pd.DataFrame | Mapping[str, str] | None,
    controls: Sequence[str] | None,
) -> pd.DataFrame:
    """One row per cell and target, from every column that holds targets or, where there is none, guides."""
    check_unique(map(str, table.columns), "columns of the guide table")
    keys = _columns(table, (*TARGET_KEYS, *GUIDE_KEYS)) or [
        _find(table, (*TARGET_KEYS, *GUIDE_KEYS), "targets or guides")
    ]
    guide_keys = _columns(table, GUIDE_KEYS)
    if keys != guide_keys:
        per_cell = pd.concat([_tokens(table, barcode_key, key) for key in keys])
        _warn_unread(table, keys, set(per_cell["token"]))
        gaps = table[keys].apply(_is_missing).all(axis=1)
        guides = [_tokens(table[gaps], barcode_key, key) for key in guide_keys]
        without = pd.concat([per_cell.iloc[:0], *guides])  # guides of the cells that no column gives a target
        without["token"] = without["token"].map(_controls_among(set(without["token"]), {}, controls))
        return pd.concat([per_cell, without], ignore_index=True)
    if targets is None:
        msg = (
            f"the guide table names guides (column {keys[0]!r}), not genes; say which gene each guide targets: "
            "guide_targets={'guide': 'GENE', ...} or a table with the columns id and target_gene_name"
        )
        raise ValueError(msg)
    target_of = target_table(targets)
    _warn_unread(table, keys, set(target_of))
    per_cell = pd.concat([_tokens(table, barcode_key, key, target_of) for key in keys], ignore_index=True)
    per_cell["token"] = _targets_of(per_cell["token"], target_of, controls)
    return per_cell


def _columns(table: pd.DataFrame, keys: Sequence[str]) -> list[str]:
    """The columns of the first key that the table has, in all positions ("guide", "guide2")."""
    by_stem: dict[str, list[str]] = {}
    for column in map(str, table.columns):
        by_stem.setdefault(stem_of(column), []).append(column)
    return next((by_stem[stem_of(key)] for key in keys if stem_of(key) in by_stem), [])


def _warn_unread(table: pd.DataFrame, keys: list[str], known: set[str]) -> None:
    """Warn of other columns whose values are mostly what the columns `keys` hold."""
    read = [table[key].astype(str) for key in keys]
    for column in set(map(str, table.columns)) - set(keys):
        texts = table[column].astype(str)
        held = texts[~_is_missing(texts)]
        if len(held) and held.isin(known).mean() > 0.5 and not any(texts.equals(one) for one in read):
            logger.warning(
                "column %r of the guide table is not read, though it holds the names of column %r; call it %r if it "
                "holds a further guide of the cell", column, keys[0], f"{keys[0]}_{len(keys) + 1}",
            )  # fmt: skip


def _is_missing(values: pd.Series) -> pd.Series:
    """Which values are empty or say that there is none."""
    return values.isna() | values.astype(str).str.strip().str.lower().isin(MISSING)


def _controls_among(guides: set[str], target_of: Mapping[str, str], controls: Sequence[str] | None) -> dict[str, str]:
    """Guides without a target, which must look like controls, each with the control's label.

    They do by their own name, or where guides with that name and another number have a control's target.
    """
    series = {without_number(guide) for guide, target in target_of.items() if is_control_like(target)}
    strange = [
        guide
        for guide in guides - set(controls or ())
        if not (is_control_like(guide) or may_be_control(guide) or without_number(guide) in series)
    ]
    if strange:
        names = sorted(strange)
        msg = (
            f"{count(len(names), 'guide')} without a target: {shorten(names)}; give them one (guide_targets), or name "
            f"them if they are controls: ctrl_label={[*(controls or ()), *names][:8]}"
        )
        raise ValueError(msg)
    if by_name := sorted(guides - set(controls or ())):
        logger.warning("guides without a target, read as controls by their names: %s", shorten(by_name))
    return dict.fromkeys(guides, CONTROL_LABEL)


def without_number(guide: str) -> str:
    return re.sub(r"[-_. ]?\d+$", "", guide).lower()


def _find(table: pd.DataFrame, keys: tuple[str, ...], what: str) -> str:
    names = {str(column).lower(): str(column) for column in table.columns}
    for key in keys:
        if key in names:
            return names[key]
    near = [name for key in keys for name in nearest(key, list(names.values()), 1)]
    hint = f"; did you mean {near[0]!r}?" if near else ""
    msg = f"the guide table has no column of {what} ({', '.join(keys)}){hint} (columns: {shorten(table.columns)})"
    raise ValueError(msg)


def _table_of(guides: str | Path | pd.DataFrame | Sequence[str | Path], adata: AnnData) -> pd.DataFrame:
    """One table; of several lanes with the barcodes of their cells in `adata`."""
    if isinstance(guides, pd.DataFrame):
        return guides
    files = [guides] if isinstance(guides, str | Path) else list(guides)
    if len(files) == 1 and (folder := user_path(files[0])).is_dir():
        files = sorted(folder.rglob(f"*{CALLS}*")) or sorted([*folder.glob("*.csv*"), *folder.glob("*.tsv*")])
        if not files:
            msg = f"the folder {folder} holds no table of guides ({CALLS}, or other CSV and TSV files)"
            raise FileNotFoundError(msg)
    if len(files) == 1:
        return read_table(files[0])
    lanes = _lanes(adata)
    if len(lanes) != len(files):
        msg = (
            f"there are {len(files)} tables of guides ({shorten(files, 4)}) and {count(len(lanes), 'lane')} "
            f"({shorten(lanes, 4)}); expected one table per lane"
        )
        raise ValueError(msg)
    named = {lane: [file for file in files if lane in Path(file).parts or lane in Path(file).name] for lane in lanes}
    by_name = [own[0] for own in named.values() if len(own) == 1]
    if len(set(map(str, by_name))) == len(files):
        files = by_name
    tables = []
    for lane, file in zip(lanes, files, strict=True):
        table = read_table(file)
        key = _find(table, BARCODE_KEYS, "barcodes")
        own = table[key] if SOURCE in adata.obs else table[key].str.replace(r"-\d+$", "", regex=True)
        tables.append(table.assign(**{key: own + f"-{lane}"}))
    return pd.concat(tables, ignore_index=True)


def _lanes(adata: AnnData) -> list[str]:
    """Names of the files that cells came from, or the numbers at the ends of barcodes, in order."""
    if SOURCE in adata.obs:
        return [str(name) for name in pd.unique(adata.obs[SOURCE])]
    ends = adata.obs_names.to_series().str.extract(r"-(\d+)$")[0].dropna().unique()
    return sorted(ends, key=int)


def _tokens(table: pd.DataFrame, barcode_key: str, key: str, known: Mapping[str, str] | None = None) -> pd.DataFrame:
    """One row per cell and guide; entries that say that there is none are excluded.

    A text is divided at the sign that gives `known` guides, whose names may hold any sign; one that is known is not.
    """
    texts = table[key].astype(str)
    signs = [sign for sign in BETWEEN if texts.str.contains(sign, regex=False).any()]
    usual = next((sign for sign in signs if known is None or sign != SEPARATOR), None)

    def divided(text: str) -> list[str]:
        for sign in signs:
            if known and (guides := known_parts(text.split(sign), sign, known)):
                return guides
        return text.split(usual) if usual else [text]

    of_text = {text: divided(text) for text in texts.unique()}
    cells = pd.DataFrame({"barcode": table[barcode_key].astype(str), "token": texts.map(of_text)})
    rows = cells.explode("token", ignore_index=True)
    rows["token"] = rows["token"].str.strip()
    return rows[~rows["token"].map(is_no_gene)].reset_index(drop=True)


def known_parts(parts: list[str], sign: str, known: Container[str]) -> list[str]:
    """Known guides that give a text of these parts when they are joined, few and long ones first; [] for none."""
    for n in range(len(parts), 0, -1):
        guide = sign.join(parts[:n]).strip()
        if guide in known:
            rest = known_parts(parts[n:], sign, known) if n < len(parts) else []
            if rest or n == len(parts):
                return [guide, *rest]
    return []


def target_table(targets: Any) -> dict[str, str]:
    """Target of each guide by its names: from a dict, a Series, or a table with one or several columns of names."""
    if isinstance(targets, pd.Series):
        targets = targets.to_dict()
    if isinstance(targets, Mapping):
        return {str(guide).strip(): str(target).strip() for guide, target in targets.items()}
    if isinstance(targets, pd.DataFrame):
        table = targets.reset_index(drop=isinstance(targets.index, pd.RangeIndex))
    else:
        table = read_table(targets)
    target_key = _find(table, ("target_gene_name", *TARGET_KEYS), "targets")
    _find(table, ID_KEYS, "guides")
    target_of: dict[str, str] = {}
    for column in (name for name in table.columns if str(name).lower() in ID_KEYS and name != target_key):
        names = table[column].astype(str).str.strip()
        target_of = dict(zip(names, table[target_key].astype(str).str.strip(), strict=True)) | target_of
    return target_of


def _targets_of(guides: pd.Series, target_of: Mapping[str, str], controls: Sequence[str] | None) -> pd.Series:
    missing = sorted(set(guides) - set(target_of))
    if missing:
        n = count(len(missing), "guide")
        msg = f"the targets of {n} are not given: {shorten(missing)}; add them to guide_targets"
        raise ValueError(msg)
    empty = {guide for guide in set(guides) if target_of[guide].lower() in MISSING}
    return guides.map({**target_of, **_controls_among(empty, target_of, controls)})
