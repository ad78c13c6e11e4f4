"""Choose the device of each worker; pure functions that run before any worker starts."""

from __future__ import annotations

import contextlib
import logging
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from threadpoolctl import threadpool_limits

from gears.core._installation import cores
from gears.core._messages import count
from gears.core._numbers import is_whole, plain_number
from gears.distributed._gpus import GpuIds, check_no_slices, gpu_names, resolve_gpu_ids, warn_about_gpus
from gears.distributed._world import Ranks, current_world, is_running

logger = logging.getLogger(__name__)

DeviceLike = str | int | torch.device | None

MOST_PER_CORE = 8
"""CPU processes that are started for each core at most: each holds libraries of some hundred MB."""


@dataclass(frozen=True)
class DevicePlan:
    """Devices of the workers on this machine, rank by rank, and the backend that joins them."""

    devices: tuple[str, ...]
    backend: str

    @property
    def world_size(self) -> int:
        return len(self.devices)


def choose_backend(device_type: str, *, explicit: str | None = None) -> str:
    """Backend of ``torch.distributed`` for workers on `device_type`; an explicit one wins."""
    if explicit is not None:
        _check_backend(explicit, device_type)
        return explicit
    if device_type == "cuda" and platform.system() == "Linux" and torch.distributed.is_nccl_available():
        return "cpu:gloo,cuda:nccl"  # a pair: tensors of the host can be reduced, too
    return "gloo"


def _check_backend(backend: str, device_type: str) -> None:
    """Raise for a backend that is unknown, or that cannot carry tensors of the device."""
    by_device = dict(entry.split(":", 1) for entry in backend.split(",") if ":" in entry)
    used = by_device.get(device_type, "") if by_device else backend
    known = [name for name in torch.distributed.Backend.backend_list if name != "undefined"]
    if used not in known:
        msg = f"backend={backend!r} names no backend for {device_type!r}; known: {', '.join(known)}"
        raise ValueError(msg)
    if used == "nccl" and device_type != "cuda":
        msg = f"backend={backend!r} needs CUDA, but the workers are on {device_type!r}; use 'gloo' or omit it"
        raise ValueError(msg)


def choose_devices(
    n_gpus: int | None, gpu_ids: Sequence[int] | None, device: DeviceLike, *, visible: int
) -> tuple[str, ...]:
    """Devices of all ranks, such as ``("cuda:2", "cuda:3")``, from the arguments of `train_multi_gpu`.

    `visible` is the number of GPUs that ``CUDA_VISIBLE_DEVICES`` leaves, which `gpu_ids` count from 0: rank 0 gets the
    first. ValueError for arguments that contradict each other, and for GPUs that are not there.
    """
    n_gpus = plain_number(n_gpus)
    if n_gpus is not None and not is_whole(n_gpus, 1):
        msg = f"n_gpus is a number of workers of at least 1; found {n_gpus!r}"
        raise ValueError(msg)
    target = None if device is None else parse_device(device)
    device_type = None if target is None else target.type
    if device_type == "cpu":
        if gpu_ids is not None:
            msg = f"gpu_ids={list(gpu_ids)} chooses GPUs but device='cpu' was requested; omit one of them"
            raise ValueError(msg)
        return ("cpu",) * (n_gpus or 1)
    if device_type == "mps":
        if (n_gpus or 1) > 1 or (gpu_ids is not None and list(gpu_ids) != [0]):
            msg = f"an MPS machine has one device; found n_gpus={n_gpus}, gpu_ids={gpu_ids}"
            raise ValueError(msg)
        return ("mps",)
    if target is not None and target.index is not None:
        if gpu_ids is not None:
            msg = f"device={str(target)!r} and gpu_ids={list(gpu_ids)} both choose GPUs; omit one of them"
            raise ValueError(msg)
        if n_gpus not in (None, 1):
            msg = f"device={str(target)!r} is one GPU but n_gpus={n_gpus}; use device='cuda', or gpu_ids"
            raise ValueError(msg)
        return (str(find_device(target, visible=visible)),)
    if gpu_ids is not None:
        return _chosen_gpus(n_gpus, gpu_ids, visible)
    if visible == 0:
        return _without_gpus(n_gpus, enabled=device_type == "cuda")
    n_workers = visible if n_gpus is None else n_gpus
    if n_workers > visible:
        msg = f"n_gpus={n_workers} but only {visible} GPU(s) are visible: {gpu_names(visible)}; lower n_gpus"
        raise ValueError(msg)
    return tuple(f"cuda:{index}" for index in range(n_workers))


