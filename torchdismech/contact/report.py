"""What contact did in a step: how many surfaces touched, how deep, which stuck or slid, and with what force."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from torchdismech.body import Body
from torchdismech.contact.constraints import ConstraintSet
from torchdismech.contact.law import ConstraintLaw
from torchdismech.contact.obstacle import Obstacle
from torchdismech.contact.self_contact import Pairs, SelfContacts
from torchdismech.state import State

__all__ = ["Report", "contact_report"]

# "active", "sticking", "sliding" (B,) numbers of contacts; "penetration" (B,) the largest overlap [m];
# "force/NAME" (B, 3) [N]: from each obstacle on the robot, and from the rest of the robot on each of its parts
Report = dict[str, Tensor]

FULL = 1 - 1e-9  # of the cone: more friction counts as sliding


class _Tally:
    """Counts of contacts."""

    def __init__(self, like: Tensor):
        self.counts = {
            name: like.new_zeros(like.shape[0], dtype=torch.long) for name in ("active", "sticking", "sliding")
        }
        self.penetration = like.new_zeros(like.shape[0])

    def overlap(self, gap: Tensor) -> None:
        """Take note of gaps (B, N) of which no load is known."""
        self.penetration = torch.maximum(self.penetration, (-gap).clamp_min(0).amax(1))

    def add(self, robot: Tensor, gap: Tensor, active: Tensor, slides: Tensor | None) -> None:
        """Count contacts (S,): robot, gap, whether they bear a load and, with friction, whether they slide."""
        named = {"active": active}
        if slides is not None:
            named |= {"sticking": active & ~slides, "sliding": active & slides}
        for name, which in named.items():
            self.counts[name] = self.counts[name].index_add(0, robot, which.long())
        overlap = (-gap).clamp_min(0)
        self.penetration = self.penetration.scatter_reduce(0, robot, overlap, "amax")


@torch.no_grad()
def contact_report(
    body: Body,
    obstacles: list[Obstacle],
    self_contacts: SelfContacts,
    state: State,
    pairs: Pairs | None,
    constraints: ConstraintSet | None,
) -> Report:
    """Return the report of a step; {} for a robot that touches nothing.

    Parameters
    ----------
    state : where the forces of the step were evaluated.
    pairs : what of the robot's own parts was looked at.
    constraints : with the loads that were found; without, what is constrained bears none.
    """
    if not obstacles and not len(self_contacts):
        return {}
    labels = body.part_of_node
    nothing = state.q.new_zeros(state.batch, len(labels), 3)
    tally, forces = _Tally(state.q), {f"force/{o.name}": nothing[:, 0] for o in obstacles}
    for obstacle in obstacles:
        if obstacle.constrained:
            tally.overlap(obstacle.gap(state.q, state.time))
        else:
            forces[f"force/{obstacle.name}"] = _add_obstacle(tally, obstacle, state)
    inner = nothing
    if pairs is not None:
        _add_pairs(tally, self_contacts, state, pairs)
        own = self_contacts.force(pairs, state.q, state.velocity)
        inner = own[:, : 3 * body.n_nodes].unflatten(1, (-1, 3))
    if constraints is not None:
        of_obstacles, of_pairs = _add_constraints(tally, constraints, state.q, nothing)
        forces, inner = forces | of_obstacles, inner + of_pairs
    if len(self_contacts):
        forces |= _by_part(labels, inner)
    return {**tally.counts, "penetration": tally.penetration, **forces}


def _add_obstacle(tally: _Tally, obstacle: Obstacle, state: State) -> Tensor:
    """Count the contacts with an obstacle and return its force (B, 3) on the robot."""
    law = obstacle.law
    assert not isinstance(law, ConstraintLaw)
    points, velocity = obstacle.relative(state)
    distance, normal, _ = obstacle.shape.distance_and_derivatives(points)
    gap = obstacle.clearance(distance)
    robot = torch.arange(len(gap), device=gap.device).repeat_interleave(gap.shape[1])
    slides = None
    if law.friction is not None:
        along = velocity - (velocity * normal).sum(-1, keepdim=True) * normal
        slides = torch.linalg.vector_norm(along, dim=-1) > law.friction.slip_velocity
        slides = slides.flatten()
    tally.add(robot, gap.flatten(), (gap < law.response.tolerance).flatten(), slides)
    return law.forces(gap, normal, velocity).sum(1)


def _add_pairs(tally: _Tally, contacts: SelfContacts, state: State, pairs: Pairs) -> None:
    """Count the contacts of a robot with itself."""
    for found in contacts.touching(pairs, state.q, state.velocity):
        friction = found.constants.friction
        slides = None if friction is None else found.sliding() > friction[1]
        tally.add(found.robot, found.gap, torch.ones_like(found.gap, dtype=torch.bool), slides)


def _add_constraints(tally: _Tally, constraints: ConstraintSet, q: Tensor, nothing: Tensor) -> tuple[Report, Tensor]:
    """Count the contacts that are constraints; return the forces of obstacles, and of other parts on nodes (B, N, 3).

    `nothing` are zeros of the latter's shape.
    """
    contacts = constraints.at(q, constraints.time)
    load = constraints.load
    friction = torch.linalg.vector_norm(load[:, 1:], dim=1)
    slides = friction >= FULL * constraints.friction * load[:, 0]
    tally.add(
        constraints.robot, contacts.gap, load[:, 0] > 0, slides if bool((constraints.friction > 0).any()) else None
    )
    arms = constraints.arms(contacts)
    nodal = (load.unsqueeze(1) @ arms).view(-1, 4, 3)
    forces: Report = {}
    offset = 0
    for obstacle, near in zip(constraints.obstacles, constraints.places.near, strict=True):
        mine = slice(offset, offset + int(near.sum()))
        offset = mine.stop
        total = q.new_zeros(len(q), 3)
        forces[f"force/{obstacle.name}"] = total.index_add(0, constraints.robot[mine], nodal[mine].sum(1))
    index = (constraints.robot[offset:].unsqueeze(1), constraints.nodes[offset:])
    return forces, nothing.index_put(index, nodal[offset:], accumulate=True)


def _by_part(labels: np.ndarray, force: Tensor) -> Report:
    """Return the sum of nodal forces (B, N, 3) on each part; {} for a robot of one part, whose own add up to zero."""
    count = int(labels.max()) + 1
    if count == 1:
        return {}
    index = torch.as_tensor(labels, device=force.device).long()
    total = force.new_zeros(force.shape[0], count, 3).index_add(1, index, force)
    return {f"force/part{k}": total[:, k] for k in range(count)}
