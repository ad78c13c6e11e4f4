"""Processes: choosing devices, starting workers, process groups and sums over workers. Knows no biology."""

from __future__ import annotations

from gears.core._lazy import lazy_names

_NAMES = {
    "_devices": ("DevicePlan", "choose_backend", "choose_devices", "find_device", "plan_devices"),
    "_group": (
        "check_timeout", "cleanup_ddp", "join_group", "rank_0_first", "setup_ddp", "setup_ddp_multi_node",
        "setup_distributed",
    ),
    "_launch": ("Outcome", "WorkerError", "check_not_daemonic", "exit_unguarded_child", "launch", "launch_many"),
    "_world": ("GroupReducer", "World", "barrier", "current_world", "is_main_process", "is_running", "reduce_tensor"),
}  # fmt: skip
_HOMES = {name: f"{__name__}.{module}" for module, names in _NAMES.items() for name in names}
# `gears doctor` imports this room to say that torch is missing: importing it must not need torch
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
