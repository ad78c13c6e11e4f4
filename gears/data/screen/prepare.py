"""From an AnnData object, a file or a name to a prepared screen."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gears.core._findings import Finding, check, errors, refusal
from gears.core._messages import brief, count, nearest, shorten
from gears.core._numbers import whole_number
from gears.core._options import anything, one_of, option, options, switch, whole
from gears.data.checks._names import KnownGene
from gears.data.checks._options import ProcessingOptions
from gears.data.checks._survey import REFUSED, ScreenDraft, check_screen
from gears.data.reading._blocks import blocks_of
from gears.data.reading._by_dask import cluster, from_dask
from gears.data.reading._download import FOLDER, PUBLISHED_FILES, PUBLISHED_OPTIONS, published_screen
from gears.data.reading._guides import add_guides
from gears.data.reading._open import SUFFIXES, in_reach, kind_of, name_of, open_lean, open_screen, refuse_address
from gears.data.screen._files import H5AD, is_prepared, screen_hash, write_screen
from gears.data.screen._merging import packs_as_contexts
from gears.data.screen._packs import MomentPack, is_pack, pack_of, read_pack
from gears.data.screen._prepared import PreparedScreen
from gears.data.screen._reduce import reduce_to_pack
from gears.data.screen._several import (
    check_sources,
    differences,
    options_of_prepared,
    several_contexts,
    together,
)
from gears.files._atomic import clean_leftovers, locked, need_space, new_folder
from gears.files._paths import check_output, named, user_path
from gears.files.formats import MANIFEST

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from anndata import AnnData
    from scipy import sparse

logger = logging.getLogger(__name__)

BYTES_PER_VALUE = 16
"""Of a prepared screen on disk: value and gene, in the mapped cells and in the h5ad file."""

REFUSED_SEVERAL = "these screens cannot be put together"
PUBLISHED_SCREENS = tuple(PUBLISHED_FILES)


@options
class LoadOptions(ProcessingOptions):
    """How a screen is loaded."""

    # fmt: off
    _: KW_ONLY
    drop_unmapped: bool = option(False, switch(), help="exclude conditions with a gene that the annotation lacks")
    screens: Mapping[str, Any] | None = option(None, anything(), command="",
        help="""screens by name that are put together as the contexts of one, under the name data_name: AnnData, files,
        moment packs, prepared folders or PertData""")
    genes: str = option("shared", one_of(["shared", "all"]), command="",
        help="genes of several screens: shared, those that all of them measure, or all, those that any of them does")
    # fmt: on


@options
class LoadCall(LoadOptions):
    """Arguments of :meth:`gears.PertData.load`: the screen, and how it is loaded."""

    # fmt: off
    data_name: str | None = option(None, anything(), command="",
        help="""name of a prepared folder or of a file such as <name>.h5ad in this object's data_path, or a published
        screen (gears.data.screen.prepare.PUBLISHED_SCREENS)""")
    data_path: str | Path | None = option(None, anything(), command="",
        help="""a prepared folder; a folder of cell-gears (perturb_processed.h5ad); or an h5ad file, zarr store, 10x h5
        file, 10x mtx folder, or folder of several. A screen that is not prepared yet is prepared into this object's
        data_path, never beside the file. Where nothing is there, a name as data_name""")
    _: KW_ONLY
    guides: str | Path | pd.DataFrame | Sequence[str | Path] | None = option(None, anything(),
        help="table of each cell's guides (see gears.data.add_guides)")
    workers: int | None = option(None, whole(1).or_none(), help="processes that read the cells (1)")
    dask: str | None = option(None, anything(),
        help="address of a dask scheduler whose workers read the screen's files and reduce them to `moments`")
    moments: str | Path | None = option(None, anything(),
        help="""moment pack to write (h5ad or zarr): the screen is read block by block, and opened from the pack,
        without its cells""")
    # fmt: on


def prepare_screen(
    adata: AnnData,
    folder: str | Path,
    *,
    workers: int = 1,
    is_gene: KnownGene | None = None,
    moments: str | Path | None = None,
    is_measured: Mapping[str, np.ndarray] | None = None,
    **processing: Any,
) -> PreparedScreen:
    """Check a screen and write it as a prepared folder; ValueError lists every problem of one that cannot be used.

    The object (dense or sparse X, a file, dask arrays) is not modified. A folder that holds the same content and
    parameters is reused; one with other content is replaced as a whole, splits and graphs made from it included.
    Layers, embeddings and ``uns`` are not carried over.

    `workers`: processes that compute the statistics (the result does not depend on it).
    `is_gene`: symbol of a gene that the annotation knows, None for other tokens of labels; outside the style "gears"
        these must be measured genes.
    `moments`: a moment pack to write instead of the cells, by :func:`reduced`; the screen is opened from it.
    `is_measured`: which genes, (G,) bool, each context measures, where these differ; the values of others are not used.
    `processing`: see :class:`ProcessingOptions`.
    """
    settings, workers = ProcessingOptions.from_mapping(processing), whole_number("workers", workers)
    folder = user_path(folder)
    if moments is not None:
        check_output(moments)
        return open_pack(reduced(adata, settings, is_gene, folder.parent, workers=workers).write(moments), folder)
    adata = from_dask(in_reach(adata, folder.parent), settings.layer, folder.parent)
    draft = check_screen(adata, settings, is_gene=is_gene)
    if message := refusal(REFUSED, draft.findings):
        raise ValueError(message)
    draft.log()
    n_bytes = BYTES_PER_VALUE * draft.matrix.nnz
    key = screen_hash(draft)
    write = partial(write_screen, draft=draft, key=key, workers=workers, is_measured=is_measured)
    return _placed(folder, key, n_bytes, write)


def reduced(
    source: AnnData | Path,
    settings: ProcessingOptions,
    is_gene: KnownGene | None,
    near: Path,
    *,
    workers: int = 1,
    on_dask: bool = False,
) -> MomentPack:
    """Check a screen and make its moment pack, reading it block by block; its cells are copied nowhere.

    `source`: an AnnData (in memory, backed or with dask arrays), or a file or folder. Values are judged by some cells.
    `near`: a folder for temporary files. `on_dask`: reduce on the active dask scheduler, not here.
    """
    blocks = blocks_of(source, settings, near)
    draft = check_screen(blocks.annotations, settings, is_gene=is_gene, sample=blocks.some())
    residuals = [name for name in ("max_residual", "max_cell_residual") if getattr(settings, name) is not None]
    remedy = "prepare the screen with its cells and call write_moments"
    draft = draft.found(check("residuals", residuals, f"{' and '.join(residuals)} compare cells first", remedy))
    if message := refusal(REFUSED, draft.findings):
        raise ValueError(message)
    draft.log()
    return reduce_to_pack(blocks, draft, workers=workers, on_dask=on_dask)


def open_pack(path: str | Path, folder: str | Path) -> PreparedScreen:
    """The screen of a moment pack, unpacked into a folder without cells; one that holds the same is reused.

    FileNotFoundError or ValueError if there is no pack, or it is of another version, cut or changed.
    """
    return _unpacked(read_pack(path), user_path(folder))


def _unpacked(pack: MomentPack, folder: Path) -> PreparedScreen:
    """The folder of a pack."""
    n_bytes = 2 * sum(array.nbytes for array in pack.arrays().values())
    return _placed(folder, pack.manifest["content_hash"], n_bytes, pack.unpack, has_cells=False)


def _placed(
    folder: Path, key: str, n_bytes: int, write: Callable[[Path], None], *, has_cells: bool = True
) -> PreparedScreen:
    """The prepared folder of a content hash: the one that is there, or one that `write` fills."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / f".{folder.name}.lock"):
        reusable = _reusable(folder, key, has_cells)
        if reusable is not None:
            logger.debug("reusing the prepared screen %s", folder)
            return reusable
        if is_prepared(folder):
            logger.warning(
                "replacing the prepared screen %s: it was made from other data or with other options", folder
            )
        elif folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):  # somebody's files
            msg = (
                f"{folder} exists and is no prepared screen; choose another dataset name or data_path, or move it away"
            )
            raise FileExistsError(msg)
        left = clean_leftovers(folder.parent, folder.name, alone=True)
        if left:
            logger.debug("removed what an interrupted preparation left behind: %s", shorten(left))
        need_space(folder, n_bytes)
        with new_folder(folder) as temporary:
            write(temporary)
        return PreparedScreen.open(folder)


