"""Processes: choosing devices, starting workers, process groups and sums over workers. Knows no biology."""

from gears.core._installation import torch_problem

if torch_problem() is None:  # else `gears doctor` says why
    from gears.distributed._devices import DevicePlan, choose_backend, choose_devices, find_device, plan_devices
    from gears.distributed._group import (
        check_timeout,
        cleanup_ddp,
        join_group,
        rank_0_first,
        setup_ddp,
        setup_ddp_multi_node,
        setup_distributed,
    )
    from gears.distributed._launch import (
        Outcome,
        WorkerError,
        check_not_daemonic,
        exit_unguarded_child,
        launch,
        launch_many,
    )
    from gears.distributed._world import (
        GroupReducer,
        World,
        barrier,
        current_world,
        is_main_process,
        is_running,
        reduce_tensor,
    )

__all__ = [
    "DevicePlan", "GroupReducer", "Outcome", "WorkerError", "World", "barrier", "check_not_daemonic", "check_timeout",
    "choose_backend", "choose_devices", "cleanup_ddp", "current_world", "exit_unguarded_child", "find_device",
    "is_main_process", "is_running", "join_group", "launch", "launch_many", "plan_devices", "rank_0_first",
    "reduce_tensor", "setup_ddp", "setup_ddp_multi_node", "setup_distributed",
]  # fmt: skip
