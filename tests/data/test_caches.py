"""Caches: many processes at once, killed processes, edited files."""

import json
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from anndata import read_h5ad
from driving import fork_server
from preparing_side import STAGES, prepare_all, prepare_and_die

from gears.data import PreparedScreen
from gears.data.screen._files import is_prepared
from gears.data.screen.prepare import prepare_screen
from gears.data.splits import Split, prepare_split
from gears.files._atomic import new_folder


@pytest.fixture(scope="module")
def context():
    """Processes that start from one that has imported everything: each is new, and costs little."""
    return fork_server()


@pytest.fixture(scope="module")
def source(toy_template, tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "toy.h5ad"
    toy_template.write_h5ad(path)
    return path


def hidden(folder: Path) -> Iterator[str]:
    return (path.name for path in folder.rglob(".*") if path.name.endswith(".tmp") or ".tmp." in path.name)


@pytest.mark.parametrize("n", [6, pytest.param(100, marks=pytest.mark.long)], ids=["6", "100"])
def test_many_starts_at_once_agree(context, source, tmp_path, n):
    with ProcessPoolExecutor(8, mp_context=context, max_tasks_per_child=1) as pool:
        waiting = [pool.submit(prepare_all, str(source), str(tmp_path), 1) for _ in range(n)]
        found = [one.result(timeout=600) for one in waiting]
    assert Counter(found) == {found[0]: n}
    assert not list(hidden(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".toy.lock", "toy"]
    assert len(list((tmp_path / "toy" / "splits").glob("*.json"))) == 1
    assert len(list((tmp_path / "toy" / "graphs").glob("*.npz"))) == 1
    PreparedScreen.open(tmp_path / "toy")


@pytest.mark.parametrize("stage", STAGES)
def test_a_killed_preparation_is_done_again(context, source, tmp_path, stage):
    if stage == "swap":  # something is there already, of other content
        prepare_screen(read_h5ad(source)[:180].copy(), tmp_path / "toy")
    process = context.Process(target=prepare_and_die, args=(str(source), str(tmp_path), stage))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    assert not is_prepared(tmp_path / "toy")
    assert list(hidden(tmp_path))
    screen = prepare_screen(read_h5ad(source), tmp_path / "toy")
    assert screen.cells.shape == (216, 30)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".toy.lock", "toy"]


def test_a_folder_is_replaced_in_one_step(tmp_path, monkeypatch):
    """No moment without a folder: where the system can swap two names, nothing is moved aside."""
    for name in ("old", "new"):
        with new_folder(tmp_path / "toy") as folder:
            (folder / name).write_text(name)
        monkeypatch.setattr("gears.files._atomic.os.rename", None)
    assert [path.name for path in (tmp_path / "toy").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]


# Splits


def test_a_split_follows_the_conditions_and_every_argument(toy_adata, tmp_path):
    screen = prepare_screen(toy_adata, tmp_path / "toy")
    first = prepare_split(screen, "simulation", combo_seen2_train_frac=0.75)
    assert prepare_split(screen, "simulation", combo_seen2_train_frac=0.01).hash != first.hash
    assert prepare_split(screen, "simulation", mode="strict").hash != first.hash
    prepare_split(screen, "simulation", test_perts=["GX03"], only_test_set_perts=True)
    assert prepare_split(screen, "simulation", combo_seen2_train_frac=0.75).hash == first.hash
    assert len(list((screen.folder / "splits").iterdir())) == 4
    fewer = prepare_screen(toy_adata[toy_adata.obs["condition"] != "GX07+ctrl"].copy(), tmp_path / "toy")
    again = prepare_split(fewer, "simulation", combo_seen2_train_frac=0.75)
    assert "GX07+ctrl" not in {label for names in again.parts.values() for label in names}


@pytest.mark.parametrize("change", ["edited", "cut short"])
def test_a_changed_split_in_the_cache_is_drawn_again(change, toy_adata, tmp_path, caplog):
    screen = prepare_screen(toy_adata, tmp_path / "toy")
    split = prepare_split(screen, "simulation")
    path = next((screen.folder / "splits").glob("*.json"))
    plain = json.loads(path.read_text())
    plain["parts"]["train"].append(plain["parts"]["test"].pop())
    path.write_text(json.dumps(plain) if change == "edited" else '{"format_version": 1')
    with pytest.raises(ValueError, match="was changed after it was written" if change == "edited" else "split"):
        Split.load(path)
    assert prepare_split(screen, "simulation") == split
    assert "drawing the split again" in caplog.text
    assert Split.load(path) == split
