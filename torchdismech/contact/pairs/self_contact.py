"""Contact of a robot's parts with each other: rods with rods, rods with shells, shells with shells.

A `SelfContact` is one law and the pairs that it rules; `SelfContacts` are all those of a robot.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.contact.copies import take_trained
from torchdismech.contact.law import Ruled, constants_of, law_of
from torchdismech.contact.pairs.centre_lines import CentreLines
from torchdismech.contact.pairs.neighbours import Neighbours, adjacent, paths_between
from torchdismech.contact.pairs.node_boxes import NodeBoxes
from torchdismech.contact.pairs.pair_loops import KNOWN, Kernel, PairLoops
from torchdismech.contact.pairs.pair_sums import DifferentiableForce, PairSums
from torchdismech.contact.pairs.pairs import Listed, Pairs, PairTable, Summary, Touching, touching
from torchdismech.contact.pairs.primitives import (
    BoxPairs,
    NearPairs,
    Primitives,
    box_pairs,
    near_pairs,
    spare_distances,
)
from torchdismech.contact.pairs.scopes import RuledPairs, Scope, ruled_pairs
from torchdismech.contact.response import Friction, Response, of_robots, warn_of_wide_tolerance
from torchdismech.errors import InputError, check_choice, name_in_files, real_number, truth, whole_number
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.geometry.distances import closest_on_triangle, closest_segments
from torchdismech.robot.body import Body, OnBody, concatenated_sizes
from torchdismech.solve.linear.base import IndexMap

__all__ = ["SelfContact", "SelfContacts"]

# enough for closest points of parallel edges to be well defined; distances get up to 1e-4 of the reach too large
ROUNDING = 0.02
# for edges with edges, points with triangles, and smooth lines with each other
KERNELS: tuple[Kernel, ...] = (closest_segments, closest_on_triangle, closest_crossing)
CENTRE_LINES = ("straight", "smooth")
# times the thicker one's diameter and the tolerance, the longest path along edges between neighbours: on triangles, and
# round a corner, paths are not straight
DETOUR = 2.0
EXACTLY = 1e-9  # relative: surfaces that just touch do not overlap


class SelfContact(Ruled, OnBody):
    """Contact between the parts of a robot.

    Every rod edge and every side of a triangle may touch every other, and every node every triangle, except those that
    are neighbours. The surfaces are capsules about edges, and triangles with half the shell's thickness on either side.
    Each pair has its own potential: where two surfaces lie on each other, the stiffness adds up over the pairs that are
    close.

    A robot may have several self-contacts, each with its own law and friction: those that name parts rule how these
    touch, and the one that names none rules all other pairs.

    Parameters
    ----------
    response, friction : the law between two surfaces; copied, as by an `Obstacle`.
    ring : pairs at most so many edges apart are neighbours, which never touch. By default neighbours are pairs that
        share a node, and pairs whose surfaces overlap as built, or are within the tolerance, and that are near each
        other along the body: if a rod's edges are shorter than its diameter, nearby edges always overlap. Near is
        a path along edges of at most twice the thicker one's diameter and the tolerance; so it goes by length, and
        short edges in one place change nothing elsewhere.
    rounding : how far edges are rounded, in parts of the sum of two radii. Edges that lie side by side have no unique
        closest points, so that the force jumps from end to end, and Newton's method finds no root; rounded ones meet
        in the middle. Distances come out larger by up to rounding^2 / 4 of that sum. 0 for none.
    between : names of the two parts that touch each other, twice the same name for a part that touches itself. Names
        are those of `add_rod`, `add_rods` and `add_shell`. None: all parts.
    themselves : whether a piece touches itself, too. A piece is a connected set of elements with the same name, or
        without one: ropes that are not tied to each other are separate pieces, and with False each of them only
        touches the others.
    name : its name in reports; by default "self_contact", or the two part names with "-" between.
    centre_line : "straight": rods touch as chains of straight edges, as in the papers. "smooth": where they cross, they
        touch as smooth lines (`geometry.crossing`). Then a crossing is one contact, whose force does not jump from edge
        to edge and accounts for the rods' curvature. Where rods lie along each other or bend sharply, they still touch
        as straight edges (`centre_lines.py`). For potentials.
    """

    body: Body
    kind_pairs: Tensor
    _near_edges: Neighbours
    _near_triangles: Neighbours

    def __init__(
        self,
        response: Response,
        friction: Friction | None = None,
        ring: int | None = None,
        rounding: float = ROUNDING,
        between: Sequence[str] | None = None,
        themselves: bool = True,
        name: str | None = None,
        centre_line: str = "straight",
    ):
        super().__init__()
        check_choice("SelfContact.centre_line", centre_line, CENTRE_LINES)
        self.rounding = real_number(rounding, "SelfContact.rounding", "a number from 0 to 1")
        if not 0 <= self.rounding <= 1:
            raise InputError(f"SelfContact.rounding: expected a number from 0 to 1, got {rounding}")
        ring = None if ring is None else whole_number(ring, "SelfContact.ring", least=0)
        themselves = truth(themselves, "SelfContact.themselves")
        if between is not None:
            _refuse_other_parts(between, themselves)
        own = "self_contact" if between is None else "-".join(between)
        self.name = name_in_files(own if name is None else name, "SelfContact.name")
        self.scope = Scope(f"SelfContact {self.name!r}", None if between is None else (*between,), themselves)  # type: ignore[arg-type]
        self.law = law_of(response, friction)
        if friction is not None and friction.directional:
            raise InputError(
                "Friction.forward_coefficient: rods that touch each other have one coefficient, the same all around; "
                "coefficients along rods are for obstacles"
            )
        self.ring = ring
        self.centre_line = centre_line
        if centre_line == "smooth" and self.constrained:
            raise InputError("SelfContact.centre_line: 'smooth' goes with Penalty or Barrier, not with Complementarity")
        of_force = () if self.constrained else KERNELS
        self._loops = {kernel: PairLoops.of(kernel, self.force_law.formulas) for kernel in of_force}

    def bind(self, body: Body, ruled: RuledPairs) -> None:
        """Learn the robot and the pairs that this contact rules, and find which of these are neighbours.

        Raises
        ------
        InputError
            The contact belongs to another model already.
        """
        if hasattr(self, "body"):
            raise InputError(f"{self.scope.label}: belongs to another model already; make a new one for each model")
        take_trained(self.scope.label, self.law.response, self.law.friction)
        self.body = body
        self.register_buffer("kind_pairs", torch.as_tensor(ruled.kind_pairs, device="cpu"), persistent=False)
        rules = np.asarray(ruled.kind_pairs.any(axis=1))
        of_edges, of_nodes, of_triangles = (
            np.flatnonzero(rules[kind]) for kind in (ruled.edge_kinds, ruled.node_kinds, ruled.triangle_kinds)
        )
        radius = concatenated_sizes(body.edge_contact_radius, body.side_contact_radius())
        self.edges = Primitives(body.links, radius, ruled.edge_kinds, of_edges)
        points = np.arange(body.n_nodes)[:, None]
        self.points = Primitives(points, body.node_contact_radius(), ruled.node_kinds, of_nodes)
        warn_of_wide_tolerance(self.scope.label, self.law.response, self.points.radius)
        self.triangles = Primitives(body.triangles, body.face_contact_radius, ruled.triangle_kinds, of_triangles)
        self.lines = CentreLines(body, of_edges) if self.centre_line == "smooth" else None
        self._near_edges = self._neighbours(closest_segments)
        self._near_triangles = self._neighbours(closest_on_triangle)

    @torch.no_grad()
    def _neighbours(self, kernel: Kernel) -> Neighbours:
        """Return the neighbours among the pairs of a kernel: those that `ring` says, or that overlap as built."""
        body, (first, second) = self.body, self._primitives(kernel)
        others = None if second is first else second.nodes
        joined = adjacent(first.nodes, others, body.links, self.ring or 0)
        if self.ring is not None:
            return Neighbours.of_all(joined)
        tolerance, radii = self.law.response.tolerance, (first.radius, second.radius)
        robots = max([tolerance.numel(), *(len(radius) for radius in radii if radius.dim() == 2)])
        built = body.nodes.expand(robots, -1, -1)
        pairs, nodes = self._box_pairs(kernel, built, built, Neighbours.of_all(joined))
        if len(nodes):
            reach = (1 - EXACTLY) * (pairs.reach + of_robots(tolerance, pairs.robot))
            gaps = spare_distances(kernel, Listed(pairs.robot, nodes), built, built, reach)
            overlapping = (gaps <= 0).nonzero().squeeze(1)
            pairs, nodes = BoxPairs(*(of[overlapping] for of in pairs)), nodes[overlapping]
        if not len(nodes):  # most rods have edges longer than their diameter
            return Neighbours.of_all(joined)
        thicker = torch.maximum(first.radii(pairs.robot, pairs.first), second.radii(pairs.robot, pairs.second))
        limit = DETOUR * (1 - EXACTLY) * (2 * thicker + of_robots(tolerance, pairs.robot))
        lengths = concatenated_sizes(body.edge_length, body.shell_edge_length)
        shortest = lengths.reshape(-1, lengths.shape[-1]).amin(0)
        near = paths_between(nodes, first.nodes.shape[1], body.links, shortest, float(limit.max())) <= limit
        key = pairs.first * len(second.nodes) + pairs.second
        return Neighbours.of_robots(joined, pairs.robot[near], key[near], robots)

    def _primitives(self, kernel: Kernel) -> tuple[Primitives, Primitives]:
        """Return the two sets of primitives whose pairs a kernel of four nodes is for."""
        return (self.edges, self.edges) if kernel is closest_segments else (self.points, self.triangles)

    def _box_pairs(self, kernel: Kernel, low: Tensor, high: Tensor, excluded: Neighbours) -> tuple[BoxPairs, Tensor]:
        """Return the pairs for a kernel of four nodes whose boxes overlap while nodes stay in boxes (B, N, 3).

        Last come the nodes (K, 4) of each pair.
        """
        first, second = self._primitives(kernel)
        margin = 0.5 * self.law.response.tolerance
        pairs = box_pairs(first, second, low, high, (margin, margin), excluded, self.kind_pairs)
        nodes = first.nodes.index_select(0, pairs.first), second.nodes.index_select(0, pairs.second)
        return pairs, torch.cat(nodes, dim=1)

    # ---- broad phase -------------------------------------------------------------------------------------------

    def tables(self, low: Tensor, high: Tensor, start: Tensor, number: int) -> list[PairTable]:
        """Return tables of the pairs that may touch while the nodes stay in boxes, one for each kernel that is used.

        Parameters
        ----------
        low, high : (B, N, 3) corners of the boxes [m].
        start : (B, N, 3) at the start of the step, where it is decided which smooth lines cross.
        number : of this contact among those of the robot.
        """
        near: dict[Kernel, NearPairs] = {}
        if self.lines is None:
            near[closest_segments] = self._near_pairs(closest_segments, low, high)
        else:
            near[closest_segments], near[closest_crossing] = self._near_lines(self.lines, low, high, start)
        if len(self.triangles.nodes):
            near[closest_on_triangle] = self._near_pairs(closest_on_triangle, low, high)
        tables = []
        for kernel, pairs in near.items():
            rounding = self.rounding if kernel is closest_segments else 0.0
            tables.append(PairTable.of(kernel, pairs.listed, pairs.reach, len(low), rounding, number, pairs.continues))
        return tables

    def _near_pairs(self, kernel: Kernel, low: Tensor, high: Tensor) -> NearPairs:
        """Return the pairs for a kernel of four nodes that may touch while the nodes stay in boxes (B, N, 3)."""
        excluded = self._near_edges if kernel is closest_segments else self._near_triangles
        pairs, nodes = self._box_pairs(kernel, low, high, excluded)
        limit = pairs.reach + of_robots(self.law.response.tolerance, pairs.robot)
        return near_pairs(kernel, nodes, pairs, low, high, limit)

    def _near_lines(self, lines: CentreLines, low: Tensor, high: Tensor, start: Tensor) -> tuple[NearPairs, NearPairs]:
        """Return the pairs of edges that may touch: as straight edges, and as smooth lines that cross."""
        tolerance = self.law.response.tolerance
        margin = 0.5 * tolerance + lines.bulges(low, high)
        pairs = box_pairs(self.edges, self.edges, low, high, (margin, margin), self._near_edges, self.kind_pairs)
        return lines.near_pairs(pairs, low, high, of_robots(tolerance, pairs.robot), start.flatten(1))

    def sizes(self) -> list[Tensor]:
        """Return the radii of all parts, and of each robot which of them are neighbours."""
        radii = [primitives.radius for primitives in (self.edges, self.points, self.triangles)]
        return [*radii, self._near_edges.where, self._near_triangles.where]

    # ---- forces ------------------------------------------------------------------------------------------------

    def touching(self, table: PairTable, q: Tensor, velocity: Tensor) -> Touching:
        """Return the pairs of a table that touch at q and velocity (B, n); not for a constraint."""
        sums = self.sums(table, q, velocity)
        chosen = None if sums is None else sums.touching(q)
        return touching(self._loops[table.kernel], table, q, velocity, self.force_law.constants, chosen)

    @torch.no_grad()
    def robots_touched(self, table: PairTable, q: Tensor) -> Tensor:
        """Return the number (A,) of the robot of each pair of a table whose gap at q (B, n) is below the tolerance."""
        if self.constrained:
            return table.robot[table.gaps(q) <= of_robots(self.law.response.tolerance, table.robot)]
        sums = self.sums(table, q, q)
        return self.touching(table, q, q).robot if sums is None else table.robot[sums.touching(q)]

    def sums(self, table: PairTable, q: Tensor, velocity: Tensor) -> PairSums | None:
        """Return the sums over a table's pairs by compiled code; None if torch has to find them, by `touching`.

        Not for a constraint.
        """
        return PairSums.of(self._loops[table.kernel], table, q, velocity, self.force_law.constants)

    def lasting_sums(self, table: PairTable) -> PairSums:
        """Return the sums over the pairs of a table that lasts, also for q and velocity that require gradients."""
        return table.sums[self._loops[table.kernel]]

    def bound_sums(self, table: PairTable, kept: PairSums | None) -> PairSums | None:
        """Return the sums over a table's pairs, as `sums` does, for the present constants of the law.

        `kept` sums of a table before are bound to this table, if they fit.
        """
        return PairSums.bound_to(self._loops[table.kernel], table, self.force_law.constants, kept)

    @property
    def constants_of_robots(self) -> tuple[bool, ...]:
        """For each tensor of the law's constants, whether it now has one number per robot; not for a constraint."""
        return tuple(number.numel() > 1 for number in self.force_law.constants.tensors())

    def friction(self, table: PairTable, q: Tensor, velocity: Tensor, before: Tensor | None = None) -> Tensor:
        """Return the friction (B, P, KNOWN) of a table's pairs at q and velocity (B, n); zeros in empty slots.

        The `KNOWN` numbers are traction, normal, and velocity of the first closest point relative to the second, see
        `contact.rubbing`. For smoothed friction.

        Parameters
        ----------
        before : (B, P, KNOWN) the friction at the iterate before, from which tractions are linearised; None: they are
            those of the velocity, with which a search begins.
        """
        sums = self.sums(table, q, velocity) if len(table) else None
        if sums is not None:
            return sums.first_friction(q, velocity) if before is None else sums.expected_friction(q, velocity, before)
        friction = q.new_zeros(*table.shape, KNOWN)
        if len(table):
            loops, law = self._loops[table.kernel], self.force_law.constants.at(table.robot).tensors()
            known = [] if before is None else [before[table.slots].t()]
            inputs = (table.gathered(q), table.gathered(velocity), table.reaches, *known, *law, *table.kernel_arguments)
            loop = loops.first_friction if before is None else loops.expected_friction
            friction[table.slots] = loop.of_columns(*inputs).t()
        return friction

    def limit_step(self, table: PairTable, motion: Tensor, fraction: Tensor) -> None:
        """Lower `fraction` (B,), in place, to the part of a motion that a search may take for the pairs of a table.

        Within it the two sides of no pair move by more than `pair_loops.LARGEST_STEP` of its reach against each other.

        Parameters
        ----------
        motion : (B, 3 N) the whole motion of the nodes [m].
        """
        if (sums := self.sums(table, motion, motion)) is not None:
            sums.limit_step(motion, fraction)
        else:
            fractions = self._loops[table.kernel].step_fraction.of_columns(table.gathered(motion), table.reaches)[0]
            fraction.scatter_reduce_(0, table.robot, fractions, "amin")

    def summary(self, table: PairTable, q: Tensor, velocity: Tensor) -> Summary:
        """Return numbers, loads and forces of a table's pairs that touch at q and velocity (B, n).

        Not for a constraint.
        """
        sums = self.sums(table, q, velocity)
        return self.touching(table, q, velocity).summary(q) if sums is None else sums.summary(q, velocity)

    def energy(self, touching_pairs: Touching) -> Tensor:
        """Return the potentials (A,) of the normal forces of pairs that touch [J]."""
        return touching_pairs.share * self.force_law.energy(touching_pairs.gap, touching_pairs.constants)


