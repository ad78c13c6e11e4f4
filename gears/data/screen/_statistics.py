"""Statistics and differential expression of every condition against its control cells.

Welch's t needs means, variances and cell numbers only. The values are those of
``scanpy.tl.rank_genes_groups(method="t-test", reference=control,
rankby_abs=True)``; what scanpy leaves open, the order of ties, is fixed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from itertools import groupby

import numpy as np
from scipy import sparse

from gears.data.screen._cells import CellMatrix
from gears.data.screen._moments import ConditionMoments, condition_moments
from gears.files._mapped import pieces, release, row_blocks

STATISTICS = ("n", "mean", "m2", "m3", "m4", "nonzero", "above", "below")
"""Tables that every screen has, each a separate file (an npz cannot be mapped into memory)."""
PAIRED = ("v2", "v3", "v4")
MATCHED = (*PAIRED, "n_control")
"""Tables of screens whose controls are matched by experimental batch within a context."""

MEASURED = "statistics/measured"
"""Table of screens with contexts that do not measure all genes: which genes each measures, (K, G) bool."""

N_RANKED = 200
"""Genes of a ranking that are kept with a prepared screen."""
TIE_DIGITS = 9
POOLED_WEIGHT = 19.0
"""Weight of the pooled variance in the moderated t, in cells of a median condition.

Of the 20 genes of the largest |t|, on simulated screens of 1,000 genes without signal and of a regulatory network (12
to 50 cells a condition, 0.2 to 1 counts a gene), up to 32 and 26 % had no count in the condition with weight 1, up to
3.3 and 2.4 % with 19. Without a condition's own variance it is 2.6 and 1.9 %, but up to 14 % of the genes called
changed (at 5 % false discoveries) hardly change, with 19 up to 9 %.
"""


@dataclass(frozen=True)
class ConditionStatistics:
    """Statistics of C conditions over G genes, each with its control.

    Where a context has several experimental batches, a cell of batch b counts as y - (control mean of b) +
    (control mean of its context), so that neither mean nor spread holds the differences between batches.
    """

    n: np.ndarray  # (C,) float64: cells per condition
    # mean, m2, m3, m4: (C, G) float64: mean and central moments (divided by n) of log-normalised expression
    mean: np.ndarray
    m2: np.ndarray
    m3: np.ndarray
    m4: np.ndarray
    nonzero: np.ndarray  # (C, G) float64: share of cells with a value other than 0
    # above, below: (C, G) float64: shares of cells above and below the mean of the control cells (of the cell's batch);
    # a cell that is equal to it is neither
    above: np.ndarray
    below: np.ndarray
    control_of: np.ndarray  # (C,) int64: row of each condition's control; a control's is its own
    # v2, v3, v4: (C, G) float64 or None: central moments of y - x over all pairs of a condition's cell and a control
    # cell of the same batch; None where every context is one batch, so that they follow from the moments of both
    v2: np.ndarray | None = None
    v3: np.ndarray | None = None
    v4: np.ndarray | None = None
    n_control: np.ndarray | None = None
    """(C,) float64 or None: control cells that the change of each condition is as exact as; fewer than its control has,
    since its cells of a batch are compared with the control cells of that batch."""

    @property
    def is_control(self) -> np.ndarray:
        """Which conditions are controls, (C,) bool."""
        return self.control_of == np.arange(len(self.control_of))

    def controls_of(self, conditions: np.ndarray) -> np.ndarray:
        """Rows of the controls of some conditions: one for each, or a single one that all share."""
        rows = self.control_of[conditions]
        return rows[:1] if len(rows) and (rows == rows[0]).all() else rows

    @property
    def mean_nonzero(self) -> np.ndarray:
        """Where the condition's mean is not 0 (before batches were brought to one control mean), bool (C, G)."""
        table = self.mean if self.v2 is None else self.nonzero
        return np.concatenate([piece != 0 for piece in pieces(table)])

    def delta(self, conditions: np.ndarray) -> np.ndarray:
        """Change of conditions against their controls, (n, G) float64."""
        change = np.asarray(self.mean[conditions], dtype=np.float64)
        change -= self.mean[self.controls_of(conditions)]
        release(self.mean)
        return change

    def pair_moments(self, conditions: np.ndarray) -> tuple[np.ndarray, ...]:
        """Mean and central moments 2 to 4 of y - x over all pairs of a condition's cell and a control cell.

        (n, G) float64 each, 0 for controls: control cells pair with themselves.
        """
        if self.v2 is None or self.v3 is None or self.v4 is None:
            of_cells, control = (
                [np.asarray(table[rows]) for table in (self.m2, self.m3, self.m4)]
                for rows in (conditions, self.controls_of(conditions))
            )
            central = [of_cells[0] + control[0], of_cells[1] - control[1], of_cells[2] + control[2]]
            central[2] += 6 * of_cells[0] * control[0]
            release(self.m2, self.m3, self.m4)
        else:
            central = [np.asarray(table[conditions]) for table in (self.v2, self.v3, self.v4)]
            release(self.v2, self.v3, self.v4)
        moments = (self.delta(conditions), *central)
        is_control = self.is_control[conditions][:, None]
        return tuple(moment * ~is_control for moment in moments) if is_control.any() else moments

    def cells(self, conditions: np.ndarray) -> np.ndarray:
        """Cells that each change is as exact as, (n,) float64, but for the error that all changes from a control share.

        Fewer than there are where the control cells of its batches err otherwise than all of them.
        """
        n = np.asarray(self.n[conditions], dtype=np.float64)
        if self.n_control is None:
            return n
        own = 1 / self.n_control[conditions] - 1 / self.n[self.control_of[conditions]]
        return np.asarray(1 / (1 / n + np.maximum(own, 0.0)))

    def subset(self, conditions: np.ndarray) -> ConditionStatistics:
        """Rows of the given conditions (ascending), whose controls are among them."""
        names = [field.name for field in fields(self) if field.name != "control_of"]
        tables = {name: getattr(self, name) for name in names}
        rows = {name: None if table is None else table[conditions] for name, table in tables.items()}
        control_of = np.searchsorted(conditions, self.control_of[conditions])
        return ConditionStatistics(**rows, control_of=control_of)  # type: ignore[arg-type]


