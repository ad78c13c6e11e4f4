"""What predictions are compared with: the true means and cells of the evaluated conditions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy import special

from gears.conditions import Condition
from gears.core._messages import check_unique
from gears.data.screen._statistics import N_RANKED, moderated_t, welch_t
from gears.evaluation._rows import adjusted, changes, weighted_rows

if TYPE_CHECKING:
    from gears.data.screen._prepared import PreparedScreen

GeneLists = tuple[np.ndarray, ...]
_TABLES = ("mean_UG", "std_UG", "t_UG", "moderated_t_UG")
_COMPUTED = ("adjusted_p_UG", "evidence_UG")
_LISTS = ("conditions", "top_de", "top_de_non_dropout", "targets")

MAX_CELLS = 300
"""Cells of a condition (and of the control) that distribution metrics look at, by default."""


@dataclass(frozen=True)
class Truth:
    """True profiles of U evaluated conditions over G genes, float64.

    The *panel* is every evaluated condition: a shard made by :meth:`subset` keeps it, so that metrics that rank a
    condition among all others give the same value on any number of workers.

    Parameters
    ----------
    conditions
        The U evaluated conditions.
    mean_UG, std_UG, t_UG
        Mean expression, standard deviation (ddof 0) and Welch's t against
        control of each condition's cells. Unknown entries are NaN.
    moderated_t_UG, degrees_U
        Moderated t against control (:func:`gears.data.screen._statistics.moderated_t`), and its degrees of freedom.
    n_cells_U
        Cells of each condition.
    control_mean_G
        Mean of the control cells, the origin of every change.
    reference_mean_G
        Mean of the training conditions' means, without the control, (G,) or one for each condition, (U, G) (NaN without
        training conditions).
    top_de, top_de_non_dropout
        Per condition its differential genes (indices), most differential first, all and without
        drop-outs; empty where no ranking exists, as for the control. Metrics take the first of them (:meth:`top`).
    targets
        Per condition the measured genes among the perturbed ones (indices).
    panel_mean_VG, panel_row_U
        True means of all V evaluated conditions, and where this object's conditions stand in them.
    reference_error
        Error of the training mean O, weighted by evidence (:attr:`evidence_UG`): its mean over the V conditions.
    panel_targets
        Measured genes that any of the V conditions perturbs (indices, ascending).
    control_std_G, n_control
        Standard deviation (ddof 0) and number of the control cells; None and 0 where unknown.
    cells
        Where the cells are found, for metrics that compare distributions; None without cells.
    weighs_all
        Whether a condition without evidence of change weighs all genes alike (:meth:`for_choices`).
    unmeasured
        Genes (indices) of which there is no truth, because the context does not measure them: no metric counts them.
    """

    conditions: tuple[Condition, ...]
    mean_UG: np.ndarray
    std_UG: np.ndarray
    t_UG: np.ndarray
    n_cells_U: np.ndarray
    control_mean_G: np.ndarray
    reference_mean_G: np.ndarray
    top_de: GeneLists
    top_de_non_dropout: GeneLists
    targets: GeneLists
    panel_mean_VG: np.ndarray
    panel_row_U: np.ndarray
    panel_targets: np.ndarray
    moderated_t_UG: np.ndarray
    degrees_U: np.ndarray
    reference_error: float
    control_std_G: np.ndarray | None = None
    n_control: int = 0
    cells: CellSource | None = None
    weighs_all: bool = False
    unmeasured: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        n_conditions, n_genes = self.mean_UG.shape
        for name in _TABLES:
            _expect_shape(name, getattr(self, name), (n_conditions, n_genes))
        _expect_shape("control_mean_G", self.control_mean_G, (n_genes,))
        if self.reference_mean_G.shape != (n_conditions, n_genes):
            _expect_shape("reference_mean_G", self.reference_mean_G, (n_genes,))
        for name in (*_LISTS, "n_cells_U", "panel_row_U", "degrees_U"):
            if len(getattr(self, name)) != n_conditions:
                msg = f"{name} has {len(getattr(self, name))} entries; expected one per condition ({n_conditions})"
                raise ValueError(msg)
        check_unique((condition.name for condition in self.conditions), "conditions to evaluate")

    @classmethod
    def from_means(
        cls,
        mean_UG: np.ndarray,
        control_mean_G: np.ndarray,
        *,
        conditions: Sequence[Condition | str] | None = None,
        reference_mean_G: np.ndarray | None = None,
        std_UG: np.ndarray | None = None,
        t_UG: np.ndarray | None = None,
        moderated_t_UG: np.ndarray | None = None,
        degrees_U: np.ndarray | None = None,
        n_cells_U: np.ndarray | None = None,
        top_de: Sequence[np.ndarray] | None = None,
        top_de_non_dropout: Sequence[np.ndarray] | None = None,
        targets: Sequence[np.ndarray] | None = None,
        control_std_G: np.ndarray | None = None,
        n_control: int = 0,
        cells: CellSource | None = None,
        unmeasured: np.ndarray | None = None,
    ) -> Truth:
        """Build from arrays; what is excluded makes the metrics that need it NaN.

        Without `conditions` the rows are called ``P0+ctrl``, ``P1+ctrl``, ...
        """
        mean_UG = np.ascontiguousarray(mean_UG, dtype=np.float64)
        n_conditions, n_genes = mean_UG.shape

        def known(values: np.ndarray | None, *shape: int) -> np.ndarray:
            return np.full(shape, np.nan) if values is None else np.asarray(values, dtype=np.float64)

        if conditions is None:
            conditions = [Condition((f"P{row}",)) for row in range(n_conditions)]
        target_lists = _gene_lists(targets, n_conditions)
        truth = cls(
            conditions=tuple(Condition.of(condition) for condition in conditions),
            mean_UG=mean_UG,
            std_UG=known(std_UG, n_conditions, n_genes),
            t_UG=known(t_UG, n_conditions, n_genes),
            moderated_t_UG=known(moderated_t_UG, n_conditions, n_genes),
            degrees_U=known(degrees_U, n_conditions),
            n_cells_U=np.asarray(np.zeros(n_conditions) if n_cells_U is None else n_cells_U, dtype=np.int64),
            control_mean_G=np.asarray(control_mean_G, dtype=np.float64),
            reference_mean_G=known(reference_mean_G, n_genes),
            top_de=_gene_lists(top_de, n_conditions),
            top_de_non_dropout=_gene_lists(top_de_non_dropout, n_conditions),
            targets=target_lists,
            panel_mean_VG=mean_UG,
            panel_row_U=np.arange(n_conditions),
            panel_targets=np.unique(np.concatenate([np.zeros(0, np.int64), *target_lists])),
            reference_error=float("nan"),
            control_std_G=None if control_std_G is None else np.asarray(control_std_G, dtype=np.float64),
            n_control=int(n_control),
            cells=cells,
            unmeasured=np.zeros(0, dtype=np.int64) if unmeasured is None else unmeasured,
        )
        return truth._with_reference_error()

    @classmethod
    def of(
        cls,
        screen: PreparedScreen,
        conditions: Iterable[Condition | str],
        train_conditions: Iterable[Condition | str] = (),
        *,
        weights: str = "conditions",
        cells: CellSource | None = None,
        reference_mean_G: np.ndarray | None = None,
        pooled: Iterable[Condition | str] | None = None,
    ) -> Truth:
        """Read the truth of some conditions from a prepared screen.

        Parameters
        ----------
        screen
            The prepared screen.
        conditions
            What is evaluated, each condition once.
        train_conditions
            The training conditions, for the reference mean; the control among them is excluded.
        weights
            ``"conditions"`` (each training condition once) or ``"cells"``.
        cells
            Cells for metrics that compare distributions, such as :class:`gears.evaluation.truth.ScreenCells`.
        reference_mean_G
            Instead of the mean of the training conditions' means: (G,), or one for each condition (U, G).
        pooled
            Perturbed conditions whose variance, with the control's, the moderated t draws to; by default all of the
            screen. Training gives its own, so that it does not depend on held-out conditions.
        """
        evaluated = tuple(Condition.of(condition) for condition in conditions)
        ids = np.array([screen.id_of(condition) for condition in evaluated], dtype=np.int64)
        statistics = screen.statistics
        control_mean_G = np.asarray(statistics.mean[screen.control_id], dtype=np.float64)
        gene_index = {gene: index for index, gene in enumerate(screen.gene_names)}
        ranked = [screen.ranked_genes(condition_id) for condition_id in ids.tolist()]
        if reference_mean_G is None:
            train = dict.fromkeys(Condition.of(condition) for condition in train_conditions)
            train_ids = [screen.id_of(condition) for condition in train if not condition.is_control]
            reference_mean_G = mean_profile(statistics.mean, train_ids, statistics.n, weights)
        pooled_ids = None
        if pooled is not None:
            pooled_ids = np.unique([screen.control_id, *(screen.id_of(condition) for condition in pooled)])
        moderated_t_UG, degrees_U = moderated_t(statistics, ids, pooled_ids)
        return cls.from_means(
            np.asarray(statistics.mean[ids]).reshape(len(ids), -1),
            control_mean_G,
            conditions=evaluated,
            reference_mean_G=reference_mean_G,
            std_UG=np.sqrt(np.maximum(statistics.m2[ids], 0.0)),
            t_UG=welch_t(statistics, ids),
            moderated_t_UG=moderated_t_UG,
            degrees_U=degrees_U,
            n_cells_U=statistics.n[ids],
            top_de=[genes for genes, _ in ranked],
            top_de_non_dropout=[genes for _, genes in ranked],
            targets=[
                np.array([gene_index[gene] for gene in condition.genes if gene in gene_index], dtype=np.int64)
                for condition in evaluated
            ],
            control_std_G=np.sqrt(np.maximum(statistics.m2[screen.control_id], 0.0)),
            n_control=int(statistics.n[screen.control_id]),
            cells=cells,
            unmeasured=screen.unmeasured,
        )

    def top(self, n: int = 20, *, dropouts: bool = True) -> GeneLists:
        """The n most differential genes of each condition (indices), with or without drop-outs.

        ValueError where a screen's ranking, of :data:`N_RANKED` genes, holds fewer.
        """
        n_genes = len(self.control_mean_G)
        if any(N_RANKED <= len(genes) < min(n, n_genes) for genes in self.top_de):
            msg = f"the ranking holds the top {N_RANKED} genes of each condition, {n} were requested; request fewer"
            raise ValueError(msg)
        return tuple(genes[:n] for genes in (self.top_de if dropouts else self.top_de_non_dropout))

    def top_moderated(self, n: int = 20) -> np.ndarray:
        """The n genes of the largest moderated t of each condition, (U, n); genes that never vary come last."""
        return np.argsort(-np.abs(self.moderated_t_UG), axis=1, kind="stable")[:, :n]

    def subset(self, rows: Sequence[int] | np.ndarray | slice) -> Truth:
        """The same truth for some of its conditions (a worker's shard; views of a slice); the panel stays whole."""
        own_reference = ("reference_mean_G",) if self.reference_mean_G.ndim == 2 else ()
        names = (*_TABLES, "degrees_U", "n_cells_U", "panel_row_U", *own_reference)
        arrays: dict[str, Any] = {name: getattr(self, name)[rows] for name in names}
        positions = np.arange(len(self.conditions))[rows]
        lists: dict[str, Any] = {name: tuple(getattr(self, name)[row] for row in positions) for name in _LISTS}
        shard = dataclasses.replace(self, **arrays, **lists)
        # computed along genes, and costly: that of a shard is a part of it
        vars(shard).update({name: vars(self)[name][rows] for name in _COMPUTED if name in vars(self)})
        return shard

    def with_means(self, mean_UG: np.ndarray, n_cells_U: np.ndarray) -> Truth:
        """The same truth, whole, with means of other cells; differential genes and standard deviations stay."""
        return self._with(mean_UG=mean_UG, panel_mean_VG=mean_UG, n_cells_U=n_cells_U)

    def as_panel(self) -> Truth:
        """The same truth, with its own conditions alone as those that predictions are compared with."""
        return self._with(panel_mean_VG=self.mean_UG, panel_row_U=np.arange(len(self.conditions)))

    def _with(self, **changes: Any) -> Truth:
        other = dataclasses.replace(self, **changes)
        vars(other).update({name: vars(self)[name] for name in _COMPUTED if name in vars(self)})
        return other

    def for_choices(self) -> Truth:
        """The same truth for choices among predictions: no condition and no gene is excluded.

        A condition without evidence of change weighs all genes alike, a reference without error counts as one of error
        1, and perturbed genes count as others do. It holds what :data:`gears.evaluation.DECISIVE` needs of means.
        """
        unknown: dict[str, Any] = dict.fromkeys(("std_UG", "t_UG"), np.broadcast_to(np.nan, self.mean_UG.shape))
        no_genes = np.zeros(0, dtype=np.int64)
        truth = dataclasses.replace(self, **unknown, panel_targets=no_genes, weighs_all=True)
        vars(truth)["adjusted_p_UG"] = self.adjusted_p_UG
        return truth._with_reference_error()

    def _with_reference_error(self) -> Truth:
        """Set the error of the reference, of a truth that is new and whole."""
        error_U = weighted_rows((self.mean_UG - self.reference_mean_G) ** 2, self.evidence_UG)
        error_U = error_U[np.isfinite(error_U)]
        error = float(error_U.mean()) if len(error_U) else float("nan")
        # not a copy, which would compute the evidence again
        object.__setattr__(self, "reference_error", (error or 1.0) if self.weighs_all else error)
        return self

    def without_genes(self, genes: np.ndarray) -> Truth:
        """The same truth without some measured genes (a condition's own targets, say)."""
        kept_G = np.setdiff1d(np.arange(len(self.control_mean_G)), genes)
        lists: dict[str, Any] = {
            name: tuple(np.searchsorted(kept_G, listed[~np.isin(listed, genes)]) for listed in getattr(self, name))
            for name in _LISTS[1:]
        }
        rows: dict[str, Any] = {name: getattr(self, name)[:, kept_G] for name in (*_TABLES, "panel_mean_VG")}
        rows["panel_targets"] = np.searchsorted(kept_G, np.setdiff1d(self.panel_targets, genes))
        std_G = None if self.control_std_G is None else self.control_std_G[kept_G]
        return dataclasses.replace(
            self,
            **rows,
            **lists,
            control_mean_G=self.control_mean_G[kept_G],
            reference_mean_G=self.reference_mean_G[..., kept_G],
            control_std_G=std_G,
            cells=None,
            unmeasured=np.searchsorted(kept_G, np.setdiff1d(self.unmeasured, genes)),
        )

    @cached_property
    def over_measured(self) -> Truth:
        """The same truth without the genes that the context does not measure."""
        return self.without_genes(self.unmeasured) if len(self.unmeasured) else self

    @property
    def is_whole(self) -> bool:
        """Whether every condition of the panel is here (False for a shard)."""
        return len(self.conditions) == len(self.panel_mean_VG)

    @cached_property
    def adjusted_p_UG(self) -> np.ndarray:
        """Two-sided p of the moderated t, adjusted over genes (Benjamini and Hochberg), (U, G); 1 where it is unknown.

        Several metrics use it, for every method: it is computed once.
        """
        p_UG = 2 * np.asarray(special.stdtr(self.degrees_U[:, None], -np.abs(self.moderated_t_UG)))
        return adjusted(p_UG)

    @cached_property
    def evidence_UG(self) -> np.ndarray:
        """Evidence that a gene changes, (U, G) in 0..1: 1 minus its adjusted p; 0 where that is unknown."""
        evidence_UG = 1.0 - self.adjusted_p_UG
        if self.weighs_all:
            evidence_UG[evidence_UG.sum(axis=1) == 0] = 1.0
        return evidence_UG

    @cached_property
    def specific(self) -> tuple[np.ndarray, np.ndarray]:
        """True changes from the reference (U, G), and what rounding alone can make of them (:func:`changes`)."""
        return changes(self.mean_UG, self.reference_mean_G)

    @property
    def effect_size_U(self) -> np.ndarray:
        """Size of each condition's true change without its sampling noise, (U,): root of sum (delta^2 - error^2).

        The standard error of a gene is delta / t, by its moderated t. NaN where that is unknown.
        """
        t_UG = self.moderated_t_UG
        noise_UG = np.divide(self.delta_UG, t_UG, out=np.zeros_like(t_UG), where=t_UG != 0)
        return np.sqrt(np.maximum((self.delta_UG**2 - noise_UG**2).sum(axis=1), 0.0))

    @property
    def delta_UG(self) -> np.ndarray:
        """True changes over the control mean, (U, G)."""
        return self.mean_UG - self.control_mean_G[None, :]


def mean_profile(
    mean_CG: np.ndarray, rows: Sequence[int] | np.ndarray, n_cells_C: np.ndarray | None, weights: str
) -> np.ndarray:
    """Mean of some rows, (G,): each once (O in the formulas), or by "cells" (as in Systema); NaN without any."""
    if weights not in ("conditions", "cells"):
        msg = f"weights must be 'conditions' or 'cells'; found {weights!r}"
        raise ValueError(msg)
    if not len(rows):
        return np.full(mean_CG.shape[1], np.nan)
    share = np.full(len(rows), 1.0 / len(rows))
    if weights == "cells":
        if n_cells_C is None:
            msg = "a mean weighted by cells needs n_cells_C, the number of cells of each condition"
            raise ValueError(msg)
        n_cells = np.asarray(n_cells_C, dtype=np.float64)[rows]
        share = n_cells / n_cells.sum()
    return (share[:, None] * mean_CG[rows]).sum(axis=0)


def _gene_lists(lists: Sequence[np.ndarray] | None, n_conditions: int) -> GeneLists:
    if lists is None:
        return tuple(np.zeros(0, dtype=np.int64) for _ in range(n_conditions))
    return tuple(np.asarray(genes, dtype=np.int64) for genes in lists)


def _expect_shape(name: str, array: np.ndarray, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        msg = f"{name} has shape {array.shape}; expected {shape}"
        raise ValueError(msg)


class CellSource(Protocol):
    """Where a truth finds the cells of its conditions."""

    def control(self) -> np.ndarray:
        """Control cells, (n, G) float64."""

    def of(self, condition: Condition) -> np.ndarray:
        """Cells of a condition, (n, G) float64."""


@dataclass(frozen=True)
class ScreenCells:
    """Cells of a prepared screen, at most `max_cells` of each condition, the same draw at every call."""

    screen: PreparedScreen
    max_cells: int = MAX_CELLS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_cells < 2:
            msg = f"max_cells must be at least 2 (a distance needs two cells); found {self.max_cells}"
            raise ValueError(msg)

    def control(self) -> np.ndarray:
        """Control cells, (n, G) float64."""
        return self._rows(self.screen.control_id)

    def of(self, condition: Condition) -> np.ndarray:
        """Cells of a condition, (n, G) float64."""
        return self._rows(self.screen.id_of(condition))

    def _rows(self, condition_id: int) -> np.ndarray:
        ids = self.screen.cells_of(condition_id)
        if len(ids) > self.max_cells:
            rng = np.random.default_rng([self.seed, condition_id])
            ids = np.sort(rng.choice(ids, self.max_cells, replace=False))
        return dense_rows(self.screen, ids)


def dense_rows(screen: PreparedScreen, ids: np.ndarray) -> np.ndarray:
    """Expression of some cells, (n, G) float64."""
    return np.asarray(screen.cells.rows(ids), dtype=np.float64)


def moved_cells(control_NG: np.ndarray, control_mean_G: np.ndarray, predicted_G: np.ndarray) -> np.ndarray:
    """Predicted cells of a model that predicts a mean: control cells moved from their mean to it, (N, G).

    A gene that rises is shifted; one that falls is scaled down, so that no value becomes negative and the mean is met
    exactly. Genes predicted below zero, or falling from a control mean that is not positive, are shifted.
    """
    falls_G = (predicted_G < control_mean_G) & (predicted_G >= 0)
    factor_G = np.divide(predicted_G, control_mean_G, out=np.ones_like(predicted_G), where=falls_G)
    return control_NG * factor_G + np.where(falls_G, 0.0, predicted_G - control_mean_G)
