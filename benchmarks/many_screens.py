"""Many screens with their own genes in one model: from prepared folders to a fitted prior, in CPU seconds and memory.

    python benchmarks/run.py many_screens                                   5 screens of 400 conditions x 1,500 genes
    python benchmarks/run.py many_screens --screens 20 --conditions 2000 --genes 5000 --choices shared

Each screen is a simulated line that measures its own draw of 95 % of the genes, half of its effects its own, prepared
alone first (not counted). Then ``join`` puts the prepared folders together (:meth:`gears.PertData.from_screens`), and
``prior`` fits the prior to all but a tenth of the conditions of single lines. ``error`` is that of the mean change of
held-out conditions in measured genes, beside ``train_mean``. Memory is what the process holds for itself at most.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anndata
import numpy as np
import pandas as pd
from measuring import Measurement, Result, table
from scipy import sparse

from gears import GEARS, PertData

MEASURED = 0.95  # share of the genes that a line measures
CONTROLS = 200
TERMS = 40  # invented terms of the genes, which effects do not follow


def line_of(number: int, conditions: int, genes: int, cells: int) -> anndata.AnnData:
    """Log-normalised cells of one line, most of whose counts are 0."""
    rng, shared = np.random.default_rng([1, number]), np.random.default_rng(0)
    names = np.array([f"G{i:05d}" for i in range(genes)])
    rate_G = shared.gamma(0.5, 0.6, size=genes) * np.exp(0.3 * rng.standard_normal(genes))
    blocks, labels = [rng.poisson(np.tile(rate_G, (CONTROLS, 1)))], ["ctrl"] * CONTROLS
    for condition in range(conditions):
        responds = shared.random(genes) < 0.1
        effect_G = responds * (shared.standard_normal(genes) + rng.standard_normal(genes)) / 2**0.5
        blocks.append(rng.poisson(np.tile(rate_G * np.exp(0.8 * effect_G), (cells, 1))))
        labels += [f"{names[condition]}+ctrl"] * cells
    measured = np.sort(rng.permutation(genes)[: round(MEASURED * genes)])
    counts = sparse.vstack([sparse.csr_matrix(block[:, measured].astype(np.float32)) for block in blocks], format="csr")
    totals = np.maximum(np.asarray(counts.sum(axis=1)).ravel(), 1)
    values = sparse.csr_matrix(sparse.diags(1e4 / totals).astype(np.float32) @ counts)
    values.data = np.log1p(values.data)
    obs = pd.DataFrame({"condition": labels, "cell_type": "line"}, index=[f"c{i}" for i in range(len(labels))])
    return anndata.AnnData(values, obs=obs, var=pd.DataFrame({"gene_name": names[measured]}, index=names[measured]))


def many_screens(
    screens: tuple[int, ...] = (5,), conditions: int = 400, genes: int = 1500, cells: int = 10,
    choices: tuple[str, ...] = ("shared", "all"),
) -> Iterator[Result]:  # fmt: skip
    """Yield the table after every number of screens and both choices of genes."""
    rng = np.random.default_rng(3)
    gene2go = {f"G{i:05d}": {f"T{term}" for term in rng.choice(TERMS, 3, replace=False)} for i in range(genes)}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        prepared: dict[str, Path] = {}
        for number in range(max(screens)):
            data = PertData(Path(folder) / "lines", gene2go=gene2go)
            data.new_data_process(f"L{number:02d}", line_of(number, conditions, genes, cells), skip_calc_de=True)
            assert data.dataset_path is not None
            prepared[f"L{number:02d}"] = data.dataset_path
        del data
        for n_screens in screens:
            for choice in choices:
                gc.collect()
                part = dict(list(prepared.items())[:n_screens])
                rows.append(_row(part, Path(folder) / f"{choice}{n_screens}", choice, gene2go))
                title = "Many screens, each with its own genes: from prepared folders to a prior"
                yield Result(title, table(rows), {"table": rows})


def _row(part: dict[str, Path], folder: Path, choice: str, gene2go: dict[str, set[str]]) -> dict[str, Any]:
    with Measurement() as join:
        data = PertData.from_screens(
            part, data_path=folder, genes=choice, gene2go=gene2go, skip_calc_de=True, verbose=False
        )
    with Measurement() as prior:
        data.prepare_split("unit_held_out", seed=1)
        model = GEARS(data, device="cpu")
        model.model_initialize()
        model.train(epochs=0, verbose=False, evaluate_test=False)
    scores = model.evaluate("test", metrics=["relative_error"], n_split_half=0, baselines=["train_mean"])
    error = scores.groupby("method")["value"].mean()
    row: dict[str, Any] = {
        "screens": len(part), "conditions": len(data.screen.conditions) - len(part), "genes": choice,
        "measured": len(data.gene_names), "cells": len(data.screen.cells),
    }  # fmt: skip
    for name, block in (("join", join), ("prior", prior)):
        row |= {f"{name} CPU s": round(block.figures["cpu_s"], 1), f"{name} own MB": round(block.figures["own_mb"])}
    return row | {"relative_error": round(error["gears"], 3), "train_mean": round(error["train_mean"], 3)}
