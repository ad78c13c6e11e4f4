"""The main job from end to end on a simulated screen: what `make demo` runs.

Simulates a screen, trains on it with worker processes, saves the model, loads it again for
one device, predicts gene pairs that training has not seen, and writes to `demo_output/`:

    screen.h5ad            the simulated screen (the genes are real symbols, the cells are not real)
    model/                 the trained model; GEARS.from_pretrained needs nothing else
    predictions.csv        predicted expression of the unseen pairs
    comparison.csv         scores of the model and of simple baselines, per condition and metric
    predicted_vs_true.png  predicted against true change, one panel per pair
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path

METRICS = ("pearson_delta_ref", "relative_error", "mse_top20_de")


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The main job on a simulated screen.")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder for the results")
    parser.add_argument("--workers", type=int, default=2, help="CPU processes that train")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--n-genes", type=int, default=250, help="measured genes")
    parser.add_argument("--n-singles", type=int, default=30, help="genes perturbed alone")
    parser.add_argument("--n-pairs", type=int, default=30, help="pairs of genes perturbed together")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    folder, began = options.output, time.monotonic()
    say("importing")
    from gears import GEARS, PertData, train_multi_gpu
    from gears.evaluation import comparison_table, verdict, wide_summary
    from gears.evaluation.metrics import ALL
    from gears.evaluation.truth import Truth
    from gears.files.formats import write_text
    from gears.plotting import prediction_figure, save_figure
    from gears.simulate import simulate_to_h5ad

    for name in ("screen", "model"):  # of an earlier demo, maybe with other options
        shutil.rmtree(folder / name, ignore_errors=True)
    say(f"1/5  simulating a screen: {options.n_singles} single genes, {options.n_pairs} pairs")
    simulate_to_h5ad(
        folder / "screen.h5ad",
        n_genes=options.n_genes,
        n_singles=options.n_singles,
        n_pairs=options.n_pairs,
        cells_per_condition=30,
        n_control=200,
        effect_size=1.0,
        target_effect=-0.5,
        seed=1,
        overwrite=True,
    )

    say("2/5  preparing it and holding out conditions")
    data_config = {"default_pert_graph": False}  # a small graph: measured and perturbed genes only
    split_config = {"split": "simulation", "seed": 1, "train_gene_set_size": 0.8}
    pert_data = PertData(folder, **data_config)
    pert_data.load(data_path=folder / "screen.h5ad")
    pert_data.prepare_split(**split_config)
    screen, split = pert_data.screen, pert_data.split

    say(f"3/5  training with {options.workers} worker processes")
    settings = {
        "save_path": folder / "model",
        "epochs": options.epochs,
    }
    result = train_multi_gpu(
        folder,
        "screen",
        split_config,
        settings,
        n_gpus=options.workers,
        device="cpu",
        data_config=data_config,
    )

    say("4/5  loading the saved model for one device and predicting the pairs that were held out")
    model = GEARS.from_pretrained(result.save_path, device="cpu")
    pairs = [condition for condition in split.conditions("test") if len(condition) == 2]
    predictions = model.predict(pairs)
    print(f"{predictions.header}; the first pair:")
    print(predictions.top(5).head(5).round(3).to_string(index=False))

    say("5/5  comparing with the cells of these pairs and with baselines")
    table = comparison_table(predictions.expression_UG, pairs, screen, split, metrics=METRICS)
    print(f"{verdict(table)}\n\n{wide_summary(table).loc[ALL].round(3).to_string()}")
    write_text(folder / "predictions.csv", predictions.to_frame().to_csv())
    write_text(folder / "comparison.csv", table.to_csv(index=False))
    truth = Truth.of(screen, pairs, split.conditions("train"))
    figure = prediction_figure(predictions.expression_UG, truth, predictions.gene_names)
    save_figure(figure, folder / "predicted_vs_true.png")

    say(f"done in {time.monotonic() - began:.0f} s; results are in {folder}/:")
    for name in ("predicted_vs_true.png", "comparison.csv", "predictions.csv", "model"):
        print(f"  {folder / name}")


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
