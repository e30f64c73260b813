"""StepInfo: the report of how a step of each robot went. SeveralSteps: of how several steps did."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import torch
from torch import Tensor

from torchdismech.contact.report import ContactReport
from torchdismech.errors import Status, ends_in_words
from torchdismech.records import replaced
from torchdismech.solve.search import Root
from torchdismech.values import where_rows

__all__ = ["SeveralSteps", "StepInfo"]


@dataclass(frozen=True, eq=False)
class StepInfo:
    """How the step of each robot went; tensors are (B,), those in `contact` (B, ..).

    Attributes
    ----------
    status : `Status` values.
    iterations : Newton iterations, over all substeps and attempts.
    residual : norm of the residual at the accepted iterate [N] (torques count over the mean edge length).
    tolerance : the residual up to which the step counts as solved [N].
    force_scale : sum of the norms of momentum over dt, external and internal force at the start of the step [N].
    substeps : number of equal parts the step was taken in; of a robot that failed, the most that were tried.
    contact : the contact report (see `contact.report`), of the last part; zeros for robots that failed or were not
        stepped, {} for robots that touch nothing. Gradients do not pass through it: see docs/gradients.md, "forces of
        contact".
    stable : for static equilibria whether each is a minimum of the potential energy, as its matrix tells: False at a
        saddle, and where a part is free to move. None where that is not known: in motion, under loads without a
        potential (drag, friction), and with an iterative linear solver.
    """

    status: Tensor
    iterations: Tensor
    residual: Tensor
    tolerance: Tensor
    force_scale: Tensor
    substeps: Tensor
    contact: ContactReport = field(default_factory=dict)
    stable: Tensor | None = None

    def __repr__(self) -> str:
        """Return how many robots ended with which status, and their Newton iterations, but no tensors."""
        return f"{type(self).__name__}({self._in_words()})"

    def _in_words(self) -> str:
        return ends_in_words(self.status, self.iterations)

    @classmethod
    def of(cls, root: Root, status: Tensor, scale: Tensor, contact: ContactReport | None = None) -> StepInfo:
        """Return the report of a step in one part, from its root, status (B,), force scale (B,) and contact report."""
        whole = torch.ones_like(root.iterations)
        return cls(status, root.iterations, root.residual, root.tolerance, scale, whole, contact or {})

    @property
    def converged(self) -> Tensor:
        """The robots (B,) whose step was solved, and those that were not stepped."""
        return self.status == Status.CONVERGED

    def merged(self, other: StepInfo, take: Tensor) -> Self:
        """Return this with the rows of `other` where `take` (B,) holds; what only one of the two knows is left out."""
        own, others = self._numbers(), other._numbers()
        merged: dict[str, Any] = {k: torch.where(take, others[k], v) for k, v in own.items() if k in others}
        names = set(self.contact) & set(other.contact)
        contact = {k: where_rows(take, other.contact[k], self.contact[k]) for k in self.contact if k in names}
        return replaced(self, **{"stable": None, **merged, "contact": contact})

    def rows(self, index: Tensor | slice | Sequence[int]) -> Self:
        """Return the report of the robots that `index` selects."""
        own = {k: v[index] for k, v in self._numbers().items()}
        return replaced(self, **own, contact={k: v[index] for k, v in self.contact.items()})

    @classmethod
    def joined(cls, parts: Sequence[StepInfo]) -> StepInfo:
        """Return the reports of parts of a batch as one."""
        own = {k: torch.cat([getattr(p, k) for p in parts]) for k in parts[0]._numbers()}
        contact = {k: torch.cat([p.contact[k] for p in parts]) for k in parts[0].contact}
        return replaced(parts[0], **own, contact=contact)

    def clone(self) -> Self:
        """Return a report with copies of its tensors."""
        return self.with_tensors(tensor.clone() for tensor in self.tensors())

    def tensors(self) -> list[Tensor]:
        """Return all tensors, those of the contact report last."""
        return [*self._numbers().values(), *self.contact.values()]

    def with_tensors(self, tensors: Iterable[Tensor]) -> Self:
        """Return a report with other tensors, in the order of `tensors`."""
        given = iter(tensors)
        own = {name: next(given) for name in self._numbers()}
        return replaced(self, **own, contact={name: next(given) for name in self.contact})

    def _numbers(self) -> dict[str, Tensor]:
        """Return the fields that are tensors, by name; the contact report is none."""
        return {k: v for k, v in vars(self).items() if isinstance(v, Tensor)}


@dataclass(frozen=True, eq=False, repr=False)
class SeveralSteps(StepInfo):
    """How several steps of each robot went.

    Attributes
    ----------
    status : CONVERGED, or why the first step failed that did: the robot stays where it was before that step.
    iterations, iterations_max : Newton iterations, of all steps together and of the step that took most.
    residual, substeps : the largest among the steps.
    contact : of the last step, but for "penetration", which is the largest among the steps.
    count : how many steps these are.
    Others are of the last step.
    """

    iterations_max: Tensor = field(kw_only=True)
    count: int = field(kw_only=True)

    def _in_words(self) -> str:
        return f"{self.count} step{'s' * (self.count != 1)} of {super()._in_words()}"

    @classmethod
    def none(cls, like: Tensor) -> SeveralSteps:
        """Return the report of no steps, to add steps to, for the robots of a tensor of real numbers (B, ..)."""
        zero = torch.zeros(len(like), dtype=torch.long, device=like.device)
        real = zero.to(like.dtype)
        return cls(zero, zero, real, real, real, zero, iterations_max=zero, count=0)

    @classmethod
    def of_one(cls, info: StepInfo) -> SeveralSteps:
        """Return the report of a single step as one of several steps."""
        own = info._numbers()
        own.pop("stable", None)
        return cls(**own, contact=info.contact, iterations_max=info.iterations, count=1)

    @classmethod
    def of_steps(cls, infos: StepInfo, steps: slice, last: StepInfo) -> SeveralSteps:
        """Return the report of some consecutive steps, none of which a robot failed.

        Parameters
        ----------
        infos : report of all steps; its tensors are (T, B, ...).
        steps : the range of the steps among these.
        last : report of the last of them, which is at hand already.
        """
        own, count = cls.of_one(last), steps.stop - steps.start
        if count == 1:
            return own
        iterations, contact = infos.iterations[steps], dict(last.contact)
        if contact:
            contact["penetration"] = infos.contact["penetration"][steps].amax(0)
        return replaced(
            own,
            iterations=iterations.sum(0),
            iterations_max=iterations.amax(0),
            residual=infos.residual[steps].amax(0),
            substeps=infos.substeps[steps].amax(0),
            contact=contact,
            count=count,
        )

    def followed_by(self, info: Any, running: Tensor | None) -> SeveralSteps:
        """Return the report of these steps and of those that came after.

        Parameters
        ----------
        info : report of one more step, of any kind of robots, or of several.
        running : (B,) robots that took these further steps; None: all.
        """
        several = isinstance(info, SeveralSteps)
        if not self.count and (several or (running is None and isinstance(info, StepInfo))):
            return info if several else SeveralSteps.of_one(info)
        # reports of chains and arms have neither tolerance nor force scale
        last = info if isinstance(info, StepInfo) else self
        residual = info.residual if running is None else torch.where(running, info.residual, 0.0)
        contact = dict(info.contact)
        if contact and self.contact:
            contact["penetration"] = torch.maximum(self.contact["penetration"], contact["penetration"])
        return replaced(
            self,
            status=info.status if running is None else torch.where(running, info.status, self.status),
            iterations=self.iterations + info.iterations,
            iterations_max=torch.maximum(self.iterations_max, info.iterations_max if several else info.iterations),
            residual=torch.maximum(self.residual, residual),
            tolerance=last.tolerance,
            force_scale=last.force_scale,
            substeps=torch.maximum(self.substeps, info.substeps),
            contact=contact,
            count=self.count + (info.count if several else 1),
        )
