"""Moment packs: a screen without its cells gives what the cells gave; blocks, workers and packs add up."""

from __future__ import annotations

import itertools
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData, read_h5ad
from driving import dying_once, gears_of, trained_gears
from scipy import sparse

from gears import PertData
from gears.cli.main import main
from gears.data import open_screen
from gears.data.reading import _blocks

if TYPE_CHECKING:
    from gears.data import PreparedScreen

N_ROWS = 13  # of a block: the last of 216 cells' has fewer


@pytest.fixture(autouse=True)
def many_blocks(monkeypatch):
    """Blocks of some cells, so that small screens have several."""
    monkeypatch.setattr(_blocks, "BLOCK_VALUES", 400)


def data_in(folder: Path) -> PertData:
    return PertData(folder, default_pert_graph=False)


def in_lanes(adata: AnnData, n: int = 2) -> AnnData:
    adata.obs["lane"] = [f"lane{number % n + 1}" for number in range(adata.n_obs)]
    return adata


def arrays_of(screen: PreparedScreen) -> dict[str, np.ndarray]:
    tables = {one.name: getattr(screen.statistics, one.name) for one in fields(screen.statistics)}
    tables |= {"control_mean": screen.control_mean_BG, "order": screen.de.order, "scores": screen.de.scores}
    return {name: np.asarray(table) for name, table in tables.items() if table is not None}


def assert_same(screen: PreparedScreen, other: PreparedScreen, rtol: float = 0.0) -> None:
    assert [one.name for one in screen.conditions] == [one.name for one in other.conditions]
    assert screen.label_cells.tolist() == other.label_cells.tolist()
    own, wanted = arrays_of(screen), arrays_of(other)
    assert own.keys() == wanted.keys()
    for name, table in own.items():
        np.testing.assert_allclose(table, wanted[name], rtol=rtol, atol=rtol, err_msg=name)


def same_values(path: Path, other: Path) -> bool:
    """Whether two packs hold the same bits."""
    one, two = read_h5ad(path), read_h5ad(other)
    names = ("halves", "halves_n", "controls_condition")
    pairs = [(one.uns["gears"][name], two.uns["gears"][name]) for name in names]
    pairs += [(one.layers[name], two.layers[name]) for name in one.layers]
    pairs += [(one.X, two.X), *((pack.uns["gears"]["controls"].toarray() for pack in (one, two)),)]
    return one.obs.equals(two.obs) and all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


@pytest.mark.parametrize("kind", ["plain", "lanes", "contexts"])
def test_a_pack_gives_what_its_cells_give(kind, small_screen_adata, tmp_path):
    options = {"plain": {}, "lanes": {"batch_key": ["lane"]}, "contexts": {"context_key": "lane"}}[kind]
    cells, pack = data_in(tmp_path / "cells"), data_in(tmp_path / "pack")
    cells.new_data_process("small", in_lanes(small_screen_adata), **options)
    path = cells.write_moments(tmp_path / ("small.moments.zarr" if kind == "lanes" else "small.moments.h5ad"))
    pack.load(data_path=path)
    assert_same(pack.screen, cells.screen)
    assert pack.screen.content_hash == cells.screen.content_hash
    assert not list(pack.screen.folder.rglob("cells"))
    tables, edges = [], pd.DataFrame(itertools.pairwise(cells.screen.gene_names), columns=["source", "target"])
    how = {"G_coexpress": edges, "steps": 2, "prior": None} if kind == "plain" else {"epochs": 0}
    for data in (cells, pack):
        data.prepare_split("simulation", seed=1)
        model = trained_gears(data, **how)
        tables.append(model.evaluate(part="test", baselines=("additive_ridge",), n_split_half=2))
    of_cells, scores = tables
    assert scores.equals(of_cells)
    assert np.isfinite(scores["scaled"]).any()


