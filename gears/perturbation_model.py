"""From AnnData to AnnData: a model of one screen in memory, with the habits of scvi-tools and pertpy."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from gears.conditions import Condition
from gears.core._messages import Shown
from gears.core._options import takes
from gears.evaluation.verdict import verdict_table
from gears.gears import GEARS
from gears.pertdata import PertData
from gears.training.options import TrainCall, TrainOptions

if TYPE_CHECKING:
    import pandas as pd
    import torch
    from anndata import AnnData

    from gears.prediction.explain import Explanation
    from gears.prediction.predictions import Predictions
    from gears.training._fitting import TrainResult

Query = str | Sequence[str] | Condition


class PerturbationModel(Shown):
    """Learns from a screen in memory how expression responds to perturbations, and predicts others.

    Nothing is written to disk but temporary files, which are removed with the object; ``folder=`` keeps the
    prepared screen, and :meth:`save` the model. A function of :mod:`gears.pl` or :mod:`gears.design` takes it as its
    first argument.

    Parameters
    ----------
    adata
        The screen, as :meth:`gears.PertData.from_adata` reads it; of a MuData the RNA modality. It is not modified.
    condition_key
        Column of ``obs`` with the perturbed genes ("A+B", "A+ctrl"); by default it is recognised.
    guide_key, guide_targets
        Column of ``obs`` with guides ("STAT1_g2", "NTC_3") instead, and the target of each where the names do not say
        it: a dict or a table.
    control
        Label of control cells, or several; by default it is recognised.
    batch_key
        Column of ``obs`` with the experimental batch, or several: a condition is compared with the control cells of
        the same batch.
    context_key, perturbation_type_key
        Columns with cell lines, donors or treatments, and with the type of perturbation (CRISPRi, CRISPRa).
    layer, normalize
        Layer to read instead of ``X``, and whether its values are counts.
    split, seed
        Type of split (``"simulation"``, ``"combo_seen2"``, ...) and its seed: conditions that are held out to choose
        and to test the model. ``split="no_test"`` keeps none for a test.
    device
        Device of the network; by default the first GPU or the CPU.
    folder
        Folder of the prepared screen; by default a temporary one.
    network
        Options of :meth:`gears.GEARS.model_initialize`, such as ``{"hidden_size": 32}``.
    effects_of, similarities
        Screens or tables with effects of the same genes elsewhere, and knowledge about genes by name: evidence for
        every :meth:`train` and :meth:`cross_validate` of this model, which take them, too (docs/evidence.md).
    **processing
        Further options of :class:`gears.data.ProcessingOptions` (cell_type_key, gene_key, min_cells, style, ...) and of
        :meth:`gears.PertData.from_adata` (gene2go, verbose, ...).

    Attributes
    ----------
    gears
        The :class:`gears.GEARS` model behind it, for everything that is not here.

    Examples
    --------
    >>> from gears import PerturbationModel, simulated_screen
    >>> adata, _ = simulated_screen(n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=10, seed=0)
    >>> model = PerturbationModel(adata, device="cpu")
    >>> result = model.train(verbose=False)
    >>> predicted = model.predict(adata.obs["condition"].cat.categories[:2])
    """

    def __init__(
        self,
        adata: AnnData,
        *,
        condition_key: str | None = None,
        guide_key: str | None = None,
        guide_targets: Mapping[str, str] | pd.DataFrame | str | Path | None = None,
        control: str | list[str] | None = None,
        batch_key: str | list[str] | None = None,
        context_key: str | None = None,
        perturbation_type_key: str | None = None,
        layer: str | None = None,
        normalize: bool = False,
        split: str = "simulation",
        seed: int = 1,
        device: str | torch.device | None = None,
        folder: str | Path | None = None,
        network: Mapping[str, Any] | None = None,
        effects_of: Any = None,
        similarities: Any = None,
        **processing: Any,
    ) -> None:
        sources = {"effects_of": effects_of, "similarities": similarities}
        self._sources = {name: source for name, source in sources.items() if source is not None}
        TrainOptions(**self._sources)  # raises for missing files before the screen is prepared
        if folder is None:
            folder = tempfile.mkdtemp(prefix="gears-")
            weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        keys: dict[str, Any] = {
            "condition_key": condition_key, "guide_key": guide_key, "guide_targets": guide_targets,
            "ctrl_label": control, "batch_key": batch_key, "context_key": context_key,
            "perturbation_type_key": perturbation_type_key, "layer": layer,
        }  # fmt: skip
        given = {name: value for name, value in keys.items() if value is not None}
        pert_data = PertData.from_adata(adata, data_path=folder, normalize=normalize, **given, **processing)
        pert_data.prepare_split(split=split, seed=seed)
        self.gears = GEARS(pert_data, device=device)
        self.gears.model_initialize(**(network or {}))

    @property
    def is_trained(self) -> bool:
        """Whether the model was trained or loaded."""
        return self.gears.is_trained

    @property
    def pert_list(self) -> list[str]:
        """Genes that can be perturbed."""
        return self.gears.pert_list

    @takes(TrainCall)
    def train(self, options: TrainCall) -> TrainResult:
        """Train; see :meth:`gears.GEARS.train`. The result shows the scores of the held-out test conditions."""
        return self.gears.train(**{**self._sources, **options.given()})

    def predict(self, perturbations: Iterable[Query], **where: Any) -> AnnData:
        """Predicted mean expression under each perturbation, such as ``["KLF1+AHR", "CEBPA"]``.

        Parameters
        ----------
        perturbations
            Labels, genes or lists of genes.
        **where
            ``context=`` and ``perturbation_type=`` of a model that has several, ``controls=`` for a line that no
            training saw (:meth:`gears.GEARS.predict`).

        Returns
        -------
        AnnData
            One row per perturbation, one column per gene: ``X`` expression in the units of the screen,
            ``layers["delta"]`` its change over the control mean, ``layers["sd"]`` the standard deviation of that mean
            change; ``obs["informed_by"]`` says what is known of the genes, ``uns["gears"]`` what made it.
        """
        return self.predictions(perturbations, **where).to_adata()

    def predictions(self, perturbations: Iterable[Query], **where: Any) -> Predictions:
        """The same as :class:`gears.prediction.Predictions`: ``.top(5)``, ``.to_frame()``, intervals, files."""
        self._need_trained()
        return self.gears.predict(perturbations, **where)

    def _need_trained(self) -> None:
        if not self.is_trained:
            msg = "this model is not trained; call model.train() first, or PerturbationModel.load(path)"
            raise ValueError(msg)

    def top(self, condition: Query, n: int = 20) -> pd.DataFrame:
        """The n genes that change most under a perturbation (:meth:`gears.prediction.Predictions.top`)."""
        return self.predictions([condition]).top(n)

    def explain(self, condition: Query, genes: str | Iterable[str] | None = None, n: int = 10) -> Explanation:
        """Which training conditions a prediction rests on (:meth:`gears.GEARS.explain`)."""
        return self.gears.explain(condition, genes, n)

    def plot(self, condition: Query, **options: Any) -> Any:
        """Draw a measured condition's cells beside its prediction, and the predicted changes of any other.

        Options are those of :func:`gears.pl.plot_perturbation` and :func:`gears.pl.volcano`: ax, show, save,
        return_fig, ...
        """
        from gears import pl

        data = self.gears.pert_data
        is_measured = data is not None and self.gears._condition(condition) in data.screen.conditions
        draw = pl.plot_perturbation if is_measured else pl.volcano
        return draw(self.gears, condition, **options)

    def evaluate(self, part: str | None = None, *, per_condition: bool = False, **options: Any) -> pd.DataFrame | None:
        """Scores on held-out perturbations beside the best baseline of each metric.

        Parameters
        ----------
        part
            Part of the split: test, val or train; or folds: every condition, predicted without it. By default test,
            or folds where that has few conditions.
        per_condition
            Return every score instead: a row for each condition, method and metric.
        **options
            Those of :meth:`gears.GEARS.evaluate`.

        Returns
        -------
        pd.DataFrame or None
            A row for each decisive metric (:func:`gears.evaluation.verdict_table`): means of the model and of the best
            baseline, their difference with a 95 % interval, and which is better. None if the part has no condition.
        """
        self._need_trained()
        table = self.gears.evaluate(part, **options)
        return table if table is None or per_condition else verdict_table(table)

    def cross_validate(self, folds: int = 5, **options: Any) -> Any:
        """Predict every condition by a model that has not seen it (:meth:`gears.GEARS.cross_validate`)."""
        return self.gears.cross_validate(folds, **{**self._sources, **options})

    def suggest(self, n: int = 10, **options: Any) -> pd.DataFrame:
        """The n perturbations to measure next (:func:`gears.design.suggest`)."""
        from gears.design.suggest import suggest

        return suggest(self.gears, n=n, **options)

    def hits(self, candidates: Iterable[Query] | None = None, **options: Any) -> pd.DataFrame:
        """Perturbations ranked by the probability of a change beyond a threshold (:func:`gears.design.hits`)."""
        from gears.design.hits import hits

        return hits(self.gears, candidates, **options)

    def report(self, path: str | Path, part: str | None = None, **options: Any) -> Path:
        """Write the evaluation as an HTML page with tables and figures into a folder; returns the page's path."""
        self._need_trained()
        if self.gears.evaluate(part, report=path, **options) is None:
            msg = f"the split has no perturbed condition in part {part or 'test'!r}; nothing to report"
            raise ValueError(msg)
        return Path(path) / "report.html"

    def save(self, path: str | Path) -> None:
        """Save the model; :meth:`load` reads it without the screen, :meth:`gears.GEARS.from_pretrained` as well."""
        self.gears.save_model(path)

    @classmethod
    def load(cls, path: str | Path, adata: AnnData | None = None, **options: Any) -> Self:
        """Load a saved model; with its screen it can also be evaluated, plotted beside cells and trained again.

        Parameters
        ----------
        path
            Folder of the model.
        adata, **options
            The screen, and the arguments that it was read with; without it ``device`` alone.

        Raises
        ------
        ValueError
            The screen has other genes than the model.
        """
        if adata is None:
            model = cls.__new__(cls)
            model._sources = {}
            model.gears = GEARS.from_pretrained(path, **options)
            return model
        model = cls(adata, **options)
        model.gears.load_pretrained(path)
        split = model.gears._need_model().split
        if split is not None:
            model.gears._need_data("load").use_split(split)
        return model

    def __repr__(self) -> str:
        trained = "trained" if self.is_trained else "not trained"
        return f"PerturbationModel({trained}): {self.gears.pert_data or self.gears!r}"
