"""A screen divided into parts, and the loaders of those parts."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from gears.data.control_view import part_screens
from gears.data.screen import PreparedScreen
from gears.data.splits import Split, prepare_split
from gears.data.splits.custom import split_arguments
from gears.messages import shorten

if TYPE_CHECKING:
    from gears.data.cell_graphs import CellGraphs
    from gears.data.loaders import CellLoader

logger = logging.getLogger(__name__)

PART_NAMES = {"train": "training", "val": "validation", "test": "test"}


class DividedScreen:
    """The half of :class:`gears.PertData` that comes after the screen: split and loaders."""

    _label_nodes: list[list[int]]

    @property
    def whole_screen(self) -> PreparedScreen:
        """The prepared screen with every control cell."""
        raise NotImplementedError

    @property
    def screen(self) -> PreparedScreen:
        """The prepared screen, as training sees it: where the split divides control cells, with those of training."""
        return self._part_screens.get("train", self.whole_screen)

    def screen_of(self, part: str) -> PreparedScreen:
        """The screen as a part of the split sees it: with the part's own control cells where they are divided."""
        return self._part_screens.get(part, self.screen)

    def _forget_split(self) -> None:
        self._part_screens: dict[str, PreparedScreen] = {}
        self._split: Split | None = None
        self._set2conditions: dict[str, list[str]] | None = None
        self.subgroup: dict[str, dict[str, list[str]]] | None = None
        self.seed: int | None = None
        self.train_gene_set_size: float | None = None
        self.dataloader: dict[str, CellLoader] | None = None

    @property
    def split(self) -> Split | None:
        """The split in use; it equals its name (``pert_data.split == "simulation"``)."""
        return self._split

    @split.setter
    def split(self, split: Split | str) -> None:
        if isinstance(split, Split):
            self.use_split(split)
        elif self._split is not None and split not in ("custom", self._split.name):
            msg = f"split={split!r} cannot be assigned; draw it with prepare_split"
            raise ValueError(msg)

    @property
    def set2conditions(self) -> dict[str, list[str]] | None:
        """Part -> labels as the screen spells them. Other parts assigned to it are a custom split, checked."""
        return self._set2conditions

    @set2conditions.setter
    def set2conditions(self, parts: Mapping[str, Sequence[str]]) -> None:
        self.prepare_split("custom", seed=1 if self.seed is None else self.seed, split_dict=parts)

    @property
    def dataset_processed(self) -> CellGraphs:
        """Label -> its cells, each paired with a control cell, as objects of torch-geometric made when asked for."""
        from gears.data.cell_graphs import CellGraphs
        from gears.data.loaders import CellDataset

        everything = np.arange(len(self.screen.cells))
        return CellGraphs(CellDataset(self.screen, everything, self._label_nodes, self.seed or 0))

    def prepare_split(
        self,
        split: str = "simulation",
        seed: int = 1,
        train_gene_set_size: float = 0.75,
        combo_seen2_train_frac: float = 0.75,
        combo_single_split_test_set_fraction: float = 0.1,
        test_perts: str | Sequence[str] | None = None,
        only_test_set_perts: bool = False,
        test_pert_genes: str | Sequence[str] | None = None,
        split_dict_path: str | Path | None = None,
        *,
        split_dict: Mapping[str, Sequence[str]] | None = None,
        mode: str = "published",
        keep_excluded: bool = False,
        n_folds: int = 5,
        fold: int = 0,
        repeat: int = 0,
        fold_by: str = "condition",
        control_shares: Sequence[float] | None = None,
        test_contexts: str | Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Divide the conditions into training, validation and test.

        Parameters
        ----------
        split
            "simulation", "simulation_single", "combo_seen0", "combo_seen1",
            "combo_seen2", "single", "no_test", "no_split", "custom",
            "gene_held_out", "cross_validation", "context_held_out" or "unit_held_out"
            (:func:`gears.data.splits.describe_splits` says what each holds out).
        seed
            Of the draw.
        train_gene_set_size
            Share of the genes that training may perturb (simulation kinds).
        combo_seen2_train_frac
            Share of the combinations of seen genes that train (simulation).
        combo_single_split_test_set_fraction
            Share held out (combo_seen0/1/2, single).
        test_perts
            Genes (simulation kinds) or combinations (combo_seen2) for the test
            part: a list, or names joined by "_".
        only_test_set_perts
            Hold out nothing but `test_perts` (simulation kinds).
        test_pert_genes
            Genes to hold out (combo_seen0/1, single).
        split_dict, split_dict_path
            The parts of a custom split, or a JSON file of them.
        mode
            "published": the draws of the published package. "strict": exact
            numbers drawn without replacement, and "seen" means perturbed in
            training after validation was taken out.
        keep_excluded
            Put conditions that the split would leave out into the part whose
            held-out genes they hold.
        n_folds, fold, repeat, fold_by
            Number of folds, this fold, the repeat it belongs to, and what is
            divided, "condition" or "gene" (cross_validation).
        control_shares
            Shares of the control cells that train, validate and test, such as
            (0.8, 0.1, 0.1): training then never sees the others. None: all control
            cells serve every part, as published.
        test_contexts
            Contexts to hold out (context_held_out); one by the seed when left out.

        Returns
        -------
        pd.DataFrame
            One row per label: condition, part, subgroup, n_cells, reason.

        Raises
        ------
        ValueError
            If an argument does not fit or a part would stay empty.
        """
        arguments = split_arguments(
            split,
            split_dict_path=split_dict_path,
            seed=seed,
            train_gene_set_size=train_gene_set_size,
            combo_seen2_train_frac=combo_seen2_train_frac,
            combo_single_split_test_set_fraction=combo_single_split_test_set_fraction,
            test_perts=test_perts,
            only_test_set_perts=only_test_set_perts,
            test_pert_genes=test_pert_genes,
            split_dict=split_dict,
            mode=mode,
            keep_excluded=keep_excluded,
            n_folds=n_folds,
            fold=fold,
            repeat=repeat,
            fold_by=fold_by,
            control_shares=control_shares,
            test_contexts=test_contexts,
        )
        summary = self.use_split(prepare_split(self.whole_screen, split, **vars(arguments)))
        self.train_gene_set_size = arguments.train_gene_set_size
        return summary

    def use_split(self, split: Split) -> pd.DataFrame:
        """Take a split that was made elsewhere: a fold, a saved one, one of another screen's labels.

        Parameters
        ----------
        split
            Such as :func:`gears.data.splits.folds` yields or :meth:`Split.load` reads.

        Returns
        -------
        pd.DataFrame
            As :meth:`prepare_split`.

        Raises
        ------
        ValueError
            If it names labels that the screen lacks.
        """
        known = set(self.whole_screen.labels)
        named = [label for names in split.parts.values() for label in names]
        unknown = [label for label in [*named, *split.excluded] if label not in known]
        if unknown:
            msg = (
                f"the split {split.name!r} names {len(unknown)} labels that the screen lacks ({shorten(unknown)}); "
                "it was made for another screen: draw it again, or give its parts with split='custom'"
            )
            raise ValueError(msg)
        summary = split.summary(self.whole_screen)
        parts = part_screens(self.whole_screen, split)
        self._forget_split()
        self._part_screens.update(parts)
        self._split = split
        self._set2conditions = {part: list(labels) for part, labels in split.parts.items()}
        self.subgroup = split.subgroup
        self.seed = split.seed
        sizes = {part: sum(not c.is_control for c in split.conditions(part)) for part in split.parts}
        listed = ", ".join(f"{n} {PART_NAMES[part]}" for part, n in sizes.items())
        logger.info("split %s, seed %s: %s conditions", split.name, split.seed, listed)
        return summary

    def get_dataloader(
        self, batch_size: int, test_batch_size: int | None = None, *, num_workers: int = 0
    ) -> dict[str, CellLoader]:
        """Loaders for one worker; see :meth:`get_dataloader_distributed`."""
        return self.get_dataloader_distributed(batch_size, test_batch_size, num_workers=num_workers)

    def get_dataloader_distributed(
        self,
        batch_size: int,
        test_batch_size: int | None = None,
        world_size: int = 1,
        rank: int = 0,
        num_workers: int = 4,
    ) -> dict[str, CellLoader]:
        """Loaders of one worker's share of the cells.

        Parameters
        ----------
        batch_size
            Cells per step of one worker.
        test_batch_size
            The same for validation and test; `batch_size` by default.
        world_size, rank
            Number of workers, and this one's number.
        num_workers
            Reading processes of each loader.

        Returns
        -------
        dict
            "train_loader", "val_loader", "test_loader" (those that the split
            has); also set as :attr:`dataloader`. Their batches are
            :class:`gears.data.batch.CellBatch`. ``set_epoch`` of a loader chooses the order
            and pairing of an epoch; without it each pass over the training cells takes the next.

        Raises
        ------
        ValueError
            If no split was prepared, or the training cells do not fill one
            batch of all workers.
        """
        from gears.data.loaders import LoaderSettings, make_loaders

        if self.split is None or self.set2conditions is None:
            msg = "no split yet; call prepare_split(...) before the loaders are made"
            raise ValueError(msg)
        if {part: tuple(labels) for part, labels in self.set2conditions.items()} != self.split.parts:
            self.set2conditions = self.set2conditions  # its lists were changed in place
        settings = LoaderSettings(batch_size, test_batch_size, world_size, rank, num_workers)
        self.dataloader = make_loaders(
            self.screen, self.split, self._label_nodes, settings, screens=self._part_screens
        )
        return self.dataloader
