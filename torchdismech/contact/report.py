"""Contact reports of steps: numbers of contacts that touch, stick and slide, depths of overlap, and forces."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact import constraint_loops as loops
from torchdismech.contact.constraints import ConstraintSet
from torchdismech.contact.law import ConstraintLaw
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.pairs.pair_loops import FIRST
from torchdismech.contact.pairs.pairs import Pairs
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.body import Body
from torchdismech.robot.state import State
from torchdismech.solve.linear.base import IndexMap

__all__ = ["ContactReport", "contact_report", "obstacle_report", "obstacle_report_names"]

# "active", "sticking", "sliding" (B,) numbers of contacts; "penetration" (B,) the largest overlap [m];
# "force/NAME" (B, 3) [N]: the force of an obstacle on the robot, or of the rest of the robot on one of its parts;
# "load/NAME" (B,) [N]: the sum of the sizes of the forces of an obstacle, or of the pairs of a `SelfContact`;
# "node_force" (B, N, 3) [N]: the force of all contacts on each node
ContactReport = dict[str, Tensor]

COUNTS = ("active", "sticking", "sliding")
FULL = 1 - 1e-9  # of mu N: a constraint with more friction counts as sliding


class _Tally:
    """Running sums of a contact report, to which contacts are added one kind after the other.

    Parameters
    ----------
    of_obstacles : the report of obstacles to begin with, as from `obstacle_report`; it may name no obstacle yet.
    names : of the contacts between parts.

    Attributes
    ----------
    forces : by name, (B, 3) force of each obstacle on the robot [N].
    loads : by name, (B,) sum of the sizes of the forces of each contact [N].
    outer, inner : (B, N, 3) forces on the nodes, from obstacles and from other parts of the robot [N].
    """

    def __init__(self, of_obstacles: ContactReport, names: Sequence[str] = ()):
        self.counts = {name: of_obstacles[name] for name in COUNTS}
        self.penetration, self.outer = of_obstacles["penetration"], of_obstacles["node_force"]
        self.inner = torch.zeros_like(self.outer)
        self.loads: ContactReport = {name: torch.zeros_like(self.penetration) for name in names}
        self.loads |= _of_contacts("load", of_obstacles)
        self.forces = _of_contacts("force", of_obstacles)

    @classmethod
    def empty(cls, robots: Tensor, nodes: int) -> _Tally:
        """Return a tally without contacts.

        Parameters
        ----------
        robots : any (B,) tensor of the batch, for its dtype and device.
        nodes : number of nodes of a robot.
        """
        counts = {name: torch.zeros_like(robots, dtype=torch.long) for name in COUNTS}
        none = {"penetration": torch.zeros_like(robots), "node_force": robots.new_zeros(len(robots), nodes, 3)}
        return cls(counts | none)

    def overlap(self, gap: Tensor) -> None:
        """Raise the penetration to the largest overlap among gaps (B, P)."""
        self.penetration = torch.maximum(self.penetration, gap.amin(1).neg())  # stays 0 or more, as it begins with 0

    def of_robots(self, robot: Tensor, which: Tensor) -> Tensor:
        """Return how many (B,) of the contacts (S,) of each robot, which `robot` (S,) names, are True in `which`."""
        return torch.zeros_like(self.counts["active"]).index_add_(0, robot, which.long())

    def count(self, active: Tensor, sliding: Tensor | None, rubbing: Tensor | None = None) -> None:
        """Add numbers (B,) of contacts that bear a load, and of those that slide; others with friction stick.

        Parameters
        ----------
        sliding : None: no contact has friction.
        rubbing : numbers of those with friction that bear a load; None: all have it.
        """
        counts = {"active": active}
        if sliding is not None:
            counts |= {"sticking": (active if rubbing is None else rubbing) - sliding, "sliding": sliding}
        for name, count in counts.items():
            self.counts[name] = self.counts[name] + count

    def add_obstacle(self, name: str, on_nodes: Tensor, load: Tensor) -> None:
        """Add the forces (B, N, 3) of an obstacle on the nodes, and the sum (B,) of their sizes at its points."""
        self.forces[name], self.loads[name] = on_nodes.sum(1), load
        self.outer = self.outer + on_nodes

    def add_pairs(self, name: str, on_nodes: Tensor, load: Tensor) -> None:
        """Add the forces (B, N, 3) of pairs on the nodes, and the sum (B,) of their sizes."""
        self.loads[name] = self.loads[name] + load
        self.inner = self.inner + on_nodes

    def report(self) -> ContactReport:
        """Return the report of all contacts added so far."""
        forces = {f"force/{name}": force for name, force in self.forces.items()}
        loads = {f"load/{name}": load for name, load in self.loads.items()}
        on_nodes = {"node_force": self.outer + self.inner}
        return {**self.counts, "penetration": self.penetration, **forces, **loads, **on_nodes}


@torch.no_grad()
def obstacle_report(body: Body, obstacles: Sequence[Obstacle], state: State) -> ContactReport:
    """Return the contact report of the obstacles alone at a state.

    Obstacles that are constraints bear no loads here. Names and order are those of `obstacle_report_names`. It reads no
    number on the host, so that recorded steps can hold it.
    """
    tally = _Tally.empty(state.time, body.n_nodes)
    for obstacle in obstacles:
        if obstacle.constrained:
            tally.overlap(obstacle.gap(state.q, state.time))
            tally.add_obstacle(obstacle.name, torch.zeros_like(tally.outer), torch.zeros_like(tally.penetration))
        else:
            _add_obstacle(tally, obstacle, state)
    return tally.report()


def obstacle_report_names(obstacles: Sequence[Obstacle]) -> list[str]:
    """Return the names in a report of `obstacle_report`, in its order."""
    of_each = [f"{what}/{obstacle.name}" for what in ("force", "load") for obstacle in obstacles]
    return [*COUNTS, "penetration", *of_each, "node_force"]


@torch.no_grad()
def contact_report(
    body: Body,
    obstacles: Sequence[Obstacle],
    self_contacts: SelfContacts,
    state: State,
    pairs: Pairs | None,
    constraints: ConstraintSet | None,
    of_obstacles: ContactReport | None = None,
) -> ContactReport:
    """Return the contact report of a step; {} for a robot without contacts.

    Parameters
    ----------
    state : at which the forces of the step were evaluated.
    pairs : pairs of the robot's own parts that may touch; None if there are none.
    constraints : the constraints with their loads; None: contacts that are constraints bear no load.
    of_obstacles : the report of `obstacle_report` at this state, if it is known.
    """
    if not obstacles and not len(self_contacts):
        return {}
    of_obstacles = obstacle_report(body, obstacles, state) if of_obstacles is None else of_obstacles
    tally = _Tally(of_obstacles, [contact.name for contact in self_contacts])
    if pairs is not None:
        _add_pairs(tally, self_contacts, state, pairs)
    if constraints is not None:
        _add_constraints(tally, self_contacts, constraints, state.q)
    return tally.report() | (_by_part(*self_contacts.parts, tally.inner) if len(self_contacts) else {})


def _add_obstacle(tally: _Tally, obstacle: Obstacle, state: State) -> None:
    """Add the contacts with an obstacle that is a force and no constraint."""
    law = obstacle.law
    assert not isinstance(law, ConstraintLaw)
    surface = obstacle.surface(state)
    active, sliding = surface.gap < law.response.tolerance, None
    if law.friction is not None:
        normal, velocity, slip = Vec3.of(surface.normal), Vec3.of(surface.velocity), law.friction.slip_velocity
        assert slip is not None  # as of all friction beside forces
        along = velocity - normal.times(velocity.dot(normal))
        sliding = (active & (_lengths(along) > slip)).sum(1)
    tally.overlap(surface.gap)
    tally.count(active.sum(1), sliding)
    force = obstacle.force_of(surface)
    tally.add_obstacle(obstacle.name, obstacle.points.onto_nodes(force), _lengths(Vec3.of(force)).sum(1))


def _lengths(vectors: Vec3) -> Tensor:
    """Return the lengths of vectors. `torch.linalg.vector_norm` takes ten times as long where robots lie side by side.

    So they do in what loops give; along the last dimension, of three, torch then adds number by number.
    """
    return torch.sqrt(vectors.dot(vectors))


def _add_pairs(tally: _Tally, contacts: SelfContacts, state: State, pairs: Pairs) -> None:
    """Add the contacts between a robot's own parts that are forces and no constraints."""
    for table in contacts.force_tables(pairs):
        contact = contacts[table.contact]
        assert not isinstance(contact.law, ConstraintLaw)
        summary = contact.summary(table, state.q, state.velocity)
        tally.penetration = torch.maximum(tally.penetration, summary.penetration)
        tally.count(summary.touching, None if contact.law.constants.friction is None else summary.sliding)
        on_nodes = summary.on_dofs[:, : 3 * state.n_nodes].unflatten(1, (-1, 3))
        tally.add_pairs(contact.name, on_nodes, summary.load)