def variance_within(statistics: ConditionStatistics, conditions: np.ndarray) -> np.ndarray:
    """Variance of a cell's expression within a condition, pooled over some of them, (G,) float64."""
    n = np.asarray(statistics.n[conditions], dtype=np.float64)
    squares_G = np.zeros(statistics.m2.shape[1])
    for rows in row_blocks(len(n), len(squares_G)):
        squares_G += n[rows] @ statistics.m2[conditions[rows]]
        release(statistics.m2)
    return squares_G / max(1.0, float((n - 1).sum()))


@dataclass(frozen=True)
class DERanking:
    """Genes of each condition by absolute Welch's t against its control."""

    order: np.ndarray
    """(C, R) int32: Gene indices, largest absolute t first; ties (absolute t rounded to 9 digits) by gene name. R is
    min(G, 200); a control's row holds -1."""
    scores: np.ndarray  # (C, R) float64: t of those genes; 0 in a control's row
    n_genes: int  # G

    def top(self, condition_id: int, n: int = 20) -> np.ndarray:
        """The n most changed genes of a condition, (min(n, G),) int64; empty for a control.

        ValueError if the table holds fewer genes.
        """
        n = min(n, self.n_genes)
        if n > self.order.shape[1]:
            more = "gears.data.screen._statistics.rank_genes(statistics, gene_names, n) ranks more"
            msg = f"the ranking holds the top {self.order.shape[1]} genes, {n} were requested; {more}"
            raise ValueError(msg)
        genes = self.order[condition_id, :n].astype(np.int64)
        return genes[genes >= 0]

    def subset(self, conditions: np.ndarray) -> DERanking:
        """Rows of the given conditions."""
        return DERanking(self.order[conditions], self.scores[conditions], self.n_genes)


