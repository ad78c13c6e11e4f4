"""Predicted expression profiles by condition, the result of :meth:`gears.GEARS.predict`, also as AnnData.

``X`` is predicted expression, ``layers["delta"]`` its change over the control mean, ``layers["sd"]`` the standard
deviation of that mean change where the model has a prior, ``layers["cell_sd"]`` the spread of cells where the network
predicts one. The names follow scverse: rows are named by condition, columns by gene.
"""

from __future__ import annotations

import dis
import itertools
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import Condition
from gears.core._intervals import half_width, sd_factor
from gears.core._messages import brief, count, unknown_name
from gears.core._numbers import is_number, whole_number
from gears.files.formats import plain_adata
from gears.prediction._information import (
    SOURCES,
    Origin,
    condition_table,
    gene_table,
    informed_by,
    provenance,
    sets_of,
    table_of_shares,
    warn_of_few_cells,
    warn_uninformed,
)
from gears.prediction._true_changes import TrueChanges

if TYPE_CHECKING:
    from anndata import AnnData
    from scipy import sparse


Key = str | Condition | Sequence[str]
VALUES = ("expression", "delta", "sd", "sd_change", "cell_sd")
CHANGED = 0.1
"""Change of mean log expression beyond which a gene counts as changed by default: about 10 %."""

WIDTHS = "interval_widths"
"""Name of :attr:`Predictions.width_UL` in files."""
_SHOWN = 5  # conditions in a repr
_MISSING = {
    "sd": 'this model predicts no sd of its mean changes; train one with a prior: train(prior="auto")',
    "sd_change": 'this model predicts no sd of its mean changes; train one with a prior: train(prior="auto")',
    "cell_sd": "this model predicts no spread of cells; train one with model_initialize(uncertainty=True)",
}


