"""Choosing devices and backends: pure functions, as tables."""

import logging

import pytest

from gears.distributed._devices import check_cpu_processes, choose_backend, choose_devices


@pytest.mark.parametrize(
    ("n_gpus", "gpu_ids", "device", "visible", "expected"),
    [
        (None, None, None, 3, ("cuda:0", "cuda:1", "cuda:2")),
        (2, None, None, 3, ("cuda:0", "cuda:1")),
        (None, [3, 1], None, 4, ("cuda:3", "cuda:1")),
        (2, [3, 1], "cuda", 4, ("cuda:3", "cuda:1")),
        (None, None, "cuda:1", 2, ("cuda:1",)),
        (2, None, "cpu", 4, ("cpu", "cpu")),
        (None, None, "cpu", 0, ("cpu",)),
        (None, None, "mps", 0, ("mps",)),
    ],
)
def test_devices_rank_by_rank(n_gpus, gpu_ids, device, visible, expected) -> None:
    assert choose_devices(n_gpus, gpu_ids, device, visible=visible) == expected


@pytest.mark.parametrize(
    ("n_gpus", "gpu_ids", "device", "visible", "words"),
    [
        (3, None, None, 2, "only 2 GPU"),
        (0, None, None, 2, "at least 1"),
        (True, None, None, 2, "at least 1"),
        (None, [0, 0], None, 2, "more than once"),
        (None, [-1], None, 2, "not among the visible"),
        (None, [2], None, 2, "not among the visible"),
        (None, [0], None, 0, "none"),
        (None, [], None, 2, "empty"),
        (None, ["0"], None, 2, "whole numbers"),
        (3, [0, 1], None, 4, r"n_gpus=3 but gpu_ids=\[0, 1\] names 2"),
        (None, [0], "cpu", 2, "omit one of them"),
        (None, [0], "cuda:1", 2, "omit one of them"),
        (None, None, "cuda", 0, "no GPU is visible"),
        (2, None, None, 0, "no GPU is visible"),
        (2, None, "mps", 0, "one device"),
        (None, None, "meta", 0, "unknown device"),
        (None, None, "cdua", 0, "unknown device"),
    ],
)
def test_contradictions_are_named(n_gpus, gpu_ids, device, visible, words) -> None:
    with pytest.raises(ValueError, match=words):
        choose_devices(n_gpus, gpu_ids, device, visible=visible)


@pytest.mark.parametrize(
    ("device", "backend", "words"),
    [("cpu", "foo", "known: gloo"), ("cpu", "nccl", "needs CUDA"), ("cuda", "cpu:gloo", "names no backend")],
)
def test_impossible_backends_are_named(device: str, backend: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        choose_backend(device, explicit=backend)


@pytest.mark.parametrize(
    ("device", "system", "nccl", "explicit", "expected"),
    [
        ("cuda", "Linux", True, None, "cpu:gloo,cuda:nccl"),
        ("cuda", "Linux", False, None, "gloo"),
        ("cuda", "Windows", True, None, "gloo"),
        ("cpu", "Linux", True, None, "gloo"),
        ("mps", "Darwin", False, None, "gloo"),
        ("cuda", "Linux", True, "gloo", "gloo"),
    ],
)
def test_backend(device, system, nccl, explicit, expected, monkeypatch) -> None:
    monkeypatch.setattr("platform.system", lambda: system)
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: nccl)
    assert choose_backend(device, explicit=explicit) == expected


def test_more_processes_than_cores_and_no_gpu_are_reported_once(caplog) -> None:
    with caplog.at_level(logging.WARNING, logger="gears"):
        assert choose_devices(None, None, None, visible=0) == ("cpu",)
    assert len(caplog.records) == 1
    for n, n_cores, warned in ((1, 1, False), (4, 4, False), (5, 4, True), (32, 4, True)):
        caplog.clear()
        check_cpu_processes(n, n_cores)
        lines = [f"{n} CPU processes on a machine of {n_cores} usable cores take turns"] * warned
        assert [record.getMessage().partition(":")[0] for record in caplog.records] == lines
    with pytest.raises(ValueError, match=r"9 CPU processes .* 1 usable core; at most 8 are started"):
        check_cpu_processes(9, 1)