def _reusable(folder: Path, key: str, has_cells: bool) -> PreparedScreen | None:
    if not is_prepared(folder):
        return None
    try:
        screen = PreparedScreen.open(folder)
        if screen.content_hash != key or screen.has_cells != has_cells:
            return None
        screen.verify()
    except (ValueError, OSError, KeyError) as error:
        logger.warning("%s; preparing it again", error)
        return None
    return screen


def check_same_options(screen: PreparedScreen, given: Mapping[str, Any]) -> None:
    """Raise ValueError unless a prepared folder was made with the same options as those that were given."""
    made = ProcessingOptions().to_dict() | screen.manifest["parameters"]
    different = [
        f"{name}: {brief(made[name])} there, {brief(value)} here"
        for name, value in given.items()
        if made[name] != value
    ]
    if different:
        msg = (
            f"{screen.folder} was prepared with other options ({'; '.join(different)}); "
            "omit the options to use it unchanged, or prepare it again with new_data_process"
        )
        raise ValueError(msg)


def obtain_screen(data_path: Path, load: LoadCall, is_gene: Callable[[], KnownGene]) -> PreparedScreen:
    """A prepared screen by name, by folder, or from a file that is prepared into `data_path`.

    `load` names something in `data_path`, where prepared screens lie, or a folder or file anywhere. `is_gene` gives
    the function of :func:`prepare_screen`; it is called only where it is needed. FileNotFoundError or ValueError
    if nothing is there, or it cannot be used.
    """
    if load.screens is not None:
        return _obtain_several(data_path, load, is_gene())
    settings, data_name, place = load.only(ProcessingOptions), load.data_name, load.data_path
    processing, workers = settings.given(), load.workers or 1
    if load.guides is not None:  # the targets are those of its guides
        processing.pop("guide_targets", None)
    if (data_name is None) == (place is None):
        msg = "load takes either data_name (something in this data_path) or data_path (a folder or a file)"
        raise ValueError(msg)
    path = find_screen(data_path, str(data_name)) if place is None else locate_screen(place, data_path)
    if is_prepared(path):
        screen, file = PreparedScreen.open(path), data_path / f"{data_name or path.name}.h5ad"
        if file.is_file() and file.stat().st_mtime > (path / MANIFEST).stat().st_mtime:
            logger.warning(
                "%s was changed after the prepared screen %s was made, which is what is used; "
                "load(data_path=%r) prepares it again", file.name, path.name, str(file),
            )  # fmt: skip
        check_same_options(screen, processing)
        if load.moments is not None:
            pack_of(screen).write(load.moments)
        return screen
    if path.parent == data_path / FOLDER:
        processing = PUBLISHED_OPTIONS | processing
    source, name = source_in(path), folder_name(name_of(named(path)))
    if (data_path / name).exists() and not is_prepared(data_path / name):
        name = f"{name}-prepared"  # a folder that is no prepared screen is somebody's data
    if is_pack(source):
        if load.moments is not None:
            msg = f"{source} is a moment pack already; omit moments"
            raise ValueError(msg)
        screen = open_pack(source, data_path / name)
        check_same_options(screen, processing)
        return screen
    if load.dask is not None and (load.guides is not None or load.moments is None):
        msg = "dask reduces files whose cells have labels to a moment pack: give moments=, and no guides; or omit dask"
        raise ValueError(msg)
    if load.guides is None and load.moments is not None:
        check_output(load.moments)
        options = ProcessingOptions.from_mapping(processing)
        how: Any = {"workers": workers, "on_dask": load.dask is not None}
        with contextlib.nullcontext() if load.dask is None else cluster(load.dask):
            pack = reduced(source, options, is_gene(), data_path, **how).write(load.moments)
        return open_pack(pack, data_path / name)
    if load.guides is None:
        adata = open_lean(source, settings.layer, data_path)
    else:
        controls = processing.pop("ctrl_label", None)
        adata = add_guides(open_screen(source), load.guides, load.guide_targets, ctrl_label=controls)
    more: Any = {"workers": workers, "moments": load.moments}
    return prepare_screen(adata, data_path / name, is_gene=is_gene(), **more, **processing)


