"""Pairs that may touch, in structures that recordings of steps know and that take other pairs later."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from torchdismech.contact.constraints import ConstraintSet
from torchdismech.contact.model import ContactModel
from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.pair_sums import PairSums
from torchdismech.contact.pairs.pairs import Pairs, PairTable
from torchdismech.integrate.candidates import constraints_of_points
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.pair_watch import PairWatch
from torchdismech.native.graphs import Unrecordable
from torchdismech.robot.state import State

__all__ = ["LastingPairs", "TouchWatch"]

SPARE, FEWEST = 1.25, 8  # tables of constraints have room for so many times the pairs found first, and at least so many


class LastingPairs:
    """Pairs that may touch, of which recordings know, and which are replaced by others without a new recording.

    That holds as long as the matrix keeps its pattern, and tables of constraints have room. Recordings sum over pairs
    whose contact is a force.

    Parameters
    ----------
    contact : of the model.
    found : the first of the pairs.

    Attributes
    ----------
    pairs : the pairs, for the equations that are recorded.
    taken : the list of pairs that stands there now; None where the last one could not be taken.

    Raises
    ------
    Unrecordable : compiled code cannot sum over the pairs.
    """

    def __init__(self, contact: ContactModel, found: StepPairs):
        self._contact, self._contacts = contact, contact.self_contacts
        self.taken: StepPairs | None = found
        self._constants = self._copied_constants()  # of the laws, with which sums are found
        self.pairs = found.lasting()
        sums = [self._sums_over(table, None) for table in self._summed_tables]
        self._sums = [of_table for of_table in sums if of_table is not None]
        if len(self._sums) < len(sums):
            raise Unrecordable("forces of pairs, which have no compiled code")
        self._fill_block_places()
        # the tables of constraints, which all of these share
        self._filled = tuple(table.filled_up(_room_for(len(table))) for table in self._constrained_tables)
        self._constraints: list[ConstraintSet] = []  # of steps on static buffers, see `constrain`

    @property
    def _summed_tables(self) -> list[PairTable]:
        """The tables of pairs whose contact is a force."""
        return self._contacts.force_tables(self.pairs.listed)

    @property
    def _constrained_tables(self) -> tuple[PairTable, ...]:
        """The tables of pairs whose contact is a constraint."""
        return self.pairs.listed.of_contacts(self._contacts.constrained_numbers).tables

    def constrain(self, problem: StepProblem) -> ConstraintSet:
        """Return the contacts of a step on static buffers that are constraints: of all points, and of these pairs."""
        listed = Pairs(self._filled, self.pairs.listed.boxes)
        constraints = constraints_of_points(self._contact, problem.state, problem.end, pairs=listed)
        self._unknown = problem.model.unknowns.number
        constraints.found_entries(self.pairs.coupling.pattern, self._unknown)
        self._constraints.append(constraints)
        return constraints

    def take(self, found: StepPairs) -> bool:
        """Take other pairs in place of the present ones, with the present constants of their laws.

        Return False where recordings cannot take them, and are of no use any more: where the matrix has another
        pattern, there are more than constraints have room for, or constants are given for each robot that were not, or
        the other way round.
        """
        constants = self._copied_constants()
        if found is self.taken and all(map(torch.equal, constants, self._constants)):
            return True
        self.taken = None
        if not self.pairs.become(found.listed.lasting()):
            return False
        sums = [self._sums_over(table, kept) for table, kept in zip(self._summed_tables, self._sums, strict=True)]
        if any(new is not kept for new, kept in zip(sums, self._sums, strict=True)) or not self._constrain_others():
            return False
        self._fill_block_places()
        self.taken, self._constants = found, constants
        return True

    def in_room(self, load: Tensor) -> Tensor:
        """Return loads of contacts, see `LoadsWithPairs`, with zeros for what fills up the tables of constraints."""
        counts = [len(table) for table in self._constrained_tables]
        of_points, *of_tables = load.split([len(load) - sum(counts), *counts])
        tables = zip(of_tables, self._filled, strict=True)
        return torch.cat([of_points, *(pad(of, (0, 0, 0, len(table) - len(of))) for of, table in tables)])

    def without_room(self, load: Tensor) -> Tensor:
        """Return the loads of contacts without those of what fills up the tables of constraints."""
        rooms = [len(table) for table in self._filled]
        of_points, *of_tables = load.split([len(load) - sum(rooms), *rooms])
        tables = zip(of_tables, self._constrained_tables, strict=True)
        return torch.cat([of_points, *(of[: len(table)] for of, table in tables)])

    def _constrain_others(self) -> bool:
        """Let the constraints hold the present pairs; return False where they have no room for them."""
        tables = list(zip(self._filled, self._constrained_tables, strict=True))
        if any(len(found) > len(filled) for filled, found in tables):
            return False
        for filled, found in tables:
            filled.become(found)
        for constraints in self._constraints:
            constraints.take_pairs(self.pairs.coupling.pattern, self._unknown)
        return True

    def _copied_constants(self) -> list[Tensor]:
        laws = (contact.force_law for contact in self._contacts if not contact.constrained)
        return [number.detach().clone() for law in laws for number in law.constants.tensors()]

    def _sums_over(self, table: PairTable, kept: PairSums | None) -> PairSums | None:
        """Return the sums over the pairs of a table: `kept` ones if these can take them; None without compiled code."""
        sums = self._contacts[table.contact].bound_sums(table, kept)
        if sums is not None:
            sums.allow_on_tapes()
        return sums

    def _fill_block_places(self) -> None:
        for table, sums in zip(self._summed_tables, self._sums, strict=True):
            sums.block_places.fill(*self.pairs.coupling.block_places(table).members)


def _room_for(pairs: int) -> int:
    """Return for how many pairs a table of constraints has room that first holds so many."""
    return max(FEWEST, int(SPARE * pairs)) if pairs else 0


class TouchWatch:
    """A `PairWatch` for recordings of steps in which all of its pairs may touch.

    Parameters
    ----------
    watch : of the pairs.

    Attributes
    ----------
    pairs : those of the recordings.
    """

    def __init__(self, watch: PairWatch, pairs: LastingPairs):
        self._watch, self.pairs = watch, pairs

    def near(self, before: State, after: State, running: Tensor) -> Tensor:
        """Return what `PairWatch.passed` does."""
        return self._watch.passed(before, after, running)

    def stands(self, problem: StepProblem, after: State, near: Tensor | None) -> bool:
        """Return whether the step knew of all pairs that touched, and none passed through each other.

        If it does not stand, pairs are looked for anew, with which the step has to be taken again.
        """
        assert near is not None
        if not bool(near):
            return True
        self._watch.renew(problem, after)
        return False

    def takes_known_pairs(self, others: bool) -> bool:
        """Return whether recordings know of the pairs that are known to touch; `others`, if found, they take first."""
        watch = self._watch
        found = watch.found
        if found is None or not (watch.known and watch.touching and (others or found is self.pairs.taken)):
            return False
        return self.pairs.take(found)
