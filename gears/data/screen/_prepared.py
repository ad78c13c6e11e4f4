"""A prepared screen, opened from its folder with all or some of its control cells, and its settings.

A setting is a context (cell line, donor, treatment) with a type of perturbation. Every screen has settings; one that is
divided by neither is its own, only one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from gears.conditions import Condition, joined_otherwise
from gears.core._messages import Shown, shorten, suggestion, unknown_name
from gears.data.screen._cells import CellMatrix, drawn_rows, map_array
from gears.data.screen._contexts import ModelContexts
from gears.data.screen._files import array_path, controls_of, read_manifest, read_tables
from gears.data.screen._spelling import Spelling
from gears.data.screen._statistics import (
    MATCHED,
    MEASURED,
    STATISTICS,
    ConditionStatistics,
    DERanking,
    fill_unmeasured,
    rank_genes,
    statistics_of,
)
from gears.files._paths import user_path
from gears.files.formats import MANIFEST, check_file, content_hash, read_json


class PreparedScreen(Shown):
    """A screen as :func:`gears.data.screen.prepare.prepare_screen` wrote it.

    Opening reads two small JSON files; arrays are mapped into memory when they
    are first used. An object sent to another process opens the folder again.

    Parameters
    ----------
    folder
        The prepared folder.
    manifest
        Its manifest, already checked (use :meth:`open`).
    kept
        Condition ids (of the folder) that this object shows, ascending; all by default.
    controls
        Control cells (by their number in the folder, ascending) that it shows; all by default. With some of
        them, statistics and differential genes are those of the cells shown, computed when they are first used.

    Attributes
    ----------
    folder : Path
    manifest : dict
        Format version, content hash, parameters, versions, shape.
    has_cells : bool
        Whether its cells are here; a screen from a moment pack has none.
    context, kind : str
        Context and perturbation type of a single setting; "" for a screen that is divided by neither, or whole.
    unmeasured : np.ndarray
        Genes that a single setting does not measure, ascending; none of a whole screen.
    """

    context = kind = ""
    unmeasured: np.ndarray = np.zeros(0, dtype=np.int64)

    def __init__(
        self, folder: Path, manifest: dict[str, Any], kept: np.ndarray | None = None, controls: np.ndarray | None = None
    ) -> None:
        self.folder, self.manifest = user_path(folder), manifest
        self._kept, self._controls = kept, controls
        self.has_cells: bool = manifest.get("has_cells", True)

    @classmethod
    def open(cls, folder: str | Path) -> PreparedScreen:
        """Open a prepared folder.

        Raises
        ------
        FileNotFoundError
            If there is no prepared screen.
        ValueError
            If it has another format version, or files are missing or cut short.
        """
        return cls(user_path(folder), read_manifest(folder))

    @classmethod
    def of(cls, data: Any) -> PreparedScreen:
        """The screen itself, or that of a PertData; TypeError for anything else."""
        screen = data if isinstance(data, cls) else getattr(data, "screen", None)
        if not isinstance(screen, cls):
            msg = f"expected a prepared screen, such as pert_data.screen of a PertData; found {type(data).__name__}"
            raise TypeError(msg)
        return screen

    def __reduce__(self) -> tuple[Any, ...]:
        return PreparedScreen, (self.folder, self.manifest, self._kept, self._controls)

    def __repr__(self) -> str:
        size = f"{self.n_cells} cells, {len(self.gene_names)} genes, {len(self.conditions)} conditions"
        return f"{type(self).__name__}({self.folder.name!r}: {size})"

    # Names and labels

    @cached_property
    def content_hash(self) -> str:
        """Hash of values, labels, genes and parameters (and of what is excluded)."""
        whole = self.manifest["content_hash"]
        kept = None if self._kept is None else self._kept.tolist()
        if self._controls is not None:
            return content_hash(whole, kept, self._controls)
        return whole if kept is None else content_hash(whole, kept)

    def checked_file(self, name: str, *, whole: bool = False) -> Path:
        """A file of the folder; ValueError if the folder or the file changed since this object was opened."""
        present_hash = read_json(self.folder / MANIFEST).get("content_hash")
        if present_hash != self.manifest["content_hash"]:
            msg = f"{self.folder} was prepared again with other content since it was opened; load it again"
            raise ValueError(msg)
        check_file(self.folder, name, self.manifest.get("checksums", {}), whole=whole)
        return self.folder / name

    def verify(self) -> None:
        """Compare every file with its checksum, also those too large to be compared whenever they are used.

        FileNotFoundError or ValueError where a file is missing or damaged.
        """
        for name in self.manifest["files"]:
            self.checked_file(name, whole=True)

    @cached_property
    def _tables(self) -> dict[str, Any]:
        for name in self.manifest["files"]:
            if name.endswith(".json"):
                self.checked_file(name)
        return read_tables(self.folder, self.manifest)

    def _array(self, name: str) -> np.ndarray:
        """An array of the folder, such as "statistics/mean"."""
        if not self.has_cells and name.startswith("cells/"):
            self.need_cells()
        return map_array(self.checked_file(array_path(self.manifest, name)))

    @cached_property
    def gene_names(self) -> list[str]:
        """Measured genes (``var.gene_name``), G."""
        return self._tables["gene_names"]

    @cached_property
    def gene_ids(self) -> list[str]:
        """The index of ``var``, G."""
        return self._tables["gene_ids"]

    @cached_property
    def _shown(self) -> np.ndarray:
        """Conditions of the folder that this object shows."""
        return np.arange(len(self._tables["conditions"])) if self._kept is None else self._kept

    @cached_property
    def _label_ids(self) -> np.ndarray:
        """Labels of the folder that this object shows."""
        return np.flatnonzero(np.isin(self._tables["label_condition"], self._shown))

    @cached_property
    def labels(self) -> list[str]:
        """The screen's own spellings in order of first appearance, L."""
        return [self._tables["labels"][i] for i in self._label_ids]

    @cached_property
    def condition_names(self) -> list[str]:
        """Published ``condition_name`` of each label, L."""
        return [self._tables["condition_names"][i] for i in self._label_ids]

    @cached_property
    def label_condition(self) -> np.ndarray:
        """Condition id of each label, (L,) int64."""
        return np.searchsorted(self._shown, self._tables["label_condition"][self._label_ids])

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """Distinct conditions in order of first appearance, every context's control among them, C."""
        return tuple(self._tables["conditions"][i] for i in self._shown)

    @cached_property
    def contexts(self) -> tuple[str, ...]:
        """Names of the contexts, sorted; empty where the screen is not divided by them."""
        return tuple(sorted({condition.context for condition in self._tables["conditions"]} - {""}))

    @cached_property
    def kinds(self) -> tuple[str, ...]:
        """Names of the perturbation types, sorted; empty where the screen does not say."""
        return tuple(sorted({condition.kind for condition in self._tables["conditions"]} - {""}))

    @cached_property
    def condition_of_label(self) -> dict[str, Condition]:
        """Condition of each label, as stored: no label is parsed again."""
        ids = self.label_condition.tolist()
        return {label: self.conditions[i] for label, i in zip(self.labels, ids, strict=True)}

    @cached_property
    def spelling(self) -> Spelling:
        """How its labels were written before it was prepared; of earlier versions the control and separator."""
        manifest = self.manifest
        return Spelling.from_dict(manifest.get("spelling", manifest.get("layout")))

    @cached_property
    def _id_by_condition(self) -> dict[Condition, int]:
        return {condition: i for i, condition in enumerate(self.conditions)}

    @property
    def nonnegative(self) -> bool:
        """Whether no value is below 0, so that predictions below 0 can be set to 0 (not so for z-scores)."""
        return not self.manifest["has_negative"]

    @property
    def scale(self) -> str | None:
        """Scale of the values (:data:`gears.data.checks._scale.SCALES`); None where it was not recognised."""
        return self.manifest.get("scale")

    @cached_property
    def control_of(self) -> np.ndarray:
        """Id of each condition's control, that of its context, (C,) int64."""
        return controls_of(self.conditions)

    @cached_property
    def control_ids(self) -> np.ndarray:
        """Ids of the controls, one of each context, ascending."""
        return np.unique(self.control_of)

    @property
    def control_id(self) -> int:
        """Condition id of the one control; ValueError if every context has its own."""
        if len(self.control_ids) > 1:
            msg = f"there is a control in each of {len(self.control_ids)} contexts: use control_ids or setting(context)"
            raise ValueError(msg)
        return int(self.control_ids[0])

    @property
    def perturbed_genes(self) -> list[str]:
        """Every gene perturbed in the screen, sorted."""
        return sorted({gene for condition in self.conditions for gene in condition.genes})

    def id_of(self, condition: Condition | str) -> int:
        """Condition id of a condition or of any spelling of it.

        Raises
        ------
        KeyError
            If the screen lacks it; near matches are named.
        """
        parsed = Condition.of(condition)
        if parsed not in self._id_by_condition:
            parsed = self.spelling.condition(condition)
        if parsed not in self._id_by_condition:
            msg = f"the screen has no condition {str(condition)!r}; {self._near(Condition.of(condition))}"
            raise KeyError(msg)
        return self._id_by_condition[parsed]

    def _near(self, unknown: Condition) -> str:
        """What a user may mean by a condition that the screen lacks: a gene where one is unknown, else a condition."""
        genes = self.perturbed_genes
        joined = joined_otherwise("+".join(unknown.genes), set(genes))
        meant = None if joined is None else joined.at(unknown.context, unknown.kind)
        if meant in self._id_by_condition:
            return f"did you mean {meant.name!r}?"
        missing = next((gene for gene in unknown.genes if gene not in genes), None)
        if missing is not None:
            return f"{missing!r} is not perturbed in it; {suggestion(missing, genes, 'its genes')}"
        alike = [other for other in self.conditions if {*other.genes} & {*unknown.genes}]
        return suggestion(unknown.name, alike, "it has")

    # Genes that some contexts do not measure

    @cached_property
    def is_measured_KG(self) -> np.ndarray | None:
        """Which genes each of :attr:`contexts` measures, (K, G) bool; None where all measure all.

        What statistics hold of other genes is no measurement (:func:`fill_unmeasured`).
        """
        if array_path(self.manifest, MEASURED) not in self.manifest["files"]:
            return None
        return np.asarray(self._array(MEASURED))

    def is_measured(self, conditions: Sequence[Condition]) -> np.ndarray | None:
        """Which genes were measured in each condition of the whole screen, (U, G) bool; None where all were."""
        return self.model_contexts.is_measured(conditions)

    # Cells

    def need_cells(self) -> None:
        """Raise ValueError for a screen without cells."""
        if not self.has_cells:
            msg = (
                f"{self.folder.name} was opened from a moment pack, which has no cells: objective='cells', distances "
                "of cells, control_shares and pert_data.adata need the screen itself"
            )
            raise ValueError(msg)

    @cached_property
    def n_cells(self) -> int:
        """Number of cells that the conditions were measured in."""
        return len(self.cells) if self.has_cells else int(self.statistics.n.sum())

    @cached_property
    def label_cells(self) -> np.ndarray:
        """Cells of each label, (L,) int64."""
        if self.has_cells:
            return np.bincount(self.cell_label, minlength=len(self.labels))
        return np.asarray(self._tables["label_cells"], dtype=np.int64)[self._label_ids]

    def control_sample(self) -> tuple[CellMatrix, list[np.ndarray]]:
        """Drawn control cells: a matrix, and its rows of each context, ascending."""
        ids = self.control_ids.tolist()
        if self.has_cells:
            return self.cells, drawn_rows([self.cells_of(control) for control in ids], len(self.gene_names))
        condition_n = self._array("controls/condition")
        cells = CellMatrix(self.folder / "controls", len(self.gene_names))
        return cells, [np.flatnonzero(condition_n == self.folder_id(control)) for control in ids]

    def folder_id(self, condition_id: int) -> int:
        """Number of a condition in the folder, whichever conditions this object shows."""
        return int(self._shown[condition_id])

    @cached_property
    def kept_halves(self) -> tuple[np.ndarray, np.ndarray]:
        """Of a screen without cells: means of split halves, (repeats, 2, C, G), and their cells, (2, C)."""
        return self._array("halves/mean"), self._array("halves/n")

    @cached_property
    def cell_ids(self) -> np.ndarray | None:
        """Cells of the folder that this object shows; None for all."""
        if self._kept is None and self._controls is None:
            return None
        condition_N = self._tables["label_condition"][self._array("cells/label")]
        shown_N = np.isin(condition_N, self._shown)
        if self._controls is not None:
            is_control = np.array([condition.is_control for condition in self._tables["conditions"]])
            hidden_N = is_control[condition_N]
            hidden_N[self._controls] = False
            shown_N &= ~hidden_N
        return np.flatnonzero(shown_N)

    @cached_property
    def cells(self) -> CellMatrix:
        """Expression of the cells, (N, G); ValueError for a screen without them."""
        if not self.has_cells:
            self.need_cells()
        for name in ("data", "indices", "indptr"):
            self.checked_file(f"cells/{name}.npy")
        cells = CellMatrix(self.folder / "cells", self.manifest["shape"]["genes"], self.cell_ids)
        cells.open()
        return cells

    @cached_property
    def cell_label(self) -> np.ndarray:
        """Label of each cell, (N,) int32."""
        labels = self._array("cells/label")
        if self.cell_ids is None:
            return labels
        return np.searchsorted(self._label_ids, labels[self.cell_ids]).astype(np.int32)

    @cached_property
    def cell_condition(self) -> np.ndarray:
        """Condition of each cell, (N,) int32."""
        return self.label_condition[self.cell_label].astype(np.int32)

    @cached_property
    def _cells_by_condition(self) -> tuple[np.ndarray, np.ndarray]:
        order = np.argsort(self.cell_condition, kind="stable")
        ends = np.cumsum(np.bincount(self.cell_condition, minlength=len(self.conditions)))
        return order, np.concatenate(([0], ends))

    def cells_of(self, condition_id: int) -> np.ndarray:
        """Cells of a condition in the order of the screen, (n,) int64."""
        order, bounds = self._cells_by_condition
        return order[bounds[condition_id] : bounds[condition_id + 1]]

    @property
    def control_cells(self) -> np.ndarray:
        """Cells of all controls, int64."""
        return np.flatnonzero(np.isin(self.cell_condition, self.control_ids))

    @property
    def batches(self) -> tuple[str, ...]:
        """Names of the experimental batches whose cells are compared with their own control cells, B; "" for all."""
        return tuple(self._tables.get("batches", [""]))

    @cached_property
    def cell_batch(self) -> np.ndarray:
        """Experimental batch of each cell, (N,) int32."""
        if len(self.batches) == 1:
            return np.zeros(len(self.cells), dtype=np.int32)
        batches = self._array("cells/batch")
        return batches if self.cell_ids is None else batches[self.cell_ids]

    def paired_controls(self, draw: np.random.Generator) -> np.ndarray:
        """A drawn control cell of the same experimental batch for each cell, (N,) int64."""
        control_cells = self.control_cells
        control_batch = self.cell_batch[control_cells]
        by_batch = control_cells[np.argsort(control_batch, kind="stable")]
        n_B = np.bincount(control_batch, minlength=len(self.batches))
        first_B = np.cumsum(n_B) - n_B  # where each batch begins in `by_batch`: one draw for all cells, no loop
        return by_batch[first_B[self.cell_batch] + draw.integers(0, n_B[self.cell_batch])]

    # Statistics

    @cached_property
    def _computed(self) -> tuple[ConditionStatistics, np.ndarray]:
        """Statistics against the control cells shown, and the control mean of each batch."""
        computed = statistics_of(self.cells, self.cell_condition, self.control_of, self.cell_batch)
        if self.is_measured_KG is not None:
            context_C = [self.contexts.index(condition.context) for condition in self.conditions]
            fill_unmeasured(computed[0], self.is_measured_KG, np.array(context_C))
        return computed

    @cached_property
    def statistics(self) -> ConditionStatistics:
        """Moments of each condition against its control."""
        if self._controls is not None:
            return self._computed[0]
        files = self.manifest["files"]
        tables = {
            name: self._array(f"statistics/{name}")
            for name in (*STATISTICS, *MATCHED)
            if name in STATISTICS or array_path(self.manifest, f"statistics/{name}") in files
        }
        whole = ConditionStatistics(**tables, control_of=controls_of(self._tables["conditions"]))
        return whole if self._kept is None else whole.subset(self._kept)

    @cached_property
    def de(self) -> DERanking | None:
        """Ranking of the genes by differential expression against the control; None where it was skipped."""
        if not self.manifest["differential_expression"]:
            return None
        if self._controls is not None:
            return rank_genes(self.statistics, self.gene_names)
        order, scores = self._array("de/order"), self._array("de/scores")
        ranking = DERanking(order, scores, self.manifest["shape"]["genes"])
        return ranking if self._kept is None else ranking.subset(self._kept)

    def ranked_genes(self, condition_id: int) -> tuple[np.ndarray, np.ndarray]:
        """Genes of :attr:`de`, most differential first: all, and without drop-outs; empty without a ranking.

        A drop-out is 0 in every cell of the condition, but not in the control.
        """
        if self.de is None:
            return (np.zeros(0, dtype=np.int64),) * 2
        order = np.asarray(self.de.order[condition_id], dtype=np.int64)
        order, mean_CG = order[order >= 0], self.statistics.mean
        is_lost = (mean_CG[condition_id, order] == 0) & (mean_CG[self.control_of[condition_id], order] != 0)
        return order, order[~is_lost]

    @cached_property
    def control_mean_BG(self) -> np.ndarray:
        """Mean of each experimental batch's control cells, (B, G) float64."""
        if len(self.batches) == 1:
            return self.control_mean_G[None]
        return self._array("statistics/control_mean") if self._controls is None else self._computed[1]

    @property
    def control_mean_G(self) -> np.ndarray:
        """Mean over the control cells of all contexts, (G,) float64."""
        ids = self.control_ids
        n_K, mean_KG = self.statistics.n[ids], self.statistics.mean[ids]
        return np.asarray(mean_KG[0] if len(ids) == 1 else n_K @ mean_KG / n_K.sum(), dtype=np.float64)

    @property
    def model_contexts(self) -> ModelContexts:
        """Names of the contexts and types, and the mean of each context's control cells."""
        ids = [self.id_of(Condition((), name)) for name in self.contexts or ("",)]
        means_KG = np.asarray(self.statistics.mean[ids])
        return ModelContexts(self.contexts, self.kinds, means_KG, self.is_measured_KG)

    # Parts of the screen

    @cached_property
    def settings(self) -> tuple[PreparedScreen, ...]:
        """Every context and type that holds a perturbed condition, as a screen with one control; sorted."""
        if not self.contexts and not self.kinds:
            return (self,)
        pairs = dict.fromkeys((one.context, one.kind) for one in self.conditions if not one.is_control)
        return tuple(SettingView(self, context, kind) for context, kind in sorted(pairs))

    def setting(self, context: str = "", kind: str = "") -> PreparedScreen:
        """One context (and type); ValueError where there is none of that name."""
        for view in self.settings:
            if (view.context, view.kind) == (context, kind):
                return view
        known = [view.suffix.strip() for view in self.settings]
        raise ValueError(unknown_name("context", Condition((), context, kind).suffix.strip(), known))

    @property
    def suffix(self) -> str:
        """How labels name the setting (" [CRISPRi] @ K562"); empty where the screen is not divided."""
        return Condition(("A",), self.context, self.kind).suffix

    def with_controls(self, cells: np.ndarray | None) -> PreparedScreen:
        """The screen with these control cells (by their number here) and no others; with all of them for None."""
        if cells is not None:
            cells = np.sort(cells if self.cell_ids is None else self.cell_ids[cells])
        return PreparedScreen(self.folder, self.manifest, self._kept, cells)

    def without(self, conditions: Sequence[Condition]) -> PreparedScreen:
        """The screen without some conditions and their cells; the folder stays as it is.

        Raises
        ------
        ValueError
            If the control, or every perturbed condition, would go.
        """
        dropped = {self.id_of(condition) for condition in conditions}
        if not dropped:
            return self
        kept = np.asarray([i for i in range(len(self.conditions)) if i not in dropped], dtype=np.int64)
        if dropped & set(self.control_ids.tolist()) or len(kept) <= len(self.control_ids):
            msg = (
                f"leaving out {len(dropped)} of {len(self.conditions)} conditions would leave a screen "
                "without control or without perturbed conditions"
            )
            raise ValueError(msg)
        return PreparedScreen(self.folder, self.manifest, self._shown[kept], self._controls)


