"""Predict with a trained model on one device; no training data is needed.

python examples/predict.py models/run1 KLF1 AHR+KLF1 --output predictions.csv
python examples/predict.py        the model of `make demo`, and two of its genes
"""

from __future__ import annotations

import argparse
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description="Predict the expression after perturbations.")
    parser.add_argument("model", type=Path, nargs="?", default=Path("demo_output/model"), help="a model's folder")
    parser.add_argument("conditions", nargs="*", help="a gene, or genes joined by +")
    parser.add_argument("--output", type=Path, default=Path("predictions.csv"))
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    options = parser.parse_args()
    from gears import GEARS

    model = GEARS.from_pretrained(options.model, device=options.device)
    predictions = model.predict(options.conditions or model.pert_list[:2])
    predictions.to_frame().to_csv(options.output)  # conditions x genes, log-normalised expression
    print(predictions.top(5).round(3).to_string(index=False))
    print(f"all {len(predictions.gene_names)} genes: {options.output}")


if __name__ == "__main__":
    main()