def _obtain_several(data_path: Path, load: LoadCall, is_gene: KnownGene) -> PreparedScreen:
    """Several screens as contexts of one, prepared as the folder `data_name`."""
    sources = check_sources(load.screens)
    if load.data_name is None or load.data_path is not None or load.guides is not None or load.moments is not None:
        msg = "several screens take data_name, the name of the whole, and neither data_path, guides nor moments"
        raise ValueError(msg)
    settings, folder = load.only(ProcessingOptions), data_path / folder_name(load.data_name)
    if settings.context_key is not None or settings.pool_cell_types:
        msg = "each of several screens is one context; omit context_key and pool_cell_types"
        raise ValueError(msg)
    for name, source in sources.items():  # all before one of them is read
        if isinstance(source, str | Path):
            sources[name] = locate_screen(source, data_path)
    as_packs = any(isinstance(source, Path) and is_pack(source) for source in sources.values())
    made: dict[str, ScreenDraft | MomentPack] = {}
    cells: dict[str, tuple[str | None, sparse.csr_matrix]] = {}
    problems: list[Finding] = []
    for name, source in sources.items():
        try:
            made[name] = one = (_pack if as_packs else _draft)(_opened(source), settings, data_path, is_gene)
        except (ValueError, OSError, TypeError) as error:
            problems.append(Finding("unreadable", f"{name}: {error}"))
            continue
        if isinstance(one, MomentPack):
            cells[name] = one.manifest["scale"], one.controls
            continue
        problems += [replace(finding, what=f"{name}: {finding.what}") for finding in errors(one.findings)]
        logger.info("screen %s: %s x %s", name, count(one.n_cells, "cell"), count(one.n_genes, "gene"))
        one.log()
        cells[name] = one.scale, one.matrix
    if message := refusal(REFUSED_SEVERAL, problems or differences(cells)):
        raise ValueError(message)
    if as_packs:
        return _unpacked(packs_as_contexts(cast("dict[str, MomentPack]", made), settings, is_gene, load.genes), folder)
    adata, options, is_measured = together(cast("dict[str, ScreenDraft]", made), settings, is_gene, load.genes)
    del made, cells, one
    more: dict[str, Any] = {"is_measured": is_measured, **options.changed()}
    return prepare_screen(adata, folder, is_gene=is_gene, workers=load.workers or 1, **more)


