"""Smoothed friction of a step's contacts, as primal-dual searches need it (`integrate.search.primal_dual`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from torchdismech.contact.law import ContactLaw
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.robot.state import State
from torchdismech.values import Values

__all__ = ["Rubbing"]

Slide = tuple[Tensor, Tensor]  # normals and velocities (B, P, 3)


class Rubbing:
    """The contacts of a step whose friction is smoothed: obstacles, and pairs of the robot's own parts.

    A primal-dual search treats the traction T of each contact (friction is -T times the normal load) as an unknown
    beside the motion. Its *friction* at an iterate is a list of tensors (B, P, 9), one for each obstacle with P points,
    then one for each table of pairs with P slots a robot. The nine columns are the traction, then the normal and the
    relative velocity [m/s] of the surfaces at that iterate.

    Parameters
    ----------
    obstacles, contacts : all of the robot; those without smoothed friction are left out.
    pairs : the pairs that may touch in the step; None where no parts can touch each other.
    """

    def __init__(self, obstacles: Sequence[Obstacle], contacts: SelfContacts, pairs: StepPairs | None):
        self._obstacles = [obstacle for obstacle in obstacles if obstacle.rubs]
        self._contacts, self._pairs = contacts, pairs
        # tables without any pair are kept: a search that goes on with some rows alone has to have the same tables
        tables = () if pairs is None else pairs.listed.tables
        self._tables = [table for table in tables if contacts[table.contact].rubs]
        self._pushing = [] if pairs is None else contacts.pushing(pairs.listed)
        laws = [obstacle.law for obstacle in self._obstacles]
        self._laws = [law for law in laws if isinstance(law, ContactLaw)]

    def first_friction(self, state: State) -> list[Tensor]:
        """Return the friction with which a search begins at a state, (B, P, 9) for each obstacle, then for each table.

        Tractions are those of the state's velocities.
        """
        return self.first_on_obstacles(state) + self.first_on_pairs(state.q, state.velocity)

    def first_on_obstacles(self, state: State) -> list[Tensor]:
        """Return the friction (B, P, 9) of each obstacle with which a search begins at a state."""
        slides = zip(self._laws, self._on_obstacles(state), strict=True)
        return [torch.cat([law.tractions(*slide), *slide], dim=2) for law, slide in slides]

    def first_on_pairs(self, q: Tensor, velocity: Tensor) -> list[Tensor]:
        """Return the friction (B, P, 9) of each table of pairs with which a search begins at q and velocity (B, n)."""
        return [self._contacts[table.contact].first_friction(table, q, velocity) for table in self._tables]

    def expected_on_obstacles(self, state: State, before: Sequence[Tensor]) -> list[Tensor]:
        """Return the friction (B, P, 9) of each obstacle at the next iterate, with linearised tractions.

        Parameters
        ----------
        state : of the next iterate.
        before : (B, P, 9) for each obstacle, at the iterate before.
        """
        known = zip(self._laws, before, self._on_obstacles(state), strict=True)
        return [_expected_friction(*of_one) for of_one in known]

    def expected_on_pairs(self, q: Tensor, velocity: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        """Return the friction (B, P, 9) of each table of pairs at the next iterate, with linearised tractions.

        Parameters
        ----------
        q, velocity : (B, n) of the next iterate.
        before : (B, P, 9) at the iterate before, for all obstacles and tables.
        """
        known = zip(self._tables, before[self.obstacle_count :], strict=True)
        return [self._contacts[table.contact].expected_friction(table, q, velocity, of_one) for table, of_one in known]

    def step_fraction(self, motion: Tensor) -> Tensor | None:
        """Return the fraction (B, 1), up to 1, of a motion (B, 3 N) of the nodes that a search may take at once.

        Within it the two sides of no pair move by more than `pair_loops.LARGEST_STEP` of their reach against each
        other; None where no pairs may touch. After a longer step parts may be on the wrong side of each other, where
        they push the wrong way. That holds for pairs without friction, too.
        """
        if not self._pushing:
            return None
        fraction = torch.ones(len(motion), dtype=motion.dtype, device=motion.device)
        motion = motion.contiguous()  # here, so that it is copied once and not for each table
        for table in self._pushing:
            self._contacts[table.contact].limit_step(table, motion, fraction)
        return fraction.unsqueeze(1)

    @property
    def obstacle_count(self) -> int:
        """Number of obstacles with smoothed friction."""
        return len(self._obstacles)

    @property
    def tractions(self) -> list[Tensor]:
        """The tractions (B, P, 3) of the obstacles that are set by `with_tractions`; an empty list outside of it."""
        present = [obstacle.traction for obstacle in self._obstacles]
        return [traction for traction in present if traction is not None]

    @contextmanager
    def with_tractions(self, known: Sequence[Tensor]) -> Iterator[None]:
        """Within this context, let contact forces have the derivatives of primal-dual steps (`LawFormulas.partials`).

        Parameters
        ----------
        known : the friction (B, P, 9) of all obstacles and tables; its tractions are used.
        """
        count = self.obstacle_count
        tractions = [of_all[..., :3] for of_all in known[:count]]
        places: dict = {(o, "traction"): part for o, part in zip(self._obstacles, tractions, strict=True)}
        with Values(places).in_place():
            if self._pairs is None:
                yield
                return
            with self._pairs.with_tractions(dict(zip(self._tables, known[count:], strict=True))):
                yield

    def _on_obstacles(self, state: State) -> list[Slide]:
        """Return normals and relative velocities (B, P, 3) at the points of each obstacle at a state."""
        return [obstacle.slides(state) for obstacle in self._obstacles]


def _expected_friction(law: ContactLaw, before: Tensor, slide: Slide) -> Tensor:
    """Return the friction (B, P, 9) at the next iterate: the linearised traction, then the normal and velocity there.

    Parameters
    ----------
    before : (B, P, 9) at the iterate before.
    slide : normals and velocities at the next iterate.
    """
    traction, turned, slid = before.split(3, dim=2)
    normal, velocity = slide
    return torch.cat([law.expected_tractions(turned, slid, velocity - slid, traction), normal, velocity], dim=2)
