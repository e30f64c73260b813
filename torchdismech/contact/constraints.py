r"""Contact as constraints: surfaces do not overlap, and friction stays in Coulomb's cone, both without smoothing.

In a step from q_0 to q each contact has a gap g(q), a displacement s of its surfaces along each other, and a load
(N, T) with

    0 <= N,  0 <= g,  N g = 0;      |T| <= mu N,  T = -mu N s / |s| where s is not zero.

The normal n and the weights w_i of the closest points follow q. The plane in which surfaces slide, and the closest
points whose displacement s is, are those at the start of the step (weights w0_i), so that s is linear in q. The force
on node i of a contact is w_i N n + w0_i T.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import torch
from torch import Tensor

from torchdismech.contact import constraint_loops as loops
from torchdismech.contact.obstacles.obstacle import Obstacle
from torchdismech.contact.pairs.pair_loops import CONTACTS, contact_of
from torchdismech.contact.pairs.pairs import Pairs, PairTable, numbers_at
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.contact.response import of_robots
from torchdismech.native import taping
from torchdismech.robot.state import State
from torchdismech.sparse import Pattern

__all__ = ["REDUNDANT", "TOUCHING", "ConstraintSet", "Contacts", "ConstraintCandidates", "slots_of"]

TOUCHING = 2.0  # in tolerances: after a step, contacts with a smaller gap may have borne a load in it
REDUNDANT = 1e-11  # times the largest singular value: smaller ones count as zero


@dataclass(frozen=True)
class ConstraintCandidates:
    """The contacts that may bear a load in a step, among those that are constraints.

    Attributes
    ----------
    near : for each obstacle (B, P) bool: the points that may reach it; None: all points.
    pairs : the pairs of a robot's own parts that may touch, of contacts that are constraints; None for a robot without
        contact between its parts.
    """

    near: tuple[Tensor | None, ...]
    pairs: Pairs | None

    def rows(self, index: Tensor) -> ConstraintCandidates:
        """Return the candidates of the robots that `index` selects."""
        pairs = None if self.pairs is None else self.pairs.rows(index)
        return ConstraintCandidates(tuple(None if near is None else near[index] for near in self.near), pairs)

    @property
    def tables(self) -> tuple[PairTable, ...]:
        """The tables of the pairs; empty where there are none."""
        return () if self.pairs is None else self.pairs.tables


@dataclass(frozen=True)
class Contacts:
    """The geometry of the S contacts of all robots at some q, one after the other.

    Attributes
    ----------
    gap : (S,) [m].
    normal : (S, 3) unit vectors, from the obstacle or second primitive to the robot's point or first primitive; shorter
        than 1 for rounded edges.
    weights : (S, k) w_i of the k nodes in the normal force; see `ConstraintSet`.
    geometric_stiffness : (S, 3 k, 3 k) derivative of w_i n by the nodes' coordinates, which times the normal load is
        part of the force's derivative [1/m]; None where it was not asked for.
    """

    gap: Tensor
    normal: Tensor
    weights: Tensor
    geometric_stiffness: Tensor | None


class ConstraintSet:
    """The contacts of a step that are constraints, with their loads, for all robots of the batch.

    The S contacts are flat lists: those of the first obstacle, of the next ones, then of each table of pairs. A *slot*
    numbers the contacts within one robot, for tensors (B, C, ..).

    Parameters
    ----------
    obstacles : those whose response is `Complementarity`.
    self_contacts : of the robot; `candidates` has the pairs of those that are constraints.
    state : at the start of the step.
    time : (B,) at the end of the step [s].
    candidates : the contacts to take.
    search_distance : (B,) [m] of the search for candidates; those that come nearer than a tenth of it may bear a load
        (`integrate.search.delassus`).
    rubs : whether there is friction: at an equilibrium, which takes no time, nothing slides.
    loads : (B, C, 3) first loads [N], by slots; None: zero.

    Attributes
    ----------
    robot : (S,) number of the robot of each contact.
    nodes : (S, k) its nodes; unused places, whose weight is zero, hold node 0. The number k of places is that of the
        contact with the most nodes: 1 where points at nodes touch obstacles, 4 with pairs.
    dofs, dofs_in_batch : (S, 3 k) the coordinates of these nodes, as numbers in one robot's q, and in the q of all
        robots one after the other.
    friction : (S,) coefficients.
    load : (S, 3) present normal load, and tangential loads along `tangents` [N].
    tolerance : (B,) [m], by how much gaps may be negative, or above zero under load: the least of all contacts.
    method : of `solve.complementarity.solve_contact`, by which the loads are found.
    of_obstacles, of_tables : the slices of contacts of each obstacle and of each table of pairs.
    tangents : (S, 2, 3) unit vectors that span the plane in which the surfaces slide.
    sliding_weights : (S, k) w0_i of the nodes at the points whose sliding counts.
    """

    def __init__(
        self,
        obstacles: list[Obstacle],
        self_contacts: SelfContacts,
        state: State,
        time: Tensor,
        candidates: ConstraintCandidates,
        search_distance: Tensor,
        rubs: bool = True,
        loads: Tensor | None = None,
    ):
        self.obstacles, self.self_contacts, self.candidates = obstacles, self_contacts, candidates
        self.search_distance, self._rubs = search_distance, rubs
        self._places = 4 if candidates.pairs is not None else max(o.points.most_nodes for o in obstacles)
        of_points = [_near_points(o, near, state.batch) for o, near in zip(obstacles, candidates.near, strict=True)]
        robots = [*(robot for robot, _ in of_points), *(table.robot for table in candidates.tables)]
        nodes = [self._in_places(o.points.nodes[k]) for o, (_, k) in zip(obstacles, of_points, strict=True)]
        nodes += [table.listed.nodes for table in candidates.tables]
        slices = [slice(start, end) for start, end in pairwise(accumulate(map(len, robots), initial=0))]
        self.of_obstacles, self.of_tables = slices[: len(obstacles)], slices[len(obstacles) :]
        self.robot, self.nodes = torch.cat(robots), torch.cat(nodes)
        self.dofs, self.dofs_in_batch, self._targets = _numbers_of_dofs(self.robot, self.nodes, state.q.shape[1])
        laws = [contact.law for contact in (*obstacles, *self_contacts) if contact.constrained]
        self.method = str(laws[0].response.method)
        self._entries: tuple[Tensor, Tensor, Tensor] | None = None
        self.begin(state, time)
        self.load = state.q.new_zeros(len(self.robot), 3) if loads is None else loads[self.robot, self.slot]

    def begin(self, state: State, time: Tensor) -> None:
        """Begin a step from a state to the times (B,), with the same candidates and the present laws of contact."""
        self.time, self._start, self._start_time = time, state.q, state.time
        self._last: tuple[Tensor, Tensor, Contacts] | None = None  # q, time, and the contacts there
        touched = [obstacle.law for obstacle in self.obstacles]
        touched += [self.self_contacts[table.contact].law for table in self.candidates.tables]
        parts = zip(touched, [*self.of_obstacles, *self.of_tables], strict=True)
        coefficients = [_coefficients(law.friction, self.robot[part], state.q) for law, part in parts]
        self.friction = torch.cat(coefficients) if self._rubs else state.q.new_zeros(len(self.robot))
        at_start = self.at(state.q, state.time)
        self.tangents = loops.TANGENTS(at_start.normal).unflatten(0, (2, 3)).permute(2, 0, 1)
        self.sliding_weights = at_start.weights
        laws = [contact.law for contact in (*self.obstacles, *self.self_contacts) if contact.constrained]
        self.tolerance = torch.stack([law.response.tolerance.reshape(-1).expand(state.batch) for law in laws]).amin(0)

    def take_pairs(self, pattern: Pattern, unknown: np.ndarray) -> None:
        """Take the pairs that the tables have now (`PairTable.become`), in the same memory, which recordings read.

        The matrix keeps its pattern; arguments as of `add_geometric_stiffness`.
        """
        for table, part in zip(self.candidates.tables, self.of_tables, strict=True):
            self.robot[part], self.nodes[part] = table.listed
        dofs = _numbers_of_dofs(self.robot, self.nodes, self._start.shape[1])
        for kept, new in zip((self.dofs, self.dofs_in_batch, self._targets), dofs, strict=True):
            kept.copy_(new)
        if self._entries is not None:
            for kept, new in zip(self._entries, self._matrix_entries(pattern, unknown, len(self.time)), strict=True):
                kept.copy_(new)

    def _in_places(self, of_points: Tensor) -> Tensor:
        """Return nodes or weights (S, 3) of an obstacle's points in as many places (S, k) as all contacts have."""
        if self._places <= 3:
            return of_points[:, : self._places]
        return torch.nn.functional.pad(of_points, (0, self._places - 3))

    @property
    def slot(self) -> Tensor:
        """Slot (S,) of each contact: its number among those of its robot, for tensors (B, C, ..)."""
        return slots_of(self.robot, len(self.time))

    def __len__(self) -> int:
        return len(self.robot)

    def at(self, q: Tensor, time: Tensor, with_stiffness: bool = False) -> Contacts:
        """Return the geometry of the contacts at q (B, n) and the times (B,); `geometric_stiffness` only on request.

        An iterate is asked for several times in a row: where no gradients pass, what was found last is kept.
        """
        if torch.is_grad_enabled() or taping():
            return self._found_at(q, time, with_stiffness)
        if self._last is not None:
            last_q, last_time, contacts = self._last
            enough = contacts.geometric_stiffness is not None or not with_stiffness
            if enough and torch.equal(q, last_q) and torch.equal(time, last_time):
                return contacts
        contacts = self._found_at(q, time, with_stiffness)
        self._last = q.clone(), time, contacts
        return contacts

    def _found_at(self, q: Tensor, time: Tensor, with_stiffness: bool) -> Contacts:
        parts = []
        for obstacle, near in zip(self.obstacles, self.candidates.near, strict=True):
            distance, normal, curvature = obstacle.shape.distance_and_derivatives(obstacle.relative_points(q, time))
            gap, normal, curvature = (_of_near(near, v) for v in (obstacle.clearance(distance), normal, curvature))
            weights = _of_near(near, obstacle.points.weights.expand(*distance.shape, 3))
            weights = self._in_places(weights)
            parts.append(Contacts(gap, normal, weights, _turning(weights, curvature) if with_stiffness else None))
        for table in self.candidates.tables:
            parts.append(_pair_contacts(table, q, with_stiffness))
        gap, normal, weights = (torch.cat([getattr(p, f) for p in parts]) for f in ("gap", "normal", "weights"))
        turned = torch.cat([p.geometric_stiffness for p in parts]) if with_stiffness else None  # type: ignore[misc]
        return Contacts(gap, normal, weights, turned)

    # ---- of robots ----------------------------------------------------------------------------------------------

    def any(self, which: Tensor) -> Tensor:
        """Return the robots (B,) bool that have a contact for which `which` (S,) is True."""
        return self.sum(which.to(self.load.dtype)) > 0

    def sum(self, values: Tensor) -> Tensor:
        """Return the sums (B,) of values (S,) over the contacts of each robot."""
        return values.new_zeros(len(self.time)).index_add(0, self.robot, values)

    def largest(self, values: Tensor) -> Tensor:
        """Return the largest (B,) of the values (S,) of each robot's contacts and zero."""
        return values.new_zeros(len(self.time)).scatter_reduce(0, self.robot, values, "amax")

    def deepest(self, which: Tensor, gap: Tensor, also_pairs: bool = True) -> Tensor:
        """Return those of some contacts (S,) bool with the smallest gap (S,), among these, at each of their nodes.

        Contacts of single nodes are all returned: only contacts that share nodes may be redundant.

        Parameters
        ----------
        also_pairs : whether contacts of parts with each other are compared; otherwise they are all returned.
        """
        if self._places == 1:
            return which
        nodes, counts = self.dofs_in_batch[:, ::3], self.sliding_weights != 0
        if not also_pairs and self.of_tables:
            counts = counts & (torch.arange(len(gap), device=gap.device) < self.of_tables[0].start).unsqueeze(1)
        own = torch.where(which.unsqueeze(1) & counts, gap.unsqueeze(1), torch.inf)
        nowhere = gap.new_full((self._start.numel(),), torch.inf)
        least = nowhere.scatter_reduce(0, nodes.flatten(), own.flatten(), "amin")
        return which & (~counts | (gap.unsqueeze(1) <= numbers_at(nodes, least))).all(1)

    def beside(self, which: Tensor) -> Tensor:
        """Return the contacts (S,) bool that have a node in common with some for which `which` (S,) is True."""
        if self._places == 1:
            return which
        nodes, counts = self.dofs_in_batch[:, ::3], self.sliding_weights != 0
        own = torch.where(which.unsqueeze(1) & counts, 1.0, 0.0).to(self.load.dtype)
        at_nodes = own.new_zeros(self._start.numel()).index_add(0, nodes.flatten(), own.flatten())
        return ((numbers_at(nodes, at_nodes) > 0) & counts).any(1)

    # ---- between dofs and contacts ------------------------------------------------------------------------------

    def jacobian(self, contacts: Contacts) -> Tensor:
        """Return the Jacobian J (S, 3, 3 k) of gap and slide by the coordinates of each contact's nodes."""
        found = loops.JACOBIAN(contacts.normal, contacts.weights, self.tangents, self.sliding_weights)
        return found.unflatten(0, (3, -1)).permute(2, 0, 1)

    def moved_by(self, free: Tensor, contacts: Contacts) -> Tensor:
        """Return the contacts (S,) bool whose gap changes with some free dof; `free` (n,) bool is False for clamps."""
        moving = (contacts.normal != 0).unsqueeze(1) & (contacts.weights != 0).unsqueeze(2)  # (S, k, 3)
        return (moving.flatten(1) & free[self.dofs]).any(1)

    def motions_of(self, jacobian: Tensor, vector: Tensor) -> Tensor:
        """Return J v (S, m), for m rows of each contact's Jacobian (S, m, 3 k) and a vector v (B, n)."""
        return loops.MOTIONS(jacobian, vector.flatten(), self.dofs_in_batch).t()

    def forces_of(self, jacobian: Tensor, load: Tensor, like: Tensor) -> Tensor:
        """Return the forces J^T p (B, n) of loads p (S, m), for m rows of each contact's Jacobian (S, m, 3 k)."""
        return self.summed(loops.NODAL_FORCES(load, jacobian), like)

    def summed(self, on_nodes: Tensor, like: Tensor) -> Tensor:
        """Return the sums (B, n) of forces (3 k, S) on the coordinates of each contact's nodes."""
        total = like.new_zeros(like.numel()).index_put((self._targets,), on_nodes.flatten(), accumulate=True)
        return total.view(like.shape)

    def loads_for_force(self, q: Tensor, force: Tensor, on_unknowns: Callable[[Tensor, int], Tensor]) -> Tensor:
        """Return the loads (S, 3) with which the contacts that touch at q (B, n) exert a force (B, n).

        A least-squares solution on the unknowns: redundant contacts share the force with the smallest loads, and
        contacts of clamped nodes bear none.

        Parameters
        ----------
        on_unknowns : the function of forces (k, n) on a robot, and of its number, that returns the forces (k, n_free)
            on its unknowns.
        """
        contacts = self.at(q, self.time)
        rubs = (self.friction > 0)[:, None, None]
        normal, tangential = self.jacobian(contacts).split([1, 2], dim=1)
        jacobian = torch.cat([normal, torch.where(rubs, tangential, 0.0)], dim=1)
        touches = contacts.gap <= TOUCHING * self.tolerance[self.robot]
        loads = torch.zeros_like(self.load)
        for robot in range(len(force)):
            chosen = (touches & (self.robot == robot)).nonzero().flatten()
            row = torch.arange(3 * len(chosen), device=q.device).view(-1, 3, 1)
            at = (row, self.dofs[chosen].unsqueeze(1))
            forces = q.new_zeros(row.numel(), q.shape[1]).index_put(at, jacobian[chosen], accumulate=True)
            inverse = torch.linalg.pinv(on_unknowns(forces, robot).mT, rtol=REDUNDANT)
            loads_of_robot = inverse @ on_unknowns(force[robot : robot + 1], robot).squeeze(0)
            loads = loads.index_put((chosen,), loads_of_robot.view(-1, 3))
        return loads

    def force(self, q: Tensor) -> Tensor:
        """Return the force (B, n) [N] of the present loads at q (B, n)."""
        return self.force_at(self.at(q, self.time), q)

    def force_at(self, contacts: Contacts, like: Tensor) -> Tensor:
        """Return the force (B, n) [N] of the present loads on contacts; `like` is a tensor of its shape."""
        return self.forces_of(self.jacobian(contacts), self.load, like)

    def add_geometric_stiffness(
        self, values: Tensor, contacts: Contacts, pattern: Pattern, unknown: np.ndarray
    ) -> None:
        """Add the geometric stiffness of the present normal loads, -N d(w_i n)/dx_j, to matrix values (nnz, B).

        In place. `unknown` (n,) numbers the unknowns among the dofs, -1 where clamped.
        """
        stiffness = contacts.geometric_stiffness
        assert stiffness is not None
        self.add_blocks(values, -self.load[:, 0] * stiffness.permute(1, 2, 0), pattern, unknown)

    def add_blocks(self, values: Tensor, blocks: Tensor, pattern: Pattern, unknown: np.ndarray) -> None:
        """Add a block (3 k, 3 k, S) for each contact's nodes to matrix values (nnz, B), in place."""
        entry, source, counts = self.found_entries(pattern, unknown)
        entries = blocks.flatten().index_select(0, source)
        if len(counts):
            entries = torch.where(counts, entries, 0.0)
        values.view(-1).index_put_((entry,), entries, accumulate=True)

    def found_entries(self, pattern: Pattern, unknown: np.ndarray) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the entries of blocks go in matrix values, see `_matrix_entries`; they are kept."""
        if self._entries is None:
            self._entries = self._matrix_entries(pattern, unknown, len(self.time))
        return self._entries

    def _matrix_entries(self, pattern: Pattern, unknown: np.ndarray, batch: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return where the entries of blocks (3 k, 3 k, S) go in the matrix values of a batch.

        Only entries between unknowns of nodes in use count, in the lower triangle if the pattern is symmetric. For each
        of these: its number in the flattened values (nnz, B), and in the flattened blocks. With tables of pairs that
        others replace later, so many follow that do not count that any pairs have as many in all. Last comes which
        count; an empty tensor if all do.
        """
        device = self.nodes.device
        dofs = torch.as_tensor(unknown, device=device)[self.dofs.t()]  # (3 k, S)
        real = (self.sliding_weights != 0).detach()
        for table, of_table in zip(self.candidates.tables, self.of_tables, strict=True):
            real[of_table] = table.touchable.unsqueeze(1)
        real = real.repeat_interleave(3, dim=1).t() & (dofs >= 0)
        kept = real.unsqueeze(1) & real.unsqueeze(0)
        rows, cols = dofs.unsqueeze(1).expand(kept.shape), dofs.unsqueeze(0).expand(kept.shape)
        if pattern.symmetric:
            kept = kept & (rows >= cols)
        keys = rows[kept] * pattern.n + cols[kept]
        entry = torch.searchsorted(torch.as_tensor(pattern.keys, device=device), keys)
        robot = self.robot.expand(kept.shape)[kept]
        target, source = entry * batch + robot, kept.flatten().nonzero().flatten()
        if not any(table.lasts for table in self.candidates.tables):
            return target, source, kept.new_empty(0)
        size, pairs = len(self.dofs.t()), self.of_tables[0].start
        most = size * (size + 1) // 2 if pattern.symmetric else size**2
        spare = int(kept[:, :, :pairs].sum()) + most * (len(self) - pairs) - len(source)
        counts = torch.arange(len(source) + spare, device=device) < len(source)
        return torch.nn.functional.pad(target, (0, spare)), torch.nn.functional.pad(source, (0, spare)), counts

    def slide(self, q: Tensor) -> Tensor:
        """Return the displacements (S, 2) of the surfaces against each other in the step to q (B, n) [m].

        They are components along `tangents`.
        """
        way = (q - self._start).flatten()
        return loops.SLIDES(self.tangents, self.sliding_weights, self._surface_motion(), way, self.dofs_in_batch).t()

    def _surface_motion(self) -> Tensor:
        """Return how the other surfaces move in the step (S, 2) [m], along `tangents`; zero for pairs."""
        motion = torch.zeros_like(self.tangents[..., 0])
        for obstacle, part in zip(self.obstacles, self.of_obstacles, strict=True):
            if obstacle.path is not None:
                moved = obstacle.displacement(self.time) - obstacle.displacement(self._start_time)
                along = (self.tangents[part] @ moved[self.robot[part]].unsqueeze(2)).squeeze(2)
                motion = motion.slice_scatter(along, 0, part.start, part.stop)
        return motion


