"""Tensors of the pretended GPU, and what makes and moves them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)

# what reads numbers on the host, or has a shape that depends on them
WAITING = {
    *(aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default),
    *(aten._unique2.default, aten.unique_dim.default, aten.unique_consecutive.default, aten.repeat_interleave.Tensor),
}
INDEXING = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
# what takes numbers () of the host beside tensors of the device, besides all that goes element by element
TAKING_NUMBERS = {aten.fill_.Tensor, aten.where.self, aten.copy_.default, aten._to_copy.default}


class GPUError(RuntimeError):
    """What a real device would refuse, or get wrong."""


class Device:
    """What happens on the pretended device.

    Attributes
    ----------
    captured : where launches are kept while a graph is captured; else None.
    waits : for what the host has waited.
    """

    def __init__(self) -> None:
        self.captured: list[Launch] | None = None
        self.waits: list[str] = []

    def waited(self, what: Any) -> None:
        """Note that the host waits, which no graph can hold."""
        if self.captured is not None:
            raise GPUError(f"{what}: operation not permitted when stream is capturing")
        self.waits.append(str(what))

    def launched(self, run: Callable[[], Any], made: list[Tensor]) -> None:
        """Keep what a graph is to run again; `made` is in memory of its own."""
        if self.captured is not None:
            self.captured.append((run, made))


Launch = tuple[Callable[[], Any], list[Tensor]]
device = Device()
_held: weakref.WeakValueDictionary[int, OnGPU] = weakref.WeakValueDictionary()


class OnGPU(Tensor):
    """A tensor that says it is on the device; torch's C++ takes it for one of the CPU.

    Attributes
    ----------
    numbers : what it holds, on the CPU.
    """

    numbers: Tensor
    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, numbers: Tensor) -> OnGPU:
        """Return a tensor of these numbers."""
        like = {"dtype": numbers.dtype, "layout": numbers.layout, "device": "cpu"}
        made = Tensor._make_wrapper_subclass(
            cls, numbers.shape, strides=numbers.stride(), storage_offset=numbers.storage_offset(), **like
        )
        made.numbers = numbers.detach()
        _held[id(made)] = made
        return made

    def __repr__(self) -> str:
        return f"OnGPU{tuple(self.shape)}"

    def get_device(self) -> int:
        """Return the number of the device."""
        return 0

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _operation(func, args, kwargs or {})


def memory_held() -> set[int]:
    """Return where the memory begins that some tensor of the device holds on to."""
    return {tensor.numbers.untyped_storage().data_ptr() for tensor in [*_held.values()]}


def numbers_of(x: Any) -> Any:
    """Return the numbers of a tensor of the device; anything else as it is."""
    return x.numbers if isinstance(x, OnGPU) else x


def leaves(tree: Any) -> Iterator[Any]:
    """Yield what stands in lists, tuples and dictionaries; several times as fast as torch does."""
    if isinstance(tree, list | tuple | dict):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from leaves(part)
    else:
        yield tree


def tensors_in(tree: Any) -> list[Tensor]:
    """Return the tensors in lists, tuples and dictionaries."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """Return the same with a function applied to what stands in lists, tuples and dictionaries."""
    if isinstance(tree, dict):
        return {key: mapped(function, part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [mapped(function, part) for part in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return function(tree)


# --- Operations -------------------------------------------------------------------------------------------------------


def _operation(func: Any, args: tuple, kwargs: dict) -> Any:
    given = tensors_in((args, kwargs))
    _refuse_mixtures(func, args, given)
    plain_args, plain_kwargs = mapped(numbers_of, (args, kwargs))
    with torch.no_grad():
        found = func(*plain_args, **plain_kwargs)
    if func is aten._local_scalar_dense.default:
        return found
    if func is aten.copy_.default and not isinstance(args[0], OnGPU):
        return args[0]
    device.launched(lambda: _run_again(func, plain_args, plain_kwargs, found), _own(found, (plain_args, plain_kwargs)))
    known = {id(tensor.numbers): tensor for tensor in given if isinstance(tensor, OnGPU)}
    return mapped(lambda x: known.get(id(x), OnGPU(x)) if isinstance(x, Tensor) else x, found)


def _own(found: Any, given: Any) -> list[Tensor]:
    """Return the tensors among what was found that are in memory of their own."""
    theirs = {tensor.untyped_storage().data_ptr() for tensor in tensors_in(given)}
    return [t for t in tensors_in(found) if t.numel() and t.untyped_storage().data_ptr() not in theirs]


def _run_again(func: Any, args: tuple, kwargs: dict, found: Any) -> None:
    """Run an operation again, on the memory that it was captured with."""
    if all(returned.alias_info is None for returned in func._schema.returns):
        for old, new in zip(tensors_in(found), tensors_in(func(*args, **kwargs)), strict=True):
            old.copy_(new)
    elif func._schema.is_mutable:
        func(*args, **kwargs)  # in place; views stay what they are


def _refuse_mixtures(func: Any, args: tuple, given: list[Tensor]) -> None:
    """Refuse an operation on tensors of both devices, and note where the host waits for one."""
    of_host = [tensor for tensor in given if not isinstance(tensor, OnGPU)]
    if func in WAITING:
        device.waited(func)
    if func in INDEXING:
        _refuse_indices(func, args)
    elif func in (aten.copy_.default, aten._foreach_copy_.default):
        if of_host and len(of_host) < len(given):
            device.waited(func)
    elif any(tensor.ndim for tensor in of_host):
        shapes = [f"{type(tensor).__name__}{tuple(tensor.shape)}" for tensor in given]
        raise GPUError(f"{func}: expected all tensors to be on the same device, got {', '.join(shapes)}")
    elif of_host and not (func in TAKING_NUMBERS or torch.Tag.pointwise in func.tags):
        raise GPUError(f"{func}: takes no number of the host")
    elif of_host and func._schema.is_mutable and not isinstance(given[0], OnGPU):
        raise GPUError(f"{func}: writes numbers of the device to a tensor of the host")


def _refuse_indices(func: Any, args: tuple) -> None:
    """Refuse to index across devices; note where the host waits, for a mask, or to hand over indices or numbers."""
    if not isinstance(args[0], OnGPU):
        raise GPUError(f"{func}: indices are on the device, what they index is on the host")
    indices = tensors_in(args[1])
    if any(index.dtype in (torch.bool, torch.uint8) for index in indices):
        device.waited(f"{func} by a mask")
    if not all(isinstance(index, OnGPU) for index in indices):
        device.waited(f"{func} by indices of the host")
    if func is not aten.index.Tensor and not isinstance(args[2], OnGPU):
        if args[2].ndim:
            raise GPUError(f"{func}: writes a tensor of the host")
        device.waited(f"{func} of a number of the host")


# --- Making and moving ------------------------------------------------------------------------------------------------

MAKERS = {
    *(torch.zeros, torch.ones, torch.empty, torch.full, torch.arange, torch.eye, torch.linspace, torch.empty_strided),
    *(torch.rand, torch.randn, torch.randint, torch.randperm),
}
COPIERS = {torch.tensor, torch.as_tensor, torch.asarray}
MAKERS_ALIKE = {
    *(torch.zeros_like, torch.ones_like, torch.empty_like, torch.full_like, torch.rand_like, torch.randn_like),
    *(Tensor.new_zeros, Tensor.new_ones, Tensor.new_empty, Tensor.new_full, Tensor.new_tensor),
}


def is_on_gpu(where: Any) -> bool:
    """Return whether a device, or what names one, is the pretended one."""
    return where is not None and torch.device(where).type == "cuda"


class _Moved(torch.autograd.Function):
    """A tensor on the other device, as autograd sees it."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.set_materialize_grads(False)
        device.waited("a copy between host and device")
        return x.numbers.clone() if isinstance(x, OnGPU) else OnGPU(x.detach().clone())

    @staticmethod
    def backward(ctx, gradient: Tensor | None) -> Tensor | None:
        return None if gradient is None else _Moved.apply(gradient)


