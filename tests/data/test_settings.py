"""Settings of a screen: how cells are divided, their matched statistics, and the single contexts."""

import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from anndata import AnnData
from scipy import sparse, stats

from gears.conditions import Condition
from gears.data import PreparedScreen
from gears.data._loaders import CellDataset
from gears.data._published import published_uns
from gears.data.screen._cells import CellMatrix
from gears.data.screen._files import SCREEN
from gears.data.screen._statistics import statistics_of
from gears.data.screen.prepare import prepare_screen
from gears.files.formats import SEAL


@pytest.fixture(scope="module")
def divided():
    """Two lines in two batches each, three genes by two types; batches shift expression."""
    rng = np.random.default_rng(4)
    rows = []
    for line in ("L1", "L2"):
        for batch in ("b1", "b2"):
            rows += [(line, batch, "ctrl", "none")] * (9 if batch == "b1" else 13)
            for gene in ("G0", "G1", "G2"):
                if (line, batch, gene) == ("L2", "b2", "G2"):
                    continue
                rows += [(line, batch, f"{gene}+ctrl", "CRISPRi")] * int(rng.integers(4, 8))
            rows += [(line, batch, "G0+ctrl", "CRISPRa")] * 5 if line == "L1" else []
    obs = pd.DataFrame(rows, columns=["line", "batch", "condition", "how"]).astype("category")
    obs.index = [f"c{i}" for i in range(len(obs))]
    obs["cell_type"] = obs["line"]
    order = rng.permutation(len(obs))
    obs = obs.iloc[order]
    base = rng.uniform(0.5, 3, size=12) + (obs["batch"] == "b2").to_numpy()[:, None] * rng.uniform(0, 2, 12)
    x = np.log1p(rng.poisson(base * (1 + (obs["line"] == "L2").to_numpy()[:, None])))
    x[(obs["condition"] == "G2+ctrl").to_numpy(), 2] = 0.0  # a knock-out that leaves no count
    var = pd.DataFrame({"gene_name": [f"G{i}" for i in range(12)]}, index=[f"E{i}" for i in range(12)])
    return AnnData(sparse.csr_matrix(x.astype(np.float32)), obs=obs, var=var)


@pytest.fixture(scope="module")
def screen(divided, tmp_path_factory):
    folder = tmp_path_factory.mktemp("settings") / "screen"
    options = {"context_key": "line", "batch_key": ["batch"], "perturbation_type_key": "how"}
    return prepare_screen(divided, folder, **options)


def test_labels_and_names_of_conditions_in_contexts(screen, divided):
    assert screen.contexts == ("L1", "L2")
    assert screen.kinds == ("CRISPRa", "CRISPRi")
    names = {condition.name for condition in screen.conditions}
    assert {"ctrl @ L1", "ctrl @ L2", "G0+ctrl [CRISPRa] @ L1", "G0+ctrl [CRISPRi] @ L2"} <= names
    assert len(names) == 2 + 3 * 2 + 1
    for cell in (0, 7, 30):
        row = divided.obs.iloc[cell]
        condition = screen.conditions[screen.cell_condition[cell]]
        kind = "" if row["condition"] == "ctrl" else row["how"]
        assert condition == Condition.parse(row["condition"]).at(row["line"], kind)
        assert screen.labels[screen.cell_label[cell]] == row["condition"] + condition.suffix
    assert screen.id_of("ctrl+G0 [CRISPRi] @ L2") == screen.id_of(Condition(("G0",), "L2", "CRISPRi"))
    with pytest.raises(KeyError, match="no condition"):
        screen.id_of("G0+ctrl")
    with pytest.raises(ValueError, match="control in each of 2 contexts"):
        _ = screen.control_id
    again = pickle.loads(pickle.dumps(screen))
    assert again.conditions == screen.conditions
    assert PreparedScreen.open(screen.folder).conditions == screen.conditions