def parse_device(device: str | int | torch.device) -> torch.device:
    """A device as a user writes it: "cpu", "cuda", "cuda:1", "mps", the number of a GPU; else ValueError."""
    plain = plain_number(device)
    plain = plain.strip().lower() if isinstance(plain, str) else plain
    target = None
    with contextlib.suppress(RuntimeError, TypeError):
        target = torch.device(f"cuda:{plain}" if is_whole(plain) else plain)
    if target is None or target.type not in ("cpu", "cuda", "mps") or isinstance(plain, bool):
        msg = f"unknown device {device!r}; expected 'cuda', 'cuda:1', 'cpu' or 'mps'"
        raise ValueError(msg)
    return target


def find_device(device: str | int | torch.device, *, visible: int | None = None) -> torch.device:
    """A device (as :func:`parse_device` takes it) that exists here; ValueError with the `visible` ones else."""
    target = parse_device(device)
    if target.type == "cuda":
        visible = torch.cuda.device_count() if visible is None else visible
        if visible == 0 or (target.index or 0) >= visible:
            remedy = "choose one of these" if visible else "use device='cpu'; `gears doctor` shows why"
            msg = (
                f"device={str(target)!r} is not there: visible to torch (after CUDA_VISIBLE_DEVICES, from 0) "
                f"{'are GPUs ' + gpu_names(visible) if visible else 'is no GPU'}; {remedy}"
            )
            raise ValueError(msg)
    if target.type == "mps" and not torch.backends.mps.is_available():
        msg = "device='mps' is not there: torch finds no Apple GPU; use device='cpu', or omit it"
        raise ValueError(msg)
    return target


def _chosen_gpus(n_gpus: int | None, gpu_ids: Sequence[int], visible: int) -> tuple[str, ...]:
    ids = list(gpu_ids)
    if not ids:
        msg = f"gpu_ids is empty; name at least one GPU or omit it (visible: {gpu_names(visible)})"
        raise ValueError(msg)
    ids = [plain_number(index) for index in ids]
    if not all(is_whole(index) for index in ids):
        msg = f"gpu_ids are whole numbers, indices into the visible GPUs; found {ids} (visible: {gpu_names(visible)})"
        raise ValueError(msg)
    if len(set(ids)) < len(ids):
        repeated = sorted({index for index in ids if ids.count(index) > 1})
        msg = (
            f"gpu_ids={ids} names GPU {repeated} more than once; each worker needs its own GPU "
            f"(visible: {gpu_names(visible)})"
        )
        raise ValueError(msg)
    wrong = [index for index in ids if not 0 <= index < visible]
    if wrong:
        msg = (
            f"gpu_ids={ids}: {', '.join(map(str, wrong))} not among the visible GPUs (visible: {gpu_names(visible)}); "
            "ids count the devices that CUDA_VISIBLE_DEVICES leaves, from 0; device='cpu' with n_gpus=2 "
            "(to predict: n_at_once=2) takes processes"
        )
        raise ValueError(msg)
    if n_gpus is not None and n_gpus != len(ids):
        msg = f"n_gpus={n_gpus} but gpu_ids={ids} names {len(ids)} GPU(s); make them agree or omit n_gpus"
        raise ValueError(msg)
    return tuple(f"cuda:{index}" for index in ids)


def _without_gpus(n_gpus: int | None, *, enabled: bool) -> tuple[str, ...]:
    """One CPU process, with a warning; raises if GPUs or several workers were requested."""
    if enabled or (n_gpus or 1) > 1:
        request = "device='cuda' was" if enabled else f"{n_gpus} workers were"
        msg = f"{request} requested but no GPU is visible; device='cpu' with the same number takes CPU processes"
        raise ValueError(msg)
    logger.warning("no GPU is visible: training in one CPU process (device='cpu', n_gpus=N takes N of them)")
    return ("cpu",)