def moved(x: Tensor, to_gpu: bool) -> Tensor:
    """Return a tensor on the device or on the host."""
    return x if isinstance(x, OnGPU) == to_gpu else _Moved.apply(x)


class PythonOfGPU(TorchFunctionMode):
    """What torch's functions do in Python for tensors on the device: make, move and read them."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in MAKERS and is_on_gpu(kwargs.get("device")):
            return _made(func, args, kwargs)
        if func in COPIERS:
            return _copied(func, args[0], args[1:], kwargs)
        if func in MAKERS_ALIKE:
            return _made_alike(func, args, kwargs)
        if func is Tensor.to:
            return _to(*args, **kwargs)
        if func in (Tensor.cuda, Tensor.cpu):
            return moved(args[0], func is Tensor.cuda)
        if args and isinstance(args[0], OnGPU) and func in OF_TENSORS:
            return OF_TENSORS[func](*args)
        return func(*args, **kwargs)


def _made(func: Callable, args: tuple, kwargs: dict) -> Tensor:
    requires_grad = kwargs.pop("requires_grad", False)
    numbers = func(*args, **{**kwargs, "device": "cpu"})
    if func not in (torch.empty, torch.empty_strided):
        first = numbers.clone()
        device.launched(lambda: numbers.copy_(first), [numbers])
    return OnGPU(numbers).requires_grad_(requires_grad)


def _copied(func: Callable, given: Any, args: tuple, kwargs: dict) -> Tensor:
    where = kwargs.pop("device", None)
    if isinstance(given, OnGPU):
        there = where is None or is_on_gpu(where)
        return moved(given if kwargs.get("dtype") is None else given.to(kwargs["dtype"]), there)
    return moved(func(given, *args, **kwargs), is_on_gpu(where))


def _made_alike(func: Callable, args: tuple, kwargs: dict) -> Tensor:
    like, where = args[0], kwargs.pop("device", None)
    there = isinstance(like, OnGPU) if where is None else is_on_gpu(where)
    if func is Tensor.new_tensor or there != isinstance(like, OnGPU):
        found = func(numbers_of(like), *args[1:], **kwargs)
        return moved(found, True) if there else found
    return func(*args, **kwargs)


def _to(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    dtype, where = kwargs.get("dtype"), kwargs.get("device")
    for given in args:
        if isinstance(given, Tensor):
            dtype, where = given.dtype, given.device
        elif isinstance(given, torch.dtype):
            dtype = given
        elif isinstance(given, str | torch.device):
            where = given
    there = x if where is None else moved(x, is_on_gpu(where))
    return there if dtype in (None, there.dtype) else Tensor.to(there, dtype)


def _refuse_numpy(x: Tensor, *_: Any) -> None:
    raise TypeError("can't convert cuda:0 device type tensor to numpy")


def _list(x: OnGPU) -> Any:
    device.waited("tolist")
    return x.numbers.tolist()


def _deep_copy(x: OnGPU, memo: dict) -> Tensor:
    if id(x) not in memo:
        copied = OnGPU(x.numbers.clone())
        memo[id(x)] = nn.Parameter(copied, x.requires_grad) if isinstance(x, nn.Parameter) else copied
    return memo[id(x)]


OF_TENSORS: dict[Any, Callable] = {
    Tensor.numpy: _refuse_numpy,
    Tensor.__array__: _refuse_numpy,
    Tensor.tolist: _list,
    Tensor.data_ptr: lambda x: x.numbers.data_ptr(),
    Tensor.untyped_storage: lambda x: x.numbers.untyped_storage(),
    Tensor.__deepcopy__: _deep_copy,
}
