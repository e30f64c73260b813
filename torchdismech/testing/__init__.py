"""Contract checks to run on your own stencils, energies and forces.

```python
report = check_energy(MyEnergy(), strains=2, size=10.0)
print(report)              # a table: what was checked, the worst error, the tolerance
report.raise_if_failed()   # AssertionError with that table
```
Derivatives are held against central differences with steps of eps^(1/3) of the variables' size: truncation and
rounding are then both near 1e-10 of the function's own size, and 1e-6 of the largest derivative
leaves room for strong curvature. Where a derivative is zero, as in a straight rod, what counts is more than rounding,
and than what a difference with twice the step tells otherwise.
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