def pairs_of(divided: AnnData, condition: Condition) -> np.ndarray:
    """Every difference of a cell of the condition and a control cell of the same line and batch, by brute force."""
    x, obs = divided.X.toarray().astype(np.float64), divided.obs
    found, weights = [], []
    in_line = obs["line"] == condition.context
    own = in_line & (obs["condition"] == f"{condition.genes[0]}+ctrl") & (obs["how"] == condition.kind)
    for batch in ("b1", "b2"):
        cells = np.flatnonzero(own & (obs["batch"] == batch))
        controls = np.flatnonzero(in_line & (obs["condition"] == "ctrl") & (obs["batch"] == batch))
        d = (x[cells][:, None] - x[controls][None]).reshape(-1, x.shape[1])
        found.append(d)
        weights.append(np.full(len(d), 1 / len(controls)))
    weight = np.concatenate(weights)
    return np.concatenate(found), weight / weight.sum()


@pytest.mark.parametrize("name", ["G1+ctrl [CRISPRi] @ L1", "G2+ctrl [CRISPRi] @ L2", "G0+ctrl [CRISPRa] @ L1"])
def test_pair_moments_are_those_of_all_matched_pairs(screen, divided, name):
    condition, s = Condition.parse(name), screen.statistics
    d, weight = pairs_of(divided, condition)
    row = np.array([screen.id_of(condition)])
    mean = weight @ d
    np.testing.assert_allclose(s.delta(row)[0], mean, atol=1e-12)
    for order, table in ((2, s.v2), (3, s.v3), (4, s.v4)):
        np.testing.assert_allclose(table[row[0]], weight @ (d - mean) ** order, atol=1e-12)


def test_a_matched_change_is_as_exact_as_the_control_cells_of_its_batches(tmp_path):
    rng = np.random.default_rng(0)
    batch, condition = np.repeat([0, 1, 0, 1], [20, 60, 30, 10]), np.repeat([0, 1], [80, 40])
    values = (rng.standard_normal((120, 4000)) + 5).astype(np.float32)  # no gene changes
    CellMatrix.write(tmp_path, [sparse.csr_matrix(values)])
    statistics, _ = statistics_of(CellMatrix(tmp_path, 4000), condition, np.zeros(2, int), batch)
    change_1G, rows = statistics.delta(np.array([1])), np.array([1])
    shared = 1 / 80  # of the error of all control cells
    assert (change_1G**2).mean() == pytest.approx(1 / statistics.cells(rows)[0] + shared, rel=0.07)
    assert statistics.cells(rows)[0] == pytest.approx(1 / (1 / 40 + 0.75**2 / 20 + 0.25**2 / 60 - shared))
    assert statistics.cells(np.array([0]))[0] == 80


def test_one_batch_per_context_gives_plain_statistics(divided, tmp_path):
    """Each context is then, bit for bit, the screen that its own cells alone would give."""
    cells = divided[divided.obs["how"] != "CRISPRa"].copy()
    both = prepare_screen(cells, tmp_path / "both", context_key="line")
    for line in ("L1", "L2"):
        alone = prepare_screen(cells[cells.obs["line"] == line].copy(), tmp_path / line)
        view = both.setting(line)
        assert set(view.conditions) == set(alone.conditions)
        for condition in alone.conditions:
            a, b = view.id_of(condition), alone.id_of(condition)
            for table in ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below"):
                found, expected = getattr(view.statistics, table)[a], getattr(alone.statistics, table)[b]
                np.testing.assert_array_equal(found, expected)
            np.testing.assert_array_equal(view.de.top(a, 12), alone.de.top(b, 12))
        expected = cells[cells.obs["line"] == line].X.toarray()
        np.testing.assert_array_equal(view.cells.csr().toarray(), expected)
    with pytest.raises(ValueError, match="unknown context"):
        both.setting("L3")


