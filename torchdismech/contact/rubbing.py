"""Surfaces that rub, and the tractions that a search expects of them: see `integrate.primal_dual`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from torchdismech.contact.coupling import StepPairs
from torchdismech.contact.law import ContactLaw
from torchdismech.contact.obstacle import Obstacle
from torchdismech.contact.pairs import FIRST, PairTable
from torchdismech.contact.self_contact import SelfContacts
from torchdismech.state import State
from torchdismech.values import Values

__all__ = ["Rubbing"]

# Of the sum of two radii: how far the ends of a pair may move against each other in a step of a search. With a half a
# third more steps of a rope that coils fail, with an eighth searches take longer.
APART = 0.25


class Rubbing:
    """The obstacles of a step with friction that is smoothed, and the pairs of a robot's own parts.

    What is known of friction is a tensor (B, P, 9) for each obstacle and each table of pairs, of P points or places:
    the traction, and the normal and the velocity that it was found with.

    Parameters
    ----------
    obstacles, contacts : of the robot.
    pairs : that may touch in the step.
    """

    def __init__(self, obstacles: Sequence[Obstacle], contacts: SelfContacts, pairs: StepPairs | None):
        self._obstacles = [obstacle for obstacle in obstacles if obstacle.rubs]
        self._contacts, self._pairs = contacts, pairs
        # also without pairs: rows that go on alone have the same tables
        tables = () if pairs is None else pairs.pairs.tables
        self._tables = [table for table in tables if contacts[table.contact].rubs]

    def begun(self, state: State) -> list[Tensor]:
        """Return the tractions of the velocities of a state, with those and the normals, (B, P, 9) each."""
        slides = zip(self._laws(), self._slides(state), strict=True)
        return [torch.cat([law.tractions(*slide), *slide], dim=2) for law, slide in slides]

    def expected(self, state: State, before: Sequence[Tensor]) -> list[Tensor]:
        """Return the tractions to expect at a state, if others were `before` it, likewise."""
        found = []
        for law, known, (normal, velocity) in zip(self._laws(), before, self._slides(state), strict=True):
            traction, turned, slid = known.split(3, dim=2)
            expected = law.expected(turned, slid, velocity - slid, traction)
            found.append(torch.cat([expected, normal, velocity], dim=2))
        return found

    def bearable(self, motion: Tensor) -> Tensor | None:
        """Return the part (B, 1) of motions (B, N, 3) of the nodes in which no pair moves far; None without pairs.

        A search that goes farther at once has parts on the wrong side of each other, where they push the wrong way.
        """
        parts = [_bearable(table, motion) for table in self._tables if len(table)]
        return torch.cat(parts, dim=1).amin(1, keepdim=True) if parts else None

    @contextmanager
    def held_to(self, known: Sequence[Tensor]) -> Iterator[None]:
        """Let the derivatives of forces be for these tractions meanwhile; see `ContactLaw.partials`."""
        tractions = [of_all[..., :3] for of_all in known]
        count = len(self._obstacles)
        places: dict = {(o, "traction"): part for o, part in zip(self._obstacles, tractions[:count], strict=True)}
        with Values(places).in_place():
            if self._pairs is None:
                yield
                return
            with self._pairs.held_to(dict(zip(self._tables, tractions[count:], strict=True))):
                yield

    def _slides(self, state: State) -> list[tuple[Tensor, Tensor]]:
        """Return normals and velocities (B, P, 3) at a state, in the order of `_laws`."""
        own = ((self._contacts[table.contact], table) for table in self._tables)
        on_pairs = [contact.slides(table, state.q, state.velocity) for contact, table in own]
        return [obstacle.slides(state) for obstacle in self._obstacles] + on_pairs

    def _laws(self) -> list[ContactLaw]:
        """The laws, of obstacles, then of tables."""
        laws = [of.law for of in (*self._obstacles, *(self._contacts[table.contact] for table in self._tables))]
        return [law for law in laws if isinstance(law, ContactLaw)]


def _bearable(table: PairTable, motion: Tensor) -> Tensor:
    """Return the part (B, P) of motions (B, N, 3) in which the two sides of each pair move by `APART` of its reach
    against each other, or 1: the nodes of two edges, or a point and the nodes of a triangle.
    """
    moved = motion[torch.arange(len(motion), device=motion.device)[:, None, None], table.nodes[..., :4]]
    split = sum(node < 4 for node in FIRST[table.kernel])  # nodes beyond the four bend smooth lines alone
    against = moved[:, :, :split, None] - moved[:, :, None, split:]
    farthest = torch.linalg.vector_norm(against, dim=-1).flatten(2).amax(2)
    free = APART * table.reach
    return torch.where(table.filled & (farthest > free), free / torch.where(farthest > 0, farthest, 1.0), 1.0)
