"""Retaken: steps between checkpoints of `unroll`, which the backward pass takes again, if nothing they read changed.

Autograd saves no tensors of these steps, so it cannot notice that a weight has changed since the forward pass: the
gradients would silently be those of different steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.nn.utils import parametrize

from torchdismech.integrate.gradients.refusals import changed_between
from torchdismech.snapshot import labels, own_tensors, sources
from torchdismech.values import Place, every_module

__all__ = ["Retaken"]

Result = TypeVar("Result")


class Retaken(Generic[Result]):
    """A function that takes some steps; a second call takes them again and refuses if what they read has changed.

    Compared are the public floating-point tensors of the modules (whether another tensor is in the place of one, or one
    was changed in place), the inputs, and all other leaf tensors of autograd that the steps read, such as parameters of
    a schedule. Tensors that the steps themselves change, such as running statistics of a module, are not compared.

    Parameters
    ----------
    take : takes the steps, and returns their result.
    outputs : returns those tensors of a result through which gradients may pass.
    inputs : the tensors that the steps start from.
    modules : the modules that the steps read: the model and the controller.
    """

    def __init__(
        self,
        take: Callable[[], Result],
        outputs: Callable[[Result], Sequence[Tensor]],
        inputs: Sequence[Tensor],
        modules: Sequence[nn.Module],
    ):
        self._take, self._outputs, self._modules = take, outputs, modules
        self._snapshots: tuple[_TensorSnapshot, _TensorSnapshot] | None = None  # before the steps and after them
        self._read = [(tensor, _version(tensor)) for tensor in inputs]

    def __call__(self) -> Result:
        """Take the steps and return their result.

        Raises
        ------
        RuntimeError
            This is not the first call, and a tensor that the steps read has changed since that one.
        """
        if self._snapshots is not None:
            self._refuse_changed(*self._snapshots)
            return self._take()
        before, first_node = _TensorSnapshot(self._modules), torch._C._autograd._get_sequence_nr()
        result = self._take()
        known = {*map(id, before.tensors)}
        leaves = _leaves_read(self._outputs(result), first_node)
        self._read += [(leaf, _version(leaf)) for leaf in leaves if id(leaf) not in known]
        self._snapshots = before, _TensorSnapshot(self._modules)
        return result

    def _refuse_changed(self, before: _TensorSnapshot, after: _TensorSnapshot) -> None:
        """Raise an error that names the tensors that changed since the first call, if any did.

        `before`, `after` : the modules' tensors before and after the first call. A tensor that differs between these
        was changed by the steps themselves, and is not compared.
        """
        now = _TensorSnapshot(self._modules)
        changed_leaves = [tensor for tensor, version in self._read if _version(tensor) != version]
        if now.equals(after) and not changed_leaves:
            return
        versions_before, versions_after, versions_now = before.by_place(), after.by_place(), now.by_place()
        kept = {place: entry for place, entry in versions_after.items() if versions_before.get(place) == entry}
        changed = {place: entry for place, entry in kept.items() if versions_now.get(place) != entry}
        exchanged = [place for place, entry in changed.items() if versions_now.get(place, (0, 0))[0] != entry[0]]
        if exchanged:
            raise changed_between(self._names_of(exchanged), "exchanged", taken_again=True)
        if changed or changed_leaves:
            names = [*self._names_of([*changed]), *dict.fromkeys(map(_shown, changed_leaves))]
            raise changed_between(names, "changed in place", taken_again=True)

    def _names_of(self, places: Sequence[Place]) -> list[str]:
        """Return the names of tensors for messages; sources of parametrizations are named after what they make."""
        label_of = {module: label for root in self._modules for module, label in labels(root).items()}
        name_of_source = {
            id(source): f"{label_of[m]}.{name}"
            for m in label_of
            if parametrize.is_parametrized(m)
            for name, source in sources(m)
        }
        return [
            name_of_source.get(id(getattr(module, name, None)))
            or f"{label_of.get(module, type(module).__name__)}.{name}"
            for module, name in places
        ]


class _TensorSnapshot:
    """The tensors of modules and their versions at one moment.

    One is made before and after all steps from one checkpoint to the next, so comparing two has to be cheap: labels for
    messages are found only once something has changed.
    """

    def __init__(self, roots: Sequence[nn.Module]):
        self.tensors: list[Tensor | None] = []
        self._names: list[str] = []
        self._owners: list[nn.Module] = []
        for root in roots:
            for module in every_module(root):
                for own in own_tensors(module):
                    if own:
                        self.tensors += own.values()
                        self._names += own
                        self._owners += [module] * len(own)
        self._versions = [0 if tensor is None else _version(tensor) for tensor in self.tensors]

    def equals(self, other: _TensorSnapshot) -> bool:
        """Return whether both hold the same tensor objects, under the same names and with the same versions."""
        same = self._versions == other._versions and self._names == other._names
        return same and [*map(id, self.tensors)] == [*map(id, other.tensors)]

    def by_place(self) -> dict[Place, tuple[int, int]]:
        """Return id and version of each public floating-point tensor, by its place (module, name)."""
        every = zip(self._owners, self._names, self.tensors, self._versions, strict=True)
        return {
            (module, name): (id(tensor), version)
            for module, name, tensor, version in every
            if tensor is not None and name[0] != "_" and tensor.is_floating_point()
        }


def _version(tensor: Tensor) -> int:
    """Return a tensor's version, which grows with each change in place; 0 for inference tensors, which have none."""
    return 0 if tensor.is_inference() else tensor._version


def _leaves_read(outputs: Sequence[Tensor], began: int) -> Iterator[Tensor]:
    """Yield the leaf tensors that the outputs depend on by autograd nodes of sequence number `began` or later."""
    waiting = [tensor.grad_fn for tensor in outputs]
    seen: set[Node] = set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or node._sequence_nr() < began:
            continue
        seen.add(node)
        if (leaf := getattr(node, "variable", None)) is not None:
            yield leaf
        waiting += [below for below, _ in node.next_functions]


def _shown(tensor: Tensor) -> str:
    return f"a tensor {tuple(tensor.shape)} that the state, the schedule, the controller or `observe` gives"
