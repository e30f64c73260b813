"""Every linear solver carries the same step."""

import pytest
import torch

from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, SimulationError, forces, straight

SOLVERS = ["dense", "banded", "multifrontal", "pcg", "bicgstab"]


def net(solver, fluid):
    """Return a batch-ready square net of rods, hung at two corners, in air or in a resistive fluid."""
    builder = RobotBuilder()
    youngs = torch.tensor([[1e6], [3e6]], dtype=torch.float64)
    for k in range(4):
        at = 0.05 * k
        for points in (straight((0, at, 0), (0.15, at, 0), 7), straight((at, 0, 0), (at, 0.15, 0), 7)):
            builder.add_rod(points, Circle(2e-3), Material(youngs, 1000.0))
    builder.clamp(nodes=[0], twist=False)
    builder.clamp(nodes=[6], twist=False)
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    if fluid:
        builder.add_force(forces.Resistive(0.05, 0.2))
    return builder.finalize(solver=solver)


def after_some_steps(solver, fluid):
    """Return the nodes after a few steps."""
    model = net(solver, fluid)
    state = model.initial_state()
    for _ in range(4):
        state, _ = ImplicitEuler(0.01, relative_tolerance=1e-10, force_tolerance=1e-10).step(model, state, throw=True)
    return state.positions


@pytest.mark.parametrize("fluid", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_agree(solver, fluid):
    """Take a net of rods through the same steps, symmetric and unsymmetric."""
    if solver == "pcg" and fluid:
        with pytest.raises(InputError, match="symmetric"):
            net(solver, fluid)
        return
    # residuals of 1e-10 N on a net whose softest motion has about 1e-2 N/m (mass over dt^2)
    assert (after_some_steps(solver, fluid) - after_some_steps("auto", fluid)).abs().max() < 1e-7


def test_options_reach_the_solver():
    """Give a Krylov solver few iterations: it says so, by its own status; and enough: it agrees."""
    model = net({"name": "pcg", "tolerance": 1e-11, "max_iterations": 400, "block_size": 4}, False)
    solver = model.solvers.of(2)
    assert (solver.tolerance, solver.max_iterations) == (1e-11, 400)
    given = {"name": "pcg", "tolerance": 1e-11}
    assert (after_some_steps(given, False) - after_some_steps("auto", False)).abs().max() < 1e-7  # as above
    with pytest.raises(SimulationError):
        after_some_steps({"name": "pcg", "max_iterations": 1}, False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"name": "pcg", "tolerence": 1e-9}, "pcg has no option 'tolerence'; it takes tolerance, max_iterations"),
        ({"name": "dense", "tolerance": 1e-9}, "dense has no option 'tolerance'; it takes none"),
        ({"name": "auto", "tolerance": 1e-9}, "auto has no option"),
        ({"tolerance": 1e-9}, "expected one of 'auto', 'dense'"),
        ({"name": "pcg", "tolerance": 2.0}, "0 < tolerance < 1"),
    ],
)
def test_options_that_no_solver_takes_are_refused(given, words):
    """Name the option and what there is."""
    with pytest.raises(InputError, match=words):
        net(given, False)


def test_unknown_solver_is_refused():
    """Name the solvers that there are."""
    with pytest.raises(InputError, match="banded"):
        net("magic", False)
