"""ContactModel: all contacts of a robot, with obstacles and between its own parts, as a `Model` holds them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact.law import ConstraintLaw, ContactLaw, constants_of
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.pairs.coupling import CouplingCache, StepPairs
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.contact.report import ContactReport, contact_report
from torchdismech.contact.rubbing import SmoothedFriction
from torchdismech.errors import InputError
from torchdismech.forces.rubbing import RubbingForce
from torchdismech.robot.body import Body
from torchdismech.robot.slides import SlidingEntries
from torchdismech.robot.state import State
from torchdismech.robot.unknowns import Unknowns
from torchdismech.rows import finite_rows
from torchdismech.sparse import Pattern
from torchdismech.values import Place, Values

__all__ = ["ContactModel"]


class ContactModel:
    """All contacts of a robot: with obstacles, and between its own parts.

    It is no module itself: obstacles and self-contacts are registered in the `Model`.

    Parameters
    ----------
    body : of the robot.
    obstacles : the obstacles that it may touch.
    rubbing_forces : the forces with smoothed friction: some of these obstacles, and others, such as tendons.
    self_contacts : how its parts touch each other; without any they pass through each other.
    unknowns : of the robot.
    pattern : sparsity of the matrix without contact between parts.
    sliding : projects values on that pattern for nodes that slide (`robot.slides`); None without such nodes.

    Raises
    ------
    InputError
        Constraints ask for different methods (all contacts of a step are one problem), or the model is not in float64.
    """

    def __init__(
        self,
        body: Body,
        obstacles: Sequence[Obstacle],
        rubbing_forces: Sequence[RubbingForce],
        self_contacts: SelfContacts,
        unknowns: Unknowns,
        pattern: Pattern,
        sliding: SlidingEntries | None,
    ):
        self.body, self.obstacles, self.self_contacts = body, list(obstacles), self_contacts
        self._rubbing_forces = list(rubbing_forces)
        numbers = unknowns.number[: 3 * body.n_nodes]
        self._couplings = CouplingCache(pattern, numbers, sliding, body.rod_edges)
        self._check_constraints(body.nodes.dtype)

    def _check_constraints(self, dtype: torch.dtype) -> None:
        methods = {law.response.method for law in self.laws if isinstance(law, ConstraintLaw)}
        if len(methods) > 1:
            raise InputError(
                f"Complementarity.method: one for all contacts of a robot, got {', '.join(sorted(methods))}"
            )
        if methods and dtype != torch.float64:
            raise InputError(
                f"Complementarity: contact without overlap needs a model in float64, got {dtype}; or take Penalty"
            )

    @property
    def none(self) -> bool:
        """Whether the robot has no contacts at all."""
        return not self.obstacles and not len(self.self_contacts)

    @property
    def laws(self) -> list[ContactLaw | ConstraintLaw]:
        """The laws of all contacts."""
        return [contact.law for contact in (*self.obstacles, *self.self_contacts)]

    @property
    def constrained_obstacles(self) -> list[Obstacle]:
        """The obstacles whose contact is a constraint."""
        return [obstacle for obstacle in self.obstacles if obstacle.constrained]

    @property
    def constrained(self) -> bool:
        """Whether some contact is a constraint."""
        return any(contact.constrained for contact in (*self.obstacles, *self.self_contacts))

    @property
    def needs_feasible_iterates(self) -> bool:
        """Whether some contact, as a barrier, needs gaps above zero in every iteration."""
        return any(law.response.feasible_only for law in self.laws)

    def with_slip(self, factor: Tensor) -> Values:
        """Return values for the slip velocities of all smoothed friction: the present ones times factors (B, 1)."""
        slips: dict[Place, Tensor] = {}
        for law in self.laws:
            if law.friction is not None and law.friction.slip_velocity is not None:
                slips[law.friction, "slip_velocity"] = factor * law.friction.slip_velocity
        for force in self._rubbing_forces:
            if not isinstance(force, Obstacle):
                slips[force, "slip_velocity"] = factor * force.slip_velocity
        return Values(slips)

    @property
    def rubs(self) -> bool:
        """Whether some force or contact has smoothed friction."""
        return bool(self._rubbing_forces) or any(contact.rubs for contact in self.self_contacts)

    def rubbing(self, pairs: StepPairs | None) -> SmoothedFriction:
        """Return all smoothed friction in a step in which these pairs may touch."""
        return SmoothedFriction(self._rubbing_forces, self.self_contacts, pairs)

    def may_touch(self, start: Tensor, end: Tensor, search_distance: Tensor) -> StepPairs | None:
        """Return the pairs of parts that may touch while q goes from `start` to `end` (B, n).

        None for a robot without contact between its parts.

        Parameters
        ----------
        search_distance : (B,) how far nodes may be off the straight line from start to end, along each axis [m].
        """
        if not len(self.self_contacts):
            return None
        x0, x1 = (q[:, : 3 * self.body.n_nodes].unflatten(1, (-1, 3)) for q in (start, end))
        return StepPairs(self.self_contacts.pairs(x0, x1, search_distance), self._couplings)

    def may_touch_at(self, q: Tensor) -> StepPairs | None:
        """Return the pairs of parts that may touch at q (B, n), as `may_touch` does for a motion."""
        return self.may_touch(q, q, q.new_zeros(len(q)))

    def undefined_laws(self, state: State) -> Tensor:
        """Return the robots (B,) bool of which some constant of a law is not finite, also while nothing touches."""
        constants = [constant.detach() for law in self.laws for constant in constants_of(law)]
        of_robots = [constant.expand(state.batch, 1) for constant in constants]
        return ~finite_rows([state.time, *of_robots])  # laws of users may have no constants

    def undefined(self, state: State) -> Tensor:
        """Return the robots (B,) bool whose contacts are undefined: see `undefined_laws`, or distances are NaN.

        Without this check comparisons would take a NaN gap for surfaces far apart, and NaN friction for none. Distances
        are evaluated at one point of each robot: a shape with a NaN constant has NaN distances everywhere.
        """
        is_nan = self.undefined_laws(state)
        for obstacle in self.obstacles:
            distance = (
                obstacle.shape.distance(obstacle.relative_points(state.q, state.time)[:, :1]) - obstacle.points.radius
            )
            is_nan = is_nan | distance.detach().isnan().any(1)
        return is_nan

    def report(self, state: State) -> ContactReport:
        """Return the contact report of a state (see `contact.report`); constraints have no loads outside of a step."""
        pairs = self.may_touch_at(state.q)
        listed = None if pairs is None else pairs.listed
        return contact_report(self.body, self.obstacles, self.self_contacts, state, listed, None)
