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

__all__ = ["SmoothedFriction"]

Slide = tuple[Tensor, Tensor]  # normals and velocities (B, P, 3)


class SmoothedFriction:
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
        self._force_tables = [] if pairs is None else contacts.force_tables(pairs.listed)
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

    def expected_on_obstacles(self, state: State, friction_before: Sequence[Tensor]) -> list[Tensor]:
        """Return the friction (B, P, 9) of each obstacle at the next iterate, with linearised tractions.

        Parameters
        ----------
        state : of the next iterate.
        friction_before : (B, P, 9) for each obstacle, at the iterate before.
        """
        arguments = zip(self._laws, friction_before, self._on_obstacles(state), strict=True)
        return [_expected_friction(*of_obstacle) for of_obstacle in arguments]

    def expected_on_pairs(self, q: Tensor, velocity: Tensor, friction_before: Sequence[Tensor]) -> list[Tensor]:
        """Return the friction (B, P, 9) of each table of pairs at the next iterate, with linearised tractions.

        Parameters
        ----------
        q, velocity : (B, n) of the next iterate.
        friction_before : (B, P, 9) at the iterate before, for all obstacles and tables.
        """
        tables = zip(self._tables, friction_before[self.obstacle_count :], strict=True)
        return [
            self._contacts[table.contact].expected_friction(table, q, velocity, of_table) for table, of_table in tables
        ]

    def step_fraction(self, motion: Tensor) -> Tensor | None:
        """Return the fraction (B, 1), up to 1, of a motion (B, 3 N) of the nodes that a search may take at once.

        Within it the two sides of no pair move by more than `pair_loops.LARGEST_STEP` of their reach against each
        other; None where no pairs may touch. After a longer step parts may be on the wrong side of each other, where
        they push the wrong way. That holds for pairs without friction, too.
        """
        if not self._force_tables:
            return None
        fraction = torch.ones(len(motion), dtype=motion.dtype, device=motion.device)
        motion = motion.contiguous()  # here, so that it is copied once and not for each table
        for table in self._force_tables:
            self._contacts[table.contact].limit_step(table, motion, fraction)
        return fraction.unsqueeze(1)

    @property
    def directional(self) -> bool:
        """Whether rods rub on some obstacle with other coefficients along themselves than across."""
        return any(law.friction is not None and law.friction.directional for law in self._laws)

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
    def with_tractions(self, friction: Sequence[Tensor]) -> Iterator[None]:
        """Within this context, let contact forces have the derivatives of primal-dual steps (`LawFormulas.partials`).

        Parameters
        ----------
        friction : the friction (B, P, 9) of all obstacles and tables; its tractions are used.
        """
        count = self.obstacle_count
        tractions = [of_obstacle[..., :3] for of_obstacle in friction[:count]]
        places: dict = {(o, "traction"): traction for o, traction in zip(self._obstacles, tractions, strict=True)}
        with Values(places).in_place():
            if self._pairs is None:
                yield
                return
            with self._pairs.with_tractions(dict(zip(self._tables, friction[count:], strict=True))):
                yield

    def _on_obstacles(self, state: State) -> list[Slide]:
        """Return normals and relative velocities (B, P, 3) at the points of each obstacle at a state."""
        return [obstacle.normals_and_velocities(state) for obstacle in self._obstacles]


def _expected_friction(law: ContactLaw, friction_before: Tensor, slide: Slide) -> Tensor:
    """Return the friction (B, P, 9) at the next iterate: the linearised traction, then the normal and velocity there.

    Parameters
    ----------
    friction_before : (B, P, 9) at the iterate before.
    slide : normals and velocities at the next iterate.
    """
    traction, normal_before, velocity_before = friction_before.split(3, dim=2)
    normal, velocity = slide
    return torch.cat(
        [
            law.expected_tractions(normal_before, velocity_before, velocity - velocity_before, traction),
            normal,
            velocity,
        ],
        dim=2,
    )
