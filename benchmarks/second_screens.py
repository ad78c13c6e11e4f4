"""Effects of the same genes in a second screen: what do they add for genes that were not perturbed in the first?

    python benchmarks/run.py second_screens --seeds 200 201 202 203 204
    python benchmarks/run.py two_lines --data FOLDER          (with replogle2022_two_lines_ranks.tsv.gz)

Simulated genes have a place in a geometry that GO knows a part of; each screen has programmes (loadings of the places
on measured genes) and private effects. The second screen has the *same* changes; is *related*: half of the variance
the same, a quarter programmes of its own over the same geometry, a quarter private; *other*: programmes of its own over
the same geometry, and as much private; *nothing*: a geometry of its own. It has 10 to 30 cells of a condition, and a
share of the genes. Three folds over conditions, so that every gene is predicted without being perturbed. Gains are
paired over conditions, with 95 % intervals. Seeds 0 to 9 are for development, those from 200 on for the table.

``two_lines``: 300 knock-downs in K562 and RPE1, known as ranks of the 1,000 genes that rise most. Cells of RPE1 are
simulated around its profiles, K562 is given as a table of its profiles; 50, 100 and 200 knock-downs train.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
from measuring import Result, table
from scipy import sparse
from screens import gained

from gears import PertData
from gears.data.splits import folds
from gears.data.splits._split import Split
from gears.evaluation import DECISIVE, compare
from gears.evaluation.metrics import get_metric
from gears.graphs import GeneAnnotation
from gears.graphs._go import jaccard
from gears.jobs.estimators import PriorEstimator

SCREENS = ("same", "related", "other", "nothing")
_RANK, _PRIVATE, _OF_GO = 10, 0.25, 0.3
N_SINGLES, N_GENES = 120, 400


def cells(
    log_change_CG: np.ndarray, base_G: np.ndarray, names: list[str], genes: list[str], n_cells: np.ndarray, seed: int
) -> anndata.AnnData:
    """Negative-binomial cells of a control (the first of `n_cells`) and of each perturbed gene, log-normalised."""
    rng = np.random.default_rng(seed)
    log_CG = np.vstack([np.zeros(len(genes)), log_change_CG]) + base_G
    share_CG = np.exp(log_CG) / np.exp(log_CG).sum(axis=1, keepdims=True)
    row_N = np.repeat(np.arange(len(log_CG)), n_cells)
    library_N1 = len(genes) * np.exp(0.3 * rng.standard_normal((len(row_N), 1)))
    mean_NG = share_CG[row_N] * library_N1
    counts = rng.poisson(mean_NG * rng.standard_gamma(5.0, size=mean_NG.shape) / 5.0).astype(np.float64)
    values = np.log1p(counts / np.maximum(counts.sum(axis=1, keepdims=True), 1) * len(genes))
    labels = np.array(["ctrl", *(f"{name}+ctrl" for name in names)])[row_N]
    obs = pd.DataFrame({"condition": labels, "cell_type": "line"}, index=[str(i) for i in range(len(row_N))])
    var = pd.DataFrame({"gene_name": genes}, index=genes)
    return anndata.AnnData(sparse.csr_matrix(values, dtype=np.float32), obs=obs.astype("category"), var=var)


class Pair:
    """A screen and what second screens of its genes do, from one seed."""

    def __init__(self, seed: int, n_singles: int = N_SINGLES, n_genes: int = N_GENES) -> None:
        self.rng, self.seed = np.random.default_rng(seed), seed
        annotated = sorted(gene for gene in GeneAnnotation.human().genes if gene.isalnum())
        self.genes = sorted(self.rng.choice(annotated, n_genes, replace=False).tolist())
        self.names = sorted(self.rng.choice(self.genes, n_singles, replace=False).tolist())
        rows = GeneAnnotation.human().rows(self.names)
        similar = jaccard(rows, rows)
        np.fill_diagonal(similar, 1.0)
        self.root_GO = np.linalg.cholesky(similar + 1e-6 * np.eye(len(similar)))
        self.strength = np.exp(0.5 * self.rng.standard_normal(n_singles))[:, None]
        self.base = self.rng.normal(0, 1.2, n_genes)
        self.places = self._places()
        self.effect = self._mixed(self._programmes(self.places), 1 - _PRIVATE, self._private(), _PRIVATE)

    def _places(self) -> np.ndarray:
        own, of_go = self.rng.standard_normal((2, len(self.names), _RANK))
        return np.sqrt(1 - _OF_GO) * own + np.sqrt(_OF_GO) * (self.root_GO @ of_go)

    def _programmes(self, places: np.ndarray) -> np.ndarray:
        loading = self.rng.standard_normal((_RANK, len(self.genes))) * (self.rng.random(len(self.genes)) < 0.4)
        return places @ loading / np.sqrt(_RANK)

    def _private(self) -> np.ndarray:
        shape = (len(self.names), len(self.genes))
        return self.rng.standard_normal(shape) * np.sqrt(0.4)

    @staticmethod
    def _mixed(one: np.ndarray, share: float, other: np.ndarray, rest: float) -> np.ndarray:
        return np.sqrt(share) * one + np.sqrt(rest) * other

    def first(self, size: float = 0.5) -> anndata.AnnData:
        """The screen to predict: 50 cells of a condition."""
        return self._cells(self.effect, size, np.full(len(self.names), 50), self.names)

    def second(self, kind: str, share: float, size: float = 0.5) -> anndata.AnnData:
        """The other screen, of a share of the genes."""
        own = self._programmes(self.places)
        effect = {
            "same": lambda: self.effect,
            "related": lambda: np.sqrt(0.5) * self.effect + self._mixed(own, 0.25, self._private(), 0.25),
            "other": lambda: self._mixed(own, 0.5, self._private(), 0.5),
            "nothing": lambda: self._mixed(self._programmes(self._places()), 0.75, self._private(), 0.25),
        }[kind]()
        rows = np.sort(self.rng.permutation(len(self.names))[: round(share * len(self.names))])
        n_cells = self.rng.integers(10, 31, len(rows))
        return self._cells(effect[rows], size, n_cells, [self.names[row] for row in rows.tolist()], rows)

    def _cells(
        self, effect: np.ndarray, size: float, n_cells: np.ndarray, names: list[str], rows: Any = slice(None)
    ) -> anndata.AnnData:
        change = size * self.strength[rows] * effect
        for row, name in enumerate(names):
            change[row, self.genes.index(name)] = -1.5
        seed = int(self.rng.integers(1 << 31))
        return cells(change, self.base, names, self.genes, np.concatenate([[300], n_cells]), seed)


def prepared(folder: str, name: str, adata: anndata.AnnData) -> PertData:
    """A prepared screen whose nodes are its own genes."""
    data = PertData(folder, default_pert_graph=False)
    data.new_data_process(name, adata, skip_calc_de=name != "first")
    return data


def scores(data: PertData, methods: Mapping[str, Mapping[str, Any]], splits: list[Split]) -> pd.DataFrame:
    """A row of every decisive metric for each condition and method."""
    made = {name: PriorEstimator(data, **options) for name, options in methods.items()}
    named = {f"fold {number}": split for number, split in enumerate(splits)}
    found = compare(made, data.screen, named, baselines=["train_mean"], n_split_half=0, metrics=list(DECISIVE))
    wide = found.table.pivot_table(index=["split", "condition", "metric"], columns="method", values="value")
    return wide.reset_index()


def second_screens(
    seeds: tuple[int, ...] = (200, 201, 202, 203, 204), kinds: tuple[str, ...] = SCREENS,
    shares: tuple[float, ...] = (0.3, 0.6, 1.0), genes: int = N_GENES, singles: int = N_SINGLES, n_folds: int = 3,
) -> Iterator[Result]:  # fmt: skip
    """Gains of every decisive metric by kind of second screen and share of its genes."""
    tables = []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            pair = Pair(seed, singles, genes)
            data = prepared(folder, "first", pair.first())
            methods: dict[str, dict[str, Any]] = {"without": {}}
            for kind in kinds:
                for share in shares:
                    other = prepared(folder, f"{kind}-{share}", pair.second(kind, share))
                    methods[f"{kind} {share:.0%}"] = {"effects_of": {"other": other}}
            tables.append(scores(data, methods, list(folds(data.screen, n_folds, 1, 1))).assign(seed=seed))
        yield _result("Effects of a second screen", pd.concat(tables), list(methods))


def _result(title: str, scored: pd.DataFrame, methods: list[str]) -> Result:
    rows = []
    for method in methods:
        row: dict[str, Any] = {"second screen": method}
        for metric in DECISIVE:
            values = scored[scored.metric == metric]
            row[metric] = f"{values[method].mean():.3f}"
            if method != methods[0]:
                sign = 1.0 if get_metric(metric).higher_is_better else -1.0
                gain, verdict = gained(sign * (values[method] - values[methods[0]]).dropna().to_numpy())
                row[metric] += f", {gain}" + f" {verdict}" * (verdict != "within the interval")
        rows.append(row)
    return Result(title, table(rows), {"rows": rows})


def profiles(file: Path) -> dict[str, pd.DataFrame]:
    """Profile of each knock-down in each line: 1 - rank / 1000, 0 for genes that are not listed."""
    rows = pd.read_csv(file, sep="\t")
    genes = rows["genes"].str.split(r"[,;\s]+", regex=True)
    long = rows[["line", "knockdown"]].assign(gene=genes).explode("gene")
    long["value"] = 1 - long.groupby(["line", "knockdown"]).cumcount() / 1000
    wide = {
        line: part.pivot_table(index="knockdown", columns="gene", values="value", fill_value=0.0)
        for line, part in long.groupby("line")
    }
    return {str(line): table for line, table in wide.items()}


class OtherLine:
    """Predicts the train mean and what the other line's profile departs from its mean: a method of `compare`."""

    def __init__(self, data: PertData, table: pd.DataFrame) -> None:
        self.data, self.table = data, table.reindex(columns=data.screen.gene_names, fill_value=0.0)

    def fit(self, screen: Any, split: Split) -> None:
        """Mean expression of the training conditions."""
        ids = [screen.id_of(one) for one in split.conditions("train") if not one.is_control]
        self.mean_G = np.asarray(screen.statistics.mean)[ids].mean(axis=0)

    def predict(self, conditions: Any) -> np.ndarray:
        """Of single knock-downs."""
        rows = self.table.loc[[one.genes[0] for one in conditions]] - self.table.mean()
        return self.mean_G + rows.to_numpy()


