"""A stand-in for a GPU: shows whether code would make the host wait, on a machine without one."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Tensors of this device have a shape and no numbers: whatever asks for one, or whose shape depends on one, raises.
DEVICE = torch.device("meta")


class _NoCopies(TorchDispatchMode):
    """Refuse operations between the host and `DEVICE`."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device for tensor in tensors if tensor.ndim}  # numbers of the host are handed over at once
        if len(devices) > 1:
            raise AssertionError(f"{func} moves numbers between {sorted(map(str, devices))}")
        return result


class _NoUploads(TorchFunctionMode):
    """Refuse tensors made of the host's numbers on `DEVICE`, a copy that the mode above does not see."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func in (torch.tensor, torch.as_tensor) and result.device == DEVICE and args[0] is not result:
            raise AssertionError(f"{func.__name__} copies numbers of the host to {DEVICE}")
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and args[0].device == DEVICE:
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            if any(isinstance(part, list | np.ndarray) for part in index):
                raise AssertionError(f"{func.__name__} copies an index of the host to {DEVICE}")
            number = func == torch.Tensor.__setitem__ and not isinstance(args[2], torch.Tensor)
            if number and any(isinstance(part, torch.Tensor) for part in index):
                raise AssertionError(f"{func.__name__} copies a number of the host to {DEVICE}, where it indexes")
        return result


@contextmanager
def nothing_to_wait_for() -> Iterator[None]:
    """Refuse what makes a host wait for its GPU, which is also what no CUDA graph can hold."""
    with _NoUploads(), _NoCopies():
        yield
