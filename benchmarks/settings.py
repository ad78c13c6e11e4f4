"""Levels, signs and intervals in screens of several lines, donors, types or unequal settings, against known truth.

    python benchmarks/run.py settings --cases alike own donors --seeds 10 11 12

Counts are Poisson with a rate for each gene, line and condition; X is log1p of the counts, and the truth is
E[log1p(count)] of a condition less that of the line's control. ``error`` is the sum of squared errors over that of
squared true changes, for conditions that train and for those that are held out; ``slope`` is that of predicted on true
changes; ``simple`` is the error of the simplest sensible prediction of the held-out (or, where none is, of the trained)
conditions, named in the table; ``coverage`` of 90 % intervals of the trained and held-out conditions in the first, the
last and the worst covered setting. Cases: {cases}.
"""

from __future__ import annotations

import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anndata
import numpy as np
import pandas as pd
from measuring import Result, table
from scipy.stats import poisson

from gears import GEARS, PertData
from gears.conditions import Condition

LEVELS = np.concatenate([[0.0], np.geomspace(1e-4, 400.0, 600)])
_COUNTS = np.arange(1000)
MEANS = np.array([(poisson.pmf(_COUNTS, level) * np.log1p(_COUNTS)).sum() for level in LEVELS])
Z_90 = 1.6449


@dataclass
class Screen:
    """Counts by setting: `log_rate` of each line (G,), `effect` of (line, type, genes) on the log rate (G,)."""

    base: dict[str, np.ndarray]
    effect: dict[tuple[str, str, str], np.ndarray]
    held_out: set[tuple[str, str, str]] = field(default_factory=set)
    cells: Callable[[str], int] = lambda line: 40
    controls: Callable[[str], int] = lambda line: 200
    simple: Callable[[Screen, Measured, tuple[str, str, str]], np.ndarray] | None = None
    says: str = ""
    split: dict[str, Any] | None = None

    def truth(self, unit: tuple[str, str, str]) -> np.ndarray:
        """Change of E[log1p] of a unit."""
        base_G = self.base[unit[0]]
        return mean_of(base_G + self.effect[unit]) - mean_of(base_G)


Measured = dict[tuple[str, str, str], np.ndarray]


def mean_of(log_rate_G: np.ndarray) -> np.ndarray:
    """E[log1p(count)] of Poisson counts of these log rates."""
    return np.interp(np.exp(log_rate_G), LEVELS, MEANS)


def with_targets(effect_G: np.ndarray, gene: int, change: float = -1.5) -> np.ndarray:
    """The effect, with that on the perturbed gene itself."""
    effect_G = effect_G.copy()
    effect_G[gene] = change
    return effect_G


def names(n: int) -> list[str]:
    """Perturbed genes, which are the first that are measured."""
    return [f"G{i:03d}" for i in range(n)]


def draw(seed: int, n: int, n_genes: int, size: float = 0.6) -> np.ndarray:
    """Effects of n perturbations with a common part and few strong genes, (n, G)."""
    rng = np.random.default_rng(seed)
    responds = rng.random((n, n_genes)) < 0.25
    return size * (responds * rng.standard_normal((n, n_genes)) + 0.25 * rng.standard_normal(n_genes))


def lines(seed: int, n: int, n_genes: int = 300, apart: float = 0.3) -> dict[str, np.ndarray]:
    """Log rates of n lines, (G,) each."""
    rng = np.random.default_rng(1000 + seed)
    base_G = rng.normal(-0.3, 1.2, n_genes)
    return {f"L{i}": base_G + apart * rng.standard_normal(n_genes) for i in range(n)}


