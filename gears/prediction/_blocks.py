"""Apply a function to the predictions of blocks of conditions, by any workers, and go on after an interruption.

A block is a chunk of :func:`gears.prediction._stream.stream`: its size depends on the number of genes alone, one thread
computes it, and blocks are merged in their order. So the result is the same for any number of workers.

    processes   worker w of W computes the missing blocks w, w + W, ... into files
    torchrun    rank r of R computes the blocks r, r + R, ... into files, rank 0 those still missing, and merges
    dask        workers return blocks, the caller writes the files

The files are named by what they hold: model, function and conditions. So a call that was interrupted goes on from them
when it is made again; one that ends removes them. Ranks need a common disk; no rank waits for another one to call.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import logging
import shutil
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import cloudpickle
import numpy as np

from gears.conditions import Condition
from gears.core._installation import __version__
from gears.core._messages import count
from gears.core._numbers import whole_number
from gears.data.reading._by_dask import cluster
from gears.distributed._devices import DeviceLike, one_thread, plan_devices
from gears.distributed._gpus import GpuIds
from gears.distributed._launch import launch_many
from gears.distributed._signals import stop_requested
from gears.distributed._world import Ranks, current_world
from gears.files._cache import arrays_hash, cache_file, cached_arrays
from gears.files.formats import content_hash
from gears.graphs._custom import Graphs
from gears.graphs._similarities import PriorInputs
from gears.prediction._stream import chunk_size, devices_of, on_device, stream
from gears.prediction.predictions import Predictions

if TYPE_CHECKING:
    from gears.model._folder import ModelParts
    from gears.model.network import GEARSNetwork

logger = logging.getLogger(__name__)

Arrays = dict[str, np.ndarray]
Reduce = Callable[[Predictions], Arrays]
Block = tuple[Sequence[Condition], Arrays]
IN_FLIGHT = 64  # blocks that dask has at a time
SECONDS_TO_BEGIN = 60.0  # in which rank 0 of torchrun must call, or the other ranks do nothing
SECONDS_TO_KEEP = 7 * 24 * 3600.0  # leftovers of calls that were not made again


@dataclasses.dataclass(frozen=True)
class Workers:
    """Where blocks are computed; in this process where neither `n_at_once` nor `dask` is set, nor torchrun runs."""

    device: DeviceLike = None
    gpu_ids: GpuIds = None
    n_at_once: int | None = None
    dask: Any = None  # address of a scheduler, or a distributed.Client


IN_THIS_PROCESS = Workers()
"""In this process under torchrun, too: every rank has the result."""


def over_blocks(
    network: GEARSNetwork | None,
    parts: ModelParts,
    conditions: Iterable[Condition],
    reduce: Reduce,
    *,
    clip: bool | None = None,
    chunk: int | None = None,
    workers: Workers = IN_THIS_PROCESS,
    folder: Path | None = None,
) -> Iterator[Block] | None:
    """Conditions of each block, and what `reduce` makes of their predictions, in order; None on ranks other than 0.

    Files of blocks lie in `folder`, by default in the user's cache folder.
    """
    ranks = Ranks.current()
    is_shared = ranks is not None and ranks.world_size > 1 and workers is not IN_THIS_PROCESS
    if not is_shared and workers.n_at_once is None and workers.dask is None:
        devices = devices_of(workers.device, workers.gpu_ids)
        chunks = stream(network, parts, conditions, clip=clip, chunk=chunk, devices=devices)
        return ((predictions.conditions, reduce(predictions)) for predictions in chunks)
    size = chunk_size(len(parts.gene_names)) if chunk is None else whole_number("chunk", chunk)
    packed, names = _packed(conditions, size)
    work = Work(network, parts, clip, reduce)
    key = content_hash(work.digest, names)
    blocks = Blocks(work, packed, _cache_folder(key) if folder is None else folder, key)
    if is_shared:
        assert ranks is not None
        blocks.by_ranks(ranks)
        return blocks.merged() if ranks.rank == 0 else None
    if missing := blocks.missing(range(len(packed))):
        logger.info("%d of %s to predict", len(missing), count(len(packed), "block"))
        (blocks.by_processes if workers.dask is None else blocks.by_dask)(workers, missing)
    return blocks.merged()


def _packed(conditions: Iterable[Condition], size: int) -> tuple[list[bytes], str]:
    """Blocks of conditions, a few bytes for each condition, and a digest of their names."""
    digest, packed, remaining = hashlib.sha256(), [], iter(conditions)
    while block := tuple(islice(remaining, size)):
        digest.update("\n".join([condition.name for condition in block]).encode() + b"\0")
        plain = [(condition.genes, condition.context, condition.kind) for condition in block]
        packed.append(zlib.compress(json.dumps(plain).encode(), 1))
    return packed, digest.hexdigest()


def _unpacked(packed: bytes) -> tuple[Condition, ...]:
    """The conditions of a block."""
    return tuple(Condition(tuple(genes), context, kind) for genes, context, kind in json.loads(zlib.decompress(packed)))


def _cache_folder(key: str) -> Path:
    import pooch

    parent = Path(pooch.os_cache("gears")) / "blocks"
    for folder in parent.glob("*"):
        with contextlib.suppress(OSError):  # another process removed it
            if time.time() - folder.stat().st_mtime > SECONDS_TO_KEEP:
                shutil.rmtree(folder, ignore_errors=True)
    return parent / key[:24]


@dataclasses.dataclass(frozen=True)
class Work:
    """A model and a function of its predictions, without what predictions do not need."""

    network: GEARSNetwork | None
    parts: ModelParts
    clip: bool | None
    reduce: Reduce

    def __call__(self, packed: bytes) -> Arrays:
        block = _unpacked(packed)
        (predictions,) = stream(self.network, self.parts, block, clip=self.clip, chunk=len(block))
        return self.reduce(predictions)

    def __reduce__(self) -> tuple[Any, ...]:
        """Of the graphs, predictions read that of the perturbations; a network is moved to the CPU."""
        go: Any = self.parts.go if self.parts.uses_network else None
        parts = dataclasses.replace(self.parts, inputs=PriorInputs(), graphs=Graphs(lambda: go, lambda: go))
        network = None if self.network is None else on_device(self.network, "cpu")
        return Work, (network, parts, self.clip, self.reduce)

    @property
    def digest(self) -> str:
        """Hash of everything that a result depends on beside the conditions."""
        parts, prior, network = self.parts, self.parts.prior, self.network
        facts = [__version__, parts.config.to_dict(), parts.gene_names, parts.pert_names, parts.nonnegative, self.clip]
        arrays = {"control": parts.control_mean_G} | ({} if prior is None else prior.arrays())
        if parts.contexts is not None:
            facts.append(parts.contexts.to_dict())
            arrays["controls"] = parts.contexts.control_mean_KG
            facts.append(content_hash(parts.contexts.is_measured_KG))
        if network is not None:
            arrays |= parts.go.arrays("go") | parts.coexpress.arrays("coexpress")
            arrays |= {f"network {name}": value.cpu().numpy() for name, value in network.state_dict().items()}
        return content_hash(facts, arrays_hash(arrays), *_code(self.reduce))


def _code(function: Any) -> list[bytes]:
    """A function as bytes, with the source text of what is pickled by its name."""
    parts = [function.func, *function.args] if isinstance(function, partial) else [function]
    code = [cloudpickle.dumps(function)]
    for part in parts:
        with contextlib.suppress(OSError, TypeError):  # no source text
            code.append(inspect.getsource(part).encode())
    return code


@dataclasses.dataclass(frozen=True)
class Blocks:
    """Blocks of conditions and the files of their results."""

    work: Work
    packed: Sequence[bytes]
    folder: Path
    key: str

    def missing(self, numbers: Iterable[int]) -> list[int]:
        """Those of some blocks that have no file."""
        return [number for number in numbers if not cache_file(self.folder, "block", self._key(number)).exists()]

    def result(self, number: int, build: Callable[[], Arrays] | None = None) -> Arrays:
        """Of the file of a block, which is written first where there is none (or a damaged one)."""
        build = partial(self.work, self.packed[number]) if build is None else build
        return cached_arrays(self.folder, "block", self._key(number), build)

    def _key(self, number: int) -> dict[str, Any]:
        return {"work": self.key, "number": number}

    def merged(self) -> Iterator[Block]:
        """All blocks in order; their files are removed at the end."""
        contexts = self.work.parts.contexts
        for number, packed in enumerate(self.packed):
            block = _unpacked(packed)
            with one_thread():
                arrays = self.result(number)
            yield block if contexts is None else contexts.placed(block, None, None), arrays
        shutil.rmtree(self.folder, ignore_errors=True)

    def by_processes(self, workers: Workers, missing: Sequence[int]) -> None:
        """Compute missing blocks in processes of this machine; raises the first error once all have ended."""
        network, device = self.work.network, workers.device
        if device is None and workers.gpu_ids is None and (network is None or network.indv_w1.device.type == "cpu"):
            device = "cpu"
        plan = plan_devices(workers.n_at_once, workers.gpu_ids, device)
        devices = plan.devices[: len(missing)]
        jobs = [(self, missing[part :: len(devices)]) for part in range(len(devices))]
        outcomes = launch_many(_compute, jobs, devices, backend=plan.backend)
        for outcome in outcomes:
            if outcome.error is not None:
                raise outcome.error

    def by_ranks(self, ranks: Ranks) -> None:
        """Compute the blocks of a rank of torchrun; rank 0 then those that are missing, the last one first."""
        is_first, deadline = ranks.rank == 0, time.monotonic() + SECONDS_TO_BEGIN
        if is_first:
            self.folder.mkdir(parents=True, exist_ok=True)
        while not self.folder.is_dir() and time.monotonic() < deadline:
            time.sleep(0.1)
        own, everything = range(ranks.rank, len(self.packed), ranks.world_size), range(len(self.packed))
        # rank 0 helps from the end: the others, who begin at the front, reach those blocks last
        with one_thread():
            for number in (*own, *(reversed(everything) if is_first else ())):
                if not self.folder.is_dir():  # rank 0 has ended
                    return
                if self.missing([number]):
                    self.result(number)

    def by_dask(self, workers: Workers, missing: Sequence[int]) -> None:
        """Compute missing blocks on a cluster, some at a time, and write them here."""
        import warnings

        from distributed import as_completed

        def submit(number: int) -> Any:
            future = client.submit(_compute_packed, work, self.packed[number], pure=False)
            numbers[future.key] = number
            return future

        with cluster(workers.dask) as client:
            remaining, numbers = iter(missing), dict[str, int]()
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Sending large graph")  # once, and recomputed where a worker dies
                work = client.submit(_itself, self.work, pure=False)
            done = as_completed([submit(number) for number in islice(remaining, IN_FLIGHT)], with_results=True)
            for future, arrays in done:
                self.result(numbers.pop(future.key), partial(dict, arrays))
                for number in islice(remaining, 1):
                    done.add(submit(number))


def _compute(_rank: int, _world_size: int, blocks: Blocks, numbers: Sequence[int]) -> None:
    """Compute blocks in a worker process, until a signal asks it to stop."""
    network = blocks.work.network
    if network is not None:
        network.to(current_world().device)
    with one_thread():
        for number in numbers:
            if stop_requested():
                return
            blocks.result(number)


def _itself(work: Work) -> Work:
    """The work, as a result that dask makes again where its worker dies."""
    return work


def _compute_packed(work: Work, packed: bytes) -> Arrays:
    """Compute a block in a worker of dask."""
    with one_thread():
        return work(packed)