def _numbers_of_dofs(robot: Tensor, nodes: Tensor, size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return `dofs` and `dofs_in_batch` (S, 3 k) of a `ConstraintSet`, of robots of q (B, size), and the latter flat.

    The flat ones are in the order of forces (3 k, S).
    """
    dofs = (3 * nodes.unsqueeze(2) + torch.arange(3, device=nodes.device)).flatten(1)
    in_batch = robot.unsqueeze(1) * size + dofs
    return dofs, in_batch, in_batch.t().flatten()


def _turning(weights: Tensor, curvature: Tensor) -> Tensor:
    """Return d(w_i n)/dx_j (S, 3 k, 3 k) for constant weights (S, k) and derivatives of n by position (S, 3, 3)."""
    both = weights.unsqueeze(2) * weights.unsqueeze(1)
    return (both[:, :, None, :, None] * curvature[:, None, :, None, :]).flatten(3).flatten(1, 2)


def _pair_contacts(table: PairTable, q: Tensor, with_stiffness: bool) -> Contacts:
    """Return the contacts of a table's pairs at q (B, n)."""
    arguments = table.gathered(q), table.reaches, *table.kernel_arguments
    if torch.is_grad_enabled():
        found = torch.stack(contact_of(table.kernel, True, with_stiffness, *arguments))
    else:
        found = CONTACTS[table.kernel, with_stiffness].of_columns(*arguments)
    stiffness = found[8:].unflatten(0, (12, 12)).permute(2, 0, 1) if with_stiffness else None
    return Contacts(found[0], found[1:4].t(), found[4:8].t(), stiffness)


def _near_points(obstacle: Obstacle, near: Tensor | None, batch: int) -> tuple[Tensor, Tensor]:
    """Return the robots (S,), and the points (S,) of an obstacle, where `near` (B, P) holds; all if it is None."""
    if near is not None:
        robot, point = near.nonzero(as_tuple=True)
        return robot, point
    points = len(obstacle.points.nodes)
    number = torch.arange(batch * points, device=obstacle.points.nodes.device)
    return number // points, number % points


def _of_near(near: Tensor | None, values: Tensor) -> Tensor:
    """Return those of values (B, P, ..) for which `near` (B, P) holds, one after the other; all if it is None."""
    return values.flatten(0, 1) if near is None else values[near]


def slots_of(robot: Tensor, batch: int) -> Tensor:
    """Return the number (S,) of each item among the items of the same robot, counted in their order."""
    count = torch.bincount(robot, minlength=batch)
    order = torch.argsort(robot, stable=True)
    slot = torch.empty_like(robot)
    slot[order] = torch.arange(len(robot), device=robot.device) - (count.cumsum(0) - count)[robot[order]]
    return slot


def _coefficients(friction, robot: Tensor, like: Tensor) -> Tensor:
    """Return the coefficients of friction (S,) for contacts of the robots (S,); zero where `friction` is None."""
    if friction is None:
        return like.new_zeros(len(robot))
    return of_robots(friction.coefficient, robot).expand(len(robot))
