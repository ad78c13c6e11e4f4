"""The truth of a simulated screen: the parameters that it was drawn from."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from gears.conditions import Condition
from gears.core._messages import shorten, unknown_name
from gears.files._paths import check_output
from gears.files.formats import read_npz, write_npz
from gears.simulate._options import SimulationOptions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class SimulatedTruth:
    """Expected expression and effects of a simulated screen.

    Parameters
    ----------
    genes
        Measured genes (G), columns of the screen.
    perturbed
        Perturbed genes (P).
    conditions
        Conditions (C), the control first.
    control_mean_G
        Expected log-expression of control cells (mean over batches and cell types).
    delta_CG
        Expected log-expression of each condition minus that of the control; row 0 is zero. Both are means over batches
        and cell types, each counted once, whatever batches the condition's cells come from.
    effect_CG
        Log-fold changes of expected counts in each condition, before normalisation to the cell's total.
    gene_effect_PG
        The same for each single perturbed gene.
    interactions
        Kind of each condition with two or more genes: "additive", "synergy", "suppression", "masking", "saturating" or
        "products".
        In a regulatory network "additive" if the effect on genes that are not perturbed departs from the sum of the
        single effects by at most 0.2 of the norm of that sum; else "synergy" if the effect has the larger norm, and
        "suppression" if it has the smaller one.
    go_similarity_PP
        GO Jaccard similarity of the perturbed genes.
    options
        Options of the simulation.
    """

    genes: tuple[str, ...]
    perturbed: tuple[str, ...]
    conditions: tuple[Condition, ...]
    control_mean_G: np.ndarray
    delta_CG: np.ndarray
    effect_CG: np.ndarray
    gene_effect_PG: np.ndarray
    interactions: Mapping[Condition, str]
    go_similarity_PP: np.ndarray
    options: SimulationOptions

    def index(self, condition: Condition | str | Iterable[str]) -> int:
        """Row of a condition: a Condition, a label, or genes in any order."""
        requested = Condition.of(condition)
        try:
            return self.conditions.index(requested)
        except ValueError:
            names = [own_condition.name for own_condition in self.conditions]
            raise KeyError(unknown_name("condition", requested.name, names)) from None

    def delta(self, condition: Condition | str | Iterable[str]) -> np.ndarray:
        """(G,) expected log-expression of a condition minus that of the control."""
        return self.delta_CG[self.index(condition)]

    def mean(self, condition: Condition | str | Iterable[str]) -> np.ndarray:
        """(G,) expected log-expression of a condition."""
        return self.control_mean_G + self.delta(condition)

    def to_frame(self) -> pd.DataFrame:
        """`delta_CG` with condition names as rows and genes as columns."""
        import pandas as pd

        names = pd.Index([condition.name for condition in self.conditions], name="condition")
        return pd.DataFrame(self.delta_CG, index=names, columns=list(self.genes))

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write to an npz file (plain arrays); a file that is there is replaced only with `overwrite`."""
        check_output(path, overwrite)
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        for name in ("genes", "perturbed"):
            arrays[name] = np.array(getattr(self, name), dtype=str)
        arrays["conditions"] = np.array([condition.name for condition in self.conditions], dtype=str)
        arrays["kinds"] = np.array([self.interactions.get(c, "") for c in self.conditions], dtype=str)
        arrays["options"] = np.array(json.dumps(dataclasses.asdict(self.options)))
        return write_npz(path, arrays)

    @classmethod
    def load(cls, path: str | Path) -> SimulatedTruth:
        """Read a file of :meth:`save`."""
        arrays = read_npz(path)
        missing = {*_ARRAYS, "genes", "perturbed", "conditions", "kinds", "options"} - set(arrays)
        if missing:
            msg = f"{path} holds no truth of a simulated screen: {shorten(sorted(missing))} missing"
            raise ValueError(msg)
        conditions = tuple(Condition.parse(name) for name in arrays["conditions"].tolist())
        kinds = zip(conditions, arrays["kinds"].tolist(), strict=True)
        return cls(
            genes=tuple(arrays["genes"].tolist()),
            perturbed=tuple(arrays["perturbed"].tolist()),
            conditions=conditions,
            interactions={condition: kind for condition, kind in kinds if kind},
            options=SimulationOptions(**json.loads(str(arrays["options"]))),
            **{name: arrays[name] for name in _ARRAYS},
        )


_ARRAYS = ("control_mean_G", "delta_CG", "effect_CG", "gene_effect_PG", "go_similarity_PP")