def test_cells_are_paired_within_their_batch(screen, divided):
    dataset = CellDataset(screen, np.arange(len(screen.cells)), [[0]] * len(screen.labels), seed=2)
    obs, cells = divided.obs, np.arange(divided.n_obs)
    seen = set()
    for epoch in range(40):
        dataset.set_epoch(epoch)
        paired = dataset.control_of(cells)
        for column in ("line", "batch"):
            assert (obs[column].to_numpy()[paired] == obs[column].to_numpy()).all()
        assert (obs["condition"].to_numpy()[paired] == "ctrl").all()
        own = obs["condition"].to_numpy() == "ctrl"
        assert (paired[own] == cells[own]).all()
        seen |= set(paired[~own].tolist())
    assert seen == set(np.flatnonzero(obs["condition"] == "ctrl").tolist())
    dataset.set_epoch(3)
    np.testing.assert_array_equal(dataset.control_of(cells[::-1])[::-1], dataset.control_of(cells))


def test_excluding_conditions_of_one_context(screen):
    gone = Condition.parse("G1+ctrl [CRISPRi] @ L2")
    less = screen.without([gone])
    assert set(screen.conditions) - set(less.conditions) == {gone}
    kept = Condition.parse("G2+ctrl [CRISPRi] @ L2")
    found, expected = (one.statistics.delta(np.array([one.id_of(kept)])) for one in (less, screen))
    np.testing.assert_array_equal(found, expected)
    assert len(less.cells) == len(screen.cells) - len(screen.cells_of(screen.id_of(gone)))
    with pytest.raises(ValueError, match="without control"):
        screen.without([Condition((), "L1")])


def test_what_cannot_be_divided_is_said(divided, tmp_path):
    with pytest.raises(ValueError, match=r"did you mean 'line'"):
        prepare_screen(divided, tmp_path / "x", context_key="lines")
    with pytest.raises(ValueError, match="context_key='cell_type'"):
        prepare_screen(divided, tmp_path / "x")
    lost = divided.copy()
    lost.obs["batch"] = lost.obs["batch"].astype(object)
    lost.obs.iloc[3, list(lost.obs.columns).index("batch")] = None
    with pytest.raises(ValueError, match=r"obs\['batch'\] is missing for 1 cell"):
        prepare_screen(lost, tmp_path / "x", batch_key=["cell_type", "batch"])
    bare = divided[~((divided.obs["condition"] == "ctrl") & (divided.obs["batch"] == "b2"))].copy()
    with pytest.raises(ValueError, match=r"without a control cell: b2 \| L1"):
        prepare_screen(bare, tmp_path / "x", context_key="line", batch_key="batch")
    odd = divided.copy()
    odd.obs["line"] = odd.obs["line"].astype(str) + " [x]"
    with pytest.raises(ValueError, match="brackets"):
        prepare_screen(odd, tmp_path / "x", context_key="line", batch_key="cell_type")
    activated = np.flatnonzero(divided.obs["how"] == "CRISPRa")
    single = divided[np.setdiff1d(np.arange(divided.n_obs), activated[1:])].copy()
    with pytest.raises(ValueError, match="fewer than 2 cells in a context"):
        prepare_screen(single, tmp_path / "x", context_key="line", perturbation_type_key="how")


def test_matching_alone_leaves_the_conditions_as_they_are(divided, tmp_path):
    cells = divided[divided.obs["how"] != "CRISPRa"].copy()
    screen = prepare_screen(cells, tmp_path / "m", batch_key=["cell_type", "batch"])
    assert {condition.name for condition in screen.conditions} == {"ctrl", "G0+ctrl", "G1+ctrl", "G2+ctrl"}
    assert screen.contexts == ()
    control = np.flatnonzero(cells.obs["condition"] == "ctrl")
    expected = cells.X[control].toarray().mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(screen.statistics.mean[screen.control_id], expected)


def test_a_plain_screen_is_its_only_setting(toy_screen):
    assert toy_screen.settings == (toy_screen,)
    assert toy_screen.setting() is toy_screen
    assert (toy_screen.contexts, toy_screen.kinds, toy_screen.batches) == ((), (), ("",))
    assert set(toy_screen.control_of) == {toy_screen.control_id}
    expected = toy_screen.statistics.mean[toy_screen.control_id]
    np.testing.assert_array_equal(toy_screen.control_mean_BG[0], expected)
    with pytest.raises(ValueError, match="unknown context"):
        toy_screen.setting("L1")


