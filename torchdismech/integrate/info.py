"""StepInfo: how the step of each robot went."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from torchdismech.contact.report import Report
from torchdismech.errors import Status
from torchdismech.solve.search import Root
from torchdismech.values import where_rows

__all__ = ["StepInfo"]


@dataclass(frozen=True)
class StepInfo:
    """How the step of each robot went; every field is (B,).

    Attributes
    ----------
    status : `Status` values.
    iterations : Newton iterations, over all substeps and attempts.
    residual : norm of the residual at the accepted iterate [N] (torques count over the mean edge length).
    tolerance : what the residual was held against [N].
    force_scale : norm of momentum over dt + external + internal force at the start of the step [N].
    substeps : number of equal parts the step was taken in; of a robot that failed, the most that were tried.
    contact : what contact did (see `contact.report`), of the last part; {} for robots that touch nothing.
    stable : of static equilibria, whether each is a minimum of the potential energy, by its matrix: False at a saddle,
        and where a part is free to move. None where that is not known: in motion, under loads without a potential
        (drag, friction), and with an iterative linear solver.
    """

    status: Tensor
    iterations: Tensor
    residual: Tensor
    tolerance: Tensor
    force_scale: Tensor
    substeps: Tensor
    contact: Report = field(default_factory=dict)
    stable: Tensor | None = None

    @classmethod
    def of(cls, root: Root, status: Tensor, scale: Tensor, contact: Report | None = None) -> StepInfo:
        """Return how a whole step went whose root was found like this."""
        whole = torch.ones_like(root.iterations)
        return cls(status, root.iterations, root.residual, root.tolerance, scale, whole, contact or {})

    @property
    def converged(self) -> Tensor:
        """Which robots (B,) made the step."""
        return self.status == Status.CONVERGED

    def merged(self, other: StepInfo, take: Tensor) -> StepInfo:
        """Return this with the rows where `take` holds replaced by those of `other`."""
        own, others = self._numbers(), other._numbers()
        merged = {k: torch.where(take, others[k], v) for k, v in own.items()}
        names = set(self.contact) & set(other.contact)
        contact = {k: where_rows(take, other.contact[k], self.contact[k]) for k in self.contact if k in names}
        return StepInfo(**merged, contact=contact)

    def rows(self, index) -> StepInfo:
        """Return how it went for the robots that `index` selects."""
        own = {k: v[index] for k, v in self._numbers().items()}
        return StepInfo(**own, contact={k: v[index] for k, v in self.contact.items()})

    @classmethod
    def joined(cls, parts: Sequence[StepInfo]) -> StepInfo:
        """Return how it went for parts of a batch as one."""
        own = {k: torch.cat([getattr(p, k) for p in parts]) for k in parts[0]._numbers()}
        return cls(**own, contact={k: torch.cat([p.contact[k] for p in parts]) for k in parts[0].contact})

    def tensors(self) -> list[Tensor]:
        """Return all tensors, those of contact last."""
        return [*self._numbers().values(), *self.contact.values()]

    def with_tensors(self, tensors: Iterable[Tensor]) -> StepInfo:
        """Return a report with other tensors, in the same order."""
        given = iter(tensors)
        own = {name: next(given) for name in self._numbers()}
        return StepInfo(**own, contact={name: next(given) for name in self.contact})

    def _numbers(self) -> dict[str, Tensor]:
        """Return the fields but contact, those that are not None."""
        return {k: v for k, v in vars(self).items() if k != "contact" and v is not None}
