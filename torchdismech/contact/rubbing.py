"""Surfaces that rub, and the tractions that a search expects of them: see `integrate.search.primal_dual`."""

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
    """The obstacles of a step with friction that is smoothed, and the pairs of a robot's own parts.

    What a search knows of friction at an iterate is a tensor (B, P, 9) for each obstacle and each table of pairs, of P
    points or places: the traction (friction over the load), and the normal and the velocity at which it was found.
    Obstacles come first.

    Parameters
    ----------
    obstacles, contacts : of the robot.
    pairs : that may touch in the step.
    """

    def __init__(self, obstacles: Sequence[Obstacle], contacts: SelfContacts, pairs: StepPairs | None):
        self._obstacles = [obstacle for obstacle in obstacles if obstacle.rubs]
        self._contacts, self._pairs = contacts, pairs
        # also without pairs: rows that go on alone have the same tables
        tables = () if pairs is None else pairs.listed.tables
        self._tables = [table for table in tables if contacts[table.contact].rubs]
        self._pushing = [] if pairs is None else contacts.pushing(pairs.listed)
        laws = [obstacle.law for obstacle in self._obstacles]
        self._laws = [law for law in laws if isinstance(law, ContactLaw)]

    def first_friction(self, state: State) -> list[Tensor]:
        """Return what a search begins with at a state: (B, P, 9) of all that rubs, the tractions of its velocities."""
        return self.first_on_obstacles(state) + self.first_on_pairs(state.q, state.velocity)

    def first_on_obstacles(self, state: State) -> list[Tensor]:
        """Return what `first_friction` does of obstacles."""
        slides = zip(self._laws, self._on_obstacles(state), strict=True)
        return [torch.cat([law.tractions(*slide), *slide], dim=2) for law, slide in slides]

    def first_on_pairs(self, q: Tensor, velocity: Tensor) -> list[Tensor]:
        """Return what `first_friction` does of the pairs of the robot's parts, at q and a velocity (B, n)."""
        return [self._contacts[table.contact].first_friction(table, q, velocity) for table in self._tables]

    def expected_on_obstacles(self, state: State, before: Sequence[Tensor]) -> list[Tensor]:
        """Return the friction (B, P, 9) to expect of obstacles at a state, from that at the iterate `before`."""
        known = zip(self._laws, before, self._on_obstacles(state), strict=True)
        return [_expected_friction(*of_one) for of_one in known]

    def expected_on_pairs(self, q: Tensor, velocity: Tensor, before: Sequence[Tensor]) -> list[Tensor]:
        """Return that to expect of the robot's own pairs at q and a velocity (B, n); `before` is of all that rubs."""
        known = zip(self._tables, before[self.obstacle_count :], strict=True)
        return [self._contacts[table.contact].expected_friction(table, q, velocity, of_one) for table, of_one in known]

    def step_fraction(self, motion: Tensor) -> Tensor | None:
        """Return the fraction (B, 1) of motions (B, 3 N) of the nodes in which no pair moves far; None without pairs.

        A search that goes farther at once has parts on the wrong side of each other, where they push the wrong way,
        whether they rub or not.
        """
        if not self._pushing:
            return None
        fraction = torch.ones(len(motion), dtype=motion.dtype, device=motion.device)
        motion = motion.contiguous()  # once for all tables
        for table in self._pushing:
            self._contacts[table.contact].limit_step(table, motion, fraction)
        return fraction.unsqueeze(1)

    @property
    def obstacle_count(self) -> int:
        """How many obstacles rub."""
        return len(self._obstacles)

    @property
    def tractions(self) -> list[Tensor]:
        """The tractions (B, P, 3) that the derivatives of obstacles' forces are for; none outside `with_tractions`."""
        present = [obstacle.traction for obstacle in self._obstacles]
        return [traction for traction in present if traction is not None]

    @contextmanager
    def with_tractions(self, known: Sequence[Tensor]) -> Iterator[None]:
        """Meanwhile, let forces have the derivatives of primal-dual steps for tractions; see `LawFormulas.partials`.

        Parameters
        ----------
        known : (B, P, 9) of all that rubs, as the methods before return it.
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
        """Return how the robots slide along each obstacle at a state."""
        return [obstacle.slides(state) for obstacle in self._obstacles]


def _expected_friction(law: ContactLaw, before: Tensor, slide: Slide) -> Tensor:
    """Return the friction (B, P, 9) to expect by a law of surfaces that slide now, from that at the iterate before."""
    traction, turned, slid = before.split(3, dim=2)
    normal, velocity = slide
    return torch.cat([law.expected_tractions(turned, slid, velocity - slid, traction), normal, velocity], dim=2)
