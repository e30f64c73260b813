"""An outside benchmark of rods: errors against its references, as docs/benchmarks.md has them."""

import pytest

pytest.importorskip("cosseratbench")

from studies.cosserat_benchmark.cosserat_benchmark import Torchdismech, main

# the errors that were measured, and a tenth more
LIMITS = {
    "cantilever": {"tip_deflection_error": 7e-4},
    "catenary": {"shape_error": 5.1e-4, "sag_error": 2e-4},
    "pendulum": {"period_error": 1.9e-5},
    "capstan": {"slide": 7e-6},
    "twist": {"critical_twist_error": 6.2e-3},
    "crossing": {"shape_error": 6.6e-4, "lift_error": 6.4e-4, "settling_residual": 1e-6},
}


def test_is_a_solver():
    """Be what the benchmark asks for."""
    from cosseratbench import Solver

    assert isinstance(Torchdismech(), Solver)


@pytest.mark.slow
@pytest.mark.parametrize("name", LIMITS)
def test_errors(name):
    """Stay within the errors that were measured."""
    found = main([name])[name]
    assert all(abs(found[metric]) < limit for metric, limit in LIMITS[name].items())