def _refuse_other_parts(between: Sequence[str], themselves: bool) -> None:
    """Refuse a `between` that is not two names, and `themselves=False` with two different names."""
    is_pair = isinstance(between, Sequence) and not isinstance(between, str) and len(between) == 2
    if not is_pair or not all(isinstance(name, str) for name in between):
        raise InputError(f"SelfContact.between: expected the names of two parts, got {between!r}")
    if not themselves and between[0] != between[1]:
        problem = "goes with all parts, or with one name twice; parts of two names are not the same piece"
        raise InputError(f"SelfContact.themselves: False {problem}: leave it out")


class SelfContacts(nn.ModuleList):
    """All contacts of a robot's parts with each other: for most robots one `SelfContact`, or none.

    Parameters
    ----------
    contacts : which are bound to the robot, each with the pairs that it rules.
    body : of the robot.

    Attributes
    ----------
    constrained_numbers : numbers of the contacts that are constraints, and no forces.
    barrier_numbers : numbers of the contacts that need gaps above zero.
    """

    def __init__(self, contacts: Sequence[SelfContact], body: Body):
        super().__init__(contacts)
        for contact, ruled in zip(contacts, ruled_pairs(body, [contact.scope for contact in contacts]), strict=True):
            contact.bind(body, ruled)
        self.constrained_numbers = frozenset(k for k, contact in enumerate(self) if contact.constrained)
        self.barrier_numbers = frozenset(k for k, contact in enumerate(self) if contact.law.response.feasible_only)

    def __iter__(self) -> Iterator[SelfContact]:
        return super().__iter__()  # type: ignore[return-value]

    def __getitem__(self, number: int) -> SelfContact:  # type: ignore[override]
        return super().__getitem__(number)  # type: ignore[return-value]

    @property
    def symmetric(self) -> bool:
        """Whether the derivative of the forces is a symmetric matrix."""
        return not any(contact.rubs for contact in self)

    def constants(self) -> list[Tensor]:
        """Return the tensors on which it depends which parts touch: sizes and neighbours, and constants of laws."""
        return [tensor for contact in self for tensor in (*contact.sizes(), *constants_of(contact.law))]

    @torch.no_grad()
    def pairs(self, start: Tensor, end: Tensor, search_distance: Tensor) -> Pairs:
        """Return the pairs that may touch while the nodes move from `start` to `end` (B, N, 3).

        What all nodes move together, in the mean, does not count.

        Parameters
        ----------
        search_distance : (B,) how far nodes may leave the box around both positions, along each axis [m].
        """
        boxes = NodeBoxes.of_motion(start, end, search_distance)
        tables = [table for k, contact in enumerate(self) for table in contact.tables(boxes.low, boxes.high, start, k)]
        return Pairs(tuple(tables), boxes)

    def touching(self, pairs: Pairs, q: Tensor, velocity: Tensor) -> list[Touching]:
        """Return the pairs that touch at q and velocity (B, n), one object for each table that has any pairs.

        Contacts that are constraints are left out.
        """
        return [self[table.contact].touching(table, q, velocity) for table in self.force_tables(pairs)]

    def touch(self, pairs: Pairs, q: Tensor | None) -> Tensor:
        """Return the robots (B,) bool of which some pair touches at q (B, n); None: those that have any pair."""
        if q is None:
            return pairs.robots_with_any()
        touch = torch.zeros(len(q), dtype=torch.bool, device=q.device)
        for table in pairs.tables:
            if len(table):
                touch[self[table.contact].robots_touched(table, q)] = True
        return touch

    def force_tables(self, pairs: Pairs) -> list[PairTable]:
        """Return the tables that have any pairs, or that last and may have some later, without those of constraints."""
        some = (table for table in pairs.tables if len(table) or table.lasts)
        return [table for table in some if table.contact not in self.constrained_numbers]

    def force(self, pairs: Pairs, q: Tensor, velocity: Tensor) -> Tensor:
        """Return the sum (B, n) of all contact forces [N]; constraints add nothing."""
        total = torch.zeros_like(q)
        for table in self.force_tables(pairs):
            contact = self[table.contact]
            if table.lasts and torch.is_grad_enabled():
                total = total + DifferentiableForce.apply(q, velocity, contact.lasting_sums(table))
            elif (sums := contact.sums(table, q, velocity)) is not None:
                sums.add_force(q, velocity, total)
            else:
                touching_pairs = contact.touching(table, q, velocity)
                total = total + touching_pairs.summed(touching_pairs.force(), q)
        return total

    def overlapping(self, pairs: Pairs, q: Tensor) -> Tensor:
        """Return the robots (B,) bool of which parts with a barrier between them overlap at q (B, n)."""
        overlap = torch.zeros(len(q), dtype=torch.bool, device=q.device)
        for touching_pairs in self.touching(pairs.of_contacts(self.barrier_numbers), q, torch.zeros_like(q)):
            overlap[touching_pairs.robot[touching_pairs.gap <= 0]] = True
        return overlap

    @torch.no_grad()
    def ways_of_others(self, pairs: Pairs, q: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """Return how far nodes that overlap others at q (B, n), across a barrier, have to go along with these.

        Parameters
        ----------
        before : (B, n) where nothing overlapped.

        Returns
        -------
        (B, N, 3) the mean motion, from `before` to q, of the closest points of what each node's pairs overlap with [m],
        and (B, N) bool, for which nodes there is one: those of pairs that overlap something that has moved.
        """
        nodes = 3 * self[0].body.n_nodes
        motion, still = q - before, torch.zeros_like(q)
        total, count = torch.zeros_like(q), torch.zeros_like(q)
        for touching_pairs in self.touching(pairs.of_contacts(self.barrier_numbers), q, still):
            others, moved = touching_pairs.motion_of_others(motion)
            total = total + touching_pairs.summed(others, q)
            count = count + touching_pairs.summed(moved, q)
        mean, moved = total / count.clamp_min(1), count > 0
        return mean[:, :nodes].unflatten(1, (-1, 3)), moved[:, :nodes:3]

    def energies(self, pairs: Pairs, q: Tensor) -> dict[str, Tensor]:
        """Return the potential (B,) of the normal forces of each contact by its name [J]; zero for constraints."""
        total: dict[str, Tensor] = {contact.name: q.new_zeros(q.shape[0]) for contact in self}
        for touching_pairs in self.touching(pairs, q, torch.zeros_like(q)):
            contact = self[touching_pairs.table.contact]
            total[contact.name] = total[contact.name].index_add(0, touching_pairs.robot, contact.energy(touching_pairs))
        return total

    @cached_property
    def parts(self) -> tuple[int, IndexMap]:
        """The number of connected parts of the robot, and for each node the number (N,) of its part."""
        body = self[0].body
        return body.parts(), IndexMap(body.part_of_node)

    def energy(self, pairs: Pairs, q: Tensor) -> Tensor:
        """Return the sum (B,) of `energies` [J]."""
        return sum(self.energies(pairs, q).values(), q.new_zeros(q.shape[0]))
