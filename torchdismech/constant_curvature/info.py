"""How a step of pneumatic arms went, and what their plates touched in it."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from torchdismech.errors import Status

__all__ = ["ArmStepInfo", "PlateReport"]


@dataclass(frozen=True)
class PlateReport:
    """What each contact did in the last step: (B, C) with C = obstacles x plates, those of the first obstacle first.

    Nothing of it has derivatives.

    Attributes
    ----------
    gap : at the end of the step [m]; NaN for a robot that was not stepped or failed.
    impulse : (B, C, 3) normal, tangent 1, tangent 2 [N s]; zero where there is no contact.
    sticking, sliding : bool; neither where the contact is open.
    """

    gap: Tensor
    impulse: Tensor
    sticking: Tensor
    sliding: Tensor


@dataclass(frozen=True)
class ArmStepInfo:
    """How the step of each robot went; every field is (B,). Nothing of it has derivatives.

    Attributes
    ----------
    status : `Status` values.
    iterations : of the complementarity problem's solver.
    residual : largest violation of the contact laws [m/s]; 0 without contact.
    substeps : 1.
    contact : "active", "sticking", "sliding" numbers of contacts; "penetration" the largest overlap at the end of the
        step [m]; "force/NAME" (B, 3) of each obstacle on the arm [N], "load/NAME" (B,) how large its forces on single
        plates are all together, "node_force" (B, N, 3) on base, disks and end plates. {} for an arm without obstacles.
    plates : the same for each contact; None for an arm without obstacles.
    solved : bool, whether the contact problem was solved, also where there was none.
    """

    status: Tensor
    iterations: Tensor
    residual: Tensor
    substeps: Tensor
    contact: dict[str, Tensor] = field(default_factory=dict)
    plates: PlateReport | None = None
    solved: Tensor | None = None

    @property
    def converged(self) -> Tensor:
        """Which robots (B,) made the step."""
        return self.status == Status.CONVERGED
