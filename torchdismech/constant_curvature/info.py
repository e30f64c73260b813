"""Reports of steps of pneumatic arms, and of the contacts of their plates."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from torchdismech.errors import Status, ends_in_words

__all__ = ["ArmStepInfo", "PlateReport"]


@dataclass(frozen=True, eq=False)
class PlateReport:
    """Report on each contact in a step: (B, C), C = obstacles x plates, the plates at the first obstacle first.

    No field has derivatives.

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


@dataclass(frozen=True, eq=False)
class ArmStepInfo:
    """How the step of each robot went; every field is (B,). No field has derivatives.

    Attributes
    ----------
    status : `Status` values.
    iterations : of the complementarity problem's solver.
    residual : largest violation of the contact laws [m/s]; 0 without contact.
    substeps : always 1.
    contact : "active" number of contacts, "sticking" and "sliding" numbers of those with friction; "penetration" the
        largest overlap at the end of the step [m]; "force/NAME" (B, 3) of each obstacle on the arm [N], "load/NAME"
        (B,) sum of the magnitudes of its forces on single plates [N], "node_force" (B, N, 3) on base, disks and end
        plates. {} for an arm without obstacles.
    plates : report on each contact; None for an arm without obstacles.
    solved : bool, whether the contact problem was solved, also where there was none.
    """

    status: Tensor
    iterations: Tensor
    residual: Tensor
    substeps: Tensor
    contact: dict[str, Tensor] = field(default_factory=dict)
    plates: PlateReport | None = None
    solved: Tensor | None = None

    def __repr__(self) -> str:
        """Return how many robots ended with which status, and their iterations, but no tensors."""
        return f"{type(self).__name__}({ends_in_words(self.status, self.iterations)})"

    @property
    def converged(self) -> Tensor:
        """Robots whose step did not fail, bool (B,), also those that were not to step."""
        return self.status == Status.CONVERGED