def _opened(source: Any) -> Any:
    """One of several screens: a prepared screen where it is one, else a path or an AnnData."""
    screen = getattr(source, "whole_screen", source)
    return PreparedScreen.open(screen) if isinstance(screen, Path) and is_prepared(screen) else screen


def _pack(screen: Any, options: ProcessingOptions, near: Path, is_gene: KnownGene) -> MomentPack:
    """The moments of one of several screens, of which one at least is a moment pack."""
    if isinstance(screen, PreparedScreen):
        pack = pack_of(screen)
    elif isinstance(screen, Path) and is_pack(screen):
        pack = read_pack(screen)
    else:
        pack = reduced(source_in(screen) if isinstance(screen, Path) else screen, options, is_gene, near)
    if contexts := sorted({one.context for one in pack.conditions} - {""}):
        raise ValueError(several_contexts(contexts))
    return pack


def _draft(screen: Any, options: ProcessingOptions, near: Path, is_gene: KnownGene) -> ScreenDraft:
    """One of several screens, checked as if it were alone."""
    if isinstance(screen, PreparedScreen):
        options = options_of_prepared(screen, options)
        adata = open_lean(screen.checked_file(H5AD), None, near)
        return check_screen(adata if screen.cell_ids is None else adata[screen.cell_ids], options, is_gene=is_gene)
    adata = open_lean(source_in(screen), options.layer, near) if isinstance(screen, Path) else in_reach(screen, near)
    return check_screen(from_dask(adata, options.layer, near), options, is_gene=is_gene)