def check_cpu_processes(n_processes: int, n_cores: int) -> None:
    """Warn about more CPU processes than cores; raise ValueError from more than MOST_PER_CORE for each core on."""
    if n_processes <= n_cores:
        return
    numbers = f"{n_processes} CPU processes on a machine of {count(n_cores, 'usable core')}"
    if n_processes > MOST_PER_CORE * n_cores:
        msg = (
            f"{numbers}; at most {MOST_PER_CORE * n_cores} are started ({MOST_PER_CORE} for each core): "
            f"request {n_cores} or fewer"
        )
        raise ValueError(msg)
    logger.warning("%s take turns: more than %d are no faster", numbers, n_cores)


def plan_devices(
    n_gpus: int | None = None, gpu_ids: GpuIds = None, device: DeviceLike = None, backend: str | None = None
) -> DevicePlan:
    """Devices and backend of the workers on this machine (see :func:`choose_devices`), with warnings of NVML."""
    target = None if device is None else parse_device(device)
    device_type = None if target is None else target.type
    if device_type == "mps":
        find_device("mps")
    visible = 0 if device_type == "cpu" else torch.cuda.device_count()
    ids = resolve_gpu_ids(gpu_ids)
    n_workers = n_gpus if ids is None else len(ids)
    if n_workers is None:
        n_workers = visible if target is None or target.index is None else 1
    if visible and is_whole(plain_number(n_workers), 2):
        check_no_slices(f"{n_workers} workers were requested")
    devices = choose_devices(n_gpus, ids, device, visible=visible)
    warn_about_gpus(devices)
    if devices[0] == "cpu":
        check_cpu_processes(len(devices), cores())
    return DevicePlan(devices, choose_backend(torch.device(devices[0]).type, explicit=backend))


def own_device(
    ranks: Ranks, n_gpus: int | None, gpu_ids: Sequence[int] | None, device: DeviceLike, visible: int | None = None
) -> str:
    """Device of this process of a launcher: the GPU of its local rank, or the CPU."""
    if n_gpus is not None and n_gpus not in (ranks.local_world_size, ranks.world_size):
        msg = (
            f"n_gpus={n_gpus}, but the launcher started {ranks.world_size} process(es) (WORLD_SIZE), "
            f"{ranks.local_world_size} of them on this machine; omit n_gpus or start as many, or unset RANK and "
            "WORLD_SIZE if no launcher set them"
        )
        raise ValueError(msg)
    if visible is None:
        visible = torch.cuda.device_count()
    if device is None and gpu_ids is None and visible == 0:
        device = "cpu"
        if torch.backends.mps.is_available() and ranks.local_rank == 0:
            logger.warning(
                "the one MPS device of this machine cannot be shared: the %d process(es) of the launcher train on "
                "the CPU (device='mps' is for a single process)",
                ranks.local_world_size,
            )
    return choose_devices(ranks.local_world_size, gpu_ids, device, visible=visible)[ranks.local_rank]


def model_device(device: DeviceLike) -> torch.device:
    """The device requested; by default the worker's in a process group, else the first GPU, else the CPU."""
    if device is not None and find_device(device) != torch.device("cuda"):
        return find_device(device)
    if is_running():
        return current_world().device
    if not torch.cuda.is_available():
        return torch.device("cpu")
    # Under a launcher that started several processes here, GPUs are divided from the start: "cuda" and the default are
    # the GPU of the local rank, so that no process begins on another one's.
    ranks = None
    with contextlib.suppress(ValueError):  # variables that contradict each other are named when training begins
        ranks = Ranks.read()
    if ranks is None or ranks.local_world_size == 1 or ranks.local_rank >= torch.cuda.device_count():
        return torch.device("cuda")
    return torch.device("cuda", ranks.local_rank)


@contextlib.contextmanager
def one_thread(*, enabled: bool = True) -> Iterator[None]:
    """Compute with one thread of torch and of numpy's libraries while the block runs."""
    if not enabled:
        yield
        return
    before = torch.get_num_threads()
    with threadpool_limits(limits=1):
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(before)
