"""From an AnnData object to a prepared screen on disk."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from filelock import FileLock
from scipy import sparse

from gears.conditions import CONTROL_LABEL, Condition, split_label
from gears.data import checks
from gears.data.labels import LabelTable
from gears.data.manifest import is_prepared
from gears.data.reading import as_csr, log_normalize
from gears.data.screen import PreparedScreen
from gears.data.writing import CheckedScreen, screen_hash, write_screen
from gears.files import new_folder
from gears.messages import nearest, shorten, unknown_name

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

MIN_CELLS_DE = 2
POOLED = "pooled"


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
        The screen's own control token; it is written ``ctrl`` in the prepared
        screen, and the original labels are kept in ``obs.condition_source``.
    """

    skip_calc_de: bool = False
    normalize: bool = False
    layer: str | None = None
    min_cells: int | None = None
    pool_cell_types: bool = False
    ctrl_label: str = CONTROL_LABEL

    def __post_init__(self) -> None:
        if self.min_cells is not None and (not isinstance(self.min_cells, int) or self.min_cells < 1):
            msg = f"min_cells must be a whole number of at least 1, or None; found {self.min_cells!r}"
            raise ValueError(msg)

    @classmethod
    def of(cls, **options: Any) -> ProcessingOptions:
        """Options by name; an unknown name is an error with the nearest valid one."""
        valid = [field.name for field in fields(cls)]
        for name in options:
            if name not in valid:
                raise TypeError(unknown_name("processing option", name, valid))
        return cls(**options)


def prepare_screen(adata: AnnData, folder: str | Path, *, workers: int = 1, **options: Any) -> PreparedScreen:
    """Check a screen and write it as a prepared folder.

    The object is not modified, and nothing is written outside `folder` (and a
    lock file beside it). A folder that holds the same content and parameters is
    reused; one with other content is replaced as a whole, splits and graphs
    made from it included. Layers, embeddings and ``uns`` are not carried over.

    Parameters
    ----------
    adata
        X (N, G) log-normalised expression, dense or sparse; ``obs.condition``,
        ``obs.cell_type``, ``var.gene_name``.
    folder
        Where the prepared screen goes.
    workers
        Processes that compute the statistics (the result does not depend on it).
    **options
        See :class:`ProcessingOptions`.

    Raises
    ------
    ValueError
        If the screen cannot be used; the message lists every problem found.
    """
    settings = ProcessingOptions.of(**options)
    folder = Path(folder)
    checked = _check(adata, settings)
    parameters = asdict(settings)
    key = screen_hash(checked, parameters)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        reusable = _reusable(folder, key)
        if reusable is not None:
            logger.info("reusing the prepared screen %s", folder)
            return reusable
        _refuse_foreign(folder)
        with new_folder(folder) as temporary:
            write_screen(temporary, checked, key, parameters, workers=workers)
        return PreparedScreen.open(folder)


def _check(adata: AnnData, settings: ProcessingOptions) -> CheckedScreen:
    from anndata import AnnData

    if not isinstance(adata, AnnData):
        msg = f"expected an AnnData object, found {type(adata).__name__}; to read a file use load(data_path=...)"
        raise TypeError(msg)
    if adata.isbacked:
        adata = adata.to_memory()
    problems = checks.column_problems(adata)
    if "gene_name" in adata.var:
        problems += checks.gene_problems(adata)
    label_problems: list[str] = ["missing"]
    if "condition" in adata.obs:
        label_problems = checks.label_problems(adata.obs["condition"], settings.ctrl_label)
        problems += label_problems
    if "cell_type" in adata.obs:
        problems += checks.cell_type_problems(adata.obs["cell_type"], settings.pool_cell_types)
    matrix, value_problems = _values(adata, settings)
    problems += value_problems
    if label_problems:
        checks.refuse(problems)
    source = adata.obs["condition"]
    labels = checks.with_plain_control(source, settings.ctrl_label)
    keep, table = _keep_large(labels, settings)
    if not settings.skip_calc_de:
        problems += checks.small_condition_problems(table, MIN_CELLS_DE)
    checks.refuse(problems)
    assert matrix is not None
    if not keep.all():
        matrix = as_csr(matrix[np.flatnonzero(keep)])
    if settings.normalize:
        matrix = log_normalize(matrix)
    obs, names = _obs(adata.obs[keep], table, settings)
    return CheckedScreen(matrix, table, obs, _plain_frame(adata.var), names, bool((matrix.data < 0).any()))


def _values(adata: AnnData, settings: ProcessingOptions) -> tuple[sparse.csr_matrix | None, list[str]]:
    layers = [str(name) for name in adata.layers]
    if settings.layer is not None and settings.layer not in adata.layers:
        near = nearest(settings.layer, layers)
        hint = f"did you mean {near[0]!r}?" if near else f"layers: {shorten(layers) or 'none'}"
        return None, [f"there is no layer {settings.layer!r}; {hint}"]
    values = adata.X if settings.layer is None else adata.layers[settings.layer]
    if values is None:
        return None, [f"X is empty; pass layer= (layers: {shorten(layers) or 'none'})"]
    try:
        matrix = as_csr(values)
    except TypeError as error:
        return None, [str(error)]
    return matrix, checks.value_problems(
        matrix, normalize=settings.normalize, layer=settings.layer, layers=layers
    )


