"""Table, plot and JSON of a comparison."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

LABELS = {
    "startup": "import",
    "process": "read h5ad + process",
    "load": "load",
    "process_load": "process + load",
    "go_graph": "GO graph",
    "coexpression": "co-expression graph",
    "initialise": "graphs and network of the model",
    "step": "one training step, 32 cells",
    "epoch": "an epoch with its scores",
    "train": "training, whole",
    "predict": "predicting 100 conditions",
    "evaluation": "evaluation of the test part",
}


def middle(runs, name):
    """Median of a figure over rounds, per item where a stage counts items (``n`` steps)."""
    return statistics.median(run[name] for run in runs)


def row_of(stage, entry, scale=(1.0, 1.0)):
    """A table row: figures of both sides and their ratios; `scale` multiplies seconds (published, own)."""
    row = {"stage": LABELS.get(stage, stage)}
    for side, factor in zip(("published", "own"), scale, strict=True):
        runs = entry[side]
        row |= {f"{side}_{name}": factor * middle(runs, name) for name in ("cpu_s", "wall_s")}
        row[f"{side}_peak_mb"] = max(run["peak_mb"] for run in runs)
        row[f"{side}_load"] = middle(runs, "load")
    for name in ("cpu_s", "wall_s", "peak_mb"):
        row[f"ratio_{name}"] = (
            row[f"published_{name}"] / row[f"own_{name}"] if row[f"own_{name}"] else float("inf")
        )
    return row


def summed(first, second):
    """Two stages of the same rounds as one."""
    return {
        side: [
            {"peak_mb": max(a["peak_mb"], b["peak_mb"]), "load": a["load"]}
            | {name: a[name] + b[name] for name in ("cpu_s", "wall_s")}
            for a, b in zip(first[side], second[side], strict=True)
        ]
        for side in ("published", "own")
    }


def rows_of(stages):
    """Rows of all stages that both sides ran."""
    stages = dict(stages)
    if {"process", "load"} <= set(stages):
        stages["process_load"] = summed(stages["process"], stages["load"])
    rows = []
    for stage in LABELS:
        entry = stages.get(stage, {})
        if set(entry) < {"published", "own"}:
            continue
        scale = (1.0, 1.0)
        if stage == "step":
            scale = tuple(1 / entry[side][0]["n"] for side in ("published", "own"))
        if stage == "predict":
            scale = tuple(100 / entry[side][0]["n"] for side in ("published", "own"))
        rows.append(row_of(stage, entry, scale))
    return rows


def first_at_most(history, target):
    """CPU seconds of the first record whose error is at most `target`; None where none is."""
    return next((record["cpu_s"] for record in history if record["mse_top20_de"] <= target), None)


def training_summary(training):
    """Per run: CPU seconds to the error that the published training ends with, its last and best error."""
    published = training["published"]
    target = published[-1]["mse_top20_de"]
    summary = {}
    for name in [name for name in training if name in ("published", "cells", "moments", "default")]:
        history = training[name]
        summary[name] = {
            "epochs": history[-1]["epoch"],
            "cpu_s": history[-1]["cpu_s"],
            "last": history[-1]["mse_top20_de"],
            "best": min(record["mse_top20_de"] for record in history),
            "cpu_s_to_target": first_at_most(history, target),
        }
    reached = published[-1]["cpu_s"]
    soonest = summary["published"]["cpu_s_to_target"]
    for entry in summary.values():
        own = entry["cpu_s_to_target"]
        entry["ratio"] = reached / own if own else None
        entry["ratio_to_soonest"] = soonest / own if own and soonest else None
    return {"target": target, "runs": summary}


def markdown(record):
    """The table as Markdown."""
    place, simulation = record["machine"], record["simulation"]
    lines = [
        f"# Compared with cell-gears 0.1.2, size `{record['size']}`",
        "",
        f"{simulation['n_genes']} genes, {simulation['n_singles']} single and {simulation['n_pairs']} double "
        f"perturbations of {simulation['cells_per_condition']} cells, {simulation['n_control']} control cells. "
        f"{place['cpu']}, {place['cores']} cores, {place['threads']} thread(s) per package; "
        f"commit {record['commit']}; `{record['command']}`.",
        "",
        "Each figure: cell-gears, here, ratio.",
        "",
        "| stage | CPU s | | ratio | wall s | | ratio | peak MiB | | ratio | load |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows_of(record["stages"]):
        cells = [row["stage"]]
        for name in ("cpu_s", "wall_s"):
            cells += [f"{row[f'{side}_{name}']:.4g}" for side in ("published", "own")]
            cells.append(f"{row[f'ratio_{name}']:.3g}")
        cells += [f"{row[f'{side}_peak_mb']:.0f}" for side in ("published", "own")]
        cells += [f"{row['ratio_peak_mb']:.2g}", f"{row['published_load']:.1f}, {row['own_load']:.1f}"]
        lines.append("| " + " | ".join(cells) + " |")
    if "training" not in record:
        lines += [
            "",
            "Networks are compared at the default size: at this one the GO graph of all genes alone would take "
            "cell-gears about ten minutes, and an epoch longer.",
        ]
    if "training" in record:
        lines += ["", *_training_lines(record["training"])]
    versions = record["stages"]["startup"]
    for side in ("published", "own"):
        found = ", ".join(f"{name} {value}" for name, value in versions[side][0]["versions"].items())
        lines += ["", f"Versions ({side}): {found}."]
    return "\n".join(lines) + "\n"


def _training_lines(training):
    summary = training_summary(training)
    lines = [
        f"## Validation mse_top20_de (cell-gears ends at {summary['target']:.5g})",
        "",
        "| training | epochs | CPU s | last | best | CPU s to cell-gears' end | times less than its whole run "
        "| than its first arrival |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, run in summary["runs"].items():
        reached = "-" if run["cpu_s_to_target"] is None else f"{run['cpu_s_to_target']:.3g}"
        ratios = ["-" if run[key] is None else f"{run[key]:.3g}" for key in ("ratio", "ratio_to_soonest")]
        numbers = [
            f"{run['epochs']}",
            f"{run['cpu_s']:.4g}",
            f"{run['last']:.5g}",
            f"{run['best']:.5g}",
            reached,
        ]
        lines.append("| " + " | ".join([name, *numbers, *ratios]) + " |")
    metrics = list(training["test"]["published"])
    lines += ["", "## Test conditions", "", "| model | " + " | ".join(metrics) + " |"]
    lines.append("|---|" + "---:|" * len(metrics))
    for name, scores in training["test"].items():
        lines.append(f"| {name} | " + " | ".join(f"{scores[metric]:.5g}" for metric in metrics) + " |")
    return [
        *lines,
        "",
        "Both packages' predictions are scored by the same functions against the same truth; those of cell-gears "
        "without the noise of the control cells it draws, and what it scores on the way is in the JSON file.",
    ]


CURVES = {
    "published": "cell-gears 0.1.2",
    "cells": "here, network alone on cells",
    "moments": "here, network alone on moments",
    "default": "here, train() as it is",
}


def plot(training, path):
    """Validation error against CPU seconds, both."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4.4), layout="constrained")
    for name in ("published", "cells", "moments", "default"):
        if name in training:
            history = training[name]
            label = CURVES[name]
            axes.plot(
                [record["cpu_s"] for record in history],
                [record["mse_top20_de"] for record in history],
                marker=".",
                label=label,
            )
    axes.axhline(training["published"][-1]["mse_top20_de"], color="grey", linestyle=":", linewidth=1)
    axes.set(xscale="log", xlabel="CPU seconds of training", ylabel="validation mse_top20_de")
    figure.legend(loc="outside upper center", ncols=2, frameon=False)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def report(record, folder):
    """Write JSON, Markdown and plot; returns the Markdown."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    base = folder / f"vs_cell_gears-{record['size']}"
    text = markdown(record)
    base.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")
    base.with_suffix(".md").write_text(text)
    if "training" in record:
        plot(record["training"], base.with_suffix(".png"))
    return text