@dataclass(frozen=True, eq=False)
class Predictions(Mapping[str, np.ndarray]):
    """Predicted mean expression of U conditions over G genes.

    A mapping in the published form: ``predictions["A_B"]`` is the predicted *expression* (not the change), shape (G,),
    in the order of `gene_names`. Keys may be ``"A_B"``, ``"A+B"``, ``("A", "B")`` or a Condition, genes in any order; a
    key that fits two conditions (gene names that hold "_") is an error. Iteration gives the names, as :meth:`keys`.
    Only the published statement ``pred, unc = model.predict(...)``, of a network with ``uncertainty=True``, gets
    :meth:`with_confidence` instead; write ``pred, unc = model.predict(...).with_confidence()`` to be clear.

    Attributes
    ----------
    conditions
        The U conditions in the requested order.
    gene_names
        The G genes.
    expression_UG
        Predicted expression (log-normalised scale of the screen), clipped if `clip`.
    control_mean_G
        Mean of the control cells, relative to which changes are; (U, G) where contexts have separate controls.
    cell_sd
        Standard deviation of a cell about its predicted mean, (U, G), by a network with ``uncertainty=True``; else
        None. It is the spread of cells and says nothing of how far the mean is known.
    clip
        Whether negative predictions were set to zero.
    origin
        Facts about the model and its screen, or None.
    sd
        Standard deviation of the predicted mean expression, (U, G), by the prior: intervals of 1.64 ``sd`` on both
        sides hold 90 % of the true means; :meth:`interval` has those of any level. None for a model without a prior
        (``prior=None``). A measured mean has sampling noise beside it, the variance of cells divided by their number.
        See `sd_change` for changes.
    gene_order
        Genes of a condition -> the order in which a caller listed them, where it differs: :meth:`keys` have it.
    control_sd
        Standard error of the control mean in predicted changes, (G,), or (U, G) with several contexts; None where
        it is not known.
    width_UL
        Width of the interval of each of L levels (:data:`gears.core._intervals.LEVELS`) beside that of a
        Gaussian with the same `sd`; None where it is not known, for 1.
    cut
        What was negative before it was set to zero, CSR (U, G); None where nothing was.
    measured
        Whether the context of each condition measures each gene, (U, G) bool; None where all measure all. What is
        predicted of a gene that a context does not measure rests on the other contexts.
    """

    conditions: tuple[Condition, ...]
    gene_names: tuple[str, ...]
    expression_UG: np.ndarray
    control_mean_G: np.ndarray
    cell_sd: np.ndarray | None = None
    clip: bool = True
    origin: Origin | None = None
    sd: np.ndarray | None = None
    gene_order: Mapping[tuple[str, ...], tuple[str, ...]] = field(default_factory=dict)
    control_sd: np.ndarray | None = None
    width_UL: np.ndarray | None = None
    cut: sparse.csr_matrix | None = field(default=None, repr=False)
    measured: np.ndarray | None = None

    def interval(self, level: float = 0.9, values: str = "delta") -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper bounds that hold a share `level` of the true values, (U, G) each.

        Errors of predictions have longer tails than a Gaussian: how wide intervals must be is found at every level from
        training conditions that are predicted without themselves, and is saved with the model.

        Parameters
        ----------
        level
            Share of the true values inside, between 0 and 1.
        values
            ``"delta"`` for changes over the control, by `sd_change`, or ``"expression"`` for means, by `sd`.

        Raises
        ------
        ValueError
            The level is no share, or the model predicts no `sd`.
        """
        if not 0 < level < 1:
            msg = f"level is {level}; expected a share between 0 and 1, such as 0.9"
            raise ValueError(msg)
        if values not in ("delta", "expression"):
            raise ValueError(unknown_name("values", values, ("delta", "expression")))
        sd_UG = self._values("sd")
        half_UG = half_width(level) * (sd_UG if self.width_UL is None else sd_factor(level, self.width_UL) * sd_UG)
        centre_UG = self._values(values)
        if values == "delta" and self.control_sd is not None:
            of_control = half_width(level) * self.control_sd  # a mean of many cells, whose error is Gaussian
            half_UG = np.where(sd_UG > 0, np.hypot(half_UG, of_control), 0.0)
        low_UG, high_UG = centre_UG - half_UG, centre_UG + half_UG
        return (np.maximum(low_UG, 0.0) if values == "expression" and self.clip else low_UG), high_UG

    @property
    def sd_change(self) -> np.ndarray | None:
        """Standard deviation of the predicted change, (U, G): as `sd`, with the error of the control mean.

        Intervals of 1.64 ``sd_change`` on both sides of ``delta_UG`` hold 90 % of the true changes.
        """
        if self.sd is None or self.control_sd is None:
            return self.sd
        return np.where(self.sd > 0, np.hypot(self.sd, self.control_sd), 0.0)

    def __getitem__(self, key: Key) -> np.ndarray:
        return self.expression_UG[self._row(key)]

    def __iter__(self) -> Iterator[Any]:
        if self.cell_sd is not None and _is_unpacked_into_two(sys._getframe(1)):
            return iter(self.with_confidence())
        order = self.gene_order
        return ("_".join(order[one.genes]) + one.suffix if one.genes in order else one.key for one in self.conditions)

    def with_confidence(self) -> tuple[Predictions, dict[str, float]]:
        """These predictions, and cell-gears' confidence in each: exp(-mean log-variance of the genes), by name.

        ValueError where the network predicts no variance.
        """
        confidence_U = np.exp(-2 * np.log(self._values("cell_sd")).mean(axis=1))
        return self, dict(zip(self.keys(), confidence_U.tolist(), strict=True))

    def __len__(self) -> int:
        return len(self.conditions)

    def __contains__(self, key: object) -> bool:
        try:
            self._row(key)  # type: ignore[arg-type]
        except (KeyError, TypeError, ValueError):
            return False
        return True

    def __repr__(self) -> str:
        lines = [f"Predictions of {self.header}"]
        for condition, rows in self._top(3, _SHOWN).groupby("condition", sort=False):
            half_widths = rows["high"] - rows["delta"] if "high" in rows else [None] * len(rows)
            changes = [
                f"{gene} {delta:+.3g}" + ("" if half is None else f" +- {half:.2g}")
                for gene, delta, half in zip(rows["gene"], rows["delta"], half_widths, strict=True)
            ]
            lines.append(f"  {condition}: {', '.join(changes)}")
        return "\n".join([*lines, *self._more])

    def _repr_html_(self) -> str:
        table = self._top(3, _SHOWN).to_html(index=False, border=0, float_format="{:.3g}".format)
        more = "".join(f"<p>{line}</p>" for line in self._more)
        return f'<p>{escape(self.header)}</p><div style="overflow-x: auto">{table}</div>{more}'

    @property
    def _more(self) -> list[str]:
        """A line on the conditions that are not shown."""
        n_more = len(self.conditions) - _SHOWN
        return [f"  and {count(n_more, 'condition')} more: top(n), to_frame(), to_adata()"] if n_more > 0 else []

    @property
    def header(self) -> str:
        """One line: the size, and the unit and interval of the changes that are shown."""
        size = f"{count(len(self.conditions), 'condition')} x {count(len(self.gene_names), 'gene')}"
        scale = "" if self.origin is None else str(self.origin.description.get("scale", ""))
        interval = "" if self.sd is None else ", 95 % interval"
        return f"{size}: change over control{scale and f' ({scale})'}{interval}"

    @property
    def informed_by(self) -> list[str]:
        """What is known of each condition's least known gene, one of :data:`gears.prediction._information.SOURCES`.

        "" where the model does not know its training conditions.
        """
        if self.origin is None or self.origin.fitted_to is None:
            return [""] * len(self.conditions)
        return informed_by(self.conditions, self.origin.source_of)

    def warn_uninformed(self) -> None:
        """Log warnings: of genes neither measured nor perturbed in training, and of what rests on few cells."""
        if self.origin is not None:
            warn_uninformed(self.conditions, self.origin.source_of)
            warn_of_few_cells(self.origin, self.conditions)

    @property
    def delta_UG(self) -> np.ndarray:
        """Predicted expression minus the control mean, (U, G)."""
        return self.expression_UG - self.control_mean_G

    def true_changes(self, columns: np.ndarray | slice = slice(None)) -> TrueChanges:
        """What the true changes of some genes may be; ValueError for predictions without standard deviations."""
        if self.sd is None:
            raise ValueError(_MISSING["sd"])
        change_UG = self.delta_UG if self.cut is None else self.delta_UG + self.cut.toarray()
        prior = None if self.origin is None else self.origin.prior
        sets = [] if self.origin is None or prior is None else sets_of(self.origin, self.conditions)
        return TrueChanges.of(prior, sets, change_UG, self.sd, columns)

    def p_changed(self, threshold: float = CHANGED) -> pd.DataFrame:
        """Probability that each gene's mean changes by more than a threshold, up or down; conditions x genes.

        The probabilities of :func:`gears.design.hits` for a rise and a fall, added. A gene that hardly changes
        anywhere has a small one, whatever its standard deviation.

        Parameters
        ----------
        threshold
            Change of mean log expression, above 0.

        Raises
        ------
        ValueError
            The model predicts no `sd`, or the threshold is not above 0.
        """
        if not is_number(threshold) or threshold <= 0:
            msg = f"threshold is {brief(threshold)}; expected a change of log expression above 0"
            raise ValueError(msg)
        return self._frame(self.true_changes().changed(threshold))

    @property
    def changed_UG(self) -> np.ndarray:
        """:meth:`p_changed` for a change of more than 0.1, (U, G)."""
        return self.true_changes().changed(CHANGED)

    def rests_on(self) -> pd.DataFrame:
        """How many training conditions each prediction rests on, and on which three most.

        Returns
        -------
        pd.DataFrame
            One row per condition: ``n_effective``, 1 / sum of squared shares of the conditions' weights, and
            ``most_important``, the three largest shares with their conditions. Empty for a model that does not
            explain its predictions (:meth:`gears.GEARS.explain`).
        """
        table = None if self.origin is None else table_of_shares(self.origin, self.conditions)
        return pd.DataFrame(index=self._index) if table is None else table.set_axis(self._index)

    def delta(self, key: Key) -> np.ndarray:
        """Predicted change of one condition, (G,)."""
        return self.delta_UG[self._row(key)]

    @property
    def logvar_UG(self) -> np.ndarray | None:
        """Earlier name of `cell_sd`, as the logarithm of its square."""
        _warn_of_logvar(3)
        return None if self.cell_sd is None else 2 * np.log(self.cell_sd)

    def logvar(self, key: Key) -> np.ndarray:
        """Earlier name of `cell_sd` of one condition, as the logarithm of its square, (G,)."""
        return np.asarray(self._values("logvar")[self._row(key)])

    def to_frame(self, values: str = "expression") -> pd.DataFrame:
        """One row per condition ("A+B"), one column per gene; ``values="delta"``, ``"sd"`` or ``"cell_sd"`` for those.

        Raises
        ------
        ValueError
            The model predicts no `sd` or `cell_sd`.
        """
        frame = self._frame(self._values(values))
        frame.attrs["uninformed"] = [
            name for name, source in zip(frame.index, self.informed_by, strict=True) if source == SOURCES[-1]
        ]
        return frame

    @property
    def _index(self) -> pd.Index:
        return pd.Index([condition.name for condition in self.conditions], name="condition")

    def _frame(self, values_UG: np.ndarray) -> pd.DataFrame:
        return pd.DataFrame(values_UG, index=self._index, columns=pd.Index(self.gene_names, name="gene"))

    def to_adata(self) -> AnnData:
        """Conditions x genes, a copy; see :mod:`gears.prediction.predictions`.

        Returns
        -------
        AnnData
            ``X`` expression, ``layers["delta"]`` and, where they are predicted, ``["sd"]``, ``["p_changed"]`` (a
            change of more than 0.1, :meth:`p_changed`), ``["cell_sd"]`` and ``["measured"]``;
            ``obsm["interval_widths"]`` the widths of intervals beside a Gaussian's, with ``sd``;
            ``obs`` condition, genes, n_genes, subgroup, trained, informed_by (by the model's split) and those of
            :meth:`rests_on`; ``var`` gene_name, gene_id, control_mean; ``uns["gears"]`` version, dataset, hash of the
            screen, split.
        """
        layers = {"delta": self.delta_UG}
        spreads = {"sd": self.sd, "sd_change": self.sd_change, "cell_sd": self.cell_sd}
        layers |= {name: values.copy() for name, values in spreads.items() if values is not None}
        if self.sd is not None:
            layers["p_changed"] = self.changed_UG
        one_control_mean = self.control_mean_G.ndim == 1
        if self.measured is not None:
            layers["measured"] = self.measured.copy()
        if not one_control_mean:
            layers["control_mean"] = self.control_mean_G.copy()
        return plain_adata(
            condition_table(self.conditions, self.origin),
            gene_table(self.gene_names, self.control_mean_G if one_control_mean else None, self.origin),
            X=self.expression_UG.copy(),
            layers=layers,
            uns={"gears": self._provenance()},
            **({} if self.width_UL is None else {"obsm": {WIDTHS: self.width_UL.copy()}}),
        )

    def _provenance(self) -> dict[str, Any]:
        return provenance(self.clip, self.origin)

    def top(self, n: int = 20) -> pd.DataFrame:
        """The n genes of largest absolute predicted change of each condition, largest first.

        Returns
        -------
        pd.DataFrame
            By rank within each condition: columns condition, gene, delta, where the model has a prior the 95 % interval
            of the true change (low, high; :meth:`interval`), expression, and informed_by.
        """
        return self._top(n, len(self.conditions))

    def _top(self, n: int, n_conditions: int) -> pd.DataFrame:
        """:meth:`top` of the first conditions."""
        n = min(whole_number("n", n), len(self.gene_names))
        names = np.asarray(self.gene_names)
        bounds = None if self.sd is None else self.interval(0.95)
        tables = []
        rows = zip(self.conditions, self.delta_UG, self.expression_UG, self.informed_by, strict=True)
        for row, (condition, delta_G, expression_G, source) in enumerate(itertools.islice(rows, n_conditions)):
            order = np.lexsort((names, -np.abs(delta_G)))[:n]  # by name among equal ones, on any machine alike
            columns = {"condition": condition.name, "gene": names[order], "delta": delta_G[order]}
            if bounds is not None:
                columns |= {"low": bounds[0][row, order], "high": bounds[1][row, order]}
            columns |= {"expression": expression_G[order], "informed_by": source}
            tables.append(pd.DataFrame(columns, index=pd.RangeIndex(1, n + 1, name="rank")))
        return pd.concat(tables) if tables else pd.DataFrame(columns=["condition"])

    def _values(self, values: str) -> np.ndarray:
        if values == "logvar":
            _warn_of_logvar(4)
            return 2 * np.log(self._values("cell_sd"))
        if values not in VALUES:
            raise ValueError(unknown_name("values", values, VALUES))
        names = {"expression": "expression_UG", "delta": "delta_UG"}
        table = getattr(self, names.get(values, values))
        if table is None:
            raise ValueError(_MISSING[values])
        return np.asarray(table)

    @cached_property
    def _rows(self) -> dict[Condition, int]:
        return {condition: row for row, condition in enumerate(self.conditions)}

    @cached_property
    def _joined(self) -> dict[str, set[int]]:
        """Rows of each "_"-joined key of a condition, genes in any order."""
        joined: dict[str, set[int]] = {}
        for condition, row in self._rows.items():
            genes = condition.genes
            orders = itertools.permutations(genes) if len(genes) <= 5 else {genes, self.gene_order.get(genes, genes)}
            for genes in orders:
                key = "_".join(genes) + condition.suffix if genes else condition.key
                joined.setdefault(key, set()).add(row)
        return joined

    def _row(self, key: Key) -> int:
        if isinstance(key, str):
            rows = set(self._joined.get(key, ()))
            if not rows or "+" in key:
                rows |= {row for row in [self._rows.get(Condition.parse(key))] if row is not None}
            if len(rows) > 1:
                names = sorted(self.conditions[row].name for row in rows)
                msg = f"key {key!r} fits several conditions: {', '.join(names)}; use a tuple of gene names"
                raise KeyError(msg)
            if rows:
                return rows.pop()
        elif (row := self._rows.get(Condition.of(key))) is not None:
            return row
        own = None if self.origin is None else self._rows.get(self.origin.spelling.condition(key))
        if own is not None:
            return own
        name = key if isinstance(key, str) else Condition.of(key).name
        raise KeyError(unknown_name("condition", name, [condition.name for condition in self.conditions]))


def _is_unpacked_into_two(caller: FrameType) -> bool:
    """Whether the statement that iterates is ``a, b = predictions``; nothing but its code tells that from a loop."""
    code, at = caller.f_code.co_code, caller.f_lasti
    return code[at : at + 2] == bytes([dis.opmap["UNPACK_SEQUENCE"], 2])


def _warn_of_logvar(depth: int) -> None:
    msg = "logvar has the name cell_sd, the standard deviation of cells: exp(0.5 * logvar); use cell_sd"
    warnings.warn(msg, DeprecationWarning, stacklevel=depth)
