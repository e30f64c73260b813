"""Evaluation of users' modules with other weights than their own, without side effects."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from torchdismech.origin import is_of_library, is_of_torch
from torchdismech.values import Place, Values, every_module, tensors_of

__all__ = ["other_weights", "unchanged_random_numbers", "unchanged_statistics", "with_other_weights"]


def other_weights(module: nn.Module) -> dict[Place, Tensor]:
    """Return numbers near those of a module's trained tensors, by place; always the same ones.

    A tensor that stands in two places gets one replacement, and bounded tensors do not become negative.
    """
    generator = torch.Generator().manual_seed(1)
    replacements: dict[int, Tensor] = {}
    by_place: dict[Place, Tensor] = {}
    for part in every_module(module):
        bounded = {*getattr(part, "not_negative", ()), *getattr(part, "positive", ())}
        for name, weight in part._parameters.items():
            if weight is None or not weight.requires_grad:
                continue
            if id(weight) not in replacements:
                noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64, device="cpu").to(weight)
                other = weight.detach() + 0.1 * noise
                replacements[id(weight)] = other.abs() if name in bounded else other
            by_place[part, name] = replacements[id(weight)]
    return by_place


@contextmanager
def with_other_weights(module: nn.Module) -> Iterator[None]:
    """Let a module have other weights in a block; afterwards everything that evaluations change in it is as before.

    That is its buffers, such as the running statistics of a BatchNorm, its attributes, and torch's random numbers.
    """
    parts = [part for part in every_module(module) if not is_of_library(part)]
    kept = [(held, dict(held)) for part in parts for held in (vars(part), part._buffers)]
    copies = {id(t): t.clone() for part in parts for t in part._buffers.values() if t is not None}
    with unchanged_random_numbers(module), Values(other_weights(module)).in_place():
        try:
            for part in parts:
                part._buffers.update({name: copies[id(t)] for name, t in part._buffers.items() if t is not None})
            yield
        finally:
            for held, before in kept:
                held.clear()
                held.update(before)


@contextmanager
def unchanged_statistics(module: nn.Module) -> Iterator[None]:
    """Restore the buffers of torch's modules in a module after a block, as the running statistics of a BatchNorm."""
    parts = [part for part in every_module(module) if is_of_torch(part)]
    buffers = [t for part in parts for t in part._buffers.values() if t is not None and not is_lazy(t)]
    before = [t.clone() for t in buffers]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, numbers in zip(buffers, before, strict=True):
                if not torch.equal(buffer, numbers):
                    buffer.copy_(numbers)


@contextmanager
def unchanged_random_numbers(module: nn.Module) -> Iterator[None]:
    """Restore the state of torch's random number generators after a block, on the CPU and on the module's GPUs."""
    tensors = tensors_of(every_module(module))
    with torch.random.fork_rng(sorted({t.device.index for t in tensors if t is not None and t.is_cuda})):
        yield