def _keep_large(labels: pd.Series, settings: ProcessingOptions) -> tuple[np.ndarray, LabelTable]:
    """Cells of conditions with at least `min_cells` cells, and the labels that remain."""
    table = LabelTable.of(labels)
    everything = np.ones(len(labels), dtype=bool)
    if settings.min_cells is None:
        return everything, table
    counts = table.counts()
    small = counts < settings.min_cells
    small[table.conditions.index(Condition())] = False
    if not small.any():
        return everything, table
    named = [f"{table.conditions[i]} ({counts[i]})" for i in np.flatnonzero(small)]
    logger.warning(
        "dropped %d conditions with fewer than min_cells=%d cells: %s",
        len(named),
        settings.min_cells,
        shorten(named),
    )
    if small.sum() == len(counts) - 1:
        checks.refuse(
            [
                f"no perturbed condition has min_cells={settings.min_cells} cells; the largest has "
                f"{counts[small].max()}"
            ]
        )
    keep = ~small[table.cell_condition]
    return keep, LabelTable.of(labels[keep])


def _obs(obs: pd.DataFrame, table: LabelTable, settings: ProcessingOptions) -> tuple[pd.DataFrame, list[str]]:
    """Columns of the published layout, and the published condition name of each label."""
    cell_types = obs["cell_type"].astype(str)
    shown = POOLED if cell_types.nunique() > 1 else str(cell_types.iloc[0])
    doses = ["+".join("1" * len(split_label(label))) for label in table.labels]
    names = [f"{shown}_{label}_{dose}" for label, dose in zip(table.labels, doses, strict=True)]
    is_control = np.array([table.conditions[i].is_control for i in table.label_condition], dtype=np.int64)
    plain = _plain_frame(obs)
    if settings.ctrl_label != CONTROL_LABEL:
        plain["condition_source"] = pd.Categorical(obs["condition"].astype(str))
    codes = table.cell_label
    plain["condition"] = pd.Categorical(np.asarray(table.labels, dtype=object)[codes])
    plain["cell_type"] = pd.Categorical(cell_types.to_numpy())
    plain["dose_val"] = pd.Categorical(np.asarray(doses, dtype=object)[codes])
    plain["control"] = pd.Categorical(is_control[codes])
    plain["condition_name"] = pd.Categorical(np.asarray(names, dtype=object)[codes])
    plain["condition_id"] = table.cell_condition
    return plain, names


def _plain_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """A copy that h5ad can hold: plain column names, text instead of mixed objects, unique index."""
    plain = frame.copy()
    plain.columns = [str(column).replace("/", "_") for column in plain.columns]
    plain = plain.loc[:, ~plain.columns.duplicated()].copy()
    plain.index = plain.index.astype(str)
    plain.index.name = None if plain.index.name in set(plain.columns) else plain.index.name
    if not plain.index.is_unique:
        from anndata.utils import make_index_unique

        plain.index = make_index_unique(plain.index)
    for column in plain.columns:
        if not _is_plain(plain[column].dtype):
            plain[column] = plain[column].astype(object).astype(str)
    return plain


def _is_plain(dtype: Any) -> bool:
    """Numbers, truth values, and categories of plain text or numbers."""
    if isinstance(dtype, pd.CategoricalDtype):
        categories = dtype.categories
        return categories.inferred_type == "string" or _is_plain(categories.dtype)
    return isinstance(dtype, np.dtype) and dtype.kind in "biuf"


def _reusable(folder: Path, key: str) -> PreparedScreen | None:
    if not is_prepared(folder):
        return None
    try:
        screen = PreparedScreen.open(folder)
    except (ValueError, OSError, KeyError) as error:
        logger.warning("%s; preparing it again", error)
        return None
    return screen if screen.content_hash == key else None


def _refuse_foreign(folder: Path) -> None:
    """Never replace something that is no prepared screen."""
    if folder.is_dir() and (is_prepared(folder) or not any(folder.iterdir())):
        return
    if folder.exists():
        msg = f"{folder} exists and is no prepared screen; choose another dataset name or data_path, or move it away"
        raise FileExistsError(msg)


def check_same_options(screen: PreparedScreen, wanted: dict[str, Any]) -> None:
    """A prepared folder must have been made with the options asked for (those named only).

    Raises
    ------
    ValueError
        If it was not; both sides are named.
    """
    made = screen.manifest["parameters"]
    different = [
        f"{name}: {made.get(name)!r} there, {wanted[name]!r} asked for"
        for name in wanted
        if made.get(name) != wanted[name]
    ]
    if different:
        msg = (
            f"{screen.folder} was prepared with other options ({'; '.join(different)}); "
            "leave the options out to take it as it is, or prepare it again with new_data_process"
        )
        raise ValueError(msg)
