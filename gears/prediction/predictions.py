"""Predicted expression profiles by condition, the result of :meth:`gears.GEARS.predict`, also as AnnData.

``X`` is predicted expression, ``layers["delta"]`` its change over the control mean, ``layers["sd"]`` the standard
deviation of that mean change where the model has a prior, ``layers["cell_sd"]`` the spread of cells where the network
predicts one. The names follow scverse: rows are named by condition, columns by gene.
"""

from __future__ import annotations

import dis
import itertools
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from html import escape
from types import FrameType
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from gears.conditions import CONTROL_LABEL, Condition, joined_otherwise
from gears.core._installation import __version__
from gears.core._intervals import half_width, sd_factor
from gears.core._messages import brief, count, shorten, unknown_name
from gears.core._numbers import is_number, whole_number
from gears.data.checks._names import model_names
from gears.data.screen._spelling import Spelling
from gears.data.splits._split import Split, subgroup_names
from gears.files.formats import plain_adata
from gears.graphs._annotation import GeneAnnotation, near_symbols
from gears.prediction._information import (
    SOURCES,
    informed_by,
    name_of_training,
    source_of_genes,
    table_of_shares,
    warn_of_few_cells,
    warn_uninformed,
)
from gears.prediction._true_changes import TrueChanges

if TYPE_CHECKING:
    from anndata import AnnData
    from scipy import sparse

    from gears.data.screen._contexts import ModelContexts
    from gears.model._folder import ModelParts
    from gears.priors._prior import GenePrior

logger = logging.getLogger(__name__)

Key = str | Condition | Sequence[str]
VALUES = ("expression", "delta", "sd", "sd_change", "cell_sd")
CHANGED = 0.1
"""Change of mean log expression beyond which a gene counts as changed by default: about 10 %."""

WIDTHS = "interval_widths"
"""Name of :attr:`Predictions.width_UL` in files."""
CONTENT = "predicted mean expression"
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
            if self.origin.prior is not None and self.origin.prior.basis is not None:
                lookups = self.origin.sets_of, self.origin.training_condition
                warn_of_few_cells(self.origin.prior, self.conditions, *lookups)

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
        sets = [] if self.origin is None or prior is None else self.origin.sets_of(self.conditions)
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
        index = pd.Index([condition.name for condition in self.conditions], name="condition")
        changed_UG = self.true_changes().changed(threshold)
        return pd.DataFrame(changed_UG, index=index, columns=pd.Index(self.gene_names, name="gene"))

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
        index = pd.Index([condition.name for condition in self.conditions], name="condition")
        table = None if self.origin is None else self.origin.rests_on(self.conditions)
        return pd.DataFrame(index=index) if table is None else table.set_axis(index)

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
        index = pd.Index([condition.name for condition in self.conditions], name="condition")
        frame = pd.DataFrame(self._values(values), index=index, columns=pd.Index(self.gene_names, name="gene"))
        frame.attrs["uninformed"] = [
            name for name, source in zip(index, self.informed_by, strict=True) if source == SOURCES[-1]
        ]
        return frame

    def to_adata(self) -> AnnData:
        """Conditions x genes, a copy; see :mod:`gears.prediction.predictions`.

        Returns
        -------
        AnnData
            ``X`` expression, ``layers["delta"]`` and, where they are predicted, ``["sd"]``, ``["p_changed"]`` (a
            change of more than 0.1, :meth:`p_changed`), ``["cell_sd"]`` and ``["measured"]``;
            ``obsm["interval_widths"]`` the widths of intervals beside a Gaussian's, with ``sd``;
            ``obs`` condition, genes, n_genes, subgroup, trained, informed_by (by the model's split) and those of
            :meth:`rests_on`; ``var``
            gene_name, gene_id, control_mean; ``uns["gears"]`` version, dataset, hash of the screen, split.
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
            order = np.lexsort((names, -np.abs(delta_G)))[:n]
            columns = {
                "condition": condition.name,
                "gene": names[order],
                "delta": delta_G[order],
            }
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


def in_contexts(
    conditions: Sequence[Condition],
    parts: ModelParts,
    context: str | Sequence[str] | None = None,
    kind: str | None = None,
) -> tuple[tuple[Condition, ...], list[Sequence[int]], np.ndarray]:
    """Conditions in the requested contexts, their nodes, and the control mean of each (or of all).

    Raises ValueError for a gene that is no node, or a context or type that the model lacks.
    """
    contexts = parts.contexts
    if contexts is None:
        if context is not None or kind is not None or any(condition.suffix for condition in conditions):
            msg = (
                "this model has one context and one type of perturbation; prepare the screen with context_key= or "
                "perturbation_type_key= and train on it, or omit context and type"
            )
            raise ValueError(msg)
        return tuple(conditions), list(nodes_of(conditions, parts.pert_names)), parts.control_mean_G
    units = contexts.placed(conditions, context, kind)
    sets = contexts.node_sets(units, nodes_of(units, parts.pert_names))
    return units, list(sets), contexts.control_means(units)


def sets_of(model: ModelParts | Origin, conditions: Sequence[Condition]) -> Sequence[Sequence[int]]:
    """Nodes of conditions, with context and type where a model has several settings."""
    nodes, contexts = nodes_of(conditions, model.pert_names), model.contexts
    if contexts is None or max(len(contexts.contexts), len(contexts.kinds)) <= 1:
        return nodes
    return contexts.node_sets(conditions, nodes)


def nodes_of(conditions: Sequence[Condition], pert_names: Sequence[str]) -> list[list[int]]:
    """Perturbation-graph nodes of conditions; raises for a gene that is no node, with similar names."""
    index = {name: node for node, name in enumerate(pert_names)}
    unknown = sorted({gene for condition in conditions for gene in condition.genes if gene not in index})
    if unknown:
        hints = [f"{gene} ({_hint(gene, pert_names, index)})" for gene in unknown[:5]]
        msg = (
            f"{count(len(unknown), 'gene is', 'genes are')} not among the {len(index)} of the perturbation graph: "
            f"{'; '.join(hints)}; see pert_list for what can be predicted"
        )
        raise ValueError(msg)
    return [[index[gene] for gene in condition.genes] for condition in conditions]


def _hint(name: str, pert_names: Sequence[str], index: Mapping[str, int]) -> str:
    """What a user may mean by a name that is no node."""
    joined = joined_otherwise(name, index)
    if joined is not None:
        return f"did you mean {joined.name!r}?"
    if name in GeneAnnotation.human().ambiguous:
        return "a name of several genes: give the symbol of the one that is meant"
    return f"near: {', '.join(near_symbols(name, pert_names)) or 'none'}"


def requested_conditions(
    entries: str | Condition | Iterable[str | Sequence[str] | Condition], parts: ModelParts
) -> tuple[Condition, ...]:
    """The distinct conditions that a user requests of a model, in order; at least one.

    Genes that the model has under another name get that name, with one log line.

    Raises
    ------
    ValueError
        No condition, an empty one, or a name of two genes of the model.
    """
    conditions = [_requested_condition(entry, parts) for entry in entries_in(entries)]
    if not conditions:
        msg = "predict got no condition; give at least one, such as [['A', 'B']] or ['A+B', 'A']"
        raise ValueError(msg)
    names = _names_in_model((gene for condition in conditions for gene in condition.genes), parts)
    renamed = (replace(one, genes=tuple(names.get(gene, gene) for gene in one.genes)) for one in conditions)
    return tuple(dict.fromkeys(renamed))


def entries_in(
    conditions: str | Condition | Iterable[str | Sequence[str] | Condition],
) -> Iterable[str | Sequence[str] | Condition]:
    """A user's conditions; what is one condition, or none, is one entry."""
    is_several = isinstance(conditions, Iterable) and not isinstance(conditions, str | Condition)
    return conditions if is_several else [conditions]  # type: ignore[list-item, return-value]


