"""Busy gpus and what CUDA_VISIBLE_DEVICES leaves of them, with recorded answers of NVML."""

import logging
import os
import sys
import types

import pytest

from gears.distributed import plan_devices
from gears.distributed._gpus import (
    Gpu,
    check_no_slices,
    gpu_names,
    nvml_gpus,
    resolve_gpu_ids,
    visible_gpus,
    warn_about_gpus,
)

GIB = 2**30
GPUS = [
    Gpu("GPU-aaaa", "H100", 80 * GIB, 60 * GIB, 97, 1),
    Gpu("GPU-abbb", "H100", 80 * GIB, 1 * GIB, 0, 0),
    Gpu("GPU-cccc", "A100", 40 * GIB, 0, 0, 0),
    Gpu("GPU-dddd", "H100", 80 * GIB, 2 * GIB, 55, 2),
]


BY_BUS = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


@pytest.fixture
def set_variables(monkeypatch: pytest.MonkeyPatch):
    """Sets what CUDA reads in the environment, and nothing else of it."""

    def set_them(values: dict[str, str]) -> None:
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"):
            monkeypatch.delenv(name, raising=False)
        for name, value in values.items():
            monkeypatch.setenv(name, value)

    set_them({})
    return set_them


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, "abcd"),
        ("0,1,2,3", "abcd"),
        ("3,1", "db"),
        ("GPU-cccc,GPU-ab", "cb"),
        ("1,GPU-d", "bd"),
        ("1,9,2", "b"),
        ("-1", ""),
        ("", ""),
        ("GPU-a", ""),
        ("2,2,1", "c"),
        (" 2 , 0 ", "ca"),
        ("MIG-1/2", ""),
        ("cccc", ""),
        ("0x1", ""),
        ("GPU-cccc,2", "c"),
    ],
)
def test_visible_cards_as_cuda_sees_them(value: str | None, expected: str, set_variables) -> None:
    set_variables({} if value is None else {"CUDA_VISIBLE_DEVICES": value})
    letters = dict(zip([gpu.uuid for gpu in GPUS], "abcd", strict=True))
    assert "".join(letters[gpu.uuid] for gpu in visible_gpus(GPUS)) == expected


DIVIDED = [Gpu("GPU-eeee", "A100", 40 * GIB, 39 * GIB, 90, divided=True), Gpu("GPU-ffff", "A100", 40 * GIB, 0)]


