"""Pairs that may touch, in structures that recordings of steps know and that take other pairs later."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.contact.pairs.coupling import StepPairs
from torchdismech.contact.pairs.pair_sums import PairSums
from torchdismech.contact.pairs.pairs import PairTable
from torchdismech.contact.pairs.self_contact import SelfContacts
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.pair_watch import PairWatch
from torchdismech.native.graphs import Unrecordable
from torchdismech.robot.state import State

__all__ = ["LastingPairs", "TouchWatch"]


class LastingPairs:
    """Pairs that may touch, over which recordings sum, and which are replaced by others without a new recording.

    That holds as long as the matrix keeps its pattern.

    Parameters
    ----------
    contacts : between the parts of the robots, which are forces.
    found : the first of the pairs.

    Attributes
    ----------
    pairs : the pairs, for the equations that are recorded.
    taken : the list of pairs that sums are over now; None where these could not take the last one.

    Raises
    ------
    Unrecordable : compiled code cannot sum over the pairs.
    """

    def __init__(self, contacts: SelfContacts, found: StepPairs):
        self._contacts = contacts
        self.taken: StepPairs | None = found
        self._constants = self._copied_constants()  # of the laws, with which sums are found
        self.pairs = found.lasting()
        sums = [self._sums_over(table, None) for table in self.pairs.listed.tables]
        self._sums = [of_table for of_table in sums if of_table is not None]
        if len(self._sums) < len(sums):
            raise Unrecordable("forces of pairs, which have no compiled code")
        self._fill_block_places()

    def take(self, found: StepPairs) -> bool:
        """Take other pairs in place of the present ones, with the present constants of their laws.

        Return False where recordings cannot sum over them, and are of no use any more: where the matrix has another
        pattern, or constants are given for each robot that were not, or the other way round.
        """
        constants = self._copied_constants()
        if found is self.taken and all(map(torch.equal, constants, self._constants)):
            return True
        self.taken = None
        if not self.pairs.become(found.listed.lasting()):
            return False
        tables = self.pairs.listed.tables
        sums = [self._sums_over(table, kept) for table, kept in zip(tables, self._sums, strict=True)]
        if any(new is not kept for new, kept in zip(sums, self._sums, strict=True)):
            return False
        self._fill_block_places()
        self.taken, self._constants = found, constants
        return True

    def _copied_constants(self) -> list[Tensor]:
        laws = (contact.force_law for contact in self._contacts)
        return [number.detach().clone() for law in laws for number in law.constants.tensors()]

    def _sums_over(self, table: PairTable, kept: PairSums | None) -> PairSums | None:
        """Return the sums over the pairs of a table: `kept` ones if these can take them; None without compiled code."""
        sums = self._contacts[table.contact].bound_sums(table, kept)
        if sums is not None:
            sums.allow_on_tapes()
        return sums

    def _fill_block_places(self) -> None:
        for table, sums in zip(self.pairs.listed.tables, self._sums, strict=True):
            sums.block_places.fill(*self.pairs.coupling.block_places(table).members)


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

        Where nodes have left their boxes, new pairs are looked for, with which the step has to be taken again.
        """
        assert near is not None
        if not bool(near):
            return True
        if not self._watch.holds(after.q, problem.running):
            self._watch.renew(problem, after)
        return False

    def takes_known_pairs(self, others: bool) -> bool:
        """Return whether recordings sum over the pairs that are known to touch; `others`, if found, they take first."""
        watch = self._watch
        found = watch.found
        if found is None or not (watch.known and watch.touching and (others or found is self.pairs.taken)):
            return False
        return self.pairs.take(found)