def listed_order(entries: Iterable[str | Sequence[str] | Condition]) -> dict[tuple[str, ...], tuple[str, ...]]:
    """:attr:`Predictions.gene_order` of conditions that are given as lists of genes."""
    lists = (entry for entry in entries if not isinstance(entry, str | Condition))
    genes = [tuple(gene for gene in entry if gene != CONTROL_LABEL) for entry in lists]
    return {tuple(sorted(listed)): listed for listed in genes if list(listed) != sorted(listed)}


def requested_genes(genes: Iterable[str], parts: ModelParts) -> list[str]:
    """The distinct genes that a user requests of a model, as :func:`requested_conditions` names them."""
    genes = list(genes)
    names = _names_in_model(genes, parts)
    return list(dict.fromkeys(names.get(gene, gene) for gene in genes))


def _names_in_model(genes: Iterable[str], parts: ModelParts) -> dict[str, str]:
    """Other names of genes in the model (:func:`gears.data.checks._names.model_names`), logged."""
    genes, screen, nodes = list(genes), set(parts.gene_names), dict.fromkeys(parts.pert_names)
    if all(gene in screen and gene in nodes for gene in genes):
        return {}  # no label of the split needs to be read
    if parts.split is not None:
        labels = [*itertools.chain(*parts.split.parts.values()), *parts.split.excluded]
        screen |= {gene for label in labels for gene in Condition.parse(label).genes}
    names = model_names(genes, screen, nodes.keys(), lambda gene: GeneAnnotation.human().resolve(gene))
    if names:
        shown = shorten(f"{old} is {new}" for old, new in names.items())
        logger.warning("%s under another name in this model: %s", count(len(names), "gene"), shown)
    return names


def _requested_condition(entry: str | Sequence[str] | Condition, parts: ModelParts) -> Condition:
    """A condition from a user's entry: a label as in the screen, a gene, or a list of genes (not empty)."""
    if isinstance(entry, Sequence) and len(entry) == 0:
        msg = "predict got an empty condition; give its genes, such as ['A', 'B'], or 'ctrl' for the control"
        raise ValueError(msg)
    return parts.spelling.condition(entry, parts.pert_names)