def test_anndata_opens_a_pack(small_data, tmp_path):
    pack = read_h5ad(small_data.write_moments(tmp_path / "small.moments.h5ad"))
    screen = small_data.screen
    row = pack.obs["condition"].tolist().index(screen.conditions[3].name)
    np.testing.assert_array_equal(pack.X[row], screen.statistics.mean[3])
    np.testing.assert_array_equal(pack.layers["m4"][row], screen.statistics.m4[3])
    assert pack.obs["n_cells"].sum() == screen.n_cells
    with pytest.raises(ValueError, match="a moment pack, whose rows are no cells"):
        data_in(tmp_path).new_data_process("again", pack)


def test_what_needs_cells_says_so(small_data, tmp_path):
    data = data_in(tmp_path)
    data.load(data_path=small_data.write_moments(tmp_path / "small.moments.h5ad"))
    data.prepare_split("simulation", seed=1)
    model = gears_of(data)
    for ask in (
        lambda: model.train(objective="cells", verbose=False),
        lambda: data.adata,
        lambda: data.get_dataloader(4),
        lambda: data.prepare_split("simulation", control_shares=[0.5, 0.25, 0.25]),
        lambda: data.write_moments(tmp_path / "again.h5ad"),
    ):
        with pytest.raises(ValueError, match="opened from a moment pack, which has no cells"):
            ask()


def stored(adata: AnnData, folder: Path, form: str) -> Path:
    if form == "folder":
        for number in (0, 1):
            part = adata[number * 100 : (number + 1) * 100 + 16 * number]
            part[:, :: 1 - 2 * number].copy().write_h5ad(folder / f"part{number}.h5ad")  # genes in another order
        return folder
    path = folder / f"screen.{form.split()[0]}"
    adata.X = adata.X.toarray() if form.endswith("dense") else adata.X
    (adata.write_h5ad if path.suffix == ".h5ad" else adata.write_zarr)(path)
    return path