def statistics_of(
    cells: sparse.csr_matrix | CellMatrix,
    cell_condition: np.ndarray,
    control_of: np.ndarray,
    cell_batch: np.ndarray | None = None,
    *,
    workers: int = 1,
) -> tuple[ConditionStatistics, np.ndarray]:
    """Statistics of some cells, in one pass over those of each batch, and each batch's control mean (B, G) float64.

    `cells`: expression of the N cells; a :class:`CellMatrix` where there are several batches.
    `cell_condition`, `cell_batch`: condition and batch of each cell, (N,); a batch has control cells of one context.
    `control_of`: row of each condition's control, (C,).
    """
    if cell_batch is None or not cell_batch.any():
        control = int(control_of[0])
        moments = condition_moments(cells, cell_condition, len(control_of), control_id=control, workers=workers)
        statistics = ConditionStatistics(**dict(moment_tables(moments)), control_of=control_of)
        return statistics, moments.mean[[control]]
    batches = batch_statistics(cells, cell_condition, control_of, cell_batch, workers)
    return matched_statistics(batches, control_of, cells.shape[1], int(cell_batch.max()) + 1)


def batch_statistics(
    cells: CellMatrix, cell_condition: np.ndarray, control_of: np.ndarray, cell_batch: np.ndarray, workers: int = 1
) -> Iterator[tuple[int, np.ndarray, ConditionStatistics]]:
    """Each experimental batch, context by context, the conditions that it holds, ascending, and their statistics."""
    numbers, first = np.unique(cell_batch, return_index=True)
    for batch in numbers[np.argsort(control_of[cell_condition[first]], kind="stable")].tolist():
        rows = np.flatnonzero(cell_batch == batch)
        present, local = np.unique(cell_condition[rows], return_inverse=True)
        control = np.full(len(present), control_row(present, control_of))
        yield batch, present, statistics_of(cells.part(rows), local, control, workers=workers)[0]


def control_row(present: np.ndarray, control_of: np.ndarray) -> int:
    """Where the one control stands among the conditions of a batch, which lies within one context."""
    return int(np.flatnonzero(control_of[present] == present)[0])


def matched_statistics(
    batches: Iterable[tuple[int, np.ndarray, ConditionStatistics]], control_of: np.ndarray, n_genes: int, n_batches: int
) -> tuple[ConditionStatistics, np.ndarray]:
    """Statistics of all batches (:func:`batch_statistics`) together, and each batch's control mean (B, G)."""
    tables = {name: np.zeros((len(control_of), n_genes)) for name in STATISTICS[1:]}
    n_C, n_control_C = np.zeros((2, len(control_of)))
    control_mean_BG = np.zeros((n_batches, n_genes))
    matched: list[tuple[np.ndarray, ConditionStatistics]] = []
    # context by context: sums of several batches need three times the memory of their statistics
    for control, of_context in groupby(batches, key=lambda one: int(control_of[one[1][0]])):
        rows = np.flatnonzero(control_of == control)
        part = _matched_in_context(of_context, rows, control, control_mean_BG)
        for name, table in tables.items():
            table[rows] = getattr(part, name)
        n_C[rows], n_control_C[rows] = part.n, part.n_control
        if part.v2 is not None:
            matched.append((rows, part))
    statistics = ConditionStatistics(n=n_C, **tables, control_of=control_of)
    if matched:
        paired = dict(zip(PAIRED, statistics.pair_moments(np.arange(len(control_of)))[1:], strict=True))
        for rows, part in matched:
            for name, table in paired.items():
                table[rows] = getattr(part, name)
        statistics = replace(statistics, **paired, n_control=n_control_C)
    return statistics, control_mean_BG


