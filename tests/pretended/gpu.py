"""The pretended GPU in the place of what torch has for CUDA."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.pretended.graphs import PretendedGraph, capturing
from tests.pretended.kernels import LapackBand, LoopKernel, loop_for_kernel
from tests.pretended.tensors import Device, GPUError, OnGPU, PythonOfGPU, device
from torchdismech.fused import function, kernel, making
from torchdismech.native import gpu
from torchdismech.solve.linear import banded

__all__ = ["pretended_gpu"]

MEMORY = 80 * 2**30  # bytes


@contextmanager
def pretended_gpu() -> Iterator[Device]:
    """Put a pretended GPU in the place of what torch has for CUDA; return what happens on it."""
    with pytest.MonkeyPatch.context() as patch:
        _replace_cuda(patch)
        _replace_autograd(patch)
        _replace_kernels(patch)
        device.waits.clear()
        with PythonOfGPU():
            yield device


def _replace_cuda(patch: pytest.MonkeyPatch) -> None:
    stream = SimpleNamespace(wait_stream=lambda other: None)
    names = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "device": lambda *_: nullcontext(),
        "device_of": _device_of,
        "stream": lambda *_: nullcontext(),
        "Stream": lambda *_: stream,
        "current_stream": lambda *_: stream,
        "CUDAGraph": PretendedGraph,
        "graph": capturing,
        "graph_pool_handle": object,
        "synchronize": lambda *_: None,
        "empty_cache": lambda: None,
        "current_device": lambda: 0,
        "mem_get_info": lambda *_: (MEMORY, MEMORY),
    }
    for name, value in names.items():
        patch.setattr(torch.cuda, name, value)
    patch.setattr(torch.backends.cuda, "preferred_linalg_library", lambda library=None: "default")
    # modules get new parameters as they move, as torch cannot put other tensors into the old ones
    patch.setattr(torch, "_has_compatible_shallow_copy_type", _can_be_put_into)


def _device_of(tensor: Tensor) -> nullcontext:
    if not isinstance(tensor, OnGPU):
        raise GPUError("a kernel for a tensor of the host")
    return nullcontext()


def _can_be_put_into(input: torch.Tensor, from_: torch.Tensor) -> bool:
    return not isinstance(input, OnGPU) and not isinstance(from_, OnGPU)


def _replace_autograd(patch: pytest.MonkeyPatch) -> None:
    """Let Python that autograd calls make tensors on the device, too, and take batched gradients one by one."""
    run, grad = torch.autograd._engine_run_backward, torch.autograd.grad

    def run_on_gpu(*given: Any, **options: Any) -> Any:
        with PythonOfGPU():  # while torch's own functions run there is none
            return run(*given, **options)

    def one_by_one(outputs: Any, inputs: Any, grad_outputs: Any = None, **options: Any) -> Any:
        if not (options.get("is_grads_batched") and isinstance(grad_outputs, OnGPU)):
            return grad(outputs, inputs, grad_outputs, **options)
        options |= {"is_grads_batched": False, "retain_graph": True}
        each = zip(*[grad(outputs, inputs, seed, **options) for seed in grad_outputs.unbind()], strict=True)
        return tuple(None if parts[0] is None else torch.stack(parts) for parts in each)

    patch.setattr(torch.autograd, "_engine_run_backward", run_on_gpu)
    patch.setattr(torch.autograd, "grad", one_by_one)


def _replace_kernels(patch: pytest.MonkeyPatch) -> None:
    code = SimpleNamespace(factor_symmetric=None, factor_unsymmetric=None, solve=None)
    patch.setattr(gpu.kernels, "outcome", gpu.Kernels(code, "pretended", interpreted=False))
    patch.setattr(banded, "TritonBand", LapackBand)
    patch.setattr(kernel, "_code", lambda text: _Launched())
    patch.setattr(making, "_programs", {})
    patch.setattr(making, "Kernel", LoopKernel)
    patch.setattr(making, "kernel_source", loop_for_kernel)
    patch.setattr(function, "_are_numbers", _are_numbers)


class _Launched:
    """A kernel that is launched and does nothing: `LoopKernel` does it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given, **constants: None


def _are_numbers(tensors: Any, where: str = "cpu") -> bool:
    kinds = (Tensor, nn.Parameter, OnGPU)
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    forward = torch.autograd.forward_ad._current_level >= 0
    return not (transformed or forward) and all(x.device.type == where and type(x) in kinds for x in tensors)
