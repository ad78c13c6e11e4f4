"""Fixtures of the data room."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from gears.data.screen.prepare import prepare_screen
from gears.data.screen.prepared import PreparedScreen

if TYPE_CHECKING:
    from anndata import AnnData


@pytest.fixture(scope="session")
def toy_screen(toy_template: AnnData, tmp_path_factory: pytest.TempPathFactory) -> PreparedScreen:
    """The toy screen, prepared once; tests must not write into it."""
    return prepare_screen(toy_template, tmp_path_factory.mktemp("toy") / "toy")


@pytest.fixture(scope="session")
def norman(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> PreparedScreen:
    """The real subset of the Norman screen, prepared once."""
    from gears.data.reading.matrix import read_screen

    adata = read_screen(shared / "data" / "norman2019_subset.h5ad")
    return prepare_screen(adata, tmp_path_factory.mktemp("norman") / "norman")
