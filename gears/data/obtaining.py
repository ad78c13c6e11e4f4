"""From a name or a place to a prepared screen: opened, or prepared from whatever file lies there."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gears.data.downloads import FOLDER, PUBLISHED_OPTIONS
from gears.data.lean import open_lean
from gears.data.manifest import H5AD, is_prepared
from gears.data.opening import open_screen
from gears.data.options import ProcessingOptions
from gears.data.places import find_screen, folder_name, warn_if_older
from gears.data.processing import check_same_options, prepare_screen
from gears.data.screen import PreparedScreen
from gears.files import user_path
from gears.numbers import whole_number

logger = logging.getLogger(__name__)

OTHER_OPTIONS = ("guides", "guide_targets", "workers")
"""Options beside those of :class:`ProcessingOptions`."""
KnownGene = Callable[[str], bool]


def obtain_screen(
    data_path: Path,
    data_name: str | None,
    place: str | Path | None,
    options: dict[str, Any],
    is_gene: Callable[[], KnownGene],
) -> PreparedScreen:
    """A prepared screen by name, by folder, or from a file that is prepared into `data_path`.

    Parameters
    ----------
    data_path
        Where prepared screens lie.
    data_name, place
        One of the two: a name in `data_path`, or a folder or file anywhere.
    options
        Of :class:`ProcessingOptions`, and "guides", "guide_targets", "workers".
    is_gene
        Gives what tells whether the annotation knows a gene; called only where it is needed.

    Raises
    ------
    FileNotFoundError, ValueError, TypeError
        If nothing is there, it cannot be used, or an option is unknown.
    """
    processing = {name: value for name, value in options.items() if name not in OTHER_OPTIONS}
    settings = ProcessingOptions.of(**processing)  # an unknown name is an error before anything is read
    workers = whole_number("workers", options.get("workers", 1))
    if (data_name is None) == (place is None):
        msg = "load takes either data_name (something in this data_path) or data_path (a folder or a file)"
        raise ValueError(msg)
    found = as_prepared(user_path(place)) if place is not None else find_screen(data_path, str(data_name))
    if found.is_dir() and is_prepared(found):
        screen = PreparedScreen.open(found)
        warn_if_older(found, data_path / f"{data_name or found.name}.h5ad")
        check_same_options(screen, processing)
        return screen
    if found.parent == data_path / FOLDER:
        processing = PUBLISHED_OPTIONS | processing
    source, name = source_behind(found, data_path)
    known = is_gene() if settings.style != "gears" else None
    given: dict[str, Any] = {"is_gene": known, "workers": workers}
    if options.get("guides") is None:
        adata = open_lean(source, settings.layer, data_path)
        return prepare_screen(adata, data_path / name, **given, **processing)
    from gears.data.guides import add_guides

    own = settings.ctrl_label if isinstance(settings.ctrl_label, str) and "ctrl_label" in processing else None
    adata = add_guides(open_screen(source), options["guides"], options.get("guide_targets"), ctrl_label=own)
    processing.pop("ctrl_label", None)
    return prepare_screen(adata, data_path / name, **given, **processing)


def as_prepared(place: Path) -> Path:
    """A path, or the prepared folder of its name in lower case, which preparing gives it, where only that is there."""
    lower = place.with_name(place.name.lower()) if place.name else place
    return lower if not place.exists() and is_prepared(lower) else place


def source_behind(place: Path, data_path: Path) -> tuple[Path, str]:
    """The file or folder of a screen that a path means, and the folder in `data_path` to prepare it into.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    """
    if not place.exists():
        msg = f"there is no file or folder {place}"
        raise FileNotFoundError(msg)
    stem = place.resolve().name
    for suffix in (".gz", ".h5ad", ".zarr", ".h5", ".mtx"):
        stem = stem.removesuffix(suffix)
    name = folder_name(stem)
    source = place / H5AD if (place / H5AD).is_file() else place
    # A folder that is no prepared screen is somebody's data: prepared beside it, not over it.
    taken = (data_path / name).exists() and not is_prepared(data_path / name)
    return source, f"{name}-prepared" if taken else name