def _matched_in_context(
    batches: Iterable[tuple[int, np.ndarray, ConditionStatistics]],
    rows: np.ndarray,
    control: int,
    control_mean_BG: np.ndarray,
) -> ConditionStatistics:
    """Of one context, whose conditions are `rows` of all; puts the control means of its batches in place."""
    shape = len(rows), control_mean_BG.shape[1]
    of_cells, pairs = ConditionMoments(*shape), ConditionMoments(*shape)
    # of the last batch seen: exact to the last bit for a condition that is in one batch only
    last = {name: np.zeros(shape) for name in (*STATISTICS[1:], *PAIRED)}
    above, below, origin = np.zeros((3, *shape))
    n_batches_C, spread_C = np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows))
    for batch, everywhere, part in batches:
        present, at = np.searchsorted(rows, everywhere), [int(part.control_of[0])]
        delta, *paired = part.pair_moments(np.arange(len(present)))
        tables = {name: getattr(part, name) for name in STATISTICS[1:]}
        tables |= dict(zip(PAIRED, paired, strict=True))
        centrals = [tables[name] for name in ("m2", "m3", "m4", "nonzero")]
        of_cells.merge_conditions(present, ConditionMoments.from_central(part.n, delta, *centrals))
        pairs.merge_conditions(present, ConditionMoments.from_central(part.n, delta, *paired))
        above[present] += part.n[:, None] * tables["above"]
        below[present] += part.n[:, None] * tables["below"]
        # adds up to the mean of the context's control cells
        origin[present[at]] += part.n[at] * part.mean[at]
        spread_C[present] += part.n**2 / part.n[at]
        for name, table in last.items():
            table[present] = tables[name]
        n_batches_C[present] += 1
        control_mean_BG[batch] = part.mean[at[0]]
    control_of = np.full(len(rows), np.searchsorted(rows, control))
    share = 1.0 / np.maximum(of_cells.n, 1)[:, None]
    merged = {
        "mean": (origin * share)[control_of] + of_cells.mean,
        "nonzero": of_cells.share("nonzero"),
        "above": above * share,
        "below": below * share,
    }
    merged |= {f"m{order}": of_cells.central(order) for order in (2, 3, 4)}
    if (n_batches_C > 1).any():
        merged |= {f"v{order}": pairs.central(order) for order in (2, 3, 4)}
    single = (n_batches_C == 1) & (n_batches_C[control_of] == 1)
    for name, table in merged.items():
        table[single] = last[name][single]
    n_control = of_cells.n**2 / spread_C
    return ConditionStatistics(of_cells.n.astype(np.float64), **merged, control_of=control_of, n_control=n_control)


def fill_unmeasured(statistics: ConditionStatistics, is_measured_KG: np.ndarray, context_C: np.ndarray) -> None:
    """Put the control cells of other contexts, in place, where the context of a condition does not measure a gene.

    The mean over the contexts that measure it is taken for mean and moments, so that no change is shown. `context_C` is
    the context of each condition.
    """
    controls_K = np.array([statistics.control_of[np.argmax(context_C == k)] for k in range(len(is_measured_KG))])
    n_G = is_measured_KG.sum(axis=0)
    for name in STATISTICS[1:6]:
        table = getattr(statistics, name)
        mean_G = (table[controls_K] * is_measured_KG).sum(axis=0) / n_G
        for context, is_measured_G in enumerate(is_measured_KG):
            table[np.ix_(context_C == context, ~is_measured_G)] = mean_G[~is_measured_G]


def moment_tables(moments: ConditionMoments) -> Iterator[tuple[str, np.ndarray]]:
    """The tables of :data:`STATISTICS` one after another."""
    yield "n", moments.n.astype(np.float64)
    yield "mean", moments.mean
    for order in (2, 3, 4):
        yield f"m{order}", moments.central(order)
    for name in ("nonzero", "above", "below"):
        yield name, moments.share(name)


