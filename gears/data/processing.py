"""From an AnnData object to a prepared screen on disk."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from gears.data.lean import in_reach
from gears.data.manifest import is_prepared
from gears.data.options import ProcessingOptions
from gears.data.screen import PreparedScreen
from gears.data.survey import Survey, survey_screen
from gears.data.writing import screen_hash, write_screen
from gears.files import need_space, new_folder, user_path
from gears.messages import shorten
from gears.numbers import whole_number
from gears.workplace import clean_leftovers

if TYPE_CHECKING:
    from anndata import AnnData

logger = logging.getLogger(__name__)

BYTES_PER_VALUE = 16
"""Of a prepared screen on disk: value and gene, in the mapped cells and in the h5ad file."""

__all__ = ["ProcessingOptions", "check_same_options", "prepare_screen"]


def prepare_screen(
    adata: AnnData,
    folder: str | Path,
    *,
    workers: int = 1,
    is_gene: Callable[[str], bool] | None = None,
    **options: Any,
) -> PreparedScreen:
    """Check a screen and write it as a prepared folder.

    The object is not modified, and nothing is written outside `folder` (and a
    lock file beside it). A folder that holds the same content and parameters is
    reused; one with other content is replaced as a whole, splits and graphs
    made from it included. Layers, embeddings and ``uns`` are not carried over.

    Parameters
    ----------
    adata
        X (N, G) log-normalised expression, dense or sparse; ``obs.condition``,
        ``obs.cell_type``, ``var.gene_name``. One that is backed by a file stays there where it
        is large (see :func:`gears.data.lean.open_lean`).
    folder
        Where the prepared screen goes.
    workers
        Processes that compute the statistics (the result does not depend on it).
    is_gene
        Whether a token of a label is a gene that the annotation knows; outside the
        style "gears" other tokens must be measured genes.
    **options
        See :class:`ProcessingOptions`.

    Raises
    ------
    ValueError
        If the screen cannot be used; the message lists every problem found.
    """
    settings, workers = ProcessingOptions.of(**options), whole_number("workers", workers)
    folder = user_path(folder)
    survey = survey_screen(in_reach(adata, folder.parent), settings, is_gene=is_gene)
    survey.refuse()
    survey.tell()
    return _prepared(survey, settings, folder, workers)


def _prepared(survey: Survey, settings: ProcessingOptions, folder: Path, workers: int) -> PreparedScreen:
    """The folder of a checked screen: reused where it holds the same, else written."""
    checked, parameters = survey.checked, settings.to_dict()
    assert checked is not None
    origin = {"layout": survey.layout.to_dict(), "dropped": [entry.to_dict() for entry in survey.dropped]}
    key = screen_hash(checked, parameters)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        reusable = _reusable(folder, key)
        if reusable is not None:
            logger.debug("reusing the prepared screen %s", folder)
            return reusable
        _refuse_foreign(folder)
        left = clean_leftovers(folder.parent, folder.name, alone=True)
        if left:
            logger.debug("removed what an interrupted preparation left behind: %s", shorten(left))
        need_space(folder, BYTES_PER_VALUE * checked.matrix.nnz)
        with new_folder(folder) as temporary:
            write_screen(temporary, checked, key, parameters, workers=workers, more=origin)
        return PreparedScreen.open(folder)


def _reusable(folder: Path, key: str) -> PreparedScreen | None:
    if not is_prepared(folder):
        return None
    try:
        screen = PreparedScreen.open(folder)
        if screen.content_hash != key:
            return None
        screen.verify()
    except (ValueError, OSError, KeyError) as error:
        logger.warning("%s; preparing it again", error)
        return None
    return screen


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
    asked, default = ProcessingOptions.of(**wanted).to_dict(), ProcessingOptions().to_dict()
    different = [
        f"{name}: {made.get(name, default[name])!r} there, {asked[name]!r} asked for"
        for name in wanted
        if made.get(name, default[name]) != asked[name]
    ]
    if different:
        msg = (
            f"{screen.folder} was prepared with other options ({'; '.join(different)}); "
            "leave the options out to take it as it is, or prepare it again with new_data_process"
        )
        raise ValueError(msg)
