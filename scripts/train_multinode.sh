#!/usr/bin/env bash
# Train on several machines: run this on each of them, with its own --node_rank.
#   scripts/train_multinode.sh --num_nodes 2 --node_rank 0 --num_gpus 4 --master_addr HOST --config configs/base.yaml DATA
# DATA may be in the file instead (data: screen.h5ad). HOST is the first machine as the others reach it; its port
# MASTER_PORT (29500) must be open. Screen and save_path lie on storage that all machines see. Further arguments go to `gears train`.
set -euo pipefail

num_nodes="" node_rank="" num_gpus="" master_addr="" config=""
rest=()
while [ $# -gt 0 ]; do
    case "$1" in
        --num_nodes) num_nodes=${2:?--num_nodes needs a number}; shift 2 ;;
        --node_rank) node_rank=${2:?--node_rank needs a number}; shift 2 ;;
        --num_gpus) num_gpus=${2:?--num_gpus needs a number}; shift 2 ;;
        --master_addr) master_addr=${2:?--master_addr needs a host}; shift 2 ;;
        --config) config=${2:?--config needs a file}; shift 2 ;;
        -h | --help) sed -n '2,7p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
        *) rest+=("$1"); shift ;;
    esac
done
for name in num_nodes node_rank master_addr; do
    if [ -z "${!name}" ]; then
        echo "--$name is missing (see --help)" >&2
        exit 2
    fi
done
if [ -z "$num_gpus" ]; then
    num_gpus=$(python -c 'import torch; print(max(1, torch.cuda.device_count()))')
fi
exec python -m torch.distributed.run --nnodes "$num_nodes" --node_rank "$node_rank" --nproc_per_node "$num_gpus" \
    --master_addr "$master_addr" --master_port "${MASTER_PORT:-29500}" \
    -m gears.train_distributed ${config:+--config "$config"} ${rest[@]+"${rest[@]}"}
