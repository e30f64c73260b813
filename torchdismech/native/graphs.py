"""Functions of tensors as CUDA graphs: all their launches handed over at once, for work whose time is calls."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.errors import InputError

__all__ = ["Captured", "captured"]

# Runs before a capture: the first compiles kernels, copies tables to the device and sizes workspaces, none of which a
# graph can hold; one more finds all of that done.
WARM_UPS = 2

Function = Callable[..., Tensor | tuple[Tensor, ...]]


def captured(function: Function) -> Captured:
    """Return the function as one that is captured at its first call and replayed from then on."""
    return Captured(function)


@dataclass(frozen=True)
class _Recording:
    """A graph, the tensors that it reads and those that it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]


class Captured:
    """A function whose launches are recorded once for each kind of arguments and replayed for all later ones.

    A replay runs the same launches on the same memory: the arguments are copied to where the recorded run found its
    own. So the function may depend on the numbers of its arguments, and of tensors that stay where they are (parameters
    written in place), but neither on anything else that changes nor on what the host would have to wait for, and it
    must not write to its arguments. No gradients are recorded.

    Parameters
    ----------
    function : takes CUDA tensors of one device and returns a tensor or a tuple of them.
    """

    def __init__(self, function: Function):
        self._function = function
        self._name = getattr(function, "__qualname__", type(function).__name__)
        self._recordings: dict[tuple, _Recording] = {}

    def __call__(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return what the function returns for the arguments.

        The first call for shapes, dtypes and a device runs the function a few times and records it, which takes
        memory for all that it computes, for as long as this object lives. Nothing is waited for in later calls.

        Returns
        -------
        The recorded run's own outputs: the next call for the same shapes overwrites them. Clone what is to be kept.
        They may be arguments of the next call.

        Raises
        ------
        InputError : for arguments that are not tensors of one CUDA device, and for a function that cannot be captured.
        """
        device = self._device(arguments)
        key = (device, *((argument.shape, argument.dtype) for argument in arguments))
        with torch.cuda.device(device), torch.no_grad():
            if key not in self._recordings:
                self._recordings[key] = self._recorded(arguments)
            recording = self._recordings[key]
            for kept, argument in zip(recording.inputs, arguments, strict=True):
                kept.copy_(argument)
            recording.graph.replay()
        return recording.outputs

    def _device(self, arguments: tuple[Tensor, ...]) -> torch.device:
        """Return the device of the arguments; refuse what no graph can hold."""
        devices = {a.device if isinstance(a, Tensor) else type(a).__name__ for a in arguments}
        device = next(iter(devices)) if len(devices) == 1 else None
        if not isinstance(device, torch.device) or device.type != "cuda":
            came = ", ".join(sorted(map(str, devices))) or "none"
            raise InputError(
                f"{self._name}: a CUDA graph takes tensors of one CUDA device, got {came}; move them there, or call "
                "the function itself"
            )
        return device

    def _recorded(self, arguments: tuple[Tensor, ...]) -> _Recording:
        """Return the recording of a run."""
        inputs = tuple(argument.detach().clone() for argument in arguments)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                self._outputs(inputs)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        try:
            # other threads may go on allocating meanwhile
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = self._outputs(inputs)
        except RuntimeError as error:
            raise InputError(
                f"{self._name}: cannot be captured in a CUDA graph ({str(error).splitlines()[0]}); it must not read "
                "numbers on the host (item, nonzero, if), nor copy between host and device"
            ) from error
        return _Recording(graph, inputs, outputs)

    def _outputs(self, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return what the function returns, in memory that is none of the inputs': these may come back as arguments."""
        given = self._function(*inputs)
        outputs = (given,) if isinstance(given, Tensor) else given
        if not isinstance(outputs, tuple) or not all(isinstance(output, Tensor) for output in outputs):
            raise InputError(f"{self._name}: must return a tensor or a tuple of tensors, got {type(given).__name__}")
        taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
        return tuple(o.clone() if o.untyped_storage().data_ptr() in taken else o for o in outputs)