class SettingView(PreparedScreen):
    """One setting of a screen with several: conditions without context and type, with one control.

    Statistics are those of `parent`, the whole screen, matched by experimental batch; `context` and `kind` are the
    names of the context and of the perturbation type.
    """

    contexts = kinds = ()
    is_measured_KG = None  # of the whole; :attr:`unmeasured` is that of this context

    def __init__(self, parent: PreparedScreen, context: str, kind: str) -> None:
        self.parent, self.context, self.kind = parent, context, kind
        inside = [one.context == context and one.kind in ("", kind) for one in parent.conditions]
        self._rows = np.flatnonzero(inside)
        super().__init__(parent.folder, parent.manifest, parent._shown[self._rows], parent._controls)
        if (measured_KG := parent.is_measured_KG) is not None:
            self.unmeasured = np.flatnonzero(~measured_KG[parent.contexts.index(context)])

    def __reduce__(self) -> tuple[Any, ...]:
        return SettingView, (self.parent, self.context, self.kind)

    @cached_property
    def content_hash(self) -> str:
        return content_hash(self.parent.content_hash, self.context, self.kind)

    @cached_property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions without context and type, C."""
        return tuple(self.parent.conditions[row].plain for row in self._rows)

    @cached_property
    def labels(self) -> list[str]:
        """The screen's own spellings without context and type, L."""
        condition = self.parent.condition_of_label
        return [label.removesuffix(condition[label].suffix) for label in super().labels]

    @cached_property
    def statistics(self) -> ConditionStatistics:
        """Moments of each condition against the control of this context."""
        return self.parent.statistics.subset(self._rows)

    @cached_property
    def de(self) -> DERanking | None:
        """Ranking of the genes against the control of this context."""
        return None if self.parent.de is None else self.parent.de.subset(self._rows)

    def without(self, conditions: Sequence[Condition]) -> PreparedScreen:
        """Not offered: exclude conditions from the whole screen."""
        msg = f"exclude {shorten(conditions)} from the whole screen, not from one setting"
        raise NotImplementedError(msg)

    def with_controls(self, cells: np.ndarray | None) -> PreparedScreen:
        """Not offered: choose the control cells of the whole screen."""
        if cells is None and self._controls is None:
            return self
        msg = "choose the control cells of the whole screen, not of one setting"
        raise NotImplementedError(msg)