def welch_t(statistics: ConditionStatistics, conditions: np.ndarray) -> np.ndarray:
    """Welch's t of each gene, condition (K ids) against its control, (K, G) float64.

    t = (m_p - m_c) / sqrt(v_p / n_p + v_c / n_c) with sample variances; 0 where it is undefined, infinite where both
    variances are 0 and the means differ. The same numbers as ``scipy.stats.ttest_ind_from_stats`` (unequal
    variances), without its p-values, which nothing here uses and which would take most of the time.
    """
    control = statistics.controls_of(conditions)
    n = statistics.n[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        # m2 is divided by n: sample variance over n is m2 / (n - 1).
        squared_error = statistics.m2[conditions] / (n[conditions] - 1)
        squared_error = squared_error + statistics.m2[control] / (n[control] - 1)
        t = (statistics.mean[conditions] - statistics.mean[control]) / np.sqrt(squared_error)
    return np.nan_to_num(t, nan=0.0, posinf=np.inf, neginf=-np.inf)


def moderated_t(
    statistics: ConditionStatistics, conditions: np.ndarray, pooled: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Moderated t of each gene, condition (K ids) against its control: values (K, G), degrees of freedom (K,).

    The variance of a gene in condition p is its own, v_p, drawn to the variance within conditions, v_0, pooled over
    all of them, or over the conditions `pooled` (ids, the control among them):

        v = (a d v_0 + (n_p - 1) v_p) / (a d + n_p - 1),    d = median of n - 1 over the perturbed ones, a = 19
        t = (m_p - m_c) / sqrt(v / n_p + v' / n_c),         with d + n_p - 1 degrees of freedom

    and v' the control's, drawn to v_0 alike. A gene without a count in a condition has variance 0 there, and an
    infinite Welch's t however few the cells; its moderated t is small. A gene that never varies has t = 0.

    Source: the shrunken variances of limma (Smyth 2004), with a fixed weight of v_0 (:data:`POOLED_WEIGHT`), and fewer
    degrees of freedom than that weight would give, since counts are skewed.
    """
    pooled = np.arange(len(statistics.n)) if pooled is None else pooled
    pooled_G = variance_within(statistics, pooled)
    degrees_C = np.asarray(statistics.n, dtype=np.float64) - 1
    of_perturbed = degrees_C[pooled[~statistics.is_control[pooled]]]
    prior_degrees = max(1.0, float(np.median(of_perturbed))) if len(of_perturbed) else 1.0

    def squared_error(rows: np.ndarray) -> np.ndarray:
        n = np.asarray(statistics.n[rows], dtype=np.float64)[:, None]
        # m2 is divided by n, so that n m2 = (n - 1) v_p
        weight = POOLED_WEIGHT * prior_degrees
        return (weight * pooled_G + n * statistics.m2[rows]) / (weight + n - 1) / n

    error = np.sqrt(squared_error(conditions) + squared_error(statistics.controls_of(conditions)))
    delta = statistics.delta(conditions)
    t = np.divide(delta, error, out=np.zeros_like(delta), where=error > 0)
    return t, prior_degrees + degrees_C[conditions]


def rank_rows(t: np.ndarray, gene_names: Sequence[str], n: int) -> np.ndarray:
    """Gene indices of each row by absolute t, ties by name, (K, n) int64."""
    by_name = np.argsort(np.asarray(gene_names, dtype=object), kind="stable")
    size = np.round(np.abs(t[:, by_name]), TIE_DIGITS)
    return by_name[np.argsort(-size, axis=1, kind="stable")[:, :n]]


def rank_genes(statistics: ConditionStatistics, gene_names: Sequence[str], n: int = N_RANKED) -> DERanking:
    """Rank the genes of every condition, ties by name; at most `n` are kept."""
    n_conditions, n_genes = statistics.mean.shape
    n = min(n, n_genes)
    order = np.full((n_conditions, n), -1, dtype=np.int32)
    scores = np.zeros((n_conditions, n))
    perturbed = np.flatnonzero(~statistics.is_control)
    step = max(1_000_000 // max(n_genes, 1), 1)  # a few conditions at a time
    for start in range(0, len(perturbed), step):
        ids = perturbed[start : start + step]
        t = welch_t(statistics, ids)
        ranked = rank_rows(t, gene_names, n)
        order[ids] = ranked
        scores[ids] = np.take_along_axis(t, ranked, axis=1)
        release(statistics.mean, statistics.m2)
    return DERanking(order, scores, n_genes)
