"""Checks for users' own stencils, energies, inelastic laws and forces: derivatives, batch, shapes and symmetries.

```python
report = check_energy(MyEnergy(), strains=2, size=10.0)
print(report)              # a table: what was checked, the worst error, the tolerance
report.raise_if_failed()   # AssertionError with that table
```
Derivatives are compared with central differences, with steps of eps^(1/3) of the variables' size: truncation and
rounding errors are then both near 1e-10 of the function's own size, and the tolerance, 1e-6 of the largest derivative,
leaves room for strong curvature. Where derivatives are zero, as in a straight rod, a deviation counts only if it
exceeds the rounding error and the difference from the result with twice the step.
"""

from torchdismech.testing.forces import check_force
from torchdismech.testing.inelastic import check_inelastic
from torchdismech.testing.report import Check, Report
from torchdismech.testing.symmetry import check_rigid_motion, check_symmetry
from torchdismech.testing.terms import check_energy, check_stencil

__all__ = [
    "Check",
    "Report",
    "check_energy",
    "check_force",
    "check_inelastic",
    "check_rigid_motion",
    "check_stencil",
    "check_symmetry",
]