def of_lines(
    seed: int, n: int, effects_of: Callable[[int], np.ndarray], n_genes: int = 300, n_perts: int = 40
) -> Screen:
    """Each of `n_perts` singles in each of n lines, whose effects (n_perts, G) `effects_of` gives; units held out."""
    base, effect = lines(seed, n, n_genes), {}
    for i, line in enumerate(base):
        effects = effects_of(i)
        for j, gene in enumerate(names(n_perts)):
            effect[line, "", gene] = with_targets(effects[j], j)
    units, rng = list(effect), np.random.default_rng(seed)
    held = {units[i] for i in rng.choice(len(units), len(units) // 6, replace=False).tolist()}
    return Screen(base, effect, held, simple=mean_over_lines, says="mean over the other lines")


def mean_over_lines(screen: Screen, measured: Measured, unit: tuple[str, str, str]) -> np.ndarray:
    """Mean measured change of the same genes elsewhere."""
    same = [change for other, change in measured.items() if other[2] == unit[2] and other != unit]
    return np.mean(same, axis=0) if same else np.mean(list(measured.values()), axis=0)


def own_measured(screen: Screen, measured: Measured, unit: tuple[str, str, str]) -> np.ndarray:
    """What was measured of the unit itself."""
    return measured[unit]


def alike(seed: int) -> Screen:
    """Three equal lines of the same effects."""
    effects = draw(seed, 40, 300)
    return of_lines(seed, 3, lambda line: effects)


def half_shared(seed: int) -> Screen:
    """Four lines; half of the variance of effects is the line's own."""
    shared = draw(seed, 40, 300)
    return of_lines(seed, 4, lambda line: np.sqrt(0.5) * (shared + draw(seed + 100 * line + 7, 40, 300)))


def own(seed: int) -> Screen:
    """Four lines with effects of their own."""
    screen = of_lines(seed, 4, lambda line: draw(seed + 100 * line + 7, 40, 300))
    screen.held_out, screen.simple, screen.says = set(), own_measured, "own measured change"
    return screen


def held_out_line(seed: int) -> Screen:
    """Three lines train, a fourth is held out, and little carries over."""
    screen = half_shared(seed)
    screen.held_out = {unit for unit in screen.effect if unit[0] == "L3"}
    screen.split = {"split": "context_held_out", "test_contexts": ["L3"]}
    return screen


def scaled(seed: int) -> Screen:
    """Three lines, of which the last reacts half as strongly."""
    return _scaled(seed, 0.5)


def strong(seed: int) -> Screen:
    """Three lines, of which the last reacts 2.3 times as strongly."""
    return _scaled(seed, 2.3)


def _scaled(seed: int, factor: float) -> Screen:
    effects = draw(seed, 40, 300, 0.4)
    screen = of_lines(seed, 3, lambda line: effects * (factor if line == 2 else 1.0))
    screen.held_out = {unit for unit in screen.held_out if unit[0] == "L2"} | {
        ("L2", "", gene) for gene in names(40)[::3]
    }

    def by_slope(screen: Screen, measured: Measured, unit: tuple[str, str, str]) -> np.ndarray:
        """The others' mean times one slope from what both measured."""
        both = [u for u in measured if u[0] == unit[0]]
        x = np.array(
            [np.mean([measured[u2] for u2 in measured if u2[2] == u[2] and u2[0] != u[0]], axis=0) for u in both]
        )
        y = np.array([measured[u] for u in both])
        return float((x * y).sum() / (x**2).sum()) * mean_over_lines(screen, measured, unit)

    screen.simple, screen.says = by_slope, "mean over lines times one slope"
    return screen


def donors(seed: int) -> Screen:
    """Thirty donors with three conditions each, identical effects."""
    effects, base = draw(seed, 15, 300), lines(seed, 30, apart=0.15)
    rng, effect = np.random.default_rng(seed), {}
    for line in base:
        for j in rng.choice(15, 3, replace=False).tolist():
            effect[line, "", names(15)[j]] = with_targets(effects[j], j)
    counts = pd.Series([unit[2] for unit in effect]).value_counts()
    units = [unit for unit in effect if counts[unit[2]] > 3]
    held = {units[i] for i in rng.choice(len(units), 15, replace=False).tolist()}
    return Screen(base, effect, held, simple=mean_over_lines, says="mean over donors")


def unequal(seed: int) -> Screen:
    """Thirty conditions in one line, six (8 cells, 30 controls) in the other, the same effects."""
    effects, base, effect = draw(seed, 40, 300), lines(seed, 2), {}
    for j, gene in enumerate(names(40)):
        if j < 30:
            effect["L0", "", gene] = with_targets(effects[j], j)
        if j < 20:
            effect["L1", "", gene] = with_targets(effects[j], j)
    held = {("L1", "", gene) for gene in names(20)[6:]}
    return Screen(
        base, effect, held, lambda line: 8 if line == "L1" else 40, lambda line: 30 if line == "L1" else 200,
        mean_over_lines, "the other line's change",
    )  # fmt: skip


def pairs_apart(seed: int) -> Screen:
    """Singles in one line, pairs of the same genes in the other, where singles are wanted."""
    effects, base, effect = draw(seed, 24, 300, 0.4) + 0.15, lines(seed, 2), {}
    rng = np.random.default_rng(seed)
    for j, gene in enumerate(names(24)):
        effect["L0", "", gene] = effect["L1", "", gene] = with_targets(effects[j], j)
    for _ in range(30):
        one, other = sorted(rng.choice(24, 2, replace=False).tolist())
        pair = with_targets(with_targets(effects[one] + effects[other], one), other)
        effect["L1", "", f"{names(24)[one]}+{names(24)[other]}"] = pair
    held = {("L1", "", gene) for gene in names(24)}
    return Screen(base, effect, held, simple=mean_over_lines, says="the other line's change")


def new_line(seed: int, n_known: int = 5) -> Screen:
    """Six lines that share effects; of the last only five conditions train."""
    shared = draw(seed, 40, 300)
    screen = of_lines(seed, 6, lambda line: 0.85 * shared + 0.5 * draw(seed + 100 * line + 7, 40, 300))
    screen.held_out = {("L5", "", gene) for gene in names(40)[n_known:]}
    return screen


def types(seed: int, n: int = 4) -> Screen:
    """CRISPRi and CRISPRa of the same genes in four lines; CRISPRa changes are -0.8 of those of CRISPRi."""
    effects, base, effect = draw(seed, 30, 300), lines(seed, n), {}
    for line in base:
        for j, gene in enumerate(names(30)):
            effect[line, "CRISPRi", gene] = with_targets(effects[j], j)
            effect[line, "CRISPRa", gene] = with_targets(-0.8 * effects[j], j, 1.0)
    rng = np.random.default_rng(seed)
    held = {(line, "CRISPRa", names(30)[j]) for line in base for j in rng.choice(30, 10, replace=False).tolist()}
    held |= {(line, "CRISPRa", gene) for line in base for gene in names(30)[::4]}  # in no line

    def turned(screen: Screen, measured: Measured, unit: tuple[str, str, str]) -> np.ndarray:
        return -0.8 * measured[unit[0], "CRISPRi", unit[2]]

    return Screen(base, effect, held, simple=turned, says="-0.8 x CRISPRi")


def types_of_one_line(seed: int) -> Screen:
    """The same in one line."""
    return types(seed, 1)


def silent(seed: int) -> Screen:
    """Three lines; every tenth gene has no counts in the last."""
    screen = alike(seed)
    screen.base["L2"] = screen.base["L2"].copy()
    screen.base["L2"][45::10] = -30.0
    return screen


def few_controls(seed: int) -> Screen:
    """Three lines alike, the last with 20 control cells."""
    screen = alike(seed)
    screen.controls = lambda line: 20 if line == "L2" else 200
    return screen


CASES = {
    "alike": alike, "half shared": half_shared, "own": own, "held-out line": held_out_line, "scaled": scaled,
    "strong": strong, "donors": donors, "unequal": unequal, "pairs apart": pairs_apart, "new line, 5": new_line,
    "types": types, "types, one line": types_of_one_line, "silent": silent, "few controls": few_controls,
}  # fmt: skip
__doc__ = __doc__.format(cases=", ".join(CASES))


def sampled(screen: Screen, seed: int) -> tuple[anndata.AnnData, Measured]:
    """The screen's cells, and the measured changes of the units that are not held out."""
    rng = np.random.default_rng(seed + 5000)
    blocks, obs, measured = [], [], {}
    has_types = any(unit[1] for unit in screen.effect)
    for line, base_G in screen.base.items():
        n = screen.controls(line)
        controls = np.log1p(rng.poisson(np.exp(base_G), (n, len(base_G))))
        blocks.append(controls)
        obs += [{"condition": "ctrl", "line": line, "type": "none"}] * n
        for unit, effect_G in screen.effect.items():
            if unit[0] != line:
                continue
            cells = np.log1p(rng.poisson(np.exp(base_G + effect_G), (screen.cells(line), len(base_G))))
            blocks.append(cells)
            label = unit[2] if "+" in unit[2] else f"{unit[2]}+ctrl"
            obs += [{"condition": label, "line": line, "type": unit[1] or "CRISPRi"}] * len(cells)
            if unit not in screen.held_out:
                measured[unit] = cells.mean(axis=0) - controls.mean(axis=0)
    table = pd.DataFrame(obs)
    table["cell_type"] = "cells"
    if not has_types:
        del table["type"]
    table.index = table.index.astype(str)
    genes = pd.DataFrame({"gene_name": [f"G{i:03d}" for i in range(blocks[0].shape[1])]})
    genes.index = genes["gene_name"].to_numpy()
    adata = anndata.AnnData(np.vstack(blocks).astype(np.float32), obs=table, var=genes)
    return adata, measured


def condition_of(unit: tuple[str, str, str], has_types: bool) -> Condition:
    """The unit as a condition of the screen."""
    return Condition(tuple(unit[2].split("+")), context=unit[0], kind=unit[1] if has_types else "")


def fitted(screen: Screen, adata: anndata.AnnData, folder: str) -> GEARS:
    """The prior of a screen, without a network."""
    has_types = any(unit[1] for unit in screen.effect)
    keys = {"context_key": "line"} | ({"perturbation_type_key": "type"} if has_types else {})
    go = {gene: {f"T{i % 40}"} for i, gene in enumerate(adata.var_names)}
    data = PertData.from_adata(
        adata, "gears", data_path=folder, gene2go=go, default_pert_graph=False, scale="log1p", verbose=False, **keys
    )
    train = [condition_of(unit, has_types).name for unit in screen.effect if unit not in screen.held_out]
    units = {  # the prior is fitted to training and validation conditions
        "train": train[:-2], "val": train[-2:],
        "test": [condition_of(unit, has_types).name for unit in screen.held_out],
    }  # fmt: skip
    if screen.split is not None:
        data.prepare_split(seed=1, **screen.split)
    elif screen.held_out:
        data.prepare_split("custom", split_dict=units)
    else:
        data.prepare_split("no_test", seed=1)
    model = GEARS(data, device="cpu")
    model.model_initialize(hidden_size=8)
    model.train(epochs=0, verbose=False, evaluate_test=False)
    return model


def figures(screen: Screen, seed: int) -> dict[str, Any]:
    """Errors, slopes and coverage of a case."""
    adata, measured = sampled(screen, seed)
    has_types = any(unit[1] for unit in screen.effect)
    started = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        model = fitted(screen, adata, folder)
        units = list(screen.effect)
        predicted = model.predict([condition_of(unit, has_types) for unit in units])
    seconds = time.process_time() - started
    true_UG = np.array([screen.truth(unit) for unit in units])
    is_out_U = np.array([unit in screen.held_out for unit in units])
    error_UG = (predicted.delta_UG - true_UG) ** 2
    hit_UG = np.abs(predicted.delta_UG - true_UG) <= Z_90 * predicted.sd_change
    row: dict[str, Any] = {}
    for name, is_in_U in (("trained", ~is_out_U), ("held out", is_out_U)):
        if is_in_U.any():
            true, change = true_UG[is_in_U], predicted.delta_UG[is_in_U]
            row[f"error, {name}"] = float(error_UG[is_in_U].sum() / (true**2).sum())
            row[f"slope, {name}"] = float((change * true).sum() / (true**2).sum())
            lines_U = np.array([unit[0] for unit in units])
            by_line = {
                line: float(hit_UG[is_in_U & (lines_U == line)].mean()) for line in dict.fromkeys(lines_U[is_in_U])
            }
            row[f"coverage, {name}"] = "/".join(
                f"{by_line[line]:.2f}" for line in (next(iter(by_line)), list(by_line)[-1])
            )
            row[f"worst, {name}"] = float(min(by_line.values()))
    wanted = is_out_U if is_out_U.any() else ~is_out_U
    simple_UG = np.array([screen.simple(screen, measured, unit) for unit, at in zip(units, wanted, strict=True) if at])  # type: ignore[misc]
    row["simple"] = float(((simple_UG - true_UG[wanted]) ** 2).sum() / (true_UG[wanted] ** 2).sum())
    measured_UG = np.array([measured[unit] for unit, out in zip(units, is_out_U, strict=True) if not out])
    row["measured"] = float(((measured_UG - true_UG[~is_out_U]) ** 2).sum() / (true_UG[~is_out_U] ** 2).sum())
    if "L2" in screen.base and (screen.base["L2"] < -20).any():
        silent_G = screen.base["L2"] < -20
        at = np.array([unit[0] == "L2" for unit in units])
        row["silent genes"] = float(np.abs(predicted.delta_UG[np.ix_(at, silent_G)]).max())
    return row | {"simple is": screen.says, "CPU s": seconds}


def settings(*, cases: tuple[str, ...] | None = None, seeds: tuple[int, ...] = (10, 11, 12)) -> Iterator[Result]:
    """Every case at every seed."""
    logging.getLogger("gears").setLevel(logging.ERROR)
    rows: list[dict[str, Any]] = []
    for name in cases or list(CASES):
        for seed in seeds:
            rows.append({"case": name, "seed": seed} | figures(CASES[name](seed), seed))
            means = pd.DataFrame(rows).drop(columns=["seed"])
            numbers = means.groupby(["case", "simple is"], sort=False).mean(numeric_only=True).reset_index()
            yield Result("Several settings against truth", table(numbers.to_dict("records")), {"rows": rows})
