"""Pairs of primitives by themselves, for tests."""

import torch

from torchdismech.contact.law import ContactLaw
from torchdismech.contact.pairs import PairBlocks, PairLoops, PairTable, Touching, touching


def touching_pairs(table: PairTable, law: ContactLaw, q, velocity, follow: bool = False) -> Touching:
    """Return the pairs of a table that touch; autograd can `follow` their closest points, else loops find them."""
    with torch.set_grad_enabled(follow):
        return touching(PairLoops(table.kernel, law), table, q, velocity, law.constants)


def whole(blocks: PairBlocks) -> torch.Tensor:
    """Return the blocks (A, 12, 12), multiplied out."""
    entries = blocks.entries(slice(None)).view(3, 3, 4, 4, -1)
    return entries.permute(4, 2, 0, 3, 1).reshape(-1, 12, 12)
