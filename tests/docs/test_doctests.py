"""The examples in docstrings do what they say."""

import doctest
import importlib
import importlib.util
import pkgutil
from pathlib import Path
from typing import Any

import pytest
from driving import pert_data_of
from small_models import network_of

import gears

ROOT = Path(gears.__file__).parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(ROOT)], prefix="gears.")
    if ">>>" in Path(importlib.util.find_spec(module.name).origin).read_text(encoding="utf-8")
)
# they start processes, train for long, or need a folder of cell-gears: tests of their own run these calls
ONLY_SHOWN = {"gears.jobs.estimators", "gears.jobs._job", "gears.published"}
# what the examples of these modules take for granted
WITH_MODEL = {"gears.jobs.ensemble", "gears.evaluation.compare", "gears.gears"}


@pytest.fixture(scope="module")
def common(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A screen in which AHR and KLF1 are measured, and a model of it."""
    from gears import simulated_screen

    names = ["AHR", "KLF1", *(f"G{i}" for i in range(38))]
    adata, _ = simulated_screen(gene_names=names, n_singles=10, n_pairs=8, cells_per_condition=12, n_control=40)
    pert_data = pert_data_of(tmp_path_factory.mktemp("doctests"), adata, "screen", split="simulation")
    model = network_of(pert_data)
    return {"pert_data": pert_data, "screen": pert_data.screen, "model": model}


def test_there_are_examples_to_run() -> None:
    assert len(MODULES) > 20
    assert set(MODULES) >= ONLY_SHOWN | WITH_MODEL


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.chdir(tmp_path)
    extra: dict[str, Any] = request.getfixturevalue("common") if name in WITH_MODEL else {}
    if name == "gears.jobs.ensemble":
        for seed in (1, 2):
            extra["model"].save_model(tmp_path / "models" / f"seed{seed}")
    before = sorted(tmp_path.rglob("*"))
    failed, tried = doctest.testmod(
        importlib.import_module(name), extraglobs=extra, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert failed == 0
    assert (tried == 0) == (name in ONLY_SHOWN)
    assert sorted(tmp_path.rglob("*")) == before  # an example leaves nothing behind