def _add_constraints(tally: _Tally, contacts: SelfContacts, constraints: ConstraintSet, q: Tensor) -> None:
    """Add the contacts that are constraints, with the loads that were found."""
    geometry, load, robot = constraints.at(q, constraints.time), constraints.load, constraints.robot
    bears, most = load[:, 0] > 0, FULL * constraints.friction * load[:, 0]
    rubs = bears & (constraints.friction > 0)
    slides = rubs & (load[:, 1:].square().sum(1) >= most.square())
    tally.penetration = tally.penetration.scatter_reduce(0, robot, -geometry.gap, "amax")
    tally.count(*(tally.of_robots(robot, which) for which in (bears, slides, rubs)))
    forces = loops.NODAL_FORCES(load, constraints.jacobian(geometry)).t().unflatten(1, (-1, 3))
    nodes = robot.unsqueeze(1) * tally.outer.shape[1] + constraints.nodes  # among those of all robots

    def on_nodes(selected: slice) -> Tensor:
        total, added = torch.zeros_like(tally.outer), forces[selected].flatten(0, 1)
        return total.flatten(0, 1).index_put((nodes[selected].flatten(),), added, accumulate=True).view_as(total)

    def load_of(selected: slice, on_first: Tensor) -> Tensor:
        """Return the sum (B,) of the sizes of the forces (S, k, 3), each added up, of some contacts."""
        size = loops.SIZES(on_first.flatten(1))[0]
        return tally.penetration.new_zeros(len(q)).index_put((robot[selected],), size, accumulate=True)

    for obstacle, rows in zip(constraints.obstacles, constraints.of_obstacles, strict=True):
        tally.add_obstacle(obstacle.name, on_nodes(rows), load_of(rows, forces[rows]))
    for table, rows in zip(constraints.candidates.tables, constraints.of_tables, strict=True):
        load = load_of(rows, forces[rows][:, FIRST[table.kernel]])
        tally.add_pairs(contacts[table.contact].name, on_nodes(rows), load)


def _of_contacts(what: str, report: ContactReport) -> ContactReport:
    """Return the entries "force/NAME" or "load/NAME" of a report, as a mapping by the contact's NAME."""
    prefix = f"{what}/"
    return {name.removeprefix(prefix): value for name, value in report.items() if name.startswith(prefix)}


def _by_part(count: int, labels: IndexMap, force: Tensor) -> ContactReport:
    """Return "force/partK": (B, 3) the sum of nodal forces (B, N, 3) on each part [N].

    {} for a robot of one part, as the forces between its own nodes add up to zero.
    """
    if count == 1:
        return {}
    total = force.new_zeros(force.shape[0], count, 3).index_add_(1, labels.on(force.device), force)
    return {f"force/part{k}": of_part for k, of_part in enumerate(total.unbind(1))}
