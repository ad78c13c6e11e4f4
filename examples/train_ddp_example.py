"""Train on a screen with several GPUs or CPU processes; without ``--data`` on a simulated one.

python examples/train_ddp_example.py --cpu-workers 2
python examples/train_ddp_example.py --data screen.h5ad --gpu-ids 0 2 --save-path models/run1
python examples/train_ddp_example.py --data screen.h5ad --cpu-workers 2 --save-path models/run1
python examples/train_ddp_example.py --data data --dataset norman --save-path models/run1
"""

from __future__ import annotations

import argparse
from pathlib import Path


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train on a screen with several GPUs or CPU processes.")
    parser.add_argument("--data", type=Path, help="an h5ad file, or the folder that holds --dataset")
    parser.add_argument("--dataset", help="name of a screen in the folder --data")
    devices = parser.add_mutually_exclusive_group()
    devices.add_argument("--gpu-ids", type=int, nargs="+", help="GPUs, one worker on each; all of them if omitted")
    devices.add_argument("--cpu-workers", type=int, help="train with this many CPU processes instead")
    parser.add_argument("--epochs", type=int, help="epochs of the GEARS network; by default the prior predicts")
    parser.add_argument("--network-alone", action="store_true", help="train the network without the prior")
    parser.add_argument("--save-path", type=Path, default=Path("train_output/model"), help="folder for the model")
    parser.add_argument("--work-dir", type=Path, default=Path("train_output"), help="for what is made of an h5ad file")
    text = "only measured and perturbed genes can be perturbed, not every annotated one: quicker"
    parser.add_argument("--small-graph", action="store_true", help=text)
    options = parser.parse_args()
    if options.data is not None and options.data.is_dir() and options.dataset is None:
        parser.error("--data is a folder: say with --dataset which screen in it")
    return options


def main() -> None:
    options = parse_arguments()
    from gears import PertData, train_multi_gpu
    from gears.simulate import simulate_to_h5ad

    if options.data is None:
        options.data = options.work_dir / "simulated.h5ad"
        simulate_to_h5ad(options.data, n_genes=60, n_singles=12, n_pairs=8, cells_per_condition=20, overwrite=True)
    folder, dataset = options.data, options.dataset
    data_config = {"default_pert_graph": not options.small_graph}
    if not folder.is_dir():
        pert_data = PertData(options.work_dir, **data_config)
        pert_data.load(data_path=options.data)  # checked and prepared; nothing is written beside the file
        folder, dataset = options.work_dir, pert_data.dataset_name
    result = train_multi_gpu(
        folder,
        dataset,
        {"split": "simulation", "seed": 1},
        {"save_path": options.save_path, "epochs": options.epochs, "prior": None if options.network_alone else "auto"},
        n_gpus=options.cpu_workers,
        gpu_ids=options.gpu_ids,
        device="cpu" if options.cpu_workers else None,
        data_config=data_config,
    )
    print(f"trained on {', '.join(result.devices)}; saved in {result.save_path}")
    for name, value in result.test_metrics.items():
        print(f"test {name:<24}{value:.4f}")


# Worker processes import this file again: what starts them must be guarded.
if __name__ == "__main__":
    main()
