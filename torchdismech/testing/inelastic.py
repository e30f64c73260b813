"""check_inelastic: checks a material law with memory."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.elastic import Energy, Inelastic, Past
from torchdismech.errors import positive_number, refuse_other_kind, whole_number
from torchdismech.testing.report import SAME, Report, comparison, robots_check, separation_check, shape_check
from torchdismech.testing.robots import refuse_other_robots
from torchdismech.testing.terms import check_energy

__all__ = ["check_inelastic"]

STENCILS, ROBOTS = 6, 3


def check_inelastic(
    law: Inelastic, strains: int, size: float = 1.0, elapsed: float = 0.1, robots: int = ROBOTS
) -> Report:
    """Check a material law with memory in the second of two steps, at random strains of about the given size.

    Checks: all that `check_energy` checks, of `density` in that step; `updated` returns as many tensors (S, B) as
    `variables` has names, and `stored` one; the same result twice; the internal variables of a spring or robot do not
    depend on other springs or robots; at rest nothing changes and no energy is stored; the stress is continuous from
    one step to the next.

    Parameters
    ----------
    strains : how many strains the law takes.
    size : their typical size in the law's units (curvatures in 1/m).
    elapsed : length of the steps [s].
    robots : number of robots to check with; if tensors named in `per_robot` are given for several, their number.
    """
    refuse_other_kind("check_inelastic(law, strains): law", law, Inelastic, "an Inelastic")
    strains, robots = whole_number(strains, "check_inelastic: strains"), whole_number(robots, "check_inelastic: robots")
    size, elapsed = positive_number(size, "check_inelastic: size"), positive_number(elapsed, "check_inelastic: elapsed")
    refuse_other_robots("check_inelastic", law, robots, "give robots=COUNT")
    generator = torch.Generator().manual_seed(1)
    first, now = size * torch.randn(
        2, strains, STENCILS, robots, dtype=torch.float64, generator=generator, device="cpu"
    )
    time = torch.tensor(elapsed, dtype=torch.float64, device="cpu")
    zero = torch.zeros(STENCILS, robots, dtype=torch.float64, device="cpu")
    rest = Past((zero,) * strains, (zero,) * len(law.variables), time)
    kept = law.updated(tuple(first), rest)
    past = Past(tuple(first), kept, time)
    report = Report(f"{type(law).__name__}: {strains} strains of size {size:g}")
    report.checks.append(shape_check("updated", [kept], (1, len(law.variables)), tuple(zero.shape)))
    if report.checks[-1].ok:
        report.checks.append(shape_check("stored", [[law.stored(kept)]], (1, 1), tuple(zero.shape)))
    if not report.ok:
        return report

    def updated(strain: Tensor) -> Tensor:
        return torch.stack(law.updated(tuple(strain), past)).detach()

    def stress(at: Past) -> Tensor:
        return torch.stack([slope.expand_as(zero) for slope in law.slopes(tuple(now), at)]).detach()

    report.checks += check_energy(_InStep(law, past), strains, size, STENCILS, robots).checks
    report.checks.append(comparison("updated the same twice", updated(now), updated(now), SAME))
    report.checks.append(separation_check(updated, now))
    report.checks.append(robots_check(updated, now))
    still = torch.stack(law.updated(rest.strain, rest))
    report.checks.append(comparison("at rest nothing changes", still, torch.zeros_like(still), SAME))
    report.checks.append(comparison("at rest nothing is stored", law.stored(rest.internal), zero, SAME))
    after = Past(tuple(now), law.updated(tuple(now), past), torch.zeros_like(time))
    report.checks.append(comparison("the stress does not jump", stress(after), stress(past), SAME))
    return report


class _InStep(Energy):
    """A law in a step with a fixed past, as an energy density of the strains."""

    def __init__(self, law: Inelastic, past: Past):
        super().__init__()
        self.law, self.past, self.closed_form = law, past, law.closed_form

    def density(self, strain: tuple[Tensor, ...]) -> Tensor:
        """Return the density of the law."""
        return self.law.density(strain, self.past)

    def derivatives(self, strain: tuple[Tensor, ...]) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the law's derivatives."""
        return self.law.derivatives(strain, self.past)
