"""From AnnData to AnnData: a model of one screen in memory, with the habits of scvi-tools and pertpy."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gears.conditions import Condition
from gears.gears import GEARS
from gears.pertdata import PertData

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from anndata import AnnData

    from gears.prediction.predictions import Predictions
    from gears.training._results import TrainResult


class PerturbationModel:
    """Learns from a screen in memory how expression responds to perturbations, and predicts others.

    Nothing is written to disk but temporary files, which are removed with the object; ``folder=`` keeps the
    prepared screen, and :meth:`save` the model.

    Parameters
    ----------
    adata
        The screen, as :meth:`gears.PertData.from_adata` reads it; of a MuData the RNA modality. It is not modified.
    split, seed
        Kind of split (``"simulation"``, ``"combo_seen2"``, ...) and its seed: conditions that are held out to choose
        and to test the model. ``split="no_test"`` keeps none for a test.
    device
        Device of the network; by default the first GPU or the CPU.
    folder
        Folder of the prepared screen; by default a temporary one.
    network
        Options of :meth:`gears.GEARS.model_initialize`, such as ``{"hidden_size": 32}``.
    **processing
        Options of :class:`gears.data.ProcessingOptions`: condition_key, ctrl_label, normalize, batch_key, ...

    Attributes
    ----------
    gears
        The :class:`gears.GEARS` model behind it, for everything that is not here.

    Examples
    --------
    >>> from gears import PerturbationModel, simulated_screen
    >>> adata, _ = simulated_screen(n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=10, seed=0)
    >>> model = PerturbationModel(adata, device="cpu", network={"hidden_size": 8})
    >>> result = model.train(epochs=1, verbose=False)
    >>> predicted = model.predict(adata.obs["condition"].cat.categories[:2])
    """

    def __init__(
        self,
        adata: AnnData,
        *,
        split: str = "simulation",
        seed: int = 1,
        device: str | torch.device | None = None,
        folder: str | Path | None = None,
        network: Mapping[str, Any] | None = None,
        **processing: Any,
    ) -> None:
        if folder is None:
            folder = tempfile.mkdtemp(prefix="gears-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        pert_data = PertData.from_adata(adata, data_path=folder, **processing)
        pert_data.prepare_split(split=split, seed=seed)
        self.gears = GEARS(pert_data, device=device)
        self.gears.model_initialize(**(network or {}))

    def train(self, **options: Any) -> TrainResult:
        """Train; options are those of :meth:`gears.GEARS.train` (epochs, lr, prior, ...)."""
        return self.gears.train(**options)

    def predict(self, perturbations: Iterable[str | Sequence[str] | Condition]) -> AnnData:
        """Predicted mean expression under each perturbation, such as ``["KLF1+AHR", "CEBPA"]``.

        Returns
        -------
        AnnData
            One row per perturbation, one column per gene: ``X`` expression in the units of the screen,
            ``layers["delta"]`` its change over the control mean, ``layers["sd"]`` the standard deviation of that mean
            change; ``obs["informed_by"]`` says what is known of the genes, ``uns["gears"]`` what made it.
        """
        return self.predictions(perturbations).to_adata()

    def predictions(self, perturbations: Iterable[str | Sequence[str] | Condition]) -> Predictions:
        """The same as :class:`gears.prediction.Predictions`: ``.top(5)``, ``.to_frame()``, intervals, files."""
        return self.gears.predict(perturbations)

    def evaluate(self, part: str | None = None) -> pd.DataFrame | None:
        """Scores on held-out perturbations beside baselines (:meth:`gears.GEARS.evaluate`)."""
        return self.gears.evaluate(part)

    def save(self, path: str | Path) -> None:
        """Save the model; ``gears.GEARS.from_pretrained(path)`` predicts with it without the screen."""
        self.gears.save_model(path)

    def __repr__(self) -> str:
        return f"PerturbationModel of {self.gears.pert_data!r}"
