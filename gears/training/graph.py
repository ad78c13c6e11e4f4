"""The forward and backward of a step over moments as one CUDA graph (experimental: not yet run on a GPU).

A step of 32 conditions starts some 400 small kernels, and a GPU waits for the host most of the time. A CUDA graph
starts all of them at once, but always the same ones on the same memory: no shape and no number from the host may depend
on the batch (``MomentsTask.fixed``), and the inputs of each step are copied to where those of the first one are. The
check of the gradients, clipping and the update stay outside.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from gears.model.blockwise import BufferPool
from gears.training.tasks import MomentsTask, Window
from gears.training.wrapping import unwrap

WARM_UP = 3
"""Steps before the capture, in which libraries choose their kernels and allocate what they keep."""


class GraphedBackward:
    """Gradients of steps with one micro-batch each, by a graph from the step after :data:`WARM_UP` on.

    Once it is captured, a step writes its gradients over those of the step before: they must not be set to None.
    """

    def __init__(self, device: torch.device, amp_dtype: torch.dtype | None) -> None:
        self.device, self.amp_dtype = device, amp_dtype
        self._n_steps = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def is_captured(self) -> bool:
        return self._graph is not None

    def __call__(self, model: nn.Module, batch: Any, window: Window, task: Any) -> Tensor:
        """Loss of the batch; its gradients are added to ``.grad``, or replace them once the graph is captured."""
        inputs = task.inputs(batch, window, 0)
        self._n_steps += 1
        if self._n_steps <= WARM_UP:
            return self._backward(model, inputs, task)
        if self._graph is None:
            self._capture(model, inputs, task)
        assert self._graph is not None
        for name, tensor in self._inputs.items():
            tensor.copy_(inputs[name])
        self._graph.replay()
        return self._loss

    def _capture(self, model: nn.Module, inputs: dict[str, Tensor], task: MomentsTask) -> None:
        self._inputs = {name: tensor.clone() for name, tensor in inputs.items()}
        network, graph = unwrap(model), torch.cuda.CUDAGraph()
        # buffers that the graph uses belong to it alone
        network.pool.clear()
        pool, network.pool = network.pool, BufferPool()
        try:
            with torch.cuda.graph(graph):
                self._loss = self._backward(model, self._inputs, task)
        finally:
            network.pool = pool
        self._graph = graph

    def _backward(self, model: nn.Module, inputs: dict[str, Tensor], task: MomentsTask) -> Tensor:
        with torch.autocast(self.device.type, dtype=self.amp_dtype, enabled=self.amp_dtype is not None):
            loss = task.loss_of(model, inputs)
        loss.backward()
        return loss.detach()


def check_graph(task: Any, device: torch.device, world_size: int) -> None:
    """ValueError with the reason where ``cuda_graph=True`` cannot be used."""
    reason = None
    if device.type != "cuda":
        reason = f"training runs on {device}"
    elif world_size > 1:
        reason = f"there are {world_size} workers, and a graph has no collectives; train with one"
    elif not task.pairs.fit(task.dtype):
        reason = "the moments of all conditions are too large to lie on the GPU"
    if reason is not None:
        msg = f"cuda_graph=True needs moments on one CUDA device, but {reason}; omit cuda_graph"
        raise ValueError(msg)
