"""Setting up process groups by hand, and helpers that do nothing in one process."""

import pytest
import torch

from gears.distributed import (
    GroupReducer,
    barrier,
    cleanup_ddp,
    current_world,
    is_main_process,
    launch,
    reduce_tensor,
    setup_ddp,
    setup_distributed,
)


def test_helpers_are_no_ops_in_one_process_and_a_variable_that_nobody_reads_is_reported(
    meeting_point, monkeypatch, caplog: pytest.LogCaptureFixture
) -> None:
    value = torch.arange(3.0)
    assert is_main_process()
    assert barrier() is None
    assert reduce_tensor(value) is value
    assert (current_world().rank, current_world().world_size) == (0, 1)
    with pytest.raises(ValueError, match="unknown reduction"):
        reduce_tensor(value, op="median")
    monkeypatch.setenv("NCCL_TIMEOUT", "1800")
    setup_ddp(0, 1, device="cpu")
    cleanup_ddp()
    assert "NCCL_TIMEOUT has no effect" in caplog.text


def test_variables_that_describe_no_world_are_refused(monkeypatch) -> None:
    for name in ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert setup_distributed() == (0, 0, 1), "nothing is started without a launcher"
    with pytest.raises(RuntimeError, match="MASTER_ADDR and MASTER_PORT not set"):
        setup_ddp(0, 2)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"not MASTER_ADDR and MASTER_PORT: start .* with torchrun"):
        setup_distributed()
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with pytest.raises(ValueError, match=r"RANK=2, WORLD_SIZE=2.*describe no worker"):
        setup_distributed()
    monkeypatch.delenv("MASTER_ADDR")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nic99")
    with pytest.raises(ValueError, match="GLOO_SOCKET_IFNAME names nic99, which this machine does not have"):
        setup_ddp(0, 1, device="cpu")


def _sums(rank: int, world_size: int) -> dict:
    world = setup_ddp(rank, world_size)  # joins the running group
    reducer = GroupReducer()
    barrier()
    with pytest.raises(RuntimeError, match="already running"):
        setup_ddp(rank + 1, world_size)
    return {
        "world": (world.rank, world.world_size, str(world.device)),
        "sum": reducer.sum(torch.tensor([1.0 + rank])).tolist(),
        "gather": reducer.gather(torch.tensor([float(rank)])).flatten().tolist(),
        "mean": reduce_tensor(torch.tensor([2 + 2 * rank])).tolist(),
        "added": reduce_tensor(torch.tensor([2.0 + rank]), op="sum").tolist(),
        "max": reduce_tensor(torch.tensor([float(rank)]), op="max").tolist(),
        "main": is_main_process(),
    }


def test_sums_over_workers(monkeypatch, quick_workers):
    """What all of them warn of is printed once: tests/cli/test_cli.py."""
    expected = {
        "world": (0, 2, "cpu"), "sum": [3.0], "gather": [0.0, 1.0], "mean": [3.0], "added": [5.0], "max": [1.0],
        "main": True,
    }  # fmt: skip
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nic99")  # of a machine that has it
    monkeypatch.setenv("RANK", "0")  # what an earlier job left
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "h")
    assert launch(_sums, ["cpu"] * 2, backend="gloo") == expected