def two_lines(
    data: Path | None = None, numbers: tuple[int, ...] = (50, 100, 200), draws: int = 5, genes: int = 1000,
    n_cells: int = 100,
) -> Iterator[Result]:  # fmt: skip
    """Knock-downs of RPE1 by those of K562: as a table of profiles, as simulated cells, and the profile itself."""
    tables = profiles(Path(str(data)) / "replogle2022_two_lines_ranks.tsv.gz")
    (name_of_other,) = [line for line in tables if "K562" in line.upper()]
    (name_of_first,) = [line for line in tables if "RPE1" in line.upper()]
    first, other = tables[name_of_first], tables[name_of_other]
    names = sorted(set(first.index) & set(other.index))
    often = (first > 0).sum() + (other > 0).sum().reindex(first.columns, fill_value=0)
    measured = sorted(often.sort_values(ascending=False, kind="stable").index[:genes])
    base = np.random.default_rng(1).normal(0, 1.0, len(measured))
    n = np.concatenate([[2000], np.full(len(names), n_cells)])
    screens = [
        cells(
            1.5 * table.reindex(index=names, columns=measured, fill_value=0.0).to_numpy(), base, names, measured, n, i
        )
        for i, table in enumerate((first, other))
    ]
    with tempfile.TemporaryDirectory() as folder:
        here, there = (prepared(folder, name, adata) for name, adata in zip(("first", "k562"), screens, strict=True))
        labels = {one.genes[0]: label for label, one in here.screen.condition_of_label.items() if one.genes}
        found = []
        for number in numbers:
            splits = []
            for draw in range(draws):
                order = np.random.default_rng(draw).permutation(names).tolist()
                train = ("ctrl", *(labels[name] for name in order[:number]))
                splits.append(
                    Split("custom", draw, {}, {"train": train, "test": tuple(labels[name] for name in order[number:])})
                )
            made: dict[str, Any] = {
                "without": PriorEstimator(here),
                "profiles": PriorEstimator(here, effects_of={"K562": other.loc[names]}),
                "cells": PriorEstimator(here, effects_of={"K562": there}),
                "both": PriorEstimator(here, effects_of={"K562": there, "profiles": other.loc[names]}),
                "the profile itself": OtherLine(here, other),
            }
            compared = compare(
                made, here.screen, {f"draw {one.seed}": one for one in splits}, baselines=["train_mean"],
                n_split_half=0, metrics=[*DECISIVE],
            )  # fmt: skip
            means = compared.table.groupby(["method", "metric"])["value"].mean().unstack()
            found.append(means.reset_index().assign(training=number))
            rows = pd.concat(found)[["training", "method", *DECISIVE]].round(3)
            yield Result(
                "Knock-downs of RPE1 by those of K562",
                table(rows.to_dict("records")),
                {"rows": rows.to_dict("records")},
            )