@dataclass(frozen=True)
class Origin:
    """The model and the screen that predictions come from.

    Attributes
    ----------
    gene_ids
        Ids of the G genes: the index of the screen's ``var``.
    fitted_to
        Conditions that the model was fitted to, with the control; None for a model without a split.
    source_of
        What is known of each gene that can be perturbed, one of
        :data:`gears.prediction._information.SOURCES`; empty for a model without a split.
    provenance
        Facts about the screen: dataset, hash.
    split
        The model's split.
    spelling
        How the screen's own labels were written.
    prior, pert_names, contexts
        Those of the model, which say how probable changes are and what predictions rest on.
    """

    gene_ids: tuple[str, ...]
    fitted_to: frozenset[Condition] | None = None
    source_of: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    split: Split | None = None
    spelling: Spelling = field(default_factory=Spelling)
    prior: GenePrior | None = field(default=None, repr=False)
    pert_names: tuple[str, ...] = field(default=(), repr=False)
    contexts: ModelContexts | None = field(default=None, repr=False)

    @classmethod
    def of(cls, parts: ModelParts) -> Origin:
        """The origin of a model's predictions."""
        fitted = None
        if parts.split is not None:
            controls = (condition for condition in parts.training_conditions() if condition.is_control)
            fitted = frozenset([*parts.fitted_conditions(), *controls])
        facts = (parts.gene_ids, fitted, source_of_genes(parts), parts.provenance, parts.split, parts.spelling)
        return cls(*facts, parts.prior, parts.pert_names, parts.contexts)

    def sets_of(self, conditions: Sequence[Condition]) -> Sequence[Sequence[int]]:
        """Nodes of conditions, with context and type where the model has several settings."""
        return sets_of(self, conditions)

    def rests_on(self, conditions: Sequence[Condition]) -> pd.DataFrame | None:
        """The table of :meth:`Predictions.rests_on`; None for a model that does not keep its training conditions."""
        if self.prior is None or self.prior.basis is None:
            return None
        return table_of_shares(self.prior, conditions, self.sets_of, self.training_condition)

    def training_condition(self, row: int) -> Condition:
        """The training condition of a row of the prior, as the model names it."""
        return name_of_training(self, row)

    @property
    def description(self) -> dict[str, Any]:
        """Plain values for ``uns``: dataset, hash of the screen, split."""
        facts, split = dict(self.provenance), self.split
        if split is not None:
            facts |= {"split": split.name, "split_seed": split.seed, "split_hash": split.hash}
        return {name: value for name, value in facts.items() if isinstance(value, str | int | float)}


def condition_table(conditions: Sequence[Condition], origin: Origin | None) -> pd.DataFrame:
    """One row per condition: ``condition``, ``genes`` (joined by ","), ``n_genes``, ``subgroup``, ``trained``,
    ``informed_by``, ``n_effective``, ``most_important``.

    ``subgroup`` counts the genes that are perturbed in the conditions that the model was fitted to ("combo_seen1",
    "unseen_single", "ctrl"), ``trained`` is whether the condition is one of these, ``informed_by`` what is known of
    its least known gene (:data:`gears.prediction._information.SOURCES`), the last two are those of
    :meth:`Predictions.rests_on`; they are omitted where these conditions are
    unknown.
    """
    names = [condition.name for condition in conditions]
    table = pd.DataFrame(
        {
            "condition": names,
            "genes": [",".join(condition.genes) for condition in conditions],
            "n_genes": [len(condition) for condition in conditions],
        },
        index=pd.Index(names),
    )
    if any(condition.suffix for condition in conditions):
        table["context"] = [condition.context for condition in conditions]
        table["perturbation_type"] = [condition.kind for condition in conditions]
    if origin is not None and origin.fitted_to is not None:
        table["subgroup"] = subgroup_names(conditions, origin.fitted_to)
        table["trained"] = [condition in origin.fitted_to for condition in conditions]
        table["informed_by"] = informed_by(conditions, origin.source_of)
        shares = origin.rests_on(conditions)
        if shares is not None:
            table[shares.columns] = shares.to_numpy()
            table["n_effective"] = table["n_effective"].astype(float)
    return table


def gene_table(gene_names: Sequence[str], control_mean_G: np.ndarray | None, origin: Origin | None) -> pd.DataFrame:
    """One row per gene: ``gene_name``, ``gene_id`` (where known), ``control_mean`` (where it is one for all)."""
    table = pd.DataFrame({"gene_name": list(gene_names)}, index=pd.Index(list(gene_names)))
    if origin is not None:
        table["gene_id"] = list(origin.gene_ids)
    if control_mean_G is not None:
        table["control_mean"] = np.array(control_mean_G, dtype=np.float64)
    return table


def provenance(clip: bool, origin: Origin | None) -> dict[str, Any]:
    """Content of ``uns["gears"]``: plain values that h5ad and zarr can store."""
    description = {} if origin is None else origin.description
    return {"content": CONTENT, "clip": clip, "version": __version__, **description}