@pytest.mark.parametrize("visible", [None, "1,0", "MIG-e1", "MIG-e1,MIG-e2", "none is divided"])
def test_slices_are_not_chosen_among_and_take_one_worker(visible, caplog, set_variables):
    gpus, visible = (DIVIDED[1:], "MIG-e1") if visible == "none is divided" else (DIVIDED, visible)
    set_variables({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    with pytest.raises(ValueError, match=r"gpu_ids='free:1' was requested, but .* slices .*without gpu_ids"):
        resolve_gpu_ids("free:1", list_gpus=lambda: gpus)
    with pytest.raises(ValueError, match=r"2 workers, but.*use one worker \(n_gpus=1\)"):
        check_no_slices("2 workers", list_gpus=lambda: gpus)
    assert resolve_gpu_ids([0], list_gpus=lambda: gpus) == [0]
    with caplog.at_level(logging.WARNING, logger="gears"):
        warn_about_gpus(["cuda:0"], list_gpus=lambda: gpus)
    assert not caplog.records, "what others do on a divided gpu says nothing of one slice"


@pytest.mark.parametrize("visible", ["1", "GPU-f"])
def test_whole_cards_beside_a_divided_one(visible: str, set_variables) -> None:
    set_variables({"CUDA_VISIBLE_DEVICES": visible})
    assert resolve_gpu_ids("free:1", list_gpus=lambda: DIVIDED) == [0]
    check_no_slices("2 workers", list_gpus=lambda: DIVIDED)


def test_several_workers_on_one_visible_slice_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-e1")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for arguments in ({"n_gpus": 2}, {"gpu_ids": [0, 1]}):
        with pytest.raises(ValueError, match=r"2 workers were requested, but .* slices .* \(MIG\)"):
            plan_devices(**arguments)
    assert plan_devices(backend="gloo").devices == ("cuda:0",)
    assert plan_devices(2, device="cpu").devices == ("cpu", "cpu")


def test_busy_cards_unequal_memory_and_other_numbering_are_warned_about(caplog, set_variables) -> None:
    with caplog.at_level(logging.WARNING, logger="gears"):
        resolve_gpu_ids("free:1", list_gpus=lambda: GPUS)
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="gears"):
        resolve_gpu_ids("free:1", list_gpus=lambda: GPUS[:2])
        set_variables(BY_BUS)
        resolve_gpu_ids("free:1", list_gpus=lambda: GPUS)
    assert caplog.text == ""
    with caplog.at_level(logging.WARNING, logger="gears"):
        warn_about_gpus(["cuda:1", "cuda:3"], list_gpus=lambda: GPUS)
    assert [record.args[0] for record in caplog.records] == [3]
    caplog.clear()
    with caplog.at_level(logging.WARNING, logger="gears"):
        warn_about_gpus(["cuda:1", "cuda:2"], list_gpus=lambda: GPUS)
    assert "GPU 1: 80 GiB, GPU 2: 40 GiB" in caplog.text


@pytest.mark.parametrize(
    ("asked", "visible", "expected"),
    [
        ("free:1", None, [2]),
        ("free:2", None, [1, 2]),
        ("free:3", None, [1, 2, 3]),
        ("free:2", "3,0,1", [0, 2]),
        ([3, 1], None, [3, 1]),
        (None, None, None),
    ],
)
def test_least_busy_cards(asked, visible, expected, set_variables) -> None:
    set_variables({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert resolve_gpu_ids(asked, list_gpus=lambda: GPUS) == expected


@pytest.mark.usefixtures("set_variables")
@pytest.mark.parametrize("asked", ["free", "free:0", "busy:1", "free:x", "0,1", "free:5"])
def test_other_texts_and_more_gpus_than_there_are_are_refused(asked: str) -> None:
    with pytest.raises(ValueError, match="only 4" if asked == "free:5" else "free:N"):
        resolve_gpu_ids(asked, list_gpus=lambda: GPUS)


@pytest.mark.parametrize(
    ("environment", "certain"),
    [
        ({}, False),
        ({"CUDA_VISIBLE_DEVICES": "0,3"}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa,GPU-cccc"}, True),
        ({"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, True),
        ({"CUDA_DEVICE_ORDER": "FASTEST_FIRST"}, False),
    ],
)
def test_a_busy_gpu_among_different_models_has_a_number_only_where_it_is_certain(
    environment: dict[str, str], certain: bool, caplog, set_variables
) -> None:
    set_variables(environment)
    with caplog.at_level(logging.WARNING, logger="gears"):
        warn_about_gpus(["cuda:0"], list_gpus=lambda: GPUS)
    (message,) = [record.getMessage() for record in caplog.records]
    if certain:
        assert message.startswith("GPU 0 (H100) is busy: 75 % of its memory in use, 97 % utilisation")
    else:
        assert "GPU 0" not in message
        assert "H100 GPU-aaaa (75 %" in message
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in message


def test_names_of_gpus_come_from_nvml_and_only_where_the_order_is_certain(monkeypatch, set_variables) -> None:
    assert gpu_names(4, list_gpus=lambda: GPUS) == "0, 1, 2, 3"
    set_variables(BY_BUS)
    assert gpu_names(4, list_gpus=lambda: GPUS) == "0 (H100), 1 (H100), 2 (A100), 3 (H100)"
    assert gpu_names(3, list_gpus=lambda: GPUS) == "0, 1, 2"  # torch sees others than NVML
    assert gpu_names(0, list_gpus=lambda: GPUS) == "none"
    assert warn_about_gpus(["cpu", "cpu"], list_gpus=lambda: pytest.fail("CPU workers ask nobody")) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(RuntimeError, match="nvidia-ml-py"):
        nvml_gpus()


def test_answers_of_the_library_are_read(monkeypatch) -> None:
    answers = types.ModuleType("pynvml")
    answers.NVMLError = RuntimeError
    answers.nvmlInit = answers.nvmlShutdown = lambda: None
    answers.nvmlDeviceGetCount = lambda: 2
    answers.nvmlDeviceGetHandleByIndex = lambda index: index
    answers.nvmlDeviceGetMemoryInfo = lambda handle: types.SimpleNamespace(total=80 * GIB, used=handle * GIB)
    answers.nvmlDeviceGetUUID = lambda handle: f"GPU-{handle}"
    answers.nvmlDeviceGetName = lambda handle: "H100"
    answers.nvmlDeviceGetMigMode = lambda handle: (handle == 1, 0)
    answers.nvmlDeviceGetUtilizationRates = lambda handle: types.SimpleNamespace(gpu=7)

    def processes(handle):
        if handle == 1:
            msg = "not supported"
            raise RuntimeError(msg)
        gone = 2**30  # no process has this number
        hidden = types.SimpleNamespace(pid=gone, usedGpuMemory=3 * GIB)
        return [hidden, types.SimpleNamespace(pid=os.getpid())]

    answers.nvmlDeviceGetComputeRunningProcesses = processes
    monkeypatch.setitem(sys.modules, "pynvml", answers)
    gpus = nvml_gpus()
    found = [(gpu.uuid, gpu.memory_used, gpu.utilisation) for gpu in gpus]
    assert found == [("GPU-0", 0, 7), ("GPU-1", GIB, 7)]
    assert [gpu.processes for gpu in gpus] == [2, 0]
    assert [gpu.divided for gpu in gpus] == [False, True]
    assert gpus[0].users[0] == f"pid {2**30} (3.0 GiB)"
    assert gpus[0].users[1].startswith(f"pid {os.getpid()}")
