"""Train on several GPUs or CPU processes from one Python call.

:func:`train_multi_gpu` prepares the screen once, starts one worker per device, and returns the
model's folder, its history and its test scores. The result is the same for any number of workers
at the same global batch, up to rounding (bit for bit with ``reproducible=True``).
"""

from __future__ import annotations

from gears.distributed._group import cleanup_ddp, setup_ddp, setup_ddp_multi_node, setup_distributed
from gears.jobs._job import train_ddp_worker, train_multi_gpu
from gears.training._trainer import TrainingEngine
from gears.training.any_model import distributed_train_worker, launch_distributed_training

__all__ = [
    "TrainingEngine", "cleanup_ddp", "distributed_train_worker", "launch_distributed_training", "setup_ddp",
    "setup_ddp_multi_node", "setup_distributed", "train_ddp_worker", "train_multi_gpu",
]  # fmt: skip


def main() -> None:
    """``python -m gears.train_distributed``: the options of ``gears train``, also under torchrun."""
    import sys

    from gears.cli.main import main as command

    # torch.distributed.launch adds --local-rank=N to the user's arguments; LOCAL_RANK has the same value
    words = [word for word in sys.argv[1:] if not word.startswith(("--local-rank=", "--local_rank="))]
    sys.exit(command(["train", *words]))


if __name__ == "__main__":
    main()
