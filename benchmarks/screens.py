"""Screens that several benchmarks are run on: simulated kinds, and real subsets found in a folder."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anndata
import numpy as np

from gears import Condition, PertData
from gears.data.screen._prepared import PreparedScreen
from gears.data.splits import folds
from gears.data.splits._split import Split, perturbed_in
from gears.simulate import SimulatedTruth, simulated_screen

COMMON = {
    "n_genes": 500, "n_singles": 40, "n_pairs": 60, "cells_per_condition": 60, "n_control": 300, "seed": 3,
}  # fmt: skip
SIMULATED: dict[str, dict[str, Any]] = {
    "additive": {"go_strength": 0.0, "interaction_share": 0.0},
    "low-rank": {"low_rank": 4, "target_effect": 0.0, "interaction_share": 0.0},
    "GO-smooth": {"n_singles": 100, "n_pairs": 0, "interaction_share": 0.0},
    "interactions": {"interaction_share": 0.8, "interaction_size": 2.0},
    "no signal": {"effect_size": 0.02, "target_effect": 0.0, "interaction_share": 0.0},
    "co-expression": {
        "n_singles": 100, "n_pairs": 0, "n_control": 1000, "go_strength": 0.0, "interaction_share": 0.0,
        "n_modules": 20, "module_share": 0.8,
    },
    "regulatory network": {"n_control": 1000, "network_degree": 12.0},
    "masking pairs": {"interaction_share": 0.8, "interaction_kinds": "masking"},
    "saturating pairs": {
        "effect_size": 1.5, "effect_share": 0.5, "common_effect": 0.3, "interaction_share": 0.8,
        "interaction_size": 2.5, "interaction_kinds": "saturating",
    },
    "null perturbations": {
        "n_singles": 80, "n_pairs": 40, "cells_per_condition": 12, "cell_number_sd": 0.5,
        "interaction_share": 0.0, "null_share": 0.5,
    },
    "products": {
        "n_singles": 24, "n_pairs": 270, "effect_size": 1.0, "effect_share": 0.5, "target_effect": 0.0,
        "common_effect": 0.0, "interaction_share": 1.0, "interaction_size": 1.0, "interaction_kinds": "products",
    },
    "confounded batches": {
        "interaction_share": 0.0, "n_batches": 4, "batch_size_effect": 0.5, "batch_confounding": 1.0,
    },
}  # fmt: skip
COMBINED: dict[str, dict[str, Any]] = {
    "additive triples": SIMULATED["additive"] | {"n_singles": 16, "n_pairs": 0, "n_triples": 40},
    "interacting triples": SIMULATED["interactions"] | {"n_singles": 16, "n_pairs": 0, "n_triples": 40},
}
"""Kinds for predictions from singles, alone or with few combinations."""
KINDS = tuple(SIMULATED)
# Measured changes of a confounded screen hold the effects of batches unless controls are matched.
PREPARED: dict[str, dict[str, Any]] = {"confounded batches": {"batch_key": ["batch"]}}
REAL = ("norman2019", "papalexi2021", "mcfaline2023")
SMALL = {"n_genes": 60, "cells_per_condition": 12, "n_control": 80}
N_BOOTSTRAP = 2000


def simulation(kind: str, seed: int, small: bool = False) -> dict[str, Any]:
    """Options of the simulator; `small`: fewer genes, cells and conditions."""
    options = COMMON | (SIMULATED | COMBINED)[kind] | {"seed": seed}
    most = {"n_singles": 16, "n_pairs": 60 if kind == "products" else 24, "n_triples": 24}
    few = {name: min(options[name], number) for name, number in most.items() if name in options}
    if not options["n_pairs"] and "n_triples" not in options:  # enough singles for a head
        few = {"n_genes": 110}
    return options | (SMALL | few if small else {})


@dataclass(frozen=True)
class Screen:
    """A screen with the name under which its figures are averaged, and the options to prepare it with."""

    name: str
    seed: int | None
    adata: anndata.AnnData
    truth: SimulatedTruth | None = None
    preparation: Mapping[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def prepared(self) -> Iterator[PertData]:
        """The prepared screen, in a folder that is removed afterwards."""
        with tempfile.TemporaryDirectory() as folder:
            data = PertData(folder, default_pert_graph=False)
            data.new_data_process("screen", self.adata, **self.preparation)
            yield data


def screens(kinds: Sequence[str], data: Path | None, seeds: Sequence[int], small: bool = False) -> Iterator[Screen]:
    """The requested screens: each simulated kind with every seed, then real ones, each cell type alone."""
    for name in kinds:
        for seed in seeds:
            adata, truth = simulated_screen(**simulation(name, seed, small))
            yield Screen(name, seed, adata, truth, PREPARED.get(name, {}))
    for name in REAL if data else ():
        adata = anndata.read_h5ad(Path(str(data)) / f"{name}_subset.h5ad")
        for cell_type in sorted(adata.obs["cell_type"].unique()):
            yield Screen(f"{name} {cell_type}", None, adata[adata.obs["cell_type"] == cell_type].copy())


def folds_of(data: PertData, n_folds: int, repeats: int = 1, seed: int = 1) -> list[Split]:
    """Folds over conditions, fewer where there are few conditions."""
    return list(folds(data.screen, min(n_folds, len(data.screen.conditions) - 1), repeats, seed))


def known_and_tested(split: Split) -> tuple[list[Condition], list[Condition]]:
    """Perturbed conditions of training and validation, and those of the test part."""
    train, val, test = (perturbed_in(split, part) for part in ("train", "val", "test"))
    return [*train, *val], test


def from_singles(screen: PreparedScreen, n_combinations: Sequence[int]) -> Iterator[tuple[int, Split]]:
    """For each number, a split whose training part has all singles and so many combinations; the others are tested."""
    labels = {one: label for label, one in screen.condition_of_label.items()}
    (control,) = (label for one, label in labels.items() if one.is_control)
    singles = [label for one, label in labels.items() if len(one) == 1]
    combined = [label for one, label in labels.items() if len(one) > 1]
    for n in n_combinations:
        train = (control, *singles, *combined[:n])
        yield n, Split("custom", n, {}, {"train": train, "test": tuple(combined[n:])})


def resampled_means(values_U: np.ndarray, n: int = N_BOOTSTRAP) -> np.ndarray:
    """Means of values drawn with replacement, the same draws for as many values, (n,)."""
    picks = np.random.default_rng(0).integers(len(values_U), size=(n, len(values_U)))
    return np.asarray(values_U[picks].mean(axis=1))


def interval(draws: np.ndarray) -> tuple[float, float]:
    """95 % of the draws."""
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def gained(gain_U: np.ndarray) -> tuple[str, str]:
    """Mean gain with its 95 % interval, and the verdict."""
    low, high = interval(resampled_means(gain_U))
    verdict = "better" if low > 0 else "worse" if high < 0 else "within the interval"
    return f"{gain_U.mean():+.3g} ({low:+.3g}, {high:+.3g})", verdict
