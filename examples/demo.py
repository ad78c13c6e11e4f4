"""The main job from end to end on a simulated screen: what `make demo` runs.

Simulates a screen, trains on it with worker processes, saves the model, loads it again for
one device, predicts gene pairs that training has not seen, and writes to `demo_output/`:

    screen.h5ad            the simulated screen (the genes are real symbols, the cells are not real)
    model/                 the trained model; GEARS.from_pretrained needs nothing else
    report/report.html     scores of the model beside simple baselines, with figures
    predictions.csv        predicted expression of the unseen pairs

In this screen pairs do not add up: what a pair does beyond its single genes follows from what is known of the two
genes (Gene Ontology). The network learns that and the prior cannot, so training it on several devices pays.
"""

from __future__ import annotations

import argparse
import shutil
import time
from pathlib import Path


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The main job on a simulated screen.")
    parser.add_argument("--output", type=Path, default=Path("demo_output"), help="folder for the results")
    parser.add_argument("--workers", type=int, default=2, help="CPU processes that train")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--n-genes", type=int, default=60, help="measured genes")
    parser.add_argument("--n-singles", type=int, default=24, help="genes perturbed alone")
    parser.add_argument("--n-pairs", type=int, default=270, help="pairs of genes perturbed together")
    return parser.parse_args()


def main() -> None:
    options = parse_arguments()
    folder, began = options.output, time.monotonic()
    say("importing")
    from gears import GEARS, PertData, train_multi_gpu
    from gears.files.formats import write_text
    from gears.simulate import simulate_to_h5ad

    for name in ("screen", "model"):  # of an earlier demo, maybe with other options
        shutil.rmtree(folder / name, ignore_errors=True)
    say(f"1/5  simulating a screen: {options.n_singles} single genes, {options.n_pairs} pairs")
    simulate_to_h5ad(
        folder / "screen.h5ad",
        n_genes=options.n_genes,
        n_singles=options.n_singles,
        n_pairs=options.n_pairs,
        interaction_share=1.0,
        interaction_kinds="products",
        cells_per_condition=80,
        counts_per_gene=4.0,
        effect_size=1.0,
        effect_share=0.5,
        common_effect=0.0,
        seed=1,
        overwrite=True,
    )

    say("2/5  preparing it and holding out pairs")
    data_config = {"default_pert_graph": False}  # a small graph: measured and perturbed genes only
    split_config = {"split": "combo_seen2", "seed": 1}
    pert_data = PertData(folder, **data_config)
    pert_data.load(data_path=folder / "screen.h5ad")
    pert_data.prepare_split(**split_config)

    say(f"3/5  training with {options.workers} worker processes")
    result = train_multi_gpu(
        folder,
        "screen",
        split_config,
        {"save_path": folder / "model", "epochs": options.epochs},
        n_gpus=options.workers,
        device="cpu",
        data_config=data_config,
    )
    print(f"predictions: prior + {result.network_weight:g} x network")

    say("4/5  loading the saved model for one device and predicting the pairs that were held out")
    model = GEARS.from_pretrained(result.save_path, device="cpu")
    predictions = model.predict(pert_data.split.conditions("test"))
    print(f"{predictions.header}; the first of them:")
    print(predictions.top(5).head(5).round(3).to_string(index=False))
    write_text(folder / "predictions.csv", predictions.to_frame().to_csv())

    say("5/5  writing the report")
    model = GEARS(pert_data, device="cpu")
    model.load_pretrained(result.save_path)
    model.evaluate("test", report=folder / "report")

    say(f"done in {time.monotonic() - began:.0f} s; results:")
    for name in ("report/report.html", "predictions.csv", "model"):
        print(f"  {folder / name}")


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