@pytest.mark.filterwarnings("ignore:.*[Zz]arr.*")
@pytest.mark.parametrize("form", ["h5ad", "h5ad dense", "zarr", "folder"])
def test_files_are_reduced_block_by_block(form, toy_adata, toy_screen, tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    path, data = stored(toy_adata, folder, form), data_in(tmp_path / "work")
    data.load(data_path=path, moments=tmp_path / "toy.moments.h5ad")
    assert_same(data.screen, toy_screen, rtol=1e-12)
    whole = open_screen(path)
    data.new_data_process("memory", whole, moments=tmp_path / "memory.moments.h5ad")
    assert_same(data.screen, toy_screen, rtol=1e-12)


def test_counts_are_normalised_block_by_block(toy_adata, tmp_path):
    counts = sparse.csr_matrix(np.rint(np.expm1(toy_adata.X.toarray())).astype(np.float32))
    adata = AnnData(counts, obs=in_lanes(toy_adata).obs, var=toy_adata.var)
    adata.write_h5ad(tmp_path / "counts.h5ad")
    options = {"normalize": True, "min_cells": 3, "batch_key": ["lane"]}
    whole, data = data_in(tmp_path / "cells"), data_in(tmp_path / "pack")
    whole.new_data_process("counts", adata, **options)
    data.load(data_path=tmp_path / "counts.h5ad", moments=tmp_path / "counts.moments.h5ad", **options)
    assert_same(data.screen, whole.screen, rtol=1e-12)
    assert data.screen.scale == whole.screen.scale


def test_bad_values_leave_nothing_behind(toy_adata, tmp_path):
    data = data_in(tmp_path / "work")
    toy_adata.X.data[-1] = np.nan
    for changes, message in (({}, "NaN or infinite"), ({"max_residual": 0.3}, "max_residual compare cells first")):
        with pytest.raises(ValueError, match=message):
            data.new_data_process("toy", toy_adata, moments=tmp_path / "toy.moments.h5ad", **changes)
    assert sorted(place.name for place in tmp_path.rglob("*")) == ["work"]


def test_the_same_bits_for_any_workers(dask_address, toy_adata, tmp_path, quick_workers):
    in_lanes(toy_adata).write_h5ad(tmp_path / "toy.h5ad")
    shares: dict[str, dict[str, Any]] = {"1": {}, "3": {"workers": 3}, "dask": {"dask": dask_address}}
    for name, how in shares.items():
        data = data_in(tmp_path / "work")
        data.load(data_path=tmp_path / "toy.h5ad", moments=tmp_path / f"{name}.h5ad", batch_key=["lane"], **how)
    for name in ("3", "dask"):
        assert same_values(tmp_path / "1.h5ad", tmp_path / f"{name}.h5ad"), name


def test_a_killed_worker_costs_its_blocks_only(dask_address, toy_adata, toy_screen, tmp_path):
    import dask
    import dask.array as da
    from distributed import Client

    killed = tmp_path / "killed"
    dies_once = dying_once(killed)
    matrix, data = toy_adata.X, data_in(tmp_path / "work")
    parts = [matrix[start : start + N_ROWS] for start in range(0, matrix.shape[0], N_ROWS)]
    blocks = [
        da.from_delayed(dask.delayed(dies_once)(part), shape=part.shape, dtype=part.dtype, meta=matrix[:0])
        for part in parts
    ]
    adata = AnnData(X=da.concatenate(blocks), obs=toy_adata.obs, var=toy_adata.var)
    with Client(dask_address):
        data.new_data_process("toy", adata, moments=tmp_path / "toy.moments.h5ad")
    assert killed.exists()
    assert_same(data.screen, toy_screen, rtol=1e-12)


def lanes(adata: AnnData, folder: Path) -> list[Path]:
    """A pack of each lane."""
    paths = []
    for lane in sorted(adata.obs["lane"].unique()):
        data = data_in(folder / "work")
        data.new_data_process(lane, adata[adata.obs["lane"] == lane].copy())
        paths.append(data.write_moments(folder / f"{lane}.moments.h5ad"))
    return paths


def test_packs_of_lanes_add_up_to_one_pass_in_any_grouping(toy_adata, tmp_path, capsys):
    adata, whole, data = in_lanes(toy_adata, 3), data_in(tmp_path / "whole"), data_in(tmp_path / "merged")
    whole.new_data_process("toy", adata, batch_key=["lane"])
    paths = lanes(adata, tmp_path)
    assert main(["merge", *map(str, paths), str(tmp_path / "toy.moments.h5ad")]) == 0
    assert "moment pack: " in capsys.readouterr().out
    data.load(data_path=tmp_path / "toy.moments.h5ad")
    assert_same(data.screen, whole.screen)
    assert data.screen.batches == whole.screen.batches
    assert same_values(tmp_path / "toy.moments.h5ad", PertData.merge_moments(paths, tmp_path / "again.h5ad"))
    first = PertData.merge_moments(paths[:2], tmp_path / "first.h5ad")
    data.load(data_path=PertData.merge_moments([first, paths[2]], tmp_path / "in_turn.moments.h5ad"))
    assert_same(data.screen, whole.screen)


def changed(path: Path, change: Any, sealed: bool = True) -> Path:
    """A copy of a pack that `change` has changed, with a seal that fits."""
    from gears.data.screen._packs import read_pack

    out = path.with_name("changed.h5ad")
    if sealed:
        pack = read_pack(path)
        change(pack)
        return pack.write(out, overwrite=True)
    adata = read_h5ad(path)
    change(adata)
    adata.write_h5ad(out)
    return out


def without_controls(pack: Any) -> None:
    control = [genes == [] for genes, *_ in pack.tables["conditions"]].index(True)
    kept = pack.row_condition != control
    for name in ("row_condition", "row_batch", "n"):
        object.__setattr__(pack, name, getattr(pack, name)[kept])
    pack.layers.update({name: layer[kept] for name, layer in pack.layers.items()})


REFUSED = {
    "other genes": (lambda pack: pack.tables["gene_ids"].__setitem__(0, "other"), True, "the same genes: others"),
    "another order": (lambda pack: pack.tables["gene_ids"].reverse(), True, "the same genes: in another order"),
    "mixed scales": (lambda pack: pack.manifest.update(scale="scaled"), True, "scale is 'scaled' in changed"),
    "no controls": (without_controls, True, "changed has no control cells in changed"),
    "another version": (lambda adata: adata.uns["gears"].update(format_version=9), False, "has format version 9"),
    "other values": (lambda adata: adata.layers["m2"].__setitem__((0, 0), 5.0), False, "was changed or damaged"),
}


@pytest.fixture(scope="module")
def two_lanes(toy_template, tmp_path_factory):
    return lanes(in_lanes(toy_template.copy()), tmp_path_factory.mktemp("lanes"))


@pytest.mark.parametrize("case", REFUSED)
def test_packs_that_do_not_fit_are_refused(case, two_lanes, tmp_path):
    change, sealed, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        PertData.merge_moments([two_lanes[0], changed(two_lanes[1], change, sealed)], tmp_path / "out.h5ad")
    assert not (tmp_path / "out.h5ad").exists()


def test_cells_twice_and_cut_files_are_refused(two_lanes, tmp_path):
    first, second = two_lanes
    both = PertData.merge_moments([first, second], tmp_path / "both.h5ad")
    with pytest.raises(ValueError, match=r"lane1 and both hold the same cells \(ctrl\)"):
        PertData.merge_moments([both, first], tmp_path / "out.h5ad")
    with pytest.raises(ValueError, match=r"packs must be unique; found more than once: .*lane1"):
        PertData.merge_moments([first, first], tmp_path / "out.h5ad")
    with pytest.raises(FileNotFoundError, match=r"moment pack: there is no file or folder .*none\.h5ad"):
        PertData.merge_moments([first, tmp_path / "none.h5ad"], tmp_path / "out.h5ad")
    cut = tmp_path / "cut.h5ad"
    cut.write_bytes(second.read_bytes()[:-2000])
    for ask in (
        lambda: PertData.merge_moments([first, cut], tmp_path / "out.h5ad"),
        lambda: data_in(tmp_path / "w").load(data_path=cut),
    ):
        with pytest.raises(ValueError, match=r"cut\.h5ad is damaged or cut short"):
            ask()
    assert not (tmp_path / "out.h5ad").exists()


def test_the_command_writes_and_inspects_a_pack(toy_adata, tmp_path, capsys, monkeypatch):
    toy_adata.write_h5ad(tmp_path / "toy.h5ad")
    monkeypatch.chdir(tmp_path)
    assert main(["prepare", "toy.h5ad", "--work-dir", "work", "--moments", "toy.moments.h5ad", "--quiet"]) == 0
    assert "moment pack: toy.moments.h5ad" in capsys.readouterr().out
    assert main(["inspect", "toy.moments.h5ad"]) == 0
    assert "control cells               60" in capsys.readouterr().out
    assert main(["prepare", "toy.h5ad", "--work-dir", "work", "--moments", "toy.moments.h5ad"]) == 2
    assert "exists already" in capsys.readouterr().err


def test_a_job_of_two_workers_trains_from_a_pack(small_data, tmp_path, quick_workers):
    from gears import train_multi_gpu

    folder = tmp_path / "screens"
    folder.mkdir()
    small_data.write_moments(folder / "small.moments.h5ad")
    args = {"save_path": str(tmp_path / "model"), "prior": None, "steps": 2, "verbose": False}
    args["data_config"] = {"default_pert_graph": False}
    job = {"split_config": {"split": "simulation", "seed": 1}, "n_gpus": 2, "device": "cpu"}
    train_multi_gpu(folder, "small.moments", args=args, **job)
    assert (tmp_path / "model" / "manifest.json").is_file()
    args |= {"objective": "cells", "save_path": str(tmp_path / "cells")}
    with pytest.raises(ValueError, match="has no cells"):
        train_multi_gpu(folder, "small.moments", args=args, **job)
