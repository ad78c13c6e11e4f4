"""Who uses which GPU: what NVML says, mapped to the devices that this process sees."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gears.core.numbers import plain_number

logger = logging.getLogger(__name__)

BUSY_MEMORY_SHARE = 0.10
BUSY_UTILISATION = 20


@dataclass(frozen=True)
class Card:
    """One GPU of this machine as NVML describes it.

    Attributes
    ----------
    uuid, name
        Identity ("GPU-...") and model.
    memory_total, memory_used
        Bytes.
    utilisation
        Per cent of the last sample period in which kernels ran.
    processes
        Number of compute processes on it.
    users
        Who they are, as far as this process may see: ``"pid 17 (python, ada, 3.1 GiB)"``.
    divided
        Whether it is in MIG mode: what a process computes on is then a slice of it.
    """

    uuid: str
    name: str
    memory_total: int
    memory_used: int
    utilisation: int = 0
    processes: int = 0
    users: tuple[str, ...] = ()
    divided: bool = False

    @property
    def memory_share(self) -> float:
        """Part of the memory that is in use."""
        return self.memory_used / max(1, self.memory_total)

    @property
    def busy(self) -> bool:
        """Whether someone computes on it or holds a good part of its memory."""
        return self.memory_share > BUSY_MEMORY_SHARE or self.utilisation > BUSY_UTILISATION


Cards = Callable[[], list[Card]]
GpuIds = int | Sequence[int] | np.ndarray | str | None


def nvml_cards() -> list[Card]:
    """All GPUs of the machine in the order of their bus, from NVML (package ``nvidia-ml-py``).

    Raises
    ------
    RuntimeError
        The package or the driver is missing.
    """
    try:
        import pynvml
    except ImportError as error:
        msg = (
            "asking which GPUs are busy needs the package nvidia-ml-py; run: pip install 'gears-perturb[gpu]'"
        )
        raise RuntimeError(msg) from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        msg = f"the NVIDIA driver cannot be asked which GPUs are busy ({error})"
        raise RuntimeError(msg) from error
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [_card(pynvml, handle) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def _card(nvml: Any, handle: Any) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    utilisation, running, divided = 0, [], False
    with contextlib.suppress(Exception):  # not every GPU supports these
        utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    with contextlib.suppress(Exception):
        running = list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    with contextlib.suppress(Exception):
        divided = nvml.nvmlDeviceGetMigMode(handle)[0] == 1
    return Card(
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        int(memory.total),
        int(memory.used),
        int(utilisation),
        len(running),
        tuple(_user(process) for process in running),
        divided,
    )


def _user(process: Any) -> str:
    """Number, program, owner and memory of a compute process; what cannot be seen is excluded."""
    facts: list[str] = []
    with contextlib.suppress(OSError, KeyError, ImportError):  # another container's, or gone by now
        import pwd

        place = Path("/proc") / str(process.pid)
        facts.append((place / "comm").read_text().strip())
        facts.append(pwd.getpwuid(place.stat().st_uid).pw_name)
    memory = getattr(process, "usedGpuMemory", None)
    if memory:
        facts.append(f"{memory / 2**30:.1f} GiB")
    return f"pid {process.pid}" + (f" ({', '.join(facts)})" if facts else "")


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def visible_cards(cards: Sequence[Card], environment: Mapping[str, str] | None = None) -> list[Card]:
    """The GPUs that CUDA shows to this process, in its order.

    ``CUDA_VISIBLE_DEVICES`` may hold numbers (bus order, as with ``CUDA_DEVICE_ORDER=PCI_BUS_ID``) or
    beginnings of UUIDs; as in CUDA, what follows the first entry that fits no GPU is not visible.

    Examples
    --------
    >>> cards = [Card("GPU-a1", "A", 8, 0), Card("GPU-b2", "B", 8, 0)]
    >>> [card.name for card in visible_cards(cards, {"CUDA_VISIBLE_DEVICES": "1,GPU-a"})]
    ['B', 'A']
    """
    environment = os.environ if environment is None else environment
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return list(cards)
    chosen: list[Card] = []
    for entry in (part.strip() for part in wanted.split(",")):
        if re.fullmatch(r"\d+", entry):
            found = list(cards[int(entry) : int(entry) + 1])
        else:
            found = [card for card in cards if entry.startswith("GPU-") and card.uuid.startswith(entry)]
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return chosen


def refuse_slices(
    wish: str, *, cards: Cards = nvml_cards, environment: Mapping[str, str] | None = None
) -> None:
    """Raise where the GPUs that CUDA shows to this process are slices of divided ones (MIG).

    Raises
    ------
    ValueError
        They are; `wish` ("2 workers were requested") begins the message.
    """
    values = os.environ if environment is None else environment
    divided = values.get("CUDA_VISIBLE_DEVICES", "").strip().startswith("MIG-")
    with contextlib.suppress(RuntimeError):  # without NVML the environment alone decides
        divided = divided or any(card.divided for card in visible_cards(cards(), values))
    if divided:
        msg = (
            f"{wish}, but this process sees slices of a divided GPU (MIG), and CUDA shows a process one of them: use "
            "one worker (n_gpus=1) without gpu_ids, and name its slice in CUDA_VISIBLE_DEVICES"
        )
        raise ValueError(msg)


def resolve_gpu_ids(
    gpu_ids: GpuIds,
    *,
    cards: Cards = nvml_cards,
    environment: Mapping[str, str] | None = None,
) -> list[int] | None:
    """Ids as a list: one id or several (list, tuple, array), or ``"free:2"``, the two least busy visible GPUs.

    Raises
    ------
    ValueError
        The text has another form, there are fewer GPUs than requested, or they are slices (MIG).
    RuntimeError
        NVML cannot be asked.
    """
    if gpu_ids is None:
        return None
    if not isinstance(gpu_ids, str):
        plain = gpu_ids.tolist() if hasattr(gpu_ids, "tolist") else gpu_ids
        return [plain_number(index) for index in (plain if isinstance(plain, Iterable) else [plain])]
    match = re.fullmatch(r"free:([1-9]\d*)", gpu_ids.strip())
    if match is None:
        msg = (
            f"gpu_ids is {gpu_ids!r}; expected indices such as [2, 3], or 'free:N' for the N least busy GPUs"
        )
        raise ValueError(msg)
    found = cards()
    refuse_slices(f"gpu_ids={gpu_ids!r} was requested", cards=lambda: found, environment=environment)
    wanted, there = int(match.group(1)), visible_cards(found, environment)
    by_bus = (os.environ if environment is None else environment).get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if not by_bus and len({card.name for card in found}) > 1:  # CUDA puts faster models first
        logger.warning(
            "the GPUs are different models, which CUDA may number in another order than gpu_ids=%r assumes; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
            gpu_ids,
        )
    if wanted > len(there):
        msg = f"gpu_ids={gpu_ids!r} but only {len(there)} GPU(s) are visible"
        raise ValueError(msg)

    def load(index: int) -> tuple[float, int, int, int]:
        card = there[index]
        return round(card.memory_share, 2), card.utilisation, card.processes, index

    return sorted(sorted(range(len(there)), key=load)[:wanted])


def warn_about_cards(
    devices: Sequence[str], *, cards: Cards = nvml_cards, environment: Mapping[str, str] | None = None
) -> None:
    """Warn where a chosen GPU is busy already, or the chosen GPUs differ in memory; silent without NVML."""
    ids = [int(device.split(":")[1]) for device in devices if device.startswith("cuda:")]
    if not ids:
        return
    try:
        there = visible_cards(cards(), environment)
    except RuntimeError as error:
        logger.debug("%s", error)
        return
    chosen = {index: there[index] for index in ids if index < len(there) and not there[index].divided}
    for index, card in chosen.items():
        if card.busy:
            logger.warning(
                "GPU %d (%s) is busy: %d %% of its memory in use, %d %% utilisation, %d process(es); "
                "gpu_ids='free:%d' takes the least busy ones",
                index, card.name, round(100 * card.memory_share),
                card.utilisation, card.processes, len(ids),
            )  # fmt: skip
    sizes = {round(card.memory_total / 2**30) for card in chosen.values()}
    if len(sizes) > 1:
        listed = ", ".join(f"GPU {i}: {card.memory_total / 2**30:.0f} GiB" for i, card in chosen.items())
        logger.warning("the chosen GPUs differ in memory (%s); the smallest one limits the batch", listed)
