"""Smoothed friction in a step, as primal-dual searches need it (`integrate.search.primal_dual`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from torchdismech.contact.law import ContactLaw
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.forces.rubbing import RubbingForce
from torchdismech.robot.state import State
from torchdismech.values import Values

__all__ = ["SmoothedFriction"]


class SmoothedFriction:
    """All that rubs in a step with smoothed friction: forces such as obstacles, and pairs of the robot's own parts.

    A primal-dual search treats the traction T of each contact (friction is -T times the normal load) as an unknown
    beside the motion. Its *friction* at an iterate is a list of tensors, one for each force (see `RubbingForce`), then
    one (B, P, 9) for each table of pairs with P slots a robot. For contacts the nine columns are the traction, then the
    normal and the relative velocity [m/s] of the surfaces at that iterate.

    Parameters
    ----------
    forces : the forces with smoothed friction, such as obstacles.
    contacts : between parts of the robot; those without smoothed friction are left out.
    pairs : the pairs that may touch in the step; None where no parts can touch each other.
    """

    def __init__(self, forces: Sequence[RubbingForce], contacts: SelfContacts, pairs: StepPairs | None):
        self._forces = forces
        self._contacts, self._pairs = contacts, pairs
        # tables without any pair are kept: a search that goes on with some rows alone has to have the same tables
        tables = () if pairs is None else pairs.listed.tables
        self._tables = [table for table in tables if contacts[table.contact].rubs]
        self._force_tables = [] if pairs is None else contacts.force_tables(pairs.listed)

    def first_friction(self, state: State) -> list[Tensor]:
        """Return the friction with which a search begins at a state, (B, P, k) for each force, then for each table.

        Tractions are those of the state's velocities.
        """
        return self.of_forces(state) + self.on_pairs(state.q, state.velocity)

    def of_forces(self, state: State, before: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the friction (B, P, k) of each force at a state.

        Parameters
        ----------
        before : that at the iterate before, from which tractions are linearised; None where a search begins.
        """
        if before is None:
            return [force.first_friction(state) for force in self._forces]
        return [force.expected_friction(state, of_force) for force, of_force in zip(self._forces, before, strict=True)]

    def on_pairs(self, q: Tensor, velocity: Tensor, before: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the friction (B, P, 9) of each table of pairs at q and velocity (B, n); `before` as in `of_forces`."""
        of_tables = [None] * len(self._tables) if before is None else before
        tables = zip(self._tables, of_tables, strict=True)
        return [self._contacts[table.contact].friction(table, q, velocity, of_table) for table, of_table in tables]

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
        laws = [force.law for force in self._forces if isinstance(force, Obstacle)]
        return any(law.friction is not None and law.friction.directional for law in laws if isinstance(law, ContactLaw))

    @property
    def some(self) -> bool:
        """Whether something may rub in the step."""
        return bool(self._forces or self._tables)

    @property
    def force_count(self) -> int:
        """Number of forces with smoothed friction."""
        return len(self._forces)

    @property
    def tractions(self) -> list[Tensor]:
        """The tractions of the forces that are set by `with_tractions`; an empty list outside of it."""
        present = [force.traction for force in self._forces]
        return [traction for traction in present if traction is not None]

    @contextmanager
    def with_tractions(self, friction: Sequence[Tensor]) -> Iterator[None]:
        """Within this context, let contact forces have the derivatives of primal-dual steps (`LawFormulas.partials`).

        Parameters
        ----------
        friction : of all forces and tables; its tractions are used.
        """
        count = self.force_count
        tractions = [of_force[..., :3] for of_force in friction[:count]]
        places: dict = {(force, "traction"): own for force, own in zip(self._forces, tractions, strict=True)}
        with Values(places).in_place():
            if self._pairs is None:
                yield
                return
            with self._pairs.with_tractions(dict(zip(self._tables, friction[count:], strict=True))):
                yield
