"""Pairs of primitives by themselves, for tests."""

import torch

from torchdismech.contact.law import ContactLaw
from torchdismech.contact.pairs.pair_loops import Kernel, PairLoops
from torchdismech.contact.pairs.pairs import Listed, PairBlocks, PairTable, Touching, touching


def full_table(kernel: Kernel, nodes: torch.Tensor, reach: torch.Tensor, continues=None, **options) -> PairTable:
    """Return the table of robots with the same number of pairs each.

    Parameters
    ----------
    nodes : (B, P, n) of each pair.
    reach : (B, P) the sums of the radii.
    continues : (B, P, 4) where smooth lines go on.
    """
    robot = torch.arange(len(nodes)).repeat_interleave(nodes.shape[1])
    continues = None if continues is None else continues.flatten(0, 1).t()
    listed = Listed(robot, nodes.flatten(0, 1))
    return PairTable.of(kernel, listed, reach.flatten(), len(nodes), continues=continues, **options)


def touching_pairs(table: PairTable, law: ContactLaw, q, velocity, follow: bool = False) -> Touching:
    """Return the pairs of a table that touch; autograd can `follow` their closest points, else loops find them."""
    with torch.set_grad_enabled(follow):
        return touching(PairLoops.of(table.kernel, law.formulas), table, q, velocity, law.constants)


def whole(blocks: PairBlocks) -> torch.Tensor:
    """Return the blocks (A, 3 n, 3 n) of pairs of n nodes, multiplied out."""
    n = len(blocks.weights)
    entries = blocks.entries(slice(None)).view(3, 3, n, n, -1)
    return entries.permute(4, 2, 0, 3, 1).reshape(-1, 3 * n, 3 * n)
