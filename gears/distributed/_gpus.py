"""Load of each GPU as NVML reports it, mapped to the devices that CUDA shows to this process."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gears.core._numbers import plain_number

logger = logging.getLogger(__name__)

BUSY_MEMORY_SHARE = 0.10
BUSY_UTILISATION = 20


@dataclass(frozen=True)
class Gpu:
    """One GPU of this machine as NVML describes it."""

    uuid: str  # "GPU-..."
    name: str  # the model
    memory_total: int  # bytes
    memory_used: int
    utilisation: int = 0  # per cent of the last sample period in which kernels ran
    processes: int = 0  # number of compute processes on it
    users: tuple[str, ...] = ()  # each of them, as far as this process may see: "pid 17 (python, ada, 3.1 GiB)"
    divided: bool = False  # whether it is in MIG mode: what a process computes on is then a slice of it

    @property
    def memory_share(self) -> float:
        """Part of the memory that is in use."""
        return self.memory_used / max(1, self.memory_total)

    @property
    def load(self) -> str:
        """How busy it is, for messages."""
        return (
            f"{100 * self.memory_share:.0f} % of its memory in use, {self.utilisation} % utilisation, "
            f"{self.processes} process(es)"
        )

    @property
    def busy(self) -> bool:
        """Whether kernels run on it or more than 10 % of its memory is in use."""
        return self.memory_share > BUSY_MEMORY_SHARE or self.utilisation > BUSY_UTILISATION


ListGpus = Callable[[], list[Gpu]]
GpuIds = int | Sequence[int] | np.ndarray | str | None


def nvml_gpus() -> list[Gpu]:
    """All GPUs of the machine in the order of their bus, from NVML; RuntimeError without its package or the driver."""
    try:
        import pynvml
    except ImportError as error:
        msg = "finding out which GPUs are busy needs the package nvidia-ml-py; run: pip install 'gears-perturb[gpu]'"
        raise RuntimeError(msg) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        msg = f"the NVIDIA driver does not report which GPUs are busy ({error})"
        raise RuntimeError(msg) from error
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [_gpu(pynvml, handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def _gpu(nvml: Any, handle: Any) -> Gpu:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    utilisation, running, divided = 0, [], False
    with contextlib.suppress(Exception):  # not every GPU supports these
        utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    with contextlib.suppress(Exception):
        running = list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    with contextlib.suppress(Exception):
        divided = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    return Gpu(
        nvml.nvmlDeviceGetUUID(handle),
        nvml.nvmlDeviceGetName(handle),
        int(memory.total),
        int(memory.used),
        int(utilisation),
        len(running),
        tuple(_user(process) for process in running),
        divided,
    )


def _user(process: Any) -> str:
    """Number, program, owner and memory of a compute process, as far as they can be read."""
    facts: list[str] = []
    with contextlib.suppress(OSError, KeyError, ImportError):  # another container's, or gone by now
        import pwd

        process_folder = Path("/proc") / str(process.pid)
        facts.append((process_folder / "comm").read_text().strip())
        facts.append(pwd.getpwuid(process_folder.stat().st_uid).pw_name)
    memory = getattr(process, "usedGpuMemory", None)
    if memory:
        facts.append(f"{memory / 2**30:.1f} GiB")
    return f"pid {process.pid}" + (f" ({', '.join(facts)})" if facts else "")


def visible_gpus(gpus: Sequence[Gpu]) -> list[Gpu]:
    """The GPUs that CUDA shows to this process, in its order.

    ``CUDA_VISIBLE_DEVICES`` may hold numbers (bus order, as with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``) or
    beginnings of UUIDs; as in CUDA, entries after the first one that matches no GPU are ignored.
    """
    visible_ids = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible_ids is None:
        return list(gpus)
    visible: list[Gpu] = []
    for entry in (entry_text.strip() for entry_text in visible_ids.split(",")):
        if re.fullmatch(r"\d+", entry):
            matches = list(gpus[int(entry) : int(entry) + 1])
        else:
            matches = [gpu for gpu in gpus if entry.startswith("GPU-") and gpu.uuid.startswith(entry)]
        if len(matches) != 1 or matches[0] in visible:
            break
        visible += matches
    return visible


def order_is_certain(gpus: Sequence[Gpu]) -> bool:
    """Whether :func:`visible_gpus` numbers the visible ones of `gpus` as CUDA does."""
    # Unless CUDA_DEVICE_ORDER=PCI_BUS_ID is set, CUDA puts faster models first. With one model, or where
    # CUDA_VISIBLE_DEVICES names GPUs by UUID, that changes nothing.
    if os.environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1:
        return True
    visible_ids = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible_ids is not None and not any(re.fullmatch(r"\d+", entry.strip()) for entry in visible_ids.split(","))


def gpu_names(n_visible: int, *, list_gpus: ListGpus | None = None) -> str:
    """Numbers of the visible GPUs, with their models where NVML says them for certain; CUDA is not asked."""
    names = [str(index) for index in range(n_visible)]
    with contextlib.suppress(RuntimeError):  # without NVML the numbers alone
        gpus = (list_gpus or nvml_gpus)()
        visible = visible_gpus(gpus)
        if len(visible) == n_visible and order_is_certain(gpus):
            names = [f"{index} ({gpu.name})" for index, gpu in enumerate(visible)]
    return ", ".join(names) or "none"


def check_no_slices(request: str, *, list_gpus: ListGpus = nvml_gpus) -> None:
    """Raise ValueError, beginning with the `request`, where CUDA shows this process slices of divided GPUs (MIG)."""
    divided = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("MIG-")
    with contextlib.suppress(RuntimeError):  # without NVML the environment alone decides
        divided = divided or any(gpu.divided for gpu in visible_gpus(list_gpus()))
    if divided:
        msg = (
            f"{request}, but this process sees slices of a divided GPU (MIG), and CUDA shows a process one of them: "
            "use one worker (n_gpus=1) without gpu_ids, and name its slice in CUDA_VISIBLE_DEVICES"
        )
        raise ValueError(msg)


def resolve_gpu_ids(gpu_ids: GpuIds, *, list_gpus: ListGpus = nvml_gpus) -> list[int] | None:
    """Ids as a list: one id or several (list, tuple, array), or ``"free:2"``, the two least busy visible GPUs.

    ValueError for another string, fewer GPUs than requested, or slices (MIG); RuntimeError without NVML.
    """
    if gpu_ids is None:
        return None
    if not isinstance(gpu_ids, str):
        plain = gpu_ids.tolist() if hasattr(gpu_ids, "tolist") else gpu_ids
        return [plain_number(index) for index in (plain if isinstance(plain, Iterable) else [plain])]
    match = re.fullmatch(r"free:([1-9]\d*)", gpu_ids.strip())
    if match is None:
        msg = f"gpu_ids is {gpu_ids!r}; expected indices, such as [2, 3], or 'free:N': the N least busy GPUs"
        raise ValueError(msg)
    all_gpus = list_gpus()
    check_no_slices(f"gpu_ids={gpu_ids!r} was requested", list_gpus=lambda: all_gpus)
    n_gpus, visible = int(match.group(1)), visible_gpus(all_gpus)
    if not order_is_certain(all_gpus):
        message = "the GPUs are different models, which CUDA may number in another order than gpu_ids=%r assumes"
        logger.warning(f"{message}; set CUDA_DEVICE_ORDER=PCI_BUS_ID", gpu_ids)
    if n_gpus > len(visible):
        msg = f"gpu_ids={gpu_ids!r} but only {len(visible)} GPU(s) are visible"
        raise ValueError(msg)

    loads = [(round(gpu.memory_share, 2), gpu.utilisation, gpu.processes) for gpu in visible]
    return sorted(sorted(range(len(visible)), key=loads.__getitem__)[:n_gpus])


def warn_about_gpus(devices: Sequence[str], *, list_gpus: ListGpus = nvml_gpus) -> None:
    """Warn if a chosen GPU is busy, or if the chosen GPUs differ in memory; silent without NVML."""
    ids = [int(device.split(":")[1]) for device in devices if device.startswith("cuda:")]
    if not ids:
        return
    try:
        all_gpus = list_gpus()
    except RuntimeError as error:
        logger.debug("%s", error)
        return
    visible = visible_gpus(all_gpus)
    if not order_is_certain(all_gpus):  # which GPU a number means: the busy ones by model and UUID
        busy = [f"{gpu.name} {gpu.uuid} ({gpu.load})" for gpu in visible if gpu.busy and not gpu.divided]
        if busy:
            logger.warning(
                "busy GPUs: %s. The GPUs are different models, which CUDA numbers by speed: set "
                "CUDA_DEVICE_ORDER=PCI_BUS_ID, by which gpu_ids are those of nvidia-smi", "; ".join(busy),
            )  # fmt: skip
        return
    listed_gpus = {index: visible[index] for index in ids if index < len(visible)}
    chosen_gpus = {index: gpu for index, gpu in listed_gpus.items() if not gpu.divided}
    for index, gpu in chosen_gpus.items():
        if gpu.busy:
            logger.warning(
                "GPU %d (%s) is busy: %s; gpu_ids='free:%d' takes the least busy ones",
                index, gpu.name, gpu.load, len(ids),
            )  # fmt: skip
    sizes = {round(gpu.memory_total / 2**30) for gpu in chosen_gpus.values()}
    if len(sizes) > 1:
        listed = ", ".join(f"GPU {i}: {gpu.memory_total / 2**30:.0f} GiB" for i, gpu in chosen_gpus.items())
        logger.warning("the chosen GPUs differ in memory (%s); the smallest one limits the batch", listed)