def make_data_path(data_path: str | Path) -> Path:
    """The folder of prepared screens, made when it is missing; NotADirectoryError if a file is there."""
    path = user_path(data_path)
    if path.exists() and not path.is_dir():
        msg = (
            f"data_path {path} is a file; it is the folder that prepared screens go into. To read the file: "
            f"PertData('gears_data').load(data_path={str(path)!r}), or PertData.from_adata"
        )
        raise NotADirectoryError(msg)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        msg = f"data_path {path} cannot be made: a part of the path is a file; choose another folder"
        raise NotADirectoryError(msg) from error
    return path


def folder_name(name: str) -> str:
    """A dataset name as a folder name; ValueError if it is empty, hidden or holds a path."""
    plain = str(name).strip()
    if not plain or plain.startswith(".") or any(sign in plain for sign in '/\\\0:*?"<>|'):
        msg = f"dataset name {name!r} cannot name a folder; use letters, digits, '-' and '_'"
        raise ValueError(msg)
    return plain


def locate_screen(data: str | Path, data_path: Path | None = None) -> Path:
    """What DATA means: a prepared folder, or a file or folder to prepare; FileNotFoundError if there is no such screen.

    `data` is a path; where nothing is there, a name in `data_path` (:func:`find_screen`; None: DATA is no name).
    """
    refuse_address(data)
    place = user_path(data)
    if not place.exists():
        place = _in_other_case(place)
    if place.exists():
        return place
    msg = f"there is no file or folder {place}"
    if data_path is None or place.name != str(data) or name_of(place) != place.name:
        near = nearest(place.name, _names_beside(place), 1)
        raise FileNotFoundError(msg + (f"; did you mean {near[0]!r}?" if near else ""))
    try:
        return find_screen(data_path, place.name)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"{msg}, and {error}") from error


def _names_beside(place: Path) -> list[str]:
    """Screens and folders in the folder of a path."""
    if not place.parent.is_dir():
        return []
    others = [other for other in place.parent.iterdir() if not other.name.startswith(".")]
    return sorted(other.name for other in others if other.is_dir() or other.name.endswith(tuple(SUFFIXES)))


def find_screen(data_path: Path, name: str) -> Path:
    """What has that name in `data_path`; a published screen is fetched; FileNotFoundError lists what is there."""
    folder = _in_other_case(data_path / name)
    if is_prepared(folder) or (folder / H5AD).is_file():
        return folder
    for place in (folder, *(data_path / f"{name}{suffix}" for suffix in SUFFIXES)):
        if place.is_file() or (place.is_dir() and _is_source(place)):
            return place
    if name.lower() in PUBLISHED_SCREENS:
        return published_screen(data_path, name.lower())
    there = sorted(place.name for place in data_path.glob("*") if not place.name.startswith("."))
    near = nearest(name, [*there, *PUBLISHED_SCREENS], 1)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    msg = (
        f"{data_path} has neither a prepared screen {name!r} nor a file {name}.h5ad "
        f"(it has {shorten(there) or 'nothing'}), and no published screen has that name "
        f"({', '.join(PUBLISHED_SCREENS)}){hint}"
    )
    raise FileNotFoundError(msg)


def _in_other_case(folder: Path) -> Path:
    """A folder, or a screen whose name differs in upper and lower case only; ValueError for several."""
    if folder.exists() or not folder.parent.is_dir():
        return folder
    names = sorted(other.name for other in folder.parent.iterdir() if other.name.lower() == folder.name.lower())
    others = [name for name in names if is_prepared(folder.parent / name) or (folder.parent / name / H5AD).is_file()]
    if len(others) > 1:
        msg = f"there is no {folder}; which of {shorten(others)} is meant?"
        raise ValueError(msg)
    return folder.with_name(others[0]) if others else folder


def _is_source(folder: Path) -> bool:
    """Whether a folder holds a screen to prepare."""
    try:
        return bool(kind_of(folder))
    except ValueError:
        return False


def source_in(place: Path) -> Path:
    """The file or folder to read: in a folder of the published package its h5ad file."""
    return place / H5AD if (place / H5AD).is_file() else place
