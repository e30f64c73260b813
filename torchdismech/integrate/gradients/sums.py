"""Sums: the gradients of a batch, put together from those of some robots at a time, maybe by several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from torchdismech.integrate.chunks import Chunk
from torchdismech.integrate.forward import SolvedChunk
from torchdismech.system.workers import shared_out

if TYPE_CHECKING:
    from torchdismech.integrate.recorded.adjoint import RecordedAdjoint

__all__ = ["Needed", "Sums"]

Needed = list[tuple[Tensor, bool]]  # inputs of a step, and whether each needs a gradient


class Sums:
    """Gradients by the inputs of a step of all robots, put together from those of some robots at a time.

    Gradients by tensors of single robots are written side by side, those by tensors for all robots are added up.

    Parameters
    ----------
    needed : the inputs, and whether each needs a gradient.
    axes : the dimension of the robots in each; None where it is for all.
    """

    def __init__(self, needed: Needed, axes: Sequence[int | None]):
        self._needed = needed
        self._wanted = [(k, axis) for k, ((_, need), axis) in enumerate(zip(needed, axes, strict=True)) if need]
        self._totals: list[Tensor | None] = [None] * len(needed)
        self._chunk_parts: dict[int, Sequence[Tensor]] = {}  # parts of a total for all chunks, by the input's number

    def add_chunks(
        self,
        chunks: Sequence[SolvedChunk],
        of_chunk: Callable[[SolvedChunk, RecordedAdjoint | None], Sequence[Tensor | None] | None],
        recordings: Callable[[int], Sequence[RecordedAdjoint]],
    ) -> None:
        """Add the gradients of chunks, one after the other, or several at a time where recordings are for threads.

        Parameters
        ----------
        of_chunk : returns the gradients of a chunk, as for `add`, by a recording, if there is one, whose next chunk may
            overwrite them.
        recordings : returns those for so many chunks, one for each thread; none where there are none.
        """

        def kept(recording: RecordedAdjoint, solved: SolvedChunk) -> list[Tensor | None] | None:
            gradients = of_chunk(solved, recording)
            return None if gradients is None else [None if g is None else g.clone() for g in gradients]

        for number, solved in enumerate(chunks):
            of_threads, left = recordings(len(chunks) - number), chunks[number:]
            if len(of_threads) > 1:
                for later, gradients in zip(left, shared_out(kept, of_threads, left), strict=True):
                    self.add(later.chunk, gradients)
                return
            self.add(solved.chunk, of_chunk(solved, of_threads[0] if of_threads else None))

    def add(self, chunk: Chunk, gradients: Sequence[Tensor | None] | None) -> None:
        """Add the gradients of a chunk by the inputs that need one, which are copied; None is zero."""
        if chunk.whole:
            for (k, _), gradient in zip(self._wanted, gradients or [], strict=gradients is not None):
                if gradient is not None:
                    self._totals[k] = gradient.clone(memory_format=torch.contiguous_format)
            return
        targets, sources = [], []
        for number, (k, axis) in enumerate(self._wanted):
            gradient, total = None if gradients is None else gradients[number], self._totals[k]
            if axis is None:
                if gradient is not None:
                    self._totals[k] = gradient.clone() if total is None else total.add_(gradient)
                continue
            if total is None and gradient is not None:
                make = torch.zeros_like if chunk.number else torch.empty_like  # chunks before this one had no gradient
                self._totals[k] = total = make(self._needed[k][0], memory_format=torch.contiguous_format)
                self._chunk_parts[k] = total.split(chunk.size, axis)
            if gradient is not None:
                targets.append(self._chunk_parts[k][chunk.number])
                sources.append(chunk.without_repeated(gradient, axis))
            elif total is not None:
                self._chunk_parts[k][chunk.number].zero_()
        if targets:
            torch._foreach_copy_(targets, sources)

    def gradients(self) -> list[Tensor | None]:
        """Return the gradients by all inputs, None for those that need none."""
        for k, _ in self._wanted:
            self._totals[k] = torch.zeros_like(self._needed[k][0]) if self._totals[k] is None else self._totals[k]
        return self._totals
