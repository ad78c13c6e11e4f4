"""Report what this machine offers for training and what is missing; changes and starts nothing."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from gears.core._findings import Finding, errors
from gears.core._installation import __version__, cores, torch_problem
from gears.core._messages import count

PACKAGES = ("torch", "numpy", "scipy", "pandas", "anndata", "torch-geometric")
OPTIONAL = ("tensorboard", "wandb", "nvidia-ml-py", "cell-gears")
VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "PYTORCH_CUDA_ALLOC_CONF", "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CXX", "GLOO_SOCKET_IFNAME", "TORCH_DISTRIBUTED_DEBUG",
    "MASTER_ADDR", "MASTER_PORT", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_JOB_ID",
    "WANDB_MODE", "WANDB_DIR",
)  # fmt: skip
PREFIXES = ("NCCL_", "TORCH_NCCL_")
FEW_FILES = 256
INSTALL = "install torch again, in the build for this machine (pytorch.org, Get Started)"


@dataclass(frozen=True)
class Diagnosis:
    """Facts about a machine as plain values, and the findings that follow from them.

    Attributes
    ----------
    software
        Versions of this package, Python and others; None for those that are missing.
    machine
        System, cores (and those this process may use), memory in bytes, open files.
    cuda
        CUDA, cuDNN and NCCL that torch was built with, and the devices it sees.
    gpus
        What NVML reports about each GPU, or why it is not available.
    variables
        Environment variables that matter and are set.
    findings
        Errors first.
    """

    software: Mapping[str, str | None]
    machine: Mapping[str, Any]
    cuda: Mapping[str, Any]
    gpus: Mapping[str, Any]
    variables: Mapping[str, str]
    findings: tuple[Finding, ...] = field(default=())

    @property
    def healthy(self) -> bool:
        """Whether the machine is ready to train."""
        return not errors(self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        groups = ("software", "machine", "cuda", "gpus", "variables")
        findings = [{"level": finding.severity, "text": str(finding)} for finding in self.findings]
        return {name: dict(getattr(self, name)) for name in groups} | {"findings": findings}

    def render(self) -> str:
        """Lines for a terminal."""
        lines = []
        for title in ("software", "machine", "cuda", "variables"):
            lines.append(title)
            values = getattr(self, title)
            lines += [f"  {name:<24}{_shown(name, value)}" for name, value in values.items()]
            if not values:
                lines.append("  (none of the relevant ones is set)")
        lines.append("GPUs")
        lines += [f"  {text}" for text in _gpu_lines(self.gpus)]
        lines += [f"{finding.severity}: {finding}" for finding in self.findings]
        return "\n".join([*lines, "OK, ready to train" if self.healthy else "see the errors"])


def diagnose(environment: Mapping[str, str] | None = None) -> Diagnosis:
    """Collect the facts about this machine as this process sees it (`environment`: variables to use instead)."""
    environment = os.environ if environment is None else environment
    versions: dict[str, str | None] = {"gears": __version__, "python": platform.python_version()}
    versions |= {name: _version_of(name) for name in (*PACKAGES, *OPTIONAL)}
    problem = torch_problem()
    machine, gpus = _look_at_machine(), look_at_gpus()
    cuda = look_at_cuda() if problem is None else {"devices": []}
    names = sorted(name for name in environment if name in VARIABLES or name.startswith(PREFIXES))
    variables = {name: environment[name] for name in names}
    findings = findings_of(versions, machine, cuda, gpus, variables)
    findings += _check_store() if problem is None else [Finding("no-torch", f"{problem}: {INSTALL}")]
    ordered = sorted(findings, key=lambda finding: finding.severity != "error")
    return Diagnosis(versions, machine, cuda, gpus, variables, tuple(ordered))


def _version_of(package: str) -> str | None:
    """Version of an installed package, None where it is missing."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _look_at_machine() -> dict[str, Any]:
    """System, cores, memory and limits."""
    values: dict[str, Any] = {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cores": os.cpu_count(),
        "usable_cores": cores(),
    }
    if hasattr(os, "getloadavg"):
        values["load"] = round(os.getloadavg()[0], 1)
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        values["memory_bytes"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if importlib.util.find_spec("resource") is not None:
        import resource

        values["open_files"] = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    shared = Path("/dev/shm")
    if shared.is_dir():
        free = os.statvfs(shared)
        values["shared_memory_bytes"] = free.f_bavail * free.f_frsize
    return values


def look_at_cuda() -> dict[str, Any]:
    """CUDA libraries that torch was built with, and the devices it sees."""
    import torch

    nccl = torch.cuda.nccl.version() if torch.version.cuda and torch.distributed.is_nccl_available() else None
    devices = []
    for index in range(torch.cuda.device_count()):
        facts = torch.cuda.get_device_properties(index)
        device = {"index": index, "name": facts.name, "capability": f"{facts.major}.{facts.minor}"}
        devices.append(device | {"memory_bytes": facts.total_memory})
    return {
        "built_for": torch.version.cuda,
        "available": torch.cuda.is_available(),
        "cudnn": torch.backends.cudnn.version() if torch.version.cuda else None,
        "nccl": None if nccl is None else ".".join(map(str, nccl)),
        "gloo": torch.distributed.is_gloo_available(),
        "mps": torch.backends.mps.is_available(),
        "devices": devices,
    }


def look_at_gpus() -> dict[str, Any]:
    """What NVML reports about every GPU of the machine, visible or not."""
    from gears.distributed._gpus import nvml_gpus

    try:
        return {"found": [asdict(gpu) | {"busy": gpu.busy} for gpu in nvml_gpus()]}
    except RuntimeError as error:
        return {"found": [], "why": str(error)}


def findings_of(
    software: Mapping[str, str | None],
    machine: Mapping[str, Any],
    cuda: Mapping[str, Any],
    gpus: Mapping[str, Any],
    variables: Mapping[str, str],
) -> list[Finding]:
    """Findings from the facts (a pure function)."""
    findings = []

    def add(level: str, text: str) -> None:
        findings.append(Finding("machine", text, severity=level))

    all_gpus = gpus["found"]
    if "built_for" not in cuda:
        pass  # torch cannot be imported, which is a separate error
    elif all_gpus and cuda["built_for"] is None:
        add("error", f"there are {len(all_gpus)} GPU(s), but this torch is a CPU build: install one for CUDA")
    elif all_gpus and not cuda["devices"] and variables.get("CUDA_VISIBLE_DEVICES") is not None:
        hides = f"CUDA_VISIBLE_DEVICES={variables['CUDA_VISIBLE_DEVICES']!r} hides"
        add("error", f"{hides} all {len(all_gpus)} GPU(s): unset it, or name some")
    elif all_gpus and not cuda["devices"]:
        add("error", "the driver shows GPUs, but torch sees none: the driver may be older than CUDA requires")
    elif not cuda["devices"]:
        add("note", "no GPU: training runs on CPU processes (device='cpu', n_gpus=N)")
    if cuda["devices"] and cuda.get("nccl") is None:
        add("note", "this torch has no NCCL: several GPUs are joined by gloo, which is slower")
    for index, gpu in enumerate(all_gpus):
        if gpu["busy"]:
            users = ", ".join(gpu["users"]) or f"{gpu['processes']} process(es)"
            add("note", f"GPU {index} ({gpu['name']}) is busy: {users}; gpu_ids='free:N' avoids it")
    if not cuda.get("gloo", True):
        add("error", "this torch has no gloo backend: no two processes can train together")
    if "NCCL_TIMEOUT" in variables:
        add("note", "NCCL_TIMEOUT is no variable that anything reads: pass timeout= (seconds)")
    if variables.get("TORCH_DISTRIBUTED_DEBUG") == "DETAIL":
        add("note", "TORCH_DISTRIBUTED_DEBUG=DETAIL crashes some releases of torch with gloo: use INFO")
    if "RANK" in variables and ("MASTER_ADDR" not in variables or variables.get("WORLD_SIZE") == "1"):
        add("note", "RANK is set, but describes no worker: left over from a launcher? train_multi_gpu ignores it")
    if machine.get("load", 0) > 1.5 * machine.get("usable_cores", 1) and "OMP_NUM_THREADS" not in variables:
        busy = f"{machine['load']:g} processes want {count(machine['usable_cores'], 'core')}"
        add("note", f"this machine is busy ({busy}): OMP_NUM_THREADS=1 keeps one process to one core")
    if machine.get("open_files", FEW_FILES) < FEW_FILES:
        add("error", f"only {machine['open_files']} files may be open: ulimit -n {FEW_FILES} or more")
    if software.get("cell-gears") is not None:
        add("note", "cell-gears is installed too, and imports as gears as well: use another environment for it")
    missing = [name for name in PACKAGES if software.get(name) is None]
    if missing:
        add("error", f"missing: {', '.join(missing)}; pip install gears-perturb brings them")
    return findings


def _check_store() -> list[Finding]:
    """Try to open a port on the loopback interface, where workers meet."""
    import torch.distributed as dist

    try:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("gears", "here")
    except (RuntimeError, OSError) as error:
        reason = str(error).partition("\n")[0]
        return [Finding("no-port", f"no port can be opened on 127.0.0.1, where workers meet ({reason})")]
    return []


def _shown(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes"):
        return f"{value / 2**30:.1f} GiB"
    if name == "devices":
        devices = [f"{one['index']} {one['name']} ({one['memory_bytes'] / 2**30:.0f} GiB)" for one in value]
        return "; ".join(devices) or "none"
    return str(value)


def _gpu_lines(gpus: Mapping[str, Any]) -> list[str]:
    if not gpus["found"]:
        return [gpus.get("why", "none")]
    return [
        f"{index} {gpu['name']} {gpu['uuid']}: {gpu['memory_used'] / 2**30:.1f} of "
        f"{gpu['memory_total'] / 2**30:.1f} GiB used, {gpu['utilisation']} %; "
        f"{', '.join(gpu['users']) or 'no process'}"
        for index, gpu in enumerate(gpus["found"])
    ]