def test_a_setting_is_pickled_and_not_changed(screen):
    view = screen.setting("L2", "CRISPRi")
    assert view.settings == (view,)
    assert {one.name for one in view.conditions} == {"ctrl", "G0+ctrl", "G1+ctrl", "G2+ctrl"}
    assert {one.name for one in screen.setting("L1", "CRISPRa").conditions} == {"ctrl", "G0+ctrl"}
    inside = [name for name in screen.labels if "CRISPRa" not in name and "L2" in name]
    assert view.labels == [name.split(" [")[0].split(" @")[0] for name in inside]
    again = pickle.loads(pickle.dumps(view))
    assert (again.conditions, again.content_hash) == (view.conditions, view.content_hash)
    np.testing.assert_array_equal(again.cell_condition, view.cell_condition)
    with pytest.raises(NotImplementedError, match="whole screen"):
        view.without([view.conditions[-1]])
    with pytest.raises(NotImplementedError, match="whole screen"):
        view.with_controls(view.control_cells[:2])


def as_written_before(screen: PreparedScreen, folder: Path) -> Path:
    """The folder as earlier versions wrote it: tables with contexts beside those without them."""
    shutil.copytree(screen.folder, folder)
    units, tables = folder / "units", json.loads((folder / "screen.json").read_text())
    units.mkdir()
    for path in [*(folder / "statistics").iterdir(), *(folder / "de").iterdir()]:
        path.rename(units / path.name)
    (folder / "cells" / "batch.npy").rename(units / "stratum.npy")
    (folder / "cells" / "label.npy").rename(units / "label.npy")
    names = {name: name for name in ("labels", "label_condition")} | {"conditions": "units", "batches": "strata"}
    (folder / "units.json").write_text(json.dumps({old: tables[name] for name, old in names.items()}))
    plain = {
        label.split(" [")[0].split(" @")[0]: name
        for label, name in zip(tables["labels"], tables["condition_names"], strict=True)
    }
    genes = [[] if label == "ctrl" else [label.split("+")[0]] for label in plain]
    tables |= {"labels": list(plain), "condition_names": list(plain.values())}
    tables |= {"conditions": genes, "label_condition": list(range(len(plain)))}
    del tables["batches"]
    (folder / "screen.json").write_text(json.dumps(tables))
    files = {p.relative_to(folder).as_posix(): p.stat().st_size for p in folder.rglob("*") if p.is_file()}
    del files["manifest.json"]
    by_format = ("kind", "format_version", SEAL)
    manifest = {name: value for name, value in screen.manifest.items() if name not in by_format}
    SCREEN.write(folder, manifest | {"files": files, "checksums": {}})
    return folder


def test_folders_of_earlier_versions_open(screen, tmp_path):
    old = PreparedScreen.open(as_written_before(screen, tmp_path / "old"))
    assert old.content_hash == screen.content_hash
    for name in ("labels", "condition_names", "conditions", "contexts", "kinds", "batches"):
        assert getattr(old, name) == getattr(screen, name), name
    for name in ("cell_condition", "cell_batch", "control_mean_BG"):
        np.testing.assert_array_equal(getattr(old, name), getattr(screen, name))
    rows = np.arange(len(screen.conditions))
    np.testing.assert_array_equal(old.statistics.pair_moments(rows), screen.statistics.pair_moments(rows))
    np.testing.assert_array_equal(old.de.order, screen.de.order)


def test_published_entries_are_of_all_contexts(screen, divided):
    """By published condition name: all cells of a condition against all control cells."""
    x, ranked = divided.X.toarray().astype(np.float64), published_uns(screen)["rank_genes_groups_cov_all"]
    assert set(ranked) == {f"pooled_{gene}+ctrl_1+1" for gene in ("G0", "G1", "G2")}
    own, control = (x[divided.obs["condition"] == label] for label in ("G1+ctrl", "ctrl"))
    t = np.abs(stats.ttest_ind(own, control, equal_var=False).statistic)
    ranks = [screen.gene_ids.index(gene) for gene in ranked["pooled_G1+ctrl_1+1"]]
    assert (np.diff(t[ranks]) <= 1e-9).all()
