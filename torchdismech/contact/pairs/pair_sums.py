"""Forces and derivatives of pairs in contact, summed over pairs by compiled code (`pair_calls`).

It calls the compiled loops of `pair_loops` for some pairs at a time and adds their results. Where nothing can be
compiled, and for derivatives by autograd, `pairs.Touching` finds the same forces and derivatives pair by pair.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import cached_property
from operator import is_

import torch
from torch import Tensor

from torchdismech.contact.law_formulas import LawConstants
from torchdismech.contact.pairs.pair_calls import BoundLoop, PairCalls, Structure
from torchdismech.contact.pairs.pair_loops import KNOWN, PairLoops
from torchdismech.contact.pairs.pairs import PairTable, Summary
from torchdismech.fused import Fused, compiled_code_accepts
from torchdismech.native import function_of

__all__ = ["DifferentiableForce", "PairSums"]


def _further_inputs(table: PairTable, constants: LawConstants) -> tuple[list[Tensor], Tensor]:
    """Return the further inputs of loops for the pairs of a table, and the flat indices (C,) of the pairs' slots.

    Inputs are the reaches, the law's constants and the further arguments of the kernel.
    """
    further = [table.reaches, *constants.at(table.robot).tensors(), *table.kernel_arguments]
    return further, table.robot * table.shape[1] + table.slot


class PairSums:
    """Sums of forces, derivatives and friction over the pairs of a table, for the present constants of a law.

    The table keeps the object for a step. Recordings keep it, too, and bind it to the tables of later steps
    (`bound_to`).

    Parameters
    ----------
    loops : of the table's kernel and the law.
    table : the table of the pairs.
    constants : of the law, each () or (B, 1).

    Attributes
    ----------
    block_places : structure for the members of `Coupling.block_places`, whose address tapes know. Recordings fill it in
        each step.
    """

    def __init__(self, loops: PairLoops, table: PairTable, constants: LawConstants):
        self._loops = loops
        further, slots = _further_inputs(table, constants)
        self._calls = PairCalls(table.listed, further, table.reaches.dtype, slots)
        self.block_places = Structure.unfilled(5)
        self._bind(table, constants)
        self._reach, *rest = self._calls.further
        count = len(constants.tensors())
        self._law_constants, self._kernel_arguments = rest[:count], rest[count:]
        with torch.inference_mode(False):  # so that the gains may be written to in any mode
            self._gains = torch.zeros(2, dtype=table.reaches.dtype, device="cpu").unbind()

    def _bind(self, table: PairTable, constants: LawConstants) -> None:
        self._table, self._constants = weakref.ref(table), constants
        self._shape = (*table.shape, KNOWN)

    def allow_on_tapes(self) -> None:
        """Let tapes record these sums; the caller has to bind them to a step's pairs before it replays a tape."""
        self._calls.on_tapes = True

    @classmethod
    def of(
        cls, loops: PairLoops, table: PairTable, q: Tensor, velocity: Tensor, constants: LawConstants
    ) -> PairSums | None:
        """Return the sums for a table, if compiled code can find them at q and velocity (B, n); None if torch has to.

        They are kept with the table, which lives for a step, and serve again while the law has the same tensors as
        constants. Constants that are given per robot are gathered anew at each call.
        """
        if not compiled_code_accepts(q, velocity, *constants.tensors()):
            return None
        kept: PairSums | None = table.sums.get(loops)
        if table.lasts:
            return kept
        if kept is not None and kept._table() is not table:  # a recording has bound it to another table since
            kept = None
        if kept is not None and kept._serves(constants.tensors()):
            return kept if kept._is_compiled else None
        return cls.bound_to(loops, table, constants, kept)

    @classmethod
    def bound_to(
        cls, loops: PairLoops, table: PairTable, constants: LawConstants, kept: PairSums | None
    ) -> PairSums | None:
        """Return the sums for the pairs of a table: `kept` ones, newly bound, if they fit, else new ones.

        None if compiled code cannot find them.
        """
        numbers = constants.tensors()
        if (
            not compiled_code_accepts(table.reaches, *numbers)
            or function_of("pair_values", table.reaches.dtype) is None
        ):
            return None
        if kept is not None and kept._can_take(loops, table, constants):
            further, slots = _further_inputs(table, constants)
            kept._calls.bind(table.listed, further, slots)
            kept._bind(table, constants)
        else:
            kept = cls(loops, table, constants)
        table.sums[loops] = kept
        return kept if kept._is_compiled else None

    def _can_take(self, loops: PairLoops, table: PairTable, constants: LawConstants) -> bool:
        """Return whether these sums may be bound to another table: loops, dtype and shapes of constants agree."""
        shapes = [number.numel() > 1 for number in self._constants.tensors()]
        same_kinds = shapes == [number.numel() > 1 for number in constants.tensors()]
        return self._loops is loops and same_kinds and table.reaches.dtype == self._reach.dtype

    def _serves(self, numbers: Sequence[Tensor]) -> bool:
        """Return whether the constants are these very tensors, each one number for all robots."""
        present = self._constants.tensors()
        same = len(present) == len(numbers) and all(map(is_, present, numbers))
        return same and all(number.numel() == 1 for number in numbers)

    @cached_property
    def _is_compiled(self) -> bool:
        calls = self._calls
        slack = calls.loop(self._loops.slack, self._slack_inputs)
        return None not in (slack, calls.loop(self._loops.force_of_nodes, self._force_inputs), self._blocks(None))

    def touching(self, q: Tensor) -> Tensor:
        """Return the numbers (A,), within the table, of the pairs that touch at q (B, n)."""
        slack = q.new_empty(self._calls.count)
        self._calls.call("pair_values", q, q, None, self._slack, slack)
        return (slack < 0).nonzero().squeeze(1)

    def add_force(self, q: Tensor, velocity: Tensor, total: Tensor) -> None:
        """Add the forces at q and a velocity (B, n) to `total` (B, n) [N]."""
        force = self._loop(self._loops.force_of_nodes, self._force_inputs)
        self._calls.call("pair_forces", q, velocity, None, self._slack, force, total)

    def add(
        self,
        q: Tensor,
        velocity: Tensor,
        friction: Tensor | None,
        total: Tensor,
        values: Tensor,
        values_before: Tensor | None,
        gains: Sequence[float | Tensor],
        at: Structure,
    ) -> None:
        """Add the forces to `total` (B, n), and -gains[0] dF/dx - gains[1] dF/dvelocity to matrix values.

        Parameters
        ----------
        friction : (B, P, KNOWN) friction of the pairs, whose tractions are estimates for the derivatives of primal-dual
            steps (`LawFormulas.partials`); None: the exact derivatives.
        values : (nnz, B), or with more rows, of the matrix with contact.
        values_before : values of the matrix without contact, with which `values` are first overwritten; None: they are
            added to as they are.
        at : where the blocks go; see `Coupling.block_places`.
        """
        for present, gain in zip(self._gains, gains, strict=True):
            present.fill_(gain)
        blocks = self._blocks(friction)
        assert blocks is not None and (friction is None or friction.shape == self._shape)
        bound = (self._slack, blocks.address, total, at.address, values.shape[1], values_before, values)
        self._calls.call("pair_blocks", q, velocity, friction, *bound)

    def add_product(
        self, q: Tensor, velocity: Tensor, by_force: Tensor, total: Tensor, gains: tuple[float, float]
    ) -> None:
        """Add the product of `by_force` (B, n) with gains[0] dF/dx + gains[1] dF/dvelocity to `total` (B, n)."""
        for present, gain in zip(self._gains, gains, strict=True):
            present.fill_(-gain)
        blocks = self._blocks(None)
        assert blocks is not None
        self._calls.call("pair_product", q, velocity, None, self._slack, blocks.address, by_force.contiguous(), total)

    def summary(self, q: Tensor, velocity: Tensor) -> Summary:
        """Return numbers, loads and forces of the pairs that touch at q and velocity (B, n)."""
        loop = self._loop(self._loops.summary_of_nodes, self._force_inputs)
        numbers, total = q.new_zeros(len(q), 4), torch.zeros_like(q)
        self._calls.call("pair_summary", q, velocity, None, self._slack, loop, numbers, total)
        touching, sliding, penetration, load = numbers.unbind(1)
        return Summary(touching.long(), sliding.long(), penetration, load, total)

    def first_friction(self, q: Tensor, velocity: Tensor) -> Tensor:
        """Return the friction (B, P, KNOWN) of the pairs with which a search begins; zeros in empty slots."""
        loop, friction = self._loop(self._loops.first_friction, self._force_inputs), q.new_zeros(self._shape)
        self._calls.call("pair_known", q, velocity, None, loop, friction)
        return friction

    def expected_friction(self, q: Tensor, velocity: Tensor, friction_before: Tensor) -> Tensor:
        """Return the friction (B, P, KNOWN) of the pairs at the next iterate, from that at the iterate before."""
        assert friction_before.shape == self._shape
        calls, friction = self._calls, q.new_zeros(self._shape)
        inputs = (calls.x, calls.moving, self._reach, calls.friction, *self._law_constants, *self._kernel_arguments)
        loop = self._loop(self._loops.expected_friction, inputs)
        calls.call("pair_known", q, velocity, friction_before.contiguous(), loop, friction)
        return friction

    def limit_step(self, motion: Tensor, fraction: Tensor) -> None:
        """Lower `fraction` (B,), in place, until within it the sides of no pair move against each other too far.

        They may by `pair_loops.LARGEST_STEP` of its reach. `motion` (B, 3 N) is the whole motion of the nodes [m].
        """
        bound = self._loop(self._loops.step_fraction, (self._calls.x, self._reach))
        self._calls.call("pair_least", motion, motion, None, bound, fraction)

    @cached_property
    def _slack(self) -> int:
        return self._loop(self._loops.slack, self._slack_inputs)

    @property
    def _slack_inputs(self) -> tuple[Tensor, ...]:
        return self._calls.x, self._reach, self._law_constants[1], *self._kernel_arguments

    @property
    def _force_inputs(self) -> tuple[Tensor, ...]:
        return self._calls.x, self._calls.moving, self._reach, *self._law_constants, *self._kernel_arguments

    def _blocks(self, friction: Tensor | None) -> BoundLoop | None:
        moving = (self._calls.x, self._calls.moving, *self._gains, self._reach)
        if friction is None:
            return self._calls.loop(
                self._loops.blocks_of_nodes, (*moving, *self._law_constants, *self._kernel_arguments)
            )
        return self._calls.loop(
            self._loops.primal_dual_blocks_of_nodes,
            (*moving, self._calls.friction[:3], *self._law_constants, *self._kernel_arguments),
        )

    def _loop(self, loop: Fused, inputs: Sequence[Tensor]) -> int:
        """Return the address of a bound loop, which is compiled if the others are."""
        bound = self._calls.loop(loop, inputs)
        assert bound is not None
        return bound.address


class DifferentiableForce(torch.autograd.Function):
    """The sum (B, n) of the forces of pairs as a function of q and velocity (B, n); it can be differentiated once.

    Gradients by the constants of the law are left out.
    """

    @staticmethod
    def forward(ctx, q: Tensor, velocity: Tensor, sums: PairSums) -> Tensor:  # noqa: D102
        ctx.sums = sums
        ctx.save_for_backward(q, velocity)
        total = torch.zeros_like(q)
        sums.add_force(q, velocity, total)
        return total

    @staticmethod
    def backward(ctx, by_force: Tensor):  # noqa: D102
        q, velocity = ctx.saved_tensors
        gradients = []
        for needed, gains in zip(ctx.needs_input_grad, ((1.0, 0.0), (0.0, 1.0)), strict=False):
            total = torch.zeros_like(q) if needed else None
            if total is not None:
                ctx.sums.add_product(q, velocity, by_force, total, gains)
            gradients.append(total)
        return *gradients, None
