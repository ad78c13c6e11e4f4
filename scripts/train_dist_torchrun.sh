#!/usr/bin/env bash
# Train on the GPUs of this machine through torchrun.
#   scripts/train_dist_torchrun.sh --config configs/base.yaml DATA        (all GPUs)
#   scripts/train_dist_torchrun.sh --num_gpus 2 --config run.yaml         (the file has a line data: screen.h5ad)
# Further arguments go to `gears train`. Without a GPU, --num_gpus CPU processes are started.
set -euo pipefail

num_gpus=""
config=""
rest=()
while [ $# -gt 0 ]; do
    case "$1" in
        --num_gpus) num_gpus=${2:?--num_gpus needs a number}; shift 2 ;;
        --config) config=${2:?--config needs a file}; shift 2 ;;
        -h | --help) sed -n '2,5p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
        *) rest+=("$1"); shift ;;
    esac
done
if [ -z "$num_gpus" ]; then
    num_gpus=$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')
fi
if [ -n "$config" ] && [ ! -f "$config" ]; then
    echo "there is no file $config (--config)" >&2
    exit 2
fi
exec python -m torch.distributed.run --standalone --nproc_per_node "$num_gpus" \
    -m gears.train_distributed ${config:+--config "$config"} ${rest[@]+"${rest[@]}"}
