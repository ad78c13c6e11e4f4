"""What is each packaged source of gene knowledge worth on real screens?

    python benchmarks/run.py packaged --data FOLDER

The prior with GO and co-expression alone, and with one packaged source or all of them beside: on subsets of three real
screens in five folds, and on the profiles of knock-downs in two lines (FOLDER/replogle2022_two_lines_ranks.tsv.gz),
where genes that were never perturbed are predicted from 100 or 200 others. Gains are paired by condition.
"""

from __future__ import annotations

import contextlib
import gzip
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Result, table
from screens import folds_of, gained, known_and_tested, screens

from gears.evaluation._fitted import settings_of
from gears.evaluation._rows import pearson_rows
from gears.evaluation.metrics import condition_metrics
from gears.evaluation.truth import Truth
from gears.graphs import KNOWLEDGE, SIMILARITIES, GeneAnnotation, knowledge_table
from gears.graphs._knowledge import term_vectors
from gears.priors import PriorData, fit_prior
from gears.priors._source import fit_to, go_similarity, vector_similarity

TRIED: dict[str, tuple[str, ...]] = {"GO": (), **{name: (name,) for name in KNOWLEDGE}, "all": tuple(KNOWLEDGE)}
MOST_GENES, CELLS, VARIANCE = 1500, 50.0, 0.5  # of the profiles of ranks, whose noise is not known


def packaged(data: Path | None = None, draws: int = 2, small: bool = False) -> Iterator[Result]:
    """Gains in the correlation of specific changes, on every real screen that the folder has."""
    if data is None:
        yield Result("Packaged knowledge of genes on real screens", ["No folder of real screens was given."], {})
        return
    rows: list[dict[str, Any]] = []
    for name, values in (*of_subsets(data), *of_two_lines(data, 1 if small else draws)):
        row = {"screen": name, "conditions": len(values["GO"]), "GO": float(np.nanmean(values["GO"]))}
        for source in list(TRIED)[1:]:
            text, verdict = gained(np.nan_to_num(values[source]) - np.nan_to_num(values["GO"]))
            row[source] = text if "within" in verdict else f"{text} **{verdict}**"
        rows.append(row)
        print(name, flush=True)
        lines = ["`pearson_delta_ref` with GO alone, and what each source beside it gains (95 %):", "", *table(rows)]
        yield Result("Packaged knowledge of genes on real screens", lines, {"rows": rows})


def of_subsets(data: Path) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """Each condition of the three subsets where it is held out."""
    for screen in screens((), data, ()):
        found: dict[str, list[np.ndarray]] = {name: [] for name in TRIED}
        with screen.prepared() as prepared:
            for split in folds_of(prepared, 5):
                prepared.use_split(split)
                known, tested = known_and_tested(split)
                (setting,) = settings_of(prepared.screen, tested, known)
                reference_G = setting.means.reference_mean()
                truth = Truth.of(setting.screen, setting.conditions, reference_mean_G=reference_G, pooled=known)
                nodes = [prepared.condition_nodes(tested[row]) for row in setting.rows]
                for name, kept in TRIED.items():
                    with only(kept):
                        prior = fit_to(prepared, sorted(known, key=prepared.screen.id_of)).prior
                    predicted_UG = prepared.screen.control_mean_G + prior(nodes)
                    found[name].append(condition_metrics(predicted_UG, truth, ["pearson_delta_ref"])[:, 0])
        yield screen.name, {name: np.concatenate(parts) for name, parts in found.items()}


@contextlib.contextmanager
def only(kept: Sequence[str]) -> Iterator[None]:
    """Of the packaged sources some alone."""
    omitted = {name: SIMILARITIES[name] for name in KNOWLEDGE if name not in kept}
    for name in omitted:
        del SIMILARITIES[name]
    try:
        yield
    finally:
        for name, table_of in omitted.items():
            SIMILARITIES.add(name, table_of)


def of_two_lines(data: Path, draws: int) -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
    """Knock-downs that training lacks, in each line."""
    with gzip.open(data / "replogle2022_two_lines_ranks.tsv.gz", "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file][1:]
    for line in sorted({row[0] for row in rows}):
        names, profile_CG = profiles([row for row in rows if row[0] == line])
        for n_train in (100, 200):
            found: dict[str, list[np.ndarray]] = {name: [] for name in TRIED}
            for draw in range(draws):
                order = np.random.default_rng(draw).permutation(len(names))
                for name, sources in TRIED.items():
                    found[name].append(of_draw(names, profile_CG, np.sort(order[:n_train]), order[n_train:], sources))
            # a knock-down that several draws test counts once in each
            yield f"{line}, {n_train} knock-downs", {name: np.concatenate(parts) for name, parts in found.items()}


def profiles(rows: list[list[str]]) -> tuple[list[str], np.ndarray]:
    """Knocked-down genes of a line and their profiles, 1 - rank / 1000, over the genes that most of them raise."""
    listed = [row[2].split(" ") for row in rows]
    genes, number = np.unique(np.concatenate(listed), return_counts=True)
    column = {gene: at for at, gene in enumerate(genes[np.argsort(-number, kind="stable")[:MOST_GENES]].tolist())}
    profile_CG = np.zeros((len(rows), len(column)))
    for row, names in enumerate(listed):
        for rank, gene in enumerate(names):
            if gene in column:
                profile_CG[row, column[gene]] = 1 - rank / 1000
    return [row[1] for row in rows], profile_CG


def of_draw(
    names: list[str], profile_CG: np.ndarray, trained: np.ndarray, tested: np.ndarray, sources: tuple[str, ...]
) -> np.ndarray:
    """Correlation of predicted and true departures from the train mean, by tested knock-down."""
    sets, train_CG = tuple((int(node),) for node in trained), profile_CG[trained]
    n_genes, others_CG = train_CG.shape[1], (train_CG.sum(axis=0) - train_CG) / (len(train_CG) - 1)
    further = {name: vector_similarity(term_vectors(knowledge_table(name), names), sets) for name in sources}
    data = PriorData(
        sets, train_CG, np.full(n_genes, VARIANCE), np.full(len(sets), CELLS), np.zeros(n_genes),
        np.full(len(names), -1), go_similarity(GeneAnnotation.human(), names, sets), further,
    )  # fmt: skip
    size = float(((train_CG - others_CG) ** 2).sum(axis=1).mean())

    def criterion(change_CG: np.ndarray) -> np.ndarray:
        correlation_C = pearson_rows(change_CG - others_CG, train_CG - others_CG)
        return np.stack([((change_CG - train_CG) ** 2).sum(axis=1) / size, -np.nan_to_num(correlation_C)])

    predicted_UG = fit_prior(data, criterion).prior([(int(node),) for node in tested])
    mean_G = train_CG.mean(axis=0)
    return np.nan_to_num(pearson_rows(predicted_UG - mean_G, profile_CG[tested] - mean_G))
