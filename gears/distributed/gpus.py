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
    instances
        Parts into which the card is divided (MIG), each with a "MIG-..." identity.
    """

    uuid: str
    name: str
    memory_total: int
    memory_used: int
    utilisation: int = 0
    processes: int = 0
    users: tuple[str, ...] = ()
    instances: tuple[Card, ...] = ()

    @property
    def busy(self) -> bool:
        """Whether someone computes on it or holds a good part of its memory."""
        return self.memory_used > BUSY_MEMORY_SHARE * self.memory_total or self.utilisation > BUSY_UTILISATION


Cards = Callable[[], list[Card]]
GpuIds = int | Sequence[int] | np.ndarray | str | None


def nvml_cards() -> list[Card]:
    """All cards of the machine in the order of their bus, from NVML (package ``nvidia-ml-py``).

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
        return [_card(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def _card(pynvml: object, index: int) -> Card:
    nvml: Any = pynvml
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    return _described(nvml, handle, _instances(nvml, handle))


def _described(nvml: Any, handle: Any, instances: tuple[Card, ...] = ()) -> Card:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    utilisation, running = 0, []
    with contextlib.suppress(Exception):  # not every card answers these
        utilisation = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
    with contextlib.suppress(Exception):
        running = list(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    return Card(
        _text(nvml.nvmlDeviceGetUUID(handle)),
        _text(nvml.nvmlDeviceGetName(handle)),
        int(memory.total),
        int(memory.used),
        int(utilisation),
        len(running),
        tuple(_user(process) for process in running),
        instances,
    )


def _instances(nvml: Any, handle: Any) -> tuple[Card, ...]:
    """Parts of a card in MIG mode; none where it has no such mode."""
    found = []
    with contextlib.suppress(Exception):
        if nvml.nvmlDeviceGetMigMode(handle)[0] != 1:
            return ()
        for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with contextlib.suppress(Exception):  # a place without an instance
                found.append(_described(nvml, nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)))
    return tuple(found)


def _user(process: Any) -> str:
    """Number, program, owner and memory of a compute process; what cannot be seen is left out."""
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
    """The cards that CUDA shows to this process, in its order.

    ``CUDA_VISIBLE_DEVICES`` may hold numbers (bus order, as with
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``), beginnings of UUIDs, or UUIDs of MIG instances; as in
    CUDA, what follows the first entry that fits no card is not visible. A card in MIG mode
    stands for the first of its instances.

    Examples
    --------
    >>> cards = [Card("GPU-a1", "A", 8, 0), Card("GPU-b2", "B", 8, 0)]
    >>> [card.name for card in visible_cards(cards, {"CUDA_VISIBLE_DEVICES": "1,GPU-a"})]
    ['B', 'A']
    """
    environment = os.environ if environment is None else environment
    wanted = environment.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return [_usable(card) for card in cards]
    chosen: list[Card] = []
    for entry in (part.strip() for part in wanted.split(",")):
        found = _matching(cards, entry)
        if len(found) != 1 or found[0] in chosen:
            break
        chosen += found
    return chosen


def _matching(cards: Sequence[Card], entry: str) -> list[Card]:
    if re.fullmatch(r"\d+", entry):
        return [_usable(cards[int(entry)])] if int(entry) < len(cards) else []
    if entry.startswith("MIG-"):
        parts = [instance for card in cards for instance in card.instances]
        return [instance for instance in parts if instance.uuid.startswith(entry)]
    if not entry.startswith("GPU-"):
        return []
    return [_usable(card) for card in cards if card.uuid.startswith(entry)]


def _usable(card: Card) -> Card:
    return card.instances[0] if card.instances else card


def order_is_certain(cards: Sequence[Card], environment: Mapping[str, str] | None = None) -> bool:
    """Whether CUDA numbers the cards as NVML does: it puts faster models first unless told to go by the bus."""
    environment = os.environ if environment is None else environment
    by_bus = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    return by_bus or len({card.name for card in cards}) < 2


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
        The text has another form, or there are fewer cards than asked for.
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
            f"gpu_ids is {gpu_ids!r}; expected indices such as [2, 3], or 'free:N' for the N least busy cards"
        )
        raise ValueError(msg)
    found = cards()
    wanted, there = int(match.group(1)), visible_cards(found, environment)
    if not order_is_certain(found, environment):
        logger.warning(
            "the cards are of different models, which CUDA may number in another order than gpu_ids=%r assumes; "
            "set CUDA_DEVICE_ORDER=PCI_BUS_ID",
            gpu_ids,
        )
    if wanted > len(there):
        msg = f"gpu_ids={gpu_ids!r} but only {len(there)} GPU(s) are visible"
        raise ValueError(msg)
    order = sorted(range(len(there)), key=lambda index: (_load(there[index]), index))
    return sorted(order[:wanted])


def _load(card: Card) -> tuple[float, int, int]:
    share = card.memory_used / max(1, card.memory_total)
    return (round(share, 2), card.utilisation, card.processes)


def warn_about_cards(
    devices: Sequence[str], *, cards: Cards = nvml_cards, environment: Mapping[str, str] | None = None
) -> None:
    """Warn where a chosen card is busy already, or the chosen cards differ in memory; silent without NVML."""
    ids = [int(device.split(":")[1]) for device in devices if device.startswith("cuda:")]
    if not ids:
        return
    try:
        there = visible_cards(cards(), environment)
    except RuntimeError as error:
        logger.debug("%s", error)
        return
    chosen = {index: there[index] for index in ids if index < len(there)}
    for index, card in chosen.items():
        if card.busy:
            logger.warning(
                "GPU %d (%s) is busy: %d %% of its memory in use, %d %% utilisation, %d process(es); "
                "gpu_ids='free:%d' takes the least busy ones",
                index, card.name, round(100 * card.memory_used / max(1, card.memory_total)),
                card.utilisation, card.processes, len(ids),
            )  # fmt: skip
    sizes = {round(card.memory_total / 2**30) for card in chosen.values()}
    if len(sizes) > 1:
        listed = ", ".join(f"GPU {i}: {card.memory_total / 2**30:.0f} GiB" for i, card in chosen.items())
        logger.warning("the chosen GPUs differ in memory (%s); the smallest one limits the batch", listed)
